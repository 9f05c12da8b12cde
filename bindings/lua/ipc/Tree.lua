-- Tree(nodeIndex, numNodes, base, server, client, host, port): the nodes are the process of a server (node 1) and its
-- clients, whose nodeIndex may be nil. base, host and port are not used: the connections of the server are.
local link = require 'ipc.link'
local new_tree = require 'ipc.over_group'
local pack = require 'ipc.pack'
local posix = require 'ipc.posix'
local surface = require 'tutti.surface'

local TREE = 2 -- the tag; ipc.peer has the ones below
local trees = 0

-- Waits for what a client wants: its rank, and the number of its node, if it has one.
local function next_hello(server, numNodes, missing)
   local room = require('ffi').new('char[64]')
   local op, deadline = server.all:recv_start(room, nil, TREE), os.time() + posix.SECONDS
   local ok, why
   while not op:done() do
      ok, why = pcall(link.await_news, server)
      if ok and os.time() > deadline then ok, why = false, ('%d seconds have passed'):format(posix.SECONDS) end
      if not ok then
         op:cancel()
         error(('Tree: %d of %d nodes have not called it: %s'):format(missing, numNodes, tostring(why)), 0)
      end
   end
   local info = op:wait()
   local index, nodes = require('ffi').string(room, info.bytes):match('^(%d*) (%d+)$')
   if tonumber(nodes) ~= numNodes then
      return info.rank, nil, ('Tree: node 1 has %d nodes, and another node has %s'):format(numNodes, nodes)
   end
   return info.rank, tonumber(index)
end

-- The ranks of all nodes, in their order; or why there are none.
local function order(numNodes, hellos)
   local ranks, free = { 0 }, {}
   for _, hello in ipairs(hellos) do
      if not hello.index then
         free[#free + 1] = hello.rank
      elseif hello.index < 2 or hello.index > numNodes or ranks[hello.index] then
         return nil, ('Tree: a node is number %d, which another node has, or which is not from 2 to %d'):format(
            hello.index, numNodes)
      else
         ranks[hello.index] = hello.rank
      end
   end
   for i = 2, numNodes do ranks[i] = ranks[i] or table.remove(free, 1) end
   return ranks
end

-- The hellos of the nodes that have come, and what is wrong with them, if anything is.
local function gather(numNodes, server)
   local hellos, why = {}, nil
   for i = 1, numNodes - 1 do
      local ok, rank, index, problem = pcall(next_hello, server, numNodes, numNodes - i)
      if not ok then return hellos, why or rank end
      hellos[i], why = { rank = rank, index = index }, why or problem
   end
   return hellos, why
end

-- Each node that has come gets an answer, also when another one has not come or has died.
local function root(numNodes, server)
   local hellos, why = gather(numNodes, server)
   local ranks
   if not why then ranks, why = order(numNodes, hellos) end
   trees = trees + 1
   local name = 'ipc.Tree ' .. trees
   local answer, failure = pack.encode({ why = why, ranks = ranks, name = name }), why
   for _, hello in ipairs(hellos) do
      local ok, problem = pcall(server.all.send, server.all, answer, hello.rank, TREE)
      if not ok then failure = failure or problem end
   end
   if failure then error(failure, 0) end
   return server.all:of(ranks, name)
end

local function leaf(nodeIndex, numNodes, client)
   client.all:send(('%s %d'):format(nodeIndex or '', numNodes), 0, TREE)
   local answer = pack.decode((client.all:recv_string(0, TREE)))
   if answer.why then error(answer.why, 0) end
   return client.all:of(answer.ranks, answer.name)
end

local function Tree(nodeIndex, numNodes, base, server, client, host, port)
   local _ = base, host, port
   if not server and not client then error('Tree: node 1 gives its server, and the others their clients', 0) end
   if type(numNodes) ~= 'number' or numNodes < 1 then error('Tree: numNodes is a number from 1 up', 0) end
   local group = server and root(numNodes, server) or leaf(nodeIndex, numNodes, client)
   group:timeout(0) -- messages of servers and clients wait without a limit, and reduces do not
   return new_tree(group)
end

return surface.plain(Tree)
