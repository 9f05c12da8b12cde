/* parts.c - a reader of a publication in shards
 *
 *      GET words and stamps of shard 0 --> the newest version that all have
 *      GET the stamps of all other shards, at once --> the buffers that have this version
 *
 * The stamps come after the words, else they may be too old. Then reader.c copies each shard's part as it copies a
 * publication without shards. Each part is that version, or the fetch begins anew. */
#include "engine/engine.h"
#include "member/member.h"
#include "publish/reader_private.h"
#include <stdio.h>
#include <stdlib.h>

/* ---- all shards at once ---- */

/* Waits for an operation of each part from first to n - 1; gives up after an error. */
static int end_all(tutti_reader *r, int first, int n, int err)
{
	for (int k = first; k < n && !err; k++)
		err = tt_reader_lose(r->part[k], tutti_wait(&r->part[k]->op[0], -1));
	struct tt_sentence why = tt_last_sentence();
	for (int k = first; k < n && err; k++)
		tutti_cancel(&r->part[k]->op[0]);
	if (err)
		tt_remember(why.text);
	return err;
}

int tt_parts_all(tutti_reader *r, int first, int (*start)(struct tt_fetch *))
{
	int err = 0, n = first;

	for (; n < r->parts && !err; n += !err)
		err = tt_reader_lose(r->part[n], start(&r->fetch[n]));
	return end_all(r, first, n, err);
}

/* ---- the shards' openings ---- */

static int get_words(tutti_reader *r)
{
	size_t words = (size_t)r->parts * sizeof *r->seen->word;

	return tt_reader_get(r, tt_reader_stamp_at(0), r->seen, sizeof *r->seen + words);
}

/* Shard 0 has opened the name again, or is met for the first time in this process. -EAGAIN: it does so just now. */
static int look_words(tutti_reader *r)
{
	int err = tt_reader_ask(r);

	if (err)
		return err;
	if (!(err = get_words(r)) && r->seen->word[0].hash == r->head.front.hash)
		return 0;
	if (err && err != -ERANGE)
		return err;
	r->head.front.hash = 0; /* if this fails, the next look tries again */
	if ((err = tt_reader_meet(r)) || (err = get_words(r)))
		return err;
	return r->seen->word[0].hash == r->head.front.hash ? 0 : -EAGAIN;
}

/* -EINPROGRESS: it is a newcomer's, of whom this rank is about to hear. */
static int take_rank(tutti_reader *sub, uint64_t rank)
{
	tt_lock(sub->job);
	bool known = rank <= (uint64_t)sub->job->size;
	tt_unlock(sub->job);
	if (rank > (uint64_t)tt_members(sub->job)->capacity || (int)rank - 1 == sub->job->rank)
		return tt_fail(-EBADMSG, "%s: shard 0 says that it is on rank %llu, which cannot be", sub->what,
		               (unsigned long long)rank - 1);
	if (!known)
		return -EINPROGRESS;
	sub->member = (int)rank - 1;
	return 0;
}

static int meet_shard(tutti_reader *sub, const struct tt_shard_word *w)
{
	int err;

	sub->head.front.hash = 0; /* if this fails, the next look tries again */
	if ((err = take_rank(sub, w->rank)) || (err = tt_reader_ask(sub)) || (err = tt_reader_meet(sub)))
		return err;
	if (sub->head.front.hash == w->hash && sub->head.generation == w->generation)
		return 0;
	sub->head.front.hash = 0;
	return -EAGAIN; /* it is of another opening: its word comes */
}

/* Its rank may have gone: then a get has the sentence. */
static int find_shard(tutti_reader *r, int k)
{
	const struct tt_shard_word *w = &r->seen->word[k];
	tutti_reader *sub = r->part[k];
	uint64_t newest;
	int err;

	r->missing = k;
	if (!w->rank || w->generation != r->head.generation)
		return -EINPROGRESS;
	if (k && (w->hash != sub->head.front.hash || (int)w->rank - 1 != sub->member) &&
	    (err = meet_shard(sub, w)))
		return tt_reader_lose(sub, err);
	tt_lock(r->job);
	err = tt_window_ask(r->window, sub->member);
	tt_unlock(r->job);
	if (err == -ECONNRESET || err == -ENOTCONN)
		err = tt_reader_get(sub, offsetof(struct tt_front, newest), &newest, sizeof newest);
	return tt_reader_lose(sub, err);
}

/* ---- versions ---- */

