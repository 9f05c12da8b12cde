/* unit_group.c - who is alive, and who is told: heartbeats, slow ranks, many that go at once, and watching. On sim,
 * where ranks can be stopped and slowed at will; and over loopback TCP. */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "job/job_private.h"
#include "member/member_private.h"
#include "operation/operation.h"
#include "tests/harness/amount.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/procs.h"
#include "tests/harness/ranks.h"
#include "transport/frame.h"
#include "transport/sim/sim.h"
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <stdlib.h>
#include <unistd.h>

enum { SEEDS = 8, DEADLINE = 2000, SILENCE = DEADLINE * 3 / 10, BEAT = SILENCE / 4, LOOK = SILENCE / 16 };

static void on_sim(void (*program)(tutti *), int size, int timeout_ms)
{
	struct ranks run = { .size = size, .wire = "sim", .timeout_ms = timeout_ms, .program = program };

	for (; run.seed < SEEDS; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
}

static void on_wires(void (*program)(tutti *), int size, int timeout_ms)
{
	struct ranks run = { .size = size, .timeout_ms = timeout_ms, .program = program };

	on_sim(program, size, timeout_ms);
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

static void await_change(tutti *job, tutti_change *c)
{
	*c = (tutti_change){ 0 };
	for (int ms = 0; ms < 10 * DEADLINE && !tutti_group_next(job, c); ms++)
		pass_time(TT_MS);
}

/* Besides what is to be expected: that others leave. */
static void expect_only_leavers(tutti *job)
{
	tutti_change c = { 0 };

	while (tutti_group_next(job, &c) == 1)
		CHECK(c.what == TUTTI_LEFT);
}

/* ---- heartbeats ---- */

/* Nobody waits for rank 2, and all know after TUTTI_SILENCE that it has stopped; who only computes is not silent. */
static void program_silent(tutti *job)
{
	tutti_change c;

	CHECK(tutti_group_watch(job, NULL, NULL) >= 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	pass_time((uint64_t)(job->job->id % 7) * BEAT / 3 * TT_MS); /* anywhere between two looks */
	uint64_t then = tt_now();
	if (tutti_rank(job) == 0)
		tt_sim_stop(2, 0, 3 * DEADLINE * TT_MS);
	if (tutti_rank(job) == 2) {
		pass_time(DEADLINE * TT_MS);
		return;
	}
	await_change(job, &c);
	CHECK(c.what == TUTTI_GONE && c.rank == 2 && c.err == -ECONNRESET &&
	      strstr(c.why, "rank 2 was evicted: it gave no sign of life"));
	CHECK(tt_now() - then > (SILENCE - 2 * BEAT) * TT_MS && tt_now() - then < (SILENCE + 3 * LOOK + 50) * TT_MS);
	pass_time(2 * DEADLINE * TT_MS);
	expect_only_leavers(job);
}

static void test_silent(void) { on_sim(program_silent, 5, DEADLINE); }

/* Idle for many heartbeats, over real connections as well. */
static void program_idle(tutti *job)
{
	tutti_change c = { 0 };

	CHECK(tutti_group_watch(job, NULL, NULL) >= 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	pass_time(7 * 100 * TT_MS);
	CHECK(tutti_group_next(job, &c) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_idle(void) { on_wires(program_idle, 4, 1000); }

/* This process was stopped: when it goes on it accuses nobody, though it has heard nothing for long. */
static void program_stopped_briefly(tutti *job)
{
	CHECK(tutti_group_watch(job, NULL, NULL) >= 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	pass_time(3 * BEAT * TT_MS);
	if (tutti_rank(job) == 0)
		for (int i = 0; i < tutti_size(job); i++)
			tt_sim_stop(i, 0, 7 * BEAT * TT_MS); /* the whole machine slept */
	pass_time(3 * DEADLINE * TT_MS);
	expect_only_leavers(job);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_stopped_briefly(void) { on_sim(program_stopped_briefly, 4, DEADLINE); }

/* Rank 1 is slow, and lives: nobody cuts it off. */
static void program_slow(tutti *job)
{
	CHECK(tutti_group_watch(job, NULL, NULL) >= 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0)
		tt_sim_slow(1, 700); /* up to 2 heartbeats, since a trip takes up to 22 times 20 us */
	pass_time(40 * BEAT * TT_MS);
	expect_only_leavers(job);
	CHECK(tutti_barrier(job, NULL) == 0);
}

static void test_slow(void) { on_sim(program_slow, 2, DEADLINE); }

/* ---- telling ---- */

/* Several die at once, neighbours and not; everybody hears of each of them, though few had ever talked to them. */
static bool dies(int rank) { return (rank >= 4 && rank < 12) || rank == 20 || rank == 33; }

static void program_many_die(tutti *job)
{
	bool heard[40] = { false };
	tutti_change c = { 0 };
	int n = 0;

	CHECK(tutti_group_watch(job, NULL, NULL) >= 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0)
		for (int i = 0; i < tutti_size(job); i++)
			if (dies(i))
				tt_sim_kill(i, 50 * TT_MS + tt_sim_chance(3 * TT_MS));
	pass_time(DEADLINE * TT_MS);
	if (dies(tutti_rank(job)))
		return;
	while (tutti_group_next(job, &c) == 1) {
		CHECK(c.what == TUTTI_GONE && dies(c.rank) && !heard[c.rank]);
		heard[c.rank] = true;
		n++;
	}
	CHECK(n == 10);
	pass_time(DEADLINE * TT_MS);
}

static void test_many_die(void) { on_sim(program_many_die, 40, DEADLINE); }

/* ---- watching ---- */

static void note(const tutti_change *c, void *arg)
{
	tutti_change *to = arg;

	if (to->what != TUTTI_JOINED)
		return;
	to->rank = c->rank;
	to->err = c->err;
	memcpy(to->why, c->why, sizeof c->why);
	__atomic_store_n(&to->what, c->what, __ATOMIC_RELEASE);
}

static bool is_readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

/* Rank 2 leaves: 0 takes that from the queue, 1 is called back; of a part of the job it is the same queue. */
static void program_left(tutti *job)
{
	static tutti_change seen_by[3]; /* the callback outlives this function: it may come while this rank leaves */
	tutti_change c = { 0 }, *seen = &seen_by[tutti_rank(job)];
	tutti *part;
	int fd;

	*seen = (tutti_change){ 0 };
	CHECK(tutti_group_next(job, &c) == -EINVAL);
	CHECK(tutti_group_split(job, 0, 0, &part) == 0);
	fd = tutti_group_watch(part, tutti_rank(job) == 1 ? note : NULL, seen);
	CHECK(fd >= 0 && !is_readable(fd));
	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 2)
		return;
	if (tutti_rank(job) == 0) {
		await_change(job, &c);
		*seen = c;
	}
	for (int ms = 0; ms < DEADLINE && !__atomic_load_n(&seen->what, __ATOMIC_ACQUIRE); ms++)
		pass_time(TT_MS);
	CHECK(seen->what == TUTTI_LEFT && seen->rank == 2 && seen->err == -ENOTCONN && strstr(seen->why, "has left"));
	CHECK(!is_readable(fd) && tutti_group_next(job, &c) <= 0);
	CHECK(tutti_barrier(job, NULL) == -ENOTCONN);
	pass_time(100 * TT_MS); /* or the other one sees me leave, too */
}

static void test_left(void) { on_wires(program_left, 3, DEADLINE); }

/* Rank 4 of a ring leaves. Only its neighbours and rank 0 are connected to it; the others wait for those, and hear of
 * it at once. */
static void program_left_unseen(tutti *job)
{
	float v[64] = { 0 };
	tutti *left;
	int rank = tutti_rank(job);

	CHECK(tutti_allreduce(job, v, v, 64, TUTTI_F32, TUTTI_SUM, NULL) == 0);
	if (rank == 4)
		return;
	CHECK((rank != 1 && rank != 6) || !tt_member(job->job, 4)->link);
	pass_time(50 * TT_MS);
	uint64_t then = tt_now();
	CHECK(tutti_allreduce(job, v, v, 64, TUTTI_F32, TUTTI_SUM, NULL) == -ENOTCONN);
	CHECK(strstr(tutti_why(), "rank 4 has left the job"));
	CHECK(tutti_group_shrink(job, &left) == 0 && tutti_size(left) == 7);
	CHECK(tt_now() - then < DEADLINE / 4 * TT_MS);
	CHECK(tutti_barrier(left, NULL) == 0);
}

static void test_left_unseen(void)
{
	struct ranks run = { .size = 8, .timeout_ms = DEADLINE, .allreduce = "ring", .program = program_left_unseen };

	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
	for (run.wire = "sim"; run.seed < SEEDS; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
}

static bool is_linked(tutti *job, int rank)
{
	tt_lock(job->job);
	bool linked = tt_member(job->job, rank)->link;
	tt_unlock(job->job);
	return linked;
}

static bool has_ended(tutti *job, int rank)
{
	tt_lock(job->job);
	bool gone = tt_member(job->job, rank)->state >= TT_LEFT;
	tt_unlock(job->job);
	return gone;
}

/* Sentences name hosts where there are several. */
static void program_label(tutti *job)
{
	struct tt_member other = *tt_member(job->job, 1);

	CHECK(!strcmp(tt_member_label(&other).text, "rank 1"));
	tt_lock(job->job);
	int here = job->job->local_size;
	job->job->local_size = 1;
	other.addr = "shm:1:2 tcp:10.0.0.7:4000 host:node-b";
	CHECK(!strcmp(tt_member_label(&other).text, "rank 1 (node-b, 10.0.0.7)"));
	other.addr = "tcp:[fe80::1]:4000";
	CHECK(!strcmp(tt_member_label(&other).text, "rank 1 ([fe80::1])"));
	other.addr = "";
	CHECK(!strcmp(tt_member_label(&other).text, "rank 1"));
	other.addr = "tcp:nonsense tcp:";
	CHECK(!strcmp(tt_member_label(&other).text, "rank 1"));
	job->job->local_size = here;
	tt_unlock(job->job);
	char own[96];
	CHECK(tt_address_find(tt_member(job->job, 1)->addr, "host", own));
}

static void test_label(void)
{
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 2, .program = program_label }), 0);
}

static atomic_bool missed, answered; /* some know that rank 5 has left; and 11 has heard it */

static void await(const atomic_bool *flag)
{
	for (int ms = 0; !*flag && ms < 10 * DEADLINE; ms++)
		pass_time(TT_MS);
	CHECK(*flag);
}

/* Rank 11 has never talked to 5, which leaves. True: in rank 11, afterwards. */
static bool misses(tutti *job, tutti_window **w)
{
	int rank = tutti_rank(job);

	CHECK(tutti_window_open(job, "w", NULL, 0, w) == 0);
	CHECK(tutti_barrier(job, NULL) == 0); /* of so many it does not connect all to all */
	CHECK(rank != 11 || !is_linked(job, 5));
	for (int ms = 0; rank != 5 && !missed && ms < 10 * DEADLINE; ms++) {
		missed = missed || has_ended(job, 5);
		pass_time(TT_MS);
	}
	return rank == 11;
}

/* Those who know stay until 11 has asked. */
static void part(tutti *job)
{
	if (tutti_rank(job) == 11)
		answered = true;
	else if (tutti_rank(job) != 5)
		await(&answered);
}

/* It does not listen any more: others know that it has left and did not die. */
static void program_missed(tutti *job)
{
	tutti_window *w;

	if (misses(job, &w)) {
		pass_time(50 * TT_MS);
		CHECK(tutti_put(w, 5, 0, "x", 1, NULL) == -ENOTCONN && strstr(tutti_why(), "rank 5 has left the job"));
	}
	part(job);
}

/* Or it closes a connection in the middle of the handshake, as one that leaves just then: here somebody does, at its
 * address. */
static int listen_as(tutti *job, int rank)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	char addr[96] = "";
	const char *port = tt_address_find(tt_member(job->job, rank)->addr, "tcp", addr) ? strrchr(addr, ':') : NULL;
	int fd = socket(AF_INET, SOCK_STREAM, 0), err = -1;

	at.sin_port = htons((uint16_t)atoi(port ? port + 1 : "0"));
	CHECK(!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int)));
	/* if nobody comes */
	CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ .tv_sec = 60 }, sizeof(struct timeval)));
	for (int ms = 0; err && ms < 10 * DEADLINE; ms++) { /* it may be about to close it */
		err = bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 1);
		pass_time(err ? TT_MS : 0);
	}
	CHECK(!err);
	return fd;
}

