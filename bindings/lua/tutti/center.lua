-- A center on servers: a model that the servers of a table hold; the workers' copies and the center draw each other
-- together, and no worker waits for another one.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local call = require 'tutti.call'
local handle = require 'tutti.handle'
local memory = require 'tutti.memory'
local operation = require 'tutti.operation'
local Table = require 'tutti.table'
local check = call.check

local Center = handle.class('Center')
local NAN = 0 / 0

local MAKERS = {
   easgd = function(o) return lib.tutti_center_easgd(o.tau, o.alpha or NAN) end,
   asgd = function(o) return lib.tutti_center_asgd(o.tau) end,
   downpour = function(o) return lib.tutti_center_downpour(o.tau, o.average and 1 or 0) end,
   outer = function(o) return lib.tutti_center_outer(o.tau, o.learning_rate or NAN, o.momentum or NAN) end,
}
local USED = { tau = 1, alpha = 1, average = 1, learning_rate = 1, servers = 1, workers = 1, load = 1, snapshots = 1,
               bf16 = 1, momentum = 1, kind = 1 }

local function config_of(options)
   if options.kind == 'own' or options.merge then
      call.refuse('a center with a merge of the program\'s own calls a function from inside the library: write it in C')
   end
   for name in pairs(options) do
      if not USED[name] then call.refuse('a center has no option %s', tostring(name)) end
   end
   local made = call.choice(MAKERS, options.kind or 'easgd', 'kind of center')({
      tau = options.tau or 1, alpha = options.alpha, average = options.average,
      learning_rate = options.learning_rate, momentum = options.momentum })
   local c, hold = ffi.new('tutti_center_config', made), {}
   if options.momentum and options.kind ~= 'outer' then c.momentum = options.momentum end
   memory.set_ranks(c, options, hold)
   c.load, c.snapshots, c.bf16 = options.load, options.snapshots and 1 or 0, options.bf16 and 1 or 0
   return c, hold
end

-- Opens a center; a collective. params: a tensor or a table of tensors. options: kind ("easgd", "asgd", "downpour",
-- "outer"), tau, alpha (nil: 0.9 / workers), average, learning_rate, momentum, servers and workers (ranks), snapshots,
-- bf16, load.
function Center.open(group, name, params, options)
   local config, held = config_of(options or {})
   local list, n, hold = memory.tensors(params)
   return handle.open(Center, 'tutti_center', { hold, held, group }, group.c, name, list, n, config)
end

local RESULT = ffi.typeof('tutti_average_result')

-- After each step of the worker. Returns true and the distance from the center if it has exchanged.
function Center:step()
   local result = RESULT()
   if check(lib.tutti_center_step(self.c, result)) == 0 then return false end
   return true, result.distance
end

-- Exchanges now; returns the distance from the center.
function Center:exchange()
   local result = RESULT()
   check(lib.tutti_center_exchange(self.c, result))
   return result.distance
end

-- Starts an exchange with a copy; the operation's wait() moves the params, and gives the distance.
function Center:exchange_start()
   return operation.start(self, function(op) return lib.tutti_center_exchange_start(self.c, op) end, nil, function()
      local result = RESULT()
      check(lib.tutti_center_exchange_apply(self.c, result))
      return result.distance
   end)
end

-- Changes tau, alpha, learning_rate, momentum of this worker; in rounds a collective of the group.
function Center:set(options, group)
   local s = ffi.new('tutti_center_schedule')
   check(lib.tutti_center_get(self.c, s))
   call.set_members(s, options, 'a center\'s schedule')
   check(lib.tutti_center_set(self.c, group and group.c, s))
end

-- params = center.
function Center:pull() check(lib.tutti_center_pull(self.c)) end
-- center = params, by one rank; the others pull.
function Center:assign() check(lib.tutti_center_assign(self.c)) end

-- Reads a consistent center into tensors like the params (option snapshots).
function Center:read(into)
   local list = memory.tensors(into)
   local v = ffi.new('tutti_versions')
   check(lib.tutti_center_read(self.c, list, v))
   return { oldest = tonumber(v.oldest), newest = tonumber(v.newest), age = v.age_ms / 1000 }
end

-- EAMSGD (option momentum): into = params + momentum v, where the gradient is to be taken.
function Center:ahead(into)
   local list = memory.tensors(into)
   check(lib.tutti_center_ahead(self.c, list))
end

-- EAMSGD: v = momentum v - learning_rate gradient; params = params + v. gradient: tensors like the params.
function Center:move(gradient, learning_rate)
   local list = memory.tensors(gradient)
   check(lib.tutti_center_move(self.c, list, learning_rate))
end

-- Its table, to save, load, look at, reopen and finish.
function Center:table() return Table.of_center(lib.tutti_center_table(self.c), self) end

-- Saves what this worker has beside its params into a file, and loads it. The table saves the center.
function Center:save(path) check(lib.tutti_center_save(self.c, path)) end
function Center:load(path) check(lib.tutti_center_load(self.c, path)) end

return Center
