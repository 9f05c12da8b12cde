/* closes.c - the program closes what it holds in any order, before and after it has left the job, while other threads
 * wait there, and at exit. TEST_FULL: all orders of six kinds of handles, with tutti_leave at each place between. */
#include "tests/harness/ranks.h"
#include "tests/harness/amount.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/procs.h"
#include <sys/wait.h>

/* ---- one of each ---- */

enum kind {
	WINDOW, TABLE, GOSSIP, CENTER, CONTROLLER, QUEUE, SIX,
	GRADIENTS = SIX, EA, GROUP, OP, PUBLISHER, READER, KINDS
};

enum { COUNT = 64, ORDERS = 720 };

struct things {
	tutti *job, *group;
	float x[8][COUNT];
	tutti_window *window;
	tutti_table *table;
	tutti_gossip *gossip;
	tutti_center *center;
	tutti_controller *controller;
	tutti_queue *queue;
	tutti_gradients *gradients;
	tutti_ea *ea;
	tutti_op *op;
	tutti_publisher *publisher;
	tutti_reader *reader;
};

static tutti_tensor tensor(struct things *t, int i) { return (tutti_tensor){ t->x[i], COUNT, TUTTI_F32 }; }

static void open_all(struct things *t, tutti *job)
{
	tutti_gossip_config gossip = tutti_gossip_defaults();
	tutti_center_config center = tutti_center_asgd(1);
	tutti_table_config table = tutti_table_f32(COUNT, tutti_accumulate());
	tutti_weight weight = { .name = "x", .dims = 1, .shape = { COUNT }, .data = t->x[7] };
	tutti_tensor list[8];

	for (int i = 0; i < 8; i++)
		list[i] = tensor(t, i);
	gossip.timeout_ms = 200;
	t->job = job;
	CHECK(!tutti_publisher_open(job, tutti_rank(job) ? "p1" : "p0", &weight, 1, NULL, &t->publisher));
	CHECK(!tutti_group_split(job, 0, 0, &t->group) && !tutti_op_new(&t->op));
	CHECK(!tutti_window_open(job, "w", t->x[0], sizeof t->x[0], &t->window));
	CHECK(!tutti_table_open(t->group, "t", &table, &t->table));
	CHECK(!tutti_gossip_open(job, "g", &list[1], 1, &gossip, &t->gossip));
	CHECK(!tutti_center_open(t->group, "c", &list[2], 1, &center, &t->center));
	CHECK(!tutti_controller_open(t->group, "k", 0, &t->controller));
	CHECK(!tutti_queue_open(job, "q", 0, 100, 2, &t->queue));
	CHECK(!tutti_gradients_open(t->group, &list[3], 1, 0, &t->gradients));
	CHECK(!tutti_ea_open(t->group, &list[4], 1, 2, 0.5, 0, &t->ea));
}

/* Each has something of the job: connections, keys, memory that is pinned, a sum that is under way. */
static void use_all(struct things *t)
{
	int rank = tutti_rank(t->job), other = 1 - rank;
	tutti_tensor batch = tensor(t, 5);
	batch.count = 4;

	CHECK(!tutti_put_notify(t->window, other, 0, t->x[6], 8, 3, NULL));
	CHECK(!tutti_table_push(t->table, t->x[6], NULL, NULL) && !tutti_table_pull(t->table, t->x[6], NULL));
	CHECK(!tutti_gossip_publish(t->gossip, 1) && !tutti_gossip_mix(t->gossip, 1, NULL));
	CHECK(tutti_center_step(t->center, NULL) == 1);
	CHECK(rank || !tutti_queue_send(t->queue, &batch, 1, 5000));
	CHECK(!tutti_gradients_average(t->gradients, NULL));
	CHECK(tutti_ea_step(t->ea, NULL) == 0 && tutti_ea_step(t->ea, NULL) == 1);
	CHECK(!tutti_publisher_publish(t->publisher, 1, NULL, 0));
	CHECK(!tutti_reader_open(t->job, rank ? "p0" : "p1", other, &t->reader));
	tutti_tensor to = tensor(t, 5);
	tutti_fetched fetched;
	CHECK(!tutti_reader_fetch(t->reader, 0, &to, 5000, &fetched));
	CHECK(!tutti_barrier(t->job, NULL)); /* both have read before one closes */
	CHECK(!tutti_barrier(t->group, t->op));
}

