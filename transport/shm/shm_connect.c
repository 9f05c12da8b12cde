/* shm_connect.c - names, listening, and the files that go with the handshake of door.h
 *
 *     initiator                                   acceptor
 *        HELLO + strip, sheet, eventfd  ------->
 *                        <-------  HELLO + sheet, eventfd
 *        PROOF  ------------------------------->
 *                        <-------  PROOF                  the kernel knows that the initiator may read my memory
 *        READY  ------------------------------->          ... and that the acceptor may. Both are up
 *
 * The socket stays open: its end is the end of the connection. Its name is in the abstract namespace, so a process that
 * is killed leaves nothing in the file system.
 */
#include "transport/fork.h"
#include "transport/shm/shm_private.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
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

enum {
	FILES = 3,
	PEER_PIDFD = 77, /* SO_PEERPIDFD, which the system's headers may lack */
};

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

/* Equal for processes that can reach each other's memory: the same boot of the same kernel, the same namespaces, the
 * same user. */
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

/* Parses "shm:REACH:NAME" into the socket's address. */
static int read_address(const struct tt_shm *net, const char *text, struct sockaddr_un *a, socklen_t *len)
{
	unsigned long long where, name;
	char rest;

	if (sscanf(text, "shm:%16llx:%16llx%c", &where, &name, &rest) != 2)
		return tt_fail(-EINVAL, "'%s' is no address of shared memory: those are given out by a net", text);
	memset(a, 0, sizeof *a);
	a->sun_family = AF_UNIX;
	*len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
	                   (size_t)snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "tutti-%016llx", name));
	return where == net->reach
	               ? 0
	               : tt_fail(-EHOSTUNREACH, "the process there is of another host, container or user");
}

int tt_shm_take_name(struct tt_shm *net, const struct tt_net_config *c)
{
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
	int fd = tt_fork_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK);
	if (fd < 0)
		return tt_fail(-errno, "cannot make a local socket: %s", strerror(errno));
	if (bind(fd, (const struct sockaddr *)&a, len) || listen(fd, SOMAXCONN))
		err = tt_fail(-errno, "cannot listen for processes of this host as %s: %s", a.sun_path + 1,
		              strerror(errno));
	else
		err = tt_door_listen(&net->door, fd);
	if (err)
		tt_fork_close(fd);
	return err;
}

/* ---- packets, with files ---- */

static struct tt_shm_peer *peer_of(struct tt_shake *h) { return tt_container_of(h, struct tt_shm_peer, shake); }

/* A HELLO carries files. */
static ssize_t say(struct tt_shake *h, const void *bytes, size_t n)
{
	struct tt_shm_peer *p = peer_of(h);
	int files[FILES] = { p->net->sheet_fd, p->net->event_fd, p->strip_fd };
	size_t size = (h->accepted ? 2 : 3) * sizeof *files;
	union {
		char room[CMSG_SPACE(sizeof files)];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec part = { (void *)(uintptr_t)bytes, n };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1 };

	if (h->ops->stage == TT_STAGE_HELLO) {
		m.msg_control = control.room;
		m.msg_controllen = CMSG_SPACE(size);
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		*c = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(size) };
		memcpy(CMSG_DATA(c), files, size);
	}
	return sendmsg(p->fd, &m, MSG_NOSIGNAL);
}

/* Closes the files that nobody expects. */
static void keep_files(struct msghdr *m, int *const *want, size_t count)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
			if (i < count && *want[i] < 0)
				*want[i] = tt_high_file(fd);
			else
				close(fd);
		}
	}
}

/* An empty packet may carry files, too. */
static ssize_t hear(struct tt_shake *h, void *bytes, size_t n)
{
	struct tt_shm_peer *p = peer_of(h);
	int *const files[FILES] = { &p->sheet_fd, &p->kick_fd, &p->strip_fd };
	union {
		char room[CMSG_SPACE(FILES * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part = { bytes, n };
	struct msghdr m = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room
	};
	ssize_t k = recvmsg(p->fd, &m, MSG_CMSG_CLOEXEC);

	if (k >= 0)
		keep_files(&m, files, h->ops->stage == TT_STAGE_HELLO ? h->accepted ? 3 : 2 : 0);
	return k;
}

/* ---- memory ---- */

/* Where the job does not know how many processes are on this host, the connections tell. */
static bool has_many_peers(const struct tt_shm *net)
{
	unsigned n = 1;

	tt_list_each(node, &net->ops.peers)
		n++;
	return tt_max(net->near, n) > TT_SHM_FEW;
}

static int make_strip(struct tt_shm_peer *p)
{
	p->payload = has_many_peers(p->net) ? TT_SHM_LITTLE : TT_SHM_PAYLOAD;
	p->strip = tt_shm_make_file("tutti-strip", 2 * tt_shm_lane_size(p->payload), &p->strip_fd);
	return p->strip ? 0 : -ENOMEM;
}

/* Maps what another process gave, only if that process cannot shrink the file while it is mapped. */
static void *map_file(int fd, size_t from, size_t len, int rights)
{
	struct stat s;
	int seals = fcntl(fd, F_GET_SEALS);
	void *at;

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &s) || (size_t)s.st_size < from + len)
		return NULL;
	at = mmap(NULL, len, rights, MAP_SHARED, fd, (off_t)from);
	return at == MAP_FAILED ? NULL : at;
}

