/* pin.c - memory that the nets may reach: pinned for a call, for a window, or as long as its arena
 *
 * Pinning may take seconds, so a call pins on its caller's thread, before it takes the lock. A pin that is let go under
 * the lock waits until a thread without the lock unpins the memory: the background thread, or one that is about to pin.
 *
 *      tt_pin -> used by a call or a window -> tt_unpin -> waits in engine.unpinned -> tt_unpin_waiting
 *
 * Memory of a device is pinned for each call, also where no net pins: what moves it has to know the device, and the
 * point that the caller's stream has reached.
 *
 * Memory of tutti_alloc stays pinned: once with all of its arena, for local use; and the ranges into which collectives
 * have received last. Arenas have serial numbers: an address of one that was freed may come again. Memory of the
 * program's stays pinned likewise while it is registered (registered.c), and a registered range into which collectives
 * receive as a whole is none of the last ones: it stays, too. Likewise memory of a device, of any allocator, whose
 * allocations have numbers, too: the pin of a call uses the one that is kept. An adapter may keep the pages of memory
 * that was freed, so few are kept, and each new pin looks which are still there.
 */
#include "engine/engine.h"
#include <stdlib.h>
#include <unistd.h>

enum { KEPT = 16 }; /* ranges for remote use */

void tt_pins_open(struct tt_job *job)
{
	struct tt_engine *e = &job->engine;

	e->pin_above = SIZE_MAX;
	e->pins = false;
	for (int i = 0; i < e->count; i++) {
		e->pin_above = tt_min(e->pin_above, e->nets[i]->copy_max);
		e->pins |= e->nets[i]->transport->pin != NULL;
	}
	e->look_above = e->pin_above < SIZE_MAX ? tt_min(e->pin_above, TT_SHORT) : SIZE_MAX;
}

/* ---- without the lock ---- */

void tt_unpin_now(struct tt_pinned *p)
{
	for (int i = 0; p && i < TT_NETS && p->pins[i]; i++)
		p->pins[i]->net->transport->unpin(p->pins[i]);
	if (p)
		tt_gpu_fence_free(p->fence);
	if (p && p->fd > 0)
		close(p->fd);
	free(p);
}

static bool pins(struct tt_net *net, int gpu)
{
	if (gpu >= 0 && net->transport->ask_gpu && !(net->asked_gpu >> gpu & 1))
		net->transport->ask_gpu(net, gpu);
	return net->transport->pin && (gpu < 0 || tt_net_takes(net, gpu));
}

/* Memory of a device that a net cannot pin is staged. */
static int pin_everywhere(struct tt_job *job, struct tt_pinned *p)
{
	int err = 0;

	for (int i = 0, n = 0; !err && i < job->engine.count; i++) {
		struct tt_net *net = job->engine.nets[i];
		if (!pins(net, p->mem.gpu))
			continue;
		err = net->transport->pin(net, &p->mem, p->remote, &p->pins[n]);
		n += !err;
		err = p->mem.gpu < 0 ? err : 0;
	}
	return err;
}

static struct tt_pinned *new_pinned(const struct tt_mem *mem, int remote)
{
	struct tt_pinned *p = calloc(1, sizeof *p);

	if (!p)
		return NULL;
	tt_list_init(&p->link);
	p->mem = *mem;
	p->remote = remote;
	p->uses = 1;
	return p;
}

int tt_pin_mem(struct tt_job *job, const struct tt_mem *mem, int remote, struct tt_pinned **out)
{
	struct tt_pinned *p = new_pinned(mem, remote);
	int err;

	if (!p)
		return tt_fail(-ENOMEM, "no memory to pin %zu bytes", mem->len);
	if ((err = pin_everywhere(job, p))) {
		tt_unpin_now(p);
		return err;
	}
	*out = p;
	return 0;
}

/* ---- with the lock ---- */

void tt_unpin(struct tt_job *job, struct tt_pinned *p)
{
	if (!p || --p->uses)
		return;
	tt_unpin(job, p->kept);
	for (int i = 0; i < TT_NETS && p->local[i]; i++)
		p->local[i]->net->transport->dereg(p->local[i]);
	if (!p->pins[0]) {
		tt_unpin_now(p);
		return;
	}
	tt_list_append(&job->engine.unpinned, &p->link);
	tt_errand(job);
}

int tt_pinned_region(struct tt_pinned *p, struct tt_net *net, struct tt_region **out)
{
	int i = 0, err = 0;

	p = p->kept ? p->kept : p;
	while (p->local[i] && p->local[i]->net != net)
		i++;
	if (!p->local[i])
		err = net->transport->reg(net, &p->mem, 0, tt_pinned_on(p, net), &p->local[i]);
	*out = p->local[i];
	return err;
}

