-- the recorded cases of the old systems, through their old names
local ranks = require 'ranks'

local HEAD = [[
   local case = require 'case'
   local function near(got, want, tolerance, what)
      if type(want) == 'table' then
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

-- Each case runs over one transport: over the two in turn.
local function test(name, n, program)
   turn = turn + 1
   local transports = turn % 2 == 0 and 'tcp' or 'shm,tcp'
   it(name .. ' over ' .. transports:match('^%a+'), function()
      local status, output = ranks.shell(('TUTTI_TRANSPORTS=%s timeout -k 2 30 tutti run -n %d luajit %s'):format(
         transports, n, ranks.file(HEAD .. program)))
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

   -- ---- what the old names do not reach: tutti.lua itself ----

   local RULES = {
      ['mv-sgd'] = "{ rule = 'sgd' }", ['mv-momentum'] = "{ rule = 'smoothed' }",
      ['mv-momentum-default-option'] = "{ rule = 'smoothed' }",
      ['mv-dcasgd'] = "{ rule = 'dcasgd', backup_from_zero = true }",
      ['mv-dcasgda'] = "{ rule = 'dcasgda', backup_from_zero = true }",
   }
   for id, rule in pairs(RULES) do
      test(id, id:match('default') and 1 or 2, ([[
         local input, expected, tolerance = case '%s'
         local tutti = require 'tutti'
         local job = tutti.init()
         local t = tutti.Table.open(job, 't', { rows = #input.data, type = 'double', rule = %s })
         if job:rank() == 0 then t:assign(torch.DoubleTensor(input.data)) end
         job:barrier()
         for i, add in ipairs(input.adds) do
            local o = add.option or {}
            local scaled = o.learning_rate and { learning_rate = o.learning_rate, scale = 1 / o.learning_rate,
                                                 compensation = o.lam } or {}
            scaled.momentum = o.momentum
            if (add.worker or 0) == job:rank() then t:push(torch.DoubleTensor(add.delta), scaled) end
            job:barrier()
            near(t:pull():totable(), expected.data_after_each_add[i], tolerance, 'the table')
            job:barrier()
         end
      ]]):format(id, rule))
   end

   for id, rule in pairs({ ['pl-allreduce-worker'] = 'sum', ['pl-allreduce-star'] = 'product',
                           ['pl-allreduce-max'] = 'max', ['pl-allreduce-minimum'] = 'min' }) do
      test(id, 4, ([[
         local input, expected, tolerance = case '%s'
         local job = require('tutti').init()
         assert(#input.values == 4)
         local x = job:allreduce(torch.DoubleTensor(input.values[job:rank() + 1]), '%s')
         near(x:totable(), expected.result, tolerance, 'the result')
      ]]):format(id, rule))
   end

   local KINDS = { ['pl-psync-easgd'] = 'easgd', ['pl-psync-easgd-a03'] = 'easgd', ['pl-psync-asgd'] = 'asgd' }
   for id, kind in pairs(KINDS) do
      test(id, 2, ([[
         local input, expected, tolerance = case '%s'
         local tutti = require 'tutti'
         local job = tutti.init()
         local params = torch.DoubleTensor(input.workers[job:rank() + 1])
         local center = tutti.Center.open(job, 'c', params, { kind = '%s', tau = 1, alpha = input.alpha })
         for i, event in ipairs(input.events) do
            if event.worker == job:rank() then
               if event.local_update then params:add(torch.DoubleTensor(event.local_update)) end
               center:exchange()
               near(params:totable(), expected.syncs[i]['local'], tolerance, 'the parameters')
            end
            job:barrier()
            near(center:table():pull():view(-1):totable(), expected.syncs[i].master, tolerance, 'the center')
            job:barrier()
         end
      ]]):format(id, kind))
   end

   test('pl-first-3', 4, [[
      local input, expected = case 'pl-first-3'
      local tutti = require 'tutti'
      local job = tutti.init()
      local control = tutti.Controller.open(job, 'first')
      if job:rank() == 0 then
         control:serve(error)
      else -- the workers call in turn
         for i = 1, input.requests do
            if (i - 1) % input.local_size == job:rank() - 1 then
               if i > 1 then assert(job:recv_string(nil, i) == 'your turn') end
               assert(control:first() == expected.first[i])
               if i < input.requests then job:send('your turn', i % input.local_size + 1, i + 1) end
            end
         end
         control:done()
      end
   ]])
end)
