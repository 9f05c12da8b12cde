/* word2vec_text.c - text that the machine has, and the words in it
 *
 * Manual pages are read without their markup: the macro at the beginning of a line, and escapes behind a backslash.
 * Words are runs of the letters a to z, and all else is between them. */
#include "word2vec.h"
#include <ctype.h>
#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif

enum { WORD_MAX = 24, VOCABULARY_MAX = 1 << 20, BUCKETS = 1 << 21 };

/* ---- reading ---- */

struct paths {
	char **at;
	int count, room;
};

static int add_path(struct paths *p, const char *path)
{
	if (p->count == p->room) {
		char **more = realloc(p->at, (size_t)(2 * p->room + 1024) * sizeof *more);
		if (!more)
			return -1;
		p->at = more;
		p->room = 2 * p->room + 1024;
	}
	p->at[p->count] = strdup(path);
	return p->at[p->count] ? p->count++, 0 : -1;
}

#ifdef HAVE_ZLIB
static int can_read(const char *path) { return *path; }
#else
static int can_read(const char *path) { return strlen(path) < 3 || strcmp(path + strlen(path) - 3, ".gz"); }
#endif

/* Manual pages in other languages are in folders of their own, between: man/de/man1. */
static int is_wanted(const char *path)
{
	const char *man = strstr(path, "/man/");

	return can_read(path) && (!man || !strncmp(man, "/man/man", 8) || !strstr(man + 5, "/man"));
}

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

static int list_files(struct paths *p, const char *folder)
{
	char *roots[] = { (char *)(uintptr_t)folder, NULL };
	FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);
	FTSENT *e;
	int err = 0;

	while (tree && !err && (e = fts_read(tree)))
		if (e->fts_info == FTS_F && is_wanted(e->fts_path))
			err = add_path(p, e->fts_path);
	if (tree)
		fts_close(tree);
	return err;
}

static void free_paths(struct paths *p)
{
	while (p->count--)
		free(p->at[p->count]);
	free(p->at);
}

#ifdef HAVE_ZLIB /* which reads plain files just as well */
static size_t read_file(const char *path, char *to, size_t room)
{
	gzFile f = gzopen(path, "rb");
	int got = f ? gzread(f, to, (unsigned)room) : 0;

	if (f)
		gzclose(f);
	return got > 0 ? (size_t)got : 0;
}
#else
static size_t read_file(const char *path, char *to, size_t room)
{
	FILE *f = fopen(path, "rb");
	size_t got = f ? fread(to, 1, room, f) : 0;

	if (f)
		fclose(f);
	return got;
}
#endif

static size_t length_until(const char *at, size_t left, const char *any)
{
	size_t n = 0;

	while (n < left && !strchr(any, at[n]))
		n++;
	return n;
}

/* \fB, \(em, \[bullet], \*(lq: how much of it there is. */
static size_t escape_length(const char *at, const char *end)
{
	size_t left = (size_t)(end - at), n = 2;

	if (left < 3)
		return left;
	if (at[1] == 'f' || at[1] == '*' || at[1] == 's')
		n = 3;
	if (at[n - 1] == '(')
		n += 2;
	else if (at[n - 1] == '[')
		n = length_until(at, left, "]\n") + 1;
	return n < left ? n : left;
}

static size_t macro_length(const char *at, const char *end)
{
	size_t n = 0;

	if (*at != '.' && *at != '\'')
		return 0;
	while (at + n < end && !isspace((unsigned char)at[n]))
		n++;
	return n;
}

/* In place. What it leaves is followed by a zero. */
static size_t strip(char *text, size_t len)
{
	const char *at = text, *end = text + len;
	char *to = text;

	for (int fresh = 1; at < end;) {
		size_t skip = fresh ? macro_length(at, end) : 0;
		if (!skip && *at == '\\')
			skip = escape_length(at, end);
		fresh = !skip && *at == '\n';
		if (skip)
			at += skip;
		else
			*to++ = (char)tolower((unsigned char)*at++);
	}
	*to++ = '\n';
	return (size_t)(to - text);
}

/* Files from all over the list, until there is enough. */
static size_t read_files(const struct paths *p, char *text, size_t room, uint64_t random)
{
	size_t len = 0;

	for (int i = p->count - 1; i >= 0 && len + 2 < room; i--) { /* Fisher and Yates 1938 */
		int j = (int)(draw(&random) % (uint64_t)(i + 1));
		char *path = p->at[j];
		p->at[j] = p->at[i];
		p->at[i] = path;
		len += strip(text + len, read_file(path, text + len, room - len - 2));
	}
	return len;
}