struct impostor {
	int fd;
	bool good;                   /* it has come as far as the proof */
};

static void cut_handshake(void *arg)
{
	struct impostor *me = arg;
	uint8_t hello[TT_HELLO_SIZE];
	int fd = accept(me->fd, NULL, NULL);

	me->good = recv(fd, hello, sizeof hello, MSG_WAITALL) == sizeof hello;
	hello[sizeof hello - 1] ^= 1; /* its own would be the kernel's doing */
	me->good &= send(fd, hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello && recv(fd, hello, 1, 0) == 1;
	close(fd);
}

static void program_cut(tutti *job)
{
	struct impostor impostor;
	struct tt_task *thread;
	tutti_window *w;

	if (misses(job, &w)) {
		impostor.fd = listen_as(job, 5);
		CHECK(tt_spawn(cut_handshake, &impostor, &thread) == 0);
		CHECK(tutti_put(w, 5, 0, "x", 1, NULL) == -ENOTCONN && strstr(tutti_why(), "rank 5 has left the job"));
		tt_join(thread);
		CHECK(impostor.good);
		close(impostor.fd);
	}
	part(job);
}

static void test_missed(void)
{
	struct ranks run = { .size = TT_SEGMENT_FEW + 4, .timeout_ms = DEADLINE, .program = program_missed };

	for (run.wire = "sim"; run.seed < SEEDS; run.seed++) {
		missed = answered = false;
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	}
	run.timeout_ms = 5 * DEADLINE; /* so many at once, under valgrind beside other tests */
	for (int i = 0; i < 3; i++) {
		run.wire = i == 1 ? "shm" : "tcp";
		run.program = i < 2 ? program_missed : program_cut;
		missed = answered = false;
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	}
}

/* Who watches late hears of those who went before; and a queue that nobody reads keeps the latest. */
static void program_late(tutti *job)
{
	tutti_change c = { 0 };

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 1)
		return;
	for (int ms = 0; ms < DEADLINE && !has_ended(job, 1); ms++)
		pass_time(TT_MS);
	CHECK(is_readable(tutti_group_watch(job, NULL, NULL)));
	CHECK(tutti_group_next(job, &c) == 1 && c.rank == 1 && c.what == TUTTI_LEFT);
	tt_lock(job->job);
	for (int i = 0; i < 300; i++)
		tt_watch_tell(job->job, tt_member(job->job, i % 2), TUTTI_JOINED);
	tt_unlock(job->job);
	for (int i = 300 - 256; i < 300; i++)
		CHECK(tutti_group_next(job, &c) == 1 && c.rank == i % 2 && c.what == TUTTI_JOINED && c.err == 0);
	CHECK(tutti_group_next(job, &c) == 0);
}

