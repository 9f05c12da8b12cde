-- strategies.lua - two ways to begin with one model in a Multiverso program: tutti run -n 4 luajit strategies.lua
local torch = require 'tutti.tensor'
local multiverso = require 'multiverso'

multiverso.init()
multiverso.num_workers = multiverso.num_workers()
multiverso.worker_id = multiverso.worker_id()

-- One worker's model: the others take it.
local params = torch.FloatTensor(2):fill(multiverso.worker_id)
local table_of_one = multiverso.ArrayTableHandler:new(2)
if multiverso.worker_id == 0 then table_of_one:add(params + 7) end
multiverso.barrier()
params:copy(table_of_one:get())
print(('worker %d begins with %g'):format(multiverso.worker_id, params[1]))

-- The mean of all models: each worker adds its part.
params:fill(multiverso.worker_id)
local table_of_all = multiverso.ArrayTableHandler:new(2)
table_of_all:add(params / multiverso.num_workers, true)
multiverso.barrier()
params:copy(table_of_all:get())
if multiverso.worker_id == 0 then print(('mean of all workers: %.2f'):format(params[1])) end
multiverso.shutdown()
