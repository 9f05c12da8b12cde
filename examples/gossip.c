/* gossip.c - each rank fits a line to data of its own, and averages it with others': tutti run -n 4 examples/gossip */
#include <stdio.h>
#include <stdlib.h>
#include <tutti.h>
#include <unistd.h>

/* One step of gradient descent on (a x + b - y)^2, for points of the line 3 x - 1. This rank sees one side only. */
static double step(const float *now, float *next, int rank)
{
	float x = (float)(rank % 2 ? 1 : -1) * (float)rand() / (float)RAND_MAX,
	      error = now[0] * x + now[1] - (3 * x - 1);

	next[0] = now[0] - 0.1f * error * x;
	next[1] = now[1] - 0.1f * error;
	usleep(100); /* a larger model takes longer */
	return (double)(error * error);
}

static int complain(void)
{
	fprintf(stderr, "gossip: %s\n", tutti_why());
	return 1;
}

int main(void)
{
	tutti_gossip_config config = tutti_gossip_defaults();
	tutti_tensor model = { NULL, 2, TUTTI_F32 }, now, next; /* the library holds it */
	tutti_gossip *gossip;
	double loss = 1;
	tutti *job;

	if (tutti_join(NULL, &job) || tutti_gossip_configure(job, &config) ||
	    tutti_gossip_open(job, "line", &model, 1, &config, &gossip))
		return complain();
	tutti_gossip_model(gossip, NULL, &next);
	((float *)next.data)[0] = ((float *)next.data)[1] = 0;
	for (int i = 0; i < 2000; i++) {
		if (tutti_gossip_publish(gossip, loss) || tutti_gossip_model(gossip, &now, &next))
			return complain();
		loss = step(now.data, next.data, tutti_rank(job));
		if (tutti_gossip_mix(gossip, loss, NULL))
			return complain();
	}
	tutti_gossip_model(gossip, NULL, &next);
	printf("rank %d: y = %.2f x %+.2f\n", tutti_rank(job), (double)((float *)next.data)[0],
	       (double)((float *)next.data)[1]);
	tutti_gossip_close(gossip);
	tutti_leave(job);
	return 0;
}
