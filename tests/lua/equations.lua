-- equations.lua - what the recorded cases of tests/conformance come to, from their inputs alone: equations[ref](input).
-- In plain numbers, without Tutti: the tests compare the library with them where the inputs have other numbers.
local equations = {}

-- ---- vectors ----

local function map(f, a, b)
   local c = {}
   for i = 1, #a do c[i] = f(a[i], b and b[i]) end
   return c
end

local function plus(a, b) return map(function(x, y) return x + y end, a, b) end
local function minus(a, b) return map(function(x, y) return x - y end, a, b) end
local function times(a, k) return map(function(x) return x * k end, a) end
local function copy(a) return times(a, 1) end
local function copies(list) return map(copy, list) end

local function sum(list)
   local total = copy(list[1])
   for i = 2, #list do total = plus(total, list[i]) end
   return total
end

local function filled(n, value)
   local t = {}
   for i = 1, n do
      if type(value) == 'function' then t[i] = value(i) else t[i] = value end
   end
   return t
end

-- ---- all-reduce: torch-ipc, torch-distlearn, Platoon ----

function equations.allreduce_uneven_numbers(input)
   local totals, rounds, r = filled(#input.values, 0), filled(#input.values, function() return {} end), 0
   repeat
      local value, n = 0, 0
      for k, steps in ipairs(input.steps) do
         if steps > r then value, n = value + input.values[k], n + 1 end
      end
      for k, steps in ipairs(input.steps) do
         if steps > r then
            totals[k] = totals[k] + value
            table.insert(rounds[k], { value, n })
         end
      end
      r = r + 1
   until n == 0
   return { per_node_accumulated = totals, per_node_rounds = rounds, final_value = 0, final_n = 0, rounds_total = r }
end

local SUM = function(a, b) return a + b end
local PRODUCT = function(a, b) return a * b end
local RULES = { ['+'] = SUM, sum = SUM, add = SUM, ['*'] = PRODUCT, prod = PRODUCT, product = PRODUCT, mul = PRODUCT,
                max = math.max, maximum = math.max, min = math.min, minimum = math.min }

function equations.platoon_allreduce(input)
   local rule = RULES[input.op:lower()]
   if not rule then return { error = 'ValueError' } end
   local result = input.values[1]
   for k = 2, #input.values do result = map(rule, result, input.values[k]) end
   return { result = result }
end

-- The average is of the nodes that have a gradient left; then the node with most steps gives the parameters.
function equations.allreduce_sgd(input)
   local params, rounds, winner = copies(input.params), {}, 1
   for k = 1, #params do
      if #input.grads[k] > #input.grads[winner] then winner = k end
   end
   for r = 1, #input.grads[winner] do
      local who, given = {}, {}
      for k, grads in ipairs(input.grads) do
         if grads[r] then who[#who + 1], given[#given + 1] = k, grads[r] end
      end
      local seen = times(sum(given), 1 / #given)
      for _, k in ipairs(who) do params[k] = minus(params[k], times(seen, input.lr)) end
      rounds[r] = { contributors = who, n = #who, grad_seen = seen }
   end
   return { rounds = rounds, params_before_sync = params, winner_node_1based = winner,
            params_after_sync = filled(#params, params[winner]) }
end

-- As torch-distlearn computes: a node without steps goes on to move, and adds the sum of a round in its next round.
function equations.allreduce_ea(input)
   local nodes, rounds = #input.params, {}
   local params, centers, steps = copies(input.params), copies(input.params), filled(nodes, 0)
   local late = {} -- of a node that has no steps: the sum that its center lacks
   local running
   repeat
      local kinds, moves = {}, {}
      running = false
      for k = 1, nodes do
         kinds[k] = 'zero'
         while not late[k] and steps[k] < #input['local'][k] and kinds[k] == 'zero' do
            steps[k] = steps[k] + 1
            params[k] = plus(params[k], input['local'][k][steps[k]])
            if steps[k] % input.tau == 0 then kinds[k] = 'avg' end
         end
         running = running or kinds[k] == 'avg'
         if kinds[k] == 'zero' then centers[k] = plus(centers[k], late[k] or filled(#params[k], 0)) end
         moves[k] = times(minus(params[k], centers[k]), input.alpha)
         params[k] = minus(params[k], moves[k])
      end
      local total = sum(moves)
      for k = 1, nodes do
         if kinds[k] == 'avg' then centers[k] = plus(centers[k], total) else late[k] = total end
      end
      rounds[#rounds + 1] = { round = #rounds + 1, kinds = kinds, sum_delta = total, params = copies(params),
                              centers = copies(centers) }
   until not running
   return { rounds = rounds, after_synchronizeCenter = { params = params, center = centers[1] },
            then_synchronizeParameters_with_no_new_steps = { params = filled(nodes, params[1]), center = params[1] } }
end

function equations.platoon_sync_sgd(input)
   local u = times(sum(input.updates), input.average and 1 / #input.updates or 1)
   return { updates = filled(#input.updates, u) }
end

function equations.platoon_sync_easgd(input)
   local moves = map(function(x, c) return times(minus(x, c), input.alpha) end, input['local'], input.central)
   local total = sum(moves)
   return { ['local'] = map(minus, input['local'], moves),
            central = map(function(c) return plus(c, total) end, input.central) }
end

function equations.platoon_downpour(input)
   local workers = #input.acc
   local global = plus(input.global, times(sum(input.acc), input.average and 1 / workers or 1))
   return { global = global, ['local'] = filled(workers, global),
            acc = filled(workers, filled(#global, 0)) }
end

-- ---- workers and a center, one event after another ----

function equations.async_ea(input)
   local center, params = input.center, filled(input.num_clients, input.center)
   local steps, syncs = filled(input.num_clients, 0), {}
   for _, event in ipairs(input.order) do
      local c = event[1] + 1
      params[c], steps[c] = plus(params[c], event[2]), steps[c] + 1
      if steps[c] % input.tau == 0 then
         local move = times(minus(params[c], center), input.alpha)
         params[c], center = minus(params[c], move), plus(center, move)
         syncs[#syncs + 1] = { client = c - 1, delta = move, client_params = params[c], center = center }
      end
   end
   return { syncs = syncs, final_params = params, final_center = center }
end

-- exchange(x, center, k): what a worker's parameters and the center become.
local function with_center(input, exchange)
   local master, workers, syncs = input.master, copies(input.workers), {}
   for _, event in ipairs(input.events) do
      local k = event.worker + 1
      if event.local_update then workers[k] = plus(workers[k], event.local_update) end
      if event.sync then
         workers[k], master = exchange(workers[k], master, k)
         syncs[#syncs + 1] = { worker = k - 1, ['local'] = workers[k], master = master }
      end
   end
   return { syncs = syncs, workers = workers, master = master }
end

function equations.platoon_easgd(input)
   return with_center(input, function(x, center)
      local move = times(minus(x, center), input.alpha)
      return minus(x, move), plus(center, move)
   end)
end

-- As Platoon computes: what a worker had before it copied the center counts too.
function equations.platoon_asgd(input)
   local old = copies(input.workers)
   if input.copy_to_local_after_init then
      local copied = {}
      for k, v in pairs(input) do copied[k] = v end
      copied.workers = filled(#input.workers, input.master)
      input = copied
   end
   return with_center(input, function(x, center, k)
      center = plus(center, minus(x, old[k]))
      old[k] = center
      return center, center
   end)
end

function equations.mv_delta_sync(input)
   local server, now, last, syncs = input.init, filled(input.workers, input.init), filled(input.workers, input.init), {}
   for _, event in ipairs(input.events) do
      local k = event.worker + 1
      if event.local_update then now[k] = plus(now[k], event.local_update) end
      if event.sync then
         server = plus(server, minus(now[k], last[k]))
         now[k], last[k] = server, server
         syncs[#syncs + 1] = { worker = k - 1, server = server }
      end
   end
   return { syncs = syncs, workers = now }
end

-- ---- a controller ----

function equations.platoon_first(input)
   return { first = filled(input.requests, function(i) return (i - 1) % input.local_size == 0 end) }
end

local function least(list, last)
   local min = math.huge
   for i = 1, last do min = math.min(min, list[i]) end
   return min
end

function equations.platoon_lstm_controller(input)
   local errors, updates, bad, validate, stop, answers = {}, 0, 0, false, false, {}
   for i, request in ipairs(input.requests) do
      local what, x, answer = request[1], request[2], ''
      if what == 'next' then
         answer = stop and 'stop' or validate and 'valid' or 'train'
         validate = validate and stop
      elseif what == 'done' then
         updates = updates + x
         validate = validate or updates % input.valid_freq == 0
      else
         errors[#errors + 1] = x
         local earlier = #errors - input.patience
         if x == least(errors, #errors) then
            bad, answer = 0, 'best'
         elseif earlier > 0 and x >= least(errors, earlier) then
            bad = bad + 1
         end
      end
      stop = stop or updates > input.max_mb or bad > input.patience
      answers[i] = answer
   end
   return { responses = answers }
end

-- ---- gossip ----

local function factor(input, clock, peer_clock, loss, peer_loss)
   local f = input.method == 'constant' and input.value or input.method == 'clock' and peer_clock / (clock + peer_clock)
      or loss / (loss + peer_loss)
   return loss < input.divergence_threshold and f * loss / input.divergence_threshold or f
end

local function blend(f, own, peer) return plus(times(own, 1 - f), times(peer, f)) end

function equations.dpwa_interp(input)
   local f = factor(input, input.clock, input.peer_clock, input.loss, input.peer_loss)
   return { factor = f, new_clock = (1 - f) * input.clock + f * input.peer_clock,
            new_params = blend(f, input.params, input.peer_params) }
end

function equations.dpwa_pair_lockstep(input)
   local params, clocks, done = copies(input.params), { 0, 0 }, {}
   for i, it in ipairs(input.iterations) do
      local sent = { { params[1], clocks[1] + 1 }, { params[2], clocks[2] + 1 } }
      local factors = {}
      for k = 1, 2 do
         local peer = sent[3 - k]
         local f = factor(input, sent[k][2], peer[2], it.loss_wait[k], it.loss_send[3 - k])
         factors[k], clocks[k] = f, (1 - f) * sent[k][2] + f * peer[2]
         params[k] = blend(f, plus(sent[k][1], it.local_update[k]), peer[1])
      end
      done[i] = { factors = factors, params = copies(params), clocks = copy(clocks) }
   end
   return { iterations = done }
end

function equations.dpwa_flow(input)
   local score, scores = 1000, {}
   for i, event in ipairs(input.events) do
      if event == 'error' then
         scores[i] = 'removed'
         break
      end
      score = math.max(10, math.min(1000, score + (event == 'ok' and 10 or -100)))
      scores[i] = score
   end
   return { scores = scores }
end

-- new(x, k, peers): the model of k after a round.
local function rounds_of(input, new)
   local x, trace = input.x, {}
   for i, round in ipairs(input.rounds) do
      local before = x
      x = {}
      for k = 1, #before do x[k] = plus(new(before, k, round.peer), round.local_update[k]) end
      trace[i] = x
   end
   return { trace = trace }
end

function equations.paper_gossip_pull(input)
   return rounds_of(input, function(x, k, peers) return blend(0.5, x[k], x[peers[k] + 1]) end)
end

function equations.paper_gossip_push(input)
   return rounds_of(input, function(x, k, peers)
      local all = { x[k] }
      for from, to in ipairs(peers) do
         if to + 1 == k and from ~= k then all[#all + 1] = x[from] end
      end
      return times(sum(all), 1 / #all)
   end)
end

function equations.paper_gosgd(input)
   local x, w, trace = copies(input.x), copy(input.w), {}
   for i, event in ipairs(input.events) do
      local k = event.node + 1
      if event.local_update then x[k] = plus(x[k], event.local_update) end
      if event.send then
         local from, to = event.send[1] + 1, event.send[2] + 1
         w[from] = w[from] / 2
         x[to] = blend(w[from] / (w[to] + w[from]), x[to], x[from])
         w[to] = w[to] + w[from]
      end
      trace[i] = { x = copies(x), w = copy(w) }
   end
   return { trace = trace, weight_sum = sum(map(function(v) return { v } end, w))[1],
            weighted_mean = sum(map(times, x, w)) }
end

-- ---- the papers on elastic averaging ----

function equations.paper_easgd_sync(input)
   local x, center, trace = input.x, input.center, {}
   for i = 1, input.steps do
      local move, total = {}, 0
      for k = 1, #x do
         move[k] = input.alpha * (x[k] - center)
         total = total + move[k]
      end
      x = map(function(v, m) return v - input.eta * input.h * v - m end, x, move)
      center = center + total
      trace[i] = { x = x, center = center }
   end
   return { trace = trace }
end

function equations.paper_easgd_async_rr(input)
   local x, center, trace = copy(input.x), input.center, {}
   for tick = 1, input.ticks do
      local k, step = (tick - 1) % #x + 1, math.floor((tick - 1) / #x)
      local move = step % input.tau == 0 and input.alpha * (x[k] - center) or 0
      x[k], center = x[k] - move - input.eta * input.h * x[k], center + move
      trace[tick] = { worker = k - 1, x = x[k], center = center }
   end
   return { trace = trace }
end

function equations.paper_eamsgd(input)
   local x, v, center, trace = input.x, 0, input.center, {}
   for step = 1, input.steps do
      local gradient = input.h * (x + input.delta * v)
      local move = (step - 1) % input.tau == 0 and input.alpha * (x - center) or 0
      v = input.delta * v - input.eta * gradient
      x, center = x - move + v, center + move
      trace[step] = { x = x, v = v, center = center }
   end
   return { trace = trace }
end

-- ---- Multiverso ----

-- One element: w is the value, d the delta, o the options, s what the rule keeps for this element and worker.
local UPDATERS = {
   default = function(w, d) return w + d end,
   sgd = function(w, d) return w - d end,
   momentum_sgd = function(w, d, o, _, shared)
      shared.m = o.momentum * (shared.m or 0) + (1 - o.momentum) * d
      return w - shared.m
   end,
   adagrad_intended = function(w, d, o, s)
      s.g = (s.g or 0) + (d / o.learning_rate) ^ 2
      return w - o.rho / math.sqrt(s.g + 1e-6) * d / o.learning_rate
   end,
   dcasgd = function(w, d, o, s)
      local g = d / o.learning_rate
      s.backup = w - o.learning_rate * (g + o.lam * g ^ 2 * (w - (s.backup or 0)))
      return s.backup
   end,
   dcasgda = function(w, d, o, s)
      local g = d / o.learning_rate
      s.square = o.momentum * (s.square or 0) + (1 - o.momentum) * g ^ 2
      local lambda = o.lam / math.sqrt(s.square + 1e-7)
      s.backup = w - o.learning_rate * (g + lambda * g ^ 2 * (w - (s.backup or 0)))
      return s.backup
   end,
}
-- As shipped it forgets its history and subtracts the square, which comes to NaN.
function UPDATERS.adagrad_literal(w, d, o)
   return w - o.rho / math.sqrt(1e-6 - (d / o.learning_rate) ^ 2) * d / o.learning_rate
end

local OPTIONS = { momentum = 0, learning_rate = 0.01, rho = 0.1, lam = 0.1 }

function equations.mv_updater(input)
   local data, states, after = copy(input.data), {}, {}
   for i, add in ipairs(input.adds) do
      local o = setmetatable({}, { __index = function(_, name)
         return add.option and add.option[name] or OPTIONS[name]
      end })
      for k, d in ipairs(add.delta) do
         local own, shared = k .. ' ' .. (add.worker or 0), k .. ' all'
         states[own], states[shared] = states[own] or {}, states[shared] or {}
         data[k] = UPDATERS[input.updater](data[k], d, o, states[own], states[shared])
      end
      after[i] = copy(data)
   end
   return { data_after_each_add = after }
end

function equations.mv_array_binding_test(input)
   return { array = filled(input.size, function(j) return 2 * j * input.iterations * input.workers end) }
end

function equations.mv_matrix_binding_test(input)
   local often = filled(input.rows, 1)
   for _, row in ipairs(input.row_ids) do often[row + 1] = 2 end
   return { full = filled(input.rows, function(r)
      return filled(input.cols, function(c)
         return (input.base + (r - 1) * input.cols + c - 1) * often[r] * input.iterations * input.workers
      end)
   end) }
end

function equations.mv_kv(input)
   local values, gets, owners = {}, {}, {}
   for _, op in ipairs(input.ops) do
      if op[1] == 'add' then values[op[2]] = (values[op[2]] or 0) + op[3] else gets[#gets + 1] = values[op[2]] or 0 end
   end
   for _, key in ipairs(input.keys) do owners[tostring(key)] = key % input.servers end
   return { gets = gets, server_of_key = owners }
end

-- A get of all rows returns those that are stale for its worker; row 0 where none is.
function equations.mv_sparse_fresh(input)
   local seen, replies = filled(input.workers, function() return {} end), {}
   for _, op in ipairs(input.ops) do
      local rows, worker, stale = op[3], op[2], {}
      if rows[1] < 0 then rows = filled(input.rows, function(i) return i - 1 end) end
      for _, row in ipairs(rows) do
         for k = 1, op[1] == 'add' and input.workers or 0 do
            if k - 1 ~= worker or input.own_add_marks_self_stale then seen[k][row] = nil end
         end
         if op[1] == 'get' and (worker < 0 or not seen[worker + 1][row]) then stale[#stale + 1] = row end
         if op[1] == 'get' and worker >= 0 then seen[worker + 1][row] = true end
      end
      if op[1] == 'get' then replies[#replies + 1] = #stale > 0 and stale or { 0 } end
   end
   return { rows_returned_per_get = replies }
end

function equations.mv_sparse_filter(input)
   local pairs_, restored = {}, {}
   for i, v in ipairs(input.values) do
      local kept = math.abs(v) > input.clip
      restored[i] = kept and v or 0
      if kept then pairs_[#pairs_ + 1] = { i - 1, v } end
   end
   if #pairs_ * 2 >= #input.values then return { compressed = false, restored = input.values } end
   if #pairs_ == 0 then pairs_[1] = { 0, input.values[1] } end
   return { compressed = true, pairs = pairs_, restored = restored }
end

-- In rounds, a get sees as many adds of each worker as its own worker has made, and all of one that has finished.
-- The replies are in the order of the calls.
function equations.mv_sync_server(input)
   local adds, replies = filled(input.workers, function() return {} end), {}
   for _, call in ipairs(input.arrivals) do
      if call[1] == 'add' then table.insert(adds[call[2] + 1], call[3]) end
   end
   local made = filled(input.workers, 0)
   for _, call in ipairs(input.arrivals) do
      local k = call[2] + 1
      local value = input.initial
      if call[1] == 'add' then
         made[k], value = made[k] + 1, nil
      else
         for _, list in ipairs(adds) do
            for i = 1, math.min(made[k], #list) do value = value + list[i] end
         end
      end
      if call[1] ~= 'finish' then replies[#replies + 1] = { call[1], call[2], value } end
   end
   return { replies = replies }
end

-- A round closes after the adds of all workers but the spare ones; what comes late for it is dropped.
function equations.mv_backup_add(input)
   local need = input.workers - math.floor(input.ratio_percent * input.workers / 100)
   local made, closed, value, trace = filled(input.workers, 0), 0, input.initial, {}
   for i, add in ipairs(input.adds) do
      local k, x = add[1] + 1, add[2]
      local counts = made[k] >= closed
      if counts then value = value + x end
      made[k] = made[k] + 1
      local in_round = 0
      for _, n in ipairs(made) do in_round = in_round + (n > closed and 1 or 0) end
      if in_round >= need then closed = closed + 1 end
      trace[i] = { add[1], counts, value, closed }
   end
   return { num_sync_workers = need, trace_worker_applied_value_globalclock = trace }
end

-- A clock is answered when the slowest worker is at most max_delay behind it.
function equations.mv_ssp(input)
   local clocks, waits, released = filled(input.workers, 0), {}, {}
   for i, event in ipairs(input.clocks) do
      local k = (type(event) == 'table' and event[2] or event) + 1
      clocks[k] = type(event) == 'table' and math.huge or clocks[k] + 1
      waits[k] = type(event) ~= 'table'
      released[i] = {}
      for w = 1, input.workers do
         if waits[w] and (input.max_delay < 0 or clocks[w] <= math.min(unpack(clocks)) + input.max_delay) then
            waits[w] = false
            table.insert(released[i], w - 1)
         end
      end
   end
   return { released_after_each = released }
end

-- Each server has as many rows, and the last one those that are left over. Where rows are few, a row each.
local function cut(rows, servers)
   local active = math.min(rows, servers)
   local each = math.floor(rows / active)
   local offsets = filled(active + 1, function(i) return i <= active and (i - 1) * each or rows end)
   return offsets, active, each
end

function equations.mv_array_partition(input)
   if input.size <= input.servers then return { error = 'CHECK size > num_servers -> process exit(1)' } end
   local offsets = cut(input.size, input.servers)
   return { offsets = offsets, sizes = filled(input.servers, function(i) return offsets[i + 1] - offsets[i] end) }
end

function equations.mv_matrix_partition(input)
   local offsets, active, each = cut(input.rows, input.servers)
   return { offsets = offsets, active_servers = active, row_to_server = filled(input.rows, function(i)
      return math.min(math.floor((i - 1) / each), active - 1)
   end) }
end

return equations
