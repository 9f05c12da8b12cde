/* pmi2.c - PMI2's wire protocol over the descriptor that the launcher hands down: srun --mpi=pmi2
 *
 *      rank  -- cmd=init pmi_version=2 ...\n -->  launcher
 *      then both ways: the length in six digits, cmd=...;KEY=VALUE;KEY=VALUE;
 *
 * Nothing is linked. A value is at most 1024 bytes and has no ';'.
 */
#include "launch/launcher.h"
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LENGTH = 6, ANSWER = 4096 };
#define KEY "tutti-rank-0"

static bool detect(const struct tt_settings *s, char why[TT_LAUNCH_WHY])
{
	if (!tt_setting(s, TT_PMI_FD) || !tt_setting(s, TT_PMI_RANK))
		return false;
	snprintf(why, TT_LAUNCH_WHY, "PMI_FD=%.10s and PMI_RANK=%.10s are set", tt_setting(s, TT_PMI_FD),
	         tt_setting(s, TT_PMI_RANK));
	return true;
}

static int place(struct tt_settings *s, struct tt_launch *b)
{
	int err = tt_place_from(s, TT_PMI_RANK, TT_PMI_SIZE, b);

	b->exchanges = !err;
	tt_name_from(b, "pmi2", tt_setting(s, TT_PMI_JOB), NULL, tt_setting(s, TT_SLURM_RESTARTS));
	return err ? err : tt_slurm_local(s, b);
}

struct wire {
	int fd, rank, size;
	uint64_t doubt, end;
	char answer[ANSWER];
};

static int broken(const char *what, const char *why)
{
	return tt_fail(-EIO, "the launcher does not answer over PMI2 (%s: %s); srun --mpi=none does without", what,
	               why);
}

static int receive(struct wire *w, char *to, size_t n, const char *what)
{
	while (n > 0) {
		struct pollfd p = { .fd = w->fd, .events = POLLIN };
		uint64_t now = tt_now();
		if (now >= w->doubt && now < w->end) {
			tt_log(tt_launch_level(w->rank, w->size), "joining waits for the launcher, which waits for "
			       "all %d processes to join (PMI2 says of none whether it has)", w->size);
			w->doubt = w->end;
		}
		int ready = tt_hook_poll_files(&p, 1, w->doubt);
		if (ready == -EINTR)
			return ready;
		if (ready < 0)
			return broken(what, strerror(-ready));
		if (ready <= 0 && tt_now() >= w->end)
			return tt_fail(-ETIMEDOUT, "not all of the %d processes that the launcher has started called "
			               "tutti_join in time (PMI2 waits for all of them, in %s)", w->size, what);
		ssize_t got = ready > 0 ? read(w->fd, to, n) : 0;
		if (ready > 0 && got <= 0)
			return broken(what, got ? strerror(errno) : "the connection has ended");
		to += got;
		n -= (size_t)got;
	}
	return 0;
}

/* A launcher that has gone is an error, and no SIGPIPE. Some hand down a pipe. */
static ssize_t put(int fd, const char *text, size_t n)
{
	ssize_t done = send(fd, text, n, MSG_NOSIGNAL);

	return done < 0 && errno == ENOTSOCK ? write(fd, text, n) : done;
}

static int say(struct wire *w, const char *text, const char *what)
{
	for (size_t n = strlen(text); n > 0;) {
		ssize_t done = put(w->fd, text, n);
		if (done < 0 && errno != EINTR)
			return broken(what, strerror(errno));
		done = done < 0 ? 0 : done;
		text += done;
		n -= (size_t)done;
	}
	return 0;
}

/* Is `key` in the answer? Copies its value. */
static bool find(const struct wire *w, const char *key, char *value, size_t size)
{
	size_t len = strlen(key);

	for (const char *at = w->answer; *at; at += strcspn(at, ";"), at += *at == ';')
		if (!strncmp(at, key, len) && at[len] == '=') {
			size_t n = strcspn(at + len + 1, ";");
			snprintf(value, size, "%.*s", (int)tt_min(n, size - 1), at + len + 1);
			return true;
		}
	return false;
}

static int call(struct wire *w, const char *text, const char *what)
{
	char length[LENGTH + 1], rc[16] = "";
	int err;

	snprintf(length, sizeof length, "%6u", (unsigned)strlen(text) % 1000000);
	if ((err = say(w, length, what)) || (err = say(w, text, what)) || (err = receive(w, length, LENGTH, what)))
		return err;
	size_t n = strtoul(length, NULL, 10);
	if (n >= ANSWER)
		return broken(what, "an answer too long");
	if ((err = receive(w, w->answer, n, what)))
		return err;
	w->answer[n] = 0;
	if (!find(w, "rc", rc, sizeof rc) || strcmp(rc, "0") != 0)
		return broken(what, w->answer);
	return 0;
}

static int greet(struct wire *w, const struct tt_settings *s, const struct tt_launch *b)
{
	char text[400];
	int err = say(w, "cmd=init pmi_version=2 pmi_subversion=0\n", "init");

	for (size_t n = 0; !err; n++) { /* a line, not a length */
		err = n == sizeof text ? broken("init", "no end of the line") : receive(w, text + n, 1, "init");
		if (!err && text[n] == '\n')
			break;
	}
	if (err)
		return err;
	snprintf(text, sizeof text, "cmd=fullinit;pmijobid=%.200s;pmirank=%d;threaded=FALSE;",
	         tt_setting(s, TT_PMI_JOB), b->rank);
	return call(w, text, "fullinit");
}

static int exchange(const struct tt_settings *s, const struct tt_launch *b, char blob[TT_LAUNCH_BLOB], uint64_t timeout)
{
	struct wire w = { .rank = b->rank, .size = b->size, .end = tt_now() + timeout };
	char text[TT_LAUNCH_BLOB + 200];
	long fd = -1;
	int err = tt_setting_int(s, TT_PMI_FD, 0, 1 << 20, &fd);

	if (!err && !tt_setting(s, TT_PMI_JOB))
		err = tt_fail(-EINVAL, "PMI_FD is set and PMI_JOBID is not: the launcher speaks PMI-1, as MPICH's "
		              "mpiexec does, and Tutti does not; set TUTTI_RANK, TUTTI_SIZE and TUTTI_BOOT for each "
		              "process");
	w.fd = (int)fd;
	w.doubt = tt_launch_doubt(tt_setting_time(s, TT_SILENCE), w.end);
	if (err || (err = greet(&w, s, b)))
		return err;
	if (b->rank == 0) {
		snprintf(text, sizeof text, "cmd=kvs-put;key=" KEY ";value=%s;", blob);
		err = call(&w, text, "kvs-put");
		explicit_bzero(text, sizeof text);
	}
	if (!err)
		err = call(&w, "cmd=kvs-fence;", "kvs-fence");
	if (!err && b->rank) {
		snprintf(text, sizeof text, "cmd=kvs-get;jobid=%.200s;srcid=-1;key=" KEY ";",
		         tt_setting(s, TT_PMI_JOB));
		err = call(&w, text, "kvs-get");
		if (!err && !find(&w, "value", blob, TT_LAUNCH_BLOB))
			err = broken("kvs-get", "rank 0 has said nothing");
	}
	if (!err)
		err = call(&w, "cmd=finalize;", "finalize");
	explicit_bzero(w.answer, sizeof w.answer);
	return err;
}

const struct tt_launcher tt_launcher_pmi2 = { .name = "pmi2", .once = true, .detect = detect, .place = place,
	                                      .exchange = exchange };
