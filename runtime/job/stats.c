/* stats.c - the stats as a table: when the program asks, and on SIGUSR1
 *
 * The signal's handler only counts and wakes the background threads, which write.
 *
 *      SIGUSR1 --> note_signal: asked + 1, 8 bytes to each job's eventfd --> background thread: seen != asked: stderr
 */
#include "engine/engine.h"
#include "job/job_private.h"
#include "member/member.h"
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	EARS = 16,            /* jobs that the handler wakes; others notice within a second */
	PIECE = 4096,         /* PIPE_BUF: a writable pipe takes so many bytes without blocking */
	PATIENCE_MS = 1000,   /* for a stderr that is not read: meanwhile the nets are not polled */
};

static struct {
	struct tt_ticket_lock lock; /* held while a job joins or leaves */
	int jobs;                /* that listen */
	void (*former)(int);     /* the handler before: SIG_DFL, or SIG_IGN from tutti run */
	_Atomic unsigned asked;  /* how many signals came */
	_Atomic int inside;      /* handlers that are running */
	_Atomic int ear[EARS];   /* a job's eventfd + 1; 0: none */
} ears;

/* ---- reading ---- */

/* Nets count for themselves. */
static void note_copied(struct tt_job *job)
{
	uint64_t bytes = 0;

	for (int i = 0; i < job->engine.count; i++)
		bytes += job->engine.nets[i]->copied;
	tt_stats_set_bytes(&job->stats.own, TUTTI_STAT_COPIED, bytes);
}

/* rank -1: of all. */
static void read_stats(struct tt_job *job, int rank, tutti_stat_kind kind, double tick_ns, tutti_stat *out)
{
	struct tt_tally sum = { 0 };

	if (tt_stats_is_own(kind) && rank < 0)
		tt_stats_sum(&sum, job->stats.own, kind);
	if (rank < 0)
		tt_stats_sum(&sum, job->stats.former, kind);
	for (int i = rank < 0 ? 0 : rank; i < (rank < 0 ? job->size : rank + 1); i++)
		tt_stats_sum(&sum, tt_member(job, i)->stats, kind);
	*out = (tutti_stat){ .ops = sum.ops, .bytes = sum.bytes, .errors = sum.errors,
		.p50_us = tt_hist_quantile(&sum.times, 0.5) * tick_ns / 1000,
		.p99_us = tt_hist_quantile(&sum.times, 0.99) * tick_ns / 1000,
		.max_us = (double)sum.times.max * tick_ns / 1000,
		.mean_us = tt_hist_mean(&sum.times) * tick_ns / 1000 };
}

int tutti_stats(tutti *at, int rank, tutti_stat_kind kind, tutti_stat *out)
{
	struct tt_job *job = tt_job_of(at);
	int err = tt_usable(job);

	if (err || (err = tt_given(out, "tutti_stats: stat")))
		return err;
	if ((unsigned)kind >= TT_STAT_KINDS)
		return tt_fail(-EINVAL, "stats: kind %d is unknown", (int)kind);
	if (rank != -1 && tt_group_to_job(at, rank) < 0)
		return tt_fail(-EINVAL, "stats: rank %d must be from -1 to %d", rank, tt_group_count(at) - 1);
	if (rank >= 0)
		rank = tt_group_to_job(at, rank);
	if (rank >= 0 && tt_stats_is_own(kind))
		return tt_fail(-EINVAL, "stats: %s is counted for the whole job: use rank -1", tt_stats_name(kind));
	double tick_ns = tt_ticker_ns(&job->stats.ticker);
	if ((err = tt_begin(job)))
		return err;
	note_copied(job);
	read_stats(job, rank, kind, tick_ns, out);
	tt_unlock(job);
	return 0;
}

/* ---- the table ---- */

static void print_line(FILE *f, const char *peer, const char *name, const tutti_stat *s)
{
	fprintf(f, "%6s  %-10s %12llu %16llu %8llu", peer, name, (unsigned long long)s->ops,
	        (unsigned long long)s->bytes, (unsigned long long)s->errors);
	if (s->max_us > 0)
		fprintf(f, " %10.1f %10.1f %10.1f %10.1f\n", s->p50_us, s->p99_us, s->max_us, s->mean_us);
	else
		fprintf(f, " %10s %10s %10s %10s\n", "-", "-", "-", "-");
}

static void print_rank(FILE *f, struct tt_job *job, int rank, double tick_ns) /* -1: the job's own */
{
	char peer[16] = "job";
	tutti_stat s;

	if (rank >= 0)
		snprintf(peer, sizeof peer, "%d", rank);
	for (int k = 0; k < TT_STAT_KINDS; k++) {
		const struct tt_stats *at = rank < 0 ? job->stats.own : tt_member(job, rank)->stats;
		if (!at || !at->of[k])
			continue;
		read_stats(job, rank, (tutti_stat_kind)k, tick_ns, &s);
		print_line(f, peer, tt_stats_name((tutti_stat_kind)k), &s);
	}
}

/* malloc'd; NULL: no memory. With the lock. */
static char *make_table(struct tt_job *job, size_t *len)
{
	double tick_ns = tt_ticker_ns(&job->stats.ticker);
	char *text = NULL;
	FILE *f = open_memstream(&text, len);

	if (!f)
		return NULL;
	locale_t before = tt_numbers_plain();
	fprintf(f, "tutti: stats of rank %d of %d after %.3f s; times in microseconds\n", job->rank, job->size,
	        (double)(tt_now() - job->stats.joined) / 1e9);
	fprintf(f, "%6s  %-10s %12s %16s %8s %10s %10s %10s %10s\n", "peer", "operation", "count", "bytes", "errors",
	        "p50", "p99", "max", "mean");
	note_copied(job);
	for (int i = -1; i < job->size; i++)
		print_rank(f, job, i, tick_ns);
	tt_numbers_as(before);
	if (!fclose(f))
		return text;
	free(text);
	return NULL;
}

