/* unit_interface.c - what the whole public interface shares: words that structs keep for later, the number of the
 * interface */
#include "base/base.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"
#include "tests/harness/with.h"

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

static CU_TestInfo growth_tests[] = { { "words", test_words },
	                              { "defaults", test_defaults },
	                              { "abi", test_abi },
	                              CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "growth", NULL, NULL, NULL, NULL, growth_tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
