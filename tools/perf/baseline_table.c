/* baseline_table.c - the baseline of `tutti perf table`: a bare stream or a loop in memory, for each worker and server
 *
 *                    over sockets                                     in memory that all have mapped
 *   push             each server adds bytes while they are in the     each server adds its range of each worker's delta
 *                    cache, and one byte goes back                    in place; a count each way
 *   pull             one byte asks each server, its range comes       each worker copies each server's range
 *   push-then-pull   one after the other                              the same
 *   push-pull        the servers answer a push with their range       the same
 *   push-rows        like a push, and each row is added in its place  like a push, row by row
 *   pull-rows        like a pull, row by row out of its place         the same
 *
 * On each rank a range lies at its own offset in a vector as long as the table, or in the vector of the listed rows. */
#include "tools/perf/perf.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { STREAMS = 2, CHUNK_MOST = 1 << 20 };

/* Offset of a server's range, in bytes: whole lines, nearly equal parts. */
size_t tt_perf_range(const struct tt_perf *p, int server)
{
	size_t lines = (p->bytes + TT_PERF_LINE - 1) / TT_PERF_LINE, n = (size_t)tt_perf_servers(p);

	if (tt_perf_is_of_rows(p))
		return p->listed * (size_t)server / n * tt_perf_row_bytes(p);
	return tt_min(lines * (size_t)server / n * TT_PERF_LINE, p->bytes);
}

static bool has(const struct tt_perf *p, unsigned call) { return p->kernel->calls & call; }

static void add_to_range(const struct tt_perf *p, size_t at, const uint8_t *from, size_t len)
{
	if (has(p, TT_PERF_ROWS))
		tt_perf_add_rows(p, at, from, len);
	else
		tt_perf_add(p, tt_perf_open(p) + at, from, len);
}

/* ---- sockets ---- */

struct stream { /* between a worker and a server */
	int number, fd, rank;         /* rank: of the other end */
	size_t first, range;          /* the server's */
	size_t len, done;             /* bytes to move now */
	size_t kept;                  /* of done: an incomplete element; of rows: gathered but not sent yet */
	const uint8_t *gathered;
};

static int open_streams(const struct tt_perf *p, struct stream *s)
{
	const struct tt_perf_wire *w = tt_perf_wire(p);
	int ranks[] = { (p->rank + 1) % p->size, (p->rank + p->size - 1) % p->size };
	int fds[] = { w->right, w->left }, n = 0;

	if (p->size == 2) /* one connection, both ways */
		fds[0] = p->rank ? w->left : w->right;
	for (int i = 0; i < (p->size == 2 ? 1 : 2); i++) {
		int server = (tt_perf_is_server(p) ? p->rank : ranks[i]) / 2;
		if (ranks[i] % 2 == p->rank % 2)
			continue; /* of three ranks two neighbours are workers */
		s[n] = (struct stream){ .number = n, .fd = fds[i], .rank = ranks[i],
		                        .first = tt_perf_range(p, server) };
		s[n].range = tt_perf_range(p, server + 1) - s[n].first;
		n++;
	}
	return n;
}

/* Returns the bytes moved; 0: none now; or -errno. */
static ssize_t attempt(const struct tt_perf *p, const struct stream *s, uint8_t *at, size_t most, bool out, int flags)
{
	size_t len = tt_min(tt_min(s->len - s->done, most), p->order.way.chunk);
	ssize_t n = out ? send(s->fd, at, len, flags | MSG_NOSIGNAL) : recv(s->fd, at, len, flags);

	return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : n > 0 ? n : tt_perf_lost(s->rank, n);
}

static uint8_t landings[STREAMS][CHUNK_MOST + TT_PERF_LINE] __attribute__((aligned(TT_PERF_LINE)));

/* Gathers a chunk of rows at a time, which stays in the cache. */
static ssize_t gather_and_give(struct tt_perf *p, struct stream *s, int flags)
{
	uint8_t *landing = landings[s->number];
	ssize_t n;

	if (!s->kept) {
		s->kept = tt_min(s->len - s->done, p->order.way.chunk);
		s->gathered = landing;
		tt_perf_copy_rows(p, landing, p->open, s->first + s->done, s->kept);
	}
	if ((n = attempt(p, s, landing + (s->gathered - landing), s->kept, true, flags)) <= 0)
		return n;
	s->gathered += n;
	s->kept -= (size_t)n;
	return n;
}

