/* handshake.c - judging who is at the other end: version, job, and a proof of the secret */
#include "transport/handshake.h"
#include <stdio.h>
#include <string.h>
#ifdef HAVE_LIBSODIUM
#include <sodium.h>
#endif

int tt_secret_take(struct tt_secret *s, const struct tt_net_config *c)
{
	if (!c->secret)
		return 0;
	if (!c->secret_len)
		return tt_fail(-EINVAL, "the job's secret is empty: set TUTTI_SECRET to 16 bytes or more");
#ifdef HAVE_LIBSODIUM
	if (sodium_init() < 0)
		return tt_fail(-EIO, "libsodium does not start: is /dev/urandom there?");
	crypto_generichash(s->key, sizeof s->key, c->secret, c->secret_len, NULL, 0);
	s->set = true;
	return 0;
#else
	(void)s;
	return tt_fail(-ENOTSUP, "this Tutti was built without libsodium and cannot keep the job's secret: install "
	               "libsodium and rebuild, or unset TUTTI_SECRET and stay on one host");
#endif
}

void tt_secret_forget(struct tt_secret *s) { explicit_bzero(s, sizeof *s); }

int tt_hello_judge(const struct tt_hello *h, uint64_t job, const struct tt_secret *mine, char *why, size_t size)
{
	bool secret = h->flags & TT_HELLO_SECRET;

	if (h->version != TT_FRAME_VERSION) {
		snprintf(why, size, "it speaks version %u of the wire and this side version %u: use the same Tutti on "
		         "both", h->version, TT_FRAME_VERSION);
		return -EPROTO;
	}
	if (h->job != job) {
		snprintf(why, size, "it belongs to job %016llx and this side to job %016llx", (unsigned long long)h->job, (unsigned long long)job);
		return -EPROTO;
	}
	if (secret == mine->set)
		return 0;
	snprintf(why, size, "%s has a secret and %s has none: set the same TUTTI_SECRET on both",
	         secret ? "it" : "this side", secret ? "this side" : "it");
	return -EACCES;
}

void tt_proof_make(const struct tt_secret *secret, bool of_acceptor, const uint8_t initiator[TT_HELLO_SIZE], const uint8_t acceptor[TT_HELLO_SIZE],
                   uint8_t out[TT_PROOF_SIZE])
{
	memset(out, 0, TT_PROOF_SIZE);
#ifdef HAVE_LIBSODIUM
	if (secret->set) {
		const uint8_t whose = of_acceptor ? 'A' : 'I';
		crypto_generichash_state s;
		crypto_generichash_init(&s, secret->key, sizeof secret->key, TT_PROOF_SIZE);
		crypto_generichash_update(&s, &whose, 1);
		crypto_generichash_update(&s, initiator, TT_HELLO_SIZE);
		crypto_generichash_update(&s, acceptor, TT_HELLO_SIZE);
		crypto_generichash_final(&s, out, TT_PROOF_SIZE);
	}
#else
	(void)secret;
	(void)of_acceptor;
	(void)initiator;
	(void)acceptor;
#endif
}

bool tt_proof_same(const uint8_t *a, const uint8_t *b)
{
#ifdef HAVE_LIBSODIUM
	return sodium_memcmp(a, b, TT_PROOF_SIZE) == 0;
#else
	return memcmp(a, b, TT_PROOF_SIZE) == 0; /* all zeros: nothing to be learned from the time it takes */
#endif
}
