/* machines.c - a machine file: one process on each host of a list, the first one is rank 0 */
#include "bindings/c/shim.h"
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { NAME_MAX_BYTES = 256 };

/* An address is this host's if a socket can be bound to it. */
static bool is_own(const struct addrinfo *address)
{
	int fd = socket(address->ai_family, SOCK_STREAM, 0);
	bool own = fd >= 0 && !bind(fd, address->ai_addr, address->ai_addrlen);

	if (fd >= 0)
		close(fd);
	return own;
}

static bool is_this_host(const char *name)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *all;
	bool own = false;

	if (getaddrinfo(name, "0", &hints, &all))
		return false;
	for (struct addrinfo *a = all; a && !own; a = a->ai_next)
		own = is_own(a);
	freeaddrinfo(all);
	return own;
}

/* Takes the word of a line without the space around it; false: the line has none. */
static bool take_name(const char *line, char name[NAME_MAX_BYTES]) { return sscanf(line, "%255s", name) == 1; }

/* TUTTI_RANK says which of several lines is meant that are this host. */
static int choose_rank(const char *file, int lines, int own, int first_own)
{
	const char *given = getenv("TUTTI_RANK");
	int rank = given ? atoi(given) : first_own;

	if (!given && !own)
		return mv_fail(-EINVAL, "no line of the machine file %s is this host: add the host, or set TUTTI_RANK",
		               file);
	if (!given && own > 1)
		return mv_fail(-EINVAL,
		               "%d lines of the machine file %s are this host: set TUTTI_RANK to the number of "
		               "this process's line, from 0 up",
		               own, file);
	if (rank < 0 || rank >= lines)
		return mv_fail(-EINVAL, "TUTTI_RANK is %s, and the machine file %s has %d hosts", given, file, lines);
	return rank;
}

/* boot: room for "HOST:PORT", to which the config then points. */
int mv_machines_config(const char *file, int port, char *boot, size_t room, tutti_config *config)
{
	char line[1024], name[NAME_MAX_BYTES];
	int lines = 0, own = 0, first_own = 0, rank;
	FILE *f = fopen(file, "r");

	if (!f)
		return mv_fail(-errno, "cannot read the machine file %s: %s", file, strerror(errno));
	while (fgets(line, sizeof line, f)) {
		if (!take_name(line, name))
			continue;
		if (!lines)
			snprintf(boot, room, strchr(name, ':') ? "[%s]:%d" : "%s:%d", name, port);
		if (is_this_host(name) && !own++)
			first_own = lines;
		lines++;
	}
	fclose(f);
	rank = choose_rank(file, lines, own, first_own);
	if (rank < 0)
		return rank;
	config->boot = boot;
	config->rank = rank;
	config->ranks = lines;
	return 0;
}
