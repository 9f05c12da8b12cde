#!/bin/sh
# addresses.sh - hosts with several interfaces, names that lead to 127.0.1.1, IPv6: in network namespaces, as root
set -u
. "$(dirname "$0")/../harness/tutti.sh"
ring=${tutti%/*}/examples/ring
id=$$
if ! "$tutti" info --json | grep -q '"libsodium": true'; then
	echo "addresses.sh: without libsodium no job goes beyond the loopback"
	exit 77
fi
clean() {
	for n in 0 1 2 x; do
		ip netns del tt$id-$n 2> /dev/null
		rm -rf "/etc/netns/tt$id-$n"
	done
	rm -rf "$scratch"
}
trap clean EXIT
trap 'exit 99' TERM
# Three hosts on one network, each of which has another interface first, with an address that leads nowhere, and then
# docker0, which is down.
build() {
	ip netns add tt$id-x && ip -n tt$id-x link add br0 type bridge && ip -n tt$id-x link set br0 up || return
	for n in 0 1 2; do
		host="ip -n tt$id-$n"
		ip netns add tt$id-$n && $host link set lo up && $host link add aside type veth peer name lost &&
			$host addr add 10.8.0.$n/32 dev aside && $host link set aside up && $host link set lost up &&
			$host link add docker0 type bridge &&
			$host link add net type veth peer name p$n netns tt$id-x &&
				$host addr add 10.9.0.$((n + 1))/24 dev net &&
			$host addr add fd00:9::$((n + 1))/64 dev net nodad && $host link set net up &&
			ip -n tt$id-x link set dev p$n master br0 up || return
	done
}
if ! command -v ip > /dev/null || ! build 2> err; then
	echo "addresses.sh: no network namespaces here (root and iproute2 are needed): $(head -n 1 err 2> /dev/null)"
	exit 77
fi

job() { # TUTTI_BOOT of rank 0, of the others
	name="ring in three namespaces, $*"
	for n in 2 1 0; do
		boot=$2
		[ $n != 0 ] || boot=$1
		TUTTI_RANK=$n TUTTI_SIZE=3 TUTTI_BOOT=$boot TUTTI_SECRET=0123456789abcdef TUTTI_TRANSPORTS=tcp \
			TUTTI_TIMEOUT=20000 TUTTI_LOCAL_SIZE=1 ip netns exec tt$id-$n "$ring" > out.$n 2> err.$n &
		eval "pid$n=$!"
	done
	wait $pid0
	status=$?
	wait $pid1 $pid2
	cat out.? > out
	cat err.? > err
	check "status 0" is $status 0
	check "a ring" has out 'hops around 3 ranks'
}

test_several() { job 10.9.0.1:4000 10.9.0.1:4000; job '*:4001' 10.9.0.1:4001; }
test_ipv6() { job '[fd00:9::1]:4002' '[fd00:9::1]:4002'; }
test_iface() {
	export TUTTI_IFACE=net
	job '*:4003' 10.9.0.1:4003
	TUTTI_IFACE=nothing
	TUTTI_RANK=1 TUTTI_SIZE=2 TUTTI_BOOT=10.9.0.1:4004 TUTTI_SECRET=0123456789abcdef \
		ip netns exec tt$id-1 "$ring" > out 2> err
	unset TUTTI_IFACE
	check "what there is" has err 'TUTTI_IFACE may be .*aside, net'
}
restore_mtu() {
	for n in 0 1; do
		ip -n tt$id-$n link set net mtu 1500
		tc -n tt$id-x qdisc del dev p$n root
	done 2> /dev/null
}
test_mtu() { # a bridge that carries small packets alone
	name="an MTU that the network does not carry"
	for n in 0 1; do # a token bucket drops what is larger than the bucket
		ip -n tt$id-x link set p$n mtu 9000 && ip -n tt$id-$n link set net mtu 9000 gso_max_segs 1 &&
			tc -n tt$id-x qdisc add dev p$n root tbf rate 1gbit burst 1600 latency 50ms && continue
		echo "not run: mtu: $(tail -n 1 err)"
		restore_mtu
		return
	done 2> err
	ip -n tt$id-x link set br0 mtu 9000
	for n in 1 0; do
		TUTTI_IFACE=net TUTTI_RANK=$n TUTTI_SIZE=2 TUTTI_BOOT=10.9.0.1:4009 TUTTI_SECRET=0123456789abcdef \
			TUTTI_TRANSPORTS=tcp TUTTI_SILENCE=6000 TUTTI_LOCAL_SIZE=1 ip netns exec tt$id-$n \
			"$tutti" perf allreduce --size 64K --no-baseline > out.$n 2> err.$n &
		eval "pid$n=$!"
	done
	wait $pid0
	status=$?
	wait $pid1
	cat err.? > err
	check "who is not reached, and the MTU" has err \
		'warn: .*bytes to 10.9.0.[12]:[0-9]* were sent [0-9]* times and not acknowledged.*9000 bytes'
	restore_mtu
}
test_zones() { # link-local addresses alone, on interfaces that have another name on each host
	export TUTTI_IFACE
	for n in 0 1 2; do
		ip -n tt$id-$n link set net down
		ip -n tt$id-$n addr flush dev net
		ip -n tt$id-$n link set net name wire$n
		ip -n tt$id-$n link set wire$n addrgenmode eui64 up
	done
	for n in 0 1 2; do # without this the address is not usable yet
		address=$(ip -n tt$id-$n -6 -o addr show dev wire$n scope link | sed 's/.*inet6 \([^/]*\).*/\1/')
		ip -n tt$id-$n addr del $address/64 dev wire$n
		ip -n tt$id-$n addr add $address/64 dev wire$n nodad
		[ $n != 0 ] || first=$address
	done
	name="ring over link-local addresses"
	for n in 2 1 0; do
		TUTTI_IFACE=wire$n TUTTI_RANK=$n TUTTI_SIZE=3 TUTTI_BOOT="[$first%wire0]:4008" \
			TUTTI_SECRET=0123456789abcdef TUTTI_TRANSPORTS=tcp TUTTI_TIMEOUT=20000 TUTTI_LOCAL_SIZE=1 \
			ip netns exec tt$id-$n "$ring" > out.$n 2> err.$n &
		eval "pid$n=$!"
	done
	wait $pid0
	status=$?
	wait $pid1 $pid2
	unset TUTTI_IFACE
	cat out.? > out
	cat err.? > err
	check "status 0" is $status 0
	check "a ring" has out 'hops around 3 ranks'
}
test_names() { # on its own host the name is 127.0.1.1, elsewhere the right one
	for n in 0 1 2; do
		mkdir -p /etc/netns/tt$id-$n
		echo "$([ $n = 0 ] && echo 127.0.1.1 || echo 10.9.0.1) tutti-alpha" > /etc/netns/tt$id-$n/hosts
	done
	job tutti-alpha:4005 tutti-alpha:4005
	printf '10.8.0.0 tutti-alpha\n10.9.0.1 tutti-alpha\n' | tee /etc/netns/tt$id-1/hosts > /etc/netns/tt$id-2/hosts
	job tutti-alpha:4006 tutti-alpha:4006 # of several addresses, one leads there
	for n in 1 2; do # the first one is silent: what is sent there gets lost
		ip -n tt$id-$n neigh add fd00:9::77 lladdr 02:00:00:00:00:77 dev net
		printf 'fd00:9::77 tutti-beta\n10.9.0.1 tutti-beta\n' > /etc/netns/tt$id-$n/hosts
	done
	job 10.9.0.1:4007 tutti-beta:4007
}

