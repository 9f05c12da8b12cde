/* baseline.c - the baseline: bare sockets between the same ranks, from and into the same buffers
 *
 * Each rank has a connection to the next rank in the ring, and another one with large socket buffers. For each size all
 * chunk sizes, buffers, and polling or blocking are tried; a row is compared with the best. */
#include "member/member.h"
#include "tools/perf/perf.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LARGE_BUFFER = 4 << 20, ACCEPT_S = 30 };

/* Connections. */

static void enlarge(int fd)
{
	int bytes = LARGE_BUFFER;

	/* with the privilege beyond the system's baseline */
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes))
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

static int open_socket(const struct tt_perf *p, int family, bool large)
{
	struct timeval patience = { .tv_sec = ACCEPT_S };
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (fd < 0)
		return tt_fail(-errno, "no socket for the baseline: %s", strerror(errno));
	if (large)
		enlarge(fd);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	if (tutti_local_size(p->job) == p->size)
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4); /* as the tcp transport does on one host */
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience); /* also bounds accept */
	return fd;
}

union place { /* where a rank listens */
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

static socklen_t length_of(const union place *at)
{
	return at->any.sa_family == AF_INET6 ? sizeof at->v6 : sizeof at->v4;
}

/* At the address by which the other ranks reach this one over TCP, whatever their hosts or containers. */
static int find_place(const struct tt_perf *p, union place *at)
{
	const struct tt_engine *e = &p->job->job->engine;

	memset(at, 0, sizeof *at);
	for (int i = 0; i < e->count; i++) {
		char host[96];
		const char *addr = e->nets[i]->addr, *port = strrchr(addr, ':');
		int bracket = addr[4] == '[';
		if (strncmp(addr, "tcp:", 4) || !port)
			continue;
		snprintf(host, sizeof host, "%.*s", (int)(port - addr) - 4 - 2 * bracket, addr + 4 + bracket);
		if (inet_pton(AF_INET, host, &at->v4.sin_addr) == 1)
			at->any.sa_family = AF_INET;
		else if (inet_pton(AF_INET6, host, &at->v6.sin6_addr) == 1)
			at->any.sa_family = AF_INET6;
	}
	return at->any.sa_family ? 0 : tt_fail(-EADDRNOTAVAIL, "no address for the baseline's sockets: --no-baseline "
	                                                       "measures without them");
}

static int listen_at(int fd, union place *at)
{
	socklen_t len = sizeof *at;

	if (bind(fd, &at->any, length_of(at)) || listen(fd, 4) || getsockname(fd, &at->any, &len))
		return tt_fail(-errno, "cannot listen for the baseline: %s", strerror(errno));
	return 0;
}

/* The connection waits in the right neighbour's backlog, so no rank waits for another's accept. */
static int connect_neighbours(const struct tt_perf *p, struct tt_perf_wire *w, int listener, const union place *to)
{
	int one = 1;
	char host[64] = "";

	if (connect(w->right, &to->any, length_of(to))) {
		int err = errno;
		inet_ntop(to->any.sa_family, to->any.sa_family == AF_INET6 ? (const void *)&to->v6.sin6_addr :
		                             (const void *)&to->v4.sin_addr, host, sizeof host);
		return tt_fail(-err, "cannot connect to rank %d at %s port %d for the baseline: %s; --no-baseline "
		               "measures without it", (p->rank + 1) % p->size, host, ntohs(to->v4.sin_port),
		               strerror(err));
	}
	w->left = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (w->left < 0)
		return tt_fail(-errno, "no connection for the baseline has come: %s", strerror(errno));
	setsockopt(w->left, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return 0;
}

static int connect_all(struct tt_perf *p, const int listener[2], const union place *at)
{
	union place mine[2] = { *at, *at }, *all = calloc((size_t)p->size, sizeof mine);
	int err = all ? 0 : tt_fail(-ENOMEM, "no memory for %d addresses", p->size);

	for (int k = 0; k < 2 && !err; k++)
		err = listen_at(listener[k], &mine[k]);
	if (!err)
		err = tutti_gather(p->job, mine, sizeof mine, all, -1, NULL);
	for (int k = 0; k < 2 && !err; k++)
		err = connect_neighbours(p, &p->wire[k], listener[k], &all[2 * ((p->rank + 1) % p->size) + k]);
	free(all);
	return err;
}

int tt_perf_open_wires(struct tt_perf *p)
{
	int listener[2] = { -1, -1 };
	union place at;
	int err = find_place(p, &at);

	for (int k = 0; k < 2; k++) {
		if (!err && (listener[k] = open_socket(p, at.any.sa_family, k)) < 0)
			err = listener[k];
		if (!err && (p->wire[k].right = open_socket(p, at.any.sa_family, k)) < 0)
			err = p->wire[k].right;
	}
	if (!err)
		err = connect_all(p, listener, &at);
	for (int k = 0; k < 2; k++)
		if (listener[k] >= 0)
			close(listener[k]);
	p->has_baseline = !err;
	return err;
}

void tt_perf_close_wires(struct tt_perf *p)
{
	for (int k = 0; k < 2; k++) {
		if (p->wire[k].right >= 0)
			close(p->wire[k].right);
		if (p->wire[k].left >= 0)
			close(p->wire[k].left);
		p->wire[k] = (struct tt_perf_wire){ -1, -1 };
	}
	p->has_baseline = false;
}

const struct tt_perf_wire *tt_perf_wire(const struct tt_perf *p) { return &p->wire[p->order.way.large]; }

int tt_perf_lost(int rank, ssize_t result)
{
	if (!result)
		return tt_fail(-ECONNRESET, "the baseline's socket: rank %d has closed it", rank);
	return tt_fail(-errno, "the baseline's socket to rank %d: %s", rank, strerror(errno));
}

/* Between rank 0 and rank 1, one after the other. */

static int link_of(const struct tt_perf *p) { return p->rank ? tt_perf_wire(p)->left : tt_perf_wire(p)->right; }

static int send_all(const struct tt_perf *p, const uint8_t *from, size_t len)
{
	int fd = link_of(p), flags = MSG_NOSIGNAL | (p->order.way.block ? 0 : MSG_DONTWAIT);

	while (len) {
		ssize_t n = send(fd, from, tt_min(len, p->order.way.chunk), flags);
		if (n > 0) {
			from += n;
			len -= (size_t)n;
		} else if (errno != EAGAIN && errno != EINTR) {
			return tt_perf_lost(1 - p->rank, n);
		}
	}
	return 0;
}

static int receive_all(const struct tt_perf *p, uint8_t *to, size_t len)
{
	int fd = link_of(p), flags = p->order.way.block ? 0 : MSG_DONTWAIT;

	while (len) {
		ssize_t n = recv(fd, to, tt_min(len, p->order.way.chunk), flags);
		if (n > 0) {
			to += n;
			len -= (size_t)n;
		} else if (!n || (errno != EAGAIN && errno != EINTR)) {
			return tt_perf_lost(1 - p->rank, n);
		}
	}
	return 0;
}

int tt_perf_raw_pingpong(struct tt_perf *p)
{
	int err = p->rank ? receive_all(p, p->open, p->bytes) : send_all(p, p->local, p->bytes);

	return err ? err : p->rank ? send_all(p, p->local, p->bytes) : receive_all(p, p->open, p->bytes);
}

/* `count` times the bytes one way, then one byte back. */
static int push(struct tt_perf *p, int count)
{
	uint8_t there = 0;
	int err = 0;

	for (int i = 0; i < count && !err; i++)
		err = p->rank ? receive_all(p, p->open, p->bytes) : send_all(p, p->local, p->bytes);
	return err ? err : p->rank ? send_all(p, &there, 1) : receive_all(p, &there, 1);
}

/* One byte asks for the bytes. */
static int pull(struct tt_perf *p, int count)
{
	uint8_t please = 0;
	int err = p->rank ? receive_all(p, &please, 1) : send_all(p, &please, 1);

	for (int i = 0; i < count && !err; i++)
		err = p->rank ? send_all(p, p->open, p->bytes) : receive_all(p, p->local, p->bytes);
	return err;
}

int tt_perf_raw_put(struct tt_perf *p) { return push(p, 1); }
int tt_perf_raw_get(struct tt_perf *p) { return pull(p, 1); }
int tt_perf_raw_stream_puts(struct tt_perf *p) { return push(p, p->flight); }
int tt_perf_raw_stream_gets(struct tt_perf *p) { return pull(p, p->flight); }

/* Ways. */

static int add_ways(struct tt_perf_way *ways, int n, int room, size_t chunk, bool poll, bool block)
{
	for (uint32_t large = 0; large < 2; large++)
		for (uint32_t b = poll ? 0 : 1; b <= (block ? 1u : 0u) && n < room; b++)
			ways[n++] = (struct tt_perf_way){ .chunk = chunk, .large = large, .block = b };
	return n;
}

/* A small size is always one piece. A computing target cannot poll, so its baseline blocks in the calls. */
int tt_perf_ways(const struct tt_perf *p, struct tt_perf_way *ways, int room)
{
	bool all = p->test->collective || p->test->table, poll = !p->crowded && !p->options.compute;
	size_t least = all ? 64 << 10 : 256 << 10, most = all ? 1 << 20 : 4 << 20;
	int n = 0;

	if (p->test->local)
		return tt_perf_stream_ways(p, ways);
	if (p->test->gpu) {
		ways[0] = (struct tt_perf_way){ .copy = 0 };
		return 1;
	}
	if (tt_perf_is_beside(p) || tt_perf_has_readers(p)) {
		ways[0] = (struct tt_perf_way){ .copy = 0 };
		return 1;
	}
	if (p->bare)
		return p->bare->ways(p, ways);
	if (p->shared.part || (p->test->publishes && !tt_perf_is_fetch(p)))
		return tt_perf_shared_ways(p, ways);
	if (tt_perf_moved(p) <= TT_PERF_BY_RATE && !p->test->streams) {
		ways[0] = (struct tt_perf_way){ .chunk = TT_PERF_BY_RATE, .block = !poll };
		return 1;
	}
	for (size_t chunk = least; chunk <= most && (chunk == least || chunk < 2 * tt_perf_moved(p)); chunk *= 2)
		n = add_ways(ways, n, room, chunk, poll || p->test->collective, !p->test->collective);
	return n;
}

static const char *shape_of(const struct tt_perf *p)
{
	if (p->test->collective)
		return p->size == 2 ? "two-way exchange of halves, reduce, exchange of sums"
		                    : "ring: reduce-scatter, all-gather";
	if (p->test->streams)
		return p->test->ours == tt_perf_stream_gets ? "loop: one byte asks, the stream comes"
		                                            : "loop: the stream, one byte back";
	if (tt_perf_is_gossip(p))
		return "round trip: one byte asks, the bytes come, and are averaged";
	if (p->test->one_sided)
		return p->test->ours == tt_perf_get || tt_perf_is_fetch(p) ? "round trip: one byte asks, the bytes come"
		                                    : "round trip: the bytes, one byte back";
	return "ping-pong, half a round trip";
}

void tt_perf_word_baseline(const struct tt_perf *p, const struct tt_perf_way *way, char *text, size_t room)
{
	bool blocks = !p->test->collective && way->block, waits = p->test->collective && p->crowded;
	const char *patience = waits ? "waiting" : blocks ? "blocking" : "polling";
	char chunk[32], detail[96] = "", tick[64] = "";

	if (p->test->local) {
		tt_perf_word_stream(p, way, text, room);
		return;
	}
	if (p->test->table) {
		tt_perf_word_table(p, way, text, room);
		return;
	}
	if (p->test->gpu) {
		tt_perf_word_gpu(p, text, room);
		return;
	}
	if (p->test->publishes && !tt_perf_is_fetch(p)) {
		tt_perf_word_publication(p, way, text, room);
		return;
	}
	if (p->bare) {
		p->bare->word(p, way, text, room);
		return;
	}
	if (p->shared.part) {
		tt_perf_word_shared(p, way, text, room);
		return;
	}
	tt_perf_write_size(chunk, sizeof chunk, way->chunk);
	if (p->bytes > TT_PERF_BY_RATE || p->test->streams)
		snprintf(detail, sizeof detail, ", chunks of %s, %s socket buffers", chunk,
		         way->large ? "4 MiB" : "default");
	if (p->options.compute)
		snprintf(tick, sizeof tick, ", plus one background tick of %d us", TT_PERF_TICK_US);
	snprintf(text, room, "bare TCP %s; %s sockets%s%s", shape_of(p), patience, detail, tick);
}
