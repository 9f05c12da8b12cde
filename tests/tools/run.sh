#!/bin/sh
# run.sh - `tutti run` and the program around it, with small shell scripts as ranks. Takes about ten seconds.
# Every run carries a marker that /proc can be searched for, to see that nothing outlives it.
set -u
. "$(dirname "$0")/../harness/tutti.sh"
marker=marker-$$

end() {
	for process in $(living); do
		kill -9 "$process" 2>/dev/null
	done
	rm -rf "$scratch"
}
trap end EXIT
trap 'exit 99' TERM

now() { echo $(($(date +%s%N) / 1000000)); }
living() { grep -l "[m]${marker#m}" /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3; } # a zombie has no cmdline

# run ARGUMENT ...: leaves out, err, status and ms. The ranks' $0 is the marker, where the program is `sh -c SCRIPT`.
run() {
	name="tutti run $*"
	start=$(now)
	"$tutti" run "$@" "$marker" > out 2> err
	status=$?
	ms=$(($(now) - start))
}

has_not() { ! grep -q -- "$2" "$1"; }
took() { [ "$ms" -ge "$1" ] && [ "$ms" -le "$2" ]; } # at least, at most; generous: the machine may be busy
none_left() { is "$(living)" ""; }

test_environment() {
	export TUTTI_RANK=9 TUTTI_BOOT_FD=5 TUTTI_BOOT=nowhere:1 TUTTI_LOCAL_SIZE=77 # stale, of an outer job
	run -n 3 --tag sh -c \
		'echo $TUTTI_RANK/$TUTTI_SIZE $TUTTI_LOCAL_RANK/$TUTTI_LOCAL_SIZE $TUTTI_BOOT ${TUTTI_BOOT_FD:-none}'
	unset TUTTI_RANK TUTTI_BOOT_FD TUTTI_BOOT TUTTI_LOCAL_SIZE
	check "status 0" is $status 0
	check "three lines" lines out 3
	check "rank 0 has the socket" has out '^\[0\] 0/3 0/3 127.0.0.1:[0-9]* [0-9]*$'
	check "rank 1 has none" has out '^\[1\] 1/3 1/3 127.0.0.1:[0-9]* none$'
	check "rank 2 has none" has out '^\[2\] 2/3 2/3 127.0.0.1:[0-9]* none$'
	check "one address for all" is "$(cut -d' ' -f4 out | sort -u | wc -l)" 1
}

test_boot_socket() { # it listens on TUTTI_BOOT, and is rank 0's alone
	run -n 2 sh -c '
		if [ $TUTTI_RANK = 0 ]; then
			readlink /proc/$$/fd/$TUTTI_BOOT_FD > socket; mv socket known
			grep -i "0100007F:$(printf %04X ${TUTTI_BOOT#*:}) 00000000:0000 0A" /proc/net/tcp
		else
			while [ ! -e known ]; do sleep 0.05; done
			ls -l /proc/$$/fd | grep -F "$(cat known)" && echo "rank 1 has it too"
			exit 0
		fi'
	check "it listens" has out 0100007F
	check "not rank 1's" has_not out "rank 1"
	check "status 0" is $status 0
}

test_listens() { # where no address takes the socket, it must not listen on all interfaces
	name="tests/tools/listens"
	"${tutti%/*}/tests/tools/listens" > out 2> err
	status=$?
	check "status 0" is $status 0
	check "fails elsewhere" has out '^192.0.2.1: -1, listens: 0$'
}

test_secret() {
	run -n 2 sh -c 'echo secret $TUTTI_SECRET'
	if "$tutti" info --json | grep -q '"libsodium": true'; then
		check "32 bytes in hex" has out '^secret [0-9a-f]\{64\}$'
	else
		check "no secret without libsodium" has out '^secret$'
	fi
	check "the same for all" is "$(sort -u out | wc -l)" 1
	mv out before
	run -n 2 sh -c 'echo secret $TUTTI_SECRET'
	check "another one each time" sh -c '! grep -q .......... out || ! cmp -s out before'
	TUTTI_SECRET="0123456789abcdef" run -n 1 sh -c 'echo secret $TUTTI_SECRET ${TUTTI_SECRET_FILE:-no file}'
	check "one that is set stays" has out 'secret 0123456789abcdef no file'
	(umask 077 && echo "the secret of this file" > secret)
	TUTTI_SECRET_FILE=secret run -n 1 sh -c 'echo ${TUTTI_SECRET:-none} in $TUTTI_SECRET_FILE'
	check "a file's stays" has out '^none in secret$'
}

