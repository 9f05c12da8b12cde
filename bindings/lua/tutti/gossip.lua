-- Gossip: each rank averages its model with that of one other rank at a time, and nobody waits for all.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local call = require 'tutti.call'
local handle = require 'tutti.handle'
local memory = require 'tutti.memory'
local operation = require 'tutti.operation'
local check = call.check

local Gossip = handle.class('Gossip')

local CHOICES = {
   way = { pull = lib.TUTTI_GOSSIP_PULL, push = lib.TUTTI_GOSSIP_PUSH, push_sum = lib.TUTTI_GOSSIP_PUSH_SUM },
   choice = { uniform = lib.TUTTI_CHOICE_UNIFORM, exponential = lib.TUTTI_CHOICE_EXPONENTIAL,
              ring = lib.TUTTI_CHOICE_RING, hosts = lib.TUTTI_CHOICE_HOSTS, dpwa = lib.TUTTI_CHOICE_DPWA },
   place = { model = lib.TUTTI_PLACE_MODEL, host = lib.TUTTI_PLACE_HOST },
   method = { constant = lib.TUTTI_GOSSIP_CONSTANT, clock = lib.TUTTI_GOSSIP_CLOCK, loss = lib.TUTTI_GOSSIP_LOSS },
}

-- Opens a gossip. model: a tensor or a table of tensors. options: way ("pull", "push", "push_sum"), choice ("uniform",
-- "exponential", "ring", "hosts", "dpwa"), method ("constant", "clock", "loss"), value, divergence_threshold,
-- fetch_probability, buffers, timeout (seconds; 0: by recent fetches), seed, clock, weight, place of the published models
-- of a model on a GPU ("model", "host"). The section gossip of the job's config file gives the options that the caller
-- leaves out; else an option has its default.
function Gossip.open(group, name, model, options)
   local c, rest = ffi.new('tutti_gossip_config', lib.tutti_gossip_defaults()), {}
   check(lib.tutti_gossip_configure(group.c, c))
   for key, value in pairs(options or {}) do
      if key == 'choose' or value == 'own' then
         call.refuse('a choice of the program\'s own calls a function from inside the library: use another choice')
      elseif CHOICES[key] then
         c[key] = call.choice(CHOICES[key], value, key .. ' of gossip')
      elseif key == 'timeout' then
         c.timeout_ms = call.milliseconds(value)
      else
         rest[key] = value
      end
   end
   call.set_members(c, rest, 'a gossip')
   local list, n, hold = memory.tensors(model)
   return handle.open(Gossip, 'tutti_gossip', { hold, group }, group.c, name, list, n, c)
end

-- From now on others may read this model; a peer is chosen, and its model comes meanwhile.
function Gossip:publish(loss) check(lib.tutti_gossip_publish(self.c, loss or 0)) end

local function told(r)
   return { peer = r.peer >= 0 and r.peer or nil, factor = r.factor, clock = r.clock, retries = r.retries,
            gifts = r.gifts, peer_not_finite = r.peer_not_finite == 1, peer_clock = r.peer_clock,
            peer_loss = r.peer_loss, age = r.age_ms / 1000, why = ffi.string(r.why) }
end

-- Averages the model after the step with the peer's published one. peer is nil where there was none, and why says so.
function Gossip:mix(loss)
   local r = ffi.new('tutti_gossip_result')
   check(lib.tutti_gossip_mix(self.c, loss or 0, r))
   return told(r)
end

-- Starts a mix with a copy of the model; the operation's wait() adds the move to today's model.
function Gossip:mix_start(loss)
   return operation.start(self, function(op) return lib.tutti_gossip_mix_start(self.c, loss or 0, op) end, nil,
                          function()
      local r = ffi.new('tutti_gossip_result')
      check(lib.tutti_gossip_mix_apply(self.c, r))
      return told(r)
   end)
end

-- Ends the round without averaging: copies the peer's model into tensors like the model.
function Gossip:fetch(into, loss)
   local list = memory.tensors(into)
   local r = ffi.new('tutti_gossip_result')
   check(lib.tutti_gossip_fetch(self.c, loss or 0, list, r))
   return told(r)
end

function Gossip:set_value(value) check(lib.tutti_gossip_set_value(self.c, value)) end
function Gossip:value() return lib.tutti_gossip_value(self.c) end

-- clock, weight, in_flight, lost, offers, peers, published, mixed, retries.
function Gossip:look()
   local i = ffi.new('tutti_gossip_info')
   check(lib.tutti_gossip_look(self.c, i))
   return { clock = i.clock, weight = i.weight, in_flight = i.in_flight, lost = i.lost, offers = i.offers,
            peers = i.peers, published = tonumber(i.published), mixed = tonumber(i.mixed),
            retries = tonumber(i.retries) }
end

-- Saves clock, weight and what chooses the next peers into a file, and loads that before the first publish.
function Gossip:save(path) check(lib.tutti_gossip_save(self.c, path)) end
function Gossip:load(path) check(lib.tutti_gossip_load(self.c, path)) end

-- Peers are named by their node, their rank or their host.
function Gossip:add_peer(name) check(lib.tutti_gossip_add_peer(self.c, tostring(name))) end
function Gossip:remove_peer(name) check(lib.tutti_gossip_remove_peer(self.c, tostring(name))) end
function Gossip:score(name) return check(lib.tutti_gossip_score(self.c, tostring(name))) end

return Gossip
