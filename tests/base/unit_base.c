/* unit_base.c - floor 0: the cursor, the list, the log, the settings, time, waiting, chance and histograms */
#include "base/base.h"
#include "base/list.h"
#include "base/pack.h"
#include "tests/harness/cunit_main.h"
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* files.c */

struct walk {
	int pid, end, calls;
	char path[320];
};

static int is_ours(void *arg, int pid, const char *path, const char *is)
{
	struct walk *w = arg;

	if (pid != w->pid || strncmp(is, "/memfd:tt-walk", 14) != 0)
		return 0;
	w->calls++;
	snprintf(w->path, sizeof w->path, "%s", path);
	return w->end;
}

static void test_open_files(void)
{
	struct walk w = { .pid = getpid() };
	int fds[2] = { tt_memory_file("tt-walk", 8), tt_memory_file("tt-walk", 8) };
	char there[320];

	CU_ASSERT_EQUAL(tt_each_file(w.pid, is_ours, &w), 0);
	CU_ASSERT_EQUAL(w.calls, 2);
	CU_ASSERT_EQUAL(tt_each_file(0, is_ours, &w), 0);
	CU_ASSERT_EQUAL(w.calls, 4);
	snprintf(there, sizeof there, "/proc/%d/fd/%d", w.pid, fds[1]);
	CU_ASSERT_STRING_EQUAL(w.path, there);
	for (w.end = -1; w.end <= 1; w.end += 2) { /* the first call is the last */
		w.calls = 0;
		CU_ASSERT_EQUAL(tt_each_file(w.pid, is_ours, &w), w.end);
		CU_ASSERT_EQUAL(tt_each_file(0, is_ours, &w), w.end > 0);
		CU_ASSERT_EQUAL(w.calls, 2);
	}
	CU_ASSERT_EQUAL(tt_each_file(INT32_MAX, is_ours, &w), -ENOENT);
	close(fds[0]);
	close(fds[1]);
}

/* pack.h */

static void test_integers_round_trip(void)
{
	uint8_t room[15];
	struct tt_pack p = tt_pack(room, sizeof room);

	tt_put8(&p, 0xab);
	tt_put16(&p, 0xbeef);
	tt_put32(&p, 0xdeadbeef);
	tt_put64(&p, 0x0123456789abcdef);
	CU_ASSERT_FALSE(p.bad);
	CU_ASSERT_EQUAL(tt_pack_left(&p), 0);

	p = tt_unpack(room, sizeof room);
	CU_ASSERT_EQUAL(tt_get8(&p), 0xab);
	CU_ASSERT_EQUAL(tt_get16(&p), 0xbeef);
	CU_ASSERT_EQUAL(tt_get32(&p), 0xdeadbeef);
	CU_ASSERT_EQUAL(tt_get64(&p), 0x0123456789abcdef);
	CU_ASSERT_FALSE(p.bad);
	CU_ASSERT_EQUAL(tt_pack_left(&p), 0);
}

static void test_integers_are_little_endian(void)
{
	const uint8_t expected[] = { 0x04, 0x03, 0x02, 0x01, 0x06, 0x05 };
	uint8_t room[6];
	struct tt_pack p = tt_pack(room, sizeof room);

	tt_put32(&p, 0x01020304);
	tt_put16(&p, 0x0506);
	CU_ASSERT_EQUAL(memcmp(room, expected, sizeof room), 0);
}

static void test_extreme_integers(void)
{
	const uint64_t values[] = {
		0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX
	};
	uint8_t room[8];

	for (size_t i = 0; i < TT_COUNT(values); i++) {
		struct tt_pack p = tt_pack(room, sizeof room), q = tt_unpack(room, sizeof room);
		tt_put64(&p, values[i]);
		CU_ASSERT_EQUAL(tt_get64(&q), values[i]);
	}
}

static void test_put_past_the_end(void)
{
	uint8_t room[4] = { 9, 9, 9, 9 };
	struct tt_pack p = tt_pack(room, 3);

	tt_put32(&p, 0); /* does not fit: nothing is written, not even a part */
	CU_ASSERT_TRUE(p.bad);
	CU_ASSERT_EQUAL(room[0], 9);
	tt_put8(&p, 1); /* would fit, but what came before it is missing */
	CU_ASSERT_EQUAL(room[0], 9);
	CU_ASSERT_EQUAL(room[3], 9);
}

static void test_get_past_the_end(void)
{
	const uint8_t room[3] = { 1, 2, 3 };
	uint8_t got[4] = { 7, 7, 7, 7 };
	struct tt_pack p = tt_unpack(room, sizeof room);

	CU_ASSERT_EQUAL(tt_get32(&p), 0);
	CU_ASSERT_TRUE(p.bad);
	CU_ASSERT_EQUAL(tt_get8(&p), 0);
	tt_get_bytes(&p, got, sizeof got);
	CU_ASSERT_EQUAL(memcmp(got, "\0\0\0\0", 4), 0);

	p = tt_unpack(room, sizeof room);
	CU_ASSERT_PTR_NULL(tt_pack_take(&p, SIZE_MAX));
	CU_ASSERT_TRUE(p.bad);
}

static void test_empty_ranges(void)
{
	struct tt_pack p = tt_pack(NULL, 0);

	tt_put_bytes(&p, NULL, 0);
	tt_get_bytes(&p, NULL, 0);
	CU_ASSERT_FALSE(p.bad);
	CU_ASSERT_EQUAL(tt_get8(&p), 0);
	CU_ASSERT_TRUE(p.bad);
}

static void test_bytes(void)
{
	uint8_t room[8];
	char got[5] = "";
	struct tt_pack p = tt_pack(room, sizeof room), q = tt_unpack(room, sizeof room);

	tt_put_bytes(&p, "tutti", 5);
	tt_get_bytes(&q, got, 5);
	CU_ASSERT_EQUAL(memcmp(got, "tutti", 5), 0);
	CU_ASSERT_EQUAL(tt_pack_left(&q), 3);
}

