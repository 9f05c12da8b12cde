/* unit_place.c - who runs where: sets of CPUs, TUTTI_PIN, how ranks share cores out, machines and what is near on them,
 * and that threads and memory of a job really are where they should be. Machines are made up, described, or read from
 * tests/topology. */
#include "engine/engine.h"
#include "member/member.h"
#include "tests/harness/cunit_main.h"
#include "topology/topology.h"
#include <dirent.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static struct tt_cpus cpus(const char *list)
{
	struct tt_cpus s = { { 0 } };

	if (*list)
		CU_ASSERT_TRUE(tt_cpus_parse(&s, list));
	return s;
}

static const char *text(const struct tt_cpus *s)
{
	static char ring[4][4096];
	static unsigned next;

	return tt_cpus_text(s, ring[next++ % 4], sizeof ring[0]);
}

static bool are(const struct tt_cpus *s, const char *list)
{
	if (!strcmp(text(s), list))
		return true;
	printf("CPU %s rather than %s\n", text(s), list);
	return false;
}

/* ---- sets ---- */

static void test_lists_are_read(void)
{
	struct tt_cpus s = cpus("8,0-3,16-22:2\n");

	CU_ASSERT_EQUAL(tt_cpus_count(&s), 9);
	CU_ASSERT_TRUE(are(&s, "0-3,8,16,18,20,22"));
	CU_ASSERT_TRUE(tt_cpus_has(&s, 20) && !tt_cpus_has(&s, 21) && !tt_cpus_has(&s, -1) &&
	               !tt_cpus_has(&s, TT_CPUS));
	s = cpus("4095");
	CU_ASSERT_TRUE(are(&s, "4095"));
	s = cpus("0-4095");
	CU_ASSERT_EQUAL(tt_cpus_count(&s), TT_CPUS);
}

static void test_what_is_no_list(void)
{
	static const char *const bad[] = { "",    ",",    "1,",     ",1",
		                           "3-1", "1-",   "-1",     "1--2",
		                           "a",   "1 2",  "1;2",    "0-7:0",
		                           "1:2", "4096", "0-4096", "99999999999999999999",
		                           "0x1", "1\n2", "0-3 " };

	for (size_t i = 0; i < TT_COUNT(bad); i++) {
		struct tt_cpus s = cpus("5");
		bool is_list = tt_cpus_parse(&s, bad[i]);
		CU_ASSERT_FALSE(is_list);
		if (is_list)
			printf("\"%s\" was taken for a list\n", bad[i]);
		CU_ASSERT_TRUE(are(&s, "5")); /* and is left alone */
	}
}

static void test_long_sets_are_cut(void)
{
	struct tt_cpus s = cpus("0-100:2");
	char room[12];

	CU_ASSERT_STRING_EQUAL(tt_cpus_text(&s, room, sizeof room), "0,2,4,6...");
	s = cpus("");
	CU_ASSERT_STRING_EQUAL(tt_cpus_text(&s, room, sizeof room), "");
}

static void test_sets_in_sets(void)
{
	struct tt_cpus a = cpus("0-3,64"), b = cpus("0-9,64"), c = cpus("2,65");

	CU_ASSERT_TRUE(tt_cpus_within(&a, &b) && !tt_cpus_within(&b, &a));
	tt_cpus_keep(&c, &b);
	CU_ASSERT_TRUE(are(&c, "2"));
}

/* ---- TUTTI_PIN ---- */

static int read_pin(const char *value, struct tt_pin_rule *rule)
{
	struct tt_settings settings;

	CU_ASSERT_EQUAL(tt_settings_load(&settings), 0);
	CU_ASSERT_EQUAL(tt_settings_set(&settings, TT_PIN, value, "environment"), 0);
	int err = tt_pin_read(&settings, rule);
	tt_settings_free(&settings);
	return err;
}

static bool says(const char *words) /* all of them, separated by | */
{
	char room[200], *at = room, *word;

	snprintf(room, sizeof room, "%s", words);
	while ((word = strsep(&at, "|")))
		if (!strstr(tt_why(), word)) {
			printf("no \"%s\" in: %s\n", word, tt_why());
			return false;
		}
	return true;
}

static void test_policies(void)
{
	static const char *const names[] = { "auto", "compact", "spread", "none", "0-3,8" };
	static const enum tt_pin_kind pins[] = { TT_PIN_AUTO, TT_PIN_COMPACT, TT_PIN_SPREAD, TT_PIN_NONE, TT_PIN_LIST };
	struct tt_pin_rule rule;

	for (size_t i = 0; i < TT_COUNT(names); i++) {
		CU_ASSERT_EQUAL(read_pin(names[i], &rule), 0);
		CU_ASSERT_EQUAL(rule.pin, pins[i]);
	}
	CU_ASSERT_TRUE(are(&rule.list, "0-3,8"));
	CU_ASSERT_EQUAL(read_pin("abc", &rule), -EINVAL);
	CU_ASSERT_TRUE(says("TUTTI_PIN=abc|auto, compact, spread, none|0-3,8"));
	CU_ASSERT_EQUAL(read_pin("3-1", &rule), -EINVAL);
	CU_ASSERT_TRUE(says("TUTTI_PIN=3-1|no list|0-3,8"));
}

