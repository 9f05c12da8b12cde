-- libipc and the trees: messages, maps, allReduce with any function, scatter, how nodes meet, errors
local ranks = require 'ranks'

-- Runs one program, which starts what it needs.
local function run(program, env)
   local status, output = ranks.shell(('%s timeout -k 2 40 luajit %s'):format(env or '', ranks.file(
      "local torch = require 'tutti.tensor'\nlocal ipc = require 'libipc'\n" .. program)))
   if status ~= 0 then error(('status %d\n%s'):format(status, output), 2) end
   return output
end

describe('libipc', function()
   it('has servers and clients', function()
      run([[
         local server, port = ipc.server('127.0.0.1')
         local m = ipc.map(3, function(port, id)
            local ipc, torch = require 'libipc', require 'tutti.tensor'
            local client = ipc.client('127.0.0.1', port)
            client:send('t' .. id)
            assert(client:recv().x == 't' .. id)
            local t = torch.FloatTensor(2, 3)
            assert(client:recv(t) == t and t:sum() == 12)
            client:send(t:t())
            client:send({ 1, { a = true, b = ('x'):rep(100000) }, torch.ByteTensor({ 7 }) })
            local m, tries = nil, 0
            while m == nil do m, tries = client:recvAsync(), tries + 1 end
            assert(m == 'bye' and tries > 1)
            client:close()
            return true
         end, port)
         server:clients(3, function(client)
            client:tag(client:recv())
            client:id(42)
            assert(client:id() == 42 and client:address() ~= '')
         end)
         for i = 1, 3 do server:broadcast({ x = 't' .. i }, 't' .. i) end
         server:broadcast(torch.FloatTensor(2, 3):fill(2))
         local seen = {}
         server:clients(function(client)
            seen[#seen + 1] = client:tag()
            local ok, why = pcall(client.recv, client, torch.FloatTensor(2, 3))
            assert(not ok and why:find('type and sizes must match'), why)
         end)
         table.sort(seen)
         assert(table.concat(seen) == 't1t2t3')
         for _ = 1, 3 do
            local m, client = server:recvAny()
            assert(#m[2].b == 100000 and m[2].a and m[3][1] == 7 and client:tag())
         end
         require('ipc.posix').sleep(50)
         server:broadcast('bye')
         assert(select('#', m:join()) == 3)
         assert(server:netStats().tx.num_calls > 0)
         server:close()
      ]])
   end)

   it('says when a peer is gone, and which names it has not', function()
      local output = run([[
         local server, port = ipc.server()
         local m = ipc.map(1, function(port)
            require 'libipc'.client(port)
            require('ipc.posix').sleep(300)
            require('ffi').C._exit(1)
         end, port)
         server:clients(1, function(client) print(pcall(client.recv, client)) end)
         print(pcall(m.join, m))
         print(pcall(ipc.mutex))
         print(pcall(ipc.server, '127.0.0.1', port))
         print(pcall(ipc.map, 1, function() return port end))
         local pid = ipc.fork()
         if pid == 0 then os.exit(7) end
         print('status', ipc.waitpid(pid))
      ]])
      assert.truthy(output:find('false%s+recv: rank 1 [^\n]*went down'), output)
      assert.truthy(output:find('process 1 of the map ended without a result', 1, true), output)
      assert.truthy(output:find('ipc.mutex is for threads', 1, true), output)
      assert.truthy(output:find('in use', 1, true), output)
      assert.truthy(output:find('the function has upvalues', 1, true), output)
      assert.truthy(output:find('status%s+7\n'), output)
   end)

   it('hears of clients that go, and of servers', function()
      local output = run([[
         local sleep = require('ipc.posix').sleep
         local function with_client(f, after) -- f runs in the client's process, and after(server) here
            local server, port = ipc.server()
            local m = ipc.map(1, function(port, f)
               local client = require 'libipc'.client(port)
               return f(client, require('ipc.posix').sleep, require('ffi'))
            end, port, f)
            server:clients(1, function(client) client:tag('x') end)
            after(server)
            print(pcall(m.join, m))
            server:close()
         end
         local function dies(_, sleep, ffi)
            sleep(100)
            ffi.C._exit(1)
         end
         with_client(dies, function(server)
            print('died', pcall(server.recvAny, server))
            print('none', pcall(server.recvAny, server))
         end)
         with_client(dies, function(server) print('died', pcall(server.recvAny, server, 'x')) end)
         with_client(dies, function(server) print('died', pcall(server.clients, server, 2, error)) end)
         with_client(dies, function(server) print('tree', pcall(require 'ipc.Tree', 1, 2, 2, server)) end)
         with_client(function(client)
            client:send('last words')
            client:close()
         end, function(server)
            sleep(100)
            server:clients(0, function() error('it has left') end)
            assert(server:recvAny() == 'last words')
            print('left', pcall(server.recvAny, server))
         end)
         with_client(function(client)
            assert(client:recv() == 'before')
            local ok, why = pcall(client.recv, client)
            return why, select(2, pcall(client.recvAsync, client))
         end, function(server)
            server:clients(1, function(client)
               client:send('before')
               client:close()
               client:close()
            end)
         end)
         local port = require('ipc.posix').free_port()
         local m = ipc.map(1, function(port)
            local server = require 'libipc'.server('127.0.0.1', port)
            server:clients(1, function() end)
            require('ffi').C._exit(1)
         end, port)
         local client = ipc.client(port)
         print('server', pcall(client.recv, client))
         print('server', pcall(client.send, client, 1))
         print('no port', pcall(ipc.client))
      ]])
      local _, died = output:gsub('died%s+false%s+ipc.server [%d.:]+: rank 1 [^\n]*went down', '')
      assert.are.equal(3, died, output)
      for _, said in ipairs({ 'none%s+false%s+recvAny: no client is there',
                              'tree%s+false%s+Tree: 1 of 2 nodes have not called it: [^\n]*rank 1 [^\n]*went down',
                              'left%s+false%s+recvAny: no client is there',
                              'true%s+recv: the server has closed this connection%s+recv: the server has closed',
                              'server%s+false%s+recv: rank 0 [^\n]*went down',
                              'server%s+false%s+send: rank 0 [^\n]*went down',
                              'no port%s+false%s+ipc.client%(host, port%)' }) do
         assert.truthy(output:find(said), said .. '\n' .. output)
      end
   end)

   it('says that no server is there', function()
      local output = run("print(pcall(ipc.client, require('ipc.posix').free_port()))", 'TUTTI_TIMEOUT=300')
      assert.truthy(output:find('was not found at 127.0.0.1:%d+ within 300 ms'), output)
   end)

   it('maps', function()
      run([[
         Global = 5
         local a, b, c, d = ipc.map(2, function(x, id) return x.k + id, Global == nil end, { k = 10 }):join()
         assert(a == 11 and b == true and c == 12 and d == true)
         assert(select('#', ipc.map(1, function() return nil, torch_is_nil end):join()) == 2)
         local m = ipc.map(2, function(id)
            if id == 1 then error('boom') end
            require('ipc.posix').sleep(400)
            return 42
         end)
         require('ipc.posix').sleep(200)
         local ok, why = pcall(m.checkErrors, m)
         assert(not ok and why:find('boom'))
         assert(m:join() == 42)
         ok, why = pcall(function() ipc.map(2, function() error('all of us') end):join() end)
         assert(not ok and type(why) == 'string' and why:find('all of us'))
      ]])
   end)

   it('takes clients in by clients(n, f), in the order of their numbers', function()
      run([[
         local server, port = ipc.server()
         local m = ipc.map(2, function(port, id)
            local client = require 'libipc'.client(port)
            client:send(id)
            assert(client:recv() == 'bye')
            client:close()
         end, port)
         local sum = 0
         assert(server:clients(2, function(client) sum = sum + client:recv() end) == 2 and sum == 3)
         ipc.map(1, function(port) -- has left before it is taken in
            local client = require 'libipc'.client(port)
            client:send('third')
            client:close()
         end, port):join()
         assert(server:clients(function() end) == 2)
         local calls = 0
         server:clients(3, function(client)
            calls = calls + 1
            if calls == 3 then assert(client:recv() == 'third') end
         end)
         assert(calls == 3)
         local n = 0
         server:clients(function(client)
            client:id(10 - n)
            client:tag(n == 0 and 'first' or 'last')
            n = n + 1
         end)
         assert(n == 2) -- the third one has left
         local function order(...)
            local tags = {}
            local count = server:clients(function(client) tags[#tags + 1] = client:tag() end, ...)
            assert(count == #tags)
            return table.concat(tags, ' ')
         end
         assert(order() == 'last first' and order(1) == 'first last' and order('last') == 'last')
         assert(order('last', 1) == 'last' and order('none') == '')
         server:broadcast('bye')
         m:join()
      ]])
   end)

   it('refuses what is not whole', function()
      local pack = require 'ipc.pack'
      local tensor = require 'tutti.tensor'
      local function why(s) return select(2, pcall(pack.decode, s, 1)) end
      local values = { 2.5, 'text', { a = true, [3] = { 'x' } }, tensor.FloatTensor(2, 3):fill(7), {} }
      values[5].t = tensor.LongTensor(3):storage()
      for _, value in ipairs(values) do
         local whole = pack.encode(value)
         assert.are.equal(type(value), type((pack.decode(whole, 1))))
         for n = 0, #whole - 1 do assert.truthy(tostring(why(whole:sub(1, n))):find('is not whole', 1, true), n) end
      end
      for _, s in ipairs({ 'S-4;abcd', 'M1;NN', 'M1;D' .. ('\255'):rep(8) .. 'N', 'C1;', 'Q1;', 'M1e9;' }) do
         assert.truthy(tostring(why(s)):find('is not whole', 1, true), s)
      end
      assert.truthy(tostring(why('Tdouble 100000000;')):find('is not whole', 1, true))
      for _, head in ipairs({ 'double 4294967296 4294967296', 'doubles 1', '', 'float 1 0 99999999999999999999' }) do
         assert.truthy(tostring(why('T' .. head .. ';')):find('a tensor "' .. head .. '", which cannot be', 1, true))
      end
   end)

   it('refuses what a peer sends that is not whole, and its functions, and goes on', function()
      local output = run([[
         local server, port = ipc.server()
         local m = ipc.map(1, function(port)
            local client = require 'libipc'.client(port)
            client.all:send('vTdouble 100000000;', 0, 0)
            client.all:send('tdouble 100000000000 100000000000', 0, 0)
            client:send({ f = function() return 1 end })
            client:send('fine')
            client:close()
            return function(x) return x + 1 end
         end, port)
         server:clients(1, function(client)
            for _ = 1, 3 do print(pcall(client.recv, client)) end
            assert(client:recv() == 'fine')
         end)
         assert(m:join()(1) == 2) -- a map's functions are the program's own
      ]])
      assert.truthy(output:find('false%s+recv: rank 1: a message is not whole'), output)
      assert.truthy(output:find('false%s+a message holds a tensor "double 100000000000 1'), output)
      assert.truthy(output:find('false%s+recv: rank 1: a message holds a function, [^\n]+functions%(true%)'), output)
   end)

   it('sends storages and functions', function()
      local output = run([[
         ipc.functions(true)
         local server, port = ipc.server()
         local m = ipc.map(1, function(port)
            local torch = require 'tutti.tensor'
            local client = require 'libipc'.client(port)
            local s = torch.ByteStorage(4)
            assert(client:recv(s) == s and s:string() == 'ping' and s[1] == 112)
            client:send(torch.FloatTensor(2, 2):fill(3):storage())
            client:send({ x = torch.CharStorage():string('pong'), f = client:recv() })
            for _ = 1, 3 do client:send(s) end
            client:close()
         end, port)
         server:clients(1, function(client)
            client:send(torch.ByteStorage():string('ping'))
            client:send(function(a, b) return a .. b end)
            local t = torch.FloatTensor(4)
            client:recv(t:storage())
            assert(t:sum() == 12)
            local message = client:recv()
            assert(message.f('a', 'b') == 'ab' and message.x:type() == 'torch.CharStorage')
            assert(message.x:string() == 'pong')
            print(pcall(client.recv, client, torch.ByteStorage(3)))
            print(pcall(client.recv, client, torch.ByteTensor(4)))
            assert(client:recv():string() == 'ping')
            print(pcall(client.send, client, function() return m end))
            print(pcall(client.send, client, print))
         end)
         m:join()
      ]])
      assert.truthy(output:find('a storage "byte 4" has come, and what to receive into is a storage "byte 3"', 1, true),
                    output)
      assert.truthy(output:find('a storage "byte 4" has come, and what to receive into is a tensor "byte 4"', 1, true),
                    output)
      assert.truthy(output:find('a function with upvalues cannot be sent', 1, true), output)
      assert.truthy(output:find('a function that is not written in Lua cannot be sent', 1, true), output)
   end)

   it('has clients in the processes of a map, and takes clients from there', function()
      local output = run([[
         local server, port = ipc.server()
         local mine = ipc.client(port)
         server:clients(1, function(client) client:send(torch.FloatTensor(2):fill(5)) end)
         local sum, text = ipc.map(1, function(all, port)
            local ipc, torch = require 'libipc', require 'tutti.tensor'
            all.client:send('hi')
            local t = torch.FloatTensor(2)
            assert(all.client:recv(t) == t)
            assert(all.client:recvAsync() == nil and all.client:netStats().tx.num_calls == 1)
            local ok, why = pcall(all.client.send, all.client, all)
            print('sent', ok, why)
            return t:sum(), all.client:address()
         end, { client = mine }, port):join()
         assert(sum == 10 and text ~= '' and server:recvAny() == 'hi')
         local lent, both = ipc.map(1, function(port)
            local ipc = require 'libipc'
            return ipc.client(port), { ipc.client(port), 'both' }
         end, port):join()
         assert(both[2] == 'both')
         server:clients(3, function() end)
         lent:send({ 1 })
         local message, peer = server:recvAny()
         assert(message[1] == 1)
         peer:send('answer')
         assert(lent:recv() == 'answer')
         lent:close()
         lent:close()
         print(pcall(lent.send, lent, 1))
         both[1]:send('two')
         assert(server:recvAny() == 'two')
         both[1]:close()
         mine:close()
         print(pcall(function() return ipc.map(1, function(s) s:broadcast(1) end, server):join() end))
         local pid = ipc.fork()
         if pid == 0 then
            print('forked', pcall(mine.send, mine, 1))
            os.exit(0)
         end
         ipc.waitpid(pid)
      ]])
      assert.truthy(output:find('forked%s+false%s+a client works in the process that has connected it'), output)
      assert.truthy(output:find('sent%s+false%s+a client cannot be sent: give it to a map'), output)
      assert.truthy(output:find("only its parent is a rank of the job", 1, true), output)
      assert.truthy(output:find('left the job', 1, true), output)
   end)

   it('hears the other processes of a map while one waits for a message', function()
      run([[
         local server, port = ipc.server()
         local a, ends = ipc.client(port), {}
         server:clients(1, function(peer) ends[1] = peer end)
         local m = ipc.map(3, function(a, b, id)
            if id == 3 then error('boom') end
            local sum, mine = 0, id == 1 and a or b
            if id == 2 then mine:send(0) end
            for _ = 1, 50 do
               local x = mine:recv()
               sum = sum + x
               if x < 99 then mine:send(x + 1) end
            end
            return sum
         end, a, ends[1])
         require('ipc.posix').sleep(300)
         local ok, why = pcall(m.checkErrors, m)
         assert(not ok and why:find('boom'))
         local x, y = m:join()
         assert(x + y == 99 * 50) -- 0 to 99
         local waits = ipc.map(2, function(a, id) return a:recv() end, a)
         for i = 1, 3 do
            waits:checkErrors()
            if i > 1 then ends[1]:send(i) end
            require('ipc.posix').sleep(50)
         end
         x, y = waits:join()
         assert(x + y == 5)
         waits = ipc.map(1, function(a) return select(2, pcall(a.recv, a)) end, a)
         waits:checkErrors()
         ends[1]:close()
         why = waits:join()
         assert(why:find('has closed this connection'), why)
      ]])
   end)

   it('hears at once that a message has come for a process of a map', function()
      run([[
         local port = require('ipc.posix').free_port()
         local pid = ipc.fork()
         if pid == 0 then
            ipc.server('127.0.0.1', port):clients(1, function(client)
               for _ = 1, 100 do
                  local x = client:recv()
                  require('ipc.posix').sleep(5) -- the process of the map waits by then
                  client:send(x)
               end
               assert(client:recv() == 'bye')
            end)
            os.exit(0)
         end
         local client, began = ipc.client(port), os.time()
         ipc.map(1, function(client)
            for i = 1, 100 do
               client:send(i)
               assert(client:recv() == i)
            end
         end, client):join()
         assert(os.time() - began < 5, os.time() - began) -- 100 pauses of 100 ms are 10 seconds
         client:send('bye')
         client:close()
         assert(ipc.waitpid(pid) == 0)
      ]])
   end)

   it('closes a client of a map while later processes live', function()
      local output = run([[
         local server, port = ipc.server()
         local function begin(port) return require 'libipc'.client(port) end
         local function connect() return ipc.map(1, begin, port):join() end
         local function sleep() require('ipc.posix').sleep(10000) end
         local clients = { connect(), connect(), connect() }
         server:clients(3, function() end)
         local began, forked = os.time(), ipc.fork()
         if forked == 0 then sleep() end
         clients[1]:close()
         print('beside a fork', os.time() - began)
         local later = ipc.map(1, sleep)
         clients[2]:close()
         print('beside a map', os.time() - began)
         io.popen('exec sleep 10')
         clients[3]:close()
         print('beside a program', os.time() - began)
         for _, pid in ipairs({ forked, later.children[1].pid }) do require('ipc.posix').C.kill(pid, 9) end
         os.exit(0)
      ]])
      local _, soon = output:gsub('beside a %a+%s+[0-4]\n', '')
      assert.are.equal(3, soon, output)
   end)

   it('keeps the clients that a map has returned, also when memory is collected', function()
      run([[
         local server, port = ipc.server()
         local client = ipc.map(1, function(port)
            collectgarbage('setpause', 0)
            return require 'libipc'.client(port)
         end, port):join()
         for i = 1, 50 do client:send({ i }) end
         server:clients(1, function(peer)
            for i = 1, 50 do assert(peer:recv()[1] == i) end
         end)
         client:close()
      ]])
   end)

   it('says how many clients have come within the limit', function()
      local output = run([[
         local server, port = ipc.server()
         local client = ipc.client(port)
         local time, now = os.time, os.time()
         os.time = function() now = now + 25 return now end -- each look at the clock is 25 seconds later
         print(pcall(server.clients, server, 2, error))
         print('after', now - time())
      ]])
      assert.truthy(output:find('false%s+ipc.server 127.0.0.1:%d+: 1 of 2 clients have connected within 300 seconds'),
                    output)
      assert.is_true(tonumber(output:match('after%s+(%d+)')) >= 300, output)
   end)
end)

describe('a tree', function()
   local NODES = [[
      local function nodes(n, f)
         local server, port = ipc.server('127.0.0.1')
         local m = ipc.map(n - 1, function(n, port, f, id)
            local client = require 'libipc'.client('127.0.0.1', port)
            local result = f(require 'ipc.Tree'(id + 1, n, 2, nil, client, '127.0.0.1'), require 'tutti.tensor')
            client:close()
            return result
         end, n, port, f)
         local first = f(require 'ipc.Tree'(1, n, 2, server, nil, '127.0.0.1', port), torch)
         local all = { first, m:join() }
         server:close()
         return all
      end
   ]]

   it('reduces with any function, in the order of the nodes', function()
      run(NODES .. [[
         local all = nodes(4, function(tree, torch)
            local i = tree.nodeIndex
            local function join(a, b) return type(a) == 'number' and 10 * a + b or a:mul(10):add(b) end
            local value = { z = i, a = { torch.DoubleTensor({ i, i + 1 }), i }, m = torch.ShortTensor({ i }) }
            local same, n = tree.allReduce(value, join)
            assert(same == value and n == 4)
            assert(value.z == 1234 and value.a[2] == 1234 and value.a[1][1] == 1234 and value.a[1][2] == 2345)
            assert(value.m[1] == 1234)
            local larger = tree.allReduce(torch.FloatTensor({ i }), function(a, b) return a[1] > b[1] and a or b end)
            local view = torch.FloatTensor({ { i, 0 }, { i, 0 } }):select(2, 1)
            tree.allReduce(view, function(a, b) return a + b end)
            assert(larger[1] == 4 and view[2] == 10 and not view:isContiguous())
            local got = tree.scatter({ i, 'from ' .. i, torch.LongTensor({ i }) })
            assert(got[1] == 1 and got[2] == 'from 1' and got[3][1] == 1)
            return tree.scatter(i)
         end)
         for i = 1, 4 do assert(all[i] == 1) end
      ]])
   end)

   it('folds in the memory of two tensors', function()
      local output = run(NODES .. [[
         local all = nodes(8, function(tree, torch)
            local t = torch.FloatTensor(2 ^ 22):fill(tree.nodeIndex) -- 16 MiB
            local function kibibytes(what)
               for line in io.lines('/proc/self/status') do
                  local n = tonumber(line:match('^' .. what .. ':%s*(%d+)'))
                  if n then return n end
               end
            end
            local before = kibibytes('VmRSS')
            tree.allReduce(t, function(a, b) return a:cmul(b) end)
            assert(t[1] == 40320 and t[2 ^ 22] == 40320)
            return 1 + (kibibytes('VmHWM') - before) / 2 ^ 14
         end)
         print('tensors', math.max(unpack(all)))
      ]])
      local tensors = tonumber(output:match('tensors%s+(%S+)'))
      assert.is_true(tensors >= 1.5 and tensors <= 2.5, output)
   end)

   it('knows a sum', function()
      local is_sum = require 'ipc.sum'
      assert.is_true(is_sum(function(a, b) return a + b end))
      assert.is_true(is_sum(function(a, b) return a:add(b) end))
      assert.is_true(is_sum(function(a, b) a:add(b) return a end))
      assert.is_true(is_sum(function(a, b) a:add(b) end))
      assert.is_false(is_sum(function(a, b) return a + b + b end))
      assert.is_false(is_sum(function(a, b) return a:add(2, b) end))
      assert.is_false(is_sum(function(a, b) return a:add(b):mul(0.5) end))
      assert.is_false(is_sum(function(a, b) local _ = a + b return a end))
      assert.is_false(is_sum(function(a, b) return a[1] > b[1] and a or b end))
      assert.is_false(is_sum(function(a, b) b:add(a) end))
      assert.is_false(is_sum(function(a) return a end))
      assert.is_false(is_sum(function(a) return a + a end))
   end)

   it('says what differs, and whose function fails', function()
      local output = run(NODES .. [[
         for _, f in ipairs({
            function(tree, torch)
               return select(2, pcall(tree.allReduce, torch.Tensor(tree.nodeIndex), function(a, b) return a + b end))
            end,
            function(tree) return select(2, pcall(tree.allReduce, 1, function() error('not today') end)) end,
            function(tree) return select(2, pcall(tree.allReduce, nil, function(a) return a end, function() end)) end,
            function(tree, torch) -- node 2 has a tensor on a device
               local t = torch.FloatTensor(2)
               if tree.nodeIndex == 2 then rawset(t, 'type', function() return 'torch.CudaTensor' end) end
               return select(2, pcall(tree.scatter, t)) .. ' and '
                  .. select(2, pcall(tree.allReduce, { t }, function(a) return a end))
            end,
            function(tree) return select(2, pcall(tree.nodeIndex == 1 and tree.scatter or tree.allReduce, 1,
                                                  function(a, b) return a + b end)) end,
         }) do print(unpack(nodes(2, f))) end
      ]])
      local _, sizes = output:gsub('values of other sizes, strides or types', '')
      local _, fails = output:gsub('the function has failed on node 1: [^\n]-not today', '')
      local _, calls = output:gsub('calls another function of the tree', '')
      assert.are.same({ 2, 2, 2 }, { sizes, fails, calls }, output)
      assert.truthy(output:find('this node has reduced no value before', 1, true), output)
      assert.truthy(output:find('node 2 has refused its value, and says why and allReduce: node 2 has refused', 1, true),
                    output)
      assert.truthy(output:find('a torch.CudaTensor has no memory [^\n]+ and a torch.CudaTensor has no memory'), output)
   end)

   local SUM = [[
      local value = tree.allReduce(i, function(a, b) return a + b end)
      assert(value == n * (n + 1) / 2 and tree.numNodes == n and tree.nodeIndex == i)
      tree.close()
   ]]

   -- Starts n processes of one program in random order; returns the status of all, and what they said.
   local function by_hand(n, tree)
      local path = ranks.file('local i, n = tonumber(arg[1]), tonumber(arg[2])\nlocal tree = ' .. tree .. '\n' .. SUM)
      return ranks.shell(([[pids= ; for i in $(shuf -i 1-%d); do timeout -k 2 30 luajit %s $i %d & pids="$pids $!"; done
         for p in $pids; do wait $p || exit 1; done]]):format(n, path, n))
   end

   local function within(seconds, f)
      local began = os.time()
      f()
      local took = os.time() - began
      assert.is_true(took <= seconds, ('took %d s'):format(took))
   end

   it('is met at a port, in any order', function()
      local port = require('ipc.posix').free_port()
      local status, output = by_hand(5, ("require 'ipc.StaticTree'(i, n, '127.0.0.1', %d, '127.0.0.1', %d)")
                                        :format(port, port))
      assert.are.equal(0, status, output)
   end)

   it('of 40 processes, started in random order, begins within 5 seconds', function()
      local port = require('ipc.posix').free_port()
      within(5, function()
         local status, output = by_hand(40, ("require 'ipc.StaticTree'(i, n, '127.0.0.1', %d, '127.0.0.1', %d)")
                                            :format(port, port))
         assert.are.equal(0, status, output)
      end)
      within(5, function() -- a server, and a tree of its clients
         local status, output = by_hand(40, ([[(function()
            local ipc, port = require 'libipc', %d
            if i == 1 then return require 'ipc.Tree'(i, n, 2, (ipc.server('127.0.0.1', port)), nil) end
            return require 'ipc.Tree'(i, n, 2, nil, ipc.client('127.0.0.1', port))
         end)()]]):format(require('ipc.posix').free_port()))
         assert.are.equal(0, status, output)
      end)
   end)

   it('is published and queried', function()
      local status, output = by_hand(3, [[require 'ipc.DiscoveredTree'(i, n, '127.0.0.1', nil,
         function(h, p) local f = io.open('published', 'w') f:write(h .. ' ' .. p .. '\n') f:close() end,
         function() local f = io.open('published') if not f then return end
            local h, p = f:read('*a'):match('^(%S+) (%d+)\n') f:close() return h, p end)]])
      os.remove('published')
      assert.are.equal(0, status, output)
   end)

   it('is met by the parent of all', function()
      run([[
         local m = ipc.map(3, function(id)
            for round = 1, 2 do
               local tree = require 'ipc.LocalhostTree'(id, 3)
               assert(tree.allReduce(id, function(a, b) return a + b end) == 6)
               tree.close()
            end
         end)
         m:join()
      ]])
   end)

   it('of one node sends nothing', function()
      local tree = require 'ipc.LocalhostTree'(1, 1)
      local value, n = tree.allReduce(5, error)
      assert.are.same({ 5, 1, 5 }, { value, n, tree.scatter(5) })
   end)

   it('says how nodes do not fit together', function()
      local output = run([[
         local function meet(n, f) -- f(StaticTree, port, id) in n processes
            local port = require('ipc.posix').free_port()
            return ipc.map(n, function(f, port, id)
               local _, why = pcall(f, require 'ipc.StaticTree', port, id)
               return tostring(why)
            end, f, port):join()
         end
         print('numbers', meet(2, function(tree, port, id) tree(id, 1 + id, '127.0.0.1', port) end))
         print('twice', meet(3, function(tree, port, id) tree(math.min(id, 2), 3, '127.0.0.1', port) end))
         print('ends', meet(3, function(new, port, id)
            local tree = new(id, 3, '127.0.0.1', port)
            for _ = 1, id do tree.allReduce(id, function(a, b) return a + b end) end
            tree.close()
         end))
         local server, port = ipc.server()
         print('port', pcall(require 'ipc.StaticTree', 1, 2, '127.0.0.1', port))
         for _, given in ipairs({ { nil, 2, '127.0.0.1', port }, { 3, 2, '127.0.0.1', port }, { 1, 2 }, {} }) do
            print('given', pcall(require 'ipc.StaticTree', unpack(given, 1, 4)))
         end
      ]], 'TUTTI_TIMEOUT=600')
      for _, said in ipairs({ 'numbers%s+rank 1 of 2 did not join [^\n]+it counts 3 ranks, rank 0 counts 2',
                              'twice%s[^\n]+rank 1 is already taken', 'ends%s+nil%s+all%-gather: rank %d has left',
                              'port%s+false%s+[^\n]+the port is in use by process' }) do
         assert.truthy(output:find(said), said .. '\n' .. output)
      end
      local _, given = output:gsub('given%s+false%s+StaticTree: node %S+ of %S+ at %S+: nodeIndex is from 1', '')
      assert.are.equal(4, given, output)
   end)

   it('tells the nodes that have come that another one has not', function()
      local output = run([[
         local server, port = ipc.server()
         local m = ipc.map(2, function(port, id)
            local client = require 'libipc'.client(port)
            client:recv()
            local _, why = pcall(require 'ipc.Tree', nil, 4, 2, nil, client)
            client:recv()
            return why
         end, port)
         local clients = {}
         server:clients(2, function(client)
            clients[#clients + 1] = client
            client:send('begin')
         end)
         local time, now = os.time, os.time()
         os.time = function() return now + (time() - now) * 100 end -- 3 seconds to wait for each node
         print('root', pcall(require 'ipc.Tree', 1, 4, 2, server))
         server:broadcast('end')
         print('nodes', m:join())
      ]])
      local said = 'Tree: 1 of 4 nodes have not called it: 300 seconds have passed'
      assert.truthy(output:find('root\tfalse\t' .. said .. '\nnodes\t' .. said .. '\t' .. said, 1, true), output)
   end)

   it('waits for the address of node 1 with a limit', function()
      local output = run([[
         local now = os.time()
         os.time = function() now = now + 25 return now end
         print(pcall(require 'ipc.DiscoveredTree', 2, 2, '127.0.0.1', nil, nil, function() end))
      ]])
      assert.truthy(output:find('node 1 has not published its address within 300 seconds', 1, true), output)
   end)

   it('says which node died', function()
      local output = run(NODES .. [[
         print(pcall(nodes, 3, function(tree, torch)
            if tree.nodeIndex == 3 then require('ffi').C._exit(1) end
            local ok, why = pcall(tree.allReduce, torch.Tensor(3), function(a, b) return a + b end)
            assert(not ok and why:find('rank %d'), why)
            print('node ' .. tree.nodeIndex .. ' knows')
         end))
      ]])
      assert.truthy(output:find('node 1 knows', 1, true) and output:find('node 2 knows', 1, true), output)
      assert.truthy(output:find('process 2 of the map ended without a result', 1, true), output)
   end)
end)
