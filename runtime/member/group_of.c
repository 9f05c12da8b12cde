/* group_of.c - tutti_group_of: a group that its members make alone
 *
 * The first rank of the list is the collector. Each other member tells the collector which list it has given. When all
 * members have told it the same list, the collector draws the group's uid and sends all seats to all members.
 *
 *      member -- JOIN {number, slot, hash, list, name} ------------> collector
 *      member <- MADE {number, uid, first, count, count seats} ----- collector
 *      member <- REFUSED {number, errno, why} ---------------------- collector
 *      member -- WITHDRAW {number} --------------------------------> collector, which answers with one of these two
 *
 * The collector alone decides, so a call that gives up (timeout, interrupt, death of a member) withdraws, and then ends
 * as the collector says. A call that gets no answer soon ends all the same. If the collector makes the group later,
 * this rank resigns from the group (REVOKE). Two lists under one name may have different collectors, which would never
 * hear of each other. So a collector tells its list to its members. A member that has given another list tells both
 * collectors.
 *
 *      member <- CALLING {number, hash, list, name} ---------------- collector
 *      member -- CLASH {number, of the JOIN or the CALLING, other rank, why} --> a collector
 *
 * Lists travel as a hash and as a text for sentences.
 */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JOIN = 1, MADE, REFUSED, WITHDRAW, CALLING, CLASH };
enum {
	NAME = 201, LIST = 120, WHY = 400, /* bytes of texts, with the zero */
	LISTED = 12,                       /* ranks that a sentence lists */
	SEATS_AT_ONCE = 8192,              /* in a MADE, 6 bytes each */
	REQUESTS_MAX = 256,                /* of one member that wait for a call here */
	VERDICTS_MAX = 64,                 /* kept for members that come late */
	RESIGNATIONS_MAX = 256,
	BIRTH = -1,                        /* of a group of listed ranks: no number of a split */
	ANSWER_MS = 100,                   /* how long a call that has withdrawn waits for the collector's answer */
};

#define NOT_CALLED "%s has not called tutti_group_of with this name and list"

struct request { /* a JOIN that this rank, as the collector, has not answered */
	struct tt_list link;
	struct tt_member *from;
	uint32_t number;
	uint16_t slot;
	uint64_t hash;
	char list[LIST], name[NAME];
};

struct call { /* of tutti_group_of, while it lasts */
	struct tt_list link;
	struct tt_job *job;
	struct tutti *part;         /* the group to be */
	int *ranks, n, me;          /* ranks of the job, in the order of the list */
	int *seat_of;               /* by rank in the job; -1: not in the list */
	struct request **came;      /* collector: n of them, NULL: not yet */
	int missing;                /* how many those are */
	uint32_t number;
	uint64_t hash;
	char list[LIST], name[NAME];
	bool withdrawn, ended;
	bool left;                  /* the program has gone on without the collector's answer */
	int err;                    /* with which the call ends, or gives up */
	char why[WHY];
};

struct verdict { /* a call whose members gave different lists, for members that come later with one of these lists */
	struct tt_list link;
	uint64_t hash;
	int *ranks, n;              /* who is to hear of it; -1: has heard */
	char name[NAME], why[WHY];
};

struct resignation { /* a REVOKE that may have come before the group's MADE */
	struct tt_list link;
	const struct tt_member *from;
	uint32_t uid;
};

struct tt_forming {
	struct tt_list requests, calls, verdicts, resignations;
	uint32_t numbers;
	int kept, resigned;         /* verdicts, resignations */
};

static struct tt_forming *forming_of(const struct tt_job *job) { return tt_members(job)->forming; }
static struct tt_job *job_of(const struct call *c) { return c->job; }
static bool collects(const struct call *c) { return c->me == 0; }
static struct tt_member *member(const struct call *c, int i) { return tt_member(job_of(c), c->ranks[i]); }

/* ---- messages ---- */

static struct tt_pack begin_message(uint8_t *bytes, size_t size, uint8_t kind)
{
	struct tt_pack p = tt_pack(bytes, size);

	tt_put8(&p, TT_FORM);
	tt_put8(&p, kind);
	return p;
}

