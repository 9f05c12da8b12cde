/* judge.c - is the value of each setting a good one? Asked by tutti_join and `tutti info` */
#include "job/job_private.h"
#include "launch/launch.h"
#include "topology/topology.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECRET_MIN = 16, WORDS_MIN = 20, DIFFERENT_MIN = 5 };

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

static int count_different(const char *text)
{
	int n = 0;

	for (const char *c = text; *c; c++)
		n += strchr(text, *c) == c;
	return n;
}

/* A part and that part again, as far as the text goes, perhaps without its last sign. */
static bool repeats(const char *text, size_t len)
{
	for (size_t part = 1; part <= (len + 1) / 2; part++)
		if (!strncmp(text, text + part, len - part))
			return true;
	return false;
}

/* Each sign follows the one before: up, or down. 0 follows 9. */
static bool is_sequence(const char *text)
{
	int up = 1, down = 1;

	for (const char *c = text; c[0] && c[1]; c++) {
		up &= c[1] == c[0] + 1 || (c[0] == '9' && c[1] == '0');
		down &= c[1] == c[0] - 1 || (c[0] == '0' && c[1] == '9');
	}
	return up || down;
}

/* Says what is surely weak, of which a drawn secret has nothing: a guesser tries these first. NULL: nothing. */
static const char *weakness(const char *text)
{
	static const char digits[] = "0123456789", words[] = "abcdefghijklmnopqrstuvwxyz -_.";
	size_t len = strlen(text);

	if (count_different(text) < DIFFERENT_MIN)
		return "it has fewer than 5 different signs";
	if (repeats(text, len))
		return "it repeats itself";
	if (is_sequence(text))
		return "it is a sequence";
	if (len < WORDS_MIN && !text[strspn(text, digits)]) /* 3.3 bits each */
		return "it has fewer than 20 digits, and nothing else";
	if (len < WORDS_MIN && !text[strspn(text, words)])
		return "it has fewer than 20 small letters, and nothing else: they may be words";
	return NULL;
}

static int judge_secret(const struct tt_settings *s)
{
	const char *secret = tt_setting(s, TT_SECRET), *name = tt_setting_name(s, TT_SECRET), *weak;

	if (!secret)
		return 0;
	if (strlen(secret) < SECRET_MIN)
		return tt_fail(-EINVAL, "%s has %zu bytes: at least %d are needed", name, strlen(secret), SECRET_MIN);
	if (!(weak = weakness(secret)))
		return 0;
	return tt_fail(-EINVAL, "%s can be guessed: %s. Draw a secret, as by `openssl rand -hex 16`", name, weak);
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

/* The adapter would still send again when the net has given the other rank up, and nobody would hear the cause. */
static int judge_retry(const struct tt_settings *s)
{
	const char *text = tt_setting(s, TT_VERBS_RETRY), *silence = tt_setting(s, TT_SILENCE);
	unsigned long long most = strtoull(silence, NULL, 10); /* 0: never */
	int err = tt_setting_judge(s, TT_VERBS_RETRY);

	if (err || !text || !most || strtoull(text, NULL, 10) <= most)
		return err;
	return tt_fail(-EINVAL, "%s=%s is more than %s, %s ms, after which a rank that does not answer is given up: "
	               "raise %s, too", tt_setting_name(s, TT_VERBS_RETRY), text, tt_setting_name(s, TT_SILENCE),
	               silence, tt_setting_name(s, TT_SILENCE));
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
	case TT_VERBS_RETRY: return judge_retry(all);
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
