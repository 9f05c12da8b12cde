/* info.c - `tutti info`: the parts of this build, the usable transports, all settings with their values and origins */
#include "average/gossip.h"
#include "job/job.h"
#include "launch/launch.h"
#include "tools/gpus.h"
#include "tools/topology/topology.h"
#include "transport/shm/shm.h"
#include "transport/sim/sim.h"
#include "transport/transport.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct part {
	const char *name;
	bool built_in;
	const char *without; /* what is lost */
} parts[] = {
#ifdef HAVE_LIBSODIUM
	{ "libsodium", true, NULL },
#else
	{ "libsodium", false, "a job that has a secret refuses to start: only loopback is used" },
#endif
#ifdef HAVE_LIBCONFIG
	{ "libconfig", true, NULL },
#else
	{ "libconfig", false, "a config file (TUTTI_CONFIG) is refused" },
#endif
#ifdef HAVE_PMIX
	{ "pmix", true, NULL },
#else
	{ "pmix", false, "srun --mpi=pmix cannot be asked, and mpirun only on one host" },
#endif
#ifdef HAVE_VERBS
	{ "verbs", true, NULL },
#else
	{ "verbs", false, "InfiniBand and RoCE are not used" },
#endif
#ifdef HAVE_HWLOC
	{ "hwloc", true, NULL },
#else
	{ "hwloc", false, "--topology shows no caches and no devices" },
#endif
#ifdef HAVE_GPU_KERNELS
	{ "cuda", true, NULL },
#else
	{ "cuda", false, "GPUs do not average: there are no kernels for them" },
#endif
};

enum { DEVICES_MAX = 64 };

struct wire { /* the state of a transport */
	const char *name;
	struct tt_device devices[DEVICES_MAX];
	int count;        /* of devices, or -errno */
	bool internal;    /* not for jobs: the simulator */
	char why[512];    /* why it is unusable */
	char how[200];    /* how it moves bytes, if there are several ways */
};

/* A child reads this process's memory, as ranks read each other's. Returns 0 or an errno. */
static int try_to_read(void)
{
	static const long here = 0x7475747469;
	long seen = 0;
	struct iovec to = { &seen, sizeof seen }, from = { (void *)(uintptr_t)&here, sizeof here };
	int status = 0;
	pid_t pid;

	fflush(stdout); /* a sanitizer's _exit() flushes, too */
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	pid = fork();
	if (pid == 0)
		_exit(process_vm_readv(getppid(), &to, 1, &from, 1, 0) != sizeof seen || seen != here ? errno & 0xff
		                                                                                      : 0);
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		status = EAGAIN << 8;
	prctl(PR_SET_PTRACER, 0);
	return WEXITSTATUS(status);
}

static void say_how(struct wire *w)
{
	int err = try_to_read();

	snprintf(w->how, sizeof w->how, "between ranks of this host; maps what is of tutti_alloc, and ");
	size_t used = strlen(w->how);
	if (err)
		snprintf(w->how + used, sizeof w->how - used, "asks for the rest (process_vm_readv: %s)",
		         strerror(err));
	else
		snprintf(w->how + used, sizeof w->how - used, "copies the rest with process_vm_readv");
}

static bool ask_wire(struct wire *w, int i)
{
	const struct tt_transport *t = tt_transport_at(i);

	if (!t)
		return false;
	memset(w, 0, sizeof *w);
	tt_remember("");
	w->name = t->name;
	w->internal = t == &tt_sim;
	w->count = t->list(w->devices, DEVICES_MAX);
	if (w->internal)
		strcpy(w->why, "for Tutti's own tests");
	else if (w->count < 0)
		snprintf(w->why, sizeof w->why, "%s", *tt_why() ? tt_why() : strerror(-w->count));
	w->count = w->count > DEVICES_MAX ? DEVICES_MAX : w->count;
	if (t == &tt_shm && w->count > 0)
		say_how(w);
	return true;
}

/* The same steps as in tutti_join: environment, file, defaults. */
static int load_settings(struct tt_settings *all, bool *has_nodes)
{
	struct tt_node *nodes = NULL;
	int count = 0, err = tt_settings_load(all);
	const char *file = err ? NULL : tt_setting(all, TT_CONFIG);

	tutti_gossip_config gossip = tutti_gossip_defaults();

	if (file && !(err = tt_config_load(all, file, &nodes, &count)))
		err = tt_gossip_read(file, &gossip);
	*has_nodes = count > 0;
	free(nodes);
	return err ? err : tt_secret_from_file(all);
}

