/* reader.c - reads the newest version that another rank has published
 *
 *      LOOK front --> COPY the buffer --> LOOK the buffer's stamp: the same? whole
 *        ^-------------- overtaken ----------------' three times: a hold on the next version that is looked at
 */
#include "engine/engine.h"
#include "member/member.h"
#include "publish/reader_private.h"
#include <stdio.h>
#include <stdlib.h>

enum {
	HOPEFUL = 3,       /* tries without a hold */
	TRIES = 16,        /* at least */
	PIECE = 1 << 20,   /* bytes of a GET */
	IN_PLACE = 256 << 10, /* bytes that are copied at once out of mapped memory: the lock is held for so long */
};

/* ---- opening and closing ---- */

static void release_reader(struct tt_handle *h)
{
	tutti_reader *r = tt_container_of(h, tutti_reader, handle);

	tutti_window_close(r->window);
	tt_parts_free(r);
	free(r->part);
	free(r->fetch);
	tt_reader_free(r);
	free(r);
}

/* -EAGAIN, -ESTALE: the name is closed and opened in the middle. */
static int meet_first(tutti_reader *r)
{
	int err = 0;

	for (int i = 0; i < TRIES; i++)
		if ((err = tt_reader_lose(r, tt_reader_meet(r))) != -EAGAIN && err != -ESTALE)
			break;
	if (err || !r->head.shard)
		return err;
	return tt_fail(-EINVAL, "%s: %s has shard %u of the publication: a reader names the rank of shard 0", r->what,
	               tt_reader_publisher(r).text, r->head.shard);
}

/* After the first contact. */
static int open_parts(tutti_reader *r, struct tt_users *opening)
{
	r->parts = r->head.shards ? (int)r->head.shards : 1;
	r->generation = r->head.generation;
	r->part = calloc((size_t)r->parts, sizeof *r->part);
	r->fetch = calloc((size_t)r->parts, sizeof *r->fetch);
	if (!r->part || !r->fetch)
		return tt_fail(-ENOMEM, "no memory for a reader");
	r->part[0] = r;
	return r->head.shards ? tt_parts_open(r, opening) : 0;
}

static int open_reader(tutti *at, const char *name, int rank, tutti_reader **out)
{
	static const struct tt_handle_kind kind = { .release = release_reader, .noun = "reader" };
	char full[TT_PUBLISH_NAME + 32];
	tutti_reader *r = calloc(1, sizeof *r);
	int err = 0;

	if (!r || asprintf(&r->what, "reader \"%s\"", name) < 0) {
		free(r);
		return tt_fail(-ENOMEM, "no memory for a reader");
	}
	r->job = at->job;
	r->users = &r->handle.users;
	r->timeout = tt_group_timeout(at);
	snprintf(full, sizeof full, "publication %s", name);
	r->member = tutti_group_member(at, rank);
	if (r->member < 0)
		err = r->member;
	else if (r->member == r->job->rank)
		err = tt_fail(-EINVAL, "%s: rank %d of the group is this rank: a rank that has joined late names the "
		              "publisher with tutti_job", r->what, rank);
	if (!err && !(err = tutti_window_open(tutti_job(at), full, NULL, 0, &r->window)) && !(err = meet_first(r)))
		err = open_parts(r, &at->handle.users);
	if (err) {
		release_reader(&r->handle);
		return err;
	}
	tt_lock(r->job);
	tt_handle_hold(&r->handle, r->job, &kind);
	tt_unlock(r->job);
	*out = r;
	return 0;
}

int tutti_reader_open(tutti *at, const char *name, int rank, tutti_reader **out)
{
	struct tt_job *job = tt_job_of(at);
	struct tt_users *outer;
	int err = tt_usable(job);

	if (err || (err = tt_given(out, "tutti_reader_open: reader")))
		return err;
	if (!name || !*name || strlen(name) > TT_PUBLISH_NAME)
		return tt_fail(-EINVAL, "a publication's name has 1 to %d bytes", TT_PUBLISH_NAME);
	if ((err = tt_opening_enter(job, &at->handle.users, &outer)))
		return err;
	err = open_reader(at, name, rank, out);
	tt_opening_exit(job, &at->handle.users, outer);
	return err;
}

