/* buffers.c - which buffer the owner writes into, and which one others read */
#include "publish/publish.h"

void tt_buffers_spoil(struct tt_buffers *b, int i)
{
	__atomic_store_n(&b->stamp[i].number, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

int tt_buffers_oldest(const struct tt_buffers *b, unsigned kept)
{
	int best = -1;

	for (int i = 0; i < b->n; i++)
		if (i != b->newest && !(kept >> i & 1) && (best < 0 || b->stamp[i].number < b->stamp[best].number))
			best = i;
	return best;
}

void tt_buffers_show(struct tt_buffers *b, int i, uint64_t number, uint64_t about, uint64_t about_too)
{
	struct tt_stamp *s = &b->stamp[i];

	__atomic_store_n(&b->number, number, __ATOMIC_RELAXED); /* other threads of the owner look at it */
	b->newest = i;
	s->about[0] = about;
	s->about[1] = about_too;
	s->born = tt_calendar();
	__atomic_store_n(&s->number, number, __ATOMIC_RELEASE);
	b->front->last = *s;
	__atomic_store_n(&b->front->newest, number * (uint64_t)b->most + (uint64_t)i, __ATOMIC_RELEASE);
}

int tt_front_read(uint64_t newest, const struct tt_stamp *last, int most, int *buffer)
{
	if (!newest)
		return -ENODATA;
	*buffer = (int)(newest % (uint64_t)most);
	return last->number == newest / (uint64_t)most ? 0 : -EAGAIN;
}
