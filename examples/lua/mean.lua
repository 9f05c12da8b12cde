-- mean.lua - each rank has a number, and all get the mean: tutti run -n 4 luajit mean.lua
local tutti = require 'tutti'

local job = tutti.init()
local x = tutti.tensor.FloatTensor({ job:rank() })
job:allreduce(x, 'average')
print(('rank %d of %d: the mean is %g'):format(job:rank(), job:size(), x[1]))
job:leave()
