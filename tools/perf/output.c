/* output.c - rows as a table, or as JSON with one object a line; and a progress bar */
#include "tools/perf/perf.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Three significant digits, without an exponent. */
static const char *three_digits(char *text, size_t room, double x)
{
	int decimals = 2;

	for (double y = x; y > 0 && y < 1 && decimals < 12; y *= 10)
		decimals++;
	snprintf(text, room, "%.*f", x < 9.995 ? decimals : x < 99.95 ? 1 : 0, x);
	return text;
}

/* "413 ns", "3.81 us", "12.4 ms" */
static void write_time(char *text, size_t room, double us)
{
	static const char *const units[] = { "ns", "us", "ms", "s" };
	char number[24];
	double x = us * 1e3;
	int i = 0;

	for (; x >= 999.5 && i < 3; i++)
		x *= 1e-3;
	snprintf(text, room, "%s %s", three_digits(number, sizeof number, x), units[i]);
}

static double rate(size_t bytes, double us) { return us > 0 ? (double)bytes / us * 1e-3 : 0; }

/* What moves no bytes has no rate. */
static const char *json_rate(char *text, size_t room, const struct tt_perf_row *row)
{
	if (!row->moved)
		return "null";
	snprintf(text, room, "%.6g", rate(row->moved, row->p50));
	return text;
}

static int mtu_of(const struct tt_perf *p) { return (int)tt_min((size_t)p->ports[0].mtu, (size_t)p->ports[1].mtu); }

/* The reader of `tutti perf | head` leaves when it has enough: that is no failure. */
static int write_error; /* an errno; 0: all was written */

int tt_perf_write_error(void) { return write_error; }

static void flush(void)
{
	if (!fflush(stdout) && !ferror(stdout))
		return;
	write_error = errno;
	if (errno == EPIPE)
		clearerr(stdout); /* tutti.c looks, too */
}

void tt_perf_print_head(const struct tt_perf *p)
{
	const struct tt_perf_options *o = &p->options;
	const struct tt_perf_port *port = p->ports;

	if (o->json)
		return;
	printf("tutti perf %s, %d rank%s", o->name, p->size, p->size == 1 ? "" : "s");
	if (p->test->local || p->test->gpu)
		printf("; GB/s of all that is read and written");
	else if (p->test->table)
		printf(", %d worker%s and %d server%s, %s; GB/s of each worker", tt_perf_workers(p),
		       tt_perf_workers(p) == 1 ? "" : "s", tt_perf_servers(p),
		       tt_perf_servers(p) == 1 ? "" : "s", o->type_name);
	else if (p->test->collective)
		printf(", %s of %s", o->rule_name, o->type_name);
	if (p->test->one_sided && !p->test->publishes)
		printf(", rank 1 %s", o->compute ? "computes" : "waits in a call");
	if (*port[0].name)
		printf("\nverbs from %s, GID %d %s, to %s, GID %d %s; MTU %d", port[0].name, port[0].gid_index,
		       port[0].gid, port[1].name, port[1].gid_index, port[1].gid, mtu_of(p));
	if (!p->options.no_baseline)
		printf("\nratio: the time of the baseline divided by that of Tutti; above 1 Tutti is faster");
	printf("\n\n%10s  %8s  %9s  %9s  %9s  %7s%s  %10s  %6s\n", "size", "iters", "p50", "min", "p99", "GB/s",
	       tt_perf_has_busbw(p) ? "    busbw" : "", "baseline", "ratio");
	flush(); /* the first row may take long */
}

static double writer_rate(const struct tt_perf *p, const struct tt_perf_row *row, int side)
{
	const struct tt_perf_writer *w = p->writer;

	return w->spent[side] ? (double)w->pushes[side] * (double)row->bytes / (double)w->spent[side] : 0;
}

