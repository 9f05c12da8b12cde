#!/bin/sh
# waits.sh - waits.list names each function of tutti.h, and the interrupt walk interrupts each one that waits
set -u
export LC_ALL=C
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${top_builddir:-.}" && pwd)
if [ ! -x "$build/tests/job/interrupts" ]; then
	echo "SKIPPED: the interrupt walk was not built, as CUnit is not here"
	exit 77
fi
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 99
failed=0
fail() { echo "FAILED: $*"; failed=1; }

sed -n 's/^[a-z].*[ *]\(tutti_[a-z0-9_]*\)(.*/\1/p' "$source/runtime/tutti.h" | sort -u > declared
grep -v '^#' "$source/tests/job/waits.list" > entries
awk 'NF != 2 || $2 !~ /^(waits|bounded|local)$/' entries > odd
awk '{ print $1 }' entries | sort > listed
awk '$2 == "waits" { print $1 }' entries | sort > waiting
"$build/tests/job/interrupts" --list | sort -u > walked
[ "$(wc -l < declared)" -gt 100 ] || fail "of tutti.h only $(wc -l < declared) functions were found"
[ ! -s odd ] || fail "waits.list: a line is NAME and waits, bounded or local: $(cat odd)"
uniq -d listed > twice
[ ! -s twice ] || fail "waits.list names twice: $(cat twice)"
comm -23 declared listed > missing
[ ! -s missing ] || fail "waits.list does not say whether they wait for other ranks: $(cat missing)"
comm -13 declared listed > unknown
[ ! -s unknown ] || fail "waits.list names what tutti.h does not declare: $(cat unknown)"
comm -3 waiting walked > differ
[ ! -s differ ] || fail "interrupts.c interrupts other functions than those that wait (waits.list): $(cat differ)"
[ $failed = 0 ] && echo "all functions that wait are interrupted"
exit $failed
