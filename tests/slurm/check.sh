#!/bin/sh
# check.sh - jobs under real launchers, on four nodes of Slurm made of network namespaces; `make check-slurm` calls it.
#
#   check.sh SOURCE-TREE BUILD-TREE [PART ...]     the parts named, else all; `check.sh . . list` names them
#
# One line a part: what came of it, and its time; what a part printed is in BUILD-TREE/slurm-PART.log. Exit status: 0; 1
# if a part failed; 77 with a line `SKIPPED: ...` where there is no Slurm.
set -u
export LC_ALL=C
source_tree=$(cd "$1" && pwd) && build_tree=$(cd "$2" && pwd) || exit 2
shift 2
# shellcheck source=tests/slurm/cluster.sh
. "$source_tree/tests/slurm/cluster.sh"
# shellcheck source=tests/harness/sshd.sh
. "$source_tree/tests/harness/sshd.sh"

# Each part is a function part_NAME, which runs in the build tree. The limits are for a busy machine.
# part, limit in seconds, what it does
parts='
pmix      60  srun --mpi=pmix: one task a node, 3 + 1, four a node
pmi2      60  srun --mpi=pmi2: the same
slurm     60  srun --mpi=none: the same, with a secret by MUNGE
secret    60  srun --mpi=none with TUTTI_SECRET_FILE: no MUNGE is asked, and a file that others may read is refused
mpirun    60  mpirun on one host, and in an allocation of Slurm
torchrun  60  the variables of torchrun, inside a step of srun
nodes     60  a node list, one task a node
info      30  tutti info names the launcher, and why
placement 60  --cpu-bind and --gpus-per-task: what a task may use is what it takes
doctor    60  tutti doctor: hosts and pairs of a step; ranks that wait, and one that stands still
again     60  a process joins a second time: under PMIx and PMI2 with TUTTI_BOOT alone
taken     60  another program has the port at which the ranks of a step meet
wrong     90  a rank with another secret, of an older version, missing, started twice: who is named, and the others
start     60  4 nodes of 4 tasks are at their first sum within 0.5 s, and tutti run -n 256 within 6 s
killed    60  under pmix, pmi2 and none a rank is killed -9: the other three go on
learns    60  examples/fashion learns on when a rank is killed, and as much
times     60  a rank is killed or stands still: when the others know, and when their next sum is done
replaced  90  a rank dies, or rank 0 and then its node: a second step brings another, which the others take in
cut       60  two nodes are cut from each other and joined again: one of them is evicted for good, three go on
unplugged 60  a node loses its network: the other three go on
slow      60  a node at 10 Mbit/s stays in the job
page      90  the lines of docs/launch.md for Slurm and mpirun, its first batch script
hand      60  its lines for torchrun, ssh, by hand and a node list; examples/fashion under tutti run --hosts
requeue  180  SIGTERM and scontrol requeue: the batch script that saves starts again and goes on
patterns 120  windows, tables, averaging, controllers: examples under pmix, pmi2 or none
fashion  120  examples/fashion learns under each launcher, and each shape, what it learns under tutti run'

ranks=tests/slurm/ranks
unset TUTTI_SECRET TUTTI_CONFIG TUTTI_NODE TUTTI_RANK TUTTI_SIZE TUTTI_TRANSPORTS TUTTI_BOOT RANK WORLD_SIZE
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

fail() { echo "FAILED: $*"; exit 1; }

joined() { # how many, placement as LOCAL/SIZE LOCAL/SIZE ... sorted, command: each rank once, and their sum is right
	count=$1 places=$2
	shift 2
	"$@" > said 2>&1 || { cat said; fail "$*"; }
	cat said
	[ "$(grep -c "^rank [0-9]* of $count: sum $((count * (count + 1) / 2))," said)" = "$count" ] ||
		fail "not $count ranks of one job: $*"
	[ "$(sed -n 's/^rank \([0-9]*\) .*/\1/p' said | sort -u | wc -l)" = "$count" ] ||
		fail "a rank is there twice: $*"
	[ "$(sed -n 's/.*, local \([0-9/]*\) .*/\1/p' said | sort | xargs)" = "$places" ] ||
		fail "not placed $places: $*"
}

three_shapes() { # kind of --mpi
	joined 4 '0/1 0/1 0/1 0/1' login srun --mpi="$1" -N4 -n4 $ranks
	joined 4 '0/1 0/3 1/3 2/3' login srun --mpi="$1" -N2 -n4 -c2 --distribution=pack $ranks
	joined 16 '0/4 0/4 0/4 0/4 1/4 1/4 1/4 1/4 2/4 2/4 2/4 2/4 3/4 3/4 3/4 3/4' \
		login srun --mpi="$1" -N4 -n16 --ntasks-per-node=4 $ranks
}

