/* settings.c - the settings and where each value comes from; the only getenv in the tree */
#include "base/base.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const struct tt_setting_info tt_setting_info[TT_SETTINGS] = {
#define TT_SETTING(id, variable, key, fallback, values, sentence) { variable, key, fallback, values, sentence, false },
#define TT_AGREED_SETTING(id, variable, key, fallback, values, sentence) \
	{ variable, key, fallback, values, sentence, true },
#include "base/settings.def"
#undef TT_SETTING
};

const char *tt_env(enum tt_setting s)
{
	const char *name = tt_setting_info[s].variable;
	const char *value = tt_world ? tt_world->env(tt_world, name) : getenv(name);

	return value && *value ? value : NULL;
}

int tt_settings_set(struct tt_settings *all, enum tt_setting s, const char *value, const char *origin)
{
	char *copy = value ? strdup(value) : NULL;

	if (value && !copy)
		return tt_fail(-ENOMEM, "no memory for the setting %s", tt_setting_info[s].variable);
	free(all->of[s].value);
	all->of[s].value = copy;
	all->of[s].origin = origin;
	return 0;
}

enum { PREFIX = sizeof "TUTTI_" - 1 };

/* A misspelt variable would have no effect, silently. */
static void warn_of_unknown(void)
{
	const char *known[TT_SETTINGS];
	int n = 0;

	for (int i = 0; i < TT_SETTINGS; i++)
		if (!strncmp(tt_setting_info[i].variable, "TUTTI_", PREFIX))
			known[n++] = tt_setting_info[i].variable + PREFIX;
	for (char **e = environ; e && *e && !tt_world; e++) {
		char name[64] = "";
		if (strncmp(*e, "TUTTI_", PREFIX))
			continue;
		strncpy(name, *e + PREFIX, tt_min(strcspn(*e, "=") - PREFIX, sizeof name - 1));
		const char *meant = tt_nearest(name, known, n);
		if (meant && !strcmp(meant, name))
			continue;
		tt_log(TT_WARN, "TUTTI_%s is not a variable of Tutti%s%s%s `tutti info` lists them", name,
		       meant ? "; did you mean TUTTI_" : ":", meant ? meant : "", meant ? "?" : "");
	}
}

int tt_settings_load(struct tt_settings *all)
{
	memset(all, 0, sizeof *all);
	tt_log_read_level();
	warn_of_unknown();
	for (int i = 0; i < TT_SETTINGS; i++) {
		const char *value = tt_env((enum tt_setting)i);
		int err = tt_settings_set(all, (enum tt_setting)i, value ? value : tt_setting_info[i].fallback,
		                          value ? "environment" : "default");
		if (err)
			return err;
	}
	return 0;
}

void tt_settings_free(struct tt_settings *all)
{
	if (all->of[TT_SECRET].value)
		explicit_bzero(all->of[TT_SECRET].value, strlen(all->of[TT_SECRET].value));
	for (int i = 0; i < TT_SETTINGS; i++)
		free(all->of[i].value);
	memset(all, 0, sizeof *all);
}

const char *tt_setting(const struct tt_settings *all, enum tt_setting s) { return all->of[s].value; }

const char *tt_setting_name(const struct tt_settings *all, enum tt_setting s)
{
	bool from_file = all->of[s].origin && !strcmp(all->of[s].origin, "file");

	return from_file ? tt_setting_info[s].key : tt_setting_info[s].variable;
}

static bool read_number(const char *text, long min, long max, long *out)
{
	char *end;

	errno = 0;
	*out = strtol(text, &end, 10);
	return !errno && end != text && !*end && *out >= min && *out <= max;
}

int tt_setting_int(const struct tt_settings *all, enum tt_setting s, long min, long max, long *out)
{
	const char *text = all->of[s].value;
	long v;

	if (!text)
		return 0;
	if (!read_number(text, min, max, &v))
		return tt_fail(-EINVAL, "%s=%s is not a whole number from %ld to %ld", tt_setting_name(all, s), text,
		               min, max);
	*out = v;
	return 0;
}

