/* unit_refusals.c - every public function that takes the host's memory alone refuses a GPU's, argument by argument,
 * with a sentence; and what the question costs calls with host memory */
#include "gpu/gpu.h"
#include "job/job.h"
#include "tests/gpu/watch.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/ranks.h"

enum { COUNT = 4, BYTES = 4096 };

struct handles { /* what the calls take. `device` is a GPU's memory, the rest the host's */
	tutti *job;
	char *device, *host, *other;
	int which; /* the argument that is the GPU's */
	tutti_table *rows;
	tutti_gradients *gradients;
	tutti_center *center;
	tutti_gossip *gossip;
	tutti_controller *controller;
	tutti_queue *queue;
	tutti_publisher *publisher; /* rank 0's */
	tutti_reader *reader;       /* rank 1's */
	tutti_window *window;
};

static void *argument(struct handles *h, int i) { return i == h->which ? h->device : i ? h->other : h->host; }
static tutti_tensor tensor(void *memory) { return (tutti_tensor){ memory, COUNT, TUTTI_F32 }; }
static tutti_tensor list_of(struct handles *h) { return tensor(argument(h, 0)); }
#define A argument(h, 0)
#define B argument(h, 1)

/* ---- a call each ---- */

static int allreduce(struct handles *h) { return tutti_allreduce(h->job, A, B, COUNT, TUTTI_F32, TUTTI_SUM, NULL); }
static int tensors(struct handles *h)
{
	tutti_tensor t = list_of(h);

	return tutti_allreduce_tensors(h->job, &t, 1, TUTTI_SUM, NULL);
}
static int reduce(struct handles *h)
{
	int root = h->which ? tutti_rank(h->job) : 0;

	return tutti_reduce(h->job, A, B, COUNT, TUTTI_F32, TUTTI_SUM, root, NULL);
}
static int gather(struct handles *h) { return tutti_gather(h->job, A, COUNT, B, -1, NULL); }
static int scatter(struct handles *h)
{
	return tutti_scatter(h->job, B, COUNT, A, h->which ? tutti_rank(h->job) : 0, NULL);
}
static int reduce_scatter(struct handles *h)
{
	return tutti_reduce_scatter(h->job, A, B, COUNT, TUTTI_F32, TUTTI_SUM, NULL);
}
static int allgather(struct handles *h) { return tutti_allgather(h->job, A, COUNT, B, NULL); }
static int alltoall(struct handles *h) { return tutti_alltoall(h->job, A, COUNT, B, NULL); }
static const size_t sizes[] = { 8, 8 }, places[] = { 0, 64 };
static int allgatherv(struct handles *h) { return tutti_allgatherv(h->job, A, 8, B, sizes, places, NULL); }
static int alltoallv(struct handles *h)
{
	return tutti_alltoallv(h->job, A, sizes, places, B, sizes, places, NULL);
}
static int add(struct handles *h) { return tutti_add(h->window, 0, 0, 1, A, NULL); }

static int push_rows(struct handles *h) { return tutti_table_push_rows(h->rows, A, 1, B, NULL, NULL); }
static int pull_rows(struct handles *h) { return tutti_table_pull_rows(h->rows, A, 1, B, NULL); }
static int assign_rows(struct handles *h) { return tutti_table_assign_rows(h->rows, A, 1, B, NULL); }
static int refresh_rows(struct handles *h)
{
	size_t fresh;

	return tutti_table_refresh_rows(h->rows, A, 1, B, &fresh, NULL);
}
static int pull_fresh(struct handles *h)
{
	size_t n;

	return tutti_table_pull_fresh(h->rows, A, B, 1, &n, NULL);
}

