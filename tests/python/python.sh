#!/bin/sh
# python.sh - pytest over the package of the build tree, with real processes; two at a time, as most of them wait
#   PYTEST_ADDOPTS='-k name -v' picks some tests
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
compat=$here/../../bindings/python/compat/src
export PYTHONPATH="$build/bindings/python:$compat" PYTHONPYCACHEPREFIX="$scratch/cache" PATH="$build:$PATH"
cd "$scratch" || exit 99

half() { # 0 or 1: every other test; pytest's 5 is that there was none
	HALF=$1 timeout -s INT -k 10 200 "$python" -m pytest -q -p no:cacheprovider --rootdir "$here" \
		--basetemp "$scratch/tmp$1" --durations 5 --ignore "$here/torch" "$here"
	status=$?
	[ $status = 5 ] || return $status
}

half 0 > half.0 2>&1 &
half 1
result=$?
wait $! || result=1
cat half.0
exit $result
