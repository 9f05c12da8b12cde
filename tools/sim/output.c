/* output.c - the samples as CSV; the picture; the matrix */
#include "tools/sim/sim.h"

void tt_sim_print_matrix(const double *m, int n)
{
	for (int i = 0; i < n; i++)
		for (int k = 0; k < n; k++)
			printf("%.17g%c", m[(size_t)i * n + k], k + 1 < n ? ',' : '\n');
}

void tt_sim_print_rows(const struct tt_study *s)
{
	printf("time_s,round,consensus,mean_shift,staleness_ms,bytes,alive\n");
	for (int i = 0; i < s->row_count; i++) {
		const struct tt_sim_row *r = &s->rows[i];
		printf("%.6f,%.3f,%.9g,%.9g,%.6f,%llu,%d\n", r->seconds, r->round, r->consensus, r->shift, r->staleness,
		       (unsigned long long)r->bytes, r->alive);
	}
}

/* One panel; the x axis is virtual time. */
static void put_panel(FILE *to, const struct tt_study *s, const char *label, double (*of)(const struct tt_sim_row *))
{
	fprintf(to, "set ylabel '%s'\nplot '-' with lines notitle\n", label);
	for (int i = 0; i < s->row_count; i++)
		fprintf(to, "%.6f %.9g\n", s->rows[i].seconds, of(&s->rows[i]));
	fprintf(to, "e\n");
}

static double consensus_of(const struct tt_sim_row *r) { return r->consensus; }
static double staleness_of(const struct tt_sim_row *r) { return r->staleness; }
static double megabytes_of(const struct tt_sim_row *r) { return (double)r->bytes * 1e-6; }

int tt_sim_plot(const struct tt_study *s)
{
	const struct tt_sim_options *o = &s->options;
	FILE *to = tt_tool_plot_open(o->plot, 900, 900);

	if (to) {
		fprintf(to, "set grid\nset multiplot layout 3,1 title 'tutti sim %s, %d ranks, %zu bytes'\n",
		        o->method->name, o->ranks, o->bytes);
		fprintf(to, "set format y '%%.0e'\nset logscale y\n");
		put_panel(to, s, "consensus distance", consensus_of);
		fprintf(to, "unset logscale y\nset format y '%%g'\n");
		put_panel(to, s, "staleness, ms", staleness_of);
		fprintf(to, "set xlabel 'virtual time, s'\n");
		put_panel(to, s, "sent, MB", megabytes_of);
		fprintf(to, "unset multiplot\n");
	}
	return tt_tool_plot_close("sim", to, o->plot);
}
