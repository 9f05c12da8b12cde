/* pmix.c - PMIx, by libpmix, which is loaded when a launcher speaks PMIx: srun --mpi=pmix, mpirun, prterun
 *
 * The library is finalized as soon as the blob is through: Slurm kills the whole step when a process dies while it
 * has PMIx open.
 *
 * The library's calls ask the launcher and have no limit of time. So they run on a thread of their own (errands). A
 * thread that hangs is left behind, and this process uses PMIx no more. An errand whose wait was interrupted is awaited
 * by the next call, or at the end.
 */
#include "launch/launcher.h"
#ifdef HAVE_PMIX
#include <dlfcn.h>
#include <pmix.h>
#include <stdlib.h>
#include <unistd.h>

#define KEY "tutti-rank-0"

static struct {
	void *library;
	bool open, asked, hangs;
	int rank, size, local_rank, local_size; /* once asked */
	pmix_proc_t me;
	__typeof__(PMIx_Init) *init;
	__typeof__(PMIx_Finalize) *finalize;
	__typeof__(PMIx_Put) *put;
	__typeof__(PMIx_Commit) *commit;
	__typeof__(PMIx_Fence_nb) *fence;
	__typeof__(PMIx_Get) *get;
	__typeof__(PMIx_Error_string) *text;
} pmix;

static bool load(void)
{
	const struct tt_symbol wanted[] = {
		{ "PMIx_Init", &pmix.init }, { "PMIx_Finalize", &pmix.finalize }, { "PMIx_Put", &pmix.put },
		{ "PMIx_Commit", &pmix.commit }, { "PMIx_Fence_nb", &pmix.fence }, { "PMIx_Get", &pmix.get },
		{ "PMIx_Error_string", &pmix.text },
	};
	const char *lacks;

	if (!pmix.library) /* its plugins look for its names */
		pmix.library = tt_library_load("libpmix.so.2", RTLD_NOW | RTLD_GLOBAL, wanted, TT_COUNT(wanted),
		                               &lacks);
	return pmix.library != NULL;
}

static int failed(const char *call, pmix_status_t status)
{
	return tt_fail(-EIO, "the launcher does not answer over PMIx (%s: %s); srun --mpi=pmi2 does without, and so do "
	               "TUTTI_RANK, TUTTI_SIZE and TUTTI_BOOT", call, pmix.text(status));
}

/* ---- calls without a limit of time ---- */

enum { END_MS = 5000 }; /* that the end may take */

struct errand {
	struct tt_parking parking;
	_Atomic bool over;
	int (*fn)(void);
	int err;
	struct tt_sentence why;
};

static void run_errand(void *arg)
{
	struct errand *e = arg;

	if ((e->err = e->fn()))
		e->why = tt_last_sentence();
	atomic_store(&e->over, true);
	tt_wake(&e->parking);
}

static int await_errand(struct errand *e, uint64_t timeout)
{
	uint64_t end = tt_now() + timeout;
	int err = 0;

	while (!err && !atomic_load(&e->over) && tt_now() < end) {
		tt_park(&e->parking, tt_hook_due(end));
		err = atomic_load(&e->over) ? 0 : tt_hook_poll();
	}
	return err || atomic_load(&e->over) ? err :
	       tt_fail(-ETIMEDOUT, "the launcher has not answered over PMIx within %llu ms; srun --mpi=pmi2 does "
	               "without, and so do TUTTI_RANK, TUTTI_SIZE and TUTTI_BOOT",
	               (unsigned long long)(timeout / TT_MS));
}

static struct {
	struct errand *errand; /* NULL: none */
	struct tt_task *thread;
} under_way;

static int finish(uint64_t timeout)
{
	struct errand *e = under_way.errand;
	int err = await_errand(e, timeout);

	if (err && err != -ETIMEDOUT)
		return err;
	under_way.errand = NULL;
	if (err) {
		pmix.hangs = true;
		tt_detach(under_way.thread);
		return err;
	}
	tt_join(under_way.thread);
	if ((err = e->err))
		tt_remember(e->why.text);
	free(e);
	return err;
}

