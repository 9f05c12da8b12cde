-- Is a reduce function a sum? It is called with two recorders: a sum calls `add` or `+` once, of one with the other,
-- and returns what that gives, or nothing after a:add(b).
local unknown = {}

return function(reduce)
   local Recorder, sums, other = {}, 0, false
   local a, b, result, sum = {}, {}, {}, nil -- sum: what has it
   local function note(x, y, into)
      if (x == a and y == b) or (x == b and y == a) then sums, sum = sums + 1, into else other = true end
      return into
   end
   local function in_place(x, ...)
      if select('#', ...) ~= 1 then other = true end
      return note(x, (...), x)
   end
   function Recorder.__add(x, y) return note(x, y, result) end
   function Recorder.__index(_, key)
      if key == 'add' then return in_place end
      other = true
      error(unknown)
   end
   function Recorder.__newindex() other = true end
   for _, r in ipairs({ a, b, result }) do setmetatable(r, Recorder) end
   local ok, given = pcall(reduce, a, b)
   if given == nil then given = a end
   return ok and sums == 1 and not other and given == sum
end