part_pmix() {
	grep -q 'define HAVE_PMIX' config.h 2> /dev/null || ./tutti info | grep -q 'pmix  *yes' ||
		{ echo "SKIPPED: this build is without PMIx"; exit 77; }
	three_shapes pmix
}
part_pmi2() { three_shapes pmi2; }
part_slurm() { three_shapes none; }

part_secret() {
	file=$cluster/secret
	(umask 077; head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$file")
	joined 4 '0/1 0/1 0/1 0/1' login env TUTTI_SECRET_FILE="$file" srun --mpi=none -N4 -n4 $ranks
	chmod 644 "$file"
	! login env TUTTI_SECRET_FILE="$file" srun --mpi=none -N4 -n4 $ranks > said 2>&1 ||
		fail "an open file is a secret"
	grep "chmod 600 $file" said || { cat said; fail "not the sentence about the mode"; }
}

part_mpirun() {
	joined 3 '0/3 1/3 2/3' login mpirun --oversubscribe -n 3 $ranks
	joined 4 '0/2 0/2 1/2 1/2' login salloc -N2 -n4 --ntasks-per-node=2 mpirun -n 4 $ranks
}

as_torchrun() { # program ...
	# shellcheck disable=SC2016
	login env TUTTI_SECRET=0123456789abcdef0123 MASTER_ADDR=n1 MASTER_PORT=29511 srun --mpi=pmix -N4 -n4 sh -c '
		export TORCHELASTIC_RUN_ID=x RANK=$SLURM_PROCID WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1
		exec "$@"' sh "$@"
}
part_torchrun() { joined 4 '0/1 0/1 0/1 0/1' as_torchrun $ranks; }

as_nodes() { # program ...
	{
		echo 'secret = "0123456789abcdef0123"; nodes = ('
		for i in 1 2 3 4; do
			echo "{ name = \"n$i\"; address = \"n$i:4711\"; }$([ $i = 4 ] || echo ,)"
		done
		echo ');'
	} > "$cluster/job.conf"
	chmod 600 "$cluster/job.conf"
	# shellcheck disable=SC2016
	login env TUTTI_CONFIG="$cluster/job.conf" srun --mpi=none -N4 -n4 \
		sh -c 'TUTTI_NODE=$SLURMD_NODENAME exec "$@"' sh "$@"
}
part_nodes() { joined 4 '0/1 0/1 0/1 0/1' as_nodes $ranks; }

part_info() {
	for kind in pmix pmi2; do
		login srun --mpi=$kind -N1 -n2 ./tutti info > said 2>&1 || { cat said; fail "tutti info under $kind"; }
		[ "$(grep -c "^  $kind  *PMIX*_[A-Z]*=.* are set" said)" = 2 ] ||
			{ cat said; fail "not the launcher $kind"; }
	done
	login srun --mpi=none -N1 -n1 ./tutti info --json > said || fail "tutti info --json"
	grep '"launcher": { "name": "slurm", "why": "SLURM_PROCID=0 and SLURM_STEP_ID=0 are set" }' said ||
		fail "no slurm"
	login ./tutti info | grep '^  none  *no launcher' || fail "a launcher where there is none"
}

part_placement() {
	login srun -N1 -n2 --gpus-per-task=1 ./tutti info > said 2>&1 || { cat said; fail "tutti info"; }
	if [ -c "$cluster/gpu0" ]; then
		[ "$(sed -n 's/^  CUDA_VISIBLE_DEVICES  *\([01]\) .*/\1/p' said | sort | xargs)" = "0 1" ] ||
			{ cat said; fail "not a GPU each"; }
	fi
	[ "$(nproc)" -gt 1 ] || { echo "SKIPPED: a machine of one core binds no tasks"; exit 77; }
	login srun -N1 -n2 --cpu-bind=cores ./tutti info > said 2>&1 || { cat said; fail "tutti info"; }
	[ "$(sed -n 's/^  processors 1: //p' said | sort -u | wc -l)" = 2 ] || { cat said; fail "not a core each"; }
	joined 2 '0/2 1/2' login env TUTTI_PIN=compact srun -N1 -n2 --cpu-bind=cores $ranks
	refused 'TUTTI_PIN=0-1' login env TUTTI_PIN=0-1 srun -N1 -n2 --cpu-bind=cores $ranks
}

part_again() {
	for kind in pmix pmi2; do
		refused "begun to join a job before, and $kind serves the first alone: set TUTTI_BOOT" \
			login srun --mpi=$kind -N1 -n2 $ranks again
	done
	login srun --mpi=none -N2 -n2 $ranks again > said 2>&1 || { cat said; fail "twice without PMI"; }
	[ "$(grep -c '^rank [01] of 2: sum 3' said)" = 4 ] || { cat said; fail "not two jobs of two ranks"; }
}

part_taken() { joined 4 '0/1 0/1 0/1 0/1' login srun --mpi=none -N4 -n4 $ranks crowded; }

part_doctor() {
	for kind in pmix pmi2 none; do
		login srun --mpi=$kind -N4 -n4 ./tutti doctor --json > said 2>&1
		cat said
		grep -q '"check": "pairs".*"6 over tcp' said || fail "not all six pairs under $kind"
		! grep -qE '"check": "(join|job)"' said || fail "the ranks did not meet under $kind"
	done
	rm -f over
	login env TUTTI_SILENCE=120000 srun --mpi=pmix -N4 -n4 tests/tools/late over > late.out 2>&1 &
	job=$!
	asks_about 1 'rank 0 (n1, .* has waited .* in all-reduce for rank 3 (n4, .*: its last call was barrier'
	asks_about 4 'rank 3 (n4, [0-9.]*), process [0-9]*, is in no call: the last one was barrier'
	stopped=$(pid_of 3 late)
	kill -STOP "$stopped"
	asks_about 3 "process $stopped, rank 2.*, is stopped (SIGSTOP).*: kill -CONT $stopped"
	kill -CONT "$stopped"
	: > over
	wait $job || fail "the job that was asked about: $(cat late.out)"
}
asks_about() { # a node's number, sentence: the doctor says so there of the rank that is there
	wait_for 20 doctor_says "$@" || { cat said late.out; fail "no \"$2\" on n$1"; }
	cat said
}
doctor_says() {
	inside "$1" "n$1" ./tutti doctor "$(pid_of "$1" late)" > said 2>&1
	grep -q "$2" said
}

refused() { # sentence, command: it fails, and says so
	sentence=$1
	shift
	! "$@" > said 2>&1 || { cat said; fail "it went well: $*"; }
	cat said
	grep -q "$sentence" said || fail "nobody says \"$sentence\""
}

part_wrong() {
	# a job that is right goes on meanwhile
	login env TUTTI_PORTS=6001 srun --mpi=none -N4 -n4 sh -c "$ranks 8" > right 2>&1 &
	right=$!
	inside 2 n2 tests/tools/older 10.79.0.1 6001
	# shellcheck disable=SC2016
	refused 'rank 2 of 4 of Slurm.s step [0-9.]* did not join within 1500 ms' login env TUTTI_TIMEOUT=1500 \
		srun --mpi=none -N4 -n4 sh -c '[ $SLURM_PROCID = 2 ] || exec "$0"' $ranks
	for kind in pmi2 pmix; do
		# shellcheck disable=SC2016
		refused 'not all of the' login env TUTTI_TIMEOUT=1500 srun --mpi=$kind -N4 -n4 \
			sh -c '[ $SLURM_PROCID = 2 ] && exec sleep 4; exec "$0"' $ranks
	done
	# shellcheck disable=SC2016
	refused 'rank 0 says: rank 1 of Slurm.s step [0-9.]* was started twice' \
		login env TUTTI_TIMEOUT=5000 srun --mpi=none -N4 -n4 \
		sh -c '[ $SLURM_PROCID != 2 ] || export SLURM_PROCID=1; exec "$0"' $ranks
	# shellcheck disable=SC2016
	refused 'rank 0 cannot be reached .* do both sides have the same TUTTI_SECRET' \
		login env TUTTI_TIMEOUT=2500 srun --mpi=pmi2 -N4 -n4 \
		sh -c '[ $SLURM_PROCID != 2 ] || export TUTTI_SECRET=fedcba98765432100123; exec "$0"' $ranks
	wait $right || { cat right; fail "the job that is right has failed"; }
	[ "$(grep -c '^rank [0-9]* of 4: sum 10,' right)" = 4 ] || { cat right; fail "the job that is right"; }
	grep 'refused the connection from 10.79.0.2:[0-9]*: it speaks version .*: use the same Tutti' right ||
		{ cat right; fail "the older version is not refused"; }
}

survive() { # kind of --mpi, steps: starts four ranks that add numbers; they write to `lived`
	: > lived # what an earlier job has written is not this one's
	login env TUTTI_SILENCE=1500 srun --kill-on-bad-exit=0 --no-kill -W 0 --mpi="$1" -N4 -n4 -u \
		./examples/survive "$2" > lived 2>&1 &
	survivors=$!
	wait_for 20 has 4 '^rank [0-9] of 4 is process' || { cat lived; fail "survive does not start"; }
}
has() { [ "$(grep -c "$2" lived)" = "$1" ]; }
went_on() { # steps: three ranks have done them all, with one sum
	wait $survivors # srun says what became of the worst rank
	cat lived
	has 1 '^step [0-9]*: 3 left' || fail "not three were left"
	[ "$(sed -n "s/^rank [0-9]: $1 steps, the sum is //p" lived | uniq -c | awk '{ print $1 }')" = 3 ] ||
		fail "three ranks do not have one sum"
}

ms_of() { # command: milliseconds that it takes
	begun=$(date +%s%N)
	"$@" > said 2>&1 || { cat said; fail "$*"; }
	echo $((($(date +%s%N) - begun) / 1000000))
}
within() { # milliseconds, a command that measures them: the best of ten tries
	most=$1
	shift
	for try in $(seq 10); do
		took=$("$@") || fail "$took"
		echo "$*: $took ms"
		[ "$took" -gt "$most" ] || return 0
	done
	fail "$*: never within $most ms"
}
beyond_true() { # what starting Tutti adds
	bare=$(ms_of login srun --mpi="$1" -N4 -n16 --ntasks-per-node=4 true)
	echo $(($(ms_of login srun --mpi="$1" -N4 -n16 --ntasks-per-node=4 $ranks) - bare))
}
run_256() { ms_of ./tutti run -n 256 $ranks; }
part_start() {
	for kind in pmix pmi2 none; do
		within 500 beyond_true $kind
	done
	within 6000 run_256
}

part_killed() {
	for kind in pmix pmi2 none; do
		survive $kind 1000
		kill -9 "$(pid_of 3 survive)" || fail "rank 2 is not on n3"
		went_on 1000
	done
}

# Ranks that train, and take in whoever comes, by the page's lines; its list of addresses leads newcomers to them when
# rank 0 is gone.
grow() { # the victim, which line of the page: 2 starts the job, 3 brings another rank, as a step of the same job
	(cd page && HOME=$PWD JOB=$(login squeue -h -o %A | head -n 1) VICTIM=$1 TUTTI_SILENCE=3000 \
		TUTTI_TIMEOUT=20000 TUTTI_TRANSPORTS=tcp login sh -c "$(sed -n "1p; $2p" later)")
}

replace() { # the victim, what follows its death, what undoes that: Slurm waits for a node that it cannot ask
	rm -f died
	grow "$1" 2 > old 2>&1 &
	old=$!
	wait_for 30 [ -e died ] || { cat old; fail "rank $1 lives"; }
	eval "$2"
	grow "$1" 3 > new 2>&1 || { cat old new; fail "no other takes the place of rank $1"; }
	eval "$3"
	wait $old
	cat old new
	[ "$(cat old new | grep -c '^rank [0-3] of 4.*: 3.00$')" = 4 ] || fail "not four ranks at the end"
}

part_replaced() {
	page_folder
	[ "$(wc -l < page/later)" = 3 ] || fail "not three lines about ranks that come later"
	(cd page && HOME=$PWD sh -c "$(cat secret-line)") || fail "no secret"
	printf '#!/bin/sh\nexec "%s/tests/tools/grows" 4 "$VICTIM" "%s/died"\n' "$PWD" "$PWD" > page/train
	chmod +x page/train
	replace 2 : :
	replace 0 "ip -n tutti$$-0 link set p1 down" "ip -n tutti$$-0 link set p1 up"
}

# What three learn after the death of a fourth is what one learns alone: rank 0, or another one.
part_learns() {
	make_pictures train 512
	make_pictures t10k 64
	fashion="./examples/fashion --epochs 100 --batch 64 --json --plot none --data $cluster"
	# shellcheck disable=SC2086
	$fashion > wanted || fail "fashion alone"
	for node in 1 3; do
		: > lived
		# shellcheck disable=SC2086
		login env TUTTI_SPIN=no srun --kill-on-bad-exit=0 --no-kill -W 0 -N4 -n4 -u \
			$fashion --keep-going > lived 2>&1 &
		wait_for 30 grep -q '"epoch": 5,' lived || { cat lived; fail "fashion does not train"; }
		kill -9 "$(pid_of $node fashion)" || fail "no rank on n$node"
		wait $! # srun says what became of the worst rank
		cat lived
		has 1 '^fashion: 3 ranks go on in epoch' || fail "not three go on"
		cat wanted lived | sed -n 's/.*"epoch": 100, "loss": \([0-9.]*\),.*/\1/p' |
			awk '{ loss[NR] = $1 }
				END { d = loss[1] / loss[2] - 1; exit !(NR == 2 && d * d < 1e-4) }' ||
			fail "the last loss is not that of $(tail -n 1 wanted)"
	done
}

# Ranks that live until a file is there, and say when they know of a loss and when their next sum is done.
live() { # kind of --mpi; they write to `lived`
	rm -f over
	: > lived
	login env TUTTI_SILENCE=1500 srun --kill-on-bad-exit=0 --no-kill -W 0 --mpi="$1" -N4 -n4 -u \
		$ranks lives over > lived 2>&1 &
	survivors=$!
	wait_for 20 has 4 '^rank [0-9] is there' || { cat lived; fail "no four ranks"; }
}
pid_of() { # a node's number, a program: its process there
	for pid in $(ip netns pids "tutti$$-$1"); do
		[ "$(cat "/proc/$pid/comm" 2> /dev/null)" != "$2" ] || echo "$pid"
	done
}
# A line is whole where its end is: srun -u may write half of one.
latest() { sed -n "s/^rank [0-9] $1 at \([0-9]*\) ms\$/\1/p" lived | sort -n | tail -n 1; }
in_time() { # milliseconds: three know by then of the loss at $lost, and have their next sum 2 s later
	wait_for 20 has 3 '^rank [0-9] goes on at [0-9]* ms$' || { cat lived; fail "no three ranks go on"; }
	cat lived
	has 3 '^rank [0-9] knows at [0-9]* ms$' || has 4 '^rank [0-9] knows at [0-9]* ms$' ||
		fail "they do not all know"
	known=$(($(latest knows) - lost)) on=$(($(latest 'goes on') - $(latest knows)))
	echo "known after $known ms, the next sum $on ms later"
	[ $known -ge 0 ] && [ $known -le "$1" ] || fail "the loss is known after $known ms"
	[ $on -ge 0 ] && [ $on -le 2000 ] || fail "the next sum is $on ms later"
}
ends() { # three end together
	: > over
	wait $survivors
	cat lived
	has 3 '^rank [0-9] ends with 3$' || fail "no three ranks end together"
}

part_times() {
	for kind in pmix pmi2 none; do
		live $kind
		lost=$(date +%s%3N)
		kill -9 "$(pid_of 3 ranks)" || fail "no rank on n3"
		in_time 1000
		ends
	done
	live none
	stopped=$(pid_of 3 ranks) lost=$(date +%s%3N)
	kill -STOP "$stopped" || fail "no rank on n3"
	in_time 2500
	kill -9 "$stopped"
	ends
}

cable() { ip netns exec "tutti$$-0" nft "$@"; } # of the bridge on the login node
part_cut() {
	live none
	cable -f - << 'end' || fail "nft"
table bridge cut {
	chain forward {
		type filter hook forward priority 0
		iifname "p2" oifname "p3" drop
		iifname "p3" oifname "p2" drop
	}
}
end
	lost=$(date +%s%3N)
	in_time 2500
	wait_for 20 has 1 '^rank [12] is left behind: ' || { cat lived; fail "not one rank alone was left behind"; }
	cable delete table bridge cut
	sleep 3 # who was evicted asks the others meanwhile, by old connections and by new ones
	ends
	has 1 '^rank [12] is left behind for good: ' || fail "who was left behind is let in again"
}

part_unplugged() {
	survive pmi2 4000
	ip -n "tutti$$-0" link set p3 down
	wait_for 20 has 1 '^step [0-9]*: 3 left, rank 0 1 3' || { cat lived; fail "the lost node is not noticed"; }
	ip -n "tutti$$-0" link set p3 up # or its rank hears nothing of the end of the step
	went_on 4000
}

part_slow() {
	tc -n "tutti$$-0" qdisc add dev p2 root tbf rate 10mbit burst 16kb latency 100ms || fail "tc"
	survive none 500
	wait $survivors || { cat lived; fail "a slow node is lost"; }
	tc -n "tutti$$-0" qdisc del dev p2 root
	cat lived
	has 4 '^rank [0-9]: 500 steps, the sum is 5000$' || fail "not all four are there at the end"
}

# What is in the blocks of docs/launch.md, sorted by who runs it, in a folder `page` that has its programs. The address
# or the launcher says where a line runs. `unknown` is what nobody would run.
page_folder() {
	rm -rf page && mkdir page && cp examples/mean page/mean || fail "no examples/mean"
	awk '/^```/ { inside = !inside; first = ""; next }
		!inside { next }
		first == "" { first = $0; scripts += $0 == "#!/bin/sh" }
		first == "#!/bin/sh" { print > "page/script" scripts; next }
		first ~ /^[$] / { print > "page/shown"; next }
		first ~ /^export / { print > "page/later"; next }
		/\\$/ { begun = begun substr($0, 1, length($0) - 1); next }
		{ $0 = begun $0; begun = "" }
		/^(srun|mpirun|salloc) / { print > "page/lines"; next }
		/^TUTTI.* # on 10[.]0[.]0[.][12]$/ { print > "page/hand" substr($0, length($0)); next }
		/^TUTTI.* torchrun / { print > "page/torchrun-line"; next }
		/^tutti run --hosts 10[.]0[.]0[.]1,10[.]0[.]0[.]2 / { print > "page/ssh"; next }
		/^.umask 077/ { print > "page/secret-line"; next }
		/^(jsrun |tutti run --hostfile |volumes:|- name: | *secret: )/ { print > "page/elsewhere"; next }
		{ print > "page/unknown" }' "$source_tree/docs/launch.md"
	[ ! -e page/unknown ] || fail "no part runs this line of docs/launch.md: $(cat page/unknown)"
}
meets() { # how many ranks, the mean of which is in `said`; the line
	case $1 in 2) mean='0.5 1.5 2.5 3.5' ;; 4) mean='1.5 2.5 3.5 4.5' ;; esac
	grep "^$1 ranks: $mean\$" said || { cat said; fail "not $1 ranks: $2"; }
}

