/* survive.c - ranks add numbers, and go on when some of them are killed: `tutti run --keep-going -n 4 survive`, then
 * `kill -9` one of the processes that it names */
#include <tutti.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void check(int err)
{
	if (err < 0) {
		fprintf(stderr, "survive: %s\n", tutti_why());
		exit(1);
	}
}

static void say_who_is_left(const tutti *group, int step)
{
	if (tutti_rank(group) > 0)
		return;
	printf("step %d: %d left, rank", step, tutti_size(group));
	for (int i = 0; i < tutti_size(group); i++)
		printf(" %d", tutti_group_member(group, i));
	printf("\n");
}

/* Those who are left make a group, and go on from the step that all of them have done. If somebody dies meanwhile:
 * again. */
static void recover(tutti **group, int *step)
{
	int32_t least;
	tutti *left;

	do {
		check(tutti_group_shrink(*group, &left));
		tutti_group_free(*group); /* the job's own lives as long as the job: this leaves it alone */
		*group = left;
		least = *step;
	} while (tutti_allreduce(left, &least, &least, 1, TUTTI_I32, TUTTI_MIN, NULL));
	*step = least;
	say_who_is_left(left, least);
}

int main(int argc, char **argv)
{
	int steps = argc > 1 ? atoi(argv[1]) : 5000, step = 0;
	/* after this step and the one before: nobody is ahead of the others by more than one */
	int64_t total[2] = { 0 };
	tutti *job, *group;

	setvbuf(stdout, NULL, _IOLBF, 0);
	check(tutti_join(NULL, &job));
	printf("rank %d of %d is process %d\n", tutti_rank(job), tutti_size(job), (int)getpid());
	for (group = job; step < steps;) {
		int64_t sum = tutti_rank(job) + 1;
		if (tutti_allreduce(group, &sum, &sum, 1, TUTTI_I64, TUTTI_SUM, NULL)) {
			recover(&group, &step);
			continue;
		}
		total[(step + 1) % 2] = total[step % 2] + sum;
		step++;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL); /* here a model would be trained */
	}
	printf("rank %d: %d steps, the sum is %" PRId64 "\n", tutti_rank(job), step, total[step % 2]);
	tutti_leave(job);
	return 0;
}
