/* fuzz_tables.c - three ranks open a table of rows, which keeps track of what is fresh, and one of keys. Rank 2 is a
 * server and a worker of both as the others are, and goes bad then: it pushes and pulls or does not, saves, loads and
 * switches, spoils what its library says, and makes up messages about tables, as a worker and as a server. Nothing of
 * that may end rank 0 or 1, hang them, or write where nothing was asked for.
 * Input: what the honest ones call, the world's seed, then events (attack.h). */
#include "member/member.h"
#include "table/table_private.h"
#include "table/saving.h"
#include "tests/fuzz/attack.h"
#include "tests/harness/folders.h"
#include "transport/sim/sim.h"
#include <unistd.h>

enum { BAD = 2, ROWS = 40, ROW = 3, N = 60, BYTES = N * ROW * 8, ROUNDS = 4, ROUND_MS = 60, DEADLINE_MS = 1200 };

struct part { /* one rank's share of it all */
	tutti *job;
	tutti_table *rows, *keys;
	uint64_t list[N], *fresh;
	uint8_t *values;
	bool ready, done;            /* for the pair's table; with it */
};
static struct part parts[RANKS];
static uint8_t plan;

/* ---- where it is saved ---- */

static char folder[32] = "/tmp/fuzz-tables-XXXXXX";

static void sweep(void) { clear_folder(folder); }

static void remove_folder(void)
{
	sweep();
	rmdir(folder);
}

static void make_folder(void)
{
	static bool made;

	if (!made) {
		if (!access("/dev/shm", W_OK)) /* it is synced all the time */
			memcpy(folder, "/dev/shm/fuzztb-XXXXXX", sizeof "/dev/shm/fuzztb-XXXXXX");
		FUZZ_CHECK(mkdtemp(folder), "there is a folder to save in");
		atexit(remove_folder);
	}
	made = true;
	sweep();
}

/* ---- what a rank calls ---- */

static void open_part(struct part *p)
{
	tutti_table_config c = tutti_table_rows(TUTTI_F32, ROWS, ROW, tutti_accumulate()),
			   k = tutti_table_keys(TUTTI_I64, ROW, tutti_accumulate());

	c.flags = TUTTI_TABLE_FRESH | TUTTI_TABLE_FILTER;
	FUZZ_CHECK(!tutti_join(NULL, &p->job), "all join");
	FUZZ_CHECK(!tutti_table_open(p->job, "rows", &c, &p->rows) && !tutti_table_open(p->job, "keys", &k, &p->keys),
	           "tables open");
	p->values = fuzz_fenced(BYTES);
	p->fresh = (uint64_t *)(void *)fuzz_fenced(N * sizeof *p->fresh);
	for (int i = 0; i < N; i++)
		p->list[i] = (uint64_t)(i * 7 % ROWS);
	tutti_barrier(p->job, NULL); /* all tables are open. The bad one may come out of it first */
}

static void close_part(struct part *p)
{
	tutti_table_close(p->rows);
	tutti_table_close(p->keys);
	tutti_leave(p->job);
	fuzz_free_fenced(p->values, BYTES);
	fuzz_free_fenced((uint8_t *)p->fresh, N * sizeof *p->fresh);
}

static int call(struct part *p, unsigned what, tutti_op *op)
{
	static size_t n[RANKS];
	tutti_update twice = tutti_update_defaults();

	twice.scale = 2;
	switch (what % 8) {
	case 0:
		return what & 32 ? tutti_table_assign_rows(p->rows, p->list, N, p->values, op)
		                 : tutti_table_push_rows(p->rows, p->list, N, p->values, NULL, op);
	case 1:
		return what & 32 ? tutti_table_refresh_rows(p->rows, p->list, N, p->values, &n[tutti_rank(p->job)], op)
		                 : tutti_table_pull_rows(p->rows, p->list, N, p->values, op);
	case 2:
		return tutti_table_pull_fresh(p->rows, p->fresh, p->values, what & 32 ? 5 : N, &n[tutti_rank(p->job)],
		                              op);
	case 3: return tutti_table_push(p->rows, p->values, &twice, op);
	case 4: return tutti_table_pull(p->rows, p->values, op);
	case 5: return tutti_table_push_pull(p->rows, p->values, NULL, p->values, op);
	case 6:
		return what & 32 ? tutti_table_assign_rows(p->keys, p->list, N, p->values, op)
		                 : tutti_table_push_rows(p->keys, p->list, N, p->values, NULL, op);
	default: return tutti_table_pull_rows(p->keys, p->list, N, p->values, op);
	}
}

static void file_or_switch(struct part *p, unsigned what)
{
	tutti_table *t = what & 1 ? p->keys : p->rows;

	switch (what / 2 % 4) {
	case 0: tutti_table_save(t, folder); break;
	case 1: tutti_table_load(t, folder); break;
	case 2:
		tutti_table_switch(t, &(tutti_consistency){ .mode = what & 8 ? TUTTI_SSP : TUTTI_ASYNC,
		                                            .staleness = what & 8 ? 2 : 0 });
		break;
	default: tutti_table_reopen(t);
	}
}

static void try(struct part *p, unsigned what, int patience)
{
	tutti_op op;

	if (what & 64)
		file_or_switch(p, what);
	else if (!call(p, what, &op) && tutti_wait(&op, patience))
		tutti_cancel(&op);
}

/* ---- the bad one ---- */

