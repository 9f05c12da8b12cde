/* tutti run - start a job's ranks on this host, pass their output on, and leave nothing behind
 *
 *   run ──fork── keeper: in its own session; when run is gone, however it went, it ends all ranks' process groups
 *    └────fork── rank 0 .. n-1: each leads its own process group ══ two pipes each ══> run's stdout and stderr
 *
 * One loop waits for three things: signals (a child's end too), room in the outputs, and, while an output has nothing
 * left to write, text for it from the ranks. So a reader that stalls stalls the ranks, and never the signals. */
#include "tools/run/run.h"
#include "topology/topology.h"
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
};

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

/* Rank 0 inherits the socket: the port is reserved from now on, and other ranks' connects wait for rank 0. */
static int open_boot(struct run *run)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof at;
	char text[32];

	if (run->options.rendezvous) { /* rank 0 listens there itself */
		setenv(variable(TT_BOOT), run->options.rendezvous, 1);
		return 0;
	}
	run->boot = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (run->boot < 0 || bind(run->boot, (struct sockaddr *)&at, len) || listen(run->boot, SOMAXCONN) ||
	    getsockname(run->boot, (struct sockaddr *)&at, &len))
		return -errno;
	snprintf(text, sizeof text, "127.0.0.1:%d", ntohs(at.sin_port));
	setenv(variable(TT_BOOT), text, 1);
	return 0;
}

/* A rank that died may join again, and so may new ones. */
static void tell_how_to_join(struct run *run)
{
	const char *secret = tt_env(TT_SECRET);

	tt_run_say(run, "to start a rank again: TUTTI_RANK=R TUTTI_SIZE=%d TUTTI_BOOT=%s%s%s PROGRAM; "
	           "to add one: TUTTI_RANK=new", run->options.ranks, tt_env(TT_BOOT), secret ? " TUTTI_SECRET=" : "",
	           secret ? secret : "");
}

static void set_secret(void)
{
#ifdef HAVE_LIBSODIUM /* without it a job with a secret cannot start; loopback needs none */
	uint8_t bytes[32];
	char text[2 * sizeof bytes + 1];

	if (tt_env(TT_SECRET))
		return;
	tt_entropy(bytes, sizeof bytes);
	for (size_t i = 0; i < sizeof bytes; i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	setenv(variable(TT_SECRET), text, 1);
#endif
}

static int set_environment(struct run *run)
{
	struct stat is;
	char text[40];

	unsetenv(variable(TT_BOOT_FD)); /* of an outer job */
	if (pipe2(run->evicted, O_CLOEXEC | O_NONBLOCK) || fstat(run->evicted[1], &is))
		return -errno;
	snprintf(text, sizeof text, "%d:%llu", run->evicted[1], (unsigned long long)is.st_ino);
	setenv(variable(TT_EVICTED_PIPE), text, 1);
	set_number(TT_SIZE, run->options.ranks);
	set_number(TT_LOCAL_SIZE, run->options.ranks);
	set_secret();
	return open_boot(run);
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
	sigprocmask(SIG_BLOCK, &ours, &run->mask);
	run->signals = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
	return run->signals < 0 ? -errno : 0;
}

/* A shell starts `tutti run &` with SIGINT ignored. The ranks must not inherit that, nor the changes made here. A
 * request for stats must not end ranks that have not joined yet, nor a script around a rank: the library handles
 * SIGUSR1 in the rank. */
static void restore_signals(const struct run *run)
{
	const char *stats = tt_env(TT_STATS_SIGNAL);

	signal(SIGPIPE, SIG_DFL);
	for (size_t i = 0; i < TT_COUNT(passed_on); i++)
		if (passed_on[i] != SIGHUP || !run->hup_ignored)
			signal(passed_on[i], SIG_DFL);
	if (!stats || strcmp(stats, "none"))
		signal(SIGUSR1, SIG_IGN); /* still blocked, so none was delivered */
	sigprocmask(SIG_SETMASK, &run->mask, NULL);
}

/* In the child. The order matters: once the keeper knows the group, no process can be left behind. */
static _Noreturn void become_rank(struct run *run, int r, const int out[2], int report)
{
	bool reads = !r && !isatty(0);

	setpgid(0, 0);
	run->groups->group[r] = getpid();
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != run->self)
		_exit(1);
	close(run->life);
	set_number(TT_RANK, r);
	set_number(TT_LOCAL_RANK, r);
	if (!r && run->boot >= 0) {
		set_number(TT_BOOT_FD, run->boot);
		fcntl(run->boot, F_SETFD, 0);
	}
	fcntl(run->evicted[1], F_SETFD, 0);
	if (!reads)
		dup2(run->null, 0);
	for (int i = 0; i < 2; i++)
		if (out[i] >= 0)
			dup2(out[i], 1 + i);
	setrlimit(RLIMIT_NOFILE, &run->files);
	restore_signals(run);
	execvp(run->options.program[0], run->options.program);
	int err = errno;
	(void)!write(report, &err, sizeof err);
	_exit(127);
}

