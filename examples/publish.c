/* publish.c - trains a model, and publishes its weights to readers that are in a job of their own
 *
 *      ./publish 127.0.0.1:4711 1000 &      # 1000 steps
 *      ./read 127.0.0.1:4711                # as many readers as you like, at any time
 *      ./publish 127.0.0.1:4711 1000 3      # waits for 3 readers first, for a minute at most
 *
 * The readers' job has one rank that is there from the beginning: this process. Whatever happens to readers, the
 * training does not notice. (Here nothing is trained: each step adds a little to each weight.) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tutti.h>

enum { ROWS = 256, COLUMNS = 64 };
static float weight[ROWS * COLUMNS], bias[ROWS];

static void step(void)
{
	const struct timespec pause = { 0, 1000000 };

	for (int i = 0; i < ROWS * COLUMNS; i++)
		weight[i] += 1;
	for (int i = 0; i < ROWS; i++)
		bias[i] += 1;
	nanosleep(&pause, NULL);
}

int main(int argc, char **argv)
{
	const tutti_weight list[] = {
		{ .name = "layer.weight", .type = TUTTI_F32, .dims = 2, .shape = { ROWS, COLUMNS }, .data = weight },
		{ .name = "layer.bias", .type = TUTTI_F32, .dims = 1, .shape = { ROWS }, .data = bias },
	};
	tutti_config config = tutti_config_defaults();
	uint64_t version, steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
	int first = argc > 3 ? atoi(argv[3]) : 0;
	tutti_publisher *publisher;
	tutti_publisher_info info;
	char meta[64];
	tutti *readers;

	config.boot = argc > 1 ? argv[1] : "127.0.0.1:4711";
	config.rank = 0;
	config.ranks = 1;
	if (tutti_join(&config, &readers) || tutti_publisher_open(readers, "policy", list, 2, NULL, &publisher)) {
		fprintf(stderr, "publish: %s\n", tutti_why());
		return 1;
	}
	if (first && !tutti_publisher_wait(publisher, 0, first, 60000)) {
		printf("%d readers have come\n", first);
		fflush(stdout);
	}
	for (version = 1; version <= steps; version++) {
		step();
		snprintf(meta, sizeof meta, "loss %g", 1.0 / (double)version);
		if (tutti_publisher_publish(publisher, version, meta, strlen(meta))) {
			fprintf(stderr, "publish: %s\n", tutti_why());
			return 1;
		}
	}
	/* Readers that are there take the last version, if they do it within 10 seconds. */
	if (!tutti_publisher_look(publisher, &info))
		tutti_publisher_wait(publisher, info.version, info.readers, 10000);
	printf("published %llu versions; %d readers are there\n", (unsigned long long)info.published, info.readers);
	tutti_publisher_close(publisher);
	tutti_leave(readers);
	return 0;
}