static void send_message(struct tt_member *to, const uint8_t *bytes, const struct tt_pack *p)
{
	if (to->state < TT_LEFT)
		tt_send(to, bytes, (size_t)(p->at - bytes), NULL, 0);
}

static void put_long_text(struct tt_pack *p, const char *text)
{
	tt_put16(p, (uint16_t)strlen(text));
	tt_put_bytes(p, text, strlen(text));
}

static void get_long_text(struct tt_pack *p, char *text, size_t size)
{
	size_t n = tt_get16(p);

	p->bad |= n >= size;
	n = p->bad ? 0 : n;
	tt_get_bytes(p, text, n);
	text[n] = 0;
}

static void say_join(struct call *c)
{
	uint8_t bytes[1024];
	struct tt_pack p = begin_message(bytes, sizeof bytes, JOIN);

	tt_put32(&p, c->number);
	tt_put16(&p, c->part->slot);
	tt_put64(&p, c->hash);
	tt_put_text(&p, c->list);
	tt_put_text(&p, c->name);
	send_message(member(c, 0), bytes, &p);
}

static void say_calling(const struct call *c, struct tt_member *to)
{
	uint8_t bytes[1024];
	struct tt_pack p = begin_message(bytes, sizeof bytes, CALLING);

	tt_put32(&p, c->number);
	tt_put64(&p, c->hash);
	tt_put_text(&p, c->list);
	tt_put_text(&p, c->name);
	send_message(to, bytes, &p);
}

static void say_clash(struct tt_member *to, uint32_t number, bool of_join, int other, const char *why)
{
	uint8_t bytes[1024];
	struct tt_pack p = begin_message(bytes, sizeof bytes, CLASH);

	tt_put32(&p, number);
	tt_put8(&p, of_join);
	tt_put32(&p, (uint32_t)other);
	put_long_text(&p, why);
	send_message(to, bytes, &p);
}

static void say_refused(struct tt_member *to, uint32_t number, int err, const char *why)
{
	uint8_t bytes[1024];
	struct tt_pack p = begin_message(bytes, sizeof bytes, REFUSED);

	tt_put32(&p, number);
	tt_put32(&p, (uint32_t)err);
	put_long_text(&p, why);
	send_message(to, bytes, &p);
}

static void say_seats(const struct call *c, struct tt_member *to, uint32_t number, int first)
{
	const struct tutti *g = c->part;
	int n = (int)tt_min((size_t)(g->n - first), SEATS_AT_ONCE);
	size_t size = 18 + 6 * (size_t)n;
	uint8_t *bytes = malloc(size);

	if (!bytes) {
		tt_member_fail_soon(to, 0, -ENOMEM, "no memory for a message to %s", tt_member_label(to).text);
		return;
	}
	struct tt_pack p = begin_message(bytes, size, MADE);
	tt_put32(&p, number);
	tt_put32(&p, g->uid);
	tt_put32(&p, (uint32_t)first);
	tt_put32(&p, (uint32_t)n);
	for (int i = first; i < first + n; i++) {
		tt_put32(&p, g->seats[i].epoch);
		tt_put16(&p, g->seats[i].slot);
	}
	send_message(to, bytes, &p);
	free(bytes);
}

/* ---- ends ---- */

static struct call *find_call(const struct tt_job *job, const char *name)
{
	tt_each_of(struct call, link, c, &forming_of(job)->calls)
		if (!strcmp(c->name, name) && !c->ended && !c->left)
			return c;
	return NULL;
}

static void end_call(struct call *c, int err, const char *why)
{
	if (c->ended)
		return;
	if (!c->withdrawn || !err || c->err == -ETIMEDOUT) { /* else the program hears what made the call give up */
		c->err = err;
		snprintf(c->why, sizeof c->why, "%.*s", WHY - 1, why);
	}
	c->ended = true;
	job_of(c)->engine.news = true;
}

static void drop_request(struct request *r)
{
	tt_list_remove(&r->link);
	free(r);
}

static void free_verdict(struct tt_job *job, struct verdict *v)
{
	tt_list_remove(&v->link);
	forming_of(job)->kept--;
	free(v->ranks);
	free(v);
}

static bool has_come(const struct call *c, int rank)
{
	tt_each_of(const struct request, link, r, &forming_of(job_of(c))->requests)
		if (r->from->rank == rank && !strcmp(r->name, c->name))
			return true;
	return rank == job_of(c)->rank;
}

