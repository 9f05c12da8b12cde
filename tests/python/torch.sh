#!/bin/sh
# torch.sh - pytest over tutti.torch and over the pages' programs with torch, under a Python that has torch: by default
# the one that configure has found, whose torch is Debian's, as `./bootstrap check --full` runs this; `make check-torch
# TORCH_PYTHON=...` names another one.
#   torch.sh SOURCE-TREE BUILD-TREE [PYTHON]; PYTEST_ADDOPTS='-k name -v' picks some tests
set -u
export LC_ALL=C
here=$(cd "$1" && pwd)/tests/python build=$(cd "$2" && pwd)
skip() { echo "SKIPPED: $*"; exit 77; }

[ -f "$build/bindings/python/tutti/_native.abi3.so" ] ||
	skip "bindings/python is not built: configure says why (apt install python3-cffi python3-dev)"
python=${3:-$(sed -n 's/^PYTHON = //p' "$build/Makefile")}
for module in torch cffi numpy pytest; do
	"$python" -c "import $module" 2> /dev/null || skip "$python has no $module (apt install python3-$module)"
done
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT
compat=$here/../../bindings/python/compat/src
unset PYTHONDONTWRITEBYTECODE # as in python.sh
export PYTHONPATH="$build/bindings/python:$compat" PYTHONPYCACHEPREFIX="$scratch/cache" PATH="$build:$PATH" TEST_TORCH=1
cd "$scratch" || exit 99
. "$here/halves.sh"
halves 560 "$here/torch" "$here/test_pages.py"