void tutti_reader_close(tutti_reader *r)
{
	struct tt_sentence last = tt_last_sentence();

	if (!r || !tt_handle_close(&r->handle))
		return;
	tt_unlock(r->job);
	for (int k = 0; k < r->parts; k++)
		tt_reader_clear(r->part[k], 0, TT_PLACE_USED); /* the publisher counts its readers */
	tutti_window_close(r->window);
	r->window = NULL;
	tt_handle_free(&r->handle);
	tt_remember(last.text);
}

/* A call begins. Neither close nor leave frees anything before it has ended. */
static int enter(tutti_reader *r) { return r ? tt_users_enter(r->job, &r->handle.users) : tt_refuse_job(NULL); }
static void leave(tutti_reader *r) { tt_users_exit(r->job, &r->handle.users); }

static int count_weights(const tutti_reader *r)
{
	int n = 0;

	for (int k = 0; k < r->parts; k++)
		n += r->part[k]->n;
	return n;
}

int tutti_reader_weight(tutti_reader *r, int i, tutti_weight *weight)
{
	int err = tt_given(weight, "tutti_reader_weight: weight");
	int k = 0, at = i;

	if (err || (err = enter(r)))
		return err;
	while (k < r->parts && at >= r->part[k]->n)
		at -= r->part[k++]->n;
	if (at < 0 || k == r->parts) {
		err = tt_fail(-EINVAL, "%s: tensor %d must be from 0 to %d", r->what, i, count_weights(r) - 1);
	} else {
		*weight = r->part[k]->list[at];
		weight->shard = k;
	}
	leave(r);
	return err;
}

int tutti_reader_weights(tutti_reader *r)
{
	int err = enter(r), n;

	if (err)
		return err;
	n = count_weights(r);
	leave(r);
	return n;
}

int tutti_reader_newest(tutti_reader *r, uint64_t *version)
{
	int err = tt_given(version, "tutti_reader_newest: version");
	uint64_t word;

	if (err || (err = enter(r)))
		return err;
	if (r->seen)
		err = tt_parts_newest(r, &word);
	else if (!(err = tt_reader_ask(r) ? -ESTALE :
	                 tt_reader_get(r, offsetof(struct tt_front, newest), &word, sizeof word)))
		word /= TT_PUBLISH_MOST;
	if (!err)
		*version = word;
	err = err == -ERANGE ? tt_reader_refuse(r, "publishes nothing of this kind under this name now: close the "
	                                           "reader and open it again") : tt_reader_lose(r, err);
	leave(r);
	return err;
}

/* ---- the bytes ---- */

static int read_stamp(const struct tt_fetch *f)
{
	struct tt_stamp now;
	int err = tt_reader_get(f->r, tt_reader_stamp_at(f->buffer), &now, sizeof now);

	return err ? err : memcmp(&now, &f->stamp, sizeof now) ? -EAGAIN : 0;
}

/* One piece of memory that is mapped here. -EAGAIN: overtaken; -ENOTSUP: it is not mapped. */
static int copy_piece(struct tt_fetch *f, size_t at, char *to, size_t bytes)
{
	tutti_reader *r = f->r;
	int err = -ENOTSUP;
	char *theirs;

	tt_lock(r->job);
	if ((theirs = tt_window_hold(r->window, r->member))) {
		if (at + bytes <= tt_window_bytes(r->window, r->member)) {
			const uint64_t *number = (const uint64_t *)(void *)(theirs + tt_reader_stamp_at(f->buffer));
			tt_copy(&r->copier, to, theirs + at, bytes);
			__atomic_thread_fence(__ATOMIC_ACQUIRE);
			err = __atomic_load_n(number, __ATOMIC_RELAXED) == f->stamp.number ? 0 : -EAGAIN;
		}
		tt_window_let_go(r->window, r->member);
	}
	tt_unlock(r->job);
	return err;
}

