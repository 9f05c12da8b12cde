/* tutti run - start a job's ranks on this host, pass their output on, and leave nothing behind
 *
 *   run ──fork── keeper: in its own session; when run is gone, however it went, it ends all ranks' process groups
 *    └────fork── rank 0 .. n-1: each leads its own process group ══ two pipes each ══> run's stdout and stderr
 *
 * One loop waits for three things: signals (a child's end too), room in the outputs, and, while an output has nothing
 * left to write, text for it from the ranks. So a reader that stalls stalls the ranks, and never the signals. */
#include "member/member.h"
#include "tools/run/run.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	TOLD_MAX = 10,             /* failures that get a sentence of their own */
	SPARE_FILES = 64,
	HOSTS_AT_ONCE = 32,        /* connections that are being made: gateways and sshd refuse more */
	HOST_TRIES = 3,
	PER_SECOND = 1000000000,
};
static const uint64_t HOST_MOMENT = 5000 * TT_MS, MEETING_TIME = 60000 * TT_MS,
                      PAUSE = 100 * TT_MS, PAUSE_MOST = 30000 * TT_MS, CALM = 60000 * TT_MS;

static const int passed_on[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP };

/* The keeper. */

static void signal_groups(struct process_groups *all, int sig)
{
	for (int r = 0; r < RANKS_MAX; r++)
		if (all->group[r])
			kill(-all->group[r], sig);
}

static bool any_group_left(struct process_groups *all)
{
	for (int r = 0; r < RANKS_MAX; r++)
		if (all->group[r] && !kill(-all->group[r], 0))
			return true;
	return false;
}

static void close_from(unsigned first)
{
	struct rlimit most;

	if (!syscall(SYS_close_range, first, ~0u, 0))
		return;
	getrlimit(RLIMIT_NOFILE, &most);
	for (unsigned fd = first; fd < most.rlim_cur; fd++)
		close((int)fd);
}

/* The keeper keeps no file open, so that no reader waits for its end, and reacts to nothing but the end of `life`. */
static _Noreturn void keep(struct run *run, int life)
{
	const struct timespec moment = { 0, 10000000 };
	sigset_t all;
	char c;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	setsid();
	prctl(PR_SET_NAME, "tutti-keeper");
	(void)!chdir("/");
	dup2(run->null, 1);
	dup2(run->null, 2);
	dup2(life, 0);
	close_from(3);
	while (read(0, &c, 1) < 0 && errno == EINTR) /* nothing is ever written: this returns when tutti run ends */
		;
	signal_groups(run->groups, SIGTERM);
	for (uint64_t end = tt_now() + run->groups->grace; any_group_left(run->groups) && tt_now() < end;)
		nanosleep(&moment, NULL);
	signal_groups(run->groups, SIGKILL);
	_exit(0);
}

static int start_keeper(struct run *run)
{
	int life[2];

	run->groups = mmap(NULL, sizeof *run->groups, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (run->groups == MAP_FAILED)
		run->groups = NULL;
	if (!run->groups || pipe2(life, O_CLOEXEC))
		return -errno;
	run->groups->grace = run->options.grace;
	run->life = life[1];
	run->keeper = fork();
	if (!run->keeper)
		keep(run, life[0]);
	close(life[0]);
	return run->keeper < 0 ? -errno : 0;
}

/* Starting. */

static const char *variable(enum tt_setting s) { return tt_setting_info[s].variable; }

static void set_number(enum tt_setting s, int value)
{
	char text[16];

	snprintf(text, sizeof text, "%d", value);
	setenv(variable(s), text, 1);
}

int tt_run_boot(const char *address, unsigned port, char text[128])
{
	snprintf(text, 128, strchr(address, ':') ? "[%.100s]:%u" : "%.100s:%u", address, port);
	return setenv(variable(TT_BOOT), text, 1) ? -errno : 0;
}

/* Below the ports that the kernel gives out: none of these is a connection's own port when rank 0 leaves the job and
 * listens there again. SO_REUSEADDR, since old connections to that port may still be in TIME_WAIT then. */
int tt_run_listen(int fd, struct sockaddr *at, socklen_t size)
{
	in_port_t *port = &((struct sockaddr_in *)(void *)at)->sin_port; /* at the same place in IPv6 */
	uint16_t chance;
	int on = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	for (int i = 0; i < 100; i++) {
		tt_entropy(&chance, sizeof chance);
		*port = i < 99 ? htons((uint16_t)(20000 + chance % 12000)) : 0;
		if (!bind(fd, at, size))
			return listen(fd, SOMAXCONN) || getsockname(fd, at, &size) ? -1 : 0;
	}
	return -1; /* listen() would bind the socket to all interfaces */
}

static int listen_at(struct run *run, struct sockaddr *at, socklen_t size)
{
	run->boot = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (run->boot >= 0 && !tt_run_listen(run->boot, at, size))
		return 0;
	int err = -errno;
	if (run->boot >= 0)
		close(run->boot);
	run->boot = -1;
	return err;
}

static int listen_on_loopback(struct run *run)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	char text[128];
	int err = listen_at(run, (struct sockaddr *)&v4, sizeof v4), other = 0;

	if (err)
		other = listen_at(run, (struct sockaddr *)&v6, sizeof v6);
	if (err && other)
		return tt_fail(err, "cannot listen on 127.0.0.1 (%s) nor on [::1] (%s): ranks of this host meet there; "
		               "is the interface lo up (ip link set lo up)?", strerror(-err), strerror(-other));
	return err ? tt_run_boot("::1", ntohs(v6.sin6_port), text) : tt_run_boot("127.0.0.1", ntohs(v4.sin_port), text);
}

