-- AllReduceEA(tree, tau, alpha, options): averageParameters, synchronizeCenter, synchronizeParameters. options.compat:
-- torch-distlearn's arithmetic to the letter, in which the last move of a synchronization is lost for the center.
local add = require 'distlearn.add'
local surface = require 'tutti.surface'
local tutti = require 'tutti'

-- A program may replace its parameters by new tensors; the elastic average works in those of the first call.
local function over_group(group, tau, alpha, compat)
   local elastic, first
   local function with(params, call)
      local leaves = surface.leaves(params)
      if not elastic then
         elastic, first = tutti.Elastic.open(group, leaves, { tau = tau, alpha = alpha, distlearn = compat }), leaves
      end
      if #leaves ~= #first then
         error(('AllReduceEA: %d parameters, and in the first call there were %d'):format(#leaves, #first), 0)
      end
      for i, p in ipairs(leaves) do
         if p ~= first[i] then first[i]:copy(p) end
      end
      call(elastic)
      for i, p in ipairs(leaves) do
         if p ~= first[i] then p:copy(first[i]) end
      end
   end
   return {
      averageParameters = function(params) with(params, tutti.Elastic.step) end,
      synchronizeCenter = function(params) with(params, tutti.Elastic.synchronize_center) end,
      synchronizeParameters = function(params) with(params, tutti.Elastic.synchronize) end,
   }
end

-- On a tree that is not ours. The sum of the moves comes into the center before the next move.
local function over_tree(tree, tau, alpha, compat)
   local center, delta, leaves, steps, moved = nil, nil, nil, 0, false
   local function begin(params)
      leaves = surface.leaves(params)
      if center then return end
      center, delta = {}, {}
      for i, p in ipairs(leaves) do center[i], delta[i] = p:clone(), p:clone():zero() end
   end
   local function take_sum()
      if not moved then return end
      for i, c in ipairs(center) do c:add(delta[i]) end
      moved = false
   end
   local function move(i)
      local p = leaves[i]
      delta[i]:copy(p):add(-1, center[i]):mul(alpha)
      p:add(-1, delta[i])
      return delta[i]
   end
   local function finish()
      local before = {}
      take_sum()
      tree.allReduce(delta, add, function(_, i)
         if i == 1 then take_sum() end
         before[i] = leaves[i]:clone()
         moved = i == #leaves
         return move(i)
      end)
      moved = false
      if not compat then -- the last move was nobody's: its sum is in no center
         for i, p in ipairs(before) do leaves[i]:copy(p) end -- none if the tree has one node
      end
   end
   local function synchronize(params, what)
      begin(params)
      if steps > 0 or not compat then finish() end
      what()
      steps = 0
   end
   return {
      averageParameters = function(params)
         begin(params)
         steps = steps + 1
         if steps % tau ~= 0 then return end
         for i = 1, #leaves do move(i) end
         tree.allReduce(delta, add)
         for i, c in ipairs(center) do c:add(delta[i]) end
      end,
      synchronizeCenter = function(params) synchronize(params, function() tree.scatter(center) end) end,
      synchronizeParameters = function(params)
         synchronize(params, function()
            tree.scatter(params)
            for i, p in ipairs(surface.leaves(params)) do center[i]:copy(p) end
         end)
      end,
   }
end

local warned = false

-- Above 2 / (n + 1) the sum of n moves throws the center further than it was away.
local function warn(alpha, tree)
   local nodes = tree.numNodes
   local bound = 2 / (nodes + 1)
   if alpha <= bound or warned or tree.nodeIndex ~= 1 then return end
   warned = true
   local sentence = 'AllReduceEA: alpha %g of %d nodes moves the center further than its distance: up to %g is stable\n'
   io.stderr:write(sentence:format(alpha, nodes, bound))
end

local function AllReduceEA(tree, tau, alpha, options)
   if type(tau) ~= 'number' or tau < 1 or type(alpha) ~= 'number' or not (alpha >= 0 and alpha <= 1) then
      local sentence = 'AllReduceEA: tau is %s, and must be from 1 up; alpha is %s, and must be from 0 to 1'
      error(sentence:format(tostring(tau), tostring(alpha)), 0)
   end
   warn(alpha, tree)
   local compat = options and options.compat or false
   local over = tree.group and over_group(tree.group, tau, alpha, compat) or over_tree(tree, tau, alpha, compat)
   return surface.plain_all(over)
end

return surface.plain(AllReduceEA)
