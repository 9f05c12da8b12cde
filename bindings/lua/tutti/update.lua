-- Update rules: how servers change values by what is pushed. See tutti_update(3) for their equations.
local ffi = require 'ffi'
local lib = require 'tutti.native'
local call = require 'tutti.call'
local update = {}

local RULES = {
   add = lib.TUTTI_UPDATE_ADD, assign = lib.TUTTI_UPDATE_ASSIGN, sgd = lib.TUTTI_UPDATE_SGD,
   momentum = lib.TUTTI_UPDATE_MOMENTUM, smoothed = lib.TUTTI_UPDATE_SMOOTHED, nesterov = lib.TUTTI_UPDATE_NESTEROV,
   adagrad = lib.TUTTI_UPDATE_ADAGRAD, rmsprop = lib.TUTTI_UPDATE_RMSPROP, adam = lib.TUTTI_UPDATE_ADAM,
   adamw = lib.TUTTI_UPDATE_ADAMW, dcasgd = lib.TUTTI_UPDATE_DCASGD, dcasgda = lib.TUTTI_UPDATE_DCASGDA,
   ftrl = lib.TUTTI_UPDATE_FTRL, elastic = lib.TUTTI_UPDATE_ELASTIC,
}
local FLAGS = { shared_state = lib.TUTTI_SHARED_STATE, backup_from_zero = lib.TUTTI_BACKUP_FROM_ZERO }

-- Options of one push: scale, learning_rate, weight_decay, momentum, ... nil: as the table has them.
function update.options(options)
   if options == nil then return nil end
   return call.set_members(ffi.new('tutti_update', lib.tutti_update_defaults()), options, 'a push')
end

-- A rule of its name ("sgd"; nil: "add") or of a table: { rule = "sgd", learning_rate = 0.1, backup_from_zero = true }.
function update.rule(rule)
   local given, options = {}, {}
   if type(rule) == 'table' then given = rule else given.rule = rule or 'add' end
   local u = ffi.new('tutti_updater', lib.tutti_accumulate())
   if given.rule == 'own' or type(rule) == 'function' then
      call.refuse('a rule of the program\'s own runs in threads of the library, and Lua has one thread: write it in C')
   end
   u.rule = call.choice(RULES, given.rule, 'update rule')
   for name, value in pairs(given) do
      if FLAGS[name] then
         u.flags = u.flags + (value and FLAGS[name] or 0)
      elseif name ~= 'rule' then
         options[name] = value
      end
   end
   call.set_members(u.defaults, options, 'a rule')
   return u
end

return update
