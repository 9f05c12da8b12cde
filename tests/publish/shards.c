/* shards.c - a rank of a publication in shards, as a process that shards.sh may kill
 *
 *      shards BOOT RANK SIGN
 *
 * Rank 0 reads, 1 to 3 have shard 0 to 2, and 4 takes shard 1 when rank 2 has gone. The reader prints "reading" after
 * some versions; shards.sh kills rank 2 then. When the reader has found that, it makes the file SIGN, and the other
 * shards wait for that before they close the name. The reader ends when it has read generation 2, and all others with
 * it. */
#include "tests/publish/shards.h"
#include <stdlib.h>
#include <unistd.h>

enum { FIRST = 1, VICTIM = 2, SPARE = 4, RANKS = 5, ENOUGH = 20 };

static struct part part[SHARDS];
static const char *sign;

static int fail(int rank, const char *what)
{
	printf("rank %d: %s: %s\n", rank, what, tutti_why());
	return 1;
}

/* Until a shard or the reader is gone. Returns whether a version was published. */
static bool publish_generation(tutti *job, int shard, uint64_t generation)
{
	const tutti_publisher_config c = { .generation = generation, .shard = shard, .shard_0 = FIRST,
		                           .shard_wait_ms = 100 };
	struct part *mine = &part[shard];
	tutti_publisher *p = NULL;
	tutti_publisher_info info = { .readers = 1 };
	int err = open_part(job, mine, c, &p);
	uint64_t version = 1;
	bool was_read = false, read = false;

	for (; !err || err == -EAGAIN; version += !err) {
		fill_part(mine, version);
		err = tutti_publisher_publish(p, version, NULL, 0);
		read = !tutti_publisher_look(p, &info) && info.readers;
		was_read |= read;
		if (generation == 2 && was_read && !read)
			break;
		usleep(200);
	}
	while (is_gone(err) && access(sign, F_OK))
		usleep(1000);
	if (err && !is_gone(err) && err != -EAGAIN && err != -ESTALE)
		fail(shard + FIRST, "publish");
	tutti_publisher_close(p);
	return version > 1;
}

static int be_shard(tutti *job, int rank)
{
	char word[8] = "x";

	if (rank != SPARE)
		publish_generation(job, rank - FIRST, 1);
	else if (read(0, word, sizeof word) < 0) /* shards.sh writes a line when it has killed rank 2 */
		return fail(rank, "read");
	return publish_generation(job, (rank == SPARE ? VICTIM : rank) - FIRST, 2) ? 0 : fail(rank, "generation 2");
}

static void give_sign(void)
{
	FILE *f = fopen(sign, "w");

	if (f)
		fclose(f);
}

static int be_reader(tutti *job)
{
	tutti_tensor to[SHARDS * TENSORS_OF_SHARD];
	unsigned good[3] = { 0 }, torn = 0, named = 0;
	tutti_reader *r;
	tutti_fetched got;

	list_model(part, to);
	if (tutti_reader_open(job, "policy", FIRST, &r))
		return fail(0, "reader");
	while (good[2] < ENOUGH) {
		int err = tutti_reader_fetch(r, 0, to, 10000, &got);
		if (err && !is_gone(err) && err != -EAGAIN && err != -ESTALE && err != -ETIMEDOUT)
			return fail(0, "fetch");
		named += is_gone(err) && strstr(tutti_why(), "shard 1") && strstr(tutti_why(), "rank 2");
		if (is_gone(err))
			give_sign();
		if (err) {
			usleep(1000);
			continue;
		}
		torn += !is_model(part, got.version);
		if (++good[got.generation] == ENOUGH && got.generation == 1) {
			printf("reading\n");
			fflush(stdout);
		}
	}
	printf("%u torn, an error named shard 1 on rank 2: %s\n", torn, named ? "yes" : "no");
	tutti_reader_close(r);
	return torn || !named;
}

int main(int argc, char **argv)
{
	tutti_config c = tutti_config_defaults();
	tutti *job;
	int status;

	if (argc < 4)
		return 2;
	sign = argv[3];
	c.boot = argv[1];
	c.rank = atoi(argv[2]);
	c.ranks = RANKS;
	c.timeout_ms = 30000;
	if (tutti_join(&c, &job))
		return fail(c.rank, "join");
	status = c.rank ? be_shard(job, c.rank) : be_reader(job);
	tutti_leave(job);
	return status;
}