/* ---- what is kept, by serial number ---- */

static struct tt_pinned **bucket(struct tt_engine *e, uint64_t serial) { return &e->kept[serial % TT_KEPT_BUCKETS]; }
static bool is_device(const struct tt_pinned *p) { return p->mem.gpu >= 0; }
static bool makes_room(const struct tt_pinned *p) { return (p->remote || is_device(p)) && !p->stays; }

/* What the pointer in its bucket points to. */
static void let_go(struct tt_job *job, struct tt_pinned **at)
{
	struct tt_engine *e = &job->engine;
	struct tt_pinned *p = *at;

	*at = p->next;
	e->kept_count--;
	e->last_kept = e->last_kept == p ? NULL : e->last_kept;
	if (makes_room(p)) {
		tt_list_remove(&p->link);
		e->recent_count--;
	}
	tt_unpin(job, p);
}

static void let_go_of(struct tt_job *job, struct tt_pinned *p)
{
	struct tt_pinned **at = bucket(&job->engine, p->arena);

	while (*at != p)
		at = &(*at)->next;
	let_go(job, at);
}

/* An arena may have the number of a device's allocation. */
static void drop(struct tt_job *job, uint64_t serial, bool device)
{
	for (struct tt_pinned **at = bucket(&job->engine, serial); *at;)
		if ((*at)->arena == serial && is_device(*at) == device)
			let_go(job, at);
		else
			at = &(*at)->next;
}

void tt_pins_drop(struct tt_job *job, uint64_t serial) { drop(job, serial, !(serial & TT_REGISTERED)); }

static bool is_gone(const struct tt_pinned *p)
{
	return !is_device(p) && !(p->arena & TT_REGISTERED) && !tt_arena_is_there(p->arena, p->mem.base);
}

static void sweep(struct tt_job *job)
{
	for (size_t i = 0; i < TT_KEPT_BUCKETS; i++)
		for (struct tt_pinned **at = &job->engine.kept[i]; *at;)
			if (is_gone(*at))
				let_go(job, at);
			else
				at = &(*at)->next;
}

/* Of arenas that were freed since the last look. */
static void forget_freed(struct tt_job *job)
{
	uint64_t gone[TT_ARENAS_GONE];
	int n = tt_arenas_gone(&job->engine.arenas_freed, gone);

	if (n < 0)
		sweep(job);
	while (n > 0)
		drop(job, gone[--n], false);
}

static struct tt_pinned *pop_unpinned(struct tt_job *job)
{
	struct tt_list *node;

	tt_ticket_lock_take(&job->engine.lock);
	forget_freed(job);
	node = tt_list_pop(&job->engine.unpinned);
	tt_ticket_lock_release(&job->engine.lock);
	return node ? tt_container_of(node, struct tt_pinned, link) : NULL;
}

void tt_unpin_waiting(struct tt_job *job)
{
	struct tt_pinned *p;

	while ((job->engine.pins || job->engine.pin_above < SIZE_MAX) && (p = pop_unpinned(job)))
		tt_unpin_now(p);
}

static struct tt_pinned *find_kept(struct tt_engine *e, const struct tt_mem *mem, int remote, uint64_t serial)
{
	struct tt_pinned *p = *bucket(e, serial);

	while (p && (p->arena != serial || p->remote != remote || p->mem.base != mem->base || p->mem.len != mem->len))
		p = p->next;
	return p;
}

/* NULL: it is not pinned yet. */
static struct tt_pinned *use_kept(struct tt_job *job, const struct tt_mem *mem, int remote, uint64_t serial)
{
	struct tt_engine *e = &job->engine;

	tt_ticket_lock_take(&e->lock);
	struct tt_pinned *found = find_kept(e, mem, remote, serial);
	if (found)
		found->uses++;
	if (found && makes_room(found)) {
		tt_list_remove(&found->link); /* the last used is the last */
		tt_list_append(&e->recent, &found->link);
	}
	tt_ticket_lock_release(&e->lock);
	return found;
}

/* The serial number of the arena, or of the registered range, that holds all. 0: neither does. With the lock. */
static uint64_t find_kept_range(const struct tt_job *job, const void *base, size_t len, struct tt_mem *all)
{
	uint64_t serial = tt_arena_of(base, len, all);

	return serial ? serial : tt_registered_of(job, base, len, all);
}

struct tt_pinned *tt_use_kept(struct tt_job *job, const void *base, size_t len)
{
	struct tt_engine *e = &job->engine;
	struct tt_mem all;

