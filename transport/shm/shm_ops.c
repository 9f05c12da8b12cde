/* shm_ops.c - operations: direct stores and loads where the memory can be reached, else requests to its owner
 *
 *                     mapped            process_vm_*           through the lane: the owner's processor moves the bytes
 *   PUT               copy, now         over 1 KiB             PUT pieces ----->   <----- ACK or NAK
 *   GET               copy, now         over 1 KiB, of words   GET ------------>   <----- REPLY pieces or NAK
 *   ADD               atomic, now       -                      ADD ------------>   <----- SUM or NAK
 *   notify, SEND                                               always: one line, behind all that was posted earlier
 *
 * A message of send() and a value of notify() are written into the lane at once, unless it is full or ops wait: then
 * the caller posts an op, and the order is that of the ops.
 *
 * Ops begin in post order. An op begins when all earlier ops have done their direct stores or are in the lane. So a
 * line comes after the bytes of all earlier PUTs, which is all the ordering that the contract asks for.
 */
#include "transport/shm/shm_private.h"
#include "transport/breaks.h"
#include <string.h>
#include <sys/uio.h>

enum step { MORE, ENDED, STUCK }; /* of an op: call again; it has left the queue; it cannot go on now */
enum {
	BURST = 64,
	PAGE = 4096,   /* bytes, or less than a page */
	COPIED = 4096, /* bytes of a message, up to which it is copied before a handler sees it */
};

static struct tt_shm_peer *peer_of(struct tt_peer *p) { return tt_container_of(p, struct tt_shm_peer, base); }

/* ---- copying ---- */

static void copy(struct tt_copier *learnt, void *to, const void *from, size_t n)
{
	if (n <= 8)
		tt_copy_word(to, from, n);
	else
		tt_copy(learnt, to, from, n);
}

/* Where a word begins at one end, a word begins at the other. */
static bool words_meet(uintptr_t to, uintptr_t from) { return tt_aligned(to ^ from); }

/* For a GET: each aligned word of the source is read whole. The ways of tt_copy() are for words at both ends, and may
 * read the last bytes twice. */
static void load(struct tt_copier *learnt, char *to, const char *from, size_t n)
{
	size_t head = tt_min(-(uintptr_t)from % 8, n), words = (n - head) & ~(size_t)7;

	if (n <= 8) {
		tt_copy_word(to, from, n);
	} else if (words_meet((uintptr_t)to, (uintptr_t)from)) {
		memcpy(to, from, head);
		tt_copy(learnt, to + head, from + head, words);
		memcpy(to + head + words, from + head + words, n - head - words);
	} else {
		tt_copy_words(to, from, n);
	}
}

/* Copies all n bytes and returns 0, or fails, and then none of the bytes count. -ESRCH: the process is ending, and what
 * it said before has not been read. */
static int copy_vm(struct tt_shm_peer *p, bool put, void *local, uint64_t remote, size_t n)
{
	while (n) {
		struct iovec here = { local, n }, there = { (void *)(uintptr_t)remote, n };
		ssize_t k = put ? process_vm_writev(p->pid, &here, 1, &there, 1, 0)
		                : process_vm_readv(p->pid, &here, 1, &there, 1, 0);
		if (k <= 0)
			return k < 0 && (errno == ESRCH || errno == EPERM) ? -ESRCH : -EINVAL;
		local = (char *)local + k;
		remote += (uint64_t)k;
		n -= (size_t)k;
	}
	return 0;
}

/* Does the kernel permit it? Containers, yama and ptrace rules may forbid it; only a try tells. */
static bool may_vm(struct tt_shm_peer *p)
{
	struct tt_shm_sheet *self = p->sheet->self, *seen = NULL;
	struct iovec here = { &seen, sizeof seen }, there = { &self->self, sizeof seen };

	if (!p->vm_tried) {
		p->vm_tried = true;
		p->vm = process_vm_readv(p->pid, &here, 1, &there, 1, 0) == sizeof seen && seen == self;
		if (!p->vm)
			tt_log(TT_DEBUG,
			       "process_vm_readv on process %d: %s; memory that is in no file goes through the lane",
			       (int)p->pid, strerror(errno));
	}
	return p->vm;
}