static void test_late(void) { on_wires(program_late, 2, DEADLINE); }

/* Leaving for a signal takes some silences at most, though a collective cannot end and a rank does not hang up. */
static void program_leave_stuck(tutti *job)
{
	static tutti_op op; /* only rank 0's, and it ends with the job */

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 1) {
		pass_time(2 * DEADLINE * TT_MS);
		return;
	}
	CHECK(tutti_barrier(job, &op) == 0);
	uint64_t then = tt_now();
	tt_job_goodbye(job->job, job->job->silence);
	CHECK(tt_now() - then >= SILENCE * TT_MS && tt_now() - then < (2 * SILENCE + 100) * TT_MS);
}

static void test_leave_stuck(void) { on_sim(program_leave_stuck, 2, DEADLINE); }

/* ---- expelling ---- */

/* Rank 1 expels rank 2, which hears by whom; the others go on. */
static void program_evict(tutti *job)
{
	tutti_change c = { 0 };
	tutti *left = NULL;
	float x = 1;
	int err;

	CHECK(tutti_group_watch(job, NULL, NULL) >= 0);
	CHECK(tutti_group_evict(job, tutti_rank(job), "oneself") == -EINVAL &&
	      tutti_group_evict(job, 9, NULL) == -EINVAL);
	CHECK(tutti_barrier(job, NULL) == 0);
	pass_time(50 * TT_MS);
	if (tutti_rank(job) == 1)
		CHECK(tutti_group_evict(job, 2, "it is in the way") == 0 && tutti_group_evict(job, 2, NULL) == 0);
	CHECK((err = tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL)) == -ECONNRESET);
	CHECK(strstr(tutti_why(), "rank 2 was evicted by rank 1: it is in the way"));
	if (tutti_rank(job) == 2)
		return;
	await_change(job, &c);
	CHECK(c.rank == 2 && c.what == TUTTI_GONE && strstr(c.why, "rank 2 was evicted by rank 1"));
	CHECK(tutti_group_shrink(job, &left) == 0 && tutti_size(left) == 3);
	CHECK(tutti_allreduce(left, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0);
}