/* Of a handle whose job was left. */
static int call(struct things *t, enum kind kind)
{
	uint64_t version;

	switch (kind) {
	case WINDOW: return tutti_put(t->window, 0, 0, t->x[6], 8, NULL);
	case TABLE: return tutti_table_pull(t->table, t->x[6], NULL);
	case GOSSIP: return tutti_gossip_publish(t->gossip, 1);
	case CENTER: return tutti_center_exchange(t->center, NULL);
	case CONTROLLER: return tutti_controller_first(t->controller);
	case QUEUE: return tutti_queue_end(t->queue, 0);
	case GRADIENTS: return tutti_gradients_average(t->gradients, NULL);
	case EA: return tutti_ea_synchronize(t->ea);
	case GROUP: return tutti_barrier(t->group, NULL);
	case PUBLISHER: return tutti_publisher_publish(t->publisher, 2, NULL, 0);
	case READER: return tutti_reader_newest(t->reader, &version);
	default: return tutti_wait(t->op, -1) == -EINVAL ? -ESHUTDOWN : 0;
	}
}

static int more_calls(struct things *t, enum kind kind)
{
	tutti_table_info table;
	tutti_gossip_info gossip;
	tutti_tensor list[1] = { { t->x[5], COUNT, TUTTI_F32 } };
	tutti_fetched fetched;

	switch (kind) {
	case WINDOW: return tutti_wait_notify(t->window, -1, 3, 9, -1);
	case TABLE: return tutti_table_look(t->table, &table);
	case GOSSIP: return tutti_gossip_look(t->gossip, &gossip);
	case CENTER: return tutti_table_finish(tutti_center_table(t->center));
	case CONTROLLER: return tutti_controller_lock(t->controller, -1);
	case GRADIENTS: return tutti_gradients_ready(t->gradients, 0);
	case EA: return tutti_ea_center(t->ea, list);
	case GROUP: return tutti_group_member(t->group, 0);
	case PUBLISHER: return tutti_publisher_wait(t->publisher, 9, 1, -1);
	case READER: return tutti_reader_fetch(t->reader, 9, list, -1, &fetched);
	default: return -ESHUTDOWN;
	}
}

static void close_one(struct things *t, enum kind kind)
{
	switch (kind) {
	case WINDOW: tutti_window_close(t->window); break;
	case TABLE: tutti_table_close(t->table); break;
	case GOSSIP: tutti_gossip_close(t->gossip); break;
	case CENTER: tutti_center_close(t->center); break;
	case CONTROLLER: tutti_controller_close(t->controller); break;
	case QUEUE: tutti_queue_close(t->queue); break;
	case GRADIENTS: tutti_gradients_close(t->gradients); break;
	case EA: tutti_ea_close(t->ea); break;
	case GROUP: tutti_group_free(t->group); break;
	case PUBLISHER: tutti_publisher_close(t->publisher); break;
	case READER: tutti_reader_close(t->reader); break;
	default: tutti_op_free(t->op);
	}
}

/* ---- all orders ---- */

struct order {
	enum kind kind[KINDS];
	int leave;                   /* how many are closed before */
};
static struct order now;

static void insert(struct order *o, int n, int at, enum kind kind)
{
	memmove(o->kind + at + 1, o->kind + at, (size_t)(n - at) * sizeof *o->kind);
	o->kind[at] = kind;
}

/* The number-th permutation of six; the others come in anywhere, and leave is as they shift it. */
static struct order order_of(int number, int leave)
{
	struct order o = { .leave = leave };
	struct tt_random chance;
	int n = 0;

	for (int rest = number; n < SIX; rest /= ++n)
		insert(&o, n, rest % (n + 1), (enum kind)n);
	tt_random_seed(&chance, (uint64_t)(number * 7 + leave) + 1);
	for (; n < KINDS; n++) {
		int at = (int)tt_random_below(&chance, (uint64_t)n + 1);
		insert(&o, n, at, (enum kind)n);
		o.leave += at < o.leave;
	}
	return o;
}

static bool holds_group(const struct order *o, int at) /* it is closed later */
{
	while (at < KINDS && o->kind[at] != GROUP)
		at++;
	return at < KINDS;
}

static void leave_now(struct things *t)
{
	struct ranks *run = tt_world ? sim_run_now : this_run;

	run->left[tutti_rank(t->job)] = true;
	tutti_leave(t->job);
}