	forget_freed(job); /* the address of the last one may come again */
	if (!e->last_kept || !tt_pinned_holds(e->last_kept, base, len)) {
		uint64_t serial = find_kept_range(job, base, len, &all);
		struct tt_pinned *found = serial ? find_kept(e, &all, 0, serial) : NULL;
		if (!found)
			return NULL;
		e->last_kept = found;
	}
	e->last_kept->uses++;
	return e->last_kept;
}

static void keep_locked(struct tt_job *job, struct tt_pinned *kept, uint64_t serial)
{
	struct tt_engine *e = &job->engine;
	struct tt_pinned **at = bucket(e, serial);

	kept->arena = serial;
	kept->uses++;
	kept->next = *at;
	*at = kept;
	e->kept_count++;
	if (!makes_room(kept))
		return;
	tt_list_append(&e->recent, &kept->link);
	if (++e->recent_count > KEPT)
		let_go_of(job, tt_container_of(e->recent.next, struct tt_pinned, link));
}

/* Memory that was unregistered meanwhile is not kept. */
static void keep(struct tt_job *job, struct tt_pinned *kept, uint64_t serial)
{
	tt_ticket_lock_take(&job->engine.lock);
	if (!(serial & TT_REGISTERED) || tt_registered_is(job, &kept->mem, serial))
		keep_locked(job, kept, serial);
	tt_ticket_lock_release(&job->engine.lock);
}

struct allocation { /* of a device */
	const void *base;
	uint64_t number;
};

/* The nth device's allocation that is kept. False: there are fewer. */
static bool nth_kept(struct tt_job *job, int n, struct allocation *out)
{
	bool any = false;

	tt_ticket_lock_take(&job->engine.lock);
	tt_each_of(struct tt_pinned, link, p, &job->engine.recent)
		if (is_device(p) && !any && !n--) {
			*out = (struct allocation){ p->range.base, p->arena };
			any = true;
		}
	tt_ticket_lock_release(&job->engine.lock);
	return any;
}

static void drop_allocation(struct tt_job *job, uint64_t number)
{
	tt_ticket_lock_take(&job->engine.lock);
	tt_pins_drop(job, number);
	tt_ticket_lock_release(&job->engine.lock);
}

static void drop_freed(struct tt_job *job)
{
	struct allocation a = { NULL, 0 };

	for (int n = 0; nth_kept(job, n, &a);)
		if (tt_gpu_is_there(a.base, a.number))
			n++;
		else
			drop_allocation(job, a.number);
}

/* What is kept for no call that is under way. */
static bool give_up_idle(struct tt_job *job)
{
	struct tt_engine *e = &job->engine;
	bool any = false;

	tt_ticket_lock_take(&e->lock);
	tt_each_of(struct tt_pinned, link, p, &e->recent)
		if (p->uses == 1) {
			let_go_of(job, p);
			any = true;
		}
	tt_ticket_lock_release(&e->lock);
	return any;
}

static int pin_anew(struct tt_job *job, const struct tt_mem *mem, int remote, struct tt_pinned **out)
{
	tt_unpin_waiting(job);
	int err = tt_pin_mem(job, mem, remote, out);
	if (err != -ENOMEM || !give_up_idle(job)) /* as much is locked as may be */
		return err;
	tt_unpin_waiting(job);
	return tt_pin_mem(job, mem, remote, out);
}

/* Two threads may pin one arena at the same time: then it is pinned twice, until it is freed. */
static int pin_kept(struct tt_job *job, const struct tt_mem *mem, int remote, const struct tt_mem *all, uint64_t serial,
                    struct tt_pinned **out)
{
	int err;

	if ((*out = use_kept(job, mem, remote, serial)))
		return 0;
	if ((err = pin_anew(job, mem, remote, out)))
		return err;
	(*out)->stays = serial & TT_REGISTERED && mem->base == all->base && mem->len == all->len;
	keep(job, *out, serial);
	return 0;
}

int tt_look_for_device(const void *base, size_t len, struct tt_gpu_range *range)
{
	struct tt_mem arena;

	range->device = -1;
	return tt_arena_of(base, len, &arena) ? 0 : tt_gpu_find(base, len, range);
}

int tt_refuse_device(const char *what, const char *name, const void *memory, size_t len)
{
	struct tt_gpu_range range;
	int err = tt_look_for_device(memory, len, &range);

	if (err || range.device < 0)
		return err;
	return tt_fail(-ENOTSUP, "%s: %s is memory of GPU %d, and this call takes the host's alone: "
	                         "copy it there first", what, name, range.device);
}

int tt_tensors_host_only(const char *what, const tutti_tensor *list, int n)
{
	char name[32];
	int err = 0;

	tt_gpu_look();
	for (int i = 0; !err && i < n; i++) {
		snprintf(name, sizeof name, "tensor %d", i);
		err = tt_host_only(what, name, list[i].data, list[i].count * tt_type_size(list[i].type));
	}
	return err;
}

