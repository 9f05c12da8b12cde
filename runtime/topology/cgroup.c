/* cgroup.c - the cgroups that this process is in, and how much of the processors' time they leave */
#include "topology/topology.h"
#include <stdlib.h>

static bool has_word(const char *list, size_t size, const char *word) /* in a list with commas */
{
	size_t n = strlen(word);

	for (const char *at = list; at < list + size; at += strcspn(at, ",:") + 1)
		if (!strncmp(at, word, n) && (at + n == list + size || at[n] == ','))
			return true;
	return false;
}

/* A line is NUMBER:CONTROLLERS:FOLDER; version 2 has no controllers there. */
bool tt_cgroup_next(struct tt_cgroup *g, const char *controller)
{
	while (g->own && *g->own) {
		const char *list = strchr(g->own, ':'), *path = list ? strchr(list + 1, ':') : NULL;
		size_t names = path ? (size_t)(path - list - 1) : 0, length = path ? strcspn(path, "\n") : 0;

		g->own = path ? path + length + (path[length] == '\n') : NULL;
		if (!path || (names && !has_word(list + 1, names, controller)))
			continue;
		g->top = strlen(g->root) + (names ? 1 + strlen(controller) : 0);
		if (snprintf(g->folder, sizeof g->folder, "%s%s%s%.*s", g->root, names ? "/" : "",
		             names ? controller : "", (int)length - 1, path + 1) < (int)sizeof g->folder)
			return true;
	}
	return false;
}

bool tt_cgroup_up(struct tt_cgroup *g)
{
	char *end = strrchr(g->folder, '/');

	if (!end || strlen(g->folder) <= g->top)
		return false;
	*end = 0;
	return true;
}

double tt_cgroup_number(const struct tt_cgroup *g, const char *file, double otherwise)
{
	char text[64] = "", *end;

	tt_read_text(text, sizeof text, "%s/%s", g->folder, file);
	double n = strtod(text, &end);
	return end == text ? otherwise : n; /* "max" */
}

static double cores_here(const struct tt_cgroup *g)
{
	char text[64] = "";
	double quota = tt_cgroup_number(g, "cpu.cfs_quota_us", -1);
	double period = tt_cgroup_number(g, "cpu.cfs_period_us", 0);

	tt_read_text(text, sizeof text, "%s/cpu.max", g->folder);
	if (sscanf(text, "%lf %lf", &quota, &period) < 2 && *text)
		quota = -1; /* "max 100000" */
	return quota > 0 && period > 0 ? quota / period : TT_NO_QUOTA;
}

double tt_cgroup_cores(const char *root, const char *own)
{
	struct tt_cgroup g = { .root = root, .own = own };
	double least = TT_NO_QUOTA;

	while (tt_cgroup_next(&g, "cpu"))
		do {
			double here = cores_here(&g);
			least = here < least ? here : least;
		} while (tt_cgroup_up(&g));
	return least;
}

const char *tt_cgroup_own(char *room, size_t size)
{
	*room = 0;
	tt_read_text(room, size, "/proc/self/cgroup");
	return room;
}
