#!/bin/sh
# doctor.sh - `tutti doctor`: this host, the pairs of a job, and a job under way. As root also hosts that are network
# namespaces, one of them slow, shut, wrong.
set -u
. "$(dirname "$0")/../harness/tutti.sh"
PATH=$PATH:/usr/sbin:/sbin
late=${tutti%/*}/tests/tools/late

# doctor ARGUMENT ...: leaves out, err and status
tool=doctor
doctor() {
	name="tutti doctor $*"
	"$tutti" doctor "$@" > out 2> err
	status=$?
}
finds() { # check, sentence
	check "status 1" is $status 1
	check "finds it" has out "^finding  $1 .*$2"
}
skip() { echo "doctor.sh: left out: $*"; }

test_host() {
	doctor
	check "status 0 or 1" [ $status -le 1 ]
	check "nothing on stderr" lines err 0
	check "settings" has out '^fine     settings '
	check "memory" has out '^[a-z]*  *memory '
	check "loopback" has out '^fine     network    127.0.0.1 (lo) accepts'
	check "the name" has out '^[a-z]*  *names '
	if grep -q '\[never\]\|\[deny\]' /sys/kernel/mm/transparent_hugepage/shmem_enabled 2> err; then
		check "small pages" has out '^note     pages .*echo advise > .*shmem_enabled'
	else
		check "huge pages" has out '^[a-z]*  *pages '
	fi
	doctor --json
	check "no finding without status 1" is $status "$(grep -c '"findings": [1-9]' out)"
	json 'd = json.load(open("out")); assert len(d["checks"]) > 8'
}

test_limits() {
	name="limits"
	(ulimit -n 256 && exec "$tutti" doctor) > out 2> err
	status=$?
	finds files '256 files.*: raise the limit to 1024 .* ulimit -n'
	(ulimit -f 1000 && exec "$tutti" doctor) > out 2> err
	status=$?
	finds memory 'raise the limit with ulimit -f'
	if setpriv --bounding-set=-ipc_lock true 2> err; then
		without='setpriv --bounding-set=-ipc_lock'
	elif [ "$(id -u)" != 0 ]; then
		without=
	else
		skip "memlock, without setpriv"
		return
	fi
	(ulimit -l 64 && exec $without "$tutti" doctor --rdma) > out 2> err
	status=$?
	finds memlock 'may lock 64 KiB .*: set memlock to unlimited'
	(ulimit -l 64 && exec $without "$tutti" run -n 2 "$tutti" doctor --rdma) > out 2> err
	status=$?
	finds memlock 'rank 0 .*may lock 64 KiB'
}

# A cgroup of its own, of either version: leaves `group`. Controller, then FILE=TEXT ...: one of these holds.
make_group() {
	controller=$1
	shift
	for root in /sys/fs/cgroup/$controller /sys/fs/cgroup; do
		group=$root/tutti-doctor-$$
		mkdir "$group" 2> /dev/null || continue
		for limit in "$@"; do
			[ -e "$group/${limit%%=*}" ] && echo "${limit#*=}" > "$group/${limit%%=*}" 2> /dev/null &&
				return
		done
		rmdir "$group"
	done
	skip "a limit of $controller, for which this user can make no cgroup"
	return 1
}
grouped() { # command ...
	sh -c "echo \$\$ > $group/cgroup.procs && exec \"\$@\"" sh "$@"
}

test_memory() {
	name="memory.max"
	make_group memory memory.limit_in_bytes=64M memory.max=64M || return
	grouped "$tutti" doctor > out 2> err
	status=$?
	finds memory "tutti-doctor-$$ leaves 0.0[0-9] GiB, and 1 rank .*: raise its memory.max"
	TUTTI_TRANSPORTS=tcp "$tutti" run -n 2 sh -c \
		"[ \$TUTTI_RANK = 0 ] || echo \$\$ > $group/cgroup.procs; exec '$tutti' doctor" > out 2> err
	status=$?
	finds memory "rank 1 .*tutti-doctor-$$ leaves"
	rmdir "$group"
}

test_quota() {
	name="cpu.max"
	make_group cpu cpu.cfs_quota_us=50000 cpu.max='50000 100000' || return
	grouped "$tutti" doctor > out 2> err
	status=$?
	finds cores 'allows the time of 0.5 cores to 1 rank'
	grouped "$tutti" info > out 2> err
	check "tutti info" has out "^  time  *of 0.50 processors, by a cgroup's quota\$"
	grouped "$tutti" info --json > out 2> err
	check "as JSON" has out '"processors": { .*"time": 0.50 }'
	rmdir "$group"
}

# A host without a loopback: no rank of it finds another one there.
test_loopback() {
	name="no loopback"
	unshare -n true 2> err || { skip "a host without a loopback, for which this user may make no network"; return; }
	unshare -n "$tutti" doctor > out 2> err
	status=$?
	finds network 'the loopback is down, .*: ip link set lo up'
	unshare -n sh -c "ip link set lo up && ip addr flush dev lo && exec '$tutti' run -n 1 true" > out 2> err
	status=$?
	check "tutti run says so, too" has err \
		'^tutti run: cannot listen on 127.0.0.1 (.*) nor on \[::1\] (.*): .* (ip link set lo up)?$'
	unshare -n sh -c "ip link set lo up && ip addr del 127.0.0.1/8 dev lo &&
		exec '$tutti' run -n 2 sh -c 'echo \$TUTTI_BOOT; exec ${tutti%/*}/examples/ring'" > out 2> err
	status=$?
	if [ -e /proc/net/if_inet6 ]; then
		check "::1 does where 127.0.0.1 is missing" has out 'hops around 2 ranks'
		check "as TUTTI_BOOT says" has out '^\[::1\]:[0-9]*$'
	fi
	unshare -m sh -c "mount -t tmpfs none /dev && exec '$tutti' run -n 1 true" > out 2> err
	check "nothing goes without /dev/null, and that is said" has err '^tutti run: cannot open /dev/null: No such file'
}

test_settings() {
	TUTTI_PORTS=900-1 doctor
	finds settings 'TUTTI_PORTS=900-1 is not a range of ports'
	doctor --memory 64G
	check "as much as it may be" [ $status -le 1 ]
	TUTTI_LOCAL_SIZE=100000 doctor
	finds cores '100000 ranks of this host share'
	check "and memory" has out '^finding  memory .*100000 ranks '
}

test_pairs() {
	for wires in shm,tcp tcp; do
		name="a job over $wires"
		TUTTI_TRANSPORTS=$wires "$tutti" run -n 2 "$tutti" doctor > out 2> err
		status=$?
		check "one pair" has out "^fine     pairs      1 over ${wires%,tcp}: there and back in "
		check "clocks" has out '^fine     clock      all clocks agree'
	done
	for ranks in 3 5; do
		TUTTI_TRANSPORTS=tcp "$tutti" run -n $ranks "$tutti" doctor --json > out 2> err
		check "all pairs" has out "\"$((ranks * (ranks - 1) / 2)) over tcp: "
		check "said once" is "$(grep -c '"version"' out)" 1
	done
}

test_joins() {
	name="a rank that does not come"
	TUTTI_TIMEOUT=2000 TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_BOOT=127.0.0.1:0 "$tutti" doctor > out 2> err
	status=$?
	finds join 'rank 1 of 2 did not join at .*: see what the missing rank has written'
	name="without a launcher's words"
	TUTTI_RANK=0 doctor
	finds join 'TUTTI_RANK is set and TUTTI_SIZE is not'
}

wait_for() { # command ...: until it succeeds
	for try in $(seq 600); do
		"$@" && return
		sleep 0.1
	done
	check "waited for: $*" false
}
asked() { # sentence, ARGUMENT ...: the doctor says so
	said=$1
	shift
	doctor "$@"
	has out "$said"
}

# The ranks hold the ports that they are asked about.
test_ports() {
	name="ports that are held"
	first=$((20000 + $$ % 10000))
	TUTTI_PORTS=$first-$((first + 1)) "$tutti" run -n 2 "$tutti" doctor > out 2> err
	status=$?
	check "no finding on ports" sh -c '! grep -q "ports  *\|can listen" out'
	check "they meet" has out 'pairs '
}

# Ranks that do not meet say what may be the cause.
test_apart() {
	name="a rank is missing, and files are few"
	(ulimit -n 200 && TUTTI_RANK=0 TUTTI_SIZE=2 TUTTI_TIMEOUT=300 TUTTI_BOOT=127.0.0.1:0 exec "$tutti" doctor) \
		> out 2> err
	status=$?
	finds join 'rank 1'
	finds files '200 files'
	check "findings alone" sh -c '! grep -q "^fine" out'
}

sees_late() { # rank 2 of this job: other tests have jobs on this host, too
	asked '^[a-z]*  *waits *rank 2, process [0-9]*, is in no call: the last one was barrier' --running || return
	for pid in $(sed -n 's/.*rank 2, process \([0-9]*\), is in no call.*/\1/p' out); do
		grep -q "^PPid:[[:space:]]*$job\$" "/proc/$pid/status" && return
	done
	return 1
}

