/* doctor.c - `tutti doctor`: its command line, and its findings as lines or as JSON */
#include "tools/doctor/doctor.h"
#include "job/job.h"
#include "launch/launch.h"
#include "tools/topology/topology.h"
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

enum { MEMORY = 256 << 20 };

/* ---- findings ---- */

void tt_doctor_say(struct tt_doctor *d, enum tt_verdict verdict, const char *check, const char *fmt, ...)
{
	struct tt_doctor_line *l;
	va_list args;

	if (d->n == d->room) {
		int room = d->room ? 2 * d->room : 32;
		if (!(l = realloc(d->lines, (size_t)room * sizeof *l)))
			return;
		d->lines = l;
		d->room = room;
	}
	l = &d->lines[d->n++];
	l->verdict = verdict;
	snprintf(l->check, sizeof l->check, "%s", check);
	va_start(args, fmt);
	vsnprintf(l->text, sizeof l->text, fmt, args);
	va_end(args);
}

char *tt_doctor_read(const char *path, char *text, size_t size)
{
	FILE *f = fopen(path, "re");
	char *line = f ? fgets(text, (int)size, f) : NULL;

	if (f)
		fclose(f);
	if (line)
		line[strcspn(line, "\n")] = 0;
	return line;
}

static const char *const verdicts[] = { [TT_FINE] = "fine", [TT_NOTE] = "note", [TT_FINDING] = "finding" };

static int count_findings(const struct tt_doctor *d)
{
	int found = 0;

	for (int i = 0; i < d->n; i++)
		found += d->lines[i].verdict == TT_FINDING;
	return found;
}

static void print_json(const struct tt_doctor *d)
{
	printf("{ \"version\": \"%s\", \"findings\": %d, \"checks\": [", tutti_version(), count_findings(d));
	for (int i = 0; i < d->n; i++) {
		printf("%s\n  { \"check\": \"%s\", \"verdict\": \"%s\", \"text\": ", i ? "," : "", d->lines[i].check,
		       verdicts[d->lines[i].verdict]);
		tt_tool_json_text(d->lines[i].text);
		printf(" }");
	}
	printf("\n] }\n");
}

static void print_lines(const struct tt_doctor *d)
{
	int found = count_findings(d);

	for (int i = 0; i < d->n; i++) {
		printf("%-8s %-10s ", verdicts[d->lines[i].verdict], d->lines[i].check);
		tt_tool_print_plain(d->lines[i].text, 0);
		putchar('\n');
	}
	if (found)
		printf("%d finding%s\n", found, found == 1 ? "" : "s");
	else
		printf("no findings\n");
}

/* ---- one host ---- */

/* The same steps as in tutti_join: environment, file, defaults. */
static void load_settings(struct tt_doctor *d)
{
	struct tt_node *nodes = NULL;
	int count = 0, err = tt_settings_load(&d->settings), faults = 0;
	const char *file = err ? NULL : tt_setting(&d->settings, TT_CONFIG);

	if (file && (err = tt_config_load(&d->settings, file, &nodes, &count)))
		tt_doctor_say(d, TT_FINDING, "settings", "%s", tt_why());
	d->nodes = nodes;
	free(nodes);
	for (int s = 0; s < TT_SETTINGS; s++)
		if (tt_judge_setting(&d->settings, (enum tt_setting)s)) {
			tt_doctor_say(d, TT_FINDING, "settings", "%s", tt_why());
			faults++;
		}
	if (!err && !faults)
		tt_doctor_say(d, TT_FINE, "settings",
		              "each setting has a value that it may have; `tutti info` lists them");
}

/* ---- the command line ---- */

static int print_help(void)
{
	printf("Usage: tutti doctor [OPTION ...]\n"
	       "       tutti run -n N tutti doctor [OPTION ...]\n"
	       "       tutti doctor --hosts HOST[:RANKS][,...] [OPTION ...]\n"
	       "       tutti doctor [--json] PID ... | --running\n"
	       "Looks for what keeps a job from starting, makes it slow, or holds it up; says of each what to do.\n"
	       "Alone it examines this host. As the program of a job, under whatever starts the job's ranks, it\n"
	       "examines each rank's host, and then each pair of ranks: the transport between them, latency,\n"
	       "bandwidth against the other pairs, clocks, versions. With --hosts it starts itself there, over ssh.\n"
	       "With PIDs of ranks of a job under way: what\n"
	       "these and the job's other ranks on this host wait for, for how long, and which processes are stopped.\n"
	       "The exit status is 0 if all is fine, 1 if there are findings, 2 if the command line makes no sense.\n\n"
	       "  -H, --hosts LIST   a rank on each of these hosts, or as many as the list says, over ssh\n"
	       "  -m, --memory SIZE  what a rank needs for its models, 256M by default\n"
	       "  -R, --rdma         judge the limit on locked memory also where no RDMA adapter is\n"
	       "  -r, --running      all ranks of jobs under way on this host that this user may ask\n"
	       "  -j, --json         as one JSON object\n"
	       "  -h, --help         this text\n\n"
	       "For example:\n"
	       "  tutti doctor\n"
	       "  tutti run -n 4 tutti doctor\n"
	       "  tutti doctor --hosts alpha,beta,gamma\n"
	       "  tutti doctor --running\n");
	return 0;
}

