-- One side of a connection between a server and a client. A message is a value as a string; of a tensor it is its head,
-- and then its elements, which are not packed.
local surface = require 'tutti.surface'
local lend = require 'ipc.lend'
local pack = require 'ipc.pack'
local peers = {}

local VALUE, ELEMENTS = 0, 1 -- tags
local CLOSED = 'x'           -- the message of a server that closes one connection
local EMPTY = require('ffi').new('char[0]')

-- `all` names all ranks of the job; rank is the other side's.
local Peer = {}
Peer.__index = Peer

function peers.new(all, rank) return lend.enter(setmetatable({ all = all, rank = rank, number = 0 }, Peer)) end

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
function peers.receive(peer, into)
   local message = not peer.ended and peer.all:recv_string(peer.rank, VALUE) or CLOSED
   local letter, body = message:sub(1, 1), message:sub(2)
   if message == CLOSED then
      peer.ended = true
      error('recv: the server has closed this connection', 0)
   end
   if letter ~= 'v' then return take_elements(peer, letter, body, into) end
   local ok, value = pcall(pack.decode, body)
   if not ok then error(('recv: rank %d: %s'):format(peer.rank, tostring(value)), 0) end
   if into ~= nil then refuse_into(describe(value), into) end
   return value
end

Peer.recv = peers.receive

function peers.has_message(peer)
   peer.look = peer.look or peer.all:recv_start(EMPTY, peer.rank, VALUE)
   if not peer.look:done() then return peer.ended end
   local failure = peer.look:failure()
   peer.look = nil
   if failure and failure.name ~= 'EMSGSIZE' then error(failure, 0) end
   return true
end

Peer.has_message = peers.has_message

-- The next message if one is there, else nil.
function Peer:recvAsync(into)
   if peers.has_message(self) then return peers.receive(self, into) end
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

-- Messages with a rank; with all of them with rank nil.
function peers.net_stats(all, rank)
   local sent, got = all:stats('send', rank), all:stats('recv', rank)
   return { tx = { num_calls = sent.ops, num_bytes = sent.bytes }, rx = { num_calls = got.ops, num_bytes = got.bytes } }
end
function Peer:netStats() return peers.net_stats(self.all, self.rank) end

-- A client's connection ends its job; a server tells the client, and forgets it.
function Peer:close()
   if self.forget and self.forget() then pcall(self.all.send, self.all, CLOSED, self.rank, VALUE) end
   if self.job then self.job:leave() end
end

-- ---- a connection of another process ----

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
function peers.copy(wire, number, closed)
   local peer = lend.from(setmetatable({}, Peer), wire, number)
   peer.closed = closed
   return peer
end

surface.plain_all(Peer)
return peers
