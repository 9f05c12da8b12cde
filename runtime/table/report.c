/* report.c - finds ranks of a group that open a table of one name with different configs
 *
 * Ranks compare their terms with those of the servers that they list. Ranks that list different servers may never meet:
 * each would have a table of its own. So each server also reports its terms to the group's lowest living rank, which
 * remembers the terms of each name and answers with the rank that has given others.
 *
 *      REPORT {number, group, name, terms}  -->
 *                                           <--  REPORTED {number, rank, its terms}
 *      REPORT {0, group, name}              -->  the table is closed here
 *
 * The opening stays non-collective: it waits for one answer of the library, not for a call of another program. A new
 * lowest rank, where the one before has left or died, knows nothing of tables that were opened before. */
#include "member/member.h"
#include "table/table_private.h"
#include <stdlib.h>
#include <string.h>

enum { NOBODY = -1, AGAIN_MS = 10, AGAIN_FOR_MS = 1000 };

struct tt_report { /* the terms under a name, and who has given them */
	struct tt_list link;         /* in tt_tables.reports */
	uint32_t group;              /* its uid; 0: the whole job */
	uint64_t terms[TT_TERMS];
	int reporters;
	const char *name;
	bool by[];                   /* by rank; then the name */
};

struct question { /* on the stack of the thread that opens a table */
	struct tt_list link;         /* in tt_tables.questions */
	const struct tt_member *to;
	uint32_t number;
	bool answered;
	int rank;                    /* that has given other terms; or NOBODY */
	uint64_t terms[TT_TERMS];    /* ... these */
};

/* ---- the lowest rank's side ---- */

static struct tt_report *find_report(const struct tt_job *job, uint32_t group, const char *name)
{
	tt_each_of(struct tt_report, link, r, &tt_tables(job)->reports)
		if (r->group == group && !strcmp(r->name, name))
			return r;
	return NULL;
}

static void withdraw(struct tt_report *r, int rank)
{
	if (!r->by[rank])
		return;
	r->by[rank] = false;
	if (--r->reporters)
		return;
	tt_list_remove(&r->link);
	free(r);
}

static struct tt_report *new_report(struct tt_job *job, uint32_t group, const char *name)
{
	size_t ranks = (size_t)tt_members(job)->capacity, len = strlen(name) + 1;
	struct tt_report *r = calloc(1, sizeof *r + ranks + len);

	if (!r)
		return NULL;
	r->group = group;
	r->name = memcpy((char *)&r->by[ranks], name, len);
	tt_list_append(&tt_tables(job)->reports, &r->link);
	return r;
}

/* Remembers the terms. Returns the report that has others; NULL: there is none, or no memory to remember these. */
static const struct tt_report *note(struct tt_job *job, int rank, uint32_t group, const char *name,
                                    const uint64_t *terms)
{
	struct tt_report *r = find_report(job, group, name);

	if (r && r->reporters > r->by[rank] && memcmp(r->terms, terms, sizeof r->terms))
		return r;
	if (!r && !(r = new_report(job, group, name)))
		return NULL;
	memcpy(r->terms, terms, sizeof r->terms);
	r->reporters += !r->by[rank];
	r->by[rank] = true;
	return NULL;
}

static int first_of(const struct tt_report *r)
{
	int rank = 0;

	while (!r->by[rank])
		rank++;
	return rank;
}

static void put_terms(struct tt_pack *p, const uint64_t *terms)
{
	for (int i = 0; i < TT_TERMS; i++)
		tt_put64(p, terms[i]);
}

static void get_terms(struct tt_pack *p, uint64_t *terms)
{
	for (int i = 0; i < TT_TERMS; i++)
		terms[i] = tt_get64(p);
}

static void answer(struct tt_member *to, uint32_t number, const struct tt_report *other)
{
	uint8_t bytes[9 + 8 * TT_TERMS];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_REPORTED);
	tt_put32(&p, number);
	tt_put32(&p, (uint32_t)(other ? first_of(other) : NOBODY));
	if (other)
		put_terms(&p, other->terms);
	tt_send(to, bytes, (size_t)(p.at - bytes), NULL, 0);
}

void tt_table_take_report(struct tt_member *from, struct tt_pack *p)
{
	uint32_t number = tt_get32(p), group = tt_get32(p);
	uint64_t terms[TT_TERMS];
	struct tt_report *r;
	char name[256];

	tt_get_text(p, name, sizeof name);
	if (number)
		get_terms(p, terms);
	if (p->bad)
		return;
	if (number)
		answer(from, number, note(from->job, from->rank, group, name, terms));
	else if ((r = find_report(from->job, group, name)))
		withdraw(r, from->rank);
}

void tt_table_forget_reports(struct tt_member *of)
{
	tt_each_of(struct tt_report, link, r, &tt_tables(of->job)->reports)
		withdraw(r, of->rank);
}

