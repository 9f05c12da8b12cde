/* window.c - named memory that the other ranks reach one-sided
 *
 * Opening is local. The first use of a rank's window asks that rank for the key. The rank answers when it has opened
 * that name, so no put or notify can come before the window is there. Operations wait here for the answer.
 *
 *      user -- ASK {its index, generation, name} --> owner     owner -- ANSWER {the same, own index, key} --> user
 *
 * The key is on loan (member/loan.c): closing a window takes it back from each rank that was answered, and waits until
 * none uses it.
 *
 * Memory of a device is never touched here: the room runtime/device/ moves its bytes, also within this process.
 *
 * A notify value is the receiver's: 0, 11 bits of window index, 12 bits of slot.
 *
 * Calls name ranks by the numbering of the group that the window was opened with. They are the job's from check_call()
 * on.
 */
#include "device/device.h"
#include "engine/engine.h"
#include "member/member.h"
#include "operation/operation.h"
#include "window/window.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	NAME_MAX_LEN = 200,
	AT_ONCE = 2048,   /* bytes that are copied under the lock where a window is mapped */
	EVENTS = 8,       /* of a rank that a wait for its notify looks at before all others */
	LAZY_MAX = 16384, /* a started put up to this size waits for its acknowledgement to go back with other bytes */
};

struct windows { /* the room's own struct in a job */
	struct tt_list open, asks;
	struct tutti_window *at[TT_WINDOWS]; /* by the index that peers use */
	unsigned next, generation;
};
static struct windows *windows_of(const struct tt_job *job) { return job->own[TT_WINDOW_SLOT]; }
#define each_window(w, job) tt_each_of(struct tutti_window, link, w, &windows_of(job)->open)
#define each_ask(a, job) tt_each_of(struct ask, link, a, &windows_of(job)->asks)

enum remote_state { UNKNOWN, ASKED, KNOWN, CLOSED };

struct lent { /* this window's key, to a rank that has asked for it */
	struct tt_loan loan;
	struct tutti_window *window;
	uint32_t index, generation; /* of the asker's own window */
};

struct remote { /* another rank's window of this name */
	struct tt_list unanswered;  /* operations that wait for the answer */
	enum remote_state state;
	uint32_t index;
	struct tt_key key;
	char *at;                   /* where it is mapped here, or NULL, as found out ... */
	uint32_t hangups;           /* ... after so many disconnects and one; 0: never */
	struct tutti_window *window;
	int rank;
	struct tt_reads reads;
	struct lent *lent;          /* what that rank holds of this window; NULL: it has not asked */
};

struct slot { /* number of notifies so far */
	uint64_t total;
	uint64_t from[];
};

struct tutti_window {
	struct tt_list link;        /* in windows.open */
	struct tt_job *job;
	struct tt_members *members;  /* of the job: a blocking put or get of a few bytes counts loads */
	char *name;
	uint64_t timeout;           /* the group's, at opening */
	int *rank_of;               /* the job's ranks by the group's; NULL: of the whole job, they are the same */
	uint32_t *epoch_of;         /* ... and their lives. NULL: of the whole job */
	int ranks;                  /* ... and how many */
	char *base;
	size_t bytes;
	uint32_t index, generation;
	struct tt_pinned *pinned;    /* the memory; NULL: no net pins, and it is the host's */
	struct tt_region *regions[TT_NETS];
	struct remote *remotes;     /* one a rank */
	int lent;                   /* keys that were recalled and are still held */
	struct tt_handle handle;    /* of a window that the program has opened */
	struct slot **slots;        /* TT_SLOTS of them */
};

struct ask { /* a rank has asked for a window that is not open here yet */
	struct tt_list link;        /* in windows.asks */
	struct tt_member *from;
	uint32_t index, generation;
	char name[NAME_MAX_LEN + 1];
};

static const char *name_of(struct tt_job *job, const struct tutti_window *w) /* w may have been closed meanwhile */
{
	each_window(open, job)
		if (open == w)
			return w->name;
	return "(closed since)";
}

/* A newcomer's number may be another process's by now, which has no part in the group. */
static int find_in_group(const struct tutti_window *w, const char *what, int *rank)
{
	int of = w->rank_of[*rank];
	uint32_t epoch = w->epoch_of[*rank];

	if (of >= w->members->launched && epoch && tt_member(w->job, of)->epoch != epoch)
		return tt_fail(-ESTALE, "%s: rank %d in the window \"%s\" has ended, and a newcomer has its number %d "
		               "in the job: open the window with the group that tutti_group_grow gives", what, *rank,
		               w->name, of);
	*rank = of;
	return 0;
}

static int find_rank(const struct tutti_window *w, const char *what, int *rank)
{
	int n = w->rank_of ? w->ranks : w->job->size;

	if (*rank < 0 || *rank >= n)
		return tt_fail(-EINVAL, "%s: rank %d must be from 0 to %d in the window \"%s\"", what, *rank, n - 1,
		               w->name);
	return w->rank_of ? find_in_group(w, what, rank) : 0;
}

/* The job's rank of one of the group's. Nearly free for the whole job: a put of 8 bytes takes 20 ns. */
static inline int translate(const struct tutti_window *w, const char *what, int *rank)
{
	return !w->rank_of && *rank >= 0 && *rank < w->job->size ? 0 : find_rank(w, what, rank);
}

/* ---- asking and answering ---- */

static void take_back(struct tt_loan *l) { tt_container_of(l, struct lent, loan)->window->lent--; }

/* False: no memory. */
static bool lend(struct tutti_window *w, struct tt_member *to, uint32_t index, uint32_t generation)
{
	struct remote *r = &w->remotes[to->rank];

	if (!r->lent && !(r->lent = calloc(1, sizeof *r->lent)))
		return false;
	r->lent->window = w;
	r->lent->loan.back = take_back;
	r->lent->index = index;
	r->lent->generation = generation;
	if (!r->lent->loan.of)
		tt_loan_begin(&r->lent->loan, to);
	return true;
}

