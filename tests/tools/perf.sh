#!/bin/sh
# perf.sh - `tutti perf`: how it behaves, never how fast anything is. TEST_FULL=yes adds the twenty seconds of
# test_batches, and tables on more numbers of ranks.
set -u
. "$(dirname "$0")/../harness/tutti.sh"
. "$here/../harness/amount.sh"
export TUTTI_TRANSPORTS=tcp

# perf ARGUMENT ...: leaves out, err and status
tool=perf
perf() {
	name="tutti perf $*"
	"$tutti" perf "$@" > out 2> err
	status=$?
}

number='[0-9][0-9.e+-]*'
row() { # transport, baseline, port
	printf '^{"version": "[0-9.]*", "host": "[^"]*", "date": "20[0-9-]*T[0-9:]*Z", '
	printf '"test": "[a-z-]*", "transport": "%s", "ranks": [0-9]*, "bytes": [0-9]*, ' "$1"
	printf '"type": "[a-z0-9]*", "iters": [0-9]*, '
	printf '"p50_us": %s, "min_us": %s, "p99_us": %s, "gb_per_s": %s, ' "$number" "$number" "$number" "$number"
	printf '\\("busbw_gb_per_s": %s, \\)*' "$number"
	printf '"baseline_us": %s, "baseline_min_us": %s, "baseline_gb_per_s": %s, ' "$number" "$number" "$number"
	printf '"baseline": "%s[^"]*", "ratio": %s' "$2" "$number"
	printf '\\(, "port": "%s", "gid": "[^"]*", "gid_index": [0-9]*, "peer_port": "%s", ' "${3:-}" "${3:-}"
	printf '"peer_gid": "[^"]*", "peer_gid_index": [0-9]*, "mtu": [0-9]*\\)\\{%s\\}}$' \
		"$([ -z "${3:-}" ]; echo $?)"
}
rows() { # how many; transport and baseline, if it is not tcp; the adapter's port
	check "status 0" is $status 0
	check "nothing on stderr" lines err 0
	check "as many rows, all members" is "$(grep -c "$(row "${2:-tcp}" "${3:-bare TCP }" "${4:-}")" out)" "$1"
	check "and nothing else" lines out "$1"
	json '[json.loads(line) for line in open("out")]'
}

test_tests() {
	perf pingpong --size 8..64 --iters 30 --json
	rows 4
	check "the bytes" has out '"bytes": 32,'
	check "the iterations" has out '"iters": 30,'
	perf message --size 8..64K --iters 20 --json
	rows 14
	perf message --transport shm --size 8..1M --iters 20 --json
	check "both ways" is "$(grep -c '"test": "message"' out)" 18
	perf put --size 8 --iters 5 --json
	rows 1
	check "fewer than ten" has out '"iters": 5,'
	perf put --size 128K --time 0.01 --json
	rows 1
	perf put --size 8 --iters 10 --target compute --json
	rows 1
	check "the tick is named" has out 'blocking sockets, plus one background tick of 1000 us'
	perf get --size 1 --iters 10 --json
	rows 1
	perf get --size 3000 --iters 10 --target compute --json
	rows 1
	perf stream --size 100000 --iters 10 --json
	rows 1
	perf stream --get --size 64K --iters 10 --target compute --json
	rows 1
	check "gets" has out '"test": "stream-get"'
}

test_gossip() {
	perf gossip --size 4K..32K --iters 10 --json
	rows 4
	perf gossip --size 1M --iters 10 --target compute --json
	rows 1
	perf gossip --transport shm --size 40..80 --iters 10 --json
	rows 2 shm "bare memory: an average "
	perf gossip --size 6
	check "status 2" is $status 2
	check "whole numbers" has err "not a whole number of f32"
}

