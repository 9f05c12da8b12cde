/* listens.c - for run.sh: tt_run_listen() takes a port of the loopback; at an address that is not this host's it fails,
 * and the socket listens nowhere */
#include "tools/run/run.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>

static int listens(const char *address)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 0;
	socklen_t size = sizeof on;

	inet_pton(AF_INET, address, &at.sin_addr);
	int err = tt_run_listen(fd, (struct sockaddr *)&at, sizeof at);
	getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &size);
	printf("%s: %d, listens: %d\n", address, err, on);
	return on;
}

int main(void) { return !(listens("127.0.0.1") && !listens("192.0.2.1")); }
