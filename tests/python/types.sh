#!/bin/sh
# types.sh - mypy over the packages, and stubtest over the stub of tutti._native, which make has written.
# `./bootstrap check --full` runs this.
#   types.sh SOURCE-TREE BUILD-TREE
set -u
export LC_ALL=C
source=$(cd "$1" && pwd) build=$(cd "$2" && pwd)
tools=$build/types-tools
skip() { echo "SKIPPED: $*"; exit 77; }

[ -f "$build/bindings/python/tutti/_native.pyi" ] ||
	skip "bindings/python is not built: configure says why (apt install python3-cffi python3-dev)"
python=${PYTHON:-$(sed -n 's/^PYTHON = //p' "$build/Makefile")}
if ! "$tools/bin/mypy" --version > /dev/null 2>&1; then
	rm -rf "$tools"
	"$python" -m venv "$tools" > "$build/types.log" 2>&1 || skip "$python cannot make a virtual environment"
	"$tools/bin/pip" install -q mypy types-cffi cffi numpy > "$build/types.log" 2>&1 ||
		skip "mypy cannot be had from the package index: $build/types.log"
fi
cd "$build/bindings/python" || exit 99
export PYTHONPATH=.
"$tools/bin/mypy" --config-file "$source/bindings/python/pyproject.toml" --cache-dir "$tools/cache" -p tutti || exit 1
MYPYPATH=$source/bindings/python/compat/src "$tools/bin/mypy" --config-file "$source/bindings/python/pyproject.toml" \
	--cache-dir "$tools/cache" -p multiverso -p platoon -p dpwa -m channel -m param_sync || exit 1
"$tools/bin/stubtest" tutti._native || exit 1

# A check that cannot fail checks nothing.
printf 'from tutti._native import lib\nlib.tutti_rank()\nx: str = lib.TUTTI_F32\n' > "$tools/wrong.py"
"$tools/bin/mypy" --strict --cache-dir "$tools/cache" "$tools/wrong.py" > "$tools/said"
grep -q 'Found 2 errors' "$tools/said" || { echo "mypy does not find two errors: $(cat "$tools/said")"; exit 1; }
