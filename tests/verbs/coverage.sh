#!/bin/sh
# coverage.sh - which lines of transport/verbs its tests over adapters that are not there reach; `make coverage-verbs`
# calls it.
#
#   coverage.sh SOURCE-TREE BUILD-TREE     a line for each file, and one for all; fails below 90 % of all
#
# The build tree has the tests' objects. They are linked with transport/verbs as gcov counts, in BUILD-TREE/covered.
set -u
export LC_ALL=C
source_tree=$(cd "$1" && pwd) && cd "$2" || exit 2
least=90
tests='failures reach hostile join costs storm gpu passive requests'

value() { sed -n "s/^$1 = //p" Makefile; }
stop() { echo "coverage.sh: $*" >&2; exit 1; }
cc=$(value CC)
case $("$cc" --version 2> /dev/null) in
*[Cc]lang*) echo "SKIPPED: clang counts for itself, not for gcov"; exit 77 ;;
esac

[ -x tests/verbs/unit_fake ] || { echo "SKIPPED: this build is without RDMA, or without CUnit"; exit 77; }
rm -rf covered
mkdir covered
for file in "$source_tree"/transport/verbs/*.c "$source_tree/tools/adapters.c"; do
	eval "$cc -std=gnu11 -D_GNU_SOURCE $(value DEFS) -I. -I'$source_tree' -I'$source_tree/runtime' -pthread" \
		"-g -O0 --coverage -c '$file' -o 'covered/$(basename "$file" .c).o'" || stop "cannot compile $file"
done
cuda=$PWD/tests/gpu/.libs
for test in $tests; do
	also=
	[ "$test" != gpu ] || also="covered/adapters.o $cuda/libcuda.so.1 -Wl,-rpath,$cuda"
	# shellcheck disable=SC2046,SC2086
	./libtool --silent --tag=CC --mode=link "$cc" -pthread --coverage \
		$(value "tests_verbs_unit_verbs_${test}_LDFLAGS" | grep -o -- '-Wl,--wrap=[a-z_]*') \
		-o "covered/$test" "tests/verbs/unit_verbs_$test-unit_verbs_$test.o" covered/verbs*.o $also libtutti_fake.la \
		libtutti_core.la $(value CUNIT_LIBS) || stop "cannot link $test"
	"covered/$test" > "covered/$test.log" 2>&1 || { tail -n 20 "covered/$test.log"; stop "$test failed"; }
done
(cd covered && gcov -n -- *.gcda) | awk -v least=$least '
	/^File / {
		file = $0
		sub(/.*transport\/verbs\//, "", file)
		sub(/.$/, "", file)
		ours = $0 ~ /transport\/verbs\/[a-z_]*\.c/
	}
	/^Lines executed:/ && ours {
		split($0, n, /[:% ]+/)
		printf "%6.1f %% of %3d lines  %s\n", n[3], n[5], file
		all += n[5]; reached += n[3] * n[5] / 100; ours = 0
	}
	END {
		percent = all ? 100 * reached / all : 0
		printf "transport/verbs: %.1f %% of %d lines\n", percent, all
		exit percent < least
	}' || stop "less than $least %"
