#!/bin/sh
# sim.sh - `tutti sim`: the same command line prints the same bytes; what it refuses; the picture
set -u
. "$(dirname "$0")/../harness/tutti.sh"

# sim ARGUMENT ...: leaves out, err and status
sim() {
	name="tutti sim $*"
	"$tutti" sim "$@" > out 2> err
	status=$?
}
ran() { # how many rows at least
	check "status 0" is $status 0
	check "nothing on stderr" lines err 0
	check "the columns" is "$(head -n 1 out)" time_s,round,consensus,mean_shift,staleness_ms,bytes,alive
	check "rows" [ "$(wc -l < out)" -gt "$1" ]
	row='^[0-9.]*,[0-9.]*,[0-9.e+-]*,[0-9.e+-]*,[0-9.]*,[0-9]*,[0-9]*$'
	check "numbers alone" is "$(tail -n +2 out | grep -vc "$row")" 0
}
refused() { # what it says
	check "status 2" is $status 2
	check "nothing on stdout" lines out 0
	check "one sentence" lines err 1
	check "which says $1" has err "$1"
}

test_same() {
	for method in "gossip --graph torus" "gossip --graph uniform --way push-sum" elastic allreduce; do
		# shellcheck disable=SC2086
		sim $method --ranks 24 --rounds 20 --bytes 1K --loss 0.001 --churn 0.1 --straggler 3 --seed 7
		ran 20
		mv out first
		# shellcheck disable=SC2086
		TUTTI_SILENCE=1234 TUTTI_LOG=debug sim $method --ranks 24 --rounds 20 --bytes 1K --loss 0.001 --churn \
			0.1 \
			--straggler 3 --seed 7
		check "the same bytes, whatever the environment" cmp -s out first
		# shellcheck disable=SC2086
		sim $method --ranks 24 --rounds 20 --bytes 1K --loss 0.001 --churn 0.1 --straggler 3 --seed 8
		check "another seed, other bytes" is "$(cmp -s out first; echo $?)" 1
	done
}

last() { tail -n 1 out | cut -d, -f "$1"; }
test_time() { # what a network is, is in the time
	sim allreduce --ranks 8 --rounds 5 --step 10ms --bytes 8
	check "about five steps" is "$(last 1 | cut -c1-4)" 0.05
	sim allreduce --ranks 8 --rounds 5 --step 10ms --bytes 8 --straggler 4
	check "as slow as the slowest" is "$(last 1 | cut -c1-3)" 0.2
	sim gossip --ranks 8 --rounds 5 --step 10ms --bytes 8 --straggler 4
	check "nobody waits for the slowest" is "$(last 1 | cut -c1-4)" 0.05
	sim allreduce --ranks 8 --rounds 5 --step 10ms --bytes 1M --bandwidth 10M
	check "a slow link" [ "$(last 1 | cut -d. -f1)" -ge 1 ]
}

# Nobody dies before all are out of the barrier, however much is lost. Ranks that come again at once are let in, and
# none is evicted for what the others heard of its earlier life: seeds that once showed it.
test_churn() {
	seeds="1 2 8 15 34"
	[ -z "${TEST_FULL:-}" ] || seeds=$(seq 60)
	for seed in $seeds; do
		sim gossip --way push --ranks 64 --rounds 20 --churn 0.5 --loss 0.1 --straggler 5 --seed "$seed"
		ran 20
	done
}

test_matrix() {
	sim gossip --ranks 4 --graph ring --matrix
	check "status 0" is $status 0
	check "the ring's" is "$(cat out | tr '\n' ' ')" \
		"0.5,0.25,0,0.25 0.25,0.5,0.25,0 0,0.25,0.5,0.25 0.25,0,0.25,0.5 "
	sim gossip --ranks 8 --matrix
	check "of eight the exact mean" is "$(tr , '\n' < out | sort -u)" 0.125
}

test_refused() {
	sim
	refused "a method is missing"
	sim gosip
	refused "there is no method gosip (did you mean gossip?)"
	sim gossip --rank 5 --stragler 2
	refused "did you mean --straggler"
	sim gossip --graph rign
	refused "did you mean ring"
	sim gossip --ranks 1
	refused "a whole number from 2"
	sim gossip --step 10
	refused "a time like 50us"
	sim gossip --bandwidth fast
	refused "bytes a second"
	sim gossip --bytes 12
	refused "a multiple of 8"
	sim gossip --loss 0.9
	refused "from 0 to 0.5"
	sim allreduce --graph ring
	refused "graph is for gossip"
	sim allreduce --way pull
	refused "way is for gossip"
	sim elastic --factor 0.5
	refused "factor is for gossip"
	sim gossip --seed 99999999999999999999
	refused "a whole number from 0"
	sim gossip --latency 0x10us
	refused "a time like 50us"
	sim gossip --matrix --plot a.svg
	refused "$(command -v gnuplot > /dev/null && echo "runs nothing" || echo "needs gnuplot")"
	sim gossip --graph uniform --matrix
	refused "goes by chance"
	sim gossip --graph torus --ranks 13
	refused "make no rectangle"
	sim gossip elastic
	refused "one method"
}

test_help() {
	sim --help
	check "status 0" is $status 0
	check "the methods" has out "  gossip "
	check "the graphs" has out "exponential"
}

test_plot() {
	if ! command -v gnuplot > /dev/null; then
		sim gossip --rounds 3 --plot a.svg
		refused "needs gnuplot"
		return
	fi
	sim gossip --rounds 3 --plot a.svg
	ran 3
	check "a picture" has a.svg "<svg"
}

run_tests "same time churn matrix refused help plot" "${1:-}"
