-- LocalhostTree(nodeIndex, numNodes, ppid): the nodes are children of one parent process (ppid), on one host. Node 1
-- writes its port into a file, and the parent's process number names the file.
local DiscoveredTree = require 'ipc.DiscoveredTree'
local posix = require 'ipc.posix'
local surface = require 'tutti.surface'

local trees = 0

local function write(path, text)
   local new = path .. '.' .. posix.C.getpid()
   local file, why = io.open(new, 'w')
   if not file then error('LocalhostTree: ' .. why, 0) end
   file:write(text)
   file:close()
   assert(os.rename(new, path))
end

-- Returns the address in the file, if the process that wrote the file lives. A node 1 that died may have left a file.
local function read(path)
   local file = io.open(path)
   if not file then return nil end
   local port, pid = file:read('*n', '*n')
   file:close()
   if not pid or posix.C.kill(pid, 0) ~= 0 then return nil end
   return '127.0.0.1', port
end

local function LocalhostTree(nodeIndex, numNodes, ppid)
   trees = trees + 1
   local path = ('%s/tutti.%d.%d.localhost'):format(os.getenv('TMPDIR') or '/tmp', ppid or posix.C.getppid(), trees)
   local function publish(_, port) write(path, ('%d %d\n'):format(port, posix.C.getpid())) end
   local function query() return read(path) end
   local ok, tree = pcall(DiscoveredTree, nodeIndex, numNodes, '127.0.0.1', nil, publish, query)
   if nodeIndex == 1 then os.remove(path) end
   if not ok then error(tree, 0) end
   return tree
end

return surface.plain(LocalhostTree)
