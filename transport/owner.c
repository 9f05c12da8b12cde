/* owner.c - who has a socket of this host: the process that listens at a port, for the sentence that says that the port
 * is taken; and the user at the other end of a connection within this host */
#include "transport/dial.h"
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <stdio.h>
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

/* ---- the user at the other end ---- */

struct ends { /* of a connection, as one of its two sockets sees it */
	union tt_socket_address own, other;
};

static void fill_id(const union tt_socket_address *a, __be16 *port, __be32 address[4])
{
	*port = htons((uint16_t)tt_resolve_port(a));
	if (a->any.sa_family == AF_INET6)
		memcpy(address, &a->v6.sin6_addr, 16);
	else
		address[0] = a->v4.sin_addr.s_addr;
}

/* An end that is being closed has no user any more, or a false one. */
static int read_answer(const char *bytes, size_t len, const struct inet_diag_sockid *asked, uid_t *user)
{
	const struct nlmsghdr *h = (const struct nlmsghdr *)(const void *)bytes;
	const struct inet_diag_msg *m = NLMSG_DATA(h);

	if (len < NLMSG_LENGTH(sizeof *m) || h->nlmsg_type != SOCK_DIAG_BY_FAMILY)
		return -ENOENT;
	if (m->idiag_state != TCP_ESTABLISHED || m->id.idiag_sport != asked->idiag_sport ||
	    m->id.idiag_dport != asked->idiag_dport)
		return -ENOENT;
	*user = m->idiag_uid;
	return 0;
}

/* A kernel that does not tell, or not this process: -EOPNOTSUPP. Any other error, as a lack of open files: the same. */
static int judge_error(int err)
{
	bool untold = err == EAFNOSUPPORT || err == EPROTONOSUPPORT || err == EPERM || err == EACCES || err == ENOENT;

	return untold ? -EOPNOTSUPP : -err;
}

/* Asks the kernel by SOCK_DIAG, which answers at once. */
static int ask_kernel(const struct ends *e, uid_t *user)
{
	struct {
		struct nlmsghdr head;
		struct inet_diag_req_v2 about;
	} ask = { .head = { .nlmsg_len = sizeof ask, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST },
		  .about = { .sdiag_family = (uint8_t)e->own.any.sa_family, .sdiag_protocol = IPPROTO_TCP,
		             .idiag_states = 1u << TCP_ESTABLISHED,
		             .id.idiag_cookie = { INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE } } };
	_Alignas(struct nlmsghdr) char answer[1024];
	int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG), err;

	if (fd < 0)
		return judge_error(errno);
	fill_id(&e->own, &ask.about.id.idiag_sport, ask.about.id.idiag_src);
	fill_id(&e->other, &ask.about.id.idiag_dport, ask.about.id.idiag_dst);
	ssize_t n = send(fd, &ask, sizeof ask, 0) < 0 ? -1 : recv(fd, answer, sizeof answer, MSG_DONTWAIT);
	err = n < 0 ? judge_error(errno) : read_answer(answer, (size_t)n, &ask.about.id, user);
	close(fd);
	return err;
}

/* As in /proc/net/tcp: words of the address, as the processor reads them. */
static void spell_end(const union tt_socket_address *a, char text[48])
{
	uint32_t word[4] = { 0 };
	int n = a->any.sa_family == AF_INET6 ? 4 : 1;

	memcpy(word, n == 4 ? (const void *)&a->v6.sin6_addr : &a->v4.sin_addr, (size_t)n * 4);
	for (int i = 0; i < n; i++)
		sprintf(text + 8 * i, "%08X", word[i]);
	sprintf(text + 8 * n, ":%04X", tt_resolve_port(a));
}

/* Reads the kernel's table of all sockets, where SOCK_DIAG is denied or not built in. */
static int look_in_table(const struct ends *e, uid_t *user)
{
	FILE *f = fopen(e->own.any.sa_family == AF_INET6 ? "/proc/net/tcp6" : "/proc/net/tcp", "re");
	char own[48], other[48], a[48], b[48], line[512];
	unsigned state, uid;
	int err = -ENOENT;

	if (!f)
		return judge_error(errno);
	spell_end(&e->own, own);
	spell_end(&e->other, other);
	while (err && fgets(line, sizeof line, f))
		if (sscanf(line, " %*d: %47s %47s %x %*s %*s %*s %u", a, b, &state, &uid) == 4 && !strcmp(a, own) &&
		    !strcmp(b, other) && state == TCP_ESTABLISHED) {
			*user = uid;
			err = 0;
		}
	if (err && ferror(f))
		err = -EIO;
	fclose(f);
	return err;
}

static bool is_failure(int err) { return err != -ENOENT && err != -EOPNOTSUPP; }

/* -ENOENT: the kernel knows no such connection. -EOPNOTSUPP: the kernel does not tell. Else: it cannot be asked now. */
static int find_user(const struct ends *e, uid_t *user)
{
	int asked = ask_kernel(e, user), read = asked ? look_in_table(e, user) : 0;

	if (!read)
		return 0;
	if (is_failure(asked) || is_failure(read))
		return is_failure(asked) ? asked : read;
	return asked == -ENOENT ? asked : read;
}

int tt_dial_user(struct tt_shake *h, uid_t *user)
{
	int fd = tt_container_of(h, struct tt_dial, shake)->fd;
	struct ends mine = { 0 }, theirs;
	socklen_t own = sizeof mine.own, other = sizeof mine.other;
	uid_t me;

	if (getsockname(fd, &mine.own.any, &own) || getpeername(fd, &mine.other.any, &other))
		return -ENOENT;
	tt_resolve_unmap(&mine.own);
	tt_resolve_unmap(&mine.other);
	theirs = (struct ends){ mine.other, mine.own };
	int err = find_user(&theirs, user);
	if (!err || is_failure(err))
		return err;
	err = find_user(&mine, &me);
	if (is_failure(err))
		return err;
	return err ? -EOPNOTSUPP : -ENOENT;
}