static int check(const char *value, const char *allowed, const char *there)
{
	struct tt_cpus a = cpus(allowed), t = cpus(there);
	struct tt_settings settings;
	struct tt_pin_rule rule;

	CU_ASSERT_EQUAL(tt_settings_load(&settings), 0);
	CU_ASSERT_EQUAL(tt_settings_set(&settings, TT_PIN, value, "file"), 0);
	CU_ASSERT_EQUAL(tt_pin_read(&settings, &rule), 0);
	int err = tt_pin_check(&settings, &rule, &a, &t);
	tt_settings_free(&settings);
	return err;
}

static void test_lists_within_bounds(void)
{
	CU_ASSERT_EQUAL(check("0-3", "0-3", "0-7"), 0);
	CU_ASSERT_EQUAL(check("2", "0-3", "0-7"), 0);
	CU_ASSERT_EQUAL(check("spread", "9", "0-7"), 0);
	CU_ASSERT_EQUAL(check("2,8", "0-3", "0-7"), -EINVAL);
	CU_ASSERT_TRUE(says("pin=2,8|there is no CPU 8|0-7|tutti info --topology"));
	CU_ASSERT_EQUAL(check("2-5", "0-3", "0-7"), -EINVAL);
	CU_ASSERT_TRUE(says("CPU 4|taskset|cgroup|launcher|some of 0-3"));
}

/* ---- sharing out ---- */

enum { PUS_MAX = 1024 };
struct machine {
	struct tt_pu pus[PUS_MAX];
	int n, cores, nodes;
	struct tt_cpus all;
};

/* Hyperthreads are numbered as Linux does: first one of each core. */
static void make_machine(struct machine *m, int packages, int nodes, int cores, int threads)
{
	int per_package = nodes * cores, all = packages * per_package;

	memset(m, 0, sizeof *m);
	m->cores = all;
	m->nodes = packages * nodes;
	for (int c = 0; c < all; c++)
		for (int t = 0; t < threads; t++) {
			m->pus[m->n++] = (struct tt_pu){ c + t * all, c, c / per_package * per_package, c / cores };
			tt_cpus_add(&m->all, c + t * all);
		}
}

static struct tt_partition share(const struct machine *m, enum tt_pin_kind pin, const struct tt_cpus *allowed, int rank,
                                 int ranks)
{
	struct tt_pin_rule rule = { .pin = pin };
	struct tt_partition s;

	tt_partition_cores(m->pus, m->n, &rule, allowed ? allowed : &m->all, rank, ranks, &s);
	return s;
}

static void test_spread_by_hand(void)
{
	struct machine m;
	struct tt_partition s;

	make_machine(&m, 2, 1, 8, 2);
	s = share(&m, TT_PIN_SPREAD, NULL, 0, 2);
	CU_ASSERT_TRUE(are(&s.cpus, "0-7,16-23") && are(&s.background, "7,23"));
	CU_ASSERT_TRUE(s.cores == 8 && s.node == 0);
	s = share(&m, TT_PIN_SPREAD, NULL, 1, 2);
	CU_ASSERT_TRUE(are(&s.cpus, "8-15,24-31") && s.node == 1);
	s = share(&m, TT_PIN_SPREAD, NULL, 2, 3); /* 16 cores, 2 packages: 1 and 2 ranks */
	CU_ASSERT_TRUE(are(&s.cpus, "12-15,28-31") && s.node == 1);
	s = share(&m, TT_PIN_SPREAD, NULL, 0, 1);
	CU_ASSERT_TRUE(s.cores == 16 && s.node == -1 && are(&s.background, "7,23"));
	s = share(&m, TT_PIN_SPREAD, NULL, 15, 16);
	CU_ASSERT_TRUE(are(&s.cpus, "15,31") && are(&s.background, "31"));
}

static void test_compact_by_hand(void)
{
	struct machine m;
	struct tt_partition s;

	make_machine(&m, 2, 1, 8, 2);
	s = share(&m, TT_PIN_COMPACT, NULL, 1, 2);
	CU_ASSERT_TRUE(are(&s.cpus, "2-3,18-19") && are(&s.background, "3,19"));
	CU_ASSERT_EQUAL(s.node, 0);
	s = share(&m, TT_PIN_COMPACT, NULL, 9, 12); /* not two for each */
	CU_ASSERT_TRUE(are(&s.cpus, "9,25") && s.node == 1);
}

static void test_crowded(void)
{
	static const enum tt_pin_kind pins[] = { TT_PIN_AUTO, TT_PIN_COMPACT, TT_PIN_SPREAD, TT_PIN_NONE };
	struct machine m;
	struct tt_cpus core;

	make_machine(&m, 1, 1, 4, 2); /* 8 CPUs, but 4 cores */
	for (size_t i = 0; i < TT_COUNT(pins); i++) {
		struct tt_partition s = share(&m, pins[i], NULL, 3, 5);
		CU_ASSERT_EQUAL(s.cores, 0);
		CU_ASSERT_TRUE(are(&s.cpus, "0-7") && are(&s.background, "0-7"));
		CU_ASSERT_EQUAL(s.node, 0);
		CU_ASSERT_FALSE(tt_partition_core(m.pus, m.n, &s, 0, &core));
	}
}