static int find_shards(tutti_reader *r)
{
	int err = tt_reader_lose(r, look_words(r));

	r->missing = 0;
	for (int k = 0; k < r->parts && !err; k++)
		err = find_shard(r, k);
	return err == -ERANGE ? -EAGAIN : err; /* the name was opened again, with a smaller window */
}

int tt_parts_look(tutti_reader *r)
{
	int err = find_shards(r);

	if (err)
		return err;
	r->fetch[0].stamp.number = tt_shards_whole(r->seen->word, r->parts);
	return r->fetch[0].stamp.number ? 0 : -ENODATA;
}

static int get_stamps(struct tt_fetch *f)
{
	tutti_reader *sub = f->r;

	return tt_window_get(sub->window, sub->what, sub->member, tt_reader_stamp_at(0), sub->seen->stamp,
	                     (size_t)sub->head.buffers * sizeof *sub->seen->stamp, &sub->op[0]);
}

/* The buffer of that shard that has this version. */
static int find_buffer(struct tt_fetch *f, uint64_t version)
{
	const struct tt_stamp *stamp = f->r->seen->stamp;

	for (int i = 0; i < (int)f->r->head.buffers; i++)
		if (stamp[i].number == version) {
			f->stamp = stamp[i];
			f->buffer = i;
			return 0;
		}
	return -EAGAIN;
}

int tt_parts_find(tutti_reader *r)
{
	uint64_t version = r->fetch[0].stamp.number;
	int err = tt_parts_all(r, 1, get_stamps);

	for (int k = 0; k < r->parts && !err; k++) {
		r->missing = k;
		err = find_buffer(&r->fetch[k], version);
	}
	return err;
}

int tt_parts_newest(tutti_reader *r, uint64_t *version)
{
	struct tt_shard_word *words = malloc((size_t)r->parts * sizeof *words);
	int err = !words ? tt_fail(-ENOMEM, "%s: no memory for %d shards", r->what, r->parts) :
	          tt_reader_ask(r) ? -ESTALE :
	          tt_reader_get(r, sizeof(struct tt_publish_head), words, (size_t)r->parts * sizeof *words);

	if (!err)
		*version = tt_shards_whole(words, r->parts);
	free(words);
	return err;
}

/* ---- opening ---- */

static int add_part(tutti_reader *r, int k)
{
	tutti_reader *sub = calloc(1, sizeof *sub);
	char *what;

	if (!sub || !(sub->seen = calloc(1, sizeof *sub->seen)) || asprintf(&what, "%s, shard %d", r->what, k) < 0) {
		free(sub ? sub->seen : NULL);
		free(sub);
		return tt_fail(-ENOMEM, "no memory for a reader");
	}
	sub->what = what;
	sub->job = r->job;
	sub->users = r->users;
	sub->window = r->window;
	sub->timeout = r->timeout;
	sub->member = r->member;
	sub->head.shard = (uint16_t)k;
	r->part[k] = sub;
	return 0;
}

static int add_parts(tutti_reader *r)
{
	char *what;
	int err = 0;

	r->seen = calloc(1, sizeof *r->seen + (size_t)r->parts * sizeof *r->seen->word);
	if (!r->seen)
		return tt_fail(-ENOMEM, "no memory for a reader of %d shards", r->parts);
	for (int k = 1; k < r->parts && !err; k++)
		err = add_part(r, k);
	if (err || asprintf(&what, "%s, shard 0", r->what) < 0)
		return err ? err : tt_fail(-ENOMEM, "no memory for a reader");
	free(r->what);
	r->what = what;
	return 0;
}

int tt_parts_open(tutti_reader *r, struct tt_users *opening)
{
	uint64_t pause = TT_PUBLISH_PAUSE, deadline = tt_publish_deadline(r->timeout, -1);
	int err = add_parts(r);

	while (!err && (err = find_shards(r))) {
		if (err != -EAGAIN && err != -EINPROGRESS && err != -ESTALE)
			return err;
		if (tt_now() >= deadline)
			return tt_fail(-ENOENT, "%s has not opened the publication in time",
			               r->part[r->missing]->what);
		err = tt_publish_pause(r->job, opening, &pause, deadline);
	}
	r->generation = r->head.generation; /* it may have been opened again meanwhile */
	return err;
}

void tt_parts_free(tutti_reader *r)
{
	for (int k = 1; r->part && k < r->parts; k++)
		if (r->part[k]) {
			tt_reader_free(r->part[k]);
			free(r->part[k]);
		}
}