static void close_in_order(tutti *job)
{
	struct things *t = calloc(1, sizeof *t);

	open_all(t, job);
	use_all(t);
	for (int i = 0; i <= KINDS; i++) {
		if (i == now.leave)
			leave_now(t);
		if (i == KINDS)
			break;
		enum kind kind = now.kind[i];
		CHECK(i < now.leave || (call(t, kind) == -ESHUTDOWN && more_calls(t, kind) == -ESHUTDOWN));
		if (i < now.leave && kind == EA && !holds_group(&now, i))
			CHECK(tutti_ea_step(t->ea, NULL) == -ESTALE);
		close_one(t, kind);
	}
	free(t);
}

static int try_order(const char *wire, int number, int leave)
{
	now = order_of(number, leave);
	return run_ranks((struct ranks){ .size = 2, .wire = wire, .seed = (uint64_t)number, .timeout_ms = 20000,
	                                 .program = close_in_order });
}

/* All of them on one wire or another: a step that has no divisor in common with their number reaches each. */
static void test_orders(void)
{
	static const char *const wires[] = { "sim", "tcp", "shm" };
	int all = ORDERS * (SIX + 1), count = all_or(all, 60), failed = 0;

	for (int i = 0; i < count && failed < 3; i++) {
		int at = (int)((long)i * 1009 % all);
		failed += try_order(wires[i % 3], at / (SIX + 1), at % (SIX + 1)) != 0;
	}
	CU_ASSERT(!failed);
}

/* ---- other threads wait ---- */

enum wait {
	NOTIFY, RECEIVE, SEND, END, SERVE, NEXT, ASK, FIRST, LOCK, MESSAGE, OPEN_TABLE, OPEN_CENTER, OPEN_EA, SPLIT,
	GROUP_OF, WAITS
};
static const struct {
	const char *name, *word;     /* word: the handle's, in the sentence */
	enum kind on;
	int rank;                    /* that waits */
} wait_of[] = {
	[NOTIFY] = { "notify", "window", WINDOW, 0 },
	[RECEIVE] = { "receive", "queue", QUEUE, 1 },
	[SEND] = { "send", "queue", QUEUE, 0 },
	[END] = { "end", "queue", QUEUE, 0 },
	[SERVE] = { "serve", "controller", CONTROLLER, 0 },
	[NEXT] = { "next", "controller", CONTROLLER, 0 },
	[ASK] = { "ask", "controller", CONTROLLER, 1 },
	[FIRST] = { "first", "controller", CONTROLLER, 1 },
	[LOCK] = { "lock", "controller", CONTROLLER, 1 },
	[MESSAGE] = { "message", "recv", GROUP, 1 },
	[OPEN_TABLE] = { "table open", "group", GROUP, 0 }, /* as all below: the other rank does not call it */
	[OPEN_CENTER] = { "center open", "group", GROUP, 1 },
	[OPEN_EA] = { "ea open", "group", GROUP, 0 },
	[SPLIT] = { "split", "group", GROUP, 1 },
	[GROUP_OF] = { "group of", "group", GROUP, 0 },
};

static struct { /* what this run does */
	enum wait wait;
	bool leave;
} plan;

struct waiter {
	struct things *things;
	struct tt_task *task;
	int err;
	char why[200];
};

static int answer(const tutti_request *r, void *to, size_t room, void *arg)
{
	(void)r, (void)to, (void)room, (void)arg;
	return 0;
}

static int open_more(struct things *t)
{
	tutti_table_config config = tutti_table_f32(COUNT, tutti_accumulate());
	tutti_center_config asgd = tutti_center_asgd(1);
	tutti_tensor list = tensor(t, 7);
	const int both[] = { 0, 1 };
	tutti_table *table;
	tutti_center *center;
	tutti_ea *ea;
	tutti *part;

	switch (plan.wait) {
	case OPEN_TABLE: return tutti_table_open(t->group, "more", &config, &table);
	case OPEN_CENTER: return tutti_center_open(t->group, "more", &list, 1, &asgd, &center);
	case OPEN_EA: return tutti_ea_open(t->group, &list, 1, 2, 0.5, 0, &ea);
	case SPLIT: return tutti_group_split(t->group, 0, 0, &part);
	default: return tutti_group_of(t->group, both, 2, "more", &part);
	}
}

