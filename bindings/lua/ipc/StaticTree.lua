-- StaticTree(nodeIndex, numNodes, host, port, rootHost, rootPort): all nodes know where node 1 listens.
local tutti = require 'tutti'
local new_tree = require 'ipc.over_group'
local surface = require 'tutti.surface'

local function StaticTree(nodeIndex, numNodes, host, port, rootHost, rootPort)
   rootHost, rootPort = rootHost or host, tonumber(rootPort or port)
   if numNodes == 1 then return require 'ipc.NullTree'() end
   if type(nodeIndex) ~= 'number' or type(numNodes) ~= 'number' or nodeIndex < 1 or nodeIndex > numNodes
      or not rootHost or not rootPort then
      error(('StaticTree: node %s of %s at %s:%s: nodeIndex is from 1 to numNodes, and host and port are where node 1 '
             .. 'listens'):format(tostring(nodeIndex), tostring(numNodes), tostring(rootHost), tostring(rootPort)), 0)
   end
   local job = tutti.join({ boot = ('%s:%d'):format(rootHost, rootPort), rank = nodeIndex - 1, ranks = numNodes })
   return new_tree(job, job)
end

return surface.plain(StaticTree)
