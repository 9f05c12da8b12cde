/* log.c - one line per event, and the sentence behind the last error of each thread
 *
 * A line is logged under a job's lock, so it must not wait for anything: neither for a reader of stderr nor for the
 * program. All lines pass through one bounded queue.
 *
 *      tt_log --> queue --> stderr, as far as it takes bytes at once; the rest with the next line, or by tt_log_flush
 *                       \-> or the program, between tutti_log_open and tutti_log_close
 */
#include "base/base.h"
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static _Thread_local struct tt_sentence last_error;
_Thread_local const struct tt_speaker *tt_speaker, *tt_home_speaker;

enum {
	QUEUE = 256,         /* lines that wait */
	TRY_EVERY_MS = 20,   /* while stderr takes nothing */
	LAST_TRY_MS = 1000,  /* when the process ends */
	PAST_TEXT = 96,      /* the rest of a line: name, time, rank, level */
};

static struct { /* of the process; zeroed is ready */
	struct tt_ticket_lock lock;
	tutti_log_line lines[QUEUE]; /* line i is lines[i % QUEUE] */
	unsigned first, next;        /* first: the oldest line that waits; next: the place behind the newest one */
	unsigned lost;               /* lines that found the queue full */
	size_t written;              /* bytes of the oldest line that stderr has taken */
	uint64_t tried;              /* the time of the last tt_log_flush() */
	_Atomic bool taken;          /* the program takes the lines ... */
	int bell;                    /* ... and this eventfd is readable while lines wait */
	struct tt_speaker *speakers; /* the jobs of this process */
} queue;
static _Atomic bool stuck; /* lines wait for stderr. Read without the lock */

/* ---- the level ---- */

static const char *const level_names[] = { "error", "warn", "info", "debug" };
static _Atomic int level_read; /* the level + 1; 0: not read yet */

static enum tt_level read_level(void)
{
	const char *s = tt_env(TT_LOG);

	for (size_t i = 0; s && i < TT_COUNT(level_names); i++)
		if (!strcmp(s, level_names[i]))
			return (enum tt_level)i;
	return TT_WARN;
}

/* Another thread of the program may change the environment meanwhile, so a line does not read it. */
void tt_log_read_level(void)
{
	if (!tt_world)
		atomic_store(&level_read, (int)read_level() + 1);
}

static enum tt_level level_wanted(void)
{
	if (tt_world)
		return read_level();
	if (!atomic_load_explicit(&level_read, memory_order_relaxed))
		tt_log_read_level();
	return (enum tt_level)(atomic_load_explicit(&level_read, memory_order_relaxed) - 1);
}

/* ---- stderr, which must never block ---- */

/* What can fill up is opened once more: O_NONBLOCK on the program's own descriptor would change the program's writes.
 * -1: that is not needed, or not possible. */
static int open_nonblocking(const struct stat *st)
{
	if (!S_ISFIFO(st->st_mode) && !(S_ISCHR(st->st_mode) && isatty(STDERR_FILENO)))
		return -1;
	return tt_high_file(open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

/* Returns how many bytes stderr has taken, or -1; -EAGAIN in errno: later. Lines are shorter than PIPE_BUF, so a pipe
 * takes all of a line, and lines of several processes do not mix. */
static ssize_t write_now(const char *text, size_t len)
{
	struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };
	struct stat st;

	errno = EAGAIN;
	if (poll(&p, 1, 0) <= 0)
		return -1;
	errno = EPIPE;
	if (p.revents & (POLLERR | POLLHUP | POLLNVAL) || fstat(STDERR_FILENO, &st)) /* a write could raise SIGPIPE */
		return -1;
	if (S_ISSOCK(st.st_mode))
		return send(STDERR_FILENO, text, len, MSG_DONTWAIT | MSG_NOSIGNAL);
	int fd = open_nonblocking(&st);
	ssize_t n = write(fd >= 0 ? fd : STDERR_FILENO, text, len);
	int why = errno;
	if (fd >= 0)
		close(fd);
	errno = why;
	return n;
}

/* "tutti: 14:03:07.123456: rank 3: info: ..."; the time, in UTC, only where many lines come. */
static size_t format_line(const tutti_log_line *l, char text[sizeof l->text + PAST_TEXT])
{
	char at[24] = "", whose[24] = "";
	uint64_t us = (uint64_t)(l->time_s * 1e6), s = us / 1000000;

	if (level_wanted() >= TT_INFO)
		snprintf(at, sizeof at, "%02u:%02u:%02u.%06u: ", (unsigned)(s / 3600 % 24), (unsigned)(s / 60 % 60),
		         (unsigned)(s % 60), (unsigned)(us % 1000000));
	if (l->rank >= 0)
		snprintf(whose, sizeof whose, "rank %d: ", l->rank);
	return (size_t)snprintf(text, sizeof l->text + PAST_TEXT, "tutti: %s%s%s: %s\n", at, whose,
	                        level_names[l->level], l->text);
}

/* ---- the queue ---- */

/* Copies neither lines nor the lock's state into a fork's child: another thread may have been changing them. */
static void forget_all(void)
{
	if (queue.taken)
		close(queue.bell);
	queue.lock = (struct tt_ticket_lock){ 0 };
	queue.first = queue.next = queue.lost = 0;
	queue.written = 0;
	queue.taken = false;
	queue.speakers = NULL;
	tt_speak_for(NULL);
	atomic_store(&stuck, false);
}

/* Before the first line, so that no child inherits the lock from a thread that logs this line. */
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_all); }

