#!/bin/sh
# installed.sh - installs into an empty directory and uses Tutti as a stranger would: tutti.h, pkg-config, the libraries
set -u
export LC_ALL=C
build=$(cd "${top_builddir:-.}" && pwd) || exit 99
unset MAKEFLAGS MFLAGS MAKELEVEL
stage=$(mktemp -d) || exit 99
trap 'rm -rf "$stage"' EXIT
work=$stage/work dest=$stage/dest
mkdir -p "$work" "$dest"
failed=0

fail() { echo "FAILED: $*"; failed=1; }
give_up() { echo "FAILED: $*"; exit 1; }
skip() { echo "SKIPPED: $*"; exit 77; }

[ -f "$build/libtutti.la" ] || skip "no libtutti.la in $build: run make first"
make -C "$build" DESTDIR="$dest" install > "$work/install.log" 2>&1 ||
	{ cat "$work/install.log"; give_up "make install"; }

pc=$(find "$dest" -name tutti.pc)
[ -f "$pc" ] || give_up "no tutti.pc was installed"
libdir=$(dirname "$(dirname "$pc")")
header=$(find "$dest" -name tutti.h)
command -v pkg-config > /dev/null || skip "pkg-config is missing (apt install pkg-config)"
PKG_CONFIG_PATH=$(dirname "$pc") PKG_CONFIG_SYSROOT_DIR=$dest
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
version=$(pkg-config --modversion tutti) || give_up "pkg-config does not find tutti"
flags=$(pkg-config --cflags --libs tutti) || give_up "pkg-config --cflags --libs tutti"

cat > "$work/user.c" << 'end'
#include <stdio.h>
#include <tutti.h>

int main(void)
{
	tutti_config config = tutti_config_defaults();
	tutti_table_config c = tutti_table_f32(2, tutti_sgd(0.5));
	tutti_update half = tutti_update_defaults();
	float d[2] = { 1, 1 }, w[2];
	tutti_table *table;
	tutti *job = NULL;

	config.transports = "tcp";
	c.consistency.mode = TUTTI_BSP;
	half.scale = 0.5;
	if (tutti_join(&config, &job) || tutti_table_open(job, "w", &c, &table) || tutti_table_push(table, d, &half, NULL) ||
	    tutti_table_pull(table, w, NULL))
		puts(tutti_why());
	else if (w[0] == -0.25f && w[1] == w[0])
		puts(tutti_version());
	tutti_leave(job);
	return 0;
}
end
cp "$work/user.c" "$work/user.cc"

try() { # what it is, then the command that makes $work/user
	what=$1
	shift
	rm -f "$work/user"
	if ! "$@" > "$work/compile.log" 2>&1; then
		cat "$work/compile.log"
		fail "$what does not compile: $*"
		return
	fi
	said=$(LD_LIBRARY_PATH="$libdir" "$work/user")
	if [ "$said" = "$version" ]; then
		echo "$what: $said"
	else
		fail "$what says \"$said\", not \"$version\""
	fi
}

# The compilers and flags are lists of words.
# shellcheck disable=SC2086
try_all() {
	if [ -e "$libdir/libtutti.so" ]; then
		try "C11, shared" ${CC:-cc} -std=c11 -pedantic -Wall -Wextra -Werror -o "$work/user" "$work/user.c" \
			$flags
		if [ -n "$cxx" ]; then
			try "C++11, shared" $cxx -std=c++11 -pedantic -Wall -Wextra -Werror -o "$work/user" \
				"$work/user.cc" $flags
		else
			echo "no C++ compiler: tutti.h was not tried in C++ (apt install g++)"
		fi
	else
		echo "configured without shared libraries: none was tried"
	fi
	if [ -e "$libdir/libtutti.a" ]; then
		try "C11, libtutti.a" ${CC:-cc} -std=c11 -o "$work/user" "$work/user.c" $static_flags
		if can_link_static; then
			try "C11, all static" ${CC:-cc} -std=c11 -static -o "$work/user" "$work/user.c" \
				$all_static_flags
		else
			echo "this system cannot link an all-static program with what Tutti needs: not tried"
		fi
	else
		echo "configured without static libraries: none was tried"
	fi
}

can_link_static() { # with libc.a and what the others bring; the sanitizers cannot
	echo 'int main(void) { return 0; }' > "$work/empty.c"
	others=$(echo "$all_static_flags" | sed 's/-ltutti//')
	# shellcheck disable=SC2086
	${CC:-cc} -static -o "$work/empty" "$work/empty.c" $others > /dev/null 2>&1
}

