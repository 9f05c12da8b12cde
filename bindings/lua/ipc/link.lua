-- Servers and clients: a server is rank 0 of a job that it begins alone; its clients join as new ranks. A message is a
-- value as a string; of a tensor it is its head, and then its elements, which are not packed.
local tutti = require 'tutti'
local surface = require 'tutti.surface'
local lend = require 'ipc.lend'
local pack = require 'ipc.pack'
local posix = require 'ipc.posix'
local link = {}

local VALUE, ELEMENTS = 0, 1 -- tags
link.TREE = 2                -- ipc.Tree's

local CLOSED = 'x' -- the message of a server that closes one connection
local EMPTY = require('ffi').new('char[0]')

-- ---- one peer ----

-- `all` names all ranks of the job; rank is the peer's.
local Peer = {}
Peer.__index = Peer

local function new_peer(all, rank) return lend.enter(setmetatable({ all = all, rank = rank, number = 0 }, Peer)) end

local function send_elements(peer, letter, t)
   peer.all:send(letter .. pack.head(t), peer.rank, VALUE)
   if t:nElement() > 0 then peer.all:send(t:contiguous(), peer.rank, ELEMENTS) end
end

function Peer:send(value)
   if surface.is_tensor(value) then
      send_elements(self, 't', value)
   elseif surface.is_storage(value) then
      send_elements(self, 's', surface.over_storage(value))
   else
      self.all:send('v' .. pack.encode(value, lend.refuse), self.rank, VALUE)
   end
end

local function describe(x)
   if surface.is_tensor(x) then return 'tensor "' .. pack.head(x) .. '"' end
   if surface.is_storage(x) then return 'storage "' .. pack.head(surface.over_storage(x)) .. '"' end
   return type(x)
end

local function refuse_into(came, into)
   local sentence = 'recv: a %s has come, and what to receive into is a %s: type and sizes must match'
   error(sentence:format(came, describe(into)), 0)
end

-- The elements of a message come into `into`, else into new memory. Of another size or type they are taken, and it is
-- an error.
local function take_elements(peer, letter, head, into)
   local came = (letter == 't' and 'tensor "' or 'storage "') .. head .. '"'
   local fits = into == nil or describe(into) == came
   local t = (into == nil or not fits) and pack.tensor(head) or letter == 's' and surface.over_storage(into) or into
   local room = t:isContiguous() and t or pack.tensor(head)
   if room:nElement() > 0 then peer.all:recv(room, peer.rank, ELEMENTS) end
   if not fits then refuse_into(came, into) end
   if room ~= t then t:copy(room) end
   return into or (letter == 's' and t:storage()) or t
end

-- The next message; a tensor or a storage comes into `into` if one is given.
local function receive(peer, into)
   local message = not peer.ended and peer.all:recv_string(peer.rank, VALUE) or CLOSED
   local letter, body = message:sub(1, 1), message:sub(2)
   if message == CLOSED then
      peer.ended = true
      error('recv: the server has closed this connection', 0)
   end
   if letter ~= 'v' then return take_elements(peer, letter, body, into) end
   local value = pack.decode(body)
   if into ~= nil then refuse_into(describe(value), into) end
   return value
end

Peer.recv = receive

local function has_message(peer)
   peer.look = peer.look or peer.all:recv_start(EMPTY, peer.rank, VALUE)
   if not peer.look:done() then return peer.ended end
   local failure = peer.look:failure()
   peer.look = nil
   if failure and failure.name ~= 'EMSGSIZE' then error(failure, 0) end
   return true
end

-- The next message if one is there, else nil.
function Peer:recvAsync(into)
   if has_message(self) then return receive(self, into) end
end

-- Names that the program gives to its side of the connection.
function Peer:tag(tag)
   if tag ~= nil then self.label = tag end
   return self.label
end
function Peer:id(id)
   if id ~= nil then self.number = tonumber(id) or 0 end
   return self.number
end

function Peer:address()
   local peer = self.all:peer(self.rank)
   return peer.address:match('^(.*):%d+$') or peer.host