static int end_oldest(struct tt_fetch *f, bool give_up)
{
	tutti_op *op = &f->r->op[f->ended % TT_READER_DEPTH];
	int err = give_up ? tutti_cancel(op) : tutti_wait(op, -1);

	f->ended += give_up || err != -EINTR; /* it runs on */
	return err;
}

static int get_piece(struct tt_fetch *f, size_t at, char *to, size_t bytes)
{
	tutti_reader *r = f->r;
	int err = f->begun - f->ended == TT_READER_DEPTH ? end_oldest(f, false) : 0;

	if (!err && !(err = tt_window_get(r->window, r->what, r->member, at, to, bytes,
	                                  &r->op[f->begun % TT_READER_DEPTH])))
		f->begun++;
	return err;
}

/* Another thread closes the reader, or leaves the job. */
static int ends(tutti_reader *r) { return r->users->err ? tt_users_enter(r->job, r->users) : 0; }

static int bring(struct tt_fetch *f, size_t at, char *to, size_t bytes)
{
	int err = ends(f->r);

	for (size_t done = 0, n; done < bytes && !err; done += n) {
		n = tt_min(bytes - done, f->mapped ? IN_PLACE : PIECE);
		if (!f->mapped) {
			err = get_piece(f, at + done, to + done, n);
		} else if ((err = copy_piece(f, at + done, to + done, n)) == -ENOTSUP) {
			f->mapped = false;
			n = 0;
			err = 0;
		}
		f->bytes += n;
		err = err ? err : ends(f->r);
	}
	return err;
}

static int bring_meta(struct tt_fetch *f)
{
	size_t meta = f->r->at.meta + (size_t)f->buffer * TT_PUBLISH_META;

	return bring(f, meta, f->r->meta, tt_min(f->stamp.about[0], TT_PUBLISH_META));
}

static int bring_tensors(struct tt_fetch *f)
{
	tutti_reader *r = f->r;
	size_t buffer = r->at.buffers + (size_t)f->buffer * r->at.stride;
	int err = 0;

	for (int i = 0; !err && i < r->n; i++)
		if (f->to[i].data)
			err = bring(f, buffer + r->model.at[i], f->to[i].data,
			            f->to[i].count * tt_type_size(f->to[i].type));
	return err;
}

/* Brings the meta data, and what the function brings. 0: all is here, and whole. -EAGAIN: overtaken. */
static int copy_version(struct tt_fetch *f, int (*bring_rest)(struct tt_fetch *))
{
	int err;

	tt_lock(f->r->job);
	f->mapped = tt_window_is_mapped(f->r->window, f->r->member);
	tt_unlock(f->r->job);
	f->begun = f->ended = 0;
	if (!(err = bring_meta(f)))
		err = bring_rest(f);
	while (!err && f->ended < f->begun)
		err = end_oldest(f, false);
	struct tt_sentence first = tt_last_sentence();
	while (f->ended < f->begun) /* after an error */
		end_oldest(f, true);
	if (err)
		tt_remember(first.text);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return err ? err : read_stamp(f);
}

/* ---- deltas ---- */

static int bring_deltas(struct tt_fetch *f)
{
	uint8_t *to = f->r->deltas;
	int err = 0;

	for (int i = 0; !err && i < f->chain.n; i++) {
		err = bring(f, f->r->at.ring + f->chain.link[i].at, (char *)to, f->chain.link[i].bytes);
		to += f->chain.link[i].bytes;
	}
	return err;
}

static int get_entries(struct tt_fetch *f, struct tt_delta_entry all[TT_DELTAS])
{
	f->bytes += TT_DELTAS * sizeof *all;
	return tt_reader_get(f->r, f->r->at.entries, all, TT_DELTAS * sizeof *all);
}

