/* queue.c - a queue of batches from one producer to many workers.
 *
 *   the producer's window                  worker w's window
 *   | taken 0 | taken 1 | ...              | entry 0 | entry 1 | ...  a ring, of as many as there are places
 *   | place 0: head, arrays | place 1 | ...
 *
 * A batch stays in its place at the producer. An entry, with a notify, tells worker w which place is its next one; w
 * gets the bytes, and puts how many batches it has done with: taken w, with a notify. So a batch whose worker is gone
 * can be assigned to another one, and a slow worker keeps nothing but its own few.
 *
 * A worker that has not opened the queue hears of no batch. So the producer first puts nothing into each worker's
 * window, which ends when the worker has opened the queue, and assigns batches to workers that have answered so. */
#include "base/model.h"
#include "control/desk.h"
#include "operation/operation.h"
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 10, NONE = -1, PATIENCE_MS = 1000 };
#define CLOSED (1ull << 63) /* in taken: the worker takes no more */

struct head { /* of a place */
	uint64_t arrays;
	struct { uint64_t count, type; } of[TUTTI_QUEUE_ARRAYS];
};
enum { HEAD = (sizeof(struct head) + 63) / 64 * 64 };
struct entry {
	uint64_t place, bytes; /* bytes 0: the queue has ended */
};

struct taker { /* a worker, as the producer knows it */
	int *places;           /* a ring: of batch k that was assigned to it */
	uint64_t assigned, freed;
	bool over;             /* gone, or takes no more */
	bool told_end;
	struct entry entry;
	tutti_op op, greeting; /* op brings the entry */
};

struct tutti_queue {
	struct tt_desk desk;
	size_t place_bytes, most;
	int places;
	/* of the producer */
	struct taker *takers;
	size_t *bytes;         /* of the batch in each place; 0: free */
	int *unassigned, homeless; /* a FIFO of places, and how many */
	int again;             /* batches that were assigned to another worker */
	uint64_t patience;     /* until when batches wait for workers that open the queue; 0: nobody has sent one */
	bool ended;            /* also of a worker: it has heard so */
	/* of a worker */
	char *batch;
	tutti_tensor arrays[TUTTI_QUEUE_ARRAYS];
	uint64_t taken;        /* batches that it has got */
	bool announced;        /* the next one is there, and was not fetched yet; */
	bool fetching;         /* it is on its way */
	uint64_t word;         /* what is put into the producer's `taken` */
	bool owes;             /* has not said yet that it has done with the last one */
};

static int test(const tutti_op *op) { return tutti_test((tutti_op *)(uintptr_t)op); }
static size_t places_at(const tutti_queue *q) { return (8 * (size_t)q->desk.n + 63) / 64 * 64; }
static char *place(const tutti_queue *q, int i) { return q->desk.memory + places_at(q) + (size_t)i * q->place_bytes; }

/* ---- opening ---- */

static int make_parts(tutti_queue *q, tutti *group)
{
	size_t n = (size_t)q->desk.n, places = (size_t)q->places;

	if (q->desk.me != q->desk.master)
		return tt_memory_alloc(group->job, q->place_bytes, -1, (void **)&q->batch);
	q->takers = calloc(n, sizeof *q->takers);
	q->bytes = calloc(places, sizeof *q->bytes);
	q->unassigned = calloc(places, sizeof *q->unassigned);
	bool good = q->takers && q->bytes && q->unassigned;
	for (size_t i = 0; good && i < n; i++)
		good = (q->takers[i].places = calloc(places, sizeof *q->takers[i].places)) != NULL;
	if (good)
		q->takers[q->desk.me].over = q->takers[q->desk.me].told_end = true;
	return good ? 0 : tt_fail(-ENOMEM, "queue \"%s\": no memory for %zu batches", q->desk.name, places);
}

static int measure(tutti_queue *q, tutti *group, size_t bytes, int depth)
{
	size_t padding = (size_t)HEAD + (size_t)TUTTI_QUEUE_ARRAYS * TT_MODEL_ALIGN, most = SIZE_MAX / 1024 - padding;

	if (bytes < 1 || bytes > most)
		return tt_fail(-EINVAL, "queue: bytes is %zu, and must be from 1 to %zu", bytes, most);
	if (depth < 0 || depth > 1 << 16)
		return tt_fail(-EINVAL, "queue: depth is %d, and must be from 0 to %d", depth, 1 << 16);
	q->most = bytes;
	q->place_bytes = padding + (bytes + 63) / 64 * 64;
	q->places = (depth ? depth : DEPTH) + group->n - 1;
	if ((size_t)q->places > SIZE_MAX / 2 / q->place_bytes)
		return tt_fail(-EINVAL, "queue: %d batches of %zu bytes are more than memory has", q->places, bytes);
	return 0;
}

