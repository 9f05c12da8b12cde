/* interrupts.c - the interrupt walk: each function that waits for another rank, interrupted after 50 ms
 *
 * Rank 0 calls it while rank 1, its peer, does not come, or is stopped. The call returns -EINTR soon, and then the job
 * goes on: the same call comes to its end when the peer comes, and a barrier passes. On sim the ranks are fibers. On
 * TCP and in shared memory they are processes, and SIGSTOP stops the peer.
 *
 *   interrupts --list    prints the functions: waits.sh compares them with waits.list */
#include "tests/harness/crew.h"
#include "tests/harness/folders.h"
#include <sys/stat.h>

enum {
	HEARD = 50,                               /* ms, after which the peer knows what was cancelled */
	AFTER = 50, SOON = 200, SOON_BUSY = 1000, /* ms; on a busy machine a process gets its core late */
	STOP = 400, STOP_LONG = 3000,             /* how long the peer is stopped, with processes at most */
	TIMEOUT_MS = 20000, COUNT = 16, LARGE = 1 << 16, ROWS = 64, ROW = 4, SEEDS_FEW = 10,
};

static struct { /* shared by the ranks and the parent */
	atomic_int arrived, stop, stopped, go_on; /* stop: for how many ms */
	char folder[64];
} *shared;

struct walk {
	tutti *job, *group;
	int me, phase;
	bool stopped;
	tutti_window *window;
	tutti_op op, more;
	tutti_table *table;
	tutti_gradients *gradients;
	tutti_ea *ea;
	tutti_center *center;
	tutti_gossip *gossip;
	tutti_controller *controller;
	tutti_queue *queue;
	tutti_publisher *publisher;
	int version;
	tutti_reader *reader;
	int pipe[2];
	float in[2 * LARGE], out[2 * LARGE];
	uint64_t rows[ROWS];
};

#define OK(condition) ok(condition, #condition, __LINE__)

static void ok(bool good, const char *text, int line)
{
	if (!good && name_each_test)
		printf("  rank %d, line %d: %s: %s\n", tt_world ? tt_sim_rank() : my_rank, line, text, tutti_why());
	if (tt_world)
		check_that(good, text, __FILE__, line);
	else
		expect_that(good, text, line);
}

/* The ranks meet outside the job: between two calls none of them waits inside. */
static void meet(struct walk *w)
{
	atomic_fetch_add(&shared->arrived, 1);
	w->phase++;
	while (shared->arrived < 2 * w->phase)
		pass_time(TT_MS / 2);
}

static void stop_peer(int ms)
{
	if (tt_world) {
		tt_sim_stop(1, 0, STOP * TT_MS);
		pass_time(TT_MS);
		return;
	}
	shared->go_on = 0;
	shared->stop = ms;
	while (!shared->stopped)
		sleep_ms(1);
}

static void resume_peer(void)
{
	shared->go_on = 1;
	if (tt_world)
		pass_time(STOP * TT_MS);
	while (shared->stopped)
		sleep_ms(1);
}

/* ---- the cases ---- */

enum { HEALTHY = 1, STOPPED = 2, BOTH = 3, /* waits for such a peer */
       LENT = 4,     /* a stopped peer may hold the call's memory, and delays the return */
       PASSES = 8,   /* in shared memory the call needs no peer */
       REAL = 16 };  /* it waits for a file, whose time is not sim's */

struct wait {
	const char *name;
	void (*open)(struct walk *);
	int (*call)(struct walk *);
	void (*again)(struct walk *, int (*call)(struct walk *)); /* all ranks: the call comes to its end */
	void (*close)(struct walk *);
	bool cancels;               /* the interrupted call cancels a collective, which the peer calls, too */
	unsigned flags;
};

static bool walks(const struct walk *w) { return w->me == 0; }
static void nothing(struct walk *w) { (void)w; }

static void call_on_both(struct walk *w, int (*call)(struct walk *)) { OK(call(w) >= 0); }
static void call_on_walker(struct walk *w, int (*call)(struct walk *))
{
	if (walks(w))
		OK(call(w) >= 0);
}

/* windows */

static void open_late(struct walk *w)
{
	if (walks(w))
		OK(tutti_window_open(w->group, "late", w->out, sizeof w->out, &w->window) == 0);
}
static void open_known(struct walk *w)
{
	OK(tutti_window_open(w->group, "known", w->out, sizeof w->out, &w->window) == 0);
	if (walks(w))
		OK(tutti_get(w->window, 1, 0, w->in, 8, NULL) == 0);
}
static void open_op(struct walk *w)
{
	open_late(w);
	if (walks(w))
		OK(tutti_get(w->window, 1, 0, w->in, 8, &w->op) == 0);
}
static void close_window(struct walk *w)
{
	OK(tutti_cancel(&w->op) == 0);
	meet(w);
	tutti_window_close(w->window);
}
static void come_late(struct walk *w, int (*call)(struct walk *))
{
	if (!walks(w))
		OK(tutti_window_open(w->group, "late", w->out, sizeof w->out, &w->window) == 0);
	call_on_walker(w, call);
}
static int put(struct walk *w) { return tutti_put(w->window, 1, 0, w->in, 64, NULL); }
static int put_large(struct walk *w) { return tutti_put(w->window, 1, 0, w->in, sizeof w->in, NULL); }
static int get(struct walk *w) { return tutti_get(w->window, 1, 0, w->in, 64, NULL); }
static int get_large(struct walk *w) { return tutti_get(w->window, 1, 0, w->in, sizeof w->in, NULL); }
static int add(struct walk *w) { return tutti_add(w->window, 1, 0, 0, NULL, NULL); }
static int put_notify(struct walk *w) { return tutti_put_notify(w->window, 1, 0, w->in, 8, 3, NULL); }
static int window_bytes(struct walk *w)
{
	size_t bytes = 0;
	int err = tutti_window_bytes(w->window, 1, &bytes);
	OK(err || bytes == sizeof w->out);
	return err;
}
static int wait_notify(struct walk *w) { return tutti_wait_notify(w->window, 1, 7, 1, -1); }
static void notify(struct walk *w, int (*call)(struct walk *))
{
	if (!walks(w))
		OK(tutti_put_notify(w->window, 0, 0, w->in, 8, 7, NULL) == 0);
	call_on_walker(w, call);
}
static int wait_op(struct walk *w) { return tutti_wait(&w->op, -1); }
static int wait_all(struct walk *w)
{
	tutti_op *list[] = { &w->more, &w->op };
	return tutti_wait_all(list, 2, -1);
}
static int wait_any(struct walk *w)
{
	tutti_op *list[] = { &w->more, &w->op };
	return tutti_wait_any(list, 2, -1);
}