static int wait_there(struct things *t)
{
	const tutti_tensor *list;
	tutti_tensor batch = { t->x[5], 4, TUTTI_F32 };
	tutti_request request;
	char text[8];
	int err = 0;

	switch (plan.wait) {
	case NOTIFY: return tutti_wait_notify(t->window, -1, 5, 1, -1);
	case RECEIVE: return tutti_queue_receive(t->queue, &list, -1);
	case SEND:
		while (!err)
			err = tutti_queue_send(t->queue, &batch, 1, -1);
		return err;
	case END:
		while (!tutti_queue_send(t->queue, &batch, 1, 0))
			continue;
		return tutti_queue_end(t->queue, -1);
	case NEXT: return tutti_controller_next(t->controller, &request, -1);
	case FIRST: return tutti_controller_first(t->controller);
	case MESSAGE: return tutti_recv(t->group, -1, 1, text, sizeof text, NULL, NULL);
	case SERVE: return tutti_controller_serve(t->controller, answer, NULL);
	case ASK: return tutti_controller_ask(t->controller, "x", 1, text, sizeof text, NULL, -1);
	case LOCK: return tutti_controller_lock(t->controller, -1);
	default: return open_more(t);
	}
}

static void run_waiter(void *arg)
{
	struct waiter *w = arg;

	w->err = wait_there(w->things);
	snprintf(w->why, sizeof w->why, "%s", tutti_why());
}

static bool is_inside(struct tt_job *job)
{
	tt_lock(job);
	bool inside = job->inside > 0;
	tt_unlock(job);
	return inside;
}

/* Freeing the group cancels a receive. */
static bool has_ended_well(const struct waiter *w)
{
	int err = w->err;

	if (plan.wait == MESSAGE && !plan.leave)
		return err == -ECANCELED;
	return plan.leave ? err == -ESHUTDOWN : err == -ESTALE && strstr(w->why, wait_of[plan.wait].word);
}

/* A thread is in the call when another one closes, or leaves: it is woken, and nothing is freed before it is out. */
static void end_a_wait(tutti *job)
{
	struct things *t = calloc(1, sizeof *t);
	struct waiter w = { .things = t };
	int rank = tutti_rank(job);
	bool closed[KINDS] = { false };

	open_all(t, job);
	CHECK(!tutti_barrier(job, NULL));
	if (rank == wait_of[plan.wait].rank) {
		CHECK(!tt_spawn(run_waiter, &w, &w.task));
		while (!is_inside(job->job)) /* a busy machine may begin the thread late */
			pass_time(TT_MS);
		pass_time(30 * TT_MS);
		uint64_t since = tt_now();
		if (plan.leave) {
			leave_now(t);
		} else {
			close_one(t, wait_of[plan.wait].on);
			closed[wait_of[plan.wait].on] = true;
		}
		tt_join(w.task);
		CHECK(tt_now() - since < (uint64_t)(5 * SLOW) * 1000 * TT_MS);
		CHECK(has_ended_well(&w));
		if (!has_ended_well(&w))
			printf("%s: %d: %s\n", wait_of[plan.wait].name, w.err, w.why);
	} else {
		pass_time(300 * TT_MS); /* so that the other rank is not woken by this one */
	}
	for (int i = 0; i < KINDS; i++)
		if (!closed[i])
			close_one(t, (enum kind)i);
	free(t);
}

static int try_wait(const char *wire, enum wait wait, bool leave)
{
	plan.wait = wait;
	plan.leave = leave;
	int failed = run_ranks((struct ranks){ .size = 2, .wire = wire, .seed = wait, .timeout_ms = 20000,
	                                       .program = end_a_wait });
	if (failed)
		printf("a thread in %s, %s, over %s\n", wait_of[wait].name, leave ? "leave" : "close", wire);
	return failed;
}

static void test_waits(void)
{
	static const char *const wires[] = { "sim", "tcp", "shm" };

	for (int i = 0; i < 3; i++)
		for (int wait = 0; wait < WAITS; wait++) {
			CU_ASSERT(!try_wait(wires[i], (enum wait)wait, false));
			CU_ASSERT(!try_wait(wires[i], (enum wait)wait, true));
		}
}

/* ---- another thread pins the memory of its call ---- */

enum { PIN_MS = 100, BYTES = 1 << 20, SMALL = 4096 };

