# check.sh - what `./bootstrap check` runs, and what it counts; sourced by bootstrap, which has step, say, quietly,
# watched, build_in and find_root.
#
# A test that fails in the full check is run once more, alone: on a busy machine some tests fail for want of time. If it
# passes then, it counts as passed, the line FLAKY names it, and its first log stays, as NAME.first.log. The report of a
# sanitizer or of valgrind, a death by a signal, and a test that hangs, are no noise: such a test has failed.

passed=0 failed=0 skipped=0 flaky='' failing='' full=no # full: tests that fail are run once more

count() { passed=$((passed + $1)); failed=$((failed + $2)); skipped=$((skipped + $3)); }
failed_at() { failing="$failing $1"; count 0 1 0; } # a name, for the last lines

results() { # directory, pattern: how many tests there ended like that
	find "$1"/tests -name '*.trs' -exec cat {} + 2> /dev/null | grep -c -E "^:test-result: ($2)"
}

show_failures() { # directory
	for trs in $(find "$1/tests" -name '*.trs' | sort); do
		if grep -q -E '^:test-result: (FAIL|XPASS|ERROR)' "$trs"; then
			failing="$failing ${trs%.trs}"
			echo "-- ${trs%.trs}.log ends so:"
			tail -n 40 "${trs%.trs}.log"
		fi
	done
	for trs in $(find "$1/tests" -name '*.trs' | sort); do
		if grep -q '^:test-result: SKIP' "$trs"; then
			why=$(sed -n 's/^SKIPPED: //p' "${trs%.trs}.log" | tail -n 1)
			say "skipped $(basename "${trs%.trs}"): $why"
		fi
	done
}

show_longest() { # directory: where the time goes
	find "$1/tests" -name '*.log' -exec grep -H '^TIME ' {} + |
		sed -n 's/^\(.*\)\.log:TIME .* s, \(.*\) s of CPU$/\2 \1/p' |
		sort -rn | awk '{ cpu += $1 } NR <= 5 { list = list (NR > 1 ? ", " : "") $2 " " $1 " s" }
			END { if (NR) printf "CPU: %d s, of which %s\n", cpu, list }'
}

# --- once more, alone ---

many=10 # so many failures in one build are no noise

never_noise='(Address|Leak|Memory|Thread|UndefinedBehavior)Sanitizer|runtime error:|^==[0-9]+== |'\
'Segmentation fault|Aborted|core dumped|Bus error|Illegal instruction|Floating point exception|'\
'SIG(ABRT|BUS|FPE|ILL|SEGV|TRAP)|signal (4|5|6|7|8|11)([^0-9]|$)|exit status: (12[489]|1[3-9][0-9]|2[0-9][0-9])|'\
'status 0x(8?[1-9a-f]|1700|4200)([^0-9a-f]|$)'
# "==PID== " begins valgrind's lines, and "==PID==WARNING" what AddressSanitizer says of each program with fibers.
# 124: `timeout` has ended a test that hangs. 0x is of waitpid():
# a signal, the leak checker's 23, or the thread sanitizer's 66.

may_be_noise() { # log of a failure
	[ -s "$1" ] && ! grep -q -a -E "$never_noise" "$1"
}

note_flaky() { # name, its first log
	say "FLAKY $1: it failed, and passed alone; $2 has the first log"
	flaky="$flaky $1"
}

failures() { # directory: the tests that have failed there, without their endings
	(cd "$1" && grep -l '^:test-result: FAIL' tests/*.trs tests/*/*.trs 2> /dev/null | sed 's/\.trs$//')
}

# shellcheck disable=SC2086
run_again() { # directory, test without its ending: does it pass now?
	test=$2 words=
	[ -f "$1/$2" ] || test=$2.sh
	for word in $tests; do
		case $word in TESTS=*) ;; *) words="$words $word" ;; esac
	done
	cp "$1/$2.trs" "$scratch/first.trs"
	mv "$1/$2.log" "$1/$2.first.log"
	watched "$scratch/again" $wrapper make -C "$1" -k check $words TESTS="$test"
	cat "$scratch/again" >> "$log"
	! grep -q '^:test-result: PASS' "$1/$2.trs" 2> /dev/null || return 0
	if ! grep -q '^:test-result: FAIL' "$1/$2.trs" 2> /dev/null; then # skipped, or not run: that is no result
		cp "$scratch/first.trs" "$1/$2.trs"
		cp "$1/$2.first.log" "$1/$2.log"
	fi
	return 1
}

