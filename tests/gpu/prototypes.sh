#!/bin/sh
# prototypes.sh - compares the prototypes, numbers and structs of gpu/driver.h with NVIDIA's cuda.h, where one is found
set -u
source_tree=${top_srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT

include=
for folder in ${CUDA_HOME:+"$CUDA_HOME"} /usr/local/cuda /opt/cuda /usr; do
	[ -f "$folder/include/cuda.h" ] && include=$folder/include && break
done
[ -n "$include" ] || { echo "SKIPPED: no cuda.h: set CUDA_HOME, or apt install nvidia-cuda-dev"; exit 77; }

compile() { ${CC:-cc} -fsyntax-only -I"$include" -I"$1" -I"$source_tree" "$source_tree/tests/gpu/prototypes.c"; }

compile "$source_tree" || { echo "FAILED: gpu/driver.h differs from $include/cuda.h"; exit 1; }
# A wrong prototype and a wrong number are found:
for wrong in 's/cuMemcpyAsync, (CUdeviceptr/cuMemcpyAsync, (int/' 's/_WRITES_ORDERING, 118/_WRITES_ORDERING, 117/'; do
	mkdir -p "$scratch/gpu"
	sed "$wrong" "$source_tree/gpu/driver.h" > "$scratch/gpu/driver.h"
	if compile "$scratch" 2> "$scratch/log"; then
		echo "FAILED: $wrong in gpu/driver.h is not found"
		exit 1
	fi
done
version=$(sed -n 's/^#define CUDA_VERSION //p' "$include/cuda.h")
echo "gpu/driver.h agrees with cuda.h $version: $(grep -c '^	X(cu' "$source_tree/gpu/driver.h") functions"
