/* gossip.c - a rank's part in a gossip: its buffers, publishing, mixing */
#include "average/gossip.h"
#include <math.h>
#include <stdlib.h>

/* ---- buffers ---- */

int tt_gossip_spare(struct tutti_gossip *g)
{
	unsigned kept = g->next < 0 ? 0 : 1u << g->next;

	for (int i = 0; i < g->config.buffers; i++)
		kept |= (unsigned)g->gift[i].kept << i;
	int spare = tt_buffers_oldest(&g->shown, kept);
	if (spare >= 0)
		tt_buffers_spoil(&g->shown, spare);
	return spare;
}

const char *tt_gossip_own(const struct tutti_gossip *g) { return g->holds ? tt_gossip_buffer(g, g->next) : NULL; }

void tt_gossip_adopt(struct tutti_gossip *g, const char *from)
{
	if (g->holds)
		g->next = (int)((size_t)(from - g->buffers) / g->model.bytes);
	else
		tt_model_load(&g->model, from);
}

uint64_t tt_gossip_timeout(const struct tutti_gossip *g)
{
	if (g->config.timeout_ms)
		return (uint64_t)g->config.timeout_ms * TT_MS;
	return tt_pace_limit(&g->fetches);
}

/* ---- opening and closing ---- */

static int check_number(const char *what, double x, double least, double most)
{
	if (x >= least && x <= most)
		return 0;
	return tt_fail(-EINVAL, "gossip: %s is %g: it must be from %g to %g", what, x, least, most);
}

static int check_range(double clock, double weight)
{
	int err = check_number("clock", clock, 0, 0x1p53);

	return err ? err : check_number("weight", weight, 0x1p-1000, 0x1p1000);
}

static int check(const tutti_gossip_config *c, bool holds)
{
	int least = 2 + holds + (c->way != TUTTI_GOSSIP_PULL), err = TT_RESERVED(tutti_gossip_config, c);

	if (err)
		return err;
	if (c->way > TUTTI_GOSSIP_PUSH_SUM || c->choice > TUTTI_CHOICE_OWN || c->method > TUTTI_GOSSIP_LOSS)
		return tt_fail(-EINVAL, "gossip: there is no such way, choice or method: begin with "
		               "tutti_gossip_defaults()");
	if (c->place > TUTTI_PLACE_HOST)
		return tt_fail(-EINVAL, "gossip: there is no place %d for buffers", (int)c->place);
	if (!c->choose != (c->choice != TUTTI_CHOICE_OWN))
		return tt_fail(-EINVAL, "gossip: `choose` and TUTTI_CHOICE_OWN go together: set both, or neither");
	if ((err = check_number("value", c->value, 0, 1)) ||
	    (err = check_number("divergence_threshold", c->divergence_threshold, 0, HUGE_VAL)) ||
	    (err = check_number("fetch_probability", c->fetch_probability, 0, 1)) ||
	    (err = check_number("buffers", c->buffers, least, TT_GOSSIP_BUFFERS)) ||
	    (err = check_number("timeout_ms", c->timeout_ms, 0, 86400000)))
		return err;
	return check_range(c->clock, c->weight);
}

/* The list, or, where the library holds the model, one that tt_model_open does not refuse. */
static int open_model(struct tutti_gossip *g, const tutti_tensor *list, int n)
{
	tutti_tensor *copy = list && n > 0 ? malloc((size_t)n * sizeof *copy) : NULL;
	int with = 0, err;

	if (list && n > 0 && !copy)
		return tt_fail(-ENOMEM, "gossip: no memory for a list of %d tensors", n);
	for (int i = 0; copy && i < n; i++)
		with += list[i].data != NULL;
	g->holds = copy && !with;
	for (int i = 0; copy && i < n; i++) {
		copy[i] = list[i];
		if (g->holds)
			copy[i].data = g; /* any address: tutti_gossip_model gives the real ones */
	}
	err = tt_model_open(&g->model, copy, n, "gossip");
	g->device.gpu = -1;
	if (!err && !g->holds)
		err = tt_gossip_find_device(copy, n, &g->device.gpu);
	free(copy);
	if (!err && !g->model.bytes)
		err = tt_fail(-EINVAL, "gossip: the model has no elements");
	return err;
}

