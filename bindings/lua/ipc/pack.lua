-- Values as strings: nil, booleans, numbers, strings, nested tables, tensors, storages, functions.
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

local function put_table(out, t, seen)
   local number = seen.number_of and seen.number_of(t)
   if number then
      out[#out + 1] = ('C%d;'):format(number)
      return
   end
   if seen[t] then error('a table that holds itself cannot be sent', 0) end
   seen[t] = true
   local n = 0
   for _ in pairs(t) do n = n + 1 end
   out[#out + 1] = ('M%d;'):format(n)
   for k, v in pairs(t) do
      put(out, k, seen)
      put(out, v, seen)
   end
   seen[t] = nil
end

local function put_tensor(out, letter, t)
   local m = memory.readable(t:contiguous())
   out[#out + 1] = ('%s%s;'):format(letter, pack.head(t))
   out[#out + 1] = m.bytes > 0 and ffi.string(m.pointer, m.bytes) or ''
end

local function put_function(out, f)
   local info = debug.getinfo(f, 'Su')
   if info.what == 'C' then error('a function that is not written in Lua cannot be sent', 0) end
   if info.nups > 0 then
      error('a function with upvalues cannot be sent: send what it needs, and give that to it as arguments', 0)
   end
   local code = string.dump(f)
   out[#out + 1] = ('L%d;'):format(#code) .. code
end

function put(out, v, seen)
   local kind = type(v)
   if kind == 'nil' then
      out[#out + 1] = 'N'
   elseif kind == 'boolean' then
      out[#out + 1] = v and 'Y' or 'F'
   elseif kind == 'number' then
      out[#out + 1] = 'D' .. ffi.string(number(v), 8)
   elseif kind == 'string' then
      out[#out + 1] = ('S%d;'):format(#v) .. v
   elseif kind == 'function' then
      put_function(out, v)
   elseif surface.is_tensor(v) then
      put_tensor(out, 'T', v)
   elseif surface.is_storage(v) then
      put_tensor(out, 'G', surface.over_storage(v))
   elseif kind == 'table' then
      put_table(out, v, seen)
   else
      error('a ' .. kind .. ' cannot be sent: nil, booleans, numbers, strings, tables, tensors, storages and functions '
            .. 'can', 0)
   end
end

-- number_of(t), if given: a number that stands for the table t, or nil.
function pack.encode(v, number_of)
   local out = {}
   put(out, v, { number_of = number_of })
   return table.concat(out)
end

local get

local function get_table(s, at, n, copy)
   local t = {}
   for _ = 1, n do
      local k, v
      k, at = get(s, at, copy)
      v, at = get(s, at, copy)
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

function get(s, at, copy)
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
   local length = tonumber(head)
   if kind == 'S' then return s:sub(stop + 1, stop + length), stop + 1 + length end
   if kind == 'L' then return assert(loadstring(s:sub(stop + 1, stop + length))), stop + 1 + length end
   if kind == 'M' then return get_table(s, stop + 1, length, copy) end
   if kind == 'C' then return copy(length), stop + 1 end
   local t, after = get_tensor(s, stop + 1, head)
   return kind == 'G' and t:storage() or t, after
end

-- The value that begins at `at` (1), and where the next one begins. copy(number) makes what a number stands for.
function pack.decode(s, at, copy) return get(s, at or 1, copy) end

return pack