static void test_list_is_what_is_shared(void)
{
	struct machine m;
	struct tt_pin_rule rule = { .pin = TT_PIN_LIST, .list = cpus("3-6,9,22") };
	struct tt_cpus allowed = cpus("0-15,22");
	struct tt_partition s;

	make_machine(&m, 2, 1, 8, 2);
	tt_partition_cores(m.pus, m.n, &rule, &allowed, 0, 3, &s);
	CU_ASSERT_TRUE(are(&s.cpus, "3-4"));
	tt_partition_cores(m.pus, m.n, &rule, &allowed, 1, 3, &s);
	CU_ASSERT_TRUE(are(&s.cpus, "5-6,22") && s.cores == 2); /* 22 is core 6's other thread */
	tt_partition_cores(m.pus, m.n, &rule, &allowed, 2, 3, &s);
	CU_ASSERT_TRUE(are(&s.cpus, "9") && s.node == 1);
}

static void test_cores_of_a_share(void)
{
	struct machine m;
	struct tt_cpus core;

	make_machine(&m, 2, 1, 8, 2);
	struct tt_partition s = share(&m, TT_PIN_SPREAD, NULL, 1, 4);
	CU_ASSERT_TRUE(tt_partition_core(m.pus, m.n, &s, 0, &core) && are(&core, "4,20"));
	CU_ASSERT_TRUE(tt_partition_core(m.pus, m.n, &s, 3, &core) && are(&core, "7,23"));
	CU_ASSERT_TRUE(tt_partition_core(m.pus, m.n, &s, 4, &core) && are(&core, "4,20"));
}

static int cores_of(const struct machine *m, const struct tt_cpus *s, struct tt_cpus *cores)
{
	memset(cores, 0, sizeof *cores);
	for (int i = 0; i < m->n; i++)
		if (tt_cpus_has(s, m->pus[i].cpu))
			tt_cpus_add(cores, m->pus[i].core);
	return tt_cpus_count(cores);
}

static bool node_is_right(const struct machine *m, const struct tt_partition *s)
{
	int node = -2;

	for (int i = 0; i < m->n; i++)
		if (tt_cpus_has(&s->cpus, m->pus[i].cpu))
			node = node == -2 || node == m->pus[i].node ? m->pus[i].node : -1;
	return s->node == node;
}

/* What must hold of any machine, any restriction and any number of ranks. Returns how many cores are left over. */
static int try_all_ranks(const struct machine *m, enum tt_pin_kind pin, const struct tt_cpus *allowed, int ranks,
                         bool *good)
{
	struct tt_cpus taken = { { 0 } }, cores, mine;
	int all = cores_of(m, allowed, &cores), least = all, most = 0;

	for (int r = 0; r < ranks; r++) {
		struct tt_partition s = share(m, pin, allowed, r, ranks);
		int n = cores_of(m, &s.cpus, &mine);
		struct tt_cpus both = mine;
		tt_cpus_keep(&both, &taken);
		*good &= tt_cpus_within(&s.cpus, allowed) && tt_cpus_within(&s.background, allowed) &&
			         tt_cpus_count(&s.background) > 0;
		*good &= n == s.cores && n > 0 && !tt_cpus_count(&both); /* no core twice */
		*good &= pin == TT_PIN_AUTO || tt_cpus_within(&s.background, &s.cpus);
		*good &= node_is_right(m, &s);
		for (size_t i = 0; i < TT_COUNT(taken.word); i++)
			taken.word[i] |= mine.word[i];
		least = n < least ? n : least;
		most = n > most ? n : most;
	}
	*good &= pin != TT_PIN_COMPACT || (most <= 2 && least == most);
	return all - tt_cpus_count(&taken);
}

static void test_any_machine(void)
{
	static const enum tt_pin_kind pins[] = { TT_PIN_AUTO, TT_PIN_COMPACT, TT_PIN_SPREAD };
	static struct machine m;
	struct tt_random random;

	tt_random_seed(&random, 4);
	for (int turn = 0; turn < 300; turn++) {
		int packages = 1 + (int)tt_random_below(&random, 4), nodes = 1 + (int)tt_random_below(&random, 4);
		int cores = 1 + (int)tt_random_below(&random, 12), threads = 1 + (int)tt_random_below(&random, 4);
		struct tt_cpus allowed = { { 0 } }, left;
		bool good = true;
		make_machine(&m, packages, nodes, cores, threads);
		for (int i = 0; i < m.n; i++)
			if (turn % 2 == 0 || tt_random_below(&random, 3))
				tt_cpus_add(&allowed, m.pus[i].cpu);
		int there = cores_of(&m, &allowed, &left);
		int ranks = there ? 1 + (int)tt_random_below(&random, (uint64_t)there) : 0;
		for (size_t i = 0; i < TT_COUNT(pins) && ranks; i++) {
			int over = try_all_ranks(&m, pins[i], &allowed, ranks, &good);
			good &= pins[i] == TT_PIN_COMPACT || over < there - ranks + 1;
			/* of a whole machine nothing is left over */
			good &= pins[i] == TT_PIN_COMPACT || turn % 2 || over == 0;
		}
		CU_ASSERT_TRUE(good);
		if (!good)
			printf("turn %d: %d packages, %d nodes, %d cores, %d threads, %d ranks on CPU %s\n", turn,
			       packages, nodes, cores, threads, ranks, text(&allowed));
	}
}

