/* shard.c - several publishers, each with part of the tensors: which version all have, and what none may overwrite
 *
 *      commit: show the buffer, then PUT this shard's word into shard 0's window
 *      begin:  a buffer whose version is older than the least of all words; no shard is ahead by more than half of
 *              its buffers */
#include "engine/engine.h"
#include "member/member.h"
#include "publish/publish_private.h"
#include <stdlib.h>

/* Words of shard 0's own memory come in the background. */
static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

uint64_t tt_shards_whole(const struct tt_shard_word *words, int n)
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < n; i++) {
		bool there = load(&words[i].rank) && load(&words[i].generation) == load(&words[0].generation);
		least = tt_min(least, there ? load(&words[i].version) : 0);
	}
	return least;
}

/* ---- opening ---- */

int tt_shards_check(const tutti_publisher_config *c, const char *name, tutti *at)
{
	int me = at->job->rank, first;

	if (c->shards < 2 && (c->shards < 0 || c->shard || c->shard_0 || c->shard_wait_ms))
		return tt_fail(-EINVAL, "publisher \"%s\": shard %d of %d: there are at least 2 shards, or all members "
		               "about shards are 0", name, c->shard, c->shards);
	if (c->shards < 2)
		return 0;
	if (c->shards > TT_PUBLISH_SHARDS || c->shard < 0 || c->shard >= c->shards)
		return tt_fail(-EINVAL, "publisher \"%s\": shard %d of %d: there may be 2 to %d shards, numbered from "
		               "0 up", name, c->shard, c->shards, TT_PUBLISH_SHARDS);
	if (!c->generation)
		return tt_fail(-EINVAL, "publisher \"%s\": generation is 0: all shards give the same one, which is "
		               "not 0", name);
	if (c->shard_wait_ms < -1)
		return tt_fail(-EINVAL, "publisher \"%s\": shard_wait_ms is %d, and must be -1 or more", name,
		               c->shard_wait_ms);
	if ((first = tutti_group_member(at, c->shard_0)) < 0)
		return first;
	if ((first == me) != (c->shard == 0))
		return tt_fail(-EINVAL, "publisher \"%s\": this is shard %d on rank %d, and shard_0 says that shard 0 "
		               "is on rank %d", name, c->shard, me, first);
	return 0;
}

static size_t words_at(void) { return sizeof(struct tt_publish_head); }

static size_t word_at(const struct tt_shards *s) { return words_at() + (size_t)s->me * sizeof *s->words; }

static struct tt_label label_of(const struct tt_shards *s, int rank)
{
	return tt_member_label(tt_member(s->job, rank));
}

static int check_first(const struct tt_shards *s, const struct tt_publish_head *h)
{
	if (h->what != TT_PUBLISH_WHAT)
		return tt_fail(-EBADMSG, "publisher: %s, which shard_0 names, publishes nothing under this name",
		               label_of(s, s->first).text);
	if (h->generation < s->mine.generation)
		return -EINPROGRESS; /* of the publication before */
	if (h->generation > s->mine.generation)
		return tt_fail(-ESTALE, "publisher: shard %d opens generation %llu, and shard 0 (%s) has generation "
		               "%llu already: open that one", s->me, (unsigned long long)s->mine.generation,
		               label_of(s, s->first).text, (unsigned long long)h->generation);
	if (h->shards != (uint32_t)s->n || h->shard)
		return tt_fail(-EINVAL, "publisher: shard %d is one of %d, and %s has shard %u of %u", s->me, s->n,
		               label_of(s, s->first).text, h->shard, h->shards);
	return 0;
}

static bool is_lost(int err) { return err == -ESTALE || err == -ECONNRESET || err == -ENOTCONN || err == -ENOENT; }

/* -EINPROGRESS: shard 0 has not opened this generation yet; maybe another process will, under its rank. */
static int introduce(struct tt_shards *s)
{
	struct tt_publish_head h;
	int err, wrong;

	tt_lock(s->job);
	tt_window_again(s->window, s->first);
	err = tt_window_ask(s->window, s->first);
	tt_unlock(s->job);
	if (!err && !(err = tutti_get(s->window, s->first, 0, &h, offsetof(struct tt_publish_head, stamp), NULL))) {
		if ((wrong = check_first(s, &h)))
			return wrong;
		err = tutti_put(s->window, s->first, word_at(s), &s->mine, sizeof s->mine, NULL);
	}
	return is_lost(err) ? -EINPROGRESS : err;
}

static int await_first(struct tt_shards *s, struct tt_users *users)
{
	uint64_t pause = TT_PUBLISH_PAUSE, deadline = tt_publish_deadline(s->timeout, -1);
	int err, ended;

	while ((err = introduce(s)) == -EINPROGRESS) {
		if (tt_now() >= deadline)
			return tt_fail(-ETIMEDOUT, "publisher: shard 0 (%s) has not opened generation %llu of the "
			               "publication, which shard %d is of", label_of(s, s->first).text,
			               (unsigned long long)s->mine.generation, s->me);
		if ((ended = tt_publish_pause(s->job, users, &pause, deadline)))
			return ended;
	}
	return err;
}

