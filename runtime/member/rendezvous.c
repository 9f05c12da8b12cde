/* rendezvous.c - how the ranks find each other
 *
 * With a node list each rank has all addresses from the file. Else rank 0 listens at TUTTI_BOOT, the first of its
 * addresses; behind commas it has those of other ranks, whom a newcomer asks in turn (late_join.c). Each rank connects
 * to rank 0 as to any member and sends its endpoint record; when all records are in, rank 0 sends the table of them to
 * its children in a tree, which pass it on (endpoint_tree.c).
 *
 *      rank r -- ENDPOINT {host, addresses} -> rank 0      rank 0 -- ENDPOINTS {first, n, records} --> its children
 */
#include "engine/engine.h"
#include "launch/launch.h"
#include "member/member_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { ASKS = 4, SPARE_FILES = 32 };

static uint64_t host_bits(uint64_t h) { return h >> (64 - TT_HOST_BITS) ? h >> (64 - TT_HOST_BITS) : 1; }

static uint64_t host_id(const struct tt_job *job)
{
	char text[64];

	if (tt_world || !tt_read_text(text, sizeof text, "/proc/sys/kernel/random/boot_id"))
		return 1 + (uint64_t)(tt_world && tt_world->hosts ? job->rank % tt_world->hosts : job->rank);
	return host_bits(tt_hash_text(TT_HASH64, text));
}

static uint64_t host_of_address(const char *addr)
{
	char host[96];
	char *colon;

	snprintf(host, sizeof host, "%s", addr);
	colon = strrchr(host, ':');
	if (colon)
		*colon = 0;
	return host_bits(tt_hash_text(TT_HASH64, host));
}

/* The background thread may have all other records before this rank's own is in. */
static void send_if_complete(struct tt_job *job)
{
	if (tt_members(job)->endpoints_known == tt_members(job)->endpoints && !tt_members(job)->endpoints_sent)
		tt_tree_send(job);
}

/* A second record asks for the table: its sender has waited for long. From another address it is another process. */
void tt_rendezvous_endpoint(struct tt_member *m, struct tt_pack *p)
{
	const char *known = m->addr;
	struct tt_pack again = *p;
	char addr[TT_ADDRESSES], text[40];

	tt_get64(&again);
	tt_get32(&again);
	tt_get_text(&again, addr, sizeof addr);
	p->bad |= tt_members(m->job)->node_list || again.bad;
	p->bad |= m->job->rank != 0 && !m->sponsored;
	if (p->bad)
		return;
	if (!m->host) {
		tt_endpoint_take(p, m);
		if (!p->bad && m->job->joined)
			tt_late_join_admit(m);
		else if (!p->bad)
			send_if_complete(m->job);
	} else if (strcmp(addr, known)) {
		snprintf(text, sizeof text, "rank %d is already taken", m->rank);
		tt_member_refuse(m, text);
	} else if (tt_members(m->job)->endpoints_sent) {
		tt_tree_send_to(m);
	}
}

/* For ranks that have joined since rank 0 made the table, news come. */
static void take_records(struct tt_job *job, struct tt_pack *p, uint32_t first, uint32_t n)
{
	uint32_t capacity = (uint32_t)tt_members(job)->capacity;

	p->bad |= first > capacity || n > capacity - first;
	for (uint32_t i = first; !p->bad && i < first + n && i < (uint32_t)job->size; i++)
		tt_endpoint_take(p, tt_member(job, i));
}

void tt_rendezvous_endpoints(struct tt_member *m, struct tt_pack *p)
{
	struct tt_job *job = m->job;
	uint32_t first = tt_get32(p), n = tt_get32(p);

	p->bad |= job->rank == 0 || tt_members(job)->node_list;
	p->bad |= m->rank != tt_members(job)->sponsor && m->rank != tt_tree_parent(job->rank);
	if (p->bad || !tt_is_joining(job))
		return;
	take_records(job, p, first, n);
	if (p->bad || tt_members(job)->endpoints_known < tt_members(job)->endpoints)
		return;
	if (tt_members(job)->late)
		tt_members(job)->endpoints_sent = tt_now(); /* a late joiner has no children */
	else
		tt_tree_send(job);
}