/* A worker may open the queue as late as it wants: the put to it ends then, or when the worker is gone. */
static void wait_without_end(tutti_queue *q, tutti_op *op)
{
	tt_lock(q->desk.job);
	((struct tt_operation *)op)->timeout = TT_FOREVER;
	tt_unlock(q->desk.job);
}

static void greet_workers(tutti_queue *q)
{
	for (int i = 0; q->takers && i < q->desk.n; i++) {
		struct taker *t = &q->takers[i];
		if (!t->over && tutti_put(q->desk.window, i, 0, NULL, 0, &t->greeting))
			t->over = true;
		else if (!t->over)
			wait_without_end(q, &t->greeting);
	}
}

static void release_queue(struct tt_handle *);

static int open_queue(tutti *group, const char *name, int producer, size_t bytes, int depth, tutti_queue **out)
{
	static const struct tt_handle_kind kind = { .release = release_queue, .noun = "queue" };
	tutti_queue *q = calloc(1, sizeof *q);
	int err;

	if (!q)
		return tt_fail(-ENOMEM, "queue: no memory");
	q->desk.n = group->n;
	if (!(err = measure(q, group, bytes, depth))) {
		size_t window = group->me == producer ? places_at(q) + (size_t)q->places * q->place_bytes :
		                                                (size_t)q->places * sizeof(struct entry);
		err = tt_desk_open(&q->desk, group, "queue", name, producer, window);
	}
	if (err) {
		free(q);
		return err;
	}
	if ((err = make_parts(q, group))) {
		release_queue(&q->desk.handle);
		return err;
	}
	tt_desk_hold(&q->desk, &kind);
	greet_workers(q);
	*out = q;
	return 0;
}

int tutti_queue_open(tutti *group, const char *name, int producer, size_t bytes, int depth, tutti_queue **out)
{
	int err = tt_usable(tt_job_of(group));

	if (err || (err = tt_given(out, "tutti_queue_open: queue")) ||
	    (err = tt_users_enter(group->job, &group->handle.users)))
		return err;
	err = open_queue(group, name, producer, bytes, depth, out);
	tt_users_exit(group->job, &group->handle.users);
	return err;
}

static int say_taken(tutti_queue *q, uint64_t word, uint64_t deadline)
{
	struct tt_desk *d = &q->desk;
	int err = tt_desk_settle(d, d->master, deadline);

	if (err)
		return err;
	q->word = word;
	err = tt_desk_put(d, d->master, 8 * (size_t)d->me, &q->word, sizeof q->word, true, deadline);
	q->owes = q->owes && err;
	return err;
}

static void cancel_all(struct taker *t)
{
	tutti_cancel(&t->greeting);
	tutti_cancel(&t->op);
}

static void free_takers(tutti_queue *q)
{
	for (int i = 0; i < q->desk.n; i++) {
		cancel_all(&q->takers[i]);
		free(q->takers[i].places);
	}
	free(q->takers);
}

static void release_queue(struct tt_handle *h)
{
	tutti_queue *q = tt_container_of(h, tutti_queue, desk.handle);

	if (q->takers)
		free_takers(q);
	tt_desk_close(&q->desk);
	tt_memory_free(q->batch);
	free(q->bytes);
	free(q->unassigned);
	free(q);
}

void tutti_queue_close(tutti_queue *q)
{
	struct tt_sentence last = tt_last_sentence();

	if (!q || !tt_handle_close(&q->desk.handle))
		return;
	tt_unlock(q->desk.job);
	struct tt_hook hook = tt_hook_suspend();
	for (int i = 0; q->takers && i < q->desk.n; i++)
		cancel_all(&q->takers[i]);
	if (q->batch && !q->ended) /* a producer that has not opened the queue hears it from its first put */
		say_taken(q, q->taken | CLOSED, tt_desk_deadline(&q->desk, 1000));
	tutti_cancel(&q->desk.op);
	tutti_window_close(q->desk.window);
	q->desk.window = NULL;
	tt_handle_free(&q->desk.handle);
	tt_hook_resume(hook);
	tt_remember(last.text);
}

/* ---- the producer ---- */

static uint64_t outstanding(const struct taker *t) { return t->assigned - t->freed; }

static void free_places(tutti_queue *q, struct taker *t, uint64_t taken)
{
	for (; t->freed < taken && t->freed < t->assigned; t->freed++)
		q->bytes[t->places[t->freed % (uint64_t)q->places]] = 0;
}

