-- tutti.lua: tables, gradients, elastic averages, centers, gossip, controllers
local ranks = require 'ranks'

describe('tutti', function()
   ranks.over(it, 'has tables', function(transports)
      ranks.run(2, transports, [[
         local t = tutti.Table.open(job, 't', { rows = 5, row = 2, rule = { rule = 'sgd', learning_rate = 0.5 } })
         t:push(T.FloatTensor(5, 2):fill(rank + 1))
         t:push_rows({ 4, 0 }, T.FloatTensor({ { 1, 1 }, { 2, 2 } }), { scale = 2 })
         job:barrier()
         local all = t:pull()
         assert(all:size(1) == 5 and all:size(2) == 2 and all[2][1] == -1.5 and all[1][2] == -5.5 and all[5][1] == -3.5)
         local some = t:pull_rows(T.LongTensor({ 1, 4 }))
         assert(some[1][1] == -1.5 and some[2][2] == -3.5)
         job:barrier()
         if rank == 0 then
            t:assign(T.FloatTensor(5, 2):fill(3))
            t:assign_rows({ 2 }, T.FloatTensor({ { 7, 8 } }))
         end
         job:barrier()
         assert(t:pull()[3][2] == 8 and t:pull()[1][1] == 3)
         local info = t:look()
         assert(info.servers == 2 and info.worker == rank and info.type == 'float' and info.row == 2)
         local ok, e = pcall(t.push, t, T.FloatTensor(3))
         assert(not ok and tostring(e) == 'the memory has 3 elements, and 5 rows of the table have 10', e)
         ok, e = pcall(t.push, t, T.DoubleTensor(10))
         assert(not ok and tostring(e) == 'the memory is of type double, and the table of type float', e)
         ok, e = pcall(t.push, t, T.FloatTensor(10), { rho = 0.5 })
         assert(not ok and e.name == 'EINVAL', e)
         local rounds = tutti.Table.open(job, 'rounds', { rows = 3, type = 'double', consistency = 'bsp' })
         local op = rounds:push_start(T.DoubleTensor(3):fill(rank + 1))
         assert(rounds:pull()[3] == 3)
         op:wait()
         rounds:switch({ mode = 'ssp', staleness = 1 })
         job:barrier()
         t:close()
         rounds:close()
      ]])
   end)

   ranks.over(it, 'averages gradients of uneven steps', function(transports)
      ranks.run(2, transports, [[
         local grads, params = { T.FloatTensor(3), T.DoubleTensor(2) }, { T.FloatTensor(2):fill(rank) }
         local g = tutti.Gradients.open(job, grads, { bucket_bytes = 1024 })
         g:synchronize(params)
         assert(params[1][1] == 0)
         local seen = {}
         for step = 1, rank + 1 do
            grads[1]:fill(rank + 1)
            g:ready(2)
            local n = g:average()
            seen[#seen + 1] = ('%d:%g'):format(n, grads[1][1])
            params[1]:add(1)
         end
         g:synchronize(params)
         assert(table.concat(seen, ' ') == (rank == 0 and '2:1.5' or '2:1.5 1:2'), table.concat(seen, ' '))
         assert(params[1][1] == 2)
         grads[2]:fill(1)
         local op = g:sum_start()
         local seen = {}
         for first, last in g:buckets() do
            seen[#seen + 1] = first .. '-' .. last .. ':' .. grads[first][1]
         end
         assert(op:wait() == 2 and grads[2][1] == 2)
         assert(seen[1] == '2-2:2' and #seen == 2, table.concat(seen, ' '))
         local others = { T.FloatTensor(3):fill(2), T.DoubleTensor(2):fill(0) }
         g:move(others)
         g:bf16()
         assert(g:average() == 2 and math.abs(g:norm() - math.sqrt(12)) < 1e-15)
         assert(not pcall(g.move, g, { T.FloatTensor(2) }))
         g:bf16(false)
         local file = os.tmpname()
         g:save(file)
         g:load(file)
         os.remove(file)
      ]])
   end)

   ranks.over(it, 'averages elastically, in turns, and by gossip', function(transports)
      ranks.run(2, transports, [[
         local x = T.DoubleTensor({ 1, -2 })
         local ea = tutti.Elastic.open(job, x, { tau = 1, alpha = 0.2 })
         ea:synchronize()
         x:add(rank == 0 and 1 or -0.5)
         local averaged, distance = ea:step()
         assert(averaged and math.abs(x[1] - (rank == 0 and 1.8 or 0.6)) < 1e-12)
         assert(math.abs(distance - (rank == 0 and 1 or 0.5) * math.sqrt(2)) < 1e-12)
         assert(math.abs(ea:center()[1][1] - 1.1) < 1e-12)
         local file = os.tmpname()
         ea:save(file)
         ea:synchronize()
         ea:close()
         ea = tutti.Elastic.open(job, x, { tau = 1, alpha = 0.2 })
         ea:load(file)
         assert(math.abs(ea:center()[1][1] - 1.1) < 1e-12)
         ea:close()

         local p = T.FloatTensor({ 4 })
         local center = tutti.Center.open(job, 'c', p, { kind = 'easgd', tau = 2, alpha = 0.5 })
         p:add(1)
         assert(center:step() == false)
         if rank == 0 then assert(center:step() and p[1] == 4.5) end
         job:barrier()
         if rank == 1 then center:exchange(); assert(p[1] == 4.75) end
         job:barrier()
         center:pull()
         assert(p[1] == 4.75 and center:table():look().rows == 1)
         center:set({ tau = 1 })
         assert(center:step())
         center:save(file)
         center:load(file)
         job:barrier()
         center:close()

         local model = T.FloatTensor({ rank * 2 })
         local gossip = tutti.Gossip.open(job, 'g', model, { value = 0.25, timeout = 5 })
         gossip:publish(1)
         job:barrier() -- a peer that has published nothing yet is no peer
         gossip:publish(1)
         local mixed = gossip:mix(1)
         assert(mixed.peer == 1 - rank and mixed.factor == 0.25 and model[1] == (rank == 0 and 0.5 or 1.5))
         assert(gossip:look().published == 2 and gossip:value() == 0.25)
         local clock = gossip:look().clock
         gossip:save(file)
         job:barrier()
         gossip:close()
         gossip = tutti.Gossip.open(job, 'g again', model)
         gossip:load(file)
         assert(gossip:look().clock == clock)
         gossip:close()
         os.remove(file)
      ]])
   end)

   ranks.over(it, 'asks a controller', function(transports)
      ranks.run(3, transports, [[
         local control = tutti.Controller.open(job, 'control')
         if rank == 0 then
            local ends = 0
            control:serve(function(data, worker)
               if data == 'bad' then error('no request is called bad', 0) end
               return data .. ' of ' .. worker
            end)
         else
            assert(control:ask('next') == 'next of ' .. rank)
            local ok, e = pcall(control.ask, control, 'bad')
            assert(not ok and tostring(e):find('no request is called bad', 1, true), e)
            control:lock()
            control:unlock()
            control:first()
            control:done()
         end
         job:barrier()
         if rank == 0 then
            local requests = 0
            for r in function() return control:next(5) end do
               if r.what == 'joined' then requests = requests + 1; control:answer(r.worker, r.data) end
            end
            print(requests .. ' requests')
         end
      ]])
   end)
end)