/* fn uses static memory alone: it may go on after this has returned. No other errand is under way. */
static int bounded(int (*fn)(void), uint64_t timeout)
{
	struct errand *e = pmix.hangs ? NULL : calloc(1, sizeof *e);
	int err;

	if (!e)
		return pmix.hangs ? tt_fail(-EIO, "an earlier call of this process to PMIx hangs") :
		       tt_fail(-ENOMEM, "no memory to ask the launcher");
	e->fn = fn;
	if ((err = tt_spawn(run_errand, e, &under_way.thread))) {
		free(e);
		return err;
	}
	under_way.errand = e;
	return finish(timeout);
}

/* A number that the launcher knows of all, or of this process. */
static int ask(const char *key, bool of_all, int *out)
{
	pmix_proc_t whom = pmix.me;
	pmix_value_t *v = NULL;

	if (of_all)
		whom.rank = PMIX_RANK_WILDCARD;
	pmix_status_t status = pmix.get(&whom, key, NULL, 0, &v);
	if (status != PMIX_SUCCESS)
		return failed(key, status);
	*out = v->type == PMIX_UINT32 ? (int)v->data.uint32 : v->type == PMIX_UINT16 ? v->data.uint16 : -1;
	free(v);
	return *out < 0 ? tt_fail(-EIO, "what PMIx says of %s is no number", key) : 0;
}

static int ask_all(void)
{
	pmix_status_t status = pmix.init(&pmix.me, NULL, 0);
	int err;

	if (status != PMIX_SUCCESS)
		return failed("PMIx_Init", status);
	pmix.open = true;
	pmix.rank = (int)pmix.me.rank;
	if ((err = ask(PMIX_JOB_SIZE, true, &pmix.size)) || (err = ask(PMIX_LOCAL_RANK, false, &pmix.local_rank)) ||
	    (err = ask(PMIX_LOCAL_SIZE, true, &pmix.local_size)))
		return err;
	pmix.asked = true;
	return 0;
}

/* What libpmix has finalized it does not open again. */
static int place(struct tt_settings *s, struct tt_launch *b)
{
	uint64_t timeout = tt_setting_time(s, TT_TIMEOUT);
	int err = under_way.errand ? finish(timeout) : 0;

	if (!err && !pmix.asked)
		err = bounded(ask_all, timeout);
	if (err) /* a thread may write these still */
		return err;
	b->rank = pmix.rank;
	const char *space = tt_setting(s, TT_PMIX_SPACE); /* Slurm uses a name again when it requeues the job */
	bool slurm = space && !strncmp(space, "slurm.", 6);
	tt_name_from(b, "pmix", space, NULL, slurm ? tt_setting(s, TT_SLURM_RESTARTS) : NULL);
	b->size = pmix.size;
	b->local_rank = pmix.local_rank;
	b->local_size = pmix.local_size;
	b->exchanges = true;
	return 0;
}

static struct fence { /* its callback may come after the time is up */
	struct tt_parking parking;
	_Atomic bool over;
	pmix_status_t status;
} fence;

static void fenced(pmix_status_t status, void *arg)
{
	(void)arg;
	fence.status = status;
	atomic_store(&fence.over, true);
	tt_wake(&fence.parking);
}

static int meet(const struct tt_launch *b, uint64_t silence, uint64_t timeout)
{
	pmix_info_t collect = { .value = { .type = PMIX_BOOL, .data = { .flag = true } } };
	uint64_t end = tt_now() + timeout, doubt = tt_launch_doubt(silence, end);
	int err;

	strcpy(collect.key, PMIX_COLLECT_DATA);
	atomic_store(&fence.over, false);
	pmix_status_t status = pmix.fence(NULL, 0, &collect, 1, fenced, NULL);
	if (status == PMIX_OPERATION_SUCCEEDED)
		return 0;
	if (status != PMIX_SUCCESS)
		return failed("PMIx_Fence", status);
	while (!atomic_load(&fence.over) && tt_now() < end) {
		tt_park(&fence.parking, tt_hook_due(doubt));
		if (!atomic_load(&fence.over) && (err = tt_hook_poll()))
			return err;
		if (atomic_load(&fence.over) || tt_now() < doubt || doubt == end)
			continue;
		tt_log(tt_launch_level(b->rank, b->size), "joining waits for the launcher, which waits for all %d "
		       "processes of %s to join (PMIx does not say which ones have)", b->size, pmix.me.nspace);
		doubt = end;
	}
	if (!atomic_load(&fence.over))
		return tt_fail(-ETIMEDOUT, "not all of the %d processes of %s called tutti_join within %llu ms "
		               "(PMIx waits for all of them)", b->size, pmix.me.nspace,
		               (unsigned long long)(timeout / TT_MS));
	return fence.status == PMIX_SUCCESS ? 0 : failed("PMIx_Fence", fence.status);
}

