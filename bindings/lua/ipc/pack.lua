-- Values as strings: nil, booleans, numbers, strings, nested tables, tensors, storages, functions. What comes from a
-- peer is not trusted: a length is compared with the bytes that are there, and functions are the program's to allow.
local ffi = require 'ffi'
local memory = require 'tutti.memory'
local surface = require 'tutti.surface'
local pack = { functions = false } -- whether functions of peers are taken

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

local LARGEST = 2 ^ 52 -- elements, and so that their product is exact

-- The kind, the sizes and the bytes of such a head.
local function read_head(head)
   local name, list = head:match('^(%a+) ([%d ]*)$')
   local kind, sizes, count = memory.kinds[name], {}, 1
   for s in (list or ''):gmatch('%d+') do
      sizes[#sizes + 1] = tonumber(s)
      count = count * sizes[#sizes]
      if sizes[#sizes] > LARGEST or count > LARGEST then kind = nil end
   end
   if not kind then error(('a message holds a tensor "%s", which cannot be'):format(head:sub(1, 60)), 0) end
   return name, sizes, #sizes > 0 and count * kind.size or 0
end

-- A new tensor of such a head.
function pack.tensor(head)
   local kind, sizes = read_head(head)
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

-- ---- from strings ----

local get

local function damaged() error('a message is not whole: its sender is not this libipc', 0) end

-- The n bytes from `at` on, and where the next ones begin.
local function take(s, at, n)
   if at + n > #s + 1 then damaged() end
   return s:sub(at, at + n - 1), at + n
end

local function get_table(s, at, n, from)
   local t = {}
   for _ = 1, n do
      local k, v
      k, at = get(s, at, from)
      v, at = get(s, at, from)
      if k == nil or k ~= k then damaged() end
      t[k] = v
   end
   return t, at
end

local function get_tensor(s, at, head)
   local _, _, bytes = read_head(head)
   if at + bytes > #s + 1 then damaged() end -- before there is memory for it
   local m = memory.writable(pack.tensor(head))
   if m.bytes > 0 then ffi.copy(m.pointer, ffi.cast('const char *', s) + at - 1, m.bytes) end
   return m.hold, at + m.bytes
end

local function get_function(code, from)
   if not from.functions and not pack.functions then
      error('a message holds a function, which could do anything here: ipc.functions(true) lets functions in', 0)
   end
   return assert(loadstring(code))
end

function get(s, at, from)
   local kind = s:sub(at, at)
   if kind == 'N' then return nil, at + 1 end
   if kind == 'Y' or kind == 'F' then return kind == 'Y', at + 1 end
   if kind == 'D' then
      local x, bytes = number(), nil
      bytes, at = take(s, at + 1, 8)
      ffi.copy(x, bytes, 8)
      return x[0], at
   end
   local head = s:match('^([^;]*);', at + 1)
   if not head then damaged() end
   local start = at + #head + 2
   if kind == 'T' or kind == 'G' then
      local t, after = get_tensor(s, start, head)
      return kind == 'G' and t:storage() or t, after
   end
   local length = tonumber(head:match('^%d+$'))
   if kind == 'M' and length then return get_table(s, start, length, from) end
   if kind == 'C' and from.copy then return from.copy(length), start end
   if (kind ~= 'S' and kind ~= 'L') or not length then damaged() end
   local bytes, after = take(s, start, length)
   return kind == 'S' and bytes or get_function(bytes, from), after
end

local PEER = {}
pack.OURS = { functions = true } -- for processes that this one has forked

-- The value that begins at `at` (1), and where the next one begins. from: who has sent it, a peer if nil. Its copy(n)
-- makes what a number stands for; from.functions: its functions are taken.
function pack.decode(s, at, from) return get(s, at or 1, from or PEER) end

return pack
