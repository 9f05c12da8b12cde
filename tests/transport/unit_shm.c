/* unit_shm.c - what the transport contract cannot show of shared memory: what a peer can do to memory that both map */
#include "tests/harness/cunit_main.h"
#include "transport/shm/shm_private.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

struct end { /* one of two nets of this process, which are connected */
	struct tt_net *net;
	struct tt_peer *peer;
	const uint8_t *message; /* the last one: where it was handed over, ... */
	size_t len;             /* ... and its length */
	int messages, down;
};

static struct end *end_of(struct tt_peer *p) { return p->net->user; }

static void on_up(struct tt_peer *p) { end_of(p)->peer = p; }

static void on_message(struct tt_peer *p, const void *bytes, size_t len)
{
	end_of(p)->message = bytes;
	end_of(p)->len = len;
	end_of(p)->messages++;
}

static void on_down(struct tt_peer *p, int err) { end_of(p)->down = err; }

static const struct tt_events events = { .up = on_up, .message = on_message, .down = on_down };

static struct tt_shm_peer *shm(const struct end *e) { return tt_container_of(e->peer, struct tt_shm_peer, base); }

static void progress(struct end e[2])
{
	for (int i = 0; i < 2; i++)
		tt_shm.progress(e[i].net);
}

enum { PATIENCE_MS = 60000 };

/* May a loop go on? It ends where a connection does, and in the end. */
static bool goes_on(const struct end e[2], uint64_t end) { return !e[0].down && !e[1].down && tt_now() < end; }
static uint64_t in_the_end(void) { return tt_now() + PATIENCE_MS * TT_MS; }

static void await_up(struct end e[2])
{
	for (uint64_t end = in_the_end(); (!e[0].peer || !e[1].peer) && goes_on(e, end);)
		progress(e);
	CU_ASSERT_FATAL(e[0].peer && e[1].peer);
}

static unsigned near; /* processes on this host */

static void open_end(struct end *e)
{
	struct tt_net_config c = { .events = &events, .user = e, .listen_fd = -1, .job = 1, .timeout_ms = 10000,
		.near = near };

	*e = (struct end){ 0 };
	if (tt_shm.open(&c, &e->net))
		abort();
}

static void connect_ends(struct end e[2])
{
	struct tt_peer *p;

	open_end(&e[0]);
	open_end(&e[1]);
	CU_ASSERT_EQUAL_FATAL(tt_shm.connect(e[0].net, e[1].net->addr, &p), 0);
	await_up(e);
}

static void close_ends(struct end e[2])
{
	tt_shm.close(e[0].net);
	tt_shm.close(e[1].net);
}

/* Writes the line of a message, as a peer that means harm may. */
static void write_line(struct end *e, size_t extra, size_t len)
{
	uint8_t *payload;
	struct tt_shm_line *line = tt_shm_line(shm(e), extra, &payload);

	CU_ASSERT_PTR_NOT_NULL_FATAL(line);
	line->kind = TT_FRAME_SEND;
	line->flags = 0;
	line->len = len;
	if (extra)
		memset(payload, 7, extra);
	tt_shm_publish(shm(e), line);
}

static bool is_shared(const struct end *e)
{
	const uint8_t *strip = shm(e)->strip;

	return e->message >= strip && e->message < strip + 2 * tt_shm_lane_size(shm(e)->payload);
}

static void test_copied(void)
{
	struct end e[2];

	connect_ends(e);
	write_line(&e[0], 4096, 4096);
	progress(e);
	CU_ASSERT(e[1].messages == 1 && e[1].len == 4096 && !is_shared(&e[1]));
	write_line(&e[0], TT_MESSAGE_MAX, TT_MESSAGE_MAX);
	progress(e);
	CU_ASSERT(e[1].messages == 2 && e[1].len == TT_MESSAGE_MAX && is_shared(&e[1]));
	CU_ASSERT_EQUAL(e[1].down, 0);
	close_ends(e);
}

static void test_too_long(void)
{
	static const size_t extra[] = { TT_MESSAGE_MAX + 1, 0 }, len[] = { 8, TT_SHM_BODY + 1 };

	for (int i = 0; i < 2; i++) {
		struct end e[2];
		connect_ends(e);
		write_line(&e[0], extra[i], len[i]);
		progress(e);
		CU_ASSERT_EQUAL(e[1].messages, 0);
		CU_ASSERT_EQUAL(e[1].down, -ECONNRESET);
		close_ends(e);
	}
}

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

