/* describe.c - a call in words, and how the calls of two ranks differ
 *
 * The three numbers of a call travel with each of its messages: docs/wire.md has what x and y are for each kind. They
 * come from other ranks, so each number may be any.
 */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include <stdio.h>
#include <string.h>

/* In y of an all-reduce: settings. */
enum { SHORT = 0x200, MEASURES = 0x100, ALGORITHM = 0xff };

enum { BARRIER = 1, BROADCAST, GATHER, ALLREDUCE, SCATTERED, ALLGATHER, ALLTOALL, REDUCE, SCATTER = 18 };

static const char *rule_name(unsigned rule)
{
	static const char *const names[] = { "sum", "average", "product", "max", "min", "band", "bor", "bxor" };

	return rule < TT_COUNT(names) ? names[rule] : "unknown rule";
}

static const char *type_name(unsigned type)
{
	const char *name = tt_type_name((tutti_type)type);

	return name ? name : "elements of an unknown type";
}

static const char *describe(const struct tt_coll_call *c, char *text, size_t room)
{
	unsigned long long x = c->x, root = c->y, high = c->y >> 32;
	unsigned type = c->y >> 24 & 0xff, rule = c->y >> 16 & 0xff;

	switch (c->kind) {
	case BARRIER: return "barrier";
	case BROADCAST: snprintf(text, room, "broadcast of %llu bytes from rank %llu", x, root); break;
	case SCATTER: snprintf(text, room, "scatter of %llu bytes a rank from rank %llu", x, root); break;
	case GATHER:
		if (root + 1)
			snprintf(text, room, "gather of %llu bytes to rank %llu", x, root);
		else
			snprintf(text, room, "gather of %llu bytes to all ranks", x);
		break;
	case ALLREDUCE:
	case REDUCE:
		if (c->kind == REDUCE)
			snprintf(text, room, "reduce of %llu %s (%s) to rank %llu", x, type_name(type),
			         rule_name(rule), high);
		else
			snprintf(text, room, "all-reduce of %llu %s (%s)%s", x, type_name(type), rule_name(rule),
			         high ? " in tensors" : "");
		break;
	case SCATTERED:
		snprintf(text, room, "reduce-scatter of %llu %s a rank (%s)", x, type_name(c->y >> 8 & 0xff),
		         rule_name(c->y & 0xff));
		break;
	case ALLGATHER:
	case ALLTOALL:
		if (c->y)
			snprintf(text, room, "%s of any sizes", c->kind == ALLGATHER ? "all-gather" : "all-to-all");
		else
			snprintf(text, room, "%s of %llu bytes a rank",
			         c->kind == ALLGATHER ? "all-gather" : "all-to-all", x);
		break;
	default: return "another collective";
	}
	return text;
}

/* ---- what differs ---- */

struct difference { const char *name, *theirs, *mine; };

static struct difference setting_of(uint64_t theirs, uint64_t mine)
{
	uint64_t bits = theirs ^ mine;
	bool measures = bits & MEASURES;
	const char *on = measures ? "yes" : "short", *off = measures ? "no" : "f32";

	if (bits & ALGORITHM)
		return (struct difference){ "TUTTI_ALLREDUCE", tt_algorithm_name(theirs & ALGORITHM),
			                    tt_algorithm_name(mine & ALGORITHM) };
	bits = measures ? MEASURES : SHORT;
	return (struct difference){ measures ? "TUTTI_MEASURE" : "TUTTI_PARTIALS", theirs & bits ? on : off,
		                    mine & bits ? on : off };
}

void tt_coll_compare(const char *who, const struct tt_coll_call *theirs, const struct tt_coll_call *mine, char *text,
                     size_t room)
{
	bool reduces = mine->kind == ALLREDUCE || mine->kind == REDUCE;
	char a[120], b[120];

	if (reduces && theirs->kind == mine->kind && theirs->x == mine->x && theirs->y >> 16 == mine->y >> 16) {
		struct difference d = setting_of(theirs->y, mine->y);
		snprintf(text, room, "%s is %s on %s, and %s on this rank: it must be the same on all", d.name,
		         d.theirs, who, d.mine);
		return;
	}
	const char *x = describe(theirs, a, sizeof a), *y = describe(mine, b, sizeof b);
	if (strcmp(x, y))
		snprintf(text, room, "%s called %s, this rank %s", who, x, y);
	else
		snprintf(text, room, "%s called %s, and so did this rank, but not with the same sizes", who, x);
}