static int make_room(tutti_reader *r, size_t bytes)
{
	if (bytes > r->room) {
		free(r->deltas);
		r->deltas = malloc(bytes);
		r->room = r->deltas ? bytes : 0;
	}
	return r->deltas ? 0 : tt_fail(-ENOMEM, "%s: no memory for deltas of %zu bytes", r->what, bytes);
}

/* Do the deltas that came lead from what the program has to the version that was looked at? */
static bool apply_deltas(const struct tt_fetch *f)
{
	const uint8_t *from = f->r->deltas;

	for (int i = 0; i < f->chain.n; from += f->chain.link[i++].bytes)
		if (!tt_delta_apply(from, f->chain.link[i].bytes, f->to, f->r->n))
			return false;
	return tt_delta_sum(f->to, f->r->n) == f->chain.link[f->chain.n - 1].sum;
}

/* 0: the version is here. -EAGAIN: overtaken; the tensors are as they were. -ENODATA: the version must come whole. */
static int update(struct tt_fetch *f)
{
	tutti_reader *r = f->r;
	struct tt_delta_entry all[TT_DELTAS];
	uint64_t from = f->from;
	int err;

	if (!from || !r->head.deltas || r->generation != r->head.generation || r->model.bytes <= 2 * sizeof all)
		return -ENODATA;
	if ((err = get_entries(f, all)))
		return err;
	if (!tt_delta_find(all, from, f->stamp.number, tt_publish_ring(&r->head), r->model.bytes - 2 * sizeof all,
	                   &f->chain))
		return -ENODATA;
	if ((err = make_room(r, f->chain.bytes)) || (err = copy_version(f, bring_deltas)) ||
	    (err = get_entries(f, all)))
		return err;
	if (!tt_delta_is_there(all, &f->chain))
		return -EAGAIN;
	f->from = 0;
	if (apply_deltas(f))
		return 0;
	r->mismatched++;
	return -ENODATA;
}

/* Only a publication without shards has deltas. A reader that was overtaken often does not try deltas again: a hold
 * does not keep them. */
static int take_version(struct tt_fetch *f, unsigned overtaken)
{
	int err = overtaken < HOPEFUL ? update(f) : -ENODATA;

	if (err != -ENODATA)
		return err;
	f->from = 0;
	f->chain.n = 0;
	return copy_version(f, bring_tensors);
}

/* All parts, each whole. The publisher of a part may close it meanwhile. */
static int copy_parts(tutti_reader *r, unsigned overtaken)
{
	int err = 0;

	for (int k = 0; k < r->parts && !err; k++) {
		r->missing = k;
		err = tt_reader_lose(r->part[k], take_version(&r->fetch[k], overtaken));
	}
	return err;
}

static int start_hold(struct tt_fetch *f)
{
	f->word = f->stamp.number * TT_PUBLISH_MOST + (uint64_t)f->buffer;
	f->held = true;
	return tt_reader_start_hold(f->r, &f->word, &f->r->op[0]);
}

static int start_stamp(struct tt_fetch *f)
{
	return tt_window_get(f->r->window, f->r->what, f->r->member, tt_reader_stamp_at(f->buffer), &f->now,
	                     sizeof f->now, &f->r->op[0]);
}

static int read_stamps(tutti_reader *r)
{
	int err = tt_parts_all(r, 0, start_stamp);

	for (int k = 0; k < r->parts && !err; k++) {
		r->missing = k;
		err = memcmp(&r->fetch[k].now, &r->fetch[k].stamp, sizeof(struct tt_stamp)) ? -EAGAIN : 0;
	}
	return err;
}

/* publish_private.h says why the fence is there. Over a connection, the GET sees the PUT that has ended. The holds of
 * all parts take two round trips: a version of a fast publisher does not live longer. */
static int take_holds(tutti_reader *r)
{
	int err = tt_parts_all(r, 0, start_hold);

	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return err ? err : read_stamps(r);
}

