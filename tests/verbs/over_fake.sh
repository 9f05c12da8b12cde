#!/bin/sh
# over_fake.sh - the runtime's own tests over adapters that are not there (fake.h): what they run over TCP, over verbs.
#
#   over_fake.sh [SEEDS [PROGRAM ...]]     in the build tree, or with top_builddir. SEEDS (1): how often; each run of a
#                                          program takes seeds of its own. PROGRAM: window/unit_runtime ...; else most,
#                                          with TEST_FULL=yes all
set -u
export TEST_WIRE=verbs
cd "${top_builddir:-.}/tests" || exit 2
seeds=${1:-1}
[ $# -eq 0 ] || shift
most='window/unit_runtime collective/unit_collectives collective/unit_loans member/unit_group table/unit_table
	table/unit_snapshots average/unit_gossip'
rest='table/unit_rows table/unit_clocks table/unit_table_faults average/unit_sync average/unit_center
	control/unit_controller publish/unit_publish publish/unit_delta publish/unit_shards'
# shellcheck disable=SC2086
[ $# -gt 0 ] || set -- $most ${TEST_FULL:+$rest}
if [ ! -x verbs/unit_fake ]; then
	echo "SKIPPED: this build is without RDMA (apt install libibverbs-dev librdmacm-dev, configure again)"
	exit 77
fi

# Ranks that all fell back to TCP would pass, too: in most runs of a program some rank has sent something over verbs.
over_verbs() { # what a program says of its runs
	echo "$1" | awk '/ runs over verbs, / { good = 2 * $5 < $1 } END { exit !good }'
}

log=$(mktemp) failed=0
trap 'rm -f "$log"' EXIT
for program; do
	i=0
	while [ $i -lt "$seeds" ]; do
		export TEST_SEED=$((i * 1000))
		if "./$program" -v > "$log" 2>&1 && over_verbs "$(grep ' runs over verbs, ' "$log")"; then
			echo "$program, seeds from $TEST_SEED: $(grep ' runs over verbs, ' "$log")"
		else
			tail -n 60 "$log"
			echo "FAILED: TEST_WIRE=verbs TEST_SEED=$TEST_SEED tests/$program"
			failed=1
		fi
		i=$((i + 1))
	done
done
exit $failed