/* Rank 0 inherits the socket: the port is reserved from now on, and other ranks' connects wait for rank 0. */
static int open_boot(struct run *run)
{
	if (run->options.hosts && !run->options.rendezvous)
		return 0; /* hosts.c knows it once the first host is reached */
	if (run->options.agent)
		return 0; /* the order has it */
	if (run->options.rendezvous) { /* rank 0 listens there itself */
		setenv(variable(TT_BOOT), run->options.rendezvous, 1);
		return 0;
	}
	return listen_on_loopback(run);
}

/* A rank that died may join again, and so may new ones. */
static void tell_how_to_join(struct run *run)
{
	const char *secret = tt_env(TT_SECRET), *name = secret ? " TUTTI_SECRET=" : "";

	if (secret && !isatty(STDERR_FILENO))
		secret = "(shown on a terminal alone)";
	if (!secret && (secret = tt_env(TT_SECRET_FILE)))
		name = " TUTTI_SECRET_FILE=";
	tt_run_say(run, "to start a rank again: TUTTI_RANK=R TUTTI_SIZE=%d TUTTI_BOOT=%s%s%s PROGRAM; "
	           "to add one: TUTTI_RANK=new", run->options.size, tt_env(TT_BOOT), name, secret ? secret : "");
}

static void draw_secret(void)
{
#ifdef HAVE_LIBSODIUM /* without it a job with a secret cannot start; loopback needs none */
	uint8_t bytes[32];
	char text[2 * sizeof bytes + 1];

	if (tt_env(TT_SECRET) || tt_env(TT_SECRET_FILE) || !tt_entropy(bytes, sizeof bytes))
		return;
	for (size_t i = 0; i < sizeof bytes; i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	setenv(variable(TT_SECRET), text, 1);
#endif
}

/* A name that a rank of an outer job has inherited is not this job's. */
static void set_job(void)
{
	uint64_t chance;
	char text[24];

	if (tt_env(TT_JOB) && !tt_env(TT_RANK))
		return;
	tt_entropy(&chance, sizeof chance);
	snprintf(text, sizeof text, "run-%016llx", (unsigned long long)chance);
	setenv(variable(TT_JOB), text, 1);
}

static int set_environment(struct run *run)
{
	struct stat is;
	char text[40];

	unsetenv(variable(TT_BOOT_FD)); /* of an outer job */
	if (pipe2(run->told, O_CLOEXEC | O_NONBLOCK) || fstat(run->told[1], &is))
		return -errno;
	snprintf(text, sizeof text, "%d:%llu", run->told[1], (unsigned long long)is.st_ino);
	setenv(variable(TT_RUN_PIPE), text, 1);
	set_number(TT_SIZE, run->options.size);
	set_number(TT_LOCAL_SIZE, run->options.ranks);
	draw_secret();
	if (!run->options.agent)
		set_job();
	return 0;
}

static int open_signals(struct run *run)
{
	struct sigaction hup;
	sigset_t ours;

	sigaction(SIGHUP, NULL, &hup);
	run->hup_ignored = hup.sa_handler == SIG_IGN; /* nohup */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGCHLD, SIG_DFL); /* if ignored, the ranks' statuses would be lost */
	sigemptyset(&ours);
	sigaddset(&ours, SIGCHLD);
	for (size_t i = 0; i < TT_COUNT(passed_on); i++)
		if (passed_on[i] != SIGHUP || !run->hup_ignored)
			sigaddset(&ours, passed_on[i]);
	sigprocmask(SIG_BLOCK, &ours, NULL);
	run->signals = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
	return run->signals < 0 ? -errno : 0;
}

/* A shell starts `tutti run &` with SIGINT ignored. The ranks must not inherit that, nor the changes made here. A
 * request for stats must not end ranks that have not joined yet, nor a script around a rank: the library handles
 * SIGUSR1 in the rank. Signals that the parent of `tutti run` has blocked reach the ranks: else SIGTERM might not end
 * them. */
