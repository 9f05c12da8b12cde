/* methods.c - a round of each method, through tutti.h alone */
#include "tools/sim/sim.h"
#include <math.h>
#include <stdlib.h>

/* ---- all-reduce: the mean of all ranks; those that are left go on, those that come again are let in ---- */

static bool is_death(int err)
{
	return err == -ECONNRESET || err == -ENOTCONN || err == -ECONNABORTED || err == -ETIMEDOUT || err == -ESTALE;
}

/* All ranks of the new group do the same rounds from now on, as rank 0 has counted them. */
static int regroup(struct tt_studied *me, int (*how)(tutti *, tutti **))
{
	tutti *group;
	int err;

	do {
		if ((err = how(me->group, &group)))
			return err;
		if (me->group != me->job)
			tutti_group_free(me->group);
		me->group = group;
		err = tutti_broadcast(group, &me->rounds, sizeof me->rounds, 0, NULL);
		how = tutti_group_shrink;
	} while (is_death(err));
	return err;
}

static bool has_newcomers(struct tt_studied *me)
{
	tutti_change c;

	while (tutti_group_next(me->job, &c) > 0)
		me->newcomers |= c.what == TUTTI_JOINED;
	return me->newcomers;
}

static int open_allreduce(struct tt_studied *me)
{
	int err = tutti_group_watch(me->job, NULL, NULL);

	me->group = me->job;
	return err < 0 ? err : tutti_late(me->job) ? regroup(me, tutti_group_grow) : 0;
}

static int round_allreduce(struct tt_studied *me)
{
	size_t count = me->study->count;
	double *sum = me->x + count + 1; /* of a collective that failed nothing useful is left */
	uint64_t begun = tt_now();
	int err;

	me->x[count] = has_newcomers(me);
	while ((err = tutti_allreduce(me->group, me->x, sum, count + 1, TUTTI_F64, TUTTI_AVERAGE, NULL)))
		if (!is_death(err) || (err = regroup(me, tutti_group_shrink)))
			return err;
	memcpy(me->x, sum, count * sizeof *sum);
	tt_study_age(me, begun);
	if (!(sum[count] > 0))
		return 0;
	me->newcomers = false;
	me->rounds++; /* with this one: the newcomers hear the number of the next */
	err = regroup(me, tutti_group_grow);
	me->rounds--;
	return err;
}

static void close_allreduce(struct tt_studied *me)
{
	if (me->group != me->job)
		tutti_group_free(me->group);
}

/* ---- elastic: each rank and a center on the first ranks draw each other together ---- */

enum { RANKS_A_SERVER = 64, BYTES_A_SERVER = 4096 };

int tt_sim_servers(const struct tt_sim_options *o)
{
	size_t most = tt_min((size_t)o->ranks / RANKS_A_SERVER, o->bytes / BYTES_A_SERVER);

	return strcmp(o->method->name, "elastic") ? 0 : (int)tt_max(1, most);
}

static int open_elastic(struct tt_studied *me)
{
	const tutti_tensor model = { me->x, me->study->count, TUTTI_F64 };
	tutti_center_config c = tutti_center_easgd(1, NAN);
	int servers = tt_sim_servers(&me->study->options), *list = calloc((size_t)servers, sizeof *list);

	if (!list)
		return -ENOMEM;
	for (int i = 0; i < servers; i++)
		list[i] = i;
	c.servers = servers;
	c.server = list;
	int err = tutti_center_open(tutti_job(me->job), "sim", &model, 1, &c, &me->center);
	free(list);
	return err;
}

static int round_elastic(struct tt_studied *me)
{
	uint64_t begun = tt_now();
	int err = tutti_center_exchange(me->center, NULL);

	tt_study_age(me, begun);
	return err;
}

static void close_elastic(struct tt_studied *me) { tutti_center_close(me->center); }

/* ---- gossip: a rank publishes, computes, and mixes with what one peer had published ---- */

enum { PERIOD_MOST = 64 };