static char text[TT_LAUNCH_BLOB]; /* rank 0's blob */

static int put_text(void)
{
	pmix_value_t mine = { .type = PMIX_STRING, .data = { .string = text } };
	pmix_status_t status;

	if ((status = pmix.put(PMIX_GLOBAL, KEY, &mine)) != PMIX_SUCCESS)
		return failed("PMIx_Put", status);
	return (status = pmix.commit()) == PMIX_SUCCESS ? 0 : failed("PMIx_Commit", status);
}

static int get_text(void)
{
	pmix_value_t *v = NULL;
	pmix_proc_t root = pmix.me;
	pmix_status_t status;

	root.rank = 0;
	if ((status = pmix.get(&root, KEY, NULL, 0, &v)) != PMIX_SUCCESS)
		return failed("PMIx_Get", status);
	if (v->type == PMIX_STRING && v->data.string) {
		snprintf(text, sizeof text, "%s", v->data.string);
		free(v->data.string);
	}
	free(v);
	return 0;
}

static uint64_t left_until(uint64_t end) { return end - tt_min(end, tt_now()); }

static int exchange(const struct tt_settings *s, const struct tt_launch *b, char blob[TT_LAUNCH_BLOB], uint64_t timeout)
{
	uint64_t end = tt_now() + timeout;
	int err;

	snprintf(text, sizeof text, "%s", blob);
	if (b->rank == 0 && (err = bounded(put_text, timeout)))
		return err;
	if ((err = meet(b, tt_setting_time(s, TT_SILENCE), left_until(end))) || b->rank == 0)
		return err;
	if ((err = bounded(get_text, left_until(end))))
		return err;
	snprintf(blob, TT_LAUNCH_BLOB, "%s", text);
	return 0;
}

static int finalize(void)
{
	pmix.finalize(NULL, 0);
	return 0;
}

static void end(void)
{
	struct tt_sentence last = tt_last_sentence();

	if (under_way.errand)
		finish(END_MS * TT_MS);
	if (!under_way.errand && !pmix.hangs) {
		if (pmix.open)
			bounded(finalize, END_MS * TT_MS);
		pmix.open = false;
		explicit_bzero(text, sizeof text);
	}
	tt_remember(last.text);
}
#else
static bool load(void) { return false; }
static int place(struct tt_settings *s, struct tt_launch *b)
{
	(void)s, (void)b;
	return -ENOTSUP;
}
#endif

static bool detect(const struct tt_settings *s, char why[TT_LAUNCH_WHY])
{
	const char *rank = tt_setting(s, TT_PMIX_RANK), *space = tt_setting(s, TT_PMIX_SPACE);

	if (!rank || !space)
		return false;
	if (load()) {
		snprintf(why, TT_LAUNCH_WHY, "PMIX_RANK=%.10s and PMIX_NAMESPACE=%.80s are set", rank, space);
		return true;
	}
#ifdef HAVE_PMIX
	snprintf(why, TT_LAUNCH_WHY, "PMIX_RANK is set, but libpmix.so.2 cannot be loaded (apt install libpmix2)");
#else
	snprintf(why, TT_LAUNCH_WHY, "PMIX_RANK is set, but this build is without PMIx (apt install libpmix-dev, "
	         "configure again)");
#endif
	return false;
}

const struct tt_launcher tt_launcher_pmix = {
	.name = "pmix",
	.once = true,
	.detect = detect,
	.place = place,
#ifdef HAVE_PMIX
	.exchange = exchange,
	.end = end,
#endif
};
