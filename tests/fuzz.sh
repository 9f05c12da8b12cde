#!/bin/sh
# fuzz.sh - the fuzz targets on the inputs of tests/fuzz/corpus: what once broke, and what reaches the parsers' lines.
set -u
corpus=${srcdir:-$(dirname "$0")/..}/tests/fuzz/corpus
failed=0
for target in frames boot members late shards tables config tensors verbs; do
	[ $target != verbs ] || [ -x "${top_builddir:-.}/tests/fuzz/fuzz_verbs" ] || continue # a build without RDMA
	printf '%s: ' $target
	"${top_builddir:-.}/tests/fuzz/fuzz_$target" "$corpus/$target.hex" 2> "fuzz-$target.err" ||
		{ failed=1; echo failed; tail -n 60 "fuzz-$target.err"; }
	rm -f "fuzz-$target.err"
done
exit $failed