# Its lines that begin with `srun`, `mpirun` or `salloc`, and its first batch script: each starts four ranks.
part_page() {
	page_folder
	[ "$(wc -l < page/lines)" -ge 5 ] || fail "only $(wc -l < page/lines) lines in docs/launch.md"
	while IFS= read -r line; do
		echo "+ $line"
		(cd page && login sh -c "$line" < /dev/null) > said 2>&1 || { cat said; fail "$line"; }
		meets 4 "$line"
	done < page/lines
	cat page/script1
	(cd page && login sbatch --wait -o ../said script1) || fail "the batch script: $(cat said)"
	meets 4 script1
	command=$(sed -n '1s/^[$] //p' page/shown)
	PATH=$PWD:$PATH login sh -c "$command" > said 2>&1 || { cat said; fail "$command"; }
	sed -e 1d -e '/^[.]*$/d' page/shown | while IFS= read -r line; do
		grep -qxF -- "$line" said || { cat said; fail "$command does not print \"$line\""; }
	done || exit 1
}

# Stands for torchrun: on host nI of 10.0.0.I. It takes the options of the page, and sets torchrun's variables.
fake_torchrun() {
	cat > page/torchrun << 'end'
#!/bin/sh
while [ $# -gt 0 ]; do
	case $1 in
	--nnodes) nodes=$2 ;;
	--nproc-per-node) export LOCAL_WORLD_SIZE=$2 ;;
	--rdzv-endpoint) export MASTER_ADDR="${2%:*}" MASTER_PORT="${2#*:}" ;;
	--rdzv-backend) ;;
	--no-python) shift; break ;;
	*) exit 2 ;;
	esac
	shift 2
