/* verbs_library.c - loads libibverbs and librdmacm, each once
 *
 * The libraries stay loaded: the providers have threads and files of their own. */
#include "transport/verbs/verbs_library.h"
#include "base/base.h"
#include <dlfcn.h>
#include <ifaddrs.h>
#include <pthread.h>
#include <unistd.h>

const struct tt_verbs_library *tt_verbs_instead;

static struct tt_verbs_library library = { .getifaddrs = getifaddrs, .freeifaddrs = freeifaddrs };
static char missing[200], missing_cm[200]; /* why there is none */

#define WANT(name) { "ibv_" #name, &library.name }
static const struct tt_symbol wanted[] = {
	WANT(get_device_list), WANT(free_device_list), WANT(get_device_name), WANT(open_device), WANT(close_device),
	WANT(query_device), WANT(query_port), WANT(query_gid), WANT(query_pkey),
	WANT(get_async_event), WANT(ack_async_event), WANT(alloc_pd), WANT(dealloc_pd), WANT(reg_mr), WANT(dereg_mr),
	WANT(create_comp_channel), WANT(destroy_comp_channel), WANT(create_cq), WANT(destroy_cq),
	WANT(get_cq_event), WANT(ack_cq_events), WANT(create_srq), WANT(destroy_srq),
	WANT(create_qp), WANT(modify_qp), WANT(destroy_qp), WANT(fork_init), WANT(wc_status_str),
};

#define WANT_CM(name) { "rdma_" #name, &library.name }
static const struct tt_symbol wanted_cm[] = {
	WANT_CM(create_event_channel), WANT_CM(destroy_event_channel), WANT_CM(create_id), WANT_CM(destroy_id),
	WANT_CM(bind_addr), WANT_CM(resolve_addr), WANT_CM(resolve_route), WANT_CM(listen), WANT_CM(connect),
	WANT_CM(accept), WANT_CM(reject), WANT_CM(establish), WANT_CM(init_qp_attr), WANT_CM(get_cm_event),
	WANT_CM(ack_cm_event), WANT_CM(event_str), WANT_CM(get_devices), WANT_CM(free_devices),
};

static void tell_missing(char text[200], const char *lacks, const char *file, const char *package)
{
	if (lacks)
		snprintf(text, 200, "%s has no %s: install a newer rdma-core", file, lacks);
	else
		snprintf(text, 200, "this host has no %s (apt install %s)", file, package);
}

static void load_cm(void)
{
	const char *lacks;

	if (!tt_library_load("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL, wanted_cm, TT_COUNT(wanted_cm), &lacks))
		tell_missing(missing_cm, lacks, "librdmacm.so.1", "librdmacm1");
}

static void load(void)
{
	const char *lacks;
	void *verbs;

	if (access("/sys/class/infiniband", F_OK)) { /* most hosts: the library need not be looked for */
		snprintf(missing, sizeof missing, "this host has no RDMA adapter, or its driver is not loaded");
		return;
	}
	verbs = tt_library_load("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL, wanted, TT_COUNT(wanted), &lacks);
	if (!verbs) {
		tell_missing(missing, lacks, "libibverbs.so.1", "ibverbs-providers");
		return;
	}
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

int tt_verbs_load_cm(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (tt_verbs_instead)
		return 0;
	pthread_once(&once, load_cm);
	return *missing_cm ? tt_fail(-ENODEV, "%s", missing_cm) : 0;
}
