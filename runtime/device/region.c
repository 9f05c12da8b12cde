/* region.c - memory of devices for remote use: a key that no net knows names it, where the net does not take it */
#include "device/device_private.h"
#include <stdlib.h>

static void put_key(struct tt_staged *s)
{
	struct tt_key *key = &s->base.key;
	struct tt_pack p = tt_pack(key->raw, sizeof key->raw);

	*key = (struct tt_key){ .len = s->base.mem.len };
	tt_put32(&p, s->id);
	key->raw[sizeof key->raw - 1] = 1;
}

uint32_t tt_staged_id(const struct tt_key *key)
{
	struct tt_pack p = tt_unpack(key->raw, sizeof key->raw);

	return tt_get32(&p);
}

struct tt_staged *tt_staged_find(const struct tt_job *job, uint32_t id)
{
	tt_each_of(struct tt_staged, link, s, &tt_devices(job)->regions)
		if (s->id == id)
			return s;
	return NULL;
}

static int stage(struct tt_job *job, struct tt_net *net, const struct tt_mem *mem, struct tt_gpu_fence *fence,
                 struct tt_region **out)
{
	struct tt_devices *d = tt_devices(job);
	struct tt_staged *s = calloc(1, sizeof *s);

	if (!s)
		return tt_fail(-ENOMEM, "no memory to register %zu bytes of GPU %d", mem->len, mem->gpu);
	s->base = (struct tt_region){ .net = net, .mem = *mem };
	s->id = ++d->regions_made;
	s->fence = fence;
	put_key(s);
	tt_list_append(&d->regions, &s->link);
	*out = &s->base;
	return 0;
}

/* A net that takes the memory would let others read it before the caller's stream has written it. */
int tt_device_reg(struct tt_net *net, const struct tt_mem *mem, struct tt_pinned *pinned, bool fenced,
                  struct tt_region **out)
{
	struct tt_gpu_fence *fence = fenced && pinned ? pinned->fence : NULL;

	if (mem->gpu < 0 || (net->takes_gpu && (!fence || tt_gpu_fence_passed(fence) > 0)))
		return net->transport->reg(net, mem, 1, tt_pinned_on(pinned, net), out);
	return stage(net->user, net, mem, fence, out);
}

void tt_device_dereg(struct tt_region *r)
{
	if (!r)
		return;
	if (!tt_key_is_staged(&r->key)) {
		r->net->transport->dereg(r);
		return;
	}
	struct tt_staged *s = tt_container_of(r, struct tt_staged, base);
	tt_each_of(struct tt_transfer, link, t, &tt_devices(r->net->user)->moving)
		if (t->region == r)
			tt_transfer_stop(t, -ESTALE);
	tt_list_remove(&s->link);
	free(s);
}
