/* shm_connect.c - names, listening, and the handshake, over a socket that the file system does not see
 *
 *     initiator                                   acceptor
 *        HELLO + strip, sheet, eventfd  ------->
 *                        <-------  HELLO + sheet, eventfd
 *        PROOF  ------------------------------->
 *                        <-------  PROOF                  the kernel has been told that the initiator may read my memory
 *        READY  ------------------------------->          ... and the acceptor. Both are up
 *
 * HELLO and PROOF are those of frame.h. The socket stays open: its end is the end of the connection. Its name is in the abstract
 * namespace, so nothing is left of a process that is killed.
 */
#include "transport/shm/shm_private.h"
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { FILES = 3 };
#define GRACE (250 * TT_MS) /* a stranger's share of a full house; how long accepting pauses, or a full queue is tried */

/* ---- names ---- */

static uint64_t hash_file(uint64_t h, const char *path)
{
	char text[64];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text);

	if (fd >= 0)
		close(fd);
	return tt_hash64(h, text, n > 0 ? (size_t)n : 0);
}

/* Equal for processes that can reach each other's memory: one boot of one kernel, the same namespaces, one user. */
static uint64_t reach(void)
{
	static const char *const spaces[] = { "/proc/self/ns/net", "/proc/self/ns/pid", "/proc/self/ns/user" };
	uint64_t h = hash_file(TT_HASH64, "/proc/sys/kernel/random/boot_id");
	uid_t user = geteuid();
	struct stat s;

	for (size_t i = 0; i < TT_COUNT(spaces); i++) {
		memset(&s, 0, sizeof s);
		if (!stat(spaces[i], &s))
			h = tt_hash64(h, &s.st_ino, sizeof s.st_ino);
	}
	return tt_hash64(h, &user, sizeof user);
}

void tt_shm_address(uint64_t job, const char *listen, char addr[96])
{
	uint64_t name = tt_hash64(tt_hash64(TT_HASH64, &job, sizeof job), listen, strlen(listen));

	snprintf(addr, 96, "shm:%016llx:%016llx", (unsigned long long)reach(), (unsigned long long)name);
}

/* "shm:REACH:NAME": the socket's name, or -errno. */
static int read_address(const struct tt_shm *net, const char *text, struct sockaddr_un *a, socklen_t *len)
{
	unsigned long long where, name;
	char rest;

	if (sscanf(text, "shm:%16llx:%16llx%c", &where, &name, &rest) != 2)
		return tt_fail(-EINVAL, "'%s' is no address of shared memory: those are given out by a net", text);
	memset(a, 0, sizeof *a);
	a->sun_family = AF_UNIX;
	*len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "tutti-%016llx", name));
	return where == net->reach ? 0 : tt_fail(-EHOSTUNREACH, "it is on another host, or in another container, or another user's");
}

int tt_shm_take_name(struct tt_shm *net, const struct tt_net_config *c)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = net };
	struct sockaddr_un a;
	socklen_t len;
	char name[24];
	uint64_t chance;

	tt_entropy(&chance, sizeof chance);
	snprintf(name, sizeof name, "%016llx", (unsigned long long)chance);
	tt_shm_address(c->job, c->listen ? c->listen : name, net->base.addr);
	net->reach = reach();
	int err = read_address(net, net->base.addr, &a, &len);
	if (err)
		return err;
	net->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (net->listen_fd < 0)
		return tt_fail(-errno, "cannot make a local socket: %s", strerror(errno));
	if (bind(net->listen_fd, (const struct sockaddr *)&a, len))
		return tt_fail(-errno, "cannot listen for processes of this host as %s: %s", a.sun_path + 1, strerror(errno));
	if (listen(net->listen_fd, SOMAXCONN) || epoll_ctl(net->base.fd, EPOLL_CTL_ADD, net->listen_fd, &event))
		return tt_fail(-errno, "cannot wait on a local socket: %s", strerror(errno));
	return 0;
}

/* ---- packets, with files ---- */

static bool say(struct tt_shm_peer *p, const void *bytes, size_t n, const int *files, size_t count)
{
	union {
		char room[CMSG_SPACE(FILES * sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec part = { (void *)(uintptr_t)bytes, n };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1 };

	if (count) {
		m.msg_control = control.room;
		m.msg_controllen = CMSG_SPACE(count * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		*c = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(count * sizeof(int)) };
		memcpy(CMSG_DATA(c), files, count * sizeof(int));
	}
	return sendmsg(p->fd, &m, MSG_NOSIGNAL) == (ssize_t)n;
}

/* Files that are not expected are closed. */
static size_t keep_files(struct msghdr *m, int *files, size_t want)
{
	size_t got = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
			if (got < want)
				files[got++] = fd;
			else
				close(fd);
		}
	}
	return got;
}

