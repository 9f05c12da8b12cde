-- DiscoveredTree(nodeIndex, numNodes, host, port, publish, query): node 1 calls publish(host, port). The others call
-- query(), which returns host and port, or nothing yet.
local posix = require 'ipc.posix'
local StaticTree = require 'ipc.StaticTree'
local surface = require 'tutti.surface'

local function ask(query)
   local deadline = os.time() + posix.SECONDS
   repeat
      local host, port = query()
      if host then return host, tonumber(port) end
      posix.sleep(20)
   until os.time() > deadline
   error(('DiscoveredTree: node 1 has not published its address within %d seconds'):format(posix.SECONDS), 0)
end

local function DiscoveredTree(nodeIndex, numNodes, host, port, publish, query)
   if numNodes == 1 then return require 'ipc.NullTree'() end
   host = host or '127.0.0.1'
   local rootHost, rootPort = host, port
   if nodeIndex == 1 then
      rootPort = port or posix.free_port()
      publish(host, rootPort)
   else
      rootHost, rootPort = ask(query)
   end
   return StaticTree(nodeIndex, numNodes, host, port, rootHost, rootPort)
end

return surface.plain(DiscoveredTree)