run_failures_again() { # directory
	[ "$(failures "$1" | wc -l)" -le $many ] || return
	for failure in $(failures "$1"); do
		may_be_noise "$1/$failure.log" && run_again "$1" "$failure" &&
			note_flaky "$1/$failure" "$1/$failure.first.log"
	done
}

failed_parts() { # of the output of check-verbs or check-slurm; killed ones end with more than two digits, or in words
	sed -n 's/^\([a-z_0-9]*\)  *[0-9]* s  FAILED ([0-9]\{1,2\})$/\1/p' "$scratch/output"
}

# shellcheck disable=SC2086
run_parts_again() { # make's target, how the logs of its parts begin: do the parts pass now that have failed?
	again=$(failed_parts | xargs)
	[ -n "$again" ] && [ "$(echo "$again" | wc -w)" = "$(grep -c ' s  FAILED' "$scratch/output")" ] || return 1
	for part in $again; do
		may_be_noise "build/$2-$part.log" || return 1
	done
	for part in $again; do
		mv "build/$2-$part.log" "build/$2-$part.first.log"
	done
	quietly $as_root make -C build "$1" PARTS="$again" || return 1
	for part in $again; do
		note_flaky "$2-$part" "build/$2-$part.first.log"
	done
}

# --- builds ---

# shellcheck disable=SC2086
check_in() { # directory, then arguments of configure
	dir=$1
	if ! build_in "$@"; then
		failed_at "$dir"
		return
	fi
	step "testing in $dir"
	rm -f "$dir"/tests/*.trs "$dir"/tests/*/*.trs
	watched "$scratch/check" $wrapper make -C "$dir" -j "$test_jobs" -k check $tests
	broken=$?
	cat "$scratch/check" >> "$log"
	bad=$(results "$dir" 'FAIL|XPASS|ERROR')
	if [ $broken -ne 0 ] && [ "$bad" -eq 0 ]; then # it did not come as far as the tests
		tail -n 40 "$scratch/check"
		bad=1
	elif [ $full = yes ]; then
		run_failures_again "$dir"
		bad=$(results "$dir" 'FAIL|XPASS|ERROR')
	fi
	good=$(results "$dir" 'PASS|XFAIL')
	show_failures "$dir"
	count "$good" "$bad" "$(results "$dir" SKIP)"
	say "$good passed, $bad failed"
	longest=$(show_longest "$dir")
	[ -z "$longest" ] || say "$longest"
}

check_clang() {
	if ! command -v clang > /dev/null || ! command -v clang++ > /dev/null; then
		step "clang"
		say "skipped: clang is missing"
		count 0 0 1
		return
	fi
	# static libraries are the first build's: here they would only be compiled
	# shellcheck disable=SC2016
	tests='TESTS=$(code_tests) check_PROGRAMS=$(code_programs)'
	check_in build-clang --disable-static CC=clang CXX=clang++
	tests=
}

# Some kernels lay out memory in ways that this compiler's thread sanitizer does not know: then without that chance.
check_threads() {
	echo 'int main(void) { return 0; }' > "$scratch/probe.c"
	if ! cc -fsanitize=thread -o "$scratch/probe" "$scratch/probe.c" >> "$log" 2>&1; then
		say "skipped: the thread sanitizer, which this compiler does not have"
		count 0 0 1
		return
	fi
	wrapper=
	"$scratch/probe" >> "$log" 2>&1 || wrapper='setarch -R'
	if $wrapper "$scratch/probe" >> "$log" 2>&1; then
		# shellcheck disable=SC2016
		tests='TESTS=$(thread_tests) check_PROGRAMS=$(thread_programs)'
		check_in build-tsan --enable-sanitize=thread --disable-shared
		tests=
	else
		say "skipped: the thread sanitizer, which does not run on this kernel"
		count 0 0 1
	fi
	wrapper=
}