/* ---- a source whose page is slow to come ---- */

enum { PAGE_SIZE = 4096, PAGES = 4 };

struct slow { /* memory whose pages a thread brings */
	int fd;
	char *at;
	const struct tt_shm_peer *writer;
	uint64_t writing; /* what the lane said while a page was missing: into which region the writer stores */
	int faults;
};

static void *bring_pages(void *arg)
{
	struct slow *s = arg;
	struct pollfd f = { .fd = s->fd, .events = POLLIN };
	struct uffd_msg m;

	while (s->faults < PAGES && poll(&f, 1, 5000) > 0 && read(s->fd, &m, sizeof m) == sizeof m) {
		struct uffdio_zeropage zero = { .range = { m.arg.pagefault.address & ~(uint64_t)(PAGE_SIZE - 1),
		                                           PAGE_SIZE } };
		s->writing |= atomic_load(&s->writer->out->writing);
		s->faults++;
		ioctl(s->fd, UFFDIO_ZEROPAGE, &zero);
	}
	return NULL;
}

static bool make_slow(struct slow *s)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register r = { .mode = UFFDIO_REGISTER_MODE_MISSING };

	s->fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	if (s->fd < 0)
		return false;
	s->at = mmap(NULL, PAGES * PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	r.range.start = (uintptr_t)s->at;
	r.range.len = PAGES * PAGE_SIZE;
	return s->at != MAP_FAILED && !ioctl(s->fd, UFFDIO_API, &api) && !ioctl(s->fd, UFFDIO_REGISTER, &r);
}

static void note_done(struct tt_op *op) { op->priv[0] = 1; }

/* The owner waits for a store that has begun, and kills a process that does not end it. */
static void test_slow_source(void)
{
	struct end e[2];
	struct slow s = { 0 };
	struct tt_region *region;
	pthread_t thread;
	struct tt_mem mem = { .len = PAGES * PAGE_SIZE, .gpu = -1 };

	if (!make_slow(&s)) {
		printf("left out: userfaultfd: %s\n", strerror(errno));
		return;
	}
	connect_ends(e);
	mem.base = tt_shm_make_file("test", mem.len, &mem.fd);
	CU_ASSERT_PTR_NOT_NULL_FATAL(mem.base);
	CU_ASSERT_EQUAL_FATAL(tt_shm.reg(e[1].net, &mem, 1, NULL, &region), 0);
	s.writer = shm(&e[0]);
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, bring_pages, &s), 0);
	struct tt_op op = { .kind = TT_PUT, .local = s.at, .len = mem.len, .key = &region->key, .done = note_done };
	tt_shm.post(e[0].peer, &op);
	for (uint64_t end = in_the_end(); !op.priv[0] && goes_on(e, end);)
		progress(e);
	pthread_join(thread, NULL);
	CU_ASSERT(op.err == 0 && s.faults == PAGES);
	CU_ASSERT_EQUAL(s.writing, 0);
	close_ends(e);
	close(mem.fd);
	munmap(mem.base, mem.len);
	munmap(s.at, mem.len);
	close(s.fd);
}

/* ---- whose process it is ---- */

static pid_t lie;         /* the number of the process at the other end, as if it had been given out again; 0: no lie */
static bool is_old;       /* a kernel that knows the number alone */
static int opened, named; /* processes that the net watches, and the last one's number */

int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __real_epoll_ctl(int epoll, int op, int fd, struct epoll_event *);
int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *);

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len) /* the linker's --wrap */
{
	enum { PEER_PIDFD = 77 };

	if (is_old && name == PEER_PIDFD) {
		errno = ENOPROTOOPT;
		return -1;
	}
	int err = __real_getsockopt(fd, level, name, value, len);
	if (!err && name == SO_PEERCRED && lie)
		((struct ucred *)value)->pid = lie;
	return err;
}

static int number_of(int pidfd)
{
	char path[64], line[128];
	int pid = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
	if (!(f = fopen(path, "r")))
		return 0;
	while (fgets(line, sizeof line, f) && sscanf(line, "Pid: %d", &pid) != 1)
		;
	fclose(f);
	return pid;
}

