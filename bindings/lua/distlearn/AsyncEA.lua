-- AsyncEA: a server has the center; clients move it one at a time, in the order in which they ask; a tester gets it.
--   AsyncEA(server, serverBroadcast, client, clientBroadcast, serverTest, clientTest, numNodes, node, tau, alpha)
-- server: a table of a server for each client; client: this client's connection to its own. A process gives what it is.
-- Messages: a client asks { enter = node } where all clients are heard, gets the center, and sends its move.
local surface = require 'tutti.surface'

local function send_all(peer, list)
   for _, t in ipairs(list) do peer:send(t) end
end

local function recv_all(peer, list)
   for _, t in ipairs(list) do peer:recv(t) end
end

local function copy_all(to, from)
   for i, t in ipairs(to) do t:copy(from[i]) end
end

local function only_client(server)
   local found
   server:clients(1, function(client) found = found or client end)
   return found
end

local function AsyncEA(server, serverBroadcast, client, clientBroadcast, serverTest, clientTest, numNodes, node, tau,
                       alpha)
   if type(tau) ~= 'number' or type(alpha) ~= 'number' then
      error('AsyncEA has ten arguments: server, serverBroadcast, client, clientBroadcast, serverTest, clientTest, '
            .. 'numNodes, node, tau, alpha', 0)
   end
   local steps, center, delta = 0, nil, nil
   local function begin(params)
      if center then return end
      center, delta = {}, {}
      for i, p in ipairs(surface.leaves(params)) do center[i], delta[i] = p:clone(), p:clone() end
   end
   local a = {}

   -- ---- the server ----

   -- Gives all clients the parameters to begin with.
   function a.initServer(params)
      begin(params)
      serverBroadcast:clients(numNodes, function(peer) send_all(peer, center) end)
   end

   -- Serves the next client; params become the center.
   function a.syncServer(params)
      local asked = serverBroadcast:recvAny()
      local peer = type(asked) == 'table' and server[asked.enter] and only_client(server[asked.enter])
      if not peer then error('AsyncEA: a client has asked that is none of the nodes 1 to ' .. tostring(numNodes), 0) end
      send_all(peer, center)
      recv_all(peer, delta)
      for i, c in ipairs(center) do c:add(delta[i]) end
      copy_all(surface.leaves(params), center)
   end

   -- Gives the tester the center, and waits until the test is done.
   function a.testNet()
      local peer = only_client(serverTest)
      send_all(peer, center)
      peer:recv()
   end

   -- ---- a client ----

   function a.initClient(params)
      begin(params)
      recv_all(clientBroadcast, center)
      copy_all(surface.leaves(params), center)
   end

   -- After each step. Every tau steps it moves the parameters and the center to each other, and returns true.
   function a.syncClient(params)
      steps = steps + 1
      if steps % tau ~= 0 then return false end
      clientBroadcast:send({ enter = node })
      recv_all(client, center)
      for i, p in ipairs(surface.leaves(params)) do
         delta[i]:copy(p):add(-1, center[i]):mul(alpha)
         p:add(-1, delta[i])
      end
      send_all(client, delta)
      return true
   end

   -- ---- the tester ----

   function a.initTester(params) begin(params) end

   -- Waits for a center to test.
   function a.startTest(params)
      recv_all(clientTest, center)
      copy_all(surface.leaves(params), center)
   end

   function a.finishTest() clientTest:send('done') end

   return surface.plain_all(a)
end

return surface.plain(AsyncEA)
