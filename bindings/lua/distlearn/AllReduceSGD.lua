-- AllReduceSGD(tree): sumGradients, sumAndNormalizeGradients, synchronizeParameters. On a tree of ours it is Tutti's
-- gradients; on another tree its allReduce.
local add = require 'distlearn.add'
local surface = require 'tutti.surface'
local tensor = require 'tutti.tensor'
local tutti = require 'tutti'

-- ---- on a tree of ours: sum(grads) and average(grads) return how many nodes gave some; finish(params) ----

local function same(a, b)
   if #a ~= #b then return false end
   for i = 1, #a do
      if a[i] ~= b[i] then return false end
   end
   return true
end

local function shapes_of(leaves)
   local shapes = {}
   for i, leaf in ipairs(leaves) do shapes[i] = leaf:nElement() .. ' ' .. leaf:type() end
   return shapes
end

local function over_group(group)
   local gradients, opened, shapes
   local function open(leaves) -- programs may have new tensors in each step
      if gradients and same(leaves, opened) then return gradients end
      if gradients and same(shapes_of(leaves), shapes) then
         gradients:move(leaves)
      else -- another model, on all nodes
         if gradients then gradients:close() end
         gradients = nil
         gradients = tutti.Gradients.open(group, leaves)
         shapes = shapes_of(leaves)
      end
      opened = leaves
      return gradients
   end
   local function zeros_like(params)
      local leaves = {}
      for i, p in ipairs(params) do leaves[i] = p:clone():zero() end
      return leaves
   end
   local functions, dummy = {}, tensor.DoubleTensor(1)
   function functions.sum(grads) return open(surface.leaves(grads)):sum() end
   function functions.average(grads) return open(surface.leaves(grads)):average() end
   function functions.finish(params) -- a node without a step gives zeros of the size of its parameters
      local g = gradients or open(zeros_like(surface.leaves(params)))
      g:synchronize(dummy)
   end
   function functions.steps_of_all(steps)
      local all = group:allgather(tensor.DoubleTensor({ steps }))
      return all:totable()
   end
   function functions.spread(params, winner)
      for _, leaf in ipairs(surface.leaves(params)) do group:broadcast(leaf, winner - 1) end
   end
   return functions
end

-- ---- on another tree ----

local function over_tree(tree)
   local functions, last = {}, nil
   function functions.sum(grads)
      last = grads
      local _, n = tree.allReduce(grads, add)
      return n
   end
   function functions.average(grads)
      local n = functions.sum(grads)
      if n > 1 then
         for _, leaf in ipairs(surface.leaves(grads)) do leaf:mul(1 / n) end
      end
      return n
   end
   function functions.finish(params)
      local grads = last
      if not grads then
         grads = {}
         for i, leaf in ipairs(surface.leaves(params)) do grads[i] = leaf:clone() end
      end
      tree.allReduce(grads, add, function(leaf) return leaf:zero() end)
   end
   function functions.steps_of_all(steps)
      local all = {}
      for i = 1, tree.numNodes do all[i] = i == tree.nodeIndex and steps or 0 end
      return (tree.allReduce(all, add))
   end
   function functions.spread(params, winner)
      if winner == 1 then return tree.scatter(params) end
      if winner ~= tree.nodeIndex then
         for _, leaf in ipairs(surface.leaves(params)) do leaf:zero() end
      end
      tree.allReduce(params, add)
   end
   return functions
end

-- The node with most steps; of several the first one.
local function winner_of(steps)
   local best = 1
   for i, n in ipairs(steps) do
      if n > steps[best] then best = i end
   end
   return best
end

local function AllReduceSGD(tree)
   local over = tree.group and over_group(tree.group) or over_tree(tree)
   local steps = 0
   local function sumGradients(grads)
      local n = over.sum(grads)
      steps = steps + 1
      return grads, n
   end
   local function sumAndNormalizeGradients(grads)
      local n = over.average(grads)
      steps = steps + 1
      return grads, n
   end
   -- Waits for the steps of the others; then all have the parameters of the node with most steps.
   local function synchronizeParameters(params)
      over.finish(params)
      over.spread(params, winner_of(over.steps_of_all(steps)))
      steps = 0
   end
   return surface.plain_all({ sumGradients = sumGradients, sumAndNormalizeGradients = sumAndNormalizeGradients,
                              synchronizeParameters = synchronizeParameters })
end

return surface.plain(AllReduceSGD)
