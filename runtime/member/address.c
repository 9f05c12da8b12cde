/* address.c - the addresses of all nets of a rank, in one text with a space between two
 *
 *      shm:1c2e...:84-0 tcp:10.0.0.7:4000
 *
 * The rank that connects tries them in the order of its own nets; the order in the text means nothing.
 */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdio.h>
#include <string.h>

static const char *end_of(const char *at) { return at + strcspn(at, " "); }

bool tt_address_find(const char *list, const char *transport, char addr[96])
{
	size_t len = strlen(transport);

	for (const char *at = list, *end; *at; at = end + (*end == ' ')) {
		end = end_of(at);
		if (end - at >= 96 || strncmp(at, transport, len) || at[len] != ':')
			continue;
		memcpy(addr, at, (size_t)(end - at));
		addr[end - at] = 0;
		return true;
	}
	return false;
}

const char *tt_address_add(struct tt_job *job, const char *known, const char *more)
{
	char text[TT_ADDRESSES], scheme[16], addr[96];
	size_t used = strlen(known);

	memcpy(text, known, used + 1); /* made here, or from an endpoint record: it fits */
	for (const char *at = more, *end; *at; at = end + (*end == ' ')) {
		size_t space = used > 0, len;
		end = end_of(at);
		len = (size_t)(end - at);
		snprintf(scheme, sizeof scheme, "%.*s", (int)tt_min(strcspn(at, ":"), sizeof scheme - 1), at);
		if (used + space + len >= sizeof text || !len || tt_address_find(text, scheme, addr))
			continue;
		text[used] = ' ';
		memcpy(text + used + space, at, len);
		used += space + len;
		text[used] = 0;
	}
	const char *kept = tt_text_keep(job, text);
	return *kept ? kept : known;
}
