/* shm_ring.c - a lane: lines that one process writes and the other reads, and a ring of payload for what does not fit
 * in them
 *
 *      line     | 5 | 6 | 7 | . | . | . | 0'|  reader at 5, writer at 8
 *      payload  | ....... 6 6 6 6 6 7 7 ... |  in one piece each; freed with the line
 *
 * A line is new when its `turn` is one more than its number. The reader waits on the very line that the writer will
 * write, so a record of 40 bytes costs the transfer of one cache line. The reader publishes its position every quarter
 * of a lap: a writer without room knows of at least half a lane.
 */
#include "transport/shm/shm_private.h"
#include <unistd.h>

enum { ROUND = 64 };

/* If the bit is set, the reader has not taken it yet. The reader takes the bit first and reads the lane after it, so it
 * sees this line. */
static void ring_bell(const struct tt_shm_peer *p)
{
	uint32_t bell = atomic_load_explicit(&p->out->bell, memory_order_relaxed) - 1;

	if (bell >= TT_SHM_BELLS)
		return;
	_Atomic uint64_t *bits = &p->bells->word[bell / 64].bits;
	if (!(atomic_load_explicit(bits, memory_order_relaxed) >> bell % 64 & 1))
		atomic_fetch_or(bits, 1ull << bell % 64);
}

static void kick(struct tt_shm_peer *p)
{
	uint64_t one = 1;

	/* the reader first says that it sleeps, or that this side must ring; then it looks at the lane once more */
	atomic_thread_fence(memory_order_seq_cst);
	ring_bell(p);
	uint32_t nap = atomic_load_explicit(&p->sheet->naps, memory_order_relaxed);
	if (nap % 2 == 0 || nap == p->kicked)
		return;
	while (write(p->kick_fd, &one, sizeof one) < 0 && errno == EINTR)
		;
	p->kicked = nap;
}

/* Returns where `extra` bytes fit in one piece, counted from the beginning of the connection. */
static uint64_t payload_start(const struct tt_shm_peer *p, size_t extra)
{
	uint64_t left = p->payload - p->out_bytes % p->payload;

	return left < extra ? p->out_bytes + left : p->out_bytes;
}

static bool has_room(const struct tt_shm_peer *p, uint64_t end)
{
	return (uint32_t)(p->next_out - (uint32_t)p->out_taken) < TT_SHM_LINES &&
	       end - p->out_bytes_taken <= p->payload;
}

struct tt_shm_line *tt_shm_line(struct tt_shm_peer *p, size_t extra, uint8_t **payload)
{
	uint64_t start = payload_start(p, extra), end = start + (extra + ROUND - 1) / ROUND * ROUND;
	struct tt_shm_line *line = &p->out->line[p->next_out % TT_SHM_LINES];

	if (!has_room(p, end)) {
		p->out_taken = atomic_load_explicit(&p->out->lines, memory_order_acquire);
		p->out_bytes_taken = atomic_load_explicit(&p->out->bytes, memory_order_acquire);
		if (!has_room(p, end))
			return NULL;
	}
	line->extra = (uint32_t)extra;
	if (extra) {
		line->extra_end = end;
		p->out_bytes = end;
		*payload = p->out->payload + start % p->payload;
	}
	return line;
}

void tt_shm_publish(struct tt_shm_peer *p, struct tt_shm_line *line)
{
	atomic_store_explicit(&line->turn, ++p->next_out, memory_order_release);
	kick(p);
}

/* Returns where the payload of the line lies. NULL: the line claims what cannot be. */
const uint8_t *tt_shm_payload(const struct tt_shm_peer *p, const struct tt_shm_line *line)
{
	uint64_t size = ((uint64_t)line->extra + ROUND - 1) / ROUND * ROUND, start = line->extra_end - size;

	return size <= p->payload && start % p->payload + size <= p->payload && start >= p->in_bytes ?
	       p->in->payload + start % p->payload : NULL;
}

void tt_shm_taken(struct tt_shm_peer *p, const struct tt_shm_line *line)
{
	p->next_in++;
	if (line->extra)
		p->in_bytes = line->extra_end;
	if (p->next_in - p->told_lines < TT_SHM_LINES / 4 && p->in_bytes - p->told_bytes < p->payload / 4)
		return;
	p->told_lines = p->next_in;
	p->told_bytes = p->in_bytes;
	atomic_store_explicit(&p->in->lines, p->next_in, memory_order_release);
	atomic_store_explicit(&p->in->bytes, p->in_bytes, memory_order_release);
	kick(p); /* the writer may wait for room */
}