waits_in_vain() { # rank: the doctor finds that it has waited for rank 2 for too long
	has out "^note     waits *rank $1, process [0-9]*, has waited [0-9]* s in all-reduce for .*rank 2: its last call was barrier"
}
both_wait() { # the two begin to wait one after the other, so one look may find one of them alone
	doctor "$pid"
	waits_in_vain 0 && waits_in_vain 1
}

test_running() {
	TUTTI_SILENCE=120000 TUTTI_TRANSPORTS=${1:-shm,tcp} "$tutti" run -n 3 "$late" "$scratch/go" > late.out 2>&1 &
	job=$!
	wait_for sees_late
	wait_for both_wait
	check "status 1" is $status 1
	command="grep . /proc/$pid/task/\*/wchan"
	! command -v gdb > which || command="gdb -p $pid -batch -ex 'thread apply all bt'"
	check "who keeps them waiting, and how to look" has out \
		"^finding  late *rank 2, process $pid, is what 2 other ranks of this host wait for, .*: $command\$"
	check "which job" has out '^fine     job  *"run-[0-9a-f]*": on this host ranks 0-2 of 3$'
	kill -STOP "$pid"
	doctor "$pid"
	finds stopped "process $pid, rank 2, is stopped (SIGSTOP).*: kill -CONT $pid\$"
	kill -CONT "$pid"
	doctor --json "$pid"
	check "JSON" has out '"check": "late", "verdict": "finding"'
	: > go
	wait "$job"
	check "the job goes on, and ends well" is $? 0
	rm go
	doctor "$$"
	check "status 2" is $status 2
	check "no rank" has err "^tutti doctor: PID $$ is no rank of a job"
}
test_running_tcp() { test_running tcp; }

