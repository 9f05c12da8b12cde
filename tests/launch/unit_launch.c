/* unit_launch.c - what launchers carry: exchanges over MUNGE, PMI2 and PMI-1, with a fake MUNGE and a fake launcher */
#include "launch/launcher.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/procs.h"
#include "transport/dial.h"
#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 8, LONG_MS = 20000, WAIT_MS = 4000 };
#define JOB "71.0"

/* ---- a MUNGE whose credentials are text. Linked with --wrap, as the calls below are ---- */

static _Atomic unsigned sealed_by; /* as credentials say */

static int encode(char **cred, void *ctx, const void *text, int len)
{
	(void)ctx;
	if (asprintf(cred, "MUNGE:%u:%.*s", atomic_load(&sealed_by), len, (const char *)text) < 0)
		return 1;
	for (char *at = *cred; *at; at++) /* a credential has no blanks */
		*at = *at == ' ' ? '_' : *at;
	return 0;
}

static int decode(const char *cred, void *ctx, void **text, int *len, uid_t *uid, gid_t *gid)
{
	unsigned by;
	int at = 0;

	(void)ctx;
	if (sscanf(cred, "MUNGE:%u:%n", &by, &at) != 1 || !at)
		return 1;
	*uid = (uid_t)by;
	*gid = getegid();
	*text = strdup(cred + at);
	*len = (int)strlen(*text);
	for (char *c = *text; *c; c++)
		*c = *c == '_' ? ' ' : *c;
	return 0;
}

static const char *error_text(int err) { return err ? "no credential" : "fine"; }
static void *create(void) { return malloc(1); }
static int set(void *ctx, int option, ...) { return (void)ctx, (void)option, 0; }

/* ---- a libpmix whose launcher never answers ---- */

static _Noreturn void hang(void)
{
	for (;;)
		pause();
}
static const char *name_status(int status) { return (void)status, "a status"; }

void *__real_tt_library_load(const char *, int, const struct tt_symbol *, size_t, const char **);
void *__wrap_tt_library_load(const char *file, int flags, const struct tt_symbol *wanted, size_t n, const char **lacks);
void *__wrap_tt_library_load(const char *file, int flags, const struct tt_symbol *wanted, size_t n, const char **lacks)
{
	static void *library;
	void *const functions[] = { (void *)encode, (void *)decode, (void *)error_text, (void *)create, (void *)free,
		                    (void *)set }; /* in the order of munge.c */
	void *const of_pmix[] = { (void *)hang, (void *)hang, (void *)hang, (void *)hang, (void *)hang, (void *)hang,
		                  (void *)name_status }; /* in the order of pmix.c */

	if (!strcmp(file, "libpmix.so.2")) {
		for (size_t i = 0; i < n; i++)
			memcpy(wanted[i].to, &of_pmix[i], sizeof of_pmix[i]);
		return &library;
	}
	if (strcmp(file, "libmunge.so.2") != 0)
		return __real_tt_library_load(file, flags, wanted, n, lacks);
	for (size_t i = 0; i < n; i++)
		memcpy(wanted[i].to, &functions[i], sizeof functions[i]);
	return &library;
}

/* ---- lines of the log ---- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char logged[4000];

void __wrap_tt_log(enum tt_level level, const char *fmt, ...) TT_FORMAT(2, 3);
void __wrap_tt_log(enum tt_level level, const char *fmt, ...)
{
	size_t used;
	va_list args;

	if (level > TT_WARN)
		return;
	pthread_mutex_lock(&log_lock);
	used = strlen(logged);
	va_start(args, fmt);
	vsnprintf(logged + used, sizeof logged - used - 1, fmt, args);
	va_end(args);
	strcat(logged, "\n");
	pthread_mutex_unlock(&log_lock);
}

static int lines_with(const char *words)
{
	int n = 0;

	pthread_mutex_lock(&log_lock);
	for (const char *at = logged; (at = strstr(at, words)); at++)
		n++;
	pthread_mutex_unlock(&log_lock);
	return n;
}

/* ---- a network and a name server that come to life after some calls ---- */

