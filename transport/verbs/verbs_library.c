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

#define IBV(name) { "ibv_" #name, &library.name },
#define RDMA(name) { "rdma_" #name, &library.name },
static const struct tt_symbol wanted[] = { TT_IBV_FUNCTIONS(IBV) { "ibv_query_port", &library.query_port },
	{ "_ibv_query_gid_ex", &library.query_gid_ex } /* since rdma-core 33 */ };
static const struct tt_symbol wanted_dma_buf[] = { IBV(reg_dmabuf_mr) };
static const struct tt_symbol wanted_cm[] = { TT_RDMA_FUNCTIONS(RDMA) };

static bool load_file(const char *file, const char *package, const struct tt_symbol *symbols, size_t n, char why[200])
{
	const char *lacks;

	if (tt_library_load(file, RTLD_NOW | RTLD_LOCAL, symbols, n, &lacks))
		return true;
	if (lacks)
		snprintf(why, 200, "%s has no %s: install rdma-core 33 or later", file, lacks);
	else
		snprintf(why, 200, "this host has no %s (apt install %s)", file, package);
	return false;
}

static void load_cm(void) { load_file("librdmacm.so.1", "librdmacm1", wanted_cm, TT_COUNT(wanted_cm), missing_cm); }

static void load(void)
{
	if (access("/sys/class/infiniband", F_OK)) { /* most hosts: the library need not be looked for */
		snprintf(missing, sizeof missing, "this host has no RDMA adapter, or its driver is not loaded");
		return;
	}
	if (!load_file("libibverbs.so.1", "ibverbs-providers", wanted, TT_COUNT(wanted), missing))
		return;
	const char *lacks;
	tt_library_load("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL, wanted_dma_buf, TT_COUNT(wanted_dma_buf), &lacks);
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
