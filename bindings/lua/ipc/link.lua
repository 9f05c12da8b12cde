-- Servers and clients: a server is rank 0 of a job that it begins alone; its clients join as new ranks.
local tutti = require 'tutti'
local surface = require 'tutti.surface'
local peers = require 'ipc.peer'
local posix = require 'ipc.posix'
local link = {}

local Server = {}
Server.__index = Server

local function remove(list, rank)
   for i, peer in ipairs(list) do
      if peer.rank == rank then return table.remove(list, i) end
   end
end

-- The messages of a client that has left are still there: for recvAny, and for clients(n, f) if that has not called f.
local function retire(server, rank)
   for _, peer in ipairs(server.waiting) do peer.has_left = peer.has_left or peer.rank == rank end
   server.left[#server.left + 1] = remove(server.peers, rank)
end

local function note_death(server, change)
   if not remove(server.peers, change.rank) then remove(server.waiting, change.rank) end
   server.death = ('ipc.server %s: %s'):format(server.where, change.why)
end

-- Reads the changes of the job. A client that has joined waits for clients(n, f), also if it leaves before that call.
local function look(server)
   for change in function() return server.job:next_change() end do
      if change.what == 'joined' then
         server.waiting[#server.waiting + 1] = peers.new(server.all, change.rank)
      elseif change.what == 'left' then
         retire(server, change.rank)
      else
         note_death(server, change)
      end
   end
end

-- Raises, once, that a client went down.
local function raise_death(server)
   look(server)
   local death = server.death
   server.death = nil
   if death then error(death, 0) end
end

-- The clients of a tag; all with tag nil.
local function tagged(clients, tag)
   local list = {}
   for _, peer in ipairs(clients) do
      if tag == nil or peer.label == tag then list[#list + 1] = peer end
   end
   return list
end

local function accept(server)
   local peer = table.remove(server.waiting, 1)
   server.count = server.count + 1
   peer.place = server.count
   peer.forget = function() return remove(server.peers, peer.rank) end
   server.peers[#server.peers + 1] = peer
end

-- Waits until n clients are there.
local function await(server, n)
   local deadline = os.time() + posix.SECONDS
   look(server)
   while #server.peers < n do
      if os.time() > deadline then
         local sentence = 'ipc.server %s: %d of %d clients have connected within %d seconds'
         error(sentence:format(server.where, #server.peers, n, posix.SECONDS), 0)
      end
      if server.waiting[1] then accept(server) else posix.readable(server.news, 100) end
      raise_death(server)
   end
end

-- clients(n, f) waits until n clients have connected, then calls f(client) for each. clients(f, tag, inverted): for
-- those that are there. Their order is that of their numbers (client:id), inverted if that is not 0; of one number the
-- client that came first is first. Returns how many there were.
function Server:clients(n, f, tag, inverted)
   if type(n) == 'function' then n, f, tag, inverted = 0, n, f, tag end
   if type(tag) == 'number' then tag, inverted = nil, tag end
   await(self, n)
   local list, sign = tagged(self.peers, tag), (inverted or 0) ~= 0 and -1 or 1
   table.sort(list, function(a, b)
      if a.number ~= b.number then return sign * a.number < sign * b.number end
      return a.place < b.place
   end)
   for _, peer in ipairs(list) do
      f(peer)
      if peer.has_left then retire(self, peer.rank) end
   end
   return #list
end

function Server:broadcast(value, tag)
   look(self)
   for _, peer in ipairs(tagged(self.peers, tag)) do peer:send(value) end
end

-- A client of the list that has sent something. One that has left and has nothing more to say is forgotten.
local function speaker(server, clients, tag)
   for _, peer in ipairs(tagged(clients, tag)) do
      local ok, has = pcall(peers.has_message, peer)
      if ok and has then return peer end
      if not ok and not tutti.is_error(has) then error(has, 0) end
      if not ok then remove(server.left, peer.rank) end
   end
end

local EIGHT = require('ffi').new('char[8]')

-- Waits until a started operation may have ended, or a client comes or goes.
function link.await_news(server)
   raise_death(server)
   local events = server.job:event_fd()
   if posix.ready({ events, server.news }, 100)[1] == 1 then posix.C.read(events, EIGHT, 8) end
end

-- The first message to come from any client (of this tag), and the client.
function Server:recvAny(tag)
   while true do
      look(self)
      local peer = speaker(self, self.left, tag) or speaker(self, self.peers, tag)
      if peer then return peers.receive(peer), peer end
      raise_death(self)
      if #tagged(self.peers, tag) == 0 and #tagged(self.left, tag) == 0 then
         error('recvAny: no client ' .. (tag ~= nil and 'with the tag ' .. tostring(tag) .. ' ' or '')
               .. 'is there: clients(n, f) waits for clients', 0)
      end
      link.await_news(self)
   end
end

function Server:netStats() return peers.net_stats(self.all, nil) end
function Server:close() self.job:leave() end

-- A server of a job that exists: rank 0 of it.
local function new_server(job, where)
   local server = setmetatable({ job = job, where = where, news = job:watch(), count = 0,
                                  waiting = {}, peers = {}, left = {} }, Server)
   server.all = job:everyone()
   server.all:timeout(nil) -- a message may be long in coming; a peer that dies is noticed all the same
   return server
end

local function arguments(host, port)
   if type(host) == 'number' then host, port = nil, host end
   return host or '127.0.0.1', tonumber(port)
end

-- Begins a server; returns it and its port. port nil: a free one.
function link.server(host, port)
   local job, where
   host, port = arguments(host, port)
   local given = port
   for try = 1, 20 do
      port = given or posix.free_port()
      where = ('%s:%d'):format(host, port)
      local ok, result = pcall(tutti.join, { boot = where, rank = 0, ranks = 1, newcomers = 4096 })
      if ok then
         job = result
         break
      end
      if given or try == 20 or not tutti.is_error(result) or result.name ~= 'EADDRINUSE' then error(result, 0) end
   end
   return new_server(job, where), port
end

-- Connects to a server, and waits for one.
function link.client(host, port)
   host, port = arguments(host, port)
   if not port then error('ipc.client(host, port) or ipc.client(port): the port is a number', 0) end
   local job = tutti.join({ boot = ('%s:%d'):format(host, port) })
   local peer = peers.new(job:everyone(), 0)
   peer.all:timeout(nil)
   peer.job = job
   return peer
end

surface.plain_all(Server)
return link
