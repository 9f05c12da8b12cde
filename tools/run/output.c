/* output.c - the output of the ranks of `tutti run`: lines of different ranks never mix */
#include "tools/run/run.h"
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 64 << 10 }; /* longer lines pass in pieces */

static void put(struct sink *k, const char *text, size_t len)
{
	if (k->fd < 0)
		return;
	if (k->len + len > k->room) {
		size_t room = tt_max(2 * k->room, k->len + len);
		char *larger = realloc(k->text, room);
		if (!larger)
			return; /* a lost line is better than a lost job */
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

void tt_run_say(struct run *run, const char *fmt, ...)
{
	const char *host = run->options.host;
	char text[1024];
	size_t head;
	va_list args;

	head = (size_t)snprintf(text, sizeof text, *host ? "tutti run on %s: " : "tutti run: ", host);
	va_start(args, fmt);
	vsnprintf(text + head, sizeof text - head - 1, fmt, args);
	va_end(args);
	strcat(text, "\n");
	end_open_line(run->errors);
	put(run->errors, text, strlen(text));
}

/* A line ends with \n, or with a \r without a \n (a progress bar). */
static size_t line_length(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (text[i] == '\n' || (text[i] == '\r' && !(i + 1 < len && text[i + 1] == '\n')))
			return i + 1;
	return len;
}

static size_t write_tag(const struct run *run, const struct stream *s, char *text, size_t size)
{
	char host[sizeof run->options.host] = "";

	if (run->options.tag == TAG_RANK)
		return (size_t)snprintf(text, size, "[%d] ", run->options.first + s->rank);
	if (run->options.agent || gethostname(host, sizeof host - 1))
		memcpy(host, run->options.host, sizeof host); /* as the user calls it */
	return (size_t)snprintf(text, size, "[%d %s] ", run->options.first + s->rank, host);
}

static void pass_line(struct run *run, struct stream *s, const char *line, size_t len)
{
	struct sink *k = s->to;
	char tag[160];
	bool completes = s->returned && len == 1 && *line == '\n'; /* the other half of a \r\n */

	if (run->options.hosts && s == &run->ranks[s->rank].out[0] && tt_run_take_hello(run, s->rank, line, len))
		return;
	if (completes && k->open != s)
		return; /* another rank's text came between and has ended the line */
	if (k->open != s)
		end_open_line(k);
	if (run->options.tag && !run->options.hosts && (!k->open || s->returned) && !completes)
		put(k, tag, write_tag(run, s, tag, sizeof tag));
	put(k, line, len);
	k->open = line[len - 1] == '\n' ? NULL : s;
	s->returned = line[len - 1] == '\r';
}

/* Passes on complete lines; everything if `rest`, or if the buffer is full. */
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

void tt_run_close_stream(struct run *run, struct stream *s)
{
	if (s->fd < 0)
		return;
	pass_lines(run, s, true);
	close(s->fd); /* which takes it out of its epoll set */
	s->fd = -1;
	free(s->text);
	s->text = NULL;
}

bool tt_run_read_stream(struct run *run, struct stream *s)
{
	if (s->fd < 0)
		return false;
	if (!s->text && !(s->text = malloc(LINE_MAX_BYTES))) {
		tt_run_say(run, "no memory for the output of rank %d", s->rank);
		tt_run_close_stream(run, s);
		return false;
	}
	ssize_t n = read(s->fd, s->text + s->len, LINE_MAX_BYTES - s->len);
	if (n > 0) {
		s->len += (size_t)n;
		pass_lines(run, s, false);
	} else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
		tt_run_close_stream(run, s);
	}
	return n > 0;
}

/* The reader has gone. The ranks should notice as if they had written directly. */
static void break_sink(struct run *run, struct sink *k)
{
	if (errno != EPIPE && k != run->errors)
		tt_run_say(run, "cannot write the output: %s", strerror(errno));
	if (errno != EPIPE && !run->status)
		run->status = 1;
	k->fd = -1;
	k->len = k->sent = 0;
	for (int r = 0; r < run->count; r++)
		for (int i = 0; i < 2; i++)
			if (run->ranks[r].out[i].to == k)
				tt_run_close_stream(run, &run->ranks[r].out[i]);
}

/* A writable pipe takes PIPE_BUF bytes without blocking, and not necessarily more. */
void tt_run_write_sink(struct run *run, struct sink *k)
{
	ssize_t n = write(k->fd, k->text + k->sent, tt_min(k->len - k->sent, PIPE_BUF));

	if (n < 0 && errno != EAGAIN && errno != EINTR)
		break_sink(run, k);
	if (n > 0 && (k->sent += (size_t)n) == k->len)
		k->sent = k->len = 0;
}

void tt_run_read_streams(struct run *run, struct sink *k)
{
	struct epoll_event ready[16];
	int n = epoll_wait(k->streams, ready, TT_COUNT(ready), 0);

	for (int i = 0; i < n; i++)
		tt_run_read_stream(run, ready[i].data.ptr);
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

int tt_run_open_sinks(struct run *run)
{
	bool one = same_file(1, 2);
	int err = open_sink(&run->sinks[0], 1);

	run->errors = &run->sinks[!one];
	return err || one ? err : open_sink(run->errors, 2);
}

/* May rank 0 write directly? Its process group is in the background, which `stty tostop` forbids to write. */
static bool is_terminal(int fd)
{
	struct termios t;

	return !tcgetattr(fd, &t) && !(t.c_lflag & TOSTOP);
}

int tt_run_open_stream(struct run *run, int r, int i, int *theirs)
{
	struct stream *s = &run->ranks[r].out[i];
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = s };
	int ends[2];

	*theirs = -1;
	s->to = i ? run->errors : &run->sinks[0];
	s->rank = r;
	if (!r && !run->options.tag && !run->options.hosts && is_terminal(1 + i))
		return 0; /* rank 0 writes to the terminal, and may draw progress bars */
	if (pipe2(ends, O_CLOEXEC))
		return -errno;
	s->fd = ends[0];
	*theirs = ends[1];
	fcntl(s->fd, F_SETFL, O_NONBLOCK);
	return epoll_ctl(s->to->streams, EPOLL_CTL_ADD, s->fd, &e) ? -errno : 0;
}
