-- the recorded cases of the old systems, through their old names
local ranks = require 'ranks'

local HEAD = [[
   local case = require 'case'
   local function near(got, want, tolerance, what)
      if type(want) == 'table' then
         assert(#got == #want, what .. ': has another length')
         for i, w in ipairs(want) do near(got[i], w, tolerance, what .. ' ' .. i) end
         return
      end
      if not (math.abs(got - want) <= tolerance * math.max(1, math.abs(want))) then
         error(('%s is %.17g, and should be %.17g'):format(what, got, want))
      end
   end
   local function tree_of() return require 'ipc.SlurmTree'() end
   local torch = require 'tutti.tensor'
]]
local turn = 0
local ran = {} -- the cases that a test of this file runs

local function command(altered, transports, n, file)
   return ('ALTERED=%s TUTTI_TRANSPORTS=%s timeout -k 2 30 tutti run -n %d luajit %s'):format(altered, transports, n,
                                                                                              file)
end

-- Each case runs with the recorded numbers and, beside it, with others, each over one of the two transports. The short
-- check runs every fifth case with others.
local function test(name, n, program)
   ran[name:match('^[%w-]+')] = true
   if program:find('local job =', 1, true) then -- nobody ends before the others
      program = program .. '\njob:barrier()'
   end
   turn = turn + 1
   local first, second = 'shm,tcp', 'tcp'
   if turn % 2 == 0 then first, second = second, first end
   local has_others = os.getenv('TEST_FULL') or turn % 5 == 0
   local others = has_others and (', other numbers over %s'):format(second:match('^%a+')) or ''
   it(('%s over %s%s'):format(name, first:match('^%a+'), others), function()
      local file = ranks.file(HEAD .. program)
      local both = '%s & recorded=$!\n%s; other=$?\nwait $recorded && [ $other -eq 0 ]'
      local status, output = ranks.shell((has_others and both or '%s'):format(command('no', first, n, file),
                                                                              command('yes', second, n, file)))
      if status ~= 0 then error(('status %d\n%s'):format(status, output), 0) end
   end)
end

describe('recorded case', function()
   test('ipc-uneven-4', 4, [[
      local input, expected = case 'ipc-uneven-4'
      local tree = tree_of()
      local me, total = tree.nodeIndex, 0
      local function add(a, b) return a + b end
      for i = 1, input.steps[me] do
         local value, n = tree.allReduce(input.values[me], add)
         local round = expected.per_node_rounds[me][i]
         assert(value == round[1] and n == round[2])
         total = total + value
      end
      local value, n = tree.allReduce(nil, add, function() return 0 end)
      assert(value == expected.final_value and n == expected.final_n)
      assert(total == expected.per_node_accumulated[me])
   ]])

   for _, id in ipairs({ 'ipc-sum-8', 'ipc-tensors-8', 'ipc-array-4' }) do
      test(id, tonumber(id:match('%d$')), ([[
         local input, expected = case '%s'
         local tree = tree_of()
         local mine = input.values[tree.nodeIndex]
         local result, n = tree.allReduce({ unpack(mine) }, function(a, b) return a + b end)
         near(result, expected.result, 0, 'numbers')
         assert(n == tree.numNodes)
         local calls = 0
         result = tree.allReduce({ torch.Tensor(mine) }, function(a, b) a:add(b) return a end)
         near(result[1]:totable(), expected.result, 0, 'a tensor')
         result = tree.allReduce(torch.Tensor(mine), function(a, b)
            calls = calls + 1
            return torch.add(a, b)
         end)
         near(result:totable(), expected.result, 0, 'folded')
         assert(calls == (tree.nodeIndex == 1 and tree.numNodes or 1)) -- one call tries the function
      ]]):format(id))
   end

   local function foreign_too(id, n, program)
      test(id, n, "local foreign = false\n" .. program)
      test(id .. ' on another tree', n, "local foreign = true\n" .. program)
   end
   local TREE = [[
      local tree = tree_of()
      if foreign then
         tree = { nodeIndex = tree.nodeIndex, numNodes = tree.numNodes, allReduce = tree.allReduce,
                  scatter = tree.scatter }
      end
      local me = tree.nodeIndex
   ]]

   for id, n in pairs({ ['dl-sgd-even-2'] = 2, ['dl-sgd-uneven-3'] = 3, ['dl-sgd-test-7'] = 2 }) do
      foreign_too(id, n, TREE .. ([[
         local input, expected, tolerance = case '%s'
         local sgd = require 'distlearn.AllReduceSGD'(tree)
         local params = { torch.Tensor(input.params[me]) }
         sgd.synchronizeParameters(params)
         for i, g in ipairs(input.grads[me]) do
            local grads = { torch.Tensor(g) }
            sgd.sumAndNormalizeGradients(grads)
            near(grads[1]:totable(), expected.rounds[i].grad_seen, tolerance, 'a gradient')
            params[1]:add(-input.lr, grads[1])
         end
         near(params[1]:totable(), expected.params_before_sync[me], tolerance, 'a parameter before')
         sgd.synchronizeParameters(params)
         near(params[1]:totable(), expected.params_after_sync[me], tolerance, 'a parameter')
      ]]):format(id))
   end

   for id, n in pairs({ ['dl-ea-2n-tau1-a02'] = 2, ['dl-ea-2n-tau2-a04'] = 2, ['dl-ea-3n-uneven'] = 3,
                        ['dl-ea-alpha-n'] = 2 }) do
      foreign_too(id, n, TREE .. ([[
         local input, expected, tolerance = case '%s'
         for _, compat in ipairs({ true, false }) do
            local ea = require 'distlearn.AllReduceEA'(tree, input.tau, input.alpha, { compat = compat })
            local params = { torch.Tensor(input.params[me]) }
            ea.synchronizeParameters(params)
            for i, step in ipairs(input.local[me]) do
               params[1]:add(torch.Tensor(step))
               ea.averageParameters(params)
               if i %% input.tau == 0 then
                  near(params[1]:totable(), expected.rounds[i / input.tau].params[me], tolerance, 'a parameter')
               end
            end
            ea.synchronizeCenter(params)
            local last = #expected.rounds
            if compat then
               near(params[1]:totable(), expected.rounds[last].params[me], tolerance, 'at the end')
            elseif expected.rounds[last - 1].kinds[me] == 'avg' and #input.local[me] %% input.tau == 0 then
               near(params[1]:totable(), expected.rounds[last - 1].params[me], tolerance, 'mended, at the end')
            end
         end
      ]]):gsub('input%.local', "input['local']"):format(id))
   end

   test('dl-asyncea', 1, [[
      local input, expected, tolerance = case 'dl-asyncea'
      local ipc = require 'libipc'
      local clients = input.num_clients
      local all, all_port = ipc.server()
      local server, ports = {}, {}
      for i = 1, clients do server[i], ports[i] = ipc.server() end
      local map = ipc.map(clients, function(input, all_port, ports, id)
         local ipc, torch = require 'libipc', require 'tutti.tensor'
         local everyone, mine = ipc.client(all_port), ipc.client(ports[id])
         local ea = require 'distlearn.AsyncEA'(nil, nil, mine, everyone, nil, nil, input.num_clients, id, input.tau,
                                                input.alpha)
         local params, seen = { torch.Tensor(#input.center) }, {}
         ea.initClient(params)
         for _, turn in ipairs(input.order) do
            mine:recv() -- my turn, or not
            if turn[1] + 1 == id then
               params[1]:add(torch.Tensor(turn[2]))
               assert(ea.syncClient(params))
               seen[#seen + 1] = params[1]:totable()
            end
         end
         everyone:close()
         mine:close()
         return seen
      end, input, all_port, ports)
      local ea = require 'distlearn.AsyncEA'(server, all, nil, nil, nil, nil, clients, 0, input.tau, input.alpha)
      local params = { torch.Tensor(input.center) }
      ea.initServer(params)
      for i, turn in ipairs(input.order) do
         for c = 1, clients do server[c]:clients(1, function(peer) peer:send(i) end) end
         ea.syncServer(params)
         near(params[1]:totable(), expected.syncs[i].center, tolerance, 'the center')
      end
      local seen, taken = { map:join() }, {}
      for i, sync in ipairs(expected.syncs) do
         local c = sync.client + 1
         taken[c] = (taken[c] or 0) + 1
         near(seen[c][taken[c] ], sync.client_params, tolerance, 'a client')
      end
   ]])

   local MV = [[
      local mv = require 'multiverso'
      local function start(sync)
         mv.init(sync)
         return mv.worker_id(), mv.num_workers()
      end
   ]]

   for id, n in pairs({ ['mv-default'] = 2, ['mv-array-access'] = 1 }) do
      test(id, n, MV .. ([[
         local input, expected, tolerance = case '%s'
         local me = start()
         local array = mv.ArrayTableHandler:new(#input.data, input.data)
         mv.barrier()
         for i, add in ipairs(input.adds) do
            if (add.worker or 0) == me then array:add(add.delta) end
            mv.barrier()
            near(array:get():totable(), expected.data_after_each_add[i], tolerance, 'the array')
            mv.barrier()
         end
         mv.shutdown()
      ]]):format(id))
   end

   test('mv-py-array', 4, MV .. [[
      local input, expected = case 'mv-py-array'
      local me, workers = start()
      local array, delta = mv.ArrayTableHandler:new(input.size), torch.range(1, input.size)
      for i = 1, input.iterations do
         array:add(delta)
         array:add(delta:totable(), true)
         mv.barrier()
         local got = array:get()
         for j = 1, input.size do assert(got[j] == j * i * 2 * workers) end
         mv.barrier()
      end
      near(array:get():totable(), expected.array, 0, 'the array')
      mv.shutdown()
   ]])

   for id, n in pairs({ ['mv-py-matrix'] = 2, ['mv-lua-matrix'] = 2 }) do
      test(id, n, MV .. ([[
         local input, expected = case '%s'
         start()
         local matrix = mv.MatrixTableHandler:new(input.rows, input.cols)
         local all = torch.range(input.base, input.base + input.rows * input.cols - 1):view(input.rows, input.cols)
         local some = torch.Tensor(#input.row_ids, input.cols)
         for i, row in ipairs(input.row_ids) do some[i]:copy(all[row + 1]) end
         for i = 1, input.iterations do
            matrix:add(all)
            matrix:add(some, input.row_ids)
         end
         mv.barrier()
         near(matrix:get():totable(), expected.full, 0, 'the matrix')
         local rows = matrix:get(input.row_ids)
         for i, row in ipairs(input.row_ids) do near(rows[i]:totable(), expected.full[row + 1], 0, 'a row') end
         mv.shutdown()
      ]]):format(id))
   end

   for _, id in ipairs({ 'mv-bsp', 'mv-bsp-fast-add' }) do
      test(id, 2, MV .. ([[
         local input, expected = case '%s'
         local me = start(true)
         local array = mv.ArrayTableHandler:new(1)
         local want, got = {}, {}
         for _, reply in ipairs(expected.replies) do
            if reply[1] == 'get' and reply[2] == me then want[#want + 1] = reply[3] end
         end
         for _, arrival in ipairs(input.arrivals) do
            if arrival[2] == me and arrival[1] == 'add' then array:add({ arrival[3] }) end
            if arrival[2] == me and arrival[1] == 'get' then got[#got + 1] = array:get()[1] end
         end
         near(got, want, 0, 'a get')
         assert(#got == 2)
         mv.shutdown()
      ]]):format(id))
   end

   test('mv-delta-sync', 2, MV .. [[
      local input, expected, tolerance = case 'mv-delta-sync'
      local me = start()
      local array = mv.ArrayTableHandler:new(#input.init, input.init)
      mv.barrier()
      local value = array:get()
      local last = value:clone()
      mv.barrier()
      for i, event in ipairs(input.events) do
         if event.worker == me then
            if event.local_update then value:add(torch.FloatTensor(event.local_update)) end
            array:add(value - last)
            value = array:get()
            last = value:clone()
            near(value:totable(), expected.syncs[i].server, tolerance, 'the model')
         end
         mv.barrier()
      end
      near(value:totable(), expected.workers[me + 1], tolerance, 'at the end')
      mv.shutdown()
   ]])

   test('mv-bsp-finish', 2, MV .. [[
      local input, expected = case 'mv-bsp-finish'
      local me = start(true)
      local array = mv.ArrayTableHandler:new(1)
      local got = {}
      for _, arrival in ipairs(input.arrivals) do
         if arrival[2] == me and arrival[1] == 'add' then array:add({ arrival[3] }) end
         if arrival[2] == me and arrival[1] == 'get' then got[#got + 1] = array:get()[1] end
      end
      local want = {}
      for _, reply in ipairs(expected.replies) do
         if reply[1] == 'get' and reply[2] == me then want[#want + 1] = reply[3] end
      end
      near(got, want, 0, 'a get')
      mv.shutdown() -- of a worker that is done: the other one's gets go on
   ]])

   test('mv-bsp-finish-cached', 2, MV .. [[
      local input, expected = case 'mv-bsp-finish-cached'
      local me = start(true)
      local array = mv.ArrayTableHandler:new(1)
      for _, arrival in ipairs(input.arrivals) do
         if arrival[2] == me and arrival[1] == 'add' then array:add({ arrival[3] }) end
         if arrival[2] == me and arrival[1] == 'get' then
            local got = array:get()[1]
            local reply = table.remove(expected.replies, 1)
            while reply[1] ~= 'get' or reply[2] ~= me do reply = table.remove(expected.replies, 1) end
            assert(got == reply[3])
         end
      end
      mv.shutdown()
   ]])

   test('mv-array-part-small', 1, MV .. [[
      local input = case 'mv-array-part-small'
      start()
      local array = mv.ArrayTableHandler:new(input.size, torch.Tensor(input.size):fill(5))
      array:add(torch.Tensor(input.size):fill(2))
      assert(array:get():sum() == 7 * input.size) -- Multiverso refuses an array of one
      mv.shutdown()
   ]])

   -- ---- what the old names do not reach: tutti.lua itself ----

   local JOB = [[
      local tutti = require 'tutti'
      local job = tutti.init()
      local me = job:rank()
   ]]

   for _, id in ipairs({ 'mv-sgd', 'mv-momentum', 'mv-momentum-default-option', 'mv-adagrad-literal',
                         'mv-adagrad-intended', 'mv-dcasgd', 'mv-dcasgda' }) do
      test(id, 2, JOB .. ([[
         local input, expected, tolerance = case '%s'
         local RULES = {
            sgd = { rule = 'sgd' }, momentum_sgd = { rule = 'smoothed' },
            adagrad_intended = { rule = 'adagrad' }, dcasgd = { rule = 'dcasgd', backup_from_zero = true },
            dcasgda = { rule = 'dcasgda', backup_from_zero = true },
         }
         if input.updater == 'adagrad_literal' then -- mended: the history counts
            input.updater = 'adagrad_intended'
            expected = require('equations').mv_updater(input)
         end
         local t = tutti.Table.open(job, 't', { rows = #input.data, type = 'double', rule = RULES[input.updater] })
         if me == 0 then t:assign(torch.DoubleTensor(input.data)) end
         job:barrier()
         for i, add in ipairs(input.adds) do
            local o, options = add.option or {}, {}
            local rate = o.learning_rate or 0.01
            if input.updater:find('adagrad') then
               options = { scale = 1 / rate, learning_rate = o.rho or 0.1 }
            elseif input.updater:find('dcasgd') then
               options = { scale = 1 / rate, learning_rate = rate, compensation = o.lam, momentum = o.momentum }
            elseif input.updater == 'momentum_sgd' then
               options = { momentum = o.momentum or 0 }
            end
            if (add.worker or 0) == me then t:push(torch.DoubleTensor(add.delta), options) end
            job:barrier()
            near(t:pull():totable(), expected.data_after_each_add[i], tolerance, 'the table')
            job:barrier()
         end
      ]]):format(id))
   end

   test('mv-kv', 3, JOB .. [[
      local input, expected = case 'mv-kv'
      local t = tutti.Table.open(job, 't', { keys = true })
      local gets = {}
      for i, op in ipairs(input.ops) do
         if op[1] == 'add' and i % 3 == me then t:push_rows({ op[2] }, torch.FloatTensor({ op[3] })) end
         if op[1] == 'get' then gets[#gets + 1] = t:pull_rows({ op[2] })[1] end
         job:barrier()
      end
      near(gets, expected.gets, 0, 'a get')
   ]])

   test('mv-aggregate', 5, JOB .. [[
      local input, expected = case 'mv-aggregate'
      near(job:allreduce(torch.FloatTensor(input.values[me + 1])):totable(), expected.result, 0, 'the sum')
   ]])

   -- The names of a save's parts say which rows each server has.
   for id, n in pairs({ ['mv-array-part-1'] = 1, ['mv-array-part-3'] = 3, ['mv-array-part-4'] = 4,
                        ['mv-matrix-part-11x4'] = 4, ['mv-matrix-part-10x4'] = 4, ['mv-matrix-part-2x4'] = 4,
                        ['mv-matrix-part-1x4'] = 4, ['mv-matrix-part-11x1'] = 1 }) do
      test(id, n, JOB .. ([[
         local input, expected = case '%s'
         local rows = input.size or input.rows
         assert(input.servers == job:size())
         local t = tutti.Table.open(job, 't', { rows = rows, row = input.rows and 3, cut_multiverso = true })
         t:push(torch.FloatTensor(rows, input.rows and 3 or 1):fill(me + 1))
         job:barrier()
         local n = job:size()
         assert(t:pull():sum() == rows * (input.rows and 3 or 1) * n * (n + 1) / 2)
         job:barrier()
         if me == 0 then
            local folder = os.tmpname()
            os.remove(folder)
            os.execute('mkdir ' .. folder)
            t:save(folder)
            local file = io.open(folder .. '/t.safetensors.index.json')
            local offsets = { 0 }
            for from, to in file:read('*a'):gmatch('"[^"%%[]+%%[(%%d+):(%%d+)/%%d+%%]"') do
               if offsets[#offsets] ~= tonumber(to) then offsets[#offsets + 1] = tonumber(to) end
            end
            if #offsets == 1 then offsets[2] = rows end -- one server has all: its part is the whole
            os.execute('rm -r ' .. folder)
            table.sort(offsets)
            near(offsets, expected.offsets, 0, 'an offset')
         end
         job:barrier()
      ]]):format(id))
   end

   for _, id in ipairs({ 'mv-sparse-old', 'mv-sparse-new' }) do
      test(id, 3, JOB .. ([[
         local input, expected = case '%s'
         local new = input.own_add_marks_self_stale
         local t = tutti.Table.open(job, 't', { rows = input.rows, fresh = true, fresh_own = new })
         local gets = 0
         for _, op in ipairs(input.ops) do
            local all = op[3][1] < 0
            if op[1] == 'get' then gets = gets + 1 end
            if op[2] == me and op[1] == 'add' then
               local delta = torch.FloatTensor(all and input.rows or #op[3]):fill(1)
               if all then t:push(delta) else t:push_rows(op[3], delta) end
            elseif op[2] == me and all then
               local rows = t:pull_fresh(input.rows)
               table.sort(rows)
               -- Multiverso sends row 0 where no row is stale, and Tutti none
               if #rows == 0 then rows = { 0 } end
               near(rows, expected.rows_returned_per_get[gets], 0, 'get ' .. gets)
            elseif op[2] == me then
               t:pull_rows(op[3])
            end
            job:barrier()
         end
      ]]):format(id))
   end

   for _, id in ipairs({ 'mv-filter-sparse', 'mv-filter-dense', 'mv-filter-zero', 'mv-filter-clip' }) do
      test(id, 2, JOB .. ([[
         local input, expected = case '%s'
         local t = tutti.Table.open(job, 't', { rows = 1, row = #input.values, filter = true, clip = input.clip,
                                                servers = { 0 } })
         if me == 1 then t:push(torch.FloatTensor(input.values)) end
         job:barrier()
         near(t:pull():view(-1):totable(), expected.restored, 1e-7, 'a value')
      ]]):format(id))
   end

   test('mv-backup', 5, JOB .. [[
      local input, expected = case 'mv-backup'
      local spare = input.workers - expected.num_sync_workers
      local t = tutti.Table.open(job, 't', { rows = 1, workers = { 0, 1, 2, 3 }, servers = { 4 },
                                             consistency = { mode = 'bsp', backup = spare } })
      local clock, closed, dropped = 0, input.initial, 0
      for i, add in ipairs(input.adds) do
         local _, applied, value, now = unpack(expected.trace_worker_applied_value_globalclock[i])
         if add[1] == me then t:push(torch.FloatTensor({ add[2] })) end
         job:barrier()
         if not applied then dropped = dropped + 1 end
         if now > clock then closed, clock = value, now end
         if me == 4 then
            local info = t:look()
            assert(t:pull()[1] == closed and info.clock == clock and info.dropped == dropped)
         end
         job:barrier()
      end
   ]])

   for _, id in ipairs({ 'mv-ssp--1', 'mv-ssp-0', 'mv-ssp-1', 'mv-ssp-2' }) do
      test(id, 2, JOB .. ([[
         local input, expected = case '%s'
         local delay = input.max_delay
         local t = tutti.Table.open(job, 't', { rows = 1, consistency = delay < 0 and 'async' or { mode = 'ssp',
                                                                                               staleness = delay } })
         local waiting, last = {}
         for i, clock in ipairs(input.clocks) do
            if type(clock) == 'table' and clock[2] == me then t:finish() end
            if clock == me then
               t:push(torch.FloatTensor({ 1 }))
               last = t:pull_start()
               waiting[#waiting + 1] = last
            end
            job:barrier()
            for _, worker in ipairs(expected.released_after_each[i]) do
               if worker == me then
                  tutti.wait_all(waiting, 20)
                  waiting = {}
               end
            end
            assert(#waiting == 0 or not last:done())
            job:barrier()
         end
         t:finish()
         tutti.wait_all(waiting, 20)
         job:barrier()
      ]]):format(id))
   end

   local NAMES = { ['pl-allreduce-worker'] = 'sum', ['pl-allreduce-star'] = 'product', ['pl-allreduce-mul'] = 'product',
                   ['pl-allreduce-prod'] = 'product', ['pl-allreduce-max'] = 'max', ['pl-allreduce-minimum'] = 'min' }
   for id, rule in pairs(NAMES) do
      test(id, 4, JOB .. ([[
         local input, expected, tolerance = case '%s'
         assert(#input.values == 4)
         local x = job:allreduce(torch.DoubleTensor(input.values[me + 1]), '%s')
         near(x:totable(), expected.result, tolerance, 'the result')
      ]]):format(id, rule))
   end

   test('pl-allreduce-badop', 1, JOB .. [[
      local input, expected = case 'pl-allreduce-badop'
      local x = torch.DoubleTensor(input.values[1])
      local ok, why = pcall(job.allreduce, job, x, input.op)
      assert(expected.error and not ok and tostring(why):find(input.op, 1, true), tostring(why))
      near(x:totable(), input.values[1], 0, 'what was refused')
   ]])

   for _, id in ipairs({ 'pl-sumsgd', 'pl-avgsgd' }) do
      test(id, 3, JOB .. ([[
         local input, expected, tolerance = case '%s'
         local x = torch.DoubleTensor(input.updates[me + 1])
         local gradients = tutti.Gradients.open(job, x)
         assert((input.average and gradients:average() or not input.average and gradients:sum()) == 3)
         near(x:totable(), expected.updates[me + 1], tolerance, 'an update')
      ]]):format(id))
   end

   for id, n in pairs({ ['pl-easgd-unit'] = 2, ['pl-easgd-unit-3'] = 3 }) do
      test(id, n, JOB .. ([[
         local input, expected, tolerance = case '%s'
         local x = torch.DoubleTensor(input['local'][me + 1])
         local elastic = tutti.Elastic.open(job, x, { tau = 1, alpha = input.alpha })
         elastic:center()[1]:copy(torch.DoubleTensor(input.central[me + 1]))
         assert(elastic:step())
         near(x:totable(), expected['local'][me + 1], tolerance, 'a parameter')
         near(elastic:center()[1]:totable(), expected.central[me + 1], tolerance, 'the center')
      ]]):format(id))
   end

   test('paper-easgd-sync', 2, JOB .. [[
      local input, expected, tolerance = case 'paper-easgd-sync'
      local x = torch.DoubleTensor({ input.x[me + 1] })
      local elastic = tutti.Elastic.open(job, x, { tau = 1, alpha = input.alpha })
      elastic:center()[1]:fill(input.center)
      for i = 1, input.steps do
         local step = input.eta * input.h * x[1] -- of before the elastic move
         assert(elastic:step())
         x:add(-step)
         near(x[1], expected.trace[i].x[me + 1], tolerance, 'a parameter')
         near(elastic:center()[1][1], expected.trace[i].center, tolerance, 'the center')
      end
   ]])

   -- One rank more than there are workers; the center begins as rank 0's parameters.
   local CENTER = JOB .. [[
      local function open(first, options)
         options.workers = {}
         for k = 1, job:size() - 1 do options.workers[k] = k - 1 end
         local x = torch.DoubleTensor(first)
         local center = tutti.Center.open(job, 'c', x, options)
         local function holds(expected, tolerance)
            near(center:table():pull():view(-1):totable(), expected, tolerance, 'the center')
         end
         return x, center, holds, me < job:size() - 1
      end
   ]]

   for _, id in ipairs({ 'pl-psync-easgd', 'pl-psync-easgd-a03', 'pl-psync-asgd', 'pl-psync-asgd-pitfall' }) do
      test(id, 3, CENTER .. ([[
         local input, expected, tolerance = case '%s'
         local x, center, holds, works = open(input.master, { kind = input.alpha and 'easgd' or 'asgd', tau = 1,
                                                              alpha = input.alpha })
         if works then x:copy(torch.DoubleTensor(input.workers[me + 1])) end
         if input.copy_to_local_after_init then -- mended: what a worker had before it copied counts for nothing
            if works then center:pull() end
            input.workers = { input.master, input.master }
            input.copy_to_local_after_init = false
            expected = require('equations').platoon_asgd(input)
         end
         local syncs = 0
         for _, event in ipairs(input.events) do
            if event.worker == me and event.local_update then x:add(torch.DoubleTensor(event.local_update)) end
            if event.sync then
               syncs = syncs + 1
               if event.worker == me then
                  assert(center:step())
                  near(x:totable(), expected.syncs[syncs]['local'], tolerance, 'the parameters')
               end
               job:barrier()
               holds(expected.syncs[syncs].master, tolerance)
            end
            job:barrier()
         end
         assert(syncs == #expected.syncs)
      ]]):format(id))
   end

   for _, id in ipairs({ 'pl-downpour-3', 'pl-downpour-avg' }) do
      test(id, 4, CENTER .. ([[
         local input, expected, tolerance = case '%s'
         local x, center, holds, works = open(input.global, { kind = 'downpour', tau = 1, average = input.average })
         for turn = 1, 2 do -- the second time nothing is left to give
            if works then
               if turn == 1 then x:add(torch.DoubleTensor(input.acc[me + 1])) end
               assert(center:step())
               near(x:totable(), expected['local'][me + 1], tolerance, 'the parameters')
            end
            job:barrier()
            holds(expected.global, tolerance)
            job:barrier()
         end
      ]]):format(id))
   end

   test('paper-easgd-async', 3, CENTER .. [[
      local input, expected, tolerance = case 'paper-easgd-async'
      local x, center, holds, works = open({ input.center }, { tau = input.tau, alpha = input.alpha })
      if works then x[1] = input.x[me + 1] end
      for tick, now in ipairs(expected.trace) do
         if (tick - 1) % 2 == me then
            local step = input.eta * input.h * x[1]
            if math.floor((tick - 1) / 2) % input.tau == 0 then center:exchange() end
            x:add(-step)
            assert(now.worker == me)
            near(x[1], now.x, tolerance, 'a parameter')
         end
         job:barrier()
         holds({ now.center }, tolerance)
         job:barrier()
      end
      assert(#expected.trace == input.ticks)
   ]])

   test('paper-eamsgd', 2, CENTER .. [[
      local input, expected, tolerance = case 'paper-eamsgd'
      local x, center, holds, works = open({ input.center }, { tau = input.tau, alpha = input.alpha,
                                                               momentum = input.delta })
      local gradient = torch.DoubleTensor(1)
      if works then x[1] = input.x end
      for i, now in ipairs(expected.trace) do
         if works then
            center:ahead(gradient)
            gradient:mul(input.h)
            if (i - 1) % input.tau == 0 then center:exchange() end
            local before = x[1]
            center:move(gradient, input.eta)
            near({ x[1], x[1] - before }, { now.x, now.v }, tolerance, 'a parameter, its speed')
         end
         job:barrier()
         holds({ now.center }, tolerance)
         job:barrier()
      end
      assert(#expected.trace == input.steps)
   ]])

   test('pl-first-3', 4, JOB .. [[
      local input, expected = case 'pl-first-3'
      local control = tutti.Controller.open(job, 'first')
      if me == 0 then
         control:serve(error)
      else -- the workers call in turn
         for i = 1, input.requests do
            if (i - 1) % input.local_size == me - 1 then
               if i > 1 then assert(job:recv_string(nil, i) == 'your turn') end
               assert(control:first() == expected.first[i])
               if i < input.requests then job:send('your turn', i % input.local_size + 1, i + 1) end
            end
         end
         control:done()
      end
   ]])

   test('pl-lstm-controller', 3, JOB .. [[
      local input, expected = case 'pl-lstm-controller'
      local control = tutti.Controller.open(job, 'lstm')
      local errors, updates, bad, validate, stop = {}, 0, 0, false, false
      local answers = {
         next = function()
            if stop then return 'stop' end
            local now = validate
            validate = false
            return now and 'valid' or 'train'
         end,
         done = function(n)
            updates = updates + n
            validate = validate or updates % input.valid_freq == 0
         end,
         pred_errors = function(e)
            local worst = 0
            for i, old in ipairs(errors) do
               if old >= e then worst = worst + 1 end
            end
            errors[#errors + 1] = e
            if worst == #errors - 1 then
               bad = 0
               return 'best'
            end
            local min = math.huge
            for i = 1, #errors - input.patience do min = math.min(min, errors[i]) end
            if e >= min then bad = bad + 1 end
         end,
      }
      if me == 0 then
         control:serve(function(request)
            local what, x = request:match('^(%S+) ?(.*)$')
            local answer = answers[what](tonumber(x))
            stop = stop or updates > input.max_mb or bad > input.patience
            return answer
         end)
      else
         for i, request in ipairs(input.requests) do
            if (i - 1) % 2 == me - 1 then
               if i > 1 then job:recv_string(nil, i) end
               assert(control:ask(table.concat(request, ' ')) == expected.responses[i], 'request ' .. i)
               if i < #input.requests then job:send('your turn', i % 2 + 1, i + 1) end
            end
         end
         control:done()
      end
   ]])

   -- ---- gossip ----
   -- A round in step: what a rank gives lies in one gossip, and what it takes comes through another one, so that all
   -- have published before one of them reads. Both begin with the clock of this rank's model.
   local GOSSIP = JOB .. [[
      local opened = 0
      local function only(gossip, peer) -- of all others, this one alone
         for k = 0, job:size() - 1 do
            if k ~= me and k ~= peer then gossip:remove_peer(k) end
         end
      end
      local function all(gossip) -- a gossip takes no gift of a rank that was removed
         for k = 0, job:size() - 1 do
            if k ~= me then gossip:add_peer(k) end
         end
      end
      local function pull(x, peer, round) -- round: clock, options, loss_send, loss_wait, step
         local reads
         for k = 0, job:size() - 1 do
            local options = { timeout = 20, clock = round.clock - 1, fetch_probability = k == me and 1 or 0 }
            for name, value in pairs(round.options) do options[name] = value end
            opened = opened + 1
            local gossip = tutti.Gossip.open(job, 'of ' .. k .. ' ' .. opened, x, options)
            if k == me then
               reads = gossip
               only(reads, peer)
            else
               gossip:publish(round.loss_send)
            end
         end
         job:barrier()
         reads:publish(round.loss_send)
         if round.step then x:add(torch.DoubleTensor(round.step)) end
         local result = reads:mix(round.loss_wait)
         assert(result.peer == peer, result.why)
         job:barrier()
         return result.factor, reads:look().clock
      end
      local function options_of(input)
         return { method = input.method, value = input.value, divergence_threshold = input.divergence_threshold }
      end
   ]]

   for _, id in ipairs({ 'dpwa-constant', 'dpwa-constant-02', 'dpwa-clock', 'dpwa-loss', 'dpwa-div-const',
                         'dpwa-div-clock', 'dpwa-div-loss', 'dpwa-div-edge', 'dpwa-div-zero-loss',
                         'dpwa-negative-loss' }) do
      test(id, 2, GOSSIP .. ([[
         local input, expected, tolerance = case '%s'
         local first = me == 0
         local x = torch.DoubleTensor(first and input.params or input.peer_params)
         local loss = first and input.loss or input.peer_loss
         local factor, clock = pull(x, 1 - me, { clock = first and input.clock or input.peer_clock, loss_send = loss,
                                                 loss_wait = loss, options = options_of(input) })
         if input.loss < 0 then -- mended: a negative factor extrapolates
            expected = { factor = 0, new_clock = input.clock, new_params = input.params }
         end
         if first then
            near({ factor, clock }, { expected.factor, expected.new_clock }, tolerance, 'factor, clock')
            near(x:totable(), expected.new_params, tolerance, 'a parameter')
         end
      ]]):format(id))
   end

   for _, id in ipairs({ 'dpwa-pair-const', 'dpwa-pair-clock', 'dpwa-pair-loss' }) do
      test(id, 2, GOSSIP .. ([[
         local input, expected, tolerance = case '%s'
         local x, clock, k = torch.DoubleTensor(input.params[me + 1]), 0, me + 1
         for i, it in ipairs(input.iterations) do
            local factor
            factor, clock = pull(x, 1 - me, { clock = clock + 1, loss_send = it.loss_send[k],
               loss_wait = it.loss_wait[k], step = it.local_update[k], options = options_of(input) })
            local now = expected.iterations[i]
            near({ factor, clock }, { now.factors[k], now.clocks[k] }, tolerance, 'factor, clock')
            near(x:totable(), now.params[k], tolerance, 'a parameter')
         end
      ]]):format(id))
   end

   test('paper-gossip-pull', 3, GOSSIP .. [[
      local input, expected, tolerance = case 'paper-gossip-pull'
      local x = torch.DoubleTensor(input.x[me + 1])
      for i, round in ipairs(input.rounds) do
         pull(x, round.peer[me + 1], { clock = 1, options = {} })
         x:add(torch.DoubleTensor(round.local_update[me + 1]))
         near(x:totable(), expected.trace[i][me + 1], tolerance, 'the model')
      end
   ]])

   local GIFTS = GOSSIP .. [[
      local function take(gossip, n)
         while gossip:look().offers < n do end
         assert(gossip:mix().gifts == n)
      end
   ]]

   test('paper-gossip-push', 3, GIFTS .. [[
      local input, expected, tolerance = case 'paper-gossip-push'
      local x = torch.DoubleTensor(input.x[me + 1])
      for i, round in ipairs(input.rounds) do
         local gossip = tutti.Gossip.open(job, 'push ' .. i, x, { way = 'push', timeout = 20 })
         job:barrier()
         only(gossip, round.peer[me + 1])
         gossip:publish()
         all(gossip)
         local gifts = 0
         for from, to in ipairs(round.peer) do
            if to == me and from - 1 ~= me then gifts = gifts + 1 end
         end
         take(gossip, gifts)
         x:add(torch.DoubleTensor(round.local_update[me + 1]))
         near(x:totable(), expected.trace[i][me + 1], tolerance, 'the model')
         job:barrier()
      end
   ]])

   test('paper-gosgd', 2, GIFTS .. [[
      local input, expected, tolerance = case 'paper-gosgd'
      local x = torch.DoubleTensor(input.x[me + 1])
      local gossip = tutti.Gossip.open(job, 'push sum', x, { way = 'push_sum', weight = input.w[me + 1], timeout = 20 })
      job:barrier()
      for i, event in ipairs(input.events) do
         if event.node == me and event.local_update then x:add(torch.DoubleTensor(event.local_update)) end
         if event.send and event.send[1] == me then gossip:publish() end
         if event.send and event.send[2] == me then take(gossip, 1) end
         job:barrier()
         near(gossip:look().weight, expected.trace[i].w[me + 1], tolerance, 'the weight')
         near(x:totable(), expected.trace[i].x[me + 1], tolerance, 'the model')
         job:barrier()
      end
      local weight = torch.DoubleTensor({ gossip:look().weight })
      x:mul(weight[1])
      near(job:allreduce(x):totable(), expected.weighted_mean, tolerance, 'the weighted mean')
      near(job:allreduce(weight)[1], expected.weight_sum, tolerance, 'the sum of weights')
   ]])

   for _, id in ipairs({ 'dpwa-flow-1', 'dpwa-flow-floor', 'dpwa-flow-cap' }) do
      test(id, 2, JOB .. ([[
         local input, expected = case '%s'
         local gossip
         local function open(n, options) return tutti.Gossip.open(job, 'flow', torch.DoubleTensor(n), options) end
         local long = #input.events > 10 -- at its end the score is the lowest: one timeout more changes nothing
         if me == 0 then gossip = open(1, { choice = 'dpwa', timeout = long and 0.1 or 0.4 }) end
         for i, event in ipairs(input.events) do
            if i > #expected.scores then break end
            if me == 1 then -- is there, or not, or has another model
               if gossip and event ~= 'ok' then
                  gossip:close()
                  gossip = nil
               end
               if event == 'ok' or event == 'error' then
                  gossip = gossip or open(event == 'error' and 2 or 1, { fetch_probability = 0 })
                  gossip:publish()
               end
            end
            job:barrier()
            if me == 0 then
               local there
               repeat
                  gossip:publish()
                  there = gossip:mix().peer == 1
               until not long or there == (event == 'ok')
               assert(there == (event == 'ok'), event)
               local removed, score = pcall(gossip.score, gossip, 1)
               assert((expected.scores[i] == 'removed' and not removed) or score == expected.scores[i], tostring(score))
            end
            job:barrier()
         end
      ]]):format(id))
   end

   -- ---- that none is missing ----

   it('of the list, each as the list says', function()
      local case, listed = require 'case', {}
      for line in io.lines(os.getenv('SOURCE') .. '/tests/lua/conformance.list') do
         local id, way, why = line:match('^(%S+) (%a+) (.+)$')
         if line:sub(1, 1) ~= '#' then
            assert.truthy(id and (way == 'none' or way == 'old' or way == 'tutti') and why, line)
            listed[id] = way
            assert.are.equal(way ~= 'none', ran[id] or false, id)
         end
      end
      for _, id in ipairs(case.ids()) do
         assert.truthy(listed[id], id .. ' is missing in tests/lua/conformance.list')
         listed[id] = nil
      end
      assert.is_nil(next(listed))
   end)
end)

describe('the equations', function()
   local case, equations = require 'case', require 'equations'

   local function same(got, want, tolerance)
      if type(got) == 'table' and type(want) == 'table' then
         for k, v in pairs(got) do
            if not same(v, want[k], tolerance) then return false end
         end
         return #got == #want
      elseif type(got) == 'number' and type(want) == 'number' then
         return math.abs(got - want) <= tolerance * math.max(1, math.abs(want))
      end
      return got == want or (got ~= got and want == 'NaN')
   end

   local function replies_of(worker, expected)
      local list = {}
      for _, reply in ipairs(expected.replies) do
         if reply[2] == worker then list[#list + 1] = reply end
      end
      return list
   end

   for _, id in ipairs(case.ids()) do
      local input, expected, tolerance, ref = case.get(id)
      if equations[ref] then
         it('give what is recorded of ' .. id, function()
            local got = equations[ref](input)
            if expected.replies then -- recorded in the order of a server's answers
               for worker = 0, 1 do
                  assert(same(replies_of(worker, got), replies_of(worker, expected), tolerance))
               end
            else
               assert(same(got, expected, tolerance))
            end
         end)
      end
   end

   -- Those come to the same: nothing but zeros, a refusal, no bound, and a list that has no other order.
   local SAME = { ['mv-filter-zero'] = true, ['pl-allreduce-badop'] = true, ['mv-ssp--1'] = true,
                  ['dpwa-flow-cap'] = true }

   it('come to other results with other numbers', function()
      for _, id in ipairs(case.ids()) do
         local _, expected, _, ref = case.get(id)
         if equations[ref] and not expected.replies then
            local _, other = case.get(id, true)
            assert.are.equal(SAME[id] or false, same(other, expected, 0), id)
         end
      end
   end)
end)
