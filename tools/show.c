/* show.c - what the subcommands draw: a progress bar on a terminal, and pictures, by gnuplot */
#include "tools/tools.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { BAR = 30 };

void tt_tool_show_bar(const char *text, double done)
{
	int full = (int)(done * BAR + 0.5);

	if (!isatty(2))
		return;
	if (done >= 1)
		fprintf(stderr, "\r\33[K"); /* the output takes its place */
	else
		fprintf(stderr, "\r%s [%.*s%*s]\33[K", text, full, "##############################", BAR - full, "");
}

/* Opens the file as for writing, without changing it. */
static int can_write(const char *tool, const char *path)
{
	bool there = !access(path, F_OK);
	int fd = open(path, O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666);

	if (fd < 0)
		return tt_tool_refuse(tool, "--plot %s: %s", path, strerror(errno));
	close(fd);
	if (!there)
		unlink(path);
	return 0;
}

int tt_tool_can_plot(const char *tool, const char *path)
{
	if (system("command -v gnuplot > /dev/null 2>&1"))
		return tt_tool_refuse(tool, "--plot needs gnuplot, which is missing (apt install gnuplot-nox)");
	return can_write(tool, path);
}

void tt_tool_put_quoted(FILE *to, const char *text)
{
	fputc('\'', to);
	for (; *text; text++)
		fprintf(to, "%s%c", *text == '\'' ? "'" : "", *text);
	fputc('\'', to);
}

FILE *tt_tool_plot_open(const char *path, int width, int height)
{
	size_t len = strlen(path);
	bool svg = len > 4 && !strcmp(path + len - 4, ".svg");

	signal(SIGPIPE, SIG_IGN); /* if gnuplot ends early, its status says so */
	FILE *to = popen("gnuplot", "w");
	if (!to)
		return NULL;
	fprintf(to, "set terminal %s size %d,%d\nset output ", svg ? "svg" : "pngcairo", width, height);
	tt_tool_put_quoted(to, path);
	fputc('\n', to);
	return to;
}

int tt_tool_plot_close(const char *tool, FILE *to, const char *path)
{
	if (to && !pclose(to) && !access(path, R_OK))
		return 0;
	tt_tool_refuse(tool, "gnuplot could not draw %s", path);
	return 1;
}
