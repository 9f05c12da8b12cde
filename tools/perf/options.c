/* options.c - the command line of `tutti perf` */
#include "tools/perf/perf.h"
#include "job/job.h"
#include "transport/sim/sim.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* An iteration of ours, of the baseline over bare sockets, and of that in bare memory. */
#define ITERATION(mine, raw, in_memory) .ours = mine, .baseline = raw, .shared = in_memory

const struct tt_perf_test tt_perf_tests[] = {
	{ "pingpong", "half a round trip of a put that notifies, answered by another", 8, 4 * MIB,
	  ITERATION(tt_perf_pingpong, tt_perf_raw_pingpong, tt_perf_shared_pingpong) },
	{ "message", "half a round trip of a message, answered by another", 8, 4 * MIB,
	  ITERATION(tt_perf_message, tt_perf_raw_pingpong, tt_perf_shared_pingpong) },
	{ "put", "a put, until its bytes are in the target's memory", 8, 4 * MIB, .one_sided = true,
	  ITERATION(tt_perf_put, tt_perf_raw_put, tt_perf_shared_put) },
	{ "get", "a get, until its bytes are here", 8, 4 * MIB, .one_sided = true,
	  ITERATION(tt_perf_get, tt_perf_raw_get, tt_perf_shared_get) },
	{ "stream", "many puts under way at once (with --get: gets)", 64 * KIB, 64 * MIB, .one_sided = true,
	  .streams = true, ITERATION(tt_perf_stream_puts, tt_perf_raw_stream_puts, tt_perf_shared_stream_puts) },
	{ "allreduce", "an all-reduce over all ranks, in place", 4 * KIB, 64 * MIB, .collective = true,
	  ITERATION(tt_perf_allreduce, tt_perf_raw_allreduce, tt_perf_shared_allreduce) },
	{ "reduce", "the kernels that combine vectors, beside STREAM's loops", 256 * MIB, 256 * MIB, .collective = true,
	  .local = true, ITERATION(tt_perf_run_kernel, tt_perf_raw_stream, NULL) },
	{ "copy", "ways to copy memory, beside STREAM's loops", 256 * MIB, 256 * MIB, .collective = true, .local = true,
	  ITERATION(tt_perf_run_kernel, tt_perf_raw_stream, NULL) },
	{ "update", "a table's update rules, beside STREAM's loops", 256 * MIB, 256 * MIB, .collective = true,
	  .local = true, ITERATION(tt_perf_run_kernel, tt_perf_raw_stream, NULL) },
	{ "table", "pushes to and pulls from a table; even ranks are workers, odd ones servers", 4 * KIB, 64 * MIB,
	  .table = true, ITERATION(tt_perf_table, tt_perf_raw_table, tt_perf_shared_table) },
	{ "gossip", "a fetch of rank 1's published model of f32, averaged into rank 0's", 4 * KIB, 64 * MIB,
	  .one_sided = true, .gossips = true,
	  ITERATION(tt_perf_gossip, tt_perf_raw_gossip, tt_perf_shared_gossip) },
	{ "publish", "versions of a model of bf16: publishes, fetches, deltas", 4 * MIB, 64 * MIB, .one_sided = true,
	  .publishes = true,
	  ITERATION(tt_perf_publication, tt_perf_raw_publication, tt_perf_shared_publication) },
	{ "gpu", "copies and averages in a GPU's memory; puts and gets of it, beside host memory", 256 * MIB, 256 * MIB,
	  .one_sided = true, .gpu = true, ITERATION(tt_perf_gpu, tt_perf_raw_gpu, NULL) },
	{ .name = NULL },
};
static const struct tt_perf_test gets = {
	"stream", "", 64 * KIB, 64 * MIB, .one_sided = true, .streams = true,
	ITERATION(tt_perf_stream_gets, tt_perf_raw_stream_gets, tt_perf_shared_stream_gets)
};

