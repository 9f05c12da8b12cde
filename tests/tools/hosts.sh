#!/bin/sh
# hosts.sh - `tutti run --hosts`: over a script in place of ssh, and over a real sshd on a port of the loopback
set -u
. "$(dirname "$0")/../harness/tutti.sh"
. "$here/../harness/sshd.sh"
marker=marker-$$
daemon=

end() {
	[ -z "$daemon" ] || kill "$daemon"
	rm -rf "$scratch"
}
trap end EXIT
trap 'exit 99' TERM
export TUTTI_TIMEOUT=20000 # a rank that waits in vain says so

# In place of ssh: each name leads to this host, or to a mistake.
cat > fake <<'END'
#!/bin/sh
echo "$1" >> reached
while [ -e slow ]; do sleep 0.5; done
case $1 in
busy*) [ "$(grep -c "^$1\$" reached)" -gt 2 ] || exit 255 ;; # twice, as sshd does beyond MaxStartups
esac
case $1 in
nowhere) echo "ssh: Could not resolve hostname nowhere" >&2; exit 255 ;;
bare) exit 127 ;;
old) exit 2 ;;
banner) printf 'Welcome'; quiet=1 ;;
other) echo 'tutti-agent 0.0.1 1 127.0.0.1'; exec cat ;;
esac
echo "$*" >> command_lines
cat /proc/$$/cmdline >> command_lines
export SSH_CONNECTION="${from:-127.0.0.1 1 127.0.0.1 22}"
[ "$1" != far ] || SSH_CONNECTION="10.9.9.8 1 10.9.9.9 22"
unset TUTTI_SECRET
shift
[ -n "${quiet:-}" ] || set -- "echo a greeting of the login shell;" "$@"
exec sh -c "$*"
END
chmod +x fake
export TUTTI_RSH="$scratch/fake"

living() { grep -l "[m]${marker#m}" /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3; } # a zombie has no cmdline
none_left() { is "$(living)" ""; }
run() { # a run that hangs is ended, and fails
	name="tutti run $*"
	timeout -k 5 60 "$tutti" run "$@" "$marker" > out 2> err
	status=$?
}
ready='mkdir -p up; : > up/$TUTTI_RANK; while [ $(ls up | wc -l) -lt $TUTTI_SIZE ]; do sleep 0.05; done;'

test_seats() {
	mkdir -p 'a folder'
	cd 'a folder'
	TUTTI_OF_OURS=5 run --hosts a:1,b:2 --prefix sh -c \
		'echo $TUTTI_RANK/$TUTTI_SIZE $TUTTI_LOCAL_RANK/$TUTTI_LOCAL_SIZE ${TUTTI_BOOT_FD:+socket} "$TUTTI_OF_OURS" "${PWD##*/}"'
	check "status 0" is $status 0
	check "ranks, hosts, variables, folder" is "$(grep '^\[' out | sort)" "[0 a] 0/3 0/1 socket 5 a folder
[1 b] 1/3 0/2 5 a folder
[2 b] 2/3 1/2 5 a folder"
	check "a shell's greeting is passed on" has out '^a greeting'
	cd ..
	rm -f command_lines
	export TUTTI_SECRET="0123456789abcdef01234"
	run --hosts a,b,c -n 2 --tag sh -c 'echo $TUTTI_SECRET $TUTTI_LOCAL_SIZE'
	unset TUTTI_SECRET
	check "evenly, and no host without a rank" is "$(grep '^\[' out | sort)" "[0] 0123456789abcdef01234 1
[1] 0123456789abcdef01234 1"
	check "the secret is on no command line" sh -c '[ -s command_lines ] && ! grep -q 0123456789abcdef01234 command_lines'
	printf '# hosts\n\na slots=2\n b:1 # one\nc\n' > list
	run --hostfile list --prefix sh -c 'echo rank'
	check "a file" is "$(grep '^\[' out | sort)" "[0 a] rank
[1 a] rank
[2 b] rank
[3 c] rank"
	printf '\357\273\277a slots=1\r\n\r\nb\r\n' > list
	run --hostfile list --prefix sh -c 'echo rank'
	check "a file of another system" is "$(grep '^\[' out | sort)" "[0 a] rank
[1 b] rank"
	printf 'a\nb \033[31mslots\r\n' > list
	run --hostfile list true
	check "what is wrong, without control characters" is "$(cat err)" \
		'tutti run: --hostfile list, line 2: "b ?[31mslots" is no line HOST, HOST:SLOTS or HOST slots=N'
}

