-- Averaging: all-reduce SGD (Gradients), and elastic averaging, synchronous (Elastic).
local ffi = require 'ffi'
local lib = require 'tutti.native'
local call = require 'tutti.call'
local handle = require 'tutti.handle'
local memory = require 'tutti.memory'
local operation = require 'tutti.operation'
local tensor = require 'tutti.tensor'
local check = call.check
local average = {}

local COUNT = ffi.typeof('int[1]')

-- Gradients of one model, which are summed in place, over all ranks that have a step.
local Gradients = handle.class('Gradients')
average.Gradients = Gradients

-- grads: a tensor or a table of tensors. options: bucket_bytes.
function Gradients.open(group, grads, options)
   local list, n, hold = memory.tensors(grads)
   local object = handle.open(Gradients, 'tutti_gradients', { hold, group }, group.c, list, n,
                              options and options.bucket_bytes or 0)
   object._group = group
   return object
end

-- Gradient i of this step (from 1 up) is computed: its sum may begin.
function Gradients:ready(i) check(lib.tutti_gradients_ready(self.c, i - 1)) end

-- End a step: the gradients are the sum or the average. Return how many ranks have given some.
function Gradients:sum()
   local n = COUNT()
   check(lib.tutti_gradients_sum(self.c, n))
   return n[0]
end

function Gradients:average()
   local n = COUNT()
   check(lib.tutti_gradients_average(self.c, n))
   return n[0]
end

local function start(object, begin)
   return operation.start(object, begin, nil, function()
      local n = COUNT()
      check(lib.tutti_gradients_apply(object.c, n))
      return n[0]
   end)
end

-- Start the end of a step; the operation's wait() gives the number of ranks, and the gradients are then the program's.
function Gradients:sum_start()
   return start(self, function(op) return lib.tutti_gradients_sum_start(self.c, op) end)
end

function Gradients:average_start()
   return start(self, function(op) return lib.tutti_gradients_average_start(self.c, op) end)
end

-- This rank has no steps left: takes part in those of the others. Then all have the params of the rank with most steps.
function Gradients:synchronize(params)
   local list, n = memory.tensors(params)
   check(lib.tutti_gradients_synchronize(self.c, list, n))
end

-- Saves how many steps this rank has had since the last synchronization into a file, and loads that.
function Gradients:save(path) check(lib.tutti_gradients_save(self.c, path)) end
function Gradients:load(path) check(lib.tutti_gradients_load(self.c, path)) end

-- For the end of a step that was started: for first, last in g:buckets() do ... end. Gradients first to last are then the
-- sum or the average, and the program's; the last ones come first. The operation's wait() ends the step.
function Gradients:buckets()
   local first, n = COUNT(), COUNT()
   return function()
      check(lib.tutti_gradients_next(self.c, first, n))
      if n[0] > 0 then return first[0] + 1, first[0] + n[0] end
   end
end

-- The L2 norm of all gradients together, between steps. It is finite only if all gradients are.
function Gradients:norm()
   local norm = ffi.new 'double[1]'
   check(lib.tutti_gradients_norm(self.c, norm))
   return norm[0]
end

-- From the next step on the gradients are these, of the same counts and types.
function Gradients:move(grads)
   local list, n, hold = memory.tensors(grads)
   check(lib.tutti_gradients_move(self.c, list, n))
   handle.hold(self, { hold, self._group })
end

-- Gradients of float travel as bf16 from the next step on, with error feedback (on: false: as they are).
function Gradients:bf16(on) check(lib.tutti_gradients_bf16(self.c, on == false and 0 or 1)) end

-- Goes on in another group, after shrink or grow.
function Gradients:regroup(group) check(lib.tutti_gradients_regroup(self.c, group.c)) end

-- Parameters of this rank, and a center, which draw each other together every tau steps.
local Elastic = handle.class('Elastic')
average.Elastic = Elastic

-- params: a tensor or a table of tensors. options: tau, alpha (nil: 0.9 / ranks), distlearn (true: torch-distlearn's
-- arithmetic, whose last sum is lost). A collective.
function Elastic.open(group, params, options)
   local list, n, hold = memory.tensors(params)
   local flags = options.distlearn and lib.TUTTI_EA_DISTLEARN or 0
   local object = handle.open(Elastic, 'tutti_ea', { hold, group }, group.c, list, n, options.tau,
                              options.alpha or 0 / 0, flags)
   object._n = n
   return object
end

-- Counts a step. Returns true and the distance from the center if this was the tau-th, and has averaged.
function Elastic:step()
   local result = ffi.new('tutti_average_result')
   if check(lib.tutti_ea_step(self.c, result)) == 0 then return false end
   return true, result.distance
end

-- Changes tau and alpha; a collective, between the same two averagings.
function Elastic:set(tau, alpha) check(lib.tutti_ea_set(self.c, tau, alpha or 0 / 0)) end

-- Ends this rank's steps: rank 0's center becomes everybody's.
function Elastic:synchronize_center() check(lib.tutti_ea_synchronize_center(self.c)) end
-- Ends this rank's steps: rank 0's parameters become everybody's, and the center.
function Elastic:synchronize() check(lib.tutti_ea_synchronize(self.c)) end

-- This rank's center: a table of tensors over the library's memory, until close.
function Elastic:center()
   local list = ffi.new('tutti_tensor[?]', self._n)
   check(lib.tutti_ea_center(self.c, list))
   return tensor.over_list(list, self._n, self)
end

-- Saves this rank's center and counters into a file, and loads them before the first step, with the parameters as they
-- were: the same bits follow.
function Elastic:save(path) check(lib.tutti_ea_save(self.c, path)) end
function Elastic:load(path) check(lib.tutti_ea_load(self.c, path)) end

function Elastic:regroup(group) check(lib.tutti_ea_regroup(self.c, group.c)) end

return average
