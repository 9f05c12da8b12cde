/* standing.c - keys that a segment's ranks keep from call to call, each of a whole arena
 *
 * A rank whose vector lies in tutti_alloc's memory registers the arena at the first call, and offers the same key again
 * in later calls. After a call in which all ranks have offered a key and all could map all keys, each rank notes the
 * set under the call's number. In later calls each offers, with its key, the number of the set that it has noted for
 * this key. If all ranks offer the same number, all know all keys: they need not ask whether all can map them. A rank
 * that takes turns with two arenas, beside one that does not, asks each time.
 *
 * A rank that gives a call up takes back all keys and forgets all sets: the call's memory is the caller's again. Its
 * next key has no number, so all ranks ask again.
 */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "member/member.h"

static void drop(struct tt_standing *s)
{
	if (s->region)
		s->region->net->transport->dereg(s->region);
	*s = (struct tt_standing){ 0 };
}

void tt_standing_drop_all(struct tt_segment *b)
{
	for (int k = 0; k < TT_STANDING; k++)
		drop(&b->standing[k]);
}

static void drop_freed(struct tt_segment *b)
{
	for (int k = 0; k < TT_STANDING; k++)
		if (b->standing[k].region && !tt_arena_is_there(b->standing[k].serial, b->standing[k].mem.base))
			drop(&b->standing[k]);
	b->freed = tt_arenas_freed();
}

static bool holds(const struct tt_standing *s, const char *vector, size_t bytes)
{
	size_t at = (size_t)(vector - (const char *)s->mem.base);

	return s->region && at < s->mem.len && bytes <= s->mem.len - at;
}

static struct tt_standing *make(struct tt_segment *b, const void *vector, size_t bytes)
{
	struct tt_standing *s = &b->standing[b->next_standing++ % TT_STANDING], new = { 0 };
	struct tt_net *net = b->own.region->net;

	new.serial = tt_arena_of(vector, bytes, &new.mem);
	if (!new.serial || new.mem.fd < 0 || net->transport->reg(net, &new.mem, 1, NULL, &new.region))
		return NULL;
	drop(s);
	*s = new;
	return s;
}

struct tt_standing *tt_standing_of(struct tt_segment *b, const void *vector, size_t bytes)
{
	if (b->freed != tt_arenas_freed())
		drop_freed(b);
	for (int k = 0; k < TT_STANDING; k++)
		if (holds(&b->standing[k], vector, bytes))
			return &b->standing[k];
	return make(b, vector, bytes);
}

void tt_standing_offer(const struct tt_standing *s, const void *vector, struct tt_call_header *h)
{
	h->mapped = true;
	h->agreed = s->agreed;
	h->key = s->region->key;
	h->at = (uint64_t)((const char *)vector - (const char *)s->mem.base);
}

bool tt_standing_holds(const struct tt_call_header *h, const struct tt_key *key, size_t bytes)
{
	return h->at <= key->len && bytes <= key->len - h->at;
}

static struct tt_known *known(struct tt_segment *b, int i, const struct tt_standing *mine)
{
	return &b->peers[i].known[mine - b->standing];
}

void tt_standing_agree(struct tt_segment *b, struct tt_standing *mine, uint32_t call)
{
	mine->agreed = call + 1;
	for (int i = 0; i < b->n; i++)
		if (i != b->me)
			*known(b, i, mine) = (struct tt_known){ b->peers[i].key,
			                                        b->peers[i].vector - b->peers[i].header->at };
}

static int use(struct tt_segment *b, int i, const struct tt_known *k, size_t bytes)
{
	struct tt_segment_peer *f = &b->peers[i];

	f->key = k->key;
	f->vector = k->base + f->header->at;
	return tt_standing_holds(f->header, &f->key, bytes) ? 1 :
	       tt_fail(-EPROTO, "%s offers a vector that is outside its memory",
	               tt_member_label(tt_segment_member(b, i)).text);
}

int tt_standing_use(struct tt_segment *b, const struct tt_standing *mine, size_t bytes)
{
	int k = mine->agreed != 0;

	for (int i = 0; i < b->n; i++)
		if (!b->peers[i].header->mapped || b->peers[i].header->agreed != mine->agreed)
			return 0;
	for (int i = 0; k > 0 && i < b->n; i++)
		if (i != b->me)
			k = use(b, i, known(b, i, mine), bytes);
	return k;
}
