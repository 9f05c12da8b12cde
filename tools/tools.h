/* tools.h - what the subcommands of `tutti` share */
#ifndef TT_TOOLS_H
#define TT_TOOLS_H
#include "base/base.h"
#include <getopt.h>

enum { TT_TOOL_REFUSED = 2 }; /* exit status: a bad command line */

/* The subcommands: argv[0] is the name; returns the exit status. */
int tt_tool_run(int argc, char **argv);
int tt_tool_info(int argc, char **argv);
int tt_tool_perf(int argc, char **argv);
int tt_tool_sim(int argc, char **argv);
int tt_tool_doctor(int argc, char **argv);

/* command_line.c. One sentence on stderr, "tutti TOOL: ..."; returns TT_TOOL_REFUSED. */
int tt_tool_refuse(const char *tool, const char *fmt, ...) TT_FORMAT(2, 3);
/* Refuses the option for which getopt_long returned '?' or ':'. Needs opterr = 0 and ':' first in optstring. */
int tt_tool_bad_option(const char *tool, char **argv, const struct option *known, int said);

/* The entry of that name in a list of structs that begin with their names, the last one with NULL; NULL: refused. */
const void *tt_tool_find(const char *tool, const char *what, const char *word, const void *list, size_t stride);

/* 0, or TT_TOOL_REFUSED and a sentence */
int tt_tool_take_number(const char *tool, const char *option, const char *text, double least, double most, double *);
int tt_tool_take_whole(const char *tool, const char *option, const char *text, long least, long most, long *);
int tt_tool_take_int(const char *tool, const char *option, const char *text, int least, int most, int *);
int tt_tool_take_time(const char *tool, const char *option, const char *text, uint64_t *ns); /* "50us" */
int tt_tool_take_rate(const char *tool, const char *option, const char *text, uint64_t *bytes); /* "10G" a second */
/* Reads "8", "4K", "64M" or "1.5M", but not 0x10 or 1e3, from `len` characters. False: not a size. */
bool tt_tool_read_size(const char *text, size_t len, size_t *bytes);

/* show.c */
void tt_tool_show_bar(const char *text, double done); /* on stderr, if that is a terminal; 1 takes the bar away */
int tt_tool_can_plot(const char *tool, const char *path); /* 0, or TT_TOOL_REFUSED */
FILE *tt_tool_plot_open(const char *path, int width, int height); /* gnuplot's input; .svg, else a png. NULL: none */
void tt_tool_put_quoted(FILE *, const char *text); /* in gnuplot's single quotes, where '' is a quote */
int tt_tool_plot_close(const char *tool, FILE *, const char *path); /* 0; 1 and a sentence. NULL is allowed */
#endif