/* Without memory, ranks that come later wait for their timeout. */
static struct verdict *keep_verdict(struct tt_job *job, const char *name, uint64_t hash, int n, const char *why)
{
	struct tt_forming *f = forming_of(job);
	struct verdict *v = calloc(1, sizeof *v);

	if (!v || !(v->ranks = calloc((size_t)n, sizeof *v->ranks))) {
		free(v);
		return NULL;
	}
	v->hash = hash;
	v->n = n;
	snprintf(v->name, sizeof v->name, "%s", name);
	snprintf(v->why, sizeof v->why, "%s", why);
	tt_list_append(&f->verdicts, &v->link);
	if (++f->kept > VERDICTS_MAX)
		free_verdict(job, tt_container_of(f->verdicts.next, struct verdict, link));
	return v;
}

static void keep_for_absent(const struct call *c, const char *why, int a, int b)
{
	struct verdict *v = keep_verdict(job_of(c), c->name, c->hash, c->n, why);

	for (int i = 0; v && i < c->n; i++) {
		int rank = c->ranks[i];
		v->ranks[i] = rank == a || rank == b || has_come(c, rank) ? -1 : rank;
	}
}

static void refuse_all(struct call *c, int err, const char *why)
{
	tt_each_of(struct request, link, r, &forming_of(job_of(c))->requests) {
		if (strcmp(r->name, c->name) != 0)
			continue;
		say_refused(r->from, r->number, err, why);
		drop_request(r);
	}
	memset(c->came, 0, (size_t)c->n * sizeof *c->came);
}

/* The collector's call fails, and so do all members' calls. The ranks a and b know that already; -1: none. */
static void fail_all(struct call *c, int err, const char *why, int a, int b)
{
	if (c->ended)
		return;
	if (err == -EBADMSG)
		keep_for_absent(c, why, a, b);
	refuse_all(c, err, why);
	end_call(c, err, why);
}

/* A member's call gives up: the collector says how it ends. */
static void withdraw(struct call *c, int err, const char *why)
{
	uint8_t bytes[8];
	struct tt_pack p = begin_message(bytes, sizeof bytes, WITHDRAW);

	if (c->ended || c->withdrawn)
		return;
	c->withdrawn = true;
	c->err = err;
	snprintf(c->why, sizeof c->why, "%s", why);
	tt_put32(&p, c->number);
	send_message(member(c, 0), bytes, &p);
}

static void name_missing(const struct call *c, char *text, size_t size)
{
	int named = 0, at = 0;

	for (int i = 1; i < c->n && c->missing; i++) {
		if (c->came[i] || ++named > LISTED || at >= (int)size)
			continue;
		at += snprintf(text + at, size - (size_t)at, "%s%s", at ? ", " : "",
		               tt_member_label(member(c, i)).text);
	}
	if (named > LISTED && at < (int)size)
		snprintf(text + at, size - (size_t)at, " and %d more", named - LISTED);
}

/* ---- two lists under one name ---- */

static void word_clash(const struct call *c, const struct tt_member *other, const char *list, char why[WHY])
{
	snprintf(why, WHY, "group \"%.60s\": rank %d has the list %s, and rank %d the list %s: all members must "
	         "give the same list", c->name, job_of(c)->rank, c->list, other->rank, list);
}

/* This rank's call cannot go on, as the list of rank `other` is another one. */
static void fail_clashed(struct call *c, int other, const char *why)
{
	if (collects(c))
		fail_all(c, -EBADMSG, why, other, -1);
	else
		say_clash(member(c, 0), c->number, true, other, why);
}

/* ---- the collector ---- */

/* parent and birth are those of no split: a member that resigns names the group so. */
static void begin_group(struct tutti *g, uint32_t uid)
{
	g->uid = g->parent = uid;
	g->birth = (uint32_t)BIRTH;
	tt_group_begun(g);
}

static uint32_t draw_uid(const struct tt_job *job)
{
	uint32_t uid = 0;

	while (!uid || tt_group_named(job, uid))
		tt_entropy(&uid, sizeof uid);
	return uid;
}

