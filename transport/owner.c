/* owner.c - who listens at a port of this host, for the sentence that says that the port is taken */
#include "transport/dial.h"
#include <stdio.h>
#include <string.h>

enum { LISTENS = 0x0a };

/* The number of the socket that listens there in one of the kernel's tables; 0: none. */
static unsigned long find_socket(const char *table, unsigned port, unsigned *uid)
{
	FILE *f = fopen(table, "re");
	unsigned long inode = 0;
	char line[512];

	while (f && !inode && fgets(line, sizeof line, f)) {
		unsigned at, state;
		unsigned long number;
		if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %u %*d %lu", &at, &state, uid,
		           &number) == 4 && at == port && state == LISTENS)
			inode = number;
	}
	if (f)
		fclose(f);
	return inode;
}

struct owner {
	char socket[40], *text;
};

static int holds(void *arg, int pid, const char *path, const char *is)
{
	struct owner *o = arg;
	char command[40];

	(void)path;
	if (strcmp(is, o->socket) != 0)
		return 0;
	tt_read_text(command, sizeof command, "/proc/%d/comm", pid);
	command[strcspn(command, "\n")] = 0;
	snprintf(o->text, TT_PORT_OWNER, "process %d (%s)", pid, command);
	return 1;
}

void tt_port_owner(unsigned port, char text[TT_PORT_OWNER])
{
	struct owner o = { .text = text };
	unsigned uid = 0;
	unsigned long inode = find_socket("/proc/net/tcp", port, &uid);

	snprintf(text, TT_PORT_OWNER, "another program");
	if (!inode && !(inode = find_socket("/proc/net/tcp6", port, &uid)))
		return;
	snprintf(text, TT_PORT_OWNER, "a process of user %u", uid);
	snprintf(o.socket, sizeof o.socket, "socket:[%lu]", inode);
	tt_each_file(0, holds, &o);
}