static void test_nodes_are_kept_whole(void)
{
	static struct machine m;

	make_machine(&m, 2, 2, 6, 2);
	for (int ranks = 4; ranks <= m.cores; ranks++)
		for (int r = 0; r < ranks; r++)
			CU_ASSERT_TRUE(share(&m, TT_PIN_SPREAD, NULL, r, ranks).node >= 0);
}

/* ---- machines ---- */

static void put_file(const char *dir, const char *name, const char *content)
{
	char path[400], *slash;

	snprintf(path, sizeof path, "%s/devices/system/%s", dir, name);
	for (slash = path + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		mkdir(path, 0700);
		*slash = '/';
	}
	FILE *f = fopen(path, "w");
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	fputs(content, f);
	fclose(f);
}

/* Two packages whose CPUs alternate, each a node of its own, two threads a core, CPU 6 off. */
static void test_kernel_files(void)
{
	char dir[] = "/tmp/tutti-place-XXXXXX", name[80], command[80];
	struct tt_pu *pus = NULL;
	int n = 0;

	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(dir));
	CU_ASSERT_EQUAL(tt_topology_kernel(dir, &pus, &n), -ENOENT);
	put_file(dir, "cpu/online", "0-5,7\n");
	put_file(dir, "node/online", "0,2\n");
	put_file(dir, "node/node0/cpulist", "0,2,4,6\n");
	put_file(dir, "node/node2/cpulist", "1,3,5,7\n");
	for (int cpu = 0; cpu < 8; cpu++) {
		static const char *const siblings[] = { "0,4\n", "1,5\n", "2\n", "3,7\n" };
		snprintf(name, sizeof name, "cpu/cpu%d/topology/thread_siblings_list", cpu);
		put_file(dir, name, siblings[cpu % 4]);
		snprintf(name, sizeof name, "cpu/cpu%d/topology/core_siblings_list", cpu);
		put_file(dir, name, cpu % 2 ? "1,3,5,7\n" : "0,2,4\n");
	}
	CU_ASSERT_EQUAL_FATAL(tt_topology_kernel(dir, &pus, &n), 0);
	static const struct tt_pu expected[] = { { 0, 0, 0, 0 }, { 4, 0, 0, 0 }, { 2, 2, 0, 0 }, { 1, 1, 1, 2 },
		                                 { 5, 1, 1, 2 }, { 3, 3, 1, 2 }, { 7, 3, 1, 2 } };
	CU_ASSERT_EQUAL_FATAL(n, (int)TT_COUNT(expected));
	CU_ASSERT_EQUAL(memcmp(pus, expected, sizeof expected), 0);
	struct tt_topology t;
	CU_ASSERT_EQUAL_FATAL(tt_topology_from(&t, pus, n), 0);
	CU_ASSERT_EQUAL(t.count, 1 + 2 + 2 + 4 + 7);
	struct tt_cpus some = cpus("5,7"), apart = cpus("4,5"), one = cpus("3");
	int at = tt_topology_cover(&t, &some);
	CU_ASSERT_TRUE(t.objects[at].kind == TT_NUMA && t.objects[at].number == 2);
	CU_ASSERT_EQUAL(tt_topology_cover(&t, &apart), 0);
	at = tt_topology_cover(&t, &one);
	CU_ASSERT_TRUE(t.objects[at].kind == TT_PU && t.objects[at].number == 3);
	tt_topology_free(&t);
	snprintf(command, sizeof command, "rm -r %s", dir);
	CU_ASSERT_EQUAL(system(command), 0);
}

static int count(const struct tt_topology *t, enum tt_thing kind)
{
	int n = 0;

	for (int i = 0; i < t->count; i++)
		n += t->objects[i].kind == kind;
	return n;
}

static void test_this_host(void)
{
	struct tt_topology t;
	struct tt_pu *pus;
	struct tt_cpus allowed;
	int n;

	CU_ASSERT_EQUAL_FATAL(tt_topology_load(&t, TT_THIS_HOST, NULL), 0);
	CU_ASSERT_TRUE(tt_cpus_allowed(&allowed) > 0 && tt_cpus_within(&allowed, &t.there));
	CU_ASSERT_EQUAL(count(&t, TT_PU), t.n);
	if (!tt_topology_kernel("/sys", &pus, &n)) { /* ranks and the picture go by the same cores */
		CU_ASSERT_EQUAL_FATAL(n, t.n);
		for (int i = 0; i < n; i++)
			for (int k = 0; k < n; k++)
				if (pus[i].cpu == t.pus[k].cpu)
					CU_ASSERT_TRUE(pus[i].core == t.pus[k].core &&
					               pus[i].package == t.pus[k].package &&
					               pus[i].node == t.pus[k].node);
		free(pus);
	}
	tt_topology_free(&t);
}