static int write_all(int fd, const char *text, size_t len, uint64_t patience)
{
	uint64_t deadline = tt_now() + patience;

	while (len) {
		struct pollfd p = { .fd = fd, .events = POLLOUT };
		int ready = tt_hook_poll_files(&p, 1, deadline);
		if (ready == -EINTR)
			return ready;
		if (!ready)
			return tt_fail(-ETIMEDOUT, "stats: descriptor %d did not take all within %llu ms", fd,
			               (unsigned long long)(patience / TT_MS));
		ssize_t n = ready > 0 ? write(fd, text, tt_min(len, PIECE)) : -1;
		if (n < 0 && errno != EINTR && errno != EAGAIN)
			return tt_fail(-errno, "stats: cannot write to descriptor %d: %s", fd, strerror(errno));
		text += n > 0 ? n : 0;
		len -= n > 0 ? (size_t)n : 0;
	}
	return 0;
}

int tutti_stats_dump(tutti *at, int fd)
{
	struct tt_job *job = tt_job_of(at);
	size_t len = 0;
	char *text;
	int err = tt_usable(job);

	if (err)
		return err;
	if (fd < 0)
		return tt_fail(-EBADF, "stats: descriptor %d is none", fd);
	if ((err = tt_begin(job)))
		return err;
	text = make_table(job, &len);
	tt_unlock(job);
	err = text ? write_all(fd, text, len, job->silence) : tt_fail(-ENOMEM, "no memory for the stats");
	free(text);
	return err;
}

/* ---- the signal ---- */

static void note_signal(int sig)
{
	int err = errno, fd;
	uint64_t one = 1;

	(void)sig;
	atomic_fetch_add(&ears.inside, 1);
	atomic_fetch_add(&ears.asked, 1);
	for (int i = 0; i < EARS; i++)
		if ((fd = atomic_load(&ears.ear[i])))
			(void)!write(fd - 1, &one, sizeof one);
	atomic_fetch_sub(&ears.inside, 1);
	errno = err;
}

static bool is_ours(void)
{
	struct sigaction now;

	return !sigaction(SIGUSR1, NULL, &now) && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == note_signal;
}

/* tutti run makes processes ignore the signal until they join. */
static bool is_launched(void) { return tt_env(TT_BOOT) && tt_env(TT_LOCAL_SIZE); }

/* Where the program has a handler, or ignores the signal, that stays. */
static bool take_signal(void)
{
	struct sigaction now, ours = { .sa_handler = note_signal, .sa_flags = SA_RESTART };

	if (is_ours())
		return true;
	if (sigaction(SIGUSR1, NULL, &now) || now.sa_flags & SA_SIGINFO)
		return false;
	if (now.sa_handler != SIG_DFL && !(now.sa_handler == SIG_IGN && is_launched()))
		return false;
	ears.former = now.sa_handler;
	return !sigaction(SIGUSR1, &ours, NULL);
}

static void lend_ear(struct tt_job *job)
{
	for (int i = 0; i < EARS && !tt_jobs_own(job)->ear; i++)
		if (!atomic_load(&ears.ear[i])) {
			atomic_store(&ears.ear[i], job->engine.backstage.fd + 1);
			tt_jobs_own(job)->ear = i + 1;
		}
}

int tt_stats_listen(struct tt_job *job)
{
	bool taken;

	if (tt_world || tt_setting_is(&job->settings, TT_STATS_SIGNAL, "none"))
		return 0;
	tt_ticket_lock_take(&ears.lock);
	if ((taken = take_signal())) {
		ears.jobs++;
		lend_ear(job);
	}
	tt_ticket_lock_release(&ears.lock);
	tt_lock(job);
	tt_jobs_own(job)->listening = taken;
	tt_jobs_own(job)->seen = atomic_load(&ears.asked);
	tt_unlock(job);
	return 0;
}

/* The eventfd is closed next, and its number may be used again: waits until no handler can write to it. */
void tt_stats_deafen(struct tt_job *job)
{
	uint64_t patience = tt_now() + 100 * TT_MS;

	if (!tt_jobs_own(job)->listening)
		return;
	tt_ticket_lock_take(&ears.lock);
	if (tt_jobs_own(job)->ear)
		atomic_store(&ears.ear[tt_jobs_own(job)->ear - 1], 0);
	if (--ears.jobs == 0 && is_ours())
		signal(SIGUSR1, ears.former);
	tt_ticket_lock_release(&ears.lock);
	while (atomic_load(&ears.inside) && tt_now() < patience)
		sched_yield();
}

bool tt_stats_asked(const struct tt_job *job)
{
	const struct tt_jobs_own *own = tt_jobs_own(job);

	return own->listening && atomic_load(&ears.asked) != own->seen;
}

/* Tables of several jobs are written one after the other. */
void tt_stats_look(struct tt_job *job)
{
	static struct tt_ticket_lock writing;
	size_t len = 0;
	char *text;

	if (!tt_stats_asked(job))
		return;
	tt_jobs_own(job)->seen = atomic_load(&ears.asked);
	text = make_table(job, &len);
	tt_unlock(job);
	tt_ticket_lock_take(&writing);
	if (text)
		write_all(STDERR_FILENO, text, len, PATIENCE_MS * TT_MS);
	tt_ticket_lock_release(&writing);
	free(text);
	tt_lock(job);
}