static int open_memory(struct tutti_gossip *g)
{
	size_t head = sizeof *g->head + (size_t)g->capacity * sizeof *g->offer;
	size_t first = (head + 4095) / 4096 * 4096;
	void *memory;
	int err;

	g->device.apart = g->device.gpu >= 0 && g->config.place == TUTTI_PLACE_MODEL;
	if (g->device.apart) /* ranks whose buffers are elsewhere do not find them: to these it is another model */
		g->model.hash = ~g->model.hash;
	g->bytes = first + (g->device.apart ? 0 : (size_t)g->config.buffers * g->model.bytes);
	if ((err = tt_memory_alloc(g->job, g->bytes, -1, &memory)))
		return err;
	g->memory = memory;
	g->head = memory;
	g->buffers = g->memory + first;
	g->offer = (struct tt_offer *)(void *)(g->head + 1);
	g->head->front.hash = g->model.hash;
	g->peers = calloc((size_t)g->capacity, sizeof *g->peers);
	g->list = calloc(2 * (size_t)g->capacity, sizeof *g->list);
	if (!g->peers || !g->list)
		return tt_fail(-ENOMEM, "gossip: no memory for %d ranks", g->capacity);
	for (int i = 0; i < g->capacity; i++) {
		g->peers[i].g = g;
		g->peers[i].rank = i;
		g->peers[i].score = 1000;
		g->peers[i].out = g->seats != NULL;
	}
	for (int i = 0; i < g->members; i++)
		g->peers[g->seats[i]].out = false;
	if (g->device.gpu < 0)
		return 0;
	g->buffers = g->device.apart ? NULL : g->buffers;
	return tt_gossip_open_device(g);
}

static int open_window(struct tutti_gossip *g, const char *name)
{
	char full[200];
	int err = tt_pin(g->job, g->memory, g->bytes, TT_PIN_WINDOW, &g->pinned);

	if (err)
		return err;
	snprintf(full, sizeof full, "tutti:gossip:%s", name);
	tt_lock(g->job);
	err = tt_window_open(g->job, full, g->memory, g->bytes, g->pinned, &g->window);
	if (!err)
		tt_window_set_timeout(g->window, tt_gossip_timeout(g));
	tt_unlock(g->job);
	if (err)
		tt_unpin_now(g->pinned);
	return err;
}

/* Gives back what is the job's. */
static void end_gossip(struct tutti_gossip *g)
{
	tt_window_close(g->window);
	tt_window_close(g->device.window);
	g->window = g->device.window = NULL;
	tt_gossip_end_device(g);
	tt_lock(g->job);
	for (int i = 0; i < TT_GOSSIP_FETCHES; i++) {
		tt_unpin(g->job, g->fetch[i].pinned);
		g->fetch[i].pinned = NULL;
	}
	tt_unlock(g->job);
}

static void orphan_gossip(struct tt_handle *h) { end_gossip(tt_container_of(h, struct tutti_gossip, handle)); }

static void release_gossip(struct tt_handle *h)
{
	struct tutti_gossip *g = tt_container_of(h, struct tutti_gossip, handle);

	for (int i = 0; i < TT_GOSSIP_FETCHES && !g->device.queue; i++)
		free(g->fetch[i].staging);
	tt_gossip_close_device(g);
	if (g->memory)
		tt_memory_free(g->memory);
	tt_model_close(&g->model);
	free(g->copy);
	free(g->peers);
	free(g->list);
	free(g->seats);
	free(g);
}

static void hold(struct tutti_gossip *g)
{
	static const struct tt_handle_kind kind = { orphan_gossip, release_gossip, "gossip" };

	tt_lock(g->job);
	tt_handle_hold(&g->handle, g->job, &kind);
	tt_unlock(g->job);
}

