-- distlearn.lua - torch-distlearn's two algorithms on one tree, from a launcher or by hand:
--   tutti run -n 4 luajit distlearn.lua
--   for i in 1 2 3 4; do luajit distlearn.lua $i 4 7000 & done; wait
local torch = require 'tutti.tensor'

local node, nodes, port = tonumber(arg[1]), tonumber(arg[2]), tonumber(arg[3])
local tree = node and require 'ipc.StaticTree'(node, nodes, '127.0.0.1', port, '127.0.0.1', port)
   or require 'ipc.SlurmTree'()

-- The gradient of (p - i)^2 / 2 on node i: the mean of all nodes is the best p.
local function gradient(params) return { params[1] - tree.nodeIndex } end

local params = { torch.DoubleTensor({ 10 * tree.nodeIndex }) }
local allReduceSGD = require 'distlearn.AllReduceSGD'(tree)
allReduceSGD.synchronizeParameters(params)
for _ = 1, 2 do
   for _ = 1, 20 + tree.nodeIndex do
      local grads = gradient(params)
      allReduceSGD.sumAndNormalizeGradients(grads)
      params[1]:add(-0.2, grads[1])
   end
   allReduceSGD.synchronizeParameters(params)
end
print(('node %d of %d: all-reduce SGD ends at %.6f'):format(tree.nodeIndex, tree.numNodes, params[1][1]))

local allReduceEA = require 'distlearn.AllReduceEA'(tree, 10, 0.2)
allReduceEA.synchronizeParameters(params)
for _ = 1, 100 do
   params[1]:add(-0.1, gradient(params)[1])
   allReduceEA.averageParameters(params)
end
allReduceEA.synchronizeCenter(params)
print(('node %d of %d: elastic averaging ends at %.2f'):format(tree.nodeIndex, tree.numNodes, params[1][1]))
tree.close()
