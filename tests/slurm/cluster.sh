# cluster.sh - four nodes of Slurm on this machine, each a network namespace of its own; check.sh reads it.
# shellcheck shell=sh
#
#   login (10.79.0.100): slurmctld, srun, the bridge br0 with the ports p1 .. p4; n1 .. n4 (10.79.0.1 ..): a slurmd each
#
# All that it writes is in $cluster. In each namespace /etc/hosts and /run/munge are the cluster's own: nothing of the
# machine's is touched, and none of its daemons is asked.

NODES=4

inside() { # namespace number (0: login), host name, command ...
	number=$1 host=$2
	shift 2
	# shellcheck disable=SC2016
	ip netns exec "tutti$$-$number" unshare -u -m sh -c '
		mount --bind "$1/hosts" /etc/hosts && mount --bind "$1/munge" /run/munge && hostname "$2" || exit 99
		shift 2
		exec "$@"' sh "$cluster" "$host" "$@"
}
login() { inside 0 login env SLURM_CONF="$cluster/slurm.conf" "$@"; }

daemon() { # name, command ...
	log=$cluster/$1.log
	shift
	"$@" > "$log" 2>&1 < /dev/null &
	daemons="$! $daemons"
}

write_config() {
	cat > "$cluster/slurm.conf" << end
ClusterName=tutti
SlurmctldHost=login(10.79.0.100)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=$cluster/state
SlurmdSpoolDir=$cluster/spool-%n
TmpFS=$cluster/tmp-%n
SlurmctldPidFile=$cluster/slurmctld.pid
SlurmdPidFile=$cluster/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
TaskPluginParam=None
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait=2
SlurmdTimeout=300
NodeName=n[1-$NODES] CPUs=8 RealMemory=1000 Gres=gpu:2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:8
end
	echo "NodeName=n[1-$NODES] Name=gpu File=$cluster/gpu[0-1]" > "$cluster/gres.conf" # files, which nobody opens
	for i in 0 1; do
		mknod "$cluster/gpu$i" c 1 3 || touch "$cluster/gpu$i" # a device that nobody opens
	done
	printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' > "$cluster/cgroup.conf"
	{
		echo '127.0.0.1 localhost'
		echo '10.79.0.100 login'
		for i in $(seq $NODES); do
			echo "10.79.0.$i n$i"
			mkdir "$cluster/spool-n$i" "$cluster/tmp-n$i"
		done
	} > "$cluster/hosts"
}

make_network() {
	for i in $(seq 0 $NODES); do
		ip netns add "tutti$$-$i" && ip -n "tutti$$-$i" link set lo up || return 1
	done
	ip -n "tutti$$-0" link add br0 type bridge && ip -n "tutti$$-0" addr add 10.79.0.100/24 dev br0 &&
		ip -n "tutti$$-0" link set br0 up || return 1
	for i in $(seq $NODES); do
		ip -n "tutti$$-$i" link add eth0 type veth peer name "p$i" netns "tutti$$-0" &&
			ip -n "tutti$$-0" link set "p$i" master br0 up &&
			ip -n "tutti$$-$i" addr add "10.79.0.$i/24" dev eth0 &&
			ip -n "tutti$$-$i" link set eth0 up || return 1
	done
}

wait_for() { # seconds, command: until it succeeds
	end=$(($(date +%s) + $1))
	shift
	until "$@"; do
		[ "$(date +%s)" -lt $end ] || return 1
		sleep 0.1
	done
}
all_idle() { [ "$(login sinfo -h -N -o %t 2> /dev/null | grep -cx idle)" = $NODES ]; }

cluster_up() { # folder: 0 once all nodes are idle
	cluster=$1 daemons=
	mkdir -p "$cluster/munge" "$cluster/state" /run/munge
	chmod 755 "$cluster" "$cluster/munge"
	write_config
	make_network || return 1
	(umask 077; head -c 64 /dev/urandom > "$cluster/key")
	daemon munged munged --foreground --force --key-file="$cluster/key" --socket="$cluster/munge/munge.socket.2" \
		--pid-file="$cluster/munged.pid" --log-file="$cluster/munged-own.log" --seed-file="$cluster/seed"
	wait_for 20 [ -S "$cluster/munge/munge.socket.2" ] || return 1
	daemon slurmctld login slurmctld -D -i
	for i in $(seq $NODES); do
		daemon "slurmd-n$i" inside "$i" "n$i" env SLURM_CONF="$cluster/slurm.conf" slurmd -D -N "n$i"
	done
	wait_for 60 all_idle
}

cluster_down() {
	for i in $(seq 0 $NODES); do
		# shellcheck disable=SC2046
		kill -9 $(ip netns pids "tutti$$-$i" 2> /dev/null) 2> /dev/null # tasks that are left, too
	done
	for pid in $daemons; do
		kill -9 "$pid" 2> /dev/null
		wait "$pid" 2> /dev/null
	done
	for i in $(seq 0 $NODES); do
		ip netns del "tutti$$-$i" 2> /dev/null
	done
}