static ssize_t give(struct tt_perf *p, struct stream *s, int flags)
{
	if (tt_perf_is_server(p) && has(p, TT_PERF_ROWS))
		return gather_and_give(p, s, flags);
	return attempt(p, s, (tt_perf_is_server(p) ? p->open : p->local) + s->first + s->done, SIZE_MAX, true, flags);
}

static ssize_t take(struct tt_perf *p, struct stream *s, int flags)
{
	return attempt(p, s, p->open + s->first + s->done, SIZE_MAX, false, flags);
}

static ssize_t give_byte(struct tt_perf *p, struct stream *s, int flags)
{
	return attempt(p, s, (uint8_t[]){ 1 }, 1, true, flags);
}

static ssize_t take_byte(struct tt_perf *p, struct stream *s, int flags)
{
	return attempt(p, s, (uint8_t[]){ 0 }, 1, false, flags);
}

static ssize_t take_and_add(struct tt_perf *p, struct stream *s, int flags)
{
	uint8_t *landing = landings[s->number];
	size_t width = tt_perf_type_size(p->options.type), whole;
	ssize_t n = attempt(p, s, landing + s->kept, SIZE_MAX, false, flags);

	if (n <= 0)
		return n;
	whole = (s->kept + (size_t)n) / width * width;
	add_to_range(p, s->first + s->done - s->kept, landing, whole);
	s->kept += (size_t)n - whole;
	memmove(landing, landing + whole, s->kept);
	return n;
}

static void sleep_until_ready(const struct stream *s, int n, bool out)
{
	struct pollfd fds[STREAMS];
	nfds_t waiting = 0;

	for (int i = 0; i < n; i++)
		if (s[i].done < s[i].len)
			fds[waiting++] = (struct pollfd){ s[i].fd, out ? POLLOUT : POLLIN, 0 };
	poll(fds, waiting, 1000);
}

/* All streams, in turn. A single stream may block in its calls. */
static int move(struct tt_perf *p, struct stream *s, int n, ssize_t (*piece)(struct tt_perf *, struct stream *, int),
                bool out)
{
	bool byte = piece == give_byte || piece == take_byte, sleeps = p->order.way.block;
	int left = n;

	for (int i = 0; i < n; i++) {
		s[i].len = byte ? 1 : s[i].range;
		s[i].done = s[i].kept = 0;
		left -= !s[i].len;
	}
	while (left) {
		bool moved = false;
		for (int i = 0; i < n; i++) {
			ssize_t k = s[i].done < s[i].len ? piece(p, &s[i], sleeps && n == 1 ? 0 : MSG_DONTWAIT) : 0;
			if (k < 0)
				return (int)k;
			s[i].done += (size_t)k;
			left -= k && s[i].done == s[i].len;
			moved |= k;
		}
		if (!moved && sleeps)
			sleep_until_ready(s, n, out);
	}
	return 0;
}

static int serve_push(struct tt_perf *p, struct stream *s, int n)
{
	int err = move(p, s, n, take_and_add, false);

	return err ? err : has(p, TT_PERF_AT_ONCE) ? move(p, s, n, give, true) : move(p, s, n, give_byte, true);
}

static int push(struct tt_perf *p, struct stream *s, int n)
{
	int err = move(p, s, n, give, true);

	return err ? err : has(p, TT_PERF_AT_ONCE) ? move(p, s, n, take, false) : move(p, s, n, take_byte, false);
}

static int serve_pull(struct tt_perf *p, struct stream *s, int n)
{
	int err = move(p, s, n, take_byte, false);

	return err ? err : move(p, s, n, give, true);
}

static int pull(struct tt_perf *p, struct stream *s, int n)
{
	int err = move(p, s, n, give_byte, true);

	return err ? err : move(p, s, n, take, false);
}