static void test_evict(void)
{
	struct tt_saying s = { .rank = -1 };
	int told[2];
	struct stat is;
	char text[40];

	CU_ASSERT_FATAL(!pipe(told) && !fstat(told[1], &is));
	snprintf(text, sizeof text, "%d:%llu:7", told[1], (unsigned long long)is.st_ino + 1);
	setenv("TUTTI_RUN_PIPE", text, 1); /* another file has that number by now */
	on_sim(program_evict, 4, 5 * DEADLINE);
	snprintf(text, sizeof text, "%d:%llu:7", told[1], (unsigned long long)is.st_ino);
	setenv("TUTTI_RUN_PIPE", text, 1);
	CU_ASSERT_EQUAL(
		run_real_ranks((struct ranks){ .size = 4, .timeout_ms = 5 * DEADLINE, .program = program_evict }), 0);
	unsetenv("TUTTI_RUN_PIPE");
	close(told[1]);
	for (int i = 0; i < 2 * (only_verbs() ? 1 : 2); i++) { /* rank 0 says where the job is, rank 2 is out */
		CU_ASSERT(read(told[0], &s, sizeof s) == sizeof s && s.rank == 7);
		CU_ASSERT(i % 2 ? s.what == TT_SAYS_EVICTED &&
		                  !strcmp(s.text, "rank 2 was evicted by rank 1: it is in the way")
		                : s.what == TT_SAYS_BOOT && strchr(s.text, ','));
	}
	CU_ASSERT_EQUAL(read(told[0], &s, sizeof s), 0);
	close(told[0]);
}

/* Two expel each other at about the same time: one word stands, for all. */
static void program_mutual(tutti *job)
{
	tutti *left = NULL;
	float x = 1;

	CHECK(tutti_barrier(job, NULL) == 0);
	pass_time(50 * TT_MS);
	if (tutti_rank(job) == 0 || tutti_rank(job) == 3)
		CHECK(tutti_group_evict(job, 3 - tutti_rank(job), "the other one") == 0);
	while (!tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL))
		continue;
	if (tutti_rank(job) % 3 == 0 && tutti_group_shrink(job, &left))
		return; /* the others have gone on without this one */
	CHECK((left || tutti_group_shrink(job, &left) == 0) && tutti_size(left) == 4);
	CHECK(left && tutti_allreduce(left, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0);
}