test_publish() { # what is published, and what comes by a delta, is checked before it is timed
	for wire in tcp,'bare TCP round trip: ' shm,'bare memory: one copy; '; do
		for kernel in version,'a copy of the tensors ' fetch,"${wire#*,}" delta,'a copy of the tensors '; do
			perf publish --transport "${wire%,*}" --kernel "${kernel%,*}" --size 64K..256K --iters 10 --json
			check "status 0" is $status 0
			check "nothing on stderr" lines err 0
			check "bf16, and its baseline" is "$(grep -c "\"test\": \"publish-${kernel%,*}\", .*\"type\": \"bf16\", .*\"baseline\": \"${kernel#*,}.*\"ratio\": $number" out)" 3
			check "and nothing else" lines out 3
			json '[json.loads(line) for line in open("out")]'
		done
		perf publish --transport "${wire%,*}" --size 64K --kernel readers --iters 100 --json
		check "three readers" has out '"test": "publish-readers", .*"ranks": 4, '
		check "that have fetched" has out '"baseline": "the same while nobody fetches; processor time", .*"fetches": [1-9][0-9]*, "overtaken": [0-9]*, "readers_gb_per_s": [0-9]'
		# Readers send their figures after the last batch; each batch has a fetch of each.
		perf publish --transport "${wire%,*}" --size 64K --kernel readers --iters 1 --no-baseline --json
		check "without a baseline" has out '"ratio": null, "fetches": [1-9][0-9]*, "overtaken": [0-9]*, "readers_gb_per_s": [0-9.e+]*}$'
		json 'all(d["fetches"] >= 3 * 3 and d["readers_gb_per_s"] > 0 for d in map(json.loads, open("out"))) or exit(1)'
	done
	perf publish --size 4K --iters 10 --json
	check "all kernels have readers" is "$(grep -c '"test": "publish-[a-z]*", .*"ranks": 4, ' out)" 5
	check "commits move no bytes" has out '"test": "publish-commit", .*"gb_per_s": null, "baseline_us": null, '
	perf publish -n 3 --size 2..8 --iters 10
	check "status 0" is $status 0
	check "a title" has out '^tutti perf publish, 3 ranks$'
	check "commits have no baseline" is "$(grep -c 'publish-commit of bf16; baseline: not measured$' out)" 1
	check "and no rate" is "$(grep -c ' -  *-  *-$' out)" 3
	check "readers" has out '^ *2 readers: [0-9]* fetches, '
	check "a delta of nothing" has out '^ *0 elements changed: 8 bytes$'
	perf publish --size 1M --kernel delta --iters 10 --changed 1 --json
	check "a hundredth" has out '"changed": 5[0-9]*, "delta_bytes": 1[0-9]*, "ideal_bytes": 1[0-9]*}$'
	json 'all(d["delta_bytes"] < 1.25 * d["ideal_bytes"] for d in map(json.loads, open("out"))) or exit(1)'
	perf publish --size 1M --kernel delta --iters 10 --changed 100
	check "all" has out '^ *524288 elements changed: no delta$'
}

