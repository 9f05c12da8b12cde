/* hosts.c - the hosts of `tutti run --hosts`: one ssh to each, and at its other end a `tutti run` that obeys this one
 *
 *     here                                                 on the host
 *     ssh HOST tutti run --agent  =======================  agent -- fork -- rank ...
 *        <-- "tutti-agent VERSION PORT ADDRESS" ---------  where rank 0 could listen
 *        --- the order: folder, variables, arguments --->  once all hosts have said hello
 *        --- a byte for each signal --------------------->
 *        --- end of file -------------------------------->  the ranks get SIGTERM, the grace, SIGKILL
 *
 * The order goes over the standard input of ssh: the job's secret is in it, and a command line is for all to read. */
#include "tools/run/run.h"
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ORDER_MAX = 1 << 20 }; /* what a pipe can hold, so that writing the order never waits */

/* The list of hosts. */

/* A host that is named several times, as a scheduler's file does, has a slot each time, unless the list says more. */
static int add_host(struct options *o, const char *name, size_t len, int slots)
{
	for (struct host *h = o->hosts; h < o->hosts + o->host_count; h++)
		if (strlen(h->name) == len && !memcmp(h->name, name, len)) {
			h->slots = (h->slots ? h->slots : 1) + (slots ? slots : 1);
			return h->slots <= RANKS_MAX ? 0 : tt_tool_refuse("run", "host %s has %d slots, more than %d",
			                                                  h->name, h->slots, RANKS_MAX);
		}
	if (o->host_count == HOSTS_MAX)
		return tt_tool_refuse("run", "there are more than %d hosts", HOSTS_MAX);
	struct host *h = &o->hosts[o->host_count++];
	memcpy(h->name, name, len);
	h->slots = slots;
	h->orders = -1;
	return 0;
}

static int take_host(struct options *o, const char *text, size_t len, long slots)
{
	const char *colon = memrchr(text, ':', len);
	bool v6 = colon && memchr(text, ':', (size_t)(colon - text)) && text[0] != '[';
	char *end;

	if (!o->hosts)
		o->hosts = calloc(HOSTS_MAX, sizeof *o->hosts);
	if (!o->hosts)
		return tt_tool_refuse("run", "no memory for the list of hosts");
	if (colon && !v6 && !memchr(colon, ']', len - (size_t)(colon - text))) {
		slots = strtol(colon + 1, &end, 10);
		if (end != text + len || slots < 1 || slots > RANKS_MAX)
			return tt_tool_refuse("run", "host %.*s: the slots are a whole number from 1 to %d", (int)len,
			                      text, RANKS_MAX);
		len = (size_t)(colon - text);
	}
	if (len > 1 && text[0] == '[' && text[len - 1] == ']') {
		text++;
		len -= 2;
	}
	if (!len || len >= sizeof o->hosts->name || text[0] == '-' || memchr(text, ' ', len))
		return tt_tool_refuse("run", "\"%.*s\" is no name of a host: write --hosts NAME,NAME:SLOTS", (int)len,
		                      text);
	return add_host(o, text, len, (int)slots);
}

int tt_run_take_hosts(struct options *o, const char *list)
{
	int err = 0;

	for (const char *at = list; !err; at++) {
		size_t len = strcspn(at, ",");
		err = take_host(o, at, len, 0);
		at += len;
		if (!*at)
			break;
	}
	return err;
}

/* A line: "HOST", "HOST:4", or as mpirun has it "HOST slots=4"; what follows # is a comment. Editors of other systems
 * end lines with \r\n, and begin the file with a mark. */
