/* unit_interface.c - what the whole public interface shares: words that structs keep for later, the number of the
 * interface */
#include "base/base.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include "tests/harness/with.h"
#include <limits.h>
#include <math.h>

static void on_wires(int size, void (*program)(tutti *))
{
	static const char *const wires[] = { "sim", "tcp", "shm" };

	for (size_t i = 0; i < TT_COUNT(wires); i++)
		CU_ASSERT_EQUAL(run_ranks((struct ranks){ .wire = wires[i], .size = size, .program = program }), 0);
}

static bool why_has(const char *word) { return strstr(tutti_why(), word) != NULL; }

/* ---- words that are kept for later ---- */

/* Sets each word in turn, and asks that the call refuses the struct, by its name and the word's. */
#define REFUSES(words, name, call) do { \
	for (size_t w_ = 0; w_ < TT_COUNT(words); w_++) { \
		char word_[16]; \
		(words)[w_] = UINT64_C(1) << 8 * w_ % 64; \
		snprintf(word_, sizeof word_, "reserved[%zu]", w_); \
		tt_remember(""); \
		CHECK((call) == -EINVAL && why_has(word_) && why_has(name)); \
		(words)[w_] = 0; \
	} \
} while (0)

static void refuse_configs(tutti *job)
{
	tutti_table_config t = tutti_table_f32(2, tutti_sgd(1));
	tutti_center_config c = tutti_center_easgd(1, 0.5);
	tutti_gossip_config g = tutti_gossip_defaults();
	tutti_config j = tutti_config_defaults();
	float x[2] = { 0 };
	const tutti_tensor model = { x, 2, TUTTI_F32 };
	tutti_center *center;
	tutti_publisher_config p = { .buffers = 3 };
	tutti_weight weight = { .name = "x", .dims = 1, .shape = { 2 }, .data = x };
	tutti_publisher *publisher;
	tutti_gossip *gossip;
	tutti_table *table;
	tutti *other;

	REFUSES(j.reserved, "tutti_config", tutti_join(&j, &other));
	REFUSES(t.reserved, "tutti_table_config", tutti_table_open(job, "t", &t, &table));
	REFUSES(t.updater.reserved, "tutti_updater", tutti_table_open(job, "t", &t, &table));
	REFUSES(t.updater.defaults.reserved, "tutti_update", tutti_table_open(job, "t", &t, &table));
	REFUSES(t.consistency.reserved, "tutti_consistency", tutti_table_open(job, "t", &t, &table));
	REFUSES(c.reserved, "tutti_center_config", tutti_center_open(job, "c", &model, 1, &c, &center));
	REFUSES(c.updater.reserved, "tutti_updater", tutti_center_open(job, "c", &model, 1, &c, &center));
	REFUSES(c.consistency.reserved, "tutti_consistency", tutti_center_open(job, "c", &model, 1, &c, &center));
	REFUSES(g.reserved, "tutti_gossip_config", tutti_gossip_open(job, "g", &model, 1, &g, &gossip));
	REFUSES(g.reserved, "tutti_gossip_config", tutti_gossip_configure(job, &g));
	REFUSES(p.reserved, "tutti_publisher_config", tutti_publisher_open(job, "p", &weight, 1, &p, &publisher));
	REFUSES(weight.reserved, "tutti_weight", tutti_publisher_open(job, "p", &weight, 1, &p, &publisher));
}

static void refuse_options(tutti *job)
{
	tutti_table_config c = tutti_table_rows(TUTTI_F32, 2, 1, tutti_sgd(1));
	tutti_update options = tutti_update_defaults();
	tutti_consistency as = { .mode = TUTTI_ASYNC };
	float x[2] = { 0 }, values[2];
	const uint64_t row = 1;
	tutti_table *t;

	CHECK(tutti_table_open(job, "t", &c, &t) == 0);
	REFUSES(options.reserved, "tutti_update", tutti_table_push(t, x, &options, NULL));
	REFUSES(options.reserved, "tutti_update", tutti_table_push_pull(t, x, &options, values, NULL));
	REFUSES(options.reserved, "tutti_update", tutti_table_push_rows(t, &row, 1, x, &options, NULL));
	REFUSES(as.reserved, "tutti_consistency", tutti_table_switch(t, &as));
	CHECK(tutti_table_push(t, x, &options, NULL) == 0 && tutti_table_switch(t, &as) == 0);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(t);
}

