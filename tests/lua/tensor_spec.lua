-- tensors: making, views, arithmetic, comparison, printing
local T = require 'tutti.tensor'

local function list(t) return t:view(t:nElement()):totable() end

describe('a tensor', function()
   it('is made of sizes, of a table, of another tensor', function()
      assert.are.same({ 0, 0, 0 }, list(T.FloatTensor(3)))
      assert.are.same({ { 1, 2 }, { 3, 4 }, { 5, 6 } }, T.IntTensor({ { 1, 2 }, { 3, 4 }, { 5, 6 } }):totable())
      assert.are.equal(24, T.Tensor(2, 3, 4):nElement())
      assert.are.equal('torch.DoubleTensor', T.Tensor(1):type())
      assert.are.equal('torch.LongTensor', T.FloatTensor({ 1 }):long():type())
      assert.has_error(function() T.Tensor(1, 2, 3, 4, 5) end, 'a tensor has at most 4 dimensions, and not 5')
      assert.has_error(function() T.Tensor({ { 1, 2 }, { 3 } }) end)
   end)

   it('keeps what its kind can keep', function()
      for kind, value in pairs({ Float = 0.5, Double = 0.1, Half = -1.5, Byte = 200, Char = -100, Short = -30000,
                                 Int = -2000000000, Long = 2 ^ 40 }) do
         local t = T[kind .. 'Tensor'](2):fill(value)
         assert.are.equal(value, t[2], kind)
         assert.are.equal(value, (t:clone() * 1)[1], kind)
      end
   end)

   it('of half numbers rounds to nearest even', function()
      local h = T.HalfTensor({ 1 + 2 ^ -11, 1 + 3 * 2 ^ -11, 65519, 65520, 2 ^ -24, 2 ^ -25, 3 * 2 ^ -25, -0.1 })
      assert.are.same({ 1, 1 + 2 ^ -9, 65504, math.huge, 2 ^ -24, 0, 2 ^ -23, -0.0999755859375 }, h:totable())
      for bits = 0, 0x7bff do -- all that are finite come back
         local half = require 'tutti.half'
         if half.from_number(half.to_number(bits)) ~= bits then error(bits) end
      end
   end)

   it('is seen through views, which share its memory', function()
      local t = T.FloatTensor({ { 1, 2, 3 }, { 4, 5, 6 } })
      t:select(2, 3):fill(9)
      t[1][1] = 7
      t[{ 2, { 1, 2 } }] = T.FloatTensor({ 8, 8 })
      assert.are.same({ 7, 2, 9, 8, 8, 9 }, list(t))
      assert.are.same({ 2, 8 }, t:narrow(2, 2, 1):contiguous():view(2):totable())
      assert.are.same({ { 7, 8 }, { 2, 8 }, { 9, 9 } }, t:t():totable())
      assert.is_false(t:t():isContiguous())
      assert.are.same({ 2, 9 }, t[{ 1, { 2, 3 } }]:totable())
      assert.are.same({ 9 }, t[2]:sub(-1, -1):totable())
      assert.has_error(function() t:t():view(6) end,
                       'a view of a tensor that is not contiguous: call :contiguous() first')
      assert.has_error(function() t:narrow(1, 2, 2) end)
      assert.has_error(function() return t[3] end)
   end)

   it('computes', function()
      local a, b = T.FloatTensor({ 1, -2, 3 }), T.FloatTensor({ 10, 20, 30 })
      assert.are.same({ 11, 18, 33 }, list(a + b))
      assert.are.same({ 0, -3, 2 }, list(a - 1))
      assert.are.same({ 0.5, -1, 1.5 }, list(0.5 * a))
      assert.are.same({ 5, 10, 15 }, list(b / 2))
      assert.are.same({ 21, 38, 63 }, list(a:clone():add(2, b)))
      assert.are.same({ 21, 38, 63 }, list(T.FloatTensor(3):add(a, 2, b)))
      assert.are.same({ 10, -40, 90 }, list(T.cmul(a, b)))
      assert.are.same({ 1, 2, 3 }, list(T.abs(a)))
      assert.are.equal(2, a:sum())
      assert.are.equal(3, a:max())
      assert.are.equal(-2, a:min())
      assert.are.equal(60, a * b)
      assert.are.same({ 1, -2, 3 }, list(a))
      local t = T.DoubleTensor({ { 1, 2 }, { 3, 4 } })
      t:t():add(T.DoubleTensor({ { 10, 20 }, { 30, 40 } }))
      assert.are.same({ 11, 32, 23, 44 }, list(t))
   end)

   it('compares', function()
      local a, b = T.DoubleTensor({ 1, 2, 3 }), T.DoubleTensor({ 1, 5, 3 })
      assert.are.same({ 1, 0, 1 }, list(T.eq(a, b)))
      assert.are.same({ 0, 1, 1 }, list(a:gt(1)))
      assert.is_false(T.all(a:eq(b)))
      assert.is_true(a:equal(a:clone()))
      assert.is_true((a - b):abs():max() == 3)
      local sorted, order = T.DoubleTensor({ 3, 1, 2 }):sort()
      assert.are.same({ 1, 2, 3 }, list(sorted))
      assert.are.same({ 2, 3, 1 }, list(order))
   end)

   it('copies between kinds and strides, and refuses other sizes', function()
      local t = T.FloatTensor(2, 2)
      t:t():copy(T.IntTensor({ 1, 2, 3, 4 }))
      assert.are.same({ 1, 3, 2, 4 }, list(t))
      assert.has_error(function() t:copy(T.FloatTensor(3)) end)
      assert.are.same({ 1, 2, 3 }, list(T.cat(T.Tensor({ 1 }), T.Tensor({ 2, 3 }))))
      assert.are.same({ 1, 3, 2, 4, 0 }, list(t:resize(5)))
   end)

   it('has storages', function()
      local t = T.IntTensor({ { 1, 2, 3 }, { 4, 5, 6 } })
      local s = t[2]:storage()
      assert.are.same({ 6, 4, 'torch.IntStorage' }, { s:size(), s[4], s:type() })
      s[4] = 7
      assert.are.equal(7, t[2][1])
      assert.are.same({ 1, 2, 3, 7, 5, 6 }, T.IntTensor(s):totable())
      assert.are.equal('ping', T.ByteStorage():string('ping'):string())
      assert.are.same({ 9, 9 }, T.LongStorage(2):fill(9):totable())
      assert.are.same({ 1, 2 }, T.FloatStorage(2):copy(T.DoubleStorage({ 1, 2 })):totable())
      assert.has_error(function() T.FloatStorage(2):string() end, 'string: a storage of bytes or chars')
   end)

   it('prints', function()
      assert.are.equal('  1 20\n  3  4\n[torch.IntTensor of size 2x2]\n',
                       tostring(T.IntTensor({ { 1, 20 }, { 3, 4 } })))
      assert.are.equal('  0.5000\n -1.0000\n[torch.FloatTensor of size 2]\n', tostring(T.FloatTensor({ 0.5, -1 })))
      assert.are.equal('[torch.FloatTensor with no dimension]', tostring(T.FloatTensor()))
      assert.are.equal('2x3', tostring(T.Tensor(2, 3):size()))
   end)
end)
