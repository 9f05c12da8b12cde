#!/bin/sh
# look.sh - looks for inputs that break something, from the corpus on; `make fuzz` and `make fuzz-keep` call it.
#
#   look.sh SOURCE-TREE BUILD-TREE [--keep] [TARGET ...]      FUZZ_SECONDS (60) for each target
#
# It configures BUILD-TREE/fuzz-build for clang, libFuzzer and the sanitizers. New inputs stay there, in found/TARGET,
# and
# are where the next run begins; one that breaks something is in broken/. Nothing goes into the source tree, unless
# --keep
# asks for a new corpus: the fewest inputs, of the old one and of what was found, that still reach everything.
set -u
source_tree=$(cd "$1" && pwd) build_tree=$(cd "$2" && pwd) || exit 2
shift 2
keep=no
[ "${1:-}" = --keep ] && keep=yes && shift
verbs=
[ ! -x "$build_tree/tests/fuzz/fuzz_verbs" ] || verbs=verbs # else the build is without RDMA
targets=${*:-frames boot members late shards tables config tensors $verbs}
seconds=${FUZZ_SECONDS:-60}
work=$build_tree/fuzz-build
mark='# found by fuzzing, and made anew by make fuzz-keep'

stop() { echo "look.sh: $*" >&2; exit 1; }

build() {
	if [ ! -f "$work/config.status" ]; then
		if ! ${CLANG:-clang} --version > /dev/null 2>&1; then
			echo "SKIPPED: no clang here, which brings libFuzzer (apt install clang libclang-rt-dev)"
			exit 77
		fi
		(cd "$work" && "$source_tree/configure" -q CC="${CLANG:-clang}" CXX="${CLANG:-clang}++" \
			CFLAGS='-g -O1 -fsanitize=fuzzer-no-link' CPPFLAGS=-DTT_FUZZER --enable-sanitize=address,undefined --disable-shared > /dev/null) || stop "cannot configure $work"
	fi
	for target in $targets; do
		make -s -C "$work" FUZZER='-XCClinker -fsanitize=fuzzer' "tests/fuzz/fuzz_$target" > "$work/build.log" \
			2>&1 ||
			{ cat "$work/build.log"; stop "cannot build $target"; }
	done
}

run() { # target, then arguments of libFuzzer
	name=$1
	shift
	ASAN_OPTIONS=detect_stack_use_after_return=0 "$work/tests/fuzz/fuzz_$name" -timeout=20 -rss_limit_mb=3000 \
		-artifact_prefix="$work/broken/$name-" "$@" > "$work/$name.log" 2>&1
}

look() {
	mkdir -p "$work/found/$1" "$work/broken"
	"$build_tree/tests/fuzz/fuzz_$1" --unpack "$work/found/$1" "$source_tree/tests/fuzz/corpus/$1.hex" ||
		stop "cannot unpack the corpus of $1"
	if run "$1" -max_total_time="$seconds" -max_len=1024 -len_control=0 "$work/found/$1"; then
		runs=$(sed -n 's/^Done \([0-9]*\) runs in \([0-9]*\) .*/\1 inputs in \2 s/p' "$work/$1.log")
		echo "$1: $runs, $(find "$work/found/$1" -type f | wc -l) kept in $work/found/$1"
		return
	fi
	tail -n 60 "$work/$1.log"
	echo "$1: BROKEN by $(ls -t "$work/broken/$1-"* | head -n 1); to replay it: $build_tree/tests/fuzz/fuzz_$1 FILE"
	failed=1
}

# Above the mark stands what people have put there; it stays.
pack() {
	corpus=$source_tree/tests/fuzz/corpus/$1.hex
	rm -rf "$work/least/$1"
	mkdir -p "$work/least/$1"
	run "$1" -merge=1 -set_cover_merge=1 "$work/least/$1" "$work/found/$1" ||
		{ tail -n 20 "$work/$1.log"; stop "cannot merge what was found for $1"; }
	{
		sed "/^$mark/,\$d" "$corpus"
		echo "$mark"
		"$build_tree/tests/fuzz/fuzz_$1" --pack "$work/least/$1"
	} > "$work/$1.hex" && mv "$work/$1.hex" "$corpus"
	echo "$1: $(grep -c '^[0-9a-f]' "$corpus") inputs, $(wc -c < "$corpus") bytes in $corpus"
}

failed=0
mkdir -p "$work"
build
for target in $targets; do
	look "$target"
done
[ $keep = no ] || [ $failed -ne 0 ] || for target in $targets; do
	pack "$target"
done
exit $failed
