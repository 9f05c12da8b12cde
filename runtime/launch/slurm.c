/* slurm.c - a step of Slurm's without PMI (srun --mpi=none): what its variables say
 *
 * Rank 0 runs on the step's first node. The port derives from the numbers of job and step, so all ranks know where to
 * meet. The secret comes by MUNGE, which Slurm itself needs; or the user has set one; or the step has one node.
 */
#include "launch/launcher.h"
#include <stdlib.h>

static bool detect(const struct tt_settings *s, char why[TT_LAUNCH_WHY])
{
	/* the script of a batch job has SLURM_PROCID, too, and is no step */
	if (!tt_setting(s, TT_SLURM_RANK) || !tt_setting(s, TT_SLURM_STEP) || !tt_setting(s, TT_SLURM_TASKS))
		return false;
	snprintf(why, TT_LAUNCH_WHY, "SLURM_PROCID=%.10s and SLURM_STEP_ID=%.10s are set", tt_setting(s, TT_SLURM_RANK),
	         tt_setting(s, TT_SLURM_STEP));
	return true;
}

/* Of "n[1-4,7],m3" that is n1. -ENAMETOOLONG: it does not fit. */
static int first_host(const char *list, char *host, size_t size)
{
	const char *whole = list;
	size_t n = 0;

	for (; *list && *list != ',' && n + 1 < size; list++) {
		if (*list != '[') {
			host[n++] = *list;
			continue;
		}
		for (list++; *list && !strchr("-,]", *list) && n + 1 < size; list++)
			host[n++] = *list;
		list += strcspn(list, "]");
		if (!*list)
			break;
	}
	host[n] = 0;
	if (n + 1 < size)
		return 0;
	return tt_fail(-ENAMETOOLONG, "the first node of SLURM_STEP_NODELIST=%.100s has a name of %zu bytes or more: "
	               "set TUTTI_BOOT=HOST:PORT, with rank 0's address", whole, size - 1);
}

/* Of "3,1" or "2(x4),1": how many tasks node number i has; 0: the list does not say. */
static long share_of(const char *list, long i)
{
	while (*list) {
		char *end;
		long tasks = strtol(list, &end, 10), times = 1;
		if (end == list)
			return 0;
		if (!strncmp(end, "(x", 2))
			times = strtol(end + 2, &end, 10);
		if (i < times)
			return tasks;
		i -= times;
		list = end + strspn(end, "),");
	}
	return 0;
}

int tt_slurm_local(const struct tt_settings *s, struct tt_launch *b)
{
	long rank = 0, node = 0;
	const char *shares = tt_setting(s, TT_SLURM_SHARES);
	int err;

	if (!shares || !tt_setting(s, TT_SLURM_LOCAL_RANK))
		return 0;
	if ((err = tt_setting_int(s, TT_SLURM_LOCAL_RANK, 0, b->size - 1, &rank)) ||
	    (err = tt_setting_int(s, TT_SLURM_NODE, 0, INT32_MAX, &node)))
		return err;
	b->local_rank = (int)rank;
	b->local_size = (int)share_of(shares, node);
	return 0;
}

static int meet_directly(const struct tt_settings *s, struct tt_launch *b, const char *host, unsigned port)
{
	bool one_host = b->local_size == b->size;

	if (!tt_setting(s, TT_SECRET) && !one_host)
		return tt_fail(-EACCES, "this step of srun has no secret: %.200s; run munged, use srun --mpi=pmix, "
		               "or set TUTTI_SECRET_FILE to a file of mode 0600 that all nodes see",
		               tt_last_sentence().text);
	if (!tt_setting(s, TT_SECRET))
		host = "127.0.0.1";
	else if (b->rank == 0)
		host = "*";
	snprintf(b->address, sizeof b->address, "%.80s:%u", host, port);
	return 0;
}

static int place(struct tt_settings *s, struct tt_launch *b)
{
	char host[80] = "", probe[TT_LAUNCH_BLOB];
	long node = 0;
	int err = tt_place_from(s, TT_SLURM_RANK, TT_SLURM_TASKS, b);

	tt_name_from(b, "slurm", tt_setting(s, TT_SLURM_JOB), tt_setting(s, TT_SLURM_STEP),
	             tt_setting(s, TT_SLURM_RESTARTS));
	if (!err)
		err = tt_slurm_local(s, b);
	if (err || b->size == 1 || tt_setting(s, TT_BOOT))
		return err;
	if (tt_setting(s, TT_SLURM_NODES) && (err = first_host(tt_setting(s, TT_SLURM_NODES), host, sizeof host)))
		return err;
	if (!*host || (err = tt_setting_int(s, TT_SLURM_NODE, 0, INT32_MAX, &node)))
		return tt_fail(-EINVAL, "SLURM_PROCID is set, and SLURM_STEP_NODELIST names no node: srun sets both");
	if (b->rank == 0 && node)
		return tt_fail(-EINVAL, "task 0 of this step is not on its first node, %s, where the others look for "
		               "it: leave srun's --distribution as it is, or set TUTTI_BOOT=HOST:PORT", host);
	b->exchanges = !tt_setting(s, TT_SECRET) && !tt_munge_seal("?", probe, sizeof probe);
	return b->exchanges ? 0 : meet_directly(s, b, host, tt_port_from(b->name));
}

static int exchange(const struct tt_settings *s, const struct tt_launch *b, char blob[TT_LAUNCH_BLOB], uint64_t timeout)
{
	const char *job = tt_setting(s, TT_SLURM_JOB), *step = tt_setting(s, TT_SLURM_STEP);
	char host[80], name[80];

	first_host(tt_setting(s, TT_SLURM_NODES), host, sizeof host); /* place() has judged it */
	snprintf(name, sizeof name, "%.30s.%.30s", job ? job : "0", step);
	const struct tt_meeting m = { .rank = b->rank, .size = b->size, .host = host, .job = name,
		                      .port = tt_port_from(b->name), .timeout = timeout,
		                      .silence = tt_setting_time(s, TT_SILENCE) };
	return tt_munge_exchange(&m, blob);
}

const struct tt_launcher tt_launcher_slurm = { .name = "slurm", .detect = detect, .place = place,
	                                       .exchange = exchange };
