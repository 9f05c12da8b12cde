-- The programs that the old systems' own pages show, in real jobs. PAGES names a folder with these pages (files whose
-- names begin with 000, 001 and 003); they are not part of this tree, and without PAGES our own programs run alone
-- (examples/lua). Each program also runs after all functions of its module have been taken out of the module's table.
local ranks = require 'ranks'

local TAKEN = [[
   local function taken(module)
      local functions = {}
      for name, f in pairs(module) do functions[name] = type(f) == 'function' and f or nil end
      for name in pairs(functions) do module[name] = nil end
      return functions
   end
]]

-- The program with local functions instead of the module's.
local function renamed(text)
   local names = {}
   text = text:gsub('(local ([%a]+) = require [^\n]+\n)', function(line, name)
      if name ~= 'multiverso' and not name:find('^allReduce') then return end
      names[#names + 1] = name
      return line .. ('local %s_taken = taken(%s)\n'):format(name, name)
   end)
   assert(#names > 0)
   for _, name in ipairs(names) do
      local n
      text, n = text:gsub(name .. '%.([%l][%a_]+)%(', name .. '_taken.%1(')
      assert(n > 0)
   end
   return TAKEN .. text
end

local function run(n, text)
   local output = {}
   for i, program in ipairs({ text, renamed(text) }) do
      local status
      status, output[i] = ranks.shell(('TUTTI_TRANSPORTS=%s timeout -k 2 30 tutti run -n %d luajit %s'):format(
         i == 1 and 'shm,tcp' or 'tcp', n, ranks.file(program)))
      if status ~= 0 then error(('status %d\n%s\nof\n%s'):format(status, output[i], program), 2) end
   end
   return output[1], output[2]
end

describe('our own program', function()
   local folder = os.getenv('SOURCE') .. '/examples/lua/'
   for name, said in pairs({ ['multiverso.lua'] = 'model of 3 workers: 3%.00',
                             ['strategies.lua'] = 'mean of all workers: 1%.00',
                             ['distlearn.lua'] = 'SGD ends at 2%.28' }) do
      it(name .. ' runs with local functions', function()
         for _, output in ipairs({ run(3, ranks.read(folder .. name)) }) do assert.truthy(output:find(said), output) end
      end)
   end
end)

local pages = os.getenv('PAGES')
if not pages then return end

-- ---- the pages ----

-- The blocks of code: between fences; in a page without fences a block begins with a line of code or a comment of Lua,
-- and ends with an empty line.
local function blocks_of(page)
   local text = ranks.read(io.popen(('ls %s/%s*'):format(pages, page)):read('*l')) .. '\n\n'
   local blocks = {}
   for block in text:gmatch('```lua\n(.-)```') do blocks[#blocks + 1] = block end
   if #blocks > 0 then return blocks end
   local block
   for line in text:gmatch('([^\n]*)\n') do
      local starts = line:find('^%-%- ') or line:find('^local ') or line:find('^if ') or line:find('^%l+%.%l+%(')
      if not block and starts then block = '' end
      if line ~= '' and block then block = block .. line .. '\n' end
      if line == '' and block then
         blocks[#blocks + 1] = block
         block = nil
      end
   end
   return blocks
end

-- The repairs: what the pages write is no Lua in these two places. All else runs as it is written; the names that a
-- page leaves undefined are defined before its first block.
local COLON = { '(if [^\n]+):\n', '%1 then\n' } -- "if ...:"
local DO = { '(for [^\n]+[^o])\n', '%1 do\n' }  -- a loop without its "do"

local function repair(block, repairs)
   local made = 0
   for _, r in ipairs(repairs) do
      local n
      block, n = block:gsub(r[1], r[2])
      made = made + n
   end
   return block, made
end

-- One program of these blocks of a page. before: the names that the page leaves undefined. checks[i] follows block i.
local function program(page, list, before, checks, repairs, count)
   local blocks, out, made = blocks_of(page), { before }, 0
   assert.are.equal(count, #blocks)
   for _, i in ipairs(list) do
      local block, n = repair(blocks[i], repairs)
      made = made + n
      out[#out + 1] = block
      out[#out + 1] = checks[i]
   end
   assert.are.equal(repairs.times, made)
   return table.concat(out, '\n')
end

local MULTIVERSO = [[
   local torch = require 'tutti.tensor'
   local function wait() require('tutti').current():barrier() end -- not through the module
   local function all(t, first, step)
      for i = 1, 3 do
         local want = first + (i - 1) * step
         assert(math.abs(t[i] - want) < 1e-5, ('%g is not %g'):format(t[i], want))
      end
      wait()
   end
   local model = {}
   function model.getParameters() -- worker w begins with w + 1, w + 2, w + 3
      local worker = require 'multiverso'.worker_id
      return torch.FloatTensor({ worker + 1, worker + 2, worker + 3 }), torch.FloatTensor(3):fill(4)
   end
   local size, learingRate, epoch = 3, 0.5, 10
]]

describe('the page', function()
   for _, n in ipairs({ 1, 3 }) do
      it(('000 runs on %d ranks'):format(n), function()
         run(n, program('000', { 1, 2, 3, 4, 5, 6, 7 }, MULTIVERSO, {
            [3] = 'all(params, 1, 1)', [4] = ('wait() all(tbh:get(), 1 + 2 * %d, 1)'):format(n),
            [6] = ('all(params, 1 + 4 * %d, 1)'):format(n),
         }, { COLON, times = 1 }, 7))
      end)

      for strategy, first in pairs({ [3] = 1, [4] = (n + 1) / 2 }) do
         it(('003 runs on %d ranks with strategy %d'):format(n, strategy - 2), function()
            run(n, program('003', { 1, 2, strategy, 5, 6, 7, 8 }, MULTIVERSO, {
               [strategy] = ('all(params, %g, 1)'):format(first),
               [5] = ('wait() all(tbh:get(), %g, 1)'):format(first + 2 * n),
               [7] = ('all(params, %g, 1)'):format(first + 4 * n),
            }, { COLON, times = 1 }, 8))
         end)
      end

      it(('001 runs on %d ranks'):format(n), function()
         run(n, program('001', { 1, 2 }, [[
            local torch = require 'tutti.tensor'
            local tree = require 'ipc.SlurmTree'()
            local params = { torch.DoubleTensor({ 10 * tree.nodeIndex }) }
            local epochs, steps = 4, 30 + tree.nodeIndex -- one node has more steps than another
            local function computeYourGrads() return { params[1] - tree.nodeIndex } end
            local function SGD(p, grads) p[1]:add(-0.2, grads[1]) end
            local mean = (tree.numNodes + 1) / 2
            local function distances()
               local sum = tree.allReduce(params[1][1], function(a, b) return a + b end)
               return math.abs(params[1][1] - sum / tree.numNodes), math.abs(params[1][1] - mean)
            end
         ]], {
            'local apart, off = distances() assert(apart < 1e-12 and off < 0.5, apart .. " " .. off)',
            'apart, off = distances() assert(apart < 1.5 and off < 1.5, apart .. " " .. off)',
         }, { DO, times = 2 }, 2))
      end)
   end
end)
