/* boot.c - joining: every way of finding the others, and every kind of wrong input. Each rank is a process of its own
 * with the environment that its test gives it and nothing of ours; what it met it writes into memory shared with its
 * parent. */
#include "engine/engine.h"
#include "job/job.h"
#include "launch/launch.h"
#include "member/member.h"
#include "tests/harness/amount.h"
#include "tests/harness/cunit_main.h"
#include "tests/harness/procs.h"
#include "tests/harness/ranks.h"
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { TRIES_MAX = 4, HANG_MS = 20000 * SLOW };

struct
try {                        /* one process that joins, or tries to */
	const char *env[12]; /* "NAME=VALUE" */
	const tutti_config *config;
	int late_ms, stay_ms; /* comes so much later, stays so much longer */
	int linger_ms;        /* its joining thread has no processor for so long once it has the table */
	int not_before;       /* rather than late_ms: only when so many others have joined */
	int after_refused;    /* only when so many others have been refused */
	unsigned user;         /* not 0: it runs as that user */
	int no_netlink;        /* the kernel answers with this error; 0: netlink is there */
	bool no_proc;          /* /proc is empty; for root */
	int denied, denied_with; /* a system call that a filter answers with this error; 0: none */
	bool closed;           /* its standard files are, so that it says nothing */
	int files, files_most; /* limits on open files, soft and hard; 0: as they are */
};

struct outcome {
	int err, rank, size, local_rank, local_size;
	uint64_t ms; /* that joining took */
	uint64_t files; /* the soft limit afterwards */
	char why[600], addr[96];
	char wires[TRIES_MAX][8]; /* by which it used the others */
	bool summed;    /* an all-reduce with the others came out right */
	bool low;       /* a descriptor of the library's had the number of a standard file */
	char log[4096]; /* what it wrote on stderr */
};

static struct board {
	atomic_int joined, refused;
	struct outcome of[TRIES_MAX];
} * board;
static char where[] = "/tmp/tutti-boot-XXXXXX"; /* config files lie here */

extern char **environ;

/* A string that lives as long as a test. */
static const char *text(const char *fmt, ...) TT_FORMAT(1, 2);
static const char *text(const char *fmt, ...)
{
	static char ring[64][200];
	static unsigned next;
	char *to = ring[next++ % TT_COUNT(ring)];
	va_list args;

	va_start(args, fmt);
	vsnprintf(to, sizeof ring[0], fmt, args);
	va_end(args);
	return to;
}

/* ---- a child ---- */

static int linger_ms;
int __real_tt_rendezvous_meet(struct tt_job *, const struct tt_launch *);
int __wrap_tt_rendezvous_meet(struct tt_job *, const struct tt_launch *);

int __wrap_tt_rendezvous_meet(struct tt_job *job, const struct tt_launch *b)
{
	int err = __real_tt_rendezvous_meet(job, b);

	sleep_ms(linger_ms);
	return err;
}

static bool sums_up(tutti *job)
{
	float x = (float)tutti_rank(job) + 1, n = (float)tutti_size(job);

	return tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL) == 0 && x == n * (n + 1) / 2;
}

static void note_wires(struct tt_job *job, struct outcome *o)
{
	tt_lock(job);
	for (int i = 0; i < job->size; i++) {
		const struct tt_link *l = tt_member(job, i)->link;
		if (l && l->used)
			snprintf(o->wires[i], sizeof o->wires[i], "%s", l->peer->net->transport->name);
	}
	tt_unlock(job);
}

static void use_job(tutti *job, struct outcome *o)
{
	o->rank = tutti_rank(job);
	o->size = tutti_size(job);
	o->local_rank = tutti_local_rank(job);
	o->local_size = tutti_local_size(job);
	tt_address_find(tt_member(job->job, o->rank)->addr, "tcp", o->addr);
	board->joined++;
	o->summed = sums_up(job) && !tutti_barrier(job, NULL); /* of up to three each to each */
	note_wires(job->job, o);
	o->summed = o->summed && !tutti_barrier(job, NULL); /* before anybody leaves */
	if (!o->summed)
		strcpy(o->why, tutti_why());
}

/* As a container's filter of system calls may do. */
static void deny_netlink(int err)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)err),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { TT_COUNT(code), code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		abort();
}

static void deny(int call, int err)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)err),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { TT_COUNT(code), code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		abort();
}

static bool any_standard_file(void)
{
	bool any = false;

	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		any |= fcntl(fd, F_GETFD) >= 0;
	return any;
}

static bool hide_proc(void) /* a container's root may not */
{
	return !unshare(CLONE_NEWNS) && !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
	       !mount("none", "/proc", "tmpfs", 0, NULL);
}

static bool can_hide_proc(void)
{
	int status = 1;
	pid_t pid = fork();

	if (pid == 0)
		_exit(!hide_proc());
	return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static void become_user(unsigned user)
{
	if (setresgid(user, user, user) || setresuid(user, user, user))
		abort();
	prctl(PR_SET_DUMPABLE, 1); /* for the leak sanitizer */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void run_child(const struct try *t, struct outcome *o)
{
	struct rlimit files;
	uint64_t start;
	tutti *job;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(0);
	for (int i = 0; t->env[i]; i++)
		putenv((char *)(uintptr_t)t->env[i]);
	if (t->no_proc && !hide_proc())
		abort();
	if (t->no_netlink)
		deny_netlink(t->no_netlink);
	if (t->denied)
		deny(t->denied, t->denied_with);
	if (t->user)
		become_user(t->user);
	linger_ms = t->linger_ms;
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = t->files ? (rlim_t)t->files : files.rlim_cur;
	files.rlim_max = t->files_most ? (rlim_t)t->files_most : files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	sleep_ms(t->late_ms);
	for (int i = 0; (board->joined < t->not_before || board->refused < t->after_refused) && i < HANG_MS; i++)
		sleep_ms(1);
	for (int fd = 0; t->closed && fd <= STDERR_FILENO; fd++)
		close(fd);
	start = tt_now();
	o->err = tutti_join(t->config, &job);
	o->ms = (tt_now() - start) / TT_MS;
	o->files = getrlimit(RLIMIT_NOFILE, &files) ? 0 : files.rlim_cur;
	if (o->err) {
		strcpy(o->why, tutti_why());
		board->refused++;
	} else {
		use_job(job, o);
		o->low = t->closed && any_standard_file();
		sleep_ms(t->stay_ms);
		tutti_leave(job);
	}
	exit(0); /* not _exit: leaks are looked for now */
}

/* ---- the parent ---- */

static pid_t start_try(const struct try *t, struct outcome *o, int log)
{
	pid_t pid = fork_child();

	if (pid == 0) {
		dup2(log, STDERR_FILENO);
		run_child(t, o);
	}
	return pid;
}

static void end_try(int number, pid_t pid, struct outcome *o, int log)
{
	int status, ms = 0;
	pid_t got;

	while ((got = waitpid(pid, &status, WNOHANG)) == 0 && ms++ < HANG_MS)
		sleep_ms(1);
	if (!got) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	ssize_t n = pread(log, o->log, sizeof o->log - 1, 0);
	o->log[n > 0 ? n : 0] = 0;
	close(log);
	WANT(got == pid && status == 0, "process %d %s, status 0x%x; it wrote: %s", number, got ? "ended" : "hung",
	     status, o->log);
}

/* All of them, until the last has ended: board->of[] tells what became of each. */
static void run(const struct try *tries, int n)
{
	pid_t pid[TRIES_MAX];
	int log[TRIES_MAX];

	memset(board, 0, sizeof *board);
	for (int i = 0; i < n; i++) {
		log[i] = memfd_create("stderr", MFD_CLOEXEC);
		pid[i] = start_try(&tries[i], &board->of[i], log[i]);
	}
	for (int i = 0; i < n; i++)
		end_try(i, pid[i], &board->of[i], log[i]);
}

/* They have joined one job of all of them, the i-th as rank i. */
static void look_joined(int line, int n)
{
	for (int i = 0; i < n; i++) {
		const struct outcome *o = &board->of[i];
		WANT(o->err == 0 && o->summed, "from line %d: process %d of %d: %d: %s; it wrote: %s", line, i, n,
		     o->err, o->why, o->log);
		if (!o->err)
			WANT(o->rank == i && o->size == n, "from line %d: process %d is rank %d of %d", line, i,
			     o->rank, o->size);
		if (!o->err)
			WANT(o->local_rank == i && o->local_size == n,
			     "from line %d: process %d is local rank %d of %d", line, i, o->local_rank, o->local_size);
	}
}

#define JOINED(tries) (run(tries, (int)TT_COUNT(tries)), look_joined(__LINE__, (int)TT_COUNT(tries)))

/* One sentence on one line that holds all of these words, which bars separate. */
static void look_refused(int line, const struct outcome *o, int err, const char *words)
{
	char copy[400], *at = copy, *word;
	bool good = o->err == err && *o->why && !strchr(o->why, '\n') && strlen(o->why) < 400;

	snprintf(copy, sizeof copy, "%s", words);
	while ((word = strsep(&at, "|")))
		good = good && strstr(o->why, word);
	WANT(good, "from line %d: %d instead of %d: \"%s\" should hold %s", line, o->err, err, o->why, words);
	if (name_each_test && good)
		printf("   %s\n", o->why);
}

static void refuse_one(int line, struct try t, int err, const char *words)
{
	run(&t, 1);
	look_refused(line, &board->of[0], err, words);
}

#define REFUSED(err, words, ...) refuse_one(__LINE__, (struct try){ .env = { __VA_ARGS__ } }, err, words)

static const char *boot_at(int port) { return text("TUTTI_BOOT=127.0.0.1:%d", port); }
static const char *file_at(const char *name) { return text("%s/%s", where, name); }

#define SECRET "TUTTI_SECRET=0123456789abcdef0123"
#define QUICK "TUTTI_TIMEOUT=600"

static const char *config_file(const char *name, const char *content)
{
	const char *path = file_at(name);
	FILE *f = fopen(path, "w");

	if (!f)
		return path;
	fchmod(fileno(f), 0600);
	fputs(content, f);
	fclose(f);
	return path;
}

/* Somebody else's socket, as it would stand in our way. */
static int occupy(int *port)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
		                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		                 .sin_port = htons((uint16_t)*port) };
	socklen_t len = sizeof a;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (bind(fd, (struct sockaddr *)&a, len) || listen(fd, 5) || getsockname(fd, (struct sockaddr *)&a, &len)) {
		close(fd);
		return -1;
	}
	*port = ntohs(a.sin_port);
	return fd;
}

static int port_of(const char *addr) { return strrchr(addr, ':') ? atoi(strrchr(addr, ':') + 1) : 0; }

