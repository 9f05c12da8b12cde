-- libipc: torch-ipc's servers, clients and maps, over Tutti. Workers are processes, and not threads.
local lend = require 'ipc.lend'
local link = require 'ipc.link'
local map = require 'ipc.map'
local pack = require 'ipc.pack'
local posix = require 'ipc.posix'
local surface = require 'tutti.surface'
local wire = require 'ipc.wire'

local ipc = surface.plain_all({ server = link.server, client = link.client, map = map })

function ipc.getpid() return posix.C.getpid() end
function ipc.getppid() return posix.C.getppid() end

-- Returns 0 in the new process, and its number in this one. A process of its own joins jobs of its own.
function ipc.fork()
   io.stdout:flush()
   local pid = posix.C.fork()
   if pid < 0 then posix.fail('ipc.fork') end
   if pid == 0 then
      wire.close_others(nil)
      lend.begin(nil)
   end
   return pid
end

-- Waits for a process that fork has made; returns its exit status, nil if a signal has ended it.
function ipc.waitpid(pid)
   local status = require('ffi').new('int[1]')
   if posix.C.waitpid(pid, status, 0) < 0 then posix.fail('ipc.waitpid') end
   return status[0] % 128 == 0 and math.floor(status[0] / 256) % 256 or nil
end

-- Whether messages may hold functions: false at first. A function of a peer can do whatever this process can.
function ipc.functions(allowed) pack.functions = allowed == true end

-- These share memory between threads, and here are none.
for _, name in ipairs({ 'workqueue', 'channel', 'mutex', 'sharedtable', 'marshal', 'spawn', 'flock', 'BackgroundTask',
                        'BackgroundTaskPool' }) do
   ipc[name] = function()
      error(('ipc.%s is for threads, and this libipc runs processes: '
             .. 'use ipc.map with ipc.server and ipc.client'):format(name), 2)
   end
end

return ipc