/* The first address of a list, for the transport over which ranks meet. */
static int read_address(const struct tt_members *all, const char *list, char addr[96])
{
	size_t len = strcspn(list, ","), name = strlen(all->over) + 1;
	bool scheme = !strncmp(list, all->over, name - 1) && list[name - 1] == ':';

	if (snprintf(addr, 96, "%s:%.*s", all->over, (int)(len - (scheme ? name : 0)), list + (scheme ? name : 0)) < 96)
		return 0;
	return tt_fail(-ENAMETOOLONG, "the rendezvous address \"%.*s\" is too long", (int)len, list);
}

/* NULL: that was the last one. */
static const char *next_address(const char *list)
{
	list += strcspn(list, ",");
	return *list && list[1] ? list + 1 : NULL;
}

/* The address that is asked now. */
static int take_address(struct tt_job *job)
{
	char addr[96];
	int err = read_address(tt_members(job), tt_members(job)->boot, addr);

	if (!err)
		tt_address_set(tt_member(job, 0), addr);
	return err;
}

static uint64_t bit_of_address(const struct tt_members *all)
{
	int n = 0;

	for (const char *at = all->boots; at && at < all->boot; at = next_address(at))
		n++;
	return 1ull << tt_min(n, 63);
}

/* A rank that looks whether an earlier life is there says "again" and "no" in turn: the no stands. */
void tt_rendezvous_refused(struct tt_job *job, bool again, const char *why)
{
	struct tt_members *all = tt_members(job);
	uint64_t bit = bit_of_address(all);

	if (!again) {
		all->refused_at |= bit;
		snprintf(all->refusal, sizeof all->refusal, "%s", why);
	}
	all->may_come |= again && !(all->refused_at & bit);
}

/* False: this process has been refused, and of the ranks that answer nobody says that it may come again. */
static bool turn_to_next_address(struct tt_job *job)
{
	struct tt_members *all = tt_members(job);
	const char *next = next_address(all->boot);
	char name[24];

	all->boot = next ? next : all->boots;
	if (!next && all->refused_at && !all->may_come) {
		all->join_err = -EPERM;
		snprintf(all->join_why, sizeof all->join_why,
		         "all ranks that answer at %.110s refuse this process as %s: %.220s", all->boots,
		         tt_own_name(job, name), all->refusal);
	}
	if (!next) {
		all->may_come = false;
		job->engine.news = true;
	}
	return !all->join_err && !take_address(job);
}

bool tt_rendezvous_has_more(const struct tt_member *m)
{
	const struct tt_members *all = tt_members(m->job);

	return !m->job->joined && m->rank == 0 && !all->sponsor && all->boots && strchr(all->boots, ',');
}

/* Until now rank 0's place stood for the rank that would answer. NULL: the answer makes no sense, and that rank is
 * gone. */
struct tt_member *tt_rendezvous_found(struct tt_member *asked, int rank)
{
	struct tt_job *job = asked->job;
	struct tt_members *all = tt_members(job);
	struct tt_member *m = rank > 0 && rank < all->capacity ? tt_member(job, rank) : NULL;
	struct tt_link *l = asked->link;

	if (!m || asked->rank || !tt_is_joining(job) || all->node_list || rank == job->rank || m->state != TT_AWAY) {
		tt_member_gone(asked, -EPROTO, "%s answered a greeting with nonsense", tt_member_label(asked).text);
		return NULL;
	}
	tt_late_join_grow(job, rank + 1);
	all->sponsor = rank;
	tt_fail_waiting(asked, -ENOTCONN);
	tt_timer_stop(&asked->retry);
	asked->state = TT_AWAY;
	asked->link = NULL;
	tt_address_set(asked, "");
	asked->failed_ways = 0;
	asked->tries = 0;
	m->state = TT_CONNECTING;
	m->link = l;
	l->member = m;
	return m;
}