# Valgrind minds a test that asks for more memory than there is, and some tests take too long.
under_valgrind() { # test programs, one after the other
	for program; do
		words=
		[ $program != unit_collectives ] || words='wrong'
		[ $program != unit_pool ] || words='rules'
		[ $program != unit_table ] || words='wrong back'
		[ $program != unit_runtime ] || words='windows engine deadlines'
		# shellcheck disable=SC2086
		(cd build && exec valgrind -q --error-exitcode=9 --leak-check=full \
			--errors-for-leak-kinds=definite,indirect --fair-sched=yes \
			--suppressions="$top/tests/valgrind.supp" ./tests/*/"$program" $words) \
			> "$scratch/$program" 2>&1 < /dev/null
		echo $? > "$scratch/$program.status"
	done
}

is_clean() { [ "$(cat "$scratch/$1.status")" -eq 0 ]; } # test program, after under_valgrind
is_clean_again() {
	[ "$(cat "$scratch/$1.status")" -lt 124 ] && may_be_noise "$scratch/$1" || return 1
	mv "$scratch/$1" "build/valgrind-$1.first.log"
	under_valgrind "$1"
	cat "$scratch/$1" >> "$log"
	is_clean "$1" && note_flaky "valgrind-$1" "build/valgrind-$1.first.log"
}

check_memory() { # on two cores at once
	step "valgrind on the unit tests"
	one='unit_runtime unit_table unit_base unit_place unit_reduce'
	[ ! -x build/tests/verbs/unit_fake ] || one="$one unit_verbs_failures unit_verbs_join"
	two='unit_group unit_stats unit_tensors unit_rounds unit_parts unit_pool conformance unit_collectives'
	absent=
	command -v valgrind > /dev/null || absent="valgrind is missing"
	[ -x build/tests/base/unit_base ] || absent="the unit tests are not built, as CUnit is missing"
	if [ -n "$absent" ]; then
		say "skipped: $absent"
		count 0 0 1
		return
	fi
	# shellcheck disable=SC2086
	under_valgrind $one &
	# shellcheck disable=SC2086
	under_valgrind $two
	wait $!
	for program in $one $two; do
		cat "$scratch/$program" >> "$log"
		if is_clean "$program" || is_clean_again "$program"; then
			count 1 0 0
		else
			tail -n 40 "$scratch/$program"
			say "failed under valgrind: $program; the whole log: $log"
			failed_at "valgrind-$program"
		fi
	done
}

check_chaos() { # more schedules than make check has time for
	step "60 schedules of faults, real processes"
	[ -x build/tests/job/chaos ] || { say "skipped: chaos is not built, as CUnit is missing"; count 0 0 1; return; }
	if quietly build/tests/job/chaos --seeds 60 --jobs 2 || run_seeds_again; then
		count 1 0 0
	else
		failed_at chaos
	fi
	grep '^chaos: ' "$scratch/output" | sed 's/^/   /'
}

run_seeds_again() { # of chaos, which has run them all
	grep -q '^chaos: 60 seeds, ' "$scratch/output" && may_be_noise "$scratch/output" || return 1
	cp "$scratch/output" build/chaos.first.log
	again=$(sed -n 's/^ *replay: chaos --seed \([0-9]*\) .*/\1/p' build/chaos.first.log)
	[ -n "$again" ] || return 1
	for seed in $again; do
		quietly build/tests/job/chaos --seed "$seed" || return 1
	done
	for seed in $again; do
		note_flaky "chaos-$seed" build/chaos.first.log
	done
}

cover_again() {
	cp "$scratch/output" build/coverage-verbs.first.log
	quietly make -C build coverage-verbs && note_flaky coverage-verbs build/coverage-verbs.first.log
}

make_guest() { sh tests/vm/build.sh || [ $? -eq 77 ]; } # 77: check-verbs says so

check_lines() { # of the first build
	step "which lines of transport/verbs the tests reach"
	if quietly make -C build coverage-verbs || { may_be_noise "$scratch/output" && cover_again; }; then
		grep -E '^(transport/verbs|SKIPPED): ' "$scratch/output" | sed 's/^/   /'
		count 1 0 0
	else
		failed_at coverage-verbs
	fi
}

check_guest() { # of the first build: in a virtual machine, whose kernel has RDMA
	step "RDMA in a guest"
	if command -v apt-get > /dev/null && lists_are_stale && find_root; then
		update_lists # older ones may name a kernel that is gone
	fi
	quietly make_guest
	as_root=
	if ! quietly make -C build check-verbs && ! run_parts_again check-verbs guest; then
		failed_at check-verbs
	elif grep -q '^SKIPPED: ' "$scratch/output"; then
		say "skipped: $(sed -n 's/^SKIPPED: //p' "$scratch/output" | tail -n 1)"
		count 0 0 1
	else
		grep -E '^[a-z_]+ +[0-9]+ s  ' "$scratch/output" | sed 's/^/   /'
		count 1 0 0
	fi
}

check_launchers() { # of the first build: under real launchers
	step "launchers, on four nodes of Slurm"
	find_root || as_root= # check-slurm says what it lacks
	# shellcheck disable=SC2086
	if ! quietly $as_root make -C build check-slurm && ! run_parts_again check-slurm slurm; then
		failed_at check-slurm
	elif grep -q '^SKIPPED: ' "$scratch/output"; then
		say "skipped: $(sed -n 's/^SKIPPED: //p' "$scratch/output" | tail -n 1)"
		count 0 0 1
	else
		grep -E '^[a-z_0-9]+ +[0-9]+ s  ' "$scratch/output" | sed 's/^/   /'
		count 1 0 0
	fi
}

step_again() { # name, the command that failed quietly: does it pass now?
	may_be_noise "$scratch/output" || return 1
	first=build/$1.first.log name=$1
	shift
	cp "$scratch/output" "$first"
	quietly "$@" && note_flaky "$name" "$first"
}

check_python() { # of the first build: what comes from the package index, or takes long
	for part in types wheel torch; do
		step "Python: $part"
		set -- sh "tests/python/$part.sh" . build
		quietly "$@"
		case $? in
		0) count 1 0 0 ;;
		77) say "skipped: $(sed -n 's/^SKIPPED: //p' "$scratch/output" | tail -n 1)"; count 0 0 1 ;;
		*) if step_again "python-$part" "$@"; then count 1 0 0; else failed_at "python-$part"; fi ;;
		esac
	done
}