static void answer(struct tutti_window *w, struct tt_member *to, uint32_t index, uint32_t generation)
{
	struct tt_key none = { .len = 0 }, *key = &none;
	uint8_t bytes[128];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	if (!lend(w, to, index, generation)) {
		tt_member_fail_soon(to, 0, -ENOMEM, "no memory for an answer to %s", tt_member_label(to).text);
		return;
	}
	for (int i = 0; i < w->job->engine.count; i++)
		if (w->regions[i] && w->regions[i]->net == tt_member_net(to))
			key = &w->regions[i]->key;
	tt_put8(&p, TT_ANSWER);
	tt_put32(&p, index);
	tt_put32(&p, generation);
	tt_put32(&p, w->index);
	tt_put_key(&p, key);
	tt_send(to, bytes, (size_t)(p.at - bytes), NULL, 0);
}

static void forget_asks(const struct tt_member *from, const char *name) /* NULL: all names */
{
	each_ask(a, from->job) {
		if (a->from != from || (name && strcmp(a->name, name)))
			continue;
		tt_list_remove(&a->link);
		free(a);
	}
}

/* The rank has asked for more windows than it can have open: it has closed some of them since. */
static void forget_oldest_ask(const struct tt_member *from)
{
	struct ask *oldest = NULL;
	int n = 0;

	each_ask(a, from->job)
		if (a->from == from && !n++)
			oldest = a;
	if (n < TT_WINDOWS)
		return;
	tt_list_remove(&oldest->link);
	free(oldest);
}

static void take_ask(struct tt_member *from, struct tt_pack *p)
{
	struct tt_job *job = from->job;
	struct ask a = { .from = from, .index = tt_get32(p), .generation = tt_get32(p) }, *kept;

	tt_get_text(p, a.name, sizeof a.name);
	if (p->bad)
		return;
	each_window(w, job)
		if (!strcmp(w->name, a.name)) {
			answer(w, from, a.index, a.generation);
			return;
		}
	forget_asks(from, a.name); /* the rank had given up, and asks again */
	forget_oldest_ask(from);
	kept = malloc(sizeof *kept);
	if (!kept) {
		tt_member_gone(from, -ENOMEM, "no memory for a question of %s", tt_member_label(from).text);
		return;
	}
	*kept = a;
	tt_list_append(&windows_of(job)->asks, &kept->link);
}

static void answer_kept(struct tutti_window *w)
{
	each_ask(a, w->job) {
		if (strcmp(a->name, w->name) || !a->from->link)
			continue;
		answer(w, a->from, a->index, a->generation);
		tt_list_remove(&a->link);
		free(a);
	}
}

/* The window that a message is about; NULL: closed meanwhile. */
static struct tutti_window *handle(struct tt_job *job, uint32_t index, uint32_t generation)
{
	struct tutti_window *w = index < TT_WINDOWS ? windows_of(job)->at[index] : NULL;

	return w && w->generation == generation ? w : NULL;
}

static struct tt_operation *pop_unanswered(struct remote *r)
{
	struct tt_list *node = tt_list_pop(&r->unanswered);

	return node ? tt_container_of(node, struct tt_operation, unanswered) : NULL;
}

static void end_unanswered(struct remote *r, int err)
{
	struct tt_operation *q;

	while ((q = pop_unanswered(r)))
		tt_operation_end(q, err);
}

static bool fits(const struct remote *r, size_t offset, size_t len)
{
	return offset <= r->key.len && len <= r->key.len - offset;
}

static void post_operation(struct tt_operation *q, struct remote *r)
{
	q->post.op.key = &r->key;
	q->post.reads = &r->reads;
	if (q->post.op.kind == TT_PUT && !tt_post_is_device(&q->post) && !tt_key_is_staged(&r->key))
		q->post.reads = NULL;
	if (q->post.op.flags & TT_NOTIFY)
		q->post.op.notify |= r->index << 12;
	if (!fits(r, q->post.op.offset, q->post.op.len)) {
		tt_operation_end(q, -ERANGE);
		return;
	}
	if (!q->post.op.len && !(q->post.op.flags & TT_NOTIFY)) { /* a window of no bytes has no key */
		tt_operation_end(q, 0);
		return;
	}
	tt_post(tt_member(q->job, q->rank), &q->post);
}

static void take_answer(struct tt_member *from, struct tt_pack *p)
{
	uint32_t index = tt_get32(p), generation = tt_get32(p), theirs = tt_get32(p);
	struct tutti_window *w;
	struct tt_operation *q;
	struct tt_key key;

	tt_get_key(p, &key);
	if (p->bad || theirs == 0 || theirs >= TT_WINDOWS) {
		p->bad = true;
		return;
	}
	w = handle(from->job, index, generation);
	if (!w)
		return;
	struct remote *r = &w->remotes[from->rank];
	if (r->state != ASKED && r->state != UNKNOWN)
		return; /* a second answer: operations under way use the key of the first */
	r->state = KNOWN;
	r->index = theirs;
	r->key = key;
	r->hangups = 0;
	while ((q = pop_unanswered(r)))
		post_operation(q, r);
}

/* The rank closes its window. */
static bool take_recall(struct tt_member *from, struct tt_pack *p, uint32_t number)
{
	uint32_t index = tt_get32(p), generation = tt_get32(p);
	struct tutti_window *w = p->bad ? NULL : handle(from->job, index, generation);

	if (!w)
		return true;
	struct remote *r = &w->remotes[from->rank];
	r->state = CLOSED;
	tt_device_recalled(from, &r->key, NULL);
	if (r->reads.under_way)
		r->reads.recall = number;
	return !r->reads.under_way;
}

static void ask_for(struct remote *r)
{
	struct tutti_window *w = r->window;
	uint8_t bytes[NAME_MAX_LEN + 16];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_ASK);
	tt_put32(&p, w->index);
	tt_put32(&p, w->generation);
	tt_put_text(&p, w->name);
	r->state = ASKED;
	tt_send(tt_member(w->job, r->rank), bytes, (size_t)(p.at - bytes), NULL, 0);
}