static bool are_zero(const uint64_t *words, size_t n)
{
	uint64_t all = 0;

	for (size_t i = 0; i < n; i++)
		all |= words[i];
	return !all;
}

#define ZERO(from) are_zero((from).reserved, TT_COUNT((from).reserved))

/* What the library fills has zeros in its words, whatever was there before. */
static void fill_results(tutti *job)
{
	tutti_table_config c = WITH(tutti_table_f32(2, tutti_sgd(1)), it.flags = TUTTI_TABLE_SNAPSHOTS);
	float x[2] = { 0 };
	const tutti_tensor model = { x, 2, TUTTI_F32 };
	tutti_gossip_config g = tutti_gossip_defaults();
	tutti_gossip_result result;
	tutti_gossip_info gossip_info;
	tutti_table_info info;
	tutti_versions versions;
	tutti_peer peer;
	tutti_stat stat;
	tutti_gossip *gossip;
	tutti_table *t;

	memset(&peer, 0xff, sizeof peer);
	memset(&stat, 0xff, sizeof stat);
	memset(&info, 0xff, sizeof info);
	memset(&versions, 0xff, sizeof versions);
	memset(&result, 0xff, sizeof result);
	memset(&gossip_info, 0xff, sizeof gossip_info);
	CHECK(tutti_group_peer(job, 0, &peer) == 0 && ZERO(peer));
	CHECK(tutti_stats(job, -1, TUTTI_STAT_PUT, &stat) == 0 && ZERO(stat));
	CHECK(tutti_table_open(job, "t", &c, &t) == 0);
	CHECK(tutti_table_look(t, &info) == 0 && ZERO(info));
	CHECK(tutti_table_snapshot(t, x, &versions, NULL) == 0 && ZERO(versions));
	CHECK(tutti_gossip_open(job, "g", &model, 1, &g, &gossip) == 0 && tutti_gossip_publish(gossip, 1) == 0);
	CHECK(tutti_gossip_mix(gossip, 1, &result) == 0 && ZERO(result));
	CHECK(tutti_gossip_look(gossip, &gossip_info) == 0 && ZERO(gossip_info));
	tutti_gossip_close(gossip);
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(t);
}

static void keep_words(tutti *job)
{
	refuse_configs(job);
	refuse_options(job);
	fill_results(job);
}

static void test_words(void) { on_wires(2, keep_words); }

static void test_defaults(void)
{
	CU_ASSERT(ZERO(tutti_config_defaults()) && ZERO(tutti_update_defaults()) && ZERO(tutti_gossip_defaults()));
	CU_ASSERT(ZERO(tutti_adam(1)) && ZERO(tutti_adam(1).defaults) && ZERO(tutti_own(NULL, NULL, 0)));
	CU_ASSERT(ZERO(tutti_table_f32(1, tutti_assign())) && ZERO(tutti_table_keys(TUTTI_F32, 1, tutti_assign())));
	CU_ASSERT(ZERO(tutti_table_rows(TUTTI_F32, 1, 1, tutti_sgd(1)).consistency));
	CU_ASSERT(ZERO(tutti_center_easgd(1, 0.5)) && ZERO(tutti_center_outer(1, NAN, NAN).updater));
}

static void test_abi(void) { CU_ASSERT(tutti_abi() == TUTTI_ABI && TUTTI_ABI > 0); }

/* ---- looking up ---- */