/* ---- ways of joining ---- */

static void test_alone(void)
{
	JOINED(((struct try[]){ { .late_ms = 0 } }));
	JOINED(((struct try[]){
		{ .env = { "TUTTI_RANK=0", "TUTTI_SIZE=1" } } })); /* a launcher of one needs no meeting point */
	JOINED(((struct try[]){ { .env = { "TUTTI_RANK=", "TUTTI_SIZE=" } } })); /* set to nothing is not set */
}

static void test_order(void)
{
	static const int late[][3] = { { 0, 0, 0 }, { 500, 0, 100 }, { 0, 300, 150 }, { 200, 100, 0 } };

	for (size_t k = 0; k < TT_COUNT(late); k++) {
		const char *boot = boot_at(free_port());
		struct try t[3];
		for (int i = 0; i < 3; i++)
			t[i] = (struct try){ .env = { text("TUTTI_RANK=%d", i), "TUTTI_SIZE=3", boot,
				                      k % 2 ? SECRET : NULL },
				             .late_ms = late[k][i] };
		JOINED(t);
	}
}

static void test_program(void)
{
	const char *boot = text("localhost:%d", free_port());
	tutti_config c[2] = { { .rank = 0, .ranks = 2, .boot = boot, .secret = "0123456789abcdef" },
		              { .rank = 1,
		                .ranks = 2,
		                .boot = boot,
		                .secret = "0123456789abcdef",
		                .timeout_ms = 5000 } };
	const char *lies = "TUTTI_RANK=7"; /* the program's word comes first */

	JOINED(((struct try[]){ { .config = &c[0] }, { .config = &c[1], .env = { lies, SECRET } } }));
}

/* With its own store torchrun's agent sits on MASTER_PORT. */
static void test_torchrun(void)
{
	for (int store = 0; store < 2; store++) {
		int port = 0, next, fd = -1, above = -1;
		while (above < 0) { /* a pair of neighbours */
			port = 0;
			fd = occupy(&port);
			next = port + 1;
			above = occupy(&next);
			if (above < 0)
				close(fd);
		}
		close(above);
		if (!store)
			close(fd);
		struct try t[3];
		for (int i = 0; i < 3; i++)
			t[i] = (struct try){ .env = { text("RANK=%d", i), "WORLD_SIZE=3", text("LOCAL_RANK=%d", i),
				                      "LOCAL_WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1",
				                      text("MASTER_PORT=%d", port),
				                      store ? "TORCHELASTIC_USE_AGENT_STORE=True"
				                            : "TORCHELASTIC_USE_AGENT_STORE=False" },
				             .late_ms = 50 * (2 - i) };
		JOINED(t);
		WANT(port_of(board->of[0].addr) == port + store, "rank 0 listens at %s, MASTER_PORT is %d",
		     board->of[0].addr, port);
		if (store)
			close(fd);
	}
}

static const char *three_nodes(const char *name, const char *more)
{
	int a = free_port(), b = free_port(), c = free_port();
	char content[600];

	snprintf(
		content, sizeof content,
		"secret = \"0123456789abcdef\";\ntimeout = 8000;\n%s"
		"nodes = ( { name = \"left\"; address = \"127.0.0.1:%d\"; },\n          { name = \"middle\"; address "
		"= \"127.0.0.1:%d\"; },\n"
		"          { name = \"right\"; address = \"localhost:%d\"; } );\n",
		more, a, b, c);
	return config_file(name, content);
}

/* None is special: whichever comes last, the others have joined at once and wait for it when they first use it. */
static void test_nodes(void)
{
	for (int last = 0; last < 3; last++) {
		const char *file = three_nodes("nodes.conf", "");
		tutti_config right = { .file = file, .node = "right" };
		struct try t[] = { { .env = { text("TUTTI_CONFIG=%s", file), "TUTTI_NODE=left" } },
			           { .env = { text("TUTTI_CONFIG=%s", file), "TUTTI_NODE=middle" } },
			           { .config = &right, .env = { "TUTTI_NODE=left" } } };
		t[last].not_before = 2;
		t[last].late_ms = 300;
		run(t, 3);
		for (int i = 0; i < 3; i++) {
			const struct outcome *o = &board->of[i];
			WANT(o->err == 0 && o->summed && o->rank == i && o->size == 3,
			     "node %d, last %d: rank %d: %d: %s", i, last, o->rank, o->err, o->why);
			WANT(o->ms < 5000 * SLOW, "node %d waited %llu ms to join", i, (unsigned long long)o->ms);
		}
	}
}

/* Ranks of a node list compare their settings when they first connect. */
static void test_nodes_differ(void)
{
	const char *file = text("TUTTI_CONFIG=%s", three_nodes("nodes.conf", ""));
	struct try t[] = { { .env = { file, "TUTTI_NODE=left", QUICK } },
		           { .env = { file, "TUTTI_NODE=middle", QUICK } },
		           { .env = { file, "TUTTI_NODE=right", QUICK, "TUTTI_MEASURE=no" } } };

	run(t, 3);
	for (int i = 0; i < 3; i++)
		WANT(!board->of[i].err && !board->of[i].summed && *board->of[i].why, "node %d", i);
	WANT(strstr(board->of[2].why, "TUTTI_MEASURE is no on rank 2 and yes on rank "), "%s", board->of[2].why);
}

/* Nobody else is there: the first use says so, and blames no silence. */
static void test_node_alone(void)
{
	struct try t[] = { { .env = { text("TUTTI_CONFIG=%s", three_nodes("nodes.conf", "")), "TUTTI_NODE=right",
		                      "TUTTI_TIMEOUT=500" } } };

	run(t, 1);
	/* the second, if the last of the tries that were due in that time has come back */
	const char *why = board->of[0].why;
	WANT(!board->of[0].err && !board->of[0].summed &&
	             (strstr(why, "it could not be reached so far: does it run?") || strstr(why, "Connection refused")),
	     "%d: %s", board->of[0].err, why);
}

/* Between each two of three ranks; NULL: not looked at. */
static void look_at_wires(const char *wires[3][3])
{
	for (int i = 0; i < 3; i++)
		for (int k = 0; k < 3; k++)
			WANT(!wires[i][k] || !strcmp(board->of[i].wires[k], wires[i][k]),
			     "rank %d reached rank %d over \"%s\"; it wrote: %s", i, k, board->of[i].wires[k],
			     board->of[i].log);
}

/* For each two the first that both have. */
static void test_wires(void)
{
	const char *boot = boot_at(free_port());

	JOINED(((struct try[]){ { .env = { "TUTTI_RANK=0", "TUTTI_SIZE=3", boot } },
	                        { .env = { "TUTTI_RANK=1", "TUTTI_SIZE=3", boot, "TUTTI_TRANSPORTS=tcp" } },
	                        { .env = { "TUTTI_RANK=2", "TUTTI_SIZE=3", boot, "TUTTI_TRANSPORTS=shm,tcp" } } }));
	look_at_wires((const char *[3][3]){ { NULL, "tcp", "shm" }, { "tcp", NULL, "tcp" }, { "shm", "tcp", NULL } });
	boot = boot_at(free_port());
	JOINED(((struct try[]){ { .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2", boot, "TUTTI_TRANSPORTS=tcp,shm" } },
	                        { .env = { "TUTTI_RANK=1", "TUTTI_SIZE=2", boot, "TUTTI_TRANSPORTS=tcp,shm" } } }));
	look_at_wires((const char *[3][3]){ { NULL, "tcp" }, { "tcp" } });
	REFUSED(-EINVAL, "TUTTI_TRANSPORTS names shm alone|write shm,tcp", "TUTTI_RANK=1", "TUTTI_SIZE=2", boot,
	        "TUTTI_TRANSPORTS=shm");
	REFUSED(-EINVAL, "TUTTI_TRANSPORTS|\"tpc\"|tutti info", "TUTTI_RANK=1", "TUTTI_SIZE=2", boot,
	        "TUTTI_TRANSPORTS=shm,tpc");
}

/* Who has joined uses one that has the table and whose joining thread has got no further: over the wire that stays. */
static void test_lingering(void)
{
	const char *boot = boot_at(free_port());

	JOINED(((struct try[]){ { .env = { "TUTTI_RANK=0", "TUTTI_SIZE=3", boot } },
	                        { .env = { "TUTTI_RANK=1", "TUTTI_SIZE=3", boot }, .linger_ms = 200 },
	                        { .env = { "TUTTI_RANK=2", "TUTTI_SIZE=3", boot }, .linger_ms = 100 } }));
	look_at_wires((const char *[3][3]){ { NULL, "shm", "shm" }, { "shm", NULL, "shm" }, { "shm", "shm", NULL } });
}

static struct try node_try(const char *file, const char *node, const char *wires)
{
	return (struct try){ .env = { text("TUTTI_CONFIG=%s", file), text("TUTTI_NODE=%s", node),
		                      text("TUTTI_TRANSPORTS=%s", wires) } };
}

/* Names follow from the addresses: nobody has to tell them, and shared memory can stand alone. */
static void test_nodes_in_memory(void)
{
	static const char *const wires[] = { "shm,tcp", "shm" };

	for (size_t i = 0; i < TT_COUNT(wires); i++) {
		const char *file = config_file(
			"memory.conf",
			text("nodes = ( { name = \"a\"; address = \"127.0.0.1:%d\"; }, { name = \"b\"; "
		             "address = \"127.0.0.1:%d\"; }, { name = \"c\"; address = \"127.0.0.1:%d\"; } );\n",
		             free_port(), free_port(), free_port()));
		JOINED(((struct try[]){ node_try(file, "a", wires[i]), node_try(file, "b", wires[i]),
		                        node_try(file, "c", wires[i]) }));
		look_at_wires(
			(const char *[3][3]){ { NULL, "shm", "shm" }, { "shm", NULL, "shm" }, { "shm", "shm", NULL } });
	}
}

/* Of two ranks each, at once. */
static void test_two_jobs(void)
{
	const char *boots[2] = { boot_at(free_port()), boot_at(free_port()) };
	struct try t[4];

	for (int i = 0; i < 4; i++)
		t[i] = (struct try){ .env = { text("TUTTI_RANK=%d", i / 2), "TUTTI_SIZE=2", boots[i % 2] } };
	run(t, 4);
	for (int i = 0; i < 4; i++) {
		const struct outcome *o = &board->of[i];
		WANT(o->err == 0 && o->summed && o->rank == i / 2 && o->size == 2 &&
		             !strcmp(o->wires[1 - i / 2], "shm"),
		     "process %d: %d: %s; wire \"%s\"", i, o->err, o->why, o->wires[1 - i / 2]);
	}
}

static bool have_ipv6(void)
{
	struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool good = fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a);

	if (fd >= 0)
		close(fd);
	return good;
}

