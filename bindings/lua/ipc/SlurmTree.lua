-- SlurmTree(dir, tasksPerGpu): all tasks of a Slurm step (or of tutti run, torchrun, mpirun). dir is not used: the
-- launcher says where the others are. Field gpu: which GPU of its host, from 1 up.
local tutti = require 'tutti'
local new_tree = require 'ipc.over_group'
local surface = require 'tutti.surface'

local function SlurmTree(dir, tasksPerGpu)
   local _ = dir
   local job = tutti.join()
   local tree = job:size() == 1 and require 'ipc.NullTree'() or new_tree(job, job)
   tree.gpu = math.floor(job:local_rank() / (tasksPerGpu or 1)) + 1
   return tree
end

return surface.plain(SlurmTree)
