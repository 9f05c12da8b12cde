/* ranks.h - runs one test program as several ranks: as fibers of a simulated world, or as threads of this process that
 * meet over loopback TCP, and stay there or go on in shared memory, or over adapters that are not there (fake.h). So
 * every test of the runtime is written once and runs on all.
 *
 * TEST_WIRE=verbs, for programs that have the adapters (TEST_FAKE): what runs over TCP runs over verbs, and sim and shm
 * do not run. TEST_SEED: where the seeds of the adapters begin; each run takes the next one. Tests with count_seeds()
 * seeds of sim may begin there, too. TEST_DEVICES=rxe0,rxe1: over these adapters, which are there; ranks with odd
 * numbers take the other one. */
#ifndef TT_TEST_RANKS_H
#define TT_TEST_RANKS_H
#include "member/member.h"
#include "tests/harness/amount.h"
#include "transport/sim/sim.h"
#ifdef TEST_FAKE
#include "tests/verbs/fake.h"
#endif
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct ranks { /* one run */
	int size;
	const char *wire;            /* "sim", "tcp", "shm" or "verbs" */
	/* its ranks are on so many, in turn; 0: sim: each on its own, else all on one. Over shm that needs libconfig */
	int hosts;
	const char *devices;         /* verbs: TUTTI_VERBS_DEVICES; NULL: one, another one in each run */
	void (*prepare)(void);       /* verbs: called before the ranks start; or NULL */
	bool near;                   /* verbs: ranks of one host have shared memory, too */
	bool alone;                  /* verbs: they meet over it, too, for they have no other transport */
	uint64_t seed;               /* sim's */
	uint64_t latency_ns, bandwidth; /* sim's; with a latency no memory is mapped. 0: as the seed has it */
	struct tt_sim_counts *counts; /* what sim says it took; may be NULL */
	int timeout_ms;              /* 0: the default */
	int silence_ms;              /* 0: what silence_for() makes of the timeout */
	const char *allreduce;       /* the algorithm; NULL: auto */
	void (*program)(tutti *job); /* every rank runs it between joining and leaving */
	char boot[32];
	char nodes[32];              /* a config file, for several hosts over shm */
	bool left[16];               /* ranks whose program has left its job itself */
	atomic_int failures;
};

static _Thread_local int this_rank;
static _Thread_local struct ranks *this_run; /* CUnit's own asserts must stay on the main thread */
static struct ranks *sim_run_now;            /* fibers share one thread, and one run at a time */

#define CHECK(condition) check_that(condition, #condition, __FILE__, __LINE__)

static inline void check_that(bool good, const char *text, const char *file, int line)
{
	struct ranks *run = tt_world ? sim_run_now : this_run;

	if (good)
		return;
	if (atomic_fetch_add(&run->failures, 1) < 5)
		printf("%s:%d: %s does not hold (%s, %d ranks, seed %llu; last error: %s)\n", file, line, text,
		       run->wire, run->size, (unsigned long long)run->seed, tutti_why());
}

/* To how many ranks has this one a connection? */
static inline int count_connections(tutti *job)
{
	int n = 0;

	tt_lock(job->job);
	for (int i = 0; i < tutti_size(job); i++)
		n += tt_member(job->job, i)->state == TT_UP;
	tt_unlock(job->job);
	return n;
}

static inline void run_joined(struct ranks *run, tutti *job)
{
	if (run->allreduce)
		tt_settings_set(&job->job->settings, TT_ALLREDUCE, run->allreduce, "test");
	int rank = tutti_rank(job);

	run->program(job);
	if (rank >= 16 || !run->left[rank])
		tutti_leave(job);
}

static inline const char *transports_of(const struct ranks *run)
{
	if (!strcmp(run->wire, "verbs"))
		return run->alone ? "verbs" : run->near ? "shm,verbs,tcp" : "verbs,tcp";
	return !strcmp(run->wire, "shm") ? "shm,tcp" : run->wire;
}

/* A silence is found out well before the timeout; but a busy machine may keep a process from its core. */
static inline int silence_for(int timeout_ms, bool simulated)
{
	int ms = timeout_ms * 3 / 10, least = simulated ? 100 : 500;

	return !timeout_ms || ms > least ? ms : least;
}

static inline int silence_of(const struct ranks *run)
{
	return run->silence_ms ? run->silence_ms : silence_for(run->timeout_ms, !strcmp(run->wire, "sim"));
}

static inline bool over_real_verbs(void) { return getenv("TEST_DEVICES") != NULL; }
static inline int slowness(void) { return over_real_verbs() ? 5 : 1; } /* in a guest all takes longer */

static inline void pass_time(uint64_t ns)
{
	if (tt_world)
		tt_sim_sleep(ns);
	else
		usleep((useconds_t)(ns / 1000 * (uint64_t)slowness()));
}

