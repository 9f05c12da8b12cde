/* cpus.c - sets of processors */
#include "topology/topology.h"
#include <sched.h>
#include <stdlib.h>

enum { WORDS = TT_CPUS / 64 };

void tt_cpus_add(struct tt_cpus *s, int cpu)
{
	if (cpu >= 0 && cpu < TT_CPUS)
		s->word[cpu / 64] |= 1ull << cpu % 64;
}

void tt_cpus_keep(struct tt_cpus *s, const struct tt_cpus *these)
{
	for (int i = 0; i < WORDS; i++)
		s->word[i] &= these->word[i];
}

int tt_cpus_count(const struct tt_cpus *s)
{
	int n = 0;

	for (int i = 0; i < WORDS; i++)
		n += __builtin_popcountll(s->word[i]);
	return n;
}

bool tt_cpus_within(const struct tt_cpus *s, const struct tt_cpus *outer)
{
	for (int i = 0; i < WORDS; i++)
		if (s->word[i] & ~outer->word[i])
			return false;
	return true;
}

static bool take_number(const char **at, long *out)
{
	char *end;

	if (**at < '0' || **at > '9')
		return false;
	*out = strtol(*at, &end, 10);
	*at = end;
	return *out < TT_CPUS;
}

/* One "4", "0-3" or "0-30:2". */
static bool take_range(const char **at, struct tt_cpus *out)
{
	long first, last, step = 1;

	if (!take_number(at, &first))
		return false;
	last = first;
	if (**at == '-' && (++*at, !take_number(at, &last)))
		return false;
	if (**at == ':' && last > first && (++*at, !take_number(at, &step) || !step))
		return false;
	for (long i = first; i <= last; i += step)
		tt_cpus_add(out, (int)i);
	return last >= first;
}

bool tt_cpus_parse(struct tt_cpus *out, const char *list)
{
	struct tt_cpus s = { { 0 } };

	do {
		if (!take_range(&list, &s))
			return false;
	} while (*list++ == ',');
	if (list[-1] && strcmp(list - 1, "\n")) /* which ends the kernel's lists */
		return false;
	*out = s;
	return true;
}

/* Stops at the last range that leaves room for "...". */
const char *tt_cpus_text(const struct tt_cpus *s, char *room, size_t size)
{
	char range[24];
	size_t len = 0;

	*room = 0;
	for (int i = 0; i < TT_CPUS; i++) {
		int first = i;
		if (!tt_cpus_has(s, i))
			continue;
		while (tt_cpus_has(s, i + 1))
			i++;
		const char *fmt = i > first ? "%s%d-%d" : "%s%d";
		size_t n = (size_t)snprintf(range, sizeof range, fmt, len ? "," : "", first, i);
		if (len + n + 4 >= size) {
			snprintf(room + len, size - len, "...");
			break;
		}
		memcpy(room + len, range, n + 1);
		len += n;
	}
	return room;
}

int tt_cpus_allowed(struct tt_cpus *out)
{
	memset(out, 0, sizeof *out);
	if (sched_getaffinity(0, sizeof *out, (cpu_set_t *)(void *)out) < 0)
		memset(out, 0, sizeof *out);
	return tt_cpus_count(out);
}
