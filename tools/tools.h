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

/* One sentence on stderr, "tutti TOOL: ..."; returns TT_TOOL_REFUSED. */
int tt_tool_refuse(const char *tool, const char *fmt, ...) TT_FORMAT(2, 3);
/* Refuses the option for which getopt_long returned '?' or ':'. Needs opterr = 0 and ':' first in optstring. */
int tt_tool_bad_option(const char *tool, char **argv, const struct option *known, int said);
#endif
