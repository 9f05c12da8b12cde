# checks.sh - sourced by tests of a program: checks of what the program left in the files out and err, of its status,
# and of how many ms it took where that is known; name says what was called.
checks=0 failures=0

check() { # what, command ...
	what=$1
	shift
	checks=$((checks + 1))
	"$@" && return
	failures=$((failures + 1))
	printf '%s\n' "FAILED: $what" "  after: $name" "  status $status${ms:+, $ms ms}, stdout:" "$(head -c 600 out)" \
		"  stderr:" "$(head -c 600 err)"
}
is() { [ "$1" = "$2" ]; }
has() { grep -q -- "$2" "$1"; }
lines() { is "$(wc -l < "$1")" "$2"; }
files() { [ "$(ls "$1" 2> /dev/null | wc -l)" -ge "$2" ]; }
soon() { # a command that comes true within twenty seconds
	for try in $(seq 100); do
		"$@" && return
		sleep 0.2
	done
	return 1
}
python=$(command -v "${PYTHON:-python3}") # that of the build; none: what json would check is not checked
json() { # Python statements that must hold of what is in the file out
	[ -z "$python" ] || check "JSON" "$python" -c "import json; $1"
}
has_ended() { ! [ -e "/proc/$1" ] || grep -q '^State:.Z' "/proc/$1/status" 2> /dev/null; }
await() { # a process, for its status; one that hangs is killed, and fails
	soon has_ended "$1" || soon has_ended "$1" || kill -9 "$1"
	wait "$1" 2> /dev/null
	status=$?
}

run_tests() { # their names, and which of them; none: all
	for test in $1; do
		status= ms= name=
		[ -z "${2:-}" ] || [ "$test" = "$2" ] || continue
		: > out > err
		"test_$test"
	done
	echo "$checks checks, $failures failed"
	[ "$failures" = 0 ]
}