static bool is_post(const struct tt_post *p, const void *arg) { return p == arg; }

/* An operation that a transport has ends by itself, since the rank lives. */
static void give_up(struct tt_operation *q, int err)
{
	struct tutti_window *w = q->of;

	if (!tt_list_empty(&q->unanswered)) {
		tt_operation_end(q, err == -ETIMEDOUT ? -ENOENT : err);
		if (tt_list_empty(&w->remotes[q->rank].unanswered))
			w->remotes[q->rank].state = UNKNOWN; /* a later use asks again */
	} else if (q->post.member && tt_post_withdraw(q->post.member, is_post, &q->post)) {
		tt_operation_end(q, err);
	} else {
		tt_device_give_up(q->job, &q->post, err);
	}
}

static void end_asked(struct tt_member *m)
{
	each_window(w, m->job) {
		end_unanswered(&w->remotes[m->rank], m->err);
	}
	forget_asks(m, NULL);
}

static void end_unreached(struct tt_member *m, int err)
{
	each_window(w, m->job) {
		struct remote *r = &w->remotes[m->rank];
		if (r->state != ASKED)
			continue;
		r->state = UNKNOWN;
		end_unanswered(r, err);
	}
}

void tt_window_again(struct tutti_window *w, int rank)
{
	if (w->remotes[rank].state == CLOSED)
		w->remotes[rank].state = UNKNOWN;
}

static void forget_life(struct tt_member *m)
{
	each_window(w, m->job) {
		w->remotes[m->rank].state = UNKNOWN;
		w->remotes[m->rank].reads.recall = 0; /* the earlier life's question */
		for (int i = 0; i < TT_SLOTS; i++)
			if (w->slots[i])
				w->slots[i]->from[m->rank] = 0;
	}
}

/* ---- opening and closing ---- */

/* Round-robin, so that an index is used again as late as possible: a notify for a closed window finds none. */
static int choose_index(struct tt_job *job, uint32_t *index)
{
	for (unsigned i = 1; i < TT_WINDOWS; i++) {
		uint32_t at = windows_of(job)->next;
		windows_of(job)->next = at % (TT_WINDOWS - 1) + 1;
		if (!windows_of(job)->at[at]) {
			*index = at;
			return 0;
		}
	}
	return tt_fail(-EMFILE, "%d windows are open: close some", TT_WINDOWS - 1);
}

static bool is_on_device(const struct tutti_window *w) { return tt_pinned_on_device(w->pinned); }

static int register_everywhere(struct tutti_window *w)
{
	struct tt_mem mem = is_on_device(w) ? w->pinned->mem : tt_mem_of(w->base, w->bytes);
	struct tt_engine *e = &w->job->engine;
	int err = 0;

	for (int i = 0; !err && w->bytes && i < e->count; i++)
		err = tt_device_reg(e->nets[i], &mem, w->pinned, false, &w->regions[i]);
	return err;
}

static int check_name(struct tt_job *job, const char *name)
{
	if (!name || !*name || strlen(name) > NAME_MAX_LEN)
		return tt_fail(-EINVAL, "a window's name has 1 to %d bytes", NAME_MAX_LEN);
	each_window(w, job)
		if (!strcmp(w->name, name))
			return tt_fail(-EEXIST, "a window named \"%s\" is open already", name);
	return 0;
}

static struct tutti_window *new_window(struct tt_job *job, const char *name)
{
	struct tutti_window *w = calloc(1, sizeof *w);

	if (!w)
		return NULL;
	tt_list_init(&w->link);
	w->job = job;
	w->timeout = job->timeout;
	w->members = tt_members(job);
	w->name = strdup(name);
	w->slots = calloc(TT_SLOTS, sizeof *w->slots);
	w->remotes = calloc((size_t)tt_members(job)->capacity, sizeof *w->remotes);
	for (int i = 0; w->remotes && i < tt_members(job)->capacity; i++) {
		tt_list_init(&w->remotes[i].unanswered);
		w->remotes[i].window = w;
		w->remotes[i].rank = i;
	}
	return w;
}

static bool is_back(void *w) { return !((struct tutti_window *)w)->lent; }

/* Takes the key back from all who hold it: afterwards nobody uses this window's memory. */
static void recall(struct tutti_window *w)
{
	for (int i = 0; i < w->job->size; i++) {
		struct lent *l = w->remotes[i].lent;
		uint8_t bytes[8];
		struct tt_pack p = tt_pack(bytes, sizeof bytes);
		if (!l)
			continue;
		tt_put32(&p, l->index);
		tt_put32(&p, l->generation);
		w->lent += !tt_loan_recall(&l->loan, TT_WINDOW_SLOT, bytes, sizeof bytes);
	}
	tt_wait_until(w->job, is_back, w, TT_NEVER); /* a holder that does not answer is evicted */
}

/* False: some are in use. */
static bool drop_regions(void *window)
{
	struct tutti_window *w = window;
	int left = 0;

	for (int i = 0; i < TT_NETS; i++)
		if (tt_device_dereg(w->regions[i], NULL, NULL))
			w->regions[i] = NULL;
		else
			left++;
	return !left;
}

/* All that the job has of it, and others reach. Nobody uses its memory. */
static void clear_window(struct tutti_window *w)
{
	drop_regions(w);
	for (int i = 0; w->slots && i < TT_SLOTS; i++)
		free(w->slots[i]);
	free(w->slots);
	for (int i = 0; w->remotes && i < w->job->size; i++) {
		if (w->remotes[i].state == KNOWN)
			tt_device_forget(tt_member(w->job, i), &w->remotes[i].key);
		free(w->remotes[i].lent);
	}
	tt_list_remove(&w->link);
	if (w->index)
		windows_of(w->job)->at[w->index] = NULL;
	free(w->remotes);
}