test_newcomer() { # waits for a job that is not there, and has no number
	TUTTI_RANK=new TUTTI_SIZE=2 TUTTI_BOOT=127.0.0.1:1 "$late" x 2> late.out &
	pid=$!
	wait_for asked "process $pid, a newcomer, " "$pid"
	check "it has no rank" has out "process $pid, a newcomer, "
	kill "$pid"
}

test_refusals() {
	refuses 'no option --jsom (did you mean --json?)' --jsom
	refuses 'a size is a number of bytes' --memory lots
	refuses 'takes no PIDs' --running 1
	refuses 'a whole number' x
	refuses 'runs on their host' --hosts a 1
	refuses 'there is no such process' 2147483647
	doctor --help
	check "help is no mistake" is $status 0
	check "it has an example" has out 'tutti run -n 4 tutti doctor'
}

# ---- four hosts: network namespaces joined by a bridge ----

hosts=doctor$$
drop_hosts() {
	for i in 1 2 3 4 hub; do ip netns del $hosts-$i 2> /dev/null; done
}
make_hosts() {
	[ "$(id -u)" = 0 ] && ip netns add $hosts-hub 2> err || return
	trap 'drop_hosts; rm -rf "$scratch"' EXIT
	ip -n $hosts-hub link add bridge0 type bridge && ip -n $hosts-hub link set bridge0 up || return
	for i in 1 2 3 4; do
		ip netns add $hosts-$i && ip -n $hosts-hub link add v$i type veth peer name eth0 netns $hosts-$i &&
			ip -n $hosts-hub link set v$i master bridge0 up && ip -n $hosts-$i link set lo up &&
			ip -n $hosts-$i addr add 10.77.0.$i/24 dev eth0 && ip -n $hosts-$i link set eth0 up || return
	done
	ip netns exec $hosts-1 unshare -u true
} 2> err
with_cgroups() { # namespace, command ...: ip hides the cgroups
	namespace=$1
	shift
	nsenter --net="/run/netns/$namespace" "$@"
}
on() { # host, variable=value or command before it ...: a rank there
	host=$1
	shift
	${enter:-ip netns exec} "$hosts-$host" unshare -u sh -c 'hostname $0; exec "$@"' "node-$host" env \
		TUTTI_TRANSPORTS=tcp \
		TUTTI_RANK=$((host - 1)) TUTTI_SIZE=4 TUTTI_BOOT=10.77.0.1:4000 TUTTI_SECRET=0123456789abcdef "$@" \
		"$tutti" doctor > "out$host" 2> "err$host"
	echo $? > "status$host"
}
everywhere() { # what host 3 has besides ...; leaves out, err and status of host 1, and how many seconds it took
	begun=$(date +%s)
	for host in 1 2 4; do on $host env & done
	on 3 env "$@"
	wait
	took=$(($(date +%s) - begun))
	cp out1 out
	cp err1 err
	status=$(cat status1)
	check "within 30 s" [ $took -le 30 ]
}

