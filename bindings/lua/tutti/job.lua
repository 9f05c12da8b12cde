-- The job: joining, leaving, memory, signals, and who comes and goes.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local call = require 'tutti.call'
local handle = require 'tutti.handle'
local groups = require 'tutti.group'
local tensor = require 'tutti.tensor'
local check, refuse = call.check, call.refuse

-- A job is the group of all its ranks, with these functions beside those of groups.
local Job = setmetatable(handle.class('Job'), { __index = groups.Group })

local STRINGS = { 'file', 'node', 'transports', 'secret', 'boot', 'job' }

-- A tutti_config of a table of options, and the strings that it points to.
local function config_of(options)
   local c, hold = ffi.new('tutti_config', lib.tutti_config_defaults()), {}
   local known = { silence = true, timeout = true, rank = true, ranks = true, newcomers = true }
   for _, name in ipairs(STRINGS) do
      known[name], hold[name] = true, options[name]
      c[name] = options[name]
   end
   for name in pairs(options) do
      if not known[name] then refuse('a job has no option %s', tostring(name)) end
   end
   c.silence_ms = options.silence and call.milliseconds(options.silence) or 0
   c.timeout_ms = options.timeout and call.milliseconds(options.timeout) or 0
   local new = options.boot and not options.rank
   c.rank = new and lib.TUTTI_NEW_RANK or options.rank or 0
   c.ranks, c.newcomers = options.ranks or new and 1 or 0, options.newcomers or 0
   return c, hold
end

local job = {}
local open = setmetatable({}, { __mode = 'k' })

-- Joins. Without options everything comes from the launcher: tutti run, srun, torchrun, mpirun; without a launcher the
-- process is a job of one. Options: file, node, transports ("shm,tcp"), secret, boot ("HOST:PORT" of rank 0) with rank
-- and ranks (without rank: a new rank of a job under way, which began with `ranks` ranks, 1 by default), job (the job's
-- name), newcomers; silence and timeout in seconds.
-- Blocks until every rank has joined.
function job.join(options)
   local place = ffi.new('tutti *[1]')
   local config, hold = config_of(options or {})
   check(lib.tutti_join(config, place))
   hold.config = nil
   local joined = handle.new(Job, place[0], lib.tutti_leave)
   rawset(joined, 'job', joined)
   open[joined] = true
   return joined
end

-- Leaves all jobs of this process, for one that ends without the end of Lua. Those of its parent are not its own.
function job.leave_all()
   for joined in pairs(open) do joined:leave() end
end
function job.forget_all() open = setmetatable({}, { __mode = 'k' }) end

-- Leaves: finishes what was started, and tells the others. Harmless twice. The end of Lua does it too.
Job.leave = handle.close

function Job:name() return ffi.string(lib.tutti_job_name(self.c)) end

-- True if this rank has joined a job under way: for collectives it is alone until all call grow.
function Job:late() return check(lib.tutti_late(self.c)) == 1 end

-- Pins this thread to the i-th core of the rank; -1: to all of them.
function Job:pin(i) check(lib.tutti_pin(self.c, i or 0)) end

-- True once the signal (15: SIGTERM) has come. From the first call on that is the signal's only effect.
function Job:leave_asked(signal) return check(lib.tutti_leave_asked(self.c, signal or 15)) == 1 end

-- From now on the signal makes this process leave the job in order; then the signal does what it did.
function Job:leave_on(signal) check(lib.tutti_leave_on(self.c, signal or 15)) end

-- Notes who comes and goes, in the whole job. Returns a descriptor that is readable while next_change has something.
function Job:watch(changed)
   if changed ~= nil then
      refuse('watch calls no function: a thread of the library would call it, and Lua has one thread; take the '
             .. 'changes with next_change()')
   end
   return check(lib.tutti_group_watch(self.c, nil, nil))
end

-- The oldest change that was not taken, or nil: rank, what ("joined", "left", "gone"), errno, why.
function Job:next_change()
   local c = ffi.new('tutti_change')
   if check(lib.tutti_group_next(self.c, c)) == 0 then return nil end
   return { rank = c.rank, what = groups.states[tonumber(c.what)], errno = -c.err, why = ffi.string(c.why) }
end

-- A descriptor that is readable when a started operation may have ended. Read 8 bytes from it, then look.
function Job:event_fd() return check(lib.tutti_event_fd(self.c)) end

function Job:node_add(name, host, port) return check(lib.tutti_node_add(self.c, name, host, port)) end
function Job:node_remove(name) check(lib.tutti_node_remove(self.c, name)) end

-- A zeroed tensor of a kind ("float") and sizes, in memory that every transport uses without a copy.
function Job:alloc(kind, ...)
   return tensor.allocate(kind, { ... }, function(bytes)
      local place = ffi.new('void *[1]')
      check(lib.tutti_alloc(self.c, bytes, -1, place))
      return ffi.gc(place[0], function(p) lib.tutti_free(nil, p) end)
   end)
end

return job