static void release_window(struct tt_handle *h)
{
	struct tutti_window *w = tt_container_of(h, struct tutti_window, handle);

	free(w->rank_of);
	free(w->epoch_of);
	free(w->name);
	free(w);
}

static void free_window(struct tutti_window *w)
{
	clear_window(w);
	release_window(&w->handle);
}

void tt_window_set_timeout(struct tutti_window *w, uint64_t timeout) { w->timeout = timeout; }

int tt_window_open(struct tt_job *job, const char *name, void *base, size_t bytes, struct tt_pinned *pinned,
                   tutti_window **out)
{
	int err = check_name(job, name);

	if (err)
		return err;
	struct tutti_window *w = new_window(job, name);
	if (!w)
		return tt_fail(-ENOMEM, "no memory for a window");
	w->base = base;
	w->bytes = bytes;
	w->pinned = pinned;
	if (w->name && w->slots && w->remotes)
		err = choose_index(job, &w->index);
	else
		err = tt_fail(-ENOMEM, "no memory for a window of %d ranks", job->size);
	if (!err)
		err = register_everywhere(w);
	if (err) {
		free_window(w);
		return err;
	}
	w->generation = ++windows_of(job)->generation;
	windows_of(job)->at[w->index] = w;
	tt_list_append(&windows_of(job)->open, &w->link);
	answer_kept(w);
	*out = w;
	return 0;
}

static void end_window(struct tutti_window *w);

static void orphan_window(struct tt_handle *h) { end_window(tt_container_of(h, struct tutti_window, handle)); }

/* The program has it from now on. */
static void hold(struct tutti_window *w, const tutti *at, int *ranks, uint32_t *epochs)
{
	static const struct tt_handle_kind kind = { orphan_window, release_window, "window" };

	w->rank_of = ranks;
	w->epoch_of = epochs;
	w->timeout = tt_group_timeout(at);
	w->ranks = at->n;
	tt_handle_hold(&w->handle, w->job, &kind);
}

int tutti_window_open(tutti *at, const char *name, void *base, size_t bytes, tutti_window **out)
{
	struct tt_job *job = tt_job_of(at);
	struct tt_pinned *pinned;
	uint32_t *epochs = NULL;
	int *ranks, err = tt_usable(job);

	if (err || (err = tt_given(out, "tutti_window_open: window")))
		return err;
	if (!base && bytes)
		return tt_fail(-EINVAL, "a window of %zu bytes needs memory, and base is NULL", bytes);
	if (name && !strncmp(name, "tutti:", 6))
		return tt_fail(-EINVAL, "a window cannot be named \"%s\": such names are the library's", name);
	tt_gpu_look(); /* a later put may be too short for that */
	if ((err = tt_group_list(at, &ranks)) || (ranks && (err = tt_group_lives(at, &epochs))) ||
	    (err = tt_begin_pinned(job, &at->handle.users, base, bytes, TT_PIN_WINDOW, NULL, &pinned))) {
		free(ranks);
		free(epochs);
		return err;
	}
	if (tt_pinned_on_device(pinned) && !pinned->range.ours)
		err = tt_fail(-ENOTSUP, "window \"%s\": its memory of GPU %d is not tutti_alloc's, and other ranks "
		              "cannot map it: allocate it with tutti_alloc(job, bytes, %d, &memory)", name ? name : "",
		              pinned->mem.gpu, pinned->mem.gpu);
	else
		err = tt_window_open(job, name, base, bytes, pinned, out);
	if (!err)
		hold(*out, at, ranks, epochs);
	tt_unlock(job);
	if (err) {
		tt_unpin_now(pinned);
		free(ranks);
		free(epochs);
	}
	return err;
}

static struct tt_operation *first_of(struct tutti_window *w)
{
	tt_each_of(struct tt_operation, link, q, &tt_operations(w->job)->running)
		if (q->of == w)
			return q;
	return NULL;
}

static bool is_drained(void *arg) { return !first_of(arg); }

/* With the lock. Afterwards the memory is the caller's, once it is unpinned. */
static void withdraw(struct tutti_window *w)
{
	tt_wait_until(w->job, is_drained, w, TT_NEVER); /* those that this rank has started: each has its own bound */
	tt_list_remove(&w->link); /* who asks from now on waits for the next window of this name */
	recall(w);
	tt_wait_until(w->job, drop_regions, w, TT_NEVER); /* copies of a device that serve a rank which has ended */
	clear_window(w);
}

static void end_window(struct tutti_window *w)
{
	tt_lock(w->job);
	withdraw(w);
	tt_unlock(w->job);
	tt_unpin_now(w->pinned);
}

void tt_window_close(struct tutti_window *w)
{
	if (!w)
		return;
	end_window(w);
	release_window(&w->handle);
}

void tutti_window_close(tutti_window *w)
{
	struct tt_sentence last = tt_last_sentence();

	if (!w || !tt_handle_close(&w->handle))
		return;
	withdraw(w);
	tt_unlock(w->job);
	tt_unpin_now(w->pinned);
	tt_handle_free(&w->handle);
	tt_remember(last.text);
}

/* ---- notifies ---- */

static struct slot *slot_of(struct tutti_window *w, uint32_t slot)
{
	if (!w->slots[slot])
		w->slots[slot] = calloc(1, sizeof **w->slots +
		                           (size_t)tt_members(w->job)->capacity * sizeof(uint64_t));
	return w->slots[slot];
}

static void count_notify(struct tutti_window *w, int from, uint32_t slot)
{
	struct slot *s = slot_of(w, slot);

	if (!s) {
		tt_log(TT_ERROR, "no memory to count notifies of window \"%s\": one is lost", w->name);
		return;
	}
	s->total++;
	s->from[from]++;
	tt_stats_count(&tt_member(w->job, from)->stats, TUTTI_STAT_NOTIFY_IN, 0);
	w->job->engine.news = true;
}

static void take_notify(struct tt_member *from, uint32_t value)
{
	struct tutti_window *w = windows_of(from->job)->at[value >> 12];

	if (w)
		count_notify(w, from->rank, value & (TT_SLOTS - 1));
}

