/* source.c - one publisher's window, as a reader sees it */
#include "engine/engine.h"
#include "member/member.h"
#include "publish/reader_private.h"
#include <ctype.h>
#include <stdlib.h>

/* ---- small things of the publisher's window ---- */

int tt_reader_get(tutti_reader *r, size_t at, void *to, size_t bytes)
{
	return tt_window_get(r->window, r->what, r->member, at, to, bytes, NULL);
}

static size_t place_at(const tutti_reader *r, size_t inside)
{
	return tt_publish_places(&r->head) + (size_t)r->job->rank * sizeof(struct tt_reader_place) + inside;
}

int tt_reader_put_word(tutti_reader *r, size_t inside, uint64_t word)
{
	return tutti_put(r->window, r->member, place_at(r, inside), &word, sizeof word, NULL);
}

int tt_reader_start_hold(tutti_reader *r, const uint64_t *word, tutti_op *op)
{
	size_t at = place_at(r, offsetof(struct tt_reader_place, hold));

	return tutti_put(r->window, r->member, at, word, sizeof *word, op);
}

void tt_reader_clear(tutti_reader *r, size_t inside, size_t bytes)
{
	static const struct tt_reader_place none;
	struct tt_sentence last = tt_last_sentence();

	if (r->head.front.hash && !tutti_put(r->window, r->member, place_at(r, inside), &none, bytes, &r->op[0]))
		tutti_cancel(&r->op[0]);
	tt_remember(last.text);
}

size_t tt_reader_stamp_at(int buffer)
{
	return offsetof(struct tt_publish_head, stamp) + (size_t)buffer * sizeof(struct tt_stamp);
}

struct tt_label tt_reader_publisher(const tutti_reader *r) { return tt_member_label(tt_member(r->job, r->member)); }

/* A put's sentence has the rank, and not the shard. "shard 1" is not in a sentence about shard 10. */
static int name_shard(const tutti_reader *r, int err)
{
	struct tt_sentence why = tt_last_sentence();
	const char *here = strstr(why.text, r->what);

	return here && !isdigit((unsigned char)here[strlen(r->what)]) ? err : tt_fail(err, "%s: %s", r->what, why.text);
}

int tt_reader_lose(tutti_reader *r, int err)
{
	if (err == -ECONNRESET || err == -ENOTCONN)
		return name_shard(r, err);
	if (err != -ESTALE)
		return err;
	tt_lock(r->job);
	tt_window_again(r->window, r->member);
	tt_unlock(r->job);
	return r->users->err ? err : tt_fail(err, "%s: %s has closed the publication: the next fetch waits until "
	                                           "it is open again", r->what, tt_reader_publisher(r).text);
}

/* ---- what the publisher says of itself ---- */

int tt_reader_refuse(const tutti_reader *r, const char *why)
{
	return tt_fail(-EBADMSG, "%s: %s %s", r->what, tt_reader_publisher(r).text, why);
}

static int check_head(const tutti_reader *r, const struct tt_publish_head *h)
{
	if (h->what != TT_PUBLISH_WHAT)
		return tt_reader_refuse(r, "publishes nothing under this name");
	if (r->bytes && h->shards != r->head.shards)
		return tt_reader_refuse(r, "publishes in other shards now: close the reader and open it again");
	if (h->shard != r->head.shard && r->head.shard)
		return -EAGAIN; /* shards have moved: the word of this one comes */
	if (h->shard != r->head.shard && r->bytes)
		return tt_reader_refuse(r, "has another shard than shard 0 now: close the reader, and open it with "
		                           "the rank of shard 0");
	if (h->shards > TT_PUBLISH_SHARDS || (h->shard && h->shard >= h->shards))
		return tt_fail(-EBADMSG, "%s: %s says that it is shard %u of %u: this makes no sense", r->what,
		               tt_reader_publisher(r).text, h->shard, h->shards);
	if (h->places > TT_PUBLISH_PLACES || h->places <= (uint64_t)r->job->rank || h->list_bytes > TT_PUBLISH_LIST ||
	    h->list_bytes < 4 || h->buffers < 3 || h->buffers > TT_PUBLISH_MOST || h->bytes > TT_PUBLISH_BYTES)
		return tt_fail(-EBADMSG, "%s: %s says that it has %llu buffers of %llu bytes, %llu readers at most, "
		               "and a list of %llu bytes: this makes no sense", r->what, tt_reader_publisher(r).text,
		               (unsigned long long)h->buffers, (unsigned long long)h->bytes,
		               (unsigned long long)h->places, (unsigned long long)h->list_bytes);
	return 0;
}

