/* cases.h - the recorded cases (conformance.json) as a tree, and what Multiverso's update rules are called here */
#ifndef TT_TEST_CASES_H
#define TT_TEST_CASES_H
#include "base/base.h"
#include "kernel/kernel.h"
#include "tests/harness/with.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The file, as a tree. */

enum kind { WORD, NUMBER, TEXT, LIST, MAP };
struct node {
	enum kind kind;
	const char *key, *text;     /* text: of a word (true, false, null) what is left of the file */
	double number;
	struct node *first, *next;
};
static struct node *nodes;
static size_t node_count;
static char *json_text;

static inline char *read_beside(const char *name, size_t *len)
{
	const char *source = getenv("top_srcdir");
	char path[400];
	FILE *f;
	long size = -1;

	snprintf(path, sizeof path, "%s/tests/conformance/%s", source ? source : "..", name);
	if (!(f = fopen(path, "r")) || fseek(f, 0, SEEK_END) || (size = ftell(f)) < 0) {
		printf("cannot read %s\n", path);
		exit(1);
	}
	rewind(f);
	char *text = calloc((size_t)size + 1, 1);
	*len = text ? fread(text, 1, (size_t)size, f) : 0;
	fclose(f);
	return text;
}

static inline struct node *parse(struct tt_json *j, const char *key);

static inline void parse_members(struct tt_json *j, struct node *of, char open, char close)
{
	struct node **next = &of->first;

	for (tt_json_enter(j, open); tt_json_more(j, close); next = &(*next)->next)
		*next = parse(j, open == '{' ? tt_json_key(j) : "");
}

static inline struct node *parse(struct tt_json *j, const char *key)
{
	struct node *n = &nodes[node_count++];
	char *at = j->at + strspn(j->at, " \t\r\n");

	n->key = key;
	switch (*at) {
	case '{': n->kind = MAP; parse_members(j, n, '{', '}'); break;
	case '[': n->kind = LIST; parse_members(j, n, '[', ']'); break;
	case '"': n->kind = TEXT; n->text = tt_json_text(j); break;
	default:
		n->kind = strchr("tfn", *at) ? WORD : NUMBER;
		n->text = at;
		n->number = n->kind == NUMBER ? strtod(at, NULL) : 0;
		tt_json_skip(j);
	}
	return n;
}

static const struct node nothing;

static inline const struct node *get(const struct node *map, const char *key) /* an empty one, if it is not there */
{
	for (const struct node *n = map->first; n; n = n->next)
		if (!strcmp(n->key, key))
			return n;
	return &nothing;
}

static inline const struct node *at(const struct node *list, int i)
{
	const struct node *n = list->first;

	while (n && i--)
		n = n->next;
	return n ? n : &nothing;
}

#define EACH(n, list) for (const struct node *n = (list)->first; n; n = n->next)

static inline int length(const struct node *list)
{
	int count = 0;

	EACH(n, list)
		count++;
	return count;
}

static inline double number(const struct node *map, const char *key) { return get(map, key)->number; }
static inline int whole(const struct node *n) { return (int)n->number; }
static inline bool is_text(const struct node *n, const char *text) { return n->kind == TEXT && !strcmp(n->text, text); }
static inline bool is_true(const struct node *n) { return n->kind == WORD && n->text && *n->text == 't'; }

/* Reads conformance.json; until free_cases(). */
static inline const struct node *load_cases(void)
{
	size_t len;

	json_text = read_beside("conformance.json", &len);
	struct tt_json j = tt_json(json_text, len);
	nodes = calloc(len + 1, sizeof *nodes); /* each takes a character at least */
	node_count = 0;
	const struct node *cases = nodes ? get(parse(&j, ""), "cases") : &nothing;
	tt_json_end(&j);
	if (j.fault || !cases->first) {
		printf("conformance.json has no cases: %s\n", j.fault ? j.fault : "none");
		exit(1);
	}
	return cases;
}

static inline void free_cases(void)
{
	free(nodes);
	free(json_text);
}

/* Update rules. */

struct recipe { /* Multiverso's updater in Tutti's terms */
	const char *name;
	tutti_update_rule rule;
	unsigned flags, sets; /* what of an Add's options */
};
enum { SCALE = 1, LEARNING_RATE = 2, STEP = SCALE | LEARNING_RATE, LAMBDA = 4, MOMENTUM = 8 };
static const struct recipe recipes[] = {
	{ "default", TUTTI_UPDATE_ADD, 0, 0 },
	{ "sgd", TUTTI_UPDATE_SGD, 0, 0 },
	{ "momentum_sgd", TUTTI_UPDATE_SMOOTHED, 0, MOMENTUM },
	{ "adagrad_intended", TUTTI_UPDATE_ADAGRAD, 0, STEP },
	{ "adagrad_literal", TUTTI_UPDATE_ADAGRAD, 0, STEP },
	{ "dcasgd", TUTTI_UPDATE_DCASGD, TUTTI_BACKUP_FROM_ZERO, STEP | LAMBDA },
	{ "dcasgda", TUTTI_UPDATE_DCASGDA, TUTTI_BACKUP_FROM_ZERO, STEP | LAMBDA | MOMENTUM },
};

/* As shipped it has no memory and comes to NaN. This is what its inputs give if it has. */
static const double mended_adagrad[] = { -0.0447213595499958, -0.0855461885963821, -0.1855461135964665 };

static inline double option(const struct node *add, const char *name, double fallback)
{
	const struct node *n = get(get(add, "option"), name);

	return n->kind == NUMBER ? n->number : fallback;
}

/* Its deltas hold the learning rate already, and some of its updaters take it out again; its adagrad's own is called
 * rho. */
static inline tutti_update options_of(const struct recipe *r, const struct node *add)
{
	double rate = option(add, "learning_rate", 0.01);
	tutti_update o = tutti_update_defaults();

	if (r->sets & SCALE)
		o.scale = 1 / rate;
	if (r->sets & LEARNING_RATE)
		o.learning_rate = r->rule == TUTTI_UPDATE_ADAGRAD ? option(add, "rho", 0.1) : rate;
	if (r->sets & LAMBDA)
		o.compensation = option(add, "lam", 0.1);
	if (r->sets & MOMENTUM)
		o.momentum = option(add, "momentum", 0);
	return o;
}

static inline double get_element(const char *v, int i, tutti_type type)
{
	double x;
	float f;

	memcpy(type == TUTTI_F64 ? (void *)&x : &f, v + (size_t)i * tt_type_size(type), tt_type_size(type));
	return type == TUTTI_F64 ? x : (double)f;
}

static inline void set_elements(void *v, const struct node *values, tutti_type type)
{
	char *to = v;

	EACH(n, values) {
		float f = (float)n->number;
		memcpy(to, type == TUTTI_F64 ? (const void *)&n->number : &f, tt_type_size(type));
		to += tt_type_size(type);
	}
}
#endif