static ssize_t hear(struct tt_shm_peer *p, void *bytes, size_t n, int *files, size_t want, size_t *got)
{
	union {
		char room[CMSG_SPACE(FILES * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part = { bytes, n };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room };
	ssize_t k = recvmsg(p->fd, &m, MSG_CMSG_CLOEXEC);

	if (k >= 0) /* an empty packet may bring some, too */
		*got = keep_files(&m, files, want);
	return k;
}

/* ---- memory ---- */

static int make_strip(struct tt_shm_peer *p)
{
	void *at = tt_shm_make_file("tutti-strip", sizeof(struct tt_shm_strip), &p->strip_fd);

	if (!at)
		return -ENOMEM;
	p->strip = at;
	return 0;
}

/* What another process gave: only if it can't shrink under us. */
static void *map_file(int fd, size_t len, int rights)
{
	struct stat s;
	int seals = fcntl(fd, F_GET_SEALS);
	void *at;

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &s) || (size_t)s.st_size < len)
		return NULL;
	at = mmap(NULL, len, rights, MAP_SHARED, fd, 0);
	return at == MAP_FAILED ? NULL : at;
}

static void close_file(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static bool map_theirs(struct tt_shm_peer *p)
{
	p->sheet = map_file(p->sheet_fd, sizeof *p->sheet, PROT_READ);
	if (!p->strip)
		p->strip = map_file(p->strip_fd, sizeof *p->strip, PROT_READ | PROT_WRITE);
	close_file(&p->sheet_fd);
	close_file(&p->strip_fd);
	if (!p->sheet || !p->strip)
		return false;
	p->out = &p->strip->lane[p->accepted];
	p->in = &p->strip->lane[!p->accepted];
	return true;
}

/* ---- the ways out ---- */

static void pause_accepting(struct tt_shm *net, uint64_t until)
{
	struct epoll_event event = { .events = until ? 0 : EPOLLIN, .data.ptr = net };

	if (!until != !net->listen_again)
		epoll_ctl(net->base.fd, EPOLL_CTL_MOD, net->listen_fd, &event);
	net->listen_again = until;
}

static void let_go(struct tt_shm_peer *p)
{
	p->net->unproven--;
	pause_accepting(p->net, 0);
	tt_shm_peer_free(p);
}

void tt_shm_refuse(struct tt_shm_peer *p, const char *why)
{
	tt_log(TT_DEBUG, "refused the connection from %s: %s", p->base.addr, why);
	let_go(p);
}

/* The initiator is told why. */
static bool give_up(struct tt_shm_peer *p, int err, const char *why)
{
	if (p->accepted)
		tt_shm_refuse(p, why);
	else
		tt_flight_break(&p->ops, tt_fail(err, "cannot connect to %s: %s", p->base.addr, why));
	return false;
}

static bool hear_nothing(struct tt_shm_peer *p, ssize_t n)
{
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	return give_up(p, -EHOSTUNREACH, "it closed the connection in the handshake: is it alive, and has it room for more?");
}

void tt_shm_vanished(struct tt_shm_peer *p) { hear_nothing(p, 0); }

/* ---- the handshake ---- */

static bool say_hello(struct tt_shm_peer *p)
{
	struct tt_shm *net = p->net;
	struct tt_hello h = { .version = TT_FRAME_VERSION, .flags = net->secret.set ? TT_HELLO_SECRET : 0, .epoch = net->epoch, .job = net->job };
	int files[FILES] = { net->sheet_fd, net->event_fd, p->strip_fd };

	tt_entropy(h.nonce, sizeof h.nonce);
	tt_hello_pack(&h, p->hello);
	return say(p, p->hello, sizeof p->hello, files, p->accepted ? 2 : 3);
}

static void make_proof(const struct tt_shm_peer *p, bool acceptor, uint8_t out[TT_PROOF_SIZE])
{
	tt_proof_make(&p->net->secret, acceptor, p->accepted ? p->theirs : p->hello, p->accepted ? p->hello : p->theirs, out);
}

static bool say_proof(struct tt_shm_peer *p)
{
	uint8_t proof[TT_PROOF_SIZE];

	make_proof(p, p->accepted, proof);
	return say(p, proof, sizeof proof, NULL, 0);
}

static bool hear_hello(struct tt_shm_peer *p)
{
	int files[FILES] = { -1, -1, -1 };
	size_t want = p->accepted ? 3 : 2, got = 0;
	ssize_t n = hear(p, p->theirs, sizeof p->theirs, files, want, &got);
	struct tt_hello h;
	char why[160];

	p->sheet_fd = files[0];
	p->kick_fd = files[1];
	if (p->accepted)
		p->strip_fd = files[2];
	if (n <= 0)
		return hear_nothing(p, n);
	if (n != sizeof p->theirs || !tt_hello_unpack(p->theirs, sizeof p->theirs, &h))
		return give_up(p, -EPROTO, "it does not speak Tutti");
	if (got != want)
		return give_up(p, -EHOSTUNREACH, "there is no file left for what it shares (ulimit -n)");
	if (!map_theirs(p))
		return give_up(p, -EHOSTUNREACH, "its memory cannot be mapped");
	if (p->accepted && !say_hello(p)) /* also to those who do not suit: they shall know why */
		return hear_nothing(p, 0);
	int err = tt_hello_judge(&h, p->net->job, &p->net->secret, why, sizeof why);
	if (err)
		return give_up(p, err, why);
	p->epoch = h.epoch;
	p->state = TT_SHM_PROOF;
	return !p->accepted && !say_proof(p) && hear_nothing(p, 0);
}

/* Where yama restricts who may read whose memory, a process names one other, or any of its user's. */
static void let_read(struct tt_shm_peer *p)
{
	static _Atomic unsigned named; /* by all nets of this process */
	char scope = '0';
	int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	if (read(fd, &scope, 1) == 1 && scope == '1' && !p->mine)
		prctl(PR_SET_PTRACER, atomic_fetch_add(&named, 1) ? PR_SET_PTRACER_ANY : (unsigned long)p->pid, 0, 0, 0);
	close(fd);
}

static bool go_up(struct tt_shm_peer *p)
{
	p->state = TT_SHM_UP;
	tt_list_remove(&p->handshake);
	tt_list_append(&p->net->up, &p->up);
	p->net->unproven -= p->accepted;
	pause_accepting(p->net, 0);
	return true;
}

static bool hear_proof(struct tt_shm_peer *p)
{
	uint8_t proof[TT_PROOF_SIZE], right[TT_PROOF_SIZE];
	size_t none = 0;
	ssize_t n = hear(p, proof, sizeof proof, NULL, 0, &none);

	if (n <= 0)
		return hear_nothing(p, n);
	make_proof(p, !p->accepted, right);
	if (n != sizeof proof || !tt_proof_same(right, proof)) {
		if (p->accepted)
			say(p, "", 1, NULL, 0); /* a refusal: to be closed on may have other reasons */
		return give_up(p, -EACCES, "the proof is wrong: do both sides have the same TUTTI_SECRET?");
	}
	let_read(p);
	if (!p->accepted)
		return say(p, "", 1, NULL, 0) ? go_up(p) : hear_nothing(p, 0);
	p->state = TT_SHM_READY;
	return !say_proof(p) && hear_nothing(p, 0);
}

static bool hear_ready(struct tt_shm_peer *p)
{
	char byte;
	size_t none = 0;
	ssize_t n = hear(p, &byte, 1, NULL, 0, &none);

	return n <= 0 ? hear_nothing(p, n) : go_up(p);
}

/* Who is there, by the kernel's word. */
static bool know_process(struct tt_shm_peer *p)
{
	struct ucred who = { 0 };
	socklen_t size = sizeof who;
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = (uintptr_t)p | 1 };

	if (getsockopt(p->fd, SOL_SOCKET, SO_PEERCRED, &who, &size) || who.uid != geteuid())
		return false;
	p->pid = who.pid;
	p->mine = who.pid == getpid();
	p->pid_fd = p->mine ? -1 : (int)syscall(SYS_pidfd_open, p->pid, 0);
	if (!p->mine && p->pid_fd < 0 && errno == ESRCH)
		return false;
	if (p->pid_fd >= 0) /* a child of it may hold the socket open when it has died */
		epoll_ctl(p->net->base.fd, EPOLL_CTL_ADD, p->pid_fd, &event);
	return true;
}