/* collectives */

static int allreduce(struct walk *w)
{
	return tutti_allreduce(w->group, w->in, w->out, COUNT, TUTTI_F32, TUTTI_SUM, NULL);
}
static int allreduce_large(struct walk *w)
{
	return tutti_allreduce(w->group, w->in, w->out, LARGE, TUTTI_F32, TUTTI_SUM, NULL);
}
static int allreduce_tensors(struct walk *w)
{
	tutti_tensor t[] = { { w->in, COUNT, TUTTI_F32 }, { w->out, COUNT, TUTTI_F32 } };
	return tutti_allreduce_tensors(w->group, t, 2, TUTTI_SUM, NULL);
}
static int reduce(struct walk *w)
{
	return tutti_reduce(w->group, w->in, w->out, COUNT, TUTTI_F32, TUTTI_SUM, 0, NULL);
}
static int broadcast(struct walk *w) { return tutti_broadcast(w->group, w->out, sizeof w->out, 1, NULL); }
static int gather(struct walk *w) { return tutti_gather(w->group, w->in, 8, w->out, 0, NULL); }
static int scatter(struct walk *w) { return tutti_scatter(w->group, w->in, 8, w->out, 1, NULL); }
static int barrier(struct walk *w) { return tutti_barrier(w->group, NULL); }
static int reduce_scatter(struct walk *w)
{
	return tutti_reduce_scatter(w->group, w->in, w->out, COUNT, TUTTI_F32, TUTTI_SUM, NULL);
}
static int allgather(struct walk *w) { return tutti_allgather(w->group, w->in, 64, w->out, NULL); }
static int allgatherv(struct walk *w)
{
	const size_t bytes[] = { 8, 16 }, at[] = { 0, 8 };
	return tutti_allgatherv(w->group, w->in, bytes[w->me], w->out, bytes, at, NULL);
}
static int alltoall(struct walk *w) { return tutti_alltoall(w->group, w->in, 64, w->out, NULL); }
static int alltoallv(struct walk *w)
{
	const size_t bytes[] = { 8, 8 }, at[] = { 0, 8 };
	return tutti_alltoallv(w->group, w->in, bytes, at, w->out, bytes, at, NULL);
}

/* messages: only the peer sends back */

static int send_large(struct walk *w) { return tutti_send(w->group, 1, 5, w->in, sizeof w->in, NULL); }
static int receive(struct walk *w) { return tutti_recv(w->group, 1, 6, w->out, sizeof w->out, NULL, NULL); }
static void receive_too(struct walk *w, int (*call)(struct walk *))
{
	if (!walks(w))
		OK(tutti_recv(w->group, 0, 5, w->out, sizeof w->out, NULL, NULL) == 0);
	call_on_walker(w, call);
}
static void send_too(struct walk *w, int (*call)(struct walk *))
{
	if (!walks(w))
		OK(tutti_send(w->group, 0, 6, w->in, 8, NULL) == 0);
	call_on_walker(w, call);
}

/* groups */

static int split(struct walk *w)
{
	tutti *part = NULL;
	int err = tutti_group_split(w->group, 0, 0, &part);
	tutti_group_free(part);
	return err;
}
static int group_of_list(struct walk *w, const int *ranks)
{
	tutti *part = NULL;
	int err = tutti_group_of(w->job, ranks, 2, "walk", &part);
	tutti_group_free(part);
	return err;
}
static int group_of(struct walk *w) { return group_of_list(w, (const int[]){ 0, 1 }); }
static int group_of_peer(struct walk *w) { return group_of_list(w, (const int[]){ 1, 0 }); } /* the peer collects */
static int agree(struct walk *w, int (*agree_on)(tutti *, tutti **))
{
	tutti *next = NULL;
	int err = agree_on(w->group, &next);
	if (!err) {
		tutti_group_free(w->group);
		w->group = next;
	}
	return err;
}
static int shrink(struct walk *w) { return agree(w, tutti_group_shrink); }
static int grow(struct walk *w) { return agree(w, tutti_group_grow); }

/* a reader that does not read */

static void open_pipe(struct walk *w)
{
	char byte = 0;

	OK(pipe2(w->pipe, O_NONBLOCK) == 0);
	while (walks(w) && write(w->pipe[1], &byte, 1) == 1)
		continue;
}
static int dump(struct walk *w) { return tutti_stats_dump(w->job, w->pipe[1]); }
static void close_pipe(struct walk *w)
{
	close(w->pipe[0]);
	close(w->pipe[1]);
}

/* tables: the peer is the server, both are workers */

static const int the_peer[] = { 1 };

