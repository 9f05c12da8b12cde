/* address.c - the text of an address: "HOST:PORT", or "[HOST]:PORT" for IPv6 */
#include "base/base.h"
#include <stdlib.h>

int tt_address_split(const char *text, char *host, size_t size, char port[6])
{
	const char *start = text, *colon = strrchr(start, ':'), *end = colon;
	bool bracket = *start == '[';

	if (colon && bracket) {
		start++;
		end--;
	}
	bool good = colon && end >= start && (size_t)(end - start) < size;
	good = good && (bracket ? *end == ']' : !memchr(start, ':', (size_t)(end - start)));
	good = good && colon[1] && strlen(colon + 1) <= 5 && colon[1 + strspn(colon + 1, "0123456789")] == 0;
	if (!good || atoi(colon + 1) > 65535)
		return tt_fail(-EINVAL, "'%s' is no address: write HOST:PORT, or [::1]:PORT for IPv6", text);
	memcpy(host, start, (size_t)(end - start));
	host[end - start] = 0;
	snprintf(port, 6, "%s", colon + 1);
	return 0;
}

int tt_address_check(const char *text)
{
	char host[256], port[6];
	int err = tt_address_split(text, host, sizeof host, port);

	if (err)
		return err;
	if (*host && strcmp(host, "*") && atoi(port))
		return 0;
	return tt_fail(-EINVAL, "'%s' is no address that others could connect to: write HOST:PORT", text);
}
