/* publish.c - `tutti perf publish`: versions of a model of bf16
 *
 *   version   rank 0 publishes; the baseline is a copy of the tensors into buffers like a publisher's
 *   commit    rank 0 begins and commits a version, and writes nothing; no baseline
 *   fetch     rank 0 fetches what rank 1 has published; the baseline is that of a get; over verbs: over TCP
 *   readers   rank 0 publishes while all other ranks fetch; the baseline is the same while nobody fetches. Processor
 *             time of rank 0's thread counts
 *   delta     like commit, of a publisher that keeps deltas; the baseline is that of version. Each version differs
 *             from the next in --changed percent of the elements
 *
 * A check lets a reader fetch what the checked iteration has published. */
#include "tools/perf/perf.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool has(const struct tt_perf *p, unsigned call) { return p->kernel && p->kernel->calls & call; }
bool tt_perf_is_fetch(const struct tt_perf *p) { return p->test->publishes && has(p, TT_PERF_FETCH); }
bool tt_perf_has_readers(const struct tt_perf *p) { return p->test->publishes && has(p, TT_PERF_READERS); }
bool tt_perf_has_deltas(const struct tt_perf *p) { return p->test->publishes && has(p, TT_PERF_DELTA); }

static bool publishes(const struct tt_perf *p) { return p->rank == tt_perf_is_fetch(p); }
static bool reads(const struct tt_perf *p) { return !publishes(p) && (p->rank < 2 || tt_perf_has_readers(p)); }
static bool copies(const struct tt_perf *p)
{
	return has(p, TT_PERF_VERSION | TT_PERF_DELTA) && !tt_perf_has_readers(p);
}

bool tt_perf_is_beside_publication(const struct tt_perf_kernel *k) { return !(k->calls & TT_PERF_COMMIT); }

/* ---- opening, for a row ---- */

/* Version k of the row. Elements that change do so from each version to the next; k and k + 3 are equal.
 * Returns how many do. */
static size_t fill_version(const struct tt_perf *p, void *to, uint64_t version)
{
	uint64_t most = tt_perf_has_deltas(p) ? (uint64_t)(p->options.changed / 100 * 0x1p32) : 0;
	uint64_t x = 0x9e3779b97f4a7c15;
	uint16_t *at = to;
	size_t changed = 0;

	tt_perf_fill_numbers(p, TUTTI_BF16, to, p->bytes, 0);
	for (size_t i = 0; most && i < p->bytes / sizeof *at; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		if (x >> 32 >= most)
			continue;
		at[i] ^= (uint16_t)(version % TT_PERF_VERSIONS);
		changed++;
	}
	return changed;
}

static int commit(struct tt_perf_publication *q)
{
	tutti_tensor to;
	int err = tutti_publisher_begin(q->publisher, &to);

	return err ? err : tutti_publisher_commit(q->publisher, ++q->version, NULL, 0);
}

/* All buffers have a version afterwards, so that an iteration meets no fresh page, and finds a version there. */
static int open_publisher(struct tt_perf *p, const char *name, const tutti_weight *model)
{
	const tutti_publisher_config config = { .buffers = TT_PERF_VERSIONS,
		.deltas = tt_perf_has_deltas(p) ? 0.5 : 0 };
	struct tt_perf_publication *q = &p->publication;
	tutti_tensor to;
	int err = tutti_publisher_open(p->job, name, model, 1, &config, &q->publisher);

	for (int i = 0; i < TT_PERF_VERSIONS && !err && !(err = tutti_publisher_begin(q->publisher, &to)); i++) {
		q->changed = fill_version(p, to.data, q->version + 1);
		err = commit(q);
	}
	fill_version(p, p->local, 0);
	for (int i = 0; i < TT_PERF_VERSIONS && copies(p) && !err; i++)
		if (!(err = tutti_alloc(p->job, p->bytes, -1, &q->copy[i])))
			memset(q->copy[i], 0, p->bytes);
	return err;
}

static int fetch(struct tt_perf *p, uint64_t newer_than, uint64_t held)
{
	struct tt_perf_publication *q = &p->publication;
	const tutti_tensor to = { p->local, p->bytes / sizeof(uint16_t), TUTTI_BF16 };

	return tutti_reader_update(q->reader, newer_than, held, &to, -1, &q->got);
}

void tt_perf_close_publication(struct tt_perf *p)
{
	struct tt_perf_publication *q = &p->publication;

	tutti_reader_close(q->reader);
	tutti_publisher_close(q->publisher);
	for (int i = 0; i < TT_PERF_VERSIONS; i++)
		if (q->copy[i])
			tutti_free(p->job, q->copy[i]);
	*q = (struct tt_perf_publication){ 0 };
}

