-- Windows: named memory of this rank, and everyone's of that name.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local call = require 'tutti.call'
local handle = require 'tutti.handle'
local memory = require 'tutti.memory'
local operation = require 'tutti.operation'
local check = call.check

-- Offsets are bytes, ranks are the group's. put, get and add have a form NAME_start, which returns an Operation.
local Window = handle.class('Window')

-- Opens a window of this rank's memory x (nil: none) under a name of the job's. The window keeps x alive.
function Window.open(group, name, x)
   local m = x ~= nil and memory.writable(x) or { bytes = 0 }
   return handle.open(Window, 'tutti_window', { m, group }, group.c, name, m.pointer, m.bytes)
end

-- The bytes of a rank's window.
function Window:bytes(rank)
   local bytes = ffi.new('size_t[1]')
   check(lib.tutti_window_bytes(self.c, rank, bytes))
   return tonumber(bytes[0])
end

local function add(name, body) operation.both(Window, name, body) end

-- put(rank, offset, x): copies x there.
add('put', function(window, how, rank, offset, x)
   local m = memory.readable(x)
   return how(window, function(op) return lib.tutti_put(window.c, rank, offset, m.pointer, m.bytes, op) end, m)
end)

-- get(rank, offset, x): copies from there into x, and returns x.
add('get', function(window, how, rank, offset, x)
   local m = memory.writable(x)
   return how(window, function(op) return lib.tutti_get(window.c, rank, offset, m.pointer, m.bytes, op) end, m, x)
end)

-- add(rank, offset, value): adds to an aligned uint64_t there, and returns what was there before (a uint64_t).
add('add', function(window, how, rank, offset, value)
   local old = ffi.new('uint64_t[1]')
   return how(window, function(op) return lib.tutti_add(window.c, rank, offset, value, old, op) end, old,
              function() return old[0] end)
end)

-- put_notify(rank, offset, x, slot): a put, after which the receiver counts one more notify in the slot. x nil: none.
add('put_notify', function(window, how, rank, offset, x, slot)
   local m = x ~= nil and memory.readable(x) or { bytes = 0 }
   return how(window, function(op)
      return lib.tutti_put_notify(window.c, rank, offset, m.pointer, m.bytes, slot or 0, op)
   end, m)
end)

-- Waits until `count` notifies have come in the slot from a rank (nil: from any) since this window was opened.
function Window:wait_notify(rank, slot, count, timeout)
   check(lib.tutti_wait_notify(self.c, rank or -1, slot or 0, count, call.milliseconds(timeout)))
end

return Window
