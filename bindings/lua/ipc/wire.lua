-- Messages between a process and one that it has forked, over a pair of sockets: a letter, a length, the bytes.
local ffi = require 'ffi'
local posix = require 'ipc.posix'
local C = posix.C
local wire = {}

local HEAD, ROOM, NO_SIGNAL = 16, 65536, 0x4000 -- bytes of letter and length; bytes of one read; of send(2)
local STREAM_CLOEXEC = 0x80001 -- of socketpair(2): programs that this process starts have no end of it either
local open = setmetatable({}, { __mode = 'k' }) -- the ends that this process has
local room = ffi.new('char[?]', ROOM)

local Wire = {}
Wire.__index = Wire

local function over(fd)
   local hold = ffi.gc(ffi.new('char[1]'), function() C.close(fd) end)
   local new = setmetatable({ fd = fd, hold = hold, chunks = {}, bytes = 0, needed = HEAD }, Wire)
   open[new] = true
   return new
end

-- Two ends: one for each process, which closes the other end.
function wire.pair()
   local ends = ffi.new('int[2]')
   if C.socketpair(1, STREAM_CLOEXEC, 0, ends) ~= 0 then posix.fail('ipc.map: a pair of sockets') end
   return over(ends[0]), over(ends[1])
end

function Wire:close()
   if not self.hold then return end
   ffi.gc(self.hold, nil)
   self.hold = nil
   open[self] = nil
   C.close(self.fd)
end

-- In a process that fork has just made: closes all ends but its own one, if it has one. While this process kept an end
-- of another process's wire, that process would not see that its other side is closed.
function wire.close_others(own)
   local others = {}
   for one in pairs(open) do others[#others + 1] = one ~= own and one or nil end
   for _, one in ipairs(others) do one:close() end
end

-- Is given up silently if the other process has ended: the next receive says so.
function Wire:send(letter, body)
   if not self.hold then return end
   local message = ('%s%15d'):format(letter, #body) .. body
   local at, p = 0, ffi.cast('const char *', message)
   while at < #message do
      local n = tonumber(C.send(self.fd, p + at, #message - at, NO_SIGNAL))
      if n <= 0 then return end
      at = at + n
   end
end

-- Reads what has come so far; returns false at the end.
function Wire:read()
   local n = tonumber(C.read(self.fd, room, ROOM))
   if n <= 0 then return false end
   self.chunks[#self.chunks + 1] = ffi.string(room, n)
   self.bytes = self.bytes + n
   return true
end

-- The next message that has come whole: its letter and its bytes; else nil.
function Wire:take()
   if self.bytes < self.needed then return nil end
   local all = table.concat(self.chunks)
   local stop = HEAD + tonumber(all:sub(2, HEAD))
   if #all < stop then
      self.chunks, self.needed = { all }, stop
      return nil
   end
   self.chunks, self.bytes, self.needed = { all:sub(stop + 1) }, #all - stop, HEAD
   return all:sub(1, 1), all:sub(HEAD + 1, stop)
end

-- Waits for the next message; nil if the other process has ended, or this end is closed.
function Wire:receive()
   if not self.hold then return nil end
   repeat
      local letter, body = self:take()
      if letter then return letter, body end
      while not posix.readable(self.fd, 100) do end
   until not self:read()
end

return wire