static void make_group(struct call *c)
{
	struct tutti *g = c->part;

	for (int i = 0; i < c->n; i++) {
		const struct request *r = c->came[i];
		tt_group_seat(g, i, c->ranks[i], r ? r->from->epoch : job_of(c)->epoch, r ? r->slot : g->slot);
	}
	uint32_t uid = g->uid = draw_uid(job_of(c));
	for (int i = 0; i < c->n; i++) {
		if (!c->came[i])
			continue;
		for (int first = 0; first < c->n; first += SEATS_AT_ONCE)
			say_seats(c, c->came[i]->from, c->came[i]->number, first);
		drop_request(c->came[i]);
		c->came[i] = NULL;
	}
	begin_group(g, uid);
	end_call(c, 0, "");
}

/* False: the request has another list, and the call has failed. */
static bool match(struct call *c, struct request *r)
{
	int i = c->seat_of[r->from->rank];
	char why[WHY];

	if (r->hash == c->hash && i >= 0 && collects(c)) {
		c->missing -= !c->came[i];
		c->came[i] = r;
		return true;
	}
	word_clash(c, r->from, r->list, why);
	say_refused(r->from, r->number, -EBADMSG, why);
	i = r->from->rank;
	drop_request(r);
	fail_clashed(c, i, why);
	return false;
}

static struct verdict *find_verdict(const struct tt_job *job, const char *name, uint64_t hash, int rank)
{
	tt_each_of(struct verdict, link, v, &forming_of(job)->verdicts)
		for (int i = 0; v->hash == hash && !strcmp(v->name, name) && i < v->n; i++)
			if (v->ranks[i] == rank) {
				v->ranks[i] = -1;
				return v;
			}
	return NULL;
}

static int count_requests(const struct tt_member *from)
{
	int n = 0;

	tt_each_of(struct request, link, r, &forming_of(from->job)->requests)
		n += r->from == from;
	return n;
}

static void take_join(struct tt_member *from, struct tt_pack *p)
{
	struct request *r, got = { .from = from, .number = tt_get32(p), .slot = tt_get16(p), .hash = tt_get64(p) };

	tt_get_text(p, got.list, sizeof got.list);
	tt_get_text(p, got.name, sizeof got.name);
	p->bad |= got.slot >= TT_GROUPS;
	if (p->bad)
		return;
	struct call *c = find_call(from->job, got.name);
	struct verdict *v = c ? NULL : find_verdict(from->job, got.name, got.hash, from->rank);
	if (v) {
		say_refused(from, got.number, -EBADMSG, v->why);
		return;
	}
	if (count_requests(from) >= REQUESTS_MAX || !(r = malloc(sizeof *r))) {
		char why[WHY];
		snprintf(why, sizeof why, "group \"%.60s\": %s keeps %d calls of this rank that it has not called: "
		         "no more", got.name, tt_member_label(tt_member(from->job, from->job->rank)).text,
		         REQUESTS_MAX);
		say_refused(from, got.number, -EAGAIN, why);
		return;
	}
	*r = got;
	tt_list_append(&forming_of(from->job)->requests, &r->link);
	if (c && match(c, r) && !c->missing)
		make_group(c);
}

static struct request *find_request(const struct tt_member *from, uint32_t number)
{
	tt_each_of(struct request, link, r, &forming_of(from->job)->requests)
		if (r->from == from && r->number == number)
			return r;
	return NULL;
}

static void take_withdrawal(struct tt_member *from, struct tt_pack *p)
{
	uint32_t number = tt_get32(p);
	struct request *r = p->bad ? NULL : find_request(from, number);
	struct call *c = r ? find_call(from->job, r->name) : NULL;
	char missing[WHY - 100] = "", why[WHY];

	if (!r)
		return; /* the answer is on its way */
	if (c)
		name_missing(c, missing, sizeof missing);
	else
		snprintf(missing, sizeof missing, "%s", tt_member_label(tt_member(from->job, from->job->rank)).text);
	snprintf(why, sizeof why, NOT_CALLED, missing);
	for (int i = 0; c && i < c->n; i++) {
		if (c->came[i] != r)
			continue;
		c->came[i] = NULL;
		c->missing++;
	}
	say_refused(from, number, -ETIMEDOUT, why);
	drop_request(r);
}