static tutti_table_config config_of(tutti_mode mode, unsigned flags)
{
	tutti_table_config c = tutti_table_rows(TUTTI_F32, ROWS, ROW, tutti_accumulate());

	c.servers = 1;
	c.server = the_peer;
	c.consistency.mode = mode;
	c.flags = flags;
	return c;
}
static int open_rounds(struct walk *w)
{
	tutti_table_config c = config_of(TUTTI_BSP, TUTTI_TABLE_FRESH);
	return tutti_table_open(w->group, "table", &c, &w->table);
}
static int push(struct walk *w) { return tutti_table_push(w->table, w->in, NULL, NULL); }
static int pull(struct walk *w) { return tutti_table_pull(w->table, w->out, NULL); }
static void open_bsp(struct walk *w) /* the walker is a round ahead */
{
	OK(open_rounds(w) == 0);
	if (walks(w))
		OK(push(w) == 0);
}
static void close_table(struct walk *w)
{
	OK(tutti_cancel(&w->op) == 0 || !walks(w));
	meet(w);
	tutti_table_close(w->table);
}
static void catch_up(struct walk *w, int (*call)(struct walk *))
{
	(void)call;
	if (!walks(w))
		OK(push(w) == 0);
	OK(pull(w) == 0 || !walks(w));
}
static void catch_up_then(struct walk *w, int (*call)(struct walk *))
{
	if (!walks(w))
		OK(push(w) == 0);
	call_on_walker(w, call);
}
static int push_pull(struct walk *w) { return tutti_table_push_pull(w->table, w->in, NULL, w->out, NULL); }
static int push_rows(struct walk *w)
{
	w->rows[0] = 5;
	return tutti_table_push_rows(w->table, w->rows, 1, w->in, NULL, NULL);
}
static int pull_rows(struct walk *w) { return tutti_table_pull_rows(w->table, w->rows, 1, w->out, NULL); }
static int pull_fresh(struct walk *w)
{
	size_t n;
	return tutti_table_pull_fresh(w->table, w->rows, w->out, ROWS, &n, NULL);
}
static int refresh_rows(struct walk *w)
{
	return tutti_table_refresh_rows(w->table, w->rows, 1, w->out, NULL, NULL);
}
static int finish_table(struct walk *w) { return tutti_table_finish(w->table); }
static void open_gated(struct walk *w) /* a second push waits for the peer's first one */
{
	open_bsp(w);
	if (walks(w))
		OK(tutti_table_push(w->table, w->in, NULL, &w->op) == 0);
}
static int switch_table(struct walk *w)
{
	const tutti_consistency ssp = { .mode = TUTTI_SSP, .staleness = 3 };
	return tutti_table_switch(w->table, &ssp);
}
static void open_async(struct walk *w)
{
	tutti_table_config c = config_of(TUTTI_ASYNC, TUTTI_TABLE_SNAPSHOTS);
	OK(tutti_table_open(w->group, "table", &c, &w->table) == 0);
	if (walks(w))
		OK(push(w) == 0);
}
static int assign(struct walk *w) { return tutti_table_assign(w->table, w->in, NULL); }
static int assign_rows(struct walk *w)
{
	w->rows[0] = 7;
	return tutti_table_assign_rows(w->table, w->rows, 1, w->in, NULL);
}
static int snapshot(struct walk *w) { return tutti_table_snapshot(w->table, w->out, NULL, NULL); }
static int until_free(int (*act)(tutti_table *, const char *), struct walk *w)
{
	int err;

	for (int i = 0; (err = act(w->table, shared->folder)) == -EBUSY && i < 1000; i++)
		pass_time(TT_MS); /* the server hears that the last one was called off */
	return err;
}
static int save(struct walk *w) { return tutti_table_save(w->table, shared->folder); }
static int load(struct walk *w) { return tutti_table_load(w->table, shared->folder); }
static void open_saved(struct walk *w)
{
	open_async(w);
	if (walks(w))
		OK(save(w) == 0);
}
static void save_again(struct walk *w, int (*call)(struct walk *))
{
	(void)call;
	if (walks(w))
		OK(until_free(tutti_table_save, w) == 0);
}
static void load_again(struct walk *w, int (*call)(struct walk *))
{
	(void)call;
	if (walks(w))
		OK(until_free(tutti_table_load, w) == 0);
}
static void open_closed(struct walk *w) /* the server has closed the table */
{
	open_async(w);
	meet(w);
	if (!walks(w))
		tutti_table_close(w->table);
}
static int reopen(struct walk *w) { return tutti_table_reopen(w->table); }
static void open_again(struct walk *w, int (*call)(struct walk *))
{
	tutti_table_config c = config_of(TUTTI_ASYNC, TUTTI_TABLE_SNAPSHOTS);
	if (!walks(w))
		OK(tutti_table_open(w->group, "table", &c, &w->table) == 0);
	call_on_walker(w, call);
}

/* averaging */

static tutti_tensor tensor_of(struct walk *w) { return (tutti_tensor){ w->in, COUNT, TUTTI_F32 }; }
static int gradients_open(struct walk *w)
{
	tutti_tensor t = tensor_of(w);
	return tutti_gradients_open(w->group, &t, 1, 0, &w->gradients);
}
static void open_gradients(struct walk *w) { OK(gradients_open(w) == 0); }
static void close_gradients(struct walk *w)
{
	tutti_gradients_close(w->gradients);
	w->gradients = NULL;
}
static int gradients_regroup(struct walk *w) { return tutti_gradients_regroup(w->gradients, w->group); }
static void start_gradients(struct walk *w)
{
	open_gradients(w);
	w->op = (tutti_op){ 0 };
	if (walks(w))
		OK(tutti_gradients_average_start(w->gradients, &w->op) == 0);
}
static int gradients_next(struct walk *w)
{
	int first, n;
	return walks(w) ? tutti_gradients_next(w->gradients, &first, &n) : tutti_gradients_average(w->gradients, NULL);
}
static int sum(struct walk *w) { return tutti_gradients_sum(w->gradients, NULL); }
static int average(struct walk *w) { return tutti_gradients_average(w->gradients, NULL); }
static int synchronize(struct walk *w)
{
	tutti_tensor t = { w->out, COUNT, TUTTI_F32 };
	return tutti_gradients_synchronize(w->gradients, &t, 1);
}
static int ea_open(struct walk *w)
{
	tutti_tensor t = tensor_of(w);
	return tutti_ea_open(w->group, &t, 1, 1, 0.5, 0, &w->ea);
}
static void open_ea(struct walk *w) { OK(ea_open(w) == 0); }
static int ea_step(struct walk *w) { return tutti_ea_step(w->ea, NULL); }
static void open_ea_ahead(struct walk *w)
{
	open_ea(w);
	if (walks(w))
		OK(ea_step(w) == 1);
}
static void close_ea(struct walk *w)
{
	tutti_ea_close(w->ea);
	w->ea = NULL;
}
static int ea_center(struct walk *w)
{
	tutti_tensor t;
	return tutti_ea_center(w->ea, &t);
}
static int ea_save(struct walk *w)
{
	char path[100];
	snprintf(path, sizeof path, "%s/ea-%d.safetensors", shared->folder, tutti_rank(w->group));
	return tutti_ea_save(w->ea, path);
}
static void ea_step_too(struct walk *w, int (*call)(struct walk *))
{
	if (!walks(w))
		OK(ea_step(w) == 1);
	call_on_both(w, call);
}
static int ea_synchronize(struct walk *w) { return tutti_ea_synchronize(w->ea); }
static int ea_synchronize_center(struct walk *w) { return tutti_ea_synchronize_center(w->ea); }
static int ea_regroup(struct walk *w) { return tutti_ea_regroup(w->ea, w->group); }
static int ea_set(struct walk *w) { return tutti_ea_set(w->ea, 2, 0.25); }
static int center_open(struct walk *w)
{
	tutti_center_config c = tutti_center_downpour(1, 0);
	tutti_tensor t = tensor_of(w);
	c.servers = 1;
	c.server = the_peer;
	return tutti_center_open(w->group, "center", &t, 1, &c, &w->center);
}
static void open_center(struct walk *w) { OK(center_open(w) == 0); }
static void close_center(struct walk *w)
{
	meet(w);
	tutti_center_close(w->center);
	w->center = NULL;
}
static int center_step(struct walk *w) { return tutti_center_step(w->center, NULL); }
static int center_exchange(struct walk *w) { return tutti_center_exchange(w->center, NULL); }
static int center_pull(struct walk *w) { return tutti_center_pull(w->center); }
static int center_assign(struct walk *w) { return tutti_center_assign(w->center); }
static int center_read(struct walk *w)
{
	tutti_tensor t = { w->out, COUNT, TUTTI_F32 };
	return tutti_center_read(w->center, &t, NULL);
}
static int center_set(struct walk *w)
{
	tutti_center_schedule s;
	int err = tutti_center_get(w->center, &s);
	s.tau = 2;
	return err ? err : tutti_center_set(w->center, w->group, &s);
}
static void exchange_too(struct walk *w, int (*call)(struct walk *))
{
	(void)call;
	if (!walks(w))
		OK(center_exchange(w) == 0);
	OK(center_pull(w) == 0); /* the walker's push has counted */
}
static void gossip_open(struct walk *w)
{
	tutti_gossip_config c = tutti_gossip_defaults();
	tutti_tensor t = tensor_of(w);
	c.timeout_ms = TIMEOUT_MS;
	OK(tutti_gossip_open(w->group, "gossip", &t, 1, &c, &w->gossip) == 0);
	OK(tutti_gossip_publish(w->gossip, 1) == 0);
}
static void open_gossip(struct walk *w)
{
	if (walks(w))
		gossip_open(w);
}
static void open_gossip_too(struct walk *w, int (*call)(struct walk *))
{
	if (!walks(w))
		gossip_open(w);
	call_on_walker(w, call);
}
static void close_gossip(struct walk *w)
{
	meet(w);
	tutti_gossip_close(w->gossip);
}
static int mix(struct walk *w) { return tutti_gossip_mix(w->gossip, 1, NULL); }
static int fetch(struct walk *w)
{
	tutti_tensor t = { w->out, COUNT, TUTTI_F32 };
	tutti_gossip_result r;
	return tutti_gossip_fetch(w->gossip, 1, &t, &r);
}