static void test_texts(void)
{
	uint8_t room[300];
	char long_text[257], got[256];
	struct tt_pack p = tt_pack(room, sizeof room), q = tt_unpack(room, sizeof room);

	memset(long_text, 'x', sizeof long_text);
	long_text[255] = 0;
	tt_put_text(&p, "");
	tt_put_text(&p, "10.0.0.7:4000");
	tt_put_text(&p, long_text); /* 255 letters: the longest */
	CU_ASSERT_FALSE(p.bad);
	tt_get_text(&q, got, sizeof got);
	CU_ASSERT_STRING_EQUAL(got, "");
	tt_get_text(&q, got, sizeof got);
	CU_ASSERT_STRING_EQUAL(got, "10.0.0.7:4000");
	tt_get_text(&q, got, sizeof got);
	CU_ASSERT_STRING_EQUAL(got, long_text);
	CU_ASSERT_FALSE(q.bad);

	long_text[255] = 'x';
	long_text[256] = 0;
	p = tt_pack(room, sizeof room);
	tt_put_text(&p, long_text); /* 256 letters: one too many */
	CU_ASSERT_TRUE(p.bad);
}

static void test_text_into_little_room(void)
{
	uint8_t room[8];
	char got[5] = "1234";
	struct tt_pack p = tt_pack(room, sizeof room), q = tt_unpack(room, sizeof room);

	tt_put_text(&p, "tutti");
	tt_get_text(&q, got, sizeof got); /* five letters and the zero need six */
	CU_ASSERT_TRUE(q.bad);
	CU_ASSERT_STRING_EQUAL(got, "");
}

static void test_text_cut_short(void)
{
	const uint8_t room[] = { 5, 't', 'u' }; /* says five letters, has two */
	char got[16] = "before";
	struct tt_pack p = tt_unpack(room, sizeof room);

	tt_get_text(&p, got, sizeof got);
	CU_ASSERT_TRUE(p.bad);
	CU_ASSERT_STRING_EQUAL(got, "");
}

/* list.h */

struct item {
	int value;
	struct tt_list node;
};

static int value_of(struct tt_list *node) { return node ? tt_container_of(node, struct item, node)->value : -1; }

static void test_list_keeps_order(void)
{
	struct item items[3] = { { .value = 10 }, { .value = 11 }, { .value = 12 } };
	struct tt_list head;
	int seen = 0;

	tt_list_init(&head);
	CU_ASSERT_TRUE(tt_list_empty(&head));
	CU_ASSERT_PTR_NULL(tt_list_pop(&head));
	for (int i = 0; i < 3; i++)
		tt_list_append(&head, &items[i].node);
	tt_list_each (node, &head)
		CU_ASSERT_EQUAL(value_of(node), 10 + seen++);
	CU_ASSERT_EQUAL(seen, 3);
	for (int i = 0; i < 3; i++)
		CU_ASSERT_EQUAL(value_of(tt_list_pop(&head)), 10 + i);
	CU_ASSERT_TRUE(tt_list_empty(&head));
}

static void test_list_remove(void)
{
	struct item items[3] = { { .value = 0 }, { .value = 1 }, { .value = 2 } };
	struct tt_list head;

	tt_list_init(&head);
	for (int i = 0; i < 3; i++)
		tt_list_append(&head, &items[i].node);
	tt_list_remove(&items[1].node);
	tt_list_remove(&items[1].node); /* again: harmless */
	CU_ASSERT_EQUAL(value_of(head.next), 0);
	CU_ASSERT_EQUAL(value_of(head.prev), 2);
	CU_ASSERT_PTR_EQUAL(items[0].node.next, &items[2].node);
	tt_list_append(&head, &items[1].node); /* and it may come back */
	CU_ASSERT_EQUAL(value_of(head.prev), 1);
}

static void test_list_remove_while_walking(void)
{
	struct item items[4] = { { .value = 0 }, { .value = 1 }, { .value = 2 }, { .value = 3 } };
	struct tt_list head;
	int seen = 0;

	tt_list_init(&head);
	for (int i = 0; i < 4; i++)
		tt_list_append(&head, &items[i].node);
	tt_list_each (node, &head) {
		seen++;
		tt_list_remove(node);
	}
	CU_ASSERT_EQUAL(seen, 4);
	CU_ASSERT_TRUE(tt_list_empty(&head));
}

/* log.c */

static void test_fail_remembers(void)
{
	CU_ASSERT_EQUAL(tt_fail(-ENOMEM, "cannot register %d bytes on %s", 4096, "eth0"), -ENOMEM);
	CU_ASSERT_STRING_EQUAL(tt_why(), "cannot register 4096 bytes on eth0");
	tt_remember("met elsewhere");
	CU_ASSERT_STRING_EQUAL(tt_why(), "met elsewhere");
}

static void test_fail_cuts_long_sentences(void)
{
	char text[2000];

	memset(text, 'x', sizeof text - 1);
	text[sizeof text - 1] = 0;
	tt_fail(-EINVAL, "%s", text);
	CU_ASSERT_TRUE(strlen(tt_why()) > 300 && strlen(tt_why()) < sizeof text - 1);
}

static void fail_elsewhere(void *why)
{
	strcpy(why, tt_why());
	tt_fail(-EIO, "the other thread's");
}

static void test_each_thread_has_its_own_sentence(void)
{
	struct tt_task *task;
	char seen[64] = "unset";

	tt_fail(-EIO, "mine");
	CU_ASSERT_EQUAL_FATAL(tt_spawn(fail_elsewhere, seen, &task), 0);
	tt_join(task);
	CU_ASSERT_STRING_EQUAL(seen, "");
	CU_ASSERT_STRING_EQUAL(tt_why(), "mine");
}

