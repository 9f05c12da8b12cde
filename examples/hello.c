/* hello.c - every rank says who it is, in order: `tutti run -n 4 hello` */
#include <tutti.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct card {
	char host[64];
	int pid;
};

static void check(int err)
{
	if (err < 0) {
		fprintf(stderr, "hello: %s\n", tutti_why());
		exit(1);
	}
}

int main(void)
{
	tutti *job;
	struct card mine = { .pid = (int)getpid() }, *all = NULL;

	check(tutti_join(NULL, &job));
	gethostname(mine.host, sizeof mine.host - 1);
	if (tutti_rank(job) == 0)
		all = calloc((size_t)tutti_size(job), sizeof *all);

	check(tutti_gather(job, &mine, sizeof mine, all, 0, NULL));
	for (int i = 0; all && i < tutti_size(job); i++)
		printf("hello from rank %d of %d on %s, process %d\n", i, tutti_size(job), all[i].host, all[i].pid);

	free(all);
	tutti_leave(job);
	return 0;
}