int tt_perf_raw_table(struct tt_perf *p)
{
	struct stream s[STREAMS];
	bool serves = tt_perf_is_server(p);
	int n = open_streams(p, s), err = 0;

	if (has(p, TT_PERF_BESIDE))
		return tt_perf_table(p);
	if (has(p, TT_PERF_PUSH))
		err = serves ? serve_push(p, s, n) : push(p, s, n);
	if (!err && has(p, TT_PERF_PULL) && !has(p, TT_PERF_AT_ONCE))
		err = serves ? serve_pull(p, s, n) : pull(p, s, n);
	return err;
}

/* ---- bare memory ---- */

static int push_shared(struct tt_perf *p)
{
	int err = 0;

	tt_perf_arrive(p);
	for (int r = 1; r < p->size && !err; r += 2)
		err = tt_perf_await(p, r, p->shared.met);
	return err;
}

static int serve_push_shared(struct tt_perf *p)
{
	size_t first = tt_perf_range(p, p->rank / 2), len = tt_perf_range(p, p->rank / 2 + 1) - first;
	int err = 0;

	for (int r = 0; r < p->size && !err; r += 2)
		if (!(err = tt_perf_await(p, r, p->shared.met + 1)))
			add_to_range(p, first, tt_perf_local_of(p, r) + first, len);
	tt_perf_arrive(p);
	return err;
}

static void pull_shared(struct tt_perf *p)
{
	for (int r = 1; r < p->size; r += 2) {
		size_t first = tt_perf_range(p, r / 2), len = tt_perf_range(p, r / 2 + 1) - first;
		if (has(p, TT_PERF_ROWS))
			tt_perf_copy_rows(p, tt_perf_open(p) + first, tt_perf_open_of(p, r), first, len);
		else
			tt_perf_copy(p, tt_perf_open(p) + first, tt_perf_open_of(p, r) + first, len);
	}
}

int tt_perf_shared_table(struct tt_perf *p)
{
	bool serves = tt_perf_is_server(p);
	int err = 0;

	if (has(p, TT_PERF_BESIDE))
		return tt_perf_table(p);
	if (has(p, TT_PERF_PUSH))
		err = serves ? serve_push_shared(p) : push_shared(p);
	if (!err && has(p, TT_PERF_PULL) && !serves)
		pull_shared(p);
	return err;
}

/* ---- words ---- */

static const char *shape_of(const struct tt_perf *p)
{
	bool shared = p->shared.part, rows = has(p, TT_PERF_ROWS);

	if (rows && has(p, TT_PERF_PUSH))
		return shared ? "d += s over the mapped delta, row by row"
		              : "streams of the rows, added in their places, one byte back";
	if (rows)
		return shared ? "one copy of each row" : "one byte asks, streams of the rows come";
	if (has(p, TT_PERF_AT_ONCE) || (has(p, TT_PERF_PUSH) && has(p, TT_PERF_PULL)))
		return shared                    ? "d += s over the mapped delta, then one copy"
		       : has(p, TT_PERF_AT_ONCE) ? "streams, added on arrival, the sums come back"
		                                 : "streams, added on arrival, one byte back; "
		                                   "one byte asks, streams come";
	if (has(p, TT_PERF_PUSH))
		return shared ? "d += s over the mapped delta" : "streams, added on arrival, one byte back";
	return shared ? "one copy" : "one byte asks, streams come";
}

void tt_perf_word_table(const struct tt_perf *p, const struct tt_perf_way *way, char *text, size_t room)
{
	char chunk[32];

	tt_perf_write_size(chunk, sizeof chunk, way->chunk);
	if (tt_perf_is_snapshot(p))
		snprintf(text, room, "pulls beside the same pushes; means");
	else if (has(p, TT_PERF_BESIDE))
		snprintf(text, room, "the same while nobody pushes, 99 %%");
	else if (p->shared.part)
		snprintf(text, room, "bare memory: %s%s%s", shape_of(p), has(p, TT_PERF_PULL) ? "; " : "",
		         !has(p, TT_PERF_PULL) ? "" : way->copy ? tt_copy_name[way->copy - 1] : "memcpy");
	else
		snprintf(text, room, "bare TCP %s; %s sockets, chunks of %s, %s socket buffers", shape_of(p),
		         way->block ? "blocking" : "polling", chunk, way->large ? "4 MiB" : "default");
}