/* publications: the reader's rank walks, or the publisher's */

static void publisher_open(struct walk *w)
{
	tutti_weight weight = { .name = "x", .dims = 1, .shape = { COUNT }, .data = w->in };
	OK(tutti_publisher_open(w->group, "weights", &weight, 1, NULL, &w->publisher) == 0);
	OK(tutti_publisher_publish(w->publisher, 1, NULL, 0) == 0);
}
static int reader_open(struct walk *w) { return tutti_reader_open(w->group, "weights", 1, &w->reader); }
static void publish_too(struct walk *w, int (*call)(struct walk *))
{
	if (!walks(w))
		publisher_open(w);
	call_on_walker(w, call);
}
static void open_reader(struct walk *w) { publish_too(w, reader_open); }
static int newest(struct walk *w)
{
	uint64_t version;
	return tutti_reader_newest(w->reader, &version);
}
static int fetch_newer(struct walk *w)
{
	tutti_tensor t = { w->out, COUNT, TUTTI_F32 };
	tutti_fetched fetched;
	return tutti_reader_fetch(w->reader, 1, &t, -1, &fetched);
}
static int update_newer(struct walk *w)
{
	tutti_tensor t = { w->out, COUNT, TUTTI_F32 };
	tutti_fetched fetched;
	return tutti_reader_update(w->reader, 1, 1, &t, -1, &fetched);
}
static void publish_more(struct walk *w, int (*call)(struct walk *))
{
	if (!walks(w))
		OK(tutti_publisher_publish(w->publisher, 2, NULL, 0) == 0);
	call_on_walker(w, call);
}
static void open_publisher(struct walk *w)
{
	if (walks(w))
		publisher_open(w);
}
static int await_reader(struct walk *w) { return tutti_publisher_wait(w->publisher, 1, 1, -1); }
static void read_too(struct walk *w, int (*call)(struct walk *))
{
	tutti_tensor t = { w->out, COUNT, TUTTI_F32 };
	tutti_fetched fetched;
	if (!walks(w)) {
		OK(tutti_reader_open(w->group, "weights", 0, &w->reader) == 0);
		OK(tutti_reader_fetch(w->reader, 0, &t, -1, &fetched) == 0);
	}
	call_on_walker(w, call);
}

/* publications in shards: where shard 0 walks it is ahead, and where shard 1 walks it waits for shard 0 */

