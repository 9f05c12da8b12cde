#!/bin/sh
# check.sh - RDMA on a real kernel's stack, in a guest; `make check-verbs` calls it.
#
#   check.sh SOURCE-TREE BUILD-TREE [PART ...]     the parts named, else all but those of check-long; `check.sh . .
# list`
#                                                  names them
#
# All parts run in one guest, one after the other. One line a part: what came of it, and its time; what a part printed
# is in BUILD-TREE/guest-PART.log. Exit status: 0; 1 if a part failed; 77 with a line `SKIPPED: ...` where there can be
# no guest.
set -u
export LC_ALL=C
source_tree=$(cd "$1" && pwd) && build_tree=$(cd "$2" && pwd) || exit 2
shift 2
here=$source_tree/tests/vm
# shellcheck source=tests/vm/common.sh
. "$here/common.sh"

# Each part is a function part_NAME, which runs in the guest, in the build tree. 77 is "cannot be done here", with the
# reason in its last line. The limits are for a busy machine: all together take a third of them on two quiet cores.
# part, limit in seconds, what it does
parts='
roce           120  rxe0 and rxe1 move bytes, over queue pairs connected by hand and by librdmacm
iwarp          120  siw0 and siw1 move bytes
loss           120  both while 1 % of the packets get lost
contract       300  the contract of the transports, from rxe0 to rxe1
contract_cm    300  the same, connected by librdmacm
contract_iwarp 300  the contract of the transports, from siw0 to siw1
contract_loss  300  the contract while 1 % of the packets get lost
fashion        300  examples/fashion on two ranks learns over verbs what it learns over TCP, to the bit
mixed          300  the same on four ranks, two on a host: over shared memory within, over verbs between
killed         120  a rank is killed in the middle of transfers: the others hear of it, and go on
unplugged      120  the same with a cable that is pulled out
unplugged_cm   120  likewise, where librdmacm has connected them
removed        120  the same with a device that is removed while all ranks live, and then is added again
removed_cm     120  likewise, where librdmacm has connected them, while the rank of that device lives
passive        120  a stopped rank takes puts as fast as a rank that polls; not each MiB read wakes the owner
doctor         120  tutti doctor in a job names the port of each rank
connects       120  connects and closes leave no queue pair, memory region or file: rxe, with librdmacm too, and siw'
# those of check-long
long_parts='
suites        2400  windows, collectives, groups, tables: ranks on rxe0 and on rxe1
suites_loss   3600  most of them while 1 % of the packets get lost'

least=2097152
crosses() { # interface, command: it works, and as many bytes at least went out through the interface
	sent=/sys/class/net/$1/statistics/tx_bytes
	before=$(cat "$sent")
	shift
	"$@" || return
	crossed=$(($(cat "$sent") - before))
	[ $crossed -ge $least ] || { echo "only $crossed bytes crossed the cable" >&2; return 1; }
}

lose() { # interfaces, command: with 1 % loss, each way
	for end in 0 1; do
		tc qdisc add dev "$1$end" root netem loss 1% || return 1
	done
	cable=$1
	shift
	"$@"
	result=$?
	for end in 0 1; do
		tc qdisc del dev "$cable$end" root
	done
	return $result
}

need_siw() { [ -d /sys/module/siw ] || { echo "SKIPPED: the guest has no siw"; return 77; }; }

part_roce() { crosses roce0 tests/vm/smoke plain rxe0 rxe1 && crosses roce0 tests/vm/smoke cm 10.77.0.1 10.77.0.2; }
part_iwarp() { need_siw && crosses iwarp0 tests/vm/smoke cm 10.78.0.1 10.78.0.2; }
part_loss() {
	lose roce crosses roce0 tests/vm/smoke plain rxe0 rxe1 || return
	need_siw > /dev/null || return 0
	lose iwarp crosses iwarp0 tests/vm/smoke cm 10.78.0.1 10.78.0.2
}

