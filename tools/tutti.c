/* tutti - the command-line program: runs a subcommand */
#include "tools/tools.h"
#include <stdio.h>
#include <string.h>

static const struct tool {
	const char *name;
	int (*main)(int argc, char **argv);
	const char *sentence;
} tools[] = { /* dispatch and --help both come from here */
	{ "run", tt_tool_run, "start a job's ranks on this host, pass their output on, and leave nothing behind" },
	{ "perf", tt_tool_perf, "measure the operations, and beside them what bare sockets or bare memory do here" },
	{ "sim", tt_tool_sim, "average a model on up to thousands of simulated ranks, in virtual time" },
	{ "doctor", tt_tool_doctor,
	  "what keeps a job from starting, makes it slow or holds it up, and what to do" },
	{ "info", tt_tool_info,
	  "what was built in, which transports work here, every setting; or a picture of this machine" },
};

static int print_help(void)
{
	printf("Usage: tutti COMMAND [OPTION ...]\n"
	       "Keeps the copies of a model together while many processes train it.\n\n");
	for (size_t i = 0; i < TT_COUNT(tools); i++)
		printf("  tutti %-8s %s\n", tools[i].name, tools[i].sentence);
	printf("\n`tutti COMMAND --help` tells more; `tutti --version` prints the version.\n");
	return 0;
}

static int refuse_command(const char *word)
{
	const char *names[TT_COUNT(tools)], *meant;

	for (size_t i = 0; i < TT_COUNT(tools); i++)
		names[i] = tools[i].name;
	meant = tt_nearest(word, names, TT_COUNT(tools));
	fprintf(stderr, "tutti: there is no command %s%s%s%s; see `tutti --help`\n", word,
	        meant ? " (did you mean " : "", meant ? meant : "", meant ? "?)" : "");
	return TT_TOOL_REFUSED;
}

static int dispatch(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "tutti: a command is missing; see `tutti --help`\n");
		return TT_TOOL_REFUSED;
	}
	for (size_t i = 0; i < TT_COUNT(tools); i++)
		if (!strcmp(argv[1], tools[i].name))
			return tools[i].main(argc - 1, argv + 1);
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
		return print_help();
	if (!strcmp(argv[1], "--version")) {
		printf("tutti %s\n", tutti_version());
		return 0;
	}
	return refuse_command(argv[1]);
}

int main(int argc, char **argv)
{
	opterr = 0;
	int status = dispatch(argc, argv);

	if (fflush(stdout) && errno == EPIPE) /* who reads has enough: head, say */
		return status;
	if (ferror(stdout)) { /* a full disk must not look like success */
		fprintf(stderr, "tutti: cannot write the output: %s\n", strerror(errno));
		return status ? status : 1;
	}
	return status;
}