static void test_nearest(void)
{
	static const char *const known[] = { "transports", NULL, "timeout", "rank" };
	const char *near = tt_nearest("timeou", known, 4);

	CU_ASSERT_PTR_EQUAL(near, known[2]);
	CU_ASSERT_PTR_EQUAL(tt_nearest("transprots", known, 4), known[0]);
	CU_ASSERT_PTR_EQUAL(tt_nearest("rank", known, 4), known[3]);
	CU_ASSERT_PTR_NULL(tt_nearest("wholly-different", known, 4));
	CU_ASSERT_PTR_NULL(tt_nearest("rank", known, 0));
}

/* stderr is a pipe of one page, from begin_pipe() to end_pipe(). */
static int kept_stderr, pipe_end;

static void begin_pipe(void)
{
	int ends[2];

	fflush(stderr);
	kept_stderr = dup(STDERR_FILENO);
	CU_ASSERT_EQUAL_FATAL(pipe2(ends, O_CLOEXEC), 0);
	fcntl(ends[1], F_SETPIPE_SZ, 4096);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	dup2(ends[1], STDERR_FILENO);
	close(ends[1]);
	pipe_end = ends[0];
}

static void end_pipe(void)
{
	dup2(kept_stderr, STDERR_FILENO);
	close(kept_stderr);
	close(pipe_end);
}

/* All that stderr has been given, while what waits is written behind it. */
static size_t drain(char *text, size_t size)
{
	size_t n = 0;

	for (int idle = 0; idle < 3; idle++) {
		ssize_t got = read(pipe_end, text + n, size - 1 - n);
		if (got > 0) {
			n += (size_t)got;
			idle = -1;
		}
		tt_log_flush(tt_now() + (uint64_t)idle * 1000 * TT_MS);
	}
	text[n] = 0;
	return n;
}

static void set_level(const char *level)
{
	setenv("TUTTI_LOG", level, 1);
	tt_log_read_level();
}

static void test_log_never_blocks(void)
{
	enum { LINES = 600, SIZE = 1 << 20 };
	char *text = malloc(SIZE), *at, last[80] = "";
	int seen = 0, number, lost = 0;

	begin_pipe();
	alarm(60); /* a write that blocks ends the program */
	for (int i = 0; i < LINES; i++)
		tt_log(TT_WARN, "line %d %0200d", i, 0);
	alarm(0);
	drain(text, SIZE);
	for (at = text; sscanf(at, "tutti: warn: line %d ", &number) == 1 && number == seen; at = strchr(at, '\n') + 1)
		seen++;
	CU_ASSERT_TRUE(seen >= 256 && seen < LINES);
	sscanf(at, "tutti: warn: %d lines of the log are lost here: %70[^\n]", &lost, last);
	CU_ASSERT_EQUAL(seen + lost, LINES);
	CU_ASSERT_STRING_EQUAL(last, "standard error took none");
	tt_log(TT_WARN, "and on");
	drain(text, SIZE);
	CU_ASSERT_STRING_EQUAL(text, "tutti: warn: and on\n");
	end_pipe();
	free(text);
}

/* A pipe without a reader raises SIGPIPE, a closed descriptor is an error. */
static void test_log_without_a_reader(void)
{
	begin_pipe();
	int end = pipe_end;

	pipe_end = open("/dev/null", O_RDONLY);
	close(end);
	tt_log(TT_WARN, "nobody reads this");
	close(STDERR_FILENO);
	tt_log(TT_WARN, "nor this");
	end_pipe();
	tt_log_flush(tt_now());
}

static void test_log_names_rank_and_time(void)
{
	struct tt_speaker one, two;
	char text[4096];
	unsigned h, m, s, us;
	int rank, n = 0;

	begin_pipe();
	tt_speaker_add(&one);
	tt_log(TT_WARN, "a");
	atomic_store(&one.rank, 3);
	tt_log(TT_WARN, "b");
	tt_speaker_add(&two); /* which of two jobs? */
	atomic_store(&two.rank, 4);
	tt_log(TT_WARN, "c");
	tt_speaker = &two;
	tt_log(TT_ERROR, "d");
	tt_speaker = NULL;
	tt_speaker_remove(&one);
	tt_log(TT_WARN, "e");
	drain(text, sizeof text);
	CU_ASSERT_STRING_EQUAL(text, "tutti: warn: a\ntutti: rank 3: warn: b\ntutti: warn: c\n"
	                             "tutti: rank 4: error: d\ntutti: rank 4: warn: e\n");
	setenv("TUTTI_LOG", "info", 1); /* lines do not read it */
	tt_log(TT_INFO, "f");
	tt_log_read_level();
	tt_log(TT_INFO, "g");
	drain(text, sizeof text);
	CU_ASSERT_EQUAL(sscanf(text, "tutti: %2u:%2u:%2u.%6u: rank %d: info: g\n%n", &h, &m, &s, &us, &rank, &n), 5);
	CU_ASSERT_TRUE(n > 0 && !text[n] && rank == 4 && h < 24 && m < 60 && s < 60);
	tt_speaker_remove(&two);
	set_level("warn");
	end_pipe();
}

/* Values of variables and files may hold any bytes: a line or sentence stays one line. */
static void test_sentences_are_plain(void)
{
	char text[256];

	begin_pipe();
	tt_log(TT_WARN, "a host \"%s\"", "b\r\n\033[31m\x7f\xc3\xa4");
	drain(text, sizeof text);
	end_pipe();
	CU_ASSERT_STRING_EQUAL(text, "tutti: warn: a host \"b???[31m?\xc3\xa4\"\n");
	tt_fail(-EINVAL, "%s", "one\ntwo");
	CU_ASSERT_STRING_EQUAL(tt_why(), "one?two");
}