/* Also after an error: the publisher would do without the buffer for hold_ms. */
static void end_holds(tutti_reader *r)
{
	for (int k = 0; k < r->parts; k++)
		if (r->fetch[k].held)
			tt_reader_clear(r->part[k], offsetof(struct tt_reader_place, hold), sizeof(uint64_t));
}

/* ---- fetching ---- */

static int say_late(tutti_reader *r, int why, uint64_t newer_than, int timeout_ms)
{
	uint64_t ms = timeout_ms < 0 ? r->timeout / TT_MS : (uint64_t)timeout_ms;
	struct tt_label who = tt_reader_publisher(r);

	if (r->seen && (why == -EINPROGRESS || why == -EAGAIN)) /* the shard that the last look missed */
		return tt_fail(-ETIMEDOUT, "%s has not opened the publication again within %llu ms",
		               r->part[r->missing]->what, (unsigned long long)ms);
	if (why == -EINPROGRESS)
		return tt_fail(-ETIMEDOUT, "%s: %s has not opened the publication again within %llu ms", r->what,
		               who.text, (unsigned long long)ms);
	if (why == -EAGAIN)
		return tt_fail(-ETIMEDOUT, "%s: %s has been writing over its newest version for %llu ms: readers hold "
		               "the other buffers, so give the publisher more of them", r->what, who.text,
		               (unsigned long long)ms);
	return tt_fail(-ETIMEDOUT, "%s: %s has published no version newer than %llu within %llu ms", r->what, who.text,
	               (unsigned long long)newer_than, (unsigned long long)ms);
}

/* Waits for a version that is whole and newer. The last look is after the deadline; where a version changes just
 * now, not the first one. */
static int find_version(tutti_reader *r, uint64_t newer_than, int timeout_ms, uint64_t deadline)
{
	struct tt_fetch *f = r->fetch;
	uint64_t pause = TT_PUBLISH_PAUSE, end = tt_max(deadline, tt_now() + pause);
	int err, ended;

	for (bool late = false;; late = tt_now() >= deadline) {
		err = r->seen ? tt_parts_look(r) : tt_reader_lose(r, tt_reader_look(r, &f->stamp, &f->buffer));
		if (!err && (f->stamp.number > newer_than || r->generation != r->head.generation))
			return 0;
		if (err && err != -EAGAIN && err != -ENODATA && err != -EINPROGRESS)
			return err;
		if (late || (err != -EAGAIN && tt_now() >= deadline))
			return say_late(r, err, newer_than, timeout_ms);
		if ((ended = tt_publish_pause(r->job, &r->handle.users, &pause, end)))
			return ended;
	}
}

static int check_part(const tutti_reader *r, const tutti_tensor *to)
{
	for (int i = 0; i < r->n; i++) {
		const tutti_tensor *theirs = &r->model.tensors[i];
		if (to[i].data && (to[i].count != theirs->count || to[i].type != theirs->type))
			return tt_fail(-EINVAL, "%s: tensor \"%s\" has %zu elements here%s, and %zu at %s", r->what,
			               r->list[i].name, to[i].count,
			               to[i].type != theirs->type ? " of another type" : "", theirs->count,
			               tt_reader_publisher(r).text);
	}
	return tt_tensors_host_only("fetch", to, r->n);
}

static bool gives_all(const tutti_reader *r, const tutti_tensor *to)
{
	for (int i = 0; i < r->n; i++)
		if (!to[i].data && (r->model.tensors[i].count || to[i].count))
			return false;
	return true;
}

/* Each part has its own range of the list. */
static int begin_parts(tutti_reader *r, uint64_t held, const tutti_tensor *to)
{
	int err = 0;

	for (int k = 0; k < r->parts && !err; k++) {
		r->fetch[k] = (struct tt_fetch){ .r = r->part[k], .to = to,
		                                 .from = gives_all(r->part[k], to) ? held : 0 };
		err = check_part(r->part[k], to);
		to += r->part[k]->n;
	}
	return err;
}

static double age_of(uint64_t born)
{
	uint64_t now = tt_calendar();

	return now > born ? (double)(now - born) / TT_MS : 0;
}