int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	if (op == EPOLL_CTL_ADD && event->data.u64 & 1) {
		opened++;
		named = number_of(fd);
	}
	return __real_epoll_ctl(epoll, op, fd, event);
}

/* A process that connects and has ended when the net looks which process it is; alive: not yet. */
static void knock(bool alive)
{
	struct end e;
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	socklen_t len;

	open_end(&e);
	len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
	                  (size_t)snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "tutti-%s",
	                                   strrchr(e.net->addr, ':') + 1));
	CU_ASSERT_EQUAL(connect(fd, (struct sockaddr *)&a, len), 0);
	if (!alive)
		close(fd);
	opened = named = 0;
	lie = getppid();
	tt_shm.progress(e.net);
	lie = 0;
	if (alive)
		close(fd);
	tt_shm.close(e.net);
}

static void test_old_number(void)
{
	is_old = true;
	knock(true);
	CU_ASSERT(opened == 1 && named == getppid());
	knock(false);
	CU_ASSERT_EQUAL(opened, 0);
	is_old = false;
}

static void test_number(void)
{
	int fd = -1, pair[2];
	socklen_t len = sizeof fd;
	bool has;

	CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	has = !getsockopt(pair[0], SOL_SOCKET, 77, &fd, &len);
	close(pair[0]);
	close(pair[1]);
	if (has)
		close(fd);
	knock(true);
	CU_ASSERT(opened == 1 && named == (has ? getpid() : getppid()));
}

/* ---- the size of a strip ---- */

static void send_long(struct end e[2], int n)
{
	static char bytes[TT_MESSAGE_MAX];
	int sent = 0;

	for (uint64_t end = in_the_end(); e[1].messages < n && goes_on(e, end);) {
		size_t len = sizeof bytes - (size_t)sent % 999;
		sent += sent < n && tt_shm.send(e[0].peer, bytes, len, NULL, 0);
		progress(e);
	}
	CU_ASSERT(e[1].messages == n && sent == n);
}

/* Smaller ones where a host has many processes, and enough for any order of the longest messages. */
static void test_strips(void)
{
	for (near = 16; near <= 17; near++) {
		struct end e[2];
		connect_ends(e);
		for (int i = 0; i < 2; i++)
			CU_ASSERT_EQUAL(shm(&e[i])->payload, near > 16 ? 144u << 10 : 512u << 10);
		send_long(e, 3000);
		close_ends(e);
	}
	near = 0;
}

enum { MANY = 128, BURST = 3 * TT_SHM_LINES };

static struct tt_peer *many[MANY], *others[MANY]; /* of e[0], and their other ends */

static void connect_many(struct end e[2], int from, int to)
{
	for (int i = from; i < to; i++) {
		e[0].peer = e[1].peer = NULL;
		CU_ASSERT_EQUAL_FATAL(tt_shm.connect(e[0].net, e[1].net->addr, &many[i]), 0);
		await_up(e);
		others[i] = e[1].peer;
	}
}

/* The least CPU time of a turn in which nothing comes. */
static uint64_t time_idle(struct end *e)
{
	enum { TURNS = 1000 };
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 100; i++) {
		struct timespec from, to;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
		for (int k = 0; k < TURNS; k++)
			tt_shm.progress(e->net);
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
		least = tt_min(least, (uint64_t)((to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec));
	}
	return least / TURNS;
}

static bool say_through(struct tt_peer *p) { return tt_shm.send(p, "x", 1, NULL, 0); }

/* Their lanes are full at times, and they wait for room. */
static void speak_much(struct end e[2])
{
	int said = e[1].messages;
	uint64_t end = in_the_end();

	for (int i = 0; i < BURST * 8; i++) {
		struct tt_peer *p = many[i / 3 % 8 * 16];
		bool sent;
		while (!(sent = say_through(p)) && goes_on(e, end))
			progress(e);
		said += sent;
	}
	for (int i = 0; i < 100 && e[1].messages < said; i++)
		tt_shm.progress(e[1].net);
	CU_ASSERT(e[1].messages == said && goes_on(e, end));
}

