/* schedule.c - values that all ranks of a group change at once, and that must be the same on all */
#include "average/average_private.h"
#include "member/member.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* This rank has no memory for its part in the next collective, in which the others must not wait for it. */
static int give_up(tutti *group, const char *what)
{
	tutti_op op = { 0 };

	if (!tutti_barrier(group, &op))
		tutti_cancel(&op);
	return tt_fail(-ENOMEM, "%s: no memory for what %d ranks say", what, group->n);
}

int tt_schedule_gather(tutti *group, const void *mine, size_t len, void **all, const char *what)
{
	int err;

	if (!(*all = calloc((size_t)group->n, len)))
		return give_up(group, what);
	if (!(err = tutti_gather(group, mine, len, *all, -1, NULL)))
		return 0;
	free(*all);
	*all = NULL;
	return err;
}

int tt_schedule_heed(tutti *group, int i, const char *what, double err)
{
	return err == 0 ? 0 : tt_fail(-ECONNABORTED, "%s: the call has failed on %s: %s", what,
	                              tt_member_label(tt_group_member(group, i)).text, strerror(-(int)err));
}

int tt_schedule_compare(tutti *group, int i, const char *what, const char *member, double theirs, double mine)
{
	if (theirs == mine || (isnan(theirs) && isnan(mine)))
		return 0;
	return tt_fail(-EINVAL, "%s: %s is %g on %s, and %g on this rank: it must be the same on all", what, member,
	               theirs, tt_member_label(tt_group_member(group, i)).text, mine);
}

int tt_schedule_compare_words(tutti *group, int i, const char *what, const char *member, const char *theirs,
                              const char *mine)
{
	return !strcmp(theirs, mine) ? 0 :
	       tt_fail(-EINVAL, "%s: %s is %s on %s, and %s on this rank: it must be the same on all", what, member,
	               theirs, tt_member_label(tt_group_member(group, i)).text, mine);
}

struct listed { uint64_t count, type; };

/* The list of rank `root`. */
static int fetch_list(tutti *group, int root, const char *what, const struct tt_model *mine, int64_t *n,
                      struct listed **list)
{
	int err;

	*n = mine->n;
	if ((err = tutti_broadcast(group, n, sizeof *n, root, NULL)))
		return err;
	if (*n < 0 || !(*list = calloc((size_t)*n + 1, sizeof **list)))
		return give_up(group, what);
	for (int i = 0; group->me == root && i < mine->n; i++)
		(*list)[i] = (struct listed){ mine->tensors[i].count, (uint64_t)mine->tensors[i].type };
	return tutti_broadcast(group, *list, (size_t)*n * sizeof **list, root, NULL);
}

static const char *type_of(const struct listed *t)
{
	const char *name = tt_type_name((tutti_type)t->type);

	return name ? name : "unknown";
}

static int name_tensor(const char *what, const char *odd, const struct listed *b, int64_t m, const char *first,
                       const struct listed *a, int64_t n)
{
	int64_t i = 0;

	if (n != m)
		return tt_fail(-EINVAL, "%s: the number of tensors is %lld on %s, and %lld on %s: it must be the same "
		               "on all", what, (long long)m, odd, (long long)n, first);
	while (i < n - 1 && a[i].count == b[i].count && a[i].type == b[i].type)
		i++;
	return tt_fail(-EINVAL, "%s: tensor %lld has %llu %s on %s, and %llu %s on %s: it must be the same on all",
	               what, (long long)i, (unsigned long long)b[i].count, type_of(&b[i]), odd,
	               (unsigned long long)a[i].count, type_of(&a[i]), first);
}

int tt_schedule_compare_models(tutti *group, const char *what, const void *all, size_t len,
                               const struct tt_model *mine)
{
	const char *of = all;
	struct listed *a = NULL, *b = NULL;
	int64_t n, m;
	int odd = 1, err;

	while (odd < group->n && !memcmp(of, of + (size_t)odd * len, sizeof mine->hash))
		odd++;
	if (odd == group->n)
		return 0;
	if (!(err = fetch_list(group, 0, what, mine, &n, &a)) &&
	    !(err = fetch_list(group, odd, what, mine, &m, &b)))
		err = name_tensor(what, tt_member_label(tt_group_member(group, odd)).text, b, m,
		                  tt_member_label(tt_group_member(group, 0)).text, a, n);
	free(a);
	free(b);
	return err;
}
