#!/bin/sh
# suite.sh - tests/gpu/device.sh from end to end, over the fake libcuda and with small sizes; and without any libcuda
set -u
. "$(dirname "$0")/../harness/tutti.sh"
build=${tutti%/*}

test_over_the_fake() {
	if [ ! -e "$build/tests/gpu/.libs/libcuda.so.1" ]; then
		echo "not run: there is no fake libcuda: make check builds it"
		return
	fi
	parts='times right order ipc example perf perf_shm torn streams faults dma_buf' # PyTorch needs a real libcuda
	# shellcheck disable=SC2086
	LD_LIBRARY_PATH=$build/tests/gpu/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} top_builddir=$build OUT=$PWD/found \
		SIZE=65536 SECONDS_RIGHT=1 SECONDS_PERF=0.02 SECONDS_TORN=1 sh "$here/device.sh" quick $parts > out 2> err
	status=$?
	name="device.sh quick"
	check "status 0" is $status 0
	check "bits were compared" has out 'of these differ from the processor.s: 0 as it must be'
	check "a table" has out 'gpu-blend of bf16, 65536 bytes, tcp: '
	check "each part has ended well" is "$(grep -c '"what": "end", "value": "ok"' found/gpu.json)" 12
	[ $status -eq 0 ] || cat out err
}

test_without_a_gpu() {
	top_builddir=$build OUT=$PWD/none TUTTI_GPU=no sh "$here/device.sh" quick > out 2> err
	status=$?
	name="device.sh quick"
	check "status 77" is $status 77
	check "it says why" has out 'SKIPPED: no GPU here: '
}

run_tests "over_the_fake without_a_gpu" "$@"