static void test_ipv6(void)
{
	const char *boot = text("TUTTI_BOOT=[::1]:%d", free_port());
	const char *mapped = text("TUTTI_BOOT=[::ffff:127.0.0.1]:%d", free_port());
	struct try t[3];

	if (!have_ipv6()) {
		printf("no ::1 here: joining over IPv6 is not tested\n");
		return;
	}
	for (int secret = 0; secret < 2; secret++) {
		for (int i = 0; i < 3; i++)
			t[i] = (struct try){ .env = { text("TUTTI_RANK=%d", i), "TUTTI_SIZE=3", boot, "TUTTI_IFACE=lo",
				                      secret ? SECRET : NULL } };
		JOINED(t);
		WANT(!strncmp(board->of[0].addr, "tcp:[::1]:", 10), "rank 0 listens at %s", board->of[0].addr);
	}
	JOINED(((struct try[]){ { .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2", mapped } },
	                        { .env = { "TUTTI_RANK=1", "TUTTI_SIZE=2", mapped } } }));
}

static void test_ports(void)
{
	int port = free_port() % 20000 + 30000;
	const char *boot = boot_at(free_port()), *range = text("TUTTI_PORTS=%d-%d", port, port + 50);
	struct try t[3];

	for (int i = 0; i < 3; i++)
		t[i] = (struct try){ .env = { text("TUTTI_RANK=%d", i), "TUTTI_SIZE=3", boot, range } };
	JOINED(t);
	for (int i = 1; i < 3; i++) {
		int got = port_of(board->of[i].addr);
		WANT(got >= port && got <= port + 50, "rank %d listens at %s, which is not in %s", i, board->of[i].addr,
		     range);
	}
	port = 0;
	int fd = occupy(&port);
	REFUSED(-EADDRINUSE, text("%d|TUTTI_PORTS|127.0.0.1", port), "TUTTI_RANK=1", "TUTTI_SIZE=2", boot,
	        text("TUTTI_PORTS=%d-%d", port, port));
	REFUSED(-EADDRINUSE, text("%d|TUTTI_PORTS", port), "TUTTI_RANK=1", "TUTTI_SIZE=2", boot,
	        text("TUTTI_PORTS=%d", port));
	close(fd);
	REFUSED(-EINVAL, "TUTTI_PORTS=9-1|FIRST-LAST", "TUTTI_RANK=1", "TUTTI_SIZE=2", boot, "TUTTI_PORTS=9-1");
	REFUSED(-EINVAL, "TUTTI_PORTS=many|FIRST-LAST", "TUTTI_RANK=1", "TUTTI_SIZE=2", boot, "TUTTI_PORTS=many");
	REFUSED(-EINVAL, "TUTTI_PORTS=70000|FIRST-LAST", "TUTTI_RANK=1", "TUTTI_SIZE=2", boot, "TUTTI_PORTS=70000");
}

/* All have one list of everybody's addresses, their own too; rank 0 comes last, and those that listen before have not
 * joined. Where nobody listens, all addresses are named. */
static void test_list(void)
{
	int port[3] = { free_port(), free_port() };
	struct try t[3];

	do
		port[2] = free_port();
	while (port[2] == port[1]);
	const char *list = text("TUTTI_BOOT=127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", port[0], port[1], port[2]);
	for (int i = 0; i < 3; i++)
		t[i] = (struct try){ .env = { text("TUTTI_RANK=%d", i), "TUTTI_SIZE=3", list,
			                      i ? text("TUTTI_PORTS=%d", port[i]) : NULL },
			             .late_ms = i ? 0 : 500 };
	JOINED(t);
	for (int i = 0; i < 2; i++) /* two addresses of rank 0, which meets itself */
		t[i] = (struct try){ .env = { text("TUTTI_RANK=%d", i), "TUTTI_SIZE=2",
			                      text("TUTTI_BOOT=127.0.0.1:%d,127.0.0.1:%d", port[0], port[0]) } };
	run(t, 2);
	WANT(!board->of[0].err && !board->of[1].err, "%s; %s", board->of[0].why, board->of[1].why);
	REFUSED(-ETIMEDOUT, text("no rank at|127.0.0.1:%d,127.0.0.1:%d|600 ms", port[0], port[1]), "TUTTI_RANK=1",
	        "TUTTI_SIZE=3", list, QUICK);
	REFUSED(-ENAMETOOLONG, "rendezvous address", "TUTTI_RANK=1", "TUTTI_SIZE=3",
	        text("TUTTI_BOOT=127.0.0.1:%d,127.0.0.1:%0100d", port[0], port[1]), QUICK);
}

static void test_interface(void)
{
	const char *boot = boot_at(free_port());
	struct try t[2];

	for (int i = 0; i < 2; i++)
		t[i] = (struct try){ .env = { text("TUTTI_RANK=%d", i), "TUTTI_SIZE=2", boot, SECRET,
			                      "TUTTI_IFACE=lo" } };
	JOINED(t);
	WANT(!strncmp(board->of[1].addr, "tcp:127.0.0.1:", 14), "rank 1 listens at %s", board->of[1].addr);
	REFUSED(-ENODEV, "'lo77'|TUTTI_IFACE|lo", "TUTTI_RANK=1", "TUTTI_SIZE=2", boot, SECRET, "TUTTI_IFACE=lo77");
	/* each transport has its own; TCP's is the one without a name, or with TCP's */
	REFUSED(-ENODEV, "'lo77'|TUTTI_IFACE|lo", "TUTTI_RANK=1", "TUTTI_SIZE=2", boot, SECRET,
	        "TUTTI_IFACE=shm:any,lo77");
	REFUSED(-ENODEV, "'lo77'|TUTTI_IFACE|lo", "TUTTI_RANK=1", "TUTTI_SIZE=2", boot, SECRET,
	        "TUTTI_IFACE=shm:any,tcp:lo77");
	for (int i = 0; i < 2; i++)
		t[i] = (struct try){ .env = { text("TUTTI_RANK=%d", i), "TUTTI_SIZE=2", boot, SECRET,
			                      i ? "TUTTI_IFACE=shm:lo77,tcp:lo"
			                        : "TUTTI_IFACE=tcp:127.0.0.1,shm:lo77" } };
	JOINED(t);
	WANT(!strncmp(board->of[1].addr, "tcp:127.0.0.1:", 14), "rank 1 listens at %s", board->of[1].addr);
}

/* `tutti run` opens rank 0's socket itself. */
static void test_handed_socket(void)
{
	int port = 0, fd = occupy(&port);

	fcntl(fd, F_SETFD, 0);
	JOINED(((struct try[]){
		{ .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2", boot_at(port), text("TUTTI_BOOT_FD=%d", fd) },
	          .late_ms = 100 },
		{ .env = { "TUTTI_RANK=1", "TUTTI_SIZE=2", boot_at(port) } } }));
	WANT(port_of(board->of[0].addr) == port, "rank 0 listens at %s", board->of[0].addr);
	close(fd);
}

/* A number that is no file, a file of the program's, a socket elsewhere: rank 0 listens itself, and leaves it alone. */
static void test_stale_socket(void)
{
	int port = free_port(), elsewhere = 0;
	int stale[] = { 999, open("/dev/null", O_RDWR), occupy(&elsewhere) };

	for (size_t i = 0; i < TT_COUNT(stale); i++) {
		fcntl(stale[i], F_SETFD, 0);
		JOINED(((struct try[]){
			{ .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2", boot_at(port),
			           text("TUTTI_BOOT_FD=%d", stale[i]) } },
			{ .env = { "TUTTI_RANK=1", "TUTTI_SIZE=2", boot_at(port) } } }));
		WANT(port_of(board->of[0].addr) == port, "rank 0 listens at %s", board->of[0].addr);
	}
	close(stale[1]);
	close(stale[2]);
}

/* What a program prints without standard files must not get into a connection. */
static void test_closed_files(void)
{
	static const char *const wires[] = { "TUTTI_TRANSPORTS=tcp", "TUTTI_TRANSPORTS=shm,tcp" };

	for (size_t i = 0; i < TT_COUNT(wires); i++) {
		const char *boot = boot_at(free_port());
		JOINED(((struct try[]){
			{ .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2", boot, wires[i] }, .closed = true },
			{ .env = { "TUTTI_RANK=1", "TUTTI_SIZE=2", boot, wires[i] }, .closed = true } }));
		WANT(!board->of[0].low && !board->of[1].low, "over %s a descriptor has a number below 3", wires[i]);
	}
}

/* Filters of old containers know no new system calls. */
/* Neither getrandom() nor /dev/urandom: bytes come, and say what they are. */
static void look_without_entropy(void)
{
	pid_t pid = fork();
	int status = -1;

	if (!pid) {
		char bytes[20] = "";
		setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 0, 0 });
		deny(SYS_getrandom, ENOSYS);
		_exit(!tt_entropy(bytes, sizeof bytes) && memcmp(bytes, bytes + 8, 8) ? 42 : 1);
	}
	waitpid(pid, &status, 0);
	WANT(WIFEXITED(status) && WEXITSTATUS(status) == 42, "status %d", status);
}

static void test_denied_calls(void)
{
	const char *boot = boot_at(free_port());
	struct try t[] = { { .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2", boot }, .denied = SYS_getrandom,
		             .denied_with = EPERM },
		           { .env = { "TUTTI_RANK=1", "TUTTI_SIZE=2", boot }, .denied = SYS_getrandom,
		             .denied_with = ENOSYS } };

	JOINED(t);
	WANT(!strstr(board->of[0].log, "getrandom"), "/dev/urandom is there: %s", board->of[0].log);
	look_without_entropy();
#ifdef SYS_clone3
	if (!TT_ASAN && !TT_TSAN) /* which start threads of their own */
		refuse_one(__LINE__, (struct try){ .env = { NULL }, .denied = SYS_clone3, .denied_with = EPERM },
		           -EPERM, "cannot start a thread: Operation not permitted: |seccomp");
#endif
}

