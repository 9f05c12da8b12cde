#!/bin/sh
# device.sh - what only a machine with a GPU can show. It needs no checkout and no compiler there.
#
#   device.sh pack FOLDER [WHEEL]  builds the programs with few libraries, and puts them and this script into FOLDER
#   device.sh quick [PART ...]     4 minutes at most: facts, bits, order, another process, speed, PyTorch
#   device.sh full [PART ...]      9 minutes at most: longer, larger, and compute-sanitizer and ncu where they are
#
# The programs lie beside this script, or in the build tree that $top_builddir names. WHEEL is of `make wheel`, for the
# part with PyTorch, which needs cffi: its wheel may lie beside ours. Findings go to $OUT/gpu.json (out/ by default), a
# line of JSON each, as they come; messages to $OUT/gpu.log; the table that is printed at the end to $OUT/table.txt. Exit
# status: 0; 1: a part failed; 77: there is no GPU. SIZE (bytes) makes the large copies smaller.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd) || exit 2
tree=${top_builddir:-}
device=$here/device tutti=$here/tutti example=$here/gpu
if [ -n "$tree" ]; then
	device=$tree/tests/gpu/device tutti=$tree/tutti example=$tree/examples/gpu
fi

# part, limit in seconds with quick, with full; 0: not part of it
parts='
facts      10 10
times      10 10
right      12 20
order      10 10
ipc        10 10
example    10 10
perf       30 100
perf_shm   10 90
torn       18 40
streams    30 30
faults     10 10
dma_buf    10 10
torch      80 120
memcheck    0 20
initcheck   0 20
ncu         0 30'

seconds_of() { [ "$how" = full ] && echo "$2" || echo "$1"; }