test_job_name() {
	run -n 2 sh -c 'echo $TUTTI_JOB'
	check "drawn" has out '^run-[0-9a-f]\{16\}$'
	check "the same for all" is "$(sort -u out | wc -l)" 1
	mv out before
	run -n 1 sh -c 'echo $TUTTI_JOB'
	check "another one each time" sh -c '! grep -q "$(cat out)" before'
	TUTTI_JOB=mine run -n 1 sh -c 'echo $TUTTI_JOB'
	check "one that is set stays" has out '^mine$'
	TUTTI_JOB=outer TUTTI_RANK=0 run -n 1 sh -c 'echo $TUTTI_JOB'
	check "an outer job's does not" has out '^run-'
}

test_default_number() {
	run sh -c 'echo $TUTTI_SIZE'
	cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
	check "as many as cores" is "$(sort -u out)" "$cores"
	check "each of them" lines out "$cores"
}

test_output() {
	run -n 2 --tag sh -c 'echo to out; echo to err >&2'
	check "stdout to stdout" is "$(sort out)" "[0] to out
[1] to out"
	check "stderr to stderr" is "$(sort err)" "[0] to err
[1] to err"
	run -n 2 sh -c 'echo to out; echo to err >&2'
	check "no tag unless asked" is "$(sort -u out err)" "to err
to out"
	run -n 1 sh -c 'printf "10%%\r20%%\r\nunfinished"'
	check "bytes pass as they are" is "$(od -c out)" "$(printf '10%%\r20%%\r\nunfinished' | od -c)"
	run -n 1 --tag sh -c 'printf "10%%\r20%%\r\nnext\nunfinished"'
	check "a carriage return ends a line" is "$(od -c out)" \
		"$(printf '[0] 10%%\r[0] 20%%\r\n[0] next\n[0] unfinished' | od -c)"
	run -n 3 --tag sh -c 'printf "rank %d" $TUTTI_RANK'
	check "unfinished lines do not run together" is "$(sort out; echo)" \
		"$(printf '[0] rank 0\n[1] rank 1\n[2] rank 2\n' | sort; echo)"
	run -n 1 --tag sh -c 'printf "%s\r" bar; touch drawn; sleep 0.5; echo; rm drawn' &
	check "a progress bar passes at once" soon sh -c '[ -e drawn ] && grep -q bar out'
	wait
	check "its end belongs to it" is "$(od -c out)" "$(printf '[0] bar\r\n' | od -c)"
}