static void try_again(struct tt_timer *t)
{
	struct tt_member *m = tt_container_of(t, struct tt_member, retry);

	m->state = TT_AWAY;
	if (!tt_members(m->job)->node_list) /* nobody listened there, whichever device was tried */
		m->failed_ways = 0;
	if (!tt_rendezvous_has_more(m) || turn_to_next_address(m->job))
		tt_member_connect(m);
}

/* Rank 0 at its rendezvous, and all ranks of a node list, may begin to listen late: the first connection is tried for
 * TUTTI_TIMEOUT, at random intervals. */
bool tt_rendezvous_retry(struct tt_member *m, uint64_t patience)
{
	uint64_t now = tt_now(), wait;
	uint8_t chance;

	if (!tt_members(m->job)->node_list && (m->job->joined || m->rank != 0))
		return false;
	if (!m->tries++)
		m->patience = now + patience;
	if (now >= m->patience && !m->sought)
		return false;
	tt_entropy(&chance, 1);
	wait = tt_time(m->job, TT_TIME_RETRY_MIN) << tt_min(m->tries, 6);
	wait = tt_min(wait, tt_time(m->job, TT_TIME_RETRY_MAX));
	tt_timer_start(m->job, &m->retry, now + wait / 2 + wait * chance / 512, try_again);
	return true;
}

/* Does this rank know the addresses of all ranks of the table? News bring the addresses of ranks that join later. A
 * newcomer also waits for its number, and for a table that has its sponsor. */
static bool is_known(const struct tt_job *job)
{
	const struct tt_members *all = tt_members(job);

	return all->sponsor < all->endpoints && !all->unnumbered && all->endpoints_known >= all->endpoints;
}

static bool is_met(void *arg)
{
	struct tt_job *job = arg;
	const struct tt_members *all = tt_members(job);

	return (is_known(job) && !all->probes) || all->join_err ||
	       (job->rank && tt_member(job, all->sponsor)->state >= TT_LEFT);
}

static void name_missing(const struct tt_job *job, char *text, size_t room)
{
	int named = 0, more = 0, n = tt_members(job)->endpoints;

	snprintf(text, room, "%s ", n - tt_members(job)->endpoints_known > 1 ? "s" : "");
	for (int i = 0; i < n; i++) {
		if (tt_member(job, i)->host)
			continue;
		if (named < 8)
			snprintf(text + strlen(text), room - strlen(text), "%s%d", named ? ", " : "", i);
		more += named >= 8;
		named++;
	}
	if (more)
		snprintf(text + strlen(text), room - strlen(text), " and %d more", more);
}

/* The rank that was found has ended without a word of refusal. It may have been of an earlier job at this address.
 * Where a launcher told the address, no other job comes there. If rank 0 went down, rank 0 may have been of this job,
 * and the job has failed: then a new rank 0 must come soon. A newcomer has the whole time. */
static uint64_t may_begin_again_until(const struct tt_job *job, const struct tt_launch *b)
{
	const struct tt_members *all = tt_members(job);
	const struct tt_member *found = tt_member(job, all->sponsor);
	uint64_t until = b->again.err ? b->again.until : b->begun + job->timeout, now = tt_now();
	bool died = found->state == TT_GONE && found->err == -ECONNRESET;

	if (!job->rank || all->join_err || !b->boots || !(died || found->state == TT_LEFT))
		return 0;
	if (died && !all->sponsor && job->rank < all->launched)
		until = tt_min(until, now + job->silence);
	return now < until ? until : 0;
}

