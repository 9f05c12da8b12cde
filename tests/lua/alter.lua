-- alter.lua - the same case with other numbers: alter(input, ref) changes the input in place
-- Values move by eighths and rates shrink by sixteenths, so that sums of a few of them are exact in floats. Who does
-- what in which order stays as it is.
local function set(words)
   local t = {}
   for word in words:gmatch('%S+') do t[word] = true end
   return t
end

local VALUES = set [[values params grads local center delta init local_update master acc global updates peer_params
                     central x data]]
local RATES = set [[lr alpha eta h value divergence_threshold loss peer_loss loss_send loss_wait momentum learning_rate
                    rho lam]]
local COUNTS = set 'clock peer_clock iterations cols size base'

local state = 1
local function draw(n) -- 1 to n
   state = state * 16807 % 2147483647
   return state % n + 1
end

local function moved(v) return v + draw(8) / 8 end
local function shrunk(v) return v * (1 - draw(7) / 16) end
local function grown(v) return v + draw(3) end

-- Puts f(number) into the place of each number of a nested table.
local function each(t, f)
   for i, v in ipairs(t) do t[i] = type(v) == 'table' and each(v, f) or f(v) end
   return t
end

local function walk(t)
   local keys = {}
   for k in pairs(t) do keys[#keys + 1] = k end
   table.sort(keys, function(a, b) return tostring(a) < tostring(b) end) -- the same numbers each time
   for _, k in ipairs(keys) do
      local v = t[k]
      local f = VALUES[k] and moved or RATES[k] and shrunk or COUNTS[k] and grown
      if f and type(v) ~= 'string' then
         t[k] = type(v) == 'table' and each(v, f) or f(v)
      elseif type(v) == 'table' then
         walk(v)
      end
   end
end

-- Numbers that stand in lists without a name.
local function change(place, f)
   return function(list)
      for _, item in ipairs(list) do
         local v = item[place]
         if v then item[place] = type(v) == 'table' and each(v, f) or f(v) end
      end
   end
end

local function all_as_the_first(list)
   for i, first in ipairs(list[1]) do
      for k = 2, #list do list[k][i] = first end
   end
end

local BY_REF = {
   allreduce_sgd = function(input) all_as_the_first(input.params) end,
   allreduce_ea = function(input) all_as_the_first(input.params) end,
   async_ea = function(input) change(2, moved)(input.order) end,
   platoon_easgd = function(input) each(input.workers, moved) end,
   platoon_asgd = function(input)
      for k, worker in ipairs(input.workers) do
         for i, v in ipairs(worker) do
            worker[i] = input.copy_to_local_after_init and moved(v) or input.master[i]
         end
      end
   end,
   platoon_first = function(input) input.requests = input.requests + 4 end,
   platoon_lstm_controller = function(input)
      input.valid_freq = input.valid_freq / 2
      for _, request in ipairs(input.requests) do
         if request[1] == 'pred_errors' then request[2] = shrunk(request[2]) end
      end
   end,
   dpwa_flow = function(input)
      if #input.events > 10 then table.remove(input.events, 1) end
      if #input.events == 7 then table.insert(input.events, 1, table.remove(input.events)) end
   end,
   paper_eamsgd = function(input) input.delta = 0.75 end,
   paper_gosgd = function(input) input.w[1], input.w[2] = 0.25, 0.75 end,
   mv_sync_server = function(input)
      for _, call in ipairs(input.arrivals) do call[3] = call[3] and moved(call[3]) end
   end,
   mv_backup_add = function(input) change(2, moved)(input.adds) end,
   mv_kv = function(input)
      each(input.keys, function(k) return 2 * k + 3 end)
      for _, op in ipairs(input.ops) do op[2], op[3] = 2 * op[2] + 3, op[3] and moved(op[3]) end
   end,
   mv_sparse_fresh = function(input)
      change(3, function(row) return row < 0 and row or (row + 2) % input.rows end)(input.ops)
   end,
   mv_ssp = function(input) input.max_delay = input.max_delay < 0 and -1 or (input.max_delay + 1) % 3 end,
   mv_sparse_filter = function(input) input.values = each(input.scaled, shrunk) end,
   mv_matrix_partition = function(input) input.rows = input.rows + 3 end,
   mv_matrix_binding_test = function(input)
      input.rows = input.rows + draw(3)
      input.row_ids[2] = input.rows - 1
   end,
}

return function(input, ref)
   if ref == 'mv_sparse_filter' then input.scaled, input.values = input.values, nil end -- zeros stay zeros
   walk(input)
   if BY_REF[ref] then BY_REF[ref](input) end
   return input
end
