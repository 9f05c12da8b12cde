/* session.c - joining and leaving, and who is worker and server */
#include "bindings/c/shim.h"
#include <errno.h>
#include <stdlib.h>

struct mv_session mv_session;

int mv_is_open(void)
{
	return mv_session.job ? 0 : mv_fail(-EINVAL, "Multiverso is not initialized: call MV_Init first");
}

static int join_job(struct mv_session *s)
{
	char boot[300];
	tutti_config config = tutti_config_defaults();
	int err = s->flags.machine_file
	                  ? mv_machines_config(s->flags.machine_file, s->flags.port, boot, sizeof boot, &config)
	                  : 0;

	if (err)
		return err;
	err = mv_check(tutti_join(&config, &s->job));
	s->rank = err ? 0 : tutti_rank(s->job);
	s->size = err ? 0 : tutti_size(s->job);
	return err;
}

/* Lists the ranks with a role. Returns which of them this rank is, or -1. */
static int list_ranks(const struct mv_session *s, const int *roles, enum mv_role role, int *list, int *count)
{
	int mine = -1;

	*count = 0;
	for (int rank = 0; rank < s->size; rank++) {
		if (!(roles[rank] & (int)role))
			continue;
		if (rank == s->rank)
			mine = *count;
		list[(*count)++] = rank;
	}
	return mine;
}

static int share_roles(struct mv_session *s, enum mv_role role)
{
	int mine = (int)role, *roles = calloc((size_t)s->size, 3 * sizeof *roles);

	if (!roles)
		return mv_fail(-ENOMEM, "no memory for %d roles", s->size);
	s->workers = roles;
	int err = mv_check(tutti_allgather(s->job, &mine, sizeof mine, roles, NULL));
	if (err)
		return err;
	s->servers = roles + s->size;
	int *workers = roles + 2 * s->size;
	s->server = list_ranks(s, roles, MV_SERVER, s->servers, &s->server_count);
	s->worker = list_ranks(s, roles, MV_WORKER, workers, &s->worker_count);
	if (!s->worker_count || !s->server_count)
		return mv_fail(-EINVAL, "the job has %d workers and %d servers, and needs one of each: see -ps_role",
		               s->worker_count, s->server_count);
	for (int i = 0; i < s->worker_count; i++)
		roles[i] = workers[i];
	return 0;
}

static void set_config(struct mv_session *s)
{
	tutti_table_config *c = &s->config;

	c->server = s->servers;
	c->servers = s->server_count;
	c->worker = s->workers;
	c->workers = s->worker_count;
	if (s->flags.sync) {
		c->consistency.mode = TUTTI_BSP;
		c->consistency.backup = s->flags.backup_worker_ratio * s->worker_count / 100;
	}
}

static void end_session(void)
{
	tutti_leave(mv_session.job);
	free(mv_session.workers);
	mv_session = (struct mv_session){ .job = NULL };
}

int mv_session_open(int *argc, char **argv)
{
	struct mv_session *s = &mv_session;
	tutti_updater updater;
	enum mv_role role;
	int err;

	if (s->job)
		return mv_fail(-EALREADY, "MV_Init was called before: call MV_ShutDown first");
	if ((err = mv_flags_take(&s->flags, argc, argv)) || (err = mv_flags_role(&s->flags, &role)) ||
	    (err = mv_flags_updater(&s->flags, &updater)))
		return err;
	s->config = tutti_table_rows(TUTTI_F32, 1, 1, updater);
	if ((err = join_job(s)) || (err = share_roles(s, role))) {
		end_session();
		return err;
	}
	set_config(s);
	return 0;
}

/* After an error all other steps are done all the same: others wait for this rank's part in them. */
void mv_session_close(const char *function)
{
	mv_end(function, mv_tables_settle());
	mv_end(function, mv_tables_finish());
	mv_end(function, mv_check(tutti_barrier(mv_session.job, NULL)));
	mv_tables_close();
	end_session();
}
