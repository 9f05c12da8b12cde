/* region.c - memory of devices for remote use: a key that no net knows names it, where the net does not take it */
#include "device/device_private.h"
#include <stdlib.h>

static void put_key(struct tt_staged *s, const struct tt_gpu_range *in)
{
	struct tt_key *key = &s->base.key;
	struct tt_pack p = tt_pack(key->raw, sizeof key->raw);

	*key = (struct tt_key){ .len = s->base.mem.len };
	tt_put32(&p, s->id);
	if (s->fd > 0) {
		tt_put64(&p, in->buffer);
		tt_put64(&p, (uint64_t)((char *)s->base.mem.base - in->base));
		tt_put64(&p, in->len);
	}
	key->raw[sizeof key->raw - 1] = 1;
}

uint32_t tt_staged_id(const struct tt_key *key)
{
	struct tt_pack p = tt_unpack(key->raw, sizeof key->raw);

	return tt_get32(&p);
}

bool tt_staged_allocation(const struct tt_key *key, struct tt_allocation *is)
{
	struct tt_pack p = tt_unpack(key->raw + 4, sizeof key->raw - 4);

	is->buffer = tt_get64(&p);
	is->offset = tt_get64(&p);
	is->len = tt_get64(&p);
	return is->buffer;
}

struct tt_staged *tt_staged_find(const struct tt_job *job, uint32_t id)
{
	tt_each_of(struct tt_staged, link, s, &tt_devices(job)->regions)
		if (s->id == id && !s->ends)
			return s;
	return NULL;
}

static int stage(struct tt_net *net, const struct tt_mem *mem, const struct tt_pinned *pinned,
                 struct tt_gpu_fence *fence, struct tt_region **out)
{
	struct tt_devices *d = tt_devices(net->user);
	struct tt_staged *s = calloc(1, sizeof *s);

	if (!s)
		return tt_fail(-ENOMEM, "no memory to register %zu bytes of GPU %d", mem->len, mem->gpu);
	s->base = (struct tt_region){ .net = net, .mem = *mem };
	s->id = ++d->regions_made;
	s->fence = fence;
	s->fd = pinned->fd;
	put_key(s, &pinned->range);
	tt_list_append(&d->regions, &s->link);
	*out = &s->base;
	return 0;
}

/* A net that takes the memory would let others read it before the caller's stream has written it. */
int tt_device_reg(struct tt_net *net, const struct tt_mem *mem, struct tt_pinned *pinned, bool fenced,
                  struct tt_region **out)
{
	struct tt_gpu_fence *fence = mem->gpu >= 0 && fenced ? pinned->fence : NULL;

	if (mem->gpu < 0 || (tt_pinned_on(pinned, net) && (!fence || tt_gpu_fence_passed(fence) > 0)))
		return net->transport->reg(net, mem, 1, tt_pinned_on(pinned, net), out);
	return stage(net, mem, pinned, fence, out);
}

/* Ends what others have asked for. Do copies of the memory run? */
static bool is_used(const struct tt_staged *s)
{
	bool used = false;

	tt_each_of(struct tt_transfer, link, t, &tt_devices(s->base.net->user)->moving) {
		if (t->region != &s->base)
			continue;
		tt_transfer_fail(t, -ESTALE, NULL);
		if (tt_transfer_waits(t))
			used = true;
		else
			t->region = NULL; /* an error starts no copy */
	}
	return used;
}

bool tt_device_dereg(struct tt_region *r, void (*idle)(void *), void *arg)
{
	if (!r)
		return true;
	if (!tt_key_is_staged(&r->key)) {
		r->net->transport->dereg(r);
		return true;
	}
	struct tt_staged *s = tt_container_of(r, struct tt_staged, base);
	s->ends = true;
	if (is_used(s)) {
		s->idle = idle;
		s->arg = arg;
		return false;
	}
	tt_list_remove(&s->link);
	free(s);
	return true;
}

void tt_staged_done(struct tt_transfer *t)
{
	struct tt_staged *s = t->region ? tt_container_of(t->region, struct tt_staged, base) : NULL;

	t->region = NULL;
	if (s && s->idle && !is_used(s))
		s->idle(s->arg);
}
