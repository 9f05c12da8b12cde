/* unit_modules.c - HACKING.md's recipes, followed once: a room registers a message, an event and a slot, and is heard;
 * two rooms that want the same one are refused */
#include "job/job.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"

enum { ECHO = 200, ECHO_SLOT = TT_MODULES - 1, MOST = 16 };

const struct tt_module *const *__real_tt_module_list(void);
static const struct tt_module *list[MOST];

const struct tt_module *const *__wrap_tt_module_list(void) { return list; }

/* The library's modules, then one or two of a test. */
static void register_modules(const struct tt_module *one, const struct tt_module *other)
{
	const struct tt_module *const *all = __real_tt_module_list();
	int n = 0;

	for (; all[n]; n++)
		list[n] = all[n];
	list[n++] = one;
	list[n++] = other;
	list[n] = NULL;
}

/* ---- the room ---- */

struct echo { /* its own struct in a job */
	int heard, from, polls, gone, lost;
};
static struct echo *echo_of(const struct tt_job *job) { return job->own[ECHO_SLOT]; }

static void take_echo(struct tt_member *from, struct tt_pack *p)
{
	echo_of(from->job)->heard = tt_get8(p);
	echo_of(from->job)->from = from->rank;
	from->job->engine.news = true;
}

static void note_ended(struct tt_member *m) { echo_of(m->job)->gone += m->rank == 2; }

static void note_lost(struct tt_job *job, struct tt_net *net) { echo_of(job)->lost += net == job->engine.nets[0]; }

static int count_poll(struct tt_job *job)
{
	echo_of(job)->polls++;
	return 0;
}

static const struct tt_message messages[] = { { ECHO, "echo", take_echo } };
static const struct tt_module echo_module = {
	.name = "echo",
	.slot = ECHO_SLOT,
	.job_size = sizeof(struct echo),
	.messages = messages,
	.message_count = TT_COUNT(messages),
	.poll = count_poll,
	.net_lost = note_lost,
	.ended = note_ended,
};

/* ---- the tests ---- */

static bool has_heard(void *job) { return echo_of(job)->heard; }
static bool has_lost(void *job) { return echo_of(job)->gone; }

static void program_echo(tutti *job)
{
	const uint8_t bytes[] = { ECHO, 77 };
	struct tt_job *j = job->job;
	int me = tutti_rank(job);

	CHECK(tutti_barrier(job, NULL) == 0);
	tt_lock(j);
	if (me < 2)
		tt_send(tt_member(j, 1 - me), bytes, sizeof bytes, NULL, 0);
	CHECK(me == 2 || tt_wait_until(j, has_heard, j, tt_now() + 10000 * TT_MS) == 0);
	CHECK(me == 2 || (echo_of(j)->heard == 77 && echo_of(j)->from == 1 - me && echo_of(j)->polls > 0));
	CHECK(me == 2 || tt_wait_until(j, has_lost, j, tt_now() + 10000 * TT_MS) == 0); /* rank 2 leaves at once */
	CHECK(me == 2 || echo_of(j)->gone == 1);
	tt_unlock(j);
}

static void test_heard(void)
{
	struct ranks run = { .size = 3, .wire = "sim", .program = program_echo };

	register_modules(&echo_module, NULL);
	for (run.seed = 0; run.seed < 4; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

static int progresses;
static int fail(struct tt_net *net) { return progresses++, tt_fail(-EIO, "%s is unplugged", net->addr); }

/* Rank 0 loses its net: that is told once, and the net is left alone. */
static void program_lost(tutti *job)
{
	static struct tt_transport unplugged;
	struct tt_job *j = job->job;

	CHECK(tutti_barrier(job, NULL) == 0);
	pass_time(10 * TT_MS); /* rank 1 has heard that the barrier is over, too */
	if (tutti_rank(job))
		return;
	tt_lock(j);
	unplugged = *j->engine.nets[0]->transport;
	unplugged.progress = unplugged.arm = fail;
	j->engine.nets[0]->transport = &unplugged;
	progresses = 0;
	for (int i = 0; i < 5; i++)
		tt_progress(j);
	tt_unlock(j);
	CHECK(tutti_barrier(job, NULL) == -ECONNRESET && strstr(tutti_why(), "unplugged"));
	CHECK(progresses == 1 && echo_of(j)->lost == 1);
}

static void test_lost(void)
{
	struct ranks run = { .size = 2, .wire = "sim", .timeout_ms = 1000, .program = program_lost };

	register_modules(&echo_module, NULL);
	CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* A job with both; the sentence names them. */
static void refuse(const struct tt_module *second, const char *what)
{
	tutti *job = NULL;

	register_modules(&echo_module, second);
	CU_ASSERT_EQUAL(tutti_join(NULL, &job), -EEXIST);
	CU_ASSERT(strstr(tutti_why(), "echo and twin") && strstr(tutti_why(), what));
}

static void ignore_notify(struct tt_member *from, uint32_t value)
{
	(void)from;
	(void)value;
}

static void test_twins(void)
{
	const struct tt_module slot = { .name = "twin", .slot = ECHO_SLOT };
	const struct tt_module message = {
		.name = "twin", .slot = ECHO_SLOT - 1, .messages = messages, .message_count = 1
	};
	const struct tt_module notify = {
		.name = "twin", .slot = ECHO_SLOT - 1, .notify = ignore_notify, .notify_last = 1
	};
	const struct tt_module nowhere = { .name = "twin", .slot = TT_MODULES };
	const struct tt_message hello = { .type = 1 }, same[] = { { .type = 201 }, { .type = 201 } };
	const struct tt_module greets = { .name = "twin", .slot = ECHO_SLOT - 1, .messages = &hello,
	                                  .message_count = 1 };
	const struct tt_module twice = { .name = "twin", .slot = ECHO_SLOT - 1, .messages = same, .message_count = 2 };
	tutti *job = NULL;

	refuse(&slot, "slot");
	refuse(&message, "type 200");
	register_modules(&notify, NULL);
	CU_ASSERT(tutti_join(NULL, &job) == -EEXIST && strstr(tutti_why(), "window and twin"));
	register_modules(&greets, NULL);
	CU_ASSERT(tutti_join(NULL, &job) == -EEXIST && strstr(tutti_why(), "member and twin"));
	register_modules(&twice, NULL);
	CU_ASSERT(tutti_join(NULL, &job) == -EEXIST && strstr(tutti_why(), "twin and twin"));
	register_modules(&nowhere, NULL);
	CU_ASSERT(tutti_join(NULL, &job) == -EINVAL && strstr(tutti_why(), "twin"));
	register_modules(NULL, NULL);
	CU_ASSERT(tutti_join(NULL, &job) == 0);
	tutti_leave(job);
}

static CU_TestInfo module_tests[] = {
	{ "a room registers and is heard", test_heard },
	{ "a net is lost", test_lost },
	{ "two rooms that want the same are refused", test_twins },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "modules", NULL, NULL, NULL, NULL, module_tests }, CU_SUITE_INFO_NULL };
int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
