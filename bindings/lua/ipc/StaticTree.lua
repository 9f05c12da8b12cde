-- StaticTree(nodeIndex, numNodes, host, port, rootHost, rootPort): all nodes know where node 1 listens.
local tutti = require 'tutti'
local new_tree = require 'ipc.over_group'
local surface = require 'tutti.surface'

local function StaticTree(nodeIndex, numNodes, host, port, rootHost, rootPort)
   if numNodes == 1 then return require 'ipc.NullTree'() end
   rootHost, rootPort = rootHost or host, rootPort or port
   local job = tutti.join({ boot = ('%s:%d'):format(rootHost, rootPort), rank = nodeIndex - 1, ranks = numNodes })
   return new_tree(job, job)
end

return surface.plain(StaticTree)