static int gradients_open(struct handles *h)
{
	tutti_tensor t = list_of(h);
	tutti_gradients *g;

	return tutti_gradients_open(h->job, &t, 1, 0, &g);
}
static int gradients_move(struct handles *h)
{
	tutti_tensor t = list_of(h);

	return tutti_gradients_move(h->gradients, &t, 1);
}
static int gradients_synchronize(struct handles *h)
{
	tutti_tensor t = list_of(h);

	return tutti_gradients_synchronize(h->gradients, &t, 1);
}
static int ea_open(struct handles *h)
{
	tutti_tensor t = list_of(h);
	tutti_ea *ea;

	return tutti_ea_open(h->job, &t, 1, 1, 0.5, 0, &ea);
}
static int center_open(struct handles *h)
{
	const tutti_center_config c = tutti_center_easgd(1, 0.5);
	tutti_tensor t = list_of(h);
	tutti_center *center;

	return tutti_center_open(h->job, "second", &t, 1, &c, &center);
}
static int center_read(struct handles *h)
{
	tutti_tensor t = list_of(h);

	return tutti_center_read(h->center, &t, NULL);
}
static int center_ahead(struct handles *h)
{
	tutti_tensor t = list_of(h);

	return tutti_center_ahead(h->center, &t);
}
static int center_move(struct handles *h)
{
	tutti_tensor t = list_of(h);

	return tutti_center_move(h->center, &t, 0.1);
}
static int gossip_fetch(struct handles *h)
{
	tutti_tensor t = list_of(h);
	tutti_gossip_result result;

	return tutti_gossip_fetch(h->gossip, 0, &t, &result);
}
static int controller_answer(struct handles *h)
{
	return tutti_rank(h->job) ? -ENOTSUP : tutti_controller_answer(h->controller, 1, 0, A, 8);
}
static int controller_ask(struct handles *h)
{
	return tutti_rank(h->job) ? tutti_controller_ask(h->controller, A, 8, B, 8, NULL, 1000) : -ENOTSUP;
}
static int queue_send(struct handles *h)
{
	tutti_tensor t = list_of(h);

	return tutti_rank(h->job) ? -ENOTSUP : tutti_queue_send(h->queue, &t, 1, 1000);
}

static int publish(struct handles *h)
{
	return tutti_rank(h->job) ? -ENOTSUP : tutti_publisher_publish(h->publisher, 2, A, 8);
}
static int commit(struct handles *h)
{
	tutti_tensor t;

	if (tutti_rank(h->job))
		return -ENOTSUP;
	CHECK(!tutti_publisher_begin(h->publisher, &t));
	return tutti_publisher_commit(h->publisher, 2, A, 8);
}
static int reader_fetch(struct handles *h)
{
	tutti_tensor t = list_of(h);
	tutti_fetched fetched;

	return tutti_rank(h->job) ? tutti_reader_fetch(h->reader, 0, &t, 1000, &fetched) : -ENOTSUP;
}

static int reader_update(struct handles *h)
{
	tutti_tensor t = list_of(h);
	tutti_fetched fetched;

	return tutti_rank(h->job) ? tutti_reader_update(h->reader, 0, 1, &t, 1000, &fetched) : -ENOTSUP;
}

static const struct refusal {
	const char *function;
	int arguments; /* that are memory */
	int (*call)(struct handles *);
} refusals[] = {
	{ "tutti_allreduce", 2, allreduce }, { "tutti_allreduce_tensors", 1, tensors }, { "tutti_reduce", 2, reduce },
	{ "tutti_gather", 2, gather }, { "tutti_scatter", 2, scatter },
	{ "tutti_reduce_scatter", 2, reduce_scatter }, { "tutti_allgather", 2, allgather },
	{ "tutti_allgatherv", 2, allgatherv }, { "tutti_alltoall", 2, alltoall }, { "tutti_alltoallv", 2, alltoallv },
	{ "tutti_add", 1, add }, { "tutti_table_push_rows", 2, push_rows },
	{ "tutti_table_pull_rows", 2, pull_rows }, { "tutti_table_assign_rows", 2, assign_rows },
	{ "tutti_table_refresh_rows", 2, refresh_rows }, { "tutti_table_pull_fresh", 2, pull_fresh },
	{ "tutti_gradients_open", 1, gradients_open }, { "tutti_gradients_move", 1, gradients_move },
	{ "tutti_gradients_synchronize", 1, gradients_synchronize },
	{ "tutti_ea_open", 1, ea_open }, { "tutti_center_open", 1, center_open },
	{ "tutti_center_read", 1, center_read },
	{ "tutti_center_ahead", 1, center_ahead }, { "tutti_center_move", 1, center_move },
	{ "tutti_gossip_fetch", 1, gossip_fetch },
	{ "tutti_controller_answer", 1, controller_answer }, { "tutti_controller_ask", 2, controller_ask },
	{ "tutti_queue_send", 1, queue_send },
	{ "tutti_publisher_publish", 1, publish }, { "tutti_publisher_commit", 1, commit },
	{ "tutti_reader_fetch", 1, reader_fetch }, { "tutti_reader_update", 1, reader_update },
};
static const char *const others[] = { /* take a GPU's memory, ... */
	"tutti_alloc", "tutti_free", "tutti_register", "tutti_unregister", "tutti_window_open", "tutti_put",
	"tutti_get", "tutti_put_notify", "tutti_send", "tutti_recv", "tutti_broadcast", "tutti_table_push",
	"tutti_table_pull", "tutti_table_push_pull", "tutti_table_assign", "tutti_table_snapshot",
	"tutti_gossip_open",
	/* ... or no memory that is moved: an argument of a callback, the place for a pointer */
	"tutti_stream", "tutti_group_watch", "tutti_window_map", "tutti_on_wait", "tutti_own", "tutti_center_own",
	"tutti_ea_center", "tutti_gossip_model", "tutti_controller_serve", "tutti_queue_receive",
	"tutti_publisher_begin", "tutti_reader_newest",
};