/* setlocale(), because newlocale() of glibc leaks what LOCPATH says. */
static bool set_german_locale(void)
{
	char folder[] = "/tmp/tutti-locale-XXXXXX", command[160];
	bool set = setlocale(LC_NUMERIC, "de_DE.UTF-8") != NULL;

	if (!set && mkdtemp(folder)) {
		snprintf(command, sizeof command, "localedef --no-archive -i de_DE -f ISO-8859-1 %s/de_DE > /dev/null "
		         "2>&1", folder);
		setenv("LOCPATH", folder, 1);
		set = system(command) == 0 && setlocale(LC_NUMERIC, "de_DE");
		unsetenv("LOCPATH");
		snprintf(command, sizeof command, "rm -rf %s", folder);
		CU_ASSERT_EQUAL(system(command), 0);
	}
	return set;
}

/* A program may set the locale of its user, who may write 0,5. */
static void test_numbers_of_a_locale(void)
{
	char number[16];

	if (!set_german_locale()) {
		printf("no German locale here: not tried\n");
		return;
	}
	snprintf(number, sizeof number, "%.1f", 4.4);
	CU_ASSERT_STRING_EQUAL(number, "4,4");
	tt_fail(-EINVAL, "alpha is %g", 0.5);
	CU_ASSERT_STRING_EQUAL(tt_why(), "alpha is 0.5");
	snprintf(number, sizeof number, "%.1f", 4.4);
	CU_ASSERT_STRING_EQUAL(number, "4,4");
	setlocale(LC_NUMERIC, "C");
}

static bool is_readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static void test_log_for_the_program(void)
{
	tutti_log_line l = { .rank = 7 };
	char text[4096];

	CU_ASSERT_EQUAL(tutti_log_next(&l), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(tutti_why(), "tutti_log_open"));
	begin_pipe();
	int fd = tutti_log_open();
	CU_ASSERT_TRUE_FATAL(fd >= 0);
	CU_ASSERT_EQUAL(tutti_log_open(), -EBUSY);
	CU_ASSERT_EQUAL(tutti_log_next(NULL), -EINVAL);
	CU_ASSERT_EQUAL(tutti_log_next(&l), 0);
	CU_ASSERT_FALSE(is_readable(fd));
	tt_log(TT_ERROR, "one");
	tt_log(TT_INFO, "not wanted");
	tt_log(TT_WARN, "two");
	CU_ASSERT_TRUE(is_readable(fd));
	CU_ASSERT_EQUAL(tutti_log_next(&l), 1);
	CU_ASSERT_TRUE(l.level == TUTTI_LOG_ERROR && l.rank == -1 && !strcmp(l.text, "one"));
	CU_ASSERT_TRUE(l.time_s * 1e9 <= (double)tt_calendar() && l.time_s * 1e9 > (double)tt_calendar() - 6e10);
	CU_ASSERT_TRUE(!l.reserved[0] && !l.reserved[3]);
	CU_ASSERT_TRUE(is_readable(fd));
	CU_ASSERT_EQUAL(tutti_log_next(&l), 1);
	CU_ASSERT_TRUE(l.level == TUTTI_LOG_WARN && !strcmp(l.text, "two"));
	CU_ASSERT_FALSE(is_readable(fd));
	tt_log(TT_WARN, "three");
	tutti_log_close();
	CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), -1);
	CU_ASSERT_EQUAL(tutti_log_next(&l), -EINVAL);
	tt_log(TT_WARN, "four");
	tutti_log_close();
	drain(text, sizeof text);
	CU_ASSERT_STRING_EQUAL(text, "tutti: warn: three\ntutti: warn: four\n");
	end_pipe();
}

static void test_log_counts_lost_lines(void)
{
	tutti_log_line l;
	char want[16];
	int n = 0;

	CU_ASSERT_TRUE_FATAL(tutti_log_open() >= 0);
	for (int i = 0; i < 300; i++)
		tt_log(TT_WARN, "%d", i);
	for (; tutti_log_next(&l) == 1 && n < 256; n++) {
		snprintf(want, sizeof want, "%d", n);
		CU_ASSERT_STRING_EQUAL(l.text, want);
	}
	CU_ASSERT_EQUAL(n, 256);
	CU_ASSERT_STRING_EQUAL(l.text, "44 lines of the log are lost here: nobody took them in time");
	CU_ASSERT_EQUAL(tutti_log_next(&l), 0);
	tutti_log_close();
}

static _Atomic bool stop_logging;

static void log_on(void *unused)
{
	(void)unused;
	while (!stop_logging)
		tt_log(TT_WARN, "a line of the other thread");
}

/* The child finds the log's lock free, whatever other threads of its parent did at that moment. */
static void test_log_in_a_forked_child(void)
{
	struct tt_task *task;
	int status, fd = tutti_log_open();
	char text[4096];

	begin_pipe();
	stop_logging = false;
	CU_ASSERT_EQUAL_FATAL(tt_spawn(log_on, NULL, &task), 0);
	for (int i = 0; i < 200; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			alarm(20);
			bool closed = fcntl(fd, F_GETFD) < 0;
			if (i == 0)
				tt_log(TT_WARN, "the child's");
			tutti_log_close();
			_exit(!closed || tutti_log_open() < 0);
		}
		CU_ASSERT_TRUE_FATAL(waitpid(pid, &status, 0) == pid && status == 0);
		drain(text, sizeof text); /* what each child writes finds room */
		CU_ASSERT_STRING_EQUAL(text, i ? "" : "tutti: warn: the child's\n");
	}
	stop_logging = true;
	tt_join(task);
	for (tutti_log_line l; tutti_log_next(&l) > 0;)
		continue;
	tutti_log_close();
	end_pipe();
}

