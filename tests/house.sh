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

# Rooms and their floors. A room is a folder; what lies in no folder of this list stands nowhere.
floors='
0 runtime/base
1 runtime/kernel
1 runtime/topology
1 runtime/file
1 transport
1 gpu
2 transport/tcp
2 transport/shm
2 transport/sim
2 transport/verbs
2 runtime/engine
2 runtime/launch
3 runtime/member
4 runtime/operation
4 runtime/device
5 runtime/window
6 runtime/collective
6 runtime/message
6 runtime/publish
6 runtime/table
7 runtime/average
7 runtime/control
8 runtime/job
9 tools
9 examples
9 bindings
10 tests'

line_end='
'
floor_and_room() { # of a file; its room is the folder of the list that it lies in, or the nearest one above
	room=$1
	while [ "$room" != "${room%/*}" ]; do
		room=${room%/*}
		case "$floors$line_end" in *" $room$line_end"*)
			above=${floors%% "$room"*}
			echo "${above##*"$line_end"} $room"
			return ;;
		esac
	done
	case $1 in
	runtime/tutti.h) echo 0 public ;;
	*) echo none ;;
	esac
}

# May a file of room $1, on floor $2, include the header $5 of room $3, on floor $4?
may_include() {
	[ "$3" != public ] || return 0
	[ "$4" -lt "$2" ] || return 1
	case $1 in
	examples | bindings) return 1 ;; # above the library only the public header is known;
	tests | tools) return 0 ;;       # tools and tests are our own and may look further down
	esac
	case $3 in
	runtime/base | transport) return 0 ;; # these have several headers for others
	esac
	[ "${5##*/}" = "${3##*/}.h" ] # one header a room: the others are its own
}

files() { # of the source tree, by name patterns of find; never what was built
	find . \( -name '.?*' ! -name .ci -o -type d -name 'build*' -o -name m4 -o -name autom4te.cache -o -name \
		'tutti-[0-9]*' \) -prune \
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
	beside=
	case $1 in examples*/*) beside=${1%/*}/ ;; esac
	for header in "runtime/$2" "$2" ${beside:+"$beside$2"}; do
		[ ! -f "$header" ] || { echo "$header"; return; }
	done
}

check_includes() {
	for file in $(files -name '*.[ch]' -o -name '*.cu' -o -name '*.def'); do
		set -- $(floor_and_room "$file")
		floor=$1 room=${2:-}
		if [ "$floor" = none ]; then
			complain "$file" \
				"stands in no room: the list of floors in tests/house.sh has none of its folder"
			continue
		fi
		sed -n 's/^[ 	]*#[ 	]*include[ 	]*\([<"]\)\([^>"]*\)[>"].*/\1 \2/p' "$file" |
			while read -r kind name; do
			header=$(find_header "$file" "$name")
			if [ -z "$header" ]; then
				[ "$kind" = '"' ] && complain "$file" "includes \"$name\", which is nowhere"
				continue
			fi
			set -- $(floor_and_room "$header")
			if [ "$room" != "${2:-}" ] &&
				! may_include "$room" "$floor" "${2:-nowhere}" "$1" "$header"; then
				complain "$file" "($room, floor $floor) includes $header (${2:-nowhere}, floor $1)"
			fi
		done
	done
}

source_of() { sed 's|/\.libs/|/|; s|/[a-z_0-9]*_la-|/|; s|/tutti-|/|; s|\.o$|.c|'; } # of an object

objects() { # build tree. An object whose source is gone is left from an earlier build
	(cd "$1" && find runtime transport gpu tools examples bindings -name '*.o' 2> /dev/null | sort) |
	while read -r object; do
		[ ! -f "$(echo "$object" | source_of)" ] || echo "$object"
	done
}

# What an object needs is defined in its own room or on a lower floor. This sees calls, and data; the includes see
# structs.
check_objects() { # build tree
	objects "$1" > "$scratch/objects"
	files -path './runtime/*.c' -o -path './transport/*.c' > "$scratch/sources"
	unseen=$(source_of < "$scratch/objects" | sort -u | comm -13 - "$scratch/sources" | wc -l)
	[ ! -f "$1/libtutti.la" ] || [ "$unseen" -eq 0 ] ||
		complain libtutti.la "of $unseen sources no object was looked at"
	(cd "$1" && xargs -r nm -A -g 2> /dev/null) < "$scratch/objects" | awk -v floors="$floors" '
		BEGIN {
			n = split(floors, line, "\n")
			for (i = 1; i <= n; i++)
				if (split(line[i], word, " ") == 2)
					floor[word[2]] = word[1]
		}
		function room_of(object) {
			while (sub(/\/[^\/]*$/, "", object))
				if (object in floor)
					return object
			return ""
		}
		{
			object = $1; sub(/:.*/, "", object)
			room = room_of(object); name = $NF; kind = $(NF - 1)
			sub(/\/\.libs\//, "/", object); sub(/\/[a-z_0-9]*_la-/, "/", object); sub(/\.o$/, ".c", object)
		}
		kind == "U" { needs[name " " room] = object; next }
		# more than one program may define main, and tools each their own
		!((name) in home) || floor[room] < floor[home[name]] { home[name] = room }
		END {
			for (pair in needs) {
				split(pair, word, " "); name = word[1]; room = word[2]
				if (!(name in home) || home[name] == room)
					continue
				if (floor[home[name]] >= floor[room])
					print needs[pair] ": (" room ", floor " floor[room] ") needs " name " of " home[name] ", floor " floor[home[name]]
				else if ((room == "examples" || room == "bindings") && name !~ /^tutti_/)
					print needs[pair] ": (" room ") needs " name ", which is not public"
			}
		}' | sort
}

# The longest line is one of 120 columns. Of pages the rows of tables may be longer. UTF-8 has one column a character.
check_width() {
	files -name '*.[ch]' -o -name '*.py' -o -name '*.md' -o -name Makefile.am -o -path ./bootstrap -o -path ./.ci/run \
		-o -path ./tests/check.sh -o -path ./tests/bootstrap.sh |
		xargs awk '
			FILENAME ~ /\.md$/ && (FNR == 1 || /^```/) { code = FNR == 1 ? /^```/ : !code }
			FILENAME ~ /\.md$/ && (code || /^\|/) { next }
			length($0) < 16 { next }
			{
				line = $0
				while ((tab = index(line, "\t")) > 0) {
					before = substr(line, 1, tab - 1)
					line = before sprintf("%" 8 - (tab - 1) % 8 "s", "") substr(line, tab + 1)
				}
				gsub(/[\200-\277]/, "", line)
			}
			length(line) > 120 { print FILENAME ":" FNR ": a line of " length(line) " columns: 120 at most" }'
}

# Of the files that have such a word at all: those lines of them that call it.
calls='(^|[^A-Za-z0-9_])((secure_)?getenv|getcpu|abort|exit|_exit|_Exit|quick_exit|printf|vprintf|puts|putchar|perror'
calls=$calls'|eventfd|epoll_create1?|memfd_create) *\('

check_calls() {
	for file in $(files -name '*.[ch]' | grep -v '^tests/' | xargs grep -lE "$calls|stdout" /dev/null); do
		set -- $(floor_and_room "$file")
		code_of "$file" > "$scratch/code"
		case $file in runtime/base/settings.c | examples/* | bindings/*) ;; *)
			grep -E '(^|[^A-Za-z0-9_])(secure_)?getenv *\(' "$scratch/code" | while read -r line; do
				complain "$file:$line" "getenv is runtime/base/settings.c's alone"
			done ;;
		esac
		case $1 in [0-7])
			grep -E '(^|[^A-Za-z0-9_])(abort|exit|_exit|_Exit|quick_exit) *\(' "$scratch/code" |
				while read -r line; do
					complain "$file:$line" "the library never ends the process"
				done
			grep -E '(^|[^A-Za-z0-9_])(eventfd|epoll_create1?|memfd_create) *\(' "$scratch/code" |
				grep -v tt_high_file | while read -r line; do
					complain "$file:$line" "may be standard output: call tt_eventfd, tt_epoll, tt_memory_file"
				done
			grep -E '(^|[^A-Za-z0-9_])getcpu *\(' "$scratch/code" | while read -r line; do
				complain "$file:$line" "musl and the glibc of RHEL 8 have no getcpu: call tt_numa_node"
			done
			grep -E '(^|[^A-Za-z0-9_])((printf|vprintf|puts|putchar|perror) *\(|stdout)' "$scratch/code" |
				while read -r line; do
					complain "$file:$line" \
						"the library does not write on stdout; what it has to say goes through tt_log or tt_fail"
				done ;;
		esac
	done
}

# Calls of libcuda that may wait for a device stand in gpu/slow.c, and in the table of all functions. Calls that always
# wait stand nowhere.
slow='cu(DevicePrimaryCtxRe|CtxSync|Stream(Create|Destroy|Synchronize)|Event(Create|Destroy)|Module|Ipc|MemAlloc|MemFree|MemHost'
slow=$slow'|MemCreate|MemRelease|MemAddress|MemMap|MemUnmap|MemSetAccess|MemExport|MemImport|MemGetHandle)[A-Za-z0-9_]*'
never='cu(EventSynchronize|Memcpy[A-Za-z0-9]*|Memset[A-Za-z0-9]*)'

check_cuda() {
	for file in $(files -name '*.[ch]' | grep -v '^tests/' | xargs grep -lE '[^A-Za-z0-9_]cu[A-Z]' /dev/null); do
		code_of "$file" | grep -E "(^|[^A-Za-z0-9_])$never" | grep -vE "$never(_v2)?Async" | while read -r line; do
			complain "$file:$line" "waits for a device: start a copy, and poll its mark"
		done
		case $file in gpu/slow.c | gpu/driver.h) continue ;; esac
		code_of "$file" | grep -E "(^|[^A-Za-z0-9_])$slow *[(,]" | while read -r line; do
			complain "$file:$line" "may wait for a device: gpu/slow.c alone has such calls"
		done
	done
}

check_paths() { # places of one machine
	files -name '*.[ch]' -o -name '*.def' -o -name '*.sh' -o -name '*.am' -o -name '*.ac' -o -name '*.in' \
		-o -name '*.md' -o -name '*.[135]' -o -name '*.map' -o -name bootstrap -o -name run |
		grep -vE '^(tests/|Makefile\.in$)' |
		xargs grep -nE '(^|[^A-Za-z0-9_.}/])/(work|home|tmp|root)(/|$)' /dev/null | while read -r line; do
			complain "$line" "a path of one machine"
		done
}

# What a page shows is compiled, too: each line stands in the example that it is from.
check_quotes() {
	[ -f docs/tables.md ] || return
	cat examples/table.c examples/outlive.c > "$scratch/shown" 2> /dev/null
	sed -n '/^```c$/,/^```$/p' docs/tables.md | grep -v '^```' | grep -vxFf "$scratch/shown" |
		while read -r line; do
		complain docs/tables.md "shows \"$line\", which is not in examples/table.c or outlive.c"
	done
}

# libtutti.map lists the functions of tutti.h by name.
check_map() {
	[ -f runtime/libtutti.map ] || return
	sed -n 's/^[a-z].*[ *]\(tutti_[a-z0-9_]*\)(.*/\1/p' runtime/tutti.h | sort -u > "$scratch/declared"
	sed -n 's/^[ 	]*\(tutti[^ ;]*\);.*/\1/p' runtime/libtutti.map | sort -u > "$scratch/listed"
	comm -23 "$scratch/declared" "$scratch/listed" | while read -r name; do
		complain runtime/libtutti.map "lacks $name, which tutti.h declares"
	done
	comm -13 "$scratch/declared" "$scratch/listed" | while read -r name; do
		complain runtime/libtutti.map "lists $name, which tutti.h does not declare"
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
	(cd "$1" && check_includes && check_calls && check_cuda && check_width && check_paths && check_quotes && check_map &&
		check_symbols "$build" && check_objects "$build")
}

# The self-test.

put() { # file, text with a format's letters, what they stand for: into the made-up tree
	mkdir -p "$scratch/bad/$(dirname "$1")"
	printf "$2" "${3:-}" > "$scratch/bad/$1"
}

make_bad_tree() {
	put runtime/base/base.h '#include <stdio.h>\n'
	put runtime/base/settings.c 'getenv("OK");\n'
	put runtime/base/up.c '#include "transport/transport.h"\n'
	put runtime/tutti.h '#include <stddef.h>\nint tutti_old(int);\nconst char *tutti_new(void);\n'
	put runtime/libtutti.map 'TUTTI_0.1 {\nglobal:\n\ttutti_old;\n\ttutti_*;\nlocal:\n\t*;\n};\n'
	put runtime/engine/engine.h '#include "tutti.h"\n#include "transport/transport.h"\n#include "base/base.h"\n'
	put runtime/engine/engine.c \
		'#include "engine/engine.h"\n/* exit(1) in a comment, */ char *s = "and abort() in a text";\n'
	put runtime/engine/struct.c '#include "member/member.h"\n'
	put runtime/member/member.h 'int tt_x;\n'
	put runtime/member/member_private.h 'int tt_z;\n'
	put runtime/member/connection.c 'char *f(void) { return getenv("HOME"); }\n'
	put runtime/member/news.c 'void f(void) { printf("x"); }\n'
	put runtime/window/window.c '#include "member/member.h"\nvoid f(void) { exit(1); }\n'
	put runtime/engine/place.c 'int f(void) { return getcpu(0, 0) + (int)syscall(SYS_getcpu, 0, 0, 0); }\n'
	put runtime/member/watch.c 'int f(void) { return eventfd(0, 0); }\nint g(void) { return tt_high_file(eventfd(0, 0)); }\n'
	put runtime/window/nosy.c '#include "member/member_private.h"\n'
	put runtime/table/table.h 'int tt_y;\n'
	put runtime/collective/beside.c '#include "table/table.h"\n'
	put runtime/lodger.c 'int tt_y;\n'
	put runtime/cellar/deep.c 'int tt_y;\n'
	put runtime/launch/config.c 'char *f(void) { return "/ho''me/somebody/tutti.conf"; }\n'
	put runtime/launch/wide.c '/* %121s */\n' x
	put bootstrap '\n# %119s\n' x
	put tests/wide.c '\t/* é%106s */\n/* é%113s */\n' x
	put bindings/python/wide.py '# %119s\n' x
	put docs/wide.md '| %121s |\n%121s\n' x
	put transport/transport.h '#include <stdint.h>\n'
	put transport/tcp/tcp.c '#include "gpu/gpu.h"\n'
	put transport/sim/sim.c '#include "lost.h"\n'
	put transport/shm/shm.c '#include "transport/sim/sim.h"\n'
	put transport/sim/sim.h 'int tt_s;\n'
	put gpu/gpu.h '#include "base/base.h"\n'
	put gpu/gpu.c '#include "transport/transport.h"\n'
	put gpu/driver.h 'X(cuMemAlloc_v2, (int))\nX(cuEventSynchronize, (CUevent))\n'
	put gpu/slow.c '/* cuMemcpyDtoH */ TT_CU(0, cuMemFree_v2, p); TT_CU(0, cuMemcpyAsync, p);\n'
	put gpu/quick.c 'TT_CU(0, cuEventCreate, &e);\ntt_cuda.cuEventQuery(e);\ntt_cuda.cuMemcpyDtoH_v2(p);\n'
	put tools/tutti.c '#include <tutti.h>\n#include "base/base.h"\n'
	put tools/info.c '#include "member/member_private.h"\n'
	put examples/ring.c '#include <tutti.h>\n'
	put examples/hello.c '#include "base/base.h"\n'
	put examples/table.c '#include <tutti.h>\n\nint fine;\n'
	put docs/tables.md '```\nshell\n```\n```c\nint fine;\n\nint stale;\n```\n'
	put bad_symbols.c 'int stray_name(void) { return 1; }\nint tutti_fine(void) { return 2; }\n'
	mkdir -p "$scratch/bad/.libs"
	(cd "$scratch/bad" && ${CC:-cc} -fPIC -c bad_symbols.c && ${CC:-cc} -shared -o .libs/libtutti.so bad_symbols.o &&
		ar rc .libs/libtutti.a bad_symbols.o && rm bad_symbols.[co]) || return
	object runtime/engine/calls_up 'void tt_member_f(void); void tt_e(void) { tt_member_f(); }'
	object runtime/member/called \
		'void tt_member_f(void) {} extern int tt_e_data; int *tt_m(void) { return &tt_e_data; }'
	object runtime/engine/data 'int tt_e_data;'
	object runtime/base/looks_up 'extern int tt_e_data; int *tt_b(void) { return &tt_e_data; }'
	object runtime/table/calls_beside 'void tt_coll_f(void); void tt_t(void) { tt_coll_f(); }'
	object runtime/collective/called 'void tt_coll_f(void) {}'
	object transport/shm/calls_tcp 'void tt_tcp_f(void); void tt_s(void) { tt_tcp_f(); }'
	object transport/tcp/called 'void tt_tcp_f(void) {}'
	object transport/sim/.libs/lib2_la-calls_shm 'void tt_shm_f(void); void tt_s2(void) { tt_shm_f(); }'
	put transport/sim/calls_shm.c 'void tt_shm_f(void);\n'
	object transport/shm/called 'void tt_shm_f(void) {}'
	put libtutti.la '# a library is built\n'
	object examples/private 'void tt_tcp_f(void); void tutti_e(void) { tt_tcp_f(); }'
}

object() { # path without .o, text
	mkdir -p "$scratch/bad/$(dirname "$1")"
	echo "$2" > "$scratch/bad/$1.c"
	${CC:-cc} -c -o "$scratch/bad/$1.o" "$scratch/bad/$1.c"
}

expected='
runtime/base/up.c: (runtime/base, floor 0) includes transport/transport.h
runtime/engine/struct.c: (runtime/engine, floor 2) includes runtime/member/member.h
runtime/window/nosy.c: (runtime/window, floor 5) includes runtime/member/member_private.h
runtime/collective/beside.c: (runtime/collective, floor 6) includes runtime/table/table.h
runtime/lodger.c: stands in no room
runtime/cellar/deep.c: stands in no room
transport/shm/shm.c: (transport/shm, floor 2) includes transport/sim/sim.h
transport/sim/sim.c: includes "lost.h", which is nowhere
gpu/gpu.c: (gpu, floor 1) includes transport/transport.h
gpu/driver.h:2: .* waits for a device
gpu/quick.c:1: .* may wait for a device
gpu/quick.c:3: .* waits for a device
examples/hello.c: (examples, floor 9) includes runtime/base/base.h
runtime/window/window.c:2: .* never ends the process
runtime/member/news.c:1: .* does not write on stdout
runtime/member/connection.c:1: .* getenv is
runtime/engine/place.c:1: .* have no getcpu
runtime/member/watch.c:1: .* may be standard output
runtime/launch/config.c:1:.* a path of one machine
bootstrap:2: a line of 121 columns
runtime/launch/wide.c:1: a line of 127 columns
tests/wide.c:1: a line of 121 columns
bindings/python/wide.py:1: a line of 121 columns
docs/wide.md:2: a line of 121 columns
docs/tables.md: shows "int stale;", which is not in examples/table.c or outlive.c
runtime/libtutti.map: lacks tutti_new
runtime/libtutti.map: lists tutti_\*
libtutti.so: shows (T stray_name)
libtutti.a: has a global (T stray_name)
runtime/engine/calls_up.c: (runtime/engine, floor 2) needs tt_member_f of runtime/member
runtime/base/looks_up.c: (runtime/base, floor 0) needs tt_e_data of runtime/engine
runtime/table/calls_beside.c: (runtime/table, floor 6) needs tt_coll_f of runtime/collective
transport/shm/calls_tcp.c: (transport/shm, floor 2) needs tt_tcp_f of transport/tcp
transport/sim/calls_shm.c: (transport/sim, floor 2) needs tt_shm_f of transport/shm
libtutti.la: of [1-9][0-9]* sources no object was looked at
examples/private.c: (examples) needs tt_tcp_f, which is not public'

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
[ -f "$build_tree/.libs/libtutti.so" ] || [ -f "$build_tree/.libs/libtutti.a" ] ||
	echo "no library in $build_tree: its symbols were not looked at"
if [ -s "$scratch/complaints" ]; then
	cat "$scratch/complaints"
	echo "$(wc -l < "$scratch/complaints") complaints"
	exit 1
fi
echo "the house is in order"
