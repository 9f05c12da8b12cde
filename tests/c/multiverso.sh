#!/bin/sh
# multiverso.sh - a program that calls Multiverso's C functions (program.c), as real processes over shm and tcp
#   multiverso.sh death: this test alone
. "$(dirname "$0")/../harness/tutti.sh"
program=${tutti%/*}/tests/c/program
[ -x "$program" ] || { echo "$program is not there: make check builds it"; exit 99; }

run() { # ranks, arguments of the program ...
	name="program $*"
	n=$1
	shift
	"$tutti" run -n "$n" "$program" "$@" > out 2> err
	status=$?
}
all_ok() { # ranks
	check "status 0" is $status 0
	check "ok of $1 ranks" is "$(grep -c 'ok$' out)" "$1"
	check "no sentence" lines err 0
}

test_tables() {
	for transports in shm,tcp tcp; do
		export TUTTI_TRANSPORTS=$transports
		for part in array matrix copied large; do
			run 2 $part
			all_ok 2
		done
	done
	unset TUTTI_TRANSPORTS
	run 4 array
	all_ok 4
}
test_sync() {
	for transports in shm,tcp tcp; do
		TUTTI_TRANSPORTS=$transports run 3 -sync=true sync
		all_ok 3
	done
	run 2 -sync=True large
	all_ok 2
}
test_flags() {
	run 1 -omp_threads=8 array
	check "a line about omp_threads" has err "multiverso: -omp_threads=8 has no effect"
	run 2 -sync=maybe array
	check "a sentence of each rank" is "$(grep -c 'multiverso: MV_Init: -sync is "maybe"' err)" 2
	run 1 -unknown=1 array
	check "an unknown flag is left" has out "2 arguments are left"
}
test_rules() {
	for rule in dcasgd dcasgda; do
		run 2 -updater_type=$rule $rule
		all_ok 2
	done
}
test_roles() {
	name="three roles"
	"$tutti" run -n 3 sh -c 'case $TUTTI_RANK in 0) role=default ;; 1) role=server ;; 2) role=worker ;; esac
		exec "$0" -ps_role=$role roles' "$program" > out 2> err
	status=$?
	check "status 0" is $status 0
	check "ok of 3 ranks" is "$(grep -c 'ok$' out)" 3
	check "only the server's add is refused" lines err 1
	check "with a sentence" has err "multiverso: rank 1: MV_AddArrayTable: .*worker"
}
test_death() {
	for transports in shm,tcp tcp; do
		TUTTI_TRANSPORTS=$transports run 2 death
		check "no line but ok" is "$(grep -vc 'ok$' out)" 0
		check "a sentence" has err "multiverso: rank 0: MV_GetArrayTable: .*rank 1"
	done
}
test_machines() { # without a launcher
	name="-machine_file"
	export TUTTI_SECRET=0123456789abcdef
	printf '127.0.0.1\n127.0.0.1\n' > machines
	port=$((20000 + $$ % 10000))
	TUTTI_RANK=1 "$program" -machine_file=machines -port=$port array > out1 2> err1 &
	other=$!
	TUTTI_RANK=0 "$program" -machine_file=machines -port=$port array > out 2> err
	status=$?
	wait $other || status=$?
	cat out1 >> out
	cat err1 >> err
	all_ok 2
}

run_tests "tables sync rules flags roles death machines" "$@"