/* ---- what a member hears ---- */

static void free_call(struct call *c)
{
	free(c->ranks);
	free(c->came);
	free(c->seat_of);
	free(c);
}

static void forget_call(struct call *c)
{
	tt_list_remove(&c->link);
	free_call(c);
}

static struct call *find_number(const struct tt_member *from, uint32_t number)
{
	tt_each_of(struct call, link, c, &forming_of(from->job)->calls)
		if (c->number == number && !c->ended && c->ranks[0] == from->rank && !collects(c))
			return c;
	return NULL;
}

static void learn_epoch(struct tt_member *m, uint32_t epoch)
{
	if (m->rank == m->job->rank)
		return;
	if (tt_is_new_life(m, epoch))
		tt_member_reborn(m, epoch);
	else
		tt_member_epoch(m, epoch);
}

/* The group has this rank in it, but the program has gone on without the group: tells the other members. */
static void resign(struct call *c, uint32_t uid)
{
	const uint32_t words[] = { uid, (uint32_t)BIRTH };

	for (int i = 0; i < c->n; i++)
		if (i != c->me && member(c, i)->state < TT_LEFT)
			tt_send_words(member(c, i), TT_REVOKE, words, 2, NULL, 0);
}

static void drop_resignation(struct tt_forming *f, struct resignation *r)
{
	tt_list_remove(&r->link);
	f->resigned--;
	free(r);
}

static bool awaits_group_with(const struct tt_member *m)
{
	tt_each_of(const struct call, link, c, &forming_of(m->job)->calls)
		if (!c->ended && !c->left && !collects(c) && c->seat_of[m->rank] >= 0)
			return true;
	return false;
}

/* Another member has resigned. The collector's MADE may be on its way here. */
void tt_form_revoked(struct tt_member *from, uint32_t uid, uint32_t birth)
{
	struct tt_forming *f = forming_of(from->job);
	struct resignation *r;

	if (birth != (uint32_t)BIRTH || !f || tt_group_named(from->job, uid) || !awaits_group_with(from) ||
	    !(r = malloc(sizeof *r)))
		return;
	*r = (struct resignation){ .from = from, .uid = uid };
	tt_list_append(&f->resignations, &r->link);
	if (++f->resigned > RESIGNATIONS_MAX)
		drop_resignation(f, tt_container_of(f->resignations.next, struct resignation, link));
}

static void take_resigned_out(struct tutti *g, uint32_t uid)
{
	struct tt_forming *f = forming_of(g->job);

	tt_each_of(struct resignation, link, r, &f->resignations) {
		if (r->uid != uid)
			continue;
		if (tt_group_find(g, r->from))
			tt_group_resign(g, g->seat_of[r->from->rank]);
		drop_resignation(f, r);
	}
}

static void take_seats(struct tt_member *from, struct tt_pack *p)
{
	struct call *c = find_number(from, tt_get32(p));
	uint32_t uid = tt_get32(p), first = tt_get32(p), n = tt_get32(p);

	p->bad |= !uid || !n || tt_pack_left(p) != 6 * (size_t)n;
	p->bad |= c && (first > (uint32_t)c->n || n > (uint32_t)c->n - first);
	for (uint32_t i = first; c && !c->left && !p->bad && i < first + n; i++) {
		uint32_t epoch = tt_get32(p);
		uint16_t slot = tt_get16(p);
		p->bad |= slot >= TT_GROUPS || !epoch;
		if (p->bad)
			return;
		learn_epoch(member(c, (int)i), epoch);
		if (c->ended) /* the collector itself has come again */
			return;
		tt_group_seat(c->part, (int)i, c->ranks[i], epoch, slot);
	}
	tt_pack_take(p, tt_pack_left(p));
	if (!c || p->bad || first + n < (uint32_t)c->n)
		return;
	if (c->left) {
		resign(c, uid);
		forget_call(c);
		return;
	}
	take_resigned_out(c->part, uid);
	begin_group(c->part, uid);
	end_call(c, 0, "");
}

