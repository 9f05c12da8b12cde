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
	{ "info", tt_tool_info,
	  "what was built in, which transports work here, every setting; or a picture of this machine" },
};

int tt_tool_refuse(const char *tool, const char *fmt, ...)
{
	char text[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	fprintf(stderr, "tutti %s: %s\n", tool, text);
	return TT_TOOL_REFUSED;
}

static const char *nearest_option(const char *word, const struct option *known)
{
	const char *names[32];
	int n = 0;

	for (; known[n].name && n < (int)TT_COUNT(names); n++)
		names[n] = known[n].name;
	return tt_nearest(word, names, n);
}

int tt_tool_bad_option(const char *tool, char **argv, const struct option *known, int said)
{
	const char *word = argv[optind - 1];
	char name[64] = "";

	if (said == ':')
		return tt_tool_refuse(tool, "%s needs a value; see `tutti %s --help`", word, tool);
	if (optopt && !strncmp(word, "--", 2))
		return tt_tool_refuse(tool, "%.*s takes no value; see `tutti %s --help`", (int)strcspn(word, "="), word,
		                      tool);
	if (optopt)
		return tt_tool_refuse(tool, "there is no option -%c; see `tutti %s --help`", optopt, tool);
	strncpy(name, word + 2, tt_min(strcspn(word + 2, "="), sizeof name - 1));
	const char *meant = nearest_option(name, known);
	return tt_tool_refuse(tool, "there is no option --%s%s%s%s; see `tutti %s --help`", name,
	                      meant ? " (did you mean --" : "", meant ? meant : "", meant ? "?)" : "", tool);
}

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

	if (fflush(stdout) || ferror(stdout)) { /* a full disk must not look like success */
		fprintf(stderr, "tutti: cannot write the output: %s\n", strerror(errno));
		return status ? status : 1;
	}
	return status;
}
