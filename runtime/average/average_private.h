/* average_private.h - what the files of this room share */
#ifndef TT_AVERAGE_PRIVATE_H
#define TT_AVERAGE_PRIVATE_H
#include "base/model.h"
#include "engine/engine.h"
#include "tutti.h"

/* ---- schedule.c: values that all ranks change at once ---- */

/* Collects len bytes of each rank of the group. *all is to be freed. what: for the sentence. A collective. */
int tt_schedule_gather(tutti *group, const void *mine, size_t len, void **all, const char *what);
/* 0: rank i has this rank's value. -EINVAL, with a sentence that names the member and both values. */
int tt_schedule_compare(tutti *group, int i, const char *what, const char *member, double theirs, double mine);
int tt_schedule_compare_words(tutti *group, int i, const char *what, const char *member, const char *theirs,
                              const char *mine);
/* all: of each rank, len bytes that begin with its model's hash. 0: all ranks have tensors of the same counts and
 * types. Else -EINVAL, with a sentence that names the tensor and both values. A collective: all ranks call it. */
int tt_schedule_compare_models(tutti *group, const char *what, const void *all, size_t len, const struct tt_model *);

/* 0: rank i's call goes well. -ECONNABORTED: it has failed with err, for a reason that its own program hears. */
int tt_schedule_heed(tutti *group, int i, const char *what, double err);

/* ---- center_config.c ---- */

int tt_center_check(const tutti_center_config *, const char *name); /* does it make sense? */
int tt_center_check_schedule(const tutti_center_config *, const char *what, int tau, double alpha);
/* 0: all ranks of the group open the same center. A collective. */
int tt_center_compare(tutti *group, const char *name, const tutti_center_config *, const struct tt_model *);

/* ---- state.c: the state of an averaging in a file ---- */

struct tt_held { /* an array of it */
	char name[24];
	tutti_type type;
	size_t count;
	void *at;
};
struct tt_held tt_held_numbers(const char *name, uint64_t *numbers, size_t count);
struct tt_held tt_held_tensor(const char *name, int i, const tutti_tensor *); /* of the name NAME.i; -1: NAME */
/* of: what the state is of, for sentences and for the file. The earlier file stays until the new one is whole. */
int tt_state_save(const char *of, const char *path, const struct tt_held *, int n);
int tt_state_load(const char *of, const char *path, const struct tt_held *, int n); /* all arrays, or none */

/* ---- round.c: one round of averaging: how many ranks contribute, and what is summed meanwhile ----
 *
 * All ranks of a group begin the same sums in the same order. A round that has failed stays so until tt_round_move. */

struct tt_round {
	tutti *group;          /* NULL: the program has freed it */
	tutti *entered;        /* in which the calls run ... */
	int entries;           /* ... that are inside now: of the program, and an errand */
	tutti_op *ops;         /* the count's, then one for each sum */
	int begun;             /* how many of them run, or have ended */
	tutti_rule rule;       /* of the sums: SUM or AVERAGE (by all ranks of the group) */
	int32_t count;         /* what it is made of */
	bool interrupted;      /* a wait: the next call goes on with it */
	int err;
	char why[300];
};
int tt_round_open(struct tt_round *, tutti *group, int sums, const char *what);
void tt_round_close(struct tt_round *); /* waits for what is under way; cancels what an interrupted call has left */
int tt_round_may_move(const struct tt_handle *of, const tutti *group); /* -EINVAL: it is a group of another job */
/* The round was settled. The next round of `of`, which has this one, is in that group, and without an error. */
void tt_round_move(struct tt_round *, struct tt_handle *of, tutti *group);
/* A call of the program on `of`, which has the round, begins and ends. -ESTALE: the group was freed; and as
 * tt_users_enter(). */
int tt_round_enter(struct tt_round *, struct tt_handle *of);
int tt_round_exit(struct tt_round *, struct tt_handle *of, int err); /* returns err */
/* The program has `of` from now on. */
void tt_round_hold(struct tt_round *, struct tt_handle *of, struct tt_job *, const struct tt_handle_kind *);
int tt_round_settle(struct tt_round *); /* the same, for the round under way alone. Not 0: its sums are lost */
/* Waits end with -EINTR, too: the sums run on, and the same function may be called again. */
/* These begin: first the count, then sums, in place. A group takes 1,024 collectives at a time. When there is no room
 * for one more, tt_round_sum waits for the oldest sum of this round; tt_round_sum_now returns -EAGAIN and begins
 * nothing. The others do not block. */
int tt_round_count(struct tt_round *, bool contributes);
int tt_round_sum(struct tt_round *, const tutti_tensor *, int n);
int tt_round_sum_now(struct tt_round *, const tutti_tensor *, int n);
int tt_round_wait(struct tt_round *, int i); /* for the i-th sum, from 1 up */
/* Waits for the count: how many ranks contribute. Of a rank that does not, the rule is then the others'. */
int tt_round_contributors(struct tt_round *, int *contributors);
int tt_round_fail(struct tt_round *, int err); /* with this thread's sentence: all that runs is given up */
int tt_round_end(struct tt_round *);         /* for all; then the next round may begin. Also where none has begun */
#endif
