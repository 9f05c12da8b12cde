-- multiverso: the Lua surface of Multiverso over Tutti's tables. Every process is a worker and a server.
-- Programs replace functions of this module by their results (multiverso.num_workers = multiverso.num_workers()), so
-- nothing in here calls through the module's table.
local memory = require 'tutti.memory'
local new_result = require 'multiverso.results'
local surface = require 'tutti.surface'
local tensor = require 'tutti.tensor'
local tutti = require 'tutti'

local COPIED = 16 * 2 ^ 20 -- bytes: a delta of the program's own below this is copied, and add returns at once

local job, mine, synchronous -- mine: init has joined the job
local tables = {}            -- that are open
local count = 0
local flying = {}            -- adds that were started: operations

local function current(name)
   if not job then error(('multiverso.%s: multiverso.init was not called, or shutdown was'):format(name), 0) end
   return job
end

-- Waits for the started adds. Those that an interrupt leaves running stay in the list.
local function settle()
   local list = flying
   flying = {}
   local ok, why = pcall(tutti.wait_all, list)
   for _, add in ipairs(ok and {} or list) do
      if not add:done() then flying[#flying + 1] = add end
   end
   if not ok then error(why, 0) end
end

local function barrier()
   current('barrier')
   settle()
   job:barrier()
end

-- ---- starting and ending ----

local function init(sync)
   if job then error('multiverso.init was called before: call it once', 0) end
   mine = tutti.current() == nil
   job, synchronous = tutti.init(), sync and true or false
   job:barrier()
end

local function finish()
   settle()
   if synchronous then
      for _, t in ipairs(tables) do t:finish() end
   end
   job:barrier()
end

-- Nobody waits for this worker any more; then all end together. Where a rank is gone this one ends all the same.
local function shutdown()
   current('shutdown')
   local ok, why = pcall(finish)
   for _, t in ipairs(tables) do t:close() end
   if mine then job:leave() end
   job, tables, flying, count = nil, {}, {}, 0
   if not ok then error(why, 0) end
end

-- ---- data ----

-- A float tensor of numbers, a (nested) table or a tensor; and whether its memory is the program's own.
local function floats(data)
   if type(data) == 'number' then data = { data } end
   if type(data) == 'table' and not surface.is_tensor(data) then return tensor.FloatTensor(data), false end
   if not surface.is_tensor(data) then
      error(('multiverso: data is a table or a tensor, and not a %s'):format(type(data)), 0)
   end
   local f = data:contiguous():float()
   return f, memory.writable(f).pointer == memory.writable(data:contiguous()).pointer
end

local function sized(name, data, rows, columns)
   local f, own = floats(data)
   if tonumber(f:nElement()) ~= rows * columns then
      error(('%s: the data has %d elements, and %s has %d'):format(name, tonumber(f:nElement()), columns == 1 and
            'the array' or ('%d rows of the matrix'):format(rows), rows * columns), 0)
   end
   return f, own
end

-- Pushes; an add that is not to be waited for is settled before the next barrier or get.
local function push(object, f, own, rows, sync)
   local now = sync or (own and not synchronous and memory.readable(f).bytes >= COPIED)
   if not now and own then f = tensor.FloatTensor(tonumber(f:nElement())):copy(f) end
   local t = object.table
   if now then
      settle()
      if rows then t:push_rows(rows, f) else t:push(f) end
   else
      flying[#flying + 1] = rows and t:push_rows_start(rows, f) or t:push_start(f)
      if #flying >= 64 then settle() end
   end
end

local function open(rows, columns)
   current('a table')
   count = count + 1
   local t = tutti.Table.open(job, 'multiverso ' .. count, { rows = rows, row = columns,
                                                           consistency = synchronous and 'bsp' or 'async' })
   tables[#tables + 1] = t
   job:barrier()
   return t
end

-- Worker 0 adds the first values, and the others zeros, so that all workers have added as often.
local function begin(object, init, rows, columns, name)
   if init == nil then return object end
   local f = sized(name, init, rows, columns)
   if job:rank() ~= 0 then f = tensor.FloatTensor(rows * columns) end
   push(object, f, false, nil, true)
   return object
end

local function is_size(n) return type(n) == 'number' and n >= 1 and n == math.floor(n) end

-- ---- ArrayTableHandler:new(size, init), :get(), :add(data, sync) ----

local Array = {}
Array.__index = Array

function Array:new(size, init)
   if not is_size(size) then
      error('ArrayTableHandler:new: size is a number from 1 up, and not ' .. tostring(size), 0)
   end
   local object = setmetatable({ table = open(size, 1), size = size }, Array)
   return begin(object, init, size, 1, 'ArrayTableHandler:new')
end

function Array:get()
   current('get')
   settle()
   local values = new_result(self.size)
   self.table:pull(values)
   return values
end

function Array:add(data, sync)
   current('add')
   local f, own = sized('ArrayTableHandler:add', data, self.size, 1)
   push(self, f, own, nil, sync)
end

-- ---- MatrixTableHandler:new(rows, columns, init), :get(row_ids), :add(data, row_ids, sync); rows begin with 0 ----

local Matrix = {}
Matrix.__index = Matrix

function Matrix:new(rows, columns, init)
   if not is_size(rows) or not is_size(columns) then
      error('MatrixTableHandler:new: rows and columns are numbers from 1 up', 0)
   end
   local object = setmetatable({ table = open(rows, columns), rows = rows, columns = columns }, Matrix)
   return begin(object, init, rows, columns, 'MatrixTableHandler:new')
end

-- How many rows are listed; refuses numbers that are no rows.
local function listed(object, rows)
   local c, n = memory.integers('uint64_t[?]', rows, 'the row')
   for i = 0, n - 1 do
      if c[i] >= object.rows then
         local sentence = 'MatrixTableHandler: row %d, of a matrix of the rows 0 to %d'
         error(sentence:format(tonumber(c[i]), object.rows - 1), 0)
      end
   end
   return n
end

function Matrix:get(rows)
   current('get')
   settle()
   local values = new_result(rows and listed(self, rows) or self.rows, self.columns)
   if rows then self.table:pull_rows(rows, values) else self.table:pull(values) end
   return values
end

function Matrix:add(data, rows, sync)
   current('add')
   local n = rows and listed(self, rows) or self.rows
   local f, own = sized('MatrixTableHandler:add', data, n, self.columns)
   push(self, f, own, rows, sync)
end

local multiverso = surface.plain_all({
   init = init, barrier = barrier, shutdown = shutdown,
   num_workers = function() return current('num_workers'):size() end,
   worker_id = function() return current('worker_id'):rank() end,
   server_id = function() return current('server_id'):rank() end,
})
Array.new, Array.get, Array.add = surface.plain(Array.new), surface.plain(Array.get), surface.plain(Array.add)
Matrix.new, Matrix.get, Matrix.add = surface.plain(Matrix.new), surface.plain(Matrix.get), surface.plain(Matrix.add)
multiverso.ArrayTableHandler, multiverso.MatrixTableHandler = Array, Matrix

return multiverso