static _Atomic int unreachable, unnamed; /* calls that fail */
static _Atomic bool hangs; /* the name server; and time goes 100 times as fast for those that poll */

int __real_connect(int fd, const struct sockaddr *, socklen_t);
int __wrap_connect(int fd, const struct sockaddr *to, socklen_t size);
int __wrap_connect(int fd, const struct sockaddr *to, socklen_t size)
{
	if (atomic_fetch_sub(&unreachable, 1) <= 0)
		return __real_connect(fd, to, size);
	errno = EHOSTUNREACH;
	return -1;
}

int __real_getaddrinfo(const char *, const char *, const struct addrinfo *, struct addrinfo **);
int __wrap_getaddrinfo(const char *, const char *, const struct addrinfo *, struct addrinfo **);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **out)
{
	if (host && !strcmp(host, "nobody"))
		return EAI_NONAME;
	while (host && !strcmp(host, "node-1") && !(hints->ai_flags & AI_NUMERICHOST)) {
		if (!atomic_load(&hangs))
			return __real_getaddrinfo("127.0.0.1", port, hints, out);
		sleep_ms(1);
	}
	if (host && !strcmp(host, "node-0") && !(hints->ai_flags & AI_NUMERICHOST))
		return atomic_fetch_sub(&unnamed, 1) > 0 ? EAI_AGAIN
		                                         : __real_getaddrinfo("127.0.0.1", port, hints, out);
	return __real_getaddrinfo(host, port, hints, out);
}

static _Atomic uint64_t gained;
uint64_t __real_tt_now(void);
uint64_t __wrap_tt_now(void);
uint64_t __wrap_tt_now(void) { return __real_tt_now() + atomic_load(&gained); }
int __real_poll(struct pollfd *, nfds_t, int);
int __wrap_poll(struct pollfd *, nfds_t, int);
int __wrap_poll(struct pollfd *p, nfds_t n, int ms)
{
	int ready = __real_poll(p, n, atomic_load(&hangs) ? ms / 100 : ms);

	if (atomic_load(&hangs))
		atomic_fetch_add(&gained, (uint64_t)ms * TT_MS);
	return ready;
}

/* ---- ranks as threads ---- */

struct rank {
	struct tt_launch b;
	struct tt_settings s;
	const struct tt_launcher *by; /* NULL: MUNGE */
	struct tt_meeting m;
	char blob[TT_LAUNCH_BLOB], why[512];
	int err;
	struct tt_task *thread;
};

static void run_rank(void *arg)
{
	struct rank *r = arg;

	if (r->m.rank == 0)
		strcpy(r->blob, "127.0.0.1:4000 secret");
	r->err = r->by ? r->by->exchange(&r->s, &r->b, r->blob, r->m.timeout) : tt_munge_exchange(&r->m, r->blob);
	if (r->err)
		snprintf(r->why, sizeof r->why, "%s", tt_why());
}

static void start(struct rank *r) { CU_ASSERT_FATAL(!tt_spawn(run_rank, r, &r->thread)); }

static void finish(struct rank *all, int from, int to)
{
	for (int i = from; i < to; i++)
		tt_join(all[i].thread);
}

static bool is_free(unsigned port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	bool good = !bind(fd, (struct sockaddr *)&a, sizeof a);

	close(fd);
	return good;
}

static void lay_out(struct rank *all, int n, int timeout_ms)
{
	static unsigned next;
	unsigned port;

	do
		port = 10000 + ((unsigned)getpid() * 80 + next++ * 4) % 20000;
	while (!is_free(port) || !is_free(port + 1) || !is_free(port + 2) || !is_free(port + 3));
	atomic_store(&sealed_by, geteuid());
	*logged = 0;
	for (int i = 0; i < n; i++)
		all[i] = (struct rank){ .b = { .rank = i, .size = n },
			                .m = { .rank = i, .size = n, .host = "127.0.0.1", .job = JOB, .port = port,
			                       .timeout = (uint64_t)timeout_ms * TT_MS, .silence = 100 * TT_MS } };
}