/* ---- the walk ---- */

static void open_publication(struct handles *h)
{
	const tutti_weight weight = { .name = "x", .type = TUTTI_F32, .dims = 1, .shape = { COUNT }, .data = h->host };

	if (tutti_rank(h->job)) {
		CHECK(!tutti_reader_open(h->job, "p", 0, &h->reader));
		return;
	}
	CHECK(!tutti_publisher_open(h->job, "p", &weight, 1, NULL, &h->publisher));
	CHECK(!tutti_publisher_publish(h->publisher, 1, NULL, 0));
}

static void open_handles(struct handles *h)
{
	const tutti_table_config rows = tutti_table_rows(TUTTI_F32, COUNT, 2, tutti_accumulate());
	const tutti_gossip_config gossip = tutti_gossip_defaults();
	tutti_center_config center = tutti_center_easgd(1, 0.5);
	const tutti_tensor t = tensor(h->host);

	center.momentum = 0.9;
	CHECK(!tutti_window_open(h->job, "w", h->host, BYTES, &h->window));
	CHECK(!tutti_table_open(h->job, "rows", &rows, &h->rows));
	CHECK(!tutti_gradients_open(h->job, &t, 1, 0, &h->gradients));
	CHECK(!tutti_center_open(h->job, "c", &t, 1, &center, &h->center));
	CHECK(!tutti_gossip_open(h->job, "g", &t, 1, &gossip, &h->gossip));
	CHECK(!tutti_controller_open(h->job, "s", 0, &h->controller));
	CHECK(!tutti_queue_open(h->job, "q", 0, BYTES, 0, &h->queue));
	open_publication(h);
}

static void close_handles(struct handles *h)
{
	tutti_barrier(h->job, NULL);
	tutti_reader_close(h->reader);
	tutti_publisher_close(h->publisher);
	tutti_queue_close(h->queue);
	tutti_controller_close(h->controller);
	tutti_gossip_close(h->gossip);
	tutti_center_close(h->center);
	tutti_gradients_close(h->gradients);
	tutti_table_close(h->rows);
	tutti_window_close(h->window);
}

static void refuse(struct handles *h, const struct refusal *r)
{
	for (h->which = 0; h->which < r->arguments; h->which++) {
		tt_fail(0, "is memory of GPU 0"); /* of calls that not every rank makes */
		int err = r->call(h);
		CHECK(err == -ENOTSUP);
		CHECK(strstr(tutti_why(), "is memory of GPU 0") != NULL);
		if (err != -ENOTSUP || !strstr(tutti_why(), "GPU 0"))
			printf("%s, argument %d: %d\n", r->function, h->which, err);
	}
	CHECK(!tutti_barrier(h->job, NULL)); /* no rank waits for one that was refused */
}

