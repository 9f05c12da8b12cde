/* verbs_library.c - loads libibverbs, once
 *
 * The library stays loaded: its providers have threads and files of their own. */
#include "transport/verbs/verbs_library.h"
#include "base/base.h"
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

const struct tt_verbs_library *tt_verbs_instead;

static struct tt_verbs_library library;
static char missing[200]; /* why there is none */

#define WANT(name) { "ibv_" #name, &library.name }
static const struct tt_symbol wanted[] = {
	WANT(get_device_list), WANT(free_device_list), WANT(get_device_name), WANT(open_device), WANT(close_device),
	WANT(query_device), WANT(query_port), WANT(query_gid), WANT(query_pkey),
	WANT(get_async_event), WANT(ack_async_event), WANT(alloc_pd), WANT(dealloc_pd), WANT(reg_mr), WANT(dereg_mr),
	WANT(create_comp_channel), WANT(destroy_comp_channel), WANT(create_cq), WANT(destroy_cq),
	WANT(get_cq_event), WANT(ack_cq_events), WANT(create_srq), WANT(destroy_srq),
	WANT(create_qp), WANT(modify_qp), WANT(destroy_qp), WANT(fork_init), WANT(wc_status_str),
};

static void load(void)
{
	const char *lacks;

	if (access("/sys/class/infiniband", F_OK)) { /* most hosts: the library need not be looked for */
		snprintf(missing, sizeof missing, "this host has no RDMA adapter, or its driver is not loaded");
		return;
	}
	void *verbs = tt_library_load("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL, wanted, TT_COUNT(wanted), &lacks);
	if (!verbs && lacks)
		snprintf(missing, sizeof missing, "the library has no %s: install a newer rdma-core", lacks);
	else if (!verbs)
		snprintf(missing, sizeof missing, "this host has no libibverbs.so.1 (apt install ibverbs-providers)");
	if (!verbs)
		return;
	void *gid = dlsym(verbs, "_ibv_query_gid_ex"); /* not in old ones */
	memcpy(&library.query_gid_ex, &gid, sizeof gid);
	/* before any memory is registered: a forked child that only executes another program then harms nothing */
	int err = library.fork_init();
	if (err)
		tt_log(TT_DEBUG, "ibv_fork_init: %s", strerror(err));
}

const struct tt_verbs_library *tt_verbs_load(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (tt_verbs_instead)
		return tt_verbs_instead;
	pthread_once(&once, load);
	if (!*missing)
		return &library;
	tt_fail(-ENODEV, "%s", missing);
	return NULL;
}
