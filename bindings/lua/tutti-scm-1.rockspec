rockspec_format = '3.0'
package = 'tutti'
version = 'scm-1'
source = { url = '.' } -- for `luarocks make` in this folder; libtutti is installed by `make install` before
description = {
   summary = 'keeps the copies of a model together while many processes train it',
   detailed = 'LuaJIT FFI over libtutti: collectives, messages, windows, tables, averaging, gossip.',
   license = 'Apache-2.0',
}
dependencies = { 'lua == 5.1' }
build = { type = 'builtin' } -- all modules of this folder
