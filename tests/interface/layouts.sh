#!/bin/sh
# layouts.sh - compares the sizes, offsets, constants and functions of tutti.h with the record in layouts.txt. A program
# that was built before relies on each line of the record.
#   layouts.sh --record writes the record anew, from tutti.h as it is now.
set -u
export LC_ALL=C
source_tree=${top_srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
record=$source_tree/tests/interface/layouts.txt
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT

list_layouts() { # of the header $1, into $2
	sh "$source_tree/runtime/declarations.sh" "$1" | awk -f "$source_tree/tests/interface/layouts.awk" > \
		"$scratch/list.c" &&
		cp "$1" "$scratch/tutti.h" &&
		${CC:-cc} -std=c11 -I"$scratch" -o "$scratch/list" "$scratch/list.c" && "$scratch/list" > "$2"
}

# Prints what breaks programs that were built with the record's tutti.h: lines of the record that are no more. Words
# that are kept for later may become members, and the number of the interface may grow.
broken_lines() { # record, list
	diff "$1" "$2" | sed -n 's/^< //p' | grep -vE '\.reserved at|^TUTTI_ABI = '
}

abi_of() { sed -n 's/^TUTTI_ABI = //p' "$1"; }

# Structs that cannot grow. tutti_op is opaque; lists of tensors are arrays, and tutti_tensor stays as it is.
lacking() { # list
	awk '/^tutti_[a-z_0-9]*, / { if (name != "" && last != "reserved") print name; name = $1; sub(",", "", name) }
	     /^tutti_[a-z_0-9]*\.[a-z]/ { last = $1; sub(/.*\./, "", last) }
	     END { if (last != "reserved") print name }' "$1" | grep -vxE 'tutti_op|tutti_tensor'
}

self_test() {
	h=$source_tree/runtime/tutti.h
	sed 's/^\tconst char \*node; /\tuint64_t node; int more; /' "$h" > "$scratch/bad.h"
	list_layouts "$scratch/bad.h" "$scratch/bad" &&
		[ "$(broken_lines "$record" "$scratch/bad" | grep -c tutti_config)" -gt 2 ] ||
		{ echo "layouts.sh does not see a new member in the middle of tutti_config"; return 1; }
	sed 's/TUTTI_F64, TUTTI_F16,/TUTTI_F16, TUTTI_F64,/' "$h" > "$scratch/bad.h"
	list_layouts "$scratch/bad.h" "$scratch/bad" && broken_lines "$record" "$scratch/bad" | grep -q 'TUTTI_F64 = 1' ||
		{ echo "layouts.sh does not see that two types have changed places"; return 1; }
	sed 's/^int tutti_join(const tutti_config \*,/int tutti_join(int,/' "$h" > "$scratch/bad.h"
	list_layouts "$scratch/bad.h" "$scratch/bad" && broken_lines "$record" "$scratch/bad" | grep -q tutti_join ||
		{ echo "layouts.sh does not see another argument of tutti_join"; return 1; }
	sed '/^typedef struct tutti_peer /,/^}/ { /reserved/d; }' "$h" > "$scratch/bad.h"
	list_layouts "$scratch/bad.h" "$scratch/bad" && [ "$(lacking "$scratch/bad")" = tutti_peer ] ||
		{ echo "layouts.sh does not see a struct that cannot grow"; return 1; }
}

list_layouts "$source_tree/runtime/tutti.h" "$scratch/now" || { echo "tutti.h cannot be listed"; exit 1; }
if [ "${1:-}" = --record ]; then
	cp "$scratch/now" "$record"
	exit
fi
grep -q '^tutti_config.boot at 48, 8 bytes' "$scratch/now" ||
	{ echo "SKIPPED: the record is of 64-bit pointers, and this machine has others"; exit 77; }
self_test || exit 1
lacking "$scratch/now" | sed 's/$/ does not end with reserved words: uint64_t reserved[4];/' | grep . && exit 1
diff "$record" "$scratch/now" > "$scratch/differences" && exit
echo "tutti.h differs from the record tests/interface/layouts.txt (< the record, > tutti.h):"
cat "$scratch/differences"
if broken_lines "$record" "$scratch/now" > "$scratch/broken" &&
	[ "$(abi_of "$record")" = "$(abi_of "$scratch/now")" ]; then
	echo
	echo "These lines are no more. Programs that were built with the last release rely on them, if it had them:"
	cat "$scratch/broken"
	echo "Then raise TUTTI_ABI in tutti.h, once between two releases."
fi
echo
echo "Write the record anew and commit it with tutti.h: sh tests/interface/layouts.sh --record"
exit 1
