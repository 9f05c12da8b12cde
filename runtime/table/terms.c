/* terms.c - the part of a table's config that all ranks must give alike, and in which member two ranks differ
 *
 * The terms are words of 64 bits: numbers as they are, doubles by their bits. The head of a shard and a REPORT have
 * them. A list of ranks is a checksum and its first entries, which are enough to name the entry that differs. An update
 * function of the program's own cannot be compared. */
#include "table/table_private.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LISTED = 16, LIST = LISTED + 1 }; /* entries of a list in the terms, behind its checksum */

enum kind { NUMBER, BITS, REAL, TYPE, RULE, MODE, INIT };

static const struct member {
	const char *name; /* as tutti_table_config and the structs in it have it */
	enum kind is;
} members[] = {
	{ "type", TYPE }, { "count", NUMBER }, { "row", NUMBER }, { "flags", BITS }, { "clip", REAL },
	{ "update rule", RULE }, { "updater.flags", BITS }, { "updater.own_states", NUMBER },
	{ "scale", REAL }, { "learning_rate", REAL }, { "weight_decay", REAL }, { "momentum", REAL }, { "rho", REAL },
	{ "compensation", REAL }, { "beta1", REAL }, { "beta2", REAL }, { "epsilon", REAL }, { "alpha", REAL },
	{ "beta", REAL }, { "l1", REAL }, { "l2", REAL },
	{ "consistency.mode", MODE }, { "consistency.staleness", NUMBER }, { "consistency.backup", NUMBER },
	{ "init.kind", INIT }, { "init.seed", NUMBER }, { "init.a", REAL }, { "init.b", REAL }, { "init.sigma", REAL },
	{ "servers", NUMBER }, { "workers", NUMBER },
};
_Static_assert(TT_COUNT(members) + 2 * LIST == TT_TERMS, "TT_TERMS counts the members and two lists");

static uint64_t bits_of(double x)
{
	uint64_t bits;

	x = isnan(x) ? NAN : x; /* one of all NaNs */
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

static uint64_t *put_list(uint64_t *w, const int *rank, int n)
{
	*w++ = tt_sum64(rank, (size_t)n * sizeof *rank);
	for (int i = 0; i < LISTED; i++)
		*w++ = i < n ? (uint64_t)rank[i] : UINT64_MAX;
	return w;
}

void tt_terms_make(struct tutti_table *t, double clip)
{
	const tutti_update *o = &t->updater.defaults;
	const double options[] = { o->scale, o->learning_rate, o->weight_decay, o->momentum, o->rho, o->compensation,
		                   o->beta1, o->beta2, o->epsilon, o->alpha, o->beta, o->l1, o->l2 };
	const uint64_t numbers[] = {
		(uint64_t)t->as.mode, (uint64_t)t->as.staleness, (uint64_t)t->as.backup, (uint64_t)t->init.kind,
		t->init.seed, bits_of(t->init.a), bits_of(t->init.b), bits_of(t->init.sigma), (uint64_t)t->servers,
		(uint64_t)t->workers,
	};
	uint64_t *w = t->terms;

	*w++ = (uint64_t)t->type;
	*w++ = t->count;
	*w++ = t->row;
	*w++ = t->flags;
	*w++ = bits_of(clip);
	*w++ = (uint64_t)t->updater.rule;
	*w++ = t->updater.flags;
	*w++ = (uint64_t)t->updater.own_states;
	for (size_t i = 0; i < TT_COUNT(options); i++)
		*w++ = bits_of(options[i]);
	memcpy(w, numbers, sizeof numbers);
	w = put_list(w + TT_COUNT(numbers), t->server, t->servers);
	put_list(w, t->worker, t->workers);
	t->print = tt_sum64(t->terms, sizeof t->terms);
}

/* ---- sentences ---- */

struct value { char text[32]; };

static struct value name(const char *known, uint64_t word)
{
	struct value v;

	if (known)
		snprintf(v.text, sizeof v.text, "%s", known);
	else
		snprintf(v.text, sizeof v.text, "number %llu", (unsigned long long)word);
	return v;
}

static struct value real(uint64_t word, bool all_digits)
{
	struct value v = { "the default" };
	double x;

	memcpy(&x, &word, sizeof x);
	if (!isnan(x))
		snprintf(v.text, sizeof v.text, all_digits ? "%a" : "%.12g", x);
	return v;
}

const char *tt_mode_name(uint64_t mode)
{
	static const char *const names[] = { "ASYNC", "SSP", "BSP" };

	return mode < TT_COUNT(names) ? names[mode] : NULL;
}

static struct value value_of(enum kind is, uint64_t word)
{
	static const char *const inits[] = { "ZERO", "UNIFORM", "NORMAL" };
	struct value v;

	switch (is) {
	case TYPE: return name(word <= INT32_MAX ? tt_type_name((tutti_type)word) : NULL, word);
	case RULE: return name(word <= INT32_MAX ? tt_update_name((tutti_update_rule)word) : NULL, word);
	case MODE: return name(tt_mode_name(word), word);
	case INIT: return name(word < TT_COUNT(inits) ? inits[word] : NULL, word);
	case REAL: return real(word, false);
	case BITS: snprintf(v.text, sizeof v.text, "%#llx", (unsigned long long)word); break;
	case NUMBER: snprintf(v.text, sizeof v.text, "%llu", (unsigned long long)word); break;
	}
	return v;
}

static int refuse_list(const struct tutti_table *t, const char *them, const char *role, const uint64_t *mine,
                       const uint64_t *theirs)
{
	for (int i = 1; i < LIST; i++)
		if (mine[i] != theirs[i])
			return tt_fail(-EINVAL, "table \"%s\": the config's %s %d is rank %lld in the list of %s, and "
			               "rank %lld in that of rank %d: all ranks give the same list", t->name, role,
			               i - 1, (long long)theirs[i], them, (long long)mine[i], t->job->rank);
	return tt_fail(-EINVAL, "table \"%s\": %s opened it with another list of %ss than rank %d; the first %d are "
	               "the same", t->name, them, role, t->job->rank, LISTED);
}

int tt_terms_refuse(const struct tutti_table *t, const char *them, const uint64_t *theirs)
{
	const uint64_t *mine = t->terms, *servers = mine + TT_COUNT(members), *workers = servers + LIST;
	const uint64_t *their_servers = theirs + TT_COUNT(members), *their_workers = their_servers + LIST;

	for (size_t i = 0; i < TT_COUNT(members); i++) {
		if (mine[i] == theirs[i])
			continue;
		struct value m = value_of(members[i].is, mine[i]), v = value_of(members[i].is, theirs[i]);
		if (!strcmp(m.text, v.text)) { /* they differ in a late digit */
			m = real(mine[i], true);
			v = real(theirs[i], true);
		}
		return tt_fail(-EINVAL, "table \"%s\": %s opened it with %s %s, and rank %d with %s: all ranks give "
		               "the same config", t->name, them, members[i].name, v.text, t->job->rank, m.text);
	}
	return memcmp(servers, their_servers, LIST * sizeof *servers) ?
	       refuse_list(t, them, "server", servers, their_servers) :
	       refuse_list(t, them, "worker", workers, their_workers);
}
