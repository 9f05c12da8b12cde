-- The library and its declarations, and the ABI check.
local ffi = require 'ffi'

-- make writes tutti/paths.lua, for the build tree and for the installation. A rock has none, and asks pkg-config.
local function places()
   local ok, paths = pcall(require, 'tutti.paths')
   if ok then return paths end
   local ask = io.popen('for v in libdir prefix; do pkg-config --variable=$v tutti 2> /dev/null; done')
   local libdir, prefix = ask:read('*l', '*l')
   ask:close()
   return {
      declarations = (prefix or '/usr/local') .. '/share/tutti/tutti.cdef',
      library = libdir and libdir .. '/libtutti.so.0' or 'libtutti.so.0',
   }
end

local paths = places()
local file = io.open(paths.declarations)
if not file then
   error('tutti: the declarations ' .. paths.declarations .. ' cannot be read: run make install of Tutti, and set '
         .. 'PKG_CONFIG_PATH if its prefix is not a usual one', 0)
end
ffi.cdef(file:read('*a'))
file:close()
local lib = ffi.load(paths.library)
if lib.tutti_abi() ~= lib.TUTTI_ABI then
   error(('tutti: the declarations %s are of ABI %d, and the library %s is of ABI %d: install both from one release')
         :format(paths.declarations, lib.TUTTI_ABI, paths.library, lib.tutti_abi()), 0)
end
return lib
