/* fuzz_config.c - a config file and an environment, read as tutti_join does. Input: the file's bytes up to the first
 * zero byte; then NAME=VALUE entries that end with a zero each, of the environment, or of tutti_config by the name of a
 * member. A job of one rank is joined and left as well; larger ones would go and look for the others. */
#include "launch/launch.h"
#include "member/member.h"
#include "tests/fuzz/fuzz.h"
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRIES = 32 };
static const char *entries[ENTRIES]; /* each with a zero at its end */
static int entry_count;

static const char *look_up(const char *variable)
{
	size_t n = strlen(variable);

	for (int i = 0; i < entry_count; i++)
		if (!strncmp(entries[i], variable, n) && entries[i][n] == '=')
			return entries[i] + n + 1;
	return NULL;
}

static void split(char *text, size_t len)
{
	entry_count = 0;
	for (char *at = text, *end = text + len; at < end && entry_count < ENTRIES; at += strlen(at) + 1)
		entries[entry_count++] = at;
}

static int read_all(struct tt_settings *s, const char *file, const tutti_config *c, struct tt_launch *b)
{
	int err = tt_settings_load(s);

	if (!err)
		err = tt_config_load(s, file, &b->nodes, &b->size);
	return err ? err : tt_launch_read(s, c, b);
}

static void check_place(const struct tt_launch *b, const struct tt_settings *s)
{
	long ms = 0;

	FUZZ_CHECK(b->size >= 1 && b->rank >= 0 && b->rank < b->size, "a place that is none");
	FUZZ_CHECK(strlen(b->address) < sizeof b->address, "an address without an end");
	for (int i = 0; b->nodes && i < b->size; i++)
		FUZZ_CHECK(*b->nodes[i].name && strlen(b->nodes[i].address) < sizeof b->nodes[i].address,
		           "a node without a name");
	(void)tt_launch_job_id(b);
	if (!tt_setting_int(s, TT_TIMEOUT, 10, 86400000, &ms))
		FUZZ_CHECK(ms >= 10 && ms <= 86400000, "a timeout out of its range");
}

static void join_alone(const tutti_config *c)
{
	tutti *job;

	if (tutti_join(c, &job))
		return;
	FUZZ_CHECK(tutti_size(job) == 1 && tutti_rank(job) == 0, "it was a job of one");
	tutti_leave(job);
}

static void read_file(const char *file)
{
	const char *rank = look_up("rank"), *ranks = look_up("ranks");
	tutti_config c = { .file = file, .boot = look_up("boot"),
	                   .rank = rank ? atoi(rank) : 0, .ranks = ranks ? atoi(ranks) : 0 };
	struct tt_settings s;
	struct tt_launch b = { .size = 0, .listen_fd = -1 };
	int err = read_all(&s, file, &c, &b);
	bool alone = !err && b.size == 1 && !b.nodes;

	if (!err)
		check_place(&b, &s);
	else
		FUZZ_CHECK(err < 0 && *tt_why(), "an error without a sentence");
	tt_launch_free(&b);
	tt_settings_free(&s);
	if (alone)
		join_alone(&c);
}

/* libconfig 1.5 loses the string that it was reading when a file makes no sense. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libconfig\n"; }

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	const uint8_t *zero = len ? memchr(bytes, 0, len) : NULL;
	size_t file_len = zero ? (size_t)(zero - bytes) : len, rest = zero ? len - file_len - 1 : 0;
	struct fuzz_world world = fuzz_world(look_up);
	char path[32], *text;
	int fd;

	if (!(text = calloc(1, rest + 1)))
		return 0;
	memcpy(text, bytes + len - rest, rest);
	split(text, rest);
	fd = memfd_create("config", MFD_CLOEXEC);
	if (fd >= 0 && !fchmod(fd, 0600) && write(fd, bytes, file_len) == (ssize_t)file_len) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		tt_world = &world.base;
		read_file(path);
		tt_world = NULL;
	}
	close(fd);
	free(text);
	return 0;
}