static const struct name {
	const char *name;
	int value;
	size_t size;
} types[] = { { "f32", TUTTI_F32, 4 }, { "f64", TUTTI_F64, 8 }, { "f16", TUTTI_F16, 2 }, { "bf16", TUTTI_BF16, 2 },
	      { "i32", TUTTI_I32, 4 }, { "i64", TUTTI_I64, 8 }, { "i8", TUTTI_I8, 1 }, { "u8", TUTTI_U8, 1 },
	      { "bool", TUTTI_BOOL, 1 }, { 0 } },
  rules[] = { { "sum", TUTTI_SUM, 0 }, { "average", TUTTI_AVERAGE, 0 }, { "product", TUTTI_PRODUCT, 0 },
              { "max", TUTTI_MAX, 0 },
	      { "min", TUTTI_MIN, 0 }, { 0 } },
  targets[] = { { "wait", false, 0 }, { "compute", true, 0 }, { 0 } };

bool tt_perf_is_whole(tutti_type type) { return type >= TUTTI_I32; }
bool tt_perf_is_small(tutti_type type) { return type >= TUTTI_I8; }

size_t tt_perf_type_size(tutti_type type)
{
	for (const struct name *t = types; t->name; t++)
		if (t->value == (int)type)
			return t->size;
	return 1;
}

const char *tt_perf_type_name(tutti_type type)
{
	for (const struct name *t = types; t->name; t++)
		if (t->value == (int)type)
			return t->name;
	return "";
}

void tt_perf_write_size(char *text, size_t room, size_t bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB" };
	size_t u = 0;

	for (; bytes >= KIB && bytes % KIB == 0 && u + 1 < TT_COUNT(units); u++)
		bytes /= KIB;
	snprintf(text, room, "%zu %s", bytes, units[u]);
}

/* Finds a word in a list; the refusal names all words. */
static const struct name *take_word(const char *option, const char *word, const struct name *list)
{
	char all[200] = "";

	for (const struct name *n = list; n->name; n++) {
		if (!strcmp(n->name, word))
			return n;
		snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s",
		         n == list ? "" : n[1].name ? ", " : " or ", n->name);
	}
	tt_tool_refuse("perf", "%s %s: it is %s", option, word, all);
	return NULL;
}

static int take_sizes(struct tt_perf_options *o, const char *text)
{
	const char *dots = strstr(text, ".."), *last = dots ? dots + 2 : text;

	if (!tt_tool_read_size(text, dots ? (size_t)(dots - text) : strlen(text), &o->first) ||
	    !tt_tool_read_size(last, strlen(last), &o->last) || o->last < o->first)
		return tt_tool_refuse("perf", "--size %s: a size is a number of bytes like 8, 4K or 64M, at most 64G, "
		                              "or a range like 8..64M", text);
	return 0;
}

static int take_test(struct tt_perf_options *o, const char *word)
{
	o->test = tt_tool_find("perf", "test", word, tt_perf_tests, sizeof *tt_perf_tests);
	return o->test ? 0 : TT_TOOL_REFUSED;
}

static int take_transport(struct tt_perf_options *o, const char *word)
{
	const struct tt_transport *t;
	char all[200] = "";

	for (int i = 0; (t = tt_transport_at(i)); i++) {
		if (t == &tt_sim)
			continue; /* simulated time */
		if (!strcmp(t->name, word)) {
			o->transport = word;
			return 0;
		}
		snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", *all ? ", " : "", t->name);
	}
	return tt_tool_refuse("perf", "--transport %s: there is none of that name; there is %s", word, all);
}

/* "push, pull, ..."; "" for a test without kernels. */
static void write_kernels(const char *test, char *text, size_t room)
{
	const struct tt_perf_kernel *k;

	*text = 0;
	for (int i = 0; (k = tt_perf_kernel_of(test, i)); i++)
		snprintf(text + strlen(text), room - strlen(text), "%s%s", i ? ", " : "", k->name);
}