cxx=${CXX:-}
for candidate in g++ c++ clang++; do
	[ -n "$cxx" ] || cxx=$(command -v "$candidate")
done
[ -z "$cxx" ] || cxx="$cxx ${SANITIZE_FLAGS:-}"
all_static_flags=$(pkg-config --static --cflags --libs tutti) || fail "pkg-config --static --cflags --libs tutti"
static_flags=$(echo "$all_static_flags" | sed 's/-ltutti/-l:libtutti.a/')
try_all

if [ -e "$libdir/libtutti.so" ]; then
	soname=$(objdump -p "$libdir/libtutti.so" | awk '$1 == "SONAME" { print $2 }')
	[ "$soname" = libtutti.so.0 ] || fail "the soname is $soname, not libtutti.so.0"
	readelf -W --dyn-syms "$libdir/libtutti.so" |
		awk '$7 != "UND" && ($4 == "FUNC" || $4 == "OBJECT" || $4 == "IFUNC") && $5 != "LOCAL" { print $8 }' > \
			"$work/names"
	grep -v -E '^tutti_[a-z0-9_]+@@TUTTI_[0-9.]+$' "$work/names" | grep -v '^TUTTI_' | while read -r name; do
		echo "exported without a version, or not a tutti_ name: $name"
	done > "$work/strays"
	[ ! -s "$work/strays" ] || { cat "$work/strays"; fail "the exported names"; }
	# Every function that the header declares is there.
	sed -n 's/^[a-z].*[ *]\(tutti_[a-z0-9_]*\)(.*/\1/p' "$header" | sort -u | while read -r name; do
		grep -q "^$name@@" "$work/names" || echo "declared in tutti.h, but not exported: $name"
	done > "$work/strays"
	[ ! -s "$work/strays" ] || { cat "$work/strays"; fail "tutti.h promises more than libtutti.so has"; }
	echo "exported: $(wc -l < "$work/names") names"
fi

# The lines of examples/README.md build the examples that were installed.
if [ "${TEST_FULL:-no}" = yes ]; then
	cp -r "$(dirname "$(find "$dest" -name fashion.c)")" "$work/examples"
	sed -n 's/^\$ \(cc .*tutti).*\)/\1/p' "$work/examples/README.md" | sed 's/ && .*//' > "$work/lines"
	[ "$(wc -l < "$work/lines")" -eq 3 ] || fail "examples/README.md has $(wc -l < "$work/lines") lines with cc, not 3"
	while read -r line; do
		(cd "$work/examples" && eval "$line") > "$work/compile.log" 2>&1 ||
			fail "examples/README.md: $line: $(cat "$work/compile.log")"
	done < "$work/lines"
fi

# Multiverso's C functions: a program from C and C++, and the exported names are those of the header.
cat > "$work/user.c" << 'end'
#include <multiverso/c_api.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	float x[2] = { 1, 2 };
	TableHandler table;

	MV_Init(&argc, argv);
	MV_NewArrayTable(2, &table);
	MV_AddArrayTable(table, x, 2);
	MV_GetArrayTable(table, x, 2);
	if (x[1] == 2 && !*MV_LastError())
		puts("%VERSION%");
	MV_ShutDown();
	return 0;
}
end
sed -i "s/%VERSION%/$version/" "$work/user.c"
cp "$work/user.c" "$work/user.cc"
if [ -e "$libdir/libmultiverso.so" ]; then
	# shellcheck disable=SC2086
	try "libmultiverso, C" ${CC:-cc} -std=c11 -pedantic -Wall -Wextra -Werror -o "$work/user" "$work/user.c" \
		-lmultiverso $flags
	# shellcheck disable=SC2086
	[ -z "$cxx" ] || try "libmultiverso, C++" $cxx -std=c++11 -pedantic -Wall -Wextra -Werror -o "$work/user" \
		"$work/user.cc" -lmultiverso $flags
	nm -D --defined-only "$libdir/libmultiverso.so" | awk '{ print $NF }' | sort > "$work/names"
	sed -n 's/^[a-z].*[ *]\(MV_[A-Za-z]*\)(.*/\1/p' "$(find "$dest" -name multiverso.h)" | sort > "$work/declared"
	[ "$(wc -l < "$work/declared")" -eq 18 ] || fail "multiverso.h declares $(wc -l < "$work/declared") functions, not 18"
	cmp "$work/names" "$work/declared" || fail "libmultiverso.so does not export what multiverso.h declares"
fi

