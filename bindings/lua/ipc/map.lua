-- ipc.map: functions in processes of their own. Arguments are what fork copies; results come back through a pipe.
local ffi = require 'ffi'
local pack = require 'ipc.pack'
local posix = require 'ipc.posix'
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

local function write_all(fd, s)
   local at, p = 0, ffi.cast('const char *', s)
   while at < #s do
      local n = tonumber(C.write(fd, p + at, #s - at))
      if n <= 0 then return end
      at = at + n
   end
end

local function results(ok, ...)
   if not ok then return 'E' .. tostring((...)) end
   local out = { 'R' .. select('#', ...) .. ';' }
   for i = 1, select('#', ...) do out[i + 1] = pack.encode((select(i, ...))) end
   return table.concat(out)
end

local function run_child(id, fd, f, arguments, n)
   job.forget_all()
   forget_globals()
   math.randomseed(id * 7919 + C.getpid())
   arguments[n + 1] = id
   local ok, said = pcall(function()
      return results(xpcall(function() return f(unpack(arguments, 1, n + 1)) end, debug.traceback))
   end)
   write_all(fd, ok and said or 'E' .. tostring(said))
   C.close(fd)
   job.leave_all()
   io.stdout:flush()
   C._exit(0)
end

local function start(id, f, arguments, n)
   local ends = ffi.new('int[2]')
   if C.pipe(ends) ~= 0 then posix.fail('ipc.map: a pipe') end
   local pid = C.fork()
   if pid < 0 then posix.fail('ipc.map: fork') end
   if pid == 0 then
      C.close(ends[0])
      run_child(id, ends[1], f, arguments, n)
   end
   C.close(ends[1])
   return { id = id, pid = pid, fd = ends[0], said = {} }
end

local BUFFER = ffi.new('char[65536]')

-- Reads what a child has said so far; true at its end.
local function read_some(child)
   local n = tonumber(C.read(child.fd, BUFFER, 65536))
   if n > 0 then
      child.said[#child.said + 1] = ffi.string(BUFFER, n)
      return false
   end
   C.close(child.fd)
   C.waitpid(child.pid, nil, 0)
   child.text = table.concat(child.said)
   return true
end

local function error_of(child)
   if child.text:sub(1, 1) == 'E' then return child.text:sub(2) end
   if child.text == '' then return ('ipc.map: process %d of the map ended without a result'):format(child.id) end
end

-- Waits for all; returns all their results, one behind another. An error of one is an error here.
function Map:join()
   local out, n, failure = {}, 0, nil
   for _, child in ipairs(self.children) do
      while not child.text do
         if posix.readable(child.fd, 100) then read_some(child) end
      end
      if not child.told then failure = failure or error_of(child) end
      if child.text:sub(1, 1) == 'R' then
         local count, at = child.text:match('^R(%d+);()')
         for _ = 1, tonumber(count) do
            n = n + 1
            out[n], at = pack.decode(child.text, at)
         end
      end
   end
   self.children = {}
   if failure then error(failure, 0) end
   return unpack(out, 1, n)
end

-- Raises the error of a process that has failed so far; once.
function Map:checkErrors()
   for _, child in ipairs(self.children) do
      while not child.text and posix.readable(child.fd, 0) do read_some(child) end
      local failure = child.text and not child.told and error_of(child)
      if failure then
         child.told = true
         error(failure, 0)
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
   return setmetatable({ children = children }, Map)
end
