#!/bin/sh
# wheel.sh - the wheel of `make wheel` in a fresh virtual environment of each CPython from 3.9 on that is here, away from
# the build tree: pip installs it, and the first example runs, in less than a minute for each. Then the sources, for an
# installed libtutti. `./bootstrap check --full` runs this.
#   wheel.sh SOURCE-TREE BUILD-TREE [PYTHON ...]
set -u
export LC_ALL=C
source=$(cd "$1" && pwd) build=$(cd "$2" && pwd)
shift 2
unset PYTHONPATH PYTHONHOME LD_LIBRARY_PATH MAKEFLAGS MFLAGS MAKELEVEL
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT
failed=0 tried=0
fail() { echo "FAILED: $*"; failed=1; }

make -C "$build" wheel > "$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
wheel=$(find "$build" -maxdepth 1 -name 'tutti-*-cp39-abi3-*.whl')
if grep '^SKIPPED: ' "$scratch/log"; then
	exit 77
fi
[ "$(echo "$wheel" | wc -w)" = 1 ] || { echo "make wheel leaves not one wheel, but: $wheel"; exit 1; }
cp "$wheel" "$scratch/"
cd "$scratch" || exit 99
cat > hello.py << 'end of file'
import numpy as np, tutti
job = tutti.init()
x = np.full(4, job.rank, np.float32)
job.allreduce(x, op="sum")
print(f"rank {job.rank} of {job.size}: {x}")
end of file
cat > old.py << 'end of file'
import socket, subprocess, sys
import numpy as np
from channel import Lieutenant, Soldier
from dpwa import DpwaConnection
from param_sync import EASGD
from platoon.channel import Controller, Worker

def controller(port):
    lieutenant = Lieutenant()
    lieutenant.handle_control = lambda req, worker_id: "stop" if req == "next" else ""
    lieutenant.init_control(port=port)
    print("ready", flush=True)
    sys.exit(lieutenant.serve())

def worker(port):
    soldier, x = Soldier(port=port), np.ones(3, np.float32)
    soldier.init_shared_params("wheel%d" % port, [x], EASGD(0.5), cleanup=True)
    soldier.sync_params(synchronous=True)
    assert soldier.send_req("next") == "stop" and x.tolist() == [1, 1, 1]

if sys.argv[1:]:
    {"controller": controller, "worker": worker}[sys.argv[1]](int(sys.argv[2]))
    sys.exit()
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = str(probe.getsockname()[1])
serving = subprocess.Popen([sys.executable, __file__, "controller", port], stdout=subprocess.PIPE)
assert serving.stdout.readline() == b"ready\n"
assert subprocess.call([sys.executable, __file__, "worker", port]) == 0
assert serving.wait(30) == 0
print("old names")
end of file

pythons() { # one of each release: in PATH, and of pyenv
	for minor in 9 10 11 12 13 14; do
		for python in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python3; do
			if "$python" -c "import sys, venv, ensurepip; assert sys.version_info[:2] == (3, $minor)" 2> /dev/null
			then
				echo "$python"
				break
			fi
		done
	done
}

try() { # an interpreter
	rm -rf env
	began=$(date +%s)
	"$1" -m venv env > log 2>&1 && env/bin/pip install -q --no-cache-dir ./tutti-*.whl numpy > log 2>&1 ||
		{ cat log; fail "pip does not install the wheel for $1"; return; }
	PATH=$scratch/env/bin:/usr/bin:/bin tutti run -n 2 python hello.py > out 2>&1 || fail "the first example: $(cat out)"
	took=$(($(date +%s) - began))
	[ $took -lt 60 ] || fail "a virtual environment, pip and the first example take $took s, not less than 60"
	grep -q 'rank 1 of 2' out || fail "the first example says: $(cat out)"
	env/bin/python -c 'import importlib, os, pkgutil, tutti
for module in pkgutil.walk_packages(tutti.__path__, "tutti."):
    if not module.name.startswith(("tutti.torch", "tutti.__main__")):
        importlib.import_module(module.name)
maps = open("/proc/self/maps").read()
assert "/tutti.libs/libtutti" in maps and "/tutti.libs/libsodium" in maps, maps' > log 2>&1 || fail "$(cat log)"
	env/bin/pip install -q --no-cache-dir --no-deps "$source/bindings/python/compat" > log 2>&1 ||
		{ cat log; fail "pip does not build the package of old names for $1"; return; }
	timeout 60 env/bin/python old.py > out 2>&1 || fail "the old names: $(cat out)"
	grep -q '^old names$' out || fail "the old names: $(cat out)"
	env/bin/python -m tutti --version | grep -q '^tutti [0-9.]*$' || fail "python -m tutti --version"
	echo "$("$1" --version): $took s"
	tried=$((tried + 1))
}

from_source() { # in the last environment
	make -C "$build" DESTDIR="$scratch/installed" install > log 2>&1 || { cat log; fail "make install"; return; }
	pc=$(find installed -name tutti.pc)
	sed -i "s|^prefix=|&$scratch/installed|" "$pc"
	env/bin/pip uninstall -q -y tutti
	env/bin/pip install "$source/bindings/python" > log 2>&1 && fail "pip builds the package without a libtutti"
	grep -q 'tutti: pkg-config does not find libtutti: install Tutti' log || fail "pip says: $(cat log)"
	(cd "$source/bindings/python" && find . ! -path '*/__pycache__*') | sort > before
	PKG_CONFIG_PATH=$scratch/${pc%/*} env/bin/pip install -q --no-cache-dir "$source/bindings/python" > log 2>&1 ||
		{ cat log; fail "pip does not build the package"; return; }
	env/bin/pip install -q --no-cache-dir --no-deps "$source/bindings/python/compat" > log 2>&1 ||
		{ cat log; fail "pip does not build the package of old names"; return; }
	env/bin/platoon-launcher --help | grep -q experiment_name || fail "platoon-launcher"
	(cd "$source/bindings/python" && find . ! -path '*/__pycache__*') | sort | diff before - ||
		fail "pip leaves these in the source"
	PATH=$scratch/env/bin:$(dirname "$(find "$scratch/installed" -type f -name tutti -perm -100)"):/usr/bin:/bin \
		tutti run -n 2 python hello.py > out 2>&1 || fail "the first example: $(cat out)"
	grep -q 'rank 1 of 2' out || fail "the first example, of the sources, says: $(cat out)"
}

"$(pythons | head -n 1)" -m zipfile -l ./tutti-*.whl | sed 1d > files
for library in $(sed -n 's|^tutti\.libs/\([^- ]*\)-.*|\1|p' files); do
	[ "$library" = libtutti ] || grep -q "/LICENSE.$library\." files ||
		fail "the wheel holds $library, and not its licence"
done
for python in ${*:-$(pythons)}; do
	try "$python"
done
[ $tried = 0 ] || from_source
[ $tried -gt 0 ] || [ $failed = 1 ] || { echo "SKIPPED: no CPython from 3.9 on makes virtual environments"; exit 77; }
exit $failed