static void restore_signals(const struct run *run)
{
	const char *stats = tt_env(TT_STATS_SIGNAL);
	sigset_t none;

	signal(SIGPIPE, SIG_DFL);
	for (size_t i = 0; i < TT_COUNT(passed_on); i++)
		if (passed_on[i] != SIGHUP || !run->hup_ignored)
			signal(passed_on[i], SIG_DFL);
	if (!stats || strcmp(stats, "none"))
		signal(SIGUSR1, SIG_IGN); /* still blocked, so none was delivered */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Rank 0 names its job, so a job under way takes the next life of rank 0 in as a new rank, by the addresses of other
 * ranks. As long as no rank has told them, the job has not begun. */
static void set_rank(const struct run *run, int rank)
{
	char pipe[64];

	snprintf(pipe, sizeof pipe, "%s:%d", tt_env(TT_RUN_PIPE), rank);
	setenv(variable(TT_RUN_PIPE), pipe, 1);
	set_number(TT_RANK, rank);
	if (rank || !*run->boot_list)
		return;
	setenv(variable(TT_RANK), "new", 1);
	setenv(variable(TT_BOOT), run->boot_list, 1);
}

/* In the child. The order matters: once the keeper knows the group, no process can be left behind. */
static _Noreturn void become_rank(struct run *run, int r, int in, const int out[2], int report)
{
	const uint64_t pause = run->ranks[r].pause;
	bool reads = !r && !isatty(0) && !run->options.agent;
	const struct options *o = &run->options;

	setpgid(0, 0);
	run->groups->group[r] = getpid();
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != run->self)
		_exit(1);
	close(run->life);
	set_rank(run, o->first + r);
	set_number(TT_LOCAL_RANK, r);
	if (!r && run->boot >= 0 && !*run->boot_list) { /* a rank 0 that comes back joins as a new rank */
		set_number(TT_BOOT_FD, run->boot);
		fcntl(run->boot, F_SETFD, 0);
	}
	fcntl(run->told[1], F_SETFD, 0);
	if (in >= 0 || !reads)
		dup2(in >= 0 ? in : run->null, 0);
	for (int i = 0; i < 2; i++)
		if (out[i] >= 0)
			dup2(out[i], 1 + i);
	setrlimit(RLIMIT_NOFILE, &run->files);
	restore_signals(run);
	if (pause)
		nanosleep(&(struct timespec){ (time_t)(pause / PER_SECOND), (long)(pause % PER_SECOND) }, NULL);
	if (o->hosts) {
		unsetenv(variable(TT_SECRET)); /* the order has it */
		tt_run_become_ssh(o, &o->hosts[r], report);
	}
	execvp(o->program[0], o->program);
	int err = errno;
	(void)!write(report, &err, sizeof err);
	_exit(127);
}

static int start_rank(struct run *run, int r, int report)
{
	struct rank *rank = &run->ranks[r];
	struct host *host = run->options.hosts ? &run->options.hosts[r] : NULL;
	int out[2] = { -1, -1 }, in[2] = { -1, -1 }, err = 0;

	for (int i = 0; i < 2 && !err; i++)
		err = tt_run_open_stream(run, r, i, &out[i]);
	if (!err && host && !(err = pipe2(in, O_CLOEXEC) ? -errno : 0)) {
		host->orders = in[1];
		fcntl(in[1], F_SETFL, O_NONBLOCK);
	}
	if (!err) {
		pid_t pid = fork();
		if (!pid)
			become_rank(run, r, in[0], out, report);
		err = pid < 0 ? -errno : 0;
		if (!err) {
			setpgid(pid, pid); /* the child does the same; either may be first */
			run->groups->group[r] = pid;
			rank->pid = rank->group = pid;
			rank->begun = tt_now();
			run->alive++;
		}
	}
	for (int i = 0; i < 2; i++)
		if (out[i] >= 0)
			close(out[i]);
	if (in[0] >= 0)
		close(in[0]);
	return err;
}

static void pass_on(struct run *run, int sig)
{
	for (int r = 0; r < run->count; r++)
		if (run->ranks[r].pid && run->options.hosts)
			tt_run_order(run, r, sig);
		else if (run->ranks[r].pid)
			kill(-run->ranks[r].pid, sig);
}

/* Starts all ranks; of hosts some at once. Failures of exec come through one pipe, which a successful exec closes. */
static int start_ranks(struct run *run)
{
	const struct options *o = &run->options;
	int report[2], err = 0, n = o->hosts && run->count > HOSTS_AT_ONCE ? HOSTS_AT_ONCE : run->count;

	if (pipe2(report, O_CLOEXEC | O_NONBLOCK))
		return tt_tool_refuse("run", "cannot make a pipe: %s", strerror(errno));
	while (!err && run->next < n)
		err = start_rank(run, run->next++, report[1]);
	close(report[1]);
	run->report = report[0];
	if (run->boot >= 0)
		close(run->boot);
	run->boot = -1;
	if (err)
		return tt_tool_refuse("run", "cannot start rank %d of %d: %s%s", o->first + run->next - 1, o->size,
		                      strerror(-err), err == -EMFILE ? tt_files_hint(-err) : tt_process_hint(-err));
	return 0;
}