part_facts() { "$device" facts; }
part_times() { "$device" times "$size"; }
part_right() { "$device" right "$size" "$(seconds_of "${SECONDS_RIGHT:-5}" 12)"; }
part_order() { "$device" order "$size"; }
part_ipc() { "$device" ipc "$size"; }
part_example() { TUTTI_TRANSPORTS=tcp "$tutti" run -n 2 "$example" > /dev/null && "$tutti" run -n 2 "$example" > /dev/null; }
part_perf() {
	if [ "$how" = quick ]; then
		"$tutti" perf gpu --transport tcp --size "$size" --time "${SECONDS_PERF:-0.5}" --json
		return
	fi
	for what in copy 'blend --type f32' 'blend --type bf16' 'scale --type f32' down up; do # of 1 GiB
		# shellcheck disable=SC2086 # two words
		"$tutti" perf gpu --transport tcp --kernel $what --size "$size" --time 2 --json || return
	done
	for what in put get; do
		"$tutti" perf gpu --transport tcp --kernel $what --size "$((size / 4))" --time 2 --json || return
	done
}
part_perf_shm() { # host to host, and device to device, of one host
	for what in fetch 'gossip --type f32' put get; do
		# shellcheck disable=SC2086 # two words
		"$tutti" perf gpu --transport shm --kernel $what --size "$size" \
			--time "$(seconds_of "${SECONDS_PERF:-1}" 2)" --json || return
	done
}
part_torn() { "$tutti" run -n 2 "$device" torn "$((size < 67108864 ? size : 67108864))" "$(seconds_of "${SECONDS_TORN:-12}" 30)"; }
part_streams() { # beside a thread that frees memory every 2 ms, and beside one that does nothing else
	TUTTI_TRANSPORTS=tcp "$tutti" run -n 2 "$device" streams "$((size < 67108864 ? size : 67108864))" 0.002 &&
		TUTTI_TRANSPORTS=tcp "$tutti" run -n 2 "$device" streams "$((size < 1048576 ? size : 1048576))" 0
}
part_faults() { TUTTI_TRANSPORTS=tcp "$tutti" run -n 2 "$device" faults; }
part_dma_buf() { # and by which way each adapter reaches the GPU
	"$device" dma_buf && "$tutti" info | grep -i 'gpu\|adapter' >&2
}
part_torch() { # over shared memory, over TCP, and with PyTorch's other allocator
	command -v python3 > /dev/null || { echo "python3 is not here" >&2; return 77; }
	if [ -n "$tree" ]; then
		packages=$tree/bindings/python
	else
		packages=$(mktemp -d) && trap 'rm -rf "$packages"' EXIT && trap 'exit 1' TERM &&
			for wheel in "$here"/*.whl; do python3 -m zipfile -e "$wheel" "$packages" || return 77; done
	fi
	export PYTHONPATH="$packages"
	"$tutti" run -n 2 python3 "$here/device.py" &&
		TUTTI_TRANSPORTS=tcp "$tutti" run -n 2 python3 "$here/device.py" &&
		PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "$tutti" run -n 2 python3 "$here/device.py" messages memory
}
part_memcheck() { sanitize memcheck; }
part_initcheck() { sanitize initcheck; }
sanitize() {
	command -v compute-sanitizer > /dev/null || { echo "compute-sanitizer is not here" >&2; return 77; }
	compute-sanitizer --error-exitcode 1 --tool "$1" --log-file "$out/$1.log" "$device" right "$size" 3
}
part_ncu() {
	command -v ncu > /dev/null || { echo "ncu is not here" >&2; return 77; }
	ncu --clock-control none --log-file "$out/ncu.log" "$device" right "$size" 1
}

pack() { # folder
	source=$(cd "$here/../.." && pwd) && mkdir -p "$1" && folder=$(cd "$1" && pwd) && build=$(mktemp -d) || exit 2
	trap 'rm -rf "$build"' EXIT
	(cd "$build" && "$source/configure" --disable-shared --without-libsodium --without-libconfig --without-hwloc \
		--without-zlib --without-pmix --without-python && make tutti tests/gpu/device examples/gpu) > "$folder/build.log" 2>&1 ||
		{ tail -5 "$folder/build.log"; exit 1; }
	strip -o "$folder/tutti" "$build/tutti" && strip -o "$folder/device" "$build/tests/gpu/device" &&
		strip -o "$folder/gpu" "$build/examples/gpu" && rm -f "$folder"/tutti-*.whl &&
		cp "$here/device.sh" "$here/device.py" ${2:+"$2"} "$folder" || exit 1
	du -sk "$folder"
}

note_end() { # part, status, seconds, why
	printf '{"part": "%s", "what": "end", "value": "%s", "seconds": %s}\n' "$1" "$2" "$3" >> "$json"
	printf '%-10s %-8s %4s s  %s\n' "$1" "$2" "$3" "${4:-}" | tee -a "$out/ends"
}

# Each part runs in a shell of its own, under its limit.
run_part() { # name, limit
	begun=$(date +%s)
	timeout -k 3 "$2" sh "$0" "$how" "only_$1" >> "$json" 2> "$out/messages"
	status=$?
	cat "$out/messages" >> "$out/gpu.log"
	case $status in
	0) says=ok ;;
	77) says=skipped ;;
	124 | 137) says='too long' ;;
	*) says=failed ;;
	esac
	why=$(tail -1 "$out/messages")
	[ -n "$why" ] || [ "$says" = ok ] || why=$(grep "^{\"part\": \"$1\".*\\(\"failed\"\\|WRONG\\)" "$json" | tail -1)
	note_end "$1" "$says" $(($(date +%s) - begun)) "$why"
	[ "$says" = ok ] || [ "$says" = skipped ] || failed=1
	[ "$1" != facts ] || [ $status -ne 77 ] || { echo "SKIPPED: no GPU here: $why"; exit 77; }
}

table() { # of the findings: part, what, value
	echo
	sed -n 's/^{"part": "\([^"]*\)", "what": "\([^"]*\)", "value": "*\([^",}]*\)"*\(, "unit": "\([^"]*\)"\)*}$/\1: \2: \3 \5/p
		s/^{.*"test": "\([^"]*\)", "transport": "\([^"]*\)".*"bytes": \([0-9]*\), "type": "\([^"]*\)".*"gb_per_s": \([^,]*\),.*"ratio": \([^,}]*\).*/\1 of \4, \3 bytes, \2: \5 GB\/s, ratio \6/p' \
		"$json"
}

how=${1:-quick}
case $how in
pack)
	[ $# -le 3 ] || { echo "device.sh: one wheel: $*" >&2; exit 2; }
	pack "${2:?device.sh pack FOLDER [WHEEL]}" ${3:+"$3"}
	exit
	;;
quick) size=${SIZE:-67108864} ;;
full) size=${SIZE:-1073741824} ;;
*) echo "device.sh: there is no '$how': it is quick, full or pack FOLDER" >&2; exit 2 ;;
esac
shift
out=${OUT:-out}
json=$out/gpu.json
export OUT="$out" SIZE="$size"
case ${1:-} in
only_*) "part_${1#only_}"; exit ;;
esac
mkdir -p "$out" && rm -f "$out/ends" && : > "$json" && : > "$out/gpu.log" || exit 2
failed=0
for name in $(echo "$parts" | sed 's/ .*//'); do
	limit=$(echo "$parts" | awk -v part="$name" -v how="$how" '$1 == part { print how == "full" ? $3 : $2 }')
	case " ${*:-$name} facts " in *" $name "*) ;; *) continue ;; esac
	[ "$limit" -eq 0 ] || run_part "$name" "$limit"
done
table | tee "$out/table.txt"
exit $failed
