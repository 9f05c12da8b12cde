/* address.c - the addresses of all nets of a rank, in one text with a space between two
 *
 *      shm:1c2e...:84-0 tcp:10.0.0.7:4000
 *
 * The rank that connects tries them in the order of its own nets. Those of one transport, a device each, are in the
 * order of the rank that has them: the nearest first. "host:NAME" is no address: so people call the rank's host.
 */
#include "engine/engine.h"
#include "member/member_private.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *end_of(const char *at) { return at + strcspn(at, " "); }

bool tt_address_nth(const char *list, const char *transport, int nth, char addr[96])
{
	size_t len = strlen(transport);

	for (const char *at = list, *end; *at; at = end + (*end == ' ')) {
		end = end_of(at);
		if (end - at >= 96 || strncmp(at, transport, len) || at[len] != ':' || nth--)
			continue;
		memcpy(addr, at, (size_t)(end - at));
		addr[end - at] = 0;
		return true;
	}
	return false;
}

void tt_address_set(struct tt_member *m, const char *list)
{
	char *copy = *list ? strdup(list) : NULL; /* `list` may be a part of the old one */

	if (*m->addr)
		free((char *)(uintptr_t)m->addr);
	m->addr = copy ? copy : "";
}

void tt_address_add(struct tt_member *m, const char *more)
{
	char text[TT_ADDRESSES], scheme[16], addr[96];
	size_t used = strlen(m->addr);
	int nth;

	memcpy(text, m->addr, used + 1); /* made here, or from an endpoint record: it fits */
	for (const char *at = more, *end; *at; at = end + (*end == ' ')) {
		size_t space = used > 0, len;
		end = end_of(at);
		len = (size_t)(end - at);
		snprintf(scheme, sizeof scheme, "%.*s", (int)tt_min(strcspn(at, ":"), sizeof scheme - 1), at);
		nth = 0;
		while (tt_address_nth(more, scheme, nth, addr) && (strlen(addr) != len || memcmp(addr, at, len)))
			nth++;
		if (used + space + len >= sizeof text || !len || tt_address_nth(text, scheme, nth, addr))
			continue;
		text[used] = ' ';
		memcpy(text + used + space, at, len);
		used += space + len;
		text[used] = 0;
	}
	tt_address_set(m, text);
}

/* "tcp:10.0.0.7:4000" gives "10.0.0.7"; "" without such an address. Another rank wrote the list. */
static void host_of(const char *list, char host[96])
{
	char addr[96], *at = addr + strlen("tcp:"), *port;

	*host = 0;
	if (!tt_address_find(list, "tcp", addr) || !(port = strrchr(at, ':')))
		return;
	*port = 0;
	strcpy(host, at);
}

/* On one host the rank says it all. */
struct tt_label tt_member_label(const struct tt_member *m)
{
	const struct tt_job *job = m->job;
	bool spans = job->local_size && job->local_size < job->size;
	char at[96], name[96] = "host:";
	struct tt_label label;

	host_of(m->addr, at);
	if (!tt_address_find(m->addr, "host", name))
		name[5] = 0;
	if (m->rank == job->rank && tt_members(job)->unnumbered)
		snprintf(label.text, sizeof label.text, "a newcomer");
	else if (!spans || (!*at && !name[5]))
		snprintf(label.text, sizeof label.text, "rank %d", m->rank);
	else
		snprintf(label.text, sizeof label.text, "rank %d (%.40s%s%.40s)", m->rank, name + 5,
		         name[5] && *at ? ", " : "", at);
	return label;
}
