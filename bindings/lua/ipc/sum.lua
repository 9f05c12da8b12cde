-- Is a reduce function a sum? It is called with two recorders: a sum calls `add` or `+` once, of one with the other,
-- and returns what that gives, or nothing after a:add(b).
local unknown = {}

return function(reduce)
   local Recorder, sums, other = {}, 0, false
   local a, b, result = {}, {}, {}
   local function sum(x, y)
      if (x == a and y == b) or (x == b and y == a) then sums = sums + 1 else other = true end
   end
   local function in_place(x, ...)
      if select('#', ...) ~= 1 then other = true end
      sum(x, (...))
      return x
   end
   function Recorder.__add(x, y)
      sum(x, y)
      return result
   end
   function Recorder.__index(_, key)
      if key == 'add' then return in_place end
      other = true
      error(unknown)
   end
   function Recorder.__newindex() other = true end
   for _, r in ipairs({ a, b, result }) do setmetatable(r, Recorder) end
   local ok, given = pcall(reduce, a, b)
   return ok and sums == 1 and not other and (given == nil or given == a or given == b or given == result)
end
