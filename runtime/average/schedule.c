/* schedule.c - values that all ranks of a group change at once, and that must be the same on all */
#include "average/average_private.h"
#include "member/member.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

int tt_schedule_gather(tutti *group, const void *mine, size_t len, void **all, const char *what)
{
	int err;

	if (!(*all = calloc((size_t)group->n, len)))
		return tt_fail(-ENOMEM, "%s: no memory for what %d ranks say", what, group->n);
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

int tt_schedule_compare_models(tutti *group, int i, const char *what, uint64_t theirs, uint64_t mine)
{
	return theirs == mine ? 0 : tt_fail(-EINVAL, "%s: %s has tensors of other counts or types than this rank", what,
	                                    tt_member_label(tt_group_member(group, i)).text);
}
