-- A client's connection lives in the process that has opened it. Another process of a map has a copy of the client, or
-- gets one as a result; each method of a copy asks the process where the connection lives.
local pack = require 'ipc.pack'
local posix = require 'ipc.posix'
local lend = {}

local owned, count = setmetatable({}, { __mode = 'v' }), 0 -- by number: what other processes may ask for
-- Of each client: its number, the process that has it (home), and for a copy of another process's client the wire to
-- that process and the number there (theirs).
local places = setmetatable({}, { __mode = 'k' })
local parent -- the wire to the process whose map this process belongs to

-- The map's processes know each client of their parent by its number.
function lend.enter(client)
   count = count + 1
   owned[count] = client
   places[client] = { number = count, home = posix.C.getpid() }
   return client
end

-- Makes of a client a copy, which lives at the other end of the wire under this number.
function lend.from(client, wire, number)
   lend.enter(client)
   places[client].wire, places[client].theirs = wire, number
   return client
end

-- The number of a client, nil for all else.
function lend.number_of(x) return places[x] and places[x].number end

function lend.refuse(x)
   if places[x] then error('a client cannot be sent: give it to a map as an argument, or return it from there', 0) end
end

-- In a process that fork has just made: wire nil if no map has made it.
function lend.begin(wire) parent = wire end

function lend.is_here(client) return places[client].home == posix.C.getpid() and not places[client].wire end

function lend.ask(client, name, ...)
   local place = places[client]
   local wire, number = place.wire, place.theirs
   if place.home ~= posix.C.getpid() then wire, number = parent, place.number end
   if not wire then error('a client works in the process that has connected it, and in maps of that process', 0) end
   wire:send('Q', pack.encode({ number = number, name = name, n = select('#', ...), ... }, lend.refuse))
   local letter, answer = wire:receive()
   if not letter then error(name .. ': the process that has connected this client has ended', 0) end
   if letter == 'E' then error(answer, 0) end
   return (pack.decode(answer, 1, pack.OURS))
end

-- What the other end of a wire has asked for.
function lend.question(request) return pack.decode(request, 1, pack.OURS) end

-- Whether the answer is a message that has not come. What else may be wrong, the answer says.
function lend.must_wait(q)
   if q.name ~= 'recv' then return false end
   local ok, has = pcall(function()
      local client = owned[q.number]
      return client:has_message()
   end)
   return ok and not has
end

-- A descriptor that is readable when the message may have come; nil if the client lives in a third process.
function lend.event_fd(q)
   local client = owned[q.number]
   return lend.is_here(client) and client.all.job:event_fd() or nil
end

function lend.answer(wire, q)
   local ok, said = pcall(function()
      local client = owned[q.number]
      return pack.encode(client[q.name](client, unpack(q, 1, q.n)))
   end)
   wire:send(ok and 'A' or 'E', tostring(said))
end

-- Answers until the other end is closed. These clients are asked for, and live that long.
function lend.serve(wire, clients)
   lend.serving = clients
   for _, request in function() return wire:receive() end do lend.answer(wire, lend.question(request)) end
end

return lend
