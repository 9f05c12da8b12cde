-- Values as strings: nil, booleans, numbers, strings, nested tables, tensors.
local ffi = require 'ffi'
local memory = require 'tutti.memory'
local surface = require 'tutti.surface'
local pack = {}

local number = ffi.typeof('double[1]')

local function sizes_of(t)
   local sizes = {}
   for d = 1, t:dim() do sizes[d] = t:size(d) end
   return sizes
end

-- What a tensor is, without its elements: "float 2 3".
function pack.head(t)
   return memory.kind_of(t) .. ' ' .. table.concat(sizes_of(t), ' ')
end

-- A new tensor of such a head.
function pack.tensor(head)
   local kind, sizes = head:match('^(%a+)'), {}
   for s in head:gmatch('%d+') do sizes[#sizes + 1] = tonumber(s) end
   return surface.new(kind, unpack(sizes))
end

local put

local function put_table(out, t, inside)
   if inside[t] then error('a table that holds itself cannot be sent', 0) end
   inside[t] = true
   local n = 0
   for _ in pairs(t) do n = n + 1 end
   out[#out + 1] = ('M%d;'):format(n)
   for k, v in pairs(t) do
      put(out, k, inside)
      put(out, v, inside)
   end
   inside[t] = nil
end

local function put_tensor(out, t)
   local m = memory.readable(t:contiguous())
   out[#out + 1] = ('T%s;'):format(pack.head(t))
   out[#out + 1] = m.bytes > 0 and ffi.string(m.pointer, m.bytes) or ''
end

function put(out, v, inside)
   local kind = type(v)
   if kind == 'nil' then
      out[#out + 1] = 'N'
   elseif kind == 'boolean' then
      out[#out + 1] = v and 'Y' or 'F'
   elseif kind == 'number' then
      out[#out + 1] = 'D' .. ffi.string(number(v), 8)
   elseif kind == 'string' then
      out[#out + 1] = ('S%d;'):format(#v) .. v
   elseif surface.is_tensor(v) then
      put_tensor(out, v)
   elseif kind == 'table' then
      put_table(out, v, inside)
   else
      error(('a %s cannot be sent: nil, booleans, numbers, strings, tables and tensors can'):format(kind), 0)
   end
end

function pack.encode(v)
   local out = {}
   put(out, v, {})
   return table.concat(out)
end

local get

local function get_table(s, at, n)
   local t = {}
   for _ = 1, n do
      local k, v
      k, at = get(s, at)
      v, at = get(s, at)
      t[k] = v
   end
   return t, at
end

local function get_tensor(s, at, head)
   local t = pack.tensor(head)
   local m = memory.writable(t)
   if m.bytes > 0 then ffi.copy(m.pointer, ffi.cast('const char *', s) + at - 1, m.bytes) end
   return t, at + m.bytes
end

function get(s, at)
   local kind = s:sub(at, at)
   if kind == 'N' then return nil, at + 1 end
   if kind == 'Y' or kind == 'F' then return kind == 'Y', at + 1 end
   if kind == 'D' then
      local x = number()
      ffi.copy(x, s:sub(at + 1, at + 8), 8)
      return x[0], at + 9
   end
   local stop = s:find(';', at, true)
   local head = s:sub(at + 1, stop - 1)
   if kind == 'S' then return s:sub(stop + 1, stop + head), stop + 1 + head end
   if kind == 'M' then return get_table(s, stop + 1, tonumber(head)) end
   return get_tensor(s, stop + 1, head)
end

-- The value that begins at `at` (1), and where the next one begins.
function pack.decode(s, at) return get(s, at or 1) end

return pack
