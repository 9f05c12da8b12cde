/* settings.c - the settings and where each value comes from; the only getenv in the tree */
#include "base/base.h"
#include <stdlib.h>
#include <unistd.h>

const struct tt_setting_info tt_setting_info[TT_SETTINGS] = {
#define TT_SETTING(id, variable, key, fallback, sentence) { variable, key, fallback, sentence },
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

/* A misspelt variable would have no effect, silently. */
static void warn_of_unknown(void)
{
	const char *known[TT_SETTINGS];

	for (int i = 0; i < TT_SETTINGS; i++)
		known[i] = tt_setting_info[i].variable;
	for (char **e = environ; e && *e && !tt_world; e++) {
		char name[64] = "";
		if (strncmp(*e, "TUTTI_", 6))
			continue;
		strncpy(name, *e, tt_min(strcspn(*e, "="), sizeof name - 1));
		const char *meant = tt_nearest(name, known, TT_SETTINGS);
		if (meant && !strcmp(meant, name))
			continue;
		tt_log(TT_WARN, "%s is not a variable of Tutti%s%s%s `tutti info` lists them", name,
		       meant ? "; did you mean " : ":", meant ? meant : "", meant ? "?" : "");
	}
}

int tt_settings_load(struct tt_settings *all)
{
	memset(all, 0, sizeof *all);
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

int tt_setting_int(const struct tt_settings *all, enum tt_setting s, long min, long max, long *out)
{
	const char *text = all->of[s].value, *name = tt_setting_name(all, s);
	char *end;

	if (!text)
		return 0;
	errno = 0;
	long v = strtol(text, &end, 10);
	if (errno || end == text || *end || v < min || v > max)
		return tt_fail(-EINVAL, "%s=%s is not a whole number from %ld to %ld", name, text, min, max);
	*out = v;
	return 0;
}

int tt_setting_switch(const struct tt_settings *all, enum tt_setting s, bool *on)
{
	const char *text = all->of[s].value;
	bool yes = !strcmp(text, "yes") || !strcmp(text, "1");

	if (!yes && strcmp(text, "no") && strcmp(text, "0"))
		return tt_fail(-EINVAL, "%s=%s is neither yes nor no", tt_setting_name(all, s), text);
	*on = yes;
	return 0;
}