int tt_run_take_hostfile(struct options *o, const char *path)
{
	char line[512], name[512];
	static const char mark[] = "\xef\xbb\xbf";
	FILE *f = fopen(path, "re");
	int err = 0, number = 0;

	if (!f)
		return tt_tool_refuse("run", "--hostfile %s: %s", path, strerror(errno));
	while (!err && fgets(line, sizeof line, f)) {
		const char *at = line + (number++ || strncmp(line, mark, 3) ? 0 : 3);
		long slots = 0;
		line[strcspn(line, "#\r\n")] = 0;
		if (sscanf(at, " %511s", name) != 1)
			continue;
		const char *rest = strstr(at, name) + strlen(name);
		if (rest[strspn(rest, " \t")] && (sscanf(rest, " slots = %ld", &slots) != 1 || slots < 1 ||
		                                 slots > RANKS_MAX))
			err = tt_tool_refuse("run", "--hostfile %s, line %d: \"%s\" is no line HOST, HOST:SLOTS or "
			                     "HOST slots=N", path, number, at);
		else
			err = take_host(o, name, strlen(name), slots);
	}
	fclose(f);
	if (!err && !o->host_count)
		err = tt_tool_refuse("run", "--hostfile %s names no host", path);
	return err;
}

/* Blocks of ranks: as many as the slots say, or, where no host says slots, as evenly as can be. */
int tt_run_seat(struct options *o, bool all)
{
	int slots = 0, next = 0, used = 0;
	bool said = false;

	for (int i = 0; i < o->host_count; i++) {
		said |= o->hosts[i].slots > 0;
		slots += o->hosts[i].slots ? o->hosts[i].slots : 1;
	}
	if (all)
		o->ranks = slots;
	if (o->ranks > RANKS_MAX)
		return tt_tool_refuse("run", "%d ranks are more than %d", o->ranks, RANKS_MAX);
	if (said && o->ranks > slots)
		return tt_tool_refuse("run", "-n %d: the hosts have %d slots", o->ranks, slots);
	for (int i = 0; i < o->host_count; i++) {
		struct host *h = &o->hosts[i];
		int even = o->ranks / o->host_count + (i < o->ranks % o->host_count);
		h->first = next;
		h->ranks = said ? (int)tt_min(h->slots ? h->slots : 1, o->ranks - next) : even;
		next += h->ranks;
		used += h->ranks > 0;
	}
	o->host_count = used; /* those without a rank are the last ones */
	o->size = o->ranks;
	return 0;
}

/* Starting. */

static const char *rsh_of(const struct options *o) { return o->rsh ? o->rsh : "ssh"; }

/* The other end's tutti is where this one is, or in its PATH. The login shell there may be any. */
static void write_command(char text[PATH_MAX + 128])
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

	self[n > 0 ? n : 0] = 0;
	if (strpbrk(self, "'\"\\$`!"))
		self[0] = 0;
	snprintf(text, PATH_MAX + 128, "exec sh -c 't=\"%s\"; [ -x \"$t\" ] || t=tutti; exec \"$t\" run --agent'",
	         self);
}

_Noreturn void tt_run_become_ssh(const struct options *o, const struct host *h, int report)
{
	static const char *const ssh[] = { "ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
		                           "-o", "ServerAliveInterval=10" };
	char command[PATH_MAX + 128], *words = o->rsh ? strdup(o->rsh) : NULL, *word;
	const char *args[64];
	size_t n = 0;

	write_command(command);
	while (words && n < TT_COUNT(args) - 3 && (word = strsep(&words, " ")))
		if (*word)
			args[n++] = word;
	for (size_t i = 0; !o->rsh && i < TT_COUNT(ssh); i++)
		args[n++] = ssh[i];
	args[n++] = h->name;
	args[n++] = command;
	args[n] = NULL;
	execvp(args[0], (char **)(uintptr_t)args);
	int err = errno;
	(void)!write(report, &err, sizeof err);
	_exit(127);
}

/* Meeting. */

static void refuse(struct run *run, const char *fmt, ...) TT_FORMAT(2, 3);
static void refuse(struct run *run, const char *fmt, ...)
{
	char text[800];
	va_list args;

	if (run->stage >= ENDING)
		return; /* one sentence is enough */
	va_start(args, fmt);
	vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	tt_run_say(run, "%s", text);
	if (!run->status)
		run->status = TT_TOOL_REFUSED;
	tt_run_end_ranks(run, SIGTERM, run->options.grace);
}