static void print_test(const struct tt_perf_test *t)
{
	char kernels[200];

	printf("  %-10s %s\n", t->name, t->sentence);
	write_kernels(t->name, kernels, sizeof kernels);
	if (*kernels)
		printf("             %s\n", kernels);
}

static int print_help(void)
{
	printf("Usage: tutti perf TEST [OPTION ...]\n"
	       "Measures what Tutti does here, and beside it, in the same run, what bare sockets, bare memory or "
	       "bare verbs do: the baseline.\n"
	       "The ratio is the time of the baseline divided by that of Tutti: above 1 Tutti is faster.\n\n");
	for (const struct tt_perf_test *t = tt_perf_tests; t->name; t++)
		print_test(t);
	printf("\n  -n, --ranks N         start N ranks on this host; 2 by default (reduce, copy, update: 1; "
	       "pull-beside, snapshot: 3; readers, all of publish: 4).\n"
	       "                        Under a launcher each process is one rank\n"
	       "  -s, --size SIZE       bytes: 8, 4K, 64M, or a range 8..64M, doubled from row to row\n"
	       "  -i, --iters N         how many iterations a row has ...\n"
	       "  -T, --time SECONDS    ... or how long it takes, the baseline included; 1 by default\n"
	       "      --type TYPE       allreduce, reduce, update, table, gpu: f32 (by default; reduce, gpu: all), "
	       "f64, f16, bf16, i32 or i64;\n"
	       "                        allreduce and reduce also i8, u8 or bool\n"
	       "      --rule RULE       allreduce, reduce: sum (by default), average, product, max or min\n"
	       "      --target HOW      put, get, stream: rank 1 meanwhile does wait (by default) in a call of "
	       "Tutti's, or compute\n"
	       "      --get             stream: gets\n"
	       "      --brought         allreduce: of memory that the caller has brought, not of tutti_alloc's;\n"
	       "                        over shm the better one of two baselines counts: slots, process_vm_readv\n"
	       "      --kernel NAME     reduce, copy, update, table, publish, gpu: one of theirs; by "
	       "default all\n"
	       "      --inputs N        reduce: how many vectors are combined where any number can be; 4 by default\n"
	       "      --threads N       update: by how many threads of each rank, the baseline too; 1 by default\n"
	       "      --changed PERCENT publish: how many elements differ from version to version, for deltas; "
	       "1 by default\n"
	       "      --no-baseline     measure Tutti alone\n"
	       "  -t, --transport NAME  which transport; by default what TUTTI_TRANSPORTS says\n"
	       "  -e, --explain         say which transport and settings there are, and why\n"
	       "  -j, --json            one object a line; see tutti-perf(1) for its members\n"
	       "  -p, --plot FILE.png   draw size against time, with gnuplot\n"
	       "      --peer FILE.json  draw another program's figures too: lines of JSON with \"bytes\" and "
	       "\"p50_us\"\n"
	       "  -h, --help            this text\n\n"
	       "For example:\n"
	       "  tutti perf pingpong --size 8\n"
	       "  tutti perf allreduce -n 4 --size 4K..64M --json\n"
	       "  tutti perf update --kernel adam\n"
	       "  tutti perf table -n 4 --kernel push --size 64M\n"
	       "  tutti perf publish --kernel fetch --transport tcp\n"
	       "  tutti run -n 2 tutti perf put --size 8 --target compute\n");
	return 0;
}

enum { LONG_TYPE = 256, LONG_RULE, LONG_TARGET, LONG_GET, LONG_PEER, LONG_KERNEL, LONG_INPUTS, LONG_THREADS,
       LONG_BROUGHT, LONG_NO_BASELINE, LONG_CHANGED };
