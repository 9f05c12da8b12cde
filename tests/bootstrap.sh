#!/bin/sh
# bootstrap.sh - ./bootstrap lists and installs packages; the full check runs failed tests once more; what check-slurm
# and check-verbs need is built. Packages, tests and failures are made up.
set -u
[ "${1:-}" = bounded ] || exec timeout -k 10 200 sh "$0" bounded "$@"
shift
export LC_ALL=C
unset MAKEFLAGS MFLAGS MAKELEVEL CDPATH
here=$(cd "$(dirname "$0")" && pwd) build=$(cd "${top_builddir:-.}" && pwd)
folder=$(mktemp -d) || exit 99
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 99
. "$here/harness/checks.sh"
says() { has out "$1"; }
fails() { ! "$@" > out; }
passes() { "$@" > out; }

# ---- packages ----

fake() { # command: its text is the input
	{ echo '#!/bin/sh'; cat; } > "bin/$1" && chmod +x "bin/$1"
}

make_machine() { # one on which everything is installed, and whose user is root
	mkdir -p bin tree/tests
	cp "$here/../bootstrap" tree/ && cp "$here/check.sh" tree/tests/
	: > missing > unknown > broken
	export machine="$folder" user=0
	fake id << 'end'
echo "$user"
end
	fake sudo << 'end'
exit 1
end
	fake dpkg-query << 'end'
for package; do :; done
grep -qx "$package" "$machine/missing" || echo 'install ok installed'
end
	fake apt-cache << 'end'
for package; do :; done
! grep -qx "$package" "$machine/unknown"
end
	fake apt-get << 'end'
case "$*" in *' install '*) ;; *) exit 0 ;; esac
cp "$machine/out" "$machine/said"
for package; do
	! grep -qx "$package" "$machine/broken" || exit 100
done
echo "$*" | sed 's/.*--no-install-recommends //' >> "$machine/installed"
end
	fake autoreconf << 'end'
echo > configure
end
}

bootstrap() { # missing packages ...: leaves out, status, what was installed, and what out said before
	name="./bootstrap as user $user, without $*; unknown: $(xargs < unknown); broken: $(xargs < broken)"
	printf '%s\n' "$@" > missing
	: > installed > said
	PATH=$folder/bin:$PATH tree/bootstrap > out 2>&1
	status=$?
}

test_packages() {
	make_machine
	bootstrap
	check "status 0" is $status 0
	check "nothing to install" says 'all are there'
	bootstrap autoconf libsodium-dev libpmix-dev
	check "status 0" is $status 0
	check "required ones are named first" has said '^   required, and missing: autoconf *$'
	check "and optional ones, with what they are for" has said '^      libsodium-dev: a job with a secret'
	check "both are installed" is "$(xargs < installed)" 'autoconf libsodium-dev libpmix-dev'
	echo libsodium-dev > broken
	bootstrap libsodium-dev libpmix-dev
	check "an optional one that fails does not stop it" is $status 0
	check "what is lost is said" says '^   libsodium-dev could not be installed: a job with a secret'
	check "the other one is installed" is "$(xargs < installed)" libpmix-dev
	echo libsodium-dev > unknown
	bootstrap libsodium-dev
	check "nor does one that there is not" is $status 0
	check "what is lost is said" says '^   this system has no package libsodium-dev: a job with a secret'
	echo automake > broken
	bootstrap automake
	check "a required one that fails does" is $status 1
}

test_without_root() {
	make_machine
	user=1000
	bootstrap libsodium-dev
	check "goes on" is $status 0
	check "says what root can do" says '^ *sudo apt-get install -y --no-install-recommends libsodium-dev'
	check "installs nothing" lines installed 0
	bootstrap automake libsodium-dev
	check "stops" is $status 1
	check "for the required one" says '^bootstrap: required packages are missing: automake'
	check "says what root can do" says '^ *sudo apt-get install -y --no-install-recommends automake libsodium-dev'
}

# ---- a test that fails is run once more, alone ----

step() { :; }
say() { echo "   $*"; }
quietly() { "$@" > "$scratch/output" 2>&1; }
watched() { output=$1; shift; "$@" > "$output" 2>&1; }
build_in() { :; }

