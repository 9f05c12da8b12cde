/* agent.c - `tutti run` at the other end of an ssh: it says hello, reads what to run, and then gets signals; hosts.c
 * has the picture */
#include "tools/run/run.h"
#include <netinet/in.h>
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* SSH_CONNECTION is "CLIENT PORT SERVER PORT": SERVER is this host, as others reach it. */
static void find_address(char address[96])
{
	const char *said = tt_env(TT_SSH_CONNECTION);

	if (!said || sscanf(said, "%*s %*s %95s", address) != 1)
		strcpy(address, "-");
	address[strcspn(address, "%")] = 0;
}

/* On all interfaces; on the loopback alone if that is where ssh has come in. */
static int listen_for_rank_0(const char *address, int *port)
{
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = in6addr_any };
	struct sockaddr_in v4 = { .sin_family = AF_INET };
	bool loop4 = !strncmp(address, "127.", 4), loop6 = !strcmp(address, "::1");
	int fd = loop4 ? -1 : socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), off = 0;

	if (loop4)
		inet_pton(AF_INET, address, &v4.sin_addr);
	if (loop6)
		v6.sin6_addr = in6addr_loopback;
	if (fd >= 0)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
	if (fd >= 0 && !tt_run_listen(fd, (struct sockaddr *)&v6, sizeof v6)) {
		*port = ntohs(v6.sin6_port);
		return fd;
	}
	if (fd >= 0)
		close(fd);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || tt_run_listen(fd, (struct sockaddr *)&v4, sizeof v4))
		return -1;
	*port = ntohs(v4.sin_port);
	return fd;
}

static bool read_whole(char *to, size_t len)
{
	for (ssize_t n; len; to += n, len -= (size_t)n)
		if ((n = read(0, to, len)) <= 0)
			return false;
	return true;
}

static char *read_order(size_t *len)
{
	char head[9] = "", *order;

	if (!read_whole(head, 8) || (*len = strtoul(head, NULL, 10)) == 0)
		return NULL;
	order = malloc(*len);
	return order && read_whole(order, *len) && !order[*len - 1] ? order : NULL;
}

static char *take(char **at, const char *end)
{
	char *text = *at;

	if (text >= end)
		return NULL;
	*at += strlen(text) + 1;
	return text;
}

static int take_number(char **at, const char *end)
{
	const char *text = take(at, end);

	return text ? atoi(text) : 0;
}

int tt_run_begin_agent(struct options *o, int *boot)
{
	static char *order, **args; /* as main's arguments: to the end of the process */
	char address[96], hello[160], *at, *end, *folder, *host, *text;
	int port = 0, status = TT_TOOL_REFUSED, n = 0;
	size_t len;

	find_address(address);
	*boot = listen_for_rank_0(address, &port);
	snprintf(hello, sizeof hello, "tutti-agent %s %d %s\n", TT_VERSION, port, address);
	if (write(1, hello, strlen(hello)) < 0 || !(order = read_order(&len)))
		return status; /* the other end has gone, and has said why */
	at = order;
	end = order + len;
	folder = take(&at, end);
	host = take(&at, end);
	int first = take_number(&at, end), size = take_number(&at, end);
	bool keep = take_number(&at, end);
	while ((text = take(&at, end)) && *text)
		putenv(text);
	args = calloc(len, sizeof *args);
	while (args && (text = take(&at, end)))
		args[n++] = text;
	if (!n)
		return tt_tool_refuse("run", "an agent's order has no arguments");
	if (!keep && *boot >= 0) {
		close(*boot);
		*boot = -1;
	}
	if (chdir(folder))
		return tt_tool_refuse("run", "host %s has no folder %s (%s): make it, or start from one that it has",
		                      host, folder, strerror(errno));
	optind = 0; /* a new command line */
	if (!tt_run_parse(n, args, o, &status))
		return status;
	o->agent = true;
	o->first = first;
	o->size = size;
	snprintf(o->host, sizeof o->host, "%s", host);
	return 0;
}