static enum step end(struct tt_shm_peer *p, struct tt_op *op, int err)
{
	tt_queue_pop(&p->ops.pending);
	p->at = 0;
	tt_flight_finish_later(&p->ops, op, err);
	return ENDED;
}

static bool say_notify(struct tt_shm_peer *p, uint32_t value)
{
	struct tt_shm_line *line = tt_shm_line(p, 0, NULL);

	if (!line)
		return false;
	line->kind = TT_FRAME_PUT;
	line->flags = TT_FRAME_NOTIFY | TT_FRAME_LAST | TT_FRAME_INLINE; /* nothing lands, so nothing is answered */
	line->notify = value;
	line->len = 0;
	tt_shm_publish(p, line);
	return true;
}

static enum step end_put(struct tt_shm_peer *p, struct tt_op *op)
{
	if (op->flags & TT_NOTIFY && !tt_broken(NOTIFY_FIRST) && !say_notify(p, op->notify))
		return STUCK;
	return end(p, op, 0);
}

/* If the owner has shut this side out, the op waits: the owner's last messages come first, and the end of the
 * connection then ends all pending ops. */
static enum step refused(struct tt_shm_peer *p, struct tt_op *op, int err)
{
	return atomic_load(&p->out->shut) || tt_flight_misused(&p->ops, err) ? STUCK : end(p, op, err);
}

static enum step fail_directly(struct tt_shm_peer *p, struct tt_op *op, int err)
{
	if (err != -ESRCH)
		return refused(p, op, err);
	p->vm = false;
	p->at = 0;
	/* the op goes through the lane: the process has died, which ends the connection, too, or forbids this way */
	return MORE;
}

/* Ops move on behind many others, and so do signs of life. */
static void stir(struct tt_shm_peer *p, size_t n)
{
	_Atomic uint32_t *stirs = &p->out->stirs;

	if (n >= TT_SHM_PIECE)
		atomic_store_explicit(stirs, atomic_load_explicit(stirs, memory_order_relaxed) + 1,
		                      memory_order_relaxed);
	p->copied += n;
}

/* Reading the source may wait for a disk. In the middle of a store, the owner would wait, too, and in the end kill this
 * process. */
static void fault_in(const char *from, size_t n)
{
	for (size_t at = 0; at < n; at += PAGE)
		(void)*(const volatile char *)(from + at);
	if (n)
		(void)*(const volatile char *)(from + n - 1);
}

static enum step put_directly(struct tt_shm_peer *p, struct tt_op *op, const struct tt_shm_found *f)
{
	size_t n = tt_min(op->len - p->at, TT_SHM_BUDGET);
	char *from = (char *)op->local + p->at;
	int err = 0;

	fault_in(from, n);
	if (n && !tt_shm_begin_write(p, f->id))
		return refused(p, op, -ESTALE);
	if (n && f->at)
		copy(&p->net->puts, f->at + op->offset + p->at, from, n - tt_broken(DONE_EARLY));
	else if (n)
		err = copy_vm(p, true, from, f->base + op->offset + p->at, n - tt_broken(DONE_EARLY));
	tt_shm_end_write(p);
	if (err)
		return fail_directly(p, op, err);
	p->at += n;
	stir(p, n);
	return p->at < op->len ? MORE : end_put(p, op);
}

static enum step get_directly(struct tt_shm_peer *p, struct tt_op *op, const struct tt_shm_found *f)
{
	size_t n = tt_min(op->len - p->at, TT_SHM_BUDGET);
	uint64_t from = (f->at ? (uintptr_t)f->at : f->base) + op->offset + p->at;
	char *to = (char *)op->local + p->at;
	int err = 0;