static void close_file(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* The initiator has chosen the size. */
static void *map_strip(struct tt_shm_peer *p)
{
	struct stat s;
	size_t little = 2 * tt_shm_lane_size(TT_SHM_LITTLE);

	p->payload = !fstat(p->strip_fd, &s) && (size_t)s.st_size == little ? TT_SHM_LITTLE : TT_SHM_PAYLOAD;
	return map_file(p->strip_fd, 0, 2 * tt_shm_lane_size(p->payload), PROT_READ | PROT_WRITE);
}

static bool map_theirs(struct tt_shm_peer *p)
{
	p->sheet = map_file(p->sheet_fd, 0, sizeof *p->sheet, PROT_READ);
	p->bells = map_file(p->sheet_fd, tt_shm_bells_at(), sizeof *p->bells, PROT_READ | PROT_WRITE);
	if (!p->strip)
		p->strip = map_strip(p);
	close_file(&p->sheet_fd);
	close_file(&p->strip_fd);
	if (!p->sheet || !p->bells || !p->strip)
		return false;
	struct tt_shm_lane *first = (void *)p->strip, *second = (void *)(p->strip + tt_shm_lane_size(p->payload));
	p->out = p->shake.accepted ? second : first;
	p->in = p->shake.accepted ? first : second;
	return true;
}

/* ---- the handshake ---- */

static const char *agree(struct tt_shake *h)
{
	struct tt_shm_peer *p = peer_of(h);

	if (p->sheet_fd < 0 || p->kick_fd < 0 || p->strip_fd < 0)
		return "this process or that one has no file left for what they share: raise the limit with ulimit -n";
	return map_theirs(p) ? NULL : "its memory cannot be mapped";
}

/* Counting and naming go together: a net of another job may name a peer while the last one of this job goes. */
static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER;
static unsigned named; /* peers that may read this process's memory, of all nets of this process */

/* Where yama restricts who may read a process's memory, a process can name one other process, or any. */
static void let_read(struct tt_shake *h)
{
	struct tt_shm_peer *p = peer_of(h);
	char scope = '0';
	int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	if (read(fd, &scope, 1) == 1 && scope == '1' && !p->mine) {
		p->may_read = true;
		pthread_mutex_lock(&naming);
		prctl(PR_SET_PTRACER, named++ ? PR_SET_PTRACER_ANY : (unsigned long)p->pid, 0, 0, 0);
		pthread_mutex_unlock(&naming);
	}
	close(fd);
}

/* With the last of them nobody may any more. */
void tt_shm_forbid_reading(const struct tt_shm_peer *p)
{
	if (!p->may_read)
		return;
	pthread_mutex_lock(&naming);
	if (!--named)
		prctl(PR_SET_PTRACER, 0, 0, 0, 0);
	pthread_mutex_unlock(&naming);
}

/* Opens the process at the other end, whatever process its number stands for by now. Before Linux 6.5 the number is all
 * that is known; but if another process has it, the first one has ended, and the socket has hung up. */
static int open_process(const struct tt_shm_peer *p)
{
	struct pollfd ended = { .fd = p->fd };
	int fd = -1;
	socklen_t size = sizeof fd;

	if (!getsockopt(p->fd, SOL_SOCKET, PEER_PIDFD, &fd, &size))
		return tt_high_file(fd);
	fd = tt_high_file((int)syscall(SYS_pidfd_open, p->pid, 0));
	if (fd < 0 || poll(&ended, 1, 0) <= 0)
		return fd;
	close(fd);
	errno = ESRCH;
	return -1;
}

/* Asks the kernel which process is at the other end. */
static bool know_process(struct tt_shm_peer *p)
{
	struct ucred who = { 0 };
	socklen_t size = sizeof who;
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = (uintptr_t)p | 1 };

	if (getsockopt(p->fd, SOL_SOCKET, SO_PEERCRED, &who, &size) || who.uid != geteuid())
		return false;
	p->pid = who.pid;
	p->mine = who.pid == getpid();
	p->pid_fd = p->mine ? -1 : open_process(p);
	if (!p->mine && p->pid_fd < 0 && errno == ESRCH)
		return false;
	snprintf(p->base.addr, sizeof p->base.addr, "process %d of this host", (int)p->pid);
	if (p->pid_fd >= 0) /* a child of the process may hold the socket open when the process has died */
		epoll_ctl(p->net->base.fd, EPOLL_CTL_ADD, p->pid_fd, &event);
	return true;
}

