/* judge.c - is the value of each setting a good one? Asked by tutti_join and `tutti info` */
#include "job/job_private.h"
#include "launch/launch.h"
#include "topology/topology.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECRET_MIN = 16, BITS_MIN = 64, DIFFERENT_MIN = 6 };

int tt_read_ports(const struct tt_settings *s, int ports[2])
{
	const char *text = tt_setting(s, TT_PORTS);
	char rest;
	int n;

	ports[0] = ports[1] = 0;
	if (!text)
		return 0;
	n = sscanf(text, "%d-%d%c", &ports[0], &ports[1], &rest);
	if (n == 1 && !strpbrk(text, "-"))
		ports[1] = ports[0];
	else if (n != 2)
		ports[0] = -1;
	if (ports[0] < 1 || ports[1] < ports[0] || ports[1] > 65535)
		return tt_fail(-EINVAL, "%s=%s is not a range of ports: write FIRST-LAST, from 1 to 65535",
		               tt_setting_name(s, TT_PORTS), text);
	return 0;
}

static int judge_transports(const struct tt_settings *s)
{
	char names[128], *at = names, *name;
	const struct tt_transport *t;
	const char *known[16], *meant;
	int n = 0;

	snprintf(names, sizeof names, "%s", tt_setting(s, TT_TRANSPORTS));
	while ((name = strsep(&at, ",")) && (!*name || tt_transport_find(name)))
		;
	if (!name)
		return 0;
	for (; n < (int)TT_COUNT(known) && (t = tt_transport_at(n)); n++)
		known[n] = t->name;
	meant = tt_nearest(name, known, n);
	return tt_fail(-EINVAL, "%s names \"%s\", which is no transport%s%s: `tutti info` lists them",
	               tt_setting_name(s, TT_TRANSPORTS), name, meant ? "; did you mean " : "", meant ? meant : "");
}

/* How many bits a guesser must find. A hexadecimal digit has four. A word has 13 at most, however long: it is one of
 * 8192. A word is a run of small letters, perhaps with a capital first, or a run of capitals. Any other sign has as
 * many as one of its kind. */
static double weigh_secret(const char *text)
{
	bool hex = text[strspn(text, "0123456789abcdefABCDEF")] == 0;
	double bits = 0, word = 0;

	if (hex)
		return 4.0 * (double)strlen(text);
	for (const char *c = text; *c; c++) {
		bool small = *c >= 'a' && *c <= 'z', capital = *c >= 'A' && *c <= 'Z';
		bool begins = capital && c > text && c[-1] >= 'a' && c[-1] <= 'z';
		if (begins || (!small && !capital))
			word = 0;
		if (small || capital) {
			double more = word + 4.7 > 13 ? 13 - word : 4.7;
			bits += more;
			word += more;
		} else
			bits += *c == ' ' ? 0 : *c >= '0' && *c <= '9' ? 3.3 : 5;
	}
	return bits;
}

static int count_different(const char *text)
{
	int n = 0;

	for (const char *c = text; *c; c++)
		n += strchr(text, *c) == c;
	return n;
}

static int judge_secret(const struct tt_settings *s)
{
	const char *secret = tt_setting(s, TT_SECRET), *name = tt_setting_name(s, TT_SECRET);

	if (!secret)
		return 0;
	if (strlen(secret) < SECRET_MIN)
		return tt_fail(-EINVAL, "%s has %zu bytes: at least %d are needed", name, strlen(secret), SECRET_MIN);
	int bits = count_different(secret) < DIFFERENT_MIN ? 0 : (int)weigh_secret(secret);
	if (bits >= BITS_MIN)
		return 0;
	return tt_fail(-EINVAL, "%s can be guessed: it is worth about %d bits, and %d are needed. A secret is drawn, "
	               "as by `openssl rand -hex 16`, and not thought up", name, bits, BITS_MIN);
}

static int judge_name(const struct tt_settings *s)
{
	const char *name = tt_setting(s, TT_JOB);

	if (!name || tt_launch_is_name(name))
		return 0;
	return tt_fail(-EINVAL, "%s is no name of a job: it has %zu bytes, and must have 1 to %d, without control "
	               "characters", tt_setting_name(s, TT_JOB), strlen(name), TT_JOB_NAME);
}

static int judge_pkey(const struct tt_settings *s)
{
	const char *text = tt_setting(s, TT_VERBS_PKEY);
	char *end = NULL;
	long key = text ? strtol(text, &end, 0) : 1;

	if (!text || (!*end && key > 0 && key <= 0xffff && key & 0x7fff))
		return 0;
	return tt_fail(-EINVAL, "%s=%s is no partition key: write one like 0x8001", tt_setting_name(s, TT_VERBS_PKEY),
	               text);
}

int tt_judge_setting(const struct tt_settings *all, enum tt_setting s)
{
	struct tt_pin_rule rule;
	int ports[2];

	switch (s) {
	case TT_JOB: return judge_name(all);
	case TT_PIN: return tt_pin_read(all, &rule);
	case TT_PORTS: return tt_read_ports(all, ports);
	case TT_SECRET: return judge_secret(all);
	case TT_TRANSPORTS: return judge_transports(all);
	case TT_VERBS_PKEY: return judge_pkey(all);
	default: return tt_setting_judge(all, s);
	}
}

int tt_judge_settings(const struct tt_settings *all)
{
	int err = 0;

	for (int s = 0; !err && s < TT_SETTINGS; s++)
		err = tt_judge_setting(all, (enum tt_setting)s);
	return err;
}
