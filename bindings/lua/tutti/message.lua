-- Messages between two ranks of a group, with a tag.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local call = require 'tutti.call'
local memory = require 'tutti.memory'
local operation = require 'tutti.operation'
local Group = require('tutti.group').Group

local EMSGSIZE = -90

local function told(info) return { rank = info.rank, tag = info.tag, bytes = tonumber(info.bytes) } end

-- send and recv have a form NAME_start, which returns an Operation.
-- send(x, rank, tag): sends x (a tensor, an array, a string) to a rank. Returns when x is the caller's again. tag: from 0
-- up, 0 by default.
operation.both(Group, 'send', function(group, how, x, rank, tag)
   local m = memory.readable(x)
   return how(group, function(op) return lib.tutti_send(group.c, rank, tag or 0, m.pointer, m.bytes, op) end, m)
end)

-- recv(x, rank, tag): receives the next message with the tag from a rank, or from any rank (nil), into x. Returns rank,
-- tag and bytes in a table. EMSGSIZE: x is too small; the message stays, and probe gives its length.
operation.both(Group, 'recv', function(group, how, x, rank, tag)
   local m, info = memory.writable(x), ffi.new('tutti_message')
   return how(group, function(op)
      return lib.tutti_recv(group.c, rank or -1, tag or 0, m.pointer, m.bytes, info, op)
   end, { m, info }, function() return told(info) end)
end)

-- Waits for the next message, and leaves it for the next recv.
function Group:probe(rank, tag)
   local info = ffi.new('tutti_message')
   local err = lib.tutti_recv(self.c, rank or -1, tag or 0, nil, 0, info, nil)
   if err ~= EMSGSIZE then call.check(err) end
   return told(info)
end

-- Receives the next message as a string. An empty message is taken by the look at its length.
function Group:recv_string(rank, tag)
   local info = self:probe(rank, tag)
   if info.bytes == 0 then return '', info end
   local room = ffi.new('char[?]', info.bytes)
   self:recv(room, info.rank, tag)
   return ffi.string(room, info.bytes), info
end

return Group
