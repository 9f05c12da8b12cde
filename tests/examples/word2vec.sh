#!/bin/sh
# word2vec.sh - the sparse demo: words that stand in the same places get alike rows, on any number of ranks; what a step
# touches; its JSON,
# and a sentence for whatever is wrong.
set -u
export LC_ALL=C
tutti=$(cd "${top_builddir:-.}" && pwd)/tutti
word2vec=${tutti%/*}/examples/word2vec
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 99
unset TUTTI_RANK TUTTI_SIZE TUTTI_BOOT TUTTI_CONFIG RANK WORLD_SIZE
[ -x "$word2vec" ] || { echo "there is no $word2vec: run make first"; exit 99; }
. "$here/../harness/checks.sh"

# Twenty kinds of words, of ten words each: a sentence has words of one kind alone.
mkdir text
awk 'BEGIN {
	srand(3)
	for (i = 0; i < 4000; i++) {
		kind = int(rand() * 20)
		for (k = 0; k < 8; k++)
			printf "%c%c%s ", 97 + kind, 97 + kind, substr("abcdefghij", int(rand() * 10) + 1, 1)
		print "."
	}
}' > text/kinds

run() {
	n=$1
	shift
	name="tutti run -n $n word2vec $*"
	"$tutti" run -n "$n" "$word2vec" "$@" > out 2> err
	status=$?
}
one_kind() { # each word shown stands beside words that begin like it
	awk '/^  [a-z]/ { n++; for (i = 2; i < NF; i += 2) bad += substr($i, 1, 2) != substr($1, 1, 2) } END { exit !(n == 8 && bad <= 2) }' "$1"
}
at_least() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a >= b) }'; }
value() { sed -n "\$s/.*\"$1\": \([^,}]*\).*/\1/p" out; }

test_kinds() {
	for n in 1 3; do
		run $n --text=text --dim=16 --epochs 4 --rate=0.2 --least 1
		check "status 0" is $status 0
		check "a line for each epoch" is "$(grep -c '^epoch .* of the rows untouched by a step' out)" 4
		check "words of one kind are near" one_kind out
	done
}

test_json() {
	run 2 --json --text text --dim 16 --epochs 2
	check "status 0" is $status 0
	check "an object for each epoch, and no more" lines out 2
	check "its keys" has out \
		'^{"epoch": 2, "loss": [0-9.]*, "words_per_second": [0-9]*, "untouched": [0-9.]*, "bytes": [0-9]*, "seconds": [0-9.]*}$'
	check "bytes have moved" at_least "$(value bytes)" 1000
	check "the words are on stderr" has err 'nearest of 200 words'
}

# What the machine has.
test_machine() {
	run 3 --json --megabytes 2 --epochs 1
	if [ $status -ne 0 ]; then
		check "why not" has err 'this machine has no text in /usr/share/man or /usr/share/common-licenses'
		echo "no manual pages and licences here: learnt from made-up text only"
		return
	fi
	check "a step leaves nine of ten rows alone" at_least "$(value untouched)" 0.9
	check "it has learnt something" at_least 4.1 "$(value loss)" # 6 log 2 at first
	check "words" has err 'nearest of'
}

complains() { # words, the status wanted, options
	words=$1 wanted=$2
	shift 2
	run 2 "$@"
	check "status $wanted" is $status "$wanted"
	check "says '$words'" has err "^word2vec: .*$words"
	check "once" is "$(grep -c '^word2vec: ' err)" 1
	check "nothing on stdout" lines out 0
}

test_wrong() {
	complains "no option '--nonsense': see --help" 2 --nonsense
	complains 'did you mean --epochs' 2 --epoch=3
	complains 'whole number from 1' 2 --dim=0
	complains 'number above 0' 2 --rate -1
	complains 'needs a number after it' 2 --epochs
	complains 'takes no value' 2 --json=1
	complains 'no text in ./nowhere: No such file' 1 --text ./nowhere
	mkdir -p empty
	complains 'no text in ./empty: it has no file' 1 --text=./empty
	echo one two three > few
	complains 'smaller --least' 1 --text few
	complains '3 words of text are too few' 1 --json --text few --least 1
	complains 'below 2^64' 2 --seed 18446744073709551616
	run 1 --json --text text --epochs 1 --seed=18446744073709551615
	check "the largest seed" is $status 0
	for option in --help -h; do
		run 2 $option
		check "help is told once" is "$(grep -c -e '--window' out)" 1
	done
}

run_tests "kinds json machine wrong" "$@"