static void take_refusal(struct tt_member *from, struct tt_pack *p)
{
	struct call *c = find_number(from, tt_get32(p));
	int err = (int)tt_get32(p);
	char why[WHY];

	get_long_text(p, why, sizeof why);
	p->bad |= err >= 0 || err < -4095;
	if (c && !p->bad)
		c->left ? forget_call(c) : end_call(c, err, why);
}

static void take_calling(struct tt_member *from, struct tt_pack *p)
{
	uint32_t number = tt_get32(p);
	uint64_t hash = tt_get64(p);
	char list[LIST], name[NAME], why[WHY];

	tt_get_text(p, list, sizeof list);
	tt_get_text(p, name, sizeof name);
	struct call *c = p->bad ? NULL : find_call(from->job, name);
	if (!c || c->hash == hash)
		return;
	word_clash(c, from, list, why);
	say_clash(from, number, false, from->rank, why);
	fail_clashed(c, from->rank, why);
}

/* A member has met another list before this rank, its collector, has called. */
static void refuse_early(struct request *r, const char *why)
{
	struct tt_job *job = r->from->job;
	struct verdict *v = keep_verdict(job, r->name, r->hash, 1, why);

	if (v)
		v->ranks[0] = job->rank;
	say_refused(r->from, r->number, -EBADMSG, why);
	drop_request(r);
}

static void take_clash(struct tt_member *from, struct tt_pack *p)
{
	uint32_t number = tt_get32(p);
	bool of_join = tt_get8(p);
	int other = (int)tt_get32(p);
	struct call *c = NULL;
	char why[WHY];

	get_long_text(p, why, sizeof why);
	if (p->bad)
		return;
	struct request *r = of_join ? find_request(from, number) : NULL;
	tt_each_of(struct call, link, q, &forming_of(from->job)->calls)
		if (collects(q) && (of_join ? r && !strcmp(q->name, r->name) : q->number == number) && !q->ended)
			c = q;
	if (c)
		fail_all(c, -EBADMSG, why, from->rank, other);
	else if (r)
		refuse_early(r, why);
}

void tt_form_message(struct tt_member *from, struct tt_pack *p)
{
	static void (*const take[])(struct tt_member *, struct tt_pack *) = {
		[JOIN] = take_join, [MADE] = take_seats, [REFUSED] = take_refusal, [WITHDRAW] = take_withdrawal,
		[CALLING] = take_calling, [CLASH] = take_clash,
	};
	uint8_t kind = tt_get8(p);

	p->bad |= kind < JOIN || kind > CLASH;
	if (!p->bad && forming_of(from->job))
		take[kind](from, p);
	if (!p->bad)
		tt_pack_take(p, tt_pack_left(p));
}

/* ---- deaths ---- */

static void lose_member(struct call *c, const struct tt_member *m)
{
	char why[WHY];

	snprintf(why, sizeof why, "group \"%.60s\": %s", c->name, m->why);
	if (collects(c))
		fail_all(c, m->err, why, -1, -1);
	else if (c->ranks[0] == m->rank)
		c->left ? forget_call(c) : end_call(c, m->err, why);
	else
		withdraw(c, m->err, why);
}

void tt_form_member_down(struct tt_member *m)
{
	struct tt_forming *f = forming_of(m->job);

	if (!f)
		return;
	tt_each_of(struct call, link, c, &f->calls)
		if (!c->ended && c->seat_of[m->rank] >= 0)
			lose_member(c, m);
	tt_each_of(struct request, link, r, &f->requests)
		if (r->from == m)
			drop_request(r);
	tt_each_of(struct resignation, link, r, &f->resignations)
		if (r->from == m)
			drop_resignation(f, r);
	tt_each_of(struct verdict, link, v, &f->verdicts) /* a later life of the rank has its own calls */
		for (int i = 0; i < v->n; i++)
			v->ranks[i] = v->ranks[i] == m->rank ? -1 : v->ranks[i];
}

/* ---- the call ---- */

static int check_list(const struct tutti *at, const int *ranks, int n, const char *name)
{
	int err = tt_given(ranks, "tutti_group_of: ranks");

	if (err || (err = tt_given(name, "tutti_group_of: name")))
		return err;
	if (n < 1 || n > tt_group_count(at))
		return tt_fail(-EINVAL, "the list has %d ranks, and must have from 1 to %d", n, tt_group_count(at));
	if (!*name || strlen(name) >= NAME)
		return tt_fail(-EINVAL, "the name of a group has %zu bytes, and must have from 1 to %d", strlen(name),
		               NAME - 1);
	return 0;
}

