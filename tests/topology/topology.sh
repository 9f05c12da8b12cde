#!/bin/sh
# topology.sh - `tutti info --topology` on machines that are described under tests/topology, and on this one; wrong
# input; and
# that ranks which taskset has restricted keep to that. tests/topology/topology.sh [TEST]
#   tests/topology/MACHINE.RANKS.txt is the picture with TUTTI_PIN=spread. After a change that is meant:
#   TOPOLOGY_KEEP=1 top_builddir=. top_srcdir=.. ../tests/topology/topology.sh pictures, and look at what git says has
# changed.
set -u
export LC_ALL=C
unset $(env | sed -n 's/^\(TUTTI_[A-Z_]*\|LOCAL_WORLD_SIZE\|HWLOC_[A-Z_]*\)=.*/\1/p')
tutti=$(cd "${top_builddir:-.}" && pwd)/tutti
hello=$(cd "${top_builddir:-.}" && pwd)/examples/hello
machines=$(cd "${top_srcdir:-$(dirname "$0")/../..}" && pwd)/tests/topology
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 99
checks=0 failures=0 status=0

say() { printf '%s\n' "$*"; }
check() { # what, then a command
	what=$1
	shift
	checks=$((checks + 1))
	"$@" && return
	failures=$((failures + 1))
	say "FAILED $test: $what: $*"
	sed 's/^/  | /' out err
}
is() { [ "$1" = "$2" ]; }
has() { grep -q -e "$2" "$1"; }
has_not() { ! grep -q -e "$2" "$1"; }
empty() { [ ! -s "$1" ]; }
narrow() { [ "$(wc -L < "$1")" -le 80 ]; }
one_line() { is "$(wc -l < "$1")" 1; }
info() {
	"$tutti" info "$@" > out 2> err
	status=$?
}
same_as() {
	[ -z "${TOPOLOGY_KEEP:-}" ] || cp out "$1"
	diff "$1" out > difference || { cat difference; return 1; }
}