limit_link() { # host, rate
	ip netns exec $hosts-$1 tc qdisc add dev eth0 root tbf rate "$2" burst 32kbit latency 400ms 2> err
}

test_hosts() {
	if ! make_hosts; then
		skip "hosts that are network namespaces: root and iproute2 make them ($(head -n 1 err))"
		return
	fi
	name="four hosts"
	everywhere
	check "six pairs" has out '^fine     pairs      6 over tcp: '
	export TUTTI_TIMEOUT=8000
	name="a wrong secret"
	everywhere TUTTI_SECRET=fedcba9876543210
	finds join 'rank 2 of 4 did not join'
	check "the host is named" has err \
		'refused the connection from 10.77.0.3:[0-9]*: its proof is wrong.*TUTTI_SECRET'
	check "there, too" has out3 '^finding  join .*do both sides have the same TUTTI_SECRET'
	name="an older version of the wire"
	everywhere "${tutti%/*}/tests/tools/older" 10.77.0.1 4000
	finds join 'rank 2 of 4 did not join'
	check "the host is named" has err \
		'refused the connection from 10.77.0.3:[0-9]*: it speaks version .*: use the same Tutti'
	unset TUTTI_TIMEOUT
	name="an older version that speaks the same"
	new=$("$tutti" --version | sed 's/tutti //') old=$(echo "$new" | tr 0-9 9012345678)
	sed "s/$(echo "$new" | sed 's/[.]/[.]/g')/$old/g" "$tutti" > older && chmod +x older
	everywhere sh -c 'exec ./older doctor'
	finds version "rank 2 (node-3, 10.77.0.3) runs Tutti $old, and rank 0 $new: install the same on both"
	if setpriv --bounding-set=-ipc_lock true 2> err; then
		name="memlock on one of four"
		everywhere sh -c 'ulimit -l 64; exec setpriv --bounding-set=-ipc_lock "$@" --rdma' sh
		finds memlock 'rank 2 (node-3, 10.77.0.3): a rank may lock 64 KiB'
	else
		skip "memlock on one of four, without setpriv"
	fi
	if make_group memory memory.limit_in_bytes=64M memory.max=64M; then
		name="memory.max on one of four"
		enter=with_cgroups everywhere sh -c "echo \$\$ > $group/cgroup.procs; exec \"\$@\"" sh
		finds memory "rank 2 (node-3, 10.77.0.3).*tutti-doctor-$$ leaves"
		rmdir "$group"
	fi
	if limit_link 3 20mbit && limit_link 1 200mbit && limit_link 2 200mbit && limit_link 4 200mbit; then
		name="a link at a tenth of the others"
		everywhere
		finds bandwidth 'the host of rank 2 (node-3, 10.77.0.3) is slow: it sends [0-9.]* MB/s'
		check "no other one" is "$(grep '^finding  bandwidth' out | grep -c 'the host of rank [013]')" 0
		for i in 1 2 3 4; do ip netns exec $hosts-$i tc qdisc del dev eth0 root; done
	else
		skip "a slow link, without tc and tbf"
	fi
	name="another MTU"
	ip -n $hosts-3 link set eth0 mtu 1400
	everywhere
	finds mtu 'of rank 2 (node-3, 10.77.0.3) has an MTU of 1400, and the others have 1500.*: .*mtu 1500$'
	ip -n $hosts-3 link set eth0 mtu 1500
	if command -v faketime > /dev/null; then
		name="a clock that is an hour off"
		everywhere DONT_FAKE_MONOTONIC=1 faketime -f +1h
		finds clock 'the clock of rank 2 (node-3, 10.77.0.3) is 36[0-9][0-9] s ahead of'
	else
		skip "a wrong clock, without faketime"
	fi
	if ip netns exec $hosts-3 nft -f - 2> err << END
add table ip doctor
add chain ip doctor in { type filter hook input priority 0; }
add rule ip doctor in tcp flags & (syn|ack) == syn drop
END
	then
		name="a closed port"
		everywhere
		cat out[1-4] > out
		finds closed 'cannot connect to rank 2 (node-3, 10.77.0.3) at 10.77.0.3:[0-9]* .*: let the firewall'
	else
		skip "a closed port, without nft"
	fi
}

run_tests "host limits memory quota loopback settings pairs joins ports apart running running_tcp newcomer refusals hosts" "$@"
