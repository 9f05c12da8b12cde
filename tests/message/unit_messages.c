/* unit_messages.c - messages arrive whole and in order, and match as the manual says; what is not received is bounded;
 * cancels, deaths, stops, groups that come and go */
#include "member/member.h"
#include "message/message_private.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include <signal.h>
#include <sys/wait.h>

enum { LONGEST = 3 << 20, LENGTHS = 9 };
#define SEEDS (uint64_t)all_or(TT_ASAN ? 10 : 40, 8)
static const size_t lengths[LENGTHS] = { 0, 1, 8, 1000, TT_MSG_SHORT, TT_MSG_SHORT + 1, 70001, 1 << 20, LONGEST };

static void *must(void *p)
{
	if (!p)
		abort();
	return p;
}

/* What message number `k` from one rank to another has: a piece of one sequence, that begins elsewhere for each. */
static char sequence[LONGEST + 65536];

static void fill_sequence(void)
{
	uint64_t x = 1;

	for (size_t i = 0; i < sizeof sequence; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		sequence[i] = (char)(x >> 56);
	}
}
static const char *bytes_of(int from, int to, uint32_t k)
{
	return sequence + (((uint32_t)(from * 16 + to) * 40503u + k) * 2654435761u >> 16);
}

static void on_all(struct ranks run)
{
	for (run.wire = "sim"; run.seed < SEEDS; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

static struct tt_msg_peer *peer_at(tutti *job, int rank)
{
	return tt_member_own(tt_member(job->job, rank), TT_MESSAGE_SLOT);
}

/* Nothing is left of messages, at this rank. */
static void check_empty(tutti *job)
{
	tt_lock(job->job);
	for (int i = 0; i < TT_MSG_BUCKETS; i++)
		CHECK(tt_list_empty(&tt_messages(job->job)->kept[i]) &&
		      tt_list_empty(&tt_messages(job->job)->kept_of_sender[i]) &&
		      tt_list_empty(&tt_messages(job->job)->posted[i]));
	for (int i = 0; i < job->job->size; i++) {
		const struct tt_msg_peer *p = peer_at(job, i);
		CHECK(!p || (!p->offers && !p->kept && !p->former && !p->announced && tt_list_empty(&p->waiting)));
	}
	tt_unlock(job->job);
}

/* ---- one message ---- */

static void take(tutti *g, int from, int tag, uint32_t k, size_t len, size_t room)
{
	tutti_message info = { .rank = -1 };
	char *memory = must(malloc(room + 1));

	memory[len] = 42;
	CHECK(tutti_recv(g, from, tag, memory, room, &info, NULL) == 0);
	CHECK(info.tag == tag && info.bytes == len && (from < 0 || info.rank == from));
	CHECK(!info.reserved[0] && !info.reserved[3]);
	CHECK(!memcmp(memory, bytes_of(info.rank, tutti_rank(g), k), len) && memory[len] == 42);
	free(memory);
}

static void post(tutti *g, int to, int tag, uint32_t k, size_t len)
{
	CHECK(tutti_send(g, to, tag, bytes_of(tutti_rank(g), to, k), len, NULL) == 0);
}

/* Back and forth, from memory that others can map and other memory, into as much as is needed and more. */
static void program_lengths(tutti *job)
{
	int me = tutti_rank(job), other = 1 - me;
	void *mapped;

	CHECK(tutti_alloc(job, LONGEST, -1, &mapped) == 0);
	for (int i = 0; i < LENGTHS; i++)
		for (int turn = 0; turn < 2; turn++)
			if (me == turn) {
				memcpy(mapped, bytes_of(me, other, 7), lengths[i]);
				CHECK(tutti_send(job, other, i, mapped, lengths[i], NULL) == 0);
				memset(mapped, 0x55, lengths[i]);
				post(job, other, i + 100, (uint32_t)i, lengths[i]);
			} else {
				take(job, other, i, 7, lengths[i], lengths[i]);
				take(job, other, i + 100, (uint32_t)i, lengths[i], lengths[i] + 5000);
			}
	tutti_free(job, mapped);
	CHECK(tutti_barrier(job, NULL) == 0);
	check_empty(job);
}
static void test_lengths(void) { on_all((struct ranks){ .size = 2, .program = program_lengths }); }

static void program_arguments(tutti *job)
{
	char c = 1;

	CHECK(tutti_send(job, 2, 0, &c, 1, NULL) == -EINVAL && strstr(tutti_why(), "rank 2"));
	CHECK(tutti_send(job, -1, 0, &c, 1, NULL) == -EINVAL);
	CHECK(tutti_send(job, 1, -1, &c, 1, NULL) == -EINVAL && strstr(tutti_why(), "tag -1"));
	CHECK(tutti_send(job, 1, 0, NULL, 1, NULL) == -EINVAL);
	CHECK(tutti_send(NULL, 1, 0, &c, 1, NULL) == -EINVAL);
	CHECK(tutti_recv(job, 2, 0, &c, 1, NULL, NULL) == -EINVAL);
	CHECK(tutti_recv(job, -2, 0, &c, 1, NULL, NULL) == -EINVAL);
	CHECK(tutti_recv(job, 0, -7, &c, 1, NULL, NULL) == -EINVAL);
	CHECK(tutti_recv(job, 0, 0, NULL, 1, NULL, NULL) == -EINVAL);
	CHECK(tutti_send(job, 1 - tutti_rank(job), INT_MAX, &c, 1, NULL) == 0);
	CHECK(tutti_recv(job, 1 - tutti_rank(job), INT_MAX, &c, 1, NULL, NULL) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	check_empty(job);
}
static void test_arguments(void) { on_all((struct ranks){ .size = 2, .program = program_arguments }); }

/* ---- matching ---- */

/* Of two tags, in another order than they were sent; receives before and behind the sends. */
static void program_tags(tutti *job)
{
	enum { EACH = 5 };
	char *memory[2 * EACH];
	tutti_op op[2 * EACH] = { 0 };
	const size_t len[EACH] = { 10, 20000, 0, 5, 90000 };

	for (int early = 0; early < 2; early++) {
		if (tutti_rank(job) == 0) {
			if (!early)
				CHECK(tutti_barrier(job, NULL) == 0);
			for (uint32_t k = 0; k < EACH; k++) /* tags in turn */
				for (int tag = 0; tag < 2; tag++)
					CHECK(tutti_send(job, 1, tag, bytes_of(0, 1, k * 2 + (uint32_t)tag), len[k],
					                 &op[k * 2 + (uint32_t)tag]) == 0);
			if (early)
				CHECK(tutti_barrier(job, NULL) == 0);
			for (int i = 0; i < 2 * EACH; i++)
				CHECK(tutti_wait(&op[i], -1) == 0);
		} else {
			if (early)
				CHECK(tutti_barrier(job, NULL) == 0);
			for (int i = 0; i < 2 * EACH; i++) { /* all of tag 1, then all of tag 0 */
				memory[i] = must(malloc(90000));
				CHECK(tutti_recv(job, 0, i < EACH, memory[i], 90000, NULL, &op[i]) == 0);
			}
			if (!early)
				CHECK(tutti_barrier(job, NULL) == 0);
			for (int i = 2 * EACH; i--;) {
				uint32_t k = (uint32_t)(i % EACH);
				CHECK(tutti_wait(&op[i], -1) == 0);
				CHECK(!memcmp(memory[i], bytes_of(0, 1, k * 2 + (i < EACH)), len[k]));
				free(memory[i]);
			}
		}
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	check_empty(job);
}
static void test_tags(void) { on_all((struct ranks){ .size = 2, .program = program_tags }); }

/* From any rank: in the order of arrival, so of each sender in the order of its sends; and those of other tags stay. */
static void program_any(tutti *job)
{
	enum { EACH = 30 };
	int n = tutti_size(job), me = tutti_rank(job);
	uint32_t next[8] = { 0 }, x;
	tutti_message info;

	if (me) {
		for (uint32_t k = 0; k < EACH; k++)
			CHECK(tutti_send(job, 0, 3, &k, sizeof k, NULL) == 0);
		post(job, 0, 4, 0, 100000);
	}
	for (int i = 0; !me && i < (n - 1) * EACH; i++) {
		CHECK(tutti_recv(job, -1, 3, &x, sizeof x, &info, NULL) == 0);
		CHECK(info.rank > 0 && info.rank < n && x == next[info.rank]++);
	}
	for (int i = n - 1; !me && i > 0; i--)
		take(job, i == n - 1 ? i : -1, 4, 0, 100000, 100000 + (size_t)i);
	CHECK(tutti_barrier(job, NULL) == 0);
	/* who has arrived first is first */
	for (int turn = n - 1; turn > 0; turn--) {
		if (me == turn)
			CHECK(tutti_send(job, 0, 5, NULL, 0, NULL) == 0 && tutti_send(job, 0, 6, NULL, 0, NULL) == 0);
		if (!me)
			CHECK(tutti_recv(job, turn, 6, NULL, 0, NULL, NULL) == 0);
		CHECK(tutti_barrier(job, NULL) == 0);
	}
	for (int turn = n - 1; !me && turn > 0; turn--)
		CHECK(tutti_recv(job, -1, 5, NULL, 0, &info, NULL) == 0 && info.rank == turn);
	CHECK(tutti_barrier(job, NULL) == 0);
	check_empty(job);
}
static void test_any(void) { on_all((struct ranks){ .size = 4, .program = program_any }); }

/* A receive that is too small says how much it needs, and the message stays; so does an empty one, which only asks. */
static void program_small(tutti *job)
{
	char memory[50000];
	tutti_message info;
	tutti_op op = { 0 }, ops[2] = { 0 };

	if (tutti_rank(job) == 0) {
		post(job, 1, 1, 1, 100);
		post(job, 1, 1, 2, 40000);
		CHECK(tutti_recv(job, 1, 2, NULL, 0, NULL, NULL) == 0);
		post(job, 1, 3, 3, 60);
	} else {
		for (int i = 0; i < 3; i++) {
			memset(&info, 0, sizeof info);
			CHECK(tutti_recv(job, i == 2 ? -1 : 0, 1, i ? memory : NULL, (size_t)i * 40, &info, NULL) ==
			      -EMSGSIZE);
			CHECK(info.rank == 0 && info.tag == 1 && info.bytes == 100);
			CHECK(strstr(tutti_why(), "100 bytes") && strstr(tutti_why(), "rank 0"));
		}
		take(job, 0, 1, 1, 100, 100);
		CHECK(tutti_recv(job, -1, 1, memory, 39999, &info, &op) == 0);
		CHECK(tutti_wait(&op, -1) == -EMSGSIZE && info.bytes == 40000 && info.rank == 0);
		take(job, -1, 1, 2, 40000, 40000);
		/* two that wait: the first one is too small, the second one takes it */
		CHECK(tutti_recv(job, 0, 3, memory, 59, &info, &ops[0]) == 0);
		CHECK(tutti_recv(job, 0, 3, memory, 60, NULL, &ops[1]) == 0);
		CHECK(tutti_send(job, 0, 2, NULL, 0, NULL) == 0);
		CHECK(tutti_wait(&ops[0], -1) == -EMSGSIZE && info.bytes == 60);
		CHECK(tutti_wait(&ops[1], -1) == 0 && !memcmp(memory, bytes_of(0, 1, 3), 60));
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	check_empty(job);
}
static void test_small(void) { on_all((struct ranks){ .size = 2, .program = program_small }); }

/* To itself: short ones at once, long ones once they are received; in order; cancelled; too small. */
static void program_self(tutti *job)
{
	int me = tutti_rank(job);
	char *memory = must(malloc(LONGEST));
	tutti_op op = { 0 }, other = { 0 };
	tutti_message info;

	post(job, me, 1, 1, 1000);
	CHECK(tutti_send(job, me, 1, bytes_of(me, me, 2), LONGEST, &op) == 0);
	CHECK(tutti_test(&op) == -EINPROGRESS);
	take(job, me, 1, 1, 1000, 1000);
	CHECK(tutti_recv(job, -1, 1, memory, 5, &info, NULL) == -EMSGSIZE && info.bytes == LONGEST && info.rank == me);
	take(job, -1, 1, 2, LONGEST, LONGEST);
	CHECK(tutti_wait(&op, -1) == 0);
	CHECK(tutti_recv(job, me, 1, memory, LONGEST, &info, &op) == 0);
	post(job, me, 1, 3, 500000);
	CHECK(tutti_wait(&op, -1) == 0 && info.bytes == 500000 && !memcmp(memory, bytes_of(me, me, 3), 500000));
	CHECK(tutti_send(job, me, 1, memory, 100000, &op) == 0);
	CHECK(tutti_cancel(&op) == 0);
	CHECK(tutti_recv(job, me, 1, memory, 10, NULL, &op) == 0 && tutti_cancel(&op) == 0);
	for (int i = 0; i < 100; i++) { /* more than is kept as a copy: that waits until it is received */
		CHECK(tutti_send(job, me, 2, bytes_of(me, me, (uint32_t)i), TT_MSG_SHORT, i < 60 ? NULL : &other) == 0);
		if (i < 60)
			continue;
		for (int k = i == 60 ? 0 : i; k <= i; k++)
			take(job, me, 2, (uint32_t)k, TT_MSG_SHORT, TT_MSG_SHORT);
		CHECK(tutti_wait(&other, -1) == 0);
	}
	free(memory);
	check_empty(job);
}
static void test_self(void)
{
	on_all((struct ranks){ .size = 1, .program = program_self });
	on_all((struct ranks){ .size = 2, .program = program_self });
}

/* ---- what is not received is bounded ---- */

/* The receiver keeps 1 MiB and 256 announcements, the rest stays with the sender; then all come in order. */
static void program_bounded(tutti *job)
{
	enum { MANY = 1500 };
	tutti_op *op = must(calloc(MANY, sizeof *op));
	size_t len = 2000;
	int ended = 0;

	for (int k = 0; tutti_rank(job) == 0 && k < MANY; k++)
		CHECK(tutti_send(job, 1, 9, bytes_of(0, 1, (uint32_t)k), len, &op[k]) == 0);
	if (tutti_rank(job) == 0) {
		while (tutti_wait(&op[ended], 200) == 0)
			ended++;
		CHECK(ended == TT_MSG_CREDIT_ALL / (int)tt_msg_cost(len));
		tt_lock(job->job);
		CHECK(peer_at(job, 1)->offers == TT_MSG_OFFERS && !tt_list_empty(&peer_at(job, 1)->waiting));
		tt_unlock(job->job);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	tt_lock(job->job);
	CHECK(tutti_rank(job) == 0 || peer_at(job, 0)->announced == TT_MSG_OFFERS);
	CHECK(tutti_rank(job) == 0 || peer_at(job, 0)->kept <= TT_MSG_CREDIT_ALL);
	tt_unlock(job->job);
	for (int k = 0; k < MANY; k++)
		if (tutti_rank(job) == 0)
			CHECK(tutti_wait(&op[k], -1) == 0);
		else
			take(job, k % 3 ? 0 : -1, 9, (uint32_t)k, len, len);
	CHECK(tutti_barrier(job, NULL) == 0);
	check_empty(job);
	free(op);
}
static void test_bounded(void) { on_all((struct ranks){ .size = 2, .program = program_bounded }); }

/* A blocking send that is never received ends with its time; so does a receive; and neither evicts anybody. */
static void program_late(tutti *job)
{
	char *memory = must(calloc(1, 100000));
	uint64_t start = tt_now();

	tutti_group_timeout(job, 300);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_send(job, 1, 1, memory, 100000, NULL) == -ETIMEDOUT);
		CHECK(strstr(tutti_why(), "rank 1") && strstr(tutti_why(), "tag 1"));
	} else {
		CHECK(tutti_recv(job, 0, 2, memory, 100, NULL, NULL) == -ETIMEDOUT);
		CHECK(strstr(tutti_why(), "rank 0") && strstr(tutti_why(), "tag 2"));
		CHECK(tutti_recv(job, -1, 2, memory, 100, NULL, NULL) == -ETIMEDOUT);
	}
	CHECK(tt_now() - start < 3000 * TT_MS);
	free(memory);
	tutti_group_timeout(job, 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	check_empty(job); /* what was given up never comes */
}
static void test_late(void) { on_all((struct ranks){ .size = 2, .program = program_late }); }

/* ---- cancels ---- */

static void program_cancel(tutti *job)
{
	enum { LEN = 1 << 20 };
	char *memory = must(malloc(LEN)), *more = must(malloc(LEN));
	tutti_op op = { 0 }, next = { 0 };

	if (tutti_rank(job) == 0) {
		CHECK(tutti_send(job, 1, 1, bytes_of(0, 1, 1), LEN, &op) == 0);
		CHECK(tutti_barrier(job, NULL) == 0); /* the other one has the announcement */
		CHECK(tutti_cancel(&op) == 0);
		CHECK(tutti_barrier(job, NULL) == 0);
		CHECK(tutti_send(job, 1, 1, bytes_of(0, 1, 2), LEN, &op) == 0);
		CHECK(tutti_send(job, 1, 1, bytes_of(0, 1, 3), 10, &next) == 0);
		CHECK(tutti_wait(&op, -1) == 0 && tutti_wait(&next, -1) == 0);
		/* while it may be read: either all of it comes, or it was never there */
		for (int i = 0; i < 20; i++) {
			memcpy(memory, bytes_of(0, 1, 4), LEN);
			CHECK(tutti_send(job, 1, 2, memory, LEN, &op) == 0);
			pass_time((uint64_t)i * 50000);
			CHECK(tutti_cancel(&op) == 0);
			memset(memory, 0x77, LEN);
		}
		CHECK(tutti_send(job, 1, 2, memory, 1, NULL) == 0);
	} else {
		CHECK(tutti_barrier(job, NULL) == 0);
		CHECK(tutti_barrier(job, NULL) == 0);
		take(job, 0, 1, 2, LEN, LEN);
		take(job, -1, 1, 3, 10, LEN);
		CHECK(tutti_recv(job, 0, 1, memory, LEN, NULL, &op) == 0 && tutti_cancel(&op) == 0);
		for (tutti_message info = { .bytes = LEN }; info.bytes == LEN;) {
			CHECK(tutti_recv(job, 0, 2, more, LEN, &info, NULL) == 0);
			CHECK(info.bytes == 1 || !memcmp(more, bytes_of(0, 1, 4), LEN));
			if (info.bytes != 1 && info.bytes != LEN)
				break;
		}
	}
	free(memory);
	free(more);
	CHECK(tutti_barrier(job, NULL) == 0);
	check_empty(job);
}
static void test_cancel(void) { on_all((struct ranks){ .size = 2, .program = program_cancel }); }

/* The numbers of announcements wrap, and a send whose number would be 0 is taken back like all others. */
static void program_wraps(tutti *job)
{
	char *large = must(calloc(1, 100000));
	tutti_op op = { 0 };

	if (tutti_rank(job) == 0) {
		tt_lock(job->job);
		tt_messages(job->job)->number = UINT32_MAX;
		tt_unlock(job->job);
		CHECK(tutti_send(job, 1, 1, large, 100000, &op) == 0);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	CHECK(tutti_rank(job) == 1 || tutti_cancel(&op) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	check_empty(job);
	free(large);
}
static void test_wraps(void) { on_all((struct ranks){ .size = 2, .program = program_wraps }); }

/* The log says what a rank waits for, also where that is no other rank. */
static void program_logged(tutti *job)
{
	char memory[100], *large = must(calloc(1, 100000));

	tutti_group_timeout(job, 3000);
	CHECK(tutti_recv(job, -1, 6, memory, 100, NULL, NULL) == -ETIMEDOUT);
	CHECK(tutti_send(job, 0, 7, large, 100000, NULL) == -ETIMEDOUT);
	free(large);
}
static void test_logged(void)
{
	struct ranks run = { .size = 1, .wire = "sim", .silence_ms = 1000, .program = program_logged };
	tutti_log_line l;
	int n = 0;

	CU_ASSERT_TRUE_FATAL(tutti_log_open() >= 0);
	CU_ASSERT_EQUAL(run_ranks(run), 0);
	while (tutti_log_next(&l) == 1) {
		n += strstr(l.text, "recv has waited") && strstr(l.text, "for a message with tag 6 from any rank");
		n += strstr(l.text, "send has waited") && strstr(l.text, "for a receive of this rank itself with tag");
	}
	tutti_log_close();
	CU_ASSERT_EQUAL(n, 2);
}

/* ---- groups ---- */

/* The first messages of a part come to ranks that have not heard of it yet. The same tags in two groups. */
static void program_parts(tutti *job)
{
	int n = tutti_size(job), me = tutti_rank(job), color = me % 2;
	tutti *part;

	for (int i = 0; i < 6; i++) {
		if (me == i % n)
			pass_time(20 * TT_MS);
		CHECK(tutti_group_split(job, color, -me, &part) == 0); /* backwards */
		int m = tutti_size(part), k = tutti_rank(part), next = (k + 1) % m, last = (k - 1 + m) % m;
		tutti_op op = { 0 };
		CHECK(tutti_group_member(part, k) == me);
		CHECK(tutti_send(part, next, 1, bytes_of(k, next, 5), 30000, &op) == 0);
		post(part, next, 1, 6, 50);
		post(job, tutti_group_member(part, next), 1, 7, 60);
		take(job, -1, 1, 7, 60, 60);
		take(part, last, 1, 5, 30000, 30000);
		take(part, -1, 1, 6, 50, 50);
		CHECK(tutti_wait(&op, -1) == 0);
		post(part, next, 2, 8, 70); /* left over: goes with the group */
		CHECK(tutti_barrier(job, NULL) == 0);
		tutti_group_free(part);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	check_empty(job);
}
static void test_parts(void) { on_all((struct ranks){ .size = 5, .program = program_parts }); }

/* The first messages of a listed group come to ranks that are late to make it. */
static void program_listed(tutti *job)
{
	const int list[] = { 3, 1, 2 };
	int me = tutti_rank(job);
	tutti *part;

	for (int i = 0; me && i < 6; i++) {
		if (me == 1 + i % 3)
			pass_time(20 * TT_MS);
		CHECK(tutti_group_of(job, list, 3, "listed", &part) == 0);
		int k = tutti_rank(part), next = (k + 1) % 3, last = (k + 2) % 3;
		tutti_op op = { 0 };
		CHECK(tutti_send(part, next, 1, bytes_of(k, next, 5), 30000, &op) == 0);
		post(part, next, 1, 6, 50);
		take(part, last, 1, 5, 30000, 30000);
		take(part, -1, 1, 6, 50, 50);
		CHECK(tutti_wait(&op, -1) == 0);
		CHECK(tutti_barrier(part, NULL) == 0);
		tutti_group_free(part);
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	check_empty(job);
}
static void test_listed(void) { on_all((struct ranks){ .size = 4, .program = program_listed }); }

/* A wait that the program ends leaves nothing of a blocking call. */
static void program_interrupted(tutti *job)
{
	static const volatile int stop = 1;
	char memory[100], *large = must(calloc(1, 100000));

	tutti_on_wait_flag(&stop);
	if (tutti_rank(job) == 0) {
		CHECK(tutti_send(job, 1, 1, large, 100000, NULL) == -EINTR);
		CHECK(tutti_recv(job, 1, 1, memory, 100, NULL, NULL) == -EINTR);
		CHECK(tutti_recv(job, -1, 1, memory, 100, NULL, NULL) == -EINTR);
	}
	tutti_on_wait_flag(NULL);
	memset(large, 0x55, 100000);
	free(large);
	CHECK(tutti_barrier(job, NULL) == 0);
	check_empty(job);
}
static void test_interrupted(void) { on_all((struct ranks){ .size = 2, .program = program_interrupted }); }

/* Of a group that was shrunk all ends, and the new one begins empty. The job's handle goes on. */
static void program_shrunk(tutti *job)
{
	int n = tutti_size(job), me = tutti_rank(job), next = (me + 1) % n, last = (me - 1 + n) % n;
	char memory[64], *large = must(calloc(1, 100000));
	tutti_op send_op = { 0 }, recv_op = { 0 }, any_op = { 0 };
	tutti *part, *left;

	CHECK(tutti_group_split(job, 0, me, &part) == 0);
	CHECK(tutti_send(part, next, 1, large, 100000, &send_op) == 0);
	CHECK(tutti_recv(part, last, 2, memory, 64, NULL, &recv_op) == 0);
	CHECK(tutti_recv(part, -1, 3, memory, 64, NULL, &any_op) == 0);
	post(part, next, 4, 0, 64);
	CHECK(tutti_group_shrink(part, &left) == 0);
	CHECK(tutti_wait(&send_op, -1) == -ESTALE && tutti_wait(&recv_op, -1) == -ESTALE);
	CHECK(tutti_wait(&any_op, -1) == -ESTALE && strstr(tutti_why(), "shrunk"));
	CHECK(tutti_send(part, next, 1, large, 1, NULL) == -ESTALE);
	CHECK(tutti_recv(part, next, 4, memory, 64, NULL, NULL) == -ESTALE);
	post(left, next, 4, 9, 64);
	take(left, last, 4, 9, 64, 64);
	tutti_group_free(part);
	tutti_group_free(left);
	CHECK(tutti_group_shrink(job, &left) == 0);
	post(tutti_job(left), next, 1, 3, 16000);
	take(tutti_job(left), last, 1, 3, 16000, 20000);
	CHECK(tutti_barrier(left, NULL) == 0);
	check_empty(job);
	free(large);
}
static void test_shrunk(void) { on_all((struct ranks){ .size = 3, .program = program_shrunk }); }

static void send_soon(tutti *job)
{
	tutti_op op = { 0 };

	post(job, 0, 5, 1, 100000);
	CHECK(tutti_send(job, 0, 5, bytes_of(tutti_rank(job), 0, 2), 10, &op) == 0);
	CHECK(tutti_wait(&op, -1) == 0);
	take(job, 0, 6, 3, 200000, 200000);
}

/* A rank that has joined late sends and receives with the job's handle, then in the group that takes it in. */
static void program_newcomer(tutti *job)
{
	tutti *again = job, *grown, *handle;
	int me = tutti_rank(job);

	if (me == 1) {
		CHECK(join_again(job, TUTTI_NEW_RANK, &again) == 0);
		handle = tutti_job(again);
		CHECK(tutti_late(again) == 1);
		post(handle, 0, 5, 0, 8);
		send_soon(handle);
		post(handle, tutti_rank(handle), 7, 0, 100);
		take(handle, -1, 7, 0, 100, 100);
	} else if (me == 0) {
		tutti_message info;
		uint64_t x;
		CHECK(tutti_recv(job, -1, 5, &x, 8, &info, NULL) == 0 && info.rank == tutti_size(job));
		take(job, -1, 5, 1, 100000, 100000);
		take(job, info.rank, 5, 2, 10, 10);
		post(job, info.rank, 6, 3, 200000);
	}
	CHECK(tutti_group_grow(again, &grown) == 0);
	int n = tutti_size(grown), k = tutti_rank(grown);
	CHECK(n == 3);
	post(grown, (k + 1) % n, 1, 4, 5000);
	take(grown, (k + 2) % n, 1, 4, 5000, 5000);
	CHECK(tutti_barrier(grown, NULL) == 0);
	check_empty(grown);
	if (me == 1)
		tutti_leave(again);
}
static void test_newcomer(void)
{
	struct ranks run = { .size = 3, .program = program_newcomer };

	for (run.wire = "sim"; run.seed < 4; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

/* ---- ends of ranks ---- */

/* What came before a rank left is received, then the end is said. */
static void program_leaves(tutti *job)
{
	char memory[100];
	tutti_message info;
	struct ranks *run = tt_world ? sim_run_now : this_run;

	if (tutti_rank(job) == 1) {
		for (uint32_t k = 0; k < 5; k++)
			post(job, 0, 1, k, 100);
		run->left[1] = true;
		tutti_leave(job);
		return;
	}
	CHECK(tutti_recv(job, 1, 9, memory, 100, NULL, NULL) == -ENOTCONN);
	CHECK(strstr(tutti_why(), "rank 1"));
	CHECK(tutti_send(job, 1, 1, memory, 100, NULL) == -ENOTCONN);
	for (uint32_t k = 0; tutti_rank(job) == 0 && k < 5; k++)
		take(job, k % 2 ? -1 : 1, 1, k, 100, 100);
	CHECK(tutti_recv(job, 1, 1, memory, 100, &info, NULL) == -ENOTCONN);
	if (tutti_rank(job) == 0)
		CHECK(tutti_recv(job, 2, 3, memory, 1, NULL, NULL) == 0);
	else
		CHECK(tutti_send(job, 0, 3, memory, 1, NULL) == 0);
	check_empty(job);
}
static void test_leaves(void) { on_all((struct ranks){ .size = 3, .program = program_leaves }); }

/* A rank that leaves waits for no receive that nothing matches, nor for a message to itself. */
struct waiting_thread { tutti *job; char memory[100], why[300]; int err; };
static void *receive_in_thread(void *arg)
{
	struct waiting_thread *t = arg;

	t->err = tutti_recv(t->job, -1, 8, t->memory, 100, NULL, NULL);
	snprintf(t->why, sizeof t->why, "%s", tutti_why());
	return NULL;
}

static void program_leave_posted(tutti *job)
{
	struct ranks *run = tt_world ? sim_run_now : this_run;
	int me = tutti_rank(job);
	struct waiting_thread t = { .job = job };
	char memory[2][100], *large = must(calloc(1, 100000));
	tutti_op ops[3] = { 0 };
	uint64_t start = tt_now();
	pthread_t thread;

	CHECK(tutti_recv(job, -1, 1, memory[0], 100, NULL, &ops[0]) == 0);
	CHECK(tutti_recv(job, 1 - me, 2, memory[1], 100, NULL, &ops[1]) == 0);
	CHECK(tutti_send(job, me, 3, large, 100000, &ops[2]) == 0);
	if (!tt_world) {
		CHECK(!pthread_create(&thread, NULL, receive_in_thread, &t));
		pass_time(50 * TT_MS);
	}
	run->left[me] = true;
	tutti_leave(job);
	CHECK(tt_now() - start < 4000 * TT_MS);
	if (!tt_world) {
		pthread_join(thread, NULL);
		CHECK(t.err == -ESHUTDOWN && strstr(t.why, "tutti_leave"));
	}
	free(large);
}
static void test_leave_posted(void)
{
	struct ranks run = { .size = 2, .timeout_ms = 8000, .silence_ms = 1500, .program = program_leave_posted };

	for (run.wire = "sim"; run.seed < 4; run.seed++) {
		memset(run.left, 0, sizeof run.left);
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	}
	memset(run.left, 0, sizeof run.left);
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

/* A rank's number comes again twice before rank 0 receives. The messages of the first life are received first; the
 * second life has sent more than is kept of former lives, so its messages are dropped; then come those of the third. */
static void await_joined(tutti *job, int rank)
{
	tutti_change c = { 0 };

	while (tutti_group_next(job, &c) != 1 || c.what != TUTTI_JOINED)
		pass_time(5 * TT_MS);
	CHECK(c.rank == rank);
}

static void program_former_lives(tutti *job)
{
	enum { EACH = 40, LAST = 5 };
	int me = tutti_rank(job);
	tutti *lives[3] = { job, NULL, NULL };

	if (me == 1) {
		for (uint32_t life = 0; life < 3; life++) {
			if (life && join_again(lives[life - 1], 1, &lives[life]))
				return CHECK(false);
			tutti *handle = tutti_job(lives[life]);
			for (uint32_t k = 0; k < (life == 2 ? LAST : EACH); k++)
				post(handle, 0, 1, life * EACH + k, 16000);
			post(handle, 0, 2 + (int)life, 0, 8);
			take(handle, 2, 9, life, 50, 50);
		}
		take(tutti_job(lives[2]), 0, 5, 1, 100000, 100000);
		tutti_leave(lives[2]);
		return;
	}
	CHECK(tutti_group_watch(job, NULL, NULL) >= (tt_world ? -1 : 0));
	for (uint32_t life = 0; life < 3; life++) {
		if (life)
			await_joined(job, 1);
		if (me == 0)
			take(job, 1, 2 + (int)life, 0, 8, 8);
		if (me == 0)
			post(job, 2, 8, life, 10);
		else
			take(job, 0, 8, life, 10, 10);
		if (me == 2)
			post(job, 1, 9, life, 50);
	}
	for (uint32_t k = 0; me == 0 && k < EACH; k++)
		take(job, k % 2 ? 1 : -1, 1, k, 16000, 16000);
	for (uint32_t k = 0; me == 0 && k < LAST; k++)
		take(job, k % 2 ? 1 : -1, 1, 2 * EACH + k, 16000, 16000);
	if (me == 0)
		post(job, 1, 5, 1, 100000);
	check_empty(job);
}
static void test_former_lives(void)
{
	struct ranks run = { .size = 3, .timeout_ms = 4000, .program = program_former_lives };

	for (run.wire = "sim"; run.seed < 4; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

/* The sender dies while rank 0 reads an announced message: a short message behind, with the same tag, is lost, too. */
static unsigned cut_off;
static void program_cut_off(tutti *job)
{
	char *memory = must(calloc(2, LONGEST));
	tutti_op op = { 0 };

	if (tutti_rank(job) == 1) {
		CHECK(tutti_send(job, 0, 1, memory, LONGEST, &op) == 0);
		post(job, 0, 1, 0, 10);
		post(job, 0, 2, 0, 10);
		tutti_wait(&op, -1);
	} else {
		take(job, 1, 2, 0, 10, 10);
		CHECK(tutti_recv(job, 1, 1, memory, LONGEST, NULL, &op) == 0);
		tt_sim_kill(1, (1 + sim_run_now->seed) * 20000);
		if (tutti_wait(&op, -1)) {
			cut_off++;
			CHECK(tutti_recv(job, 1, 1, memory + LONGEST, 10, NULL, NULL) == -ECONNRESET);
			check_empty(job);
		}
	}
	free(memory);
}
static void test_cut_off(void)
{
	struct ranks run = { .size = 2, .wire = "sim", .timeout_ms = 2000, .program = program_cut_off };

	for (cut_off = 0; run.seed < 20; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	CU_ASSERT(cut_off > 5);
}

/* On sim, rank 1 is killed or stopped at any moment while messages of all kinds go both ways: what comes is whole and
 * in order, everything ends, and nothing that was given back is touched. */
static uint64_t hit_at;
static bool stops;
static unsigned interrupted;

static int exchange(tutti *job, int other, uint32_t k)
{
	size_t len = lengths[k % (LENGTHS - 1)] / (k % 5 == 4 ? 3 : 1);
	int me = tutti_rank(job), err, sent;
	char *out = must(malloc(len + 1)), *in = must(malloc(len + 1));
	tutti_message info;
	tutti_op op = { 0 };

	memcpy(out, bytes_of(me, other, k), len);
	sent = tutti_send(job, other, (int)(k % 3), out, len, &op);
	err = tutti_recv(job, k % 4 ? other : -1, (int)(k % 3), in, len, &info, NULL);
	CHECK(err || (info.bytes == len && info.rank == other && !memcmp(in, bytes_of(other, me, k), len)));
	sent = sent ? sent : tutti_wait(&op, -1);
	memset(out, 0x55, len);
	memset(in, 0x55, len);
	free(out);
	free(in);
	CHECK(!err || err == -ECONNRESET || err == -ETIMEDOUT || tt_sim_killed(me));
	CHECK(!sent || sent == -ECONNRESET || sent == -ETIMEDOUT || tt_sim_killed(me));
	return err ? err : sent;
}

static void program_hit(tutti *job)
{
	int me = tutti_rank(job), err = 0, word = 0;

	tutti_group_timeout(job, me == 2 ? 60000 : 0);
	tutti_barrier(job, NULL); /* all have joined; rank 1 may be hit before it has ended */
	if (me == 0 && stops)
		tt_sim_stop(1, hit_at, 4000 * TT_MS);
	else if (me == 0)
		tt_sim_kill(1, hit_at);
	for (uint32_t k = 0; me < 2 && !err && k < 60; k++)
		err = exchange(job, 1 - me, k);
	CHECK(me != 0 || err != -ECONNRESET || strstr(tutti_why(), "rank 1"));
	interrupted += me == 0 && err;
	if (me == 1)
		return;
	if (me == 2) { /* the others go on */
		CHECK(tutti_recv(job, 0, 7, &word, sizeof word, NULL, NULL) == 0);
		check_empty(job);
		return;
	}
	for (int i = 0; err == -ECONNRESET && i < 40; i++) { /* what was kept, then the end */
		char *memory = must(malloc(LONGEST));
		int last = tutti_recv(job, 1, i % 3, memory, LONGEST, NULL, NULL);
		CHECK(!last || last == -ECONNRESET);
		free(memory);
	}
	CHECK(tutti_send(job, 2, 7, &word, sizeof word, NULL) == 0);
	if (err == -ECONNRESET)
		check_empty(job);
}

static void test_hit(void)
{
	struct ranks run = { .size = 3, .wire = "sim", .timeout_ms = 2000, .program = program_hit };
	struct tt_random r;

	for (; run.seed < 10 * SEEDS; run.seed++) {
		tt_random_seed(&r, run.seed);
		hit_at = tt_random_below(&r, run.seed % 3 ? 20 * TT_MS : TT_MS);
		stops = run.seed % 4 == 3;
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	}
	CU_ASSERT(interrupted > 5 * SEEDS);
}

/* ---- any sizes, tags and orders ---- */

enum { RANKS = 4, FLIGHT = 32, NEAR = 16, TAGS = 5 };
static uint32_t per_pair;

struct letter { int tag; size_t len; };
static struct letter letter_of(int from, int to, uint32_t k)
{
	uint32_t x = ((uint32_t)(from * 16 + to) * 0x9e3779b1u) ^ k * 0x85ebca6bu;
	struct letter l;

	x = (x ^ x >> 15) * 0x2c1b3c6du;
	x = (x ^ x >> 12) * 0x297a2d39u;
	x ^= x >> 15;
	l.tag = (int)(x % TAGS);
	x /= TAGS;
	l.len = x % 512 == 0 ? (x >> 9) % 400000 : x % 16 == 0 ? (x >> 4) % 40000 : (x >> 4) % 300;
	return l;
}

struct flight { tutti_op op; bool runs; uint32_t k; size_t len; char *memory; tutti_message info; };
struct way { /* to or from one rank */
	uint32_t next, done;         /* sends that were started; messages that have ended */
	uint32_t of_tag[TAGS];       /* the next message with that tag which no receive was started for */
	struct flight in_flight[FLIGHT];
};

static uint32_t next_with(int from, int to, int tag, uint32_t k)
{
	while (k < per_pair && letter_of(from, to, k).tag != tag)
		k++;
	return k;
}

static struct flight *idle_in(struct way *w)
{
	for (int i = 0; i < FLIGHT; i++)
		if (!w->in_flight[i].runs)
			return &w->in_flight[i];
	return NULL;
}

static void start_send(tutti *job, int to, struct way *w)
{
	struct flight *f = idle_in(w);
	int me = tutti_rank(job);

	if (!f || w->next == per_pair)
		return;
	struct letter l = letter_of(me, to, w->next);
	f->memory = must(malloc(l.len + 1));
	memcpy(f->memory, bytes_of(me, to, w->next), l.len);
	f->len = l.len;
	f->k = w->next++;
	f->runs = true;
	CHECK(tutti_send(job, to, l.tag, f->memory, l.len, &f->op) == 0);
}

/* With any tag whose next message is not far ahead of the first one that is not received. */
static void start_receive(tutti *job, int from, struct way *w, struct tt_random *r)
{
	struct flight *f = idle_in(w);
	int me = tutti_rank(job), tag = (int)tt_random_below(r, TAGS);
	uint32_t first = per_pair;

	for (int t = 0; t < TAGS; t++)
		first = w->of_tag[t] < first ? w->of_tag[t] : first;
	if (!f || first == per_pair)
		return;
	if (w->of_tag[tag] >= per_pair || w->of_tag[tag] > first + NEAR)
		return;
	struct letter l = letter_of(from, me, w->of_tag[tag]);
	f->k = w->of_tag[tag];
	w->of_tag[tag] = next_with(from, me, tag, f->k + 1);
	f->len = l.len;
	f->memory = must(malloc(l.len + 100));
	f->runs = true;
	CHECK(tutti_recv(job, from, tag, f->memory, l.len + tt_random_below(r, 2) * 100, &f->info, &f->op) == 0);
}

static void end_flights(tutti *job, struct way *w, int other, bool sends, bool wait)
{
	int me = tutti_rank(job);

	for (int i = 0; i < FLIGHT; i++) {
		struct flight *f = &w->in_flight[i];
		int err = f->runs ? tutti_wait(&f->op, wait ? 2000 : 0) : -EINPROGRESS;
		if (err == -EINPROGRESS)
			continue;
		CHECK(err == 0);
		CHECK(sends || (f->info.bytes == f->len && f->info.rank == other &&
		                !memcmp(f->memory, bytes_of(other, me, f->k), f->len)));
		memset(f->memory, 0x55, f->len);
		free(f->memory);
		f->runs = false;
		w->done++;
	}
}

static void program_letters(tutti *job)
{
	struct way *out = must(calloc(RANKS, sizeof *out)), *in = must(calloc(RANKS, sizeof *in));
	int me = tutti_rank(job);
	struct tt_random r;
	bool over = false;

	tt_random_seed(&r, (uint64_t)me + 17);
	for (int i = 0; i < RANKS; i++)
		for (int t = 0; t < TAGS; t++)
			in[i].of_tag[t] = next_with(i, me, t, 0);
	while (!over) {
		over = true;
		for (int i = 0; i < RANKS; i++) {
			for (int k = (int)tt_random_below(&r, 20); k--;)
				start_send(job, i, &out[i]);
			for (int k = (int)tt_random_below(&r, 40); k--;)
				start_receive(job, i, &in[i], &r);
			end_flights(job, &out[i], i, true, false);
			end_flights(job, &in[i], i, false, false);
			over &= out[i].done == per_pair && in[i].done == per_pair;
		}
	}
	CHECK(tutti_barrier(job, NULL) == 0);
	check_empty(job);
	free(out);
	free(in);
}

static void test_letters(void)
{
	struct ranks run = { .size = RANKS, .wire = "sim", .program = program_letters };

	for (per_pair = 300; run.seed < 3; run.seed++)
		CU_ASSERT_EQUAL(run_ranks(run), 0);
	per_pair = (uint32_t)all_or(1000000 / (RANKS * RANKS) + 1, 4000);
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

static CU_TestInfo tests[] = {
	{ "lengths", test_lengths },
	{ "arguments", test_arguments },
	{ "tags", test_tags },
	{ "from any rank", test_any },
	{ "too small", test_small },
	{ "to itself", test_self },
	{ "bounded", test_bounded },
	{ "out of time", test_late },
	{ "cancelled", test_cancel },
	{ "numbers wrap", test_wraps },
	{ "what the log says", test_logged },
	{ "parts of a group", test_parts },
	{ "listed groups", test_listed },
	{ "interrupted", test_interrupted },
	{ "groups that are shrunk", test_shrunk },
	{ "ranks that join late", test_newcomer },
	{ "a rank that leaves", test_leaves },
	{ "a rank that leaves with posted receives", test_leave_posted },
	{ "former lives of a rank", test_former_lives },
	{ "a sender that dies while its bytes are read", test_cut_off },
	{ "a rank that is killed or stopped", test_hit },
	{ "any sizes, tags, orders", test_letters },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "messages", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv)
{
	fill_sequence();
	return run_suites(suites, argc, argv);
}
