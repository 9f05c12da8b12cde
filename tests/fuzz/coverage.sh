#!/bin/sh
# coverage.sh SOURCE-TREE BUILD-TREE - which of the parsers' lines the fuzz corpus reaches; fails below 80 % of any
# file's,
# and names the lines that it does not reach. Builds in BUILD-TREE/coverage-build; needs gcc and gcovr.
set -u
export LC_ALL=C
least=80
source_tree=$(cd "$1" && pwd) build_tree=$(cd "$2" && pwd) || exit 2
work=$build_tree/coverage-build

# What parses bytes of others: a file, and which of its functions; without any, all that has code.
parsers='
transport/frame.h
runtime/base/pack.h
transport/tcp/tcp_receive.c
transport/door.c is_same end_closed judge_hello hear_hello hear_proof hear_message tt_shake_step tt_door_expire
runtime/launch/config.c
runtime/base/json.c
runtime/file/tensors.c tt_tensor_measure tt_seal_holds take_type take_shape take_offsets take_member check_length take_tensor take_notes parse_header place_data refuse_doubles find_sums read_header check_block read_block tt_tensors_read
runtime/file/save.c is_plain read_slice add_part fits check_part join_parts tt_save_join tt_save_add_file take_entry take_file take_metadata take_map parse_index check_seal open_parts
runtime/member/rendezvous.c
runtime/member/endpoint_tree.c tt_endpoint_take take_empty_record
runtime/member/sponsor.c consents tt_sponsor_take_claim tt_sponsor_take_consent
runtime/member/late_join.c tt_late_join_take_number tt_late_join_admit tt_late_join_told tt_late_join_news
runtime/member/connection.c tt_take_part answer_part member_message on_message on_notify
runtime/member/greeting.c say_where who_comes fault_of_hello may_come_again must_ask meet take_welcome take_hello take_refusal take_busy tt_greeting_take
runtime/member/node_list.c tt_nodes_take tt_nodes_seat_guest
runtime/member/life.c tt_member_take_bye tt_take_bye
runtime/member/news.c tt_news_take_down take_life tt_news_take_farewell tt_news_take_missed
runtime/member/heartbeat.c tt_heartbeat_answered
runtime/member/loan.c tt_loan_take_recall tt_loan_take_stopped
runtime/member/agreement.c has_place get_view take_collect take_propose know_newcomer seat_all decide give_up_ballot take_refusal take_report take_accept note_newcomer take_arrival may_sit take_welcome is_ballot_of dispatch tt_agree_message
runtime/member/group.c read_bye tt_group_revoked
runtime/table/send_queue.c take_values tt_table_pushed
runtime/table/serve.c map_delta tt_table_unpack is_within take tt_table_get_options tt_table_push
runtime/table/rows_serve.c find_keys find_rows get_request get_shape get_rows tt_table_push_rows tt_table_pull_rows tt_table_pull_fresh
runtime/table/rows.c take_values tt_table_pulled
runtime/table/snapshot.c tt_table_pull_version tt_snapshot_take
runtime/table/keep.c tt_table_keep tt_keep_take
runtime/table/pull_changed.c is_of_server tt_rows_take_found
runtime/table/filter.c grow_to_below tt_filter_unpack
runtime/device/serve.c find_memory take_request take_head tt_device_take_ready tt_device_take_free tt_device_take_end
runtime/device/import.c tt_import_take_export
runtime/window/window.c handle take_ask take_answer take_recall take_notify
runtime/collective/collective.c compare compare_kept tt_coll_take tt_coll_take_any take_message take_recall take_notify
runtime/table/report.c get_terms tt_table_take_report tt_table_take_reported
runtime/table/join.c tt_table_take_join tt_table_take_finish tt_table_take_joined tt_table_take_clock tt_table_take_expect
runtime/table/switch.c tt_table_take_switch tt_table_take_switched
runtime/table/io_thread.c server_of find answered tt_table_filed begin take_order tt_table_file
runtime/table/load.c tt_load_forget tt_load_read tt_load_take
runtime/table/quiesce.c tt_shard_wait take_again
runtime/message/receive.c take_head store_message find_receive find_kept receive_kept fetch_offer end_fetch tt_msg_take_send tt_msg_take_offer
runtime/message/send.c tt_msg_take_credit tt_msg_take_taken
runtime/collective/transfer.c may_go_by_message take_start take_piece take_chunk pull_transfer take_key push_transfer
runtime/collective/model.c measure answer hear'

