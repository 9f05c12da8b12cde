/* transports.c - the list of transports */
#include "base/base.h"
#include "job/job_private.h"
#include "transport/shm/shm.h"
#include "transport/sim/sim.h"
#include "transport/tcp/tcp.h"
#ifdef HAVE_VERBS
#include "transport/verbs/verbs.h"
#endif
#include <string.h>

static const struct tt_transport *const transports[] = {
	&tt_shm,
#ifdef HAVE_VERBS
	&tt_verbs,
#endif
	&tt_tcp, &tt_sim
};

const struct tt_transport *tt_transport_at(int i)
{
	return i >= 0 && (size_t)i < TT_COUNT(transports) ? transports[i] : NULL;
}

const struct tt_transport *tt_transport_find(const char *name)
{
	size_t len = strcspn(name, ":");

	for (size_t i = 0; i < TT_COUNT(transports); i++)
		if (strlen(transports[i]->name) == len && !strncmp(transports[i]->name, name, len))
			return transports[i];
	return NULL;
}
