#!/bin/sh
# python.sh - pytest over the package of the build tree, with real processes; two at a time, as most of them wait
#   PYTEST_ADDOPTS='-k name -v' picks some tests; TEST_FULL=yes runs each over shm and over tcp, not over one of them
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${top_builddir:-.}" && pwd)
skip() { echo "SKIPPED: $*"; exit 77; }

[ -f "$build/bindings/python/tutti/_native.abi3.so" ] ||
	skip "bindings/python is not built: configure says why (apt install python3-cffi python3-dev)"
python=${PYTHON:-$(sed -n 's/^PYTHON = //p' "$build/Makefile")}
"$python" -c 'import pytest' 2> /dev/null || skip "$python has no pytest (apt install python3-pytest)"
"$python" -c 'import numpy' 2> /dev/null || skip "$python has no numpy (apt install python3-numpy)"
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT
unset PYTHONDONTWRITEBYTECODE # else each rank compiles numpy anew: Python reads no cache but the one below
compat=$here/../../bindings/python/compat/src
export PYTHONPATH="$build/bindings/python:$compat" PYTHONPYCACHEPREFIX="$scratch/cache" PATH="$build:$PATH"
export FAKE_CUDA="$build/tests/gpu/.libs" # a libcuda for machines without a GPU
cd "$scratch" || exit 99

. "$here/halves.sh"
limit=300
[ -z "${TEST_FULL:-}" ] || limit=600
halves $limit --ignore "$here/torch" "$here"
