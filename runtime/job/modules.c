/* modules.c - the list of modules in the order of their floors. A new pattern is one more line. */
#include "collective/collective.h"
#include "device/device.h"
#include "engine/engine.h"
#include "job/job_private.h"
#include "member/member.h"
#include "message/message.h"
#include "operation/operation.h"
#include "table/table.h"
#include "window/window.h"

static void make(struct tt_job *job) { tt_jobs_own(job)->job = job; }

static int open_stats(struct tt_job *job)
{
	tt_lock(job);
	tt_stats_open(job);
	tt_unlock(job);
	return tt_stats_listen(job);
}

static const struct tt_module job_module = {
	.name = "job",
	.slot = TT_JOB_SLOT,
	.job_size = sizeof(struct tt_jobs_own),
	.make = make,
	.open = open_stats,
	.stop = tt_signal_forget,
	.close = tt_stats_deafen,
	.wanted = tt_stats_asked,
	.errand = tt_stats_look,
};

const struct tt_module *const *tt_module_list(void)
{
	static const struct tt_module *const list[] = {
		&tt_member_module,
		&tt_operation_module,
		&tt_device_module,
		&tt_window_module,
		&tt_table_module,
		&tt_collective_module,
		&tt_message_module,
		&job_module,
		NULL,
	};

	return list;
}
