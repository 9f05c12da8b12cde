#!/bin/sh
# house.sh - the rules of the house that no compiler checks. Each complaint names the file and says what is wrong.
#   tests/house.sh [SOURCE-TREE [BUILD-TREE]]; `make check` passes both by srcdir and top_builddir.
# It first runs on a made-up bad tree, where every rule must complain: a check that cannot fail checks nothing.
set -u
export LC_ALL=C
source_tree=${1:-${srcdir:-$(dirname "$0")/..}}
build_tree=${2:-${top_builddir:-.}}
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT

# The floors: a file includes only its own room, or a lower floor. Two rooms of one floor do not know each other.
floor_and_room() {
	case $1 in
	runtime/base/*)				echo 0 base ;;
	gpu/*)					echo 1 gpu ;;
	transport/*)				echo 1 transport ;;
	runtime/tutti.h | runtime/runtime.h | runtime/engine/* | runtime/job/* | runtime/launch/* | runtime/member/* | \
	runtime/operation/* | runtime/topology/* | runtime/window/*)
						echo 2 engine ;;
	runtime/kernel/* | runtime/file/* | runtime/collective/* | runtime/table/*)
						echo 3 patterns ;;
	tools/*)				echo 4 tools ;;
	examples/*)				echo 4 examples ;;
	bindings/*)				echo 4 bindings ;;
	tests/*)				echo 5 tests ;;
	*)					echo none ;;
	esac
}

# Above the library only the public header is known; the tools are our own and may look further down.
may_reach_down() { # room header
	case $1:$2 in
	*:runtime/tutti.h | tools:* | tests:*) return 0 ;;
	examples:* | bindings:*) return 1 ;;
	esac
	return 0
}

files() { # of the source tree, by name patterns of find; never what was built
	find . \( -name '.?*' ! -name .ci -o -name 'build*' -o -name m4 -o -name autom4te.cache -o -name 'tutti-[0-9]*' \) -prune \
		-o -type f \( "$@" \) -print | sed 's|^\./||' | sort
}

complain() { printf '%s: %s\n' "$1" "$2"; }

# A C file without comments and without what stands between quotes, line for line.
code_of() {
	awk '{
		out = ""; n = length($0)
		for (i = 1; i <= n; i++) {
			c = substr($0, i, 1); two = substr($0, i, 2)
			if (comment) { if (two == "*/") { comment = 0; i++ } }
			else if (quote != "") { if (c == "\\") i++; else if (c == quote) { quote = ""; out = out c } }
			else if (two == "/*") { comment = 1; i++ }
			else if (two == "//") break
			else { if (c == "\"" || c == "\047") quote = c; out = out c }
		}
		print NR ": " out
	}' "$1"
}

find_header() { # the file that `#include "$2"` in $1 means, nothing if it is not ours
	for dir in runtime . "$(dirname "$1" | grep "^examples")"; do
		if [ -f "$dir/$2" ]; then
			echo "$dir/$2" | sed "s|^\./||"
			return
		fi
	done
}

check_includes() {
	for file in $(files -name '*.[ch]' -o -name '*.cu' -o -name '*.def'); do
		set -- $(floor_and_room "$file")
		floor=$1 room=${2:-}
		if [ "$floor" = none ]; then
			complain "$file" "stands on no floor: give it one in tests/house.sh"
			continue
		fi
		sed -n 's/^[ 	]*#[ 	]*include[ 	]*\([<"]\)\([^>"]*\)[>"].*/\1 \2/p' "$file" | while read -r kind name; do
			header=$(find_header "$file" "$name")
			if [ -z "$header" ]; then
				[ "$kind" = '"' ] && complain "$file" "includes \"$name\", which is nowhere"
				continue
			fi
			set -- $(floor_and_room "$header")
			if [ "$room" = "${2:-}" ]; then
				continue
			fi
			if [ "$1" = none ] || [ "$1" -ge "$floor" ] || ! may_reach_down "$room" "$header"; then
				complain "$file" "($room, floor $floor) includes $header (${2:-nowhere}, floor $1)"
			fi
		done
	done
}

check_calls() {
	for file in $(files -name '*.[ch]'); do
		set -- $(floor_and_room "$file")
		case $file in runtime/base/env.c | examples/* | tests/* | bindings/*) ;; *)
			code_of "$file" | grep -E '(^|[^A-Za-z0-9_])(secure_)?getenv *\(' | while read -r line; do
				complain "$file:$line" "getenv is runtime/base/env.c's alone"
			done ;;
		esac
		case $1 in [0-3])
			code_of "$file" | grep -E '(^|[^A-Za-z0-9_])(abort|exit|_exit|_Exit|quick_exit) *\(' | while read -r line; do
				complain "$file:$line" "the library never ends the process"
			done
			code_of "$file" | grep -E '(^|[^A-Za-z0-9_])((printf|vprintf|puts|putchar|perror) *\(|stdout)' | while read -r line; do
				complain "$file:$line" "the library does not write on stdout; what it has to say goes through tt_log or tt_fail"
			done ;;
		esac
	done
}

check_paths() { # places of one machine
	for file in $(files -name '*.[ch]' -o -name '*.def' -o -name '*.sh' -o -name '*.am' -o -name '*.ac' -o -name '*.in' \
		-o -name '*.md' -o -name '*.[135]' -o -name '*.map' -o -name bootstrap -o -name run); do
		case $file in tests/* | Makefile.in) continue ;; esac
		grep -nE '(^|[^A-Za-z0-9_.}/])/(work|home|tmp|root)(/|$)' "$file" | while read -r line; do
			complain "$file:$line" "a path of one machine"
		done
	done
}

# What a page shows is compiled, too: each line stands in the example that it is from.
check_quotes() {
	[ -f docs/tables.md ] || return
	sed -n '/^```c$/,/^```$/p' docs/tables.md | grep -v '^```' | grep -vxFf examples/table.c | while read -r line; do
		complain docs/tables.md "shows \"$line\", which is not in examples/table.c"
	done
}

# What the compiler and the sanitizers add begins with two underscores.
check_symbols() { # build tree
	if [ -f "$1/.libs/libtutti.so" ]; then
		nm -D --defined-only "$1/.libs/libtutti.so" | awk '{ sub(/@.*/, "", $NF); print $(NF - 1), $NF }' |
			grep -vE '^. tutti_|^A TUTTI_[0-9.]+$' | while read -r line; do
				complain libtutti.so "shows ($line): only tutti_ names are for others"
			done
	fi
	if [ -f "$1/.libs/libtutti.a" ]; then
		nm -g --defined-only "$1/.libs/libtutti.a" | awk 'NF == 3 { print $2, $3 }' |
			grep -vE '^. (tutti_|tt_|__)' | while read -r line; do
				complain libtutti.a "has a global ($line): names across files begin with tt_"
			done
	fi
}