static const struct option known[] = {
	{ "memory", required_argument, NULL, 'm' }, { "rdma", no_argument, NULL, 'R' },
	{ "running", no_argument, NULL, 'r' },      { "json", no_argument, NULL, 'j' },
	{ "hosts", required_argument, NULL, 'H' },
	{ "help", no_argument, NULL, 'h' },         { 0 },
};

static int take_memory(const char *text, size_t *out)
{
	if (tt_tool_read_size(text, strlen(text), out))
		return 0;
	return tt_tool_refuse("doctor", "--memory %s: a size is a number of bytes, perhaps with K, M or G behind it",
	                      text);
}

/* Nobody is asked: some launchers can be asked once in a process, and tutti_join does. */
static bool is_launched(const struct tt_doctor *d)
{
	char why[TT_LAUNCH_WHY];

	return strcmp(tt_launch_detect(&d->settings, d->nodes, why), "none") != 0;
}

static void keep_findings(struct tt_doctor *d)
{
	int n = 0;

	for (int i = 0; i < d->n; i++)
		if (d->lines[i].verdict == TT_FINDING)
			d->lines[n++] = d->lines[i];
	d->n = n;
}

/* Where the ranks do not meet, each says what may be the cause on its host. */
static int examine(struct tt_doctor *d, bool running, char **pids, int n)
{
	int status = 0;
	long local = 1;

	if (running || n)
		return tt_doctor_running(d, pids, n);
	load_settings(d);
	bool good = !count_findings(d);
	if (good && is_launched(d) && (status = tt_doctor_pairs(d)) >= 0)
		return status;
	if (good)
		tt_setting_int(&d->settings, TT_LOCAL_SIZE, 1, INT32_MAX, &local);
	d->ports_are_held = status == TT_APART;
	d->ranks = (int)local;
	tt_doctor_limits(d);
	tt_doctor_gpu(d);
	tt_doctor_network(d);
	if (status == TT_APART)
		keep_findings(d);
	return 0;
}

/* This program becomes a `tutti run`, whose ranks are this program without --hosts. Returns only if that fails. */
static int go_to_hosts(const struct tt_doctor *d, char *hosts)
{
	char self[PATH_MAX] = "", memory[32];
	char *words[16] = { self, "run", "--hosts", hosts, self, "doctor", "--memory", memory };
	int n = 8;

	if (d->rdma)
		words[n++] = "--rdma";
	if (d->json)
		words[n++] = "--json";
	snprintf(memory, sizeof memory, "%zu", d->memory);
	if (readlink("/proc/self/exe", self, sizeof self - 1) > 0)
		execv(self, words);
	return tt_tool_refuse("doctor", "--hosts: cannot execute %s: %s", self, strerror(errno));
}

int tt_tool_doctor(int argc, char **argv)
{
	struct tt_doctor d = { .memory = MEMORY, .ranks = 1 };
	bool running = false;
	char *hosts = NULL;
	int c, status = 0;

	while (!status && (c = getopt_long(argc, argv, ":m:RrjH:h", known, NULL)) != -1) {
		switch (c) {
		case 'm': status = take_memory(optarg, &d.memory); break;
		case 'R': d.rdma = true; break;
		case 'r': running = true; break;
		case 'j': d.json = true; break;
		case 'H': hosts = optarg; break;
		case 'h': return print_help();
		default: return tt_tool_bad_option("doctor", argv, known, c);
		}
	}
	if (!status && running && optind < argc)
		status = tt_tool_refuse("doctor", "--running takes no PIDs; see `tutti doctor --help`");
	if (!status && hosts && (running || optind < argc))
		status = tt_tool_refuse("doctor", "--hosts takes no PIDs: `tutti doctor PID` runs on their host");
	if (!status && hosts)
		return go_to_hosts(&d, hosts);
	if (!status)
		status = examine(&d, running, argv + optind, argc - optind);
	if (!status && d.n)
		(d.json ? print_json : print_lines)(&d);
	if (!status)
		status = count_findings(&d) > 0;
	tt_settings_free(&d.settings);
	free(d.lines);
	return status;
}