/* What it has not done with is for others. */
static void end_taker(tutti_queue *q, struct taker *t)
{
	t->over = true;
	for (; t->freed < t->assigned; t->freed++) {
		q->unassigned[q->homeless++] = t->places[t->freed % (uint64_t)q->places];
		q->again++;
	}
}

static void look_at_taker(tutti_queue *q, int i, bool closely)
{
	struct taker *t = &q->takers[i];
	int err = tutti_test(&t->op), met = tutti_test(&t->greeting);
	uint64_t taken = tt_desk_load((const uint64_t *)(q->desk.memory + 8 * (size_t)i));

	if (t->over)
		return;
	free_places(q, t, taken & ~CLOSED);
	if ((taken & CLOSED) || (err && err != -EINPROGRESS) || (met && met != -EINPROGRESS) ||
	    (closely && tt_desk_state(&q->desk, i) != TUTTI_JOINED))
		end_taker(q, t);
}

static bool has_answered(const struct taker *t) { return !t->over && !test(&t->greeting); }

static bool has_any_answered(const tutti_queue *q)
{
	for (int i = 0; i < q->desk.n; i++)
		if (has_answered(&q->takers[i]))
			return true;
	return false;
}

/* A worker that opens the queue later than others finds batches left. */
static uint64_t share_of_each(const tutti_queue *q)
{
	int workers = 0;

	for (int i = 0; i < q->desk.n; i++)
		workers += !q->takers[i].over;
	return workers ? (uint64_t)((q->places + workers - 1) / workers) : 0;
}

/* Of those that have heard of their last one: the worker that has the fewest. It has opened the queue, unless nobody
 * has. patient: batches are left for workers that have not opened the queue. */
static int choose_taker(const tutti_queue *q, bool patient)
{
	bool any = !patient && !has_any_answered(q);
	uint64_t share = patient ? share_of_each(q) : UINT64_MAX;
	int best = NONE;

	for (int k = 1; k < q->desk.n; k++) {
		int i = (q->desk.me + k) % q->desk.n;
		const struct taker *t = &q->takers[i];
		if (!t->over && outstanding(t) < share && test(&t->op) != -EINPROGRESS && (any || has_answered(t)) &&
		    (best == NONE || outstanding(t) < outstanding(&q->takers[best])))
			best = i;
	}
	return best;
}

static void tell(tutti_queue *q, int i, uint64_t number, struct entry e)
{
	struct taker *t = &q->takers[i];

	t->entry = e;
	int err = tutti_put_notify(q->desk.window, i, number % (uint64_t)q->places * sizeof e, &t->entry, sizeof e,
	                           TT_DESK_NOTIFY, &t->op);
	if (!err)
		wait_without_end(q, &t->op);
	else if (!t->over)
		end_taker(q, t);
}

static bool is_patient(const tutti_queue *q) { return tt_now() < q->patience; }

static void assign(tutti_queue *q, bool patient)
{
	int i;

	while (q->homeless && (i = choose_taker(q, patient)) != NONE) {
		struct taker *t = &q->takers[i];
		int at = q->unassigned[0];
		memmove(q->unassigned, q->unassigned + 1, (size_t)--q->homeless * sizeof *q->unassigned);
		t->places[t->assigned % (uint64_t)q->places] = at;
		t->assigned++;
		tell(q, i, t->assigned - 1, (struct entry){ (uint64_t)at, q->bytes[at] });
	}
}

/* Sees what has happened, and waits for more. -ECONNRESET: nobody is left; -ETIMEDOUT: the deadline has passed. */
static int look(tutti_queue *q)
{
	bool closely = tt_desk_wants_look(&q->desk), left = false;

	for (int i = 0; i < q->desk.n; i++) {
		look_at_taker(q, i, closely);
		left |= !q->takers[i].over;
	}
	assign(q, is_patient(q));
	return left ? 0 : tt_fail(-ECONNRESET, "queue \"%s\": no worker is left to take batches", q->desk.name);
}

static int wait_for_more(tutti_queue *q, uint64_t deadline)
{
	int err = tt_now() < deadline ? tt_desk_hear(&q->desk, -1, deadline) : 0;

	return err == -ETIMEDOUT ? 0 : err;
}

static int busiest(const tutti_queue *q)
{
	int most = q->desk.me;

	for (int i = 0; i < q->desk.n; i++)
		if (!q->takers[i].over && outstanding(&q->takers[i]) > outstanding(&q->takers[most]))
			most = i;
	return most;
}