/* A rank connects from some port, and others listen there meanwhile. 0, or the number of an error. */
static int listen_at_its_port(void)
{
	int port = 0, fd = occupy(&port), log = memfd_create("stderr", MFD_CLOEXEC), on = 1, at = -1;
	struct try t = { .env = { "TUTTI_RANK=1", "TUTTI_SIZE=2", boot_at(port), QUICK } };
	struct sockaddr_in from = { .sin_family = AF_INET };
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	socklen_t size = sizeof from;

	memset(board, 0, sizeof *board);
	pid_t pid = start_try(&t, &board->of[0], log);
	int rank = poll(&wait, 1, HANG_MS) > 0 ? accept(fd, (struct sockaddr *)&from, &size) : -1;
	at = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(at, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	int err = rank < 0 ? ETIMEDOUT : bind(at, (struct sockaddr *)&from, size) || listen(at, 1) ? errno : 0;
	close(at);
	close(fd);
	close(rank);
	end_try(1, pid, &board->of[0], log);
	return err;
}

/* A rank that looks for rank 0 may get the port of rank 0 for its own end of the connection: rank 0 listens there all
 * the same. Here the test takes the rank's connection, and listens at its other end. A foreign process may connect from
 * that port, too, and keep it: then once more. */
static void test_port_of_a_try(void)
{
	int err = EADDRINUSE;

	for (int i = 0; i < 3 && err == EADDRINUSE; i++)
		err = listen_at_its_port();
	WANT(!err, "nobody can listen at the rank's end of its connection: %s", strerror(err));
}

/* ---- the secret ---- */

/* Without one nobody listens but on this host's loopback: that is what the ranks say, and what the kernel says. */
static void test_only_loopback(void)
{
	const char *boot = boot_at(free_port());
	struct try t[3];

	for (int i = 0; i < 3; i++)
		t[i] = (struct try){ .env = { text("TUTTI_RANK=%d", i), "TUTTI_SIZE=3", boot } };
	JOINED(t);
	for (int i = 0; i < 3; i++)
		WANT(!strncmp(board->of[i].addr, "tcp:127.", 8), "without a secret rank %d listens at %s", i,
		     board->of[i].addr);
	WANT(strstr(board->of[0].log, "TUTTI_SECRET") && !*board->of[1].log, "they say: %s, %s", board->of[0].log,
	     board->of[1].log);
	REFUSED(-EACCES, "0.0.0.0|TUTTI_SECRET|127.0.0.1", "TUTTI_RANK=0", "TUTTI_SIZE=2",
	        text("TUTTI_BOOT=0.0.0.0:%d", free_port()), QUICK);
	REFUSED(-EACCES, "192.0.2.7|TUTTI_SECRET", "TUTTI_RANK=1", "TUTTI_SIZE=2", "TUTTI_BOOT=192.0.2.7:4000");
	WANT(board->of[0].ms < 5000 * SLOW, "it took %llu ms", (unsigned long long)board->of[0].ms);
}

/* Where the kernel says that this port is listened on: 0 nowhere, 1 on loopback alone, 2 elsewhere too. */
static int openness(int port)
{
	char line[300], addr[64];
	unsigned at, state;
	int found = 0;

	for (int v6 = 0; v6 < 2; v6++) {
		FILE *f = fopen(v6 ? "/proc/net/tcp6" : "/proc/net/tcp", "r");
		while (f && fgets(line, sizeof line, f)) {
			if (sscanf(line, " %*d: %60[0-9A-Fa-f]:%x %*s %x", addr, &at, &state) != 3 || state != 0x0a ||
			    at != (unsigned)port)
				continue;
			bool loopback = !strcmp(v6 ? addr : addr + 6, v6 ? "00000000000000000000000001000000" : "7F");
			found = loopback && found < 2 ? 1 : 2;
		}
		if (f)
			fclose(f);
	}
	return found;
}

/* Rank 0 waits for the other in vain, and we look meanwhile. */
static void test_kernel_agrees(void)
{
	for (int with = 0; with < 2; with++) {
		int port = free_port(), open = 0, log = memfd_create("stderr", MFD_CLOEXEC);
		const char *boot = text("TUTTI_BOOT=%s:%d", with ? "0.0.0.0" : "127.0.0.1", port);
		struct try t = { .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2", boot, QUICK, with ? SECRET : NULL } };
		memset(board, 0, sizeof *board);
		pid_t pid = start_try(&t, &board->of[0], log);
		for (int i = 0; i < HANG_MS && !open; i++) {
			open = openness(port);
			sleep_ms(1);
		}
		WANT(open == 1 + with, "with%s a secret port %d is open to %s", with ? "" : "out", port,
		     open == 2 ? "all"
		     : open    ? "this host"
		               : "none");
		end_try(0, pid, &board->of[0], log);
		look_refused(__LINE__, &board->of[0], -ETIMEDOUT, "rank 1 of 2 did not join");
	}
}

static void two_secrets(const char *zero, const char *one)
{
	const char *boot = boot_at(free_port());
	struct try t[] = { { .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2", boot, QUICK, zero } },
		           { .env = { "TUTTI_RANK=1", "TUTTI_SIZE=2", boot, QUICK, one } } };

	run(t, 2);
	look_refused(__LINE__, &board->of[1], -EACCES, "TUTTI_SECRET|rank 0");
	look_refused(__LINE__, &board->of[0], -ETIMEDOUT, "rank 1 of 2 did not join");
	WANT(strstr(board->of[0].log, "TUTTI_SECRET"), "rank 0 wrote: %s", board->of[0].log);
}

static void test_secrets(void)
{
	two_secrets(SECRET, "TUTTI_SECRET=fedcba98765432100123");
	two_secrets(SECRET, NULL);
	two_secrets(NULL, SECRET);
	REFUSED(-EINVAL, "TUTTI_SECRET|5 bytes|16", "TUTTI_RANK=1", "TUTTI_SIZE=2", boot_at(free_port()),
	        "TUTTI_SECRET=short");
	REFUSED(-EINVAL, "TUTTI_SECRET can be guessed|small letters|openssl rand", "TUTTI_SECRET=correct horse bat");
	REFUSED(-EINVAL, "can be guessed|different", "TUTTI_SECRET=abababababababababababab");
	REFUSED(-EINVAL, "can be guessed|repeats", "TUTTI_SECRET=Passw0rd-Passw0rd");
	REFUSED(-EINVAL, "can be guessed|sequence", "TUTTI_SECRET=ABCDEFGHIJKLMNOPQRST");
	REFUSED(-EINVAL, "can be guessed|sequence", "TUTTI_SECRET=9876543210987654");
	REFUSED(-EINVAL, "can be guessed|20 digits", "TUTTI_SECRET=3141592653589793");
	const char *good[] = { "TUTTI_SECRET=acorn Bishop candle DAGGER ember falcon",
		               "TUTTI_SECRET=mQz3xK8vTq/1bYwRc0+LdA==",
		               "TUTTI_SECRET=550e8400-e29b-41d4-a716-446655440000" };
	for (size_t i = 0; i < TT_COUNT(good); i++)
		JOINED(((struct try[]){ { .env = { good[i] } } }));
}

/* What the usual programs draw is never refused. */
static void test_drawn_secrets(void)
{
	static const struct { const char *of; int signs; } kinds[] = {
		{ "0123456789abcdef", 16 }, { "0123456789abcdef", 32 }, { "0123456789", 24 },
		{ "abcdefghijklmnopqrstuvwxyz", 20 }, { "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 26 },
		{ "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", 16 } };
	struct tt_random random;
	char secret[64];

	tt_random_seed(&random, 17);
	for (size_t k = 0; k < 1000 * TT_COUNT(kinds); k++) {
		const char *of = kinds[k % TT_COUNT(kinds)].of;
		int signs = kinds[k % TT_COUNT(kinds)].signs;
		struct tt_settings s = { 0 };
		for (int i = 0; i < signs; i++)
			secret[i] = of[tt_random_next(&random) % strlen(of)];
		secret[signs] = 0;
		CU_ASSERT_FATAL(!tt_settings_set(&s, TT_SECRET, secret, "test"));
		WANT(!tt_judge_setting(&s, TT_SECRET), "%s: %s", secret, tt_why());
		tt_settings_free(&s);
	}
}

/* ---- wrong variables ---- */

static void test_variables(void)
{
	const char *boot = boot_at(free_port());

	REFUSED(-EINVAL, "TUTTI_RANK=x|whole number", "TUTTI_RANK=x", "TUTTI_SIZE=2", boot);
	REFUSED(-EINVAL, "TUTTI_RANK=1.5|whole number", "TUTTI_RANK=1.5", "TUTTI_SIZE=2", boot);
	REFUSED(-EINVAL, "TUTTI_RANK=-1|from 0", "TUTTI_RANK=-1", "TUTTI_SIZE=2", boot);
	REFUSED(-EINVAL, "TUTTI_RANK=99999999999999999999|whole number", "TUTTI_RANK=99999999999999999999",
	        "TUTTI_SIZE=2", boot);
	REFUSED(-EINVAL, "TUTTI_RANK is 2|TUTTI_SIZE 2|0 to 1", "TUTTI_RANK=2", "TUTTI_SIZE=2", boot);
	REFUSED(-EINVAL, "TUTTI_SIZE=0|from 1", "TUTTI_RANK=0", "TUTTI_SIZE=0", boot);
	REFUSED(-EINVAL, "100000 ranks|65536", "TUTTI_RANK=0", "TUTTI_SIZE=100000", boot);
	REFUSED(-EINVAL, "TUTTI_SIZE is set|TUTTI_RANK is not", "TUTTI_SIZE=2", boot);
	REFUSED(-EINVAL, "TUTTI_RANK is set|TUTTI_SIZE is not", "TUTTI_RANK=1", boot);
	REFUSED(-EINVAL, "TUTTI_BOOT is not|TUTTI_BOOT=HOST:PORT", "TUTTI_RANK=1", "TUTTI_SIZE=2");
	REFUSED(-EINVAL, "MASTER_PORT is not", "RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1");
	REFUSED(-EINVAL, "MASTER_ADDR is not", "RANK=1", "WORLD_SIZE=2", "MASTER_PORT=4000");
	REFUSED(-ENAMETOOLONG, "longer than", "RANK=1", "WORLD_SIZE=2", "MASTER_PORT=4000",
	        text("MASTER_ADDR=%092d", 0));
	REFUSED(-ENAMETOOLONG, "SLURM_STEP_NODELIST=node|TUTTI_BOOT", "SLURM_PROCID=1", "SLURM_STEP_ID=0",
	        "SLURM_STEP_NUM_TASKS=2", text("SLURM_STEP_NODELIST=node%0100d", 0));
	REFUSED(-EINVAL, "MASTER_PORT=port", "RANK=1", "WORLD_SIZE=2", "MASTER_PORT=port", "MASTER_ADDR=127.0.0.1");
	REFUSED(-EINVAL, "TUTTI_TRANSPORTS|\"nonsense\"|tutti info", "TUTTI_RANK=1", "TUTTI_SIZE=2", boot,
	        "TUTTI_TRANSPORTS=nonsense");
	REFUSED(-EINVAL, "TUTTI_TRANSPORTS names no", "TUTTI_RANK=1", "TUTTI_SIZE=2", boot, "TUTTI_TRANSPORTS=,");
	REFUSED(-EINVAL, "TUTTI_TIMEOUT=abc|whole number", "TUTTI_TIMEOUT=abc");
	REFUSED(-EINVAL, "TUTTI_TIMEOUT=0|milliseconds from 10", "TUTTI_TIMEOUT=0");
	REFUSED(-EINVAL, "TUTTI_SILENCE=10s|never or a whole number of milliseconds from 100", "TUTTI_SILENCE=10s");
	REFUSED(-EINVAL, "TUTTI_ALLREDUCE=rign|doubling|did you mean ring?", "TUTTI_ALLREDUCE=rign");
	REFUSED(-EINVAL, "names \"tcpp\"|did you mean tcp:|tutti info", "TUTTI_TRANSPORTS=shm,tcpp");
	/* in a job of one, too, and also what only larger jobs use */
	REFUSED(-EINVAL, "TUTTI_SPIN=perhaps|auto, yes or no", "TUTTI_SPIN=perhaps");
	REFUSED(-EINVAL, "TUTTI_MINORITY=perhaps|yes or no", "TUTTI_MINORITY=perhaps");
	REFUSED(-EINVAL, "TUTTI_EVICT=1|yes or no", "TUTTI_EVICT=1");
	REFUSED(-EINVAL, "TUTTI_LOG=verbose|debug", "TUTTI_LOG=verbose");
	REFUSED(-EINVAL, "TUTTI_PIN=banana|spread", "TUTTI_PIN=banana");
	REFUSED(-EINVAL, "TUTTI_TRANSPORTS names \"rdma\"|tutti info", "TUTTI_TRANSPORTS=shm,rdma");
	REFUSED(-EINVAL, "TUTTI_PORTS=many|FIRST-LAST", "TUTTI_PORTS=many");
	REFUSED(-EINVAL, "TUTTI_VERBS_RETRY=10001|TUTTI_SILENCE, 10000 ms|raise TUTTI_SILENCE, too",
	        "TUTTI_SILENCE=10000", "TUTTI_VERBS_RETRY=10001");
	REFUSED(-EINVAL, "TUTTI_SECRET has 5 bytes|16", "TUTTI_SECRET=short");
	/* also without an adapter */
	REFUSED(-EINVAL, "TUTTI_VERBS_PKEY=0x8000|like 0x8001", "TUTTI_VERBS_PKEY=0x8000"); /* a member of nothing */
	REFUSED(-EINVAL, "TUTTI_VERBS_PKEY=0x10001|like 0x8001", "TUTTI_VERBS_PKEY=0x10001");
	REFUSED(-EINVAL, "TUTTI_VERBS_PKEY=-1|like 0x8001", "TUTTI_VERBS_PKEY=-1");
	REFUSED(-EINVAL, "TUTTI_VERBS_PKEY=8001h|like 0x8001", "TUTTI_VERBS_PKEY=8001h");
	REFUSED(-EINVAL, "TUTTI_VERBS_GID_INDEX=256|0 to 255", "TUTTI_VERBS_GID_INDEX=256");
	REFUSED(-EINVAL, "TUTTI_VERBS_GID_INDEX=v2|0 to 255", "TUTTI_VERBS_GID_INDEX=v2");
	REFUSED(-EINVAL, "TUTTI_VERBS_SL=16|0 to 15", "TUTTI_VERBS_SL=16");
	REFUSED(-EINVAL, "TUTTI_VERBS_TC=-1|0 to 255", "TUTTI_VERBS_TC=-1");
	REFUSED(-EINVAL, "TUTTI_VERBS_CONNECT=udp|tcp or cm", "TUTTI_VERBS_CONNECT=udp");
}

#define STEP "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_TASKS_PER_NODE=2", "SLURM_NODEID=0"

/* tests/slurm has the tests that need the launcher itself. */
static void test_other_launchers(void)
{
	const char *job = text("SLURM_JOB_ID=%d", getpid()), *space = text("PMIX_NAMESPACE=%d", getpid());
	const char *list = "SLURM_STEP_NODELIST=127.0.0.[1-4,7],n8";

	JOINED(((struct try[]){
		{ .env = { STEP, job, list, SECRET, "SLURM_PROCID=0", "SLURM_LOCALID=0" } },
		{ .env = { STEP, job, list, SECRET, "SLURM_PROCID=1", "SLURM_LOCALID=1" } },
	}));
	REFUSED(-EINVAL, "SLURM_STEP_NODELIST names no node", STEP, job, SECRET, "SLURM_PROCID=1");
	REFUSED(-EINVAL, "task 0|first node, 127.0.0.1|TUTTI_BOOT=HOST:PORT", job, list, SECRET, "SLURM_STEP_ID=0",
	        "SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=0", "SLURM_NODEID=1");
	REFUSED(-EINVAL, "SLURM_PROCID is 7|from 0 to 1", STEP, job, list, SECRET, "SLURM_PROCID=7");
	JOINED(((struct try[]){ { .env = { "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1" } } }));
	JOINED(((struct try[]){ { .env = { "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=4" } } })); /* in no step */

	JOINED(((struct try[]){
		{ .env = { "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=0",
		           "OMPI_COMM_WORLD_LOCAL_SIZE=2", space } },
		{ .env = { "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=1",
		           "OMPI_COMM_WORLD_LOCAL_SIZE=2", space } },
	}));
	REFUSED(-EINVAL, "4 ranks on several hosts|libpmix2|TUTTI_BOOT=HOST:PORT", "OMPI_COMM_WORLD_RANK=1",
	        "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2", space);
	REFUSED(-EINVAL, "PMI_FD=777 is no socket|tutti run", "PMI_FD=777", "PMI_RANK=1", "PMI_SIZE=2");
	int file = memfd_create("a file of the program's", 0);
	REFUSED(-EINVAL, "is no socket", text("PMI_FD=%d", file), "PMI_RANK=1", "PMI_SIZE=2");
	CU_ASSERT(lseek(file, 0, SEEK_END) == 0);
	close(file);
	REFUSED(-EINVAL, "PMI_RANK is set|PMI_SIZE is not", "PMI_FD=0", "PMI_RANK=1");
}

/* Each process would be a job of one. */
static void test_foreign_launchers(void)
{
	REFUSED(-EINVAL, "jsrun|TUTTI_RANK=$JSM_NAMESPACE_RANK TUTTI_SIZE=$JSM_NAMESPACE_SIZE|TUTTI_BOOT|job of one",
	        "JSM_NAMESPACE_RANK=0", "JSM_NAMESPACE_SIZE=2");
	REFUSED(-EINVAL, "mpirun_rsh|MV2_COMM_WORLD_RANK=1", "MV2_COMM_WORLD_RANK=1", "MV2_COMM_WORLD_SIZE=2");
	REFUSED(-EINVAL, "mpirun_rsh|MVP_COMM_WORLD_RANK=1", "MVP_COMM_WORLD_RANK=1", "MVP_COMM_WORLD_SIZE=2");
	REFUSED(-EINVAL, "flux run|$FLUX_JOB_SIZE", "FLUX_TASK_RANK=1", "FLUX_JOB_SIZE=2");
	REFUSED(-EINVAL, "PALS|$PALS_RANKID TUTTI_SIZE=$PMI_SIZE", "PALS_RANKID=1", "PMI_RANK=1", "PMI_SIZE=2");
	REFUSED(-EINVAL, "aprun|TUTTI_SIZE=N", "ALPS_APP_PE=1");
	REFUSED(-EINVAL, "Indexed Job|$JOB_COMPLETION_INDEX TUTTI_SIZE=N", "JOB_COMPLETION_INDEX=0");
	JOINED(((struct try[]){ { .env = { "FLUX_TASK_RANK=0", "FLUX_JOB_SIZE=1" } } }));
	JOINED(((struct try[]){ { .env = { "JOB_COMPLETION_INDEX=5", "TUTTI_RANK=0", "TUTTI_SIZE=1" } } }));
}

/* The launcher has gone; its descriptor may be a socket or a pipe. */
static void test_launcher_gone(void)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		abort();
	close(ends[1]);
	REFUSED(-EIO, "init|Broken pipe|srun", text("PMI_FD=%d", ends[0]), "PMI_RANK=1", "PMI_SIZE=2", "PMI_JOBID=j");
	REFUSED(-EIO, "PMI-1|init|Broken pipe); a job", text("PMI_FD=%d", ends[0]), "PMI_RANK=1", "PMI_SIZE=2");
	close(ends[0]);
}

static void test_secret_file(void)
{
	const char *file = config_file("secret", "0123456789abcdef0123\r\nanother line\r\n");
	const char *set = text("TUTTI_SECRET_FILE=%s", file), *none = text("TUTTI_SECRET_FILE=%s", file_at("none"));
	int port = free_port();

	chmod(file, 0600);
	JOINED(((struct try[]){
		{ .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2", boot_at(port), set } },
		{ .env = { "TUTTI_RANK=1", "TUTTI_SIZE=2", boot_at(port), SECRET } },
	}));
	chmod(file, 0644);
	REFUSED(-EACCES, "others may read|chmod 600|defaultMode: 0440", set);
	chmod(file, 0460);
	REFUSED(-EACCES, "others may read", set);
	chmod(file, 0440);
	if (geteuid()) /* a user's file by mistake; root's file as Kubernetes mounts it, for a group of this process */
		REFUSED(-EACCES, "others may read", set);
	else if (!chown(file, 0, getegid())) {
		JOINED(((struct try[]){ { .env = { set } } }));
		CU_ASSERT(!chown(file, 0, 54321));
		REFUSED(-EACCES, "others may read", set);
	}
	chmod(file, 0600);
	REFUSED(-ENOENT, "cannot read the secret|none", none);
	chmod(config_file("secret", "\n"), 0600);
	REFUSED(-EINVAL, "first line is empty", set);
	chmod(config_file("secret", "short\n"), 0600);
	REFUSED(-EINVAL, "has 5 bytes|16", set);
	unlink(file);
	CU_ASSERT_EQUAL(mkfifo(file, 0600), 0);
	REFUSED(-EACCES, "no secret|a file of this user's", set);
	unlink(file);
	if (!geteuid() && !chown(config_file("secret", "0123456789abcdef0123\n"), 1, 1)) {
		chmod(file, 0600);
		REFUSED(-EACCES, "no secret|a file of this user's", set);
	}
}

/* Without a secret any user of this host reaches the loopback. Both ends refuse another user's process, whoever
 * listens; with a secret users may differ. */
static void test_users(void)
{
	const char *boot = boot_at(free_port()), *v6 = text("TUTTI_BOOT=[::1]:%d", free_port());
	struct try t[] = { { .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2" } },
		           { .env = { "TUTTI_RANK=1", "TUTTI_SIZE=2" } } };

	if (geteuid()) {
		printf("not root: there is no second user\n");
		return;
	}
	for (int i = 0; i < 8; i++) { /* who listens; where; SOCK_DIAG or the table in /proc */
		t[0].user = i & 1 ? 65534 : 0;
		t[1].user = i & 1 ? 0 : 65534;
		t[0].env[2] = t[1].env[2] = i & 2 ? v6 : boot;
		t[0].no_netlink = t[1].no_netlink = i & 4 ? EAFNOSUPPORT : 0;
		t[0].env[3] = t[1].env[3] = "TUTTI_TIMEOUT=1000";
		run(t, 2);
		look_refused(__LINE__, &board->of[0], -ETIMEDOUT, "rank 1 of 2 did not join");
		look_refused(__LINE__, &board->of[1], -EACCES,
		             i & 1 ? "runs as user 65534, this process as user 0|TUTTI_SECRET" :
		                     "runs as user 0, this process as user 65534|TUTTI_SECRET");
		WANT(strstr(board->of[0].log, i & 1 ? "runs as user 0" : "runs as user 65534"), "rank 0 wrote: %s",
		     board->of[0].log);
		t[0].user = t[1].user = i & 1 ? 65534 : 0;
		t[0].env[3] = t[1].env[3] = NULL;
		JOINED(t);
	}
	t[1].user = 0;
	t[0].user = 65534;
	t[0].env[3] = t[1].env[3] = SECRET;
	JOINED(t);
}

/* Where the kernel says nothing of users, as in some sandboxes, all of them may join, and a warning says so. A lack of
 * open files is no such silence: nobody whose user is unknown comes in. */
static void test_unknown_users(void)
{
	const char *boot = boot_at(free_port());
	struct try t[] = { { .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2", boot } },
		           { .env = { "TUTTI_RANK=1", "TUTTI_SIZE=2", boot }, .user = 65534 } };

	if (TT_ASAN || !can_hide_proc()) { /* the leak sanitizer reads /proc */
		printf("/proc cannot be hidden\n");
		return;
	}
	for (int i = 0; i < 2; i++)
		t[i].no_netlink = EAFNOSUPPORT, t[i].no_proc = true;
	run(t, 2);
	WANT(board->of[0].summed && board->of[1].summed, "they say: %s; %s", board->of[0].why, board->of[1].why);
	WANT(strstr(board->of[0].log, "processes of other users may join"), "rank 0 wrote: %s", board->of[0].log);
	for (int i = 0; i < 2; i++) { /* who lacks files */
		t[i].no_netlink = EMFILE, t[!i].no_netlink = EAFNOSUPPORT;
		t[0].env[3] = t[1].env[3] = "TUTTI_TIMEOUT=1000";
		run(t, 2);
		look_refused(__LINE__, &board->of[0], -ETIMEDOUT, "rank 1 of 2 did not join");
		WANT(board->of[1].err && board->of[1].err != -EACCES, "rank 1 says: %s", board->of[1].why);
		WANT(strstr(i ? board->of[1].why : board->of[0].log, "cannot ask the kernel for the user"),
		     "they wrote: %s; %s", board->of[0].log, board->of[1].why);
	}
}

static void test_boot_addresses(void)
{
	for (int rank = 0; rank < 2; rank++) {
		const char *me = text("TUTTI_RANK=%d", rank);
		REFUSED(-EINVAL, "localhost|HOST:PORT", me, "TUTTI_SIZE=2", "TUTTI_BOOT=localhost", QUICK);
		REFUSED(-EINVAL, "localhost:|HOST:PORT", me, "TUTTI_SIZE=2", "TUTTI_BOOT=localhost:", QUICK);
		REFUSED(-EINVAL, "127.0.0.1:99999|HOST:PORT", me, "TUTTI_SIZE=2", "TUTTI_BOOT=127.0.0.1:99999", QUICK);
		REFUSED(-EINVAL, "::1:4|[::1]:PORT", me, "TUTTI_SIZE=2", "TUTTI_BOOT=::1:4000", QUICK);
		REFUSED(-EHOSTUNREACH, "no-such-host.invalid|resolve", me, "TUTTI_SIZE=2",
		        "TUTTI_BOOT=no-such-host.invalid:4000", QUICK);
		REFUSED(-ENAMETOOLONG, "longer than", me, "TUTTI_SIZE=2", text("TUTTI_BOOT=%0150d:4000", 0), QUICK);
	}
	int port = 0, fd = occupy(&port);
	REFUSED(-EADDRINUSE, text("127.0.0.1:%d|in use", port), "TUTTI_RANK=0", "TUTTI_SIZE=2", boot_at(port), QUICK);
	close(fd);
	REFUSED(-EADDRNOTAVAIL, "192.0.2.7:4000|no such address", "TUTTI_RANK=0", "TUTTI_SIZE=2",
	        "TUTTI_BOOT=192.0.2.7:4000", SECRET, QUICK);
}

/* A misspelt variable is no error, but not silent either. */
static void test_misspelt_variable(void)
{
	JOINED(((struct try[]){ { .env = { "TUTTI_TIMEOU=5", "TUTTI_RNAK=1" } } }));
	const char *log = board->of[0].log;
	WANT(strstr(log, "TUTTI_TIMEOU is not") && strstr(log, "TUTTI_TIMEOUT"), "it wrote: %s", log);
	WANT(strstr(log, "TUTTI_RNAK is not") && strstr(log, "TUTTI_RANK"), "it wrote: %s", log);
}

static void test_config_struct(void)
{
	tutti_config rank = { .rank = 2, .ranks = 2, .boot = "127.0.0.1:1" },
		     empty = { .boot = "127.0.0.1:1" },
		     port = { .rank = 1, .ranks = 2, .boot = "here" };

	refuse_one(__LINE__, (struct try){ .config = &rank }, -EINVAL, "tutti_config.rank is 2|0 to 1");
	refuse_one(__LINE__, (struct try){ .config = &empty }, -EINVAL, "tutti_config.ranks is 0|at least one");
	refuse_one(__LINE__, (struct try){ .config = &port, .env = { QUICK } }, -EINVAL, "'|here|HOST:PORT");
}

/* ---- those who do not come, or come twice ---- */

static void test_missing(void)
{
	const char *boot = boot_at(free_port());

	REFUSED(-ETIMEDOUT, text("rank 0|%s|600 ms|Connection refused", boot + strlen("TUTTI_BOOT=")), "TUTTI_RANK=1",
	        "TUTTI_SIZE=2", boot, QUICK, "TUTTI_SILENCE=200");
	WANT(strstr(board->of[0].log, "joining waits for rank 0") &&
	     strstr(board->of[0].log, "The last try: ") && strstr(board->of[0].log, "Connection refused"),
	     "while it waited it wrote: %s", board->of[0].log);
	uint64_t ms = board->of[0].ms;
	WANT(ms >= 590 && ms < 5000 * SLOW, "it took %llu ms", (unsigned long long)ms);

	struct try t[3];
	for (int i = 0; i < 3; i++)
		t[i] = (struct try){ .env = { text("TUTTI_RANK=%d", i), "TUTTI_SIZE=5", boot, QUICK } };
	run(t, 3);
	look_refused(__LINE__, &board->of[0], -ETIMEDOUT, "ranks 3, 4 of 5 did not join|600 ms");
	for (int i = 1; i < 3; i++) {
		const struct outcome *o = &board->of[i];
		WANT(o->err == -ETIMEDOUT || o->err == -ECONNRESET, "rank %d got %d: %s", i, o->err, o->why);
		WANT(strstr(o->why, "rank 0"), "rank %d says: %s", i, o->why);
	}
}

static void test_twice(void)
{
	const char *boot = boot_at(free_port()), *size = "TUTTI_SIZE=2";
	struct try again[] = { { .env = { "TUTTI_RANK=0", size, boot }, .stay_ms = 1500 },
		               { .env = { "TUTTI_RANK=1", size, boot }, .stay_ms = 1500 },
		               { .env = { "TUTTI_RANK=1", size, boot, QUICK }, .not_before = 2 } };

	run(again, 3);
	look_joined(__LINE__, 2);
	look_refused(__LINE__, &board->of[2], -EPERM, "rank 1 is already taken|`tutti run`");
	again[2].env[0] = "TUTTI_RANK=0";
	run(again, 3);
	look_joined(__LINE__, 2);
	look_refused(__LINE__, &board->of[2], -EADDRINUSE, "in use");

	/* at once, before the job is complete */
	struct try both[] = { { .env = { "TUTTI_RANK=0", "TUTTI_SIZE=3", boot, QUICK } },
		              { .env = { "TUTTI_RANK=1", "TUTTI_SIZE=3", boot, QUICK } },
		              { .env = { "TUTTI_RANK=1", "TUTTI_SIZE=3", boot, QUICK } } };
	run(both, 3);
	look_refused(__LINE__, &board->of[0], -ETIMEDOUT, "rank 2 of 3 did not join");
	int refused = board->of[1].err == -EPERM ? 1 : 2;
	look_refused(__LINE__, &board->of[refused], -EPERM, "rank 1 is already taken");
}

/* Two jobs of one user, with one secret, one size and one port: each process of the second is told so before the first
 * is complete. */
static void test_same_port(void)
{
	const char *boot = boot_at(free_port()), *first = "SLURM_JOB_ID=1", *second = "SLURM_JOB_ID=2";
	struct try t[] = {
		{ .env = { STEP, SECRET, boot, first, "SLURM_PROCID=0", "SLURM_LOCALID=0" } },
		{ .env = { STEP, SECRET, boot, first, "SLURM_PROCID=1", "SLURM_LOCALID=1" }, .after_refused = 2 },
		{ .env = { STEP, SECRET, boot, second, "SLURM_PROCID=1", "SLURM_LOCALID=1" } },
		{ .env = { STEP, SECRET, boot, second, "SLURM_PROCID=0", "SLURM_LOCALID=0" }, .after_refused = 1 }
	};

	run(t, 4);
	look_joined(__LINE__, 2);
	look_refused(__LINE__, &board->of[2], -EPERM,
	             "port is another job's|\"slurm-1-0\"|\"slurm-2-0\"|set another TUTTI_BOOT");
	look_refused(__LINE__, &board->of[3], -EADDRINUSE,
	             "cannot listen|in use by process |(boot)|set TUTTI_BOOT=HOST:PORT|`tutti run`");
}

#define TORCH(rank, local) "TORCHELASTIC_RUN_ID=r", "RANK=" rank, "WORLD_SIZE=2", "LOCAL_RANK=" rank, local

/* Names that differ are refused, with both; the job goes on. */
static void test_names(void)
{
	char most[75] = "TUTTI_JOB=";
	const char *boot = boot_at(free_port());
	const char *zero = "TUTTI_RANK=0", *one = "TUTTI_RANK=1", *two = "TUTTI_SIZE=2";

	memset(most + 10, 'n', 64);
	JOINED(((struct try[]){ { .env = { zero, two, boot, most } }, { .env = { one, two, boot, most } } }));
	JOINED(((struct try[]){ { .env = { zero, two, boot, most } }, { .env = { one, two, boot } } }));
	JOINED(((struct try[]){ { .env = { zero, two, boot } }, { .env = { one, two, boot, "TUTTI_JOB=a" } } }));
	JOINED(((struct try[]){ { .env = { STEP, boot, "SLURM_JOB_ID=1", "SLURM_PROCID=0", "TUTTI_JOB=a" } },
	                        { .env = { STEP, boot, "SLURM_JOB_ID=2", "SLURM_PROCID=1", "TUTTI_JOB=a" } } }));
	REFUSED(-EINVAL, "TUTTI_JOB|65 bytes|1 to 64", text("%sn", most));
	REFUSED(-EINVAL, "TUTTI_JOB|control characters", "TUTTI_JOB=a\nb");

	struct try t[] = { { .env = { zero, two, boot, most } },
		           { .env = { one, two, boot, most }, .after_refused = 1 },
		           { .env = { one, two, boot, "TUTTI_JOB=another" } } };
	run(t, 3);
	look_joined(__LINE__, 2);
	look_refused(__LINE__, &board->of[2], -EPERM, text("\"%s\"|\"another\"|TUTTI_JOB", most + 10));
}

/* The first start of a job, and the start after Slurm or torchrun has begun again. */
static void test_names_of_restarts(void)
{
	static const char *const torch[] = { "LOCAL_WORLD_SIZE=1", "LOCAL_WORLD_SIZE=2" };
	const char *boot = boot_at(free_port()), *job = "SLURM_JOB_ID=7", *again = "SLURM_RESTART_COUNT=1";
	struct try t[] = { { .env = { STEP, boot, job, again, "SLURM_PROCID=0" } },
		           { .env = { STEP, boot, job, again, "SLURM_PROCID=1" }, .after_refused = 1 },
		           { .env = { STEP, boot, job, "SLURM_PROCID=1" } } };

	run(t, 3);
	look_joined(__LINE__, 2);
	look_refused(__LINE__, &board->of[2], -EPERM, "\"slurm-7-0-1\"|\"slurm-7-0\"");

	/* One torchrun a host: the hosts' counts may differ. */
	struct try two[] = { { .env = { TORCH("0", torch[0]), boot, "TORCHELASTIC_RESTART_COUNT=1" } },
		             { .env = { TORCH("1", torch[0]), boot, "TORCHELASTIC_RESTART_COUNT=0",
		                        "LOCAL_RANK=0" } } };
	run(two, 2);
	WANT(board->of[0].summed && board->of[1].summed, "they say: %s; %s", board->of[0].why, board->of[1].why);
	struct try one[] = { { .env = { TORCH("0", torch[1]), boot, "TORCHELASTIC_RESTART_COUNT=1" } },
		             { .env = { TORCH("1", torch[1]), boot, "TORCHELASTIC_RESTART_COUNT=1" },
		               .after_refused = 1 },
		             { .env = { TORCH("1", torch[1]), boot, "TORCHELASTIC_RESTART_COUNT=0" } } };
	run(one, 3);
	look_joined(__LINE__, 2);
	look_refused(__LINE__, &board->of[2], -EPERM, "\"torchrun-r-1\"|\"torchrun-r-0\"");
}

/* Rank 0 needs a connection to each rank while they join. The hard limit on open files counts: joining raises the soft
 * limit. */
static void test_files(void)
{
	const char *boot = boot_at(free_port());
	struct try t = { .env = { "TUTTI_RANK=0", "TUTTI_SIZE=80", boot, QUICK }, .files = 100, .files_most = 100 };

	refuse_one(__LINE__, t, -EMFILE, "rank 0 of 80 needs 112 open files|limit is 100|ulimit -Hn");
	WANT(board->of[0].files == 100, "%llu files", (unsigned long long)board->of[0].files);
	t.files_most = 900;
	refuse_one(__LINE__, t, -ETIMEDOUT, "ranks 1, 2,|71 more of 80 did not join");
	WANT(board->of[0].files == 900, "%llu files", (unsigned long long)board->of[0].files);
	t.files = t.files_most = 100;
	t.env[1] = "TUTTI_SIZE=68";
	refuse_one(__LINE__, t, -ETIMEDOUT, "ranks 1, 2,|59 more of 68 did not join");
}

static void test_sizes(void)
{
	const char *boot = boot_at(free_port());
	struct try t[] = { { .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2", boot, QUICK } },
		           { .env = { "TUTTI_RANK=1", "TUTTI_SIZE=3", boot, QUICK } },
		           { .env = { "TUTTI_RANK=2", "TUTTI_SIZE=3", boot, QUICK } } };

	run(t, 3);
	look_refused(__LINE__, &board->of[0], -ETIMEDOUT, "rank 1 of 2 did not join");
	look_refused(__LINE__, &board->of[1], -EPERM, "it counts 3 ranks|rank 0 counts 2");
	look_refused(__LINE__, &board->of[2], -EPERM, "it counts 3 ranks|rank 0 counts 2");
}

/* Settings that all ranks must have alike: else calls would fail later, or hang. */
static void test_settings_differ(void)
{
	static const char *const differ[][2] = {
		{ "TUTTI_ALLREDUCE=ring", "TUTTI_ALLREDUCE is ring on rank 1 and auto on rank 0: all ranks must have" },
		{ "TUTTI_PARTIALS=short", "TUTTI_PARTIALS is short on rank 1 and f32 on rank 0" },
		{ "TUTTI_MEASURE=no", "TUTTI_MEASURE is no on rank 1 and yes on rank 0" },
		{ "TUTTI_MINORITY=yes", "TUTTI_MINORITY is yes on rank 1 and no on rank 0" },
	};

	for (int i = 0; i < all_or((int)TT_COUNT(differ), 2); i++) {
		const char *boot = boot_at(free_port());
		struct try t[] = { { .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2", boot, "TUTTI_TIMEOUT=300" } },
			           { .env = { "TUTTI_RANK=1", "TUTTI_SIZE=2", boot, QUICK, differ[i][0] } } };
		run(t, 2);
		look_refused(__LINE__, &board->of[0], -ETIMEDOUT, "rank 1 of 2 did not join");
		look_refused(__LINE__, &board->of[1], -EPERM, differ[i][1]);
	}
}

/* ---- the config file ---- */

static void refuse_file(int line, const char *content, int err, const char *words)
{
	const char *file = config_file("wrong.conf", content);

	refuse_one(line, (struct try){ .env = { text("TUTTI_CONFIG=%s", file), "TUTTI_NODE=a" } }, err, words);
}

static void test_config_file(void)
{
	refuse_file(__LINE__, "timeout = 5000;\nsecrit = \"0123456789abcdef\";\n", -EINVAL,
	            "wrong.conf:2|\"secrit\"|\"secret\"");
	const char *open_to_all = config_file("open.conf", "secret = \"0123456789abcdef\";\n");
	chmod(open_to_all, 0644);
	refuse_one(__LINE__, (struct try){ .env = { text("TUTTI_CONFIG=%s", open_to_all) } }, -EACCES,
	           "open.conf|others may read|chmod 600");
	refuse_file(__LINE__, "xyzzy = 1;\n", -EINVAL, "wrong.conf:1|\"xyzzy\"");
	refuse_file(__LINE__, "\nfetch_probability = 0.5;\n", -EINVAL,
	            "wrong.conf:2|unknown key \"fetch_probability\"; did you mean gossip.fetch_probability?");
	refuse_file(__LINE__, "fetch_probabilty = 0.5;\n", -EINVAL, "did you mean gossip.fetch_probability?");
	refuse_file(__LINE__, "verbs_devices = \"mlx5_0\";\n", -EINVAL,
	            "wrong.conf:1|\"verbs_devices\" is no key|set TUTTI_VERBS_DEVICES in the environment");
	refuse_file(__LINE__, "SECRET = \"x\";\n", -EINVAL,
	            "wrong.conf:1|unknown key \"SECRET\"; did you mean \"secret\"?");
	refuse_file(__LINE__, "timeout = 5000;\n", -EINVAL, "TUTTI_NODE is \"a\"|wrong.conf has no list of nodes");
	REFUSED(-EINVAL, "TUTTI_NODE is \"a\"|TUTTI_CONFIG is not set", "TUTTI_NODE=a");
	refuse_file(__LINE__, "timeout = 5000\n\nsecret = = 4;\n", -EINVAL, "wrong.conf:3|syntax error");
	refuse_file(__LINE__, "timeout = 1.5;\n", -EINVAL, "wrong.conf:1|\"timeout\"|whole number");
	refuse_file(__LINE__, "\nsecret = [ 1, 2 ];\n", -EINVAL, "wrong.conf:2|\"secret\"|string");
	refuse_file(__LINE__, "timeout = \"soon\";\n", -EINVAL, "timeout=soon is not never or a whole number");
	refuse_file(__LINE__,
	            "secret = \"short\";\nnodes = ( { name = \"a\"; address = \"127.0.0.1:4000\"; },"
	            "{ name = \"b\"; address = \"127.0.0.1:4001\"; } );\n",
	            -EINVAL, "5 bytes|16");
	refuse_file(__LINE__, "nodes = \"a\";\n", -EINVAL, "wrong.conf:1|list");
	refuse_file(__LINE__, "nodes = ( );\n", -EINVAL, "wrong.conf:1|list");
	refuse_file(__LINE__, "nodes = ( { name = \"a\"; adress = \"127.0.0.1:4000\"; } );\n", -EINVAL,
	            "wrong.conf:1|\"adress\"|\"address\"");
	refuse_file(__LINE__, "nodes = (\n{ name = \"a\"; } );\n", -EINVAL, "wrong.conf:2|address = \"HOST:PORT\"");
	refuse_file(__LINE__, "nodes = ( 1, 2 );\n", -EINVAL, "wrong.conf:1|name = ");
	refuse_file(
		__LINE__,
		"nodes = ( { name = \"a\"; address = \"127.0.0.1:1\"; },\n{ name = \"a\"; address = \"127.0.0.1:2\"; "
		"} );\n",
		-EINVAL, "wrong.conf:2|two nodes|\"a\"");
	refuse_file(
		__LINE__,
		"nodes = ( { name = \"a\"; address = \"nowhere\"; }, { name = \"b\"; address = \"127.0.0.1:2\"; } );\n",
		-EINVAL, "wrong.conf:1|'nowhere'|HOST:PORT");
	refuse_file(/* not one's own: it would be used much later, if ever */
	            __LINE__,
	            "nodes = ( { name = \"a\"; address = \"127.0.0.1:1\"; },\n{ name = \"b\"; address = "
	            "\"127.0.0.1:99999\"; } );\n",
	            -EINVAL, "wrong.conf:2|'127.0.0.1:99999'|HOST:PORT");
	refuse_file(
		__LINE__,
		"nodes = ( { name = \"a\"; address = \"127.0.0.1:1\"; },\n{ name = \"b\"; address = \":4000\"; } );\n",
		-EINVAL, "wrong.conf:2|':4000'|HOST:PORT");
	refuse_file(__LINE__, "timeout = 100;\n @include \"..\"\n", -EINVAL, "wrong.conf:2|cannot include");
	REFUSED(-ENOENT, text("%s|No such file", file_at("none.conf")), text("TUTTI_CONFIG=%s", file_at("none.conf")));
	REFUSED(-EISDIR, text("%s|directory", where), text("TUTTI_CONFIG=%s", where));
}

static void test_node_names(void)
{
	const char *file = text("TUTTI_CONFIG=%s", three_nodes("nodes.conf", ""));

	REFUSED(-EINVAL, "\"lfet\"|did you mean left", file, "TUTTI_NODE=lfet");
	REFUSED(-EINVAL, "\"qqqqqq\"", file, "TUTTI_NODE=qqqqqq");
	WANT(!strstr(board->of[0].why, "did you mean"), "%s", board->of[0].why);
	REFUSED(-EINVAL, "3 nodes|TUTTI_NODE", file);
}

/* The environment comes before the file, the program before both: with any other secret or timeout they would not
 * meet. */
static void test_precedence(void)
{
	const char *file = text("TUTTI_CONFIG=%s",
	                        config_file("order.conf", "timeout = 100;\nsecret = \"00112233445566778899\";\n")),
		   *boot = boot_at(free_port());
	tutti_config program = { .secret = strchr(SECRET, '=') + 1, .timeout_ms = 5000 };
	struct try t[] = { { .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2", boot, file, SECRET, "TUTTI_TIMEOUT=5000" } },
		           { .env = { "TUTTI_RANK=1", "TUTTI_SIZE=2", boot, SECRET }, .late_ms = 400 } };

	JOINED(t);
	t[0] = (struct try){ .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2", boot, file, "TUTTI_SECRET=ffeeddccbbaa9988",
		                      "TUTTI_TIMEOUT=100" },
		             .config = &program };
	JOINED(t);
	chmod(config_file("another", "0123456789abcdef0123\n"), 0600);
	t[0] = (struct try){ .env = { "TUTTI_RANK=0", "TUTTI_SIZE=2", boot, file, "TUTTI_TIMEOUT=5000",
		                      text("TUTTI_SECRET_FILE=%s", file_at("another")) } };
	JOINED(t);
}

/* Who says where the others are: the program, then TUTTI_RANK and its kin, then the list, then torchrun, then nobody.
 * Two processes join by `more` and `config`, with the list and torchrun's variables there too. */
static void place_by(int line, const char *file, const char *const more[2][3], const tutti_config *config[2])
{
	const char *port = text("MASTER_PORT=%d", free_port());
	struct try t[2];

	for (int i = 0; i < 2; i++)
		t[i] = (struct try){ .env = { file, i ? "TUTTI_NODE=middle" : "TUTTI_NODE=left", text("RANK=%d", 4 - i),
			                      "WORLD_SIZE=5", "MASTER_ADDR=127.0.0.1", port, more[i][0], more[i][1],
			                      more[i][2] },
			             .config = config[i] };
	run(t, 2);
	look_joined(line, 2);
}

static void test_who_places(void)
{
	const char *boot = boot_at(free_port()), *other = text("127.0.0.1:%d", free_port());
	const char *list =
		text("TUTTI_CONFIG=%s",
	             config_file("places.conf", text("nodes = ( { name = \"left\"; address = \"127.0.0.1:%d\"; },"
	                                             "{ name = \"middle\"; address = \"127.0.0.1:%d\"; } );\n",
	                                             free_port(), free_port())));
	tutti_config c[2] = { { .rank = 0, .ranks = 2, .boot = other },
		              { .rank = 1, .ranks = 2, .boot = other } };
	const tutti_config *none[2] = { NULL }, *program[2] = { &c[0], &c[1] };

	/* the list, not torchrun */
	place_by(__LINE__, list, (const char *const[2][3]){ { NULL } }, none);
	/* the same: an address alone is no place */
	place_by(__LINE__, list, (const char *const[2][3]){ { boot }, { boot } }, none);
	place_by(__LINE__, list,
	         (const char *const[2][3]){ { "TUTTI_RANK=0", "TUTTI_SIZE=2", boot },
	                                    { "TUTTI_RANK=1", "TUTTI_SIZE=2", boot } },
	         /* a launcher, not the list */
	         none);
	WANT(port_of(board->of[0].addr) == port_of(boot), "rank 0 listens at %s, not at %s", board->of[0].addr, boot);
	place_by(__LINE__, list,
	         (const char *const[2][3]){ { "TUTTI_RANK=7", "TUTTI_SIZE=9", boot },
	                                    { "TUTTI_RANK=7", "TUTTI_SIZE=9", boot } },
	         /* the program, not both */
	         program);
	WANT(port_of(board->of[0].addr) == port_of(other), "rank 0 listens at %s, not at %s", board->of[0].addr, other);
	REFUSED(-EINVAL, "TUTTI_RANK is set|TUTTI_SIZE is not", list, "TUTTI_NODE=left", "TUTTI_RANK=1");
}

/* Known answers: other implementations of docs/wire.md must come to the same. */
static void test_job_id(void)
{
	struct tt_node nodes[2] = { { "left", "10.0.0.1:4000" }, { "right", "10.0.0.2:4000" } };
	struct tt_launch b = { .size = 2, .address = "10.0.0.1:4000" };

	CU_ASSERT_EQUAL(tt_launch_job_id(&b), 0x0f4abfe5b5a14c12u);
	b = (struct tt_launch){ .rank = 1, .size = 7, .address = "[::1]:4000" };
	CU_ASSERT_EQUAL(tt_launch_job_id(&b), 0x0f4abfe5b5a14c12u); /* neither the host nor the size count */
	b = (struct tt_launch){ .size = 1, .address = "here" };
	CU_ASSERT_EQUAL(tt_launch_job_id(&b), 0xe4e5e246141cf03cu);
	b = (struct tt_launch){ .size = 2, .nodes = nodes };
	CU_ASSERT_EQUAL(tt_launch_job_id(&b), 0xd56c0b51b996890fu);
}

/* ---- */

static int set_up(void)
{
	for (int i = 0; i < TT_SETTINGS; i++) /* nothing of whoever runs the tests */
		unsetenv(tt_setting_info[i].variable);
	board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (board != MAP_FAILED && mkdtemp(where))
		return 0;
	perror("no place for the tests");
	return -1;
}

static void tear_down(void)
{
	static const char *const names[] = { "nodes.conf", "wrong.conf", "order.conf", "places.conf", "memory.conf" };

	for (size_t i = 0; i < TT_COUNT(names); i++)
		unlink(file_at(names[i]));
	rmdir(where);
}

static CU_TestInfo way_tests[] = {
	{ "alone", test_alone },
	{ "in any order", test_order },
	{ "by the program", test_program },
	{ "torchrun", test_torchrun },
	{ "a list of nodes", test_nodes },
	{ "a node alone", test_node_alone },
	{ "nodes that differ", test_nodes_differ },
	{ "wires", test_wires },
	{ "slow to join", test_lingering },
	{ "nodes in shared memory", test_nodes_in_memory },
	{ "two jobs", test_two_jobs },
	{ "IPv6", test_ipv6 },
	{ "ports", test_ports },
	{ "a list of addresses", test_list },
	{ "interface", test_interface },
	{ "a socket handed over", test_handed_socket },
	{ "a stale socket", test_stale_socket },
	{ "closed standard files", test_closed_files },
	{ "system calls that are denied", test_denied_calls },
	{ "the port of a try", test_port_of_a_try },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo secret_tests[] = {
	{ "none: only loopback", test_only_loopback },
	{ "the kernel agrees", test_kernel_agrees },
	{ "users", test_users },
	{ "unknown users", test_unknown_users },
	{ "wrong, one-sided, short", test_secrets },
	{ "drawn secrets", test_drawn_secrets },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo wrong_tests[] = {
	{ "variables", test_variables },
	{ "addresses", test_boot_addresses },
	{ "misspelt variables", test_misspelt_variable },
	{ "the variables of other launchers", test_other_launchers },
	{ "launchers that Tutti cannot ask", test_foreign_launchers },
	{ "a launcher that has gone", test_launcher_gone },
	{ "a secret in a file", test_secret_file },
	{ "tutti_config", test_config_struct },
	{ "missing ranks", test_missing },
	{ "a rank twice", test_twice },
	{ "a port twice", test_same_port },
	{ "names", test_names },
	{ "names of restarts", test_names_of_restarts },
	{ "sizes", test_sizes },
	{ "settings that differ", test_settings_differ },
	{ "open files", test_files },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo file_tests[] = {
	{ "wrong files", test_config_file },
	{ "names of nodes", test_node_names },
	{ "precedence", test_precedence },
	{ "who gives places", test_who_places },
	{ "the job's id", test_job_id },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = {
	{ "ways", NULL, NULL, NULL, NULL, way_tests },
	{ "secret", NULL, NULL, NULL, NULL, secret_tests },
	{ "wrong", NULL, NULL, NULL, NULL, wrong_tests },
	{ "file", NULL, NULL, NULL, NULL, file_tests },
	CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv)
{
#if !defined(HAVE_LIBSODIUM) || !defined(HAVE_LIBCONFIG)
	printf("SKIPPED: these tests join with secrets and by config files, and this build has no libsodium or no "
	       "libconfig\n");
	return 77;
#endif
	if (set_up())
		return 1;
	int result = run_suites(suites, argc, argv);
	tear_down();
	return result;
}
