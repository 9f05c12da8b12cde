/* tutti run - start a job's ranks on this host, pass their output on, and leave nothing behind
 *
 *   run ──fork── keeper: in its own session; when run is gone, however it went, it ends all ranks' process groups
 *    └────fork── rank 0 .. n-1: each leads its own process group ══ two pipes each ══> run's stdout and stderr
 *
 * One loop waits for three things: signals (a child's end too), room in the outputs, and, while an output has nothing
 * left to write, text for it from the ranks. So a reader that stalls stalls the ranks, and never the signals.
 */
#include "tools.h"
#include "tutti.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum {
	RANKS_MAX = 4096,
	LINE_MAX_BYTES = 64 << 10, /* longer lines pass in pieces */
	TOLD_MAX = 10,             /* failures that get a sentence of their own */
	SPARE_FILES = 64,
};

static const int passed_on[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP };

struct options {
	int ranks;
	bool tag;
	uint64_t grace; /* nanoseconds */
	char **program;
};

struct stream { /* what one rank writes to its stdout or stderr */
	int fd;             /* our end of the pipe; -1: none, or closed */
	int rank;
	struct sink *to;
	bool returned;      /* its last byte was a carriage return: it draws over its own line */
	size_t len;         /* of the line that is not complete yet */
	char *text;         /* LINE_MAX_BYTES, from the first byte on */
};

struct sink { /* our stdout or stderr; one sink if they are the same file, or lines would mix */
	int fd;             /* -1: nobody reads it any more */
	int streams;        /* the epoll set of those that end here */
	char *text;
	size_t sent, len, room;
	struct stream *open; /* whose unfinished line the text ends in */
};

struct rank {
	pid_t pid;          /* 0: over */
	pid_t group;        /* its process group: the same number, for good */
	struct stream out[2];
};

struct roll { /* shared with the keeper */
	uint64_t grace;
	_Atomic pid_t group[RANKS_MAX]; /* 0: none, or none any more. Before the number can be used anew the entry is 0 */
};

enum stage {
	RUNNING,
	FAILING, /* a rank has failed: the others may notice and end */
	ENDING,  /* they were told to */
	KILLED,
};

struct run {
	struct options options;
	struct rank *ranks;
	struct roll *roll;
	struct sink sinks[2], *errors;
	enum stage stage;
	uint64_t deadline;  /* of the stage */
	bool interrupted;   /* by SIGINT */
	int alive, status, failed;
	pid_t self, keeper;
	int life;           /* the keeper sees its other end close when we are gone */
	int signals, boot, null;
	sigset_t mask;      /* these three as they were: a rank starts with them */
	struct rlimit files;
	bool hup_ignored;
};

/* Output. */

static void put(struct sink *k, const char *text, size_t len)
{
	if (k->fd < 0)
		return;
	if (k->len + len > k->room) {
		size_t room = tt_max(2 * k->room, k->len + len);
		char *larger = realloc(k->text, room);
		if (!larger)
			return; /* better to lose a line than the job */
		k->text = larger;
		k->room = room;
	}
	memcpy(k->text + k->len, text, len);
	k->len += len;
}

static void end_open_line(struct sink *k)
{
	if (k->open)
		put(k, "\n", 1);
	k->open = NULL;
}

static void TT_FORMAT(2, 3) say(struct run *run, const char *fmt, ...)
{
	char text[1024] = "tutti run: ";
	size_t head = strlen(text);
	va_list args;

	va_start(args, fmt);
	vsnprintf(text + head, sizeof text - head - 1, fmt, args);
	va_end(args);
	strcat(text, "\n");
	end_open_line(run->errors);
	put(run->errors, text, strlen(text));
}

/* A line ends with \n, or with a \r that no \n follows: a progress bar. */
static size_t line_length(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (text[i] == '\n' || (text[i] == '\r' && !(i + 1 < len && text[i + 1] == '\n')))
			return i + 1;
	return len;
}