struct notify_wait {
	struct tutti_window *window;
	struct tt_users *users; /* whose close ends the wait */
	int rank, slot;
	uint64_t count;
};

static uint64_t notified(const struct notify_wait *n)
{
	const struct slot *s = n->window->slots[n->slot];

	return !s ? 0 : n->rank < 0 ? s->total : s->from[n->rank];
}

uint64_t tt_window_notified(struct tutti_window *w, int rank, int slot)
{
	return notified(&(struct notify_wait){ .window = w, .rank = rank, .slot = slot });
}

static bool is_notified(void *arg)
{
	const struct notify_wait *n = arg;

	return notified(n) >= n->count || (n->rank >= 0 && tt_member(n->window->job, n->rank)->state >= TT_LEFT);
}

/* A member that has ended: what calls return. */
static int how_ended(const struct tt_member *m) { return m->err == -ENOTCONN ? -ENOTCONN : -ECONNRESET; }

static void say_awaited(void *arg)
{
	const struct notify_wait *n = arg;

	tt_log(TT_WARN, "wait for notify: %llu of %llu have come in slot %d of window \"%s\" from %s",
	       (unsigned long long)notified(n), (unsigned long long)n->count, n->slot, n->window->name,
	       n->rank < 0 ? "any rank" : tt_member_label(tt_member(n->window->job, n->rank)).text);
}

/* A notify of a known rank that comes soon is seen in that rank's own line, before a turn looks at all others. What
 * else that rank sends must not keep this thread from its turns. */
static bool is_notified_soon(struct tt_job *job, const struct notify_wait *n)
{
	const struct tt_member *m = n->rank >= 0 && n->rank != job->rank ? tt_member(job, n->rank) : NULL;

	for (int i = 0; i < EVENTS && m && m->state == TT_UP && notified(n) < n->count; i++)
		if (!tt_watch(job, m->link->peer))
			break;
	return notified(n) >= n->count;
}

static int wait_notify(struct tt_job *job, struct notify_wait *n, uint64_t patience)
{
	int err;

	if (notified(n) >= n->count || (patience && is_notified_soon(job, n)))
		return 0;
	if (!patience)
		tt_progress(job);
	err = tt_await(job, n->users, is_notified, n, patience, say_awaited);
	if (notified(n) >= n->count)
		return 0;
	if (err && err != -ETIMEDOUT)
		return err;
	if (err)
		return tt_fail(err, "wait for notify: %llu of %llu came in slot %d of window \"%s\" within %llu ms",
		               (unsigned long long)notified(n), (unsigned long long)n->count, n->slot, n->window->name,
		               (unsigned long long)(patience / TT_MS));
	const struct tt_member *m = tt_member(job, n->rank);
	return tt_fail(how_ended(m), "wait for notify: %s", m->why);
}

int tutti_wait_notify(tutti_window *w, int rank, int slot, uint64_t count, int timeout_ms)
{
	return tt_window_await(w, w ? &w->handle.users : NULL, rank, slot, count, timeout_ms);
}

int tt_window_await(tutti_window *w, struct tt_users *users, int rank, int slot, uint64_t count, int timeout_ms)
{
	struct tt_job *job = tt_job_of(w);
	struct notify_wait n = { w, users, rank, slot, count };
	int err = tt_usable(job);

	if (err || (rank != -1 && (err = find_rank(w, "wait for notify", &n.rank))))
		return err;
	if (slot < 0 || slot >= TT_SLOTS)
		return tt_fail(-EINVAL, "wait for notify: slot %d must be from 0 to %d", slot, TT_SLOTS - 1);
	if ((err = tt_begin(job)))
		return err;
	err = wait_notify(job, &n, timeout_ms < 0 ? w->timeout : (uint64_t)timeout_ms * TT_MS);
	tt_unlock(job);
	return err;
}

/* ---- the operations ---- */

struct call { /* the arguments of put, get, add and put with notify */
	const char *what;
	enum tt_kind kind;
	int rank;
	size_t offset;
	void *local;
	size_t bytes;
	int slot;                   /* -1: no notify */
	uint64_t value, *old;
	struct tt_gpu_range range;  /* where the memory lies */
	bool device;                /* it is a device's */
	struct tt_pinned *pinned;
};

static int check_call(const struct tutti_window *w, struct call *c)
{
	if (c->slot < -1 || c->slot >= TT_SLOTS)
		return tt_fail(-EINVAL, "%s: slot %d must be from 0 to %d", c->what, c->slot, TT_SLOTS - 1);
	if (c->kind == TT_ADD && c->offset % 8)
		return tt_fail(-EINVAL, "%s: offset %zu must be a multiple of 8", c->what, c->offset);
	if (!c->local && c->bytes && c->kind != TT_ADD)
		return tt_fail(-EINVAL, "%s: %zu bytes from or to NULL", c->what, c->bytes);
	return translate(w, c->what, &c->rank);
}

static int out_of_range(const struct tutti_window *w, const struct call *c, uint64_t len)
{
	if (c->offset <= len && c->bytes <= len - c->offset)
		return 0;
	return tt_fail(-ERANGE, "%s: %zu bytes at offset %zu are outside the window \"%s\" of %s, which has %llu",
	               c->what, c->bytes, c->offset, w->name, tt_member_label(tt_member(w->job, c->rank)).text,
	               (unsigned long long)len);
}

/* In this rank's own window. */
static int act_here(struct tutti_window *w, const struct call *c)
{
	char *at = w->base + c->offset;
	int err = out_of_range(w, c, w->bytes);

	if (err)
		return err;
	if (c->kind == TT_PUT)
		tt_copy_word(at, c->local, c->bytes);
	else if (c->kind == TT_GET)
		tt_copy_word(c->local, at, c->bytes);
	else if ((uintptr_t)at % 8)
		return tt_fail(-EINVAL, "%s: the window \"%s\" does not begin at a multiple of 8", c->what, w->name);
	else {
		uint64_t old = __atomic_fetch_add((uint64_t *)at, c->value, __ATOMIC_SEQ_CST);
		if (c->old)
			*c->old = old;
	}
	if (c->slot >= 0)
		count_notify(w, w->job->rank, (uint32_t)c->slot);
	return 0;
}