static int call_host(const struct rank *all)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)all->m.port),
		                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	uint64_t end = tt_now() + TT_MS * LONG_MS;

	while (connect(fd, (struct sockaddr *)&a, sizeof a)) {
		CU_ASSERT_FATAL(tt_now() < end);
		close(fd);
		sleep_ms(5);
		fd = socket(AF_INET, SOCK_STREAM, 0);
	}
	return fd;
}

/* As rank 0 hangs up: true. */
static bool is_dismissed(int fd)
{
	struct timeval patience = { .tv_sec = LONG_MS / 1000 };
	char byte;
	ssize_t n;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	while ((n = recv(fd, &byte, 1, 0)) > 0)
		;
	return !n || errno == ECONNRESET;
}

static void ask_as_stranger(const struct rank *all, const char *question)
{
	int fd = call_host(all);

	CU_ASSERT(send(fd, question, strlen(question), MSG_NOSIGNAL) == (ssize_t)strlen(question));
	CU_ASSERT(is_dismissed(fd));
	close(fd);
}

static void check_all_know(const struct rank *all, int n)
{
	for (int i = 0; i < n; i++)
		WANT(!all[i].err && !strcmp(all[i].blob, "127.0.0.1:4000 secret"), "rank %d: %d %s", i, all[i].err,
		     all[i].why);
}

/* ---- MUNGE ---- */

static void test_blob_reaches_all(void)
{
	struct rank all[RANKS];

	lay_out(all, RANKS, LONG_MS);
	for (int i = RANKS; i-- > 0;) /* those who ask come first, and ask again */
		start(&all[i]);
	finish(all, 0, RANKS);
	check_all_know(all, RANKS);
}

static void test_unreachable_for_a_moment(void)
{
	struct rank all[2];

	lay_out(all, 2, LONG_MS);
	start(&all[0]);
	atomic_store(&unreachable, 3);
	all[1].m.host = "node-0";
	atomic_store(&unnamed, 3);
	start(&all[1]);
	finish(all, 0, 2);
	check_all_know(all, 2);
	CU_ASSERT(unreachable < 0 && unnamed < 0);
	atomic_store(&unreachable, 0);

	lay_out(all, 2, LONG_MS);
	all[1].m.host = "nobody"; /* is final: there is no such host */
	uint64_t begun = tt_now();
	run_rank(&all[1]);
	WANT(all[1].err && tt_now() - begun < LONG_MS * TT_MS / 2, "%d %s", all[1].err, all[1].why);
}

static void test_name_server_hangs(void)
{
	struct addrinfo *found;

	atomic_store(&hangs, true);
	CU_ASSERT_EQUAL(tt_resolve("node-1:4000", 0, &found), -EAGAIN);
	WANT(strstr(tt_why(), "no name server has answered for 'node-1:4000' within 10 s"), "%s", tt_why());
	CU_ASSERT_EQUAL(tt_resolve("127.0.0.1:4000", 0, &found), 0);
	freeaddrinfo(found);
	atomic_store(&hangs, false);
	atomic_store(&gained, 0); /* tt_park() has the real time */
	CU_ASSERT_EQUAL(tt_resolve("node-1:4000", 0, &found), 0);
	freeaddrinfo(found);
}

static void test_rank_comes_twice(void)
{
	struct rank all[3];

	lay_out(all, 3, LONG_MS);
	all[2].m.rank = 1;
	for (int i = 0; i < 3; i++)
		start(&all[i]);
	finish(all, 0, 3);
	WANT(all[0].err == -EEXIST && strstr(all[0].why, "rank 1 of"), "%d %s", all[0].err, all[0].why);
}

/* A question that somebody else has passed on is that of a process which asks once more: the connection, not the rank,
 * is there twice. */
static void test_passed_on(void)
{
	struct rank all[3];
	char text[100];

	lay_out(all, 3, LONG_MS);
	start(&all[0]);
	snprintf(text, sizeof text, "MUNGE:%u:" JOB "_2_a\n", geteuid());
	int first = call_host(all);
	CU_ASSERT(send(first, text, strlen(text), MSG_NOSIGNAL) > 0);
	int second = call_host(all);
	CU_ASSERT(send(second, text, strlen(text), MSG_NOSIGNAL) > 0 && is_dismissed(first));
	start(&all[1]);
	finish(all, 0, 2);
	check_all_know(all, 2);
	close(first);
	close(second);
}

