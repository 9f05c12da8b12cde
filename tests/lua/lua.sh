#!/bin/sh
# lua.sh - busted over bindings/lua, with real processes
#   lua.sh tensor_spec.lua: this file alone
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
build=$(cd "${top_builddir:-.}" && pwd)
skip() { echo "SKIPPED: $*"; exit 77; }

[ -f "$build/bindings/lua/uninstalled/tutti/paths.lua" ] || skip "$build has no bindings/lua: run make first"
command -v luajit > /dev/null || skip "luajit is missing (apt install luajit)"
busted=$(command -v busted) || skip "busted is missing (apt install lua-busted)"
modules=$source/bindings/lua
export LUA_PATH="$modules/?.lua;$modules/?/init.lua;$build/bindings/lua/uninstalled/?.lua;$here/?.lua;;"
luajit "$busted" --version > /dev/null 2>&1 || skip "busted does not run under luajit (apt install lua-busted)"
[ -f "$build/.libs/libtutti.so.0" ] || skip "this build has no shared library"
grep -q "^SANITIZE_FLAGS = ." "$build/Makefile" && skip "luajit cannot load a library with sanitizers"
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT
for name in $(env | sed -n 's/^\(TUTTI_[A-Z_]*\|RANK\|WORLD_SIZE\|SLURM_[A-Z_]*\|PMI[A-Z_0-9]*\)=.*/\1/p'); do
	unset "$name"
done
export SCRATCH="$scratch" PATH="$build:$PATH" SOURCE="$source"
cd "$scratch" || exit 99
if [ $# -gt 0 ]; then set -- "$here/$1"; else set -- "$here"; fi
timeout -k 10 200 luajit "$busted" --output=plainTerminal --pattern=_spec "$@"