# 4 ranks write lines of their own digit, longer than a pipe takes in one write: each line must be of one digit.
test_lines_stay_whole() {
	run -n 4 sh -c 'awk -v r=$TUTTI_RANK "BEGIN { s = r; while (length(s) < 6000) s = s s; for (i = 0; i < 200; i++) print s }"'
	check "no line mixed" is "$(grep -cvE '^(0+|1+|2+|3+)$' out)" 0
	check "none lost" lines out 800
	"$tutti" run -n 3 sh -c 'awk -v r=$TUTTI_RANK "BEGIN { s = r; while (length(s) < 3000) s = s s
		for (i = 0; i < 100; i++) { print s; print s > \"/dev/stderr\" } }"' "$marker" 2>&1 | cat > out
	check "nor when stdout and stderr are one" is "$(grep -cvE '^(0+|1+|2+)$' out)" 0
	check "none lost" lines out 600
	run -n 1 --tag sh -c 'head -c 200000 /dev/zero | tr "\0" x'
	check "a very long line" is "$(wc -c < out)" 200004
	run -n 2 --tag sh -c 'head -c 200000 /dev/zero | tr "\0" $TUTTI_RANK; echo'
	check "in pieces of one rank each" is "$(grep -cvE '^\[0\] 0+$|^\[1\] 1+$|^$' out)" 0
	check "none lost" is "$(tr -cd 01 < out | wc -c | awk '{ print ($1 >= 400000) }')" 1
}

test_input() {
	echo hello > in
	"$tutti" run -n 2 --tag sh -c '[ $TUTTI_RANK = 1 ] || sleep 0.3; cat' < in > out 2> err
	check "rank 0 has the input, the others none" is "$(cat out)" "[0] hello"
}

test_signal_state() { # a rank starts with what run was started with, not with what run needs for itself
	"$tutti" run -n 1 grep SigBlk /proc/self/status > out 2> err
	check "nothing blocked" is "$(cat out)" "$(printf 'SigBlk:\t0000000000000000')"
	if env --block-signal=TERM true 2> err; then
		env --block-signal=TERM,INT "$tutti" run -n 1 grep SigBlk /proc/self/status > out 2> err
		check "nor where run was started so" is "$(cat out)" "$(printf 'SigBlk:\t0000000000000000')"
	fi
	run -n 1 sh -c 'yes | head -n 1'
	check "SIGPIPE kills" lines err 0
}

test_failure() {
	run -n 3 --grace 10 sh -c 'exit $((TUTTI_RANK == 1 ? 3 : 0))'
	check "its status" is $status 3
	check "its sentence" has err '^tutti run: rank 1 (pid [0-9]*) exited with status 3$'
	check "no other" lines err 1
	check "nobody waits for the grace" took 0 5000
	run -n 2 --grace 10 sh -c '[ $TUTTI_RANK = 0 ] || kill -9 $$'
	check "128 + signal" is $status 137
	check "its sentence" has err '^tutti run: rank 1 (pid [0-9]*) was killed by signal 9 (Killed)$'
	run -n 3 --grace 10 sh -c '[ $TUTTI_RANK = 2 ] && exit 5; sleep 0.4; exit 6'
	check "the first failure counts" is $status 5
	run -n 15 sh -c 'exit 1'
	check "ten sentences are enough" lines err 11
	check "the rest as a number" has err '^tutti run: 5 more ranks failed$'
	run -n 2 sh -c '[ $TUTTI_RANK = 0 ] || sleep 0.5'
	check "a rank may end early" is $status 0
}

test_grace() {
	run -n 3 --grace 0.5 sh -c '[ $TUTTI_RANK = 1 ] && exit 4; sleep 100'
	check "ended by SIGTERM" is $status 4
	check "after the grace" took 500 4000
	check "they need not be named" lines err 1
	run -n 5 --grace 0.5 sh -c 'trap "" TERM; [ $TUTTI_RANK = 3 ] && exit 4; while :; do sleep 0.1; done'
	check "killed" has err '^tutti run: ranks 0-2, 4 did not end and were killed$'
	check "the first failure's status" is $status 4
	check "after a second grace" took 1000 5000
	run -n 2 --grace 0 sh -c 'trap "" TERM; [ $TUTTI_RANK = 1 ] && exit 4; while :; do sleep 0.1; done'
	check "no grace" took 0 3000
	check "killed" has err '^tutti run: rank 0 did not end and was killed$'
	check "nothing left" soon none_left
}

test_keep_going() {
	run -n 4 --keep-going --grace 0 sh -c \
		'[ $TUTTI_RANK = 1 ] && kill -9 $$; [ $TUTTI_RANK = 2 ] && exit 3; sleep 0.5; echo done'
	check "the others are left alone" lines out 2
	check "their status counts" is $status 0
	check "who failed is said" has err '^tutti run: rank 1 (pid [0-9]*) was killed by signal 9 (Killed)$'
	check "each of them" has err '^tutti run: rank 2 (pid [0-9]*) exited with status 3$'
	run -n 2 -k sh -c '[ $TUTTI_RANK = 1 ] && { echo $$ > first; exit 5; }
		until [ -s first ] && ! kill -0 $(cat first) 2> /dev/null; do sleep 0.05; done; exit 6'
	check "where nobody exits with 0, the first failure counts" is $status 5
	run -n 3 -k sh -c \
		'[ $TUTTI_RANK = 1 ] && exit 0; [ $TUTTI_RANK = 0 ] && { sleep 0.3; kill -INT $PPID; }; sleep 100 & wait'
	check "an interrupt is no survival" is $status 130
	check "nothing left" soon none_left
}

# Starts an example with four ranks, of which rank 2 is killed.
run_and_kill() { # example, steps
	name="tutti run --keep-going -n 4 $1"
	"$tutti" run --keep-going -n 4 "${tutti%/*}/examples/$1" "$2" "$marker" > out 2> err &
	pid=$!
	check "all four are there" soon four_named
	kill -9 "$(sed -n 's/^rank 2 of 4 is process //p' out)"
	wait $pid
	status=$?
	check "status 0" is $status 0
}
# The example: one of its ranks is killed, the others say so and get to the end with one sum.
test_survive() {
	run_and_kill survive 1500
	check "the one that was killed" has err '^tutti run: rank 2 (pid [0-9]*) was killed by signal 9 (Killed)$'
	check "who is left" has out '^step [0-9]*: 3 left, rank 0 1 3$'
	check "three get to the end" is "$(grep -c ': 1500 steps, the sum is ' out)" 3
	step=$(sed -n 's/^step \([0-9]*\): 3 left.*/\1/p' out)
	check "with one sum" is "$(sed -n 's/.* the sum is //p' out | sort -u)" \
		$((10 * ${step:-0} + 7 * (1500 - ${step:-0})))
}
# The example: a table goes on without a server that was killed.
test_outlive() {
	run_and_kill outlive 400
	check "three go on" has out '^3 ranks go on$'
	check "they come to the end" is \
		"$(awk '/^rank [013]: 400 steps, at a distance of / && $NF < 1e-6' out | wc -l)" 3
}
four_named() { is "$(grep -c '^rank [0-3] of 4 is process ' out)" 4; }

# The example: two workers, and what they have learnt from the server.
test_server() {
	run -n 3 "${tutti%/*}/examples/server"
	check "status 0" is $status 0
	check "three see the weights" is "$(grep -c '^rank [0-2]: 2.000 -1.000 0.500 3.000$' out)" 3
	run -n 1 "${tutti%/*}/examples/server"
	check "alone it learns too" has out '^rank 0: 2.000 -1.000 0.500 3.000$'
}

# The example: a table in each consistency, saved; another number of ranks goes on from there.
test_table() {
	table=${tutti%/*}/examples/table
	for word in async ssp bsp; do
		mkdir $word
		run -n 3 "$table" $word $word
		check "status 0" is $status 0
		check "three have come nearer" is \
			"$(awk '/^rank [0-2]: after 100 steps at a distance of / && $NF < 0.05' out | wc -l)" 3
		check "the save" [ -s $word/weights.safetensors.index.json ]
	done
	check "in rounds all are where 0.9 ^ 99 is" is "$(sed 's/.* //' out | sort -u)" 3e-05
	run -n 2 "$table" bsp bsp
	check "and from there on 0.9 ^ 199" is "$(sed 's/.* \(.\).*\(e.*\)/\1 \2/' out | sort -u)" '7 e-10'
	run -n 2 "$table" bsp nowhere
	check "a folder that is not there" has err '^table: .*nowhere.*No such file or directory'
	run -n 1 "$table" nonsense
	check "status 2" is $status 2
	check "what there is" has err "^table: there is no 'nonsense': it is async, ssp or bsp$"
}

test_exec() {
	run -n 4 ./does-not-exist
	check "127" is $status 127
	check "named once" is "$(cat err)" "tutti run: cannot execute ./does-not-exist: No such file or directory"
	: > plain
	run -n 4 ./plain
	check "126" is $status 126
	check "named once, with what helps" has err '^tutti run: cannot execute ./plain: Permission denied; .* not executable:'
	check "that is all" lines err 1
	run -n 2 plain
	check "127" is $status 127
	check "the file is here" has err 'cannot execute plain: No such file.*is there, and is not executable: .*python3'
	echo 'exit 0' > here.sh
	chmod +x here.sh
	run -n 2 here.sh
	check "not in PATH" has err 'cannot execute here.sh: .*write ./here.sh$'
	echo '#!/no/such/interpreter' > here.sh
	run -n 2 ./here.sh
	check "no interpreter" has err 'cannot execute ./here.sh: .* an interpreter or a loader, is not$'
	mkdir -p folder
	run -n 2 ./folder
	check "a folder" has err 'cannot execute ./folder: Permission denied: it is a folder$'
}

# As a file system that hangs: the kernel asks a process whether the file may be executed, and gets no answer.
test_exec_hangs() {
	name="tutti run, while exec hangs"
	cp /bin/true program
	"${tutti%/*}/tests/tools/stuck" ./program > stuck 2> err &
	stuck=$!
	soon grep -q . stuck err
	[ -s stuck ] || { echo "not run: exec_hangs, for want of fanotify: $(cat err)"; return; }
	"$tutti" run -n 2 --grace 0.2 ./program > out 2> err &
	pid=$!
	check "two ranks and the keeper" soon has_children $pid 3
	kill -INT $pid
	await $pid
	check "it is interrupted" is $status 130
	kill $stuck
}
has_children() { is "$(wc -w < "/proc/$1/task/$1/children")" "$2"; }

test_pauses() { # a rank that fails at once is started again later each time
	run -n 2 --restart 5 --grace 0.1 sh -c '[ $TUTTI_RANK = 0 ] && exec sleep 100; exit 3'
	check "status 3" is $status 3
	check "at once at first" has err 'is started again (1 of 5)$'
	check "later then" has err 'is started again (5 of 5) in 1 s$'
}

refuses() { # sentence, argument ...
	sentence=$1
	shift
	(ulimit -n 70 && "$tutti" "$@" > out 2> err)
	status=$? name="tutti $*"
	check "status 2" is $status 2
	check "one sentence: $sentence" has err "$sentence"
	check "no more than that" lines err 1
	check "nothing on stdout" lines out 0
}

test_limits() { # of open files: tutti run raises its own soft limit, a rank raises its own when it joins
	(ulimit -Sn 100 && "$tutti" run -n 60 sh -c 'ulimit -n' > out 2> err)
	status=$? name="tutti run -n 60 with a soft limit of 100 files"
	check "status 0" is $status 0
	check "left alone for the program" is "$(sort -u out)" 100
}

test_refusals() {
	refuses 'number from 1 to 4096' run -n 0 true
	refuses 'number from 1 to 4096' run -n 4097 true
	refuses 'number from 1 to 4096' run -n 2x true
	refuses '-n needs a value' run -n
	refuses 'from 0 to 86400' run --grace -1 true
	refuses 'a program is missing' run
	refuses 'no option --grave (did you mean --grace?); see `tutti run --help`' run --grave 3 true
	refuses 'no option -x' run -x true
	refuses 'no command ruin (did you mean run?)' ruin
	refuses 'a command is missing'
	refuses 'no option --jsom (did you mean --json?)' info --jsom
	refuses '100 ranks are too many: .*open files' run -n 100 true
	name="tutti --help"
	"$tutti" run --help > out 2> err
	check "help is no mistake" is $? 0
	check "it has an example" has out 'tutti run -n 2 --tag'
	"$tutti" --help > out
	check "the commands are listed" has out 'tutti info '
	check "the version" is "$("$tutti" --version | cut -d' ' -f1)" tutti
}

# The ranks say when they are ready, and rank 0 sends run the signal. `wait` lets a trap act at once.
ready='mkdir -p up; : > up/$TUTTI_RANK; while [ $(ls up | wc -l) -lt $TUTTI_SIZE ]; do sleep 0.05; done;'
signal() { # signal, options, script
	rm -rf up
	run -n 3 $2 sh -c "$3 $ready [ \$TUTTI_RANK = 0 ] && kill -$1 \$PPID; sleep 100 & wait"
}

test_signals() {
	export TUTTI_STATS_SIGNAL=none
	signal USR1 '' "trap 'echo got it; exit 0' USR1;"
	unset TUTTI_STATS_SIGNAL
	check "USR1 reaches all" lines out 3
	check "and is no failure" is $status 0
	signal USR2 '' "trap 'echo got it; exit 0' USR2;"
	check "USR2 reaches all" lines out 3
	signal HUP '' "trap 'echo got it; exit 0' HUP;"
	check "HUP reaches all" lines out 3
	signal INT '' ''
	check "ended by SIGINT" is $status 130
	check "which needs no words" lines err 0
	signal TERM '' "trap 'exit 0' TERM;"
	check "ranks that end well" is $status 0
	signal TERM '--grace 0.5' "trap '' TERM;"
	check "ranks that do not end are killed" is $status 137
	check "and named" has err '^tutti run: ranks 0-2 did not end and were killed$'
	check "after the grace" took 500 4000
	signal INT '--grace 30' "trap '' INT; [ \$TUTTI_RANK = 1 ] && (sleep 1; kill -INT \$PPID) &"
	check "a second SIGINT kills at once" took 0 8000
	check "killed" is $status 137
	(trap '' HUP; run -n 1 sh -c 'kill -HUP $PPID; sleep 0.2; echo alive')
	check "nohup holds" has out alive
	check "nothing left" soon none_left
}

# A rank writes its stats and goes on; one that has not joined, and a script around a rank, only go on.
test_stats_signal() {
	name="tutti run -n 2 sh, survive"
	"$tutti" run -n 2 sh -c "touch \$TUTTI_RANK.begun; while [ ! -e on ]; do sleep 0.05; done
		'${tutti%/*}/examples/survive' 1500; echo status \$?" "$marker" > out 2> err &
	pid=$!
	check "both have begun" soon sh -c '[ -e 0.begun ] && [ -e 1.begun ]'
	kill -USR1 $pid
	touch on
	check "both have joined" soon two_named
	kill -USR1 $pid
	wait $pid
	status=$?
	check "the job goes on, to the end" is $status 0
	check "both ranks" is "$(grep -c '1500 steps' out)" 2
	check "and what is around them" is "$(grep -c '^status 0$' out)" 2
	check "a table each" is "$(grep -c '^tutti: stats of rank [01] of 2 ' err)" 2
	name="tutti run -n 1, USR1 at once"
	for pause in 0 0.02 0.05; do
		"$tutti" run -n 1 sh -c 'sleep 0.3; echo over' "$marker" > out 2> err &
		pid=$!
		# before that it is a shell, or is being loaded, and not to blame: bit 9 is SIGUSR1's
		until grep -qE '^Sig(Ign|Blk):.*[2367abef]..$' /proc/$pid/status; do sleep 0.01; done
		sleep $pause
		kill -USR1 $pid
		wait $pid
		status=$?
		check "it goes on" is "$status $(cat out)" "0 over"
	done
}
two_named() { is "$(grep -c '^rank [01] of 2 is process ' out)" 2; }

# In the background a shell lets its children ignore SIGINT; a launcher takes it all the same.
test_background() {
	rm -rf up
	"$tutti" run -n 2 sh -c "$ready sleep 100 & wait" "$marker" > out 2> err &
	pid=$!
	check "up" soon files up 2
	kill -INT $pid
	wait $pid
	check "ended by SIGINT" is $? 130
}

state_of() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f1; }
in_state() { is "$(state_of "$1")" "$2"; }

test_stop() {
	rm -rf up
	"$tutti" run -n 2 sh -c "echo \$\$ > pid.\$TUTTI_RANK; $ready while [ ! -e go ]; do :; done" "$marker" > out \
		2> err &
	pid=$!
	check "up" soon files up 2
	kill -TSTP $pid
	check "run stops" soon in_state $pid T
	check "so do its ranks" soon in_state "$(cat pid.1)" T
	kill -CONT $pid
	check "they go on" soon in_state "$(cat pid.1)" R
	touch go
	wait $pid
	check "to the end" is $? 0
}

# A rank under SIGSTOP, which the others have outlived: nobody else would end it.
test_stopped() {
	for keep in "" --keep-going; do
		rm -rf up
		"$tutti" run -n 2 $keep --grace 0.3 sh -c "echo \$\$ > pid.\$TUTTI_RANK; $ready
			[ \$TUTTI_RANK = 1 ] || exit 0; while :; do sleep 0.1; done" "$marker" > out 2> err &
		pid=$!
		check "up" soon files up 2
		kill -STOP "$(cat pid.1)"
		wait $pid
		check "status" is $? "$([ "$keep" ] && echo 0 || echo 137)"
		check "it says so" has err 'rank 1 is stopped, and all others have ended'
		check "gone" soon none_left
	done
}

# Its socket listens from the beginning, so the others connect before it lives: they wait for it all the same.
test_late_rank_0() {
	export TUTTI_SILENCE=1000
	run -n 2 sh -c "[ \$TUTTI_RANK = 1 ] || sleep 3; exec '$tutti' perf pingpong --iters 1 --no-baseline"
	unset TUTTI_SILENCE
	check "status 0" is $status 0
	check "it was waited for" has err 'joining waits for rank 0'
}

# The library says so on the pipe; here the rank does it itself, and then runs on.
test_evicted() {
	for deaf in '' "trap '' TERM;"; do
		name="tutti run: evicted${deaf:+, deaf}"
		run -n 2 --keep-going --grace 0.5 sh -c \
			"$deaf [ \$TUTTI_RANK = 0 ] || { printf '\\1\\0\\0\\0\\0\\0\\0\\0rank 1 was evicted: a test' | dd bs=512 \
				conv=sync of=/proc/self/fd/\${TUTTI_RUN_PIPE%%:*} 2> /dev/null
			while :; do sleep 0.1; done; }"
		check "it says so, and why" has err \
			'the other ranks go on without rank 1 (pid [0-9]*): rank 1 was evicted: a test; it has 500 ms to end'
		check "ended after the grace" took 500 10000
		check "the others' status" is $status 0
		check "gone" soon none_left
	done
}

# The launcher finds both at once, what the first life has said and its end: the second one is not evicted.
test_evicted_again() {
	name="tutti run --restart: evicted, and gone"
	rm -f again
	run -n 2 --restart 1 --grace 0.3 sh -c '
		[ $TUTTI_RANK = 1 ] || { sleep 2; exit; }
		[ ! -e again ] || exec sleep 1
		: > again
		kill -STOP $PPID
		printf "\\1\\0\\0\\0" | dd bs=512 conv=sync of=/proc/self/fd/${TUTTI_RUN_PIPE%%:*} 2> /dev/null
		(sleep 0.3; kill -CONT $PPID) &
		exit 1'
	check "status 0" is $status 0
	check "it is started again" has err 'rank 1 .* exited with status 1, and is started again (1 of 1)'
	check "and lives" lines err 1
}

test_rendezvous() {
	run -np 2 sh -c 'echo $TUTTI_RANK of $TUTTI_SIZE'
	check "-np is -n" has out '1 of 2'
	run --tag -np 3 sh -c 'echo $TUTTI_RANK of $TUTTI_SIZE'
	check "anywhere among the options" has out '2 of 3'
	port=$(( $$ % 20000 + 20000 ))
	run -n 2 -v --rendezvous 127.0.0.1:$port sh -c 'echo $TUTTI_BOOT'
	check "where rank 0 listens" has out "^127.0.0.1:$port"
	check "how to start one again" has err "TUTTI_RANK=R TUTTI_SIZE=2 TUTTI_BOOT=127.0.0.1:$port"
	TUTTI_SECRET="0123456789abcdef01234" run -n 1 -v true
	check "the secret is for terminals" has err ' TUTTI_SECRET=(shown on a terminal alone) PROGRAM'
	TUTTI_SECRET_FILE=secret run -n 1 -v true
	check "where the secret is" has err ' TUTTI_SECRET_FILE=secret PROGRAM'
	refuses 'it is HOST:PORT' run --rendezvous here true
	refuses 'it is HOST:PORT' run --rendezvous here:x true
}

# Killed itself, it can do nothing any more; the ranks and their children go all the same, and so does the keeper.
test_killed() {
	rm -rf up
	"$tutti" run -n 2 --grace 0.5 sh -c \
		"trap '' TERM; sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' $marker & $ready wait" "$marker" > \
			out 2> err &
	pid=$!
	check "up" soon files up 2
	check "run, keeper, 2 ranks and their children" [ "$(living | wc -l)" -ge 6 ]
	kill -9 $pid
	wait $pid 2>/dev/null
	check "all gone" soon none_left
}

test_again() { # a process may leave and join again: the socket that it was handed is gone then
	for transports in shm,tcp tcp; do
		rm -f mine left.*
		TUTTI_TRANSPORTS=$transports run -n 3 "${tutti%/*}/tests/tools/again" 4
		check "status 0" is $status 0
		check "the program's own file is left alone" is "$(cat mine)" "still mine"
	done
	rm -f mine left.*
	run -n 1 "${tutti%/*}/tests/tools/again" 4
	check "alone" is $status 0
}

test_leftovers() {
	run -n 2 sh -c 'sh -c "sleep 100; :" '"$marker"' & [ $TUTTI_RANK = 0 ] || sleep 0.3'
	check "run does not wait for them" took 0 5000
	check "nothing left, at once" none_left
	check "status 0" is $status 0
	zombies='cat /proc/[0-9]*/stat 2>/dev/null | sed "s/.*) //" | grep -c "^Z $PPID "'
	run -n 3 sh -c "[ \$TUTTI_RANK = 0 ] || exit 0; (sleep 0.2; :) & sleep 0.5; echo zombies \$($zombies)"
	check "ranks that are over are no zombies" has out '^zombies 0$'
}

only_keeper() { is "$(living | grep -vxc "$1")" 1; }
test_broken_output() {
	start=$(now) name='tutti run: yes | head'
	"$tutti" run -n 2 yes 2> err | head -n 3 > out
	ms=$(($(now) - start))
	check "a reader that goes ends it" took 0 8000
	check "having read" lines out 3
	rm -rf up fifo
	mkfifo fifo
	sleep 100 < fifo & # a reader that does not read
	reader=$!
	"$tutti" run -n 2 --grace 1 sh -c "mkdir -p up; : > up/\$TUTTI_RANK; yes" "$marker" > fifo 2> err &
	pid=$!
	check "up" soon files up 2
	sleep 0.3
	kill -TERM $pid
	check "signals pass a stalled output" soon only_keeper $pid
	kill -TERM $pid
	wait $pid
	check "and end the waiting for it" is $? 143
	kill $reader
	wait $reader 2>/dev/null
	"$tutti" run -n 2 sh -c 'echo x; exit 0' "$marker" >&- 2> err
	status=$?
	check "a closed stdout is borne" is $status 0
}

test_info() {
	name="tutti info"
	TUTTI_SECRET="0123456789abcdef01234" TUTTI_NODE='a"b\' "$tutti" info > out 2> err
	check "status 0" is $? 0
	check "the secret's length" has out '^  TUTTI_SECRET .*set, 21 bytes .*environment'
	check "not the secret" has_not out 0123456789abcdef01234
	check "a default" has out '^  TUTTI_SILENCE .*10000 .*default .*milliseconds'
	check "a transport" has out '^  tcp'
	check "how memory is reached" has out '^  shm  *between ranks of this host; maps .* process_vm_readv'
	check "only launchers that are here" has_not out '^  OMPI_'
	check "the others are counted" has out '^  [0-9]* variables of launchers are not set; '
	check "the simulator is not unusable" has out "^  sim  *for Tutti's own tests"
	TUTTI_SECRET="0123456789abcdef01234" TUTTI_NODE='a"b\' "$tutti" info --json > out 2> err
	check "not the secret" has_not out 0123456789abcdef01234
	check "its length" has out '"TUTTI_SECRET": { "value": null, "bytes": 21'
	check "quoted" has out '"TUTTI_NODE": { "value": "a\\"b\\\\"'
	json 'json.load(open("out"))'
	for bad in TUTTI_TIMEOUT=abc TUTTI_PIN=banana TUTTI_TRANSPORTS=shm,rdma TUTTI_LOG=verbose TUTTI_PIN_CALLER=1; do
		env "$bad" "$tutti" info > out 2> err
		check "$bad has status 1" is $? 1
		check "$bad is named" has err "${bad%%=*}"
	done
	TUTTI_PIN=banana TUTTI_SPIN=some "$tutti" info --json > out 2> err
	check "each fault is in the JSON" is "$(grep -c '"fault": "' out)" 2
	TUTTI_FOO=1 "$tutti" info > out 2> err
	check "what is not near is not suggested" has_not err 'did you mean'
	TUTTI_CONFIG=./nowhere.conf "$tutti" info > out 2> err
	check "a config file that is not there" is $? 1
	check "is named" has err nowhere.conf
}

test_gpus() { # as the fake libcuda has them
	fake=$(cd "$(dirname "$tutti")" && pwd)/tests/gpu/.libs
	[ -e "$fake/libcuda.so.1" ] || { echo "not run: gpus, over the fake libcuda: make check builds it"; return; }
	LD_LIBRARY_PATH="$fake" "$tutti" info > out 2> err
	check "status 0" is $? 0
	check "said of what nobody has run" has out '^GPUs (not yet run on hardware: RDMA'
	check "by UUID" has out '^  0  *GPU-........-....-....-....-............  Fake GPU 0  8.0 GiB'
	check "what reaches it" has out '^  *ranks of this host map what is of tutti_alloc'
	check "the other GPU" has out '^  *GPU 1: reads it in place'
	LD_LIBRARY_PATH="$fake" "$tutti" info --json > out 2> err
	check "as JSON" has out '"number": 1, "uuid": "GPU-'
	json 'assert len(json.load(open("out"))["gpus"]) == 2'
	LD_LIBRARY_PATH="$fake" TUTTI_GPU=no "$tutti" info > out 2> err
	check "TUTTI_GPU=no" has out '^  none  *TUTTI_GPU is no'
	LD_LIBRARY_PATH="$fake" "$tutti" doctor > out 2> err
	check "the doctor" has out '^fine     gpu  *1, GPU-.*Fake GPU 1'
}

run_tests "environment exec_hangs pauses boot_socket listens secret job_name default_number output lines_stay_whole input signal_state failure grace
	keep_going survive server table exec refusals limits signals stats_signal background stop stopped late_rank_0
	evicted evicted_again rendezvous killed again leftovers broken_output info gpus" "$@"
