-- A tree of torch-ipc over a group of Tutti: node i is rank i - 1. How its messages go is Tutti's own choice.
local reduce = require 'ipc.reduce'
local surface = require 'tutti.surface'

-- group: of all nodes. job: what close() leaves, if the tree has joined it for itself.
return function(group, job)
   local tree = { nodeIndex = group:rank() + 1, numNodes = group:size(), walkTable = surface.walk, group = group }
   tree.allReduce = surface.plain(function(value, f, zero) return reduce.all_reduce(tree, value, f, zero) end)
   tree.scatter = surface.plain(function(value) return reduce.scatter(tree, value) end)
   function tree.netStats()
      local s = group:stats('allreduce')
      return { num_reduces = s.ops, num_bytes_reduced = s.bytes, mean_us = s.mean_us, p99_us = s.p99_us }
   end
   function tree.close() -- of a server's tree the server and its clients close
      if job then job:leave() end
   end
   return tree
end
