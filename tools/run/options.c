/* options.c - the command line of `tutti run` */
#include "tools/run/run.h"
#include "topology/topology.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int cores(void)
{
	struct tt_cpus allowed;
	long n = tt_cpus_allowed(&allowed);

	if (!n)
		n = sysconf(_SC_NPROCESSORS_ONLN);
	return n < 1 ? 1 : n > RANKS_MAX ? RANKS_MAX : (int)n;
}

static int take_ranks(struct options *o, const char *text)
{
	char *end;
	long n = strtol(text, &end, 10);

	if (end == text || *end || n < 1 || n > RANKS_MAX)
		return tt_tool_refuse("run", "-n %s: the number of ranks is a whole number from 1 to %d", text,
		                      RANKS_MAX);
	o->ranks = (int)n;
	return 0;
}

static int take_grace(struct options *o, const char *text)
{
	char *end;
	double seconds = strtod(text, &end);

	if (end == text || *end || !(seconds >= 0 && seconds <= 86400))
		return tt_tool_refuse("run", "--grace %s: the grace is a number of seconds from 0 to 86400", text);
	o->grace = (uint64_t)(seconds * 1e9);
	return 0;
}

static int print_help(void)
{
	printf("Usage: tutti run [-n N] [OPTION ...] PROGRAM [ARGUMENT ...]\n"
	       "Starts N copies of PROGRAM as the ranks 0 to N-1 of one job, on this host or on those of a list.\n\n"
	       "  -n, --ranks N        how many; by default the number of cores allowed (here %d)\n"
	       "  -t, --tag            begin each line of output with its rank: \"[2] text\"\n"
	       "  -p, --prefix         begin each line with its rank and host: \"[2 alpha] text\"\n"
	       "  -g, --grace SECONDS  how long ranks may take to end before they are made to; 3 by default\n"
	       "  -k, --keep-going     when a rank fails, leave the others alone: they may go on without it\n"
	       "      --restart N      start a rank that failed again, at most N times on a host, rank 0 as\n"
	       "                       a new rank. The program must call tutti_group_grow if tutti_late says 1\n"
	       "      --hosts A,B:4    over ssh on these hosts, 4 ranks on B; without slots evenly, or one each\n"
	       "      --hostfile FILE  the hosts, one a line: HOST, HOST:4 or HOST slots=4\n"
	       "      --rsh COMMAND    in place of ssh; or in TUTTI_RSH\n"
	       "  -r, --rendezvous HOST:PORT  where rank 0 listens; by default a free port of the loopback, or of the\n"
	       "                       first host at the address where ssh has reached it\n"
	       "  -v, --verbose        say how to start a rank again by hand, or to add one\n"
	       "  -h, --help           this text\n\n"
	       "For example:\n"
	       "  tutti run -n 4 ./train --epochs 3\n"
	       "  tutti run -n 2 --tag sh -c 'echo I am $TUTTI_RANK of $TUTTI_SIZE'\n\n"
	       "Each rank gets TUTTI_RANK, TUTTI_SIZE, TUTTI_LOCAL_RANK, TUTTI_LOCAL_SIZE, TUTTI_BOOT and, where "
	       "libsodium is\n"
	       "built in, a TUTTI_SECRET of their job. Lines of different ranks never mix. Rank 0 has the "
	       "standard input,\n"
	       "unless that is a terminal, and without --tag writes to a terminal itself.\n\n"
	       "When a rank fails, the others have the grace to notice, then get SIGTERM, and after at most one "
	       "second more\n"
	       "SIGKILL; with --keep-going they are left alone. A rank that the others have evicted, and ranks that "
	       "are stopped while all\n"
	       "others have ended, are ended after the grace. The signals INT, TERM, HUP, QUIT, USR1, USR2 and TSTP "
	       "are passed\n"
	       "on to the ranks; INT and TERM also begin the grace, after which the ranks are killed; a second INT "
	       "kills at once.\n"
	       "What is left of a rank's process group ends with the rank, and everything ends with `tutti run`, even "
	       "if that is\n"
	       "killed.\n\n"
	       "The exit status is that of the first rank that failed, 128 + the signal if one killed it; with "
	       "--keep-going 0 if\n"
	       "some rank exited with 0; 127 or 126 if PROGRAM cannot be executed; 2 if the command line makes no "
	       "sense.\n", cores());
	return 0;
}