/* The length of the first UTF-8 character; 0: not UTF-8. */
static size_t character_length(const char *text)
{
	unsigned char c = (unsigned char)*text, next = (unsigned char)text[1];
	size_t n = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;

	for (size_t i = 1; i < n; i++)
		if ((text[i] & 0xc0) != 0x80)
			return 0;
	/* an overlong form, a surrogate, beyond the last plane */
	if ((c == 0xe0 && next < 0xa0) || (c == 0xed && next > 0x9f) || (c == 0xf0 && next < 0x90) ||
	    (c == 0xf4 && next > 0x8f))
		return 0;
	return n;
}

/* Replaces control codes, and bytes that are not UTF-8, by '?'. */
void tt_tool_print_plain(const char *text, int width)
{
	for (; *text; width--) {
		size_t n = character_length(text);
		bool plain = n && (unsigned char)*text >= ' ' && *text != 0x7f;
		printf("%.*s", plain ? (int)n : 1, plain ? text : "?");
		text += n ? n : 1;
	}
	printf("%*s", width > 0 ? width : 0, "");
}

static const char *shown_value(const struct tt_settings *all, int s, char *room, size_t size)
{
	const char *value = all->of[s].value;

	if (!value)
		return "-";
	if (s != TT_SECRET)
		return value;
	snprintf(room, size, "set, %zu bytes", strlen(value));
	return room;
}

static void print_wire(const struct wire *w)
{
	if (w->count <= 0)
		printf("  %-10s %s%s\n", w->name, w->internal ? "" : w->count < 0 ? "unusable: " : "no devices",
		       w->why);
	if (*w->how)
		printf("  %-10s %s\n", w->name, w->how);
	for (int i = 0; i < w->count && !*w->how; i++) {
		const struct tt_device *d = &w->devices[i];
		printf("  %-10s %-16s ", i ? "" : w->name, d->name);
		if (d->mbps)
			printf("%8u Mbit/s", d->mbps);
		else
			printf("  speed unknown");
		if (d->numa >= 0)
			printf("  NUMA node %d", d->numa);
		if (*d->note)
			printf("  %s", d->note);
		putchar('\n');
	}
}

/* The sentence of a setting's bad value; NULL: it is good. */
static const char *fault_of(const struct tt_settings *all, int s)
{
	return tt_judge_setting(all, (enum tt_setting)s) ? tt_why() : NULL;
}

static int tell_faults(const struct tt_settings *all)
{
	int status = 0;

	fflush(stdout);
	for (int s = 0; s < TT_SETTINGS; s++)
		if (fault_of(all, s)) {
			tt_tool_refuse("info", "%s", tt_why());
			status = 1;
		}
	return status;
}

/* A launcher's variable; most launchers are not here. */
static bool is_shown(const struct tt_settings *all, int s)
{
	return all->of[s].value || !strncmp(tt_setting_info[s].variable, "TUTTI_", 6);
}

static void print_settings(const struct tt_settings *all)
{
	int name_width = 0, value_width = 0, left_out = 0;
	char room[32];

	for (int s = 0; s < TT_SETTINGS; s++) {
		if (!is_shown(all, s))
			continue;
		name_width = (int)tt_max((size_t)name_width, strlen(tt_setting_info[s].variable));
		value_width = (int)tt_max((size_t)value_width,
		                          tt_min(24, strlen(shown_value(all, s, room, sizeof room))));
	}
	printf("\n%-*s  %-*s  %-11s  %s\n", name_width + 2, "settings", value_width, "value", "from", "meaning");
	for (int s = 0; s < TT_SETTINGS; s++) {
		if (!is_shown(all, s)) {
			left_out++;
			continue;
		}
		printf("  %-*s  ", name_width, tt_setting_info[s].variable);
		tt_tool_print_plain(shown_value(all, s, room, sizeof room), value_width);
		printf("  %-11s  %s\n", all->of[s].value ? all->of[s].origin : "-", tt_setting_info[s].sentence);
	}
	if (left_out)
		printf("  %d variables of launchers are not set; `tutti info --json` lists them\n", left_out);
}

struct share { /* of the host: what this process may use */
	int cpus;
	char list[128];
	double time; /* of processors */
};