#ifdef HAVE_HWLOC
static const char *file(const char *name)
{
	static char path[400];
	const char *source = getenv("top_srcdir");

	snprintf(path, sizeof path, "%s/tests/topology/%s", source ? source : "..", name);
	return path;
}

static void test_described_machines(void)
{
	struct tt_topology t;
	static struct machine m;

	CU_ASSERT_EQUAL_FATAL(tt_topology_load(&t, TT_SYNTHETIC, "package:2 numa:2 l3:2 core:4 pu:2"), 0);
	CU_ASSERT_TRUE(count(&t, TT_PACKAGE) == 2 && count(&t, TT_NUMA) == 4 && count(&t, TT_CACHE) == 8 &&
	               count(&t, TT_CORE) == 32 && t.n == 64);
	make_machine(&m, 2, 2, 8, 1);
	for (int i = 0; i < t.n; i++) { /* here a core's threads follow each other */
		CU_ASSERT_EQUAL(t.pus[i].cpu, i);
		CU_ASSERT_EQUAL(t.pus[i].core, i / 2 * 2);
		CU_ASSERT_EQUAL(t.pus[i].node, m.pus[i / 2].node);
		CU_ASSERT_EQUAL(t.pus[i].package, m.pus[i / 2].package * 2);
	}
	tt_topology_free(&t);
	CU_ASSERT_EQUAL(tt_topology_load(&t, TT_SYNTHETIC, "nonsense"), -EINVAL);
	CU_ASSERT_TRUE(says("nonsense|package:2"));
}

static bool order_is(const struct tt_topology *t, int from, enum tt_thing kind, int turn, const char *names)
{
	char found[200] = "";
	int order[16], n = tt_topology_near(t, from, kind, turn, order, 16);

	for (int i = 0; i < n; i++)
		snprintf(found + strlen(found), sizeof found - strlen(found), "%s%s", i ? " " : "",
		         t->objects[order[i]].at + 5);
	if (!strcmp(found, names))
		return true;
	printf("order %s rather than %s\n", found, names);
	return false;
}

static int near(const struct tt_topology *t, const char *list)
{
	struct tt_cpus s = cpus(list);

	return tt_topology_cover(t, &s);
}

static void test_two_packages(void)
{
	struct tt_topology t;
	int gpus[8];

	CU_ASSERT_EQUAL_FATAL(tt_topology_load(&t, TT_XML, file("dual.xml")), 0);
	CU_ASSERT_TRUE(count(&t, TT_PACKAGE) == 2 && count(&t, TT_NUMA) == 2 && count(&t, TT_CORE) == 16 && t.n == 32);
	CU_ASSERT_EQUAL(count(&t, TT_NIC), 2);
	CU_ASSERT_EQUAL(count(&t, TT_GPU), 3); /* the console's display adapter is none, the disk neither */
	CU_ASSERT_TRUE(order_is(&t, near(&t, "0-7,16-23"), TT_NIC, 0, "19:00.0 81:00.0"));
	CU_ASSERT_TRUE(order_is(&t, near(&t, "9"), TT_NIC, 0, "81:00.0 19:00.0"));
	/* as near to one as to the other */
	CU_ASSERT_TRUE(order_is(&t, near(&t, "0,8"), TT_NIC, 0, "19:00.0 81:00.0"));
	CU_ASSERT_TRUE(order_is(&t, near(&t, "0,8"), TT_NIC, 1, "81:00.0 19:00.0"));
	CU_ASSERT_TRUE(order_is(&t, near(&t, "3"), TT_GPU, 0, "18:00.0 41:00.0 c1:00.0"));
	CU_ASSERT_TRUE(order_is(&t, near(&t, "3"), TT_GPU, 1, "41:00.0 18:00.0 c1:00.0"));
	CU_ASSERT_TRUE(order_is(&t, near(&t, "3"), TT_GPU, 2, "18:00.0 41:00.0 c1:00.0"));
	CU_ASSERT_TRUE(order_is(&t, near(&t, "8-15"), TT_GPU, 0, "c1:00.0 18:00.0 41:00.0"));
	CU_ASSERT_EQUAL(tt_topology_near(&t, 0, TT_GPU, 0, gpus, 2), 2); /* no more than there is room for */
	CU_ASSERT_EQUAL_FATAL(tt_topology_near(&t, near(&t, "0"), TT_GPU, 0, gpus, 8), 3);
	CU_ASSERT_TRUE(order_is(&t, gpus[0], TT_NIC, 0, "19:00.0 81:00.0")); /* behind one switch */
	CU_ASSERT_TRUE(order_is(&t, gpus[2], TT_NIC, 0, "81:00.0 19:00.0"));
	int nic = -1;
	for (int i = 0; i < t.count; i++)
		nic = t.objects[i].kind == TT_NIC && nic < 0 ? i : nic;
	CU_ASSERT_STRING_EQUAL(t.objects[nic].name, "ib0 mlx5_0");
	CU_ASSERT_EQUAL(t.objects[tt_topology_meet(&t, nic, gpus[0])].kind, TT_SWITCH);
	CU_ASSERT_EQUAL(t.objects[tt_topology_meet(&t, nic, gpus[1])].kind, TT_NUMA);
	CU_ASSERT_EQUAL(t.objects[tt_topology_meet(&t, nic, gpus[2])].kind, TT_MACHINE);
	tt_topology_free(&t);
}