enum call { PUT, PULL, SNAPSHOT, SUM, POST, CALLS };
static const enum kind handle_of[] = {
	[PUT] = WINDOW, [PULL] = TABLE, [SNAPSHOT] = TABLE, [SUM] = GROUP, [POST] = GROUP
};

static struct {
	enum call call;
	bool leave;
	atomic_bool pins;            /* a thread is in slow_pin() */
} pinning;

static struct tt_pin pins_made[256]; /* the nets that close do not give back pins that others made for them */
static atomic_uint pin_count;

static int slow_pin(struct tt_net *net, const struct tt_mem *mem, int remote, struct tt_pin **out)
{
	*out = &pins_made[atomic_fetch_add(&pin_count, 1) % TT_COUNT(pins_made)];
	**out = (struct tt_pin){ .net = net, .mem = *mem, .remote = remote };
	pinning.pins = true;
	pass_time(PIN_MS * TT_MS);
	pinning.pins = false;
	return 0;
}

static void free_pin(struct tt_pin *p) { (void)p; }

/* From now on long memory is pinned, and that takes long. own: the transports of the nets, to be put back. */
static void slow_down_pins(struct tt_job *job, struct tt_transport *slow, const struct tt_transport **own)
{
	pass_time(10 * TT_MS); /* messages on their way go back to the scratch memory, ... */
	tt_lock(job);
	tt_scratch_free(&job->scratch); /* ... which is another kind of memory where nets pin */
	for (int i = 0; i < job->engine.count; i++) {
		struct tt_net *net = job->engine.nets[i];
		slow[i] = *(own[i] = net->transport);
		slow[i].pin = slow_pin;
		slow[i].unpin = free_pin;
		net->transport = &slow[i];
		net->copy_max = SMALL;
	}
	job->engine.pin_above = job->engine.look_above = SMALL;
	tt_unlock(job);
}

static int call_on(struct things *t, char *memory)
{
	switch (pinning.call) {
	case PUT: return tutti_put(t->window, 1, 0, memory, BYTES, NULL);
	case PULL: return tutti_table_pull(t->table, memory, NULL);
	case SNAPSHOT: return tutti_table_snapshot(t->table, memory, NULL, NULL);
	case POST: return tutti_send(t->group, 1, 1, memory, BYTES, NULL);
	default: return tutti_allreduce(t->group, memory, memory + BYTES, BYTES / 4, TUTTI_F32, TUTTI_SUM, NULL);
	}
}

static void call_and_pin(void *arg)
{
	struct waiter *w = arg;
	char *memory = calloc(2, BYTES);

	w->err = call_on(w->things, memory);
	free(memory);
}

/* One whose values are long enough to be pinned. */
static void open_long_table(struct things *t)
{
	tutti_table_config config = tutti_table_f32(BYTES / 4, tutti_accumulate());

	config.flags = TUTTI_TABLE_SNAPSHOTS;
	tutti_table_close(t->table);
	CHECK(!tutti_table_open(t->group, "long", &config, &t->table));
}

static void close_while_pinning(tutti *job)
{
	struct tt_transport *slow = calloc(TT_NETS, sizeof *slow);
	const struct tt_transport *own[TT_NETS];
	struct things *t = calloc(1, sizeof *t);
	struct waiter w = { .things = t };
	bool acts = tutti_rank(job) == 0;
	enum kind kind = handle_of[pinning.call];

	open_all(t, job);
	open_long_table(t);
	CHECK(!tutti_barrier(job, NULL));
	if (acts) {
		slow_down_pins(job->job, slow, own);
		CHECK(!tt_spawn(call_and_pin, &w, &w.task));
		while (!pinning.pins)
			pass_time(TT_MS / 10);
		if (pinning.leave)
			leave_now(t);
		else
			close_one(t, kind);
		CHECK(!pinning.pins);
		tt_join(w.task);
		CHECK(w.err == (pinning.leave ? -ESHUTDOWN : -ESTALE));
	} else {
		pass_time(5 * PIN_MS * TT_MS);
	}
	for (int i = 0; i < KINDS; i++)
		if (!acts || pinning.leave || i != (int)kind)
			close_one(t, (enum kind)i);
	if (!acts || !pinning.leave)
		leave_now(t);
	free(slow);
	free(t);
}

static void test_pins(void)
{
	for (int i = 0; i < 2 * CALLS; i++) {
		pinning.call = (enum call)(i / 2);
		pinning.leave = i % 2;
		CU_ASSERT(!run_real_ranks((struct ranks){ .size = 2, .timeout_ms = 20000,
		                                          .program = close_while_pinning }));
	}
}