/* env.c */

static void test_settings_come_from_the_environment_first(void)
{
	struct tt_settings all;

	unsetenv("TUTTI_TIMEOUT");
	setenv("TUTTI_TRANSPORTS", "sim", 1);
	setenv("TUTTI_IFACE", "", 1); /* empty counts as unset */
	unsetenv("TUTTI_SECRET");
	CU_ASSERT_EQUAL_FATAL(tt_settings_load(&all), 0);
	CU_ASSERT_STRING_EQUAL(tt_setting(&all, TT_TRANSPORTS), "sim");
	CU_ASSERT_STRING_EQUAL(all.of[TT_TRANSPORTS].origin, "environment");
	CU_ASSERT_STRING_EQUAL(tt_setting(&all, TT_TIMEOUT), tt_setting_info[TT_TIMEOUT].fallback);
	CU_ASSERT_STRING_EQUAL(all.of[TT_TIMEOUT].origin, "default");
	CU_ASSERT_PTR_NULL(tt_setting(&all, TT_IFACE));
	CU_ASSERT_PTR_NULL(tt_setting(&all, TT_SECRET));
	tt_settings_free(&all);
	unsetenv("TUTTI_TRANSPORTS");
	unsetenv("TUTTI_IFACE");
}

static void test_settings_can_be_replaced(void)
{
	struct tt_settings all;
	char text[] = "5000";

	CU_ASSERT_EQUAL_FATAL(tt_settings_load(&all), 0);
	CU_ASSERT_EQUAL(tt_settings_set(&all, TT_TIMEOUT, text, "file"), 0);
	text[0] = '9'; /* a copy is kept */
	CU_ASSERT_STRING_EQUAL(tt_setting(&all, TT_TIMEOUT), "5000");
	CU_ASSERT_STRING_EQUAL(all.of[TT_TIMEOUT].origin, "file");
	CU_ASSERT_EQUAL(tt_settings_set(&all, TT_TIMEOUT, NULL, "program"), 0);
	CU_ASSERT_PTR_NULL(tt_setting(&all, TT_TIMEOUT));
	tt_settings_free(&all);
}

static void test_whole_numbers(void)
{
	static const char *const wrong[] = { "soon", "12x", "", "-1", "101", "99999999999999999999", "1.5" };
	struct tt_settings all;
	long value = 77;

	CU_ASSERT_EQUAL_FATAL(tt_settings_load(&all), 0);
	tt_settings_set(&all, TT_TIMEOUT, NULL, "program");
	CU_ASSERT_EQUAL(tt_setting_int(&all, TT_TIMEOUT, 0, 100, &value), 0);
	CU_ASSERT_EQUAL(value, 77); /* unset: kept */
	tt_settings_set(&all, TT_TIMEOUT, "100", "program");
	CU_ASSERT_EQUAL(tt_setting_int(&all, TT_TIMEOUT, 0, 100, &value), 0);
	CU_ASSERT_EQUAL(value, 100);
	for (size_t i = 0; i < TT_COUNT(wrong); i++) {
		tt_settings_set(&all, TT_TIMEOUT, wrong[i], "program");
		CU_ASSERT_EQUAL(tt_setting_int(&all, TT_TIMEOUT, 0, 100, &value), -EINVAL);
		CU_ASSERT_EQUAL(value, 100);
	}
	tt_settings_set(&all, TT_TIMEOUT, "soon", "program");
	tt_setting_int(&all, TT_TIMEOUT, 0, 100, &value);
	CU_ASSERT_PTR_NOT_NULL(strstr(tt_why(), "TUTTI_TIMEOUT"));
	CU_ASSERT_PTR_NOT_NULL(strstr(tt_why(), "soon"));
	CU_ASSERT_PTR_NOT_NULL(strstr(tt_why(), "0 to 100"));
	tt_settings_free(&all);
}

static void test_values(void)
{
	static const struct {
		enum tt_setting setting;
		const char *good, *bad[6], *sentence;
	} cases[] = {
		{ TT_MINORITY,
		  "no",
		  { "on", "Yes", "1", "", "yesno", "maybe" },
		  "TUTTI_MINORITY=maybe is not yes or no" },
		{ TT_SPIN, "auto", { "perhaps" }, "TUTTI_SPIN=perhaps is not auto, yes or no" },
		{ TT_POOL,
		  "64",
		  { "65", "-1", "64x", "aut" },
		  "TUTTI_POOL=aut is not auto or a whole number from 0 to 64" },
		{ TT_SIZE,
		  "7",
		  { "", "7 ", "0", "99999999999999999999" },
		  "is not a whole number from 1 to 2147483647" },
	};
	struct tt_settings all;

	CU_ASSERT_EQUAL_FATAL(tt_settings_load(&all), 0);
	for (size_t i = 0; i < TT_COUNT(cases); i++) {
		tt_settings_set(&all, cases[i].setting, cases[i].good, "program");
		CU_ASSERT_EQUAL(tt_setting_judge(&all, cases[i].setting), 0);
		for (int k = 0; k < 6 && cases[i].bad[k]; k++) {
			tt_settings_set(&all, cases[i].setting, cases[i].bad[k], "program");
			CU_ASSERT_EQUAL(tt_setting_judge(&all, cases[i].setting), -EINVAL);
		}
		CU_ASSERT_PTR_NOT_NULL(strstr(tt_why(), cases[i].sentence));
	}
	tt_settings_free(&all);
}

static void test_every_setting_is_described(void)
{
	for (int i = 0; i < TT_SETTINGS; i++) {
		CU_ASSERT_PTR_NOT_NULL(tt_setting_info[i].variable);
		CU_ASSERT_TRUE(strlen(tt_setting_info[i].sentence) > 10);
		for (int j = 0; j < i; j++)
			CU_ASSERT_STRING_NOT_EQUAL(tt_setting_info[i].variable, tt_setting_info[j].variable);
	}
}