/* This rank leaves, and comes in again, as `rank` or as a new one. Its program leaves that job by itself. */
static inline int join_again(tutti *job, int rank, tutti **again)
{
	struct ranks *run = tt_world ? sim_run_now : this_run;
	tutti_config c = { .rank = rank,
		           .ranks = run->size,
		           .boot = tt_world ? "sim:0" : run->boot,
		           .transports = transports_of(run),
		           .timeout_ms = run->timeout_ms,
		           .silence_ms = silence_of(run) };

	run->left[job->job->rank] = true; /* its group may be a newcomer's, of one */
	tutti_leave(job);
	if (tt_world)
		tt_sim_sleep(100 * TT_MS);
	else
		usleep(100000); /* a later life has a later epoch: 64ths of a second */
	return tutti_join(&c, again);
}

static inline void sim_rank(int rank, void *arg)
{
	tutti *job;
	int err = tutti_join(NULL, &job);

	(void)rank;
	CHECK(err == 0);
	if (!err)
		run_joined(arg, job);
}

struct thread_rank {
	struct ranks *run;
	int rank;
	pthread_t thread;
};

static inline void *thread_rank(void *arg)
{
	struct thread_rank *me = arg;
	struct ranks *run = me->run;
	tutti_config c = { .rank = me->rank, .ranks = run->size, .boot = run->boot, .transports = transports_of(run),
		           .timeout_ms = run->timeout_ms, .silence_ms = silence_of(run) };
	char node[16];
	tutti *job;

	this_run = run;
	this_rank = me->rank;
	snprintf(node, sizeof node, "n%d", me->rank);
	if (*run->nodes)
		c = (tutti_config){ .file = run->nodes,
			            .node = node,
			            .transports = c.transports,
			            .timeout_ms = c.timeout_ms,
			            .silence_ms = c.silence_ms };
	int err = tutti_join(&c, &job);
	CHECK(err == 0);
	if (!err)
		run_joined(run, job);
	return NULL;
}

/* Free now, and below those that the kernel gives to whoever connects; another test that runs beside this one draws
 * from as many. */
static inline int free_port(void)
{
	enum { FIRST = 12000, LAST = 32000 };
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	uint32_t chance;

	for (int i = 0; i < 1000; i++) {
		tt_entropy(&chance, sizeof chance);
		a.sin_port = htons((uint16_t)(FIRST + chance % (LAST - FIRST)));
		if (!bind(fd, (struct sockaddr *)&a, sizeof a))
			break;
	}
	close(fd);
	return ntohs(a.sin_port);
}

/* Other addresses of the loopback are other hosts to a list of nodes. */
static inline void write_nodes(struct ranks *run)
{
	snprintf(run->nodes, sizeof run->nodes, "/tmp/tutti-nodes-XXXXXX");
	int fd = mkstemp(run->nodes);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "w");

	if (!f)
		abort();
	fprintf(f, "nodes = (");
	for (int i = 0; i < run->size; i++)
		fprintf(f, "%s{ name = \"n%d\"; address = \"127.0.0.%d:%d\"; }", i ? ", " : "", i, 1 + i % run->hosts,
		        free_port());
	fprintf(f, ");\n");
	fclose(f);
}

static inline void run_threads(struct ranks *run)
{
	struct thread_rank *ranks = calloc((size_t)run->size, sizeof *ranks);

	if (run->hosts > 1)
		write_nodes(run);
	snprintf(run->boot, sizeof run->boot, "127.0.0.1:%d", free_port());
	for (int i = 0; i < run->size; i++) {
		ranks[i].run = run;
		ranks[i].rank = i;
		pthread_create(&ranks[i].thread, NULL, thread_rank, &ranks[i]);
	}
	for (int i = 0; i < run->size; i++)
		pthread_join(ranks[i].thread, NULL);
	if (run->hosts > 1)
		unlink(run->nodes);
	free(ranks);
}

/* Of deaths, and of recorded numbers: TEST_SEEDS, which `make check-long` sets, or a few. */
static inline uint64_t count_seeds(uint64_t few)
{
	const char *text = getenv("TEST_SEEDS");

	return text ? strtoull(text, NULL, 10) : few;
}

static inline uint64_t first_seed(void)
{
	const char *text = getenv("TEST_SEED");

	return text ? strtoull(text, NULL, 10) : 0;
}

static inline bool only_verbs(void)
{
	const char *text = getenv("TEST_WIRE");

	return text && !strcmp(text, "verbs");
}

#ifdef TEST_FAKE
static unsigned verbs_runs, silent_runs;

static inline void tell_verbs_runs(void) { printf("%u runs over verbs, %u without a word\n", verbs_runs, silent_runs); }

static struct tt_verbs_library real_verbs;
static struct ibv_device **(*list_devices)(int *);