check_house() { # source tree, build tree: prints the complaints
	build=$(cd "$2" && pwd) || return
	(cd "$1" && check_includes && check_calls && check_paths && check_quotes && check_symbols "$build")
}

# The self-test.

put() { # file, text: into the made-up tree
	mkdir -p "$scratch/bad/$(dirname "$1")"
	printf "$2" > "$scratch/bad/$1"
}

make_bad_tree() {
	put runtime/base/base.h '#include <stdio.h>\n'
	put runtime/base/env.c 'getenv("OK");\n'
	put runtime/base/up.c '#include "transport/transport.h"\n'
	put runtime/tutti.h '#include <stddef.h>\n'
	put runtime/runtime.h '#include "tutti.h"\n#include "transport/transport.h"\n#include "base/base.h"\n'
	put runtime/engine/engine.c '#include "runtime.h"\n/* exit(1) in a comment, */ char *s = "and abort() in a text";\n'
	put runtime/job/job.c '#include "kernel/rules.h"\n'
	put runtime/kernel/rules.h 'int tt_x;\n'
	put runtime/lodger.c 'int tt_y;\n'
	put runtime/window/window.c 'void f(void) { exit(1); }\n'
	put runtime/member/group.c 'void f(void) { printf("x"); }\n'
	put runtime/member/peer.c 'char *f(void) { return getenv("HOME"); }\n'
	put runtime/launch/config.c 'char *f(void) { return "/ho''me/somebody/tutti.conf"; }\n'
	put transport/transport.h '#include <stdint.h>\n'
	put transport/tcp.c '#include "gpu/gpu.h"\n'
	put transport/sim.c '#include "lost.h"\n'
	put gpu/gpu.h '#include "base/base.h"\n'
	put tools/tutti.c '#include <tutti.h>\n#include "base/base.h"\n'
	put tools/info.c '#include "runtime.h"\n'
	put examples/ring.c '#include <tutti.h>\n'
	put examples/hello.c '#include "base/base.h"\n'
	put examples/table.c '#include <tutti.h>\n\nint fine;\n'
	put docs/tables.md '```\nshell\n```\n```c\nint fine;\n\nint stale;\n```\n'
	put bad_symbols.c 'int stray_name(void) { return 1; }\nint tutti_fine(void) { return 2; }\n'
	mkdir -p "$scratch/bad/.libs"
	(cd "$scratch/bad" && ${CC:-cc} -fPIC -c bad_symbols.c && ${CC:-cc} -shared -o .libs/libtutti.so bad_symbols.o &&
		ar rc .libs/libtutti.a bad_symbols.o && rm bad_symbols.[co]) || return
}

expected='
runtime/base/up.c: (base, floor 0) includes transport/transport.h
runtime/job/job.c: (engine, floor 2) includes runtime/kernel/rules.h
runtime/lodger.c: stands on no floor
transport/tcp.c: (transport, floor 1) includes gpu/gpu.h
transport/sim.c: includes "lost.h", which is nowhere
examples/hello.c: (examples, floor 4) includes runtime/base/base.h
runtime/window/window.c:1: .* never ends the process
runtime/member/group.c:1: .* does not write on stdout
runtime/member/peer.c:1: .* getenv is
runtime/launch/config.c:1:.* a path of one machine
docs/tables.md: shows "int stale;", which is not in examples/table.c
libtutti.so: shows (T stray_name)
libtutti.a: has a global (T stray_name)'

self_test() {
	make_bad_tree || { echo "house.sh: cannot make the bad tree"; return 1; }
	check_house "$scratch/bad" "$scratch/bad" > "$scratch/found"
	result=0
	echo "$expected" | sed 1d > "$scratch/expected"
	while read -r line; do
		grep -q -- "$line" "$scratch/found" || { echo "house.sh: the bad tree should give: $line"; result=1; }
	done < "$scratch/expected"
	if [ "$(wc -l < "$scratch/found")" -ne "$(wc -l < "$scratch/expected")" ]; then
		echo "house.sh: the bad tree gives other complaints too:"
		cat "$scratch/found"
		result=1
	fi
	return $result
}

self_test || exit 1
check_house "$source_tree" "$build_tree" > "$scratch/complaints"
[ -f "$build_tree/.libs/libtutti.so" ] || [ -f "$build_tree/.libs/libtutti.a" ] || echo "no library in $build_tree: its symbols were not looked at"
if [ -s "$scratch/complaints" ]; then
	cat "$scratch/complaints"
	echo "$(wc -l < "$scratch/complaints") complaints"
	exit 1
fi
echo "the house is in order"
