# common.sh - sourced by build.sh, run and check.sh: where the guest is kept, what it needs here, signs of life
# shellcheck shell=sh
# shellcheck disable=SC2034
cache=${GUEST_CACHE:-${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/tutti-vm}

missing_packages() { # of those that make and run the guest
	command -v qemu-system-x86_64 > /dev/null || printf 'qemu-system-x86 '
	command -v rdma > /dev/null || printf 'iproute2 '
	command -v xz > /dev/null || printf 'xz-utils '
	[ -n "$(find /usr/lib -path '*/libibverbs/librxe-rdmav*.so' 2> /dev/null)" ] || printf 'ibverbs-providers '
}

# On a terminal: the seconds since it was called, until end_count. In a line that the next text overwrites.
count_seconds() { # what is done
	counter=
	[ -t 2 ] || return 0
	(
		second=0
		trap 'exit 0' TERM
		while sleep 1 && kill -0 $$ 2> /dev/null; do
			second=$((second + 1))
			[ $second -lt 2 ] || printf '\r%s: %d s\033[K\r' "$1" $second >&2
		done
	) &
	counter=$!
}

end_count() {
	[ -n "${counter:-}" ] || return 0
	kill "$counter" 2> /dev/null
	wait "$counter" 2> /dev/null
	counter=
	printf '\r\033[K' >&2
}
