-- Handles of the library, which close once: by close(), or when nobody refers to them any more.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local call = require 'tutti.call'
local handle = {}

-- What an open handle or a started operation uses: it must outlive them, also where all of it becomes garbage at once.
local held = {}

-- Makes an object of a class around the pointer c. close(c) ends it; hold stays until then.
function handle.new(class, c, close, hold)
   local key = {}
   held[key] = hold
   ffi.gc(c, function(p)
      close(p)
      held[key] = nil
   end)
   return setmetatable({ c = c, _key = key, _close = close }, class)
end

-- The open handle uses this from now on, and no longer what it was given.
function handle.hold(object, hold)
   held[object._key] = hold
end

-- Opens by the library's function NAME_open, whose last argument is where the handle goes: the ones before are given.
function handle.open(class, name, hold, ...)
   local place, n, arguments = ffi.new(name .. ' *[1]'), select('#', ...), { ... }
   arguments[n + 1] = place
   call.check(lib[name .. '_open'](unpack(arguments, 1, n + 1)))
   return handle.new(class, place[0], lib[name .. '_close'], hold)
end

-- Closes; harmless twice.
function handle.close(object)
   local c = rawget(object, 'c')
   if c == nil then return end
   object.c = nil
   ffi.gc(c, nil)
   object._close(c)
   held[object._key] = nil
end

-- Returns the class's metatable: a use after close() is an error with a sentence.
function handle.class(name)
   local class = {}
   class.__index = function(object, key)
      if key == 'c' then call.refuse('the %s is closed', name) end
      return class[key]
   end
   class.__tostring = function(object)
      return ('tutti.%s%s'):format(name, rawget(object, 'c') == nil and ' (closed)' or '')
   end
   class.close = handle.close
   return class
end

return handle
