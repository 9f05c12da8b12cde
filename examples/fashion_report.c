/* fashion_report.c - the progress bar, a line per epoch, the closing table and the picture */
#include "fashion.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BAR = 30 };

/* Only on a terminal, only for what will take more than two seconds, ten times a second at most. */
void report_progress(struct report *r, int epoch, double done)
{
	double now = seconds_now(), spent = now - r->started, here = done - r->first;
	int filled = (int)(done * BAR);
	char bar[BAR + 1];

	if (r->quiet || !isatty(STDERR_FILENO) || here <= 0 || spent / here * (1 - r->first) < 2 ||
	    now - r->drawn < 0.1)
		return;
	r->drawn = now;
	memset(bar, '.', BAR);
	memset(bar, '#', (size_t)filled);
	bar[BAR] = 0;
	fprintf(stderr, "\r[%s] %3.0f %%  epoch %d of %d, %.0f s left \033[K", bar, 100 * done, epoch + 1,
	        r->options->epochs, spent / here * (1 - done));
}

static void clear_progress(void)
{
	if (isatty(STDERR_FILENO))
		fputs("\r\033[K", stderr);
}

void report_epoch(struct report *r, int epoch, const struct epoch *e)
{
	if (r->quiet)
		return;
	clear_progress();
	if (r->options->json)
		printf("{\"epoch\": %d, \"loss\": %.8f, \"accuracy\": %.6f, \"seconds\": %.3f}\n", epoch + 1, e->loss,
		       e->accuracy, e->seconds);
	else
		printf("epoch %*d   loss %.4f   test accuracy %6.2f %%   %6.2f s\n", epoch < 9 ? 2 : 1, epoch + 1,
		       e->loss, 100 * e->accuracy, e->seconds);
	fflush(stdout);
}

static void print_table(const struct report *r, FILE *out, const struct epoch *last, const struct totals *t)
{
	double percent = 100 / t->training, computing = t->training - t->waiting;
	char mean[40] = "";

	if (r->ranks > 1)
		snprintf(mean, sizeof mean, ", mean of %d ranks", r->ranks);
	fprintf(out, "\n  samples/s       %8.0f\n", t->samples / t->training);
	fprintf(out, "  compute         %8.2f s   %5.1f %%%s\n", computing, percent * computing, mean);
	fprintf(out, "  communication   %8.2f s   %5.1f %%%s\n", t->waiting, percent * t->waiting, mean);
	if (r->here > sysconf(_SC_NPROCESSORS_ONLN))
		fprintf(out, "                  most of that is waiting: %d ranks take turns on the %ld cores of this "
		        "host\n", r->here, sysconf(_SC_NPROCESSORS_ONLN));
	fprintf(out, "  test accuracy   %8.2f %%\n", 100 * last->accuracy);
	fprintf(out, "  total           %8.2f s   with reading the data and testing\n", t->total);
}

/* gnuplot's own quoting: a quote within quotes is written twice */
static void quote(FILE *to, const char *text)
{
	fputc('\'', to);
	for (; *text; text++)
		fputs(*text == '\'' ? "''" : (char[]){ *text, 0 }, to);
	fputc('\'', to);
}

/* where the axis of the accuracy starts */
static int lowest_ten(const struct epoch *epochs, int count)
{
	double least = 0.99;

	for (int i = 0; i < count; i++)
		least = epochs[i].accuracy < least ? epochs[i].accuracy : least;
	return (int)(10 * least) * 10;
}

static void draw_plot(FILE *to, const struct report *r, const struct epoch *epochs)
{
	const struct options *o = r->options;

	fputs("set output ", to);
	quote(to, o->plot);
	fprintf(to, "\nset title \"Fashion-MNIST: %s, %d rank%s, batch %d, rate %g\"\n", o->algorithm, r->ranks,
	        r->ranks > 1 ? "s" : "", o->batch, o->rate);
	fputs("set xlabel 'epoch'; set ylabel 'training loss'; set y2label 'test accuracy (%)'\n"
	      "set ytics nomirror; set y2tics; set yrange [0:*]; set grid xtics ytics lt 1 lw 1 lc rgb '#dddddd'\n"
	      "set key below horizontal samplen 2\n", to);
	fprintf(to, "set xrange [0:%d]; set y2range [%d:100]\n%s$loss << EOD\n", o->epochs,
	        lowest_ten(epochs, o->epochs), o->epochs <= 15 ? "set xtics 1\n" : "");
	for (int e = 0; e < o->epochs; e++)
		for (int p = 0; p < POINTS; p++)
			if (epochs[e].curve[p] > 0) /* an epoch of few steps has fewer points */
				fprintf(to, "%f %f\n", e + (p + 0.5) / POINTS, epochs[e].curve[p]);
	fputs("EOD\n$accuracy << EOD\n", to);
	for (int e = 0; e < o->epochs; e++)
		fprintf(to, "%d %f\n", e + 1, 100 * epochs[e].accuracy);
	fputs("EOD\nplot $loss with lines lw 2 lc rgb '#1f6fb4' title 'training loss', "
	      "$accuracy axes x1y2 with linespoints pt 7 lw 2 lc rgb '#d9601a' title 'test accuracy'\n", to);
}

static void plot(const struct report *r, FILE *out, const struct epoch *epochs)
{
	FILE *gnuplot;

	if (!strcmp(r->options->plot, "none"))
		return;
	if (system("command -v gnuplot >/dev/null 2>&1")) {
		fprintf(out, "  no loss curve: gnuplot is not installed (apt install gnuplot-nox)\n");
		return;
	}
	gnuplot = popen("gnuplot >/dev/null 2>&1", "w");
	if (gnuplot) {
		fputs("if (strstrt(GPVAL_TERMINALS, ' pngcairo ')) { set terminal pngcairo size 900,540 font 'sans,"
		      "11' }"
		      " else { set terminal png size 900,540 }\n",
		      gnuplot);
		draw_plot(gnuplot, r, epochs);
	}
	if (gnuplot && !pclose(gnuplot))
		fprintf(out, "  loss curve      %s\n", r->options->plot);
	else
		fprintf(out, "  no loss curve: gnuplot cannot write %s\n", r->options->plot);
}

void report_end(const struct report *r, const struct epoch *epochs, const struct totals *t)
{
	FILE *out = r->options->json ? stderr : stdout;

	if (r->quiet)
		return;
	if (t->samples > 0)
		print_table(r, out, &epochs[r->options->epochs - 1], t);
	else
		fprintf(out, "%s is of a run that has ended\n", r->options->load);
	fflush(out);
	plot(r, out, epochs);
}