# `make install` takes another prefix than configure's: the files name it, and a library finds the other one.
other=$stage/other
if ! grep -q '^libdir = ${exec_prefix}/lib$' "$build/Makefile"; then
	echo "another prefix: not tried, as configure was given a folder for libraries"
elif ! make -C "$build" prefix="$other" install > "$work/install.log" 2>&1; then
	cat "$work/install.log"
	fail "make install prefix=..."
else
	[ ! -e "$libdir/libmultiverso.so" ] || ldd "$other/lib/libmultiverso.so" | grep -q "libtutti.so.0 => $other/lib/" ||
		fail "libmultiverso.so does not find the libtutti.so.0 beside it"
	said=$(unset PKG_CONFIG_SYSROOT_DIR; PKG_CONFIG_PATH=$other/lib/pkgconfig pkg-config --variable=libdir tutti)
	[ "$said" = "$other/lib" ] || fail "in another prefix tutti.pc names the libdir $said"
	grep -q "'$other/lib/libtutti.so.0'" "$(find "$other" -name paths.lua)" || fail "paths.lua names another prefix"
fi

# The bare declarations are where pkg-config says, and are those of the header that is installed.
cdef=$(pkg-config --variable=declarations tutti)
[ -f "$cdef" ] || cdef=$dest$cdef # not every pkg-config puts the sysroot before a variable
if [ -f "$cdef" ]; then
	grep -q '^int tutti_join(const tutti_config \*, tutti \*\*job);$' "$cdef" || fail "$cdef does not declare tutti_join"
else
	fail "no bare declarations at \"$cdef\""
fi

program=$(find "$dest" -type f -name tutti -perm -100)
if [ -n "$program" ]; then
	"$program" --version > "$work/said" 2>&1 || fail "tutti --version: $(cat "$work/said")"
	grep -q "$version" "$work/said" || fail "tutti --version says \"$(cat "$work/said")\", not $version"
else
	fail "no program tutti was installed"
fi

strays=$(find "$dest" -path '*/man3/*' | grep -v '/man3/tutti[a-z0-9_]*\.3$')
[ -z "$strays" ] || fail "pages of no function in man3: $strays"
page=$(find "$dest" -name tutti_put.3)
[ "$(cat "$page")" = ".so man3/tutti_window.3" ] || fail "man tutti_put would not find tutti_window(3)"

# An installed example, with the line of the README, starts without LD_LIBRARY_PATH.
hello=$(find "$dest" -path '*/examples/hello.c')
if [ -z "$hello" ] || [ -z "$(find "$dest" -name tables.md)" ]; then
	fail "the examples and pages are not installed"
elif [ -e "$libdir/libtutti.so" ]; then
	# shellcheck disable=SC2086
	${CC:-cc} -o "$work/hello" "$hello" $flags "-Wl,-rpath,$libdir" || fail "the installed example does not compile"
	"$program" run -n 2 "$work/hello" > "$work/said" 2>&1 || fail "the installed example: $(cat "$work/said")"
	grep -q 'rank 1 of 2' "$work/said" || fail "the installed example says: $(cat "$work/said")"
fi

[ -n "$(find "$dest" -path '*/examples/compare' -perm -100)" ] || fail "examples/compare is not installed as a program"

# Lua's modules find the declarations and the library where they were installed: of the stage, for want of a real place.
modules=$(find "$dest" -path '*/lua/5.1/tutti.lua')
paths=$(find "$dest" -path '*/lua/5.1/tutti/paths.lua')
if [ -z "$modules" ] || ! grep -q "^return { declarations = '/.*/tutti.cdef', library = '/" "$paths"; then
	fail "Lua's modules are not installed: $modules, $(cat "$paths")"
elif command -v luajit > /dev/null && [ -e "$libdir/libtutti.so" ] && [ -z "${SANITIZE_FLAGS:-}" ]; then
	sed "s|'/|'$dest/|g" "$paths" > "$work/paths" && cp "$work/paths" "$paths"
	LUA_PATH="${modules%tutti.lua}?.lua;${modules%tutti.lua}?/init.lua" TUTTI_TRANSPORTS=tcp luajit -e \
		"local job = require('tutti').init(); job:barrier(); print(require('tutti').version())" > "$work/said" 2>&1
	[ "$(cat "$work/said")" = "$version" ] || fail "the installed modules for Lua say: $(cat "$work/said")"
fi

make -C "$build" DESTDIR="$dest" uninstall > "$work/uninstall.log" 2>&1 ||
	{ cat "$work/uninstall.log"; fail "make uninstall"; }
left=$(find "$dest" ! -type d)
[ -z "$left" ] || fail "make uninstall leaves $left"
exit $failed
