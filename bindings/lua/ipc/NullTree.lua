-- The tree of one node: nothing is sent.
local surface = require 'tutti.surface'

return function()
   return {
      nodeIndex = 1, numNodes = 1, walkTable = surface.walk,
      allReduce = function(value) return value, 1 end,
      scatter = function(value) return value end,
      netStats = function() return {} end,
      close = function() end,
   }
end