static void pass_line(struct run *run, struct stream *s, const char *line, size_t len)
{
	struct sink *k = s->to;
	char tag[16];
	bool completes = s->returned && len == 1 && *line == '\n'; /* the other half of a \r\n */

	if (completes && k->open != s)
		return; /* another one's text came between: the line has ended already */
	if (k->open != s)
		end_open_line(k);
	if (run->options.tag && (!k->open || s->returned) && !completes)
		put(k, tag, (size_t)snprintf(tag, sizeof tag, "[%d] ", s->rank));
	put(k, line, len);
	k->open = line[len - 1] == '\n' ? NULL : s;
	s->returned = line[len - 1] == '\r';
}

/* Passes on what is complete; all of it if `rest`, or if no more fits. */
static void pass_lines(struct run *run, struct stream *s, bool rest)
{
	size_t at = 0, len;

	for (; at < s->len; at += len) {
		len = line_length(s->text + at, s->len - at);
		char last = s->text[at + len - 1];
		if (last != '\n' && last != '\r' && !rest && (at || s->len < LINE_MAX_BYTES))
			break;
		pass_line(run, s, s->text + at, len);
	}
	s->len -= at;
	if (s->len)
		memmove(s->text, s->text + at, s->len);
}

static void close_stream(struct run *run, struct stream *s)
{
	if (s->fd < 0)
		return;
	pass_lines(run, s, true);
	close(s->fd); /* which takes it out of its epoll set */
	s->fd = -1;
	free(s->text);
	s->text = NULL;
}

/* One read; false: there is no more at the moment. */
static bool read_stream(struct run *run, struct stream *s)
{
	if (s->fd < 0)
		return false;
	if (!s->text && !(s->text = malloc(LINE_MAX_BYTES))) {
		say(run, "no memory for the output of rank %d", s->rank);
		close_stream(run, s);
		return false;
	}
	ssize_t n = read(s->fd, s->text + s->len, LINE_MAX_BYTES - s->len);
	if (n > 0) {
		s->len += (size_t)n;
		pass_lines(run, s, false);
	} else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
		close_stream(run, s);
	}
	return n > 0;
}

/* Its reader has gone. The ranks should notice as if they had written there themselves. */
static void break_sink(struct run *run, struct sink *k)
{
	if (errno != EPIPE && k != run->errors)
		say(run, "cannot write the output: %s", strerror(errno));
	if (errno != EPIPE && !run->status)
		run->status = 1;
	k->fd = -1;
	k->len = k->sent = 0;
	for (int r = 0; r < run->options.ranks; r++)
		for (int i = 0; i < 2; i++)
			if (run->ranks[r].out[i].to == k)
				close_stream(run, &run->ranks[r].out[i]);
}

/* The descriptor was writable: a pipe then takes PIPE_BUF bytes without blocking, and no more for sure. */
static void write_sink(struct run *run, struct sink *k)
{
	ssize_t n = write(k->fd, k->text + k->sent, tt_min(k->len - k->sent, PIPE_BUF));

	if (n < 0 && errno != EAGAIN && errno != EINTR)
		break_sink(run, k);
	if (n > 0 && (k->sent += (size_t)n) == k->len)
		k->sent = k->len = 0;
}

static void read_streams(struct run *run, struct sink *k)
{
	struct epoll_event ready[16];
	int n = epoll_wait(k->streams, ready, TT_COUNT(ready), 0);

	for (int i = 0; i < n; i++)
		read_stream(run, ready[i].data.ptr);
}

static int open_sink(struct sink *k, int fd)
{
	k->fd = fd;
	k->streams = epoll_create1(EPOLL_CLOEXEC);
	return k->streams < 0 ? -errno : 0;
}

