-- multiverso.lua - a Multiverso program, whose workers fit y = 3 x: tutti run -n 4 luajit multiverso.lua
local torch = require 'tutti.tensor'
local multiverso = require 'multiverso'

multiverso.init()
multiverso.num_workers = multiverso.num_workers()
multiverso.worker_id = multiverso.worker_id()
multiverso.is_master = multiverso.worker_id == 0

local params, gradParams = torch.FloatTensor({ 0.5 }), torch.FloatTensor(1)
local tbh = multiverso.ArrayTableHandler:new(params:size(1), params)
multiverso.barrier()
params:copy(tbh:get())

local learningRate = 0.1 / multiverso.num_workers
for epoch = 1, 100 do
   local x = 0.5 + (epoch * 7 + multiverso.worker_id) % 10 / 10
   gradParams[1] = (3 - params[1]) * x * x -- downhill: what is added makes the error smaller
   tbh:add(learningRate * gradParams)
   if epoch % 10 == 0 then multiverso.barrier() end
   params:copy(tbh:get())
end
multiverso.barrier()
params:copy(tbh:get())
if multiverso.is_master then print(('the model of %d workers: %.2f'):format(multiverso.num_workers, params[1])) end
multiverso.shutdown()
