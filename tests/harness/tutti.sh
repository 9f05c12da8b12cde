# tutti.sh - sourced first by tests of `tutti`, which then run within a time limit, in an empty folder, with checks.sh:
# $tutti is the program, $here the test's folder, $scratch the empty one.
[ "${1:-}" = bounded ] || exec timeout -k 10 200 sh "$0" bounded "$@" # whatever hangs
shift
export LC_ALL=C
unset TUTTI_SECRET TUTTI_CONFIG TUTTI_NODE TUTTI_RANK TUTTI_SIZE TUTTI_TRANSPORTS TUTTI_STATS_SIGNAL RANK WORLD_SIZE
tutti=$(cd "${top_builddir:-.}" && pwd)/tutti
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 99
[ -x "$tutti" ] || { echo "$tutti is not there"; exit 99; }
. "$here/../harness/checks.sh"

refuses() { # what it says, arguments ...: of the subcommand $tool, which a function of this name runs
	said=$1
	shift
	"$tool" "$@"
	check "status 2" is $status 2
	check "one sentence" lines err 1
	check "says so" has err "^tutti $tool: .*$said"
	check "nothing on stdout" lines out 0
}
