-- bench.lua - the old surfaces beside the C calls that they make, in turn, in one job; rank 0 prints
--    tutti run -n 2 luajit bench.lua array|gradients|tree [ROUNDS]
-- array: an add and a get of 64 Mi floats; gradients: 100 tensors of 100 KB; tree: an all-reduce of 46.8 MB.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local torch = require 'tutti.tensor'
local tutti = require 'tutti'
ffi.cdef 'struct bench_time { long s, ns; }; int clock_gettime(int, struct bench_time *);'

local time = ffi.new('struct bench_time')
local function now()
   ffi.C.clock_gettime(1, time)
   return tonumber(time.s) * 1e3 + tonumber(time.ns) * 1e-6 -- ms
end
local function must(err) assert(err >= 0, ffi.string(lib.tutti_why())) end

local pairs_of = {}

function pairs_of.array()
   local mv = require 'multiverso'
   mv.init()
   local n, job = 2 ^ 26, tutti.current()
   local array, t = mv.ArrayTableHandler:new(n), tutti.Table.open(job, 'c', { rows = n })
   local delta, to = torch.FloatTensor(n):fill(1), torch.FloatTensor(n)
   return job, function()
      must(lib.tutti_table_push(t.c, delta:data(), nil, nil))
      must(lib.tutti_table_pull(t.c, to:data(), nil))
   end, function()
      array:add(delta)
      array:get()
   end
end

function pairs_of.gradients()
   local job = tutti.init()
   local grads, list, place = {}, ffi.new('tutti_tensor[100]'), ffi.new('tutti_gradients *[1]')
   for i = 1, 100 do
      grads[i] = torch.FloatTensor(25000):fill(1)
      list[i - 1].data, list[i - 1].count, list[i - 1].type = grads[i]:data(), 25000, lib.TUTTI_F32
   end
   local sgd, n = require 'distlearn.AllReduceSGD'(require 'ipc.over_group'(job)), ffi.new('int[1]')
   must(lib.tutti_gradients_open(job.c, list, 100, 0, place))
   return job, function() must(lib.tutti_gradients_average(place[0], n)) end,
      function() sgd.sumAndNormalizeGradients(grads) end
end

function pairs_of.tree()
   local n, job = 11700000, tutti.init()
   local tree = require 'ipc.over_group'(job)
   local x = torch.FloatTensor(n)
   return job, function()
      must(lib.tutti_allreduce(job.c, x:data(), x:data(), n, lib.TUTTI_F32, lib.TUTTI_SUM, nil))
   end, function() tree.allReduce(x, function(a, b) return a:add(b) end) end
end

local job, in_c, in_lua = assert(pairs_of[arg[1]], 'array, gradients or tree')()
local times = { {}, {} }
for round = 0, tonumber(arg[2] or 25) do -- round 0 warms up
   for k, f in ipairs({ in_c, in_lua }) do
      job:barrier()
      local from = now()
      f()
      times[k][round] = now() - from
   end
end
local function point(list, part)
   local sorted = { unpack(list) }
   table.sort(sorted)
   return sorted[math.max(1, math.floor(part * #sorted + 0.5))]
end
if job:rank() == 0 then
   for k, name in ipairs({ 'C', 'Lua' }) do
      print(('%-4s ms: least %.3f, first quarter %.3f, median %.3f'):format(name, point(times[k], 0),
         point(times[k], 0.25), point(times[k], 0.5)))
   end
   print(('Lua / C: least %.2f, first quarter %.2f, median %.2f'):format(point(times[2], 0) / point(times[1], 0),
      point(times[2], 0.25) / point(times[1], 0.25), point(times[2], 0.5) / point(times[1], 0.5)))
end
job:barrier()