done
node=$(hostname | tr -d n)
export TORCHELASTIC_RUN_ID=none WORLD_SIZE=$((nodes * LOCAL_WORLD_SIZE))
for LOCAL_RANK in $(seq 0 $((LOCAL_WORLD_SIZE - 1))); do
	export LOCAL_RANK RANK=$(((node - 1) * LOCAL_WORLD_SIZE + LOCAL_RANK))
	"$@" &
done
wait
end
	chmod +x page/torchrun
}
on_both() { # how many ranks, the line on 10.0.0.1, the line on 10.0.0.2
	echo "+ $2"
	(cd page && HOME=$PWD PATH=$PWD:$PATH inside 1 n1 sh -c "$2") > said 2>&1 &
	one=$!
	(cd page && HOME=$PWD PATH=$PWD:$PATH inside 2 n2 sh -c "$3") > said2 2>&1 || { cat said said2; fail "$3"; }
	wait $one || { cat said said2; fail "$2"; }
	meets "$1" "$2"
}

# Its other lines, on n1 and n2, which are 10.0.0.1 and 10.0.0.2 besides.
part_hand() {
	page_folder
	for i in 1 2; do
		ip -n "tutti$$-$i" addr add 10.0.0.$i/24 dev eth0 || fail "no second address"
	done
	(cd page && HOME=$PWD sh -c "$(cat secret-line)") && [ "$(wc -c < page/secret)" = 32 ] || fail "no secret"
	fake_torchrun
	on_both 4 "$(cat page/torchrun-line)" "$(cat page/torchrun-line)"
	sed -n '/^# job.conf/,/^\.EE/ { /^\.EE/!p; }' "$source_tree/docs/tutti.conf.5" > page/job.conf
	chmod 600 page/job.conf
	[ "$(wc -l < page/hand1) $(wc -l < page/hand2)" = "2 2" ] || fail "not two pairs of lines by hand"
	for i in 1 2; do
		on_both 2 "$(sed -n ${i}p page/hand1)" "$(sed -n ${i}p page/hand2)"
	done
	has_sshd || { echo "SKIPPED: all but its line for ssh passed: no sshd (apt install openssh-server)"; exit 77; }
	ip -n "tutti$$-0" addr add 10.0.0.100/24 dev br0 && sshd_keys "$PWD/page/keys" || fail "no keys"
	for i in 1 2; do
		# shellcheck disable=SC2046
		inside $i n$i $(sshd_line "$PWD/page/keys" 10.0.0.$i 22) > page/sshd$i 2>&1 &
		wait_for 20 grep -q listening page/sshd$i || fail "no sshd: $(cat page/sshd$i)"
	done
	TUTTI_RSH=$(ssh_line "$PWD/page/keys" 22)
	export TUTTI_RSH
	(cd page && PATH=$PWD/..:$PATH login sh -c "$(cat ssh)") > said 2>&1 || { cat said; fail "$(cat page/ssh)"; }
	meets 4 "$(cat page/ssh)"
	train_here
	train_alike login ./tutti run --hosts 10.0.0.1:3,10.0.0.2
}

