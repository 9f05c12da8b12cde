/* read.c - reads the versions that publish.c publishes, until the publisher has gone */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <tutti.h>

static size_t count_elements(const tutti_weight *w)
{
	size_t count = 1;

	for (int i = 0; i < w->dims; i++)
		count *= w->shape[i];
	return count;
}

/* Memory for all tensors that the publication has, which are f32 here. */
static tutti_tensor *make_room(tutti_reader *reader, int n)
{
	tutti_tensor *to = calloc((size_t)n, sizeof *to);
	tutti_weight weight;

	for (int i = 0; to && i < n && !tutti_reader_weight(reader, i, &weight); i++) {
		to[i].count = count_elements(&weight);
		to[i].type = weight.type;
		to[i].data = calloc(to[i].count, sizeof(float));
		printf("%s: %zu elements\n", weight.name, to[i].count);
	}
	return to;
}

static int is_torn(const tutti_tensor *to, int n, uint64_t version)
{
	for (int i = 0; i < n; i++)
		for (size_t k = 0; k < to[i].count; k++)
			if (((const float *)to[i].data)[k] != (float)version)
				return 1;
	return 0;
}

int main(int argc, char **argv)
{
	tutti_config config = tutti_config_defaults();
	tutti_fetched fetched = { 0 };
	unsigned count = 0, torn = 0;
	tutti_reader *reader;
	tutti *job;
	int n, err;

	config.boot = argc > 1 ? argv[1] : "127.0.0.1:4711";
	config.rank = TUTTI_NEW_RANK;
	config.ranks = 1;
	if (tutti_join(&config, &job) || tutti_reader_open(tutti_job(job), "policy", 0, &reader)) {
		fprintf(stderr, "read: %s\n", tutti_why());
		return 1;
	}
	n = tutti_reader_weights(reader);
	tutti_tensor *to = make_room(reader, n);
	while (to && !(err = tutti_reader_fetch(reader, fetched.version, to, -1, &fetched))) {
		count++;
		torn += (unsigned)is_torn(to, n, fetched.version);
	}
	printf("read %u versions, %u torn; the last is %llu: %.*s\n", count, torn, (unsigned long long)fetched.version,
	       (int)fetched.meta_bytes, fetched.meta);
	printf("the end: %s\n", tutti_why());
	for (int i = 0; to && i < n; i++)
		free(to[i].data);
	free(to);
	tutti_reader_close(reader);
	tutti_leave(job);
	return count && !torn && (err == -ESTALE || err == -ENOTCONN || err == -ECONNRESET) ? 0 : 1;
}
