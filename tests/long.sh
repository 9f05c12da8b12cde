#!/bin/sh
# long.sh - everything that can be tried on one machine; `make check-long` calls it. All parts take an hour or more.
#
#   long.sh SOURCE-TREE BUILD-TREE [PART ...]     the parts named, else all; `long.sh . . list` names them
#
# SEEDS (20000) for contract, storm, recover and newcomers, FUZZ_SECONDS (60) for each fuzz target. One line a part: what
# came of it, and its time; what a part printed is in BUILD-TREE/long-PART.log. The exit status is 1 if a part failed.
set -u
export LC_ALL=C TEST_FULL=yes
source_tree=$(cd "$1" && pwd) build_tree=$(cd "$2" && pwd) || exit 2
shift 2
seeds=${SEEDS:-20000}
cd "$build_tree" || exit 2

# Each part is a function part_NAME; 77 is "cannot be done here", with the reason in the last line.
parts='
check        make check
contract     the contract of the transports on sim and over adapters that are not there, over many seeds
fakes        the runtime's own tests over adapters that are not there, 20 times with other seeds; 10,000 connects
storm        random patterns and faults on sim, over many seeds
recover      ranks that fail and groups that go on without them, on sim, over many seeds
newcomers    ranks that join while others fail, on sim, over many seeds
crowd        4096 ranks on sim
averaging    ranks killed in every method of averaging: on sim over 1000 seeds, and real processes
chaos        real processes that are killed, stopped and cut off, over 200 seeds
fuzz         each fuzz target from its corpus on
coverage     what the fuzz corpus reaches of the parsers
tsan         the thread sanitizer over threads and real processes
verbs        RDMA on a real kernel's stack, in a guest: check-verbs, and the runtime's own tests over rxe
valgrind     the unit tests under valgrind; of the collectives, which take long, those that go wrong'

needs() { # program: built if it is not
	make -s "$1" || return 1
}

part_check() { make check; }
program_of() { # the path of a test program in the build tree
	path=$(cd "$source_tree" && echo tests/*/"$1".c)
	echo "${path%.c}"
}

part_contract() {
	needs tests/transport/contract || return
	for net in sim fake-ib fake-roce fake-ib-cm fake-roce-cm fake-iwarp; do
		./tests/transport/contract --transport $net --no-breaks --seeds "$seeds" || return
	done
}
part_fakes() {
	make check TESTS= || return
	! [ -x tests/verbs/unit_verbs_failures ] || TEST_CONNECTS=10000 ./tests/verbs/unit_verbs_failures leaks || return
	! [ -x tests/verbs/unit_verbs_reach ] || TEST_CONNECTS=10000 ./tests/verbs/unit_verbs_reach pool || return
	sh "$source_tree/tests/verbs/over_fake.sh" 20
}
part_storm() { needs tests/job/storm && ./tests/job/storm --seeds "$seeds"; }

part_newcomers() { needs tests/job/newcomers && ./tests/job/newcomers --seeds "$seeds"; }

# In portions, so that the log says how far it came.
part_recover() {
	needs tests/job/recover || return 1
	from=0
	while [ $from -lt "$seeds" ]; do
		n=$((seeds - from < 1000 ? seeds - from : 1000))
		echo "== seeds $from to $((from + n - 1))"
		./tests/job/recover --seed $from --seeds $n || return 1
		from=$((from + n))
	done
}

part_averaging() {
	for program in unit_sync unit_center unit_gossip unit_controller faults_average faults_controller; do
		echo "== $program"
		path=$(program_of "$program")
		needs "$path" && TEST_SEEDS=1000 "./$path" || return 1
	done
}

part_crowd() { needs tests/member/crowd && ./tests/member/crowd --ranks 4096; }

part_chaos() {
	grep -q '^tests/job/chaos:\|^tests/job/chaos\$(EXEEXT):' Makefile || { echo "SKIPPED: there is no program tests/job/chaos in this tree"; return 77; }
	needs tests/job/chaos && ./tests/job/chaos --seeds 200
}

part_fuzz() {
	for target in frames boot members late shards tables config tensors; do
		needs "tests/fuzz/fuzz_$target" || return 1
	done
	[ ! -x tests/verbs/unit_fake ] || needs tests/fuzz/fuzz_verbs || return 1
	sh "$source_tree/tests/fuzz/look.sh" "$source_tree" .
}

part_coverage() { sh "$source_tree/tests/fuzz/coverage.sh" "$source_tree" .; }

# Some kernels lay out memory in ways that this compiler's thread sanitizer does not know: then without that chance.
part_tsan() {
	mkdir -p tsan-build && cd tsan-build || return 1
	[ -f config.status ] || "$source_tree/configure" -q --enable-sanitize=thread --disable-shared > /dev/null || return 1
	for program in unit_runtime unit_collectives unit_stats unit_group boot faults; do
		make -s "$(program_of "$program")" || return 1
	done
	make -s tutti examples/hello || return 1
	wrapper=
	if ./tests/window/unit_runtime no-such-test 2>&1 | grep -q 'FATAL: ThreadSanitizer'; then
		wrapper='setarch -R'
	fi
	for program in unit_runtime unit_collectives unit_stats unit_group boot faults; do
		echo "== $program"
		$wrapper ./tests/*/"$program" || return 1
	done
}

part_verbs() {
	make check-verbs || return 1
	! grep -q '^SKIPPED: ' long-verbs.log || return 77
	make check TESTS= && sh "$source_tree/tests/vm/check.sh" "$source_tree" . suites suites_loss
}

part_valgrind() {
	command -v valgrind > /dev/null || { echo "SKIPPED: no valgrind here (apt install valgrind)"; return 77; }
	for program in unit_base unit_place unit_reduce unit_updater unit_runtime unit_stats unit_tensors unit_group \
		unit_collectives \
		$(grep -q DHAVE_VERBS=1 Makefile && echo unit_fake unit_verbs_failures unit_verbs_join); do
		needs "$(program_of "$program")" || return 1
		words=
		[ $program != unit_collectives ] || words='wrong'
		[ $program != unit_runtime ] || words='collectives windows engine deadlines' # a test of groups asks for more memory than there is
		valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite,indirect --fair-sched=yes --suppressions="$source_tree/tests/valgrind.supp" \
			./tests/*/"$program" $words || return 1
	done
}

names=$(echo "$parts" | awk 'NF { print $1 }')
[ "${1:-}" = list ] && { echo "$parts" | sed 1d; exit 0; }
failed=0
for name in ${*:-$names}; do
	echo "$names" | grep -qx "$name" || { echo "long.sh: there is no part $name; they are:" $names; exit 2; }
	start=$(date +%s)
	(part_"$name") > "long-$name.log" 2>&1 < /dev/null
	status=$?
	result=passed
	[ $status -eq 0 ] || result="FAILED ($status)"
	[ $status -ne 77 ] || result="skipped: $(sed -n 's/^SKIPPED: //p' "long-$name.log" | tail -n 1)"
	printf '%-10s %5d s  %s\n' "$name" $(($(date +%s) - start)) "$result"
	[ "$name" != coverage ] || [ $status -eq 77 ] || tail -n 1 "long-$name.log"
	case $status in 0 | 77) ;; *) tail -n 30 "long-$name.log"; echo "all of it: $build_tree/long-$name.log"; failed=1 ;; esac
done
exit $failed
