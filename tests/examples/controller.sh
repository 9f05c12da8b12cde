#!/bin/sh
# controller.sh - the controller stops its workers early, on any number of them, and has kept the model with the least
# error. The last model may be better still: a worker that was not scheduled for long brings what others have not seen.
set -u
export LC_ALL=C
top=${top_builddir:-.}
tutti=$top/tutti controller=$top/examples/controller
unset TUTTI_RANK TUTTI_SIZE TUTTI_BOOT TUTTI_CONFIG RANK WORLD_SIZE
[ -x "$controller" ] || { echo "there is no $controller: run make first"; exit 99; }
failed=0
for n in 2 4; do
	said=$("$tutti" run -n $n "$controller" 2>&1) || { echo "FAILED with $n ranks: $said"; failed=1; }
	echo "$said" | awk '
		/^stopped after/ && $3 > 0 && $3 < 100000 && $6 > 10 && $13 + 0 > 0 && $13 + 0 == $NF + 0 { good = 1 }
		END { exit !good }' || { echo "FAILED with $n ranks: not stopped early, or the best is not kept: $said"; failed=1; }
done
[ $failed = 0 ] && echo "stopped early, and kept the best model"
exit $failed