static void take_lock(void) { tt_ticket_lock_take(&queue.lock); }

static void release_lock(void)
{
	atomic_store_explicit(&stuck, !queue.taken && queue.first != queue.next, memory_order_relaxed);
	tt_ticket_lock_release(&queue.lock);
}

static int find_rank(void)
{
	if (tt_speaker)
		return atomic_load_explicit(&tt_speaker->rank, memory_order_relaxed);
	if (queue.speakers && !queue.speakers->next)
		return atomic_load_explicit(&queue.speakers->rank, memory_order_relaxed);
	return -1;
}

static void ring(void)
{
	uint64_t one = 1;

	(void)!write(queue.bell, &one, sizeof one);
}

static void append(enum tt_level level, const char *text)
{
	tutti_log_line *l = &queue.lines[queue.next % QUEUE];

	if (queue.next - queue.first == QUEUE) {
		queue.lost++;
		return;
	}
	memset(l, 0, sizeof *l);
	l->level = (tutti_log_level)level;
	l->rank = find_rank();
	l->time_s = (double)tt_calendar() / 1e9;
	snprintf(l->text, sizeof l->text, "%s", text);
	queue.next++;
	if (queue.taken)
		ring();
}

/* The line about lost lines comes when a place is free, which is where the lost ones would have been. */
static void remove_oldest(void)
{
	char text[80];

	queue.first++;
	queue.written = 0;
	if (!queue.lost)
		return;
	snprintf(text, sizeof text, "%u lines of the log are lost here: %s", queue.lost,
	         queue.taken ? "nobody took them in time" : "standard error took none");
	queue.lost = 0;
	append(TT_WARN, text);
}

/* A line that stderr refuses, as it is closed or its disk full, is gone. */
static void write_lines(void)
{
	char text[sizeof queue.lines[0].text + PAST_TEXT];

	while (!queue.taken && queue.first != queue.next) {
		size_t len = format_line(&queue.lines[queue.first % QUEUE], text);
		ssize_t n = write_now(text + queue.written, len - queue.written);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		queue.written = n < 0 ? len : queue.written + (size_t)n;
		if (queue.written < len)
			return;
		remove_oldest();
	}
}

static void print_line(enum tt_level level, const char *text)
{
	int before = errno;

	take_lock();
	append(level, text);
	write_lines();
	release_lock();
	errno = before;
}

void tt_log_flush(uint64_t now)
{
	if (!atomic_load_explicit(&stuck, memory_order_relaxed))
		return;
	take_lock();
	if (now - queue.tried >= TRY_EVERY_MS * TT_MS) {
		queue.tried = now;
		write_lines();
	}
	release_lock();
}

/* ---- whose lines they are ---- */

void tt_speaker_add(struct tt_speaker *s)
{
	take_lock();
	atomic_store(&s->rank, -1);
	s->next = queue.speakers;
	queue.speakers = s;
	release_lock();
}

void tt_speaker_remove(struct tt_speaker *s)
{
	take_lock();
	for (struct tt_speaker **at = &queue.speakers; *at; at = &(*at)->next)
		if (*at == s) {
			*at = s->next;
			break;
		}
	release_lock();
}

/* ---- lines for the program ---- */

