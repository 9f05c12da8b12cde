#!/bin/sh
# publish.sh - a publisher and readers that come, are killed, and stay to the end: no version is torn
set -u
export LC_ALL=C
top=${top_builddir:-.}
publish=$top/examples/publish read=$top/examples/read
unset TUTTI_RANK TUTTI_SIZE TUTTI_BOOT TUTTI_CONFIG RANK WORLD_SIZE
[ -x "$publish" ] && [ -x "$read" ] || { echo "there is no $publish: run make first"; exit 99; }
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT
failed=0
port=$((20000 + $$ % 10000))
run() { # transports
	TUTTI_TRANSPORTS=$1 "$publish" 127.0.0.1:$port 600 3 > "$scratch/publish" 2>&1 &
	publisher=$!
	readers=
	for i in 1 2 3; do
		TUTTI_TRANSPORTS=$1 "$read" 127.0.0.1:$port > "$scratch/read$i" 2>&1 &
		readers="$readers $!"
	done
	killed=${readers##* }
	for i in $(seq 600); do
		grep -q 'readers have come' "$scratch/publish" && break
		sleep 0.1
	done
	kill -9 "$killed"
	wait "$publisher" || { echo "FAILED over $1: the publisher: $(cat "$scratch/publish")"; failed=1; }
	grep -q '^published 600 versions' "$scratch/publish" || { echo "FAILED over $1: $(cat "$scratch/publish")"; failed=1; }
	i=0
	for reader in $readers; do
		i=$((i + 1))
		[ "$reader" != "$killed" ] || { wait "$reader" 2> /dev/null; continue; }
		wait "$reader" && grep -q 'read [1-9][0-9]* versions, 0 torn; the last is 600: loss' "$scratch/read$i" || {
			echo "FAILED over $1: reader $i: $(cat "$scratch/read$i")"
			failed=1
		}
	done
	port=$((port + 1))
}
run shm,tcp
run tcp
[ $failed = 0 ] && echo "readers read whole versions, and the publisher did not wait for the killed one"
exit $failed