end

local function net_stats(all, rank)
   local sent, got = all:stats('send', rank), all:stats('recv', rank)
   return { tx = { num_calls = sent.ops, num_bytes = sent.bytes }, rx = { num_calls = got.ops, num_bytes = got.bytes } }
end
function Peer:netStats() return net_stats(self.all, self.rank) end

-- A client's connection ends its job; a server tells the client, and forgets it.
function Peer:close()
   if self.forget and self.forget() then pcall(self.all.send, self.all, CLOSED, self.rank, VALUE) end
   if self.job then self.job:leave() end
end

-- ---- a peer whose connection is in another process ----

local function ask_into(peer, name, into)
   local value = lend.ask(peer, name)
   if into == nil or value == nil then return value end
   if describe(value) ~= describe(into) then refuse_into(describe(value), into) end
   return into:copy(value)
end

local function ask(peer, name, x)
   if name == 'recv' or name == 'recvAsync' then return ask_into(peer, name, x) end
   if name ~= 'close' then return lend.ask(peer, name, x) end
   if peer.was_closed then return end
   peer.was_closed = true
   lend.ask(peer, name)
   if peer.closed then peer.closed() end
end

for name, f in pairs(Peer) do
   if type(f) == 'function' then
      Peer[name] = function(peer, x)
         if lend.is_here(peer) then return f(peer, x) end
         return ask(peer, name, x)
      end
   end
end

-- A copy of a client that lives at the other end of the wire; at its close it calls closed().
function link.copy(wire, number, closed)
   local peer = lend.from(setmetatable({}, Peer), wire, number)
   peer.closed = closed
   return peer
end

-- ---- a server ----

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

local function bury(server, change)
   if not remove(server.peers, change.rank) then remove(server.waiting, change.rank) end
   server.death = ('ipc.server %s: %s'):format(server.where, change.why)
end

-- Takes in who has come and gone since. Who has come waits for clients(n, f), also one that leaves before that.
local function look(server)
   for change in function() return server.job:next_change() end do
      if change.what == 'joined' then
         server.waiting[#server.waiting + 1] = new_peer(server.all, change.rank)
      elseif change.what == 'left' then
         retire(server, change.rank)
      else
         bury(server, change)
      end
   end
end

-- Raises, once, that a client went down.
local function mourn(server)
   look(server)
   local death = server.death
   server.death = nil
   if death then error(death, 0) end
end

-- The clients of a tag; all with tag nil.
local function tagged(peers, tag)
   local list = {}
   for _, peer in ipairs(peers) do
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
      mourn(server)
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
local function speaker(server, peers, tag)
   for _, peer in ipairs(tagged(peers, tag)) do
      local ok, has = pcall(has_message, peer)
      if ok and has then return peer end
      if not ok then remove(server.left, peer.rank) end
   end
end

local EIGHT = require('ffi').new('char[8]')

-- Waits until a started operation may have ended, or a client comes or goes.
function link.await_news(server)
   mourn(server)
   local events = server.job:event_fd()
   if posix.ready({ events, server.news }, 100)[1] == 1 then posix.C.read(events, EIGHT, 8) end
end

-- The first message to come from any client (of this tag), and the client.
function Server:recvAny(tag)
   while true do
      look(self)
      local peer = speaker(self, self.left, tag) or speaker(self, self.peers, tag)
      if peer then return receive(peer), peer end
      mourn(self)
      if #tagged(self.peers, tag) == 0 and #tagged(self.left, tag) == 0 then
         error('recvAny: no client ' .. (tag ~= nil and 'with the tag ' .. tostring(tag) .. ' ' or '')
               .. 'is there: clients(n, f) waits for clients', 0)
      end
      link.await_news(self)
   end
end

function Server:netStats() return net_stats(self.all, nil) end
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
   local peer = new_peer(job:everyone(), 0)
   peer.all:timeout(nil)
   peer.job = job
   return peer
end

surface.plain_all(Peer)
surface.plain_all(Server)
return link