/* clock.c */

static void test_time_goes_on(void)
{
	uint64_t before = tt_now(), deadline = before + 5 * TT_MS;
	struct tt_parking p = { 0 };

	while (tt_now() < deadline)
		tt_park(&p, deadline);
	CU_ASSERT_TRUE(tt_now() - before >= 5 * TT_MS);
	tt_park(&p, before); /* a deadline that has passed: returns at once */
}

static void test_entropy_differs(void)
{
	uint64_t a = 0, b = 0;

	tt_entropy(&a, sizeof a);
	tt_entropy(&b, sizeof b);
	CU_ASSERT_NOT_EQUAL(a, b);
}

static void test_wake_is_sticky(void)
{
	struct tt_parking p = { 0 };
	uint64_t before = tt_now();

	tt_wake(&p);
	tt_wake(&p);
	tt_park(&p, before + 60000 * TT_MS); /* two wakes count as one, and it was not lost */
	CU_ASSERT_TRUE(tt_now() - before < 30000 * TT_MS);
	CU_ASSERT_EQUAL(atomic_load(&p.token), 0);
}

/* Two threads hand a ball to each other: a lost wake would hang until the deadline. */
struct table_tennis {
	struct tt_parking side[2];
	_Atomic int turn;
	_Atomic bool late;
};

enum { HITS = 2000 };

static void play(struct table_tennis *t, int me)
{
	for (int i = 0; i < HITS; i++) {
		uint64_t deadline = tt_now() + 30000 * TT_MS;
		while (atomic_load(&t->turn) != me && !atomic_load(&t->late)) {
			tt_park(&t->side[me], deadline);
			if (tt_now() >= deadline)
				atomic_store(&t->late, true);
		}
		atomic_store(&t->turn, !me);
		tt_wake(&t->side[!me]);
	}
}

static void play_second(void *arg) { play(arg, 1); }

static void test_threads_wake_each_other(void)
{
	struct table_tennis t = { .turn = 0 };
	struct tt_task *task;

	CU_ASSERT_EQUAL_FATAL(tt_spawn(play_second, &t, &task), 0);
	play(&t, 0);
	tt_join(task);
	CU_ASSERT_FALSE(atomic_load(&t.late));
	CU_ASSERT_EQUAL(atomic_load(&t.turn), 0);
}

static void signals_are_blocked(void *arg)
{
	sigset_t now;

	sigemptyset(&now);
	pthread_sigmask(SIG_SETMASK, NULL, &now);
	*(bool *)arg = sigismember(&now, SIGINT) == 1 && sigismember(&now, SIGTERM) == 1;
}

static void test_tasks_take_no_signals(void)
{
	struct tt_task *task;
	bool blocked = false;
	sigset_t mine;

	CU_ASSERT_EQUAL_FATAL(tt_spawn(signals_are_blocked, &blocked, &task), 0);
	tt_join(task);
	CU_ASSERT_TRUE(blocked);
	pthread_sigmask(SIG_SETMASK, NULL, &mine);
	CU_ASSERT_EQUAL(sigismember(&mine, SIGINT), 0); /* the caller's own are as they were */
}

static void test_sleep_ends_when_a_descriptor_is_readable(void)
{
	struct tt_sleeper s;
	int ends[2];
	uint64_t before = tt_now();

	CU_ASSERT_EQUAL_FATAL(tt_sleeper_open(&s), 0);
	CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
	CU_ASSERT_EQUAL(write(ends[1], "x", 1), 1);
	tt_sleep(&s, ends, 1, before + 60000 * TT_MS);
	CU_ASSERT_TRUE(tt_now() - before < 30000 * TT_MS);
	close(ends[0]);
	close(ends[1]);
	tt_sleeper_close(&s);
	CU_ASSERT_EQUAL(s.fd, -1);
	tt_sleeper_close(&s); /* twice: harmless */
}

static void test_sleep_ends_at_the_deadline(void)
{
	struct tt_sleeper s;
	uint64_t before = tt_now(), deadline = before + 5 * TT_MS;

	CU_ASSERT_EQUAL_FATAL(tt_sleeper_open(&s), 0);
	while (tt_now() < deadline)
		tt_sleep(&s, NULL, 0, deadline);
	CU_ASSERT_TRUE(tt_now() - before >= 5 * TT_MS && tt_now() - before < 30000 * TT_MS);
	tt_sleeper_close(&s);
}

static void kick_later(void *sleeper)
{
	struct tt_parking p = { 0 };

	tt_park(&p, tt_now() + 2 * TT_MS);
	tt_kick(sleeper);
}

static void test_kick_ends_a_sleep(void)
{
	struct tt_sleeper s;
	struct tt_task *task;
	uint64_t before = tt_now();

	CU_ASSERT_EQUAL_FATAL(tt_sleeper_open(&s), 0);
	tt_kick(&s);
	tt_sleep(&s, NULL, 0, TT_NEVER); /* sticky, as a wake is */
	CU_ASSERT_EQUAL_FATAL(tt_spawn(kick_later, &s, &task), 0);
	tt_sleep(&s, NULL, 0, before + 60000 * TT_MS);
	tt_join(task);
	CU_ASSERT_TRUE(tt_now() - before < 30000 * TT_MS);
	tt_sleeper_close(&s);
}

/* chance */

static void test_a_seed_replays(void)
{
	struct tt_random a, b, c;
	int same = 0;

	tt_random_seed(&a, 42);
	tt_random_seed(&b, 42);
	tt_random_seed(&c, 43);
	for (int i = 0; i < 1000; i++) {
		uint64_t x = tt_random_next(&a);
		CU_ASSERT_EQUAL(x, tt_random_next(&b));
		same += x == tt_random_next(&c);
	}
	CU_ASSERT_EQUAL(same, 0);
}

