#!/bin/sh
# declarations.sh - gives the bare declarations that `make install` installs to a C compiler, and, where they are
# installed, to LuaJIT's ffi and Python's cffi. These find the same sizes and constants as the C compiler, and call the
# library.
set -u
export LC_ALL=C
source_tree=${top_srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
build_tree=${top_builddir:-.}
cdef=$build_tree/runtime/tutti.cdef
library=$build_tree/.libs/libtutti.so
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT
failed=0

fail() { echo "FAILED: $*"; failed=1; }

[ -f "$cdef" ] || { echo "SKIPPED: no $cdef: run make first"; exit 77; }
cdef=$(cd "$(dirname "$cdef")" && pwd)/tutti.cdef
sed -n '/^[ 	]*#/p; /\/\*/p; /\*\//p; /\/\//p; /__/p' "$cdef" > "$scratch/strays"
[ ! -s "$scratch/strays" ] || { cat "$scratch/strays"; fail "the declarations hold more than declarations"; }

# The lines "NAME, N bytes" and "NAME = N" of what C sees; the list of names that others are to find.
awk -f "$source_tree/tests/interface/layouts.awk" "$cdef" | sed 's/^#include "tutti.h"/#include "bare.h"/' > \
	"$scratch/list.c"
{ echo '#include <stddef.h>'; echo '#include <stdint.h>'; cat "$cdef"; } > "$scratch/bare.h"
if ${CC:-cc} -std=c11 -pedantic -Wall -Wextra -Werror -I"$scratch" -o "$scratch/list" "$scratch/list.c" \
	> "$scratch/log" 2>&1 && "$scratch/list" > "$scratch/c"; then
	echo "C: $(grep -c '^tutti_[a-z_]*, ' "$scratch/c") structs, $(grep -c ' = ' "$scratch/c") constants"
else
	cat "$scratch/log"
	fail "C does not take the declarations"
fi
sed -n 's/^\([a-z_0-9]*\), \([0-9]*\) bytes$/size \1 \2/p; s/^\(TUTTI_[A-Z_0-9]*\) = \(.*\)$/constant \1 \2/p' \
	"$scratch/c" > "$scratch/facts"

cat > "$scratch/try.py" << 'end of file'
import sys, cffi
ffi = cffi.FFI()
ffi.cdef(open(sys.argv[1]).read())
lib = ffi.dlopen(sys.argv[3])
for line in open(sys.argv[2]):
    kind, name, value = line.split()
    got = ffi.sizeof(name) if kind == "size" else getattr(lib, name)
    assert got == int(value), f"{name} is {got}, and {value} in C"
assert lib.tutti_abi() == lib.TUTTI_ABI
print("cffi", cffi.__version__)
end of file
cat > "$scratch/try.lua" << 'end of file'
local ffi = require("ffi")
ffi.cdef(io.open(arg[1]):read("*a"))
local lib = ffi.load(arg[3])
for line in io.lines(arg[2]) do
	local kind, name, value = line:match("(%S+) (%S+) (%S+)")
	local got = kind == "size" and ffi.sizeof(name) or lib[name]
	assert(got == tonumber(value), name .. " is " .. tostring(got) .. ", and " .. value .. " in C")
end
assert(lib.tutti_abi() == lib.TUTTI_ABI)
print(jit.version)
end of file

try() { # what it is, the command that tells if it is there, the command
	what=$1
	if ! sh -c "$2" > /dev/null 2>&1; then
		echo "$what is not installed: not tried"
	elif ! $3 "$cdef" "$scratch/facts" "$library" > "$scratch/log" 2>&1; then
		cat "$scratch/log"
		fail "$what does not take the declarations"
	else
		echo "$what: $(cat "$scratch/log")"
	fi
}

if [ ! -f "$library" ]; then
	echo "configured without shared libraries: cffi and LuaJIT were not tried"
elif [ -n "${SANITIZE_FLAGS:-}" ]; then
	echo "a library with a sanitizer is for programs with the sanitizer: cffi and LuaJIT were not tried"
else
	library=$(cd "$(dirname "$library")" && pwd)/libtutti.so
	python=${PYTHON:-python3}
	try "Python's cffi" "$python -c 'import cffi'" "$python $scratch/try.py"
	try "LuaJIT" "luajit -v" "luajit $scratch/try.lua"
	cat > "$scratch/plugin.c" << 'end of file'
/* A plugin that links the library is unloaded while the job's threads run. */
#include <dlfcn.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : 0, *job = 0;
	int (*join)(const void *, void **) = library ? (int (*)(const void *, void **))dlsym(library, "tutti_join") : 0;
	int (*open)(void) = library ? (int (*)(void))dlsym(library, "tutti_log_open") : 0;

	if (!join || join(0, &job) || !open || open() < 0 || dlclose(library))
		return 1;
	usleep(100000); /* the threads go on; at exit the library's own functions run */
	return 0;
}
end of file
	if ! ${CC:-cc} -D_GNU_SOURCE -o "$scratch/plugin" "$scratch/plugin.c" -ldl > "$scratch/log" 2>&1; then
		cat "$scratch/log"
		fail "the plugin does not compile"
	elif ! TUTTI_RANK=0 TUTTI_SIZE=1 TUTTI_BOOT=127.0.0.1:0 "$scratch/plugin" "$library" > "$scratch/log" 2>&1; then
		cat "$scratch/log"
		fail "the library does not outlive its dlclose()"
	fi
fi
exit $failed
