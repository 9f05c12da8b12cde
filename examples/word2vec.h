/* word2vec.h - what the files of the demo share: options, the text and its words, one minibatch */
#ifndef WORD2VEC_H
#define WORD2VEC_H
#include <stddef.h>
#include <stdint.h>

struct options {
	const char *text;      /* a file or folder; NULL: manual pages and licences, where this machine has them */
	int megabytes, dim, epochs, batch, window, least, json, help;
	double rate;
	uint64_t seed;
};

enum { FAILED = -1, USAGE = -2 }; /* what can fail returns 0 or one of these, and has said why */

/* word2vec.c */
int complain(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* says it, and returns FAILED */
uint64_t draw(uint64_t *random); /* the next of a seeded row of 64-bit numbers */

/* word2vec_options.c */
int read_options(int argc, char **argv, struct options *);
void show_help(void);

/* word2vec_text.c: the text, on one rank; then the words in it, on all */
int read_text(const struct options *, char **text, size_t *len); /* without markup; the caller frees it in any case */
struct words {
	int vocabulary;        /* different words, the most frequent first */
	char **name;           /* of each */
	int *occurs;           /* how often it does */
	int *token, tokens;    /* the text, by numbers of words; rare ones are left out */
};
int find_words(struct words *, char *text, size_t len, int least); /* cuts the text up */
void free_words(struct words *);

/* word2vec_model.c: skip-gram with negative sampling, Mikolov et al. 2013 (arXiv 1310.4546). Each word has a row in two
 * matrices: as the one that predicts, and as one that is predicted. A minibatch touches a few rows of either, and knows
 * them by their place among these. */
enum { NEGATIVES = 5, NOISE = 64 }; /* of each pair; words that the pairs of a minibatch draw them from */
struct rows { /* of one matrix */
	uint64_t *row;         /* which, each once ... */
	int count, most;
	int *place;            /* ... and where it stands there, by word; -1: nowhere */
	float *value, *gradient; /* count x dim */
};
struct pair {
	int from, to;          /* places */
};
struct batch {
	int dim, pairs, most;
	struct rows in, out;
	struct pair *pair;
	int noise[NOISE];      /* places in out */
};
int batch_open(struct batch *, const struct options *, const struct words *);
void batch_close(struct batch *);
struct sampler { /* what is trained next, and what it is told from */
	const struct words *words;
	uint64_t random;
	float *keep;           /* by word: the chance that an occurrence is looked at: frequent ones seldom are */
	int *noise, noises;    /* words as often as their frequency ^ 0.75 */
	int at, end;           /* my part of the text */
};
int sampler_open(struct sampler *, const struct words *, uint64_t seed); /* 0, or -1: no memory; so does batch_open */
void sampler_close(struct sampler *);
/* how many tokens it has taken; 0: the part is at its end */
int batch_fill(struct batch *, struct sampler *, const struct options *);
double batch_learn(struct batch *, uint64_t *random); /* values to gradients; the sum of the losses */
#endif