static int start_rank(struct run *run, int r, int report)
{
	struct rank *rank = &run->ranks[r];
	int out[2] = { -1, -1 }, err = 0;

	for (int i = 0; i < 2 && !err; i++)
		err = tt_run_open_stream(run, r, i, &out[i]);
	if (!err) {
		pid_t pid = fork();
		if (!pid)
			become_rank(run, r, out, report);
		err = pid < 0 ? -errno : 0;
		if (!err) {
			setpgid(pid, pid); /* the child does the same; either may be first */
			run->groups->group[r] = pid;
			rank->pid = rank->group = pid;
			run->alive++;
		}
	}
	for (int i = 0; i < 2; i++)
		if (out[i] >= 0)
			close(out[i]);
	return err;
}

static void pass_on(struct run *run, int sig)
{
	for (int r = 0; r < run->options.ranks; r++)
		if (run->ranks[r].pid)
			kill(-run->ranks[r].pid, sig);
}

/* Starts all ranks or none. Failures of exec come through one pipe, which a successful exec closes. */
static int start_ranks(struct run *run)
{
	const char *program = run->options.program[0];
	int report[2], err = 0, refusal = 0, r;

	if (pipe2(report, O_CLOEXEC))
		return tt_tool_refuse("run", "cannot make a pipe: %s", strerror(errno));
	for (r = 0; r < run->options.ranks && !err; r++)
		err = start_rank(run, r, report[1]);
	close(report[1]);
	if (run->boot >= 0)
		close(run->boot);
	run->boot = -1;
	if (!err && read(report[0], &refusal, sizeof refusal) != sizeof refusal)
		refusal = 0;
	close(report[0]);
	if (err)
		return tt_tool_refuse("run", "cannot start rank %d of %d: %s%s", r - 1, run->options.ranks,
		                      strerror(-err), err == -EAGAIN ? " (the limit of processes, ulimit -u)" : "");
	if (refusal) {
		tt_tool_refuse("run", "cannot execute %s: %s", program, strerror(refusal));
		return refusal == ENOENT ? 127 : 126;
	}
	return 0;
}

/* Ranks that end. */

static void judge(struct run *run, int r, pid_t pid, int status)
{
	bool killed = WIFSIGNALED(status);
	int value = killed ? WTERMSIG(status) : WEXITSTATUS(status);

	if (!killed && !value) {
		run->finished = true;
		return;
	}
	if (!run->status)
		run->status = killed ? 128 + value : value;
	if (run->stage >= ENDING)
		return; /* on purpose */
	if (++run->failed <= TOLD_MAX) {
		if (killed)
			tt_run_say(run, "rank %d (pid %d) was killed by signal %d (%s)", r, (int)pid, value,
			           strsignal(value));
		else
			tt_run_say(run, "rank %d (pid %d) exited with status %d", r, (int)pid, value);
	}
	if (run->stage == RUNNING && !run->options.keep_going) {
		run->stage = FAILING;
		run->deadline = tt_now() + run->options.grace;
	}
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
	run->alive--;
	for (int i = 0; i < 2; i++) { /* its output comes before our sentence; a pipe holds a megabyte at most */
		for (size_t n = 0; n < (1 << 20) / 4096 && tt_run_read_stream(run, &rank->out[i]); n++)
			;
		tt_run_close_stream(run, &rank->out[i]);
	}
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
		while (r < run->options.ranks && run->ranks[r].pid != dead.si_pid)
			r++;
		if (r < run->options.ranks)
			bury(run, r);
		else
			waitpid(dead.si_pid, NULL, 0); /* an orphan of a rank, or a child from before exec */
	}
}

