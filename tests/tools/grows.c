/* grows.c - for hosts.sh and check-slurm: `grows RANKS VICTIM FILE [VICTIM FILE ...]`. Ranks train one number towards
 * 3. The first victim makes its FILE and dies by kill -9 at step 50, unless FILE is there, the next one at step 100.
 * The others take in whoever comes in its place, and all ranks end together. */
#include <tutti.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 200, DEATH = 50 };

static struct {
	float x;
	int step;
} state;

static void check(int err)
{
	if (err < 0) {
		fprintf(stderr, "grows: %s\n", tutti_why());
		exit(1);
	}
}

/* The ranks that are left and the newcomers are one group, with the state of its first rank, which is an old one. */
static tutti *regroup(tutti *group)
{
	tutti *grown;

	do {
		check(tutti_group_grow(group, &grown));
		tutti_group_free(group);
		group = grown;
	} while (tutti_broadcast(group, &state, sizeof state, 0, NULL));
	return group;
}

static void die_once(const char *file)
{
	FILE *f = access(file, F_OK) ? fopen(file, "w") : NULL;

	if (f) {
		fclose(f);
		kill(getpid(), SIGKILL);
	}
}

int main(int argc, char **argv)
{
	int ranks = argc >= 4 ? atoi(argv[1]) : 0, joined = 0;
	tutti *job, *group;
	tutti_change c;

	check(tutti_join(NULL, &job));
	check(tutti_group_watch(job, NULL, NULL));
	for (group = tutti_late(job) ? regroup(job) : job; state.step < STEPS || tutti_size(group) < ranks;) {
		float sum[2] = { state.x - 3, 0 };
		for (int i = 2; i + 1 < argc; i += 2)
			if (state.step >= DEATH * i / 2 && tutti_rank(tutti_job(job)) == atoi(argv[i]))
				die_once(argv[i + 1]);
		while (tutti_group_next(job, &c) == 1)
			joined |= c.what == TUTTI_JOINED;
		sum[1] = (float)joined;
		if (tutti_allreduce(group, sum, sum, 2, TUTTI_F32, TUTTI_SUM, NULL)) {
			group = regroup(group);
			continue;
		}
		state.x -= 0.05f * sum[0] / (float)tutti_size(group);
		state.step++;
		if (sum[1] > 0) {
			group = regroup(group);
			joined = 0;
		}
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	printf("rank %d of %d%s: %.2f\n", tutti_rank(group), tutti_size(group), tutti_late(job) ? ", late" : "",
	       (double)state.x);
	tutti_leave(job);
	return 0;
}
