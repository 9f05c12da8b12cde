#!/bin/sh
# shards.sh - a shard is killed while a reader reads: the error names it, and another process takes its place
set -u
export LC_ALL=C
top=${top_builddir:-.}
program=$top/tests/publish/shards
unset TUTTI_RANK TUTTI_SIZE TUTTI_BOOT TUTTI_CONFIG RANK WORLD_SIZE
[ -x "$program" ] || { echo "there is no $program: run make check TESTS=tests/publish/shards.sh"; exit 99; }
scratch=$(mktemp -d) || exit 99
pids=
trap '[ -z "$pids" ] || kill $pids 2> /dev/null; rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM
failed=0
port=$((20000 + $$ % 10000))
run() { # transports
	mkfifo "$scratch/go"
	export TUTTI_TRANSPORTS="$1"
	"$program" 127.0.0.1:$port 2 "$scratch/sign" > "$scratch/2" 2>&1 &
	killed=$!
	pids=$killed
	for rank in 0 1 3; do
		timeout 120 "$program" 127.0.0.1:$port $rank "$scratch/sign" > "$scratch/$rank" 2>&1 &
		pids="$pids $!"
	done
	timeout 120 "$program" 127.0.0.1:$port 4 "$scratch/sign" < "$scratch/go" > "$scratch/4" 2>&1 &
	pids="$pids $!"
	exec 3> "$scratch/go"
	for i in $(seq 600); do
		grep -q '^reading' "$scratch/0" && break
		sleep 0.1
	done
	kill -9 "$killed"
	echo go >&3
	exec 3>&-
	for pid in $pids; do
		wait "$pid" 2> /dev/null || [ "$pid" = "$killed" ] || failed=1
	done
	grep -q '^0 torn, .*: yes$' "$scratch/0" || failed=1
	pids=
	[ $failed = 0 ] || { echo "FAILED over $1:"; cat "$scratch"/[0-4]; }
	rm -f "$scratch"/*
	port=$((port + 1))
}
run shm,tcp
run tcp
[ $failed = 0 ] && echo "a killed shard was named, and its successor published on"
exit $failed