	if (n < op->len - p->at)
		n -= (from + n) % 8; /* no word lies in two pieces */
	if (n && f->at)
		load(&p->net->gets, to, (char *)(uintptr_t)from, n - tt_broken(GET_EARLY));
	else if (n)
		err = copy_vm(p, false, to, from, n - tt_broken(GET_EARLY));
	atomic_thread_fence(memory_order_acquire);
	if (err || !tt_shm_valid(p, f->id))
		return fail_directly(p, op, err ? err : -ESTALE);
	p->at += n;
	stir(p, n);
	return p->at < op->len ? MORE : end(p, op, 0);
}

static enum step add_directly(struct tt_shm_peer *p, struct tt_op *op, const struct tt_shm_found *f)
{
	if (!tt_aligned((uintptr_t)f->at))
		return end(p, op, -EINVAL);
	if (!tt_shm_begin_write(p, f->id))
		return refused(p, op, -ESTALE);
	op->operand = __atomic_fetch_add((uint64_t *)(void *)(f->at + op->offset), op->operand, __ATOMIC_SEQ_CST);
	tt_shm_end_write(p);
	return end(p, op, 0);
}

/* ---- through the lane ---- */

static void fly(struct tt_shm_peer *p, struct tt_op *op)
{
	tt_queue_pop(&p->ops.pending);
	p->at = 0;
	p->current = -1;
	tt_flight_begin(&p->ops, op);
}

static enum step ask_put(struct tt_shm_peer *p, struct tt_op *op, uint64_t id)
{
	size_t n = tt_min(op->len - p->at, TT_SHM_PIECE);
	bool word = op->len == 8, last = p->at + n == op->len;
	struct tt_shm_line *line;
	uint8_t *payload = NULL;

	if (p->current < 0 && !p->ops.free_count)
		return STUCK;
	if (p->current < 0)
		p->current = (int)tt_flight_take_slot(&p->ops, op);
	if (!(line = tt_shm_line(p, word ? 0 : n, &payload)))
		return STUCK;
	line->kind = TT_FRAME_PUT;
	line->flags = last ? TT_FRAME_LAST | (op->flags & TT_NOTIFY ? TT_FRAME_NOTIFY : 0) : 0;
	line->slot = (uint16_t)p->current;
	line->notify = op->notify;
	line->len = n;
	line->key = id;
	line->offset = op->offset + p->at;
	if (word)
		copy(&p->net->lanes, &line->word, op->local, 8);
	else
		tt_copy(&p->net->lanes, payload, (char *)op->local + p->at, n);
	tt_shm_publish(p, line);
	p->at += n;
	if (!last)
		return MORE;
	fly(p, op);
	return ENDED;
}

static enum step ask_read(struct tt_shm_peer *p, struct tt_op *op, uint64_t id)
{
	struct tt_shm_line *line;

	if (!p->ops.free_count || !(line = tt_shm_line(p, 0, NULL)))
		return STUCK;
	line->kind = op->kind == TT_GET ? TT_FRAME_GET : TT_FRAME_ADD;
	line->flags = 0;
	line->slot = (uint16_t)tt_flight_take_slot(&p->ops, op);
	line->len = op->len;
	line->key = id;
	line->offset = op->offset;
	line->word = op->operand;
	tt_shm_publish(p, line);
	fly(p, op);
	return ENDED;
}

static bool write_message(struct tt_shm_peer *p, const void *head, size_t head_len, const void *body, size_t body_len)
{
	size_t len = head_len + body_len;
	bool fits = len <= TT_SHM_BODY;
	uint8_t *payload = NULL, *to;
	struct tt_shm_line *line = tt_shm_line(p, fits ? 0 : len, &payload);

	if (!line)
		return false;
	line->kind = TT_FRAME_SEND;
	line->flags = 0;
	line->len = len;
	/* Not past the caches, though that may be faster for the writer: the reader is about to read the bytes. */
	to = fits ? line->body : payload;
	if (head_len)
		memcpy(to, head, head_len);
	if (body_len)
		memcpy(to + head_len, body, body_len);
	tt_shm_publish(p, line);
	return true;
}

static enum step send(struct tt_shm_peer *p, struct tt_op *op)
{
	return write_message(p, op->local, op->len, NULL, 0) ? end(p, op, 0) : STUCK;
}