static int open_shard(struct walk *w, bool is_first)
{
	tutti_weight weight = { .name = is_first ? "x" : "y", .dims = 1, .shape = { COUNT }, .data = w->in };
	tutti_publisher_config c = { .shards = 2, .shard = is_first ? 0 : 1, .shard_0 = is_first == walks(w) ? 0 : 1,
		                     .generation = 1, .shard_wait_ms = -1 };
	return tutti_publisher_open(w->group, "weights", &weight, 1, &c, &w->publisher);
}
static int open_second(struct walk *w) { return open_shard(w, false); }
static void open_first_too(struct walk *w, int (*call)(struct walk *))
{
	if (!walks(w))
		OK(open_shard(w, true) == 0);
	call_on_walker(w, call);
}
static int shard_publish(struct walk *w) { return tutti_publisher_publish(w->publisher, 3, NULL, 0); }
static int shard_begin(struct walk *w)
{
	tutti_tensor t;
	return tutti_publisher_begin(w->publisher, &t);
}
static void open_ahead(struct walk *w) /* by half of the buffers */
{
	if (walks(w))
		OK(open_shard(w, true) == 0 && tutti_publisher_publish(w->publisher, 1, NULL, 0) == 0 &&
		   tutti_publisher_publish(w->publisher, 2, NULL, 0) == 0);
}
static void open_ahead_of(struct walk *w) /* the other shard is there */
{
	open_ahead(w);
	meet(w);
	if (!walks(w))
		OK(open_second(w) == 0);
}
static void publish_first(struct walk *w, int (*call)(struct walk *))
{
	if (!walks(w))
		OK((w->publisher || open_second(w) == 0) && tutti_publisher_publish(w->publisher, 1, NULL, 0) == 0);
	call_on_walker(w, call);
}
/* Shard 1 tells shard 0 its version; the next commit waits until that is there. */
static void open_told(struct walk *w)
{
	tutti_publisher_config c = { .shards = 2, .shard = walks(w), .shard_0 = 1, .generation = 1,
		                     .shard_wait_ms = -1, .buffers = 8 };
	tutti_weight weight = { .name = walks(w) ? "y" : "x", .dims = 1, .shape = { COUNT }, .data = w->in };
	OK(tutti_publisher_open(w->group, "weights", &weight, 1, &c, &w->publisher) == 0);
	w->version = 0;
}
static int shard_commit(struct walk *w)
{
	tutti_tensor t;
	int err = 0;
	for (int last = w->version + 2; w->version < last && !err; w->version += !err)
		if (!(err = tutti_publisher_begin(w->publisher, &t)))
			err = tutti_publisher_commit(w->publisher, (uint64_t)w->version + 1, NULL, 0);
	return err;
}
static void close_publication(struct walk *w)
{
	meet(w);
	tutti_reader_close(w->reader);
	tutti_publisher_close(w->publisher);
	w->reader = NULL;
	w->publisher = NULL;
}

/* controllers and queues */

static int echo(const tutti_request *r, void *answer, size_t room, void *arg)
{
	(void)arg;
	if (r->what == TUTTI_JOINED && r->bytes <= room)
		memcpy(answer, r->data, r->bytes);
	return r->what == TUTTI_JOINED ? (int)r->bytes : 0;
}
static void open_worker(struct walk *w) { OK(tutti_controller_open(w->group, "boss", 1, &w->controller) == 0); }
static void open_boss(struct walk *w) { OK(tutti_controller_open(w->group, "boss", 0, &w->controller) == 0); }
static void close_controller(struct walk *w)
{
	meet(w);
	tutti_controller_close(w->controller);
}
static int ask(struct walk *w)
{
	char got[8] = "";
	size_t n = 0;
	int err = tutti_controller_ask(w->controller, "abc", 3, got, sizeof got, &n, -1);
	OK(err || (n == 3 && !memcmp(got, "abc", 3)));
	return err;
}
static int first(struct walk *w) { return tutti_controller_first(w->controller); }
static int lock(struct walk *w) { return tutti_controller_lock(w->controller, -1); }
static int unlock(struct walk *w)
{
	int err = tutti_controller_unlock(w->controller);
	return err == -EPERM ? 0 : err; /* this worker has no lock */
}
static int done(struct walk *w) { return tutti_controller_done(w->controller); }
static int serve(struct walk *w) { return tutti_controller_serve(w->controller, echo, NULL); }
static void serve_it(struct walk *w, int (*call)(struct walk *))
{
	if (!walks(w)) {
		OK(serve(w) == 0);
		return;
	}
	int got = call(w);
	OK(call == first ? got == 1 : got == 0); /* the interrupted request was not made twice */
	if (call == first)
		OK(first(w) == 1);
	if (call != done)
		OK(done(w) == 0);
}
static void be_served(struct walk *w, int (*call)(struct walk *))
{
	(void)call;
	if (walks(w))
		OK(serve(w) == 0);
	else
		OK(ask(w) == 0 && done(w) == 0);
}
static int next(struct walk *w)
{
	tutti_request r;
	return tutti_controller_next(w->controller, &r, -1);
}
static void open_queue(struct walk *w, int producer)
{
	OK(tutti_queue_open(w->group, "queue", producer, 4 * COUNT, 1, &w->queue) == 0);
}
static void open_taker(struct walk *w) { open_queue(w, 1); }
static int queue_send(struct walk *w)
{
	tutti_tensor t = tensor_of(w);
	return tutti_queue_send(w->queue, &t, 1, -1);
}
static void open_full(struct walk *w) /* one batch at the worker, one waits */
{
	open_queue(w, 0);
	for (int i = 0; walks(w) && i < 2; i++)
		OK(queue_send(w) == 0);
}
static int queue_receive(struct walk *w)
{
	const tutti_tensor *got;
	return tutti_queue_receive(w->queue, &got, -1);
}
static int queue_end(struct walk *w) { return tutti_queue_end(w->queue, -1); }
static void take_all(struct walk *w, int batches)
{
	for (int i = 0; i < batches; i++)
		OK(queue_receive(w) == 1);
	OK(queue_receive(w) == 0);
}
static void send_it(struct walk *w, int (*call)(struct walk *))
{
	(void)call;
	if (walks(w))
		take_all(w, 1);
	else
		OK(queue_send(w) == 0 && queue_end(w) == 0);
}
static void receive_three(struct walk *w, int (*call)(struct walk *))
{
	if (walks(w))
		OK(call(w) == 0 && queue_end(w) == 0);
	else
		take_all(w, 3);
}
static void receive_two(struct walk *w, int (*call)(struct walk *))
{
	if (walks(w))
		OK(call(w) == 0);
	else
		take_all(w, 2);
}
static void close_queue(struct walk *w)
{
	meet(w);
	tutti_queue_close(w->queue);
}

static int open_table_call(struct walk *w) { return open_rounds(w); }