static void refuse_all(tutti *job)
{
	struct handles h = { .job = job };

	CHECK(!tutti_alloc(job, BYTES, 0, (void **)&h.device));
	CHECK(!tutti_alloc(job, BYTES, -1, (void **)&h.host));
	CHECK(!tutti_alloc(job, BYTES, -1, (void **)&h.other));
	open_handles(&h);
	for (size_t i = 0; i < TT_COUNT(refusals); i++)
		refuse(&h, &refusals[i]);
	close_handles(&h);
	tutti_free(job, h.device);
	tutti_free(job, h.host);
	tutti_free(job, h.other);
}

static void test_refused(void)
{
	fake_cuda_watch(holds_lock);
	CU_ASSERT_EQUAL(run_on_sim(2, 1, 10000, refuse_all), 0);
	CU_ASSERT_EQUAL(run_ranks((struct ranks){ .size = 2, .wire = "shm", .program = refuse_all }), 0);
	tt_gpu_close();
	CU_ASSERT_EQUAL(fake_cuda_left(), 0);
	fake_cuda_list_left();
}

/* ---- the list of functions is whole ---- */

static bool is_listed(const char *function)
{
	for (size_t i = 0; i < TT_COUNT(refusals); i++)
		if (!strcmp(refusals[i].function, function))
			return true;
	for (size_t i = 0; i < TT_COUNT(others); i++)
		if (!strcmp(others[i], function))
			return true;
	return false;
}

static bool takes_memory(const char *declaration)
{
	const char *arguments = strchr(declaration, '(');

	return arguments && (strstr(arguments, "void *") || strstr(arguments, "tutti_tensor *") ||
	                     strstr(arguments, "uint64_t *"));
}

static void test_whole(void)
{
	const char *source = getenv("top_srcdir");
	char path[512], line[512], name[64];
	int found = 0;

	snprintf(path, sizeof path, "%s/tests/interface/layouts.txt", source ? source : "..");
	FILE *f = fopen(path, "r");
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	while (fgets(line, sizeof line, f)) {
		const char *at = strstr(line, "tutti_");
		if (strncmp(line, "typedef", 7) == 0 || !takes_memory(line))
			continue;
		const char *open = strchr(line, '(');
		for (const char *next = at; next && next < open; next = strstr(next + 1, "tutti_"))
			at = next; /* the type comes first, the name last */
		snprintf(name, sizeof name, "%.*s", (int)(open - at), at);
		found++;
		CU_ASSERT(is_listed(name));
		if (!is_listed(name))
			printf("%s takes memory, and stands in no list here\n", name);
	}
	fclose(f);
	CU_ASSERT(found >= (int)TT_COUNT(refusals) + 10);
}

/* ---- what it costs ---- */

static uint64_t calls_of_put(tutti_window *w, const void *memory)
{
	uint64_t before = fake_cuda_calls(NULL);

	CHECK(!tutti_put(w, 1, 0, memory, 8, NULL));
	return fake_cuda_calls(NULL) - before;
}

static void count_calls(tutti *job)
{
	uint64_t word = 1;
	void *allocated;
	tutti_window *w;

	CHECK(!tutti_alloc(job, 64, -1, &allocated));
	CHECK(!tutti_window_open(job, "w", allocated, 64, &w));
	CHECK(!tutti_barrier(job, NULL));
	if (!tutti_rank(job)) {
		calls_of_put(w, &word); /* the first one connects */
		uint64_t before = fake_cuda_calls("cuPointerGetAttributes");
		CHECK(calls_of_put(w, &word) == 1);
		CHECK(fake_cuda_calls("cuPointerGetAttributes") == before + 1);
		CHECK(calls_of_put(w, allocated) == 0);
	}
	CHECK(!tutti_barrier(job, NULL));
	tutti_window_close(w);
	tutti_free(job, allocated);
}

static void test_cost(void)
{
	cuInit(0); /* by the program */
	CU_ASSERT_EQUAL(run_on_sim(2, 1, 10000, count_calls), 0);
	CU_ASSERT_EQUAL(run_real_ranks((struct ranks){ .size = 2, .program = count_calls }), 0);
}

static CU_TestInfo tests[] = { { "refused", test_refused }, { "whole", test_whole }, { "cost", test_cost },
	                       CU_TEST_INFO_NULL };
static CU_SuiteInfo suites[] = { { "refusals", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