/* ---- other threads begin calls all the time ---- */

enum { HAMMERS = 5 };

struct hammer {
	struct things *things;
	int number;
	pthread_t thread;
	struct ranks *run;
};

static void *strike(void *arg)
{
	struct hammer *h = arg;
	struct things *t = h->things;
	int err = 0;

	this_run = h->run;
	while (!err) {
		switch (h->number) {
		case 0: err = tutti_get(t->window, 1, 0, t->x[6], 8, NULL); break;
		case 1: err = tutti_table_push(t->table, t->x[7], NULL, NULL); break;
		case 2: err = tutti_table_pull(t->table, t->x[6], NULL); break;
		case 3: err = tutti_gossip_publish(t->gossip, 1); break;
		default: err = tutti_wait_notify(t->window, -1, 7, 1, 0);
		}
		err = err == -ETIMEDOUT ? 0 : err;
	}
	CHECK(err == -ESHUTDOWN);
	return NULL;
}

static atomic_bool fire_has_ended; /* rank 1 stays until then: its own leaving would end the calls, too */

static void leave_under_fire(tutti *job)
{
	struct things *t = calloc(1, sizeof *t);
	struct hammer hammer[HAMMERS];
	int n = tutti_rank(job) == 0 ? HAMMERS : 0;

	open_all(t, job);
	if (n)
		fire_has_ended = false;
	CHECK(!tutti_barrier(job, NULL));
	for (int i = 0; i < n; i++) {
		hammer[i] = (struct hammer){ .things = t, .number = i, .run = this_run };
		pthread_create(&hammer[i].thread, NULL, strike, &hammer[i]);
	}
	pass_time(20 * TT_MS);
	for (int ms = 0; !n && !fire_has_ended && ms < 10000; ms++)
		pass_time(TT_MS);
	leave_now(t);
	for (int i = 0; i < n; i++)
		pthread_join(hammer[i].thread, NULL);
	fire_has_ended = true;
	for (int i = KINDS; i-- > 0;)
		close_one(t, (enum kind)i);
	free(t);
}

static void test_fire(void)
{
	for (int i = 0; i < all_or(40, 4); i++)
		CU_ASSERT(!run_real_ranks((struct ranks){ .size = 2, .timeout_ms = 20000,
		                                          .program = leave_under_fire }));
}

/* ---- operations ---- */

struct op_wait {
	tutti_op *op, *list[2];
	int (*wait)(tutti_op *const ops[], int n, int timeout_ms);
	int err;
};

static void wait_for_ops(void *arg)
{
	struct op_wait *w = arg;

	w->err = w->wait(w->list, 2, -1);
}

/* Another thread waits for two that never end. One is freed: the thread's wait ends. */
static void free_one_of_two(struct tt_job *job, tutti_window *window, int other, struct op_wait w, int which)
{
	char to[2][64];
	struct tt_task *task;
	uint64_t since;

	for (int i = 0; i < 2; i++) {
		CHECK(!tutti_op_new(&w.list[i]));
		CHECK(!tutti_get(window, other, 0, to[i], sizeof to[i], w.list[i]));
	}
	CHECK(!tt_spawn(wait_for_ops, &w, &task));
	while (!is_inside(job))
		pass_time(TT_MS);
	since = tt_now();
	tutti_op_free(w.list[which]);
	tt_join(task);
	CHECK(w.err == -ECANCELED && tt_now() - since < (uint64_t)(5 * SLOW) * 1000 * TT_MS);
	tutti_op_free(w.list[1 - which]);
}

static void wait_for_op(void *arg)
{
	struct op_wait *w = arg;

	w->err = tutti_wait(w->op, -1);
}