be32() { # number: its 4 bytes
	# shellcheck disable=SC2059
	printf "$(printf '\\%03o\\%03o\\%03o\\%03o' $(($1 >> 24)) $(($1 >> 16 & 255)) $(($1 >> 8 & 255)) $(($1 & 255)))"
}
make_pictures() { # train or t10k, how many: idx files of any bytes
	{ be32 2051; be32 "$2"; be32 28; be32 28; head -c $(($2 * 784)) examples/fashion; } > \
		"$cluster/$1-images-idx3-ubyte"
	{ be32 2049; be32 "$2"; yes 01234567 | tr -d '\n' | tr 0-7 '\000-\007' | head -c "$2"; } > \
		"$cluster/$1-labels-idx1-ubyte"
}
train() { # command: the loss after each epoch
	"$@" ./examples/fashion --epochs 2 --json --plot none --data "$cluster" > lines || return 1
	sed 's/"seconds.*//' lines
}
train_here() { # leaves `wanted`
	make_pictures train 512
	make_pictures t10k 64
	train login ./tutti run -n 4 > wanted || fail "tutti run"
	[ "$(wc -l < wanted)" = 2 ] || fail "$(cat wanted)"
}
train_alike() { # command
	echo "+ $*"
	train "$@" > got || fail "$*"
	cmp wanted got || fail "other losses: $*"
}
part_fashion() {
	train_here
	for kind in pmix pmi2 none; do
		train_alike login srun --mpi=$kind -N4 -n4
		train_alike login srun --mpi=$kind -N2 -n4 -c2 --distribution=pack
		train_alike login srun --mpi=$kind -N4 -n16 --ntasks-per-node=4
	done
	train_alike login mpirun --oversubscribe -n 4
	train_alike login salloc -N2 -n4 --ntasks-per-node=2 mpirun -n 4
	train_alike as_torchrun
	train_alike as_nodes
}