/* The first outputs of the authors' xoshiro256** from the state 1, 2, 3, 4. */
static void test_the_generator_is_xoshiro(void)
{
	static const uint64_t expected[] = { 11520, 0, 1509978240, 1215971899390074240 };
	struct tt_random r = { { 1, 2, 3, 4 } };

	for (size_t i = 0; i < TT_COUNT(expected); i++)
		CU_ASSERT_EQUAL(tt_random_next(&r), expected[i]);
}

static void test_below_stays_below(void)
{
	struct tt_random r;
	int count[10] = { 0 };

	tt_random_seed(&r, 7);
	for (int i = 0; i < 100000; i++) {
		uint64_t x = tt_random_below(&r, 10);
		CU_ASSERT_TRUE_FATAL(x < 10);
		count[x]++;
	}
	for (int i = 0; i < 10; i++)
		CU_ASSERT_TRUE(count[i] > 9500 && count[i] < 10500);
	for (int i = 0; i < 100; i++) {
		CU_ASSERT_EQUAL(tt_random_below(&r, 1), 0);
		CU_ASSERT_TRUE(tt_random_below(&r, UINT64_MAX) < UINT64_MAX);
	}
}

/* sum.c */

static void test_checksums(void)
{
	uint8_t bytes[101];
	struct tt_sum s;

	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)i;
	CU_ASSERT_EQUAL(tt_sum64("", 0), 0xef46db3751d8e999u); /* as the reference implementation has them */
	CU_ASSERT_EQUAL(tt_sum64("a", 1), 0xd24ec4f1a98c6e5bu);
	CU_ASSERT_EQUAL(tt_sum64("abc", 3), 0x44bc2cf5ad770999u);
	CU_ASSERT_EQUAL(tt_sum64(bytes, sizeof bytes), 0xe99038495f85381eu);
	for (size_t piece = 1; piece < sizeof bytes; piece++) {
		tt_sum_begin(&s);
		for (size_t at = 0; at < sizeof bytes; at += piece)
			tt_sum_add(&s, bytes + at, tt_min(piece, sizeof bytes - at));
		CU_ASSERT_EQUAL(tt_sum_end(&s), 0xe99038495f85381eu);
	}
}