static const struct option known[] = {
	{ "ranks", required_argument, NULL, 'n' }, { "size", required_argument, NULL, 's' },
	{ "iters", required_argument, NULL, 'i' },
	{ "time", required_argument, NULL, 'T' }, { "type", required_argument, NULL, LONG_TYPE },
	{ "rule", required_argument, NULL, LONG_RULE }, { "target", required_argument, NULL, LONG_TARGET },
	{ "get", no_argument, NULL, LONG_GET }, { "brought", no_argument, NULL, LONG_BROUGHT },
	{ "kernel", required_argument, NULL, LONG_KERNEL }, { "inputs", required_argument, NULL, LONG_INPUTS },
	{ "threads", required_argument, NULL, LONG_THREADS },
	{ "changed", required_argument, NULL, LONG_CHANGED },
	{ "no-baseline", no_argument, NULL, LONG_NO_BASELINE },
	{ "transport", required_argument, NULL, 't' }, { "explain", no_argument, NULL, 'e' },
	{ "json", no_argument, NULL, 'j' },
	{ "plot", required_argument, NULL, 'p' }, { "peer", required_argument, NULL, LONG_PEER },
	{ "help", no_argument, NULL, 'h' }, { 0 },
};

struct seen { /* options on the command line that only some tests take */
	bool type, rule, target, get, iters, seconds, inputs, threads, changed;
	const char *kernel, *ranks;
};

static int take_option(struct tt_perf_options *o, struct seen *seen, int c, char **argv)
{
	const struct name *n;
	int err = 0;

	switch (c) {
	case 'n': seen->ranks = optarg; break;
	case LONG_KERNEL: seen->kernel = optarg; break;
	case LONG_INPUTS:
		err = tt_tool_take_int("perf", "--inputs", optarg, 2, TT_PERF_VECTORS - 1, &o->inputs);
		seen->inputs = true;
		break;
	case LONG_THREADS:
		err = tt_tool_take_int("perf", "--threads", optarg, 1, TT_PERF_THREADS, &o->threads);
		seen->threads = true;
		break;
	case LONG_CHANGED:
		err = tt_tool_take_number("perf", "--changed", optarg, 0, 100, &o->changed);
		seen->changed = true;
		break;
	case 's': err = take_sizes(o, optarg); break;
	case 'i':
		err = tt_tool_take_whole("perf", "--iters", optarg, 1, 1000000000, &o->iters);
		seen->iters = true;
		break;
	case 'T':
		err = tt_tool_take_number("perf", "--time", optarg, 0.001, 3600, &o->seconds);
		seen->seconds = true;
		break;
	case LONG_TYPE:
		if (!(n = take_word("--type", optarg, types)))
			return TT_TOOL_REFUSED;
		o->type = (tutti_type)n->value;
		o->type_name = n->name;
		seen->type = true;
		break;
	case LONG_RULE:
		if (!(n = take_word("--rule", optarg, rules)))
			return TT_TOOL_REFUSED;
		o->rule = (tutti_rule)n->value;
		o->rule_name = n->name;
		seen->rule = true;
		break;
	case LONG_TARGET:
		if (!(n = take_word("--target", optarg, targets)))
			return TT_TOOL_REFUSED;
		o->compute = n->value;
		seen->target = true;
		break;
	case LONG_GET: seen->get = true; break;
	case LONG_BROUGHT: o->brought = true; break;
	case LONG_NO_BASELINE: o->no_baseline = true; break;
	case 't': err = take_transport(o, optarg); break;
	case 'e': o->explain = true; break;
	case 'j': o->json = true; break;
	case 'p': o->plot = optarg; break;
	case LONG_PEER: o->peer = optarg; break;
	default: err = tt_tool_bad_option("perf", argv, known, c);
	}
	return err;
}

static int take_kernel(struct tt_perf_options *o, const char *word)
{
	const struct tt_perf_kernel *k;
	char all[200];

	for (int i = 0; (k = tt_perf_kernel_of(o->test->name, i)); i++)
		if (!strcmp(k->name, word)) {
			o->kernel = k;
			return 0;
		}
	write_kernels(o->test->name, all, sizeof all);
	return tt_tool_refuse("perf", "--kernel %s: there is none of that name in %s; there is %s", word, o->test->name,
	                      all);
}