void tt_table_free_reports(struct tt_job *job)
{
	tt_each_of(struct tt_report, link, r, &tt_tables(job)->reports)
		free(r);
	tt_list_init(&tt_tables(job)->reports);
}

/* ---- a server's side ---- */

void tt_table_take_reported(struct tt_member *from, struct tt_pack *p)
{
	uint32_t number = tt_get32(p);
	int rank = (int)tt_get32(p);
	uint64_t terms[TT_TERMS] = { 0 };

	if (rank != NOBODY)
		get_terms(p, terms);
	p->bad |= rank < NOBODY || rank >= from->job->size;
	tt_each_of(struct question, link, q, &tt_tables(from->job)->questions) {
		if (p->bad || q->number != number || q->to != from)
			continue;
		q->answered = from->job->engine.news = true;
		q->rank = rank;
		memcpy(q->terms, terms, sizeof terms);
	}
}

static void send_report(const struct tutti_table *t, struct tt_member *to, uint32_t number)
{
	uint8_t bytes[9 + 256 + 8 * TT_TERMS];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_REPORT);
	tt_put32(&p, number);
	tt_put32(&p, t->group);
	tt_put_text(&p, t->name);
	if (number)
		put_terms(&p, t->terms);
	tt_send(to, bytes, (size_t)(p.at - bytes), NULL, 0);
}

/* This rank lives, so there is one. */
static struct tt_member *find_lowest(const tutti *at)
{
	bool whole = at == tt_members(at->job)->whole; /* a later life of a rank has no seat there, and is a rank */

	for (int i = 0;; i++) {
		struct tt_member *m = tt_member(at->job, tt_group_to_job(at, i));
		if (m->rank == at->job->rank || (m->state < TT_LEFT && (whole || !at->seats[i].out)))
			return m;
	}
}

static bool is_over(void *arg)
{
	const struct question *q = arg;

	return q->answered || q->to->state >= TT_LEFT;
}

static void say_awaited(void *arg)
{
	const struct question *q = arg;

	tt_log(TT_WARN, "the opening of a table waits for %s, which compares the configs of its servers",
	       tt_member_label(q->to).text);
}

/* Asks one rank. -ECONNRESET: it has left or died; its successor is to be asked. */
static int ask(struct tutti_table *t, struct tt_member *m, struct question *q)
{
	struct tt_job *job = t->job;
	const struct tt_report *other;
	int err;

	*q = (struct question){ .to = m, .number = ++tt_tables(job)->asked, .rank = NOBODY };
	t->reported_to = m->rank;
	if (m->rank == job->rank) {
		if ((other = note(job, job->rank, t->group, t->name, t->terms))) {
			q->rank = first_of(other);
			memcpy(q->terms, other->terms, sizeof q->terms);
		}
		return 0;
	}
	tt_list_append(&tt_tables(job)->questions, &q->link);
	send_report(t, m, q->number);
	err = tt_await(job, tt_hook.opening, is_over, q, t->timeout, say_awaited);
	tt_list_remove(&q->link);
	if (err == -ETIMEDOUT)
		err = tt_fail(err, "table \"%s\": %s, which compares the configs of its servers, did not answer within "
		              "%llu ms", t->name, tt_member_label(m).text, tt_timeout_ms(t));
	return err ? err : q->answered ? 0 : -ECONNRESET;
}

static bool never(void *arg) { return arg; }

/* A rank that has closed its table and met this rank in a barrier since may still have its word on the way. */
static int ask_until(struct tutti_table *t, const tutti *at, uint64_t deadline)
{
	struct question q;
	int err;

	do {
		while ((err = ask(t, find_lowest(at), &q)) == -ECONNRESET)
			continue;
		if (err || q.rank == NOBODY)
			return err;
		err = tt_wait_for(t->job, tt_hook.opening, never, NULL, tt_now() + AGAIN_MS * TT_MS);
	} while (err == -ETIMEDOUT && tt_now() < deadline);
	return err != -ETIMEDOUT ? err :
	       tt_terms_refuse(t, tt_member_label(tt_member(t->job, q.rank)).text, q.terms);
}

int tt_table_report(struct tutti_table *t, const tutti *at)
{
	int err;

	tt_lock(t->job);
	t->group = at == tt_members(at->job)->whole ? 0 : at->uid;
	err = ask_until(t, at, tt_now() + tt_min(AGAIN_FOR_MS * TT_MS, t->timeout));
	tt_unlock(t->job);
	return err;
}

void tt_table_take_back_report(struct tutti_table *t)
{
	struct tt_job *job = t->job;
	struct tt_report *r = find_report(job, t->group, t->name);

	if (t->reported_to == job->rank && r)
		withdraw(r, job->rank);
	else if (t->reported_to >= 0 && t->reported_to != job->rank &&
	         tt_member(job, t->reported_to)->state < TT_LEFT)
		send_report(t, tt_member(job, t->reported_to), 0);
	t->reported_to = NOBODY;
}