need() { [ -x "$1" ] || { echo "SKIPPED: $1 is not built: make $1, which needs CUnit"; return 77; }; }
contract() { # devices
	need tests/transport/contract || return
	tests/transport/contract --transport verbs --devices "$1" --no-breaks --seeds 1 -v
}
part_contract() { crosses roce0 contract rxe0,rxe1; }
part_contract_cm() { TUTTI_VERBS_CONNECT=cm crosses roce0 contract rxe0,rxe1; }
part_contract_iwarp() { need_siw && crosses iwarp0 contract siw0,siw1; }
# When packets get lost rxe of Linux 6.1 refuses good requests now and then, perftest's too: docs/rdma.md. Such a run
# says nothing of Tutti.
part_contract_loss() {
	tries=$(mktemp) || return 1
	export TUTTI_LOG=debug
	lose roce crosses roce0 contract rxe0,rxe1 > "$tries" 2>&1
	status=$?
	cat "$tries"
	if [ $status != 0 ] && grep -q 'refused a request as invalid' "$tries"; then
		echo "once more, since rxe refused a request as invalid"
		lose roce crosses roce0 contract rxe0,rxe1
		status=$?
	fi
	rm -f "$tries"
	return $status
}

be32() { # number: its 4 bytes
	# shellcheck disable=SC2059
	printf "$(printf '\\%03o\\%03o\\%03o\\%03o' $(($1 >> 24)) $(($1 >> 16 & 255)) $(($1 >> 8 & 255)) $(($1 & 255)))"
}

make_pictures() { # folder, train or t10k, how many: idx files of any bytes
	{ be32 2051; be32 "$3"; be32 28; be32 28; head -c $(($3 * 784)) examples/fashion; } > "$1/$2-images-idx3-ubyte"
	{ be32 2049; be32 "$3"; yes 01234567 | tr -d '\n' | tr 0-7 '\000-\007' |
		head -c "$3"; } > "$1/$2-labels-idx1-ubyte"
}

suites() { # programs
	bad=0 least=65536
	export TEST_WIRE=verbs TEST_DEVICES=rxe0,rxe1
	for program; do
		need "tests/$program" || return
		start=$(date +%s)
		result=passed
		crosses roce0 "tests/$program" -v || result=FAILED bad=1
		echo "== $program: $result after $(($(date +%s) - start)) s"
	done
	return $bad
}
few_at_once="window/unit_runtime member/unit_group table/unit_table table/unit_rows table/unit_clocks"
# shellcheck disable=SC2086
part_suites() { suites $few_at_once collective/unit_collectives table/unit_snapshots; }
# Without the two programs that have most on several queue pairs at once: see part_contract_loss.
# shellcheck disable=SC2086
part_suites_loss() { lose roce suites $few_at_once; }

fashion() { # prefix of the command ...
	TUTTI_ALLREDUCE=ring "$@" ./examples/fashion --epochs 2 --json --plot none --data "$folder"
}

train_two() { # transports: the loss after each epoch
	# shellcheck disable=SC2016
	TUTTI_TRANSPORTS=$1 fashion ./tutti run -n 2 sh -c 'TUTTI_VERBS_DEVICES=rxe$TUTTI_RANK exec "$@"' sh
}

# Addresses that differ are hosts that differ to a list of nodes. Each rank's log says how it reaches the others.
train_four() { # transports
	ranks=
	for rank in 0 1 2 3; do
		fashion env TUTTI_TRANSPORTS="$1" TUTTI_VERBS_DEVICES=rxe$((rank / 2)) TUTTI_CONFIG="$folder/nodes" \
			TUTTI_NODE=$rank TUTTI_LOG=debug 2> "$folder/log.$rank" & ranks="$ranks $!"
	done
	for process in $ranks; do
		wait "$process" || { cat "$folder"/log.*; return 1; }
	done
}