static void test_four_nodes(void)
{
	struct tt_topology t;

	CU_ASSERT_EQUAL_FATAL(tt_topology_load(&t, TT_XML, file("nodes4.xml")), 0);
	CU_ASSERT_TRUE(count(&t, TT_NUMA) == 4 && count(&t, TT_NIC) == 1 && count(&t, TT_GPU) == 1);
	int at = near(&t, "4-7");
	CU_ASSERT_TRUE(t.objects[at].kind == TT_CACHE && t.objects[t.objects[at].parent].number == 1);
	CU_ASSERT_EQUAL(t.objects[t.objects[at].parent].bytes, 32ull << 30);
	CU_ASSERT_EQUAL(t.objects[near(&t, "0-7")].kind, TT_PACKAGE);
	CU_ASSERT_TRUE(t.pus[4].node == 1 && t.pus[15].node == 3 && t.pus[15].package == 8);
	tt_topology_free(&t);
}

static void test_two_kinds_of_cores(void)
{
	struct tt_topology t;
	struct tt_pin_rule rule = { .pin = TT_PIN_SPREAD };
	struct tt_partition s;

	CU_ASSERT_EQUAL_FATAL(tt_topology_load(&t, TT_XML, file("laptop.xml")), 0);
	tt_partition_cores(t.pus, t.n, &rule, &t.there, 0, 6, &s);
	CU_ASSERT_TRUE(are(&s.cpus, "0-1"));
	tt_partition_cores(t.pus, t.n, &rule, &t.there, 2, 6, &s);
	CU_ASSERT_TRUE(are(&s.cpus, "4"));
	tt_topology_free(&t);
}

static void test_what_is_no_machine(void)
{
	char path[] = "/tmp/tutti-place-XXXXXX";
	int fd = mkstemp(path);
	struct tt_topology t;

	CU_ASSERT_EQUAL(tt_topology_load(&t, TT_XML, "no/such.xml"), -ENOENT);
	CU_ASSERT_TRUE(says("no/such.xml|No such file"));
	CU_ASSERT_EQUAL(tt_topology_load(&t, TT_XML, path), -EINVAL);
	CU_ASSERT_TRUE(says("tutti-place|lstopo FILE.xml"));
	CU_ASSERT_TRUE(write(fd, "<?xml version=\"1.0\"?>\n<note>no machine</note>\n", 46) > 0);
	CU_ASSERT_EQUAL(tt_topology_load(&t, TT_XML, path), -EINVAL);
	CU_ASSERT_TRUE(says("tutti-place|lstopo FILE.xml"));
	CU_ASSERT_EQUAL(tt_topology_load(&t, TT_XML, "/tmp"), -EINVAL);
	CU_ASSERT_TRUE(t.objects == NULL && t.pus == NULL);
	close(fd);
	unlink(path);
}
#else
static void test_without_hwloc(void)
{
	struct tt_topology t;

	CU_ASSERT_EQUAL(tt_topology_load(&t, TT_XML, "some.xml"), -ENOSYS);
	CU_ASSERT_TRUE(says("some.xml|without hwloc|libhwloc-dev"));
}
#endif

/* ---- a job ---- */

static struct tt_cpus before; /* where this program may run */

static struct tt_cpus own_cpus(void)
{
	struct tt_cpus s;

	tt_cpus_allowed(&s);
	return s;
}

/* Calls `look` with each thread of this process. */
static void each_thread(void (*look)(int tid, void *), void *arg)
{
	DIR *tasks = opendir("/proc/self/task");

	for (struct dirent *e; tasks && (e = readdir(tasks));)
		if (atoi(e->d_name))
			look(atoi(e->d_name), arg);
	closedir(tasks);
}

static struct { /* the threads that there were before: a sanitizer may have one */
	int tid[64], n;
} old;

static void note_thread(int tid, void *arg)
{
	(void)arg;
	if (old.n < (int)TT_COUNT(old.tid))
		old.tid[old.n++] = tid;
}

struct found {
	struct tt_cpus cpus;
	int n;
};

static void ask_new_thread(int tid, void *arg)
{
	struct found *f = arg;

	for (int i = 0; i < old.n; i++)
		if (old.tid[i] == tid)
			return;
	f->n++;
	CU_ASSERT_TRUE(sched_getaffinity(tid, sizeof f->cpus, (cpu_set_t *)(void *)&f->cpus) >= 0);
}

static struct tt_cpus new_cpus(void) /* of the one thread that was started since */
{
	struct found f = { .n = 0 };

	each_thread(ask_new_thread, &f);
	CU_ASSERT_EQUAL(f.n, 1);
	return f.cpus;
}

