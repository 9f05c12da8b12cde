-- the programs of examples/lua, as their first lines say
local ranks = require 'ranks'
local folder = os.getenv('SOURCE') .. '/examples/lua/'

local function run(n, name)
   local status, output = ranks.shell(('timeout -k 2 30 tutti run -n %d luajit %s%s'):format(n, folder, name))
   assert.are.equal(0, status, output)
   return output
end

describe('the example', function()
   it('mean.lua gives all ranks the mean', function()
      local _, n = run(4, 'mean.lua'):gsub('rank %d of 4: the mean is 1.5\n', '')
      assert.are.equal(4, n)
   end)

   it('multiverso.lua fits a model', function()
      assert.are.equal('the model of 3 workers: 3.00\n', run(3, 'multiverso.lua'))
   end)

   it('distlearn.lua ends alike on all nodes, from a launcher and by hand', function()
      local function check(output)
         local seen, _, n = {}, output:gsub('all%-reduce SGD ends at 2%.28%d+\n', '')
         assert.are.equal(3, n, output)
         for value in output:gmatch('SGD ends at ([%d.]+)') do seen[value] = true end
         local first = next(seen)
         assert.is_nil(next(seen, first), output)
         for value in output:gmatch('averaging ends at ([%d.]+)') do
            assert.is_true(math.abs(value - 2) < 0.8, output)
         end
      end
      local port = require('ipc.posix').free_port()
      local status, output = ranks.shell(([[pids= ; for i in 3 2 1; do
         timeout -k 2 30 luajit %sdistlearn.lua $i 3 %d & pids="$pids $!"; done
         for p in $pids; do wait $p || exit 1; done]]):format(folder, port))
      assert.are.equal(0, status, output)
      check(output)
      check(run(3, 'distlearn.lua'))
   end)
end)
