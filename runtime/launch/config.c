/* config.c - the config file (libconfig): settings under their short names, and a list of named nodes.
 *
 *     secret_file = "secret";
 *     silence = 5000;
 *     nodes = ( { name = "left";  address = "10.0.0.1:4000"; },
 *               { name = "right"; address = "10.0.0.2:4000"; } );
 *     gossip = { method = "loss"; divergence_threshold = 0.2; };      sections of higher rooms, read when they ask
 */
#include "launch/launch.h"
#include "transport/transport.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const tt_gossip_keys[TT_GOSSIP_KEYS] = { [TT_KEY_WAY] = "way", [TT_KEY_CHOICE] = "choice",
	[TT_KEY_METHOD] = "method", [TT_KEY_VALUE] = "value", [TT_KEY_THRESHOLD] = "divergence_threshold",
	[TT_KEY_PROBABILITY] = "fetch_probability", [TT_KEY_BUFFERS] = "buffers", [TT_KEY_TIMEOUT] = "timeout",
	[TT_KEY_SEED] = "seed" };

#ifndef HAVE_LIBCONFIG
int tt_config_load(struct tt_settings *s, const char *file, struct tt_node **nodes, int *count)
{
	(void)s, (void)nodes, (void)count;
	return tt_fail(-ENOTSUP, "%s cannot be read: "
	               "this build has no libconfig (install libconfig-dev and build again)", file);
}

int tt_config_section(const char *file, const char *section, const char *const *keys, int n, struct tt_config_value *v)
{
	(void)section, (void)keys, (void)n, (void)v;
	return tt_config_load(NULL, file, NULL, NULL);
}
#else
#include <libconfig.h>
#include <math.h>
#include <sys/stat.h>

#define FAIL_AT(file, at, fmt, ...) \
	tt_fail(-EINVAL, "%s:%u: " fmt, file, config_setting_source_line(at), ##__VA_ARGS__)

static int unknown_key(const char *file, const config_setting_t *at, const char *const *known, int n)
{
	const char *name = config_setting_name(at), *meant = tt_nearest(name, known, n);

	if (meant)
		return FAIL_AT(file, at, "unknown key \"%s\"; did you mean \"%s\"?", name, meant);
	return FAIL_AT(file, at, "unknown key \"%s\"", name);
}

static bool is_gossip_key(const char *name)
{
	for (int i = 0; i < TT_GOSSIP_KEYS; i++)
		if (!strcmp(name, tt_gossip_keys[i]))
			return true;
	return false;
}

/* Outside of all sections. The key may belong into one, or be a variable's alone. */
static int unknown_setting(const char *file, const config_setting_t *at, const char *const *known, int n)
{
	const char *name = config_setting_name(at), *meant = name;

	for (int i = 0; i < TT_SETTINGS; i++) {
		const char *variable = tt_setting_info[i].variable;
		const char *key = tt_setting_info[i].key;
		if (key && !strcasecmp(key, name))
			return FAIL_AT(file, at, "unknown key \"%s\"; did you mean \"%s\"?", name, key);
		if (!key && !strncmp(variable, "TUTTI_", 6) && !strcasecmp(variable + 6, name))
			return FAIL_AT(file, at, "\"%s\" is no key of a config file: set %s in the environment", name,
			               variable);
	}
	if (!is_gossip_key(name))
		meant = tt_nearest(name, known, n) ? NULL : tt_nearest(name, tt_gossip_keys, TT_GOSSIP_KEYS);
	if (!meant)
		return unknown_key(file, at, known, n);
	return FAIL_AT(file, at, "unknown key \"%s\"; did you mean gossip.%s? Write gossip = { %s = ...; };", name,
	               meant, meant);
}

static int take_setting(struct tt_settings *all, const char *file, const config_setting_t *at, enum tt_setting s)
{
	char number[32];
	const char *value = config_setting_get_string(at);

	if (config_setting_type(at) == CONFIG_TYPE_INT) {
		snprintf(number, sizeof number, "%d", (int)config_setting_get_int(at));
		value = number;
	}
	if (!value)
		return FAIL_AT(file, at, "\"%s\" must be a string or a whole number", config_setting_name(at));
	if (all->of[s].origin && strcmp(all->of[s].origin, "default") && all->of[s].value)
		return 0; /* the environment and the program come first */
	return tt_settings_set(all, s, value, "file");
}

static int take_node(const char *file, const config_setting_t *at, struct tt_node *node)
{
	static const char *const known[] = { "name", "address" };
	const char *name = NULL, *address = NULL;
	char why[200];

	for (int i = 0; config_setting_type(at) == CONFIG_TYPE_GROUP && i < config_setting_length(at); i++) {
		const config_setting_t *member = config_setting_get_elem(at, (unsigned)i);
		const char *key = config_setting_name(member);
		if (!strcmp(key, "name"))
			name = config_setting_get_string(member);
		else if (!strcmp(key, "address"))
			address = config_setting_get_string(member);
		else
			return unknown_key(file, member, known, TT_COUNT(known));
	}
	if (!name || !address || !*name || strlen(name) >= sizeof node->name || strlen(address) >= sizeof node->address)
		return FAIL_AT(file, at, "a node is { name = \"...\"; address = \"HOST:PORT\"; }");
	int err = tt_address_check(address);
	if (err) {
		snprintf(why, sizeof why, "%s", tt_why()); /* tt_fail writes into it */
		return tt_fail(err, "%s:%u: %s", file, config_setting_source_line(at), why);
	}
	strcpy(node->name, name);
	strcpy(node->address, address);
	return 0;
}

static int check_name(const char *file, const config_setting_t *at, const struct tt_node *nodes, int n)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(nodes[i].name, nodes[n].name))
			return FAIL_AT(file, at, "two nodes are named \"%s\"", nodes[n].name);
	return 0;
}