int tutti_log_open(void)
{
	int fd = tt_eventfd("log lines"), taken;

	if (fd < 0)
		return fd;
	take_lock();
	taken = queue.taken ? queue.bell : -1;
	if (taken < 0) {
		queue.bell = fd; /* first, as a child of a fork at this moment closes the bell if the lines are taken */
		queue.taken = true;
		queue.written = 0;
		if (queue.first != queue.next)
			ring();
	}
	release_lock();
	if (taken < 0)
		return fd;
	close(fd);
	return tt_fail(-EBUSY, "the program takes the log lines already, by descriptor %d: tutti_log_close ends that",
	               taken);
}

int tutti_log_next(tutti_log_line *line)
{
	uint64_t rung;
	int n;

	if (!line)
		return tt_fail(-EINVAL, "tutti_log_next: line is NULL, and must not be");
	take_lock();
	n = !queue.taken ? -EINVAL : queue.first != queue.next;
	if (n > 0) {
		*line = queue.lines[queue.first % QUEUE];
		remove_oldest();
	}
	if (n >= 0 && queue.first == queue.next)
		(void)!read(queue.bell, &rung, sizeof rung);
	release_lock();
	return n < 0 ? tt_fail(n, "tutti_log_next: the log lines go to stderr; call tutti_log_open first") : n;
}

void tutti_log_close(void)
{
	take_lock();
	/* Clear first: a child of a fork at this moment must not close another file that gets the bell's number. */
	if (atomic_exchange(&queue.taken, false))
		close(queue.bell);
	write_lines();
	release_lock();
}

/* The last lines of a process, which often say why it ends. */
__attribute__((destructor)) static void write_the_last(void)
{
	struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };
	uint64_t end = tt_now() + LAST_TRY_MS * TT_MS, now;

	tutti_log_close();
	while (atomic_load(&stuck) && (now = tt_now()) < end && poll(&p, 1, (int)((end - now) / TT_MS) + 1) > 0)
		tutti_log_close();
}

/* ---- lines and sentences ---- */

/* newlocale() takes no memory for "C". */
locale_t tt_numbers_plain(void)
{
	locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);

	return plain ? uselocale(plain) : (locale_t)0;
}

void tt_numbers_as(locale_t before)
{
	if (before)
		uselocale(before);
}

void tt_make_plain(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == 0x7f)
			*text = '?';
}

/* A file's line may end with a carriage return, a variable's value may hold anything: a sentence stays one line. */
static void format_text(char *text, size_t size, const char *fmt, va_list args)
{
	locale_t before = tt_numbers_plain();

	vsnprintf(text, size, fmt, args);
	tt_numbers_as(before);
	tt_make_plain(text);
}

void tt_log(enum tt_level level, const char *fmt, ...)
{
	char text[512];
	va_list args;

	if (level > level_wanted())
		return;
	va_start(args, fmt);
	format_text(text, sizeof text, fmt, args);
	va_end(args);
	print_line(level, text);
}

int tt_fail(int err, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	format_text(last_error.text, sizeof last_error.text, fmt, args);
	va_end(args);
	/* Programs print tutti_why() themselves: at the default level the sentence must not appear twice. */
	if (level_wanted() >= TT_INFO)
		print_line(TT_INFO, last_error.text);
	return err;
}

void tt_remember(const char *sentence) { snprintf(last_error.text, sizeof last_error.text, "%s", sentence); }

const char *tt_why(void) { return last_error.text; }
struct tt_sentence tt_last_sentence(void) { return last_error; }

/* Edit distance by rows (Wagner and Fischer 1974), for words shorter than 64 letters. */
static unsigned distance(const char *a, const char *b)
{
	unsigned row[64], n = (unsigned)strlen(b);

	if (n >= TT_COUNT(row))
		return n;
	for (unsigned j = 0; j <= n; j++)
		row[j] = j;
	for (unsigned i = 0; a[i]; i++) {
		unsigned diagonal = row[0];
		row[0] = i + 1;
		for (unsigned j = 0; j < n; j++) {
			unsigned change = diagonal + (a[i] != b[j]), gap = 1 + (unsigned)tt_min(row[j], row[j + 1]);
			diagonal = row[j + 1];
			row[j + 1] = change < gap ? change : gap;
		}
	}
	return row[n];
}

const char *tt_nearest(const char *word, const char *const *known, int n)
{
	const char *best = NULL;
	/* more than a third of the letters differ: another word */
	unsigned least = ((unsigned)strlen(word) + 2) / 3 + 1;

	for (int i = 0; i < n; i++) {
		unsigned d = known[i] ? distance(word, known[i]) : least;
		if (d < least) {
			least = d;
			best = known[i];
		}
	}
	return best;
}