static void test_mutual(void) { on_sim(program_mutual, 5, DEADLINE); }

/* All get no core for most of the time, as on a host with too few. The path between ranks 1 and 2 breaks: each one
 * would say that the other one is gone before it hears that of itself. */
static void program_starved(tutti *job)
{
	tutti *left = NULL;

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0) {
		for (uint64_t at = 0; at < 6000; at += 160)
			for (int i = 0; i < 4; i++)
				tt_sim_stop(i, (at + tt_sim_chance(20)) * TT_MS, 140 * TT_MS);
		tt_sim_cut(1, 2, 3000 * TT_MS + tt_sim_chance(160 * TT_MS));
	}
	pass_time(8000 * TT_MS);
	int err = tutti_group_shrink(job, &left);
	if (tutti_rank(job) % 3 == 0 || !err)
		CHECK(!err && tutti_size(left) == 3);
}

static void test_starved(void)
{
	struct ranks run = { .size = 4, .wire = "sim", .silence_ms = 10000, .program = program_starved };

	for (; run.seed < (uint64_t)all_or(10 * SEEDS, SEEDS); run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* Rank 0 called a shrink that came to nothing, and lets in newcomers all the same. The next group knows them. */
static void program_consents(tutti *job)
{
	tutti *at = job, *grown = NULL;

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_group_timeout(job, DEADLINE / 20) == 0);
		CHECK(tutti_group_shrink(job, &grown) == -ETIMEDOUT);
		CHECK(tutti_group_timeout(job, 0) == 0);
	}
	pass_time(DEADLINE / 2 * TT_MS);
	if (tutti_rank(job) == 2)
		CHECK(join_again(job, TUTTI_NEW_RANK, &at) == 0);
	else
		pass_time(DEADLINE / 2 * TT_MS);
	CHECK(tutti_group_grow(at, &grown) == 0 && tutti_size(grown) == 3);
	CHECK(grown && tutti_barrier(grown, NULL) == 0);
	if (at != job)
		tutti_leave(at);
}

static void test_consents(void) { on_sim(program_consents, 3, 5 * DEADLINE); }

/* An op's error, when the rank that had gone down is there again. */
static void program_explain(tutti *job)
{
	static const struct tt_operation_kind kind;
	struct tt_operation r = { .job = job->job, .what = "put", .words = &kind, .rank = 1, .err = -ECONNRESET };

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job))
		return;
	tt_lock(job->job);
	CHECK(tt_operation_explain(&r) == -ECONNRESET);
	tt_unlock(job->job);
	CHECK(!strcmp(tutti_why(), "put: rank 1 went down while the call ran, and has joined again since"));
}

static void test_explain(void) { CU_ASSERT_EQUAL(run_on_sim(2, 1, DEADLINE, program_explain), 0); }

/* ---- ranks that say what makes no sense ---- */

static void send_raw(tutti *job, int to, const void *bytes, size_t len)
{
	tt_lock(job->job);
	tt_send(tt_member(job->job, to), bytes, len, NULL, 0);
	tt_unlock(job->job);
}

static const struct { uint8_t kind; uint32_t ballot;
} wrong_ballots[] = {
	/* of rank 2 of 3 */
	{ 2, UINT32_MAX }, { 2, UINT32_MAX - 1 }, { 2, 3 },          { 2, 2 },
	{ 4, UINT32_MAX }, { 4, UINT32_MAX - 3 }, { 5, UINT32_MAX }, { 5, 4 },
};
static size_t wrong;

static bool is_nonsense(const tutti *job, int rank)
{
	const struct tt_member *m = tt_member(job->job, rank);

	return m->state == TT_GONE && strstr(m->why, "makes no sense");
}

/* The others agree all the same, and soon. */
static void program_wrong_ballot(tutti *job)
{
	uint8_t bytes[12 + 3] = { 0 };
	struct tt_pack p = tt_pack(bytes, sizeof bytes);
	tutti *left = NULL;

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 2) {
		pass_time(10 * TT_MS); /* all are through with the barrier */
		for (int to = 0; to < 2; to++, p = tt_pack(bytes, sizeof bytes)) {
			tt_put8(&p, TT_AGREE);
			tt_put8(&p, wrong_ballots[wrong].kind);
			tt_put16(&p, job->seats[to].slot);
			tt_put32(&p, job->uid);
			tt_put32(&p, wrong_ballots[wrong].ballot);
			send_raw(job, to, bytes, sizeof bytes);
		}
		pass_time(DEADLINE * TT_MS);
		return;
	}
	pass_time(50 * TT_MS);
	uint64_t then = tt_now();
	CHECK(is_nonsense(job, 2));
	CHECK(tutti_group_shrink(job, &left) == 0 && tutti_size(left) == 2);
	CHECK(tt_now() - then < DEADLINE / 4 * TT_MS);
	CHECK(left && tutti_barrier(left, NULL) == 0);
}

