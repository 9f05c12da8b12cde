/* draw.c - `tutti info --topology` on a terminal of 80 columns
 *
 * A line is a run of cores. Neighbours that differ only in their numbers share a line, so that 128 cores fit a
 * screen. */
#include "tools/topology/topology.h"
#include "topology/topology.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 80, RIGHT = 54, ROWS_MAX = 16 };

struct line {
	char group[64], each[64]; /* the cache that these cores share; the caches and processors of each core */
	int groups, indent;
	int first, cores; /* cores by their number */
	struct tt_cpus cpus;
	int owner, owners, width; /* ranks from owner on, `width` cores each; owners 0: TT_FREE ... */
	bool title;               /* only a group, what is in it follows */
};
struct lines {
	struct line *of;
	int n;
	bool failed;
};

static struct line *add_line(struct lines *l)
{
	struct line *more = realloc(l->of, (size_t)(l->n + 1) * sizeof *more);

	if (!more) {
		l->failed = true;
		return NULL;
	}
	l->of = more;
	memset(&more[l->n], 0, sizeof *more);
	return &more[l->n++];
}

/* ---- from the tree to lines ---- */

static bool continues(const struct line *a, const struct line *b)
{
	if (a->title || b->title || a->indent != b->indent || strcmp(a->group, b->group) || strcmp(a->each, b->each))
		return false;
	if (!a->owners || !b->owners)
		return a->owners == b->owners && a->owner == b->owner;
	if (a->owner == b->owner && a->owners == 1 && b->owners == 1)
		return true;
	return a->owner + a->owners == b->owner && a->width == b->width;
}

static void join(struct line *a, const struct line *b)
{
	if (a->owner == b->owner)
		a->width += b->width;
	else
		a->owners += b->owners;
	a->groups += b->groups;
	a->cores += b->cores;
	for (size_t i = 0; i < TT_COUNT(a->cpus.word); i++)
		a->cpus.word[i] |= b->cpus.word[i];
}

/* Joins cores of the same rank first, then consecutive ranks. */
static void fold(struct lines *l, int from)
{
	for (int pass = 0; pass < 2; pass++) {
		int n = from;
		for (int i = from; i < l->n; i++) {
			bool same = n > from && continues(&l->of[n - 1], &l->of[i]);
			same = same && (pass || l->of[n - 1].owner == l->of[i].owner);
			if (same)
				join(&l->of[n - 1], &l->of[i]);
			else
				l->of[n++] = l->of[i];
		}
		l->n = n;
	}
}

static void add_core(struct lines *l, const struct tt_view *v, const struct tt_object *o, const char *caches)
{
	struct line *line = add_line(l);

	if (!line)
		return;
	snprintf(line->each, sizeof line->each, "%d CPU%s%s", o->pus, o->pus > 1 ? "s" : "", caches);
	line->first = o->number;
	line->cores = 1;
	line->owner = TT_FORBIDDEN;
	for (int i = o->first; i < o->first + o->pus; i++) {
		tt_cpus_add(&line->cpus, v->machine.pus[i].cpu);
		line->owner = line->owner == TT_FORBIDDEN || line->owner == TT_FREE ? v->owner[i] : line->owner;
	}
	line->owners = line->width = line->owner >= 0;
}

static int cores_in(const struct tt_view *v, const struct tt_object *o)
{
	int n = 0;

	for (int i = o->first; i < o->first + o->pus; i++)
		n += i == o->first || v->machine.pus[i].core != v->machine.pus[i - 1].core;
	return n;
}

static void collect(struct lines *l, const struct tt_view *v, int at, const char *caches, int indent);

static void collect_children(struct lines *l, const struct tt_view *v, int of, const char *caches, int indent)
{
	for (int i = of + 1; i < v->machine.count; i++)
		if (v->machine.objects[i].parent == of && v->machine.objects[i].kind <= TT_PU)
			collect(l, v, i, caches, indent);
}

static void collect_group(struct lines *l, const struct tt_view *v, int at, const char *name, int indent)
{
	int from = l->n;
	struct line *title = add_line(l);

	if (!title)
		return;
	title->title = true;
	title->indent = indent;
	collect_children(l, v, at, "", indent + 2);
	fold(l, from + 1);
	title = &l->of[from]; /* one kind of cores needs one line */
	if (l->n == from + 2 && !l->of[from + 1].groups) {
		*title = l->of[from + 1];
		title->indent = indent;
		l->n--;
	}
	title->groups = 1;
	snprintf(title->group, sizeof title->group, "%s", name);
}