enum { HOSTS = 256, HOSTFILE, RSH, RESTART };

static const struct option known[] = {
	{ "ranks", required_argument, NULL, 'n' }, { "tag", no_argument, NULL, 't' },
	{ "prefix", no_argument, NULL, 'p' }, { "restart", required_argument, NULL, RESTART },
	{ "hosts", required_argument, NULL, HOSTS }, { "hostfile", required_argument, NULL, HOSTFILE },
	{ "rsh", required_argument, NULL, RSH },
	{ "grace", required_argument, NULL, 'g' }, { "rendezvous", required_argument, NULL, 'r' },
	{ "verbose", no_argument, NULL, 'v' },
	{ "keep-going", no_argument, NULL, 'k' }, { "help", no_argument, NULL, 'h' }, { 0 },
};

static int take_rendezvous(struct options *o, const char *text)
{
	const char *port = strrchr(text, ':');
	char *end;

	if (!port || port == text || strtol(port + 1, &end, 10) < 1 || end == port + 1 || *end)
		return tt_tool_refuse("run", "--rendezvous %s: it is HOST:PORT, an address of this host, and a port",
		                      text);
	o->rendezvous = text;
	return 0;
}

/* Which ranks run where. */
static int settle(struct options *o, bool counted)
{
	if (o->rsh && !o->hosts)
		return tt_tool_refuse("run", "--rsh says how hosts are reached, and there is neither --hosts nor "
		                             "--hostfile");
	if (o->hosts)
		return tt_run_seat(o, !counted);
	o->ranks = counted ? o->ranks : cores();
	o->size = o->ranks;
	return 0;
}

bool tt_run_parse(int argc, char **argv, struct options *o, int *status)
{
	bool counted = false;
	int c;

	*o = (struct options){ .grace = 3000 * TT_MS };
	*status = 0;
	while (!*status && (c = getopt_long(argc, argv, "+:n:tpkg:r:vh", known, NULL)) != -1) {
		switch (c) {
		case 'n':
			counted = true;
			if (!strcmp(argv[optind - 1], "-np") && optind < argc) /* as mpirun has it; getopt reads -n p */
				optarg = argv[optind++];
			*status = take_ranks(o, optarg);
			break;
		case 'r': *status = take_rendezvous(o, optarg); break;
		case 'v': o->verbose = true; break;
		case 't': o->tag = TAG_RANK; break;
		case 'p': o->tag = TAG_RANK_AND_HOST; break;
		case HOSTS: *status = tt_run_take_hosts(o, optarg); break;
		case HOSTFILE: *status = tt_run_take_hostfile(o, optarg); break;
		case RSH: o->rsh = optarg; break;
		case RESTART:
			*status = tt_tool_take_int("run", "--restart", optarg, 0, 1000000, &o->restarts);
			break;
		case 'k': o->keep_going = true; break;
		case 'g': *status = take_grace(o, optarg); break;
		case 'h': print_help(); return false;
		default: *status = tt_tool_bad_option("run", argv, known, c);
		}
	}
	if (!*status && optind == argc)
		*status = tt_tool_refuse("run", "a program is missing; see `tutti run --help`");
	o->program = argv + optind;
	if (!o->rsh && o->hosts)
		o->rsh = tt_env(TT_RSH);
	if (!*status)
		*status = settle(o, counted);
	return !*status;
}

void tt_run_free_options(struct options *o) { free(o->hosts); }