static const struct wait waits[] = {
	{ "tutti_put", open_late, put, come_late, close_window, 0, BOTH },
	{ "tutti_get", open_late, get, come_late, close_window, 0, BOTH },
	{ "tutti_add", open_late, add, come_late, close_window, 0, BOTH },
	{ "tutti_put_notify", open_late, put_notify, come_late, close_window, 0, BOTH },
	{ "tutti_window_bytes", open_late, window_bytes, come_late, close_window, 0, BOTH },
	{ "tutti_put", open_known, put, call_on_walker, close_window, 0, STOPPED | LENT | PASSES },
	{ "tutti_get", open_known, get, call_on_walker, close_window, 0, STOPPED | LENT | PASSES },
	{ "tutti_put", open_known, put_large, call_on_walker, close_window, 0, STOPPED | LENT | PASSES },
	{ "tutti_get", open_known, get_large, call_on_walker, close_window, 0, STOPPED | LENT | PASSES },
	{ "tutti_add", open_known, add, call_on_walker, close_window, 0, STOPPED | LENT | PASSES },
	{ "tutti_put_notify", open_known, put_notify, call_on_walker, close_window, 0, STOPPED | LENT | PASSES },
	{ "tutti_wait_notify", open_known, wait_notify, notify, close_window, 0, BOTH },
	{ "tutti_wait", open_op, wait_op, come_late, close_window, 0, BOTH },
	{ "tutti_wait_all", open_op, wait_all, come_late, close_window, 0, BOTH },
	{ "tutti_wait_any", open_op, wait_any, come_late, close_window, 0, BOTH },

	{ "tutti_allreduce", nothing, allreduce, call_on_both, nothing, 1, BOTH },
	{ "tutti_allreduce", nothing, allreduce_large, call_on_both, nothing, 1, BOTH },
	{ "tutti_allreduce_tensors", nothing, allreduce_tensors, call_on_both, nothing, 1, BOTH },
	{ "tutti_reduce", nothing, reduce, call_on_both, nothing, 1, BOTH },
	{ "tutti_broadcast", nothing, broadcast, call_on_both, nothing, 1, BOTH | LENT },
	{ "tutti_gather", nothing, gather, call_on_both, nothing, 1, BOTH },
	{ "tutti_scatter", nothing, scatter, call_on_both, nothing, 1, BOTH },
	{ "tutti_barrier", nothing, barrier, call_on_both, nothing, 1, BOTH },
	{ "tutti_reduce_scatter", nothing, reduce_scatter, call_on_both, nothing, 1, BOTH },
	{ "tutti_allgather", nothing, allgather, call_on_both, nothing, 1, BOTH },
	{ "tutti_allgatherv", nothing, allgatherv, call_on_both, nothing, 1, BOTH },
	{ "tutti_alltoall", nothing, alltoall, call_on_both, nothing, 1, BOTH },
	{ "tutti_alltoallv", nothing, alltoallv, call_on_both, nothing, 1, BOTH },

	{ "tutti_send", nothing, send_large, receive_too, nothing, 0, BOTH | LENT },
	{ "tutti_recv", nothing, receive, send_too, nothing, 0, BOTH },

	{ "tutti_group_split", nothing, split, call_on_both, nothing, 1, BOTH },
	{ "tutti_group_of", nothing, group_of, call_on_both, nothing, 0, BOTH },
	{ "tutti_group_of", nothing, group_of_peer, call_on_both, nothing, 0, BOTH },
	{ "tutti_group_shrink", nothing, shrink, call_on_both, nothing, 0, BOTH },
	{ "tutti_group_grow", nothing, grow, call_on_both, nothing, 0, BOTH },
	{ "tutti_stats_dump", open_pipe, dump, NULL, close_pipe, 0, HEALTHY | REAL },

	{ "tutti_table_open", nothing, open_table_call, call_on_both, close_table, 0, BOTH },
	{ "tutti_table_push", open_bsp, push, catch_up, close_table, 0, BOTH },
	{ "tutti_table_pull", open_bsp, pull, catch_up, close_table, 0, BOTH },
	{ "tutti_table_push_pull", open_bsp, push_pull, catch_up, close_table, 0, BOTH },
	{ "tutti_table_push_rows", open_bsp, push_rows, catch_up, close_table, 0, BOTH },
	{ "tutti_table_pull_rows", open_bsp, pull_rows, catch_up_then, close_table, 0, BOTH },
	{ "tutti_table_pull_fresh", open_bsp, pull_fresh, catch_up_then, close_table, 0, BOTH },
	{ "tutti_table_refresh_rows", open_bsp, refresh_rows, catch_up_then, close_table, 0, BOTH },
	{ "tutti_table_finish", open_gated, finish_table, catch_up_then, close_table, 0, BOTH },
	{ "tutti_table_switch", open_bsp, switch_table, call_on_both, close_table, 0, BOTH },
	{ "tutti_table_push", open_async, push, call_on_walker, close_table, 0, STOPPED | LENT },
	{ "tutti_table_pull", open_async, pull, call_on_walker, close_table, 0, STOPPED | LENT | PASSES },
	{ "tutti_table_push_pull", open_async, push_pull, call_on_walker, close_table, 0, STOPPED | LENT },
	{ "tutti_table_assign", open_async, assign, call_on_walker, close_table, 0, STOPPED | LENT },
	{ "tutti_table_assign_rows", open_async, assign_rows, call_on_walker, close_table, 0, STOPPED | LENT },
	{ "tutti_table_push_rows", open_async, push_rows, call_on_walker, close_table, 0, STOPPED | LENT },
	{ "tutti_table_pull_rows", open_async, pull_rows, call_on_walker, close_table, 0, STOPPED | LENT | PASSES },
	{ "tutti_table_snapshot", open_async, snapshot, call_on_walker, close_table, 0, STOPPED | LENT | PASSES },
	{ "tutti_table_save", open_async, save, save_again, close_table, 0, STOPPED },
	{ "tutti_table_load", open_saved, load, load_again, close_table, 0, STOPPED },
	{ "tutti_table_reopen", open_closed, reopen, open_again, close_table, 0, BOTH },

	{ "tutti_gradients_open", nothing, gradients_open, call_on_both, close_gradients, 1, BOTH },
	{ "tutti_gradients_regroup", open_gradients, gradients_regroup, call_on_both, close_gradients, 1, BOTH },
	{ "tutti_gradients_next", start_gradients, gradients_next, call_on_both, close_gradients, 0, BOTH },
	{ "tutti_gradients_sum", open_gradients, sum, call_on_both, close_gradients, 0, BOTH },
	{ "tutti_gradients_average", open_gradients, average, call_on_both, close_gradients, 0, BOTH },
	{ "tutti_gradients_synchronize", open_gradients, synchronize, call_on_both, close_gradients, 0, BOTH },
	{ "tutti_ea_open", nothing, ea_open, call_on_both, close_ea, 1, BOTH },
	{ "tutti_ea_step", open_ea_ahead, ea_step, ea_step_too, close_ea, 0, BOTH },
	{ "tutti_ea_center", open_ea_ahead, ea_center, ea_step_too, close_ea, 0, BOTH },
	{ "tutti_ea_save", open_ea_ahead, ea_save, ea_step_too, close_ea, 0, BOTH },
	{ "tutti_ea_synchronize", open_ea, ea_synchronize, call_on_both, close_ea, 0, BOTH },
	{ "tutti_ea_synchronize_center", open_ea, ea_synchronize_center, call_on_both, close_ea, 0, BOTH },
	{ "tutti_ea_regroup", open_ea, ea_regroup, call_on_both, close_ea, 1, BOTH },
	{ "tutti_ea_set", open_ea, ea_set, call_on_both, close_ea, 1, BOTH },
	{ "tutti_center_open", nothing, center_open, call_on_both, close_center, 1, BOTH },
	{ "tutti_center_step", open_center, center_step, exchange_too, close_center, 0, BOTH | LENT },
	{ "tutti_center_exchange", open_center, center_exchange, exchange_too, close_center, 0, BOTH | LENT },
	{ "tutti_center_pull", open_center, center_pull, call_on_walker, close_center, 0, STOPPED | LENT | PASSES },
	{ "tutti_center_assign", open_center, center_assign, call_on_walker, close_center, 0, STOPPED | LENT },
	{ "tutti_center_read", open_center, center_read, call_on_walker, close_center, 0, STOPPED | LENT | PASSES },
	{ "tutti_center_set", open_center, center_set, call_on_both, close_center, 1, BOTH },
	{ "tutti_gossip_mix", open_gossip, mix, open_gossip_too, close_gossip, 0, BOTH },
	{ "tutti_gossip_fetch", open_gossip, fetch, open_gossip_too, close_gossip, 0, BOTH },

	{ "tutti_reader_open", nothing, reader_open, publish_too, close_publication, 0, BOTH },
	{ "tutti_reader_newest", open_reader, newest, call_on_walker, close_publication, 0, STOPPED | LENT | PASSES },
	{ "tutti_reader_fetch", open_reader, fetch_newer, publish_more, close_publication, 0, BOTH | LENT },
	{ "tutti_reader_update", open_reader, update_newer, publish_more, close_publication, 0, BOTH | LENT },
	{ "tutti_publisher_open", nothing, open_second, open_first_too, close_publication, 0, BOTH },
	{ "tutti_publisher_publish", open_ahead, shard_publish, publish_first, close_publication, 0, BOTH },
	{ "tutti_publisher_publish", open_ahead_of, shard_publish, publish_first, close_publication, 0, BOTH },
	{ "tutti_publisher_begin", open_ahead, shard_begin, publish_first, close_publication, 0, BOTH },
	{ "tutti_publisher_commit", open_told, shard_commit, call_on_walker, close_publication, 0,
	  STOPPED | LENT | PASSES },
	{ "tutti_publisher_wait", open_publisher, await_reader, read_too, close_publication, 0, BOTH },

	{ "tutti_controller_ask", open_worker, ask, serve_it, close_controller, 0, BOTH },
	{ "tutti_controller_first", open_worker, first, serve_it, close_controller, 0, BOTH },
	{ "tutti_controller_lock", open_worker, lock, serve_it, close_controller, 0, BOTH },
	{ "tutti_controller_unlock", open_worker, unlock, serve_it, close_controller, 0, BOTH },
	{ "tutti_controller_done", open_worker, done, serve_it, close_controller, 0, BOTH },
	{ "tutti_controller_serve", open_boss, serve, be_served, close_controller, 0, BOTH },
	{ "tutti_controller_next", open_boss, next, be_served, close_controller, 0, BOTH },
	{ "tutti_queue_receive", open_taker, queue_receive, send_it, close_queue, 0, BOTH },
	{ "tutti_queue_send", open_full, queue_send, receive_three, close_queue, 0, BOTH },
	{ "tutti_queue_end", open_full, queue_end, receive_two, close_queue, 0, BOTH },
};