static bool reach_out(struct tt_shm_peer *p)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = p };
	struct sockaddr_un a;
	socklen_t len;
	char full[96], why[128];

	snprintf(full, sizeof full, "shm:%.90s", p->base.addr);
	if (read_address(p->net, full, &a, &len)) {
		snprintf(why, sizeof why, "%s", tt_why());
		return give_up(p, -EHOSTUNREACH, why);
	}
	if (connect(p->fd, (const struct sockaddr *)&a, len))
		return errno == EAGAIN ? false : give_up(p, -EHOSTUNREACH, errno == ECONNREFUSED ? "nobody listens there: has it ended?" : strerror(errno));
	if (!know_process(p))
		return give_up(p, -EHOSTUNREACH, "it is another user's process, or has ended");
	if (epoll_ctl(p->net->base.fd, EPOLL_CTL_ADD, p->fd, &event))
		return give_up(p, -EHOSTUNREACH, strerror(errno));
	p->state = TT_SHM_HELLO;
	return !say_hello(p) && give_up(p, -EHOSTUNREACH, "it closed the connection at once");
}

bool tt_shm_handshake(struct tt_shm_peer *p)
{
	if (p->state == TT_SHM_CONNECTING)
		return reach_out(p);
	return p->state == TT_SHM_HELLO ? hear_hello(p) : p->state == TT_SHM_PROOF ? hear_proof(p) : hear_ready(p);
}