static int check_kernel(struct tt_perf_options *o, const char *word)
{
	int err = word ? take_kernel(o, word) : 0;

	if (err || !o->kernel || !o->kernel->scaled || !tt_perf_is_whole(o->type))
		return err;
	return tt_tool_refuse("perf", "--type %s: %s computes with factors, and is for f32, f64, f16 and bf16",
	                      o->type_name, o->kernel->name);
}

/* Kernels in memory: STREAM works on lines of 64 bytes, so sizes must be whole lines. */
static int check_local(struct tt_perf_options *o, const struct seen *seen, bool copies)
{
	if (o->first % 64 || o->last % 64)
		return tt_tool_refuse("perf", "--size: %zu bytes are not a whole number of lines of 64",
		                      o->first % 64 ? o->first : o->last);
	if (o->plot || o->transport)
		return tt_tool_refuse("perf", "%s is not for %s", o->plot ? "--plot" : "--transport", o->test->name);
	o->any_type = !seen->type && !strcmp(o->test->name, "reduce");
	if (copies)
		o->type_name = "byte";
	return 0;
}

/* A table's calls: bare sockets connect only neighbours in the ring. */
static int check_table(const struct tt_perf_options *o)
{
	if (o->ranks == 1 || o->ranks > TT_PERF_TABLE_RANKS)
		return tt_tool_refuse("perf", "-n %d: for table it is 2, 3 (two workers) or 4 (two of each)", o->ranks);
	if (o->ranks && o->ranks < 3 && o->kernel && o->kernel->calls & TT_PERF_BESIDE)
		return tt_tool_refuse("perf", "-n %d: of %s two workers are part: it is 3 or 4", o->ranks,
		                      o->kernel->name);
	if (o->kernel && o->kernel->calls & TT_PERF_SNAPSHOT && tt_perf_type_size(o->type) == 2)
		return tt_tool_refuse("perf", "--type %s: each element of %s counts all pushes: "
		                              "it is f32, f64, i32 or i64", o->type_name, o->kernel->name);
	if (o->plot)
		return tt_tool_refuse("perf", "--plot is not for table");
	return 0;
}

static int check_gpu(struct tt_perf_options *o, const struct seen *seen)
{
	if (seen->target || o->plot)
		return tt_tool_refuse("perf", "%s is not for gpu", o->plot ? "--plot" : "--target");
	if (o->ranks > 2)
		return tt_tool_refuse("perf", "-n %d: for gpu it is 2", o->ranks);
	o->any_type = !seen->type;
	return 0;
}

/* The model is of bf16. */
static int check_publish(struct tt_perf_options *o, const struct seen *seen)
{
	if (seen->target || o->plot)
		return tt_tool_refuse("perf", "%s is not for publish", o->plot ? "--plot" : "--target");
	if (o->ranks > TT_PERF_PUBLISH_RANKS)
		return tt_tool_refuse("perf", "-n %d: for publish it is 2 to %d", o->ranks, TT_PERF_PUBLISH_RANKS);
	if (seen->changed && o->kernel && !(o->kernel->calls & TT_PERF_DELTA))
		return tt_tool_refuse("perf", "--changed is for the kernel delta, and not for %s", o->kernel->name);
	return 0;
}

static bool has_elements(const struct tt_perf_test *t)
{
	return t->collective || t->table || t->gossips || t->gpu || t->publishes;
}