/* A peer takes another one's bit away, and then names a bell that is none. */
static void misuse_bells(struct end e[2])
{
	struct tt_shm *net = tt_container_of(e[1].net, struct tt_shm, base);
	struct tt_shm_peer *p = tt_container_of(many[9], struct tt_shm_peer, base);
	int before = e[1].messages;

	CU_ASSERT(net->ringing && say_through(many[9]));
	for (unsigned i = 0; i < net->bell_words; i++)
		net->bells->word[i].bits = 0;
	for (int i = 0; i < 64; i++)
		tt_shm.progress(e[1].net);
	CU_ASSERT_EQUAL(e[1].messages, before + 1);
	p->out->bell = TT_SHM_BELLS + 1;
	CU_ASSERT(say_through(many[9]));
	for (int i = 0; i < 64; i++)
		tt_shm.progress(e[1].net);
	CU_ASSERT_EQUAL(e[1].messages, before + 2);
}

/* A turn costs what comes, not what might; and misses nobody. */
static void test_many(void)
{
	struct rlimit files;
	struct end e[2];
	bool heard = true;

	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	open_end(&e[0]);
	open_end(&e[1]);
	connect_many(e, 0, TT_SHM_FEW);
	uint64_t few = time_idle(&e[1]);
	connect_many(e, 0, MANY);
	uint64_t all = time_idle(&e[1]);
	printf("an idle turn: %llu ns with %d peers, %llu ns with %d\n", (unsigned long long)few, TT_SHM_FEW,
	       (unsigned long long)all, TT_SHM_FEW + MANY);
	CU_ASSERT(all < 2 * few);
	for (int i = 0; i < 8 * MANY; i++) {
		int before = e[1].messages;
		CU_ASSERT(say_through(many[i * 37 % MANY]));
		tt_shm.progress(e[1].net);
		heard &= e[1].messages == before + 1;
	}
	CU_ASSERT(heard);
	speak_much(e);
	misuse_bells(e);
	close_ends(e);
}

/* Each says something, to either side, and one turn hears it. */
static bool are_heard(struct end e[2], int n)
{
	bool heard = true;

	for (int i = 0; i < 2 * n; i++) {
		struct end *to = &e[1 - i % 2];
		int before = to->messages;
		heard &= say_through((i % 2 ? others : many)[i / 2]);
		tt_shm.progress(to->net);
		heard &= to->messages == before + 1;
	}
	return heard;
}

/* Many come and go: those that stay are heard, whether the net has them ring or looks at all of the few. */
static void test_come_and_go(void)
{
	enum { STAY = 3, COME = 2 * TT_SHM_FEW };
	struct end e[2];

	open_end(&e[0]);
	open_end(&e[1]);
	connect_many(e, 0, STAY);
	for (int round = 0; round < 3; round++) {
		CU_ASSERT(are_heard(e, STAY));
		CU_ASSERT(say_through(many[0])); /* unheard yet when the net begins to have them ring ... */
		connect_many(e, STAY, COME);
		CU_ASSERT(tt_container_of(e[1].net, struct tt_shm, base)->ringing && are_heard(e, COME));
		int before = e[1].messages;
		CU_ASSERT(say_through(many[0])); /* ... and when it ends that */
		for (int i = STAY; i < COME; i++) {
			tt_shm.disconnect(many[i]);
			tt_shm.disconnect(others[i]);
		}
		tt_shm.progress(e[1].net);
		CU_ASSERT_EQUAL(e[1].messages, before + 1);
	}
	CU_ASSERT(are_heard(e, STAY) && !e[0].down && !e[1].down);
	close_ends(e);
}

static CU_TestInfo tests[] = {
	{ "a message is copied before it is judged", test_copied },
	{ "a message is too long", test_too_long },
	{ "a put whose source is slow to come", test_slow_source },
	{ "a process's number is another one's", test_number },
	{ "the same, on an older kernel", test_old_number },
	{ "strips are smaller among many", test_strips },
	{ "a turn among many", test_many },
	{ "many come and go", test_come_and_go },
	CU_TEST_INFO_NULL,
};
static CU_SuiteInfo suites[] = {
	{ "shm", NULL, NULL, NULL, NULL, tests },
	CU_SUITE_INFO_NULL,
};

int main(int argc, char **argv) { return run_suites(suites, argc, argv); }
