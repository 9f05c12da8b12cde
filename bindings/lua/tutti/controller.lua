-- A controller and its workers: one rank answers what the others ask.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local call = require 'tutti.call'
local handle = require 'tutti.handle'
local groups = require 'tutti.group'
local check = call.check

-- Requests and answers are strings of up to 16 KiB.
local Controller = handle.class('Controller')
local ROOM = lib.TUTTI_REQUEST_MAX

-- Opens a controller under a name. controller: its rank, 0 by default.
function Controller.open(group, name, controller)
   return handle.open(Controller, 'tutti_controller', group, group.c, name, controller or 0)
end

-- On the controller: the next request: { worker, what = "joined", data }, or "left" and "gone", to which there is no
-- answer. nil: all workers are done, or stop() was called.
function Controller:next(timeout)
   local r = ffi.new('tutti_request')
   if check(lib.tutti_controller_next(self.c, r, call.milliseconds(timeout))) == 0 then return nil end
   local what = groups.states[tonumber(r.what)]
   return { worker = r.worker, what = what, data = what == 'joined' and ffi.string(r.data, r.bytes) or nil }
end

-- Answers a worker's open request.
function Controller:answer(worker, data)
   data = data or ''
   check(lib.tutti_controller_answer(self.c, worker, 0, data, #data))
end

-- Refuses a worker's open request: its ask() raises an error with this sentence. errno: EINVAL by default.
function Controller:refuse(worker, sentence, errno)
   check(lib.tutti_controller_answer(self.c, worker, -(errno or 22), sentence, #sentence))
end

-- Answers with a function until each worker is done: answer = f(data, worker). An error of f is the worker's error.
function Controller:serve(f)
   for request in function() return self:next() end do
      if request.what == 'joined' then
         local ok, answer = pcall(f, request.data, request.worker)
         if ok then self:answer(request.worker, answer) else self:refuse(request.worker, tostring(answer)) end
      end
   end
end

function Controller:stop() lib.tutti_controller_stop(self.c) end

-- On a worker: asks, and returns the answer.
function Controller:ask(data, timeout)
   local answer, n = ffi.new('char[?]', ROOM), ffi.new('size_t[1]')
   check(lib.tutti_controller_ask(self.c, data or '', #(data or ''), answer, ROOM, n, call.milliseconds(timeout)))
   return ffi.string(answer, n[0])
end

-- This worker asks no more.
function Controller:done() check(lib.tutti_controller_done(self.c)) end
-- True for the first worker that makes its k-th call.
function Controller:first() return check(lib.tutti_controller_first(self.c)) == 1 end
-- The controller's one lock. timeout: seconds in the queue; 0: only if it is free.
function Controller:lock(timeout) check(lib.tutti_controller_lock(self.c, call.milliseconds(timeout))) end
function Controller:unlock() check(lib.tutti_controller_unlock(self.c)) end

return Controller
