/* replay.c - the main program of a fuzz target that is no fuzzer: runs the inputs of files, each once.
 *
 *   fuzz_NAME CORPUS.hex ... | DIRECTORY ... | FILE ...    a corpus, all files of a directory, one input as it is
 *   fuzz_NAME --unpack DIRECTORY CORPUS.hex ...            each input into a file of its own, for a fuzzer to begin
 * with
 *   fuzz_NAME --pack DIRECTORY                             and back, on stdout
 *
 * A corpus is text, so that it can be read, merged and commented: an input a line, in hexadecimal; # begins a
 * comment. */
#include "tests/fuzz/fuzz.h"
#ifndef TT_FUZZER /* libFuzzer has a main program of its own */
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

enum { INPUT_MAX = 1 << 16, SECONDS = 60 /* for one input, under valgrind too */ };

static char current[512];
static unsigned long inputs;

static void name_it(int signal_number)
{
	const char *parts[] = { signal_number == SIGALRM ? "hangs on the input " : "stopped in the input ", current,
		                "\n" };

	for (size_t i = 0; i < TT_COUNT(parts); i++)
		(void)!write(STDERR_FILENO, parts[i], strlen(parts[i]));
	signal(SIGABRT, SIG_DFL);
	abort();
}

static void run(const uint8_t *bytes, size_t len, const char *file, unsigned long line)
{
	uint8_t *copy = malloc(len ? len : 1); /* of the exact size, so that reading past its end is noticed */

	if (!copy)
		abort();
	snprintf(current, sizeof current, line ? "%s:%lu" : "%s", file, line);
	memcpy(copy, bytes, len);
	alarm(SECONDS);
	LLVMFuzzerTestOneInput(copy, len);
	alarm(0);
	free(copy);
	inputs++;
}

static FILE *open_or_end(const char *name, const char *mode)
{
	FILE *f = fopen(name, mode);

	if (!f) {
		perror(name);
		exit(2);
	}
	return f;
}

static void raw_file(const char *name, void (*use)(const uint8_t *, size_t, const char *, unsigned long))
{
	static uint8_t bytes[INPUT_MAX];
	FILE *f = open_or_end(name, "rb");
	size_t len = fread(bytes, 1, sizeof bytes, f);

	fclose(f);
	use(bytes, len, name, 0);
}

static int not_hidden(const struct dirent *e) { return e->d_name[0] != '.'; }

static void directory(const char *name, void (*use)(const uint8_t *, size_t, const char *, unsigned long))
{
	struct dirent **entries;
	char path[4096];
	int n = scandir(name, &entries, not_hidden, alphasort);

	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof path, "%s/%s", name, entries[i]->d_name);
		raw_file(path, use);
		free(entries[i]);
	}
	if (n >= 0)
		free(entries);
	else
		raw_file(name, use);
}

static int digit(char c)
{
	const char *all = "0123456789abcdef", *at = c ? strchr(all, c) : NULL;

	return at ? (int)(at - all) : -1;
}

static void bad_line(const char *name, unsigned long line)
{
	fprintf(stderr, "%s:%lu: a line is an input in hexadecimal, or a comment behind #\n", name, line);
	exit(2);
}

static void corpus(const char *name, void (*use)(const uint8_t *, size_t, const char *, unsigned long))
{
	static char text[2 * INPUT_MAX + 2];
	static uint8_t bytes[INPUT_MAX];
	FILE *f = open_or_end(name, "r");

	for (unsigned long line = 1; fgets(text, sizeof text, f); line++) {
		size_t len = strcspn(text, "\n");
		if (*text == '#' || !len)
			continue;
		for (size_t i = 0; i < len; i += 2) {
			if (digit(text[i]) < 0 || digit(text[i + 1]) < 0)
				bad_line(name, line);
			bytes[i / 2] = (uint8_t)(digit(text[i]) << 4 | digit(text[i + 1]));
		}
		use(bytes, len / 2, name, line);
	}
	fclose(f);
}

static void each(const char *name, void (*use)(const uint8_t *, size_t, const char *, unsigned long))
{
	size_t len = strlen(name);

	if (len > 4 && !strcmp(name + len - 4, ".hex"))
		corpus(name, use);
	else
		directory(name, use);
}

static const char *unpack_to;

static void unpack(const uint8_t *bytes, size_t len, const char *file, unsigned long line)
{
	char path[4096];
	(void)file;
	snprintf(path, sizeof path, "%s/%05lu", unpack_to, line);
	FILE *f = open_or_end(path, "wb");
	if (fwrite(bytes, 1, len, f) != len || fclose(f)) {
		perror(path);
		exit(2);
	}
}

static void pack(const uint8_t *bytes, size_t len, const char *file, unsigned long line)
{
	(void)file, (void)line;
	for (size_t i = 0; i < len; i++)
		printf("%02x", bytes[i]);
	printf("\n");
}

int main(int argc, char **argv)
{
	void (*use)(const uint8_t *, size_t, const char *, unsigned long) = run;
	int first = 1;

	if (argc > 3 && !strcmp(argv[1], "--unpack")) {
		use = unpack;
		unpack_to = argv[2];
		first = 3;
	} else if (argc > 2 && !strcmp(argv[1], "--pack")) {
		use = pack;
		first = 2;
	}
	signal(SIGALRM, name_it);
	signal(SIGABRT, name_it);
	signal(SIGSEGV, name_it);
	signal(SIGBUS, name_it);
	for (int i = first; i < argc; i++)
		each(argv[i], use);
	if (use == run)
		printf("%lu inputs\n", inputs);
	return use == run && !inputs; /* a corpus that is not found tests nothing */
}
#endif