static tutti *join(const char *pin, const char *caller)
{
	tutti *job = NULL;

	old.n = 0;
	each_thread(note_thread, NULL);
	setenv("TUTTI_PIN", pin, 1);
	setenv("TUTTI_PIN_CALLER", caller, 1);
	CU_ASSERT_EQUAL(tutti_join(NULL, &job), 0);
	unsetenv("TUTTI_PIN");
	unsetenv("TUTTI_PIN_CALLER");
	return job;
}

static bool same(const struct tt_cpus *a, const struct tt_cpus *b) { return !memcmp(a, b, sizeof *a); }

static void leave(tutti *job)
{
	tutti_leave(job);
	sched_setaffinity(0, sizeof before, (cpu_set_t *)(void *)&before);
}

static void test_unasked_nothing_is_pinned(void)
{
	static const char *const pins[] = { "auto", "none" };

	for (size_t i = 0; i < TT_COUNT(pins); i++) {
		tutti *job = join(pins[i], "no");
		struct tt_cpus mine = own_cpus(), theirs = new_cpus();
		CU_ASSERT_TRUE(same(&mine, &before) && same(&theirs, &before));
		leave(job);
	}
}

static void test_listed(void)
{
	char list[16];
	int last = TT_CPUS;

	while (!tt_cpus_has(&before, --last))
		;
	snprintf(list, sizeof list, "%d", last);
	tutti *job = join(list, "no");
	struct tt_cpus mine = own_cpus(), theirs = new_cpus();
	CU_ASSERT_TRUE(same(&mine, &before) && are(&theirs, list)); /* the caller has not asked */
	CU_ASSERT_EQUAL(tutti_pin(job, -1), 0);
	mine = own_cpus();
	CU_ASSERT_TRUE(are(&mine, list));
	leave(job);

	job = join(list, "yes");
	mine = own_cpus();
	CU_ASSERT_TRUE(are(&mine, list));
	leave(job);
	CU_ASSERT_EQUAL(tutti_join(NULL, &job), 0);
	leave(job);
}

static void test_on_request(void)
{
	tutti *job = join("auto", "no");
	struct tt_cpus mine, first;

	CU_ASSERT_EQUAL(tutti_pin(job, -1), 0); /* one rank alone: all there is */
	mine = own_cpus();
	CU_ASSERT_TRUE(same(&mine, &before));
	CU_ASSERT_EQUAL(tutti_pin(job, 0), 0);
	first = own_cpus();
	CU_ASSERT_TRUE(tt_cpus_within(&first, &before));
	CU_ASSERT_EQUAL(tutti_pin(job, job->job->place.share.cores), 0); /* round again */
	mine = own_cpus();
	CU_ASSERT_TRUE(same(&mine, &first));
	if (job->job->place.share.cores > 1) {
		CU_ASSERT_EQUAL(tutti_pin(job, 1), 0);
		mine = own_cpus();
		tt_cpus_keep(&mine, &first);
		CU_ASSERT_EQUAL(tt_cpus_count(&mine), 0);
	}
	leave(job);
	job = join("none", "yes");
	CU_ASSERT_EQUAL(tutti_pin(job, 0), 0);
	mine = own_cpus();
	CU_ASSERT_TRUE(same(&mine, &before));
	leave(job);
}

/* Who has pinned itself opens a table: the helpers that come of it would inherit that core, and be of no help. */
static void test_helpers(void)
{
	setenv("TUTTI_POOL", "1", 1);
	tutti *job = join("auto", "no");
	CU_ASSERT_EQUAL(tutti_pin(job, 0), 0);
	old.n = 0;
	each_thread(note_thread, NULL);
	tt_lock(job->job);
	CU_ASSERT_EQUAL(tt_pool_open(job->job), 0);
	tt_unlock(job->job);
	struct tt_cpus theirs = new_cpus();
	CU_ASSERT_TRUE(same(&theirs, &before));
	leave(job);
	unsetenv("TUTTI_POOL");
}

static void test_bad_settings(void)
{
	tutti *job = NULL;

	setenv("TUTTI_PIN", "4095", 1);
	CU_ASSERT_EQUAL(tutti_join(NULL, &job), -EINVAL);
	CU_ASSERT_TRUE(says("TUTTI_PIN=4095|there is no CPU 4095"));
	setenv("TUTTI_PIN", "abc", 1);
	CU_ASSERT_EQUAL(tutti_join(NULL, &job), -EINVAL);
	CU_ASSERT_TRUE(says("TUTTI_PIN=abc"));
	unsetenv("TUTTI_PIN");
	setenv("TUTTI_PIN_CALLER", "maybe", 1);
	CU_ASSERT_EQUAL(tutti_join(NULL, &job), -EINVAL);
	CU_ASSERT_TRUE(says("TUTTI_PIN_CALLER=maybe|yes|no"));
	unsetenv("TUTTI_PIN_CALLER");
}

