-- Tables: values that are spread over servers. Workers push deltas and pull values, of all or of some rows.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local call = require 'tutti.call'
local handle = require 'tutti.handle'
local memory = require 'tutti.memory'
local operation = require 'tutti.operation'
local tensor = require 'tutti.tensor'
local update = require 'tutti.update'
local check, refuse = call.check, call.refuse

-- push, pull, push_pull, assign, snapshot, and those of rows have a form NAME_start, which returns an Operation.
-- Rows are numbered from 0. Memory has the table's type, and exactly as many elements as the call moves.
local Table = handle.class('Table')

local FLAGS = { snapshots = lib.TUTTI_TABLE_SNAPSHOTS, fresh = lib.TUTTI_TABLE_FRESH,
                fresh_own = lib.TUTTI_TABLE_FRESH_OWN, filter = lib.TUTTI_TABLE_FILTER, keys = lib.TUTTI_TABLE_KEYS,
                cut_multiverso = lib.TUTTI_TABLE_CUT_MULTIVERSO, mean = lib.TUTTI_TABLE_MEAN }
local MODES = { async = lib.TUTTI_ASYNC, ssp = lib.TUTTI_SSP, bsp = lib.TUTTI_BSP }

-- A tutti_consistency of "async", "bsp" or a table: { mode = "ssp", staleness = 2 }, { mode = "bsp", backup = 1 }.
local function consistency_of(given)
   local t = type(given) == 'table' and given or { mode = given or 'async' }
   return ffi.new('tutti_consistency', { mode = call.choice(MODES, t.mode, 'consistency'),
                                         staleness = t.staleness or 0, backup = t.backup or 0 })
end

local function init_of(given)
   if given == nil then return ffi.new('tutti_init') end
   if given.uniform then return lib.tutti_init_uniform(given.uniform[1], given.uniform[2], given.seed or 0) end
   if given.normal then return lib.tutti_init_normal(given.normal, given.seed or 0) end
   refuse('init is { uniform = { a, b }, seed = n } or { normal = sigma, seed = n }')
end

local KNOWN = { type = 1, rows = 1, row = 1, rule = 1, consistency = 1, servers = 1, workers = 1, init = 1, load = 1,
                clip = 1, publish_pushes = 1, publish_ms = 1 }

local function config_of(options)
   local c, hold = ffi.new('tutti_table_config'), {}
   for name, value in pairs(options) do
      if FLAGS[name] then
         c.flags = c.flags + (value and FLAGS[name] or 0)
      elseif not KNOWN[name] then
         refuse('a table has no option %s', tostring(name))
      end
   end
   c.type = memory.code_of(options.type or 'float')
   c.count, c.row = options.rows or 0, options.row or 1
   c.updater = update.rule(options.rule)
   c.consistency = consistency_of(options.consistency)
   memory.set_ranks(c, options, hold)
   hold.load = options.load
   c.load, c.clip, c.init = options.load, options.clip or 0, init_of(options.init)
   c.publish_pushes, c.publish_ms = options.publish_pushes or 0, options.publish_ms or 0
   return c, hold
end

-- With what all calls need to know of a table.
local function described(object)
   local info = object:look()
   object.kind, object.rows, object.row = info.type, info.rows, info.row
   return object
end

-- Opens a table under a name, on all of its ranks, with the same options: type ("float"), rows, row (elements of a row,
-- 1), rule ("add", or { rule = "sgd", learning_rate = 0.1 }), consistency ("async", "bsp", { mode = "ssp", staleness =
-- 1 }), servers and workers (ranks), init, load, clip, publish_pushes, publish_ms; keys, snapshots, fresh, fresh_own,
-- filter, cut_multiverso and mean = true.
function Table.open(group, name, options)
   local config, hold = config_of(options or {})
   return described(handle.open(Table, 'tutti_table', { hold, group }, group.c, name, config))
end

-- The object of a table that a center has.
function Table.of_center(c, center) return described(handle.new(Table, c, function() end, center)) end

-- Who takes part, the clock, and what the table is.
function Table:look()
   local i = ffi.new('tutti_table_info')
   check(lib.tutti_table_look(self.c, i))
   local kind
   for name, k in pairs(memory.kinds) do
      if k.code == i.type then kind = name end
   end
   return { servers = i.servers, workers = i.workers, server = i.server >= 0 and i.server or nil,
            worker = i.worker >= 0 and i.worker or nil, clock = tonumber(i.clock), dropped = tonumber(i.dropped),
            broken = tonumber(i.broken), type = kind, rows = tonumber(i.count), row = tonumber(i.row) }
end