static int fail_late(const tutti_queue *q, const char *what)
{
	int i = busiest(q);

	return tt_fail(-ETIMEDOUT, "queue \"%s\": %s in time; %s has %llu of its batches", q->desk.name, what,
	               tt_desk_label(&q->desk, i).text, (unsigned long long)outstanding(&q->takers[i]));
}

static int find_place(const tutti_queue *q)
{
	for (int i = 0; i < q->places; i++)
		if (!q->bytes[i])
			return i;
	return NONE;
}

static int await_place(tutti_queue *q, uint64_t deadline, int *at)
{
	int err;

	while (!(err = look(q)) && (*at = find_place(q)) == NONE) {
		if (tt_now() >= deadline)
			return fail_late(q, "no place became free");
		if ((err = wait_for_more(q, deadline)))
			return err;
	}
	return err;
}

/* A worker that hears of a batch hears of the next one soon. NULL: there is none. */
static struct taker *find_hearing(const tutti_queue *q)
{
	for (int i = 0; i < q->desk.n; i++)
		if (has_answered(&q->takers[i]) && test(&q->takers[i].op) == -EINPROGRESS)
			return &q->takers[i];
	return NULL;
}

static int wait_for_taker(tutti_queue *q)
{
	struct taker *t = find_hearing(q);
	int err = t ? tutti_wait(&t->op, 1) : wait_for_more(q, tt_now() + TT_MS);

	if (!t || !err || err == -EINTR)
		return err;
	if (err != -EINPROGRESS)
		end_taker(q, t);
	return 0;
}

/* The program may wait for what a worker makes of the batch, and call nothing here meanwhile. So the call waits for a
 * worker that takes the batch; but not for long: the workers may wait for the program before they open the queue. */
static int await_taker(tutti_queue *q, uint64_t deadline)
{
	uint64_t soon = tt_now() + PATIENCE_MS * TT_MS;
	int err = 0;

	if (!q->patience)
		q->patience = soon;
	while (!err && choose_taker(q, is_patient(q)) == NONE && tt_now() < deadline && tt_now() < soon &&
	       (is_patient(q) || has_any_answered(q)) && !(err = wait_for_taker(q)))
		err = look(q);
	return err;
}

static void store(tutti_queue *q, int at, const struct tt_model *m)
{
	struct head *h = (struct head *)place(q, at);

	h->arrays = (uint64_t)m->n;
	for (int i = 0; i < m->n; i++) {
		h->of[i].count = m->tensors[i].count;
		h->of[i].type = (uint64_t)m->tensors[i].type;
	}
	tt_model_store(m, place(q, at) + HEAD);
	q->bytes[at] = HEAD + m->bytes;
	q->unassigned[q->homeless++] = at;
}

static int check_batch(const tutti_queue *q, const struct tt_model *m)
{
	size_t bytes = 0;

	if (q->ended)
		return tt_fail(-ESHUTDOWN, "queue \"%s\" has ended", q->desk.name);
	if (m->n > TUTTI_QUEUE_ARRAYS)
		return tt_fail(-EMSGSIZE, "queue \"%s\": a batch of %d arrays, of %d at most", q->desk.name, m->n,
		               TUTTI_QUEUE_ARRAYS);
	for (int i = 0; i < m->n; i++)
		bytes += m->tensors[i].count * tt_type_size(m->tensors[i].type);
	if (bytes > q->most)
		return tt_fail(-EMSGSIZE, "queue \"%s\": a batch of %zu bytes, of %zu at most", q->desk.name, bytes,
		               q->most);
	return 0;
}

int tutti_queue_send(tutti_queue *q, const tutti_tensor *arrays, int n, int timeout_ms)
{
	int at, err = q ? tt_desk_enter(&q->desk, "tutti_queue_send", true) : tt_refuse_null("queue");
	struct tt_model m;

	if (err)
		return err;
	uint64_t deadline = tt_desk_deadline(&q->desk, timeout_ms);
	if (!(err = tt_model_open(&m, arrays, n, "tutti_queue_send"))) {
		if (!(err = check_batch(q, &m)) && !(err = tt_tensors_host_only("tutti_queue_send", arrays, n)) &&
		    !(err = await_place(q, deadline, &at)) && !(err = await_taker(q, deadline))) {
			store(q, at, &m);
			assign(q, false);
		}
		tt_model_close(&m);
	}
	tt_desk_leave(&q->desk);
	return err;
}

static bool is_empty(const tutti_queue *q)
{
	for (int i = 0; i < q->places; i++)
		if (q->bytes[i])
			return false;
	return true;
}