static void collect(struct lines *l, const struct tt_view *v, int at, const char *caches, int indent)
{
	const struct tt_object *o = &v->machine.objects[at];
	char text[64], size[24];

	if (o->kind == TT_CORE) {
		int from = l->n;
		add_core(l, v, o, caches);
		if (l->n > from)
			l->of[from].indent = indent;
	} else if (o->kind == TT_CACHE) {
		tt_topology_size(o->bytes, size, sizeof size);
		if (cores_in(v, o) > 1) {
			snprintf(text, sizeof text, "L%d %s", o->number, size);
			collect_group(l, v, at, text, indent);
		} else {
			snprintf(text, sizeof text, "%.30s, L%d %s", caches, o->number, size);
			collect_children(l, v, at, text, indent);
		}
	}
}

/* ---- printing ---- */

/* Fills lines with words; later lines are indented. */
static void print_words(const char *text)
{
	for (int column = 0; *text; text += strspn(text, " ")) {
		int len = (int)strcspn(text, " ");
		if (column && column + 1 + len > WIDTH)
			column = printf("\n  ") - 1;
		else if (column)
			column += printf(" ");
		printf("%.*s", len, text);
		column += len;
		text += len;
	}
	putchar('\n');
}

static void print_right(int column, const char *text)
{
	if (*text)
		printf("%*s%s", column < RIGHT ? RIGHT - column : 2, "", text);
	putchar('\n');
}

static const char *name_owner(const struct tt_view *v, const struct line *l, char *room, size_t size)
{
	*room = 0;
	if (l->owners == 1)
		snprintf(room, size, "rank %d", l->owner);
	else if (l->owners > 1)
		snprintf(room, size, l->width == v->seats[l->owner].share.cores ? "ranks %d-%d, %d core%s each"
		                                                                : "ranks %d-%d",
		         l->owner, l->owner + l->owners - 1, l->width, l->width > 1 ? "s" : "");
	else if (l->owner == TT_FORBIDDEN)
		snprintf(room, size, "not allowed");
	else if (l->owner == TT_SHARED)
		snprintf(room, size, "all ranks");
	return room;
}

static void print_line(const struct tt_view *v, const struct line *l, int indent)
{
	char cpus[48], owner[64];
	int column = printf("%*s", indent + l->indent, "");

	if (l->groups > 1)
		column += printf("%d x %s, ", l->groups, l->group);
	else if (l->groups)
		column += printf(l->title ? "%s" : "%s, ", l->group);
	if (l->title) {
		putchar('\n');
		return;
	}
	column += l->cores > 1 ? printf("cores %d-%d", l->first, l->first + l->cores - 1) : printf("core %d", l->first);
	if (column < RIGHT - 12)
		column += printf(", CPU %s",
		                 tt_cpus_text(&l->cpus, cpus, tt_min(sizeof cpus, (size_t)(RIGHT - column - 7))));
	print_right(column, name_owner(v, l, owner, sizeof owner));
}

static void print_device(const struct tt_view *v, int i, int indent)
{
	const struct tt_object *d = &v->machine.objects[i];
	struct tt_cpus near = { { 0 } };
	char list[20], owner[40] = "";

	for (int r = 0; r < v->ranks; r++)
		if ((d->kind == TT_NIC ? v->seats[r].nic : v->seats[r].gpu) == i)
			tt_cpus_add(&near, r);
	if (tt_cpus_count(&near))
		snprintf(owner, sizeof owner, "%s %s", tt_cpus_count(&near) > 1 ? "ranks" : "rank",
		         tt_cpus_text(&near, list, sizeof list));
	int column = printf("%*s%s ", indent, "", d->kind == TT_NIC ? "NIC" : "GPU");
	char name[sizeof d->name];
	snprintf(name, sizeof name, "%.*s", (int)tt_max(8, (size_t)(RIGHT - column - (int)sizeof d->at)), d->name);
	tt_tool_print_plain(name, 0);
	column += (int)strlen(name) + printf("  %s", d->at);
	print_right(column, owner);
}