/* To write or to read, but nowhere else than where the test does; or where nothing can be. */
static void put_order(struct fuzz_input *in, struct tt_pack *p)
{
	static const char *const folders[] = { folder, folder, "", "tmp", "/nowhere/at/all" };
	enum { BEFORE = 17 }; /* bytes in front of it */
	size_t got;
	const uint8_t *rest = fuzz_take(in, BEFORE, &got);

	tt_put_bytes(p, rest, got);
	for (; got < BEFORE; got++)
		tt_put8(p, 0);
	const char *path = folders[fuzz_number(in, 1) % TT_COUNT(folders)];
	tt_put_bytes(p, path, strlen(path));
}

/* Of a table that is open, with terms that differ in a word or are nonsense; or the answer. */
static void put_report(struct fuzz_input *in, struct tt_pack *p, uint8_t type, unsigned what)
{
	uint64_t word = fuzz_number(in, 8);

	tt_put32(p, what & 1 ? 0 : (uint32_t)fuzz_number(in, 1));
	tt_put32(p, type == TT_REPORT ? 0 : (uint32_t)fuzz_number(in, 4));
	if (type == TT_REPORT)
		tt_put_text(p, what & 2 ? "keys" : "rows");
	for (int i = 0; i < TT_TERMS && fuzz_number(in, 1) % 64; i++)
		tt_put64(p, word);
}

/* A message about a table, with a uid that is right: of one of the two servers, or of its own shard, where it speaks as
 * their server. */
static void make_up(struct attack *a, unsigned what)
{
	static const uint8_t types[] = {
		TT_PUSH,    TT_PUSHED, TT_PUSH_ROWS, TT_PULL_ROWS,    TT_PULL_FRESH, TT_PULLED,
		TT_JOIN,    TT_FILE,   TT_FILED,     TT_JOINED,       TT_CLOCK,      TT_CHANGE,
		TT_CHANGED, TT_FINISH, TT_HELD,      TT_PULL_VERSION, TT_KEEP,       TT_EXPECT,
		TT_REPORT,  TT_REPORTED
	};
	const struct mouth *m = choose_mouth();
	uint8_t bytes[64 + 8 * TT_TERMS], type = types[what / 4 % TT_COUNT(types)];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);
	bool of_mine = type == TT_JOINED || type == TT_CLOCK || type == TT_CHANGED || type == TT_EXPECT;
	size_t len;

	tt_put8(&p, type);
	if (type != TT_PUSHED && type != TT_PULLED && type != TT_FILED && type != TT_HELD &&
	    type < TT_REPORT)
		tt_put64(&p, (what & 2 ? parts[BAD].keys : parts[BAD].rows)->source[of_mine ? BAD : what & 1].uid);
	if (type == TT_FILE) {
		put_order(&a->in, &p);
	} else if (type == TT_EXPECT) {
		tt_put_text(&p, what & 1 ? "rows" : what & 2 ? "keys" : "pair");
	} else if (type >= TT_REPORT) {
		put_report(&a->in, &p, type, what);
	} else {
		len = fuzz_number(&a->in, 1);
		const uint8_t *rest = fuzz_take(&a->in, len, &len);
		tt_put_bytes(&p, rest, len);
	}
	if (m)
		say(m, bytes, (size_t)(p.at - bytes), 0, TT_SEND);
}

static void call_something(struct attack *a, unsigned what)
{
	if (what & 128)
		make_up(a, what & 127);
	else
		try(&parts[BAD], what, 1);
}

static void bad(struct part *p)
{
	open_part(p);
	attack.call = call_something;
	open_raw();
	run_attack();
	attack.has_twist = false;
	close_raw();
	if (plan & 64)
		tt_sim_kill(BAD, 0);
	close_part(p);
}

/* ---- the honest ones ---- */

/* The two of them get on together, whatever the third has said. */
static void check_pair(struct part *p, int rank)
{
	const int servers[] = { 0, 1 };
	tutti_table_config c = tutti_table_rows(TUTTI_F64, 2, 1, tutti_accumulate());
	uint64_t row = (uint64_t)rank;
	double mine = 5 + rank, got = 0;
	tutti_table *t;

	c.servers = 2;
	c.server = servers;
	p->ready = true; /* what the other one calls may have taken several deadlines */
	while (!parts[1 - rank].ready)
		tt_sim_sleep(TT_MS);
	if (tutti_table_open(p->job, "pair", &c, &t)) {
		FUZZ_CHECK(attack.accused, "an honest rank was ended by another's nonsense");
		return;
	}
	for (int i = 0; i < 2; i++, row ^= 1)
		FUZZ_CHECK((!tutti_table_push_rows(t, &row, 1, &mine, NULL, NULL) &&
		            !tutti_table_pull_rows(t, &row, 1, &got, NULL)) ||
		                   attack.accused,
		           "honest ranks push and pull");
	p->done = true;
	while (!parts[1 - rank].done && !attack.accused)
		tt_sim_sleep(TT_MS);
	tutti_table_close(t);
}

static void honest(struct part *p, int rank)
{
	open_part(p);
	for (int i = 0; i < ROUNDS; i++)
		try(p, (unsigned)(plan + rank * 3 + i * (1 + (plan >> 3 & 3))), ROUND_MS);
	check_pair(p, rank);
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

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_input in = { bytes, len };

	plan = (uint8_t)fuzz_number(&in, 1);
	memset(parts, 0, sizeof parts);
	make_folder();
	run_world(in, BAD, DEADLINE_MS, program);
	return 0;
}