static void begin(struct tutti_gossip *g)
{
	uint64_t seed = g->config.seed;

	g->shown = (struct tt_buffers){ .front = &g->head->front, .stamp = g->head->stamp,
		.n = g->config.buffers, .most = TT_GOSSIP_BUFFERS, .newest = -1 };
	g->next = g->holds ? 0 : -1;
	for (int i = 0; i < TT_GOSSIP_FETCHES; i++) {
		g->fetch[i].g = g;
		g->fetch[i].unit = TT_GOSSIP_PIECE;
		for (int k = 0; k < TT_GOSSIP_DEPTH; k++)
			g->fetch[i].piece[k].fetch = &g->fetch[i];
	}
	tt_entropy(&g->shown.number, sizeof g->shown.number);
	g->shown.number >>= 16; /* its upper bits have other uses */
	if (!seed)
		tt_entropy(&seed, sizeof seed);
	tt_random_seed(&g->random, seed * TT_PRIME64 + (uint64_t)g->job->rank);
	g->info = (tutti_gossip_info){ .clock = g->config.clock, .weight = g->config.weight };
	g->fetches = (struct tt_pace){ .times = 4, .least = 50 * TT_MS };
	g->takes = (struct tt_pace){ .times = 2, .least = 10 * TT_MS }; /* a gift that goes elsewhere costs little */
	g->none = "nothing was published yet";
}

/* What comes of the job's group stands for the job: ranks that come late are peers, too. */
static int find_members(struct tutti_gossip *g, const tutti *at)
{
	if (at->lineage || at == tt_members(g->job)->whole || at == tt_members(g->job)->all)
		return 0;
	g->members = at->n;
	g->seat = at->me;
	return tt_group_list(at, &g->seats);
}

static int open_gossip(tutti *at, const char *name, const tutti_tensor *model, int n,
                       const tutti_gossip_config *config, tutti_gossip **out)
{
	struct tt_job *job = at->job;
	int err;

	if (!name || !*name || strlen(name) > 160)
		return tt_fail(-EINVAL, "a gossip's name has 1 to 160 bytes");
	if (config->way != TUTTI_GOSSIP_PULL && (err = tt_need_same_lists(job, "a gossip that gives models away")))
		return err;
	struct tutti_gossip *g = calloc(1, sizeof *g);
	if (!g)
		return tt_fail(-ENOMEM, "no memory for a gossip");
	g->job = job;
	g->config = *config;
	g->capacity = tt_members(job)->capacity;
	if (!g->config.buffers)
		g->config.buffers = config->way == TUTTI_GOSSIP_PULL ? 3 : 4;
	err = find_members(g, at);
	if (isnan(g->config.weight))
		g->config.weight = 1.0 / (g->seats ? g->members : tt_members(job)->launched);
	if (err || (err = open_model(g, model, n)) || (err = check(&g->config, g->holds)) || (err = open_memory(g))) {
		release_gossip(&g->handle);
		return err;
	}
	begin(g);
	if ((err = open_window(g, name)) || (err = tt_gossip_open_device_window(g, name))) {
		tt_window_close(g->window);
		release_gossip(&g->handle);
		return err;
	}
	hold(*out = g);
	return 0;
}

int tutti_gossip_open(tutti *at, const char *name, const tutti_tensor *model, int n, const tutti_gossip_config *config,
                      tutti_gossip **out)
{
	struct tt_job *job = tt_job_of(at);
	int err = tt_usable(job);

	if (err || (err = tt_given(out, "tutti_gossip_open: gossip")) ||
	    (err = tt_given(config, "tutti_gossip_open: config")) || (err = tt_users_enter(job, &at->handle.users)))
		return err;
	err = open_gossip(at, name, model, n, config, out);
	tt_users_exit(job, &at->handle.users);
	return err;
}