check_tarball() { # with the tests that read files: is one missing?
	step "make distcheck"
	# shellcheck disable=SC2016
	set -- make -C build -j "$(cores)" distcheck DISTCHECK_CONFIGURE_FLAGS=--disable-static VERBOSE=yes \
		'TESTS=$(tarball_tests)' 'check_PROGRAMS=$(tarball_programs)'
	if quietly "$@" || step_again distcheck "$@"; then
		count 1 0 0
	else
		failed_at distcheck
	fi
}

# --- all of it ---

# Three of the builds compile the same text with the same flags: a cache for this run alone has it once.
share_objects() {
	PATH=/usr/lib/ccache:$PATH CCACHE_DIR=$scratch/ccache CCACHE_BASEDIR=$top CCACHE_NOHASHDIR=1 \
		CCACHE_SLOPPINESS=include_file_mtime
	export PATH CCACHE_DIR CCACHE_BASEDIR CCACHE_NOHASHDIR CCACHE_SLOPPINESS
}

check_more() { # after the first build
	unset TEST_FULL # which did all of what is alike
	check_clang
	# shellcheck disable=SC2016
	tests='TESTS=$(bare_tests) check_PROGRAMS=$(bare_programs)'
	check_in build-bare --disable-static --without-libsodium --without-libconfig --without-hwloc \
		--without-zlib --without-verbs --without-cuda --without-pmix --without-python
	# shellcheck disable=SC2016
	tests='TESTS=$(memory_tests) check_PROGRAMS=$(memory_programs)'
	check_in build-asan --disable-static --enable-sanitize=address,undefined
	tests=
	check_threads
	check_memory
	export TEST_FULL=yes
	check_chaos
	check_lines
	check_guest
	check_launchers
	check_python
	unset TEST_FULL
	check_tarball
}