/* "rank 3", "ranks 0-2, 5": those that have not ended. */
static void name_living(const struct run *run, char *text, size_t size)
{
	int n = run->options.ranks, len = snprintf(text, size, "rank%s ", run->alive > 1 ? "s" : "");
	const char *comma = "";

	for (int r = 0, end; r < n && len < (int)size - 32; r = end + 1, comma = ", ") {
		while (r < n && !run->ranks[r].pid)
			r++;
		for (end = r; end + 1 < n && run->ranks[end + 1].pid;)
			end++;
		if (r >= n)
			return;
		len += snprintf(text + len, size - (size_t)len, end > r ? "%s%d-%d" : "%s%d", comma, r, end);
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
	tt_run_say(run, "%s cannot be killed: left behind, in a system call that does not end", names);
	for (int r = 0; r < run->options.ranks; r++) {
		for (int i = 0; i < 2; i++)
			tt_run_close_stream(run, &run->ranks[r].out[i]);
		run->ranks[r].pid = 0;
	}
	run->alive = 0;
	run->status = run->status ? run->status : 128 + SIGKILL;
}

static void end_ranks(struct run *run, int sig, uint64_t grace)
{
	pass_on(run, sig);
	run->stage = ENDING;
	run->deadline = tt_now() + grace;
}

/* A rank under SIGSTOP may have been evicted and outlived: nobody would end it. */
static bool only_stopped_are_left(const struct run *run)
{
	siginfo_t what;

	if (run->alive == run->options.ranks)
		return false;
	for (int r = 0; r < run->options.ranks; r++) {
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

/* Ranks that were evicted: their programs may not notice, and nobody waits for what they do. */

static void take_evicted(struct run *run)
{
	int32_t r;

	while (read(run->evicted[0], &r, sizeof r) == sizeof r) {
		struct rank *rank = r >= 0 && r < run->options.ranks ? &run->ranks[r] : NULL;
		if (!rank || !rank->pid || rank->signal)
			continue;
		tt_run_say(run, "rank %d (pid %d) was evicted by the others: it has %llu ms to end", r, (int)rank->pid,
		           (unsigned long long)(run->options.grace / TT_MS));
		rank->signal = SIGTERM;
		rank->ends = tt_now() + run->options.grace;
	}
}

static void end_evicted(struct run *run)
{
	uint64_t now = tt_now();

	for (int r = 0; r < run->options.ranks; r++) {
		struct rank *rank = &run->ranks[r];
		if (!rank->pid || !rank->signal || now < rank->ends)
			continue;
		kill(-rank->group, rank->signal);
		rank->signal = SIGKILL;
		rank->ends = now + 1000 * TT_MS;
	}
}

/* The stage's time is over. */
static void escalate(struct run *run)
{
	run->outlived = run->stage == STOPPED && only_stopped_are_left(run);
	if (run->stage == STOPPED && !run->outlived)
		run->stage = RUNNING;
	else if (run->stage == FAILING)
		end_ranks(run, SIGTERM, run->options.grace < 1000 * TT_MS ? run->options.grace : 1000 * TT_MS);
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
		end_ranks(run, sig, run->options.grace);
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

/* The loop. */

static bool has_text(const struct sink *k) { return k->sent < k->len; }

static struct pollfd wish_of(const struct sink *k)
{
	return has_text(k) ? (struct pollfd){ k->fd, POLLOUT, 0 } : (struct pollfd){ k->streams, POLLIN, 0 };
}

static int wait_ms(const struct run *run)
{
	uint64_t now = tt_now(), next = run->stage == RUNNING ? TT_NEVER : run->deadline;

	for (int r = 0; r < run->options.ranks; r++)
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
			              { run->evicted[0], POLLIN, 0 } };
		if (poll(p, TT_COUNT(p), wait_ms(run)) < 0)
			continue; /* EINTR after a stop */
		for (int i = 0; i < 2; i++)
			if (p[i].revents && p[i].events == POLLOUT)
				tt_run_write_sink(run, &run->sinks[i]);
			else if (p[i].revents)
				tt_run_read_streams(run, &run->sinks[i]);
		if (p[2].revents)
			take_signals(run);
		if (p[3].revents)
			take_evicted(run);
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

	pass_on(run, SIGKILL); /* ranks are alive only if some could not be started */
	for (int i = 0; run->groups && i < RANKS_MAX; i++)
		run->groups->group[i] = 0;
	for (uint64_t end = tt_now() + 500 * TT_MS; r < run->options.ranks && tt_now() < end;) {
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
	for (int r = 0; r < run->options.ranks; r++)
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

/* 0, or -errno: everything that does not depend on a rank. */
static int open_run(struct run *run)
{
	size_t n = (size_t)run->options.ranks;
	int err;

	run->self = getpid();
	run->null = open("/dev/null", O_RDWR | O_CLOEXEC);
	run->ranks = run->null < 0 ? NULL : calloc(n, sizeof *run->ranks);
	if (!run->ranks) {
		run->options.ranks = 0;
		return run->null < 0 ? -errno : -ENOMEM;
	}
	for (size_t r = 0; r < n; r++)
		run->ranks[r].out[0].fd = run->ranks[r].out[1].fd = -1;
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if ((err = open_signals(run)) || (err = tt_run_open_sinks(run)) || (err = start_keeper(run)))
		return err;
	return set_environment(run);
}

static int run_ranks(const struct options *options, const struct rlimit *files)
{
	struct run run = {
		.options = *options, .files = *files, .life = -1, .signals = -1, .boot = -1,
		.sinks = { { .fd = -1, .streams = -1 }, { .fd = -1, .streams = -1 } },
	};
	int err = open_run(&run);

	if (err)
		run.status = tt_tool_refuse("run", "cannot begin: %s", strerror(-err));
	else if (!(run.status = start_ranks(&run))) {
		if (options->verbose)
			tell_how_to_join(&run);
		serve(&run);
	}
	close_run(&run);
	return run.options.keep_going && run.finished && (run.stage == RUNNING || run.outlived) ? 0 : run.status;
}

/* The command line. */

static int cores(void)
{
	struct tt_cpus allowed;
	long n = tt_cpus_allowed(&allowed);

	if (!n)
		n = sysconf(_SC_NPROCESSORS_ONLN);
	return n < 1 ? 1 : n > RANKS_MAX ? RANKS_MAX : (int)n;
}

/* Each rank takes two pipes of ours, and rank 0 a connection to each while they join. Raises the soft limits as needed:
 * `files` is the one for the ranks. */
static int check_limits(const struct options *o, struct rlimit *files)
{
	rlim_t need = 2 * (rlim_t)o->ranks + SPARE_FILES;
	struct rlimit processes, raised;

	getrlimit(RLIMIT_NOFILE, files);
	getrlimit(RLIMIT_NPROC, &processes);
	if (geteuid() && processes.rlim_cur <= (rlim_t)o->ranks)
		return tt_tool_refuse("run", "%d ranks are too many: the limit is %ld processes (ulimit -u)", o->ranks,
		                      (long)processes.rlim_cur);
	raised = *files;
	raised.rlim_cur = files->rlim_max;
	if (need > files->rlim_cur && (need > files->rlim_max || setrlimit(RLIMIT_NOFILE, &raised)))
		return tt_tool_refuse("run", "%d ranks are too many: they need %ld open files here, "
		                             "and the limit is %ld (ulimit -Hn)", o->ranks,
		                      (long)need, (long)files->rlim_max);
	files->rlim_cur = tt_max(files->rlim_cur, tt_min(files->rlim_max, (rlim_t)o->ranks + SPARE_FILES));
	return 0;
}

static int take_ranks(struct options *o, const char *text)
{
	char *end;
	long n = strtol(text, &end, 10);

	if (end == text || *end || n < 1 || n > RANKS_MAX)
		return tt_tool_refuse("run", "-n %s: the number of ranks is a whole number from 1 to %d", text,
		                      RANKS_MAX);
	o->ranks = (int)n;
	return 0;
}

static int take_grace(struct options *o, const char *text)
{
	char *end;
	double seconds = strtod(text, &end);

	if (end == text || *end || !(seconds >= 0 && seconds <= 86400))
		return tt_tool_refuse("run", "--grace %s: the grace is a number of seconds from 0 to 86400", text);
	o->grace = (uint64_t)(seconds * 1e9);
	return 0;
}

static int print_help(void)
{
	printf("Usage: tutti run [-n N] [OPTION ...] PROGRAM [ARGUMENT ...]\n"
	       "Starts N copies of PROGRAM on this host as the ranks 0 to N-1 of one job.\n\n"
	       "  -n, --ranks N        how many; by default the number of cores allowed (here %d)\n"
	       "  -t, --tag            begin each line of output with its rank: \"[2] text\"\n"
	       "  -g, --grace SECONDS  how long ranks may take to end before they are made to; 3 by default\n"
	       "  -k, --keep-going     when a rank fails, leave the others alone: they may go on without it\n"
	       "  -r, --rendezvous HOST:PORT  where rank 0 listens; by default a free port of the loopback\n"
	       "  -v, --verbose        say how to start a rank again by hand, or to add one: with the job's secret\n"
	       "  -h, --help           this text\n\n"
	       "For example:\n"
	       "  tutti run -n 4 ./train --epochs 3\n"
	       "  tutti run -n 2 --tag sh -c 'echo I am $TUTTI_RANK of $TUTTI_SIZE'\n\n"
	       "Each rank gets TUTTI_RANK, TUTTI_SIZE, TUTTI_LOCAL_RANK, TUTTI_LOCAL_SIZE, TUTTI_BOOT and, where "
	       "libsodium is\n"
	       "built in, a TUTTI_SECRET of its own job. Lines of different ranks never mix. Rank 0 has the standard "
	       "input,\n"
	       "unless that is a terminal, and without --tag writes to a terminal itself.\n\n"
	       "When a rank fails, the others have the grace to notice, then get SIGTERM, and after at most one "
	       "second more\n"
	       "SIGKILL; with --keep-going they are left alone. A rank that the others have evicted, and ranks that "
	       "are stopped while all\n"
	       "others have ended, are ended after the grace. The signals INT, TERM, HUP, QUIT, USR1, USR2 and TSTP "
	       "are passed\n"
	       "on to the ranks; INT and TERM also begin the grace, after which the ranks are killed; a second INT "
	       "kills at once.\n"
	       "What is left of a rank's process group ends with the rank, and everything ends with `tutti run`, even "
	       "if that is\n"
	       "killed.\n\n"
	       "The exit status is that of the first rank that failed, 128 + the signal if one killed it; with "
	       "--keep-going 0 if\n"
	       "some rank exited with 0; 127 or 126 if PROGRAM cannot be executed; 2 if the command line makes no "
	       "sense.\n", cores());
	return 0;
}

static const struct option known[] = {
	{ "ranks", required_argument, NULL, 'n' }, { "tag", no_argument, NULL, 't' },
	{ "grace", required_argument, NULL, 'g' }, { "rendezvous", required_argument, NULL, 'r' },
	{ "verbose", no_argument, NULL, 'v' },
	{ "keep-going", no_argument, NULL, 'k' }, { "help", no_argument, NULL, 'h' }, { 0 },
};

static int take_rendezvous(struct options *o, const char *text)
{
	const char *port = strrchr(text, ':');
	char *end;

	if (!port || port == text || strtol(port + 1, &end, 10) < 1 || end == port + 1 || *end)
		return tt_tool_refuse("run", "--rendezvous %s: it is HOST:PORT, an address of this host, and a port",
		                      text);
	o->rendezvous = text;
	return 0;
}

/* False: *status is the exit status. */
static bool parse(int argc, char **argv, struct options *o, int *status)
{
	int c;

	*status = 0;
	while (!*status && (c = getopt_long(argc, argv, "+:n:tkg:r:vh", known, NULL)) != -1) {
		switch (c) {
		case 'n':
			if (!strcmp(argv[optind - 1], "-np") && optind < argc) /* as mpirun has it; getopt reads -n p */
				optarg = argv[optind++];
			*status = take_ranks(o, optarg);
			break;
		case 'r': *status = take_rendezvous(o, optarg); break;
		case 'v': o->verbose = true; break;
		case 't': o->tag = true; break;
		case 'k': o->keep_going = true; break;
		case 'g': *status = take_grace(o, optarg); break;
		case 'h': print_help(); return false;
		default: *status = tt_tool_bad_option("run", argv, known, c);
		}
	}
	if (!*status && optind == argc)
		*status = tt_tool_refuse("run", "a program is missing; see `tutti run --help`");
	o->program = argv + optind;
	return !*status;
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
	struct options options = { .ranks = cores(), .grace = 3000 * TT_MS };
	struct rlimit files;
	int status;

	signal(SIGUSR1, SIG_IGN); /* until it is blocked: a request for stats may come early */
	if (!parse(argc, argv, &options, &status) || (status = check_limits(&options, &files)))
		return status;
	open_standard_files();
	return run_ranks(&options, &files);
}