long tt_setting_number(const struct tt_settings *all, enum tt_setting s) { return strtol(all->of[s].value, NULL, 10); }

uint64_t tt_setting_time(const struct tt_settings *all, enum tt_setting s)
{
	return tt_setting_is(all, s, "never") ? TT_FOREVER : (uint64_t)tt_setting_number(all, s) * TT_MS;
}

bool tt_setting_is(const struct tt_settings *all, enum tt_setting s, const char *word)
{
	return !strcmp(all->of[s].value, word);
}

/* ---- judging ---- */

enum { WORDS = 8 };

/* Writes one of the values, and goes to the next. */
static void spell(const char **values, char text[96])
{
	size_t len = strcspn(*values, "|");
	char unit[32] = "";
	long least, most;

	if (sscanf(*values, "%ld..%ld %31[a-z]", &least, &most, unit) >= 2)
		snprintf(text, 96, "a whole number %s%s%sfrom %ld to %ld", *unit ? "of " : "", unit, *unit ? " " : "",
		         least, most);
	else
		snprintf(text, 96, "%.*s", (int)tt_min(len, 95), *values);
	*values += len + ((*values)[len] == '|');
}

static bool fits(const char *values, const char *text)
{
	long least, most, v;

	for (size_t len; *values; values += len + (values[len] == '|')) {
		len = strcspn(values, "|");
		if (sscanf(values, "%ld..%ld", &least, &most) == 2 ? read_number(text, least, most, &v) :
		    strlen(text) == len && !strncmp(values, text, len))
			return true;
	}
	return false;
}

int tt_setting_judge(const struct tt_settings *all, enum tt_setting s)
{
	const char *text = all->of[s].value, *values = tt_setting_info[s].values, *name = tt_setting_name(all, s);
	char words[WORDS][96], list[96 * WORDS] = "";
	const char *known[WORDS], *meant;
	int n = 0;

	if (!text || !values || fits(values, text))
		return 0;
	for (; *values && n < WORDS; n++) {
		spell(&values, words[n]);
		known[n] = words[n];
		snprintf(list + strlen(list), sizeof list - strlen(list), "%s%.95s",
		         !n ? "" : *values ? ", " : " or ", words[n]);
	}
	meant = tt_nearest(text, known, n);
	return tt_fail(-EINVAL, "%s=%s is not %s%s%s%s", name, text, list, meant ? "; did you mean " : "",
	               meant ? meant : "", meant ? "?" : "");
}

/* ---- settings that all ranks of a job must have alike ---- */

void tt_settings_agreed(const struct tt_settings *all, char *text, size_t size)
{
	size_t at = 0;

	*text = 0;
	for (int i = 0; i < TT_SETTINGS; i++)
		if (tt_setting_info[i].agreed && at < size)
			at += (size_t)snprintf(text + at, size - at, "%s%s", at ? " " : "", all->of[i].value);
}

static size_t next_value(const char **text, const char **value)
{
	size_t len = strcspn(*text, " ");

	*value = *text;
	*text += len + ((*text)[len] == ' ');
	return len;
}

bool tt_settings_differ(const char *ours, const char *its, struct tt_setting_difference *d)
{
	const char *a, *b;

	for (int i = 0; i < TT_SETTINGS; i++) {
		if (!tt_setting_info[i].agreed)
			continue;
		size_t n = next_value(&ours, &a), m = next_value(&its, &b);
		if (n == m && !memcmp(a, b, n))
			continue;
		d->name = tt_setting_info[i].variable;
		snprintf(d->ours, sizeof d->ours, "%.*s", (int)n, a);
		snprintf(d->its, sizeof d->its, "%.*s", (int)m, b);
		return true;
	}
	return false;
}
