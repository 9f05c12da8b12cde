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

static void take(void *handle, const char *name, void *where)
{
	void *found = dlsym(handle, name);

	memcpy(where, &found, sizeof found);
	if (!found && !*missing)
		snprintf(missing, sizeof missing, "the library has no %s: install a newer rdma-core", name);
}

static void take_verbs(void *handle)
{
#define TAKE(name) take(handle, "ibv_" #name, &library.name)
	TAKE(get_device_list), TAKE(free_device_list), TAKE(get_device_name), TAKE(open_device), TAKE(close_device);
	TAKE(query_device), TAKE(query_port), TAKE(query_gid), TAKE(query_pkey);
	TAKE(get_async_event), TAKE(ack_async_event), TAKE(alloc_pd), TAKE(dealloc_pd), TAKE(reg_mr), TAKE(dereg_mr);
	TAKE(create_comp_channel), TAKE(destroy_comp_channel), TAKE(create_cq), TAKE(destroy_cq);
	TAKE(get_cq_event), TAKE(ack_cq_events), TAKE(create_srq), TAKE(destroy_srq);
	TAKE(create_qp), TAKE(modify_qp), TAKE(destroy_qp), TAKE(fork_init), TAKE(wc_status_str);
#undef TAKE
	void *gid = dlsym(handle, "_ibv_query_gid_ex"); /* not in old ones */
	memcpy(&library.query_gid_ex, &gid, sizeof gid);
}

static void load(void)
{
	void *verbs;

	if (access("/sys/class/infiniband", F_OK)) { /* most hosts: the library need not be looked for */
		snprintf(missing, sizeof missing, "this host has no RDMA adapter, or its driver is not loaded");
		return;
	}
	if (!(verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL))) {
		snprintf(missing, sizeof missing, "this host has no libibverbs.so.1 (apt install ibverbs-providers)");
		return;
	}
	take_verbs(verbs);
	if (*missing)
		return;
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