static int count_branches(const struct tt_topology *t, int of)
{
	int n = 0;

	for (int i = of + 1; i < t->count; i++)
		n += t->objects[i].parent == of;
	return n;
}

/* Leaves out switches with a single branch, and the processors, where all devices meet. */
static void print_devices(const struct tt_view *v, int at, int indent)
{
	const struct tt_topology *t = &v->machine;

	for (int i = at + 1; i < t->count; i++) {
		if (t->objects[i].parent != at || t->objects[i].kind < TT_SWITCH)
			continue;
		bool is_shown = count_branches(t, i) > 1 && t->objects[at].kind == TT_SWITCH;
		if (t->objects[i].kind > TT_SWITCH)
			print_device(v, i, indent);
		else if (is_shown)
			printf("%*sPCI switch\n", indent, "");
		if (t->objects[i].kind == TT_SWITCH)
			print_devices(v, i, indent + 2 * is_shown);
	}
}

static void print_cores(const struct tt_view *v, int at, int indent)
{
	struct lines l = { NULL, 0, false };

	collect_children(&l, v, at, "", 0);
	fold(&l, 0);
	for (int i = 0; i < l.n; i++)
		print_line(v, &l.of[i], indent);
	free(l.of);
}

static void print_holder(const struct tt_object *o, int indent)
{
	char size[24];

	if (o->kind == TT_PACKAGE) {
		printf("%*spackage %d", indent, "", o->number);
		printf(*o->name ? ", " : "");
		tt_tool_print_plain(o->name, 0);
	} else {
		printf("%*sNUMA node %d", indent, "", o->number);
		if (o->bytes) {
			tt_topology_size(o->bytes, size, sizeof size);
			printf(", %s", size);
		}
		printf(!o->pus ? ", memory only" : "");
	}
	putchar('\n');
}

/* Packages and nodes, then the cores directly below, then the devices. */
static void print_tree(const struct tt_view *v, int at, int indent)
{
	const struct tt_topology *t = &v->machine;

	print_cores(v, at, indent);
	print_devices(v, at, indent);
	for (int i = at + 1; i < t->count; i++)
		if (t->objects[i].parent == at && (t->objects[i].kind == TT_PACKAGE || t->objects[i].kind == TT_NUMA)) {
			print_holder(&t->objects[i], indent);
			print_tree(v, i, indent + 2);
		}
}

static void plural(int n, const char *what) { printf("%d %s%s", n, what, n == 1 ? "" : "s"); }

/* What kinds of cores there are. */
static void print_kinds(const struct tt_view *v)
{
	struct lines l = { NULL, 0, false };
	int kinds = 0;

	collect_children(&l, v, 0, "", 0);
	for (int i = 0; i < v->machine.count; i++)
		if (v->machine.objects[i].kind == TT_PACKAGE || v->machine.objects[i].kind == TT_NUMA)
			collect_children(&l, v, i, "", 0);
	for (int i = 0; i < l.n; i++)
		l.of[i].owner = l.of[i].indent = l.of[i].owners = 0;
	for (int i = 0, k; i < l.n; i++) {
		if (l.of[i].title)
			continue;
		for (k = 0; k < kinds && strcmp(l.of[k].each, l.of[i].each);)
			k++;
		int cores = l.of[i].cores;
		if (k == kinds)
			l.of[kinds++] = l.of[i];
		else
			l.of[k].cores += cores;
	}
	for (int k = 0; k < kinds; k++)
		if (kinds > 1)
			printf("%d cores of %s\n", l.of[k].cores, l.of[k].each);
		else
			printf("each core: %s\n", l.of[k].each);
	free(l.of);
}

static void print_head(const struct tt_view *v)
{
	const struct tt_topology *t = &v->machine;
	char room[64];

	printf("%s: ", v->source ? v->source : "this host");
	plural(tt_topology_count(t, TT_PACKAGE), "package");
	printf(", ");
	plural(tt_topology_count(t, TT_NUMA), "NUMA node");
	printf(", ");
	plural(tt_topology_count(t, TT_CORE), "core");
	printf("\n");
	print_kinds(v);
	if (!tt_cpus_within(&t->there, &v->allowed))
		printf("allowed: CPU %s, by a launcher, taskset or a cgroup\n",
		       tt_cpus_text(&v->allowed, room, sizeof room));
	if (!t->devices)
		printf("no hwloc, so no caches and devices: apt install libhwloc-dev, build again\n");
	putchar('\n');
}

