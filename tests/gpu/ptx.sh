#!/bin/sh
# ptx.sh - what GPU compilers make of runtime/kernel/kernels.cu: nothing that changes bits, and wide accesses. The same
# checks run on code with fused products and sums, and must complain.
set -u
export LC_ALL=C
source_tree=${top_srcdir:-$(dirname "$0")/../..}
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT
failed=0

names='blend_f32 blend_f64 blend_f16 blend_bf16 scale_f32 scale_f64 scale_f16 scale_bf16 scale_i32 scale_i64 scale_i8
	scale_u8'

compile() { # compiler with its options, output
	$1 -I"$source_tree/runtime" -o "$2" "$source_tree/runtime/kernel/kernels.cu"
}

complaints() { # PTX
	awk -v names="$names" '
		/\.entry/ { match($0, /entry [a-z0-9_]+/); kernel = substr($0, RSTART + 6, RLENGTH - 6); there[kernel] = 1 }
		/^[ \t]*(fma|mad)[.a-z]*\.f/ { print kernel ": fuses a product and a sum:" $0 }
		/\.ftz|\.approx/ { print kernel ": is less exact than the processor:" $0 }
		/^[ \t]*(add|sub|mul|div|sqrt)\.f/ { print kernel ": a later compiler may fuse this:" $0 }
		/(ld|st)\.local/ { print kernel ": keeps numbers in memory:" $0 }
		/ld\.global\.cs\.v4\.u32/ { loads[kernel]++ }
		/st\.global\.cs\.v4\.u32/ { stores[kernel]++ }
		END {
			n = split(names, name, " ")
			for (i = 1; i <= n; i++)
				if (!there[name[i]])
					print name[i] ": is missing"
				else if (loads[name[i]] < (name[i] ~ /blend/ ? 6 : 3) || stores[name[i]] < 3)
					print name[i] ": has only " loads[name[i]] + 0 " loads and " \
						stores[name[i]] + 0 " stores of 16 bytes"
		}' "$1"
}

look() { # compiler with its options
	if ! compile "$1" "$scratch/kernels.ptx" > "$scratch/says" 2>&1 || [ -s "$scratch/says" ]; then
		echo "$1 says:"
		cat "$scratch/says"
		failed=1
	fi
	complaints "$scratch/kernels.ptx" > "$scratch/found"
	[ ! -s "$scratch/found" ] || { echo "$1:"; head -20 "$scratch/found"; failed=1; }
}

must_complain() { # compiler with options that spoil the code
	compile "$1" "$scratch/bad.ptx" > /dev/null 2>&1
	complaints "$scratch/bad.ptx" | grep -q 'blend_f32: fuses' && return
	echo "the checks do not see that $1 fuses products and sums"
	failed=1
}

if [ -z "${NVCC_PTX:-}${CLANG_PTX:-}" ]; then
	echo "SKIPPED: neither nvcc nor clang compiles kernels for GPUs here (apt install clang)"
	exit 77
fi
[ -z "${NVCC_PTX:-}" ] || { look "$NVCC_PTX"; must_complain "$NVCC_PTX -fmad=true"; }
[ -z "${CLANG_PTX:-}" ] || { look "$CLANG_PTX"; must_complain "$CLANG_PTX -ffp-contract=fast"; }
exit $failed