/* Where another rank's window is mapped here; NULL: it is not. */
static char *mapped_at(struct remote *r, struct tt_peer *peer)
{
	uint32_t now = r->window->members->hangups + 1;

	if (r->hangups != now)
		r->at = tt_key_is_staged(&r->key) ? NULL : peer->net->transport->map(peer, &r->key, 0);
	r->hangups = now;
	return r->at;
}

bool tt_window_is_mapped(struct tutti_window *w, int rank)
{
	const struct tt_member *m = tt_member(w->job, rank);

	return w->remotes[rank].state == KNOWN && m->state == TT_UP && mapped_at(&w->remotes[rank], m->link->peer);
}

bool tt_window_is_closed(struct tutti_window *w, int rank) { return w->remotes[rank].state == CLOSED; }

uint64_t tt_window_bytes(struct tutti_window *w, int rank) { return w->remotes[rank].key.len; }

char *tt_window_hold(struct tutti_window *w, int rank)
{
	struct remote *r = &w->remotes[rank];
	struct tt_peer *peer;

	if (!tt_window_is_mapped(w, rank))
		return NULL;
	peer = tt_member(w->job, rank)->link->peer;
	return peer->net->transport->store_begin(peer, &r->key) ? r->at : NULL;
}

void tt_window_let_go(struct tutti_window *w, int rank)
{
	struct tt_peer *peer = tt_member(w->job, rank)->link->peer;

	peer->net->transport->store_end(peer);
}

/* Copies a few bytes of a window that is mapped here at once. False: an operation is needed, which stores the same
 * bytes once more, or returns an error. */
static bool act_there(struct remote *r, const struct call *c)
{
	struct tt_job *job = r->window->job;
	struct tt_member *m = tt_member_at(r->window->members, c->rank);
	bool get = c->kind == TT_GET, done = true;
	tutti_stat_kind kind = get ? TUTTI_STAT_GET : c->slot >= 0 ? TUTTI_STAT_NOTIFY : TUTTI_STAT_PUT;
	uint64_t since;
	char *at;

	if (c->kind == TT_ADD || c->bytes > AT_ONCE || r->state != KNOWN || m->state != TT_UP ||
	    (m->staged && c->slot >= 0))
		return false;
	struct tt_peer *peer = m->link->peer;
	if (c->offset > r->key.len || c->bytes > r->key.len - c->offset || !(at = mapped_at(r, peer)) ||
	    !peer->net->transport->store_begin(peer, &r->key))
		return false;
	since = tt_stats_start(job);
	tt_copy_word(get ? c->local : at + c->offset, get ? at + c->offset : c->local, c->bytes);
	peer->net->transport->store_end(peer);
	if (c->slot >= 0)
		done = peer->net->transport->notify(peer, r->index << 12 | (uint32_t)c->slot);
	if (done)
		tt_stats_ended(&m->stats, kind, since, c->bytes, 0);
	return done;
}

static void finish(struct tt_post *p, int err)
{
	struct tt_operation *q = tt_container_of(p, struct tt_operation, post);

	if (!err && q->old)
		*q->old = p->op.operand;
	if (err && tt_device_why(q->job))
		tt_operation_word(q, tt_device_why(q->job));
	tt_operation_end(q, err);
}

static void count(struct tt_operation *q, int err)
{
	const struct tt_op *op = &q->post.op;
	tutti_stat_kind kind = op->kind == TT_GET ? TUTTI_STAT_GET : op->kind == TT_ADD ? TUTTI_STAT_ADD :
	                       op->flags & TT_NOTIFY ? TUTTI_STAT_NOTIFY : TUTTI_STAT_PUT;

	tt_stats_ended(&tt_member(q->job, q->rank)->stats, kind, q->post.since, op->len, err);
	tt_unpin(q->job, q->post.pinned);
}

static int say_closed(const char *what, const struct tt_member *m, const char *name)
{
	return tt_fail(-ESTALE, "%s: %s has closed its window \"%s\": close yours and open it again", what,
	               tt_member_label(m).text, name);
}

static int explain(const struct tt_operation *r)
{
	const char *name = name_of(r->job, r->of);
	const struct tt_member *m = tt_member(r->job, r->rank);

	if (r->err == -ENOENT)
		return tt_fail(r->err, "%s: %s did not open a window named \"%s\" in time", r->what,
		               tt_member_label(m).text, name);
	if (r->err == -ESTALE)
		return say_closed(r->what, m, name);
	if (r->err == -ENOTSUP && r->post.op.kind == TT_ADD)
		return tt_fail(r->err, "%s: the window \"%s\" of %s is memory of a GPU: keep counters in host memory",
		               r->what, name, tt_member_label(m).text);
	if (r->err == -ECANCELED)
		return tt_fail(r->err, "%s: given up before %s had opened a window of that name", r->what,
		               tt_member_label(m).text);
	if (r->err == -ERANGE)
		return tt_fail(r->err, "%s: %zu bytes at offset %llu are outside the window \"%s\" of %s", r->what,
		               r->post.op.len, (unsigned long long)r->post.op.offset, name, tt_member_label(m).text);
	return 0;
}

static const struct tt_operation_kind words = { .give_up = give_up, .ended = count, .explain = explain };

static void fill(struct tt_operation *q, struct tutti_window *w, const struct call *c)
{
	struct tt_op *op = &q->post.op;

	q->words = &words;
	q->of = w;
	q->old = c->old;
	q->timeout = w->timeout;
	q->post.done = finish;
	q->post.pinned = c->pinned;
	op->kind = c->kind;
	op->flags = c->slot >= 0 ? TT_NOTIFY : 0;
	op->notify = c->slot >= 0 ? (uint32_t)c->slot : 0;
	op->local = c->local;
	op->len = c->bytes;
	op->offset = c->offset;
	op->operand = c->value;
}