void tutti_gossip_close(tutti_gossip *g)
{
	struct tt_sentence last = tt_last_sentence();

	if (!g || !tt_handle_close(&g->handle))
		return;
	tt_unlock(g->job);
	tt_composite_close(&g->whole);
	for (int i = 0; i < TT_GOSSIP_FETCHES; i++)
		tt_fetch_drop(&g->fetch[i]);
	tt_lock(g->job);
	tt_wait_until(g->job, tt_fetch_is_idle, g, TT_NEVER); /* a rank that does not answer is evicted */
	tt_unlock(g->job);
	for (int i = 0; i < g->job->size; i++)
		if (g->peers[i].telling)
			tutti_cancel(&g->peers[i].told);
	end_gossip(g);
	tt_handle_free(&g->handle);
	tt_remember(last.text);
}

/* ---- rounds ---- */

int tutti_gossip_model(tutti_gossip *g, tutti_tensor *now, tutti_tensor *next)
{
	int err = tt_usable(tt_job_of(g));

	if (err)
		return err;
	if (!g->holds)
		return tt_fail(-EINVAL, "gossip: the program holds the model: its tensors are where it said");
	if (now)
		tt_model_place(&g->model, tt_gossip_buffer(g, g->shown.newest < 0 ? g->next : g->shown.newest), now);
	if (next)
		tt_model_place(&g->model, tt_gossip_buffer(g, g->next), next);
	return 0;
}

/* A call begins. Neither close nor leave frees anything before it has ended. */
static int enter(struct tutti_gossip *g) { return g ? tt_users_enter(g->job, &g->handle.users) : tt_refuse_job(NULL); }
static void leave(struct tutti_gossip *g) { tt_users_exit(g->job, &g->handle.users); }

static int check_life(const struct tutti_gossip *g)
{
	if (!tt_members(g->job)->evicted)
		return 0;
	return tt_fail(-ECONNRESET, "gossip: the other ranks go on without this one: leave the job, join it again "
	               "and open the gossip again");
}

/* Not while a mix that was started runs, or is not applied. */
static int check_idle(struct tutti_gossip *g)
{
	int err = check_life(g);

	return err ? err : tt_composite_idle(&g->whole, "gossip");
}

static bool wants_peer(struct tutti_gossip *g)
{
	double chance = (double)(tt_random_next(&g->random) >> 11) * 0x1p-53;

	return g->config.fetch_probability >= 1 || chance < g->config.fetch_probability;
}

static int choose(struct tutti_gossip *g)
{
	int rank = g->config.choice == TUTTI_CHOICE_OWN ? g->config.choose(g->config.arg) : -1;

	tt_lock(g->job);
	rank = tt_gossip_choose(g, rank);
	tt_unlock(g->job);
	return rank;
}

static void find_peer(struct tutti_gossip *g)
{
	int rank;

	g->none = "this round was to have none: fetch_probability";
	if (!wants_peer(g))
		return;
	g->none = "no peer is there, or all are still asked for earlier rounds";
	if ((rank = choose(g)) < 0)
		return;
	g->none = "";
	if (g->config.way != TUTTI_GOSSIP_PULL)
		tt_gift_give(g, rank);
	else if (!(g->now = tt_fetch_begin(g, rank, false)))
		g->none = "too many peers have not answered yet, or there is no memory";
}

static int store(struct tutti_gossip *g, int to)
{
	if (g->device.queue)
		return tt_gossip_store(g, to);
	if (!g->holds)
		tt_model_store(&g->model, tt_gossip_buffer(g, to));
	return 0;
}

static int publish(struct tutti_gossip *g, double loss)
{
	int err = check_idle(g), to;

	if (err || (err = tt_gossip_await_stream(g)))
		return err;
	if (g->config.way != TUTTI_GOSSIP_PULL)
		tt_gifts_settle(g);
	tt_fetch_drop(g->now);
	g->now = NULL;
	to = g->holds ? g->next : tt_gossip_spare(g);
	if ((err = store(g, to)))
		return err;
	g->info.clock++;
	g->info.published++;
	tt_buffers_show(&g->shown, to, g->shown.number + 1, tt_bits_of(g->info.clock), tt_bits_of(loss));
	if (g->holds)
		g->next = tt_gossip_spare(g);
	find_peer(g);
	g->rounds++;
	if (g->config.way != TUTTI_GOSSIP_PULL)
		tt_gifts_fetch(g);
	return 0;
}