/* As where a clock is wrong, or munged has another key: both sides say so. */
static void test_turned_away(void)
{
	struct rank all[2];

	lay_out(all, 2, 500);
	atomic_store(&sealed_by, geteuid() + 1);
	start(&all[0]);
	start(&all[1]);
	finish(all, 0, 2);
	atomic_store(&sealed_by, geteuid());
	WANT(all[0].err == -ETIMEDOUT && strstr(all[0].why, "rank 1 of 2 of"), "%d %s", all[0].err, all[0].why);
	WANT(all[1].err == -EACCES && strstr(all[1].why, "turns this rank away: a credential of MUNGE is of user") &&
	     strstr(all[1].why, "the right time?"), "%d %s", all[1].err, all[1].why);
	WANT(lines_with("a stranger at the rendezvous, 127.0.0.1:") == 1, "%s", logged);
}

static void test_strangers(void)
{
	struct rank all[2];

	lay_out(all, 2, LONG_MS);
	start(&all[0]);
	ask_as_stranger(all, "GET / HTTP/1.0\r\n\r\n");
	ask_as_stranger(all, "MUNGE:4000000000:" JOB "_1\n"); /* another user's */
	char text[100];
	snprintf(text, sizeof text, "MUNGE:%u:70.0_1_a\n", geteuid()); /* another step's */
	ask_as_stranger(all, text);
	snprintf(text, sizeof text, "MUNGE:%u:" JOB "_2_a\n", geteuid()); /* nobody's */
	ask_as_stranger(all, text);
	start(&all[1]);
	finish(all, 0, 2);
	check_all_know(all, 2);
	WANT(lines_with("a stranger at the rendezvous") == 1 && lines_with("3 more strangers") == 1, "%s", logged);
}

static void test_idle_strangers(void)
{
	struct rank all[2];
	int idle[80]; /* more than there are places */

	lay_out(all, 2, LONG_MS);
	start(&all[0]);
	for (int i = 0; i < 80; i++)
		idle[i] = call_host(all);
	start(&all[1]);
	finish(all, 0, 2);
	check_all_know(all, 2);
	for (int i = 0; i < 80; i++)
		close(idle[i]);
}

/* Rank 0 says so, to those that it has heard, too: it does not wait for what cannot come. */
static void test_files_run_out(void)
{
	const struct rlimit few = { 16, 16 };
	struct rank all[2 * RANKS];
	int fd[2 * RANKS], status;
	char text[200];

	lay_out(all, 2 * RANKS, LONG_MS);
	pid_t pid = fork_child();
	if (!pid) {
		for (int i = 3; i < 100; i++)
			close(i);
		setrlimit(RLIMIT_NOFILE, &few);
		run_rank(&all[0]);
		printf("%s", strstr(all[0].why, "ulimit -n, to 2") ? "" : all[0].why);
		fflush(stdout);
		_exit(all[0].err != -EMFILE || !strstr(all[0].why, "ulimit -n, to 2"));
	}
	for (int i = 1; i < 2 * RANKS; i++)
		fd[i] = call_host(all);
	for (int i = 1; i < 2 * RANKS; i++) { /* once rank 0 has heard too many it hangs up */
		snprintf(text, sizeof text, "MUNGE:%u:" JOB "_%d_a\n", geteuid(), i);
		CU_ASSERT(send(fd[i], text, strlen(text), MSG_NOSIGNAL) > 0);
	}
	CU_ASSERT(waitpid(pid, &status, 0) == pid && !status);
	size_t n = 0;
	for (ssize_t got; n + 1 < sizeof text && (got = recv(fd[1], text + n, sizeof text - 1 - n, 0)) > 0;
	     n += (size_t)got)
		;
	text[n] = 0;
	WANT(strstr(text, "!_rank_0_may_have_16_open_files"), "%s", text);
	for (int i = 1; i < 2 * RANKS; i++)
		close(fd[i]);
}