static void finish_here(struct tt_post *p, int err)
{
	struct tt_operation *q = tt_container_of(p, struct tt_operation, post);

	if (!err && p->op.flags & TT_NOTIFY)
		count_notify(q->of, q->job->rank, p->op.notify);
	finish(p, err);
}

/* In this rank's own window, where the window or the caller's memory is a device's. The operation ends later. */
static int copy_here(struct tutti_window *w, const struct call *c, struct tt_operation *q)
{
	struct tt_device_end window = { w->base + c->offset, is_on_device(w) ? w->pinned : NULL };
	struct tt_device_end local = { c->local, c->pinned };
	bool put = c->kind == TT_PUT;
	int err = out_of_range(w, c, w->bytes);

	if (!err && c->kind == TT_ADD)
		err = tt_fail(-ENOTSUP, "%s: the window \"%s\" is memory of GPU %d: keep counters in host memory",
		              c->what, w->name, w->pinned->mem.gpu);
	if (err || !c->bytes) {
		if (!err && c->slot >= 0)
			count_notify(w, w->job->rank, (uint32_t)c->slot);
		tt_operation_end(q, err);
		return err;
	}
	q->post.done = finish_here;
	tt_device_copy(w->job, &q->post, put ? window : local, put ? local : window, c->bytes);
	return 0;
}

/* As act_here(), but the notify waits for copies of this rank that are under way. The operation ends then. */
static int notify_here(struct tutti_window *w, const struct call *c, struct tt_operation *q)
{
	const struct tt_device_end none = { NULL, NULL };
	struct call put = *c;
	int err;

	put.slot = -1;
	if ((err = act_here(w, &put))) {
		tt_operation_end(q, err);
		return err;
	}
	q->post.done = finish_here;
	tt_device_copy(w->job, &q->post, none, none, 0);
	return 0;
}

/* Once the owner has answered, the range is checked before anything is sent. */
static int go(struct tutti_window *w, struct remote *r, const struct call *c, struct tt_operation *q)
{
	const struct tt_member *m = tt_member(w->job, c->rank);
	int err = 0;

	if (m->state >= TT_LEFT)
		err = tt_fail(how_ended(m), "%s: %s", c->what, m->why);
	else if (r->state == CLOSED)
		err = say_closed(c->what, m, w->name);
	else if (r->state == KNOWN)
		err = out_of_range(w, c, r->key.len);
	if (err) {
		tt_operation_end(q, err);
		return err;
	}
	if (r->state == KNOWN) {
		post_operation(q, r);
		return 0;
	}
	tt_list_append(&r->unanswered, &q->unanswered);
	if (r->state == UNKNOWN)
		ask_for(r);
	return 0;
}

int tt_window_post(struct tutti_window *w, int rank, struct tt_post *p)
{
	struct tt_member *m = tt_member(w->job, rank);
	struct remote *r = &w->remotes[rank];

	if (m->state >= TT_LEFT)
		return how_ended(m);
	if (r->state != KNOWN)
		return -ESTALE;
	if (!fits(r, p->op.offset, p->op.len))
		return -ERANGE;
	p->op.key = &r->key;
	p->reads = p->op.kind == TT_PUT ? NULL : &r->reads;
	tt_post(m, p);
	return 0;
}

int tt_window_ask(struct tutti_window *w, int rank)
{
	const struct tt_member *m = tt_member(w->job, rank);
	struct remote *r = &w->remotes[rank];
	enum remote_state was = r->state;

	if (m->state >= TT_LEFT)
		return how_ended(m);
	if (was == CLOSED)
		r->state = UNKNOWN;
	else if (was == UNKNOWN)
		ask_for(r);
	return was == KNOWN ? 0 : was == CLOSED ? -ESTALE : -EINPROGRESS;
}

/* Is the rank connected over a net that has no use of a region for these bytes? Or will they be refused? */
static bool goes_unpinned(struct tutti_window *w, const struct call *c)
{
	const struct tt_job *job = tt_job_of(w);
	const struct tt_member *m = tt_member(job, c->rank);
	const struct remote *r = &w->remotes[c->rank];

	return c->rank == job->rank || (r->state == KNOWN && !fits(r, c->offset, c->bytes)) ||
	       (m->state == TT_UP && m->link->used && m->link->peer->net->copy_max == SIZE_MAX);
}

static bool needs_pin(struct tutti_window *w, const struct call *c)
{
	if (c->device)
		return true;
	return c->kind != TT_ADD && c->bytes > tt_job_of(w)->engine.look_above && !goes_unpinned(w, c);
}

static bool act_at_once(struct tt_job *job, struct tutti_window *w, const struct call *c, tutti_op *op)
{
	bool done = c->rank != job->rank && !c->device && act_there(&w->remotes[c->rank], c);

	if (done && op)
		tt_operation_at_once(job, op, c->what, c->rank);
	return done;
}

/* 1: all is done. 0: it is to begin, with the lock, and is pinned if it must be. Where all is done, this thread does
 * not poll the nets: tt_lock() would keep the background thread off them. */
static int enter(struct tutti_window *w, struct call *c, tutti_op *op)
{
	struct tt_job *job = tt_job_of(w);

	tt_ticket_lock_take(&job->engine.lock);
	bool left = job->left, done = !left && act_at_once(job, w, c, op), pins = !left && !done && needs_pin(w, c);
	if (!left && !done && (!pins || (!c->device && (c->pinned = tt_use_kept(job, c->local, c->bytes))))) {
		tt_visit(job);
		return 0;
	}
	tt_ticket_lock_release(&job->engine.lock);
	if (!pins)
		return left ? tt_refuse_job(job) : 1;
	return tt_begin_pinned(job, &w->handle.users, c->local, c->bytes, TT_PIN_READ, &c->range, &c->pinned);
}