/* Checks that need several options. */
static int check_together(struct tt_perf_options *o, const struct seen *seen)
{
	const struct tt_perf_test *t = o->test;
	size_t element = tt_perf_type_size(t->publishes ? TUTTI_BF16 : o->type);

	bool copies = !strcmp(t->name, "copy"), combines = !strcmp(t->name, "reduce") || (t->collective && !t->local);
	int err;

	if (seen->type && !t->table && !t->gpu && (!t->collective || copies))
		return tt_tool_refuse("perf", "--type is for allreduce, reduce, update, table and gpu: %s moves %s",
		                      t->name, t->publishes ? "bf16" : "bytes");
	if (tt_perf_is_small(o->type) && !combines)
		return tt_tool_refuse("perf", "--type %s is for allreduce and reduce", o->type_name);
	if (o->type == TUTTI_BOOL && o->rule == TUTTI_AVERAGE)
		return tt_tool_refuse("perf", "--rule average: bools have no average");
	if (seen->rule && !combines)
		return tt_tool_refuse("perf", "--rule is for allreduce and reduce%s",
		                      t->local && !copies ? "; an update rule is a --kernel" : "");
	if (seen->kernel && !tt_perf_kernel_of(t->name, 0))
		return tt_tool_refuse("perf", "--kernel is for reduce, copy, update, table, publish and gpu, "
		                              "which have kernels");
	if (seen->inputs && (!t->local || !combines))
		return tt_tool_refuse("perf", "--inputs is for reduce");
	if (seen->changed && !t->publishes)
		return tt_tool_refuse("perf", "--changed is for publish");
	if (seen->threads && strcmp(t->name, "update"))
		return tt_tool_refuse("perf", "--threads is for update");
	if (seen->ranks && (err = tt_tool_take_int("perf", "-n", seen->ranks, t->local || t->table ? 1 : 2,
	                                           TT_PERF_RANKS, &o->ranks)))
		return err;
	if (t->publishes) {
		o->type = TUTTI_BF16;
		o->type_name = "bf16";
	}
	if (tt_perf_kernel_of(t->name, 0) && (err = check_kernel(o, seen->kernel)))
		return err;
	if ((t->local && (err = check_local(o, seen, copies))) || (t->table && (err = check_table(o))))
		return err;
	if ((t->gpu && (err = check_gpu(o, seen))) || (t->publishes && (err = check_publish(o, seen))))
		return err;
	if (seen->target && !t->one_sided)
		return tt_tool_refuse("perf", "--target is for put, get and stream: in %s all ranks take part",
		                      t->name);
	if (seen->get && !t->streams)
		return tt_tool_refuse("perf", "--get is for stream%s", t->one_sided ? "; there is a test `get`" : "");
	if (o->brought && (!t->collective || t->local))
		return tt_tool_refuse("perf", "--brought is for allreduce");
	if (seen->iters && seen->seconds)
		return tt_tool_refuse("perf", "--iters and --time exclude each other");
	if (o->peer && !o->plot)
		return tt_tool_refuse("perf", "--peer is drawn with --plot FILE.png, which is missing");
	if (!o->first) {
		o->first = t->first;
		o->last = t->last;
	}
	if (has_elements(t) && (o->first % element || o->last % element))
		return tt_tool_refuse("perf", "--size: %zu bytes are not a whole number of %s, which has %zu",
		                      o->first % element ? o->first : o->last, o->type_name, element);
	o->name = t->name;
	if (seen->get) {
		o->test = &gets;
		o->name = "stream-get";
	}
	return 0;
}

int tt_perf_read_options(int argc, char **argv, struct tt_perf_options *o)
{
	struct seen seen = { 0 };
	int c, err;

	*o = (struct tt_perf_options){
		.seconds = 1, .type_name = "f32", .rule_name = "sum", .inputs = 4, .threads = 1,
		.changed = 1,
	};
	while ((c = getopt_long(argc, argv, ":n:s:i:T:t:ejp:h", known, NULL)) != -1) {
		if (c == 'h')
			return print_help();
		if ((err = take_option(o, &seen, c, argv)))
			return err;
	}
	if (optind >= argc)
		return tt_tool_refuse("perf", "a test is missing: pingpong, message, put, get, stream, allreduce, "
		                              "reduce, copy, update, table, gossip, publish or gpu; see "
		                              "`tutti perf --help`");
	if ((err = take_test(o, argv[optind])))
		return err;
	if (optind + 1 < argc)
		return tt_tool_refuse("perf", "it takes one test (%s is one too many); see `tutti perf --help`",
		                      argv[optind + 1]);
	err = check_together(o, &seen);
	return err ? err : -1;
}
