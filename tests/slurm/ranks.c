/* ranks.c - a rank for check.sh: joins, adds up with the others, says who it is and how long joining took.
 *   ranks [SECONDS]     stays so long, adding up ten times a second
 *   ranks again         leaves, and joins once more
 *   ranks crowded       task 0 first takes the port at which a step's ranks meet, and is silent there
 *   ranks lives FILE    adds up until FILE is there. Those that are left when a rank is lost go on, and say when they
 *                       knew and when their next sum was done; one that is left behind asks the others until then
 */
#include "launch/launcher.h"
#include "tutti.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static float add_up(tutti *job)
{
	float x = (float)tutti_rank(job) + 1;

	if (tutti_allreduce(job, &x, &x, 1, TUTTI_F32, TUTTI_SUM, NULL)) {
		fprintf(stderr, "ranks: %s\n", tutti_why());
		exit(1);
	}
	return x;
}

static int take_port(void)
{
	struct tt_launch l = { .size = 0 };

	tt_name_from(&l, "slurm", getenv("SLURM_JOB_ID"), getenv("SLURM_STEP_ID"), getenv("SLURM_RESTART_COUNT"));
	unsigned port = tt_port_from(l.name);
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	return bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 5);
}

static void say_when(const tutti *job, const char *what)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	printf("rank %d %s at %lld ms\n", tutti_rank(job), what, t.tv_sec * 1000ll + t.tv_nsec / 1000000);
	fflush(stdout);
}

/* It has an epoch that the others have given up: none of them may serve it any more, whenever it asks. */
static int is_refused(tutti *job, tutti_window *w, const char *file)
{
	float x;

	printf("rank %d is left behind: %s\n", tutti_rank(job), tutti_why());
	fflush(stdout);
	for (int r = 0; access(file, F_OK); r = (r + 1) % tutti_size(job)) {
		if (r != tutti_rank(job) && !tutti_get(w, r, 0, &x, sizeof x, NULL)) {
			printf("rank %d is served by rank %d again\n", tutti_rank(job), r);
			return 1;
		}
		usleep(10000);
	}
	printf("rank %d is left behind for good: %s\n", tutti_rank(job), tutti_why());
	return 0;
}

/* All ranks end in the same round: one of them looks for the file, and its number goes with the sum. */
static int live(tutti *job, const char *file)
{
	float sum[2] = { 0 }, open = 0;
	tutti *group = job, *left;
	tutti_window *w;

	if (tutti_window_open(job, "w", &open, sizeof open, &w) || tutti_barrier(job, NULL)) {
		fprintf(stderr, "ranks: %s\n", tutti_why());
		return 1;
	}
	say_when(job, "is there");
	while (sum[1] == 0) {
		sum[0] = 1;
		sum[1] = tutti_rank(group) == 0 && !access(file, F_OK);
		usleep(1000);
		if (!tutti_allreduce(group, sum, sum, 2, TUTTI_F32, TUTTI_SUM, NULL))
			continue;
		say_when(job, "knows");
		do {
			if (tutti_group_shrink(group, &left))
				return is_refused(job, w, file);
			tutti_group_free(group);
			group = left;
			sum[0] = 1;
			sum[1] = 0;
		} while (tutti_allreduce(group, sum, sum, 2, TUTTI_F32, TUTTI_SUM, NULL));
		say_when(job, "goes on");
	}
	printf("rank %d ends with %.0f\n", tutti_rank(job), sum[0]);
	fflush(stdout);
	tutti_window_close(w);
	tutti_leave(job);
	return 0;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? 10 * atoi(argv[1]) : 0;
	double start = now();
	char host[64] = "";
	tutti *job;

	if (argc > 1 && !strcmp(argv[1], "crowded") && !atoi(getenv("SLURM_PROCID")) && take_port()) {
		perror("ranks: the port");
		return 1;
	}
	if (tutti_join(NULL, &job)) {
		fprintf(stderr, "ranks: %s\n", tutti_why());
		return 1;
	}
	if (argc > 2 && !strcmp(argv[1], "lives"))
		return live(job, argv[2]);
	float sum = add_up(job);
	double joined = now() - start;
	for (; rounds > 0; rounds--) {
		usleep(100000);
		if (add_up(job) != sum)
			return 1;
	}
	gethostname(host, sizeof host - 1);
	printf("rank %d of %d: sum %.0f, local %d/%d on %s, joined in %.0f ms\n", tutti_rank(job), tutti_size(job), sum,
	       tutti_local_rank(job), tutti_local_size(job), host, joined * 1e3);
	fflush(stdout);
	tutti_leave(job);
	if (argc > 1 && !strcmp(argv[1], "again"))
		return main(1, argv);
	return 0;
}