static int take_nodes(const char *file, const config_setting_t *at, struct tt_node **nodes, int *count)
{
	int n = config_setting_length(at), err = 0;

	if (config_setting_type(at) != CONFIG_TYPE_LIST || n < 1)
		return FAIL_AT(file, at, "nodes must be a list: "
		               "nodes = ( { name = \"a\"; address = \"10.0.0.1:4000\"; }, ... );");
	*nodes = calloc((size_t)n, sizeof **nodes);
	if (!*nodes)
		return tt_fail(-ENOMEM, "no memory for %d nodes", n);
	for (int i = 0; !err && i < n; i++) {
		const config_setting_t *node = config_setting_get_elem(at, (unsigned)i);
		err = take_node(file, node, &(*nodes)[i]);
		if (!err)
			err = check_name(file, node, *nodes, i);
	}
	*count = n;
	return err;
}

static int take_key(struct tt_settings *s, const char *file, const config_setting_t *at, struct tt_node **nodes,
                    int *count)
{
	const char *known[TT_SETTINGS + 2] = { [TT_SETTINGS] = "nodes", "gossip" };

	if (!strcmp(config_setting_name(at), "gossip"))
		return 0;
	if (!strcmp(config_setting_name(at), "nodes"))
		return take_nodes(file, at, nodes, count);
	for (int i = 0; i < TT_SETTINGS; i++) {
		known[i] = tt_setting_info[i].key;
		if (known[i] && !strcmp(known[i], config_setting_name(at)))
			return take_setting(s, file, at, (enum tt_setting)i);
	}
	return unknown_setting(file, at, known, TT_COUNT(known));
}