static int take_list(tutti_reader *r, const struct tt_publish_head *h, uint8_t *bytes)
{
	bool held;
	int err;

	if (tt_hash64(TT_HASH64, bytes, h->list_bytes) != h->list_hash)
		return tt_reader_refuse(r, "gave a list of tensors that is damaged");
	if (r->bytes && (r->head.list_bytes != h->list_bytes || memcmp(r->bytes, bytes, h->list_bytes)))
		return tt_reader_refuse(r, "publishes other tensors now: close the reader and open it again");
	if (!r->bytes && ((err = tt_publish_unpack(bytes, h->list_bytes, &r->list, &r->n)) ||
	                  (err = tt_publish_model(r->list, r->n, &r->model, &held))))
		return err;
	return r->model.bytes == h->bytes ? 0 :
	       tt_reader_refuse(r, "gave a list of tensors that does not fit its buffers");
}

/* -EAGAIN: the name was opened again since the head was read. */
static int get_list(tutti_reader *r, const struct tt_publish_head *h, uint8_t *bytes)
{
	uint64_t hash;
	int err = tt_reader_get(r, tt_publish_layout(h).list, bytes, h->list_bytes);
	int anew = err && err != -ERANGE ? err : tt_reader_get(r, 0, &hash, sizeof hash);

	if (anew)
		return anew;
	if (hash != h->front.hash)
		return -EAGAIN;
	return err ? tt_reader_refuse(r, "has no list of tensors in its window") : take_list(r, h, bytes);
}

int tt_reader_meet(tutti_reader *r)
{
	struct tt_reader_place mine = { .reader = tt_member(r->job, r->job->rank)->epoch };
	struct tt_publish_head h;
	int err = tt_reader_get(r, 0, &h, offsetof(struct tt_publish_head, stamp));

	if (err == -ERANGE)
		return tt_reader_refuse(r, "publishes nothing under this name");
	if (err || (err = check_head(r, &h)))
		return err;
	uint8_t *bytes = malloc(h.list_bytes);
	if (!bytes)
		return tt_fail(-ENOMEM, "%s: no memory for a list of tensors", r->what);
	if ((err = get_list(r, &h, bytes))) {
		free(bytes);
		return err;
	}
	free(r->bytes);
	r->bytes = bytes;
	r->head = h;
	r->at = tt_publish_layout(&h);
	if ((err = tutti_put(r->window, r->member, place_at(r, 0), &mine, TT_PLACE_USED, NULL)))
		r->head.front.hash = 0; /* else nobody would put it, and holds would not count */
	return err == -ERANGE ? -EAGAIN : err;
}

int tt_reader_ask(tutti_reader *r)
{
	tt_lock(r->job);
	int err = tt_window_ask(r->window, r->member);
	tt_unlock(r->job);
	return err == -EINPROGRESS || err == -ESTALE ? err : 0; /* the get has the sentence */
}

int tt_reader_look(tutti_reader *r, struct tt_stamp *stamp, int *buffer)
{
	struct tt_front f;
	int err = tt_reader_ask(r);

	if (!err && !(err = tt_reader_get(r, 0, &f, sizeof f)) && f.hash != r->head.front.hash) {
		r->head.front.hash = 0; /* if this fails, the next look tries again */
		if (!(err = tt_reader_meet(r)))
			err = tt_reader_get(r, 0, &f, sizeof f);
	}
	if (err)
		return err == -ERANGE ? tt_reader_refuse(r, "publishes nothing under this name") : err;
	*stamp = f.last;
	return f.hash == r->head.front.hash ? tt_front_read(f.newest, &f.last, TT_PUBLISH_MOST, buffer) : -EAGAIN;
}

void tt_reader_free(tutti_reader *r)
{
	tt_model_close(&r->model);
	free(r->deltas);
	free(r->seen);
	free(r->list);
	free(r->bytes);
	free(r->what);
}
