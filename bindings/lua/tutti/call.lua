-- Calls into the library: results below 0 become errors, and Ctrl-C ends each wait.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local call = {}

-- An error of the library: `sentence`, `errno` (positive), `name` ("ETIMEDOUT"), and `rank`: the number in the job of
-- the rank that the error is about, or nil. tostring gives the sentence.
local Error = { __tostring = function(e) return e.sentence end }
Error.__index = Error
Error.__concat = function(a, b) return tostring(a) .. tostring(b) end
call.Error = Error

function call.is_error(e) return getmetatable(e) == Error end

local ABOUT_A_RANK = { ECONNRESET = true, ENOTCONN = true, ECONNABORTED = true }

-- Makes the error of a negative errno and its sentence.
function call.new_error(err, sentence)
   local name = lib.tutti_error_name(err)
   name = name ~= nil and ffi.string(name) or ''
   local rank = ABOUT_A_RANK[name] and tonumber(sentence:match('%f[%w]rank (%d+)'))
   return setmetatable({ errno = -err, name = name, sentence = sentence, rank = rank or nil }, Error)
end

-- Refuses an argument, with a sentence.
function call.refuse(...)
   error(call.new_error(-22, string.format(...)), 0)
end

-- How Ctrl-C ends a wait. A Lua function cannot run inside a C function that waits, and a signal's handler cannot run
-- Lua. But the handler of the program `luajit` sets a debug hook, and lua_gethookmask says that there is one: as the
-- library's wait hook it ends the wait, and the debug hook then raises "interrupted!".
ffi.cdef 'int lua_gethookmask(void *);'
local state = coroutine.create(function() end) -- any thread of this Lua will do; this one lives as long as the module
local hooked = false

-- Lets debug hooks (Ctrl-C) end the waits of this Lua, or no longer. Returns whether they do.
function call.interruptible(wanted)
   local there, mask = pcall(function() return ffi.C.lua_gethookmask end)
   hooked = wanted and there
   if hooked then
      lib.tutti_on_wait(mask, ffi.cast('void *', tonumber(tostring(state):match('0x%x+'))))
   else
      lib.tutti_on_wait(nil, nil)
   end
   return hooked
end
-- A program with a debug hook of its own (a debugger, a profiler) would have each wait ended by it.
call.interruptible(debug.gethook() == nil)

local EINTR = -4

local function fail(err)
   local sentence = ffi.string(lib.tutti_why())
   if err == EINTR and hooked and type(debug.gethook()) == 'function' then
      sentence = 'the program has set a debug hook, which ends all waits: set it before require "tutti", or call '
         .. 'tutti.interruptible(false) before'
   end
   error(call.new_error(err, sentence), 0)
end

-- Returns a result that is not negative.
function call.check(result)
   if result < 0 then fail(result) end
   return result
end

-- Seconds to the library's milliseconds: nil is -1, no limit of the call's own.
function call.milliseconds(seconds)
   if seconds == nil then return -1 end
   if type(seconds) ~= 'number' or not (seconds >= 0 and seconds < 2147483) then
      call.refuse('a time is from 0 to 2147483 seconds, or nil, and not %s', tostring(seconds))
   end
   return math.ceil(seconds * 1000)
end

-- A choice by its name: names maps names to numbers of the library.
function call.choice(names, name, what)
   local code = names[name]
   if code == nil then
      local known = {}
      for k in pairs(names) do known[#known + 1] = k end
      table.sort(known)
      call.refuse('no %s is called %s: use %s', what, tostring(name), table.concat(known, ', '))
   end
   return code
end

-- Sets members of a C struct from a table of options; refuses those that the struct does not have.
function call.set_members(struct, options, what)
   for name, value in pairs(options or {}) do
      local ok = pcall(function() struct[name] = value end)
      if not ok then call.refuse('%s has no option %s of that type', what, tostring(name)) end
   end
   return struct
end

return call
