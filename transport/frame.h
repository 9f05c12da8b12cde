/* frame.h - what tcp sends, byte for byte, little endian. Pure: no I/O and no state, so that it can be fuzzed.
 *
 * A connection begins with the handshake. The initiator speaks first. Each side closes on what it does not understand.
 *
 *     initiator                      acceptor
 *        HELLO  -------------------->          closes unless the magic is right
 *               <--------------------  HELLO   closes unless version, job and "has a secret" are the same
 *        PROOF  -------------------->          closes without a word unless it is right
 *               <--------------------  PROOF
 *        frames <------------------->  frames
 *
 * HELLO, 56 bytes          0        4         6       8        12     16     24
 *                          | magic  | version | flags | epoch  | zero | job  | nonce, 32 bytes |
 * PROOF, 32 bytes          keyed BLAKE2b over 'I' or 'A' (whose proof it is), the initiator's HELLO, the acceptor's
 *                          HELLO; the key is the BLAKE2b hash of the secret. Zeros where neither side has a secret.
 *
 * FRAME, 56 bytes          0      1       2      4        8     12      16
 *                          | kind | flags | slot | notify | job | epoch | key |
 *                          24       32    40     48    52     56
 *                          | offset | len | word | ack | more | payload ...
 *
 *          slot       notify    key,offset        len             word             payload
 *   PUT    asker's    value     where it lands    of this piece   bytes to follow  len bytes
 *   PUT*   asker's    value     where it lands    0 to 8          the bytes        -              (LOCAL: no slot)
 *   GET    asker's    -         where to read     asked for       -                -
 *   ADD    asker's    -         which word        -               addend           -
 *   SEND   -          -         -                 at most 65664   -                len bytes
 *   REPLY  of the GET -         -,place in GET    of this piece   -                len bytes
 *   REPLY* of the GET -         -,place in GET    0 to 8          the bytes        -
 *   SUM    of the ADD -         -                 -               old value        -
 *   NAK    of the op  enum nak  -                 -               -                -
 *   ACK    -          -         -                 -               -                -          (* flag INLINE)
 *
 * slot: the asker's number for a request that is not answered yet; the answer has the same slot. job: the two halves of
 * the job's id, xored. epoch: which life of the sender it is, as in its HELLO. ack: how many of the receiver's PUTs
 * without LOCAL have landed at the sender or were refused, mod 2^32; a NAK of a PUT carries the count up to and with
 * that PUT, so a NAK never comes after its ack. A PUT with LOCAL has no answer; if it is refused, the connection ends.
 * more: a hint that so many bytes of small frames follow this frame at once: read them together. PUTs and REPLYs longer
 * than a piece are cut, so that other frames get between. The last piece has the flag LAST, and it alone may have
 * NOTIFY, LAZY and LOCAL.
 */
#ifndef TT_FRAME_H
#define TT_FRAME_H
#include "base/pack.h"
#include "transport/transport.h"
#include <errno.h>

#define TT_FRAME_MAGIC 0x49545554u /* "TUTI" */
enum {
	TT_FRAME_VERSION = 11,
	TT_HELLO_SIZE = 56,
	TT_PROOF_SIZE = 32,
	TT_FRAME_SIZE = 56,
	/* where `more` stands in a header: it changes when another frame joins the batch */
	TT_FRAME_MORE_AT = 52,
	TT_FRAME_SLOTS = 256,        /* requests of one side that may be unanswered */
	TT_FRAME_SMALL = 4096,       /* shorter payloads travel in batches, longer ones without a copy */
	/* longer payloads are cut; the last piece may be longer by less than a small payload */
	TT_FRAME_PIECE = 1 << 20,
	TT_FRAME_PIECE_MAX = TT_FRAME_PIECE + TT_FRAME_SMALL - 1,
};
enum { TT_HELLO_SECRET = 1, TT_HELLO_STRANGER = 2 };

enum tt_frame_kind { TT_FRAME_PUT = 1, TT_FRAME_GET, TT_FRAME_ADD, TT_FRAME_SEND, TT_FRAME_REPLY, TT_FRAME_SUM,
	             TT_FRAME_NAK, TT_FRAME_ACK };
enum { TT_FRAME_NOTIFY = 1, TT_FRAME_LAZY = 2, TT_FRAME_LAST = 4, TT_FRAME_INLINE = 8, TT_FRAME_LOCAL = 16 };
enum tt_frame_nak { TT_NAK_STALE = 1, TT_NAK_RANGE, TT_NAK_INVALID };

static inline int tt_frame_error(uint32_t nak)
{
	return nak == TT_NAK_STALE ? -ESTALE : nak == TT_NAK_RANGE ? -ERANGE : -EINVAL;
}

struct tt_hello {
	uint16_t version, flags;
	uint32_t epoch;
	uint32_t user; /* STRANGER: the sender's */
	uint64_t job;
	uint8_t nonce[32];
};

struct tt_frame {
	uint8_t kind, flags;
	uint16_t slot;
	uint32_t notify, job, epoch;
	uint64_t key, offset, len, word;
	uint32_t ack, more;
};