stop() { echo "coverage.sh: $*" >&2; exit 1; }

command -v gcovr > /dev/null || { echo "SKIPPED: no gcovr here (apt install gcovr)"; exit 77; }
mkdir -p "$work"
cd "$work" || exit 2
[ -f config.status ] ||
	"$source_tree/configure" -q CC="${GCC:-gcc}" CFLAGS='-g -O0 --coverage' --disable-shared > /dev/null ||
	stop "cannot configure $work"
for target in frames boot members late shards tables config tensors; do
	make -s "tests/fuzz/fuzz_$target" > build.log 2>&1 || { cat build.log; stop "cannot build $target"; }
done
find . -name '*.gcda' -exec rm {} +
top_builddir=$work srcdir=$source_tree sh "$source_tree/tests/fuzz.sh" > replay.log 2>&1 ||
	{ cat replay.log; stop "the corpus does not pass"; }
gcovr -r "$source_tree" --object-directory "$work" --xml-pretty --xml coverage.xml . > gcovr.log 2>&1 ||
	{ cat gcovr.log; stop "gcovr failed"; }

# gcovr knows lines; where a function begins and ends shows in the first column of its source.
measure() { # file, functions: prints `reached total file' and then the lines that are not
	file=$1
	shift
	awk -v file="$file" -v wanted=" $* " -v all="$#" '
		FNR == 1 { input++ }
		input == 1 && /^[A-Za-z_].*[A-Za-z0-9_]\(/ && !/;$/ {
			name = $0
			sub(/\(.*/, "", name)
			sub(/.*[^A-Za-z0-9_]/, "", name)
			seen[name] = 1
		}
		input == 1 { of[FNR] = name }
		input == 1 && /^}|^[A-Za-z_].*}$/ { name = "" }
		input == 2 && /<class / { inside = index($0, "filename=\"" file "\"") > 0 }
		input == 2 && /<\/class>/ { inside = 0 }
		input == 2 && inside && /<line / {
			match($0, /number="[0-9]+"/); line = substr($0, RSTART + 8, RLENGTH - 9) + 0
			match($0, /hits="[0-9]+"/); hits = substr($0, RSTART + 6, RLENGTH - 7) + 0
			if (line in done || (all && !index(wanted, " " of[line] " ")))
				next
			done[line] = 1
			total++
			if (hits)
				reached++
			else
				missed = missed " " line
		}
		END {
			n = split(wanted, want, " ")
			for (i = 1; i <= n; i++)
				if (!(want[i] in seen))
					missed = missed " (" want[i] " is not there: mend the list in coverage.sh)" substr(total = 0, 1, 0)
			printf "%d %d %s%s\n", reached, total, file, missed
		}' "$source_tree/$file" coverage.xml
}

failed=0 all_reached=0 all_total=0
report() { # reached, total, file, lines
	percent=$(($2 ? 100 * $1 / $2 : 0))
	printf '%3d %%  %4d of %4d lines  %s\n' $percent "$1" "$2" "$3"
	file=$3 reached=$1 total=$2
	shift 3
	[ $# -eq 0 ] || echo "       not reached in $file: $*" | fold -s -w 150
	all_reached=$((all_reached + reached)) all_total=$((all_total + total))
	[ $percent -ge $least ] || { echo "       $file is below $least %"; failed=1; }
}

echo "$parsers" | sed 1d > parsers
while read -r line; do
	# shellcheck disable=SC2046,SC2086
	report $(measure $line)
done < parsers
echo "of the parsers' lines the corpus reaches $((100 * all_reached / all_total)) % ($all_reached of $all_total);" \
	"at least $least % are wanted of each file"
exit $failed
