#!/bin/sh
# timed.sh COMMAND [ARGUMENT ...]: runs a test; the last line of its log says how long the test took.
begin=$(date +%s)
"$@"
status=$?
file=$(mktemp) || exit $status
times > "$file" # in a pipe, the shell would show the times of a child
awk -v wall=$(($(date +%s) - begin)) 'NR == 2 { split($1, user, /[ms]/); split($2, kernel, /[ms]/)
	printf "TIME %d s, %.1f s of CPU\n", wall, 60 * (user[1] + kernel[1]) + user[2] + kernel[2] }' "$file"
rm -f "$file"
exit $status