static int meeting_failed(struct tt_job *job, const struct tt_launch *b)
{
	const struct tt_members *all = tt_members(job);
	const struct tt_member *root = tt_member(job, all->sponsor);
	char missing[80] = "";
	unsigned long long ms = job->timeout / TT_MS;

	tt_members(job)->begin_again = may_begin_again_until(job, b);
	if (all->join_err)
		return tt_fail(all->join_err, "%s", all->join_why);
	if (root->state == TT_GONE)
		return tt_fail(root->err, "cannot join: %s", root->why);
	if (root->state == TT_LEFT && all->sponsor)
		return tt_fail(-ETIMEDOUT, "cannot join: rank %d, which let this one in, has left the job",
		               all->sponsor);
	if (root->state == TT_LEFT)
		return tt_fail(-ETIMEDOUT,
		               "cannot join: rank 0 left the job before this rank had heard where the others are");
	if (job->rank != 0 && root->state == TT_UP)
		return tt_fail(-ETIMEDOUT, "not all of the %d ranks had joined after %llu ms: "
		               "rank 0 knows who is missing", job->size, ms);
	if (*all->join_why) /* rank 0 said to try again, and is gone */
		return tt_fail(-EPERM, "%s", all->join_why);
	if (b->again.err)
		return tt_fail(b->again.err, "%s; tried again for %llu ms", b->again.why,
		               (unsigned long long)((tt_now() - b->again.since) / TT_MS));
	if (job->rank != 0 && strchr(all->boots, ','))
		return tt_fail(-ETIMEDOUT, "no rank at %.150s has let this process in within %llu ms: "
		               "do they run, and are the addresses right?", all->boots, ms);
	if (job->rank != 0)
		return tt_fail(-ETIMEDOUT, "rank 0 was not found at %s within %llu ms: does it run, and is the address "
		               "right?%s%s", b->address, ms, *all->last_try ? " The last try: " : "", all->last_try);
	name_missing(job, missing, sizeof missing);
	return tt_fail(-ETIMEDOUT, "rank%s of %d did not join at %s within %llu ms", missing, job->size, b->address,
	               ms);
}

void tt_rendezvous_present(struct tt_job *job)
{
	uint8_t bytes[1 + TT_ENDPOINT_MAX];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);

	tt_put8(&p, TT_ENDPOINT);
	tt_endpoint_put(&p, tt_member(job, job->rank));
	tt_send(tt_member(job, tt_members(job)->sponsor), bytes, (size_t)(p.at - bytes), NULL, 0);
}

/* Until all have joined, all ranks are connected to rank 0. */
static int check_files(const struct tt_job *job)
{
	rlim_t need = (rlim_t)job->size + SPARE_FILES;
	struct rlimit files;

	if (tt_world || getrlimit(RLIMIT_NOFILE, &files) || need <= files.rlim_cur)
		return 0;
	return tt_fail(-EMFILE, "rank 0 of %d needs %ld open files while all join, and the limit is %ld: "
	               "raise the hard limit (ulimit -Hn)", job->size, (long)need, (long)files.rlim_cur);
}

static void say_awaited(const struct tt_job *job, const struct tt_launch *b)
{
	const char *last_try = tt_members(job)->last_try;
	char missing[80] = "";

	if (job->rank == 0)
		name_missing(job, missing, sizeof missing);
	if (job->rank == 0)
		tt_log(TT_WARN, "joining at %s waits for rank%s of %d", b->address, missing, job->size);
	else if (tt_member(job, 0)->state == TT_UP)
		tt_log(TT_WARN, "joining waits for other ranks: rank 0 at %s knows which", b->address);
	else if (tt_rendezvous_has_more(tt_member(job, 0)))
		tt_log(TT_WARN, "joining waits for a rank that lets this process in, at %.150s%s%s", b->boots,
		       *tt_members(job)->refusal ? ". One has refused: "
		                                 : ": do they run, and are the addresses right?",
		       tt_members(job)->refusal);
	else
		tt_log(TT_WARN, "joining waits for rank 0 at %s: does it run, and is the address right?%s%s",
		       b->address, *last_try ? " The last try: " : "", last_try);
}

/* A rank that has been found has the whole time. */
static uint64_t time_to_meet(const struct tt_job *job, const struct tt_launch *b, uint64_t begun)
{
	bool found = tt_member(job, tt_members(job)->sponsor)->state == TT_UP;

	return b->again.err && !found ? b->again.until : begun + job->timeout;
}