static bool is_loopback(const char *address) { return !strncmp(address, "127.", 4) || !strcmp(address, "::1"); }

/* Where rank 0 listens: at the address at which ssh has reached its host. */
static bool choose_boot(struct run *run)
{
	const struct options *o = &run->options;
	const struct host *first = &o->hosts[0];
	const char *at = strrchr(first->name, '@'), *name = at ? at + 1 : first->name;
	const char *address = *first->address ? first->address : name;
	char text[128];

	if (o->rendezvous)
		return true;
	for (int i = 1; is_loopback(address) && i < o->host_count; i++)
		if (!is_loopback(o->hosts[i].address)) {
			refuse(run, "host %s, where rank 0 is to listen, was reached at %s, which means nothing on "
			       "host %s: write an address of it that the others reach into --hosts, or "
			       "--rendezvous HOST:PORT",
			       first->name, address, o->hosts[i].name);
			return false;
		}
	if (!first->port) {
		refuse(run, "host %s has no port where rank 0 could listen: --rendezvous HOST:PORT names one",
		       first->name);
		return false;
	}
	return tt_run_boot(address, (unsigned)first->port, text) == 0;
}

static bool is_own(const char *variable)
{
	static const enum tt_setting own[] = { TT_RANK, TT_SIZE, TT_LOCAL_RANK, TT_LOCAL_SIZE, TT_BOOT_FD,
		                               TT_RUN_PIPE, TT_RSH };

	for (size_t i = 0; i < TT_COUNT(own); i++) {
		size_t len = strlen(tt_setting_info[own[i]].variable);
		if (!strncmp(variable, tt_setting_info[own[i]].variable, len) && variable[len] == '=')
			return true;
	}
	return false;
}

static void put(FILE *f, const char *fmt, ...) TT_FORMAT(2, 3);
static void put(FILE *f, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vfprintf(f, fmt, args);
	va_end(args);
	fputc(0, f);
}

/* The strings of an order, each with its 0: agent.c reads them. */
static void write_order(FILE *f, const struct options *o, const struct host *h)
{
	char folder[PATH_MAX];

	put(f, "%s", getcwd(folder, sizeof folder) ? folder : "/");
	put(f, "%s", h->name);
	put(f, "%d", h->first);
	put(f, "%d", o->size);
	put(f, "%d", !o->rendezvous && !h->first);
	for (char **v = environ; *v; v++)
		if (!strncmp(*v, "TUTTI_", 6) && !is_own(*v))
			put(f, "%s", *v);
	put(f, "%s", "");
	put(f, "%s", "run");
	put(f, "--ranks=%d", h->ranks);
	put(f, "--grace=%.9f", (double)o->grace / 1e9);
	put(f, "--restart=%d", o->restarts);
	if (o->keep_going)
		put(f, "%s", "--keep-going");
	if (o->tag)
		put(f, "%s", o->tag == TAG_RANK ? "--tag" : "--prefix");
	put(f, "%s", "--");
	for (char **a = o->program; *a; a++)
		put(f, "%s", *a);
}

static bool send_order(struct run *run, struct host *h)
{
	char *order = NULL, head[9];
	size_t len = 0;
	FILE *f = open_memstream(&order, &len);

	if (!f) {
		refuse(run, "no memory for the order to host %s", h->name);
		return false;
	}
	fwrite("00000000", 8, 1, f); /* the length */
	write_order(f, &run->options, h);
	fclose(f);
	snprintf(head, sizeof head, "%08zu", (len - 8) % 100000000);
	memcpy(order, head, 8);
	if (len > (64 << 10))
		fcntl(h->orders, F_SETPIPE_SZ, ORDER_MAX);
	h->ordered = len <= ORDER_MAX && write(h->orders, order, len) == (ssize_t)len;
	free(order);
	if (!h->ordered)
		refuse(run, "the order to host %s cannot be sent: %zu bytes of arguments and TUTTI_ variables",
		       h->name, len);
	return h->ordered;
}

