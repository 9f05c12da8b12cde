/* plot.c - size against time as a picture, by gnuplot: ours, the baseline, and another program's figures */
#include "tools/perf/perf.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS_MAX = 1000 };

struct point {
	double bytes, us;
};

/* Reads the number after "key": in a line of JSON; false: none. */
static bool find_number(const char *line, const char *key, double *out)
{
	char quoted[64], *end;
	const char *at;

	snprintf(quoted, sizeof quoted, "\"%s\"", key);
	if (!(at = strstr(line, quoted)))
		return false;
	at += strlen(quoted);
	at += strspn(at, " \t");
	if (*at++ != ':')
		return false;
	*out = strtod(at, &end);
	return end != at;
}

/* Reads the peer's points; -1: the file cannot be read. Skips rows of other tests. */
static int read_peer(const struct tt_perf_options *o, struct point *points)
{
	FILE *f = fopen(o->peer, "r");
	char line[4096], test[64];
	int n = 0;

	if (!f)
		return -1;
	snprintf(test, sizeof test, "\"%s\"", o->name);
	while (n < POINTS_MAX && fgets(line, sizeof line, f)) {
		bool other = strstr(line, "\"test\"") && !strstr(line, test);
		struct point at;
		if (!other && find_number(line, "bytes", &at.bytes) && find_number(line, "p50_us", &at.us))
			points[n++] = at;
	}
	fclose(f);
	return n;
}

int tt_perf_can_plot(const struct tt_perf_options *o)
{
	struct point points[POINTS_MAX];
	int n;

	int status = o->plot ? tt_tool_can_plot("perf", o->plot) : 0;
	if (status || !o->plot || !o->peer)
		return status;
	n = read_peer(o, points);
	if (n < 0)
		return tt_tool_refuse("perf", "--peer %s: %s", o->peer, strerror(errno));
	if (!n)
		return tt_tool_refuse("perf", "--peer %s: no line of it has \"bytes\" and \"p50_us\" for %s", o->peer,
		                      o->name);
	return 0;
}

static void put_points(FILE *to, const struct point *points, int n)
{
	for (int i = 0; i < n; i++)
		fprintf(to, "%.0f %.4f\n", points[i].bytes, points[i].us);
	fprintf(to, "e\n");
}

static void put_plot(FILE *to, const struct tt_perf *p, const struct point *ours, const struct point *baseline,
                     int count)
{
	const struct tt_perf_options *o = &p->options;
	struct point peer[POINTS_MAX];
	int peers = o->peer ? read_peer(o, peer) : 0;

	fprintf(to,
	        "set logscale x 2\nset logscale y\nset format x '%%.0b %%BB'\nset grid\nset key top left "
	        "noenhanced\nset xlabel 'size'\n"
	        "set ylabel 'median time, microseconds'\nset title 'tutti perf %s, %s, %d ranks' noenhanced\n",
	        o->name, p->transport, p->size);
	fprintf(to, "plot '-' with linespoints title 'Tutti'");
	if (p->has_baseline)
		fprintf(to, ", '-' with linespoints title 'baseline'");
	if (peers > 0) {
		fprintf(to, ", '-' with linespoints title ");
		tt_tool_put_quoted(to, o->peer);
	}
	fprintf(to, "\n");
	put_points(to, ours, count);
	if (p->has_baseline)
		put_points(to, baseline, count);
	if (peers > 0)
		put_points(to, peer, peers);
}

int tt_perf_plot(const struct tt_perf *p, const struct tt_perf_row *rows, int count)
{
	struct point ours[POINTS_MAX], baseline[POINTS_MAX];
	FILE *to = tt_tool_plot_open(p->options.plot, 900, 600);

	for (int i = 0; i < count; i++) {
		ours[i] = (struct point){ (double)rows[i].bytes, rows[i].p50 };
		baseline[i] = (struct point){ (double)rows[i].bytes, rows[i].baseline };
	}
	if (to)
		put_plot(to, p, ours, baseline, count);
	return tt_tool_plot_close("perf", to, p->options.plot);
}