/* A reader has the newest version afterwards. */
int tt_perf_open_publication(struct tt_perf *p)
{
	const tutti_weight model = { .name = "model", .type = TUTTI_BF16, .dims = 1,
		.shape = { p->bytes / sizeof(uint16_t) }, .data = p->local };
	char name[64];
	int err;

	tt_perf_close_publication(p);
	memset(p->reads, 0, TT_PERF_PUBLISH_RANKS * sizeof *p->reads);
	snprintf(name, sizeof name, "perf publication %llu", (unsigned long long)p->order.serial);
	if (publishes(p))
		return open_publisher(p, name, &model);
	if (!reads(p))
		return 0;
	err = tutti_reader_open(p->job, name, tt_perf_is_fetch(p), &p->publication.reader);
	return err ? err : fetch(p, TT_PERF_VERSIONS - 1, 0);
}

/* ---- one iteration ---- */

int tt_perf_publication(struct tt_perf *p)
{
	struct tt_perf_publication *q = &p->publication;

	if (tt_perf_is_fetch(p))
		return fetch(p, 0, 0);
	if (has(p, TT_PERF_VERSION))
		return tutti_publisher_publish(q->publisher, ++q->version, NULL, 0);
	return commit(q);
}

static int call_or_copy(struct tt_perf *p)
{
	struct tt_perf_publication *q = &p->publication;

	if (p->rank)
		return 0;
	if (tt_perf_has_readers(p))
		return tt_perf_publication(p);
	q->newest = (q->newest + 1) % TT_PERF_VERSIONS;
	tt_perf_copy(p, q->copy[q->newest], p->local, p->bytes);
	return 0;
}

int tt_perf_raw_publication(struct tt_perf *p) { return tt_perf_is_fetch(p) ? tt_perf_raw_get(p) : call_or_copy(p); }
int tt_perf_shared_publication(struct tt_perf *p)
{
	return tt_perf_is_fetch(p) ? tt_perf_shared_get(p) : call_or_copy(p);
}

static size_t place_of(const struct tt_perf *p, const void *word) { return (size_t)((const uint8_t *)word - p->open); }

/* Fetches until rank 0 has published enough, at least once, then tells rank 0 how often. */
int tt_perf_read_meanwhile(struct tt_perf *p)
{
	struct tt_perf_reads *mine = &p->reads[p->rank];
	uint64_t begun = tt_now();
	int err;

	do {
		err = fetch(p, 0, 0);
		mine->fetches += !err;
		mine->overtaken += err ? 0 : p->publication.got.overtaken;
	} while (!err && atomic_load_explicit(p->told, memory_order_acquire) < p->order.serial);
	mine->spent += tt_now() - begun;
	return err ? err : tutti_put(p->window, 0, place_of(p, mine), mine, sizeof *mine, NULL);
}

int tt_perf_end_readers(struct tt_perf *p)
{
	uint64_t serial = p->order.serial;
	int err = 0;

	for (int r = 1; r < p->size && !err; r++)
		err = tutti_put(p->window, r, place_of(p, p->told), &serial, sizeof serial, NULL);
	return err;
}

/* ---- the check, and what a row says ---- */

static int check_copy(const struct tt_perf *p)
{
	const struct tt_perf_publication *q = &p->publication;

	if (p->rank || tt_perf_has_readers(p) || !memcmp(q->copy[q->newest], p->local, p->bytes))
		return 0;
	return tt_fail(1, "the copy is not what was copied");
}

int tt_perf_check_publication(struct tt_perf *p)
{
	const tutti_fetched *got = &p->publication.got;
	int err;

	if (p->order.baseline)
		return check_copy(p);
	if (!reads(p))
		return 0;
	if (p->rank && (err = fetch(p, TT_PERF_VERSIONS, TT_PERF_VERSIONS)))
		return err;
	fill_version(p, p->open, tt_perf_has_deltas(p) ? got->version : 0);
	return !memcmp(p->local, p->open, p->bytes) ? 0 :
	       tt_fail(1, "version %llu came with wrong bytes", (unsigned long long)got->version);
}

void tt_perf_word_publication(const struct tt_perf *p, const struct tt_perf_way *way, char *text, size_t room)
{
	if (tt_perf_has_readers(p))
		snprintf(text, room, "the same while nobody fetches; processor time");
	else
		snprintf(text, room, "a copy of the tensors into one of three buffers; %s",
		         way->copy ? tt_copy_name[way->copy - 1] : "memcpy");
}

struct tt_perf_reads tt_perf_all_reads(const struct tt_perf *p)
{
	struct tt_perf_reads all = { 0 };

	for (int r = 1; r < p->size; r++) {
		all.fetches += p->reads[r].fetches;
		all.overtaken += p->reads[r].overtaken;
		all.spent = tt_max(all.spent, p->reads[r].spent);
	}
	return all;
}

/* Zeros: no such rank, or no delta. ideal: bytes of changed elements, and the entropy of the gaps between them. */
struct tt_perf_delta tt_perf_last_delta(const struct tt_perf *p)
{
	double changed = (double)p->publication.changed, share = changed / ((double)p->bytes / sizeof(uint16_t));
	double gap = share > 0 && share < 1 ? -(log2(share) + (1 / share - 1) * log2(1 - share)) / 8 : 0;
	tutti_publisher_info info = { 0 };

	tutti_publisher_look(p->publication.publisher, &info);
	return (struct tt_perf_delta){ p->publication.changed, info.delta_bytes, changed * (sizeof(uint16_t) + gap) };
}
