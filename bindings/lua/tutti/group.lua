-- Groups of ranks: who is in them, and groups that come of them.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local call = require 'tutti.call'
local handle = require 'tutti.handle'
local memory = require 'tutti.memory'
local check = call.check

-- A group: rank (this process's number there), size, job. Every rank of a group calls the same collectives in the same
-- order. Numbers of ranks begin with 0.
local Group = handle.class('Group')

local PLACE = ffi.typeof('tutti *[1]')
local nothing = function() end
local states = { [tonumber(lib.TUTTI_JOINED)] = 'joined', [tonumber(lib.TUTTI_LEFT)] = 'left',
                 [tonumber(lib.TUTTI_GONE)] = 'gone' }

function Group:rank() return check(lib.tutti_rank(self.c)) end
function Group:size() return check(lib.tutti_size(self.c)) end
function Group:local_rank() return check(lib.tutti_local_rank(self.c)) end
function Group:local_size() return check(lib.tutti_local_size(self.c)) end

-- Makes the object of a group's handle.
local function new_group(c, job, close)
   local group = handle.new(Group, c, close or lib.tutti_group_free, job)
   group.job = job
   return group
end

local function made(group, err, place)
   check(err)
   if place[0] == nil then return nil end
   return new_group(place[0], group.job)
end

-- A collective. Ranks of one color (from 0 up) are a group, ordered by key, then by rank. color nil: in none.
function Group:split(color, key)
   local place = PLACE()
   return made(self, lib.tutti_group_split(self.c, color or -1, key or 0, place), place)
end

-- A group of listed ranks, which all call it, with one name.
function Group:of(ranks, name)
   local list, n = memory.integers('int[?]', ranks, 'the rank')
   local place = PLACE()
   return made(self, lib.tutti_group_of(self.c, list, n, name, place), place)
end

-- The way on after a rank has gone: all ranks that are left call it.
function Group:shrink()
   local place = PLACE()
   return made(self, lib.tutti_group_shrink(self.c, place), place)
end

-- shrink, with the ranks that have joined since.
function Group:grow()
   local place = PLACE()
   return made(self, lib.tutti_group_grow(self.c, place), place)
end

-- The handle of all ranks of the job, also of late ones: for windows, tables, messages and `of`.
function Group:everyone() return new_group(lib.tutti_job(self.c), self.job, nothing) end

-- How long operations wait for ranks that live: seconds; nil: without a limit; 0: as the job has it.
function Group:timeout(seconds)
   check(lib.tutti_group_timeout(self.c, seconds == nil and -1 or call.milliseconds(seconds)))
end

-- Expels a rank of the group from the job.
function Group:evict(rank, why) check(lib.tutti_group_evict(self.c, rank, why)) end

-- The number in the job of this group's rank; and back.
function Group:member(rank) return check(lib.tutti_group_member(self.c, rank)) end
function Group:rank_of(member) return check(lib.tutti_group_rank(self.c, member)) end

-- What this rank knows of another one: rank, host, address, transport, why_not, alive (seconds), state, here (true,
-- false, or nil: not known).
function Group:peer(rank)
   local p = ffi.new('tutti_peer')
   check(lib.tutti_group_peer(self.c, rank, p))
   local here
   if p['local'] >= 0 then here = p['local'] == 1 end
   return { rank = p.rank, host = ffi.string(p.host), address = ffi.string(p.address), here = here,
            transport = ffi.string(p.transport), why_not = ffi.string(p.why_not), alive = p.alive_s,
            state = states[tonumber(p.state)] }
end

-- Counters of one kind ("put", "allreduce", "send"): with a rank, or with all of the job. Times are microseconds.
function Group:stats(kind, rank)
   local known, code = pcall(function() return lib['TUTTI_STAT_' .. tostring(kind):upper()] end)
   if not known then call.refuse('no counter is called %s: see tutti_stats(3)', tostring(kind)) end
   local s = ffi.new('tutti_stat')
   check(lib.tutti_stats(self.c, rank or -1, code, s))
   return { ops = tonumber(s.ops), bytes = tonumber(s.bytes), errors = tonumber(s.errors), p50_us = s.p50_us,
            p99_us = s.p99_us, max_us = s.max_us, mean_us = s.mean_us }
end

return { Group = Group, new = new_group, states = states }