static bool goes_by_lane(struct tt_shm_peer *p, const struct tt_op *op, const struct tt_shm_found *f)
{
	return !f->at && (p->current >= 0 || op->kind == TT_ADD || op->len <= TT_SHM_BY_LANE || !may_vm(p) ||
	                  (op->kind == TT_GET && !words_meet((uintptr_t)op->local, f->base + op->offset)));
}

static enum step reach(struct tt_shm_peer *p, struct tt_op *op)
{
	struct tt_shm_found f = { .id = tt_shm_id(op->key) };
	/* when a part is in the lane, the owner finds the key and judges it */
	int err = p->current < 0 ? tt_shm_find(p, op, &f) : 0;

	if (err)
		return refused(p, op, err);
	if (goes_by_lane(p, op, &f))
		return op->kind == TT_PUT ? ask_put(p, op, f.id) : ask_read(p, op, f.id);
	return op->kind == TT_PUT   ? put_directly(p, op, &f)
	       : op->kind == TT_GET ? get_directly(p, op, &f)
	                            : add_directly(p, op, &f);
}

static enum step advance(struct tt_shm_peer *p, struct tt_op *op)
{
	if (tt_broken(NOTIFY_FIRST) && op->flags & TT_NOTIFY && op->len && !p->at) {
		if (!say_notify(p, op->notify))
			return STUCK;
		op->flags &= ~(uint32_t)TT_NOTIFY;
		return STUCK;
	}
	if (op->kind == TT_SEND)
		return send(p, op);
	return op->kind == TT_PUT && !op->len ? end_put(p, op) : reach(p, op);
}

/* ---- what I owe ---- */

static bool answer_piece(struct tt_shm_peer *p, struct tt_shm_answer *a)
{
	size_t n = tt_min(a->len - a->at, TT_SHM_PIECE);
	bool word = a->len == 8;
	uint8_t *from = NULL, *payload = NULL;
	int why = a->kind == TT_FRAME_REPLY ? tt_shm_place(p->net, a->key, a->offset + a->at, n, &from) : a->why;
	bool bytes = a->kind == TT_FRAME_REPLY && !why;

	if (why && tt_flight_misused(&p->ops, tt_frame_error((uint32_t)why)))
		return false;
	struct tt_shm_line *line = tt_shm_line(p, bytes && !word ? n : 0, &payload);
	if (!line)
		return false;
	line->kind = why ? TT_FRAME_NAK : a->kind;
	line->slot = a->slot;
	line->flags = TT_FRAME_LAST;
	line->notify = (uint32_t)why;
	line->len = bytes ? n : 0;
	line->offset = a->at;
	line->word = a->word;
	if (bytes && word)
		copy(&p->net->lanes, &line->word, from, 8);
	else if (bytes && n)
		load(&p->net->answers, (char *)payload, (const char *)from, n);
	a->at += bytes ? n : 0;
	if (bytes && a->at < a->len)
		line->flags = 0;
	else
		a->kind = 0;
	tt_shm_publish(p, line);
	return true;
}

/* One side owes at most as many answers as the other side has slots. */
static bool owe(struct tt_shm_peer *p, struct tt_shm_answer a)
{
	if (p->answer_count == TT_COUNT(p->answers)) {
		tt_flight_lose(&p->ops, "it asked for more than it has slots for");
		return false;
	}
	if (!p->answer_count) { /* often there is room at once, and the answer need not be kept */
		while (a.kind && a.len <= TT_SHM_PIECE)
			if (!answer_piece(p, &a))
				break;
		if (!a.kind)
			return true;
	}
	p->answers[(p->answer_at + p->answer_count++) % TT_COUNT(p->answers)] = a;
	return true;
}

static bool pay(struct tt_shm_peer *p)
{
	struct tt_shm_answer *a = &p->answers[p->answer_at];

	if (!p->answer_count || !answer_piece(p, a))
		return false;
	if (!a->kind) {
		p->answer_at = (p->answer_at + 1) % TT_COUNT(p->answers);
		p->answer_count--;
	}
	return true;
}

