-- Numbers of 16 bits, as IEEE 754 has them: to and from Lua's numbers. Rounded to nearest, ties to even.
local ffi = require 'ffi'
local bit = require 'bit'
local half = {}

-- Two's powers are exact, so scaling loses nothing.
function half.to_number(bits)
   local sign = bits >= 0x8000 and -1 or 1
   local exponent, mantissa = bit.band(bit.rshift(bits, 10), 31), bit.band(bits, 1023)
   if exponent == 31 then return mantissa == 0 and sign * math.huge or 0 / 0 end
   if exponent == 0 then return sign * mantissa * 2 ^ -24 end
   return sign * (1024 + mantissa) * 2 ^ (exponent - 25)
end

local function round_even(x)
   local down = math.floor(x)
   local rest = x - down
   if rest > 0.5 or (rest == 0.5 and down % 2 == 1) then return down + 1 end
   return down
end

function half.from_number(x)
   if x ~= x then return 0x7e00 end
   local sign = (x < 0 or 1 / x < 0) and 0x8000 or 0
   x = math.abs(x)
   if x >= 65520 then return sign + 0x7c00 end -- halfway between the largest number and the next power rounds up
   local exponent = 0
   if x > 0 then
      local _, e = math.frexp(x)
      exponent = math.max(e - 1, -14)
   else
      return sign
   end
   -- In units of the last place; 1024 and more carries into the exponent by itself.
   local units = round_even(x / 2 ^ (exponent - 10))
   return sign + (exponent + 14) * 1024 + units
end

half.array = ffi.typeof('uint16_t[?]')
return half