/* ---- the walk ---- */

static int is_time(void *at) { return tt_now() >= *(uint64_t *)at; }


static void judge(const struct walk *w, const struct wait *c, int err, uint64_t took)
{
	bool in_memory = !tt_world && strstr(wires, "shm"), delayed = w->stopped && c->flags & LENT;
	/* who lets the peer go on may get a core late, too */
	uint64_t most = AFTER + (tt_world ? SOON : delayed ? 3 * SOON_BUSY : SOON_BUSY) + (delayed ? STOP : 0);
	char text[200];

	if (name_each_test)
		printf("  %s: %d after %llu ms%s\n", c->name, err, (unsigned long long)(took / TT_MS),
		       w->stopped ? ", peer stopped" : "");
	fflush(stdout);
	snprintf(text, sizeof text, "%s, peer %s: %d after %llu ms", c->name, w->stopped ? "stopped" : "idle", err,
	         (unsigned long long)(took / TT_MS));
	/* what the peer has done after it went on may end the call well */
	ok(err == -EINTR || (err >= 0 && ((c->flags & PASSES && in_memory) || delayed)), text, __LINE__);
	ok(took <= most * TT_MS, text, __LINE__);
}

static void interrupt(struct walk *w, const struct wait *c)
{
	if (w->stopped)
		stop_peer(c->flags & LENT ? STOP : STOP_LONG);
	uint64_t begun = tt_now(), at = begun + AFTER * TT_MS;
	tutti_on_wait(is_time, &at);
	int err = c->call(w);
	tutti_on_wait(NULL, NULL);
	judge(w, c, err, tt_now() - begun);
	if (w->stopped)
		resume_peer();
}

static void walk_one(struct walk *w, const struct wait *c)
{
	memset(&w->op, 0, sizeof w->op);
	memset(&w->more, 0, sizeof w->more);
	w->window = NULL;
	c->open(w);
	meet(w);
	if (walks(w))
		interrupt(w, c);
	pass_time(HEARD * TT_MS);
	meet(w);
	if (!walks(w) && c->cancels)
		OK(c->call(w) == -ECONNABORTED);
	if (c->again)
		c->again(w, c->call);
	c->close(w);
	OK(tutti_barrier(w->group, NULL) == 0);
}

static const char *only; /* of the functions; NULL: all */

static bool is_chosen(const struct walk *w, const struct wait *c)
{
	if (only && !strstr(c->name, only))
		return false;
	return c->flags & (w->stopped ? STOPPED : HEALTHY) && !(tt_world && c->flags & REAL);
}

