#!/bin/sh
# controller.sh - the controller stops its workers early, on any number of them, and the model that it has kept is better than the last
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
		/^stopped after/ && $3 > 0 && $3 < 100000 && $6 > 10 && $9 + 0 > $NF + 0 { good = 1 }
		END { exit !good }' || { echo "FAILED with $n ranks: not stopped early with a better model: $said"; failed=1; }
done
[ $failed = 0 ] && echo "stopped early, and kept the best model"
exit $failed