# Ranks of a launcher with a channel: rank 0 says at which of its addresses the others reach it. docker0 has one
# address on all hosts.
launch() { # what the name says, variables ...
	name="ring under mpiexec of MPICH, $1"
	shift
	env "$@" TUTTI_TRANSPORTS=tcp TUTTI_TIMEOUT=20000 TUTTI_LOCAL_SIZE=1 TUTTI_LOG=info \
		"${tutti%/*}/tests/launch/hydra" 3 sh -c "exec ip netns exec tt$id-\$PMI_RANK '$ring'" > out 2> err
	check "status 0" is $? 0
	check "a ring" has out 'hops around 3 ranks'
}
each() { # arguments of ip, on each host; %n is its number
	for n in 0 1 2; do
		ip -n tt$id-$n $(echo "$*" | sed "s/%n/$((n + 1))/g") || return
	done
}
test_launched() {
	[ -x "${tutti%/*}/tests/launch/hydra" ] || { echo "not run: launched: make check builds tests/launch/hydra"; return; }
	each link set aside down
	each addr add 172.17.0.1/16 dev docker0 && each link set docker0 up
	launch "docker0 without a cable"
	each link add box type veth peer name cork && each link set box master docker0 && each link set box up &&
		each link set cork up
	launch "docker0 with a container"
	each link set aside up
	launch "the host of srun" SLURM_LAUNCH_NODE_IPADDR=10.9.0.2
	each route add default dev net
	launch "a default route"
	launch "a network in TUTTI_IFACE" TUTTI_IFACE=10.9.0.0/24
	launch "an IPv6 network in TUTTI_IFACE" TUTTI_IFACE=fd00:9::/64
	each -4 addr flush dev net && each addr del 172.17.0.1/16 dev docker0 && each -6 route add default dev net
	launch "IPv6 only"
	each addr add 10.9.0.%n/24 dev net
	TUTTI_IFACE=10.11.0.0/24 TUTTI_RANK=1 TUTTI_SIZE=2 TUTTI_BOOT=10.9.0.1:4004 TUTTI_SECRET=0123456789abcdef \
		ip netns exec tt$id-1 "$ring" > out 2> err
	check "a network that is not here" has err 'network 10.11.0.0/24, and no address of this host is in it'
}
test_kubeflow() { # as its PyTorchJob sets them: the master is told localhost, the workers its name
	name="ring with the variables of a PyTorchJob"
	for n in 0 1 2; do
		mkdir -p /etc/netns/tt$id-$n
		echo '10.9.0.1 ring-master-0' > /etc/netns/tt$id-$n/hosts
	done
	for n in 2 1 0; do
		master=ring-master-0
		[ $n != 0 ] || master=localhost
		RANK=$n WORLD_SIZE=3 MASTER_ADDR=$master MASTER_PORT=23456 TUTTI_SECRET=0123456789abcdef \
			TUTTI_TRANSPORTS=tcp TUTTI_TIMEOUT=20000 TUTTI_LOCAL_SIZE=1 \
			ip netns exec tt$id-$n "$ring" > out.$n 2> err.$n &
		eval "pid$n=$!"
	done
	wait $pid0
	check "status 0" is $? 0
	wait $pid1 $pid2
	cat out.? > out
	cat err.? > err
	check "a ring" has out 'hops around 3 ranks'
}

run_tests "several ipv6 iface names launched kubeflow mtu zones" "$@"
