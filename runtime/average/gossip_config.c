/* gossip_config.c - a gossip's config: defaults, the config file; names of peers */
#include "average/gossip.h"
#include "launch/launch.h"
#include <math.h>
#include <stdlib.h>

tutti_gossip_config tutti_gossip_defaults(void)
{
	return (tutti_gossip_config){ .value = 0.5, .fetch_probability = 1, .weight = NAN };
}

/* ---- the section of the config file ---- */

static const char *const ways[] = { "pull", "push", "push_sum" };
static const char *const choices[] = { "uniform", "exponential", "ring", "hosts", "dpwa" };
static const char *const methods[] = { "constant", "clock", "loss" };

/* The index of a word in a list; was: the key is not in the file. */
static int find_word(const struct tt_config_value *v, enum tt_gossip_key key, const char *const *words, int n, int was,
                     int *out)
{
	const char *meant;

	v += key;
	*out = was;
	if (!v->line)
		return 0;
	for (int i = 0; i < n; i++)
		if (!strcmp(words[i], v->text)) {
			*out = i;
			return 0;
		}
	meant = tt_nearest(v->text, words, n);
	return tt_fail(-EINVAL, "line %u of the config file: gossip.%s cannot be \"%s\"%s%s", v->line,
	               tt_gossip_keys[key], v->text, meant ? "; did you mean " : ": tutti.conf(5) has a list",
	               meant ? meant : "");
}

static int find_number(const struct tt_config_value *v, enum tt_gossip_key key, double least, double most, double *out)
{
	v += key;
	if (!v->line)
		return 0;
	if (!(v->number >= least && v->number <= most))
		return tt_fail(-EINVAL, "line %u of the config file: gossip.%s must be a number from %g to %g", v->line,
		               tt_gossip_keys[key], least, most);
	*out = v->number;
	return 0;
}

static int fill(tutti_gossip_config *config, const struct tt_config_value *v)
{
	double buffers = config->buffers, timeout = config->timeout_ms, seed = (double)config->seed;
	tutti_gossip_config c = *config;
	int way, choice, method, err;

	if ((err = find_word(v, TT_KEY_WAY, ways, TT_COUNT(ways), (int)c.way, &way)) ||
	    (err = find_word(v, TT_KEY_CHOICE, choices, TT_COUNT(choices), (int)c.choice, &choice)) ||
	    (err = find_word(v, TT_KEY_METHOD, methods, TT_COUNT(methods), (int)c.method, &method)) ||
	    (err = find_number(v, TT_KEY_VALUE, 0, 1, &c.value)) ||
	    (err = find_number(v, TT_KEY_THRESHOLD, 0, HUGE_VAL, &c.divergence_threshold)) ||
	    (err = find_number(v, TT_KEY_PROBABILITY, 0, 1, &c.fetch_probability)) ||
	    (err = find_number(v, TT_KEY_BUFFERS, 2, TT_GOSSIP_BUFFERS, &buffers)) ||
	    (err = find_number(v, TT_KEY_TIMEOUT, 0, 86400000, &timeout)) ||
	    (err = find_number(v, TT_KEY_SEED, 0, 0x1p53, &seed)))
		return err;
	c.way = (tutti_gossip_way)way;
	c.choice = (tutti_gossip_choice)choice;
	c.method = (tutti_gossip_method)method;
	c.buffers = (int)buffers;
	c.timeout_ms = (int)timeout;
	c.seed = v[TT_KEY_SEED].line ? (uint64_t)seed : c.seed;
	*config = c;
	return 0;
}

int tt_gossip_read(const char *file, tutti_gossip_config *config)
{
	struct tt_config_value values[TT_GOSSIP_KEYS] = { { 0 } };
	int err = tt_config_section(file, "gossip", tt_gossip_keys, TT_GOSSIP_KEYS, values);

	return err ? err : fill(config, values);
}

int tutti_gossip_configure(tutti *at, tutti_gossip_config *config)
{
	struct tt_job *job = tt_job_of(at);
	int err = tt_usable(job);

	if (err || (err = tt_given(config, "tutti_gossip_configure: config")) ||
	    (err = TT_RESERVED(tutti_gossip_config, config)))
		return err;
	const char *file = tt_setting(&job->settings, TT_CONFIG);
	return file ? tt_gossip_read(file, config) : 0;
}

/* ---- names of peers ---- */

static int find_node(struct tt_job *job, const char *name)
{
	tt_lock(job);
	int found = tt_nodes_find(job, name);
	tt_unlock(job);
	return found;
}

static int find_host(struct tt_job *job, const char *name)
{
	int found = -ENOENT;
	char host[96];

	tt_lock(job);
	for (int i = 0; i < job->size; i++)
		if (i != job->rank && tt_address_find(tt_member(job, i)->addr, "host", host) &&
		    !strcmp(host + strlen("host:"), name))
			found = found == -ENOENT ? i : -ENOTUNIQ;
	tt_unlock(job);
	return found;
}

int tt_gossip_find(struct tt_job *job, const char *name)
{
	int found = find_node(job, name);
	char *end;

	if (found < 0) {
		long rank = strtol(name, &end, 10);
		found = *name && !*end && rank >= 0 && rank < job->size ? (int)rank : find_host(job, name);
	}
	if (found == job->rank)
		return tt_fail(-EINVAL, "gossip: \"%s\" is this rank itself", name);
	if (found >= 0)
		return found;
	return tt_fail(-ENOENT, "gossip: \"%s\" is neither a node of the node list, nor a rank below %d, nor %s", name,
	               job->size, found == -ENOTUNIQ ? "a host with exactly one other rank" : "a host of another rank");
}