static void test_wrong_ballot(void)
{
	for (wrong = 0; wrong < TT_COUNT(wrong_ballots); wrong++)
		on_sim(program_wrong_ballot, 3, DEADLINE);
}

/* A goodbye of as many groups as there can be, and of one more. */
static void program_wrong_bye(tutti *job)
{
	static uint8_t bye[7 + 9 * (TT_BYE_GROUPS + 1)];
	struct tt_pack p = tt_pack(bye, sizeof bye);
	unsigned n = TT_BYE_GROUPS + (unsigned)wrong;

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 1) {
		/* else it may come while the other's part in the barrier is not acknowledged yet */
		pass_time(50 * TT_MS);
		tt_put8(&p, TT_BYE);
		tt_put32(&p, 0);
		tt_put16(&p, (uint16_t)n);
		send_raw(job, 0, bye, 7 + 9 * n);
		pass_time(300 * TT_MS);
		return;
	}
	for (int ms = 0; ms < DEADLINE && !has_ended(job, 1); ms++)
		pass_time(TT_MS);
	tt_lock(job->job);
	CHECK(wrong ? is_nonsense(job, 1) : tt_member(job->job, 1)->state == TT_LEFT);
	tt_unlock(job->job);
}

static void test_wrong_bye(void)
{
	struct ranks run = { .size = 2, .timeout_ms = DEADLINE, .program = program_wrong_bye };

	for (wrong = 0; wrong < 2; wrong++)
		CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

/* Rank 1 is refused, and stands still instead of hanging up. */
static bool has_link(tutti *job, const struct tt_link *l)
{
	bool found = false;

	tt_lock(job->job);
	tt_list_each(node, &tt_members(job->job)->links)
		found |= tt_container_of(node, struct tt_link, all) == l;
	tt_unlock(job->job);
	return found;
}

static void program_refused(tutti *job)
{
	uint8_t card[1 + TT_ENDPOINT_MAX];
	struct tt_pack p = tt_pack(card, sizeof card);

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 1) {
		pass_time(10 * TT_MS); /* rank 0 looks at its link */
		tt_put8(&p, TT_ENDPOINT);
		tt_put64(&p, 1);
		tt_put32(&p, job->job->epoch);
		tt_put_text(&p, "elsewhere");
		send_raw(job, 0, card, (size_t)(p.at - card));
		tt_sim_stop(1, 0, 5 * DEADLINE * TT_MS);
		pass_time(DEADLINE * TT_MS);
		return;
	}
	const struct tt_link *l = tt_member(job->job, 1)->link;
	pass_time(SILENCE / 2 * TT_MS);
	CHECK(tt_member(job->job, 1)->link != l && has_link(job, l));
	pass_time(DEADLINE * TT_MS);
	CHECK(!has_link(job, l) || l == tt_member(job->job, 1)->link); /* the latter is a new one, in the same memory */
}

static void test_refused(void) { on_sim(program_refused, 2, DEADLINE); }

/* A sentence that is longer than this rank keeps says nothing against the rank that sends it. */
static void program_long_reason(tutti *job)
{
	uint8_t down[256];
	struct tt_pack p = tt_pack(down, sizeof down);
	char why[241];

	CHECK(tutti_barrier(job, NULL) == 0);
	if (tutti_rank(job) == 1) {
		memset(why, 'y', sizeof why - 1);
		why[sizeof why - 1] = 0;
		tt_put8(&p, TT_DOWN);
		tt_put32(&p, 2);
		tt_put32(&p, tt_member(job->job, 2)->epoch);
		tt_put32(&p, ECONNRESET);
		tt_put_text(&p, why);
		send_raw(job, 0, down, (size_t)(p.at - down));
	}
	for (int ms = 0; tutti_rank(job) == 0 && ms < DEADLINE && !has_ended(job, 2); ms++)
		pass_time(TT_MS);
	CHECK(tutti_rank(job) != 0 || (has_ended(job, 2) && !has_ended(job, 1)));
	pass_time(50 * TT_MS);
}

static void test_long_reason(void) { on_sim(program_long_reason, 3, DEADLINE); }

/* ---- a net that does not answer ---- */

static struct tt_transport mute, spoken; /* shm, without and with connections that come up */
static _Atomic int mute_tries, muted;

static int connect_in_vain(struct tt_net *net, const char *addr, struct tt_peer **out)
{
	(void)addr;
	mute_tries++;
	if (!(*out = calloc(1, sizeof **out)))
		return -ENOMEM;
	(*out)->net = net;
	snprintf((*out)->addr, sizeof (*out)->addr, "mute");
	return 0;
}