/* What helps a user who has named a file that is there. */
static void explain_exec(const char *program, int err, char text[400])
{
	bool alone = !strchr(program, '/'), runs = !access(program, X_OK);
	struct stat is;

	*text = 0;
	if (stat(program, &is))
		return;
	if (S_ISDIR(is.st_mode))
		snprintf(text, 400, ": it is a folder");
	else if (alone && runs)
		snprintf(text, 400, "; it is in this folder, which PATH does not name: write ./%.200s", program);
	else if (!runs)
		snprintf(text, 400, "; the file is there, and is not executable: start it by its interpreter, as "
		         "python3 train.py, or compile it, or chmod +x it");
	else if (err == ENOENT)
		snprintf(text, 400, "; the file is there, and what its first line or its header names, an interpreter "
		         "or a loader, is not");
}

static int refuse_program(const struct run *run, int err)
{
	const struct options *o = &run->options;
	const char *program = !o->hosts ? o->program[0] : o->rsh ? o->rsh : "ssh";
	char more[400];

	explain_exec(program, err, more);
	tt_tool_refuse("run", "%s%s%scannot execute %s: %s%s", *o->host ? "on " : "", o->host, *o->host ? ": " : "",
	               program, strerror(err), more);
	return err == ENOENT ? 127 : 126;
}

