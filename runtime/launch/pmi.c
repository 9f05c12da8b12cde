/* pmi.c - the wire protocols PMI2 (srun --mpi=pmi2) and PMI-1 (flux run, and Hydra, the mpiexec of MPICH and Intel MPI)
 * over the descriptor that the launcher hands down
 *
 *      PMI2:   rank  -- cmd=init pmi_version=2 ...\n -->  launcher
 *              then both ways: the length in six digits, cmd=...;KEY=VALUE;KEY=VALUE;
 *      PMI-1:  both ways lines: cmd=... KEY=VALUE KEY=VALUE\n
 *
 * Nothing is linked. A value is at most 1024 bytes. In PMI2 a value has no ';'. In PMI-1 a value has no blank: '|'
 * stands for one.
 */
#include "launch/launcher.h"
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
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

/* Launchers that speak PMI2 set PMI_JOBID. */
static bool detect_2(const struct tt_settings *s, char why[TT_LAUNCH_WHY])
{
	return tt_setting(s, TT_PMI_JOB) && detect(s, why);
}

static int place(struct tt_settings *s, struct tt_launch *b)
{
	int err = tt_place_from(s, TT_PMI_RANK, TT_PMI_SIZE, b);

	b->exchanges = !err;
	if (tt_setting(s, TT_PMI_JOB)) /* PMI-1 has a name, too, and says it too late */
		tt_name_from(b, "pmi2", tt_setting(s, TT_PMI_JOB), NULL, tt_setting(s, TT_SLURM_RESTARTS));
	return err ? err : tt_slurm_local(s, b);
}

struct wire {
	const char *language; /* "PMI2" */
	char between;         /* words of an answer */
	int fd, rank, size;
	uint64_t doubt, end;
	char answer[ANSWER];
};

static int broken(const struct wire *w, const char *what, const char *why)
{
	const char *srun = w->between == ';' ? "srun --mpi=none does without, and so do " : "a job does without by ";

	return tt_fail(-EIO, "the launcher does not answer over %s (%s: %s); %sTUTTI_RANK, TUTTI_SIZE and TUTTI_BOOT",
	               w->language, what, why, srun);
}

static int receive(struct wire *w, char *to, size_t n, const char *what)
{
	while (n > 0) {
		struct pollfd p = { .fd = w->fd, .events = POLLIN };
		uint64_t now = tt_now();
		if (now >= w->doubt && now < w->end) {
			tt_log(tt_launch_level(w->rank, w->size), "joining waits for the launcher, which waits for "
			       "all %d processes to join (%s does not say which ones have)", w->size, w->language);
			w->doubt = w->end;
		}
		int ready = tt_hook_poll_files(&p, 1, w->doubt);
		if (ready == -EINTR)
			return ready;
		if (ready < 0)
			return broken(w, what, strerror(-ready));
		if (ready <= 0 && tt_now() >= w->end)
			return tt_fail(-ETIMEDOUT, "not all of the %d processes that the launcher has started called "
			               "tutti_join in time (%s waits for all of them, in %s)", w->size, w->language,
			               what);
		ssize_t got = ready > 0 ? read(w->fd, to, n) : 0;
		if (ready > 0 && got <= 0)
			return broken(w, what, got ? strerror(errno) : "the connection has ended");
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
			return broken(w, what, strerror(errno));
		done = done < 0 ? 0 : done;
		text += done;
		n -= (size_t)done;
	}
	return 0;
}

/* Is `key` in the answer? Copies its value. */
static bool find(const struct wire *w, const char *key, char *value, size_t size)
{
	const char ends[] = { w->between, 0 };
	size_t len = strlen(key);

	for (const char *at = w->answer; *at; at += strcspn(at, ends), at += *at == w->between)
		if (!strncmp(at, key, len) && at[len] == '=') {
			size_t n = strcspn(at + len + 1, ends);
			snprintf(value, size, "%.*s", (int)tt_min(n, size - 1), at + len + 1);
			return true;
		}
	return false;
}

static int check_answer(const struct wire *w, const char *what, bool must)
{
	char rc[16] = "";

	if (find(w, "rc", rc, sizeof rc) ? strcmp(rc, "0") != 0 : must)
		return broken(w, what, w->answer);
	return 0;
}

static int call(struct wire *w, const char *text, const char *what)
{
	char length[LENGTH + 1];
	int err;

	snprintf(length, sizeof length, "%6u", (unsigned)strlen(text) % 1000000);
	if ((err = say(w, length, what)) || (err = say(w, text, what)) || (err = receive(w, length, LENGTH, what)))
		return err;
	size_t n = strtoul(length, NULL, 10);
	if (n >= ANSWER)
		return broken(w, what, "an answer too long");
	if ((err = receive(w, w->answer, n, what)))
		return err;
	w->answer[n] = 0;
	return check_answer(w, what, true);
}

