# halves.sh - sourced by what runs pytest, with $python, $here, $scratch
halves() { # seconds, paths ...: two processes share the tests, as most of these wait
	half 0 "$@" > half.0 2>&1 &
	half 1 "$@"
	result=$?
	wait $! || result=1
	cat half.0
	return $result
}

half() { # 0 or 1, seconds, paths ...; pytest's 5 is that there was no test
	HALF=$1 seconds=$2
	shift 2
	HALF=$HALF timeout -s INT -k 10 "$seconds" "$python" -m pytest -q -p no:cacheprovider --rootdir "$here" \
		--basetemp "$scratch/tmp$HALF" --durations 5 "$@"
	status=$?
	[ $status = 5 ] || return $status
}
