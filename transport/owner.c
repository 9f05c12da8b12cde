/* owner.c - who listens at a port of this host, for the sentence that says that the port is taken */
#include "transport/dial.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static bool holds(const char *pid, const char *socket)
{
	char path[300], target[64];
	struct dirent *entry;
	bool found = false;

	snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
	DIR *files = opendir(path); /* of another user's process: not allowed */
	while (files && !found && (entry = readdir(files))) {
		snprintf(path, sizeof path, "/proc/%.20s/fd/%.20s", pid, entry->d_name);
		ssize_t n = readlink(path, target, sizeof target - 1);
		target[n > 0 ? n : 0] = 0;
		found = !strcmp(target, socket);
	}
	if (files)
		closedir(files);
	return found;
}

void tt_port_owner(unsigned port, char text[TT_PORT_OWNER])
{
	unsigned uid = 0;
	unsigned long inode = find_socket("/proc/net/tcp", port, &uid);
	char socket[40], command[40] = "";
	struct dirent *entry;
	DIR *all;

	snprintf(text, TT_PORT_OWNER, "another program");
	if (!inode && !(inode = find_socket("/proc/net/tcp6", port, &uid)))
		return;
	snprintf(text, TT_PORT_OWNER, "a process of user %u", uid);
	snprintf(socket, sizeof socket, "socket:[%lu]", inode);
	for (all = opendir("/proc"); all && (entry = readdir(all));)
		if (strspn(entry->d_name, "0123456789") == strlen(entry->d_name) && holds(entry->d_name, socket)) {
			tt_read_text(command, sizeof command, "/proc/%.20s/comm", entry->d_name);
			command[strcspn(command, "\n")] = 0;
			snprintf(text, TT_PORT_OWNER, "process %.20s (%s)", entry->d_name, command);
			break;
		}
	if (all)
		closedir(all);
}