/* A rank sees its own adapter alone. */
static inline struct ibv_device **list_for_rank(int *n)
{
	const char *names = getenv("TEST_DEVICES"), *comma = strchr(names, ','), *name = names;
	struct ibv_device **list = list_devices(NULL);
	size_t len = comma ? (size_t)(comma - names) : strlen(names);
	int at = 0;

	if (comma && this_rank % 2)
		name = comma + 1, len = strlen(name);
	while (list && list[at] && strncmp(real_verbs.get_device_name(list[at]), name, len))
		at++;
	if (list && (list[0] = list[at]))
		list[1] = NULL;
	if (n)
		*n = list && list[0];
	return list;
}

static inline void use_real_verbs(void)
{
	const struct tt_verbs_library *l = tt_verbs_load();

	if (!l || tt_verbs_load_cm()) {
		printf("%s\n", tutti_why());
		exit(1);
	}
	if (tt_verbs_instead)
		return;
	real_verbs = *l;
	list_devices = l->get_device_list;
	real_verbs.get_device_list = list_for_rank;
	tt_verbs_instead = &real_verbs;
}

/* InfiniBand, RoCE, iWARP, and the first two by librdmacm, in turn. A real adapter would never get back an object that
 * is left. */
static inline void run_over_verbs(struct ranks *run)
{
	static const char *const adapters[] = { "fake_ib0", "fake_roce0", "fake_iwarp0", "fake_roce0", "fake_ib0" };
	const char *devices = getenv("TEST_DEVICES");

	if (devices) {
		use_real_verbs();
		run->timeout_ms *= slowness();
		run->silence_ms *= slowness();
		run_threads(run);
		return;
	}
	if (!verbs_runs++)
		atexit(tell_verbs_runs);
	run->seed = first_seed() + verbs_runs - 1;
	fake_seed(run->seed);
	tt_verbs_instead = &tt_fake_verbs;
	setenv("TUTTI_VERBS_DEVICES", run->devices ? run->devices : adapters[run->seed % TT_COUNT(adapters)], 1);
	setenv("TUTTI_VERBS_CONNECT", run->devices || run->seed % TT_COUNT(adapters) < 3 ? "tcp" : "cm", 1);
	if (run->prepare)
		run->prepare();
	run_threads(run);
	silent_runs += !fake_requests();
	if (fake_left()) {
		printf("%d objects of verbs are left (%d ranks, seed %llu)\n", fake_left(), run->size,
		       (unsigned long long)run->seed);
		run->failures++;
	}
}
#else
static inline void run_over_verbs(struct ranks *run)
{
	printf("this program has no adapters\n");
	run->failures++;
}
#endif

/* Does this rank believe that the other one is dead? */
static inline bool has_gone(tutti *job, int rank)
{
	tt_lock(job->job);
	bool gone = tt_member(job->job, rank)->state == TT_GONE;
	tt_unlock(job->job);
	return gone;
}

/* How many checks failed. */
static inline int run_ranks(struct ranks run)
{
	this_run = sim_run_now = &run;
	if (only_verbs()) {
		if (strcmp(run.wire, "tcp") && strcmp(run.wire, "verbs"))
			return 0;
		run.wire = "verbs";
	}
	if (!strcmp(run.wire, "verbs")) {
		run_over_verbs(&run);
	} else if (strcmp(run.wire, "sim")) {
		run_threads(&run);
	} else {
		struct tt_sim_config c = { .seed = run.seed,
			                   .strict = 1,
			                   .ranks = run.size,
			                   .program = sim_rank,
			                   .arg = &run,
			                   .timeout_ms = run.timeout_ms,
			                   .silence_ms = silence_of(&run),
			                   .hosts = run.hosts,
			                   .latency_ns = run.latency_ns,
			                   .bandwidth = run.bandwidth,
			                   .counts = run.counts };
		int err = tt_sim_run(&c);
		if (err)
			printf("sim: %d ranks, seed %llu: %d: %s\n", run.size, (unsigned long long)run.seed, err,
			       tt_why());
		run.failures += err != 0;
	}
	return run.failures;
}

static inline int run_on_sim(int size, uint64_t seed, int timeout_ms, void (*program)(tutti *))
{
	return run_ranks((struct ranks){
		.size = size, .wire = "sim", .seed = seed, .timeout_ms = timeout_ms, .program = program });
}

/* On both of the real wires. */
static inline int run_real_ranks(struct ranks run)
{
	int failed;

	run.wire = "tcp";
	failed = run_ranks(run);
	run.wire = "shm";
	return failed + run_ranks(run);
}

/* `list` has numbers of ranks. The short check starts real ranks for its first number, and for numbers up to 3. */
static inline bool is_real_in_check(const int *list, const int *size)
{
	return all_or(true, size == list || *size <= 3);
}
#endif