static int translate(struct call *c, const struct tutti *at, const int *ranks)
{
	int err = 0;

	c->me = -1;
	memset(c->seat_of, -1, (size_t)tt_members(at->job)->capacity * sizeof *c->seat_of);
	for (int i = 0; !err && i < c->n; i++) {
		int rank = tt_group_to_job(at, ranks[i]);
		if (rank < 0)
			err = tt_fail(-EINVAL, "group \"%s\": rank %d of the list must be from 0 to %d", c->name,
			              ranks[i], tt_group_count(at) - 1);
		else if (c->seat_of[rank] >= 0)
			err = tt_fail(-EINVAL, "group \"%s\": the list has rank %d twice", c->name, ranks[i]);
		if (err)
			break;
		c->seat_of[rank] = i;
		c->ranks[i] = rank;
		c->me = rank == at->job->rank ? i : c->me;
	}
	if (!err && c->me < 0)
		err = tt_fail(-EINVAL, "group \"%s\": this rank, rank %d of the job, is not in its list", c->name,
		              at->job->rank);
	return err;
}

static void describe(struct call *c)
{
	int at = snprintf(c->list, sizeof c->list, "{");

	for (int i = 0; i < c->n && i < LISTED; i++)
		at += snprintf(c->list + at, sizeof c->list - (size_t)at, "%s%d", i ? ", " : "", c->ranks[i]);
	if (c->n > LISTED)
		at += snprintf(c->list + at, sizeof c->list - (size_t)at, ", ... %d in all", c->n);
	snprintf(c->list + at, sizeof c->list - (size_t)at, "}");
	c->hash = tt_hash64(tt_hash_text(TT_HASH64, c->name), c->ranks, (size_t)c->n * sizeof *c->ranks);
}

static int new_call(const struct tutti *at, const int *ranks, int n, const char *name, struct call **out)
{
	struct call *c = calloc(1, sizeof *c);
	int err;

	if (c) {
		c->ranks = malloc((size_t)n * sizeof *c->ranks);
		c->came = calloc((size_t)n, sizeof *c->came);
		c->seat_of = malloc((size_t)tt_members(at->job)->capacity * sizeof *c->seat_of);
	}
	if (!c || !c->ranks || !c->came || !c->seat_of) {
		if (c)
			free_call(c);
		return tt_fail(-ENOMEM, "no memory for a group of %d ranks", n);
	}
	c->job = at->job;
	c->n = n;
	snprintf(c->name, sizeof c->name, "%s", name);
	if ((err = translate(c, at, ranks))) {
		free_call(c);
		return err;
	}
	describe(c);
	*out = c;
	return 0;
}

static int check_members(const struct call *c)
{
	const struct tt_job *job = job_of(c);

	for (int i = 0; i < c->n; i++) {
		const struct tt_member *m = tt_member(job, c->ranks[i]);
		if (m->state >= TT_LEFT)
			return tt_fail(m->err, "group \"%s\": %s", c->name, m->why);
	}
	return 0;
}

static void begin_collecting(struct call *c)
{
	struct tt_forming *f = forming_of(job_of(c));

	tt_each_of(struct verdict, link, v, &f->verdicts)
		if (!strcmp(v->name, c->name))
			free_verdict(job_of(c), v);
	c->missing = c->n - 1;
	for (int i = 1; i < c->n; i++)
		say_calling(c, member(c, i));
}

/* Members that have come before this rank. */
static void look_at_requests(struct call *c)
{
	tt_each_of(struct request, link, r, &forming_of(job_of(c))->requests)
		if (!strcmp(r->name, c->name) && !match(c, r))
			return; /* the other requests have ended, too */
	if (collects(c) && !c->missing && !c->ended)
		make_group(c);
}

static bool has_ended(void *call) { return ((struct call *)call)->ended; }

static void say_awaited(void *arg)
{
	const struct call *c = arg;
	char text[WHY] = "";

	if (collects(c))
		name_missing(c, text, sizeof text);
	tt_log(TT_WARN, "tutti_group_of \"%s\" waits for %s", c->name, collects(c) ? text :
	       tt_member_label(member(c, 0)).text);
}

