-- Memory of the program: tensors (of tutti.tensor and torch7, by their methods), arrays of LuaJIT's ffi, and strings
-- where a call only reads. Nothing is ever copied silently.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local refuse = require('tutti.call').refuse
local memory = {}

-- By the name of a tensor type. code nil: the library moves such elements, and does not compute with them.
local KINDS = {
   float = { code = lib.TUTTI_F32, size = 4 }, double = { code = lib.TUTTI_F64, size = 8 },
   half = { code = lib.TUTTI_F16, size = 2 }, bfloat16 = { code = lib.TUTTI_BF16, size = 2 },
   int = { code = lib.TUTTI_I32, size = 4 }, long = { code = lib.TUTTI_I64, size = 8 },
   char = { code = lib.TUTTI_I8, size = 1 }, byte = { code = lib.TUTTI_U8, size = 1 },
   bool = { code = lib.TUTTI_BOOL, size = 1 }, short = { size = 2 },
}
memory.kinds = KINDS
-- Elements of ffi's arrays, as their types print.
local ELEMENTS = {
   float = 'float', double = 'double', int = 'int', ['int64_t'] = 'long', ['long'] = 'long', ['char'] = 'char',
   ['signed char'] = 'char', ['unsigned char'] = 'byte', bool = 'bool', short = 'short', ['unsigned int'] = 'int',
   ['uint64_t'] = 'long', ['unsigned long'] = 'long', ['unsigned short'] = 'short',
}

-- True for what has the methods of a tensor.
function memory.is_tensor(x)
   local t = type(x)
   if t ~= 'table' and t ~= 'userdata' then return false end
   if t == 'userdata' and not getmetatable(x) then return false end
   local ok, data, count = pcall(function() return x.data, x.nElement end)
   return ok and type(data) == 'function' and type(count) == 'function'
end

-- The kind of a tensor: "float" of torch.FloatTensor.
function memory.kind_of(tensor)
   local name = tensor:type()
   local kind = name:match('(%a+)Tensor$')
   kind = kind and kind:lower()
   if not KINDS[kind] then
      refuse('a %s has no memory that this binding can use: convert it, for instance by :float()', tostring(name))
   end
   return kind
end

local function of_tensor(x)
   local kind = memory.kind_of(x)
   if not x:isContiguous() then
      refuse('a %s whose elements do not lie one behind another: call :contiguous() first', x:type())
   end
   local count = tonumber(x:nElement())
   local bytes = count * KINDS[kind].size
   return { pointer = count > 0 and ffi.cast('char *', x:data()) or nil, count = count, bytes = bytes, kind = kind,
            code = KINDS[kind].code, hold = x }
end

local function of_array(x)
   local element = tostring(ffi.typeof(x)):match('^ctype<(.-) [%[%(&]*%[[%d?]*%]%)?>$')
   if not element then
      refuse('a %s has no length: give an array (ffi.new("float[?]", n)) or a tensor', tostring(ffi.typeof(x)))
   end
   local kind = ELEMENTS[element]
   local size = kind and KINDS[kind].size or 1
   local bytes = ffi.sizeof(x)
   return { pointer = ffi.cast('char *', x), count = bytes / size, bytes = bytes, kind = kind or element,
            code = kind and KINDS[kind].code, hold = x }
end

-- The memory of x, which a call writes, or reads and writes: pointer, count (elements), bytes, kind, code (the
-- library's type or nil) and hold (what keeps the memory alive).
function memory.writable(x)
   if memory.is_tensor(x) then return of_tensor(x) end
   if type(x) == 'cdata' then return of_array(x) end
   refuse('a %s has no memory that the library can use: give a tensor or an array of ffi.new', type(x))
end

-- The memory of x, which a call reads; strings too.
function memory.readable(x)
   if type(x) == 'string' then
      return { pointer = ffi.cast('char *', ffi.cast('const char *', x)), count = #x, bytes = #x, kind = 'byte',
               code = KINDS.byte.code, hold = x }
   end
   return memory.writable(x)
end

-- The library's type of the memory, for calls that compute.
function memory.typed(m)
   if not m.code then refuse('the library does not compute with elements of type %s', m.kind) end
   return m.code
end

-- The library's type of a name, "float".
function memory.code_of(name)
   local kind = KINDS[name]
   if not kind or not kind.code then refuse('no type of the library is called %s', tostring(name)) end
   return kind.code
end

local LIST = ffi.typeof('tutti_tensor[?]')

-- A list of tutti_tensor of one tensor or a table of them: the list, their number, what to hold.
function memory.tensors(x)
   local list = (memory.is_tensor(x) or type(x) == 'cdata') and { x } or x
   if type(list) ~= 'table' or #list == 0 then refuse('a model is a tensor or a table of at least one tensor') end
   local c, hold = LIST(#list), { list }
   for i, tensor in ipairs(list) do
      local m = memory.writable(tensor)
      c[i - 1].data, c[i - 1].count, c[i - 1].type = m.pointer, m.count, memory.typed(m)
      hold[#hold + 1] = m.hold
   end
   hold[#hold + 1] = c
   return c, #list, hold
end

-- An array of n whole numbers, for rows and ranks: ctype "uint64_t[?]", from a Lua table or a tensor.
function memory.integers(ctype, numbers, what)
   local n = memory.is_tensor(numbers) and tonumber(numbers:nElement()) or #numbers
   local c = ffi.new(ctype, math.max(n, 1))
   for i = 1, n do
      local x = tonumber(numbers[i])
      if not x or x ~= math.floor(x) or x < 0 then refuse('%s %s is no whole number from 0 up', what, tostring(x)) end
      c[i - 1] = x
   end
   return c, n
end

-- Sets the lists of ranks of a struct, servers and workers, from the options of these names; hold keeps them.
function memory.set_ranks(struct, options, hold)
   for one, many in pairs({ server = 'servers', worker = 'workers' }) do
      if options[many] then
         hold[one], struct[many] = memory.integers('int[?]', options[many], 'the rank')
         struct[one] = hold[one]
      end
   end
end

return memory