static void disconnect_mute(struct tt_peer *p)
{
	if (strcmp(p->addr, "mute"))
		spoken.disconnect(p);
	else
		free(p);
}

/* The ranks give their connection of the rendezvous up for shm, which leads nowhere, and go back to TCP. They stay
 * there when a second try has led nowhere: a rank that answers late may have been stopped. */
enum { MUTE_TRIES = 4 }; /* two of each rank */

static void program_mute_net(tutti *job)
{
	struct tt_job *j = job->job;
	struct tt_member *other = tt_member(j, 1 - tutti_rank(job));

	while (tutti_rank(job) && !muted)
		usleep(100);
	tt_lock(j);
	if (tutti_rank(job) == 0) {
		mute = spoken = *j->engine.nets[0]->transport;
		mute.connect = connect_in_vain;
		mute.disconnect = disconnect_mute;
	}
	j->engine.nets[0]->transport = &mute;
	muted++;
	tt_unlock(j);
	while (muted < 2)
		usleep(100);
	uint64_t start = tt_now();
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tt_now() - start < DEADLINE / 2 * TT_MS);
	CHECK(mute_tries >= 1 && mute_tries <= MUTE_TRIES);
	tt_lock(j);
	CHECK(!strcmp(other->link->peer->net->transport->name, "tcp"));
	if (other->failed_ways) { /* the other side may have made the connection alone */
		other->link->used = false;
		tt_member_leave_rendezvous(other); /* not for a net that is known to fail */
		CHECK(other->state == TT_UP);
	}
	tt_unlock(j);
	CHECK(tutti_barrier(job, NULL) == 0 && mute_tries <= MUTE_TRIES);
}