int tutti_gossip_publish(tutti_gossip *g, double loss)
{
	int err = enter(g);

	if (err)
		return err;
	err = publish(g, loss);
	leave(g);
	return err;
}

static const char *reason(int err)
{
	switch (err) {
	case -ETIMEDOUT: return "it did not answer within timeout_ms";
	case -EAGAIN: return "it published faster than it could be read";
	case -ENODATA: return "it has published nothing yet";
	case -EHOSTUNREACH: return "it could not be reached so far: does it run?";
	case -ESTALE: return "it has closed its gossip";
	case -EINVAL: case -ERANGE: return "it has another model under this name";
	case -EIO: return "its GPU has failed";
	default: return "it went down or has left";
	}
}

static void say_peer(const struct tt_fetch *f, tutti_gossip_result *r)
{
	r->peer = f->rank;
	r->peer_clock = tt_gossip_clock(&f->stamp);
	r->peer_loss = tt_gossip_loss(&f->stamp);
	r->peer_not_finite = !isfinite(r->peer_loss);
	r->age_ms = tt_fetch_age(f);
}

/* How a round ends: `list` and `copy` as of struct tt_blend. */
struct ending {
	const tutti_tensor *list;
	const char *copy;
	double loss;
	uint64_t deadline;
};

/* 0 also without a peer; -EINTR: the next call goes on; -ESTALE, -ESHUTDOWN: this process closes or leaves. */
static int pull(struct tutti_gossip *g, const struct ending *e, tutti_gossip_result *r)
{
	struct tt_blend b = { .list = e->list, .own = tt_gossip_own(g), .copy = isfinite(e->loss) ? e->copy : NULL };
	struct tt_fetch *f = g->now;
	int rank = f ? f->rank : -1;

	g->device.late = false;
	if (!f) {
		snprintf(r->why, sizeof r->why, "gossip: no peer in this round: %s", g->none);
		return 0;
	}
	if (!e->list && !g->device.queue) /* else late readers go on with what lies in the spare buffer */
		b.to = tt_gossip_buffer(g, tt_gossip_spare(g));
	int err = tt_fetch_mix(f, &b, e->loss, e->deadline);
	if (tt_gossip_ends(g, err) || (err == -EIO && tt_gossip_is_broken(g)))
		return err;
	g->now = NULL;
	g->none = "nothing was published since the last mix";
	if (!err)
		say_peer(f, r);
	tt_fetch_drop(f);
	if (err && g->device.late)
		return err; /* it is not the peer's fault */
	tt_lock(g->job);
	tt_gossip_judge(g, rank, err);
	if (err)
		snprintf(r->why, sizeof r->why, "gossip: no peer in this round: %s: %s",
		         tt_member_label(tt_member(g->job, rank)).text, reason(err));
	tt_unlock(g->job);
	if (err)
		return 0;
	if (b.to)
		tt_gossip_adopt(g, b.to);
	r->factor = b.factor;
	g->info.clock = b.factor * r->peer_clock + (1 - b.factor) * g->info.clock;
	return 0;
}

static uint64_t count_retries(struct tutti_gossip *g)
{
	tt_lock(g->job);
	uint64_t n = g->info.retries;
	tt_unlock(g->job);
	return n;
}

static uint64_t deadline_of(const struct tutti_gossip *g) { return tt_now() + tt_gossip_timeout(g); }

static int end_round(struct tutti_gossip *g, const struct ending *e, tutti_gossip_result *result)
{
	tutti_gossip_result r = { .peer = -1 };
	uint64_t retries = count_retries(g);
	int err;

	if (g->config.way == TUTTI_GOSSIP_PULL) {
		err = pull(g, e, &r);
	} else {
		tt_gifts_settle(g);
		err = tt_gifts_mix(g, &r, e->deadline);
		if (r.peer < 0)
			snprintf(r.why, sizeof r.why, "gossip: no gift has come since the last mix");
	}
	g->info.mixed += r.peer >= 0;
	r.retries = (unsigned)(count_retries(g) - retries);
	r.clock = g->info.clock;
	if (result)
		*result = r;
	return err;
}