static int find_device(struct call *c)
{
	int err;

	c->range.device = -1;
	err = c->kind == TT_ADD ? 0 : tt_find_device(c->local, c->bytes, &c->range);
	c->device = c->range.device >= 0;
	return err;
}

static int start(struct tutti_window *w, struct call *c, tutti_op *op)
{
	struct tt_job *job = tt_job_of(w);
	tutti_op stack;
	int err;

	if ((err = tt_operation_may_begin(job, op)) || (err = check_call(w, c)) || (err = find_device(c)))
		return err;
	if ((err = enter(w, c, op)))
		return err < 0 ? err : 0;
	struct tt_operation *q = tt_operation_begin(job, op, &stack, c->what, c->rank);
	fill(q, w, c);
	if (c->rank == job->rank && (c->device || is_on_device(w))) {
		err = copy_here(w, c, q);
	} else if (c->rank == job->rank && c->slot >= 0 && tt_device_copies(job)) {
		err = notify_here(w, c, q);
	} else if (c->rank == job->rank) {
		err = act_here(w, c);
		tt_operation_end(q, err);
	} else {
		if (op && c->kind == TT_PUT && c->bytes <= LAZY_MAX)
			q->post.op.flags |= TT_LAZY;
		err = go(w, &w->remotes[c->rank], c, q);
	}
	if (err) {
		q->serial = 0; /* the op is idle: nothing was started */
		tt_unlock(job);
		return err;
	}
	return tt_operation_return(q, !op);
}

int tutti_put(tutti_window *w, int rank, size_t offset, const void *src, size_t bytes, tutti_op *op)
{
	struct call c = { .what = "put", .kind = TT_PUT, .rank = rank, .offset = offset,
		.local = (void *)(uintptr_t)src, .bytes = bytes, .slot = -1 };

	return start(w, &c, op);
}

int tt_window_get(tutti_window *w, const char *what, int rank, size_t offset, void *dst, size_t bytes, tutti_op *op)
{
	struct call c = { .what = what, .kind = TT_GET, .rank = rank, .offset = offset, .local = dst, .bytes = bytes,
		.slot = -1 };

	return start(w, &c, op);
}

int tutti_get(tutti_window *w, int rank, size_t offset, void *dst, size_t bytes, tutti_op *op)
{
	return tt_window_get(w, "get", rank, offset, dst, bytes, op);
}

int tutti_add(tutti_window *w, int rank, size_t offset, uint64_t value, uint64_t *old, tutti_op *op)
{
	struct call c = { .what = "add", .kind = TT_ADD, .rank = rank, .offset = offset, .bytes = 8, .slot = -1,
		.value = value, .old = old };
	int err = old ? tt_host_only("add", "old", old, sizeof *old) : 0;

	return err ? err : start(w, &c, op);
}

int tutti_put_notify(tutti_window *w, int rank, size_t offset, const void *src, size_t bytes, int slot, tutti_op *op)
{
	struct call c = { .what = "put with notify", .kind = TT_PUT, .rank = rank, .offset = offset,
		.local = (void *)(uintptr_t)src, .bytes = bytes, .slot = slot };

	if (slot < 0)
		return tt_fail(-EINVAL, "put with notify: slot %d must be from 0 to %d", slot, TT_SLOTS - 1);
	return start(w, &c, op);
}

int tutti_window_bytes(tutti_window *w, int rank, size_t *bytes)
{
	struct tt_job *job = tt_job_of(w);
	int err = tt_usable(job), at = rank;

	if (err || (err = tt_given(bytes, "tutti_window_bytes: bytes")) || (err = translate(w, "window bytes", &at)))
		return err;
	if (at == job->rank) {
		*bytes = w->bytes;
		return 0;
	}
	if ((err = tt_window_get(w, "window bytes", rank, 0, NULL, 0, NULL)) || (err = tt_begin(job)))
		return err;
	*bytes = (size_t)w->remotes[at].key.len;
	tt_unlock(job);
	return 0;
}

void *tutti_window_map(tutti_window *w, int rank)
{
	struct tt_job *job = tt_job_of(w);
	void *p = NULL;

	if (tt_usable(job) || find_rank(w, "map", &rank))
		return NULL;
	if (rank == job->rank)
		return is_on_device(w) ? NULL : w->base;
	if (tt_begin(job))
		return NULL;
	struct tt_member *m = tt_member(job, rank);
	struct remote *r = &w->remotes[rank];
	if (m->state == TT_UP && r->state == KNOWN && !tt_key_is_staged(&r->key) && tt_member_net(m)->transport->map)
		p = tt_member_net(m)->transport->map(m->link->peer, &r->key, 1);
	tt_unlock(job);
	return p;
}

/* ---- the module ---- */

static void make(struct tt_job *job)
{
	struct windows *all = windows_of(job);

	all->next = 1;
	tt_list_init(&all->open);
	tt_list_init(&all->asks);
}

static void close_windows(struct tt_job *job)
{
	struct windows *all = windows_of(job);
	struct tt_list *node;

	while ((node = tt_list_pop(&all->open)))
		tt_window_close(tt_container_of(node, struct tutti_window, link));
	while ((node = tt_list_pop(&all->asks)))
		free(tt_container_of(node, struct ask, link));
}

static const struct tt_message messages[] = {
	{ TT_ASK, "ask", take_ask },
	{ TT_ANSWER, "answer", take_answer },
};

const struct tt_module tt_window_module = {
	.name = "window",
	.slot = TT_WINDOW_SLOT,
	.job_size = sizeof(struct windows),
	.make = make,
	.close = close_windows,
	.messages = messages,
	.message_count = TT_COUNT(messages),
	.passing = TT_COUNT(messages),
	.notify_first = 0,
	.notify_last = TT_WINDOWS * TT_SLOTS - 1,
	.notify = take_notify,
	.recalled = take_recall,
	.unreached = end_unreached,
	.reborn = forget_life,
	.ended = end_asked,
};