/* After the collector's timeout the call fails on the members that have come, too. */
static void give_up_collecting(struct call *c, int err, const char *why)
{
	char missing[WHY - 100] = "", text[WHY];

	name_missing(c, missing, sizeof missing);
	snprintf(text, sizeof text, NOT_CALLED, missing);
	if (err == -ETIMEDOUT)
		refuse_all(c, err, text);
	end_call(c, err, err == -ETIMEDOUT ? text : why);
}

static int wait_for_end(struct call *c, struct tt_users *users, uint64_t timeout)
{
	int err = tt_await(job_of(c), users, has_ended, c, timeout, say_awaited);
	struct tt_sentence why = tt_last_sentence();

	if (!c->ended && collects(c))
		give_up_collecting(c, err, why.text);
	else if (!c->ended)
		withdraw(c, err, why.text);
	if (tt_wait_until(job_of(c), has_ended, c, tt_now() + ANSWER_MS * TT_MS)) { /* a collector may be stopped */
		c->left = true;
		if (c->err == -ETIMEDOUT)
			snprintf(c->why, sizeof c->why, "%s has not answered", tt_member_label(member(c, 0)).text);
	}
	if (c->err == -ETIMEDOUT)
		return tt_fail(c->err, "group \"%s\": %s in time: call again", c->name, c->why);
	return c->err ? tt_fail(c->err, "%s", c->why) : 0;
}

static int form(struct tutti *at, struct call *c, tutti **out)
{
	struct tt_forming *f = forming_of(at->job);
	int err = tt_group_new(at->job, c->n, &c->part);

	if (err)
		return err;
	c->part->timeout = at->timeout;
	c->number = ++f->numbers;
	const struct verdict *v = find_verdict(at->job, c->name, c->hash, at->job->rank);
	if ((err = v ? tt_fail(-EBADMSG, "%s", v->why) : check_members(c))) {
		tt_group_free(c->part);
		return err;
	}
	tt_list_append(&f->calls, &c->link);
	if (collects(c))
		begin_collecting(c);
	else
		say_join(c);
	look_at_requests(c);
	err = wait_for_end(c, &at->handle.users, tt_group_timeout(at));
	if (!c->left)
		tt_list_remove(&c->link);
	if (err)
		tt_group_free(c->part);
	else
		tt_group_hold(*out = c->part);
	return err;
}

int tutti_group_of(tutti *at, const int *ranks, int n, const char *name, tutti **out)
{
	struct tt_job *job = tt_job_of(at);
	struct call *c = NULL;
	int err = tt_usable(job);

	if (err || (err = tt_given(out, "tutti_group_of: group")) || (err = tt_need_same_lists(job, "a group")) ||
	    (err = check_list(at, ranks, n, name)) || (err = tt_begin(job)))
		return err;
	if (!(err = new_call(at, ranks, n, name, &c))) {
		if (find_call(job, name))
			err = tt_fail(-EALREADY, "another thread is in tutti_group_of with the name \"%s\"", name);
		else
			err = form(at, c, out);
		if (!c->left)
			free_call(c);
	}
	tt_unlock(job);
	return err;
}

/* ---- life ---- */

int tt_form_open(struct tt_job *job)
{
	struct tt_forming *f = tt_members(job)->forming = calloc(1, sizeof *f);

	if (!f)
		return tt_fail(-ENOMEM, "no memory for a job");
	tt_list_init(&f->requests);
	tt_list_init(&f->calls);
	tt_list_init(&f->verdicts);
	tt_list_init(&f->resignations);
	return 0;
}

void tt_form_close(struct tt_job *job)
{
	struct tt_forming *f = forming_of(job);

	if (!f)
		return;
	tt_each_of(struct request, link, r, &f->requests)
		drop_request(r);
	tt_each_of(struct verdict, link, v, &f->verdicts)
		free_verdict(job, v);
	tt_each_of(struct resignation, link, r, &f->resignations)
		drop_resignation(f, r);
	tt_each_of(struct call, link, c, &f->calls)
		forget_call(c); /* which has left */
	free(f);
	tt_members(job)->forming = NULL;
}