# Makes the .log and .trs of a test as automake does.
make_tree() { # tests by their names, below
	rm -rf built && mkdir -p built/tests/a scratch
	scratch=$folder/scratch log=$folder/log test_jobs=2 wrapper= as_root=
	. "$here/check.sh"
	tests='TESTS=$(all) EXTRA=x'
	for test; do
		file=built/tests/a/$test
		case $test in *.sh) ;; *) [ "$test" = once ] || file=$file.sh ;; esac
		cp "$folder/failing" "$file" && chmod +x "$file"
		echo "${file#built/}"
	done > names
	{
		echo "all = $(xargs < names)"
		cat "$folder/makefile"
	} > built/Makefile
}

write_failing() {
	cat > failing << 'end'
#!/bin/sh
name=$(basename "$0" .sh)
[ -e "$0.ran" ] && again=yes || again=no
: > "$0.ran"
echo "$name again: $again, extra: ${EXTRA:-}"
[ $again = no ] || case $name in always*) exit 1 ;; skips) exit 77 ;; *) exit 0 ;; esac
case $name in
passes) exit 0 ;;
dies) kill -SEGV $$ ;;
reports) echo '==71==ERROR: AddressSanitizer: heap-use-after-free' ;;
races) echo 'WARNING: ThreadSanitizer: data race' ;;
leaks) echo '==9==ERROR: LeakSanitizer: detected memory leaks' ;;
overflows) echo 'x.c:3:1: runtime error: signed integer overflow' ;;
loses) echo 'rank 1 ended with status 0x8b' ;;
hangs) exit 124 ;; # as `timeout` ends
esac
exit 1
end
	cat > makefile << 'end'
TESTS = $(all)
check:
	@bad=0; for test in $(TESTS); do \
		base=$${test%.sh}; EXTRA=$(EXTRA) ./$$test > $$base.log 2>&1; status=$$?; \
		case $$status in 0) result=PASS ;; 77) result=SKIP ;; *) result=FAIL; bad=1 ;; esac; \
		echo ":test-result: $$result" > $$base.trs; \
		echo "$$result $$test (exit status: $$status)" >> $$base.log; \
	done; exit $$bad
end
}

test_flaky() {
	write_failing
	make_tree passes once twice.sh
	full=yes
	name="a full check" status=
	check_in built > out 2>&1
	check "all have passed" is "$passed $failed" '3 0'
	check "they are named" says '^   FLAKY built/tests/a/once: '
	check "scripts, too" says '^   FLAKY built/tests/a/twice: '
	check "and only they" is "$flaky" ' built/tests/a/once built/tests/a/twice'
	check "the first log stays" has built/tests/a/once.first.log '^once again: no'
	check "beside the second" has built/tests/a/once.log '^once again: yes, extra: x'
	make_tree once
	full=no name="a strict check"
	check_in built > out 2>&1
	check "it has failed" is "$passed $failed" '0 1'
	make_tree always skips once
	full=yes name="some that do not pass then"
	check_in built > out 2>&1
	check "two have failed" is "$passed $failed $skipped" '1 2 0'
	check "both are named for the last lines" is "$failing" ' built/tests/a/always built/tests/a/skips'
}

test_never_flaky() {
	write_failing
	for kind in dies reports races leaks overflows loses hangs; do
		make_tree $kind
		full=yes name="one that $kind"
		check_in built > out 2>&1
		check "it has failed" is "$passed $failed$flaky" '0 1'
	done
	# shellcheck disable=SC2046
	make_tree $(seq -f 'many%g' 11)
	full=yes name="many"
	check_in built > out 2>&1
	check "they have failed" is "$passed $failed$flaky" '0 11'
}

test_valgrind() {
	make_tree passes
	mkdir -p build
	under_valgrind() { echo 0 > "$scratch/$1.status"; echo well > "$scratch/$1"; }
	name="a test that fails under valgrind" status=
	echo 1 > "$scratch/unit"
	echo 1 > "$scratch/unit.status"
	check "passes then" passes is_clean_again unit
	check "its first log stays" has build/valgrind-unit.first.log 1
	echo '==12== Invalid read of size 8' > "$scratch/unit"
	echo 9 > "$scratch/unit.status"
	check "valgrind's word stands" fails is_clean_again unit
	echo 'as if by a signal' > "$scratch/unit"
	echo 139 > "$scratch/unit.status"
	check "so does a signal" fails is_clean_again unit
}