-- The memory of `rows` rows.
local function rows_in(object, x, rows, m)
   if m.kind ~= object.kind then
      refuse('the memory is of type %s, and the table of type %s', m.kind, object.kind)
   end
   if m.count ~= rows * object.row then
      refuse('the memory has %d elements, and %d rows of the table have %d', m.count, rows, rows * object.row)
   end
   return m
end

local function given(object, x, rows) return rows_in(object, x, rows, memory.readable(x)) end
local function wanted(object, x, rows)
   x = x or tensor.new(object.kind, rows, object.row > 1 and object.row or nil)
   return rows_in(object, x, rows, memory.writable(x)), x
end

local function add(name, body) operation.both(Table, name, body) end

-- push(delta, options): the servers apply the table's rule. options: those of update.options, for this push alone.
add('push', function(object, how, delta, options)
   local m, u = given(object, delta, object.rows), update.options(options)
   return how(object, function(op) return lib.tutti_table_push(object.c, m.pointer, u, op) end, { m, u })
end)

-- pull(x): the values, into x or a new tensor.
add('pull', function(object, how, x)
   local m, out = wanted(object, x, object.rows)
   return how(object, function(op) return lib.tutti_table_pull(object.c, m.pointer, op) end, m, out)
end)

-- push_pull(delta, x, options): pushes, and gives each server's values after that.
add('push_pull', function(object, how, delta, x, options)
   local m, u = given(object, delta, object.rows), update.options(options)
   local to, out = wanted(object, x, object.rows)
   return how(object, function(op) return lib.tutti_table_push_pull(object.c, m.pointer, u, to.pointer, op) end,
              { m, u, to }, out)
end)

-- assign(x): sets the values, past the rule.
add('assign', function(object, how, x)
   local m = given(object, x, object.rows)
   return how(object, function(op) return lib.tutti_table_assign(object.c, m.pointer, op) end, m)
end)

-- snapshot(x): the values of one version of each server's range, and the versions in a second table.
add('snapshot', function(object, how, x)
   local m, out = wanted(object, x, object.rows)
   local v = ffi.new('tutti_versions')
   return how(object, function(op) return lib.tutti_table_snapshot(object.c, m.pointer, v, op) end, { m, v },
              function()
      return out, { oldest = tonumber(v.oldest), newest = tonumber(v.newest), age = v.age_ms / 1000 }
   end)
end)

local function numbers(rows) return memory.integers('uint64_t[?]', rows, 'the row') end

-- push_rows(rows, deltas, options)
add('push_rows', function(object, how, rows, deltas, options)
   local list, n = numbers(rows)
   local m, u = given(object, deltas, n), update.options(options)
   return how(object, function(op) return lib.tutti_table_push_rows(object.c, list, n, m.pointer, u, op) end,
              { list, m, u })
end)

-- pull_rows(rows, x)
add('pull_rows', function(object, how, rows, x)
   local list, n = numbers(rows)
   local m, out = wanted(object, x, n)
   return how(object, function(op) return lib.tutti_table_pull_rows(object.c, list, n, m.pointer, op) end, { list, m },
              out)
end)

-- assign_rows(rows, x)
add('assign_rows', function(object, how, rows, x)
   local list, n = numbers(rows)
   local m = given(object, x, n)
   return how(object, function(op) return lib.tutti_table_assign_rows(object.c, list, n, m.pointer, op) end,
              { list, m })
end)

-- pull_fresh(room): rows that were pushed to since this worker last pulled them, `room` at most: their numbers in a
-- table, and their values in a tensor of `room` rows.
add('pull_fresh', function(object, how, room)
   local m, out = wanted(object, nil, room)
   local list, n = ffi.new('uint64_t[?]', room), ffi.new('size_t[1]')
   return how(object, function(op) return lib.tutti_table_pull_fresh(object.c, list, m.pointer, room, n, op) end,
              { list, n, m }, function()
      local rows = {}
      for i = 1, tonumber(n[0]) do rows[i] = tonumber(list[i - 1]) end
      return rows, out
   end)
end)

-- Other consistency, from all workers between their steps.
function Table:switch(consistency) check(lib.tutti_table_switch(self.c, consistency_of(consistency))) end
-- This worker pushes no more: nobody waits for it.
function Table:finish() check(lib.tutti_table_finish(self.c)) end
-- One rank saves or loads the whole table, in a folder that all servers see.
function Table:save(folder) check(lib.tutti_table_save(self.c, folder)) end
function Table:load(folder) check(lib.tutti_table_load(self.c, folder)) end
-- Goes on with servers that were started again.
function Table:reopen() check(lib.tutti_table_reopen(self.c)) end

return Table
