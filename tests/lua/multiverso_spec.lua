-- multiverso in Lua: names, what add and get promise, errors
local ranks = require 'ranks'

local function run(n, transports, program, more)
   local status, output = ranks.shell(('TUTTI_TRANSPORTS=%s %s timeout -k 2 30 tutti run %s -n %d luajit %s'):format(
      transports, more or '', more and '--keep-going' or '', n, ranks.file(
         "local torch = require 'tutti.tensor'\nlocal mv = require 'multiverso'\n" .. program)))
   if status ~= 0 and not more then error(('status %d\n%s'):format(status, output), 2) end
   return output
end

describe('multiverso', function()
   it('has all names, and so have distlearn and ipc', function()
      local mv = require 'multiverso'
      for _, name in ipairs({ 'init', 'barrier', 'shutdown', 'num_workers', 'worker_id', 'server_id' }) do
         assert.are.equal('function', type(mv[name]), name)
      end
      for _, handler in ipairs({ mv.ArrayTableHandler, mv.MatrixTableHandler }) do
         assert.truthy(handler.new and handler.get and handler.add)
      end
      local ipc = require 'libipc'
      for _, name in ipairs({ 'server', 'client', 'map', 'fork', 'waitpid', 'getpid' }) do
         assert.are.equal('function', type(ipc[name]), name)
      end
      for _, name in ipairs({ 'workqueue', 'channel', 'mutex', 'sharedtable', 'marshal', 'spawn', 'flock' }) do
         assert.has_error(function() ipc[name]() end)
      end
      for _, name in ipairs({ 'Tree', 'LocalhostTree', 'StaticTree', 'DiscoveredTree', 'SlurmTree', 'NullTree',
                              'BackgroundTask' }) do
         assert.are.equal('function', type(require('ipc.' .. name)), name)
      end
      local tree = require 'ipc.NullTree'()
      for _, name in ipairs({ 'allReduce', 'scatter', 'walkTable', 'netStats' }) do
         assert.are.equal('function', type(tree[name]), name)
      end
      local sgd = require 'distlearn.AllReduceSGD'(tree)
      assert.truthy(sgd.sumGradients and sgd.sumAndNormalizeGradients and sgd.synchronizeParameters)
      local ea = require 'distlearn.AllReduceEA'(tree, 10, 0.2)
      assert.truthy(ea.averageParameters and ea.synchronizeCenter and ea.synchronizeParameters)
      local async = require 'distlearn.AsyncEA'(nil, nil, nil, nil, nil, nil, 1, 1, 10, 0.2)
      for _, name in ipairs({ 'initServer', 'initClient', 'initTester', 'syncClient', 'syncServer', 'testNet',
                              'startTest', 'finishTest' }) do
         assert.are.equal('function', type(async[name]), name)
      end
      assert.has_error(function() require 'distlearn.AllReduceEA'(tree, 10) end)
      assert.has_error(function() require 'distlearn.AsyncEA'(1, 2, 3, 4, 5, 6, 7, 8) end)
   end)

   ranks.over(it, 'works when its functions are replaced by their results', function(transports)
      run(2, transports, [[
         mv.init()
         mv.num_workers, mv.worker_id, mv.server_id = mv.num_workers(), mv.worker_id(), mv.server_id()
         local barrier = mv.barrier
         mv.init, mv.barrier = nil, nil
         local tbh = mv.ArrayTableHandler:new(3, { 1, 2, 3 })
         barrier()
         assert(tbh:get():sum() == 6)
         barrier()
         local delta = torch.DoubleTensor({ 1, 1, 1 })
         tbh:add(delta)
         delta:fill(100) -- what was added stays as it was
         tbh:add(delta:float():fill(1) / mv.num_workers, true)
         barrier()
         local now = tbh:get()
         assert(now:type() == 'torch.FloatTensor' and now[1] == 4 and now[3] == 6, tostring(now))
         local one = mv.ArrayTableHandler:new(1)
         one:add(5)
         barrier()
         assert(one:get()[1] == 10)
         mv.shutdown()
      ]])
   end)

   it('gives the memory of a large result to a later one when the program has dropped the result', function()
      run(2, 'shm,tcp', [[
         local ffi = require 'ffi'
         local function place(x) return tonumber(ffi.cast('intptr_t', x:data())) end
         mv.init()
         local n = 2 ^ 22
         local array = mv.ArrayTableHandler:new(n)
         array:add(torch.FloatTensor(n):fill(2))
         mv.barrier()
         local first = array:get()
         local second = array:get()
         assert(place(first) ~= place(second) and place(first) % 64 == 0)
         local view, at = second:narrow(1, n, 1), place(first)
         first, second = nil, nil
         local third, fourth = array:get(), array:get()
         assert(place(third) == at or place(fourth) == at)
         third:fill(7)
         fourth:fill(8)
         assert(view[1] == 4) -- a view keeps the memory
         mv.shutdown()
      ]])
   end)

   it('refuses with a sentence, and nothing has changed', function()
      run(2, 'shm,tcp', [[
         local function said(f, ...)
            local ok, why = pcall(f, ...)
            assert(not ok and type(why) == 'string', why)
            return why
         end
         assert(said(mv.num_workers):find('init was not called', 1, true))
         mv.init()
         assert(said(mv.init):find('called before', 1, true))
         local array, matrix = mv.ArrayTableHandler:new(10), mv.MatrixTableHandler:new(4, 2)
         assert(said(array.add, array, { 1, 2 }):find('2 elements, and the array has 10', 1, true))
         assert(said(array.add, array, 'x'):find('a table or a tensor, and not a string', 1, true))
         assert(said(matrix.add, matrix, { 1, 2 }, { 4 }):find('row 4', 1, true))
         assert(said(matrix.get, matrix, { -1 }):find('-1 is no whole number', 1, true))
         assert(said(mv.ArrayTableHandler.new, mv.ArrayTableHandler, 0):find('from 1 up', 1, true))
         assert(array:get():sum() == 0 and matrix:get():sum() == 0)
         mv.shutdown()
         assert(said(array.get, array):find('shutdown was', 1, true))
      ]])
   end)

   it('goes on with its adds after a Ctrl-C', function()
      run(2, 'shm,tcp', [[
         local posix = require 'ipc.posix'
         mv.init(true)
         local array = mv.ArrayTableHandler:new(1)
         if mv.worker_id() == 0 then
            array:add({ 1 })
            array:add({ 2 }) -- waits for the other worker's first add
            os.execute('(sleep 0.2; kill -INT ' .. require('libipc').getpid() .. ') &')
            local ok, why = pcall(array.get, array)
            assert(not ok and why:find('interrupted'), why)
            collectgarbage()
         else
            posix.sleep(600)
            array:add({ 10 })
            array:add({ 20 })
         end
         assert(array:get()[1] == 33)
         mv.shutdown()
      ]])
   end)

   it('says who is gone, and who does not add', function()
      local output = run(2, 'shm,tcp', [[
         mv.init()
         local array = mv.ArrayTableHandler:new(10)
         if mv.worker_id() == 1 then
            require('ipc.posix').sleep(300)
            require('ffi').C._exit(1)
         end
         print(pcall(mv.barrier))
         print('shutdown', pcall(mv.shutdown))
         print('after it', pcall(mv.barrier))
      ]], 'TUTTI_LOG=error')
      assert.truthy(output:find('false%s+[^\n]*rank 1'), output)
      assert.truthy(output:find('shutdown%s+false%s+[^\n]*rank 1'), output)
      assert.truthy(output:find('after it%s+false%s+[^\n]*shutdown was'), output)
      output = run(2, 'shm,tcp', [[
         mv.init(true)
         local array = mv.ArrayTableHandler:new(10)
         if mv.worker_id() == 0 then
            array:add(torch.FloatTensor(10))
            print(pcall(array.get, array))
         else
            require('ipc.posix').sleep(1500)
         end
         mv.shutdown()
      ]], 'TUTTI_TIMEOUT=500')
      assert.truthy(output:find('false%s+[^\n]*rank 1') or output:find('false%s+[^\n]*worker 1'), output)
   end)
end)
