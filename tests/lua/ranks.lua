-- ranks.lua - runs a program as n real ranks of one job, over the transports that the test names
local scratch = os.getenv('SCRATCH')
local ranks = { count = 0 }

local function write(path, text)
   local f = assert(io.open(path, 'w'))
   f:write(text)
   f:close()
end

function ranks.read(path)
   local f = assert(io.open(path))
   local text = f:read('*a')
   f:close()
   return text
end

-- Runs a line of the shell; returns its exit status and its output.
function ranks.shell(line)
   ranks.count = ranks.count + 1
   local output = ('%s/output%d'):format(scratch, ranks.count)
   local status = os.execute(('{ %s\n} > %s 2>&1 < /dev/null'):format(line, output))
   if status == true then status = 0 end
   return status >= 256 and status / 256 or status, ranks.read(output)
end

local HEAD = "local tutti = require 'tutti'\nlocal T = tutti.tensor\nlocal job = tutti.init()\n"
   .. "local rank, size = job:rank(), job:size()\n"

-- A file with this program.
function ranks.file(text)
   ranks.count = ranks.count + 1
   local path = ('%s/program%d.lua'):format(scratch, ranks.count)
   write(path, text)
   return path
end

-- Runs a program, to which `tutti`, `T`, `job`, `rank` and `size` are known; the test fails if a rank does.
function ranks.run(n, transports, program)
   local status, output = ranks.shell(('TUTTI_TRANSPORTS=%s timeout -k 2 30 tutti run -n %d luajit %s'):format(
      transports, n, ranks.file(HEAD .. program)))
   if status ~= 0 then error(('status %d, over %s:\n%s'):format(status, transports, output), 2) end
   return output
end

-- Describes a test for each transport.
function ranks.over(it, name, body)
   for _, transports in ipairs({ 'shm,tcp', 'tcp' }) do
      it(name .. ' over ' .. transports:match('^%a+'), function() body(transports) end)
   end
end

return ranks