test_node_file() { # as PBS writes one: a host a line for each slot
	rm -f reached
	for host in n1 n2 n1 n2 n1 n2 n1 n2; do echo $host; done > nodes
	run --hostfile nodes --prefix sh -c 'echo $TUTTI_RANK $TUTTI_LOCAL_RANK of $TUTTI_LOCAL_SIZE'
	check "four ranks on each of two hosts" is "$(grep '^\[' out | sort)" "[0 n1] 0 0 of 4
[1 n1] 1 1 of 4
[2 n1] 2 2 of 4
[3 n1] 3 3 of 4
[4 n2] 4 0 of 4
[5 n2] 5 1 of 4
[6 n2] 6 2 of 4
[7 n2] 7 3 of 4"
	check "one connection to each" is "$(sort reached)" "n1
n2"
	run --hosts a:2,b,a:1,b --prefix sh -c 'echo rank'
	check "slots are added up" is "$(grep '^\[' out | sort | tr '\n' ' ')" \
		"[0 a] rank [1 a] rank [2 a] rank [3 b] rank [4 b] rank "
}

test_many() { # no more than 32 connections are made at once, and one that fails is made again
	rm -f reached
	run --hosts busy1,b,busy2 sh -c 'echo rank'
	check "status 0" is $status 0
	check "three times" is "$(sort reached | uniq -c | tr -s ' \n' ' ')" " 1 b 3 busy1 3 busy2 "
	check "three ranks" is "$(grep -c '^rank' out)" 3
	: > reached
	: > slow # the first ones say nothing until the test has looked
	hosts=$(i=0; while [ $i -lt 40 ]; do echo h$i; i=$((i + 1)); done | paste -sd,)
	"$tutti" run --hosts "$hosts" true "$marker" > out 2> err &
	pid=$! name="tutti run --hosts h0,...,h39"
	check "32 of them" soon lines reached 32
	sleep 0.3
	check "and no more" lines reached 32
	rm slow
	await $pid
	check "status 0" is $status 0
	check "then the others" lines reached 40
}

test_job() { # a real one, whose ranks find each other at an agent's socket
	run --hosts a,b -n 4 "${tutti%/*}/examples/ring"
	check "status 0" is $status 0
	check "a ring" has out 'hops around 4 ranks'
}

test_failures() {
	run --hosts a,b -n 4 --grace 0.2 sh -c "$ready [ \$TUTTI_RANK = 3 ] && exit 7; sleep 100"
	check "the rank's status" is $status 7
	check "the rank and its host" has err '^tutti run on b: rank 3 (pid [0-9]*) exited with status 7$'
	check "nothing left" soon none_left
	run --hosts a,b -n 4 -k sh -c '[ $TUTTI_RANK = 3 ] && exit 7; echo on'
	check "the others go on" is "$status $(grep -c '^on$' out)" "0 3"
	run --hosts a,b -n 4 --grace 0.2 sh -c "$ready [ \$TUTTI_RANK = 3 ] && exit 255; sleep 100"
	check "a rank's 255 is no lost connection" has err 'rank 3 (pid [0-9]*) exited with status 255'
	check "that is all" sh -c '! grep -q "connection to host" err'
	run --hosts banner,b -n 2 echo on
	check "a greeting without an end of line" is "$status $(grep -c '^on ' out)" "0 2"
	run --hosts a,b ./nothing
	check "no such program" is $status 127
	check "which host says so" has err 'on b: cannot execute ./nothing: No such file'
	run --hosts a,b -n 2 --grace 0.2 sh -c \
		"trap '' TERM; $ready [ \$TUTTI_RANK = 1 ] && exit 4; while :; do sleep 0.1; done"
	check "killed" has err 'tutti run on a: rank 0 did not end and was killed'
	check "nothing left" soon none_left
}

test_signals() {
	for sig in TERM INT USR2; do
		rm -rf up
		"$tutti" run --hosts a,b -n 3 sh -c "trap 'echo got it; exit 0' $sig; $ready sleep 100 & wait" \
			"$marker" > out 2> err &
		pid=$! name="tutti run --hosts: $sig"
		check "up" soon files up 3
		kill -$sig $pid
		await $pid
		check "its ranks end well" is "$status $(grep -c 'got it' out)" "0 3"
	done
	rm -rf up
	"$tutti" run --hosts a,b -n 3 --grace 0.2 sh -c "$ready sleep 100 & wait" "$marker" > out 2> err &
	pid=$!
	check "up" soon files up 3
	kill -9 $pid
	await $pid
	check "nothing outlives it" soon none_left
}

test_mistakes() {
	for try in 'nowhere|nowhere cannot be reached' 'bare|bare has no tutti' \
		'old|the tutti of host old .* another version' \
		'other|other has tutti 0.0.1, and this one is'; do
		run --hosts "a,${try%%|*}" true
		check "${try%%|*}: status 2" is $status 2
		check "one sentence" is "$(grep -c '^tutti run' err)" 1
		check "that names it" has err "${try#*|}"
	done
	run --hosts a,far sh -c true
	check "rank 0 on a loopback" has err 'host a, where rank 0 is to listen, was reached at 127.0.0.1'
	run --hosts a:1,b:1 -n 3 true
	check "too many" has err '-n 3: the hosts have 2 slots'
	run --hosts a,,b true
	check "no name" has err 'is no name of a host'
	run --hosts a:0 true
	check "no slots" has err 'whole number from 1'
	run --rsh x true
	check "no hosts" has err 'there is neither --hosts nor'
	run --hostfile absent true
	check "no file" has err '--hostfile absent: No such file'
	TUTTI_RSH=./absent run --hosts a true
	check "no ssh" has err 'cannot execute ./absent'
}