/* ---- the ranks ---- */

static const char *device_name(const struct tt_view *v, int device, char *room, size_t size)
{
	const struct tt_object *d = &v->machine.objects[device < 0 ? 0 : device];
	int skip = device >= 0 && !strncmp(d->at, "0000:", 5) ? 5 : 0; /* the domain that most devices have */

	snprintf(room, size, "%s", device < 0 ? "-" : d->kind == TT_NIC ? d->name : d->at + skip);
	room[strcspn(room, " ")] = 0;
	return room;
}

/* Few ranks get a line each; many get one line for each set of equal ranks. */
static bool seats_alike(const struct tt_view *v, const struct tt_spot *a, const struct tt_spot *b)
{
	bool many = v->ranks > ROWS_MAX || !a->share.cores;

	return many && a->share.cores == b->share.cores && a->share.node == b->share.node &&
	       (!a->share.cores || (a->nic == b->nic && a->gpu == b->gpu));
}

static void print_seats(const struct tt_view *v, int first, int last)
{
	const struct tt_spot *s = &v->seats[first];
	char ranks[16], cpus[23], background[12], node[16] = "any", nic[64], gpu[64];
	struct tt_cpus mine = { { 0 } }, theirs = { { 0 } };

	for (int r = first; r <= last; r++)
		for (size_t i = 0; i < TT_COUNT(mine.word); i++) {
			mine.word[i] |= v->seats[r].share.cpus.word[i];
			theirs.word[i] |= v->seats[r].share.background.word[i];
		}
	snprintf(ranks, sizeof ranks, last > first ? "%d-%d" : "%d", first, last);
	if (s->share.node >= 0)
		snprintf(node, sizeof node, "%d", s->share.node);
	bool differ = s->nic != v->seats[last].nic || s->gpu != v->seats[last].gpu;
	printf("%7s  %5d  %-22s  %-11s  %4s  %-9.9s  %.10s\n", ranks, s->share.cores,
	       tt_cpus_text(&mine, cpus, sizeof cpus),
	       tt_cpus_text(&theirs, background, sizeof background), node,
	       differ ? "several" : device_name(v, s->nic, nic, sizeof nic),
	       differ ? "several" : device_name(v, s->gpu, gpu, sizeof gpu));
}

static void print_table(const struct tt_view *v)
{
	printf("\n%7s  %5s  %-22s  %-11s  %4s  %-9s  %s\n", "rank", "cores", "CPU", "background", "node", "NIC", "GPU");
	for (int first = 0, last; first < v->ranks; first = last + 1) {
		for (last = first; last + 1 < v->ranks && seats_alike(v, &v->seats[first], &v->seats[last + 1]);)
			last++;
		print_seats(v, first, last);
	}
}

static void print_rule(const struct tt_view *v)
{
	const char *what = v->rule.pin == TT_PIN_NONE   ? "nothing is pinned"
	                   : !v->seats[0].share.cores   ? "more than cores: nothing is pinned to one"
	                   : v->rule.pin == TT_PIN_AUTO ? "pins to cores only what calls tutti_pin"
	                                                : "pins background threads and what calls tutti_pin";
	char text[200];

	snprintf(text, sizeof text, "TUTTI_PIN=%.100s, %d rank%s: %s", v->pin, v->ranks, v->ranks > 1 ? "s" : "", what);
	putchar('\n');
	print_words(text);
}

static void print_remarks(const struct tt_view *v)
{
	char list[40], text[240];

	for (int i = 0; i < v->remark_count; i++) {
		const struct tt_remark *r = &v->remarks[i];
		snprintf(text, sizeof text, "%s %s: %s", tt_cpus_count(&r->ranks) > 1 ? "ranks" : "rank",
		         tt_cpus_text(&r->ranks, list, sizeof list), r->text);
		printf("%s", i ? "" : "\n");
		print_words(text);
	}
}

void tt_topology_draw(const struct tt_view *v)
{
	print_head(v);
	print_tree(v, 0, 0);
	print_rule(v);
	print_table(v);
	print_remarks(v);
}