test_gpu() { # over a GPU that is not there
	fake=${tutti%/*}/tests/gpu/.libs
	if [ ! -e "$fake/libcuda.so.1" ]; then
		echo "not run: gpu, over the fake libcuda: make check builds it"
		return
	fi
	before=${LD_LIBRARY_PATH:-}
	export LD_LIBRARY_PATH="$fake${before:+:$before}"
	perf gpu --kernel copy --size 6000 --iters 10 --json
	check "no baseline" has out '"test": "gpu-copy".*"type": "byte".*"ratio": null'
	perf gpu --kernel blend --size 6000 --iters 10 --json
	rows 4 tcp "the driver"
	check "bf16" has out '"test": "gpu-blend".*"type": "bf16"'
	perf gpu --kernel scale --type i32 --size 40K..80K --iters 10 --json
	rows 2 tcp "the driver"
	perf gpu --kernel down --size 40K --iters 10
	check "pinned memory" is $status 0
	perf gpu --kernel up --size 40K --iters 10
	check "status 0" is $status 0
	for transport in tcp shm; do
		perf gpu --transport $transport --kernel put --size 2M --iters 10 --json
		rows 1 $transport "the same call on host memory"
		perf gpu --transport $transport --kernel get --size 8 --iters 10 --json
		rows 1 $transport "the same call on host memory"
		perf gpu --transport $transport --kernel fetch --size 2M --iters 10 --json
		rows 1 $transport "the driver"
		perf gpu --transport $transport --kernel gossip --type bf16 --size 2M --iters 10 --json
		rows 1 $transport "the driver"
	done
	export LD_LIBRARY_PATH="$before"
}

test_allreduce() {
	perf allreduce --size 4K..512K --time 0.01 --json
	rows 8
	check "two ranks, f32" has out '"ranks": 2, "bytes": 4096, "type": "f32"'
	perf allreduce -n 3 --size 40 --iters 10 --json
	rows 1
	perf allreduce --brought --size 4K --iters 10 --json
	rows 1
	perf allreduce -n 4 --size 256K --iters 10 --json
	rows 1
	check "the baseline is a ring" has out 'bare TCP ring'
	for kind in f64,sum f16,average bf16,product i32,min i64,max f32,product i64,average bf16,sum \
		i8,sum u8,product bool,sum bool,min i8,average; do
		perf allreduce --size 72 --iters 2 --type "${kind%,*}" --rule "${kind#*,}" --json
		rows 1
		check "the type" has out "\"type\": \"${kind%,*}\""
	done
}

test_shared() {
	perf pingpong --transport shm --size 32..64 --iters 30 --json
	rows 2 shm 'bare memory: '
	check "a line" has out '"bytes": 32,.*one line each way'
	check "more than a line" has out '"bytes": 64,.*a copy and a count each way'
	perf put --transport shm --size 8 --iters 10 --target compute --json
	rows 1 shm 'bare memory: one copy; memcpy'
	perf get --transport shm --size 128K --iters 10 --json
	rows 1 shm 'bare memory: one copy; '
	perf stream --get --transport shm --size 64K --iters 10 --json
	rows 1 shm 'bare memory: copies; '
	perf allreduce --transport shm -n 3 --size 40..80K --iters 10 --json
	rows 12 shm 'bare memory: each rank sums its slice'
	perf allreduce --transport shm -n 3 --brought --size 600K --iters 10 --rule average --type i32 --json
	rows 1 shm 'bare memory: '
	check "the better of two" has out 'pieces of 256 KiB into slots\|reads its slice of the others by process_vm_readv'
}

test_verbs() { # over adapters that are not there: InfiniBand, iWARP, RoCE by librdmacm
	fake=${tutti%/*}/tests/tools/perf_fake
	if [ ! -x "$fake" ]; then
		return
	fi
	over() { # adapters, what perf is given
		adapters=$1
		shift
		name="tutti perf $*, over adapters $adapters"
		TUTTI_LOG=error TEST_SEED=$adapters "$fake" "$@" > out 2> err
		status=$?
		check "over verbs" has out '^1 runs over verbs, 0 without a word$'
		sed -i '/ runs over verbs, /d' out
	}
	for seed in 0,fake_ib0:1 1,fake_roce0:1; do
		port=${seed#*,} seed=${seed%,*}
		over $seed pingpong --size 8..16K --iters 20 --json
		rows 12 verbs 'bare verbs: a WRITE with immediate each way' "$port"
		over $seed put --size 64 --iters 20 --json
		rows 1 verbs 'bare verbs: a WRITE from the post' "$port"
		over $seed get --size 1M --iters 20 --json
		rows 1 verbs 'bare verbs: a READ from the post' "$port"
		over $seed stream --size 512K..1M --iters 20 --json
		rows 2 verbs 'bare verbs: WRITEs, 16 in a chain, 4 chains' "$port"
		over $seed stream --get --size 1000 --iters 20 --json
		rows 1 verbs 'bare verbs: READs, 16 in a chain, 4 chains' "$port"
	done
	over 0 allreduce --size 64K --iters 20 --json
	rows 1 verbs 'bare TCP ' fake_ib0:1
	for seed in 2 3; do
		over $seed put --size 64 --iters 20 --json
		check "none" has out \
			'"baseline_gb_per_s": null, "baseline": "not measured: librdmacm connects the queue pairs'
	done
	over 1 put --size 8 --iters 5
	check "the ports" has out '^verbs from fake_roce0:1, GID [0-9] [0-9a-f.:]*, to fake_roce0:1, GID .*; MTU [1-4]'
	over 1 put --size 8 --iters 5 --no-baseline --json
	check "no baseline" has out '"baseline": "not measured", "ratio": null, "port": "fake_roce0:1"'
}

memory_rows() { # how many
	check "status 0" is $status 0
	check "nothing on stderr" lines err 0
	check "as many rows, all members" is \
		"$(grep -c '"transport": "memory", .*"baseline_gb_per_s": [0-9.e+]*, "baseline": "STREAM [^"]*", "ratio": [0-9.]*}$' out)" "$1"
	check "and nothing else" lines out "$1"
}

test_memory() { # each kernel is checked against plain numbers before it is timed
	perf reduce --size 4K --iters 2 --json
	memory_rows 53 # five of nine types, two of four
	check "every type" is "$(grep -c '"type": "bf16"' out)" 7
	for rule in average product max min; do
		perf reduce --size 192 --iters 2 --rule $rule --kernel many --inputs 7 --json
		memory_rows $([ $rule = average ] && echo 8 || echo 9) # bools have no average
	done
	perf reduce --size 64..256 --iters 2 --kernel all --inputs 16 --type f16 --json
	memory_rows 3
	check "named" has out '"test": "reduce-all", .* "bytes": 128, "type": "f16"'
	perf reduce -n 2 --size 8M --iters 2 --kernel into --type i32 --json
	memory_rows 1
	check "two ranks" has out '"ranks": 2'
	perf copy --size 64K --iters 5 --json
	memory_rows 5
	perf copy --size 64K --iters 50 --kernel chosen --explain
	check "a title" has out '^tutti perf copy, 1 rank;'
	check "the kernel" has out 'copy-chosen of byte; baseline: STREAM copy: 1 read, 1 written;'
	check "the way" has out '^  chosen for this size: [prs]'
	perf update --size 4K --iters 2 --json
	memory_rows 14
	check "f32 alone" is "$(grep -c '"type": "f32"' out)" 14
	check "Adam's streams" has out '"test": "update-adam", .*: 4 read, 3 written in place'
	check "momentum's" has out '"test": "update-momentum", .*: 3 read, 2 written in place'
	check "assigned, not read" has out '"test": "update-assign", .*: 1 read, 1 written;'
	check "elastic writes over what came" has out '"test": "update-elastic", .*: 2 read, 2 written in place'
	for type in f64,14 f16,14 bf16,14 i32,2 i64,2; do
		perf update --size 64..192 --iters 2 --type ${type%,*} --json
		memory_rows $((3 * ${type#*,}))
	done
	perf update -n 2 --size 1M --iters 20 --kernel adam --type bf16 --explain
	check "its state is wider" has out 'update-adam of bf16; baseline: STREAM triad: 6 read, 5 written in place'
	check "bytes and state" has out '^  kernels: [pA].*; 22 bytes an element; state m and v$'
	for kernel in add adam elastic; do
		perf update --threads 2 --size 1M --iters 2 --kernel $kernel --json
		memory_rows 1
		check "the baseline has as many threads" has out '"baseline": "STREAM [^"]*; 2 threads", '
	done
	perf reduce --size 64K --iters 2 --kernel pair --type f32 --explain
	check "the instructions" has out '^  kernels: [pA]'
}

table_rows() { # how many; transport and baseline
	check "status 0" is $status 0
	check "nothing on stderr" lines err 0
	check "as many rows, all members" is "$(grep -c "$(row "$2" "$3")" out)" "$1"
	check "and nothing else" lines out "$1"
}

test_tables() { # ours and the baseline are both checked against plain numbers before they are timed
	for ranks in $(all_or "2 3 4" 3); do
		for wire in tcp,'bare TCP ' shm,'bare memory: '; do
			for size in 4..64 $(all_or 4K "") 1200000; do # also tables with fewer lines than servers
				perf table -n $ranks --transport "${wire%,*}" --size $size --iters 2 --kernel \
					push-pull --json
				table_rows $([ $size = 4..64 ] && echo 5 || echo 1) "${wire%,*}" "${wire#*,}"
			done
		done
	done
	for wire in tcp,'bare TCP ' shm,'bare memory: '; do
		for call in push pull push-then-pull elastic push-rows pull-rows; do
			perf table -n 4 --transport "${wire%,*}" --kernel $call --size 400K --iters 2 --json
			table_rows 1 "${wire%,*}" "${wire#*,}"
			check "named" has out "\"test\": \"table-$call\", .*\"type\": \"f32\""
		done
	done
	for type in f64 f16 bf16 i32 i64; do
		perf table --size 104 --iters 2 --type $type --kernel push --json
		table_rows 1 tcp 'bare TCP '
		check "the type" has out "\"type\": \"$type\""
	done
	perf table --size 4K --iters 2
	check "a title" has out '^tutti perf table, 2 ranks, 1 worker and 1 server, f32;'
	check "seven calls" is "$(grep -c 'baseline: bare TCP' out)" 7
	for size in 4..256 1200000; do # one row, and less than one
		perf table -n 4 --size $size --iters 2 --kernel push-rows --json
		table_rows $([ $size = 4..256 ] && echo 7 || echo 1) tcp 'bare TCP '
		perf table -n 3 --transport shm --size $size --iters 2 --kernel pull-rows --json
		table_rows $([ $size = 4..256 ] && echo 7 || echo 1) shm 'bare memory: '
	done
	perf table -n 3 --size 4K --iters 50 --kernel pull-beside --json
	table_rows 1 tcp 'the same while nobody pushes, 99 %'
}

snapshots() { # which transport, size, type: each is looked at, and must be whole
	perf table -n 4 --transport "$1" --kernel snapshot --size "$2" --type "$3" --time $(all_or 0.4 0.15) --json
	check "status 0" is $status 0
	check "nothing on stderr" lines err 0
	check "a row" has out \
		"\"test\": \"table-snapshot\", \"transport\": \"$1\", .*\"baseline\": \"pulls beside the same pushes; means\", \"ratio\": "
	check "and what else is of snapshots" has out \
		'"retries": [0-9]*, "refused": [0-9]*, "torn_pulls": [0-9]*, "writer_gb_per_s": [0-9.e+]*, "baseline_writer_gb_per_s": [0-9.e+]*}$'
	check "and nothing else" lines out 1
}

test_snapshots() { # for more of them: tutti perf table -n 4 --kernel snapshot --size 64K --iters 1000000
	for wire in tcp shm; do
		snapshots $wire 64K f32
		snapshots $wire 3000000 i64
		perf table -n 3 --transport $wire --kernel snapshot --size 8 --iters 2
		check "in words" has out ' retries, [0-9]* refused, none torn; '
	done
	perf table -n 4 --kernel snapshot --type bf16
	check "status 2" is $status 2
	check "and why" has err '^tutti perf: --type bf16: each element of snapshot counts all pushes: '
}

# Rank 2 waits for the others: a batch of 1 s would be too long for it. Few samples: ranks wait for the sorting, too.
test_batches() {
	[ -n "${TEST_FULL:-}" ] || return 0
	TUTTI_SILENCE=900 perf put -n 3 --size 1M --time 20 --json
	rows 1
}

test_table() {
	perf pingpong --size 4K --iters 10 --explain
	check "status 0" is $status 0
	check "a title" has out '^tutti perf pingpong, 2 ranks$'
	check "a row" has out '^ *4 KiB  *10 '
	check "its baseline in words" has out 'baseline: bare TCP ping-pong'
	check "what the ratio is" has out '^ratio: the time of the baseline divided by that of Tutti; above 1 Tutti is faster$'
	check "the wire" has out '^  wire: tcp; 2 ranks, 2 of them on this host'
	perf put --size 32K..256K --iters 10
	check "the baseline is a time in each row" is "$(grep -c '^ *[0-9]* KiB .* [nmu]*s  *[0-9.]*$' out)" 4
	perf allreduce --size 4K --iters 10 --explain --json
	check "one object" lines out 1
	check "the rest elsewhere" has err 'algorithm: '
	name="a reader that leaves"
	"$tutti" perf pingpong --size 8..1M --iters 20 2> err | head -n 6 > out
	check "nothing is said" lines err 0
	check "the first lines" lines out 6
}

test_launchers() {
	name="under tutti run"
	"$tutti" run -n 2 "$tutti" perf pingpong --size 8 --iters 10 --json > out 2> err
	status=$?
	rows 1
	"$tutti" run -n 3 "$tutti" perf get -n 3 --size 8 --iters 10 --json > out 2> err
	status=$?
	rows 1
	check "three ranks" has out '"ranks": 3'
	"$tutti" run -n 2 "$tutti" perf pingpong -n 3 > out 2> err
	status=$?
	check "another number is refused" is $status 2
	check "and why" has err '^tutti perf: -n 3: a launcher has started a job of 2 ranks already; leave -n out$'
	"$tutti" run -n 1 "$tutti" perf pingpong > out 2> err
	status=$?
	check "one rank is too few" is $status 2
	check "and why" has err '^tutti perf: the job has 1 rank: 2 to 4096 are needed$'
}

test_failure() {
	name="a rank is killed"
	"$tutti" run -n 2 --grace 1 sh -c \
		"[ \$TUTTI_RANK = 0 ] && exec '$tutti' perf allreduce --size 4M --time 60; '$tutti' perf allreduce --size 4M & sleep 1; kill -9 \$!" \
		> out 2> err
	status=$?
	check "status 1" is $status 1
	check "the rank is named" has err '^tutti perf: .*rank 1'
}

test_refusals() {
	refuses 'a test is missing'
	refuses 'no test pingpon (did you mean pingpong?)' pingpon
	refuses 'one test (put is one too many)' pingpong put
	refuses 'no option --jsom (did you mean --json?)' pingpong --jsom
	refuses '-n needs a value' pingpong -n
	refuses 'a whole number from 2 to 4096' pingpong -n 1
	refuses 'a whole number from 2 to 4096' pingpong -n 0
	refuses 'a whole number from 2 to 4096' pingpong -n 2x
	refuses 'a whole number from 1 to 4096' reduce -n 0
	for size in 0 x 4Q 1..2..3 64M..8 8.. ..8 0.3 65G 64.1G 0x10 1e3 inf ' 8' -8 ''; do
		refuses 'a size is a number of bytes .*at most 64G' pingpong --size "$size"
	done
	refuses 'a whole number from 1' pingpong --iters 0
	refuses 'a number from 0.001 to 3600' pingpong --time soon
	refuses 'exclude each other' pingpong --time 1 --iters 1
	refuses 'f32, f64, f16, bf16, i32, i64, i8, u8 or bool' allreduce --type f31
	refuses '--type u8 is for allreduce and reduce' update --type u8
	refuses 'bools have no average' allreduce --type bool --rule average
	refuses 'sum, average, product, max or min' allreduce --rule summ
	refuses 'wait or compute' put --target sleep
	refuses '--type is for allreduce, reduce, update, table and gpu: put moves bytes' put --type f32
	refuses '--type is for allreduce, reduce, update, table and gpu: copy moves bytes' copy --type f32
	refuses '--rule is for allreduce and reduce$' put --rule sum
	refuses '--rule is for allreduce and reduce; an update rule is a --kernel$' update --rule sum
	refuses '--kernel is for reduce, copy, update, table, publish and gpu' put --kernel pair
	refuses '--kernel pair: there is none of that name in gpu; there is copy, blend, .*, fetch, gossip$' gpu --kernel pair
	refuses 'blend computes with factors' gpu --kernel blend --type i64
	refuses '--target is not for gpu' gpu --target compute
	refuses '-n 3: for gpu it is 2' gpu -n 3
	refuses '-n 5: for publish it is 2 to 4' publish -n 5
	refuses '--kernel push: there is none of that name in publish; there is version, commit, fetch, readers, delta$' publish --kernel push
	refuses '--type is for allreduce, reduce, update, table and gpu: publish moves bf16' publish --type bf16
	refuses '3 bytes are not a whole number of bf16, which has 2' publish --size 3
	refuses '--target is not for publish' publish --target wait
	refuses '--plot is not for publish' publish --plot x.png
	refuses '--changed is for publish$' put --changed 1
	refuses '--changed is for the kernel delta, and not for fetch$' publish --kernel fetch --changed 1
	refuses 'a number from 0 to 100' publish --changed 101
	refuses 'there is none of that name in table; there is push, pull, push-pull, push-then-pull, elastic, push-rows, pull-rows, pull-beside, snapshot$' table --kernel pul
	for n in 1 5; do
		refuses "-n $n: for table it is 2, 3 (two workers) or 4 (two of each)" table -n $n
	done
	refuses '-n 2: of pull-beside two workers are part: it is 3 or 4' table -n 2 --kernel pull-beside
	refuses '--plot is not for table' table --plot x.png
	refuses '10 bytes are not a whole number of f32' table --size 10
	refuses '--inputs is for reduce$' copy --inputs 3
	refuses '--kernel adamm: there is none of that name in update; there is add, assign, sgd, .*, elastic$' update \
		--kernel adamm
	refuses 'adam computes with factors' update --kernel adam --type i32
	refuses '--kernel pears: there is none of that name in reduce; there is pair, into, many, all, all-stream, blend' reduce --kernel pears
	refuses 'a whole number from 2 to 16' reduce --inputs 17
	refuses '100 bytes are not a whole number of lines of 64' reduce --size 100
	refuses 'blend computes with factors, and is for f32, f64, f16 and bf16' reduce --kernel blend --type i32
	refuses '--plot is not for reduce' reduce --plot x.png
	refuses '--threads is for update$' reduce --threads 2
	refuses 'a whole number from 1 to 65' update --threads 0
	refuses '--transport is not for copy' copy --transport tcp
	refuses '--target is for put, get and stream' pingpong --target wait
	refuses '--brought is for allreduce' copy --brought
	refuses '--get is for stream; there is a test `get`' put --get
	refuses '10 bytes are not a whole number of f32, which has 4' allreduce --size 10
	refuses 'there is none of that name; there is .*tcp' put --transport tpc
	refuses 'there is none of that name' put --transport sim
	refuses '--peer is drawn with --plot' put --peer nowhere
	perf --help
	check "help is no mistake" is $status 0
	check "it has an example" has out 'tutti perf allreduce -n 4'
	check "kernels" has out '^  *add, assign, sgd, momentum, .*, elastic$'
}

test_plot() {
	if ! command -v gnuplot > /dev/null; then
		refuses 'needs gnuplot, which is missing' put --plot x.png
		return
	fi
	refuses 'No such file' pingpong --plot x.png --peer nowhere.json
	echo '{"test": "put", "bytes": 8, "p50_us": 9}' > peer.json
	refuses 'no line of it has "bytes" and "p50_us" for pingpong' pingpong --plot x.png --peer peer.json
	echo '{"bytes": 16, "p50_us": 9.5}' >> peer.json
	perf pingpong --size 8..64 --iters 10 --json --plot "it's.png" --peer peer.json
	check "status 0" is $status 0
	check "a PNG" is "$(head -c 8 "it's.png" | od -An -tx1 | tr -d ' ')" 89504e470d0a1a0a
	check "nothing on stderr" lines err 0
	refuses '--plot nowhere/x.png: No such file or directory' pingpong --size 8 --plot nowhere/x.png
	"$tutti" run -n 2 "$tutti" perf pingpong --size 8 --plot nowhere/x.png > out 2> err
	status=$?
	check "status 2" is $status 2
	check "rank 0 says so" is "$(grep -c '^tutti perf: ' err)" 1
	check "before anything is measured" lines out 0
	check "nothing is left of trying" is "$(ls -- *.png)" "it's.png"
}

test_bench() { # not how fast: that it measures and judges
	bench=$(cd "$here/../bench" && pwd)/bench-check
	name=$bench
	[ -n "$python" ] || return
	python=$("$python" -c 'import sys; print(sys.executable)')
	build=${tutti%/*}
	bench_check() { "$python" "$bench" --build "$build" --wait 0 --rounds 1 --time 0.01 "$@" > out 2> err; status=$?; }
	bench_check --only '^put-8-wait$'
	check "status 0 or 1" [ $status -le 1 ]
	check "one line" lines out 1
	check "with its bar" has out '^put-8-wait .* us  baseline .* us  ratio .* bar >= 0.87 '
	bench_check --only '^put-8-wait$' --json
	check "one object" has out \
		'^{"name": "put-8-wait", "against": "baseline", "ours_us": [0-9.]*, "other_us": [0-9.]*, "ratio": '
	bench_check --only '^put-8-wait$' --before "$build"
	check "against an earlier build" has out '^put-8-wait .* us  before .* us  ratio .* bar >= 0.97 '
	path=$PATH
	PATH=$scratch # where no peer is
	bench_check --only '^put-1M$'
	PATH=$path
	check "a missing peer is named" has out '^put-1M .*skipped: without UCX tag_bw: ucx_perftest is missing'
	check "and no failure" is $status 0
	mkdir -p failing # in its second round
	printf '#!/bin/sh\n[ -e again ] && { echo no more >&2; exit 1; }\n: > again\nexec "%s" "$@"\n' "$tutti" > \
		failing/tutti
	chmod +x failing/tutti
	bench_check --only '^put-8-wait$' --build failing --rounds 3
	check "a round that fails is a failure" is $status 1
	check "and says why" has out '^put-8-wait .*MISSED: tutti failed with status 1: no more$'
	for pattern in 'no-such' '('; do
		bench_check --only "$pattern"
		check "status 2" is $status 2
		check "one sentence" lines err 1
		check "about --only" has err "^bench-check: --only $pattern: "
		check "nothing is measured" lines out 0
	done
	bench_check --build nowhere
	check "status 2" is $status 2
}

run_tests "tests gossip publish gpu allreduce shared verbs memory tables snapshots batches table launchers failure refusals plot bench" "$@"
