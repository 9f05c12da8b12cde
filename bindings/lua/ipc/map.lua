-- ipc.map: functions in processes of their own. Arguments are what fork copies; results come back over a wire.
local lend = require 'ipc.lend'
local pack = require 'ipc.pack'
local peers = require 'ipc.peer'
local posix = require 'ipc.posix'
local wire = require 'ipc.wire'
local job = require 'tutti.job'
local surface = require 'tutti.surface'
local C = posix.C

local Map = {}
Map.__index = Map

local known = {} -- the globals that were there when this module was loaded
for name in pairs(_G) do known[name] = true end

-- As in a fresh Lua: globals that the program has set are not there; modules stay loaded.
local function forget_globals()
   local modules = {}
   for _, module in pairs(package.loaded) do modules[module] = true end
   for name, value in pairs(_G) do
      if not known[name] and not modules[value] then _G[name] = nil end
   end
end

-- ---- in the new process ----

-- What the parent gets: its letter and bytes, and the clients that these hold.
local function results(ok, ...)
   if not ok then return 'E', tostring((...)), {} end
   local out, clients = { select('#', ...) .. ';' }, {}
   local function number_of(x)
      local number = lend.number_of(x)
      if number then clients[#clients + 1] = x end
      return number
   end
   for i = 1, select('#', ...) do out[i + 1] = pack.encode(select(i, ...), number_of) end
   return 'R', table.concat(out), clients
end

local function run_child(id, wire, f, arguments, n)
   job.forget_all()
   lend.begin(wire)
   forget_globals()
   math.randomseed(id * 7919 + C.getpid())
   arguments[n + 1] = id
   local ok, letter, body, clients = pcall(function()
      return results(xpcall(function() return f(unpack(arguments, 1, n + 1)) end, debug.traceback))
   end)
   if not ok then letter, body, clients = 'E', tostring(letter), {} end
   wire:send(letter, body)
   if clients[1] then lend.serve(wire, clients) end
   wire:close()
   job.leave_all()
   io.stdout:flush()
   C._exit(0)
end

local function start(id, f, arguments, n)
   local mine, theirs = wire.pair()
   local pid = C.fork()
   if pid < 0 then posix.fail('ipc.map: fork') end
   if pid == 0 then
      wire.close_others(theirs)
      run_child(id, theirs, f, arguments, n)
   end
   theirs:close()
   return { id = id, pid = pid, wire = mine }
end

-- ---- in the parent ----

local function finish(child)
   child.wire:close()
   C.waitpid(child.pid, nil, 0)
end

-- Takes a process's results. If clients are among them, the process goes on until all of these are closed.
local function take_results(child, body)
   local clients, at, count = 0, nil, nil
   local function copy(number)
      clients = clients + 1
      return peers.copy(child.wire, number, function()
         clients = clients - 1
         if clients == 0 then finish(child) end
      end)
   end
   count, at = body:match('^(%d+);()')
   child.values, child.count = {}, tonumber(count)
   local from = { copy = copy, functions = true }
   for i = 1, child.count do child.values[i], at = pack.decode(body, at, from) end
   if clients == 0 then finish(child) end
end

local function fail(child, why)
   child.failure, child.count = why, 0
   finish(child)
end

-- Answers what a process has asked for, unless this would keep the others waiting.
local function settle(child)
   local question = child.question
   if not question or lend.must_wait(question) then return end
   child.question = nil
   lend.answer(child.wire, question)
end

-- Hears what a process has said; count is set when it has done its work. Returns whether it has asked for something.
local function hear(child)
   local alive, asked = child.wire:read(), false
   for letter, body in function() return child.wire:take() end do
      if letter == 'R' then
         take_results(child, body)
         return false
      elseif letter == 'E' then
         fail(child, body)
         return false
      end
      child.question, asked = lend.question(body), true
      settle(child)
   end
   if not alive then fail(child, ('ipc.map: process %d of the map ended without a result'):format(child.id)) end
   return asked
end

-- The processes that work, and their descriptors; then those of what they wait for, and how long to wait at most.
local function await_whom(map, ms)
   local working, fds = {}, {}
   for _, child in ipairs(map.children) do
      if not child.count then
         settle(child)
         working[#working + 1], fds[#fds + 1] = child, child.wire.fd
      end
   end
   for _, child in ipairs(working) do
      if child.question then
         local events = lend.event_fd(child.question)
         fds[#fds + 1] = events
         if not events then ms = math.min(ms, 10) end
      end
   end
   return working, fds, ms
end

local EIGHT = require('ffi').new('char[8]')

-- Waits up to ms milliseconds for processes that work; returns whether one has ended, or may be about to say so, and
-- whether one works.
local function hear_all(map, ms)
   local working, fds, limit = await_whom(map, ms)
   if #fds == 0 then return false, false end
   local told = false
   for _, i in ipairs(posix.ready(fds, limit)) do
      if not working[i] then
         if posix.readable(fds[i], 0) then C.read(fds[i], EIGHT, 8) end -- two processes may wait for one job
      elseif not hear(working[i]) then
         told = true
      end
   end
   return told, true
end

-- Waits for all; returns all their results, one behind another. An error of one is an error here.
function Map:join()
   while select(2, hear_all(self, 100)) do end
   local out, n, failure = {}, 0, nil
   for _, child in ipairs(self.children) do
      if not child.told then failure = failure or child.failure end
      for i = 1, child.count do out[n + i] = child.values[i] end
      n = n + child.count
   end
   self.children = {}
   if failure then error(failure, 0) end
   return unpack(out, 1, n)
end

-- Raises the error of a process that has failed so far; once.
function Map:checkErrors()
   while hear_all(self, 0) do end
   for _, child in ipairs(self.children) do
      if child.failure and not child.told then
         child.told = true
         error(child.failure, 0)
      end
   end
end

surface.plain_all(Map)

-- map(n, f, ...): f(..., i) runs in n processes, i from 1 to n.
return function(n, f, ...)
   if debug.getinfo(f, 'u').nups > 0 then
      error('ipc.map: the function has upvalues, which do not go into other processes: pass them as arguments', 0)
   end
   io.stdout:flush()
   local arguments, count, children = { ... }, select('#', ...), {}
   for i = 1, n do children[i] = start(i, f, arguments, count) end
   return setmetatable({ children = children, arguments = arguments }, Map) -- clients among these are asked for
end