test_chaos() {
	make_tree passes
	mkdir -p build/tests/job
	cat > build/tests/job/chaos << 'end'
#!/bin/sh
[ "$1" = --seed ] && exec sh -c "[ $2 != 9 ]"
exit 1
end
	chmod +x build/tests/job/chaos
	name="chaos" status=
	printf 'seed %d: late\n  replay: chaos --seed %d --verbose\n' 4 4 17 17 > "$scratch/output"
	echo 'chaos: 60 seeds, FAILED' >> "$scratch/output"
	check "both seeds pass then" passes run_seeds_again
	check "both are named" is "$flaky" ' chaos-4 chaos-17'
	flaky=
	printf 'seed %d: late\n  replay: chaos --seed %d --verbose\n' 4 4 9 9 > "$scratch/output"
	echo 'chaos: 60 seeds, FAILED' >> "$scratch/output"
	check "seed 9 fails again" fails run_seeds_again
	printf 'seed 4: late\n  replay: chaos --seed 4 --verbose\nchaos: 31 seeds, FAILED\n' > "$scratch/output"
	check "29 were not run" fails run_seeds_again
	check "none is named" is "$flaky" ''
}

test_steps() {
	make_tree passes
	mkdir -p build
	name="steps" status='' flaky=
	echo "FAIL: late" > "$scratch/output"
	check "a step passes then" passes step_again step-a true
	check "it is named" is "$flaky" ' step-a'
	check "its first output stays" has build/step-a.first.log '^FAIL: late'
	flaky=
	echo "FAIL: late" > "$scratch/output"
	check "a step fails again" fails step_again step-b false
	echo "ERROR: AddressSanitizer: overflow" > "$scratch/output"
	check "a report stands" fails step_again step-c true
	check "none of them is named" is "$flaky" ''
}

parts_end() { # line of output ...: do the parts pass once more? what they wrote is in `wrote`
	flaky=
	printf '%s\n' "$@" > "$scratch/output"
	for part in one two; do
		cp wrote build/slurm-$part.log
	done
	run_parts_again check-slurm slurm
}

test_parts() {
	make_tree passes
	mkdir -p build
	printf 'check-slurm:\n\t@echo "$(PARTS)" > parts\n' > build/Makefile
	name="parts" status=
	echo 'not as it should be' > wrote
	check "they pass then" passes parts_end 'one      3 s  FAILED (1)' 'fine     3 s  passed' \
		'two     10 s  FAILED (2)'
	check "those alone are run" is "$(cat build/parts)" 'one two'
	check "they are named" is "$flaky" ' slurm-one slurm-two'
	check "their first logs stay" has build/slurm-one.first.log 'not as it should be'
	check "not after a signal" fails parts_end 'one  3 s  FAILED (139)'
	check "not one that hangs" fails parts_end 'one  3 s  FAILED (1)' 'two  60 s  FAILED: not done after 60 s'
	check "not without parts" fails parts_end 'FAILED: Slurm does not come up'
	echo 'Segmentation fault' > wrote
	check "not where one dies" fails parts_end 'one  3 s  FAILED (1)'
	check "none is named" is "$flaky" ''
}

# ---- what check-slurm and check-verbs run is built for them ----

builds() { # target, script: it needs each program that the script names
	name="make $1" status=
	(cd "$build" && make -pn "$1" 2> /dev/null) | sed -n "s/^$1: //p" | tr ' ' '\n' > needed
	for program in $(grep -oE 'tests/[a-z]+/[a-z_]+' "$2" | sort -u); do
		[ ! -f "$here/../$program.c" ] || check "it builds $program" grep -qx "$program" needed
	done
}

test_programs() {
	[ -f "$build/Makefile" ] || return
	builds check-slurm "$here/slurm/check.sh"
	! has "$build/config.status" 'HAVE_VERBS_TRUE"\]=""' || ! has "$build/config.status" 'HAVE_CUNIT_TRUE"\]=""' ||
		builds check-verbs "$here/vm/check.sh"
}

run_tests "packages without_root flaky never_flaky valgrind chaos steps parts programs" "$@"
