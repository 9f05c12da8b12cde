-- distlearn beside the recorded cases: a node without steps, other shapes, an alpha that is too large, the tester
local ranks = require 'ranks'

local function run(n, program)
   local status, output = ranks.shell(('timeout -k 2 30 tutti run -n %d luajit %s'):format(n, ranks.file(
      "local torch = require 'tutti.tensor'\n" .. program)))
   if status ~= 0 then error(('status %d\n%s'):format(status, output), 2) end
   return output
end

describe('distlearn', function()
   it('counts no node without steps, and says when gradients differ', function()
      local output = run(3, [[
         local tree = require 'ipc.SlurmTree'()
         local sgd = require 'distlearn.AllReduceSGD'(tree)
         local me = tree.nodeIndex
         local params = { torch.FloatTensor(3):fill(me), { torch.DoubleTensor(2):fill(me) } }
         for i = 1, ({ 0, 2, 1 })[me] do
            local grads = { torch.FloatTensor(3):fill(1), { torch.DoubleTensor(2):fill(2) } }
            local same, n = sgd.sumGradients(grads)
            assert(same == grads and n == 3 - i and grads[1][1] == n and grads[2][1][1] == 2 * n)
         end
         sgd.synchronizeParameters(params)
         assert(params[1][1] == 2 and params[2][1][2] == 2) -- node 2 has most steps
         local ok, why = pcall(sgd.sumGradients, { torch.FloatTensor(me) })
         print('differ', ok, type(why))
      ]])
      local _, n = output:gsub('differ%sfalse%sstring', '')
      assert.are.equal(3, n, output)
   end)

   it('keeps its gradients when one node gives tensors that are refused', function()
      run(2, [[
         local tree = require 'ipc.SlurmTree'()
         local sgd = require 'distlearn.AllReduceSGD'(tree)
         sgd.sumGradients({ torch.FloatTensor(4):fill(1) })
         assert(tree.nodeIndex == 2 or not pcall(sgd.sumGradients, { torch.FloatTensor(2, 2):t() }))
         local grads = { torch.FloatTensor(4):fill(1) }
         local _, n = sgd.sumGradients(grads)
         assert(n == 2 and grads[1][1] == 2)
      ]])
   end)

   it('takes parameters that the program replaces, and a tree of one node', function()
      for n = 1, 2 do
         run(n, [[
            local tree = require 'ipc.SlurmTree'()
            local sign = tree.nodeIndex == 1 and 1 or -1
            for _, compat in ipairs({ false, true }) do
               local ea = require 'distlearn.AllReduceEA'(tree, 2, 0.5, { compat = compat })
               local kept = { torch.DoubleTensor({ 1 }) }
               local params = { torch.DoubleTensor({ 1 }) }
               local same = require 'distlearn.AllReduceEA'(tree, 2, 0.5, { compat = compat })
               for _ = 1, 2 do
                  ea.synchronizeParameters(params)
                  same.synchronizeParameters(kept)
                  for _ = 1, 4 do
                     params[1] = params[1] + sign
                     kept[1]:add(sign)
                     ea.averageParameters(params)
                     same.averageParameters(kept)
                     assert(params[1][1] == kept[1][1])
                  end
                  ea.synchronizeCenter(params)
                  same.synchronizeCenter(kept)
                  assert(params[1][1] == kept[1][1])
               end
               assert(tree.numNodes == 1 or not pcall(ea.averageParameters, { params[1], params[1] }))
            end
         ]])
      end
   end)

   it('warns once of an alpha above the bound, and runs', function()
      local output = run(4, [[
         local tree = require 'ipc.SlurmTree'()
         for _ = 1, 2 do
            local ea = require 'distlearn.AllReduceEA'(tree, 1, 0.5)
            local params = { torch.DoubleTensor(2):fill(tree.nodeIndex) }
            ea.averageParameters(params)
            ea.synchronizeParameters(params)
         end
         require 'distlearn.AllReduceEA'(tree, 1, 0.4)
      ]])
      local _, n = output:gsub('alpha 0.5 of 4 nodes moves the center further [^\n]*: up to 0.4 is stable', '')
      assert.are.equal(1, n, output)
   end)

   it('gives a tester the center', function()
      run(1, [[
         local ipc = require 'libipc'
         local everyone, port = ipc.server()
         local one, one_port = ipc.server()
         local test, test_port = ipc.server()
         local client = ipc.map(1, function(port, one_port)
            local ipc, torch = require 'libipc', require 'tutti.tensor'
            local all, mine = ipc.client(port), ipc.client(one_port)
            local ea = require 'distlearn.AsyncEA'(nil, nil, mine, all, nil, nil, 1, 1, 2, 0.5)
            local params = { torch.FloatTensor(2) }
            ea.initClient(params)
            params[1]:add(4)
            local first, second = ea.syncClient(params), ea.syncClient(params)
            mine:close()
            all:close()
            return first, second, params[1][1]
         end, port, one_port)
         local tester = ipc.map(1, function(test_port)
            local torch = require 'tutti.tensor'
            local server = require 'libipc'.client(test_port)
            local ea = require 'distlearn.AsyncEA'(nil, nil, nil, nil, nil, server, 1, 1, 2, 0.5)
            local params = { torch.FloatTensor(2) }
            ea.initTester(params)
            ea.startTest(params)
            ea.finishTest()
            return params[1][2]
         end, test_port)
         local ea = require 'distlearn.AsyncEA'({ one }, everyone, nil, nil, test, nil, 1, 0, 2, 0.5)
         local params = { torch.FloatTensor(2):fill(1) }
         ea.initServer(params)
         ea.syncServer(params)
         ea.testNet()
         local first, second, value = client:join()
         assert(first == false and second == true and value == 3 and params[1][1] == 3)
         assert(tester:join() == 3)
      ]])
   end)
end)