static int choose(void *arg)
{
	const struct tt_studied *me = arg;
	const struct tt_sim_options *o = &me->study->options;

	return o->graph->peer(me->rank, o->ranks, (int)me->publications);
}

static int publish(struct tt_studied *);

/* Connections and keys are there when the first round begins: nobody waits for them then, and all keep the same beat.
 * After a period the peers come in the same order again. */
static int meet_peers(struct tt_studied *me)
{
	const struct tt_sim_options *o = &me->study->options;
	int n = o->way == TUTTI_GOSSIP_PULL && o->graph->period ? o->graph->period(o->ranks) : 0, err;

	if (!n || n > PERIOD_MOST || tutti_late(me->job))
		return 0;
	err = tutti_barrier(me->job, NULL);
	for (int i = 0; i < n && !err; i++)
		if (!(err = publish(me)))
			err = tutti_gossip_mix(me->gossip, 1, NULL);
	return err;
}

static int open_gossip(struct tt_studied *me)
{
	const struct tt_sim_options *o = &me->study->options;
	const tutti_tensor model = { me->x, me->study->count, TUTTI_F64 };
	tutti_gossip_config c = tutti_gossip_defaults();

	c.way = o->way;
	c.value = o->factor;
	c.choice = o->graph->choice;
	c.choose = c.choice == TUTTI_CHOICE_OWN ? choose : NULL;
	c.arg = me;
	c.seed = o->seed + 1; /* 0 would be another one each time */
	me->publications = 0;
	int err = tutti_gossip_open(tutti_job(me->job), "sim", &model, 1, &c, &me->gossip);
	return err ? err : meet_peers(me);
}

static int publish(struct tt_studied *me)
{
	uint64_t slot = me->publications % TT_COUNT(me->published);
	tutti_gossip_info info;
	int err = tutti_gossip_publish(me->gossip, 1);

	if (err || (err = tutti_gossip_look(me->gossip, &info)))
		return err;
	me->published[slot].clock = info.clock;
	me->published[slot].at = tt_now();
	me->publications++;
	me->weight = me->study->options.way == TUTTI_GOSSIP_PUSH_SUM ? info.weight + info.in_flight : 1;
	return 0;
}

/* A mixing gives the clock f peer's + (1 - f) own: so the peer's is known, and with it when that was published. */
static void note_age(struct tt_studied *me, double own, const tutti_gossip_result *r)
{
	const struct tt_studied *peer = &me->study->of[r->peer];
	double clock = (r->clock - (1 - r->factor) * own) / r->factor;
	int nearest = 0;

	for (int i = 1; i < (int)TT_COUNT(peer->published); i++)
		if (fabs(peer->published[i].clock - clock) < fabs(peer->published[nearest].clock - clock))
			nearest = i;
	tt_study_age(me, peer->published[nearest].at);
}

static int round_gossip(struct tt_studied *me)
{
	double own = me->published[(me->publications - 1) % TT_COUNT(me->published)].clock;
	tutti_gossip_result r;
	int err = tutti_gossip_mix(me->gossip, 1, &r);

	if (err)
		return err;
	if (r.peer >= 0 && r.factor > 0 && me->study->options.way == TUTTI_GOSSIP_PULL)
		note_age(me, own, &r);
	return publish(me);
}

static void close_gossip(struct tt_studied *me) { tutti_gossip_close(me->gossip); }

const struct tt_sim_method tt_sim_methods[] = {
	{ "gossip", "tutti_gossip: each round with one other rank, at each rank's own pace", false, true, open_gossip,
	  publish, round_gossip, close_gossip },
	{ "elastic", "tutti_center: each rank with a center, at its own pace", false, false, open_elastic, NULL,
	  round_elastic, close_elastic },
	{ "allreduce", "tutti_allreduce: the mean of all ranks", true, false, open_allreduce, NULL, round_allreduce,
	  close_allreduce },
	{ .name = NULL },
};