static void order_all(struct run *run)
{
	struct options *o = &run->options;

	for (int i = 0; i < o->host_count; i++)
		if (!o->hosts[i].met)
			return;
	if (!choose_boot(run))
		return;
	for (int i = 0; i < o->host_count; i++)
		if (!send_order(run, &o->hosts[i]))
			return;
	run->stage = RUNNING;
}

bool tt_run_take_hello(struct run *run, int r, const char *line, size_t len)
{
	struct host *h = &run->options.hosts[r];
	char text[1024], version[32], address[96];

	snprintf(text, sizeof text, "%.*s", (int)tt_min(len, sizeof text - 1), line);
	const char *hello = strstr(text, "tutti-agent "); /* behind what the login shell may have begun */
	if (h->met || !hello || sscanf(hello, "tutti-agent %31s %d %95s", version, &h->port, address) != 3)
		return false; /* what the login shell there has to say, for one */
	if (strcmp(version, TT_VERSION)) {
		refuse(run, "host %s has tutti %s, and this one is %s: install the same version there", h->name,
		       version, TT_VERSION);
		return true;
	}
	h->met = true;
	if (strcmp(address, "-"))
		snprintf(h->address, sizeof h->address, "%s", address);
	tt_run_reach_next(run);
	if (run->stage == MEETING)
		order_all(run);
	return true;
}

void tt_run_name_unmet(const struct run *run, char *text, size_t size)
{
	size_t len = 0;

	*text = 0;
	for (int i = 0; i < run->count && len < size; i++) {
		const struct host *h = &run->options.hosts[i];
		if (!h->met)
			len += (size_t)snprintf(text + len, size - len, "%s%s", len ? ", " : "", h->name);
	}
}

/* Running. */

/* An agent that has no order yet has no ranks: the connection is ended. */
void tt_run_order(struct run *run, int r, int sig)
{
	struct host *h = &run->options.hosts[r];
	char byte = (char)sig;

	if (h->ordered)
		(void)!write(h->orders, &byte, 1);
	else if (sig == SIGINT || sig == SIGTERM || sig == SIGKILL || sig == SIGQUIT || sig == SIGHUP)
		kill(-run->ranks[r].pid, sig);
}

static void judge_unmet(struct run *run, const struct host *h, int value)
{
	const char *rsh = rsh_of(&run->options);

	if (value == 255)
		refuse(run, "host %s cannot be reached: `%s %s true` must work without a password", h->name,
		       rsh, h->name);
	else if (value == 126 || value == 127)
		refuse(run, "host %s has no tutti at the place where this one is, nor in PATH: install tutti %s there",
		       h->name, TT_VERSION);
	else if (value == TT_TOOL_REFUSED || value == 1)
		refuse(run, "the tutti of host %s does not know what this one asks of it: it is another "
		       "version than %s; install version %s there", h->name, TT_VERSION, TT_VERSION);
	else
		refuse(run, "%s to host %s ended with status %d before tutti began there", rsh, h->name, value);
}

/* The agent has said which rank failed. */
void tt_run_judge_host(struct run *run, int r, int status)
{
	struct host *h = &run->options.hosts[r];
	bool killed = WIFSIGNALED(status);
	int value = killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status);

	close(h->orders);
	h->orders = -1;
	if (!h->met) {
		judge_unmet(run, h, value);
		return;
	}
	run->finished |= !value;
	if (!value)
		return;
	if (!run->status)
		run->status = value;
	if (run->stage >= ENDING)
		return;
	if (killed || value == 255)
		tt_run_say(run, "the connection to host %s has ended (%s: status %d): its ranks %d to %d end "
		           "there once sshd notices", h->name, rsh_of(&run->options), value, h->first,
		           h->first + h->ranks - 1);
	if (run->stage == RUNNING && !run->options.keep_going) {
		run->stage = FAILING;
		run->deadline = tt_now() + run->options.grace;
	}
}
