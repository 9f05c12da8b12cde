-- Memory of large results. New memory costs as much as the call that fills it: a result that the program has dropped
-- gives its memory to a later one.
local ffi = require 'ffi'
local surface = require 'tutti.surface'
local tensor = require 'tutti.tensor'

local LARGE = 2 ^ 22 -- elements: 16 MiB
local spare          -- a tensor that nobody else has

-- A float tensor of these sizes with any values in it; columns: nil of an array.
return function(rows, columns)
   local n = rows * (columns or 1)
   if n < LARGE or surface.tensors() ~= tensor then return surface.new('float', rows, columns) end
   if not spare then collectgarbage() end -- finds what the program has dropped
   local memory = spare
   if not memory or memory:nElement() ~= n then memory = tensor.FloatTensor(n) end
   spare = nil
   local hold = ffi.gc(ffi.new('char[1]'), function() spare = memory end)
   return tensor.wrap('float', memory:data(), { rows, columns }, hold)
end