/* ---- PMI2 ---- */

struct launcher { /* the other end of each rank's descriptor */
	int fd[RANKS], n;
	bool lines;         /* PMI-1 */
	uint64_t noise;     /* a seed: answers with errors; 0: right ones */
	struct tt_task *thread;
};

static bool read_all(int fd, char *to, size_t n)
{
	for (ssize_t got; n > 0; to += got, n -= (size_t)got)
		if ((got = read(fd, to, n)) <= 0)
			return false;
	return true;
}

static bool read_command(int fd, char text[2000])
{
	char length[7] = "";
	size_t n;

	if (!read_all(fd, length, 6) || (n = strtoul(length, NULL, 10)) >= 2000 || !read_all(fd, text, n))
		return false;
	text[n] = 0;
	return true;
}

static void say(int fd, const char *text, struct tt_random *noise)
{
	char bytes[5000];
	size_t n = (size_t)snprintf(bytes, sizeof bytes, "%s", text);

	for (uint64_t i = noise ? 1 + tt_random_below(noise, 3) : 0; i > 0; i--)
		switch (tt_random_below(noise, 4)) {
		case 0:
			bytes[tt_random_below(noise, n)] = (char)tt_random_below(noise, 256);
			break;
		case 1:
			n = 1 + tt_random_below(noise, n);
			break;
		case 2:
			memset(bytes + n, ';', 200);
			n += tt_random_below(noise, 200);
			break;
		default:
			memcpy(bytes, "999999", 6);
		}
	send(fd, bytes, n, MSG_NOSIGNAL);
}

static void serve_one(int fd, struct tt_random *noise, char value[1100])
{
	char text[2000], answer[3000], length[16];
	uint64_t noisy = noise ? tt_random_below(noise, 4) : UINT64_MAX; /* the answer after which it hangs up */

	for (const char *key; read_command(fd, text); noisy--) {
		const char *name = text + strlen("cmd="), *end = strchr(name, ';');
		if ((key = strstr(text, "value=")))
			snprintf(value, 1100, "%.*s", (int)strcspn(key + 6, ";"), key + 6);
		int n = snprintf(answer + 6, sizeof answer - 6, "cmd=%.*s-response;rc=0;found=TRUE;value=%s;",
		                 (int)(end - name), name, value);
		snprintf(length, sizeof length, "%6d", n);
		memcpy(answer, length, 6);
		say(fd, answer, noisy ? NULL : noise);
		if (strstr(text, "finalize") || !noisy)
			break;
	}
}

static bool read_line(int fd, char *line, size_t size)
{
	size_t n = 0;

	while (n + 1 < size && read(fd, line + n, 1) == 1 && line[n] != '\n')
		n++;
	line[n] = 0;
	return n > 0;
}

static void serve_lines(int fd, struct tt_random *noise, char value[1100])
{
	char line[2000], answer[3000];
	uint64_t noisy = noise ? tt_random_below(noise, 4) : UINT64_MAX;

	for (; read_line(fd, line, sizeof line); noisy--) {
		sscanf(line, "cmd=put kvsname=k_0 key=%*s value=%1000s", value);
		if (strstr(line, "get_my_kvsname"))
			strcpy(answer, "cmd=my_kvsname kvsname=k_0\n");
		else
			snprintf(answer, sizeof answer, "cmd=answer rc=0 value=%s msg=fine\n", value);
		say(fd, answer, noisy ? NULL : noise);
		if (strstr(line, "finalize") || !noisy)
			break;
	}
}

/* Rank 0 is served first, up to its fence and beyond: the others' answers come when it has put its blob. */
static void run_launcher(void *arg)
{
	struct launcher *l = arg;
	char line[200], value[1100] = "";
	struct tt_random r;

	tt_random_seed(&r, l->noise);
	for (int i = 0; i < l->n; i++) {
		read_line(l->fd[i], line, sizeof line);
		const char *hello = "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n";
		send(l->fd[i], hello, strlen(hello), MSG_NOSIGNAL);
		(l->lines ? serve_lines : serve_one)(l->fd[i], l->noise ? &r : NULL, value);
		close(l->fd[i]);
	}
}

