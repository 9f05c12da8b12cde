-- Operations that run while the program computes.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local call = require 'tutti.call'
local handle = require 'tutti.handle'
local check = call.check
local operation = {}

local EINPROGRESS, ECANCELED = -115, -125
local Operation = handle.class('Operation')
local PLACE = ffi.typeof('tutti_op *[1]')

-- A started operation. It keeps its memory alive. One that the program drops is cancelled. `group` has the job.

-- Starts: `begin(op)` calls the library. hold: the memory; result: a value, or a function that returns it at the end.
function operation.start(group, begin, hold, result)
   local place = PLACE()
   check(lib.tutti_op_new(place))
   local object = handle.new(Operation, place[0], lib.tutti_op_free, { hold, group })
   object._result = result
   check(begin(object.c))
   return object
end

-- Waits here: the same call without an operation.
function operation.now(_, begin, _, result)
   check(begin(nil))
   if type(result) == 'function' then return result() end
   return result
end

-- Gives a class two methods: NAME, which waits, and NAME_start, which returns an operation. body(object, how, ...) calls
-- how(object, begin, hold, result).
function operation.both(class, name, body)
   class[name] = function(object, ...) return body(object, operation.now, ...) end
   class[name .. '_start'] = function(object, ...) return body(object, operation.start, ...) end
end

local function finish(object, err)
   if err < 0 then
      local text = ffi.new('char[400]')
      lib.tutti_op_why(object.c, text, 400)
      object._error = call.new_error(err, ffi.string(text))
   end
   object._ended = true
   object:close()
end

local function value(object)
   if object._error then error(object._error, 0) end
   local result = object._result
   if type(result) == 'function' then return result() end
   return result
end

-- Waits until the operation has ended, and returns its result or raises its error. timeout: seconds, bounds this wait
-- alone. EINPROGRESS: the time has passed first; EINTR: Ctrl-C; in both cases the operation runs on.
function Operation:wait(timeout)
   if not self._ended then
      local err = lib.tutti_wait(self.c, call.milliseconds(timeout))
      if err < 0 and lib.tutti_op_why(self.c, nil, 0) == EINPROGRESS then check(err) end
      finish(self, lib.tutti_test(self.c))
   end
   return value(self)
end

-- True if the operation has ended, well or not. Does not block.
function Operation:done()
   if not self._ended then
      local err = lib.tutti_test(self.c)
      if err == EINPROGRESS then return false end
      finish(self, err)
   end
   return true
end

-- The error of an operation that has ended; nil: it ended well, or runs.
function Operation:failure()
   return self:done() and self._error or nil
end

-- Gives the operation up. Returns false if it had ended. Afterwards the library does not touch its memory.
function Operation:cancel()
   if self._ended then return false end
   lib.tutti_cancel(self.c)
   local err = lib.tutti_test(self.c)
   finish(self, err)
   return err == ECANCELED
end

-- The ops of a list that have not ended.
local function running(list)
   local ops = ffi.new('tutti_op *[?]', math.max(#list, 1))
   for i, object in ipairs(list) do
      if not object._ended then ops[i - 1] = object.c end
   end
   return ops
end

-- Waits until all operations of a list have ended. Raises the first error in the order of the list.
function operation.wait_all(list, timeout)
   local err = lib.tutti_wait_all(running(list), #list, call.milliseconds(timeout))
   if err == EINPROGRESS or err == -4 then check(err) end
   for _, object in ipairs(list) do object:wait() end
end

-- Waits until one of a list has ended that had not ended before; returns its index. nil: all had ended.
function operation.wait_any(list, timeout)
   local open = false
   for _, object in ipairs(list) do open = open or not object._ended end
   if not open then return nil end
   local i = check(lib.tutti_wait_any(running(list), #list, call.milliseconds(timeout))) + 1
   list[i]:done()
   return i
end

return operation