int read_text(const struct options *o, char **text, size_t *len)
{
	static const char *const usual[] = { "/usr/share/man", "/usr/share/common-licenses" };
	struct paths paths = { 0 };
	size_t room = (size_t)o->megabytes << 20;
	int err = 0;

	*text = malloc(room + 1);
	if (o->text)
		err = list_files(&paths, o->text);
	for (size_t i = 0; !err && !o->text && i < sizeof usual / sizeof *usual; i++)
		err = list_files(&paths, usual[i]);
	if (*text && !err)
		*len = read_files(&paths, *text, room, o->seed);
	if (!*text || err)
		err = complain("no memory for %d MiB of text", o->megabytes);
	else if (!*len && o->text && access(o->text, R_OK))
		err = complain("there is no text in %s: %s", o->text, strerror(errno));
	else if (!*len && o->text)
		err = complain("there is no text in %s%s", o->text,
		               paths.count ? "" : ": it has no file that can be read here");
	else if (!*len)
		err = complain("this machine has no text in %s or %s: give a file or folder with --text", usual[0],
		               usual[1]);
	free_paths(&paths);
	return err;
}

/* ---- words ---- */

struct entry {
	char *name;
	int occurs, number;
};

static uint64_t hash_of(const char *word) /* FNV-1a */
{
	uint64_t h = 0xcbf29ce484222325;

	for (; *word; word++)
		h = (h ^ (uint8_t)*word) * 0x100000001b3;
	return h ^ h >> 32;
}

static struct entry *find_entry(struct entry *table, char *word)
{
	uint64_t i = hash_of(word) % BUCKETS;

	while (table[i].name && strcmp(table[i].name, word))
		i = (i + 1) % BUCKETS;
	return &table[i];
}

/* The next word, with a zero behind it; NULL: there is none. */
static char *next_word(char **at, const char *end)
{
	char *p = *at, *word;

	do {
		while (p < end && (*p < 'a' || *p > 'z'))
			p++;
		word = p;
		while (p < end && *p >= 'a' && *p <= 'z')
			p++;
	} while (p < end && (p - word < 2 || p - word > WORD_MAX));
	if (p == end)
		return NULL;
	*p++ = 0;
	*at = p;
	return word;
}

/* So that all ranks number them alike, whatever their C library sorts by. */
static int by_frequency(const void *a, const void *b)
{
	const struct entry *x = *(struct entry *const *)a, *y = *(struct entry *const *)b;

	return x->occurs != y->occurs ? (x->occurs < y->occurs) - (x->occurs > y->occurs) : strcmp(x->name, y->name);
}

static int number_words(struct words *w, struct entry *table, int different, int least)
{
	struct entry **order = malloc((size_t)different * sizeof *order);
	int n = 0;

	w->name = calloc((size_t)different, sizeof *w->name);
	w->occurs = calloc((size_t)different, sizeof *w->occurs);
	for (size_t i = 0; order && w->name && w->occurs && i < BUCKETS; i++)
		if (table[i].name && table[i].occurs >= least)
			order[n++] = &table[i];
	if (n)
		qsort(order, (size_t)n, sizeof *order, by_frequency);
	for (int i = 0; i < n; i++) {
		order[i]->number = i;
		w->name[i] = order[i]->name;
		w->occurs[i] = order[i]->occurs;
	}
	w->vocabulary = n;
	free(order);
	return n;
}

int find_words(struct words *w, char *text, size_t len, int least)
{
	/* of two letters each at least */
	struct entry *table = calloc(BUCKETS, sizeof *table), **found = malloc((len / 3 + 1) * sizeof *found);
	int different = 0, all = 0;
	char *at = text, *word;

	*w = (struct words){ .token = malloc((len / 3 + 1) * sizeof *w->token) };
	while (table && found && different < VOCABULARY_MAX && (word = next_word(&at, text + len))) {
		struct entry *e = find_entry(table, word);
		different += !e->name;
		e->name = e->name ? e->name : word;
		e->number = -1;
		e->occurs++;
		found[all++] = e;
	}
	if (w->token && different)
		number_words(w, table, different, least);
	for (int i = 0; w->token && i < all; i++)
		if (found[i]->number >= 0)
			w->token[w->tokens++] = found[i]->number;
	free(table);
	free(found);
	return w->vocabulary > 1
	               ? 0
	               : complain(
				 "the text has %d words, and none of them %d times: give more with --text, or a "
				 "smaller --least",
				 all, least);
}

void free_words(struct words *w)
{
	free(w->name);
	free(w->occurs);
	free(w->token);
}
