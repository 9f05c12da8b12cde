/* offer.c - memory of this rank that other ranks of its host map, and how its key travels to them */
#include "collective/collective_private.h"
#include "engine/engine.h"
#include "member/member.h"

int tt_offer_make(struct tt_offered *o, struct tt_job *job, struct tt_net *net, size_t bytes)
{
	int err = 0;

	if (o->region)
		return o->region->net == net ? 0 : -EXDEV;
	if (net->transport->pin)
		return -EXDEV;
	if (!o->memory)
		err = tt_memory_alloc(job, bytes, -1, &o->memory);
	struct tt_mem mem = tt_mem_of(o->memory, bytes);
	return err ? err : net->transport->reg(net, &mem, 1, NULL, &o->region);
}

void tt_offer_write(const struct tt_offered *o, bool able, uint8_t bytes[TT_OFFER_LEN])
{
	struct tt_pack p = tt_pack(bytes, TT_OFFER_LEN);

	tt_put8(&p, able);
	tt_put_key(&p, able ? &o->region->key : &(struct tt_key){ 0 });
}

void *tt_offer_map(struct tt_peer *peer, const void *bytes, size_t len, struct tt_key *key)
{
	struct tt_pack p = tt_unpack(bytes, TT_OFFER_LEN);
	bool able = tt_get8(&p);

	tt_get_key(&p, key);
	return able && key->len == len ? peer->net->transport->map(peer, key, 0) : NULL;
}

void tt_offer_end(struct tt_offered *o)
{
	if (o->region)
		o->region->net->transport->dereg(o->region);
	if (o->memory)
		tt_memory_free(o->memory);
	*o = (struct tt_offered){ 0 };
}