/* Tries until a version is here, whole. A hold, or a look at stamps, that came too late means that the publisher is
 * about to show the next version: it may need this core. */
static int fetch_newest(tutti_reader *r, uint64_t newer_than, int timeout_ms, unsigned *overtaken)
{
	uint64_t deadline = tt_publish_deadline(r->timeout, timeout_ms), pause = TT_PUBLISH_PAUSE;
	int err;

	for (;;) {
		if ((err = find_version(r, newer_than, timeout_ms, deadline)))
			return err;
		bool late = (r->seen && (err = tt_parts_find(r))) || (*overtaken >= HOPEFUL && (err = take_holds(r)));
		if (!late)
			err = copy_parts(r, *overtaken);
		if (err == -ERANGE) /* the name was opened again, with a smaller window */
			err = -EAGAIN;
		if (err != -EAGAIN || (++*overtaken >= TRIES && tt_now() >= deadline))
			return err;
		if (late && (err = tt_publish_pause(r->job, &r->handle.users, &pause, TT_NEVER)))
			return err;
	}
}

/* Errors are not the fetch's: the version is here. */
static void tell_taken(tutti_reader *r)
{
	struct tt_sentence last = tt_last_sentence();

	for (int k = 0; k < r->parts; k++)
		tt_reader_put_word(r->part[k], offsetof(struct tt_reader_place, taken), r->fetch[k].stamp.number);
	tt_remember(last.text);
}

/* The last part makes a version whole. */
static uint64_t born_at(const tutti_reader *r)
{
	uint64_t born = 0;

	for (int k = 0; k < r->parts; k++)
		born = tt_max(born, r->fetch[k].stamp.born);
	return born;
}

static uint64_t bytes_of(const tutti_reader *r)
{
	uint64_t bytes = 0;

	for (int k = 0; k < r->parts; k++)
		bytes += r->fetch[k].bytes;
	return bytes;
}

static int fetch(tutti_reader *r, uint64_t newer_than, uint64_t held, const tutti_tensor *to, int timeout_ms,
                 tutti_fetched *got)
{
	const struct tt_stamp *stamp = &r->fetch->stamp;
	unsigned overtaken = 0;
	int err = begin_parts(r, held, to);

	if (err)
		return err;
	err = fetch_newest(r, newer_than, timeout_ms, &overtaken);
	end_holds(r);
	if (err == -EAGAIN)
		return tt_fail(err, "%s: %s has published faster than this rank could read, %u times: give the "
		               "publisher more buffers, or a hold_ms that is longer than a fetch",
		               r->part[r->missing]->what, tt_reader_publisher(r->part[r->missing]).text, overtaken);
	if (err)
		return err;
	tell_taken(r);
	r->generation = r->head.generation;
	*got = (tutti_fetched){ .version = stamp->number, .generation = r->generation, .age_ms = age_of(born_at(r)),
		.meta_bytes = tt_min(stamp->about[0], TT_PUBLISH_META), .overtaken = overtaken,
		.deltas = (unsigned)r->fetch->chain.n, .bytes = bytes_of(r), .mismatched = r->mismatched };
	memcpy(got->meta, r->meta, got->meta_bytes);
	return 0;
}

int tutti_reader_update(tutti_reader *r, uint64_t newer_than, uint64_t held, const tutti_tensor *to, int timeout_ms,
                        tutti_fetched *fetched)
{
	int err = tt_given(to, "tutti_reader_fetch: to");

	if (err || (err = tt_given(fetched, "tutti_reader_fetch: fetched")) || (err = enter(r)))
		return err;
	err = fetch(r, newer_than, held, to, timeout_ms, fetched);
	leave(r);
	return err;
}

int tutti_reader_fetch(tutti_reader *r, uint64_t newer_than, const tutti_tensor *to, int timeout_ms,
                       tutti_fetched *fetched)
{
	return tutti_reader_update(r, newer_than, 0, to, timeout_ms, fetched);
}