static struct tt_shm_peer *begin_peer(struct tt_shm *net)
{
	struct tt_shm_peer *p = tt_shm_peer_new(net);

	if (p) {
		p->deadline = tt_now() + net->timeout;
		tt_list_append(&net->handshakes, &p->handshake);
	}
	return p;
}

int tt_shm_connect(struct tt_shm *net, const char *addr, struct tt_shm_peer **out)
{
	struct sockaddr_un a;
	socklen_t len;
	int err = read_address(net, addr, &a, &len);

	if (err == -EINVAL)
		return err;
	struct tt_shm_peer *p = begin_peer(net);
	if (!p)
		return -ENOMEM;
	snprintf(p->base.addr, sizeof p->base.addr, "%.90s", addr + 4);
	p->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	bool scarce = p->fd >= 0 && tt_files_scarce(p->fd);
	if (scarce || p->fd < 0 || make_strip(p)) {
		err = scarce || errno == EMFILE || errno == ENFILE ? -EMFILE : -ENOMEM;
		tt_shm_peer_free(p);
		return tt_fail(err, "cannot make a connection to %s: no %s is left", addr, err == -EMFILE ? "file (ulimit -n)" : "memory");
	}
	reach_out(p);
	*out = p;
	return 0;
}

static struct tt_shm_peer *oldest_stranger(struct tt_shm *net)
{
	tt_list_each(node, &net->handshakes) {
		struct tt_shm_peer *p = tt_container_of(node, struct tt_shm_peer, handshake);
		if (p->accepted && p->state != TT_SHM_READY) /* whose other end is up already */
			return p;
	}
	return NULL;
}

/* In a full house the oldest stranger gives way once it had its time; until then the others wait in the queue, for they may be a
 * whole honest job that starts at once. */
static bool make_room(struct tt_shm *net)
{
	struct tt_shm_peer *oldest = oldest_stranger(net);
	uint64_t now = tt_now(), leaves = oldest ? oldest->deadline - net->timeout + GRACE : now + GRACE;

	if (net->unproven < TT_SHM_UNPROVEN)
		return true;
	if (now < leaves) {
		pause_accepting(net, leaves);
		return false;
	}
	tt_shm_refuse(oldest, "too many others wait in the handshake");
	return true;
}

static void greet(struct tt_shm *net, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = NULL };
	struct tt_shm_peer *p = begin_peer(net);

	if (!p) {
		close(fd);
		return;
	}
	p->fd = fd;
	p->accepted = true;
	p->state = TT_SHM_HELLO;
	net->unproven++;
	event.data.ptr = p;
	snprintf(p->base.addr, sizeof p->base.addr, "a process of this host");
	if (!know_process(p)) {
		tt_shm_refuse(p, "it is another user's process");
		return;
	}
	snprintf(p->base.addr, sizeof p->base.addr, "process %d", (int)p->pid);
	if (epoll_ctl(net->base.fd, EPOLL_CTL_ADD, fd, &event))
		tt_shm_refuse(p, strerror(errno));
}

void tt_shm_accept(struct tt_shm *net)
{
	for (int i = 0; i < 16 && make_room(net); i++) {
		int fd = accept4(net->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0 && !tt_files_scarce(fd))
			greet(net, fd);
		else if (fd >= 0)
			close(fd); /* it turns to a wire that takes fewer files than the three of this one */
		if (fd >= 0)
			continue;
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			tt_log(TT_WARN, "cannot accept a connection of this host: %s%s", strerror(errno), errno == EMFILE ? " (ulimit -n)" : "");
			pause_accepting(net, tt_now() + GRACE);
		}
		if (errno != EINTR && errno != ECONNABORTED)
			return;
	}
}

/* And those for whom the other's queue was full try again. */
void tt_shm_expire(struct tt_shm *net)
{
	uint64_t now = tt_now();
	char why[80];

	if (net->listen_again && now >= net->listen_again)
		pause_accepting(net, 0);
	snprintf(why, sizeof why, "it did not finish the handshake within %u ms", net->timeout_ms);
	tt_list_each(node, &net->handshakes) {
		struct tt_shm_peer *p = tt_container_of(node, struct tt_shm_peer, handshake);
		if (p->ops.broken)
			continue;
		if (p->state == TT_SHM_CONNECTING && now >= p->deadline - net->timeout + GRACE)
			give_up(p, -EHOSTUNREACH, "too many others wait for it");
		else if (p->deadline <= now)
			give_up(p, -ETIMEDOUT, why);
		else if (p->state == TT_SHM_CONNECTING)
			reach_out(p);
	}
}