static void print_snapshots(const struct tt_perf *p, const struct tt_perf_row *row)
{
	const struct tt_perf_beside *b = &p->beside;

	printf("%10s  %llu retries, %llu refused, none torn; %llu of the baseline's pulls torn; "
	       "the writer: %.2f GB/s, beside pulls %.2f\n", "", (unsigned long long)b->retries,
	       (unsigned long long)b->refused, (unsigned long long)b->torn, writer_rate(p, row, 0), writer_rate(p, row,
	        1));
}

static double reads_rate(const struct tt_perf_row *row, const struct tt_perf_reads *all)
{
	return all->spent ? (double)all->fetches * (double)row->bytes / (double)all->spent : 0;
}

static void print_readers(const struct tt_perf *p, const struct tt_perf_row *row)
{
	struct tt_perf_reads all = tt_perf_all_reads(p);

	printf("%10s  %d readers: %llu fetches, %.2f GB/s; overtaken %llu times\n", "", p->size - 1,
	       (unsigned long long)all.fetches, reads_rate(row, &all), (unsigned long long)all.overtaken);
}

static void print_delta(const struct tt_perf *p)
{
	struct tt_perf_delta d = tt_perf_last_delta(p);

	printf("%10s  %zu elements changed: ", "", d.changed);
	if (d.bytes && d.changed)
		printf("%zu bytes, %.2f of the elements and the entropy of their gaps\n", d.bytes,
		       (double)d.bytes / d.ideal);
	else if (d.bytes)
		printf("%zu bytes\n", d.bytes);
	else
		printf("no delta\n");
}

bool tt_perf_has_busbw(const struct tt_perf *p) { return p->test->collective && !p->test->local; }

/* What each link carries, whatever the number of ranks: an all-reduce sends 2 (n - 1) / n of the vector over each, as
 * nccl-tests count. */
static double busbw(const struct tt_perf *p, const struct tt_perf_row *row)
{
	return rate(row->moved, row->p50) * 2 * (p->size - 1) / p->size;
}

/* Where the baseline is the same as of the row before, one line is enough. */
static void print_words(const struct tt_perf *p, const struct tt_perf_row *row)
{
	static char last[sizeof row->words + 128];
	char line[sizeof last];
	bool named = p->kernel;

	snprintf(line, sizeof line, "%s%s%s%sbaseline: %s", named ? p->options.name : "", named ? " of " : "",
	         named ? p->options.type_name : "", named ? "; " : "", row->words);
	if (strcmp(line, last))
		printf("%10s  %s\n", "", line);
	memcpy(last, line, sizeof last);
}

static void print_line(const struct tt_perf *p, const struct tt_perf_row *row)
{
	char size[32], p50[32], least[32], p99[32], baseline[32] = "-", shown[32] = "-", number[24], bus[32] = "",
	     speed[24] = "-";

	tt_perf_write_size(size, sizeof size, row->bytes);
	write_time(p50, sizeof p50, row->p50);
	write_time(least, sizeof least, row->least);
	write_time(p99, sizeof p99, row->p99);
	if (row->baseline > 0) {
		write_time(baseline, sizeof baseline, row->baseline);
		snprintf(shown, sizeof shown, "%.2f", row->ratio);
	}
	if (row->moved)
		three_digits(speed, sizeof speed, rate(row->moved, row->p50));
	if (tt_perf_has_busbw(p))
		snprintf(bus, sizeof bus, "  %7s", three_digits(number, sizeof number, busbw(p, row)));
	printf("%10s  %8ld  %9s  %9s  %9s  %7s%s  %10s  %6s\n", size, row->iters, p50, least, p99, speed, bus,
	       baseline, shown);
	print_words(p, row);
	if (tt_perf_is_snapshot(p))
		print_snapshots(p, row);
	if (tt_perf_has_readers(p))
		print_readers(p, row);
	if (tt_perf_has_deltas(p))
		print_delta(p);
}

