-- Tensors in plain memory, with the names that torch7 has: float, double, half, byte, char, short, int and long; up to
-- 4 dimensions. Views (select, narrow, sub, view, t) share memory. tensor.FloatTensor(2, 3), FloatTensor({1, 2, 3}).
local ffi = require 'ffi'
local half = require 'tutti.half'
local storage = require 'tutti.storage'
local tensor = {}

local KINDS = {
   float = { c = 'float', size = 4 }, double = { c = 'double', size = 8 }, half = { c = 'uint16_t', size = 2 },
   byte = { c = 'uint8_t', size = 1 }, char = { c = 'int8_t', size = 1 }, short = { c = 'int16_t', size = 2 },
   int = { c = 'int32_t', size = 4 }, long = { c = 'int64_t', size = 8 },
}
for kind, k in pairs(KINDS) do
   k.pointer = ffi.typeof(k.c .. ' *')
   k.array = ffi.typeof(k.c .. '[?]')
   k.name = 'torch.' .. kind:sub(1, 1):upper() .. kind:sub(2) .. 'Tensor'
end

local T = {}       -- the metatable
local methods = {}
tensor.methods = methods

local function fail(...) error(string.format(...), 3) end

function tensor.isTensor(x) return getmetatable(x) == T end
local is = tensor.isTensor