static void test_mute_net(void)
{
	struct ranks run = { .size = 2, .wire = "shm", .timeout_ms = DEADLINE, .program = program_mute_net };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* More groups than a goodbye can name, none of them left: it names those that are in use. */
static void program_many_groups(tutti *job)
{
	tutti *g = job;
	tutti_op op = { 0 };

	for (int i = 0; i < TT_GROUPS + 100; i++)
		CHECK(tutti_group_shrink(g, &g) == 0);
	if (tutti_rank(job) == 0) {
		pass_time(100 * TT_MS);
		return;
	}
	uint64_t then = tt_now();
	CHECK(tutti_barrier(g, &op) == 0);
	int err = tutti_wait(&op, -1);
	CHECK(err == -ENOTCONN);
	if (err == -ETIMEDOUT)
		tutti_cancel(&op);
	CHECK(tt_now() - then < DEADLINE / 4 * TT_MS);
}

static void test_many_groups(void)
{
	struct ranks run = { .size = 2, .wire = "sim", .timeout_ms = DEADLINE, .program = program_many_groups };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
}

/* ---- a rank that frees a group and leaves ---- */

enum { ROUNDS = 3 }; /* the first broadcast waits for the others; the root has done its part in all */

/* The others call the broadcasts after the root has gone, and the one that it has no part in fails at once. */
static void broadcast_late(tutti *g)
{
	int x = -1, rank = tutti_rank(g);

	for (int i = 0; i < ROUNDS; i++) {
		x = rank ? -1 : i;
		CHECK(tutti_broadcast(g, &x, sizeof x, 0, NULL) == 0 && x == i);
		if (i == 0 && rank)
			pass_time(50 * TT_MS);
	}
	uint64_t then = tt_now();
	CHECK(!rank || tutti_broadcast(g, &x, sizeof x, 0, NULL) == -ENOTCONN);
	CHECK(tt_now() - then < DEADLINE / 4 * TT_MS);
	if (rank)
		pass_time(100 * TT_MS); /* or another one sees me leave, too */
	tutti_group_free(g);
}

static void program_free_split(tutti *job)
{
	tutti *g = NULL;

	CHECK(tutti_group_split(job, 0, 0, &g) == 0);
	broadcast_late(g);
}

static void program_free_of(tutti *job)
{
	static const int list[] = { 0, 1, 2, 3 };
	tutti *g = NULL;

	CHECK(tutti_group_of(job, list, 4, "g", &g) == 0);
	broadcast_late(g);
}

/* The goodbye names other groups that were freed later, as well. */
static void program_free_many(tutti *job)
{
	tutti *g = NULL, *more = NULL;

	CHECK(tutti_group_split(job, 0, 0, &g) == 0);
	for (int i = 1; i < TT_FREED_GROUPS; i++) {
		CHECK(tutti_group_split(job, 0, 0, &more) == 0);
		tutti_group_free(more);
	}
	broadcast_late(g);
}

/* Rank 0 has no part in a barrier that is under way elsewhere. */
static void program_free_early(tutti *job)
{
	tutti_op op = { 0 };
	tutti *g = NULL;

	CHECK(tutti_group_split(job, 0, 0, &g) == 0);
	if (tutti_rank(job))
		CHECK(tutti_barrier(g, &op) == 0);
	else
		pass_time(50 * TT_MS);
	uint64_t then = tt_now();
	CHECK(!tutti_rank(job) || tutti_wait(&op, -1) == -ENOTCONN);
	CHECK(tt_now() - then < DEADLINE / 4 * TT_MS);
	if (tutti_rank(job))
		pass_time(100 * TT_MS);
	tutti_group_free(g);
}

static void test_free_split(void) { on_wires(program_free_split, 4, DEADLINE); }
static void test_free_of(void) { on_wires(program_free_of, 4, DEADLINE); }
static void test_free_many(void) { on_wires(program_free_many, 2, DEADLINE); }
static void test_free_early(void) { on_wires(program_free_early, 4, DEADLINE); }

/* Who gave up a collective because of a death must not be blamed before the death is told (grace() in news.c). */
static void test_stale(void)
{
	for (uint64_t ms = 100; ms <= 100000; ms += ms / 10) {
		struct tt_members all = { .lateness = ms % 7 * 50 * TT_MS };
		struct tt_job job = { .silence = ms * TT_MS, .own[TT_MEMBER_SLOT] = &all };
		uint64_t untold = tt_time(&job, TT_TIME_HEARTBEAT) + tt_time(&job, TT_TIME_LOOK) +
		                  2 * tt_time(&job, TT_TIME_GRACE);
		CU_ASSERT(tt_time(&job, TT_TIME_STALE) > untold);
	}
}

/* ---- rank 0 goes down while others join ---- */

static struct {
	int err;
	uint64_t ms; /* from the death of rank 0 on */
	char why[300];
} joining;

/* Rank 0 has accepted rank 1, and waits for rank 2. */
static void join_in_vain(int rank, void *arg)
{
	const uint64_t death = 100 * TT_MS, begun = tt_now();
	tutti *job;

	(void)arg;
	if (rank == 2)
		return;
	if (rank == 0)
		tt_sim_kill(0, death);
	int err = tutti_join(NULL, &job);
	if (rank == 0)
		return;
	joining.err = err;
	joining.ms = (tt_now() - begun - death) / TT_MS;
	snprintf(joining.why, sizeof joining.why, "%s", tutti_why());
}

/* Rank 0 may have been of an earlier job. No new rank 0 comes for TUTTI_SILENCE: the job has failed, and rank 1 says
 * why. */
static void test_dead_root(void)
{
	struct tt_sim_config config = { .ranks = 3, .program = join_in_vain, .silence_ms = SILENCE,
		                        .timeout_ms = 100 * SILENCE };

	for (; config.seed < SEEDS; config.seed++) {
		WANT(tt_sim_run(&config) == 0, "%s", tutti_why());
		WANT(joining.err == -ECONNRESET && strstr(joining.why, "rank 0 went down: ") &&
		     strstr(joining.why, "; tried again for "), "%d: %s", joining.err, joining.why);
		WANT(joining.ms >= SILENCE - 10 && joining.ms < 2 * SILENCE, "it took %d ms", (int)joining.ms);
	}
}

static CU_TestInfo join_tests[] = {
	{ "rank 0 goes down", test_dead_root },
	{ "after a call in vain", test_consents },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo sense_tests[] = {
	{ "wrong ballots", test_wrong_ballot },
	{ "a wrong goodbye", test_wrong_bye },
	{ "refused, and stays", test_refused },
	{ "a long reason", test_long_reason },
	{ "many groups", test_many_groups },
	{ "a mute net", test_mute_net },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo free_tests[] = {
	{ "of a split", test_free_split },
	{ "of a list", test_free_of },
	{ "many", test_free_many },
	{ "with a call under way", test_free_early },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo beat_tests[] = {
	{ "a silent rank", test_silent }, { "idle ranks", test_idle }, { "a slow rank", test_slow },
	{ "all were stopped", test_stopped_briefly }, { "leaving is bounded", test_leave_stuck },
	{ "who is blamed", test_stale },
	{ "a rank is expelled", test_evict }, { "two expel each other", test_mutual },
	{ "two get no core", test_starved }, { "a rank that came again", test_explain }, CU_TEST_INFO_NULL,
};
static CU_TestInfo watch_tests[] = {
	{ "many die", test_many_die },
	{ "one leaves", test_left },
	{ "one leaves unseen", test_left_unseen },
	{ "one is missed", test_missed },
	{ "who is meant", test_label },
	{ "late", test_late },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = {
	{ "heartbeats", NULL, NULL, NULL, NULL, beat_tests }, { "watching", NULL, NULL, NULL, NULL, watch_tests },
	{ "nonsense", NULL, NULL, NULL, NULL, sense_tests },
	{ "groups that are freed", NULL, NULL, NULL, NULL, free_tests },
	{ "joining", NULL, NULL, NULL, NULL, join_tests },
	CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