static bool is_kept_for(const struct tt_job *job, const struct tt_pinned *p, enum tt_pin_for use)
{
	const struct tt_gpu_range *in = &p->range;

	return job->engine.pins && use != TT_PIN_WINDOW && in->buffer &&
	       p->mem.len <= in->len - (size_t)((char *)p->mem.base - in->base);
}

/* For this process's own use all of the allocation is pinned. An adapter that cannot map so much may map the range of
 * the call. The allocation is kept without a pin then, and no later call tries to pin all of the allocation. */
static int pin_on_nets(struct tt_job *job, struct tt_pinned *p, enum tt_pin_for use)
{
	struct tt_mem mem = p->mem;
	struct tt_pinned *kept;
	int err;

	if (!is_kept_for(job, p, use))
		return pin_everywhere(job, p);
	if (use == TT_PIN_READ) {
		mem.base = p->range.base;
		mem.len = p->range.len;
	}
	if (!(kept = use_kept(job, &mem, p->remote, p->range.buffer))) {
		drop_freed(job);
		if ((err = pin_anew(job, &mem, p->remote, &kept)))
			return err;
		kept->range = p->range;
		keep(job, kept, p->range.buffer);
	}
	if (kept->pins[0] || mem.len == p->mem.len) {
		p->kept = kept;
		return 0;
	}
	tt_ticket_lock_take(&job->engine.lock);
	tt_unpin(job, kept);
	tt_ticket_lock_release(&job->engine.lock);
	return pin_everywhere(job, p);
}

static int pin_device(struct tt_job *job, const void *base, size_t len, enum tt_pin_for use,
                      const struct tt_gpu_range *range, struct tt_pinned **out)
{
	const struct tt_mem mem = { .base = (void *)(uintptr_t)base, .len = len, .gpu = range->device, .fd = -1 };
	struct tt_pinned *p = new_pinned(&mem, use != TT_PIN_READ);
	int err;

	if (!p)
		return tt_fail(-ENOMEM, "no memory to pin %zu bytes of GPU %d", len, range->device);
	p->range = *range;
	if ((err = tt_gpu_fence_note(range->device, tt_gpu_stream(range->device), &p->fence)) ||
	    (use != TT_PIN_COPY && (err = pin_on_nets(job, p, use)))) {
		tt_unpin_now(p);
		return err;
	}
	if (use == TT_PIN_WINDOW && range->ours && tt_gpu_export(range->base, &p->fd))
		p->fd = 0; /* others read it in pieces */
	*out = p;
	return 0;
}

static int pin_for(struct tt_job *job, const void *base, size_t len, enum tt_pin_for use,
                   const struct tt_gpu_range *known, struct tt_pinned **out)
{
	struct tt_mem arena, mem = tt_mem_of((void *)(uintptr_t)base, len);
	struct tt_gpu_range range = known ? *known : (struct tt_gpu_range){ .device = -1 };

	tt_ticket_lock_take(&job->engine.lock);
	uint64_t serial = use == TT_PIN_WINDOW ? 0 : find_kept_range(job, base, len, &arena);
	tt_ticket_lock_release(&job->engine.lock);
	int err = serial || known ? 0 : tt_find_device(base, len, &range);

	if (err || range.device >= 0)
		return err ? err : pin_device(job, base, len, use, &range, out);
	if (!tt_pins_host(job, len, use))
		return 0;
	if (serial) {
		err = pin_kept(job, use == TT_PIN_READ ? &arena : &mem, use != TT_PIN_READ, &arena, serial, out);
		/* a few bytes may be copied where all of the arena cannot be locked */
		return err == -ENOMEM && use == TT_PIN_READ && len <= job->engine.pin_above ? 0 : err;
	}
	if (use == TT_PIN_READ && len <= job->engine.pin_above)
		return 0;
	return pin_anew(job, &mem, use != TT_PIN_READ, out);
}

int tt_pin_user(struct tt_job *job, const void *base, size_t len, enum tt_pin_for use,
                const struct tt_gpu_range *known, struct tt_pinned **out)
{
	int err = tt_begin(job);

	if (err)
		return err;
	job->inside++; /* the nets stay meanwhile */
	tt_unlock(job);
	err = pin_for(job, base, len, use, known, out);
	tt_lock(job);
	job->inside--;
	job->engine.news |= job->ending;
	tt_unlock(job);
	return err;
}

void tt_pins_close(struct tt_job *job)
{
	for (size_t i = 0; i < TT_KEPT_BUCKETS; i++)
		while (job->engine.kept[i])
			let_go(job, &job->engine.kept[i]);
	tt_unpin_waiting(job);
	tt_registered_close(job);
}
