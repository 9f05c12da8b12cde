-- case.lua - the recorded cases of tests/conformance: local input, expected, tolerance = require('case')(id)
local function parse(s)
   local at = 1
   local value
   local function skip() at = s:find('[^ \t\r\n]', at) end
   local function list(close, item)
      at = at + 1
      skip()
      while s:sub(at, at) ~= close do
         item()
         skip()
         if s:sub(at, at) == ',' then at = at + 1; skip() end
      end
      at = at + 1
   end
   local function text()
      local stop = at + 1
      while s:sub(stop, stop) ~= '"' do stop = stop + (s:sub(stop, stop) == '\\' and 2 or 1) end
      local t = s:sub(at + 1, stop - 1)
      at = stop + 1
      return t
   end
   function value()
      skip()
      local c = s:sub(at, at)
      if c == '"' then return text() end
      local t = {}
      if c == '[' then
         list(']', function() t[#t + 1] = value() end)
         return t
      elseif c == '{' then
         list('}', function()
            local k = text()
            skip()
            at = at + 1
            t[k] = value()
         end)
         return t
      end
      local word = s:match('^[%w%.+-]+', at)
      at = at + #word
      if word == 'true' then return true elseif word == 'false' then return false end
      return tonumber(word)
   end
   return value()
end

local file = assert(io.open(os.getenv('SOURCE') .. '/tests/conformance/conformance.json'))
local cases = parse(file:read('*a')).cases
file:close()

local equations = require 'equations'

local function copy(value)
   if type(value) ~= 'table' then return value end
   local t = {}
   for k, v in pairs(value) do t[k] = copy(v) end
   return t
end

local case = {}

-- The input, what is expected, its tolerance, and the equation's name. altered: with other numbers.
function case.get(id, altered)
   for _, one in ipairs(cases) do
      if one.id == id then
         if not altered then return one.input, one.expected, one.tolerance, one.ref end
         local input = require 'alter'(copy(one.input), one.ref)
         return input, equations[one.ref](input), one.tolerance, one.ref
      end
   end
   error('no case is called ' .. id)
end

function case.ids()
   local ids = {}
   for i, one in ipairs(cases) do ids[i] = one.id end
   return ids
end

-- case(id): altered where the environment says so.
return setmetatable(case, { __call = function(_, id) return case.get(id, os.getenv('ALTERED') == 'yes') end })
