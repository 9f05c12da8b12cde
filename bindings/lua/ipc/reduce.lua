-- allReduce and scatter of a tree, over a group of Tutti. Values are numbers, tensors, or nested tables of these.
--
-- Each call begins with one small gather: what each node brings. So nodes that bring different things all get an error,
-- and nobody waits for ever. A sum of tensors is an allreduce. For any other function node 1 takes the tensors of the
-- other nodes, one at a time, folds them in the order of the nodes, and gives the result to all.
local ffi = require 'ffi'
local memory = require 'tutti.memory'
local pack = require 'ipc.pack'
local is_sum = require 'ipc.sum'
local surface = require 'tutti.surface'
local reduce = {}

local FOLD = 3 -- the tag of what node 1 folds
local is_tensor = surface.is_tensor

-- ---- leaves ----

local function is_box(value) return type(value) ~= 'table' or is_tensor(value) end

-- The leaves of a table, in order, as { value }; those that are tensors and the others in lists of their own, too.
local function leaves_of(box)
   local list = { tensors = {}, others = {} }
   surface.walk(box, function(v)
      local leaf = { value = v, tensor = is_tensor(v) }
      local kind = leaf.tensor and list.tensors or list.others
      list[#list + 1], kind[#kind + 1] = leaf, leaf
      leaf.place = #kind -- in the list of its kind
   end)
   return list
end

local function put_back(box, list)
   local i = 0
   surface.walk(box, function()
      i = i + 1
      return list[i].value
   end)
end

local function strides_of(t)
   if t.stride == nil then return '' end
   local s = {}
   for d = 1, t:dim() do s[d] = t:stride(d) end
   return table.concat(s, ' ')
end

-- A text of what all leaves are, which is the same on all nodes.
local function shape_of(list)
   local out = {}
   for i, leaf in ipairs(list) do
      out[i] = leaf.tensor and pack.head(leaf.value) .. ' by ' .. strides_of(leaf.value) or type(leaf.value)
   end
   return table.concat(out, ', ')
end

local function hash_of(s)
   local h = 5381
   for i = 1, #s do h = (h * 33 + s:byte(i)) % 2 ^ 45 end
   return h
end

-- ---- what all nodes bring ----

local CALLS = { allReduce = 1, scatter = 2 }
local WORDS = 5 -- of a node: the call, whether it is finished, whether the function is a sum, leaves, hash

-- Returns how many nodes are finished, and whether all functions are sums.
local function agree(tree, call, finished, sum, list, problem)
   local size = tree.group:size()
   local mine, all = ffi.new('double[?]', WORDS), ffi.new('double[?]', WORDS * size)
   local shape = problem and '' or shape_of(list)
   mine[0], mine[1], mine[2], mine[3], mine[4] = problem and 0 or CALLS[call], finished and 1 or 0, sum and 1 or 0,
      #list, hash_of(shape)
   tree.group:allgather(mine, all)
   if problem then error(problem, 0) end
   local done, sums = 0, 0
   for node = 0, size - 1 do
      local its = all + node * WORDS
      if its[0] ~= mine[0] then
         error(('%s: node %d %s'):format(call, node + 1, its[0] == 0 and 'has refused its value, and says why' or
                                         'calls another function of the tree'), 0)
      end
      if its[3] ~= mine[3] or its[4] ~= mine[4] then
         local sentence = '%s: node %d gives %d values of other sizes, strides or types than node %d, '
            .. 'which gives %d (%s)'
         error(sentence:format(call, node + 1, its[3], tree.nodeIndex, #list, shape:sub(1, 100)), 0)
      end
      done, sums = done + its[1], sums + its[2]
   end
   return done, sums == size
end

local function problem_of(call, list)
   for _, leaf in ipairs(list) do
      if leaf.tensor then
         local ok, why = pcall(memory.kind_of, leaf.value)
         if not ok then return tostring(why) end
      elseif call == 'allReduce' and type(leaf.value) ~= 'number' then
         return ('allReduce of a %s: values are numbers, tensors, and tables of these'):format(type(leaf.value))
      end
   end
end

-- ---- dense memory ----

-- Calls f with a tensor without gaps that has the elements of t, and copies them back.
local function dense(t, f)
   local c = t:isContiguous() and t or t:contiguous()
   f(c)
   if c ~= t then t:copy(c) end
end

local function broadcast(group, t)
   if t:nElement() > 0 then dense(t, function(c) group:broadcast(c, 0) end) end
end

-- ---- sums ----

local function sum_tensors(group, tensors)
   local kinds = {}
   for _, leaf in ipairs(tensors) do
      if leaf.value:nElement() > 0 then
         local kind = memory.kind_of(leaf.value)
         kinds[kind] = kinds[kind] or {}
         table.insert(kinds[kind], { leaf.value, leaf.value:contiguous() })
      end
   end
   for _, kind in ipairs({ 'byte', 'char', 'double', 'float', 'half', 'int', 'long' }) do
      local dense = {}
      for i, pair in ipairs(kinds[kind] or {}) do dense[i] = pair[2] end
      if #dense > 0 then group:allreduce(dense, 'sum') end
      for _, pair in ipairs(kinds[kind] or {}) do
         if pair[1] ~= pair[2] then pair[1]:copy(pair[2]) end
      end
   end
end

-- The numbers of all nodes, node behind node.
local function gather_numbers(group, numbers)
   local n = #numbers
   if n == 0 then return nil end
   local mine, all = ffi.new('double[?]', n), ffi.new('double[?]', n * group:size())
   for i, leaf in ipairs(numbers) do mine[i - 1] = leaf.value end
   return group:allgather(mine, all)
end

-- Number i of n, folded over the nodes in their order.
local function fold_number(f, all, n, i, size)
   local value = all[i - 1]
   for node = 1, size - 1 do value = f(value, all[node * n + i - 1]) end
   return value
end

local function plus(a, b) return a + b end

local function sum_numbers(group, numbers)
   local all = gather_numbers(group, numbers)
   for i, leaf in ipairs(numbers) do leaf.value = fold_number(plus, all, #numbers, i, group:size()) end
end

-- ---- any function ----

-- Folds one more tensor into `mine`; returns why not, if so.
local function fold_one(f, mine, room)
   local ok, given = pcall(f, mine, room)
   if not ok then return tostring(given) end
   if given == nil or given == mine then return end
   if not is_tensor(given) or given:nElement() ~= mine:nElement() then
      return ('it has returned a %s for two tensors of %d elements'):format(type(given), tonumber(mine:nElement()))
   end
   mine:copy(given)
end

-- On node 1: the tensors of all nodes, folded into `mine`. Besides that and what f makes there is one more at a time.
-- Goes on receiving after an error of f, which it returns.
local function fold_tensor(group, f, mine)
   local room, failure = pack.tensor(pack.head(mine)), nil
   for node = 1, group:size() - 1 do
      if room:nElement() > 0 then group:recv(room, node, FOLD) end
      failure = failure or fold_one(f, mine, room)
      if mine:nElement() > 2 ^ 18 then collectgarbage() end -- else results that are dropped pile up
   end
   return failure
end

-- On node 1: folds each leaf of the list; returns why f has failed, if so.
local function fold_here(group, f, list, all)
   local failure
   for _, leaf in ipairs(list) do
      if leaf.tensor then
         local why = fold_tensor(group, f, leaf.value)
         failure = failure or why
      elseif not failure then
         local ok, value = pcall(fold_number, f, all, #list.others, leaf.place, group:size())
         if ok and type(value) ~= 'number' then
            ok, value = false, 'it has returned a ' .. type(value) .. ' for two numbers'
         end
         if ok then leaf.value = value else failure = tostring(value) end
      end
   end
   return failure
end

local function send_tensors(group, tensors)
   for _, leaf in ipairs(tensors) do
      if leaf.value:nElement() > 0 then group:send(leaf.value:contiguous(), 0, FOLD) end
   end
end

-- A string of node 1, on all nodes.
local function broadcast_string(group, s)
   local length = ffi.new('int64_t[1]', s and #s or 0)
   group:broadcast(length, 0)
   local n = tonumber(length[0])
   if n == 0 then return '' end
   local room = ffi.new('char[?]', n, s or '')
   if s then ffi.copy(room, s, n) end
   group:broadcast(room, 0)
   return ffi.string(room, n)
end

local function fold(tree, f, list)
   local group, failure = tree.group, nil
   local root = group:rank() == 0
   local all = gather_numbers(group, list.others)
   if root then failure = fold_here(group, f, list, all) else send_tensors(group, list.tensors) end
   local said = broadcast_string(group, root and (failure or ''))
   if said ~= '' then error('allReduce: the function has failed on node 1: ' .. said, 0) end
   for _, leaf in ipairs(list.tensors) do broadcast(group, leaf.value) end
   if #list.others == 0 then return end
   local numbers = ffi.new('double[?]', #list.others)
   for i, leaf in ipairs(list.others) do numbers[i - 1] = leaf.value end
   group:broadcast(numbers, 0)
   for i, leaf in ipairs(list.others) do leaf.value = numbers[i - 1] end
end

-- ---- the two calls ----

local function has_short(list)
   for _, leaf in ipairs(list.tensors) do
      if memory.kind_of(leaf.value) == 'short' then return true end
   end
end

-- One round; returns how many nodes are not finished.
local function round(tree, box, f, finished, problem)
   local list = leaves_of(box)
   problem = problem or problem_of('allReduce', list)
   local sum = not problem and is_sum(f) and not has_short(list)
   local done, sums = agree(tree, 'allReduce', finished, sum, list, problem)
   if sums then
      sum_tensors(tree.group, list.tensors)
      sum_numbers(tree.group, list.others)
   else
      fold(tree, f, list)
   end
   put_back(box, list)
   return tree.group:size() - done
end

-- allReduce(value, f, zero) returns the value and how many nodes are not finished. With zero this node is finished:
-- zero(v, i) makes each leaf of its last value that of a node without a part, until all nodes are finished.
function reduce.all_reduce(tree, value, f, zero)
   local boxed = is_box(value)
   local box = value
   if boxed then box = { value } end
   local problem
   if zero then
      if boxed and value == nil then box, boxed = tree.last or {}, tree.last_boxed end
      if next(box) == nil then
         problem = 'allReduce(nil, f, zero): this node has reduced no value before: give a value of the others\' size'
      end
   else
      tree.last, tree.last_boxed = box, boxed
   end
   local live
   repeat
      local i = 0
      if zero then
         surface.walk(box, function(v)
            i = i + 1
            return zero(v, i)
         end)
      end
      live = round(tree, box, f, zero ~= nil, problem)
   until not zero or live == 0
   if boxed then return box[1], live end
   return box, live
end

-- scatter(value): node 1's value, on all nodes; tensors in place.
function reduce.scatter(tree, value)
   local boxed = is_box(value)
   local box = boxed and { value } or value
   local list = leaves_of(box)
   agree(tree, 'scatter', false, false, list, problem_of('scatter', list))
   for _, leaf in ipairs(list.tensors) do broadcast(tree.group, leaf.value) end
   local rest = {}
   for i, leaf in ipairs(list.others) do rest[i] = leaf.value end
   local root = tree.group:rank() == 0
   rest = pack.decode(broadcast_string(tree.group, root and pack.encode(rest)))
   for i, leaf in ipairs(list.others) do leaf.value = rest[i] end
   put_back(box, list)
   if boxed then return box[1] end
   return box
end

return reduce