int tutti_gossip_mix(tutti_gossip *g, double loss, tutti_gossip_result *result)
{
	int err = enter(g);

	if (err)
		return err;
	if (!(err = check_idle(g)))
		err = end_round(g, &(struct ending){ .loss = loss, .deadline = deadline_of(g) }, result);
	leave(g);
	return err;
}

/* ---- a started mix ----
 *
 * The fetch goes on by itself. The operation ends when the model has come, or lies where this rank maps it; when there
 * is none; or after timeout_ms. */

enum { ASK_AGAIN_NS = 1000000 };

static void expire(struct tt_timer *t) { tt_gossip_look(tt_container_of(t, struct tutti_gossip, whole.timer)); }

void tt_gossip_look(struct tutti_gossip *g)
{
	uint64_t now = tt_now();

	if (!g->whole.op || g->job->left) /* a goodbye ends the fetch, and leaving the mix, with -ESHUTDOWN */
		return;
	if (!g->now || now >= g->deadline || tt_fetch_is_settled(g->now))
		tt_composite_end(&g->whole, 0);
	else if (g->now->state == TT_FETCH_ASK)
		tt_timer_start(g->job, &g->whole.timer, tt_min(now + ASK_AGAIN_NS, g->deadline), expire);
	else
		tt_timer_start(g->job, &g->whole.timer, g->deadline, expire);
}

static void look(struct tt_composite *c) { tt_gossip_look(tt_container_of(c, struct tutti_gossip, whole)); }

static int make_copy(struct tutti_gossip *g)
{
	if (!g->copy && !(g->copy = aligned_alloc(TT_MODEL_ALIGN, (g->model.bytes + 63) / 64 * 64)))
		return tt_fail(-ENOMEM, "gossip: no memory for a copy of the model, which a started mix needs");
	if (g->holds)
		memcpy(g->copy, tt_gossip_own(g), g->model.bytes);
	else
		tt_model_store(&g->model, g->copy);
	return 0;
}

static int start_mix(struct tutti_gossip *g, double loss, tutti_op *op)
{
	int err = check_idle(g);

	if (err || (err = tt_given(op, "tutti_gossip_mix_start: op")) || (err = tt_operation_may_begin(g->job, op)))
		return err;
	if (g->config.way != TUTTI_GOSSIP_PULL)
		return tt_fail(-ENOTSUP, "tutti_gossip_mix_start: a gossip that gives models away waits for nobody: "
		               "use tutti_gossip_mix");
	if (g->device.queue)
		return tt_fail(-ENOTSUP, "tutti_gossip_mix_start: the model is memory of GPU %d: use tutti_gossip_mix",
		               g->device.gpu);
	if ((err = make_copy(g)))
		return err;
	g->loss = loss;
	g->deadline = deadline_of(g);
	g->whole.next = look;
	tt_composite_begin(&g->whole, g->job, op, "mix", NULL, 0);
	return 0;
}

int tutti_gossip_mix_start(tutti_gossip *g, double loss, tutti_op *op)
{
	int err = enter(g);

	if (err)
		return err;
	err = start_mix(g, loss, op);
	leave(g);
	return err;
}

static int apply(struct tutti_gossip *g, tutti_gossip_result *result)
{
	int err = check_life(g);

	if (err || (err = tt_composite_take(&g->whole, "tutti_gossip_mix_apply")))
		return err;
	err = end_round(g, &(struct ending){ .copy = g->copy, .loss = g->loss, .deadline = g->deadline }, result);
	g->whole.started = err == -EINTR; /* then it may be applied again */
	return err;
}

int tutti_gossip_mix_apply(tutti_gossip *g, tutti_gossip_result *result)
{
	int err = enter(g);

	if (err)
		return err;
	err = apply(g, result);
	leave(g);
	return err;
}

