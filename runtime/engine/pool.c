/* pool.c - threads that share one computation with the caller
 *
 * An update rule over 256 KiB takes as long as many messages. On a rank with spare cores the caller cuts the work into
 * shares. The caller and the pool's threads take shares until none is left; then the caller waits for those that
 * threads have begun. So the caller never waits for a thread that does not run.
 *
 *   ticket:  generation, 32 bits | shares, 16 | taken, 16     whoever raises `taken` owns that share */
#include "engine/engine.h"
#include <stdlib.h>

enum {
	MOST_AUTO = 7,     /* eight cores use all of the memory bandwidth */
	SHARES = 4,        /* for each thread, so that a late thread still finds one */
	SPIN_NS = 50000,   /* how long a thread polls before it sleeps: about until the next piece comes */
	LOOKS = 64,        /* polls between reads of the clock */
	PATIENCE = 4096,   /* polls for the last share's end between yields: its thread may need this core */
};

struct helper {
	struct tt_pool *pool;
	struct tt_task *task;
	struct tt_parking parking;
	_Atomic bool asleep;
};

struct tt_pool {
	_Atomic uint64_t ticket;
	_Atomic uint32_t done;       /* shares of this generation */
	void (*run)(void *arg, size_t first, size_t count);
	void *arg;
	size_t count, share;
	bool spin;
	_Atomic bool stopping;
	int threads;
	struct helper helper[];
};

static uint32_t shares_of(uint64_t ticket) { return (uint32_t)(ticket >> 16) & 0xffff; }
static uint32_t taken_of(uint64_t ticket) { return (uint32_t)ticket & 0xffff; }
static bool has_shares(struct tt_pool *p)
{
	uint64_t ticket = atomic_load(&p->ticket);

	return taken_of(ticket) < shares_of(ticket);
}

/* Takes one share and runs it. run, arg and count may be read once a share is taken: they stay until it is done. */
static bool do_share(struct tt_pool *p)
{
	uint64_t ticket = atomic_load(&p->ticket);
	size_t first;

	do
		if (taken_of(ticket) == shares_of(ticket))
			return false;
	while (!atomic_compare_exchange_weak(&p->ticket, &ticket, ticket + 1));
	first = taken_of(ticket) * p->share;
	p->run(p->arg, first, tt_min(p->share, p->count - first));
	atomic_fetch_add(&p->done, 1);
	return true;
}

/* True: there is work, or the pool stops. */
static bool await_work(struct tt_pool *p)
{
	uint64_t until = tt_now() + SPIN_NS;

	while (p->spin && tt_now() < until)
		for (int i = 0; i < LOOKS; i++, tt_pause())
			if (has_shares(p) || atomic_load(&p->stopping))
				return true;
	return false;
}

static void help(void *arg)
{
	struct helper *me = arg;
	struct tt_pool *p = me->pool;

	while (!atomic_load(&p->stopping)) {
		while (do_share(p))
			;
		if (await_work(p))
			continue;
		atomic_store(&me->asleep, true);
		if (!has_shares(p) && !atomic_load(&p->stopping))
			tt_park(&me->parking, TT_NEVER);
		atomic_store(&me->asleep, false);
	}
}

static void wake(struct tt_pool *p, int most)
{
	for (int i = 0; i < p->threads && i < most; i++)
		if (atomic_load(&p->helper[i].asleep))
			tt_wake(&p->helper[i].parking);
}

void tt_pool_run(struct tt_pool *p, void (*run)(void *arg, size_t first, size_t count), void *arg, size_t count,
                 size_t grain)
{
	size_t grains = (count + grain - 1) / grain;
	size_t shares = p ? tt_min(grains, (size_t)(SHARES * (p->threads + 1))) : 1;

	if (shares < 2) {
		run(arg, 0, count);
		return;
	}
	p->run = run;
	p->arg = arg;
	p->count = count;
	p->share = (grains + shares - 1) / shares * grain;
	shares = (count + p->share - 1) / p->share;
	atomic_store(&p->done, 0);
	atomic_store(&p->ticket, ((atomic_load(&p->ticket) >> 32) + 1) << 32 | (uint64_t)shares << 16);
	wake(p, (int)shares - 1);
	while (do_share(p))
		;
	for (unsigned looks = 1; atomic_load(&p->done) < shares; looks++)
		if (looks % PATIENCE)
			tt_pause();
		else
			tt_yield();
}

/* ---- how many, and where ---- */

static long cores_to_spare(const struct tt_place *p)
{
	long n = tt_cpus_count(&p->allowed) / (p->ranks > 0 ? p->ranks : 1) - 1;

	return n > 0 ? n : 0;
}

static int choose_threads(const struct tt_job *job)
{
	long spare = cores_to_spare(&job->place), n = spare < MOST_AUTO ? spare : MOST_AUTO;

	if (!tt_setting_is(&job->settings, TT_POOL, "auto"))
		n = tt_setting_number(&job->settings, TT_POOL);
	return tt_world ? 0 : (int)n;
}

int tt_pool_open(struct tt_job *job)
{
	int n = choose_threads(job), err = 0;
	struct tt_pool *p;

	if (job->pool || !n)
		return 0;
	if (!(p = calloc(1, sizeof *p + (size_t)n * sizeof p->helper[0])))
		return tt_fail(-ENOMEM, "no memory for a pool of %d threads", n);
	job->pool = p;
	p->spin = n <= cores_to_spare(&job->place);
	while (p->threads < n && !err) {
		struct helper *h = &p->helper[p->threads];
		h->pool = p;
		if ((err = tt_spawn(help, h, &h->task)))
			break;
		p->threads++; /* from here on it must be joined */
		err = tt_place_helper(job, h->task, p->threads);
	}
	if (err)
		tt_pool_close(job);
	return err;
}

void tt_pool_close(struct tt_job *job)
{
	struct tt_pool *p = job->pool;

	if (!p)
		return;
	atomic_store(&p->stopping, true);
	for (int i = 0; i < p->threads; i++) {
		tt_wake(&p->helper[i].parking);
		tt_join(p->helper[i].task);
	}
	free(p);
	job->pool = NULL;
}