/* A file system that hangs may keep ranks in exec: signals are heard meanwhile. */
static void take_report(struct run *run)
{
	int why;
	ssize_t n = run->report < 0 ? -1 : read(run->report, &why, sizeof why);

	if (run->report < 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
		return;
	close(run->report);
	run->report = -1;
	if (n == sizeof why) {
		run->refused = true;
		run->status = refuse_program(run, why);
	} else if (run->options.verbose && !run->options.hosts)
		tell_how_to_join(run);
}

/* Ranks that end. */

static bool may_start_again(const struct run *run)
{
	return run->stage == RUNNING && run->restarted < run->options.restarts;
}

/* The pause doubles, so that a rank which fails at once is no storm; the first one gives the rank a later epoch. */
static void lengthen_pause(struct rank *rank)
{
	if (!rank->pause || tt_now() - rank->begun > rank->pause + CALM)
		rank->pause = PAUSE;
	else
		rank->pause = tt_min(2 * rank->pause, PAUSE_MOST);
}

static bool start_again(struct run *run, int r)
{
	run->restarted++;
	run->ranks[r].signal = 0;
	int err = start_rank(run, r, -1);
	if (err)
		tt_run_say(run, "rank %d cannot be started again: %s", run->options.first + r, strerror(-err));
	return !err;
}

static void judge(struct run *run, int r, pid_t pid, int status)
{
	bool killed = WIFSIGNALED(status);
	int value = killed ? WTERMSIG(status) : WEXITSTATUS(status);

	if (!killed && !value) {
		run->finished = true;
		return;
	}
	bool again = may_start_again(run);
	if (again)
		lengthen_pause(&run->ranks[r]);
	if (run->stage < ENDING && (again || ++run->failed <= TOLD_MAX)) { /* else on purpose, or one of many */
		char how[80] = "";
		if (again) {
			uint64_t pause = run->ranks[r].pause / PER_SECOND;
			bool renamed = !(run->options.first + r) && *run->boot_list;
			int n = snprintf(how, sizeof how, ", and is started again%s (%d of %d)",
			                 renamed ? " as a new rank" : "", run->restarted + 1, run->options.restarts);
			if (pause)
				snprintf(how + n, sizeof how - (size_t)n, " in %llu s", (unsigned long long)pause);
		}
		if (killed)
			tt_run_say(run, "rank %d (pid %d) was killed by signal %d (%s)%s", run->options.first + r,
			           (int)pid, value, strsignal(value), how);
		else
			tt_run_say(run, "rank %d (pid %d) exited with status %d%s", run->options.first + r, (int)pid,
			           value, how);
	}
	if (again && start_again(run, r))
		return;
	if (!run->status)
		run->status = killed ? 128 + value : value;
	if (run->stage == RUNNING && !run->options.keep_going) {
		run->stage = FAILING;
		run->deadline = tt_now() + run->options.grace;
	}
}

/* The programs of ranks that were evicted may not notice, and nobody waits for what they do. */
static void take_evicted(struct run *run, const struct tt_saying *s)
{
	int r = s->rank - run->options.first;
	struct rank *rank = r >= 0 && r < run->count ? &run->ranks[r] : NULL;

	if (!rank || !rank->pid || rank->signal)
		return;
	tt_run_say(run, "the other ranks go on without rank %d (pid %d): %s; it has %llu ms to end", s->rank,
	           (int)rank->pid, s->text, (unsigned long long)(run->options.grace / TT_MS));
	rank->signal = SIGTERM;
	rank->ends = tt_now() + run->options.grace;
}

/* A rank may be in another job, too: the first address, behind its transport's name, names the job. */
static void take_boot_list(struct run *run, const char *list)
{
	const char *boot = tt_env(TT_BOOT);
	size_t len = boot ? strlen(boot) : 0, first = strcspn(list, ",");

	if (len && len <= first && !strncmp(list + first - len, boot, len))
		snprintf(run->boot_list, sizeof run->boot_list, "%s", list);
}

static void take_told(struct run *run)
{
	struct tt_saying s;

	while (read(run->told[0], &s, sizeof s) == sizeof s) {
		s.text[sizeof s.text - 1] = 0;
		if (s.what == TT_SAYS_EVICTED)
			take_evicted(run, &s);
		else if (s.what == TT_SAYS_BOOT)
			take_boot_list(run, s.text);
	}
}

/* Hosts. */

static void reach_for(struct run *run, int r)
{
	int err = start_rank(run, r, -1);

	run->deadline = tt_now() + MEETING_TIME;
	if (err) {
		tt_run_say(run, "cannot start the connection to host %s: %s", run->options.hosts[r].name,
		           strerror(-err));
		run->status = TT_TOOL_REFUSED;
		tt_run_end_ranks(run, SIGTERM, run->options.grace);
	}
}

void tt_run_reach_next(struct run *run)
{
	if (run->stage == MEETING && run->next < run->count)
		reach_for(run, run->next++);
}

/* 255 is ssh's own: a gateway or a host may have had too many connections for a moment. */
static bool is_worth_a_try(const struct run *run, int r, int status)
{
	const struct host *h = &run->options.hosts[r];

	return run->stage == MEETING && !h->met && WIFEXITED(status) && WEXITSTATUS(status) == 255 &&
	       h->again < HOST_TRIES - 1;
}

static void try_host_again(struct run *run, int r)
{
	struct host *h = &run->options.hosts[r];

	h->again++;
	close(h->orders);
	h->orders = -1;
	run->ranks[r].pause = run->ranks[r].pause ? 4 * run->ranks[r].pause : 2 * PAUSE;
	reach_for(run, r);
}

/* The rank is a zombie, so its number is not used again yet, and the signal cannot hit another group. */
static void bury(struct run *run, int r)
{
	struct rank *rank = &run->ranks[r];
	pid_t pid = rank->pid;
	int status = 0;

	kill(-pid, SIGKILL); /* the rest of its group */
	run->groups->group[r] = 0;
	waitpid(pid, &status, 0);
	rank->pid = 0;
	take_told(run); /* what it said last is not of the life that may come after it */
	run->alive--;
	for (int i = 0; i < 2; i++) { /* its output comes before our sentence; a pipe holds a megabyte at most */
		for (size_t n = 0; n < (1 << 20) / 4096 && tt_run_read_stream(run, &rank->out[i]); n++)
			;
		tt_run_close_stream(run, &rank->out[i]);
	}
	if (run->options.hosts && is_worth_a_try(run, r, status))
		try_host_again(run, r);
	else if (run->options.hosts)
		tt_run_judge_host(run, r, status);
	else
		judge(run, r, pid, status);
}

static void bury_the_dead(struct run *run)
{
	siginfo_t dead;

	for (;;) {
		int r = 0;
		dead.si_pid = 0;
		if (waitid(P_ALL, 0, &dead, WEXITED | WNOHANG | WNOWAIT) || !dead.si_pid)
			return;
		while (r < run->count && run->ranks[r].pid != dead.si_pid)
			r++;
		if (r < run->count)
			bury(run, r);
		else
			waitpid(dead.si_pid, NULL, 0); /* an orphan of a rank, or a child from before exec */
	}
}

/* "rank 3", "ranks 0-2, 5", "host b": those that have not ended. */
static void name_living(const struct run *run, char *text, size_t size)
{
	int n = run->count, first = run->options.first, len;
	const char *comma = "";

	len = snprintf(text, size, "%s%s ", run->options.hosts ? "host" : "rank", run->alive > 1 ? "s" : "");
	for (int r = 0; run->options.hosts && r < n && len < (int)size - 160; r++)
		if (run->ranks[r].pid) {
			len += snprintf(text + len, size - (size_t)len, "%s%s", comma, run->options.hosts[r].name);
			comma = ", ";
		}
	if (run->options.hosts)
		return;
	for (int r = 0, end; r < n && len < (int)size - 32; r = end + 1, comma = ", ") {
		while (r < n && !run->ranks[r].pid)
			r++;
		for (end = r; end + 1 < n && run->ranks[end + 1].pid;)
			end++;
		if (r >= n)
			return;
		len += snprintf(text + len, size - (size_t)len, end > r ? "%s%d-%d" : "%s%d", comma, first + r,
		                first + end);
	}
	if (len >= (int)size - 32)
		snprintf(text + len, size - (size_t)len, " and more");
}

static void kill_ranks(struct run *run)
{
	char names[400];

	name_living(run, names, sizeof names);
	tt_run_say(run, "%s did not end and %s killed", names, run->alive > 1 ? "were" : "was");
	pass_on(run, SIGKILL);
	run->stage = KILLED;
	run->deadline = tt_now() + 5000 * TT_MS;
}

static void abandon(struct run *run)
{
	char names[400];

	name_living(run, names, sizeof names);
	if (run->options.hosts)
		tt_run_say(run, "%s cannot be heard any more: the connection is cut, and the ranks end there when that "
		           "is noticed", names);
	else
		tt_run_say(run, "%s cannot be killed: left behind, in a system call that does not end", names);
	for (int r = 0; r < run->count; r++) {
		for (int i = 0; i < 2; i++)
			tt_run_close_stream(run, &run->ranks[r].out[i]);
		if (run->ranks[r].pid && run->options.hosts)
			kill(-run->ranks[r].pid, SIGKILL);
		run->ranks[r].pid = 0;
	}
	run->alive = 0;
	run->status = run->status ? run->status : 128 + SIGKILL;
}

/* Agents do the same on their hosts, a moment later. */
void tt_run_end_ranks(struct run *run, int sig, uint64_t grace)
{
	pass_on(run, sig);
	run->stage = ENDING;
	run->deadline = tt_now() + grace + (run->options.hosts ? HOST_MOMENT : 0);
}

/* A rank under SIGSTOP may have been evicted and outlived: nobody would end it. */
static bool only_stopped_are_left(const struct run *run)
{
	siginfo_t what;

	if (run->alive == run->count)
		return false;
	for (int r = 0; r < run->count; r++) {
		what.si_pid = 0;
		if (run->ranks[r].pid && (waitid(P_PID, (id_t)run->ranks[r].pid, &what, WSTOPPED | WNOHANG | WNOWAIT) ||
		                          !what.si_pid))
			return false;
	}
	return run->alive;
}

static void look_at_stopped(struct run *run)
{
	char names[400];

	if (run->stage != RUNNING || !only_stopped_are_left(run))
		return;
	name_living(run, names, sizeof names);
	tt_run_say(run, "%s %s stopped, and all others have ended: killed after the grace unless continued", names,
	           run->alive > 1 ? "are" : "is");
	run->stage = STOPPED;
	run->deadline = tt_now() + run->options.grace;
}

static void end_evicted(struct run *run)
{
	uint64_t now = tt_now();

	for (int r = 0; r < run->count; r++) {
		struct rank *rank = &run->ranks[r];
		if (!rank->pid || !rank->signal || now < rank->ends)
			continue;
		kill(-rank->group, rank->signal);
		rank->signal = SIGKILL;
		rank->ends = now + 1000 * TT_MS;
	}
}

static void give_up_meeting(struct run *run)
{
	char names[400];

	tt_run_name_unmet(run, names, sizeof names);
	tt_run_say(run, "no answer from %s in %llu s: is tutti there, and does ssh get through?", names,
	           (unsigned long long)(MEETING_TIME / 1000 / TT_MS));
	run->status = TT_TOOL_REFUSED;
	tt_run_end_ranks(run, SIGTERM, run->options.grace);
}

/* The stage's time is over. */
static void escalate(struct run *run)
{
	run->outlived = run->stage == STOPPED && only_stopped_are_left(run);
	if (run->stage == STOPPED && !run->outlived)
		run->stage = RUNNING;
	else if (run->stage == MEETING)
		give_up_meeting(run);
	else if (run->stage == FAILING)
		tt_run_end_ranks(run, SIGTERM, run->options.grace < 1000 * TT_MS ? run->options.grace : 1000 * TT_MS);
	else if (run->stage == ENDING || run->outlived)
		kill_ranks(run);
	else
		abandon(run);
}

/* Signals. */

static void interrupt(struct run *run, int sig)
{
	if (!run->alive) /* only output is left */
		run->sinks[0].len = run->sinks[0].sent = run->sinks[1].len = run->sinks[1].sent = 0;
	else if (sig == SIGINT && run->interrupted && run->stage < KILLED)
		kill_ranks(run);
	else if (run->stage < ENDING)
		tt_run_end_ranks(run, sig, run->options.grace);
	else
		pass_on(run, sig);
	run->interrupted |= sig == SIGINT;
}

static void take_signal(struct run *run, int sig)
{
	switch (sig) {
	case SIGCHLD:
		bury_the_dead(run);
		look_at_stopped(run);
		break;
	case SIGINT:
	case SIGTERM:
		interrupt(run, sig);
		break;
	case SIGTSTP: /* ^Z stops the ranks and tutti run; both continue together */
		pass_on(run, SIGTSTP);
		raise(SIGSTOP);
		pass_on(run, SIGCONT);
		break;
	default:
		pass_on(run, sig);
	}
}

static void take_signals(struct run *run)
{
	struct signalfd_siginfo s;

	while (read(run->signals, &s, sizeof s) == sizeof s)
		take_signal(run, (int)s.ssi_signo);
}

/* An agent's orders. It is not stopped itself: nobody could wake it. */
static void take_orders(struct run *run)
{
	char bytes[64];
	ssize_t n = read(run->orders, bytes, sizeof bytes);

	for (ssize_t i = 0; i < n; i++)
		if (bytes[i] == SIGKILL)
			kill_ranks(run);
		else if (bytes[i] == SIGTSTP)
			pass_on(run, SIGTSTP);
		else
			take_signal(run, bytes[i]);
	if (n > 0 || (n < 0 && errno == EINTR))
		return;
	run->orders = -1; /* the other end has gone */
	if (run->alive && run->stage < ENDING)
		tt_run_end_ranks(run, SIGTERM, run->options.grace);
}

/* The loop. */

static bool has_text(const struct sink *k) { return k->sent < k->len; }

static struct pollfd wish_of(const struct sink *k)
{
	return has_text(k) ? (struct pollfd){ k->fd, POLLOUT, 0 } : (struct pollfd){ k->streams, POLLIN, 0 };
}

static int wait_ms(const struct run *run)
{
	uint64_t now = tt_now(), next = run->stage == RUNNING ? TT_NEVER : run->deadline;

	for (int r = 0; r < run->count; r++)
		if (run->ranks[r].pid && run->ranks[r].signal)
			next = tt_min(next, run->ranks[r].ends);
	if (next == TT_NEVER || !run->alive)
		return -1;
	return now >= next ? 0 : (int)((next - now + TT_MS - 1) / TT_MS);
}

static void serve(struct run *run)
{
	while (run->alive || has_text(&run->sinks[0]) || has_text(&run->sinks[1])) {
		struct pollfd p[] = { wish_of(&run->sinks[0]), wish_of(&run->sinks[1]), { run->signals, POLLIN, 0 },
			              { run->told[0], POLLIN, 0 }, { run->orders, POLLIN, 0 },
			              { run->report, POLLIN, 0 } };
		if (poll(p, TT_COUNT(p), wait_ms(run)) < 0 && errno != EINTR) { /* EINTR after a stop */
			tt_run_say(run, "cannot wait for the ranks: %s", strerror(errno));
			run->status = 1;
			return;
		}
		take_report(run); /* before the ends of those that report */
		if (run->refused)
			return;
		for (int i = 0; i < 2; i++)
			if (p[i].revents && p[i].events == POLLOUT)
				tt_run_write_sink(run, &run->sinks[i]);
			else if (p[i].revents)
				tt_run_read_streams(run, &run->sinks[i]);
		if (p[2].revents)
			take_signals(run);
		if (p[3].revents)
			take_told(run);
		if (p[4].revents)
			take_orders(run);
		end_evicted(run);
		if (run->alive && run->stage != RUNNING && tt_now() >= run->deadline)
			escalate(run);
		if (!run->alive && run->failed > TOLD_MAX) {
			tt_run_say(run, "%d more rank%s failed", run->failed - TOLD_MAX,
			           run->failed - TOLD_MAX > 1 ? "s" : "");
			run->failed = 0;
		}
	}
}

/* This process is the subreaper of everything that the ranks left: waits until all of that is gone. */
static void reap_rest(struct run *run)
{
	const struct timespec moment = { 0, 1000000 };
	int r = 0;

	for (int i = 0; i < run->count; i++)
		if (run->ranks[i].pid) /* ranks are alive only if some could not be started */
			kill(-run->ranks[i].pid, SIGKILL);
	for (int i = 0; run->groups && i < RANKS_MAX; i++)
		run->groups->group[i] = 0;
	for (uint64_t end = tt_now() + 500 * TT_MS; r < run->count && tt_now() < end;) {
		pid_t pid = run->ranks[r].group ? waitpid(-run->ranks[r].group, NULL, WNOHANG) : -1;
		if (pid < 0)
			r++;
		else if (!pid)
			nanosleep(&moment, NULL);
	}
}

static void close_run(struct run *run)
{
	reap_rest(run);
	if (run->keeper > 0) {
		close(run->life);
		waitpid(run->keeper, NULL, 0);
	}
	for (int r = 0; r < run->count; r++)
		for (int i = 0; i < 2; i++)
			tt_run_close_stream(run, &run->ranks[r].out[i]);
	for (int i = 0; i < 2; i++) {
		free(run->sinks[i].text);
		if (run->sinks[i].streams >= 0)
			close(run->sinks[i].streams);
	}
	free(run->ranks);
	if (run->groups)
		munmap(run->groups, sizeof *run->groups);
}

static int cannot(const char *what, int err)
{
	return err ? tt_fail(err, "cannot %s: %s%s", what, strerror(-err), tt_files_hint(-err)) : 0;
}

/* 0, or -errno with a sentence: everything that does not depend on a rank. */
static int open_run(struct run *run)
{
	size_t n = (size_t)run->count;
	int err;

	run->self = getpid();
	run->null = open("/dev/null", O_RDWR | O_CLOEXEC);
	run->ranks = run->null < 0 ? NULL : calloc(n, sizeof *run->ranks);
	if (!run->ranks) {
		run->count = 0;
		return run->null < 0 ? cannot("open /dev/null", -errno) : cannot("begin", -ENOMEM);
	}
	for (size_t r = 0; r < n; r++)
		run->ranks[r].out[0].fd = run->ranks[r].out[1].fd = -1;
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if ((err = cannot("take signals", open_signals(run))) || (err = cannot("watch", tt_run_open_sinks(run))) ||
	    (err = cannot("start the process that ends the ranks", start_keeper(run))))
		return err;
	if ((err = cannot("set variables", set_environment(run))))
		return err;
	return open_boot(run);
}

static int run_ranks(const struct options *options, const struct rlimit *files, int boot)
{
	struct run run = {
		.options = *options, .files = *files, .life = -1, .signals = -1, .boot = boot,
		.report = -1,
		.count = options->hosts ? options->host_count : options->ranks, .orders = options->agent ? 0 : -1,
		.stage = options->hosts ? MEETING : RUNNING, .deadline = tt_now() + MEETING_TIME,
		.sinks = { { .fd = -1, .streams = -1 }, { .fd = -1, .streams = -1 } },
	};
	int err = open_run(&run);

	if (err)
		run.status = tt_tool_refuse("run", "%s", tt_why());
	else if (!(run.status = start_ranks(&run)))
		serve(&run);
	close_run(&run);
	return run.options.keep_going && run.finished && (run.stage == RUNNING || run.outlived) ? 0 : run.status;
}

/* The program. */

/* Each rank takes two pipes of this process, which raises its soft limit. `files` is for the ranks: the limit as
 * it was. A rank raises its own limit when it joins. */
static int check_limits(const struct options *o, struct rlimit *files)
{
	int processes_here = o->hosts ? o->host_count : o->ranks;
	rlim_t need = (o->hosts ? 3 : 2) * (rlim_t)processes_here + SPARE_FILES;
	struct rlimit processes;

	getrlimit(RLIMIT_NOFILE, files);
	getrlimit(RLIMIT_NPROC, &processes);
	if (geteuid() && processes.rlim_cur <= (rlim_t)processes_here)
		return tt_tool_refuse("run", "%d ranks are too many: the limit is %ld processes (ulimit -u)", o->ranks,
		                      (long)processes.rlim_cur);
	tt_files_raise();
	if (need > tt_files_most())
		return tt_tool_refuse("run", "%d ranks are too many: they need %ld open files here, "
		                             "and the limit is %ld (ulimit -Hn)", o->ranks,
		                      (long)need, (long)tt_files_most());
	return 0;
}

/* If one of 0, 1, 2 is closed, a pipe could get its number. */
static void open_standard_files(void)
{
	int fd = open("/dev/null", O_RDWR);

	while (fd >= 0 && fd <= 2)
		fd = dup(fd);
	if (fd > 2)
		close(fd);
}

int tt_tool_run(int argc, char **argv)
{
	bool agent = argc == 2 && !strcmp(argv[1], "--agent"); /* for hosts.c alone, so --help does not have it */
	struct options options = { .ranks = 0 };
	struct rlimit files;
	int status, boot = -1;

	signal(SIGUSR1, SIG_IGN); /* until it is blocked: a request for stats may come early */
	open_standard_files();
	bool begins = agent ? !(status = tt_run_begin_agent(&options, &boot)) :
	                      tt_run_parse(argc, argv, &options, &status);
	if (begins && !(status = check_limits(&options, &files)))
		status = run_ranks(&options, &files, boot);
	tt_run_free_options(&options);
	return agent && status == 255 ? 254 : status; /* 255 is ssh's own: the connection has ended */
}