static int check_list(const struct tutti_gossip *g, const tutti_tensor *list)
{
	for (int i = 0; i < g->model.n; i++) {
		const tutti_tensor *t = &list[i], *mine = &g->model.tensors[i];
		if (t->count != mine->count || t->type != mine->type || (t->count && !t->data))
			return tt_fail(-EINVAL, "gossip fetch: tensor %d has %zu elements%s, the model's has %zu", i,
			               t->count, t->type != mine->type ? " of another type" :
			               t->data ? "" : " and no memory", mine->count);
	}
	int gpu = -1, err = g->device.queue ? tt_gossip_find_device(list, g->model.n, &gpu)
	                                    : tt_tensors_host_only("gossip fetch", list, g->model.n);

	if (err || !g->device.queue || gpu == g->device.gpu)
		return err;
	return tt_fail(-ENOTSUP, "gossip fetch: the model is memory of GPU %d, and the tensors must be, too",
	               g->device.gpu);
}

static int fetch(struct tutti_gossip *g, double loss, const tutti_tensor *to, tutti_gossip_result *result)
{
	int err = check_idle(g);

	if (err || (err = tt_given(to, "tutti_gossip_fetch: to")) ||
	    (err = tt_given(result, "tutti_gossip_fetch: result")) || (err = check_list(g, to)))
		return err;
	if (g->config.way != TUTTI_GOSSIP_PULL)
		return tt_fail(-ENOTSUP, "gossip fetch: this gossip gives models away, and only a gossip that pulls "
		               "fetches one");
	return end_round(g, &(struct ending){ .list = to, .loss = loss, .deadline = deadline_of(g) }, result);
}

int tutti_gossip_fetch(tutti_gossip *g, double loss, const tutti_tensor *to, tutti_gossip_result *result)
{
	int err = enter(g);

	if (err)
		return err;
	err = fetch(g, loss, to, result);
	leave(g);
	return err;
}

int tutti_gossip_set_value(tutti_gossip *g, double value)
{
	int err = tt_usable(tt_job_of(g));

	if (err || (err = check_number("value", value, 0, 1)))
		return err;
	g->config.value = value;
	return 0;
}

double tutti_gossip_value(const tutti_gossip *g) { return g ? g->config.value : (double)NAN; }

int tutti_gossip_look(tutti_gossip *g, tutti_gossip_info *info)
{
	int err = tt_usable(tt_job_of(g));

	if (err || (err = tt_given(info, "tutti_gossip_look: info")) || (err = enter(g)))
		return err;
	if (g->config.way != TUTTI_GOSSIP_PULL) {
		tt_gifts_settle(g);
		tt_gifts_fetch(g);
	}
	tt_lock(g->job);
	*info = g->info;
	info->in_flight = tt_gifts_in_flight(g);
	for (int i = 0; i < g->job->size; i++)
		info->peers += !g->peers[i].out && !tt_member(g->job, i)->guest && tt_member_is_there(g->job, i);
	tt_unlock(g->job);
	leave(g);
	return 0;
}

/* ---- peers by name ---- */

static bool is_member(const struct tutti_gossip *g, int rank)
{
	bool found = !g->seats;

	for (int i = 0; i < g->members; i++)
		found |= g->seats[i] == rank;
	return found;
}

/* A call on one peer begins. Returns the peer's rank; leave() ends the call. */
static int enter_for(tutti_gossip *g, const char *name)
{
	int err = tt_usable(tt_job_of(g)), rank;

	if (err || (err = tt_given(name, "gossip: the peer's name")) || (err = enter(g)))
		return err;
	if ((rank = tt_gossip_find(g->job, name)) >= 0 && !is_member(g, rank))
		rank = tt_fail(-ENOENT, "gossip: \"%s\" is rank %d of the job, which is not in the group of %d ranks "
		               "that the gossip was opened with", name, rank, g->members);
	if (rank < 0)
		leave(g);
	return rank;
}

