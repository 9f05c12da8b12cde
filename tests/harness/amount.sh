# amount.sh - sourced: how much a shell test does of what is alike, as amount.h says for programs
all_or() { [ -n "${TEST_FULL:-}" ] && echo "$1" || echo "$2"; }
