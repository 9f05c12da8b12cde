-- case.lua - the recorded cases of tests/conformance: require('case')(id)
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

return function(id)
   for _, case in ipairs(cases) do
      if case.id == id then return case.input, case.expected, case.tolerance end
   end
   error('no case is called ' .. id)
end