int tt_shards_open(struct tt_shards *s, tutti *at, tutti_window *window, const tutti_publisher_config *c,
                   const struct tt_publish_head *mine, struct tt_shard_word *own, struct tt_users *users)
{
	s->job = at->job;
	s->window = window;
	s->me = c->shard;
	s->n = c->shards;
	s->timeout = tt_group_timeout(at);
	s->wait = c->shard_wait_ms < 0 ? s->timeout : (uint64_t)c->shard_wait_ms * TT_MS;
	s->mine = (struct tt_shard_word){ 0, mine->generation, (uint64_t)s->job->rank + 1, mine->front.hash };
	s->first = tutti_group_member(at, c->shard_0);
	if (s->first < 0)
		return s->first;
	if (own) {
		s->words = own;
		s->words[0] = s->mine;
		return 0;
	}
	if (!(s->words = calloc((size_t)s->n, sizeof *s->words)))
		return tt_fail(-ENOMEM, "publisher: no memory for %d shards", s->n);
	return await_first(s, users);
}

void tt_shards_close(struct tt_shards *s)
{
	if (s->tells)
		tutti_cancel(&s->op);
	if (s->me)
		free(s->words);
}

/* ---- versions ---- */

/* A shard that is ahead by half of its buffers, rounded up, writes over none: readers may still read older versions. */
unsigned tt_shards_kept(const struct tt_shards *s, const struct tt_buffers *b)
{
	unsigned kept = 0;
	int ahead = 0;

	for (int i = 0; i < b->n; i++) {
		uint64_t number = b->stamp[i].number;
		if (number && number >= s->whole)
			kept |= 1u << i;
		ahead += number > s->whole;
	}
	return ahead < (b->n + 1) / 2 ? kept : ~0u;
}

/* This shard's own word may be on its way still. */
int tt_shards_look(struct tt_shards *s)
{
	int err = !s->me ? 0 : tutti_get(s->window, s->first, words_at(), s->words, (size_t)s->n * sizeof *s->words,
	                                 NULL);

	if (err)
		return err;
	if (s->me && s->words[0].generation != s->mine.generation)
		return tt_fail(-ESTALE, "publisher: shard 0 (%s) has opened another generation: close shard %d, and "
		               "open that one", label_of(s, s->first).text, s->me);
	if (s->me)
		s->words[s->me] = s->mine;
	s->whole = tt_max(s->whole, tt_shards_whole(s->words, s->n));
	return 0;
}

/* -EINPROGRESS: no rank has it, or a newcomer, of whom this rank is about to hear. */
static int state_of(const struct tt_shards *s, int k)
{
	uint64_t rank = load(&s->words[k].rank);

	if (!rank || rank > (uint64_t)s->job->size)
		return -EINPROGRESS;
	const struct tt_member *m = tt_member(s->job, (int)rank - 1);
	return m->state < TT_LEFT ? 0 : m->state == TT_LEFT ? -ENOTCONN : -ECONNRESET;
}

/* The slowest shard; among several, one that is gone. */
static int find_slowest(const struct tt_shards *s, int *state)
{
	int worst = 0;

	tt_lock(s->job);
	*state = state_of(s, 0);
	for (int k = 1; k < s->n; k++) {
		uint64_t version = load(&s->words[k].version), least = load(&s->words[worst].version);
		int err = state_of(s, k);
		if (version < least || (version == least && is_lost(err) && !is_lost(*state))) {
			worst = k;
			*state = err;
		}
	}
	tt_unlock(s->job);
	return worst;
}

int tt_shards_missing(struct tt_shards *s)
{
	int state, k = find_slowest(s, &state);
	uint64_t rank = load(&s->words[k].rank);

	if (state == -EINPROGRESS)
		return tt_fail(-EAGAIN, "publisher: shard %d has not opened the publication, and shard %d has no "
		               "buffer left for versions that shard %d lacks", k, s->me, k);
	if (state)
		return tt_fail(state, "publisher: shard %d (%s) is gone: all shards close the publication, and open it "
		               "under a higher generation", k, label_of(s, (int)rank - 1).text);
	return tt_fail(-EAGAIN, "publisher: shard %d (%s) has version %llu, and shard %d keeps all that it has in "
	               "its buffers until shard %d has the next one", k, label_of(s, (int)rank - 1).text,
	               (unsigned long long)load(&s->words[k].version), s->me, k);
}

int tt_shards_settle(struct tt_shards *s)
{
	int err = s->tells ? tutti_wait(&s->op, -1) : 0;

	s->tells &= err == -EINTR; /* it runs on */
	return err;
}

int tt_shards_tell(struct tt_shards *s, uint64_t version)
{
	int err = 0;

	s->mine.version = version;
	if (s->me)
		err = tutti_put(s->window, s->first, word_at(s), &s->mine, sizeof s->mine, &s->op);
	else
		__atomic_store_n(&s->words[0].version, version, __ATOMIC_RELEASE);
	s->tells = s->me && !err;
	return err;
}
