/* fuzz_shards.c - a job of three with tables over all of them, in which rank 2 goes bad, as in fuzz_members.c: it
 * pushes to the others and answers their pushes as the input says. Or, if the first byte is odd, a sparse block.
 * Input: what is pushed, from where; the world's seed; events (attack.h). Of a block: its type, how many elements it
 * stands for, its bytes. */
#include "member/member.h"
#include "table/parts.h"
#include "table/table_private.h"
#include "tests/fuzz/attack.h"
#include "transport/sim/sim.h"

enum { BAD = 2, TABLES = 4, OPS = 12, LARGE = 60000, ATTACK_MS = 300, REST_MS = 20, DEADLINE_MS = 1200 };

struct part { /* one rank's share of it all */
	tutti *job;
	tutti_table *table[TABLES];
	float *delta, *values[OPS];
	tutti_op op[OPS];
	int count;
	bool checked;               /* an honest one has got on with the other honest one */
};
static struct part parts[RANKS];
static uint8_t plan;

static const struct {
	const char *name;
	tutti_type type;
	uint64_t count;
	tutti_update_rule rule;
	int servers;
} kinds[TABLES] = {
	{ "small", TUTTI_F32, 600, TUTTI_UPDATE_SGD, RANKS }, { "large", TUTTI_F32, LARGE, TUTTI_UPDATE_ADD, RANKS },
	{ "halves", TUTTI_F16, 300, TUTTI_UPDATE_ADAM, RANKS }, { "pair", TUTTI_F32, 500, TUTTI_UPDATE_ADD, 2 },
};
enum { PAIR = TABLES - 1 };

static void open_part(struct part *p)
{
	static const int ranks[] = { 0, 1, 2 };
	size_t bytes = LARGE * sizeof *p->delta;

	FUZZ_CHECK(!tutti_join(NULL, &p->job), "all join");
	if (plan & 2)
		FUZZ_CHECK(!tutti_alloc(p->job, bytes, -1, (void **)&p->delta), "there is memory");
	else
		p->delta = calloc(1, bytes);
	for (int i = 0; i < TABLES; i++) {
		tutti_table_config c = tutti_table_rows(kinds[i].type, kinds[i].count, 1, tutti_accumulate());
		c.servers = kinds[i].servers;
		c.server = ranks;
		c.updater.rule = kinds[i].rule;
		FUZZ_CHECK(!tutti_table_open(p->job, kinds[i].name, &c, &p->table[i]), "tables open");
	}
	FUZZ_CHECK(!tutti_barrier(p->job, NULL), "all are there");
}

static void call(struct part *p, unsigned what)
{
	tutti_update u = tutti_update_defaults();
	tutti_table *t = p->table[what >> 2 & 3];
	bool plain = kinds[what >> 2 & 3].rule == TUTTI_UPDATE_ADD || !(what & 64);
	float **values = &p->values[p->count];
	tutti_op *op = &p->op[p->count];
	int err;

	u.learning_rate = 0.5;
	if (!t || p->count == OPS)
		return;
	*values = calloc(LARGE, sizeof **values);
	switch (what & 3) {
	case 0: err = tutti_table_push(t, p->delta, plain ? NULL : &u, op); break;
	case 1: err = tutti_table_push_pull(t, p->delta, plain ? NULL : &u, *values, op); break;
	case 2: err = tutti_table_pull(t, *values, op); break;
	default: err = tutti_table_assign(t, p->delta, op);
	}
	if (err)
		free(*values);
	p->count += !err;
}

static void call_something(struct attack *a, unsigned what)
{
	struct part *p = &parts[a->rank];

	if (what < 128) {
		call(p, what);
	} else if (p->count == 0) { /* it closes a table that the others go on with */
		tutti_table_close(p->table[what & 1]);
		p->table[what & 1] = NULL;
	}
}

static void close_part(struct part *p)
{
	for (int i = 0; i < p->count; i++)
		if (tutti_wait(&p->op[i], 1) == -ETIMEDOUT)
			tutti_cancel(&p->op[i]);
	for (int i = 0; i < TABLES; i++)
		tutti_table_close(p->table[i]);
	if (plan & 2)
		tutti_free(p->job, p->delta);
	else
		free(p->delta);
	for (int i = 0; i < p->count; i++)
		free(p->values[i]);
	tutti_leave(p->job);
}

static void bad(struct part *p)
{
	open_part(p);
	attack.call = call_something;
	open_raw();
	run_attack();
	attack.has_twist = false;
	close_raw();
	if (plan & 4)
		tt_sim_kill(BAD, 0);
	close_part(p);
}

/* The two honest ones get on together, whatever the third has said. */
static void check_pair(struct part *p)
{
	float *v = calloc(LARGE, sizeof *v);

	if (tutti_table_push(p->table[PAIR], p->delta, NULL, NULL) || tutti_table_pull(p->table[PAIR], v, NULL))
		FUZZ_CHECK(attack.accused, "an honest rank was ended by another's nonsense");
	free(v);
}

static void honest(struct part *p, int rank)
{
	open_part(p);
	for (int i = 0; i < 4; i++) {
		call(p, plan >> 3);
		call(p, (plan >> 3) + 5u + (unsigned)i);
		tt_sim_sleep(ATTACK_MS * TT_MS / 4);
	}
	check_pair(p);
	p->checked = true;
	while (!parts[1 - rank].checked) /* both have seen that, before either ends anything */
		tt_sim_sleep(REST_MS * TT_MS);
	close_part(p);
}

static void program(int rank, void *arg)
{
	(void)arg;
	if (rank == BAD)
		bad(&parts[rank]);
	else
		honest(&parts[rank], rank);
}

static void take_block(struct fuzz_input in)
{
	tutti_type type = (tutti_type)(fuzz_number(&in, 1) % 6);
	size_t n = fuzz_number(&in, 2), width = tt_type_size(type);
	uint8_t *to = fuzz_fenced(n * width), *again = malloc(n * width + 1);
	int err;

	for (size_t i = 0; i < n * width; i++)
		to[i] = 0x77;
	err = tt_filter_unpack(to, n, type, in.at, in.left);
	FUZZ_CHECK(!err || err == -EBADMSG, "a block is taken, or makes no sense");
	for (size_t i = 0; err && i < n * width; i++)
		FUZZ_CHECK(to[i] == 0x77, "what makes no sense changes nothing");
	if (!err)
		FUZZ_CHECK(tt_filter_pack(again, to, n, type, tt_filter_limit(type, 0)) <= in.left,
		           "a block that is taken is as short as it can be");
	fuzz_free_fenced(to, n * width);
	free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_input in = { bytes, len };

	plan = (uint8_t)fuzz_number(&in, 1);
	memset(parts, 0, sizeof parts);
	if (plan & 1)
		take_block(in);
	else
		run_world(in, BAD, DEADLINE_MS, program);
	return 0;
}