static int set_out(tutti_gossip *g, const char *name, bool out)
{
	int rank = enter_for(g, name);

	if (rank < 0)
		return rank;
	struct tt_gossip_peer *p = &g->peers[rank];
	bool pulls = g->config.way == TUTTI_GOSSIP_PULL;
	p->out = out;
	p->asked = p->asked && !pulls; /* a withdrawn offer must be answered first */
	p->erred = 0;
	if (out && !pulls)
		tt_gifts_part(g, rank);
	p->score = out ? p->score : 1000;
	leave(g);
	return 0;
}

int tutti_gossip_add_peer(tutti_gossip *g, const char *name) { return set_out(g, name, false); }
int tutti_gossip_remove_peer(tutti_gossip *g, const char *name) { return set_out(g, name, true); }

static int score_of(struct tutti_gossip *g, int rank, const char *name)
{
	const struct tt_gossip_peer *p = &g->peers[rank];

	tt_lock(g->job);
	bool erred = p->erred && p->erred == tt_member(g->job, rank)->epoch;
	tt_unlock(g->job);
	if (!p->out && !erred)
		return p->score;
	return tt_fail(-ENOENT, "gossip: \"%s\" is no peer: %s", name, p->out ? "it was removed" : reason(-EINVAL));
}

int tutti_gossip_score(tutti_gossip *g, const char *name)
{
	int rank = enter_for(g, name);

	if (rank < 0)
		return rank;
	int score = score_of(g, rank, name);
	leave(g);
	return score;
}

/* ---- the state in a file: clock and weight, and what chooses the next peers. Scores of dpwa begin anew ---- */

static const char state_of[] = "a gossip";
enum { HELD = 4 };

struct state {
	double clock, weight;
	uint64_t rounds;
	struct tt_random random;
};

static void list_state(struct state *s, struct tt_held list[HELD])
{
	list[0] = tt_held_tensor("clock", -1, &(tutti_tensor){ &s->clock, 1, TUTTI_F64 });
	list[1] = tt_held_tensor("weight", -1, &(tutti_tensor){ &s->weight, 1, TUTTI_F64 });
	list[2] = tt_held_numbers("rounds", &s->rounds, 1);
	list[3] = tt_held_numbers("random", s->random.s, TT_COUNT(s->random.s));
}

static int load_state(struct tutti_gossip *g, const char *path)
{
	struct state s;
	struct tt_held list[HELD];

	if (g->shown.newest >= 0)
		return tt_fail(-EINVAL, "tutti_gossip_load: this rank has published already: load before that");
	list_state(&s, list);
	int err = tt_state_load(state_of, path, list, HELD);
	if (err || (err = check_range(s.clock, s.weight)))
		return err;
	if (!(s.random.s[0] | s.random.s[1] | s.random.s[2] | s.random.s[3]))
		return tt_fail(-EINVAL, "%s: \"random\" has zeros alone, which give no random numbers: load the file "
		               "that tutti_gossip_save wrote", path);
	g->info.clock = s.clock;
	g->info.weight = s.weight;
	g->rounds = s.rounds;
	g->random = s.random;
	return 0;
}

static int save_state(struct tutti_gossip *g, const char *path)
{
	struct state s = { g->info.clock, g->info.weight, g->rounds, g->random };
	struct tt_held list[HELD];

	list_state(&s, list);
	return tt_state_save(state_of, path, list, HELD);
}

static int use_state(struct tutti_gossip *g, const char *path, bool load)
{
	int err = check_idle(g);

	return err ? err : load ? load_state(g, path) : save_state(g, path);
}

int tutti_gossip_save(tutti_gossip *g, const char *path)
{
	int err = tt_given(path, "tutti_gossip_save: path");

	if (err || (err = enter(g)))
		return err;
	err = use_state(g, path, false);
	leave(g);
	return err;
}

int tutti_gossip_load(tutti_gossip *g, const char *path)
{
	int err = tt_given(path, "tutti_gossip_load: path");

	if (err || (err = enter(g)))
		return err;
	err = use_state(g, path, true);
	leave(g);
	return err;
}