static bool reach_out(struct tt_shm_peer *p)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = p };
	struct sockaddr_un a;
	socklen_t len;
	char why[128];

	if (read_address(p->net, p->listens, &a, &len)) {
		snprintf(why, sizeof why, "%s", tt_why());
		return tt_shake_give_up(&p->shake, -EHOSTUNREACH, why);
	}
	if (connect(p->fd, (const struct sockaddr *)&a, len)) {
		const char *what = errno == ECONNREFUSED ? "nobody listens there: has it ended?" : strerror(errno);
		return errno == EAGAIN ? false : tt_shake_give_up(&p->shake, -EHOSTUNREACH, what);
	}
	if (!know_process(p))
		return tt_shake_give_up(&p->shake, -EHOSTUNREACH, "it is another user's process, or has ended");
	if (epoll_ctl(p->net->base.fd, EPOLL_CTL_ADD, p->fd, &event))
		return tt_shake_give_up(&p->shake, -EHOSTUNREACH, strerror(errno));
	tt_shake_connected(&p->shake);
	return false;
}

bool tt_shm_handshake(struct tt_shm_peer *p)
{
	return p->ops.stage == TT_STAGE_CONNECTING ? reach_out(p) : tt_shake_step(&p->shake);
}

int tt_shm_connect(struct tt_net *base, const char *addr, struct tt_peer **out)
{
	struct tt_shm *net = tt_container_of(base, struct tt_shm, base);
	struct sockaddr_un a;
	socklen_t len;
	int err = read_address(net, addr, &a, &len);

	if (err == -EINVAL)
		return err;
	struct tt_shm_peer *p = tt_shm_peer_new(net, false);
	if (!p)
		return -ENOMEM;
	snprintf(p->listens, sizeof p->listens, "%s", addr);
	snprintf(p->base.addr, sizeof p->base.addr, "its shared memory");
	p->fd = tt_fork_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK);
	bool scarce = p->fd >= 0 && tt_files_scarce(p->fd);
	if (scarce || p->fd < 0 || make_strip(p)) {
		int why = scarce ? EMFILE : errno;
		tt_flight_free(&p->ops);
		return tt_fail(why == EMFILE || why == ENFILE ? -EMFILE : -ENOMEM,
		               "cannot make a connection in shared memory: %s%s", strerror(why), tt_files_hint(why));
	}
	reach_out(p);
	*out = &p->base;
	return 0;
}

/* A process that has few files left closes: the other end then takes a transport that needs fewer than three. */
static void greet(struct tt_door *door, int fd, const struct sockaddr *from)
{
	struct tt_shm *net = tt_container_of(door, struct tt_shm, door);
	struct tt_shm_peer *p = tt_files_scarce(fd) ? NULL : tt_shm_peer_new(net, true);
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = p };

	(void)from; /* an initiator's socket has no name */
	if (!p) {
		tt_fork_close(fd);
		return;
	}
	p->fd = fd;
	snprintf(p->base.addr, sizeof p->base.addr, "a process of this host");
	if (!know_process(p)) {
		tt_shake_refuse(&p->shake, "it is another user's process");
		return;
	}
	if (epoll_ctl(net->base.fd, EPOLL_CTL_ADD, fd, &event))
		tt_shake_refuse(&p->shake, strerror(errno));
}

void tt_shm_retry(struct tt_shm *net)
{
	tt_list_each(node, &net->door.shakes) {
		struct tt_shm_peer *p = tt_container_of(node, struct tt_shm_peer, shake.node);
		if (p->ops.stage != TT_STAGE_CONNECTING)
			continue;
		if (tt_now() >= p->shake.deadline - net->door.timeout + TT_DOOR_GRACE)
			tt_shake_give_up(&p->shake, -EHOSTUNREACH, "too many others wait for it");
		else
			reach_out(p);
	}
}

const struct tt_door_calls tt_shm_door = {
	.packets = true, .last_word = true, .quiet = true,
	.greet = greet, .say = say, .hear = hear, .agree = agree, .proven = let_read,
};