static struct share find_share(void)
{
	struct tt_cpus allowed;
	char own[4096];
	struct share s = { .cpus = tt_cpus_allowed(&allowed),
		           .time = tt_cgroup_cores(TT_CGROUPS, tt_cgroup_own(own, sizeof own)) };

	tt_cpus_text(&allowed, s.list, sizeof s.list);
	return s;
}

static void print_share(void)
{
	struct share s = find_share();

	printf("\nmay use\n  %-10s %d: %s\n", "processors", s.cpus, s.list);
	if (s.time < TT_NO_QUOTA)
		printf("  %-10s of %.2f processors, by a cgroup's quota\n", "time", s.time);
}

static void print_table(const struct tt_settings *all, bool nodes)
{
	char why[TT_LAUNCH_WHY];
	struct wire w;

	printf("tutti %s\n\nbuilt in\n", tutti_version());
	for (size_t i = 0; i < TT_COUNT(parts); i++)
		printf("  %-10s %s%s\n", parts[i].name, parts[i].built_in ? "yes" : "no: ",
		       parts[i].built_in ? "" : parts[i].without);
	printf("\ntransports\n");
	for (int i = 0; ask_wire(&w, i); i++)
		print_wire(&w);
	const char *launcher = tt_launch_detect(all, nodes, why);
	printf("\nlauncher\n  %-10s ", launcher);
	tt_tool_print_plain(why, 0);
	putchar('\n');
	print_share();
	tt_tool_print_gpus(all);
	print_settings(all);
}

/* JSON. */

void tt_tool_json_text(const char *text)
{
	if (!text) {
		printf("null");
		return;
	}
	putchar('"');
	while (*text) {
		size_t n = character_length(text);
		if (!n)
			printf("\\ufffd"); /* a variable may hold any bytes, JSON may not */
		else if ((unsigned char)*text < ' ' || *text == 0x7f)
			printf("\\u%04x", (unsigned)*text);
		else
			printf("%s%.*s", *text == '"' || *text == '\\' ? "\\" : "", (int)n, text);
		text += n ? n : 1;
	}
	putchar('"');
}

static void json_member(const char *name, const char *text)
{
	tt_tool_json_text(name);
	printf(": ");
	tt_tool_json_text(text);
}

static void json_number(const char *name, long value, bool is_known)
{
	printf(", \"%s\": ", name);
	if (is_known)
		printf("%ld", value);
	else
		printf("null");
}

static void json_wire(const struct wire *w)
{
	printf("    { ");
	json_member("name", w->name);
	printf(", ");
	json_member("unusable", w->count < 0 ? w->why : NULL);
	printf(", ");
	json_member("how", *w->how ? w->how : NULL);
	printf(", \"devices\": [");
	for (int i = 0; i < w->count; i++) {
		printf("%s\n      { ", i ? "," : "");
		json_member("name", w->devices[i].name);
		json_number("mbps", w->devices[i].mbps, w->devices[i].mbps > 0);
		json_number("numa", w->devices[i].numa, w->devices[i].numa >= 0);
		printf(", ");
		json_member("note", *w->devices[i].note ? w->devices[i].note : NULL);
		printf(" }");
	}
	printf("%s] }", w->count > 0 ? "\n    " : "");
}

static void json_setting(const struct tt_settings *all, int s)
{
	const char *value = all->of[s].value;

	printf("    ");
	tt_tool_json_text(tt_setting_info[s].variable);
	printf(": { ");
	if (s == TT_SECRET && value)
		printf("\"value\": null, \"bytes\": %zu", strlen(value)); /* never the secret itself */
	else
		json_member("value", value);
	printf(", ");
	json_member("from", value ? all->of[s].origin : NULL);
	printf(", ");
	json_member("key", tt_setting_info[s].key);
	printf(", ");
	json_member("meaning", tt_setting_info[s].sentence);
	printf(", ");
	json_member("fault", fault_of(all, s));
	printf(" }");
}