static void test_memory(void)
{
	tutti *job = join("auto", "no");
	void *memory;
	int mode = -1;

	CU_ASSERT_EQUAL(job->job->place.memory_node, -1);
	job->job->place.memory_node = 0; /* as on a machine of several nodes */
	CU_ASSERT_EQUAL_FATAL(tutti_alloc(job, 1 << 20, -1, &memory), 0);
	if (syscall(SYS_get_mempolicy, &mode, NULL, 0, memory, 2 /* of this address */))
		printf("this kernel does not tell where memory is bound: %s\n", strerror(errno));
	else
		CU_ASSERT_EQUAL(mode, 1); /* preferred */
	tutti_free(job, memory);
	leave(job);
}

static void limit(const char *root, const char *group, const char *file, const char *text)
{
	char path[200];

	snprintf(path, sizeof path, "mkdir -p %s%s", root, group);
	CU_ASSERT_EQUAL_FATAL(system(path), 0);
	snprintf(path, sizeof path, "%s%s/%s", root, group, file);
	FILE *f = fopen(path, "w");
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	fputs(text, f);
	fclose(f);
}

static void test_quota(void)
{
	char root[] = "/tmp/tutti-quota-XXXXXX", clean[64];

	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(root));
	limit(root, "", "cpu.max", "800000 100000\n");
	limit(root, "/job", "cpu.max", "150000 100000\n");
	limit(root, "/job/step", "cpu.max", "max 100000\n");
	limit(root, "/cpu/old", "cpu.cfs_quota_us", "250000\n");
	limit(root, "/cpu/old", "cpu.cfs_period_us", "100000\n");
	limit(root, "/cpu/old/step", "cpu.cfs_quota_us", "-1\n");
	limit(root, "/cpu/old/step", "cpu.cfs_period_us", "100000\n");
	static const struct { const char *own; double cores; } groups[] = {
		{ "0::/\n", 8 },
		{ "3:cpu:/x\n0::/job\n", 1.5 },
		{ "0::/job/step\n", 1.5 },
		{ "0::/other\n", 8 },
		{ "3:cpu:/job\n", TT_NO_QUOTA },
		{ "12:pids:/\n3:cpuacct,cpu:/old/step\n1:name=systemd:/\n", 2.5 },
		{ "3:cpu,cpuacct:/old", 2.5 },
		{ "3:cpu:/old\n0::/job\n", 1.5 },
		{ "3:cpuset:/old\n", TT_NO_QUOTA },
		{ "", TT_NO_QUOTA },
		{ "\n0\n0:\n", TT_NO_QUOTA },
	};
	for (size_t i = 0; i < TT_COUNT(groups); i++)
		CU_ASSERT_EQUAL(tt_cgroup_cores(root, groups[i].own), groups[i].cores);
	CU_ASSERT_EQUAL(tt_cgroup_cores("/nowhere", "0::/job\n"), TT_NO_QUOTA);
	snprintf(clean, sizeof clean, "rm -r %s", root);
	CU_ASSERT_EQUAL(system(clean), 0);
}

static CU_TestInfo set_tests[] = {
	{ "the quota of a cgroup", test_quota },
	{ "lists are read", test_lists_are_read },
	{ "what is no list", test_what_is_no_list },
	{ "long sets are cut", test_long_sets_are_cut },
	{ "sets in sets", test_sets_in_sets },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo pin_tests[] = {
	{ "policies", test_policies },
	{ "lists within bounds", test_lists_within_bounds },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo share_tests[] = {
	{ "spread by hand", test_spread_by_hand },
	{ "compact by hand", test_compact_by_hand },
	{ "crowded", test_crowded },
	{ "a list is what is shared", test_list_is_what_is_shared },
	{ "cores of a share", test_cores_of_a_share },
	{ "any machine", test_any_machine },
	{ "nodes are kept whole", test_nodes_are_kept_whole },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo machine_tests[] = {
	{ "kernel files", test_kernel_files },
	{ "this host", test_this_host },
#ifdef HAVE_HWLOC
	{ "described machines", test_described_machines },
	{ "two packages", test_two_packages },
	{ "four nodes", test_four_nodes },
	{ "two kinds of cores", test_two_kinds_of_cores },
	{ "what is no machine", test_what_is_no_machine },
#else
	{ "without hwloc", test_without_hwloc },
#endif
	CU_TEST_INFO_NULL,
};
static CU_TestInfo job_tests[] = {
	{ "unasked nothing is pinned", test_unasked_nothing_is_pinned },
	{ "listed", test_listed },
	{ "on request", test_on_request },
	{ "helpers", test_helpers },
	{ "bad settings", test_bad_settings },
	{ "memory", test_memory },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = {
	{ "sets", NULL, NULL, NULL, NULL, set_tests },    { "pin", NULL, NULL, NULL, NULL, pin_tests },
	{ "share", NULL, NULL, NULL, NULL, share_tests }, { "machine", NULL, NULL, NULL, NULL, machine_tests },
	{ "job", NULL, NULL, NULL, NULL, job_tests },     CU_SUITE_INFO_NULL,
};

static void do_nothing(void *arg) { (void)arg; }

int main(int argc, char **argv)
{
	struct tt_task *first; /* a sanitizer starts its own with it */

	before = own_cpus();
	if (!tt_spawn(do_nothing, NULL, &first))
		tt_join(first);
	return run_suites(suites, argc, argv);
}
