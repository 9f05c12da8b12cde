/* options.h - the command line of a demo, from a table of its own: --name value, --name=value, -h */
#ifndef OPTIONS_H
#define OPTIONS_H
#include <stddef.h>

enum option_kind { FLAG, TEXT, WHOLE, REAL, SHARE, SEED }; /* int, const char *, int, double, double, uint64_t */
struct option {
	const char *name, *value; /* value: what --help calls it; NULL: it takes none */
	enum option_kind kind;
	size_t at;                /* where it goes, in the demo's struct */
	double least, most;       /* of a whole number; a real one is above 0, up to most; a share from 0, below 1 */
	const char *sentence;
};

/* Both end at an option without a name, and know one that is named "help". */
/* NULL, or what is wrong, in one sentence */
const char *options_read(const struct option *known, int argc, char **argv, void *to);
void options_show(const struct option *known);
#endif