compare_training() { # command, transports: what is learned over them is what is learned over TCP
	folder=$(mktemp -d) || return 1
	make_pictures "$folder" train 512
	make_pictures "$folder" t10k 64
	(umask 077 && : > "$folder/nodes")
	for rank in 0 1 2 3; do
		printf '{ name = "%d"; address = "10.77.0.%d:%d"; }, ' $rank $((1 + rank / 2)) $((4400 + rank))
	done | sed 's/^/secret = "0123456789abcdef"; nodes = (/; s/, $/);/' > "$folder/nodes"
	"$1" tcp > "$folder/lines" || return 1
	sed 's/"seconds.*//' "$folder/lines" > "$folder/tcp"
	crosses roce0 "$1" "$2" > "$folder/lines" || return 1
	sed 's/"seconds.*//' "$folder/lines" | tee "$folder/verbs"
	[ "$(wc -l < "$folder/tcp")" -eq 2 ] && cmp "$folder/tcp" "$folder/verbs"
}

packets() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }
reached_over() { [ "$(cat "$folder"/log.* | grep -c "is connected over $1\$")" -eq "$2" ]; }

part_fashion() { compare_training train_two verbs,tcp; }
part_mixed() { # in a ring of four each of the ranks sends to the next one: two within a host, two between hosts
	grep -q DHAVE_LIBCONFIG=1 Makefile || { echo "SKIPPED: a list of nodes needs libconfig"; return 77; }
	packets_before=$(packets)
	compare_training train_four shm,verbs && cat "$folder"/log.* && reached_over shm 4 && reached_over verbs 8 &&
		[ $(($(packets) - packets_before)) -gt 100 ]
}

# Ranks 0 and 1 are on rxe0, rank 2 is on rxe1. It is struck while all move bytes.
transfer() { # rank, the ranks it loses
	# with librdmacm ranks 0 and 1 may have the adapter of rank 2 open until they end
	[ "$1" != 2 ] && [ -n "${TUTTI_VERBS_CONNECT:-}" ] || UNTIL=${until:-} && export UNTIL
	TUTTI_RANK=$1 TUTTI_SIZE=3 TUTTI_BOOT=127.0.0.1:4400 TUTTI_TRANSPORTS=verbs,tcp TUTTI_IFACE=lo \
		TUTTI_VERBS_DEVICES=rxe$(($1 / 2)) exec tests/vm/transfers "$folder" "$2"
}

all_move() { [ -e "$folder/ready.0" ] && [ -e "$folder/ready.1" ] && [ -e "$folder/ready.2" ]; }
all_live() { kill -0 "$first" && kill -0 "$second" && kill -0 "$third"; }

strike() { # command, which finds rank 2 in $third
	folder=$(mktemp -d) || return 1
	transfer 0 2 & first=$!
	transfer 1 2 & second=$!
	transfer 2 0,1 & third=$!
	while ! all_move; do
		all_live || { wait; return 1; }
		sleep 0.1
	done
	: > "$folder/struck"
	"$@"
	result=$?
	wait $first || result=1
	wait $second || result=1
	return $result
}

# 100, and those before things have settled.
connect_often() { TEST_CONNECTS=120 TEST_DEVICES=$1 tests/verbs/unit_verbs_failures leaks; }
part_connects() {
	need tests/verbs/unit_verbs_failures || return
	connect_often rxe0,rxe1 && TUTTI_VERBS_CONNECT=cm connect_often rxe0,rxe1 || return
	need_siw > /dev/null || return 0
	connect_often siw0,siw1
}

# Ranks 0 and 1, on rxe0 and rxe1.
pair() { # command
	TUTTI_TRANSPORTS=verbs,tcp ./tutti run -n 2 sh -c 'TUTTI_VERBS_DEVICES=rxe$TUTTI_RANK exec "$@"' sh "$@"
}
# The guest takes seconds for 100 MB, and a sign of life goes 32 times in TUTTI_SILENCE.
part_passive() { TUTTI_SILENCE=240000 crosses roce0 pair tests/vm/passive; }
part_doctor() {
	pair ./tutti doctor > "guest-doctor.text" 2>&1
	cat guest-doctor.text
	grep -q 'rxe0:1' guest-doctor.text && grep -q 'rxe1:1' guest-doctor.text && grep -q 'over verbs' guest-doctor.text
}