-- Sizes print as torch7's do, "2x3".
local Sizes = { __tostring = function(s) return table.concat(s, 'x') end }
Sizes.__index = { size = function(s) return #s end, totable = function(s) return { unpack(s) } end }
Sizes.__eq = function(a, b) return tostring(a) == tostring(b) end

local function new_sizes(list) return setmetatable(list, Sizes) end

local function count_of(sizes)
   if #sizes == 0 then return 0 end
   local n = 1
   for _, s in ipairs(sizes) do n = n * s end
   return n
end

local function dense_strides(sizes)
   local strides, n = {}, 1
   for d = #sizes, 1, -1 do strides[d], n = n, n * sizes[d] end
   return strides
end

local function make(kind, memory, hold, offset, sizes, strides)
   if #sizes > 4 then fail('a tensor has at most 4 dimensions, and not %d', #sizes) end
   return setmetatable({ _kind = kind, _memory = memory, _hold = hold, _offset = offset, _sizes = new_sizes(sizes),
                         _strides = strides or dense_strides(sizes), _count = count_of(sizes),
                         _room = offset + count_of(sizes) }, T)
end

-- A tensor over memory of somebody else, which `hold` keeps alive.
function tensor.wrap(kind, pointer, sizes, hold)
   return make(kind, ffi.cast(KINDS[kind].pointer, pointer), hold, 0, sizes)
end

-- A tensor in memory of alloc(bytes).
function tensor.allocate(kind, sizes, alloc)
   if not KINDS[kind] then fail('no kind of tensor is called %s', tostring(kind)) end
   local memory = alloc(math.max(count_of(sizes), 1) * KINDS[kind].size)
   return tensor.wrap(kind, memory, sizes, memory)
end

local LINE = 64 -- bytes of a cache line, at whose beginning large memory starts: copies of it are faster by a sixth

local function zeros(kind, sizes)
   local k, count = KINDS[kind], math.max(count_of(sizes), 1)
   local memory = k.array(count * k.size < 4096 and count or count + LINE / k.size)
   local pointer = ffi.cast(k.pointer, memory)
   if count * k.size >= 4096 then
      pointer = pointer + -tonumber(ffi.cast('uintptr_t', pointer)) % LINE / k.size
   end
   return make(kind, pointer, memory, 0, sizes)
end

-- Tensors over a list of tutti_tensor, n of them.
local OF_TYPE = { [0] = 'float', 'double', 'half', 'short', 'int', 'long' }
function tensor.over_list(list, n, hold)
   local all = {}
   for i = 0, n - 1 do
      all[i + 1] = tensor.wrap(OF_TYPE[tonumber(list[i].type)], list[i].data, { tonumber(list[i].count) }, hold)
   end
   return all
end

-- ---- making ----

local function sizes_of_nested(list)
   local sizes = {}
   while type(list) == 'table' do
      sizes[#sizes + 1] = #list
      list = list[1]
   end
   return sizes
end

local function set_nested(t, list, depth, at)
   if #list ~= t._sizes[depth] then fail('a row has %d elements, and another one %d', t._sizes[depth], #list) end
   for _, x in ipairs(list) do
      if type(x) == 'table' then
         at = set_nested(t, x, depth + 1, at)
      else
         t:_set(at, x)
         at = at + 1
      end
   end
   return at
end

local function is_sizes(x) return getmetatable(x) == Sizes end

local function sizes_from(...)
   local first = ...
   if is_sizes(first) then return { unpack(first) } end
   local sizes = {}
   for i = 1, select('#', ...) do
      local s = select(i, ...)
      if s ~= nil then
         if type(s) ~= 'number' or s < 0 or s ~= math.floor(s) then fail('%s is no size of a tensor', tostring(s)) end
         sizes[#sizes + 1] = s
      end
   end
   return sizes
end

-- A zeroed tensor of these sizes; or of a (nested) table of numbers; or a view of a tensor or storage of that kind.
function tensor.new(kind, ...)
   local first = ...
   if getmetatable(first) == storage.Storage then first = first.all end
   if is(first) then return first:type(KINDS[kind].name) end
   if type(first) == 'table' and not is_sizes(first) then
      local t = zeros(kind, sizes_of_nested(first))
      set_nested(t, first, 1, 0)
      return t
   end
   return zeros(kind, sizes_from(...))
end

local default_kind = 'double'
for kind, k in pairs(KINDS) do
   tensor[k.name:sub(7)] = function(...) return tensor.new(kind, ...) end
   tensor[k.name:match('%.(%a+)Tensor') .. 'Storage'] = function(x) return storage.over(tensor.new(kind, x or 0)) end
end
tensor.Storage = storage.Storage
function tensor.Tensor(...) return tensor.new(default_kind, ...) end

function tensor.setdefaulttensortype(name)
   default_kind = name:match('(%a+)Tensor$'):lower()
end
function tensor.getdefaulttensortype() return KINDS[default_kind].name end
function tensor.typename(x) return is(x) and KINDS[x._kind].name or nil end
function tensor.type(x) return tensor.typename(x) or type(x) end

-- ---- elements ----

-- Where element i (from 0 up, in the order of rows) lies.
local function place(t, i)
   if t:isContiguous() then return t._offset + i end
   local at, sizes, strides = t._offset, t._sizes, t._strides
   for d = #sizes, 1, -1 do
      at = at + i % sizes[d] * strides[d]
      i = math.floor(i / sizes[d])
   end
   return at
end

function methods:_get(i)
   local x = tonumber(self._memory[place(self, i)])
   return self._kind == 'half' and half.to_number(x) or x
end

function methods:_set(i, x)
   self._memory[place(self, i)] = self._kind == 'half' and half.from_number(x) or x
end

-- ---- what it is ----

function methods:nElement() return self._count end
methods.numel = methods.nElement
function methods:dim() return #self._sizes end
methods.nDimension = methods.dim
function methods:data() return self._memory + self._offset end
function methods:storageOffset() return self._offset + 1 end
-- All memory that this tensor and its views share.
function methods:storage()
   return storage.over(make(self._kind, self._memory, self._hold, 0, { self._room }))
end

local function dimension(t, d)
   if type(d) ~= 'number' or not t._sizes[d] then
      fail('dimension %s of a tensor with %d dimensions', tostring(d), #t._sizes)
   end
   return d
end

function methods:size(d) return d and self._sizes[dimension(self, d)] or new_sizes({ unpack(self._sizes) }) end
function methods:stride(d) return d and self._strides[dimension(self, d)] or new_sizes({ unpack(self._strides) }) end

function methods:isContiguous()
   local n = 1
   for d = #self._sizes, 1, -1 do
      if self._sizes[d] ~= 1 and self._strides[d] ~= n then return false end
      n = n * self._sizes[d]
   end
   return true
end

function methods:isSameSizeAs(other) return tostring(self._sizes) == tostring(other:size()) end
function methods:isTensor() return true end

-- Without a name: its type, "torch.FloatTensor". With one: itself, or a copy of that type.
function methods:type(name)
   if not name then return KINDS[self._kind].name end
   local kind = name:match('(%a+)Tensor$')
   kind = kind and kind:lower()
   if not KINDS[kind] then fail('no type of tensors is called %s', name) end
   if kind == self._kind then return self end
   return zeros(kind, { unpack(self._sizes) }):copy(self)
end
for kind, k in pairs(KINDS) do methods[kind] = function(t) return t:type(k.name) end end
function methods:typeAs(other) return self:type(other:type()) end

-- ---- views ----

local function derived(t, offset, sizes, strides)
   local view = make(t._kind, t._memory, t._hold, offset, sizes, strides)
   view._room = t._room
   return view
end

local function without(list, d)
   local r = { unpack(list) }
   table.remove(r, d)
   return r
end

function methods:select(d, i)
   dimension(self, d)
   if i < 1 or i > self._sizes[d] then fail('index %d of a dimension of size %d', i, self._sizes[d]) end
   if #self._sizes == 1 then return derived(self, self._offset + (i - 1) * self._strides[1], { 1 }, { 1 }) end
   return derived(self, self._offset + (i - 1) * self._strides[d], without(self._sizes, d), without(self._strides, d))
end

function methods:narrow(d, first, size)
   dimension(self, d)
   if first < 1 or size < 0 or first + size - 1 > self._sizes[d] then
      fail('narrow to %d elements from %d on of a dimension of size %d', size, first, self._sizes[d])
   end
   local sizes = { unpack(self._sizes) }
   sizes[d] = size
   return derived(self, self._offset + (first - 1) * self._strides[d], sizes, { unpack(self._strides) })
end

-- sub(first1, last1, first2, last2, ...); negative numbers count from the end.
function methods:sub(...)
   local t, given = self, { ... }
   for d = 1, #given / 2 do
      local first, last, size = given[2 * d - 1], given[2 * d], self._sizes[dimension(self, d)]
      first, last = first < 0 and size + first + 1 or first, last < 0 and size + last + 1 or last
      t = t:narrow(d, first, last - first + 1)
   end
   return t
end

-- The same elements in other sizes; one size may be -1.
function methods:view(...)
   local first = ...
   local sizes, rest, n = is_sizes(first) and { unpack(first) } or { ... }, nil, 1
   for d, s in ipairs(sizes) do
      if s == -1 then rest = d else n = n * s end
   end
   if rest then sizes[rest] = self._count / n end
   if count_of(sizes) ~= self._count then
      fail('a view of size %s of a tensor of %d elements', table.concat(sizes, 'x'), self._count)
   end
   if not self:isContiguous() then fail('a view of a tensor that is not contiguous: call :contiguous() first') end
   return derived(self, self._offset, sizes)
end

function methods:viewAs(other) return self:view(other:size()) end
function methods:reshape(...) return self:clone():view(...) end

function methods:transpose(a, b)
   local sizes, strides = { unpack(self._sizes) }, { unpack(self._strides) }
   sizes[dimension(self, a)], sizes[dimension(self, b)] = sizes[b], sizes[a]
   strides[a], strides[b] = strides[b], strides[a]
   return derived(self, self._offset, sizes, strides)
end
function methods:t() return self:transpose(1, 2) end

-- Other sizes for this tensor itself; memory is kept if it is large enough.
function methods:resize(...)
   local sizes = sizes_from(...)
   if is((...)) then sizes = { unpack((...)._sizes) } end
   local n = count_of(sizes)
   if n > self._count then
      local fresh = zeros(self._kind, sizes)
      if self._count > 0 then ffi.copy(fresh:data(), self:contiguous():data(), self._count * KINDS[self._kind].size) end
      self._memory, self._hold, self._offset, self._room = fresh._memory, fresh._hold, 0, n
   end
   self._sizes, self._strides, self._count = new_sizes(sizes), dense_strides(sizes), n
   return self
end
function methods:resizeAs(other) return self:resize(other:size()) end

function methods:contiguous() return self:isContiguous() and self or self:clone() end
function methods:clone() return zeros(self._kind, { unpack(self._sizes) }):copy(self) end

function methods:copy(other)
   if tonumber(other:nElement()) ~= self._count then
      fail('copy of a tensor of %d elements into one of %d', tonumber(other:nElement()), self._count)
   end
   if not is(other) then -- torch7's, by its methods
      other = tensor.wrap(other:type():match('(%a+)Tensor$'):lower(), other:contiguous():data(), { self._count }, other)
   end
   if other._kind == self._kind and self:isContiguous() and other:isContiguous() then
      if self._count > 0 then ffi.copy(self:data(), other:data(), self._count * KINDS[self._kind].size) end
      return self
   end
   for i = 0, self._count - 1 do self:_set(i, other:_get(i)) end
   return self
end

-- ---- arithmetic ----

-- Loops run over memory without gaps, of a type that C knows: what is not so is copied there, and back.
local function flat(t)
   if t._kind ~= 'half' and t:isContiguous() then return t:data(), t end
   local dense = zeros(t._kind == 'half' and 'float' or t._kind, { unpack(t._sizes) }):copy(t)
   return dense:data(), dense
end

local function settle(t, dense)
   if dense ~= t then t:copy(dense) end
   return t
end

local function same_count(t, other)
   if other._count ~= t._count then fail('tensors of %d and of %d elements', t._count, other._count) end
end

-- A loop `p[i] = expression of x (p[i]), y (b[i]) and s`, compiled for itself, so that each has one type in its trace.
local function loop(expression)
   return loadstring(([[
      local abs, sqrt, floor, exp, log = math.abs, math.sqrt, math.floor, math.exp, math.log
      return function(n, p, b, s)
         for i = 0, n - 1 do
            local x, y = tonumber(p[i]), b and tonumber(b[i])
            p[i] = %s
         end
      end]]):format(expression))()
end

local function run(t, body, other, s)
   local p, dense = flat(t)
   local b, hold
   if other then
      same_count(t, other)
      b, hold = flat(other)
   end
   body(t._count, p, b, s)
   return settle(t, dense, hold)
end

local fill = loop('s')
function methods:fill(x) return run(self, fill, nil, x) end
function methods:zero()
   if self:isContiguous() then
      ffi.fill(self:data(), self._count * KINDS[self._kind].size)
      return self
   end
   return self:fill(0)
end

local add_number, add_scaled = loop('x + s'), loop('x + s * y')
-- add(x), add(tensor), add(x, tensor), add(tensor, tensor), add(tensor, x), add(tensor, x, tensor)
function methods:add(a, b, c)
   if type(a) == 'number' and b == nil then return run(self, add_number, nil, a) end
   if type(a) == 'number' then return run(self, add_scaled, b, a) end
   if b == nil then return run(self, add_scaled, a, 1) end
   if self ~= a then self:copy(a) end
   if type(b) == 'number' and c == nil then return run(self, add_number, nil, b) end
   if type(b) == 'number' then return run(self, add_scaled, c, b) end
   return run(self, add_scaled, b, 1)
end

local function with_source(body)
   return function(t, a, b)
      if is(a) and b ~= nil then
         t:copy(a)
         a = b
      end
      if is(a) then return run(t, body, a) end
      return run(t, body, nil, a)
   end
end
methods.mul = with_source(loop('x * s'))
methods.div = with_source(loop('x / s'))
methods.cmul = with_source(loop('x * y'))
methods.cdiv = with_source(loop('x / y'))
methods.pow = with_source(loop('x ^ s'))
function methods:csub(a) return is(a) and self:add(-1, a) or self:add(-a) end

for name, expression in pairs({ abs = 'abs(x)', sqrt = 'sqrt(x)', floor = 'floor(x)', exp = 'exp(x)', log = 'log(x)',
                                neg = '-x' }) do
   local body = loop(expression)
   methods[name] = function(t, from)
      if from then t:copy(from) end
      return run(t, body)
   end
   tensor[name] = function(x) return x:clone()[name](x:clone()) end
end

-- apply(f): each element becomes f(element), where f returns something.
function methods:apply(f)
   for i = 0, self._count - 1 do
      local x = f(self:_get(i))
      if x ~= nil then self:_set(i, x) end
   end
   return self
end

function methods:map(other, f)
   for i = 0, self._count - 1 do
      local x = f(self:_get(i), other:_get(i))
      if x ~= nil then self:_set(i, x) end
   end
   return self
end

-- ---- reductions ----

-- A fold of all elements: `a = expression of a and x`.
local function fold(expression)
   return loadstring(([[
      local abs = math.abs
      return function(n, p, a)
         for i = 0, n - 1 do
            local x = tonumber(p[i])
            a = %s
         end
         return a
      end]]):format(expression))()
end

local function folded(t, body, first)
   local p, hold = flat(t)
   return body(t._count, p, first), hold
end

local sum, larger, smaller, squares = fold('a + x'), fold('x > a and x or a'), fold('x < a and x or a'),
   fold('a + x * x')
function methods:sum() return (folded(self, sum, 0)) end
function methods:mean() return self:sum() / self._count end
function methods:max() return (folded(self, larger, -math.huge)) end
function methods:min() return (folded(self, smaller, math.huge)) end
function methods:norm() return math.sqrt((folded(self, squares, 0))) end
function methods:dot(other) return self:clone():cmul(other):sum() end
function methods:all() return self:min() ~= 0 end
function methods:any() return self._count > 0 and (self:max() ~= 0 or self:min() ~= 0) end

-- Comparison, element by element, with a number or a tensor: a ByteTensor of 0 and 1.
for name, operator in pairs({ eq = '==', ne = '~=', lt = '<', le = '<=', gt = '>', ge = '>=' }) do
   local with_number = loop('x ' .. operator .. ' s and 1 or 0')
   local with_tensor = loop('x ' .. operator .. ' y and 1 or 0')
   methods[name] = function(t, other)
      local result
      if is(other) then
         result = run(t:clone(), with_tensor, other)
      else
         result = run(t:clone(), with_number, nil, other)
      end
      return result:byte()
   end
end

-- True if sizes and all elements are the same.
function methods:equal(other)
   return self:isSameSizeAs(other) and (self._count == 0 or self:eq(other):all())
end

-- The elements in growing order (falling with true), and their indices.
function methods:sort(d, falling)
   if type(d) == 'boolean' then falling = d end
   local order, values = {}, {}
   for i = 1, self._count do order[i], values[i] = i, self:_get(i - 1) end
   table.sort(order, function(a, b)
      if values[a] ~= values[b] then return (values[a] < values[b]) ~= (falling or false) end
      return a < b
   end)
   local sorted, indices = zeros(self._kind, { unpack(self._sizes) }), zeros('long', { unpack(self._sizes) })
   for i, from in ipairs(order) do
      sorted:_set(i - 1, values[from])
      indices:_set(i - 1, from)
   end
   return sorted, indices
end

function methods:totable()
   local list = {}
   for i = 1, self._sizes[1] or 0 do
      list[i] = #self._sizes == 1 and self:_get(i - 1) or self:select(1, i):totable()
   end
   return list
end

-- ---- numbers by chance, from math.random ----

function methods:uniform(a, b)
   a, b = a or 0, b or 1
   return self:apply(function() return a + (b - a) * math.random() end)
end

function methods:normal(mean, deviation)
   mean, deviation = mean or 0, deviation or 1
   return self:apply(function()
      local r = math.sqrt(-2 * math.log(1 - math.random()))
      return mean + deviation * r * math.cos(2 * math.pi * math.random())
   end)
end

function tensor.manualSeed(seed) math.randomseed(seed) end
function tensor.rand(...) return tensor.Tensor(...):uniform() end
function tensor.randn(...) return tensor.Tensor(...):normal() end
function tensor.zeros(...) return tensor.Tensor(...) end
function tensor.ones(...) return tensor.Tensor(...):fill(1) end
function tensor.range(a, b, step)
   step = step or 1
   local t = tensor.Tensor(math.floor((b - a) / step) + 1)
   for i = 0, t._count - 1 do t:_set(i, a + i * step) end
   return t
end

-- Tensors one behind another, along the first dimension.
function tensor.cat(first, ...)
   local list = is(first) and { first, ... } or first
   if not is(list[#list]) then list[#list] = nil end
   local sizes = { unpack(list[1]._sizes) }
   sizes[1] = 0
   for _, t in ipairs(list) do sizes[1] = sizes[1] + t._sizes[1] end
   local all, at = zeros(list[1]._kind, sizes), 1
   for _, t in ipairs(list) do
      all:narrow(1, at, t._sizes[1]):copy(t)
      at = at + t._sizes[1]
   end
   return all
end

-- The methods as functions: torch.sum(x), torch.eq(a, b). Those that change a tensor work on a copy.
for _, name in ipairs({ 'sum', 'mean', 'max', 'min', 'norm', 'dot', 'all', 'any', 'eq', 'ne', 'lt', 'le', 'gt', 'ge',
                        'equal', 'sort', 'reshape', 'isSameSizeAs' }) do
   tensor[name] = function(t, ...) return methods[name](t, ...) end
end
for _, name in ipairs({ 'add', 'mul', 'div', 'cmul', 'cdiv', 'pow' }) do
   tensor[name] = function(t, ...) return methods[name](t:clone(), ...) end
end

-- ---- operators and indices ----

function T.__add(a, b)
   if is(a) then return a:clone():add(b) end
   return b:clone():add(a)
end
function T.__sub(a, b)
   if is(a) then return a:clone():csub(b) end
   return b:clone():mul(-1):add(a)
end
function T.__mul(a, b)
   if is(a) and is(b) then return a:dot(b) end
   if is(a) then return a:clone():mul(b) end
   return b:clone():mul(a)
end
function T.__div(a, b) return is(b) and a:clone():cdiv(b) or a:clone():div(b) end
function T.__unm(a) return a:clone():mul(-1) end
function T.__len(a) return a:size() end

-- t[{ 2, { 1, 3 }, {} }]: one of the first dimension, the first three of the second, all of the third.
local function at_list(t, list)
   local d = 1
   for _, index in ipairs(list) do
      if type(index) == 'number' then
         local was = #t._sizes
         t = t:select(d, index)
         if was == 1 then d = d + 1 end
      else
         if index[1] then
            local size = t._sizes[d]
            local first, last = index[1], index[2] or index[1]
            first, last = first < 0 and size + first + 1 or first, last < 0 and size + last + 1 or last
            t = t:narrow(d, first, last - first + 1)
         end
         d = d + 1
      end
   end
   return t
end

local function is_element(t, key)
   if type(key) == 'number' then return #t._sizes == 1 end
   if #key ~= #t._sizes then return false end
   for _, index in ipairs(key) do
      if type(index) ~= 'number' then return false end
   end
   return true
end

local function at(t, key)
   if type(key) == 'number' then return t:select(1, key) end
   return at_list(t, key)
end

function T.__index(t, key)
   local k = type(key)
   if k == 'string' then return methods[key] end
   if k ~= 'number' and k ~= 'table' then return nil end
   if is_element(t, key) then return at(t, key):_get(0) end
   return at(t, key)
end

function T.__newindex(t, key, value)
   local k = type(key)
   if k ~= 'number' and k ~= 'table' then return rawset(t, key, value) end
   if is(value) then at(t, key):copy(value) else at(t, key):fill(value) end
end

-- ---- printing ----

local function format_of(t)
   local width, whole = 1, true
   for i = 0, t._count - 1 do
      local x = t:_get(i)
      if x ~= math.floor(x) or math.abs(x) >= 1e9 then whole = false end
   end
   local form = whole and '%d' or '%.4f'
   for i = 0, t._count - 1 do width = math.max(width, #form:format(t:_get(i))) end
   return ' %' .. (whole and width .. 'd' or width .. '.4f')
end

function T.__tostring(t)
   local name = ('[%s %s]'):format(KINDS[t._kind].name, #t._sizes == 0 and 'with no dimension' or
                                   'of size ' .. tostring(t._sizes))
   if t._count == 0 then return name end
   local form, columns, lines = format_of(t), #t._sizes > 1 and t._sizes[#t._sizes] or 1, {}
   for row = 0, t._count / columns - 1 do
      local line = {}
      for i = 0, columns - 1 do line[#line + 1] = form:format(t:_get(row * columns + i)) end
      lines[#lines + 1] = table.concat(line)
   end
   lines[#lines + 1] = name
   return table.concat(lines, '\n') .. '\n'
end

return tensor