static void walk_all(struct walk *w)
{
	for (size_t i = 0; i < TT_COUNT(waits); i++) {
		if (!is_chosen(w, &waits[i]))
			continue;
		if (!tt_world)
			reach((int)i);
		walk_one(w, &waits[i]);
	}
}

/* Something runs that never ends: an interrupted leave does not wait for it. */
static void leave_at_once(struct walk *w)
{
	open_op(w);
	meet(w);
	if (!walks(w))
		return;
	if (w->stopped)
		stop_peer(STOP_LONG);
	uint64_t begun = tt_now(), at = begun + AFTER * TT_MS;
	tutti_on_wait(is_time, &at);
	tutti_leave(w->job);
	tutti_on_wait(NULL, NULL);
	judge(w, &(struct wait){ .name = "tutti_leave" }, -EINTR, tt_now() - begun);
	if (w->stopped)
		resume_peer();
}

static bool peer_stops; /* children inherit it */

static void program(tutti *job)
{
	struct walk *w = calloc(1, sizeof *w);

	*w = (struct walk){ .job = job, .group = job, .me = tutti_rank(job), .stopped = peer_stops };
	walk_all(w);
	leave_at_once(w);
	meet(w);
	if (!walks(w))
		tutti_leave(job);
	free(w);
	if (!tt_world)
		exit(0); /* leaks are looked for now */
	sim_run_now->left[tt_sim_rank()] = true;
}

static void make_shared(void)
{
	if (!shared)
		shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	memset(shared, 0, sizeof *shared);
	strcpy(shared->folder, "/tmp/tutti-interrupts-XXXXXX");
	if (!mkdtemp(shared->folder))
		exit(1);
}

static void remove_shared(void)
{
	clear_folder(shared->folder);
	rmdir(shared->folder);
}

/* The parent uses nothing of the library itself: its children would share what the library keeps. */
static void in_child(bool (*fails)(void))
{
	int status = 0;
	pid_t pid = fork_child();

	if (pid == 0)
		exit(fails());
	CU_ASSERT(waitpid(pid, &status, 0) == pid && status == 0);
}

static bool fails_on_sim(void)
{
	struct ranks run = { .size = 2, .wire = "sim", .timeout_ms = TIMEOUT_MS, .program = program };
	int failed = 0;

	for (run.seed = 0; run.seed < count_seeds(SEEDS_FEW); run.seed++) {
		make_shared();
		failed += run_ranks(run);
		remove_shared();
	}
	return failed;
}

static void hold_peer(void)
{
	int most = atomic_exchange(&shared->stop, 0);

	uint64_t until = tt_now() + (uint64_t)most * TT_MS; /* on a full machine a sleep of 1 ms takes 10 */

	strike(1, SIGSTOP);
	shared->stopped = 1;
	while (tt_now() < until && !shared->go_on)
		sleep_ms(1);
	strike(1, SIGCONT);
	shared->stopped = 0;
}

static void run_real_walk(void)
{
	make_shared();
	start((struct crew){ .size = 2, .timeout_ms = TIMEOUT_MS, .program = program });
	for (int ms = 0; ms < 10 * HANG_MS && reap_some(); ms++) {
		if (shared->stop)
			hold_peer();
		sleep_ms(1);
	}
	finish(NOBODY);
	remove_shared();
}

static void run_walk(bool stops)
{
	peer_stops = stops;
	if (!strcmp(wires, "sim"))
		in_child(fails_on_sim);
	else
		run_real_walk();
}

static void test_idle(void) { run_walk(false); }
static void test_stopped(void) { run_walk(true); }

/* ---- joining ---- */

static bool fails_alone(int rank, const char *boot)
{
	tutti_config c = { .rank = rank, .ranks = 2, .boot = boot, .transports = "tcp" };
	uint64_t begun = tt_now(), at = begun + AFTER * TT_MS;
	tutti *job = NULL;

	tutti_on_wait(is_time, &at);
	int err = tutti_join(&c, &job);
	tutti_on_wait(NULL, NULL);
	if (err == -EINTR && !job && tt_now() - begun < (AFTER + SOON_BUSY) * TT_MS)
		return false;
	printf("joining as rank %d: %d after %llu ms: %s\n", rank, err,
	       (unsigned long long)((tt_now() - begun) / TT_MS), tutti_why());
	return true;
}

/* The other rank never comes to the job. The first try leaves nothing that the second one meets. */
static bool fails_to_join(void)
{
	bool failed = false;
	char boot[32];

	for (int rank = 0; rank < 2; rank++) {
		snprintf(boot, sizeof boot, "127.0.0.1:%d", free_port());
		failed |= fails_alone(rank, boot);
		failed |= fails_alone(rank, boot);
	}
	return failed;
}

static void join_on_sim(int rank, void *arg)
{
	uint64_t begun = tt_now(), at = begun + AFTER * TT_MS;
	tutti *job = NULL;

	sim_run_now = arg;
	if ((uint64_t)rank == sim_run_now->seed % 2)
		return;
	tutti_on_wait(is_time, &at);
	CHECK(tutti_join(NULL, &job) == -EINTR && tt_now() - begun < (AFTER + SOON) * TT_MS);
	tutti_on_wait(NULL, NULL);
}

static bool fails_to_join_on_sim(void)
{
	int failed = 0;

	for (uint64_t seed = 0; seed < 8; seed++) {
		struct ranks run = { .size = 2, .wire = "sim", .seed = seed };
		struct tt_sim_config c = { .seed = seed, .ranks = 2, .program = join_on_sim, .arg = &run };
		failed += tt_sim_run(&c) != 0;
		failed += run.failures;
	}
	return failed;
}

static void test_join(void) { in_child(strcmp(wires, "sim") ? fails_to_join : fails_to_join_on_sim); }

static CU_TestInfo tests[] = {
	{ "joining", test_join },
	{ "an idle peer", test_idle },
	{ "a stopped peer", test_stopped },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = { { "interrupts", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

static int list(void)
{
	printf("tutti_join\ntutti_leave\n");
	for (size_t i = 0; i < TT_COUNT(waits); i++)
		printf("%s\n", waits[i].name);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "--list"))
		return list();
	only = getenv("TEST_ONLY");
	printf("sim\n");
	wires = "sim";
	int err = run_suites(suites, argc, argv);
	return err | (getenv("TEST_SIM") ? 0 : run_over_wires(suites, argc, argv));
}