static void free_ops(tutti *job)
{
	struct op_wait w = { 0 };
	struct tt_task *task;
	tutti_window *window;
	tutti_op *early, *late;
	char bytes[64] = "", to[64];
	int rank = tutti_rank(job);

	CHECK(!tutti_op_new(&early) && !tutti_op_new(&w.op) && !tutti_op_new(&late));
	CHECK(tutti_op_new(NULL) == -EINVAL && tutti_wait(early, -1) == 0);
	CHECK(!tutti_window_open(job, rank ? "b" : "a", bytes, sizeof bytes, &window));
	CHECK(!tutti_get(window, 1 - rank, 0, to, sizeof to, early)); /* nobody opens it there */
	tutti_op_free(early);
	CHECK(!tutti_get(window, 1 - rank, 0, to, sizeof to, w.op));
	CHECK(!tt_spawn(wait_for_op, &w, &task));
	while (!is_inside(job->job))
		pass_time(TT_MS);
	tutti_op_free(w.op);
	tt_join(task);
	CHECK(w.err == -ECANCELED);
	for (int i = 0; i < 4; i++)
		free_one_of_two(job->job, window, 1 - rank,
		                (struct op_wait){ .wait = i / 2 ? tutti_wait_any : tutti_wait_all }, i % 2);
	CHECK(!tutti_barrier(job, late) && !tutti_wait(late, -1));
	tutti_op_free(NULL);
	struct ranks *run = tt_world ? sim_run_now : this_run;
	run->left[rank] = true;
	tutti_leave(job);
	CHECK(tutti_wait(late, -1) == -EINVAL);
	tutti_op_free(late);
	tutti_window_close(window);
}

static void test_ops(void)
{
	CU_ASSERT(!run_on_sim(2, 1, 20000, free_ops));
	CU_ASSERT(!run_real_ranks((struct ranks){ .size = 2, .timeout_ms = 20000, .program = free_ops }));
}

/* ---- at exit, and in a fork's child ---- */

static struct things *kept[2];
static tutti *jobs[2];

static void keep_all(tutti *job)
{
	int rank = tutti_rank(job);

	this_run->left[rank] = true;
	jobs[rank] = job;
	kept[rank] = calloc(1, sizeof *kept[rank]);
	open_all(kept[rank], job);
	use_all(kept[rank]);
}

static void close_all(int rank)
{
	for (int i = 0; i < KINDS; i++)
		close_one(kept[rank], (enum kind)i);
	free(kept[rank]);
}

static void leave_both(void)
{
	tutti_leave(jobs[0]);
	tutti_leave(jobs[1]);
}

static void close_both(void)
{
	close_all(0);
	close_all(1);
}

/* Handlers run in the reverse order. leave_first: closes come after leave. */
static int exit_with_handlers(const char *wire, bool leave_first)
{
	int status = -1;
	pid_t pid = fork_child();

	if (!pid) {
		int failed = run_ranks(
			(struct ranks){ .size = 2, .wire = wire, .timeout_ms = 20000, .program = keep_all });
		atexit(leave_first ? close_both : leave_both);
		atexit(leave_first ? leave_both : close_both);
		exit(failed);
	}
	waitpid(pid, &status, 0);
	if (status)
		printf("a process that exits with jobs over %s: status %#x\n", wire, (unsigned)status);
	return status;
}

static void test_exit(void)
{
	CU_ASSERT(exit_with_handlers("tcp", false) == 0 && exit_with_handlers("tcp", true) == 0);
	CU_ASSERT(exit_with_handlers("shm", false) == 0 && exit_with_handlers("shm", true) == 0);
}

static void close_in_child(tutti *job)
{
	struct things *t = calloc(1, sizeof *t);
	int status = -1;

	open_all(t, job);
	use_all(t);
	pid_t pid = fork_child();
	if (!pid) {
		for (int i = 0; i < KINDS; i++)
			close_one(t, (enum kind)i);
		tutti_leave(job);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	CHECK(status == 0 && !tutti_barrier(job, NULL));
	for (int i = 0; i < KINDS; i++)
		close_one(t, (enum kind)i);
	free(t);
}

static void test_fork(void)
{
	CU_ASSERT(!run_real_ranks((struct ranks){ .size = 2, .timeout_ms = 20000, .program = close_in_child }));
}

static CU_TestInfo tests[] = {
	{ "orders of six kinds, and leave", test_orders },
	{ "threads wait while another one closes or leaves", test_waits },
	{ "a thread pins while another one closes or leaves", test_pins },
	{ "threads begin calls while another one leaves", test_fire },
	{ "operations of tutti_op_new", test_ops },
	{ "at exit", test_exit }, /* in a child of this process, which has used shared memory before */
	{ "a fork's child", test_fork },
	CU_TEST_INFO_NULL,
};

static CU_SuiteInfo suites[] = { { "closes", NULL, NULL, NULL, NULL, tests }, CU_SUITE_INFO_NULL };

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