static inline uint32_t tt_frame_fold(uint64_t job) { return (uint32_t)(job ^ job >> 32); }

static inline void tt_hello_pack(const struct tt_hello *h, uint8_t to[TT_HELLO_SIZE])
{
	struct tt_pack p = tt_pack(to, TT_HELLO_SIZE);

	tt_put32(&p, TT_FRAME_MAGIC);
	tt_put16(&p, h->version);
	tt_put16(&p, h->flags);
	tt_put32(&p, h->epoch);
	tt_put32(&p, h->user);
	tt_put64(&p, h->job);
	tt_put_bytes(&p, h->nonce, sizeof h->nonce);
}

/* Can these n bytes begin a HELLO? The first byte tells a stranger that does not speak Tutti. */
static inline bool tt_hello_begins(const uint8_t *from, size_t n)
{
	for (size_t i = 0; i < n && i < 4; i++)
		if (from[i] != (uint8_t)(TT_FRAME_MAGIC >> 8 * i))
			return false;
	return true;
}

/* Judges the magic only: the HELLO of another version must be readable enough to say which version it is. */
static inline bool tt_hello_unpack(const uint8_t *from, size_t n, struct tt_hello *h)
{
	struct tt_pack p = tt_unpack(from, n);
	uint32_t magic = tt_get32(&p);

	h->version = tt_get16(&p);
	h->flags = tt_get16(&p);
	h->epoch = tt_get32(&p);
	h->user = tt_get32(&p);
	h->job = tt_get64(&p);
	tt_get_bytes(&p, h->nonce, sizeof h->nonce);
	return !p.bad && magic == TT_FRAME_MAGIC;
}

static inline void tt_frame_pack(const struct tt_frame *f, uint8_t to[TT_FRAME_SIZE])
{
	struct tt_pack p = tt_pack(to, TT_FRAME_SIZE);

	tt_put8(&p, f->kind);
	tt_put8(&p, f->flags);
	tt_put16(&p, f->slot);
	tt_put32(&p, f->notify);
	tt_put32(&p, f->job);
	tt_put32(&p, f->epoch);
	tt_put64(&p, f->key);
	tt_put64(&p, f->offset);
	tt_put64(&p, f->len);
	tt_put64(&p, f->word);
	tt_put32(&p, f->ack);
	tt_put32(&p, f->more);
}

/* How many bytes follow the header. */
static inline size_t tt_frame_payload(const struct tt_frame *f)
{
	bool carries = f->kind == TT_FRAME_PUT || f->kind == TT_FRAME_REPLY || f->kind == TT_FRAME_SEND;

	return carries && !(f->flags & TT_FRAME_INLINE) ? (size_t)f->len : 0;
}

static inline bool tt_frame_len_ok(const struct tt_frame *f)
{
	switch (f->kind) {
	case TT_FRAME_PUT:
	case TT_FRAME_REPLY:
		return f->len <= (f->flags & TT_FRAME_INLINE ? 8 : TT_FRAME_PIECE_MAX);
	case TT_FRAME_SEND:
		return f->len <= TT_MESSAGE_MAX;
	case TT_FRAME_GET:
		return true; /* the owner judges it against the region */
	default:
		return f->len == 0;
	}
}

static inline bool tt_frame_flags_ok(const struct tt_frame *f)
{
	switch (f->kind) {
	case TT_FRAME_PUT: /* only the last piece has the flags of the whole PUT; a PUT in a header is whole */
		return !(f->flags & ~(TT_FRAME_NOTIFY | TT_FRAME_LAZY | TT_FRAME_LAST | TT_FRAME_INLINE |
		                      TT_FRAME_LOCAL)) &&
		       (f->flags & TT_FRAME_LAST || f->flags == 0) && f->notify < 1u << 24;
	case TT_FRAME_REPLY:
		return !(f->flags & ~(TT_FRAME_LAST | TT_FRAME_INLINE));
	case TT_FRAME_NAK:
		return !f->flags && f->notify >= TT_NAK_STALE && f->notify <= TT_NAK_INVALID;
	default:
		return !f->flags;
	}
}

/* False: it is no frame of this protocol, and *f is not to be used. */
static inline bool tt_frame_unpack(const uint8_t *from, size_t n, struct tt_frame *f)
{
	struct tt_pack p = tt_unpack(from, n);

	f->kind = tt_get8(&p);
	f->flags = tt_get8(&p);
	f->slot = tt_get16(&p);
	f->notify = tt_get32(&p);
	f->job = tt_get32(&p);
	f->epoch = tt_get32(&p);
	f->key = tt_get64(&p);
	f->offset = tt_get64(&p);
	f->len = tt_get64(&p);
	f->word = tt_get64(&p);
	f->ack = tt_get32(&p);
	f->more = tt_get32(&p);
	return !p.bad && f->kind >= TT_FRAME_PUT && f->kind <= TT_FRAME_ACK && f->slot < TT_FRAME_SLOTS &&
	       tt_frame_flags_ok(f) && tt_frame_len_ok(f);
}
#endif