/* ---- posting ---- */

void tt_shm_push(struct tt_shm_peer *p)
{
	p->copied = 0;
	while (tt_flight_alive(&p->ops) && (p->ops.pending.head || p->answer_count)) {
		enum step s = p->ops.pending.head ? advance(p, p->ops.pending.head) : STUCK;
		p->stuck = !pay(p) && s == STUCK;
		if (p->stuck || p->copied >= TT_SHM_BUDGET)
			return;
	}
}

void tt_shm_post(struct tt_peer *base, struct tt_op *op)
{
	struct tt_shm_peer *p = peer_of(base);

	tt_flight_post(&p->ops, op);
	if (!tt_broken(MESSAGES_SWAPPED))
		tt_shm_push(p);
	if (tt_shm_has_to_push(p))
		tt_shm_look_again(p);
}

int tt_shm_notify(struct tt_peer *base, uint32_t value)
{
	struct tt_shm_peer *p = peer_of(base);

	return tt_flight_alive(&p->ops) && !p->ops.pending.head && say_notify(p, value);
}

int tt_shm_send(struct tt_peer *base, const void *head, size_t head_len, const void *body, size_t body_len)
{
	struct tt_shm_peer *p = peer_of(base);

	return tt_flight_alive(&p->ops) && !p->ops.pending.head && head_len + body_len <= TT_MESSAGE_MAX &&
	       write_message(p, head, head_len, body, body_len);
}

/* ---- what has come ---- */

static void take_put(struct tt_shm_peer *p, const struct tt_shm_line *line, const uint8_t *payload)
{
	bool last = line->flags & TT_FRAME_LAST, bare = line->flags & TT_FRAME_INLINE;
	uint8_t *to, *why = &p->put_err[line->slot % 256];
	size_t n = payload ? line->extra : bare ? 0 : tt_min(line->len, 8);

	if (!*why && !bare && !(*why = (uint8_t)tt_shm_place(p->net, line->key, line->offset, n, &to)))
		copy(&p->net->lanes, to, payload ? payload : (const uint8_t *)&line->word, n);
	if (!last)
		return;
	uint8_t refused = bare ? 0 : *why;
	if (!bare) {
		*why = 0;
		owe(p, (struct tt_shm_answer){
			       .kind = refused ? TT_FRAME_NAK : TT_FRAME_ACK, .why = refused, .slot = line->slot });
	}
	if (!refused && line->flags & TT_FRAME_NOTIFY && p->base.net->events->notify)
		p->base.net->events->notify(&p->base, line->notify);
}

static void take_add(struct tt_shm_peer *p, const struct tt_shm_line *line)
{
	struct tt_shm_answer a = { .kind = TT_FRAME_SUM, .slot = line->slot };
	uint8_t *at;
	int why = tt_shm_place(p->net, line->key, line->offset, 8, &at);

	if (!why && !tt_aligned((uintptr_t)at))
		why = TT_NAK_INVALID;
	if (why)
		a = (struct tt_shm_answer){ .kind = TT_FRAME_NAK, .why = (uint8_t)why, .slot = line->slot };
	else
		a.word = __atomic_fetch_add((uint64_t *)(void *)at, line->word, __ATOMIC_SEQ_CST);
	owe(p, a);
}

static void take_get(struct tt_shm_peer *p, const struct tt_shm_line *line)
{
	uint8_t *at;
	int why = tt_shm_place(p->net, line->key, line->offset, line->len, &at);

	owe(p, (struct tt_shm_answer){ .kind = why ? TT_FRAME_NAK : TT_FRAME_REPLY,
	                               .why = (uint8_t)why,
	                               .slot = line->slot,
	                               .key = line->key,
	                               .offset = line->offset,
	                               .len = line->len });
}

static void end_request(struct tt_shm_peer *p, unsigned slot, int err)
{
	struct tt_op *op = tt_flight_give_slot(&p->ops, slot);

	tt_flight_end(&p->ops, op);
	tt_flight_finish_later(&p->ops, op, err);
}