"$tutti" info --json | grep -q '"hwloc": true' && hwloc=yes || hwloc=no
cores=$("$tutti" info -t --json | tr ' ' '\n' | grep -c '"core"')
allowed=$(taskset -cp $$ | sed 's/.*: //')
first=${allowed%%[,-]*} last=${allowed##*[,-]}

test_pictures() {
	[ $hwloc = yes ] || return
	for picture in "$machines"/*.txt; do
		name=$(basename "$picture" .txt)
		(cd "$machines" && TUTTI_PIN=spread "$tutti" info --topology "${name%.*}.xml" --ranks "${name##*.}") > \
			out 2> err
		check "status 0" is $? 0
		check "$name as expected" same_as "$picture"
		check "80 columns" narrow out
		check "nothing to complain of" empty err
	done
}

test_large() { # folded: no more than a screen
	[ $hwloc = yes ] || return
	for pin in auto compact spread; do
		for n in 1 2 8 64 128 1000; do
			TUTTI_PIN=$pin info -t 'package:2 numa:4 l3:4 l2:4 core:1 pu:2' -n $n
			check "$pin, $n ranks" is $status 0
			check "80 columns" narrow out
			check "a screen" [ "$(wc -l < out)" -le 45 ]
		done
	done
	check "more ranks than cores" has out 'more than cores: nothing is pinned to one'
}

test_here() {
	info --topology
	check "status 0" is $status 0
	check "80 columns" narrow out
	check "cores" has out 'cores\? [0-9]'
	check "not restricted" has_not out 'not allowed'
	[ $hwloc = yes ] || check "what is missing" has out 'libhwloc-dev'
	TUTTI_PIN=$last info -t
	check "a list" is $status 0
	check "its rank" has out "^ *0 .* $last "
	TUTTI_LOCAL_SIZE=3 info -t
	check "a launcher's number of ranks" has out '3 ranks'
	[ "$first" != "$last" ] || return
	taskset -c "$last" "$tutti" info -t > out 2> err
	check "restricted by taskset" has out "^allowed: CPU $last, by"
	check "the others are not allowed" has out 'not allowed'
	check "the rank is where it may be" has out "^ *0 .* $last "
}

test_json() {
	info -t --json
	check "status 0" is $status 0
	command -v python3 > /dev/null || return
	check "JSON" python3 -c \
		'import json; t = json.load(open("out")); assert t["ranks"][0]["processors"] == t["allowed"] and t["objects"][0]["parent"] == -1'
	[ $hwloc = yes ] || return
	TUTTI_PIN=spread info -t "$machines/dual.xml" -n 2 -j
	check "who is near what" python3 -c 'import json; t = json.load(open("out"))
name = lambda i: t["objects"][i]["name"]
assert [name(r["nics"][0]) for r in t["ranks"]] == ["ib0 mlx5_0", "ens2f0 mlx5_1"]
assert [r["node"] for r in t["ranks"]] == [0, 1] and t["ranks"][1]["background"] == "15,31"'
}

refused() { # status, words, then info's arguments
	wanted=$1 words=$2
	shift 2
	info "$@"
	check "refused" is $status "$wanted"
	check "one sentence" one_line err
	check "that names it" has err "$words"
}

test_wrong_input() {
	TUTTI_PIN=abc refused 1 'TUTTI_PIN=abc is none of auto, compact, spread, none and a list of CPUs' -t
	TUTTI_PIN=0-4095 refused 1 'TUTTI_PIN=0-4095: there is no CPU' -t
	refused 2 '-n none' -t -n none
	refused 2 '-n 0' -t -n 0
	refused 2 '--ranks goes with --topology' -n 3
	refused 2 'no argument without --topology (a.xml)' a.xml
	refused 2 'one file (b.xml)' -t a.xml b.xml
	refused 2 '--topolgy (did you mean --topology?)' --topolgy
	echo "no machine" > bad.xml
	[ $hwloc = yes ] ||
		{ refused 1 'bad.xml cannot be read without hwloc: install libhwloc-dev' -t bad.xml; return; }
	refused 1 'bad.xml is no machine that hwloc can read: .*lstopo FILE.xml' -t bad.xml
	refused 1 'cannot read ./none.xml: No such file' -t ./none.xml
	refused 1 'package:2 core:x.*lstopo' -t 'package:2 core:x'
	TUTTI_PIN=31-32 refused 1 'TUTTI_PIN=31-32: there is no CPU 32, this machine has 0-31' -t "$machines/dual.xml"
	[ "$first" != "$last" ] || return
	taskset -c "$last" env TUTTI_PIN="$first" "$tutti" info -t > out 2> err
	check "outside of a cpuset" is $? 1
	check "is named" has err \
		"TUTTI_PIN=$first: CPU $first is outside of what a launcher, taskset or a cgroup .* some of $last"
}

job() { # arguments of tutti run
	TUTTI_LOG=debug "$tutti" run "$@" > out 2> err
	status=$?
}

test_ranks() {
	job -n 1 "$hello"
	check "auto pins nothing to a core" has_not err pinned
	TUTTI_PIN=spread job -n 1 "$hello"
	check "pinned" has err 'pinned the background thread to CPU'
	TUTTI_PIN=spread job -n $((cores + 1)) "$hello"
	check "status 0" is $status 0
	check "more ranks than cores" has err "TUTTI_PIN=spread pins nothing: $((cores + 1)) ranks share fewer cores"
	check "said once" is "$(grep -c 'pins nothing' err)" 1
	check "none is pinned" has_not err 'pinned the'
	[ "$first" != "$last" ] || return
	TUTTI_PIN=compact job -n 2 "$hello"
	check "each rank pins" is "$(grep -c 'pinned the background' err)" 2
	check "elsewhere" is "$(grep 'pinned the background' err | sort -u | wc -l)" 2
	TUTTI_PIN=compact taskset -c "$last" "$tutti" run -n 2 "$hello" > out 2> err
	check "two on what is one to them" has err 'TUTTI_PIN=compact pins nothing: 2 ranks'
	TUTTI_PIN=$first taskset -c "$last" "$tutti" run -n 2 "$hello" > out 2> err
	check "a list outside of the cpuset ends it" is $? 1
	check "and is named" has err "TUTTI_PIN=$first: CPU $first is outside"
	# a launcher that gives each rank a core of its own: then no other rank counts
	TUTTI_PIN=compact job -n 2 sh -c \
		'if [ $TUTTI_RANK = 0 ]; then cpu='"$first"'; else cpu='"$last"'; fi; exec taskset -c $cpu '"$hello"
	check "each has its own" is "$(grep -c 'pinned the background' err)" 2
	check "the first" has err "thread to CPU $first\$"
	check "and the last" has err "thread to CPU $last\$"
}

# Two NUMA nodes, as far as this host's files go: for root, who may mount, in a mount namespace.
test_nodes() {
	[ "$first" != "$last" ] || return
	mkdir -p node/node0 node/node1
	echo 0-1 > node/online
	echo "$first" > node/node0/cpulist
	echo "$last" > node/node1/cpulist
	unshare -m mount --bind node /sys/devices/system/node 2> /dev/null || return
	unshare -m sh -c "mount --bind node /sys/devices/system/node && TUTTI_LOG=debug $tutti run -n 2 $hello" > out \
		2> err
	check "auto" is $? 0
	check "both kept on the node where they run" is \
		"$(grep -c "pinned the background thread to CPU $first\$" err)" 2
	unshare -m sh -c \
		"mount --bind node /sys/devices/system/node && TUTTI_LOG=debug TUTTI_PIN=none $tutti run -n 2 $hello" \
			> out 2> err
	check "none" has_not err pinned
	unshare -m sh -c \
		"mount --bind node /sys/devices/system/node && TUTTI_LOG=debug taskset -c $first $tutti run -n 2 $hello" > out 2> err
	check "bound to less than a node" has_not err pinned
}

for test in pictures large here json wrong_input ranks nodes; do
	[ $# = 0 ] || [ "$1" = "$test" ] || continue
	: > out > err
	test_$test
done
say "$checks checks, $failures failed"
[ "$failures" = 0 ]
