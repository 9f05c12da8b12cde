-- Tutti keeps the copies of a model together while many processes train it.
--
--    local tutti = require 'tutti'
--    local job = tutti.init()                     -- from `tutti run`, srun, torchrun, mpirun; else a job of one
--    local x = tutti.tensor.FloatTensor(4):fill(job:rank())
--    job:allreduce(x, 'average')
--
-- Errors are tables with `sentence`, `name` ("ETIMEDOUT"), `errno` and `rank`; tostring gives the sentence.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local call = require 'tutti.call'
local operation = require 'tutti.operation'
local job = require 'tutti.job'
local average = require 'tutti.average'
require 'tutti.collective'
require 'tutti.message'

local tutti = {
   tensor = require 'tutti.tensor',
   Window = require 'tutti.window',
   Table = require 'tutti.table',
   Gradients = average.Gradients,
   Elastic = average.Elastic,
   Center = require 'tutti.center',
   Gossip = require 'tutti.gossip',
   Controller = require 'tutti.controller',
   join = job.join,
   wait_all = operation.wait_all,
   wait_any = operation.wait_any,
   interruptible = call.interruptible,
   is_error = call.is_error,
}

local default

-- Joins the default job, or returns it. Options: see tutti.join; they are for the first call.
function tutti.init(options)
   if default and rawget(default, 'c') ~= nil then
      if options then call.refuse('the default job was joined before: tutti.join(options) joins a second one') end
      return default
   end
   default = job.join(options)
   return default
end

-- The default job if it was joined, else nil.
function tutti.current() return default and rawget(default, 'c') ~= nil and default or nil end

function tutti.version() return ffi.string(lib.tutti_version()) end

-- The alpha that the paper on elastic averaging recommends, and the largest stable one in turns.
function tutti.elastic_alpha(ranks) return lib.tutti_elastic_alpha(ranks) end
function tutti.elastic_alpha_max(eta) return lib.tutti_elastic_alpha_max(eta) end

return tutti