/* The whole file with a zero at its end, malloc'd; NULL and *err: it cannot be read. */
static char *read_file(const char *file, struct stat *st, int *err)
{
	FILE *f = fopen(file, "re");
	char *text = NULL;
	size_t room = 0;
	ssize_t n = f ? getdelim(&text, &room, 0, f) : -1;

	if (!f || fstat(fileno(f), st) || ferror(f) || (n < 0 && !feof(f)))
		*err = tt_fail(-errno, "cannot read the config file %s: %s", file, strerror(errno));
	else if (n > 0 && !text[n - 1])
		*err = tt_fail(-EINVAL, "%s has a zero byte: a config file is text", file);
	else if (n < 0 && !(text = text ? text : malloc(1)))
		*err = tt_fail(-ENOMEM, "no memory to read the config file %s", file);
	else if (n < 0)
		*text = 0; /* an empty file */
	if (f)
		fclose(f);
	if (!*err)
		return text;
	free(text);
	return NULL;
}

/* libconfig's scanner ends the process if it cannot read what it is to include, a directory, say. */
static int refuse_includes(const char *file, const char *text)
{
	int line = 1;

	for (const char *at = text; at; line++) {
		at += strspn(at, " \t\r\f\v");
		if (!strncmp(at, "@include", 8))
			return tt_fail(-EINVAL, "%s:%d: a config file cannot include others: write all of it into one",
			               file, line);
		at = strchr(at, '\n');
		at = at ? at + 1 : NULL;
	}
	return 0;
}

/* Opens c in any case. */
static int open_file(const char *file, config_t *c, struct stat *st)
{
	int err = 0;
	char *text = read_file(file, st, &err);

	if (!err)
		err = refuse_includes(file, text);
	config_init(c);
	if (!err && config_read_string(c, text) != CONFIG_TRUE)
		err = tt_fail(-EINVAL, "%s:%d: %s", file, config_error_line(c), config_error_text(c));
	free(text);
	return err;
}

int tt_config_load(struct tt_settings *s, const char *file, struct tt_node **nodes, int *count)
{
	struct stat st;
	config_t c;
	int err = open_file(file, &c, &st);

	for (int i = 0; !err && i < config_setting_length(config_root_setting(&c)); i++)
		err = take_key(s, file, config_setting_get_elem(config_root_setting(&c), (unsigned)i), nodes, count);
	config_destroy(&c);
	if (!err && tt_setting(s, TT_SECRET) && !strcmp(s->of[TT_SECRET].origin, "file"))
		err = tt_secret_check(&st, file);
	return err;
}

/* ---- sections ---- */

static int take_value(const char *file, const config_setting_t *at, const char *const *keys, int n,
                      struct tt_config_value *values)
{
	const char *text = config_setting_get_string(at);
	int type = config_setting_type(at), i = 0;

	while (i < n && strcmp(keys[i], config_setting_name(at)))
		i++;
	if (i == n)
		return unknown_key(file, at, keys, n);
	struct tt_config_value *v = &values[i];
	v->line = config_setting_source_line(at);
	v->number = type == CONFIG_TYPE_FLOAT ? config_setting_get_float(at)
	            : type == CONFIG_TYPE_INT || type == CONFIG_TYPE_INT64 ? (double)config_setting_get_int64(at) : NAN;
	if (isnan(v->number) && (!text || !*text || strlen(text) >= sizeof v->text))
		return FAIL_AT(file, at, "\"%s\" must be a number or a word", keys[i]);
	snprintf(v->text, sizeof v->text, "%s", text ? text : "");
	return 0;
}

int tt_config_section(const char *file, const char *section, const char *const *keys, int n, struct tt_config_value *v)
{
	const config_setting_t *at = NULL;
	struct stat st;
	config_t c;
	int err = open_file(file, &c, &st);

	if (!err)
		at = config_setting_get_member(config_root_setting(&c), section);
	if (at && config_setting_type(at) != CONFIG_TYPE_GROUP)
		err = FAIL_AT(file, at, "%s must be a section: %s = { ... };", section, section);
	for (int i = 0; !err && at && i < config_setting_length(at); i++)
		err = take_value(file, config_setting_get_elem(at, (unsigned)i), keys, n, v);
	config_destroy(&c);
	return err;
}
#endif
