-- Collectives of a group. Each has a second form, NAME_start, which returns an Operation at once.
-- x and out are tensors or ffi's arrays; without out the result goes into x, or into a new tensor of the kind of x.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local call = require 'tutti.call'
local memory = require 'tutti.memory'
local operation = require 'tutti.operation'
local tensor = require 'tutti.tensor'
local Group = require('tutti.group').Group
local refuse, readable, writable = call.refuse, memory.readable, memory.writable

local RULES = {
   sum = lib.TUTTI_SUM, average = lib.TUTTI_AVERAGE, product = lib.TUTTI_PRODUCT, max = lib.TUTTI_MAX,
   min = lib.TUTTI_MIN, band = lib.TUTTI_BAND, bor = lib.TUTTI_BOR, bxor = lib.TUTTI_BXOR,
}

local function rule_of(name) return call.choice(RULES, name or 'sum', 'rule') end

local function need(m, bytes, what)
   if m.bytes ~= bytes then refuse('%s has %d bytes, and the call needs %d', what, m.bytes, bytes) end
end

local function same_kind(a, b)
   if a.kind ~= b.kind then refuse('x is of type %s, and out of type %s', a.kind, b.kind) end
end

-- A new tensor of the kind of m, with `count` elements.
local function like(m, count) return tensor.new(m.kind, count) end

-- Adds a collective in both forms: body(group, how, ...), with how = now or start.
local function add(name, body) operation.both(Group, name, body) end

-- allreduce(x, rule, out): combines the vectors of all ranks, and gives the result to all. rule: "sum" (default),
-- "average", "product", "max", "min", "band", "bor", "bxor". x may be a table of tensors of one type, in place.
add('allreduce', function(group, how, x, rule, out)
   rule = rule_of(rule)
   if type(x) == 'table' and not memory.is_tensor(x) then
      if out ~= nil then refuse('allreduce of a table of tensors works in place: leave out `out`') end
      local list, n, hold = memory.tensors(x)
      return how(group, function(op) return lib.tutti_allreduce_tensors(group.c, list, n, rule, op) end, hold, x)
   end
   local of, to = readable(x), writable(out or x)
   need(to, of.bytes, 'out')
   same_kind(of, to)
   return how(group, function(op)
      return lib.tutti_allreduce(group.c, of.pointer, to.pointer, of.count, memory.typed(of), rule, op)
   end, { of, to }, out or x)
end)

-- reduce(x, rule, root, out): gives the result to the root alone.
add('reduce', function(group, how, x, rule, root, out)
   local of, to = readable(x), writable(out or x)
   need(to, of.bytes, 'out')
   same_kind(of, to)
   return how(group, function(op)
      return lib.tutti_reduce(group.c, of.pointer, to.pointer, of.count, memory.typed(of), rule_of(rule), root or 0, op)
   end, { of, to }, out or x)
end)

-- broadcast(x, root): copies x of the root to all ranks.
add('broadcast', function(group, how, x, root)
   local m = writable(x)
   return how(group, function(op) return lib.tutti_broadcast(group.c, m.pointer, m.bytes, root or 0, op) end, m, x)
end)

-- gather(x, root, out): values of the same size in rank order, on the root; root nil: on every rank.
add('gather', function(group, how, x, root, out)
   local of, to = readable(x), nil
   if root == nil or root == group:rank() then
      out = out or like(of, of.count * group:size())
      to = writable(out)
      need(to, of.bytes * group:size(), 'out')
   end
   return how(group, function(op)
      return lib.tutti_gather(group.c, of.pointer, of.bytes, to and to.pointer, root or -1, op)
   end, { of, to }, out)
end)

-- scatter(all, out, root): block r of the root's `all` goes to `out` on rank r.
add('scatter', function(group, how, all, out, root)
   local to, of = writable(out), nil
   if (root or 0) == group:rank() then
      of = readable(all)
      need(of, to.bytes * group:size(), 'all')
   end
   return how(group, function(op)
      return lib.tutti_scatter(group.c, of and of.pointer, to.bytes, to.pointer, root or 0, op)
   end, { of, to }, out)
end)

-- barrier(): ends when every rank has called it.
add('barrier', function(group, how)
   return how(group, function(op) return lib.tutti_barrier(group.c, op) end)
end)

-- reduce_scatter(x, rule, out): x has a block for each rank; out gets all ranks' blocks for this rank, combined.
add('reduce_scatter', function(group, how, x, rule, out)
   local of, size = readable(x), group:size()
   if of.count % size ~= 0 then refuse('%d elements are no %d blocks of one size', of.count, size) end
   out = out or like(of, of.count / size)
   local to = writable(out)
   need(to, of.bytes / size, 'out')
   same_kind(of, to)
   return how(group, function(op)
      return lib.tutti_reduce_scatter(group.c, of.pointer, to.pointer, to.count, memory.typed(of), rule_of(rule), op)
   end, { of, to }, out)
end)

-- allgather(x, out): the same number of bytes of each rank, in rank order.
add('allgather', function(group, how, x, out)
   local of = readable(x)
   out = out or like(of, of.count * group:size())
   local to = writable(out)
   need(to, of.bytes * group:size(), 'out')
   return how(group, function(op) return lib.tutti_allgather(group.c, of.pointer, of.bytes, to.pointer, op) end,
              { of, to }, out)
end)

-- Two arrays of size_t: the bytes of each rank's part, and where the part begins.
local function parts(group, counts, m)
   local size, each = group:size(), m.count > 0 and m.bytes / m.count or 1
   local lengths, at, places = memory.integers('size_t[?]', counts, 'the count'), 0, ffi.new('size_t[?]', size)
   if #counts ~= size then refuse('there are %d counts for %d ranks', #counts, size) end
   for r = 0, size - 1 do
      lengths[r] = lengths[r] * each
      places[r], at = at, at + tonumber(lengths[r])
   end
   if at > m.bytes then refuse('the counts sum up to %d bytes, and the memory has %d', at, m.bytes) end
   return lengths, places
end

-- allgatherv(x, counts, out): rank r gives counts[r + 1] elements; they lie one behind another in out.
add('allgatherv', function(group, how, x, counts, out)
   local of, to = readable(x), writable(out)
   local lengths, places = parts(group, counts, to)
   return how(group, function(op)
      return lib.tutti_allgatherv(group.c, of.pointer, of.bytes, to.pointer, lengths, places, op)
   end, { of, to }, out)
end)

-- alltoall(x, out): block r of x goes to rank r, where it is block `rank` of out.
add('alltoall', function(group, how, x, out)
   local of, size = readable(x), group:size()
   if of.bytes % size ~= 0 then refuse('%d bytes are no %d blocks of one size', of.bytes, size) end
   out = out or like(of, of.count)
   local to = writable(out)
   need(to, of.bytes, 'out')
   return how(group, function(op) return lib.tutti_alltoall(group.c, of.pointer, of.bytes / size, to.pointer, op) end,
              { of, to }, out)
end)

-- alltoallv(x, counts, out, out_counts): counts[r + 1] elements go to rank r, out_counts[r + 1] come from rank r.
add('alltoallv', function(group, how, x, counts, out, out_counts)
   local of, to = readable(x), writable(out)
   local given, from = parts(group, counts, of)
   local taken, at = parts(group, out_counts, to)
   return how(group, function(op)
      return lib.tutti_alltoallv(group.c, of.pointer, given, from, to.pointer, taken, at, op)
   end, { of, to }, out)
end)

return Group
