-- What the old surfaces (multiverso, ipc, distlearn) share: errors are strings there, and tensors are torch7's where
-- the program has loaded torch.
local memory = require 'tutti.memory'
local tensor = require 'tutti.tensor'
local surface = {}

local function passed(ok, ...)
   if not ok then error(tostring((...)), 0) end
   return ...
end

-- The function f, whose errors are sentences, as strings.
function surface.plain(f)
   return function(...) return passed(pcall(f, ...)) end
end

function surface.plain_all(functions)
   for name, f in pairs(functions) do
      if type(f) == 'function' then functions[name] = surface.plain(f) end
   end
   return functions
end

-- The library of tensors that the program uses.
function surface.tensors()
   local torch = package.loaded.torch
   if type(torch) ~= 'table' then torch = rawget(_G, 'torch') end
   return type(torch) == 'table' and torch.FloatTensor and torch or tensor
end

-- A new tensor of a kind ("float") and sizes.
function surface.new(kind, ...)
   return surface.tensors()[kind:sub(1, 1):upper() .. kind:sub(2) .. 'Tensor'](...)
end

surface.is_tensor = memory.is_tensor

-- The kind of a storage ("float"), of torch7 or of tutti.tensor; nil for anything else.
local function storage_kind(x)
   if type(x) ~= 'table' and type(x) ~= 'userdata' then return nil end
   local ok, name = pcall(function() return x:type() end)
   return ok and type(name) == 'string' and name:match('^torch%.(%a+)Storage$') or nil
end

function surface.is_storage(x) return storage_kind(x) ~= nil end

-- A tensor over the memory of a storage.
function surface.over_storage(x)
   local kind = storage_kind(x)
   return (getmetatable(x) == tensor.Storage and tensor or surface.tensors())[kind .. 'Tensor'](x)
end

local function before(a, b)
   if type(a) == type(b) and (type(a) == 'number' or type(a) == 'string') then return a < b end
   return type(a) < type(b) or (type(a) == type(b) and tostring(a) < tostring(b))
end

-- Calls f for each value of a nested table, in the order of the sorted keys; what f returns takes the value's place.
function surface.walk(t, f)
   local keys = {}
   for k in pairs(t) do keys[#keys + 1] = k end
   table.sort(keys, before)
   for _, k in ipairs(keys) do
      local v = t[k]
      if type(v) == 'table' and not memory.is_tensor(v) then
         surface.walk(v, f)
      else
         local new = f(v)
         if new ~= nil then t[k] = new end
      end
   end
end

-- The tensors of a tensor or a nested table, in that order.
function surface.leaves(value)
   if memory.is_tensor(value) then return { value } end
   local list = {}
   surface.walk(value, function(v)
      if not memory.is_tensor(v) then
         error('a table of parameters or gradients holds tensors, and not a ' .. type(v), 0)
      end
      list[#list + 1] = v
   end)
   return list
end

return surface