part_killed() { strike eval 'kill -9 $third'; }
# Not by `ip link set roce1 down`: rxe of Linux 6.1 then tries again and again, and its kernel does nothing else.
pull() { for end in 0 1; do tc qdisc add dev roce$end root netem loss 100% || return 1; done; }
plug() { for end in 0 1; do tc qdisc del dev roce$end root; done; }
part_unplugged() {
	strike pull && wait $third
	result=$?
	plug
	return $result
}

part_unplugged_cm() { TUTTI_VERBS_CONNECT=cm part_unplugged; }

# The kernel waits until nobody has the device open. The ranks do not end before.
remove() {
	ls -l /sys/class/infiniband_verbs
	timeout 20 rdma link del rxe1
	status=$?
	: > "$folder/removed"
	[ $status = 0 ] || { echo "rdma link del: $status" >&2; return 1; }
	echo "removed $(($(date +%s) - $(stat -c %Y "$folder/struck"))) s after the strike"
}
part_removed() {
	until=removed
	strike remove && wait $third
	result=$?
	rdma link add rxe1 type rxe netdev roce1 2> /dev/null
	return $result
}

part_removed_cm() { TUTTI_VERBS_CONNECT=cm part_removed; }

names() { echo "$1" | awk 'NF { print $1 }'; }
limit_of() { echo "$parts$long_parts" | awk -v name="$1" '$1 == name { print $2 }'; }
limit_of_all() { # parts
	sum=300 # it boots
	for name; do
		sum=$((sum + $(limit_of "$name")))
	done
	echo $sum
}

run_parts() { # in the guest
	failed=0
	for name; do
		start=$(date +%s)
		timeout -k 10 "$(limit_of "$name")" sh "$here/check.sh" "$source_tree" . part "$name" \
			> "guest-$name.log" 2>&1
		status=$?
		case $status in
		0) result=passed ;;
		77) result="skipped: $(sed -n 's/^SKIPPED: //p' "guest-$name.log" | tail -n 1)" ;;
		124 | 137) result="FAILED: not done after $(limit_of "$name") s" failed=1 ;;
		*) result="FAILED ($status)" failed=1 ;;
		esac
		printf '%-14s %5d s  %s\n' "$name" $(($(date +%s) - start)) "$result"
		case $result in FAILED*) tail -n 30 "guest-$name.log"; dmesg | tail -n 10 ;; esac
	done
	dmesg > guest-dmesg.log
	return $failed
}

run_guest() { # parts; on a terminal with the seconds since it began
	clear=
	[ ! -t 2 ] || clear=$(printf '\r\033[K')
	status_file=$(mktemp) || exit 1
	count_seconds "in the guest"
	{
		"$here/run" -t "$(limit_of_all "$@")" -w "$build_tree" sh "$here/check.sh" "$source_tree" \
			"$build_tree" parts "$@" 2>&1
		echo $? > "$status_file"
	} | while IFS= read -r line; do
		printf '%s%s\n' "$clear" "$line"
	done
	end_count
	status=$(cat "$status_file")
	rm -f "$status_file"
	return "$status"
}

cd "$build_tree" || exit 2
case "${1:-}" in
list) echo "$parts$long_parts" | sed 1d; exit 0 ;;
part) "part_$2"; exit ;;
parts) shift; run_parts "$@"; exit ;;
esac
for name; do
	names "$parts$long_parts" | grep -qx "$name" ||
		{ echo "check.sh: there is no part $name; they are: $(names "$parts$long_parts" | xargs)"; exit 2; }
done
if [ ! -x tests/vm/smoke ]; then
	echo "SKIPPED: this build is without RDMA (apt install libibverbs-dev librdmacm-dev, configure again)"
	exit 77
fi
sh "$here/build.sh" || exit
# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $(names "$parts")
trap 'end_count; exit 130' INT TERM HUP
run_guest "$@"
