-- tutti.lua: jobs, groups, collectives, messages, operations, windows, errors
local ranks = require 'ranks'

describe('tutti', function()
   ranks.over(it, 'combines', function(transports)
      ranks.run(3, transports, [[
         local x = T.FloatTensor({ rank, 1, -rank })
         job:allreduce(x)
         assert(x[1] == 3 and x[2] == 3 and x[3] == -3)
         local out = job:allreduce(T.DoubleTensor(2):fill(rank), 'average', T.DoubleTensor(2))
         assert(out[2] == 1)
         local a, b = T.FloatTensor(5):fill(1), T.FloatTensor(2, 2):fill(rank)
         local op = job:allreduce_start({ a, b }, 'max')
         op:wait()
         assert(a[5] == 1 and b[2][2] == 2)
         assert(job:reduce(T.IntTensor({ rank }), 'sum', 1)[1] == (rank == 1 and 3 or rank))
         assert(job:broadcast(T.LongTensor({ rank }), 2)[1] == 2)
         assert(job:gather(T.ByteTensor({ rank }))[3] == 2)
         assert(job:allgather(T.HalfTensor({ rank + 0.5 }))[3] == 2.5)
         assert(job:scatter(rank == 0 and T.FloatTensor({ 5, 6, 7 }) or nil, T.FloatTensor(1), 0)[1] == 5 + rank)
         assert(job:reduce_scatter(T.IntTensor({ 1, 2, 3 }))[1] == 3 * (rank + 1))
         local got = job:alltoall(T.IntTensor({ 10 * rank, 10 * rank + 1, 10 * rank + 2 }))
         assert(got[1] == rank and got[3] == 20 + rank)
         local all = job:allgatherv(T.IntTensor(rank + 1):fill(rank), { 1, 2, 3 }, T.IntTensor(6))
         assert(all[1] == 0 and all[3] == 1 and all[6] == 2)
         local counts, from = {}, {}
         for r = 0, 2 do counts[r + 1], from[r + 1] = r, rank end
         local to = job:alltoallv(T.IntTensor(3):fill(rank), counts, T.IntTensor(math.max(3 * rank, 1)), from)
         assert(rank == 0 or to[3 * rank] == 2)
         local ffi = require 'ffi'
         local array = ffi.new('double[?]', 2, rank, 1)
         job:allreduce(array)
         assert(array[0] == 3 and array[1] == 3)
         job:barrier()
      ]])
   end)

   ranks.over(it, 'sends messages', function(transports)
      ranks.run(3, transports, [[
         local big = T.FloatTensor(100000)
         if rank == 0 then
            for r = 1, 2 do
               assert(job:recv_string(r, 7) == 'from ' .. r)
               local m = job:probe(r, 8)
               assert(m.bytes == 400000 and m.rank == r and m.tag == 8)
               local op = job:recv_start(big, r, 8)
               assert(op:wait().bytes == 400000 and big[100000] == r)
            end
            local ok, e = pcall(job.recv, job, T.ByteTensor(3), 1, 9)
            assert(not ok and e.name == 'EMSGSIZE' and e.errno == 90, e)
            assert(job:recv_string(1, 9) == 'four' and job:recv_string(1, 9) == '')
         else
            job:send('from ' .. rank, 0, 7)
            job:send(big:fill(rank), 0, 8)
            if rank == 1 then job:send('four', 0, 9); job:send('', 0, 9) end
         end
      ]])
   end)

   ranks.over(it, 'has windows', function(transports)
      ranks.run(2, transports, [[
         local mine = job:alloc('long', 4)
         local w = tutti.Window.open(job, 'w', mine)
         assert(w:bytes(1 - rank) == 32)
         w:put(1 - rank, 8, T.LongTensor({ rank + 5, 2 }))
         w:put_notify(1 - rank, 24, T.LongTensor({ 9 }), 3)
         w:wait_notify(1 - rank, 3, 1)
         assert(mine[2] == 6 - rank and mine[4] == 9)
         assert(w:get(rank, 16, T.LongTensor(1))[1] == 2)
         job:barrier()
         w:add(0, 0, 1)
         job:barrier()
         assert(w:add(0, 0, 0) == 2)
         local ok, e = pcall(w.put, w, 0, 30, T.LongTensor(1))
         assert(not ok and e.name == 'ERANGE', e)
         job:barrier()
         w:close()
         w:close()
         ok, e = pcall(w.bytes, w, 0)
         assert(not ok and tostring(e) == 'the Window is closed', e)
      ]])
   end)

   ranks.over(it, 'splits, and makes groups of listed ranks', function(transports)
      ranks.run(3, transports, [[
         local color
         if rank < 2 then color = 0 end
         local part = job:split(color, -rank)
         assert((part == nil) == (rank == 2))
         if part then
            assert(part:size() == 2 and part:rank() == 1 - rank and part:member(0) == 1 and part:rank_of(0) == 1)
            local x = T.IntTensor({ rank })
            part:allreduce(x)
            assert(x[1] == 1)
            part:close()
         end
         if rank > 0 then assert(job:of({ 2, 1 }, 'two'):rank() == 2 - rank) end
         assert(job:peer(rank).transport == 'self' and job:stats('barrier').errors == 0)
         assert(#job:peer((rank + 1) % 3).host > 0)
      ]])
   end)

   it('says which rank died, and goes on without it', function()
      ranks.shell('true')
      local status, output = ranks.shell('timeout -k 2 30 tutti run --keep-going -n 3 luajit ' .. ranks.file([[
         local tutti = require 'tutti'
         local job = tutti.init()
         local rank = job:rank()
         job:barrier()
         local token = tutti.tensor.ByteTensor(1)
         if rank == 1 then -- dies when the others are out of the barrier
            for _, other in ipairs({ 0, 2 }) do job:recv(token, other, 1) end
            require('ffi').cdef 'void _exit(int);'
            require('ffi').C._exit(3)
         end
         job:send(token, 1, 1)
         local ok, e = pcall(job.barrier, job)
         assert(not ok and tutti.is_error(e) and e.name == 'ECONNRESET' and e.rank == 1, e)
         assert(tostring(e):find('rank 1', 1, true))
         local left = job:shrink()
         assert(left:size() == 2)
         local x = tutti.tensor.IntTensor({ rank })
         left:allreduce(x)
         print('left ' .. x[1])
      ]]))
      local _, n = output:gsub('left 2', '')
      assert.are.equal(2, n, status .. output)
   end)

   it('takes a new rank', function()
      local port = require('ipc.posix').free_port()
      local status, output = ranks.shell('timeout -k 2 30 luajit ' .. ranks.file(([[
         local tutti, ipc, boot = require 'tutti', require 'libipc', '127.0.0.1:%d'
         local m = ipc.map(2, function(boot, id)
            local job = require('tutti').join({ boot = boot, rank = id - 1, ranks = 2 })
            if id == 1 then job:everyone():recv_string(nil, 5) end
            job:barrier()
            return job:grow():size()
         end, boot)
         require('ipc.posix').sleep(200)
         local job = tutti.join({ boot = boot, ranks = 2 })
         assert(job:late() and job:everyone():rank() == 2)
         job:everyone():send('here', 0, 5)
         assert(job:grow():size() == 3)
         local a, b = m:join()
         assert(a == 3 and b == 3)
      ]]):format(port)))
      assert.are.equal(0, status, output)
   end)

   it('ends a wait at Ctrl-C, and leaves', function()
      local program = ranks.file([[
         local tutti = require 'tutti'
         local ffi = require 'ffi'
         ffi.cdef 'int getpid(void); int raise(int);'
         local job = tutti.init()
         if job:rank() == 0 then
            os.execute('(sleep 0.3; kill -INT ' .. ffi.C.getpid() .. ') &')
            local began = os.time()
            local ok, e = pcall(job.barrier, job)
            print('ended', ok, e, os.time() - began < 3)
         else
            os.execute('sleep 1')
            pcall(job.barrier, job)
         end
      ]])
      local _, output = ranks.shell('timeout -k 2 20 tutti run -n 2 luajit ' .. program)
      assert.truthy(output:find('ended%s+false%s+[^\n]*interrupted!%s+true'), output)
   end)

   it('cancels an operation that is dropped, and keeps its memory until then', function()
      ranks.run(2, 'shm,tcp', [[
         local function drop(i) job:recv_start(T.FloatTensor(50000), 1, 100 + i) end
         for i = 1, 20 do
            if rank == 0 then drop(i) end
            collectgarbage()
         end
         collectgarbage()
         job:barrier()
         if rank == 1 then
            for i = 1, 20 do
               local op = job:send_start(T.FloatTensor(50000), 0, 100 + i)
               assert(not op:done() and op:cancel() and not op:cancel())
               local ok, e = pcall(op.wait, op)
               assert(not ok and e.name == 'ECANCELED', e)
            end
         end
         job:barrier()
         local a, b = T.IntTensor(1), T.IntTensor(1)
         local first, second = job:recv_start(a, 1 - rank, 1), job:recv_start(b, 1 - rank, 2)
         local ok, e = pcall(first.wait, first, 0.01)
         assert(not ok and e.name == 'EINPROGRESS', e)
         job:barrier()
         job:send(T.IntTensor({ 4 }), 1 - rank, 2)
         assert(tutti.wait_any({ first, second }) == 2 and b[1] == 4)
         job:barrier()
         job:send(T.IntTensor({ 5 }), 1 - rank, 1)
         tutti.wait_all({ first, second }, 10)
         assert(a[1] == 5 and tutti.wait_any({ first, second }) == nil)
      ]])
   end)

   it('takes the tensors of another library by their methods', function()
      local ffi, job = require 'ffi', require('tutti').join()
      local values = ffi.new('float[3]', 1, 2, 3)
      local foreign = { data = function() return values + 0 end, nElement = function() return 3 end,
                        type = function() return 'torch.FloatTensor' end, isContiguous = function() return true end }
      local out = job:allreduce(foreign, 'sum', require('tutti.tensor').FloatTensor(3))
      assert.are.same({ 1, 2, 3 }, out:totable())
      foreign.type = function() return 'torch.CudaTensor' end
      assert.truthy(tostring(select(2, pcall(job.allreduce, job, foreign))):find('a torch.CudaTensor has no memory', 1,
                                                                                  true))
      job:leave()
   end)

   it('refuses with a sentence', function()
      local tutti = require 'tutti'
      local job = tutti.join()
      local function said(f, ...) return tostring(select(2, pcall(f, ...))) end
      local T = tutti.tensor
      assert.are.equal('no rule is called mean: use average, band, bor, bxor, max, min, product, sum',
                       said(job.allreduce, job, T.FloatTensor(1), 'mean'))
      assert.are.equal('out has 8 bytes, and the call needs 4',
                       said(job.allreduce, job, T.FloatTensor(1), 'sum', T.FloatTensor(2)))
      assert.are.equal('x is of type float, and out of type int',
                       said(job.allreduce, job, T.FloatTensor(1), 'sum', T.IntTensor(1)))
      assert.are.equal('the library does not compute with elements of type short',
                       said(job.allreduce, job, T.ShortTensor(1)))
      assert.truthy(said(job.allreduce, job, T.FloatTensor(2, 2):t()):find('call :contiguous() first', 1, true))
      assert.truthy(said(job.allreduce, job, 5):find('a number has no memory', 1, true))
      assert.truthy(said(job.watch, job, print):find('take the changes with next_change', 1, true))
      assert.truthy(said(tutti.join, { tiemout = 3 }):find('a job has no option tiemout', 1, true))
      local x = T.FloatTensor(1)
      assert.truthy(said(tutti.Gossip.open, job, 'g', x, { choose = print }):find('use another choice', 1, true))
      assert.truthy(said(tutti.Table.open, job, 't', { rows = 1, rule = print }):find('write it in C', 1, true))
      assert.truthy(said(tutti.Center.open, job, 'c', x, { merge = print }):find('write it in C', 1, true))
      assert.truthy(said(job.barrier, job) == 'nil')
      job:leave()
      job:leave()
      assert.are.equal('the Job is closed', said(job.barrier, job))
   end)
end)