/* What a file of rows needs later: which version, on which host, when. */
static void print_run(void)
{
	char host[128] = "", date[32];
	time_t now = time(NULL);
	struct tm utc;

	gethostname(host, sizeof host - 1);
	strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
	printf("{\"version\": \"%s\", \"host\": ", tutti_version());
	tt_json_print(stdout, host);
	printf(", \"date\": \"%s\", ", date);
}

static void print_json(const struct tt_perf *p, const struct tt_perf_row *row)
{
	const char *type = p->test->collective || p->test->table || p->test->gpu || p->test->publishes ?
	                   p->options.type_name : "byte";
	const struct tt_perf_beside *b = &p->beside;
	const struct tt_perf_port *port = p->ports;
	char number[24];

	print_run();
	printf("\"test\": \"%s\", \"transport\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"type\": \"%s\", ",
	       p->options.name, p->transport, p->size, row->bytes, type);
	printf("\"iters\": %ld, ", row->iters);
	printf("\"p50_us\": %.3f, \"min_us\": %.3f, \"p99_us\": %.3f, \"gb_per_s\": %s, ", row->p50, row->least,
	       row->p99, json_rate(number, sizeof number, row));
	if (tt_perf_has_busbw(p))
		printf("\"busbw_gb_per_s\": %.6g, ", busbw(p, row));
	if (row->baseline > 0)
		printf("\"baseline_us\": %.3f, \"baseline_min_us\": %.3f, \"baseline_gb_per_s\": %.6g, "
		       "\"baseline\": \"%s\", \"ratio\": %.4f", row->baseline, row->baseline_least,
		       rate(row->moved, row->baseline), row->words, row->ratio);
	else
		printf("\"baseline_us\": null, \"baseline_min_us\": null, \"baseline_gb_per_s\": null, "
		       "\"baseline\": \"%s\", \"ratio\": null", row->words);
	if (*port[0].name)
		printf(", \"port\": \"%s\", \"gid\": \"%s\", \"gid_index\": %d, \"peer_port\": \"%s\", "
		       "\"peer_gid\": \"%s\", \"peer_gid_index\": %d, \"mtu\": %d", port[0].name, port[0].gid,
		       port[0].gid_index, port[1].name, port[1].gid, port[1].gid_index, mtu_of(p));
	if (tt_perf_is_snapshot(p))
		printf(", \"retries\": %llu, \"refused\": %llu, \"torn_pulls\": %llu, "
		       "\"writer_gb_per_s\": %.6g, \"baseline_writer_gb_per_s\": %.6g", (unsigned long long)b->retries,
		       (unsigned long long)b->refused, (unsigned long long)b->torn, writer_rate(p, row, 0),
		       writer_rate(p, row, 1));
	if (tt_perf_has_readers(p)) {
		struct tt_perf_reads all = tt_perf_all_reads(p);
		printf(", \"fetches\": %llu, \"overtaken\": %llu, \"readers_gb_per_s\": %.6g",
		       (unsigned long long)all.fetches, (unsigned long long)all.overtaken, reads_rate(row, &all));
	}
	if (tt_perf_has_deltas(p)) {
		struct tt_perf_delta d = tt_perf_last_delta(p);
		printf(", \"changed\": %zu, \"delta_bytes\": %zu, \"ideal_bytes\": %.0f", d.changed, d.bytes, d.ideal);
	}
	printf("}\n");
}

void tt_perf_print_row(const struct tt_perf *p, const struct tt_perf_row *row)
{
	if (p->options.json)
		print_json(p, row);
	else
		print_line(p, row);
	if (p->options.explain)
		tt_perf_explain(p, row);
	flush();
}

void tt_perf_show_progress(const struct tt_perf *p, double done)
{
	char size[32], text[64];

	tt_perf_write_size(size, sizeof size, p->order.bytes);
	snprintf(text, sizeof text, "%s %s", p->options.name, size);
	tt_tool_show_bar(text, done);
}
