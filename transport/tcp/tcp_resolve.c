/* tcp_resolve.c - from the text of an address to the addresses of sockets
 *
 * A name server may take half a minute, or may never answer, and getaddrinfo() cannot be called off. So a name is
 * looked up on a thread of its own, which touches nothing but the struct of the lookup. Its peer may go first, and the
 * net: whoever of the two lets go of the struct last frees it.
 */
#include "transport/tcp/tcp_private.h"
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct tt_tcp_lookup {
	_Atomic bool left;  /* by the thread, or by the peer */
	struct tt_task *thread;
	int end;            /* of a pipe; closed when the lookup is over */
	char text[96], why[200];
	int err;
	struct addrinfo *found;
};

const char *tt_tcp_after_scheme(const char *text) { return strncmp(text, "tcp:", 4) ? text : text + 4; }

static int resolve(const char *text, int flags, struct addrinfo **out)
{
	struct addrinfo hints = { .ai_flags = flags | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM };
	const char *address = tt_tcp_after_scheme(text);
	char host[256], port[6];
	int err = tt_address_split(address, host, sizeof host, port);

	if (err)
		return err;
	if (!*host && !(flags & AI_PASSIVE))
		return tt_fail(-EINVAL, "'%s' names no host: write HOST:PORT", address);
	if (!(err = getaddrinfo(*host ? host : NULL, port, &hints, out)))
		return 0;
	return tt_fail(-EHOSTUNREACH, "cannot resolve the host of '%s': %s", address, gai_strerror(err));
}

/* A numeric address never waits for a name server. */
int tt_tcp_resolve(const char *text, int flags, struct addrinfo **out)
{
	int err = resolve(text, flags | AI_NUMERICHOST, out);

	return err == -EHOSTUNREACH && !(flags & AI_NUMERICHOST) ? resolve(text, flags, out) : err;
}

static void let_go(struct tt_tcp_lookup *l)
{
	if (!atomic_exchange(&l->left, true))
		return;
	if (l->found)
		freeaddrinfo(l->found);
	free(l);
}

static void look_up(void *arg)
{
	struct tt_tcp_lookup *l = arg;
	uint64_t one = 1;
	int end = l->end;

	l->err = tt_tcp_resolve(l->text, 0, &l->found);
	if (l->err)
		snprintf(l->why, sizeof l->why, "%s", tt_why());
	let_go(l);
	(void)!write(end, &one, sizeof one); /* the peer is told: also if a fork's child has the descriptor, too */
	close(end);
}

int tt_tcp_start_lookup(const char *text, struct tt_tcp_lookup **out, int *fd)
{
	struct tt_tcp_lookup *l = calloc(1, sizeof *l);
	int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), err;

	if (!l) {
		close(event);
		return tt_fail(-ENOMEM, "no memory to look up %s", text);
	}
	snprintf(l->text, sizeof l->text, "%s", text);
	l->end = event < 0 ? -1 : fcntl(event, F_DUPFD_CLOEXEC, 0); /* the thread's own: it may outlive the peer */
	if (l->end < 0)
		err = tt_fail(-EMFILE, "no file is left to look up %s: raise the limit with ulimit -n", text);
	else
		err = tt_spawn(look_up, l, &l->thread);
	if (err) {
		close(event);
		close(l->end);
		free(l);
		return err;
	}
	*out = l;
	*fd = event;
	return 0;
}

int tt_tcp_end_lookup(struct tt_tcp_lookup *l, struct addrinfo **out, char why[200])
{
	int err;

	tt_join(l->thread); /* what it wrote is seen from here on */
	err = l->err;
	*out = l->found;
	l->found = NULL;
	memcpy(why, l->why, sizeof l->why);
	let_go(l);
	return err;
}

void tt_tcp_leave_lookup(struct tt_tcp_lookup *l)
{
	tt_detach(l->thread);
	let_go(l);
}