static bool land(struct tt_shm_peer *p, struct tt_op *op, const struct tt_shm_line *line, const uint8_t *payload)
{
	size_t n = payload ? line->extra : tt_min(line->len, 8);

	if (op->kind != TT_GET || line->offset > op->len || n > op->len - line->offset) {
		tt_flight_lose(&p->ops, "it answered with what was not asked for");
		return false;
	}
	copy(&p->net->lanes, (char *)op->local + line->offset, payload ? payload : (const uint8_t *)&line->word, n);
	return line->flags & TT_FRAME_LAST;
}

static void take_answer(struct tt_shm_peer *p, const struct tt_shm_line *line, const uint8_t *payload)
{
	unsigned slot = line->slot % 256;
	struct tt_op *op = p->ops.slots[slot];

	if (!op || (int)slot == p->current) {
		tt_flight_lose(&p->ops, "it answered what was not asked");
	} else if (line->kind == TT_FRAME_NAK) {
		end_request(p, slot, tt_frame_error(line->notify));
	} else if (line->kind == TT_FRAME_REPLY) {
		if (land(p, op, line, payload))
			end_request(p, slot, 0);
	} else if ((line->kind == TT_FRAME_SUM) == (op->kind == TT_ADD) && op->kind != TT_GET) {
		op->operand = op->kind == TT_ADD ? line->word : op->operand;
		end_request(p, slot, 0);
	} else {
		tt_flight_lose(&p->ops, "it answered with what was not asked for");
	}
}

/* The peer can still change what lies in the payload while a handler judges it, but for messages up to COPIED. */
static void take_message(struct tt_shm_peer *p, const struct tt_shm_line *line, const uint8_t *payload)
{
	uint8_t mine[COPIED] __attribute__((aligned(64)));
	size_t len = payload ? line->extra : line->len;

	if (len > (payload ? (size_t)TT_MESSAGE_MAX : TT_SHM_BODY)) {
		tt_flight_lose(&p->ops, "it wrote a message that is too long");
		return;
	}
	if (payload && len <= sizeof mine)
		payload = memcpy(mine, payload, len);
	if (p->base.net->events->message)
		p->base.net->events->message(&p->base, payload ? payload : line->body, len);
}

static void take(struct tt_shm_peer *p, const struct tt_shm_line *line, const uint8_t *payload)
{
	switch (line->kind) {
	case TT_FRAME_PUT:
		take_put(p, line, payload);
		break;
	case TT_FRAME_GET:
		take_get(p, line);
		break;
	case TT_FRAME_ADD:
		take_add(p, line);
		break;
	case TT_FRAME_SEND:
		take_message(p, line, payload);
		break;
	case TT_FRAME_REPLY:
	case TT_FRAME_SUM:
	case TT_FRAME_NAK:
	case TT_FRAME_ACK:
		take_answer(p, line, payload);
		break;
	default:
		tt_flight_lose(&p->ops, "it wrote a line that is none");
	}
}

/* Wraps with its counter. */
static void see_stirs(struct tt_shm_peer *p)
{
	uint32_t now = atomic_load_explicit(&p->in->stirs, memory_order_relaxed);

	p->base.received += now - p->stirs;
	p->stirs = now;
}

void tt_shm_read(struct tt_shm_peer *p)
{
	const struct tt_shm_line *line;
	struct tt_shm_line mine;

	see_stirs(p);
	for (int i = 0; i < BURST && tt_flight_alive(&p->ops) && (line = tt_shm_next(p)); i++) {
		memcpy(&mine, line, sizeof mine); /* the writer could change its line after this side has judged it */
		const uint8_t *payload = mine.extra ? tt_shm_payload(p, &mine) : NULL;
		if (mine.extra && !payload) {
			tt_flight_lose(&p->ops, "it wrote a line whose payload cannot be");
			return;
		}
		p->net->ops.events++;
		p->base.received += sizeof mine + mine.extra;
		take(p, &mine, payload);
		tt_shm_taken(p, &mine);
	}
}