/* The list names other ranks if the job was under way when a person wrote the list. A rank 0 that was started again
 * would begin a second job, which nobody else is in. */
static void probe_others(struct tt_job *job)
{
	const struct tt_members *all = tt_members(job);
	char addr[96];

	for (const char *at = next_address(all->boots); at; at = next_address(at))
		if (!read_address(all, at, addr))
			tt_link_probe(job, addr);
}

/* The parent in the tree may hang: rank 0 is asked from time to time. */
static int meet_at_rank_0(struct tt_job *job, const struct tt_launch *b)
{
	uint64_t begun = b->boots ? b->begun : tt_now(), end, ask;
	bool said = false;
	int err;

	tt_members(job)->boot = tt_members(job)->boots = b->boots ? b->boots : b->address;
	if (strncmp(b->address, "sim:", 4))
		tt_members(job)->root = tt_text_keep(job, b->address);
	err = job->rank ? take_address(job) : check_files(job);

	if (err)
		return err;
	if (job->rank == 0) {
		probe_others(job);
		send_if_complete(job);
	}
	do {
		if (job->rank && tt_member(job, tt_members(job)->sponsor)->state < TT_LEFT)
			tt_rendezvous_present(job);
		end = time_to_meet(job, b, begun);
		ask = tt_min(end, tt_now() + tt_min(job->timeout, job->silence) / ASKS + 1);
		err = tt_wait_for(job, NULL, is_met, job, ask);
		if (err && err != -ETIMEDOUT)
			return err;
		if (err && !said && (said = tt_now() - begun >= job->silence))
			say_awaited(job, b);
	} while (err && tt_now() < time_to_meet(job, b, begun));
	return err || !is_known(job) ? meeting_failed(job, b) : 0;
}

/* On this host some nets have addresses that derive from the HOST:PORT in the list. */
static void derive_addresses(struct tt_job *job, struct tt_member *m, const char *listen)
{
	char addr[96];

	for (int i = 0; i < job->engine.count; i++) {
		const struct tt_transport *t = job->engine.nets[i]->transport;
		if (!t->address)
			continue;
		t->address(job->id, listen, addr);
		tt_address_add(m, addr);
	}
}

/* A node list says where each rank listens. */
void tt_rendezvous_locate(struct tt_member *m, const char *listen)
{
	m->host = host_of_address(listen);
	if (m->host == host_of_address(tt_members(m->job)->node[m->job->rank].address))
		derive_addresses(m->job, m, listen);
}

/* For sentences. */
static void name_host(struct tt_member *me)
{
	char name[80] = "host:";

	if (tt_world || gethostname(name + 5, sizeof name - 6) || strpbrk(name, " \n"))
		return;
	tt_address_add(me, name);
}

/* One address of each transport must have room; those of further devices get what is left. */
static void name_nets(struct tt_job *job, struct tt_member *me)
{
	char all[TT_NETS * sizeof job->engine.nets[0]->addr] = "";
	size_t used = 0;

	for (int i = 0; i < job->engine.count; i++) {
		const char *addr = job->engine.nets[i]->addr;
		used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", used ? " " : "", addr);
		tt_address_add(me, addr);
	}
	name_host(me);
	tt_address_add(me, all);
}

int tt_rendezvous_meet(struct tt_job *job, const struct tt_launch *b)
{
	struct tt_member *me = tt_member(job, job->rank);
	int err = 0;

	tt_lock(job);
	name_nets(job, me);
	me->host = host_id(job);
	me->cpus = b->nodes ? 0 : tt_place_print(job);
	tt_members(job)->endpoints_known += !tt_members(job)->unnumbered;
	for (int i = 0; b->nodes && i < job->size; i++)
		tt_rendezvous_locate(tt_member(job, i), b->nodes[i].address);
	if (!b->nodes && *b->address)
		err = meet_at_rank_0(job, b);
	tt_unlock(job);
	return err;
}