static void look_up(tutti *job)
{
	tutti_table_config c = tutti_table_keys(TUTTI_F64, 7, tutti_adam(0.1));
	char memory[64];
	int me = tutti_rank(job), n = tutti_size(job);
	tutti_table_info info;
	tutti_window *w;
	tutti_peer peer;
	tutti_table *t;
	size_t bytes = 1;

	CHECK(tutti_window_open(job, "w", memory, (size_t)me * 16, &w) == 0);
	for (int i = 0; i < n; i++)
		CHECK(tutti_window_bytes(w, i, &bytes) == 0 && bytes == (size_t)i * 16);
	CHECK(tutti_window_bytes(w, n, &bytes) == -EINVAL && tutti_window_bytes(w, 0, NULL) == -EINVAL);
	CHECK(tutti_window_bytes(NULL, 0, &bytes) == -EINVAL && bytes == (size_t)(n - 1) * 16);
	c.count = 100;
	CHECK(tutti_table_open(job, "t", &c, &t) == 0 && tutti_table_look(t, &info) == 0);
	CHECK(info.type == TUTTI_F64 && info.rule == TUTTI_UPDATE_ADAM && info.count == 100 && info.row == 7);
	for (int i = 0; i < n; i++) {
		bool here = !tt_world || i % 2 == me % 2; /* two hosts */
		CHECK(tutti_group_peer(job, i, &peer) == 0 && peer.local == here);
	}
	CHECK(!strcmp(tutti_job_name(job), "") && !tutti_job_name(NULL));
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_table_close(t);
	tutti_window_close(w);
}

static void test_look_up(void)
{
	struct ranks run = { .wire = "sim", .size = 3, .hosts = 2, .program = look_up };

	CU_ASSERT_EQUAL(run_ranks(run), 0);
	run.hosts = 0;
	CU_ASSERT_EQUAL(run_real_ranks(run), 0);
}

/* The sentence of an operation, for a thread that does not wait for it. */
static void ask_why(tutti *job)
{
	char memory[8], got[8], text[200] = "x", cut[6];
	tutti_op idle = { 0 }, op = { 0 };
	tutti_window *w;

	CHECK(tutti_window_open(job, "w", memory, sizeof memory, &w) == 0);
	CHECK(tutti_op_why(&idle, text, sizeof text) == 0 && !*text);
	CHECK(tutti_get(w, 1 - tutti_rank(job), 4, got, 8, &op) == 0);
	while (tutti_op_why(&op, text, sizeof text) == -EINPROGRESS) {
		CHECK(!*text);
		tutti_wait(&op, 1);
	}
	tt_remember("mine");
	CHECK(tutti_op_why(&op, text, sizeof text) == -ERANGE && strstr(text, "outside the window"));
	CHECK(tutti_op_why(&op, cut, sizeof cut) == -ERANGE && !strncmp(cut, text, 5) && !cut[5]);
	CHECK(!strcmp(tutti_why(), "mine"));
	CHECK(tutti_op_why(&op, NULL, 0) == -ERANGE && tutti_op_why(&op, NULL, 4) == -EINVAL);
	CHECK(tutti_op_why(NULL, text, sizeof text) == -EINVAL);
	CHECK(tutti_test(&op) == -ERANGE && why_has("outside the window"));
	CHECK(tutti_barrier(job, NULL) == 0);
	tutti_window_close(w);
}

static void test_op_why(void) { on_wires(2, ask_why); }

static void test_error_names(void)
{
	CU_ASSERT_STRING_EQUAL(tutti_error_name(-ETIMEDOUT), "ETIMEDOUT");
	CU_ASSERT_STRING_EQUAL(tutti_error_name(ESTALE), "ESTALE");
	CU_ASSERT_STRING_EQUAL(tutti_error_name(-EAGAIN), "EAGAIN");
	CU_ASSERT(!tutti_error_name(0) && !tutti_error_name(-100000) && !tutti_error_name(INT_MIN));
}

static CU_TestInfo look_tests[] = { { "look up", test_look_up },
	                            { "why", test_op_why },
	                            { "error names", test_error_names },
	                            CU_TEST_INFO_NULL };
static CU_TestInfo growth_tests[] = { { "words", test_words },
	                              { "defaults", test_defaults },
	                              { "abi", test_abi },
	                              CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "growth", NULL, NULL, NULL, NULL, growth_tests },
	                         { "looking", NULL, NULL, NULL, NULL, look_tests },
	                         CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