static bool tell_end(tutti_queue *q)
{
	bool all = true;

	for (int i = 0; i < q->desk.n; i++) {
		struct taker *t = &q->takers[i];
		bool ready = tutti_test(&t->op) != -EINPROGRESS;
		if (!t->over && !t->told_end && ready)
			tell(q, i, t->assigned, (struct entry){ 0 });
		t->told_end |= ready;
		all &= t->over || (t->told_end && tutti_test(&t->op) != -EINPROGRESS);
	}
	return all;
}

static int end(tutti_queue *q, uint64_t deadline)
{
	int err;

	q->ended = true;
	while ((err = look(q), !is_empty(q)) || !tell_end(q)) {
		if (err)
			return err;
		if (tt_now() >= deadline)
			return fail_late(q, "workers have not done with all batches");
		if ((err = wait_for_more(q, deadline)))
			return err;
	}
	return q->again;
}

int tutti_queue_end(tutti_queue *q, int timeout_ms)
{
	int err = q ? tt_desk_enter(&q->desk, "tutti_queue_end", true) : tt_refuse_null("queue");

	if (err)
		return err;
	err = end(q, tt_desk_deadline(&q->desk, timeout_ms));
	tt_desk_leave(&q->desk);
	return err;
}

/* ---- a worker ---- */

static int fail_damaged(const tutti_queue *q)
{
	return tt_fail(-EPROTO, "queue \"%s\": %s sent a batch that makes no sense; do all ranks open it with the same "
	               "bytes and depth?", q->desk.name, tt_desk_label(&q->desk, q->desk.master).text);
}

static int list_arrays(tutti_queue *q, size_t bytes)
{
	const struct head *h = (const struct head *)q->batch;
	size_t at = HEAD;

	if (h->arrays < 1 || h->arrays > TUTTI_QUEUE_ARRAYS)
		return fail_damaged(q);
	for (uint64_t i = 0; i < h->arrays; i++) {
		tutti_type type = (tutti_type)h->of[i].type;
		size_t size = tt_type_size(type);
		if (!size || h->of[i].count > (bytes - at) / size)
			return fail_damaged(q);
		q->arrays[i] = (tutti_tensor){ q->batch + at, h->of[i].count, type };
		at += (h->of[i].count * size + TT_MODEL_ALIGN - 1) / TT_MODEL_ALIGN * TT_MODEL_ALIGN;
		if (at > bytes)
			return fail_damaged(q);
	}
	return (int)h->arrays;
}

static int fetch(tutti_queue *q, const struct entry *e, uint64_t deadline)
{
	struct tt_desk *d = &q->desk;
	int err;

	if (e->bytes < HEAD || e->bytes > q->place_bytes || e->place >= (uint64_t)q->places)
		return fail_damaged(q);
	err = q->fetching ? tt_desk_finish(d, d->master, deadline) :
	      tt_desk_get(d, d->master, places_at(q) + e->place * q->place_bytes, q->batch, e->bytes, deadline);
	q->fetching = err && test(&d->op) == -EINPROGRESS;
	return err ? err : list_arrays(q, e->bytes);
}

static int await_entry(tutti_queue *q, uint64_t deadline)
{
	struct tt_desk *d = &q->desk;
	int err;

	do {
		err = tt_desk_hear(d, d->master, deadline);
	} while (err == -ETIMEDOUT && tt_now() < deadline);
	return err != -ETIMEDOUT ? err : tt_fail(err, "queue \"%s\": no batch came; %s, which sends them, lives",
	                                         d->name, tt_desk_label(d, d->master).text);
}

static int receive(tutti_queue *q, uint64_t deadline)
{
	int err;

	if (q->ended)
		return 0;
	if ((q->owes && (err = say_taken(q, q->taken, deadline))) ||
	    (!q->announced && (err = await_entry(q, deadline))))
		return err;
	q->announced = true;
	struct entry e = ((const struct entry *)q->desk.memory)[q->taken % (uint64_t)q->places];
	if (!e.bytes) {
		q->ended = true;
		return 0;
	}
	if ((err = fetch(q, &e, deadline)) < 0)
		return err; /* the next call tries it again */
	q->announced = false;
	q->taken++;
	q->owes = true;
	return err;
}

int tutti_queue_receive(tutti_queue *q, const tutti_tensor **arrays, int timeout_ms)
{
	int n = q ? tt_desk_enter(&q->desk, "tutti_queue_receive", false) : tt_refuse_null("queue");

	if (n)
		return n;
	if (!(n = tt_given(arrays, "tutti_queue_receive: arrays")))
		n = receive(q, tt_desk_deadline(&q->desk, timeout_ms));
	if (n >= 0)
		*arrays = q->arrays;
	tt_desk_leave(&q->desk);
	return n;
}