static void print_json(const struct tt_settings *all, bool nodes)
{
	struct share share = find_share();
	char why[TT_LAUNCH_WHY];
	struct wire w;

	printf("{\n  ");
	json_member("version", tutti_version());
	printf(",\n  \"built_in\": { ");
	for (size_t i = 0; i < TT_COUNT(parts); i++)
		printf("%s\"%s\": %s", i ? ", " : "", parts[i].name, parts[i].built_in ? "true" : "false");
	printf(" },\n  \"transports\": [\n");
	for (int i = 0; ask_wire(&w, i); i++) {
		printf("%s", i ? ",\n" : "");
		json_wire(&w);
	}
	printf("\n  ],\n  \"launcher\": { ");
	json_member("name", tt_launch_detect(all, nodes, why));
	printf(", ");
	json_member("why", why);
	printf(" },\n  \"processors\": { \"count\": %d, \"list\": \"%s\", \"time\": ", share.cpus, share.list);
	if (share.time < TT_NO_QUOTA)
		printf("%.2f", share.time);
	else
		printf("null");
	printf(" },\n  ");
	tt_tool_json_gpus(all);
	printf(",\n  \"settings\": {\n");
	for (int s = 0; s < TT_SETTINGS; s++) {
		json_setting(all, s);
		printf("%s\n", s + 1 < TT_SETTINGS ? "," : "");
	}
	printf("  }\n}\n");
}

static int print_help(void)
{
	printf("Usage: tutti info [--json]\n"
	       "       tutti info --topology [FILE.xml] [--ranks N] [--json]\n"
	       "Prints the version, what was built in, which transports and devices can be used here, which launcher "
	       "has started\nthis process, which processors and GPUs it may use, and every setting with "
	       "its value and where that came from:\nthe environment, the file that TUTTI_CONFIG names, or a "
	       "default.\n"
	       "The exit status is not 0 if a value is none that its setting may have.\n\n"
	       "  -t, --topology  instead, draw this machine, and where TUTTI_PIN puts the ranks of a job and their "
	       "threads on it;\n"
	       "                  which NIC and GPU is near each, and what sits far from what it needs. With "
	       "FILE.xml, as made by\n"
	       "                  `lstopo FILE.xml` there, another machine; a description like \"package:2 core:8 "
	       "pu:2\" does, too\n"
	       "  -n, --ranks N   so many ranks on that machine; by default TUTTI_LOCAL_SIZE, or 1\n"
	       "  -j, --json      as one JSON object\n"
	       "  -h, --help      this text\n\n"
	       "For example:\n"
	       "  TUTTI_PIN=spread tutti info --topology --ranks 4\n");
	return 0;
}

static const struct option known[] = {
	{ "json", no_argument, NULL, 'j' }, { "topology", no_argument, NULL, 't' },
	{ "ranks", required_argument, NULL, 'n' },
	{ "help", no_argument, NULL, 'h' }, { 0 },
};

static int take_ranks(const char *text, int *out)
{
	char *end;
	long n = strtol(text, &end, 10);

	if (end == text || *end || n < 1 || n > TT_RANKS_MAX)
		return tt_tool_refuse("info", "-n %s: the number of ranks is a whole number from 1 to %d", text,
		                      TT_RANKS_MAX);
	*out = (int)n;
	return 0;
}

/* Prints the settings that could be read, even if the config file is bad. */
static int show(bool topology, const char *file, int ranks, bool json)
{
	struct tt_settings all;
	bool nodes;
	int err = load_settings(&all, &nodes), status = 0;

	if (err)
		tt_tool_refuse("info", "%s", tt_why());
	if (topology)
		status = tt_tool_topology(&all, file, ranks, json);
	else
		(json ? print_json : print_table)(&all, nodes);
	if (!status)
		status = tell_faults(&all);
	tt_settings_free(&all);
	return err ? 1 : status;
}

int tt_tool_info(int argc, char **argv)
{
	bool json = false, topology = false;
	int c, ranks = 0, status = 0;

	while (!status && (c = getopt_long(argc, argv, ":jtn:h", known, NULL)) != -1) {
		switch (c) {
		case 'j': json = true; break;
		case 't': topology = true; break;
		case 'n': status = take_ranks(optarg, &ranks); break;
		case 'h': return print_help();
		default: return tt_tool_bad_option("info", argv, known, c);
		}
	}
	if (status)
		return status;
	if (optind + topology < argc)
		return tt_tool_refuse("info", "%s (%s); see `tutti info --help`",
		                      topology ? "it takes one file" : "it takes no argument without --topology",
		                      argv[argc - 1]);
	if (ranks && !topology)
		return tt_tool_refuse("info", "--ranks goes with --topology; see `tutti info --help`");
	return show(topology, optind < argc ? argv[optind] : NULL, ranks, json);
}