static bool same_file(int a, int b)
{
	struct stat x, y;

	return !fstat(a, &x) && !fstat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int open_sinks(struct run *run)
{
	bool one = same_file(1, 2);
	int err = open_sink(&run->sinks[0], 1);

	run->errors = &run->sinks[!one];
	return err || one ? err : open_sink(run->errors, 2);
}

/* The keeper. */

static void signal_groups(struct roll *roll, int sig)
{
	for (int r = 0; r < RANKS_MAX; r++)
		if (roll->group[r])
			kill(-roll->group[r], sig);
}

static bool any_group_left(struct roll *roll)
{
	for (int r = 0; r < RANKS_MAX; r++)
		if (roll->group[r] && !kill(-roll->group[r], 0))
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

/* Holds nothing of the outer world, so that nobody waits for its end, and heeds nothing but the end of `life`. */
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
	while (read(0, &c, 1) < 0 && errno == EINTR) /* nothing is ever written: it returns when run has ended */
		;
	signal_groups(run->roll, SIGTERM);
	for (uint64_t end = tt_now() + run->roll->grace; any_group_left(run->roll) && tt_now() < end;)
		nanosleep(&moment, NULL);
	signal_groups(run->roll, SIGKILL);
	_exit(0);
}

static int start_keeper(struct run *run)
{
	int life[2];

	run->roll = mmap(NULL, sizeof *run->roll, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (run->roll == MAP_FAILED)
		run->roll = NULL;
	if (!run->roll || pipe2(life, O_CLOEXEC))
		return -errno;
	run->roll->grace = run->options.grace;
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

/* Rank 0 gets the socket itself: the port is taken from now on, and the others' connects wait for rank 0 to come. */
static int open_boot(struct run *run)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof at;
	char text[32];

	run->boot = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (run->boot < 0 || bind(run->boot, (struct sockaddr *)&at, len) || listen(run->boot, SOMAXCONN) ||
	    getsockname(run->boot, (struct sockaddr *)&at, &len))
		return -errno;
	snprintf(text, sizeof text, "127.0.0.1:%d", ntohs(at.sin_port));
	setenv(variable(TT_BOOT), text, 1);
	return 0;
}

static void set_secret(void)
{
#ifdef HAVE_LIBSODIUM /* without it a job that has a secret refuses to start, and one on loopback needs none */
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
	unsetenv(variable(TT_BOOT_FD)); /* of a job that we may be part of */
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
	signal(SIGCHLD, SIG_DFL); /* ignored, it would take the ranks' statuses away */
	sigemptyset(&ours);
	sigaddset(&ours, SIGCHLD);
	for (size_t i = 0; i < TT_COUNT(passed_on); i++)
		if (passed_on[i] != SIGHUP || !run->hup_ignored)
			sigaddset(&ours, passed_on[i]);
	sigprocmask(SIG_BLOCK, &ours, &run->mask);
	run->signals = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
	return run->signals < 0 ? -errno : 0;
}

/* A shell starts `tutti run &` with SIGINT ignored; the ranks should not inherit that, nor what we changed. */
static void restore_signals(const struct run *run)
{
	signal(SIGPIPE, SIG_DFL);
	for (size_t i = 0; i < TT_COUNT(passed_on); i++)
		if (passed_on[i] != SIGHUP || !run->hup_ignored)
			signal(passed_on[i], SIG_DFL);
	sigprocmask(SIG_SETMASK, &run->mask, NULL);
}

/* May rank 0 write there itself? In its own process group it is in the background, which `stty tostop` forbids to write. */
static bool is_terminal(int fd)
{
	struct termios t;

	return !tcgetattr(fd, &t) && !(t.c_lflag & TOSTOP);
}

/* In the child. The order matters: from the moment the keeper knows the group nothing can be left behind. */
static _Noreturn void become_rank(struct run *run, int r, const int out[2], int report)
{
	bool reads = !r && !isatty(0);

	setpgid(0, 0);
	run->roll->group[r] = getpid();
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != run->self)
		_exit(1);
	close(run->life);
	set_number(TT_RANK, r);
	set_number(TT_LOCAL_RANK, r);
	if (!r) {
		set_number(TT_BOOT_FD, run->boot);
		fcntl(run->boot, F_SETFD, 0);
	}
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

static int open_stream(struct run *run, int r, int i, int *theirs)
{
	struct stream *s = &run->ranks[r].out[i];
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = s };
	int ends[2];

	*theirs = -1;
	s->to = i ? run->errors : &run->sinks[0];
	s->rank = r;
	if (!r && !run->options.tag && is_terminal(1 + i))
		return 0; /* rank 0 has the terminal itself, and may draw progress bars */
	if (pipe2(ends, O_CLOEXEC))
		return -errno;
	s->fd = ends[0];
	*theirs = ends[1];
	fcntl(s->fd, F_SETFL, O_NONBLOCK);
	return epoll_ctl(s->to->streams, EPOLL_CTL_ADD, s->fd, &e) ? -errno : 0;
}

static int start_rank(struct run *run, int r, int report)
{
	struct rank *rank = &run->ranks[r];
	int out[2] = { -1, -1 }, err = 0;

	for (int i = 0; i < 2 && !err; i++)
		err = open_stream(run, r, i, &out[i]);
	if (!err) {
		pid_t pid = fork();
		if (!pid)
			become_rank(run, r, out, report);
		err = pid < 0 ? -errno : 0;
		if (!err) {
			setpgid(pid, pid); /* the child does the same: whoever comes first */
			run->roll->group[r] = pid;
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

/* All or none. Refusals to execute come through one pipe, which closes by itself where exec succeeds. */
static int start_ranks(struct run *run)
{
	const char *program = run->options.program[0];
	int report[2], err = 0, refusal = 0, r;

	if (pipe2(report, O_CLOEXEC))
		return tt_tool_refuse("run", "cannot make a pipe: %s", strerror(errno));
	for (r = 0; r < run->options.ranks && !err; r++)
		err = start_rank(run, r, report[1]);
	close(report[1]);
	close(run->boot);
	run->boot = -1;
	if (!err && read(report[0], &refusal, sizeof refusal) != sizeof refusal)
		refusal = 0;
	close(report[0]);
	if (err)
		return tt_tool_refuse("run", "cannot start rank %d of %d: %s%s", r - 1, run->options.ranks, strerror(-err),
		                      err == -EAGAIN ? " (the limit of processes, ulimit -u)" : "");
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

	if (!killed && !value)
		return;
	if (!run->status)
		run->status = killed ? 128 + value : value;
	if (run->stage >= ENDING)
		return; /* that was our wish */
	if (++run->failed <= TOLD_MAX) {
		if (killed)
			say(run, "rank %d (pid %d) was killed by signal %d (%s)", r, (int)pid, value, strsignal(value));
		else
			say(run, "rank %d (pid %d) exited with status %d", r, (int)pid, value);
	}
	if (run->stage == RUNNING) {
		run->stage = FAILING;
		run->deadline = tt_now() + run->options.grace;
	}
}

/* The rank is a zombie: its number is still its own, so the group can be ended without fear of hitting another one. */
static void bury(struct run *run, int r)
{
	struct rank *rank = &run->ranks[r];
	pid_t pid = rank->pid;
	int status = 0;

	kill(-pid, SIGKILL); /* what it leaves behind in its group */
	run->roll->group[r] = 0;
	waitpid(pid, &status, 0);
	rank->pid = 0;
	run->alive--;
	for (int i = 0; i < 2; i++) { /* its last words come before ours; a pipe holds a megabyte at most */
		for (size_t n = 0; n < (1 << 20) / 4096 && read_stream(run, &rank->out[i]); n++)
			;
		close_stream(run, &rank->out[i]);
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
			waitpid(dead.si_pid, NULL, 0); /* a rank's orphan, come to us; or one that exec left us */
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
	say(run, "%s did not end and %s killed", names, run->alive > 1 ? "were" : "was");
	pass_on(run, SIGKILL);
	run->stage = KILLED;
	run->deadline = tt_now() + 5000 * TT_MS;
}

static void abandon(struct run *run)
{
	char names[400];

	name_living(run, names, sizeof names);
	say(run, "%s cannot be killed: left behind, in a system call that does not end", names);
	for (int r = 0; r < run->options.ranks; r++) {
		for (int i = 0; i < 2; i++)
			close_stream(run, &run->ranks[r].out[i]);
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

/* The stage's time is over. */
static void escalate(struct run *run)
{
	if (run->stage == FAILING)
		end_ranks(run, SIGTERM, run->options.grace < 1000 * TT_MS ? run->options.grace : 1000 * TT_MS);
	else if (run->stage == ENDING)
		kill_ranks(run);
	else
		abandon(run);
}

/* Signals. */

static void interrupt(struct run *run, int sig)
{
	if (!run->alive) /* only the output is waiting for its reader */
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
		break;
	case SIGINT:
	case SIGTERM:
		interrupt(run, sig);
		break;
	case SIGTSTP: /* ^Z stops the ranks and us; when we go on, so do they */
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
	uint64_t now = tt_now();

	if (run->stage == RUNNING || !run->alive)
		return -1;
	return now >= run->deadline ? 0 : (int)((run->deadline - now + TT_MS - 1) / TT_MS);
}

static void serve(struct run *run)
{
	while (run->alive || has_text(&run->sinks[0]) || has_text(&run->sinks[1])) {
		struct pollfd p[3] = { wish_of(&run->sinks[0]), wish_of(&run->sinks[1]), { run->signals, POLLIN, 0 } };
		if (poll(p, TT_COUNT(p), wait_ms(run)) < 0)
			continue; /* EINTR: we were stopped and go on */
		for (int i = 0; i < 2; i++)
			if (p[i].revents && p[i].events == POLLOUT)
				write_sink(run, &run->sinks[i]);
			else if (p[i].revents)
				read_streams(run, &run->sinks[i]);
		if (p[2].revents)
			take_signals(run);
		if (run->alive && run->stage != RUNNING && tt_now() >= run->deadline)
			escalate(run);
		if (!run->alive && run->failed > TOLD_MAX) {
			say(run, "%d more rank%s failed", run->failed - TOLD_MAX, run->failed - TOLD_MAX > 1 ? "s" : "");
			run->failed = 0;
		}
	}
}

/* What the ranks left behind was killed and is ours, the subreaper's: see it go, so that nothing is left when we end. */
static void reap_rest(struct run *run)
{
	const struct timespec moment = { 0, 1000000 };
	int r = 0;

	pass_on(run, SIGKILL); /* there are living ones only where not all could be started */
	for (int i = 0; run->roll && i < RANKS_MAX; i++)
		run->roll->group[i] = 0;
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
			close_stream(run, &run->ranks[r].out[i]);
	for (int i = 0; i < 2; i++) {
		free(run->sinks[i].text);
		if (run->sinks[i].streams >= 0)
			close(run->sinks[i].streams);
	}
	free(run->ranks);
	if (run->roll)
		munmap(run->roll, sizeof *run->roll);
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
	if ((err = open_signals(run)) || (err = open_sinks(run)) || (err = start_keeper(run)))
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
	else if (!(run.status = start_ranks(&run)))
		serve(&run);
	close_run(&run);
	return run.status;
}

/* The command line. */

static int cores(void)
{
	cpu_set_t allowed;
	long n = sched_getaffinity(0, sizeof allowed, &allowed) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&allowed);

	return n < 1 ? 1 : n > RANKS_MAX ? RANKS_MAX : (int)n;
}

/* Each rank takes two pipes of ours. Raises the soft limit as needed; the ranks get the old one back. */
static int check_limits(const struct options *o, struct rlimit *files)
{
	rlim_t need = 2 * (rlim_t)o->ranks + SPARE_FILES;
	struct rlimit processes, raised;

	getrlimit(RLIMIT_NOFILE, files);
	getrlimit(RLIMIT_NPROC, &processes);
	if (geteuid() && processes.rlim_cur <= (rlim_t)o->ranks)
		return tt_tool_refuse("run", "%d ranks are too many: the limit is %ld processes (ulimit -u)", o->ranks, (long)processes.rlim_cur);
	if (need <= files->rlim_cur)
		return 0;
	raised = *files;
	raised.rlim_cur = files->rlim_max;
	if (need > files->rlim_max || setrlimit(RLIMIT_NOFILE, &raised))
		return tt_tool_refuse("run", "%d ranks are too many: they need %ld open files here, and the limit is %ld (ulimit -Hn)", o->ranks,
		                      (long)need, (long)files->rlim_max);
	return 0;
}

static int take_ranks(struct options *o, const char *text)
{
	char *end;
	long n = strtol(text, &end, 10);

	if (end == text || *end || n < 1 || n > RANKS_MAX)
		return tt_tool_refuse("run", "-n %s: the number of ranks is a whole number from 1 to %d", text, RANKS_MAX);
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
	printf("Usage: tutti run [-n N] [--tag] [--grace SECONDS] PROGRAM [ARGUMENT ...]\n"
	       "Starts N copies of PROGRAM on this host as the ranks 0 to N-1 of one job.\n\n"
	       "  -n, --ranks N        how many; by default the number of cores allowed (here %d)\n"
	       "  -t, --tag            begin each line of output with its rank: \"[2] text\"\n"
	       "  -g, --grace SECONDS  how long ranks may take to end before they are made to; 3 by default\n"
	       "  -h, --help           this text\n\n"
	       "For example:\n"
	       "  tutti run -n 4 ./train --epochs 3\n"
	       "  tutti run -n 2 --tag sh -c 'echo I am $TUTTI_RANK of $TUTTI_SIZE'\n\n"
	       "Each rank gets TUTTI_RANK, TUTTI_SIZE, TUTTI_LOCAL_RANK, TUTTI_LOCAL_SIZE, TUTTI_BOOT and, where libsodium is\n"
	       "built in, a TUTTI_SECRET of its own job. Lines of different ranks never mix. Rank 0 has the standard input,\n"
	       "unless that is a terminal, and without --tag writes to a terminal itself.\n\n"
	       "When a rank fails, the others have the grace to notice, then get SIGTERM, and after at most one second more\n"
	       "SIGKILL. The signals INT, TERM, HUP, QUIT, USR1, USR2 and TSTP are passed on to the ranks; INT and TERM also\n"
	       "begin the grace, after which the ranks are killed; a second INT kills at once. What is left of a rank's process\n"
	       "group ends with the rank, and everything ends with `tutti run`, even if that is killed.\n\n"
	       "The exit status is that of the first rank that failed, 128 + the signal if one killed it; 127 or 126 if\n"
	       "PROGRAM cannot be executed; 2 if the command line makes no sense.\n", cores());
	return 0;
}

static const struct option known[] = {
	{ "ranks", required_argument, NULL, 'n' }, { "tag", no_argument, NULL, 't' }, { "grace", required_argument, NULL, 'g' },
	{ "help", no_argument, NULL, 'h' }, { 0 },
};

/* False: *status is the exit status. */
static bool parse(int argc, char **argv, struct options *o, int *status)
{
	int c;

	*status = 0;
	while (!*status && (c = getopt_long(argc, argv, "+:n:tg:h", known, NULL)) != -1) {
		switch (c) {
		case 'n': *status = take_ranks(o, optarg); break;
		case 't': o->tag = true; break;
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

/* With one of 0, 1, 2 closed, a pipe of ours could take its place. */
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

	if (!parse(argc, argv, &options, &status) || (status = check_limits(&options, &files)))
		return status;
	open_standard_files();
	return run_ranks(&options, &files);
}