static void lay_out_pmi2(struct rank *all, struct launcher *l, int n, int timeout_ms)
{
	char text[20];
	int pair[2];

	*l = (struct launcher){ .n = n };
	lay_out(all, n, timeout_ms);
	for (int i = 0; i < n; i++) {
		CU_ASSERT_FATAL(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
		l->fd[i] = pair[0];
		all[i].by = &tt_launcher_pmi2;
		snprintf(text, sizeof text, "%d", pair[1]);
		tt_settings_set(&all[i].s, TT_PMI_FD, text, "test");
		tt_settings_set(&all[i].s, TT_PMI_JOB, JOB, "test");
		tt_settings_set(&all[i].s, TT_SILENCE, "100", "test");
	}
}

static void lay_out_pmi1(struct rank *all, struct launcher *l, int n, int timeout_ms)
{
	lay_out_pmi2(all, l, n, timeout_ms);
	l->lines = true;
	for (int i = 0; i < n; i++) {
		all[i].by = &tt_launcher_pmi1;
		tt_settings_set(&all[i].s, TT_PMI_JOB, NULL, "test");
	}
}

static void hang_up(struct rank *r)
{
	close(atoi(tt_setting(&r->s, TT_PMI_FD)));
	tt_settings_free(&r->s);
}

static void carry(void (*how)(struct rank *, struct launcher *, int, int))
{
	struct rank all[3];
	struct launcher l;

	how(all, &l, 3, LONG_MS);
	CU_ASSERT_FATAL(!tt_spawn(run_launcher, &l, &l.thread));
	for (int i = 0; i < 3; i++)
		start(&all[i]);
	finish(all, 0, 3);
	tt_join(l.thread);
	check_all_know(all, 3);
	for (int i = 0; i < 3; i++)
		hang_up(&all[i]);
}

static void test_pmi2_carries_it(void) { carry(lay_out_pmi2); }
static void test_pmi1_carries_it(void) { carry(lay_out_pmi1); }

/* All three at once: each takes its time. */
static void test_who_is_awaited(void)
{
	struct rank three[RANKS], zero[2], pmi2[2];
	struct launcher l;

	lay_out(three, RANKS, WAIT_MS);
	lay_out(zero, 2, WAIT_MS);
	lay_out_pmi2(pmi2, &l, 2, WAIT_MS);
	for (int i = 0; i < RANKS; i++)
		if (i != 3)
			start(&three[i]);
	start(&zero[1]);
	start(&pmi2[1]);
	finish(three, 0, 3);
	finish(three, 4, RANKS);
	finish(zero, 1, 2);
	finish(pmi2, 1, 2);
	for (int i = 0; i < RANKS; i++)
		if (i != 3 && !strstr(three[i].blob, "rank 3 of 8")) /* the others are told */
			WANT(strstr(three[i].why, "rank 3 of 8"), "rank %d: %s", i, three[i].why);
	WANT(lines_with(" of 8 of Slurm's step") == 1, "%s", logged); /* others may have been missing, too */
	WANT(strstr(zero[1].why, "rank 0 of Slurm's step 71.0 was not found") && strstr(zero[1].why, "refused"), "%s",
	     zero[1].why);
	WANT(lines_with("joining waits for rank 0 of Slurm's step") > 0, "%s", logged);
	WANT(pmi2[1].err == -ETIMEDOUT && strstr(pmi2[1].why, "not all of the 2 processes"), "%s", pmi2[1].why);
	WANT(lines_with("joining waits for the launcher, which waits for all 2 processes") == 1, "%s", logged);
	for (int i = 0; i < 2; i++) {
		close(l.fd[i]);
		hang_up(&pmi2[i]);
	}
}

/* Whatever a launcher answers: an error with a sentence, or a blob with an end; and not for ever. */
static void listen_to_noise(void (*how)(struct rank *, struct launcher *, int, int))
{
	int failed = 0, seeds = TT_ASAN ? 100 : 300;

	for (int seed = 1; seed <= seeds; seed++) {
		struct rank r[2];
		struct launcher l;
		how(r, &l, 2, LONG_MS);
		close(l.fd[0]);
		l = (struct launcher){ .fd = { l.fd[1] }, .n = 1, .lines = l.lines, .noise = (uint64_t)seed };
		CU_ASSERT_FATAL(!tt_spawn(run_launcher, &l, &l.thread));
		start(&r[1]);
		finish(r, 1, 2);
		hang_up(&r[0]);
		hang_up(&r[1]);
		tt_join(l.thread);
		CU_ASSERT(memchr(r[1].blob, 0, sizeof r[1].blob) != NULL);
		CU_ASSERT(!r[1].err || *r[1].why);
		failed += r[1].err != 0;
	}
	WANT(failed > seeds / 2 && failed < seeds, "%d of %d", failed, seeds);
}

static void test_pmi2_noise(void) { listen_to_noise(lay_out_pmi2); }
static void test_pmi1_noise(void) { listen_to_noise(lay_out_pmi1); }

/* In a child: a thread that hangs is left behind. The seconds of alarm() are for a call that never returns. */
static void test_pmix_hangs(void)
{
	int status = -1;
	pid_t pid = fork_child();

	if (pid == 0) {
		struct tt_launch b = { .size = 0 };
		struct tt_settings s;
		char why[TT_LAUNCH_WHY];
		alarm(60);
		setenv("TUTTI_TIMEOUT", "200", 1);
		setenv("PMIX_RANK", "0", 1);
		setenv("PMIX_NAMESPACE", "job", 1);
		if (tt_settings_load(&s) || !tt_launcher_pmix.detect(&s, why))
			_exit(strstr(why, "this build is without PMIx") ? 77 : 1);
		if (tt_launcher_pmix.place(&s, &b) != -ETIMEDOUT ||
		    !strstr(tt_why(), "the launcher has not answered over PMIx within 200 ms"))
			_exit(2);
		tt_launcher_pmix.end();
		_exit(tt_launcher_pmix.place(&s, &b) == -EIO && strstr(tt_why(), "hangs") ? 0 : 3);
	}
	WANT(waitpid(pid, &status, 0) == pid, "the child is not there");
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		printf("built without PMIx: a launcher that never answers over PMIx is not tested\n");
	else
		WANT(status == 0, "status %x", (unsigned)status);
}

static CU_TestInfo munge_tests[] = {
	{ "rank 0's blob reaches all ranks", test_blob_reaches_all },
	{ "rank 0 cannot be reached for a moment", test_unreachable_for_a_moment },
	{ "a name server that hangs", test_name_server_hangs },
	{ "a rank that comes twice is named", test_rank_comes_twice },
	{ "strangers are turned away", test_strangers },
	{ "a rank that MUNGE does not know", test_turned_away },
	{ "a question that is passed on", test_passed_on },
	{ "idle strangers take no rank's place", test_idle_strangers },
	{ "rank 0 has too few files", test_files_run_out },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo pmi2_tests[] = {
	{ "who is awaited, here and under MUNGE", test_who_is_awaited },
	{ "rank 0's blob reaches all ranks", test_pmi2_carries_it },
	{ "a launcher that answers nonsense", test_pmi2_noise },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo pmix_tests[] = {
	{ "a launcher that never answers", test_pmix_hangs },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo pmi1_tests[] = {
	{ "rank 0's blob reaches all ranks over PMI-1", test_pmi1_carries_it },
	{ "a launcher of PMI-1 that answers nonsense", test_pmi1_noise },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = {
	{ "munge", NULL, NULL, NULL, NULL, munge_tests },
	{ "pmi2", NULL, NULL, NULL, NULL, pmi2_tests },
	{ "pmix", NULL, NULL, NULL, NULL, pmix_tests },
	{ "pmi1", NULL, NULL, NULL, NULL, pmi1_tests },
	CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
