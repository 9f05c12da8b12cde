#!/bin/sh
# pages.sh - the programs of README.md and docs/tutorial.md are examples, to the letter, and print what the pages say;
# each public function has one man page; docs/rdma.md has the failures of adapters
set -u
export LC_ALL=C
source=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${top_builddir:-.}" && pwd)
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 99
unset TUTTI_SECRET TUTTI_CONFIG TUTTI_NODE TUTTI_RANK TUTTI_SIZE TUTTI_TRANSPORTS RANK WORLD_SIZE
failed=0
fail() { echo "FAILED: $*"; failed=1; }

# The block behind <!-- examples/NAME.c --> is that file without its first line, the comment of what it is.
blocks=0
for page in README.md docs/tutorial.md; do
	for example in $(sed -n 's/^<!-- \(examples\/[a-z]*\.c\) -->$/\1/p' "$source/$page"); do
		blocks=$((blocks + 1))
		awk -v mark="<!-- $example -->" '
			$0 == mark { here = 1; next }
			here && /^```/ { if (inside) exit; inside = 1; next }
			inside' "$source/$page" > block
		sed 1d "$source/$example" > file
		cmp -s file block || fail "the code in $page is not that of $example: $(diff file block | head -n 5)"
	done
done
# As the makefile finds the names for which it makes links.
for page in "$source"/docs/*.3; do
	sed -n '/^\.SH NAME/,/^\\-/ { /^tutti/ { s/, */\n/g; p; }; }' "$page"
done | grep . | sort > named
sed -n 's/^[a-z].*[ *]\(tutti_[a-z0-9_]*\)(.*/\1/p' "$source/runtime/tutti.h" | sort > declared
[ "$(wc -l < declared)" -gt 80 ] || fail "of tutti.h only $(wc -l < declared) functions were found"
uniq -d named > twice
[ ! -s twice ] || fail "two man pages have the name of $(cat twice)"
comm -23 declared named > missing
[ ! -s missing ] || fail "no page docs/*.3 has in its section NAME: $(cat missing)"
for page in "$source"/docs/*.[135]; do
	command -v groff > /dev/null || break
	groff -man -ww -z -Tutf8 "$page" > said 2>&1
	[ ! -s said ] || fail "groff warns of $page: $(cat said)"
done

# Each member of a struct, each constant of an enum, and each setting stands in a man page.
sed 's/\\f.//g; s/\\%//g' "$source"/docs/*.[135] > manual
tr '\n' ' ' < "$source/runtime/tutti.h" | sed 's|/\*|\n&|g' | sed 's|^/\*.*\*/||' | tr -d '\n' > bare
grep -oE '(struct|enum) \w* *\{[^}]*\}' bare | sed 's/[^{]*{//' | tr ',;{}' '\n\n\n\n' |
	sed -e 's/\[[^]]*\]//g' -e 's/(\*\(\w*\)).*/ \1/' -e 's/=.*//' |
	sed -n 's/^.*[ *]\([A-Za-z_]\w*\) *$/\1/p' | grep -vxE 'reserved|opaque' | sort -u > parts
[ "$(wc -l < parts)" -gt 150 ] || fail "of tutti.h only $(wc -l < parts) members and constants were found"
sed -n 's/^TT_\(AGREED_\)*SETTING([A-Z_]*, "\(TUTTI_[A-Z_]*\)".*/\2/p' "$source/runtime/base/settings.def" > known
[ "$(wc -l < known)" -gt 35 ] || fail "in settings.def only $(wc -l < known) settings were found"
cat known >> parts
for part in $(cat parts); do
	grep -qw -e "$part" manual || fail "no man page has $part of tutti.h or settings.def"
done

# docs/rdma.md has each failure of verbs_failure.c, word for word, and no other.
tr '\n\t' '  ' < "$source/transport/verbs/verbs_failure.c" | sed 's/" *"//g' |
	grep -oE '\[(IBV|RDMA_CM|IB_CM)_[A-Z_]*\] = \{[^}]*\}' |
	sed -n -e 's/.*\[\(IBV_WC_[A-Z_]*\)\] = { "\(.*\)", *"\(.*\)" }/- `\1`: \2. Look at \3/p' \
	       -e 's/ NET,/ all its connections end,/; s/ PEER,/ the connection ends,/; s/ LIAR,/ the connection ends,/' \
	       -e 's/ LAST,/ a broken connection is over,/' \
	       -e 's/ PORT,/ the port is read anew,/; s/ WARN,/ a warning, the port is read anew,/' \
	       -e 's/.*\[\([A-Z_]*\)\] = { \(.*\), *"\(.*\)" }/- `\1` (\2): \3/p' > failures
[ "$(wc -l < failures)" -gt 35 ] || fail "in verbs_failure.c only $(wc -l < failures) failures were found"
awk '/^- `(IBV|RDMA_CM|IB_CM)_/ { if (row) print row; row = $0; next }
     row && /^  / { sub(/^ */, " "); row = row $0; next }
     row { print row; row = "" }
     END { if (row) print row }' "$source/docs/rdma.md" > explained
cmp -s failures explained || fail "docs/rdma.md has not the failures of verbs_failure.c: $(diff failures explained)"

[ $blocks = 4 ] || fail "$blocks programs are marked in the pages, not 4"

says() { # sentence, ranks, program, argument ...
	sentence=$1 ranks=$2 program=$3
	shift 3
	"$build/tutti" run -n "$ranks" "$build/examples/$program" "$@" > out 2>&1 || fail "$program: $(cat out)"
	grep -q "^$sentence\$" out || fail "$program does not say \"$sentence\": $(cat out)"
}

says '4 ranks: 1.5 2.5 3.5 4.5' 4 mean
says 'layer 7: 15' 2 overlap
says 'rank 0: 2.000 x + 1.000' 3 sgd
says 'the center: 3.00 x -1.00' 3 elastic
mkdir saves
says '2 ranks: each weight is 100' 2 resume saves
says '2 ranks: each weight is 200' 2 resume saves
[ $failed = 0 ] && echo "the pages and the examples agree"
exit $failed
