/* histogram.c - a histogram of times in fixed memory: eight buckets for each power of two, so a value and the middle of
 * its bucket differ by at most 1/16. The first eight values have a bucket each.
 *
 *      value    0 1 .. 7 | 8 9 .. 15 | 16-17 18-19 .. 30-31 | 32-35 .. 60-63 | ...
 *      bucket   0 1 .. 7 | 8 9 .. 15 |    16    17 ..    23 |    24 ..    31 | ... */
#include "base/base.h"

static unsigned bucket_of(uint64_t v)
{
	if (v < 8)
		return (unsigned)v;
	unsigned e = 63 - (unsigned)__builtin_clzll(v); /* the highest bit; the next three choose the bucket */
	return (unsigned)tt_min((e - 2) * 8 + (v >> (e - 3) & 7), TT_HIST_BUCKETS - 1);
}

static double middle_of(unsigned bucket)
{
	unsigned shift = bucket < 16 ? 0 : bucket / 8 - 1;

	return bucket < 8 ? bucket : (double)((uint64_t)(8 + bucket % 8) << shift) + (double)((1ull << shift) - 1) / 2;
}

/* Counts have 32 bits to save memory. Before one overflows all are halved, which keeps the quantiles. */
static void halve(struct tt_hist *h)
{
	for (unsigned i = 0; i < TT_HIST_BUCKETS; i++)
		h->bucket[i] /= 2;
}

void tt_hist_add(struct tt_hist *h, uint64_t v)
{
	uint32_t *at = &h->bucket[bucket_of(v)];

	if (*at == UINT32_MAX)
		halve(h);
	++*at;
	h->count++;
	h->sum += v;
	if (v > h->max)
		h->max = v;
}

void tt_hist_merge(struct tt_hist *to, const struct tt_hist *from)
{
	bool half = false;

	for (unsigned i = 0; i < TT_HIST_BUCKETS; i++)
		half = half || to->bucket[i] > UINT32_MAX - from->bucket[i];
	if (half)
		halve(to);
	for (unsigned i = 0; i < TT_HIST_BUCKETS; i++)
		to->bucket[i] += from->bucket[i] >> half;
	to->count += from->count;
	to->sum += from->sum;
	to->max = to->max > from->max ? to->max : from->max;
}

double tt_hist_quantile(const struct tt_hist *h, double p)
{
	uint64_t total = 0, seen = 0;
	unsigned i = 0;

	for (unsigned k = 0; k < TT_HIST_BUCKETS; k++)
		total += h->bucket[k];
	if (!total)
		return 0;
	while (i < TT_HIST_BUCKETS - 1 && ((seen += h->bucket[i]) == 0 || (double)seen < p * (double)total))
		i++;
	return middle_of(i) < (double)h->max ? middle_of(i) : (double)h->max;
}

double tt_hist_mean(const struct tt_hist *h) { return h->count ? (double)h->sum / (double)h->count : 0; }