test_restart() {
	cat > rank <<'END'
echo "life of $TUTTI_RANK"
[ "$TUTTI_RANK" = "$1" ] || exit 0
echo x >> lives
[ "$(wc -l < lives)" -ge "$2" ]
END
	for where in "" "--hosts a,b"; do
		for try in "1 3 0" "1 9 1" "0 9 1"; do
			set -- $try
			rm -f lives
			run -n 2 $where --restart 2 sh ./rank "$1" "$2"
			check "status" is $status "$3"
			check "lives" lines lives 3
		done
	done
	run -n 2 --restart 2 sh -c '[ $TUTTI_RANK = 0 ] || [ -e died ] || { : > died; kill -9 $$; }'
	check "status 0" is $status 0
	check "it says so" has err 'rank 1 .* was killed by signal 9 (Killed), and is started again (1 of 2)'
}

test_grow() { # the rank that is started again is taken in, and trains on with the others
	for where in "" "--hosts a,b"; do
		rm -f died
		run -n 3 $where --restart 1 "${tutti%/*}/tests/tools/grows" 3 1 died
		check "status 0" is $status 0
		check "all are there at the end, with one number" is "$(sed -n 's/^rank [0-9] //p' out | sort)" \
			"of 3, late: 3.00
of 3: 3.00
of 3: 3.00"
		check "it says so" has err 'rank 1 .* was killed by signal 9 (Killed), and is started again (1 of 1)'
	done
}

test_grow_0() { # rank 0 comes again as rank 3, and then as rank 4
	for where in "" "--hosts a,b"; do
		name="tutti run --restart: rank 0 dies, and comes again, and dies${where:+, on other hosts}"
		rm -f died*
		run -n 3 $where --restart 2 "${tutti%/*}/tests/tools/grows" 3 0 died 3 died3
		check "status 0" is $status 0
		check "all are there at the end, with one number" is "$(sed -n 's/^rank [0-9] //p' out | sort)" \
			"of 3, late: 3.00
of 3: 3.00
of 3: 3.00"
		check "it says so" has err 'rank 0 .* (Killed), and is started again as a new rank (1 of 2)'
		check "twice" has err 'rank 0 .* (Killed), and is started again as a new rank (2 of 2)'
	done
}

test_sshd() {
	has_sshd || {
		echo "hosts.sh: no sshd here (package openssh-server): the script in place of ssh has to do"
		return
	}
	sshd_keys "$scratch/keys"
	for try in 1 2 3 4 5; do
		port=$(( ($$ + try * 977) % 20000 + 20000 ))
		$(sshd_line "$scratch/keys" 127.0.0.1 $port) 2> sshd.log &
		daemon=$!
		soon grep -qE 'listening|error|fatal|Cannot' sshd.log
		grep -q listening sshd.log && break
		wait $daemon 2> /dev/null
		daemon=
	done
	export TUTTI_RSH="$(ssh_line "$scratch/keys" $port)"
	if [ -z "$daemon" ] || ! timeout -k 5 30 $TUTTI_RSH 127.0.0.1 true 2> err; then
		echo "hosts.sh: sshd does not work here: $(tail -n 1 sshd.log err | tr '\n' ' ')"
		return
	fi
	run --hosts 127.0.0.1:2,localhost:2 --prefix "${tutti%/*}/examples/ring"
	check "status 0" is $status 0
	check "a ring" has out '^\[0 127.0.0.1\] .* hops around 4 ranks'
	run --hosts 127.0.0.1 -n 2 sh -c '[ $TUTTI_RANK = 0 ] || exit 9'
	check "the status comes through" is $status 9
	rm -rf up
	"$tutti" run --hosts 127.0.0.1:1,localhost:2 --grace 0.2 sh -c "$ready sleep 100 & wait" "$marker" > out 2> \
		err &
	pid=$!
	check "up" soon files up 3
	kill -9 $pid
	await $pid
	check "nothing outlives it" soon none_left
	name="tutti doctor --hosts"
	TUTTI_TRANSPORTS=tcp timeout -k 5 60 "$tutti" doctor --hosts 127.0.0.1:2,localhost --json > out 2> err
	check "three pairs" has out '"check": "pairs", .*"text": "3 over tcp: '
	timeout -k 5 60 "$tutti" doctor --hosts 127.0.0.1,nobody@localhost > out 2> err
	check "status 2" is $? 2
	check "who may not come in is named" has err 'host nobody@localhost cannot be reached'
	run --hosts 127.0.0.1,nobody@localhost true
	check "who may not come in is named" has err 'host nobody@localhost cannot be reached'
}

run_tests "seats node_file many job failures signals mistakes restart grow grow_0 sshd" "$@"