static CU_TestInfo file_tests[] = {
	{ "open files of processes", test_open_files },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo sum_tests[] = {
	{ "checksums", test_checksums },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo pack_tests[] = {
	{ "integers round trip", test_integers_round_trip },
	{ "integers are little endian", test_integers_are_little_endian },
	{ "extreme integers", test_extreme_integers },
	{ "put past the end", test_put_past_the_end },
	{ "get past the end", test_get_past_the_end },
	{ "empty ranges", test_empty_ranges },
	{ "bytes", test_bytes },
	{ "texts", test_texts },
	{ "text into little room", test_text_into_little_room },
	{ "text cut short", test_text_cut_short },
	CU_TEST_INFO_NULL,
};
/* hist.c */

static int ascending(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static bool is_near(double got, uint64_t exact) /* within a sixteenth, and the half of a bucket of one */
{
	return got >= (double)exact * (1 - 1.0 / 16) - 0.5 && got <= (double)exact * (1 + 1.0 / 16) + 0.5;
}

enum { TIMES = 20000 };

/* As times are: most of one size, some ten or a thousand times as long. */
static void draw_times(struct tt_random *r, uint64_t *v, unsigned bits)
{
	for (int i = 0; i < TIMES; i++)
		v[i] = tt_random_next(r) >> (64 - 1 - tt_random_below(r, bits));
}

static void check_quantiles(const struct tt_hist *h, const uint64_t *sorted, size_t n)
{
	static const double ps[] = { 0, 0.001, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1 };

	for (size_t i = 0; i < TT_COUNT(ps); i++) {
		double at = ps[i] * (double)n;
		/* how many are at most the quantile */
		size_t rank = at > (double)(size_t)at ? (size_t)at + 1 : (size_t)at;
		CU_ASSERT_TRUE(is_near(tt_hist_quantile(h, ps[i]), sorted[rank ? rank - 1 : 0]));
	}
}

static void test_quantiles_are_near_the_sorted(void)
{
	uint64_t *v = malloc(TIMES * sizeof *v), sum = 0;
	struct tt_random r;

	for (unsigned bits = 1; bits <= 48; bits += bits < 4 ? 1 : 4) {
		struct tt_hist h = { 0 };
		tt_random_seed(&r, bits);
		draw_times(&r, v, bits);
		sum = 0;
		for (int i = 0; i < TIMES; i++) {
			tt_hist_add(&h, v[i]);
			sum += v[i];
		}
		qsort(v, TIMES, sizeof *v, ascending);
		check_quantiles(&h, v, TIMES);
		CU_ASSERT_EQUAL(h.count, TIMES);
		CU_ASSERT_EQUAL(h.max, v[TIMES - 1]);
		CU_ASSERT_DOUBLE_EQUAL(tt_hist_mean(&h), (double)sum / TIMES, (double)sum / TIMES * 1e-9);
	}
	free(v);
}

static void test_merged_is_as_if_added(void)
{
	struct tt_hist odd = { 0 }, even = { 0 }, all = { 0 };
	struct tt_random r;

	tt_random_seed(&r, 5);
	for (int i = 0; i < TIMES; i++) {
		uint64_t v = tt_random_below(&r, 1 + i * 37u);
		tt_hist_add(i % 2 ? &odd : &even, v);
		tt_hist_add(&all, v);
	}
	tt_hist_merge(&odd, &even);
	CU_ASSERT_EQUAL(memcmp(&odd, &all, sizeof all), 0);
}

static void test_an_empty_histogram_gives_zeros(void)
{
	struct tt_hist h = { 0 };

	CU_ASSERT_EQUAL(tt_hist_quantile(&h, 0.5), 0);
	CU_ASSERT_EQUAL(tt_hist_mean(&h), 0);
}

static void test_the_longest_share_a_bucket(void)
{
	struct tt_hist h = { 0 };

	tt_hist_add(&h, 1000);
	tt_hist_add(&h, UINT64_MAX / 2);
	CU_ASSERT_TRUE(is_near(tt_hist_quantile(&h, 0.5), 1000));
	CU_ASSERT_TRUE(tt_hist_quantile(&h, 1) >= (double)(1ull << 47)); /* and no more is known */
	CU_ASSERT_EQUAL(h.max, UINT64_MAX / 2);
}

static void test_full_buckets_keep_the_quantiles(void)
{
	struct tt_hist h = { 0 }, other;

	for (int i = 0; i < 10; i++)
		tt_hist_add(&h, i < 9 ? 3 : 100);
	for (int i = 0; i < TT_HIST_BUCKETS; i++) /* as if each had come 400 million times as often */
		h.bucket[i] *= UINT32_MAX / 9;
	h.bucket[3] = UINT32_MAX;
	other = h;
	tt_hist_add(&h, 3);
	CU_ASSERT_EQUAL(h.bucket[3], UINT32_MAX / 2 + 1);
	CU_ASSERT_EQUAL(h.count, 11);
	tt_hist_merge(&h, &other);
	CU_ASSERT_EQUAL(tt_hist_quantile(&h, 0.85), 3);
	CU_ASSERT_TRUE(is_near(tt_hist_quantile(&h, 0.95), 100));
	CU_ASSERT_EQUAL(h.count, 21);
}

static void test_ticks_become_nanoseconds(void)
{
	struct tt_ticker t;
	uint64_t outer, ticks, inner, most;

	tt_ticker_start(&t);
	outer = tt_now();
	ticks = tt_ticks();
	inner = tt_now();
	while (tt_now() - inner < 5 * TT_MS)
		;
	ticks = tt_ticks() - ticks;
	most = tt_now() - outer;
	CU_ASSERT_TRUE((double)ticks * tt_ticker_ns(&t) >= 5e6 * 0.99);
	CU_ASSERT_TRUE((double)ticks * tt_ticker_ns(&t) <= (double)most * 1.01);
}

static CU_TestInfo hist_tests[] = {
	{ "quantiles are near the sorted", test_quantiles_are_near_the_sorted },
	{ "merged is as if added", test_merged_is_as_if_added },
	{ "an empty histogram gives zeros", test_an_empty_histogram_gives_zeros },
	{ "the longest share a bucket", test_the_longest_share_a_bucket },
	{ "full buckets keep the quantiles", test_full_buckets_keep_the_quantiles },
	{ "ticks become nanoseconds", test_ticks_become_nanoseconds },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo list_tests[] = {
	{ "keeps order", test_list_keeps_order },
	{ "remove", test_list_remove },
	{ "remove while walking", test_list_remove_while_walking },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo log_tests[] = {
	{ "fail remembers", test_fail_remembers },
	{ "fail cuts long sentences", test_fail_cuts_long_sentences },
	{ "each thread has its own sentence", test_each_thread_has_its_own_sentence },
	{ "nearest", test_nearest },
	{ "the log never blocks", test_log_never_blocks },
	{ "sentences are plain", test_sentences_are_plain },
	{ "numbers of a locale", test_numbers_of_a_locale },
	{ "the log without a reader", test_log_without_a_reader },
	{ "the log names rank and time", test_log_names_rank_and_time },
	{ "the log for the program", test_log_for_the_program },
	{ "the log counts lost lines", test_log_counts_lost_lines },
	{ "the log in a forked child", test_log_in_a_forked_child },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo env_tests[] = {
	{ "settings come from the environment first", test_settings_come_from_the_environment_first },
	{ "settings can be replaced", test_settings_can_be_replaced },
	{ "whole numbers", test_whole_numbers },
	{ "values of settings", test_values },
	{ "every setting is described", test_every_setting_is_described },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo clock_tests[] = {
	{ "time goes on", test_time_goes_on },
	{ "entropy differs", test_entropy_differs },
	{ "wake is sticky", test_wake_is_sticky },
	{ "threads wake each other", test_threads_wake_each_other },
	{ "tasks take no signals", test_tasks_take_no_signals },
	{ "sleep ends when a descriptor is readable", test_sleep_ends_when_a_descriptor_is_readable },
	{ "sleep ends at the deadline", test_sleep_ends_at_the_deadline },
	{ "kick ends a sleep", test_kick_ends_a_sleep },
	CU_TEST_INFO_NULL,
};
static CU_TestInfo chance_tests[] = {
	{ "a seed replays", test_a_seed_replays },
	{ "the generator is xoshiro256**", test_the_generator_is_xoshiro },
	{ "below stays below", test_below_stays_below },
	CU_TEST_INFO_NULL,
};

int main(int argc, char **argv)
{
	CU_SuiteInfo suites[] = {
		{ "files", NULL, NULL, NULL, NULL, file_tests },  { "sum", NULL, NULL, NULL, NULL, sum_tests },
		{ "pack", NULL, NULL, NULL, NULL, pack_tests },   { "list", NULL, NULL, NULL, NULL, list_tests },
		{ "log", NULL, NULL, NULL, NULL, log_tests },     { "env", NULL, NULL, NULL, NULL, env_tests },
		{ "clock", NULL, NULL, NULL, NULL, clock_tests }, { "chance", NULL, NULL, NULL, NULL, chance_tests },
		{ "hist", NULL, NULL, NULL, NULL, hist_tests },
		CU_SUITE_INFO_NULL,
	};

	return run_suites(suites, argc, argv);
}