# The kind of --mpi, how many lines say it, the example, what it says. The nodes share this machine's cores, which their
# ranks do not know: without TUTTI_SPIN they would poll, and the
# examples take ten times as long.
part_patterns() {
	while read -r kind count example sentence; do
		login env TUTTI_SPIN=no srun --mpi="$kind" -N4 -n4 "./examples/$example" < /dev/null > said 2>&1 ||
			{ cat said; fail "$example"; }
		[ "$(grep -c "$sentence" said)" = "$count" ] || { cat said; fail "$example under $kind"; }
	done << 'end'
pmix 4 window rank [0-3]: rank [0-3] holds 10[0-3], and my ticket is [0-3]$
pmi2 4 server rank [0-3]: 2.000 -1.000 0.500 3.000$
none 4 table rank [0-3]: after 100 steps at a distance of [0-9]
pmix 4 gossip rank [0-3]: y = 3.00 x -1.00$
pmix 1 elastic the center: 3.00 x -1.00$
pmi2 4 sgd rank [0-3]: 2.000 x + 1.000$
none 1 overlap layer 7: 34$
pmix 1 controller stopped after [0-9]* steps and [0-9]* validations
end
}

# The page's batch script that saves: what it learns in three lives is what it learns in one.
lines_of() { sed -n "/$1/p" page/out 2> /dev/null | wc -l; }
more_than() { [ "$(lines_of "$2")" -gt "$1" ]; }
starts() { # Slurm itself lets two minutes pass before a job starts again
	more_than $(($1 - 1)) '^+ fashion' && return
	login scontrol update JobId="$job" StartTime=now > /dev/null 2>&1
	return 1
}
goes_on() { # which life it is: the job is there, and comes a little further
	wait_for 60 starts "$1" || fail "the job does not start again: $(login scontrol show job "$job"; cat page/out)"
	wait_for 60 more_than "$(($(lines_of '^{') + 1))" '^{' || fail "it trains no more: $(cat page/out)"
}
part_requeue() {
	page_folder
	make_pictures train 512
	make_pictures t10k 64
	fashion="$PWD/examples/fashion --epochs 120 --batch 16 --json --plot none --data $cluster"
	# shellcheck disable=SC2086
	$fashion > wanted 2> said || fail "fashion alone: $(cat said)"
	# shellcheck disable=SC2016
	printf '#!/bin/sh\n[ $SLURM_PROCID != 0 ] || echo "+ fashion $*"\nexec %s "$@"\n' "$fashion" > page/fashion
	chmod +x page/fashion
	job=$(cd page && login sbatch --parsable -o out script2) || fail "sbatch"
	goes_on 1
	login scancel --signal=TERM "$job"
	goes_on 2
	grep '^fashion: asked to leave' page/out || fail "it did not save: $(cat page/out)"
	login scontrol requeue "$job"
	goes_on 3
	login scancel "$job"
	cat page/out
	sed -n 's/, "seconds.*//p' page/out | awk '!seen[$0]++' > got # an epoch that was not saved comes again
	head -n "$(wc -l < got)" wanted | sed 's/, "seconds.*//' | cmp - got || fail "other losses than in one go"
	[ "$(grep -c '^+ fashion.* --load model.save$' page/out)" -ge 2 ] || fail "it did not load"
}