/* A line, and the line that answers. */
static int ask(struct wire *w, const char *text, const char *what)
{
	int err = say(w, text, what);

	for (size_t n = 0; !err; n++) {
		err = n == ANSWER ? broken(w, what, "no end of the line") : receive(w, w->answer + n, 1, what);
		if (!err && w->answer[n] == '\n') {
			w->answer[n] = 0;
			return check_answer(w, what, false);
		}
	}
	return err;
}

static int exchange_2(struct wire *w, const struct tt_settings *s, char blob[TT_LAUNCH_BLOB])
{
	const char *job = tt_setting(s, TT_PMI_JOB);
	char text[TT_LAUNCH_BLOB + 200];
	int err = ask(w, "cmd=init pmi_version=2 pmi_subversion=0\n", "init");

	snprintf(text, sizeof text, "cmd=fullinit;pmijobid=%.200s;pmirank=%d;threaded=FALSE;", job, w->rank);
	if (err || (err = call(w, text, "fullinit")))
		return err;
	if (w->rank == 0) {
		snprintf(text, sizeof text, "cmd=kvs-put;key=" KEY ";value=%s;", blob);
		err = call(w, text, "kvs-put");
		explicit_bzero(text, sizeof text);
	}
	if (!err)
		err = call(w, "cmd=kvs-fence;", "kvs-fence");
	if (!err && w->rank) {
		snprintf(text, sizeof text, "cmd=kvs-get;jobid=%.200s;srcid=-1;key=" KEY ";", job);
		err = call(w, text, "kvs-get");
		if (!err && !find(w, "value", blob, TT_LAUNCH_BLOB))
			err = broken(w, "kvs-get", "rank 0 has said nothing");
	}
	return err ? err : call(w, "cmd=finalize;", "finalize");
}

static void replace(char *text, char old, char new)
{
	while ((text = strchr(text, old)))
		*text = new;
}

static int exchange_1(struct wire *w, const struct tt_settings *s, char blob[TT_LAUNCH_BLOB])
{
	char text[TT_LAUNCH_BLOB + 400], space[256];
	int err = ask(w, "cmd=init pmi_version=1 pmi_subversion=1\n", "init");

	(void)s;
	if (err || (err = ask(w, "cmd=get_my_kvsname\n", "get_my_kvsname")))
		return err;
	if (!find(w, "kvsname", space, sizeof space))
		return broken(w, "get_my_kvsname", w->answer);
	if (w->rank == 0) {
		replace(blob, ' ', '|');
		snprintf(text, sizeof text, "cmd=put kvsname=%s key=" KEY " value=%s\n", space, blob);
		err = ask(w, text, "put");
		explicit_bzero(text, sizeof text);
	}
	if (!err)
		err = ask(w, "cmd=barrier_in\n", "barrier_in");
	if (!err && w->rank) {
		snprintf(text, sizeof text, "cmd=get kvsname=%s key=" KEY "\n", space);
		err = ask(w, text, "get");
		if (!err && !find(w, "value", blob, TT_LAUNCH_BLOB))
			err = broken(w, "get", "rank 0 has said nothing");
	}
	replace(blob, '|', ' ');
	return err ? err : ask(w, "cmd=finalize\n", "finalize");
}

/* A program that a rank starts inherits the variables, and often not the descriptor: the number may be a file's. */
static int check_channel(int fd)
{
	struct stat st;

	if (!fstat(fd, &st) && (S_ISSOCK(st.st_mode) || S_ISFIFO(st.st_mode)))
		return 0;
	return tt_fail(-EINVAL, "PMI_FD=%d is no socket of a launcher: a program that a rank starts gets its own job "
	               "by `tutti run`", fd);
}

static int exchange(const struct tt_settings *s, const struct tt_launch *b, char blob[TT_LAUNCH_BLOB], uint64_t timeout)
{
	bool two = tt_setting(s, TT_PMI_JOB) != NULL;
	struct wire w = { .language = two ? "PMI2" : "PMI-1", .between = two ? ';' : ' ', .rank = b->rank,
		          .size = b->size, .end = tt_now() + timeout };
	long fd = -1;
	int err = tt_setting_int(s, TT_PMI_FD, 0, 1 << 20, &fd);

	w.fd = (int)fd;
	w.doubt = tt_launch_doubt(tt_setting_time(s, TT_SILENCE), w.end);
	if (!err && !(err = check_channel(w.fd)))
		err = two ? exchange_2(&w, s, blob) : exchange_1(&w, s, blob);
	explicit_bzero(w.answer, sizeof w.answer);
	return err;
}

const struct tt_launcher tt_launcher_pmi2 = { .name = "pmi2", .once = true, .detect = detect_2, .place = place,
	                                      .exchange = exchange },
                         tt_launcher_pmi1 = { .name = "pmi1", .once = true, .detect = detect, .place = place,
	                                      .exchange = exchange };
