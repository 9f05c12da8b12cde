-- Storages with torch7's names: the memory of tensors, as one row of elements. ByteStorage(4), ByteStorage({ 1, 2 }),
-- ByteStorage():string('text'), t:storage(). Element i is s[i], from 1 up.
local ffi = require 'ffi'
local storage = {}

local Storage = {}
storage.Storage = Storage
local methods = {}
local STRINGS = { ['torch.ByteStorage'] = true, ['torch.CharStorage'] = true }

-- A storage of the memory of `all`, a tensor of one dimension without gaps.
function storage.over(all) return setmetatable({ all = all }, Storage) end

function methods:size() return self.all:nElement() end
function methods:type() return (self.all:type():gsub('Tensor$', 'Storage')) end
function methods:data() return self.all:data() end
function methods:totable() return self.all:totable() end

function methods:fill(x)
   self.all:fill(x)
   return self
end

function methods:copy(other)
   self.all:copy(getmetatable(other) == Storage and other.all or other)
   return self
end

function methods:resize(n)
   self.all:resize(n)
   return self
end

-- The elements as a string, of bytes and chars. With s: the storage becomes that string.
function methods:string(s)
   if not STRINGS[self:type()] then error('string: a storage of bytes or chars', 2) end
   if not s then return ffi.string(self:data(), self:size()) end
   self:resize(#s)
   ffi.copy(self:data(), s, #s)
   return self
end

function Storage.__index(s, key)
   if type(key) == 'number' then return s.all[key] end
   return methods[key]
end
function Storage.__newindex(s, i, x) s.all[i] = x end
function Storage.__tostring(s) return (tostring(s.all):gsub('Tensor of size', 'Storage of size')) end

return storage
