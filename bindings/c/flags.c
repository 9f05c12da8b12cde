/* flags.c - the flags of MV_Init, and what they mean for a table */
#include "bindings/c/shim.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum kind { BOOL, INT, TEXT };
static const struct known {
	const char *name;
	size_t at; /* in struct mv_flags */
	enum kind kind;
	bool no_effect;
	int least, most; /* of INT */
} known[] = {
	{ "sync", offsetof(struct mv_flags, sync), BOOL, false, 0, 0 },
	{ "updater_type", offsetof(struct mv_flags, updater_type), TEXT, false, 0, 0 },
	{ "backup_worker_ratio", offsetof(struct mv_flags, backup_worker_ratio), INT, false, 0, 99 },
	{ "ps_role", offsetof(struct mv_flags, ps_role), TEXT, false, 0, 0 },
	{ "machine_file", offsetof(struct mv_flags, machine_file), TEXT, false, 0, 0 },
	{ "port", offsetof(struct mv_flags, port), INT, false, 1, 65535 },
	{ "ma", offsetof(struct mv_flags, ma), BOOL, false, 0, 0 },
	{ "omp_threads", offsetof(struct mv_flags, omp_threads), INT, true, 0, INT_MAX },
	{ "allocator_type", offsetof(struct mv_flags, allocator_type), TEXT, true, 0, 0 },
	{ "allocator_alignment", offsetof(struct mv_flags, allocator_alignment), INT, true, 0, INT_MAX },
	{ "logtostderr", offsetof(struct mv_flags, logtostderr), BOOL, true, 0, 0 },
};

/* The flag that an argument -name=value sets, and its value; NULL: the argument is the program's own. */
static const struct known *find_known(const char *argument, const char **value)
{
	const char *equals = strchr(argument, '=');

	if (*argument != '-' || !equals)
		return NULL;
	*value = equals + 1;
	for (size_t i = 0; i < COUNT(known); i++)
		if (strlen(known[i].name) == (size_t)(equals - argument - 1) &&
		    !strncmp(known[i].name, argument + 1, strlen(known[i].name)))
			return &known[i];
	return NULL;
}

static bool is_among(const char *value, const char *const words[3])
{
	return !strcmp(value, words[0]) || !strcmp(value, words[1]) || !strcmp(value, words[2]);
}

static int set_bool(const struct known *k, bool *to, const char *value)
{
	static const char *const yes[] = { "true", "True", "1" }, *const no[] = { "false", "False", "0" };

	if (!is_among(value, yes) && !is_among(value, no))
		return mv_fail(-EINVAL, "-%s is \"%s\", and must be true or false", k->name, value);
	*to = is_among(value, yes);
	return 0;
}

static int set_int(const struct known *k, int *to, const char *value)
{
	char *end;
	long number = strtol(value, &end, 10);

	if (!*value || *end || number < k->least || number > k->most)
		return mv_fail(-EINVAL, "-%s is \"%s\", and must be a number from %d to %d", k->name, value, k->least,
		               k->most);
	*to = (int)number;
	return 0;
}

static int set_flag(const struct known *k, struct mv_flags *flags, const char *value)
{
	void *to = (char *)flags + k->at;

	switch (k->kind) {
	case BOOL:
		return set_bool(k, to, value);
	case INT:
		return set_int(k, to, value);
	case TEXT:
		*(const char **)to = value;
	}
	return 0;
}

static void remove_known(int *argc, char **argv)
{
	const char *value;
	int kept = 0;

	for (int i = 0; i < *argc; i++)
		if (!i || !find_known(argv[i], &value))
			argv[kept++] = argv[i];
	if (kept < *argc)
		argv[kept] = NULL;
	*argc = kept;
}

/* After an error argv is as it was. */
int mv_flags_take(struct mv_flags *flags, int *argc, char **argv)
{
	const struct known *k;
	const char *value;

	*flags = (struct mv_flags){ .updater_type = "default", .ps_role = "default", .port = 55555 };
	if (!argc || !argv)
		return 0;
	for (int i = 1; i < *argc; i++) {
		int err = (k = find_known(argv[i], &value)) ? set_flag(k, flags, value) : 0;

		if (err)
			return err;
		if (k && k->no_effect)
			mv_say("%s has no effect: Tutti chooses its threads and memory by itself, and TUTTI_LOG says "
			       "what it logs",
			       argv[i]);
	}
	if (flags->ma)
		return mv_fail(-ENOTSUP, "-ma=true is refused: without tables call tutti_allreduce");
	if (flags->backup_worker_ratio && !flags->sync)
		return mv_fail(-EINVAL,
		               "-backup_worker_ratio is %d without -sync=true: only rounds have backup workers",
		               flags->backup_worker_ratio);
	remove_known(argc, argv);
	return 0;
}

int mv_flags_role(const struct mv_flags *flags, enum mv_role *role)
{
	static const char *const names[] = { "none", "worker", "server", "default" };

	for (size_t i = 0; i < COUNT(names); i++)
		if (!strcmp(flags->ps_role, names[i])) {
			*role = (enum mv_role)i;
			return 0;
		}
	return mv_fail(-EINVAL, "-ps_role is \"%s\", and must be none, worker, server or default", flags->ps_role);
}

/* Workers push deltas that are already multiplied by the learning rate. adagrad, dcasgd and dcasgda divide the deltas
 * by the learning rate again; adagrad calls its own learning rate rho. */
int mv_flags_updater(const struct mv_flags *flags, tutti_updater *updater)
{
	const double learning_rate = 0.01, momentum = 0, rho = 0.1, lambda = 0.1;
	const struct {
		const char *name;
		tutti_updater updater;
		double scale;
	} rules[] = {
		{ "default", tutti_accumulate(), 1 },
		{ "sgd", tutti_sgd(1), 1 },
		{ "momentum_sgd", tutti_smoothed(1, momentum), 1 },
		{ "adagrad", tutti_adagrad(rho), 1 / learning_rate },
		{ "dcasgd", tutti_dcasgd(learning_rate, lambda), 1 / learning_rate },
		{ "dcasgda", tutti_dcasgda(learning_rate, lambda), 1 / learning_rate },
	};

	for (size_t i = 0; i < COUNT(rules); i++)
		if (!strcmp(flags->updater_type, rules[i].name)) {
			*updater = rules[i].updater;
			updater->defaults.scale = rules[i].scale;
			if (updater->rule == TUTTI_UPDATE_DCASGDA)
				updater->defaults.momentum = momentum;
			return 0;
		}
	return mv_fail(-EINVAL,
	               "-updater_type is \"%s\", and must be default, sgd, momentum_sgd, adagrad, dcasgd or "
	               "dcasgda",
	               flags->updater_type);
}