names() { echo "$parts" | awk 'NF { print $1 }'; }
limit_of() { echo "$parts" | awk -v name="$1" '$1 == name { print $2 }'; }

run_part() ( # in a folder of its own for what it writes; killed at its limit
	"part_$1" &
	part=$!
	(sleep "$(limit_of "$1")"; login scancel -u root; sleep 3; kill -9 $part) > /dev/null 2>&1 &
	watch=$!
	wait $part
	status=$?
	kill $watch 2> /dev/null
	exit $status
)

cd "$build_tree" || exit 2
[ "${1:-}" != list ] || { echo "$parts" | sed 1d; exit 0; }
for name; do
	names | grep -qx "$name" || { echo "check.sh: there is no part $name; they are: $(names | xargs)"; exit 2; }
done
for tool in slurmctld slurmd srun munged ip nft tc unshare mpirun; do
	command -v $tool > /dev/null || { echo "SKIPPED: no $tool (apt install slurmctld slurmd slurm-client munge \
iproute2 nftables openmpi-bin libpmix-dev)"; exit 77; }
done
[ "$(id -u)" = 0 ] && ip netns add "tutti$$-try" 2> /dev/null ||
	{ echo "SKIPPED: network namespaces need root"; exit 77; }
ip netns del "tutti$$-try"
scratch=$(mktemp -d) || exit 1
trap 'cluster_down; rm -rf "$scratch" said said2 lines right wanted got lived over late.out page' EXIT
trap 'exit 130' INT TERM HUP
if ! cluster_up "$scratch"; then
	tail -n 5 "$scratch"/*.log
	echo "FAILED: Slurm does not come up"
	exit 1
fi
# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $(names)
failed=0
for name; do
	start=$(date +%s)
	run_part "$name" > "slurm-$name.log" 2>&1
	status=$?
	case $status in
	0) result=passed ;;
	77) result="skipped: $(sed -n 's/^SKIPPED: //p' "slurm-$name.log" | tail -n 1)" ;;
	137) result="FAILED: not done after $(limit_of "$name") s" failed=1 ;;
	*) result="FAILED ($status)" failed=1 ;;
	esac
	printf '%-10s %4d s  %s\n' "$name" $(($(date +%s) - start)) "$result"
	case $result in FAILED*) tail -n 30 "slurm-$name.log"; login scancel -u root ;; esac
done
exit $failed
