/* fashion_save.c - a run in a block of memory. In a file, --save and --load: it goes on as if it had never ended, on
 * any number of ranks. And from one rank to the others, --keep-going: they go on when some have died.
 *
 *   what it is, where it was | the epochs' figures | values | velocity
 *
 * Rank 0 writes a file beside, and renames it: whenever a host fails, FILE is whole. Order and random numbers are not
 * saved, since the seed gives them anew. */
#include "fashion.h"
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SHAPE = 9, MOST_NAME = 4000 };
static const char *const shapes[SHAPE] = { "--epochs", "--batch", "--rate", "--momentum", "--seed", "--lack",
	                                        "ranks, with --lack:", "training samples:", "parameters:" };

struct header {
	char magic[8];
	double version, shape[SHAPE]; /* without the same shape it would be another run */
	double epoch, step; /* the next ones */
	double sums[SUMS]; /* over all ranks, in this epoch so far */
};
static const struct header blank = { .magic = "fashion", .version = 2 };

static struct header header_of(const struct training *t)
{
	const struct options *o = &t->options;
	struct header h = blank;
	double shape[SHAPE] = { o->epochs, o->batch, o->rate, o->momentum, (double)o->seed, o->lack,
		                o->lack ? t->ranks : 0, t->train.count, (double)t->net.parameters };

	memcpy(h.shape, shape, sizeof shape);
	return h;
}

size_t save_size(const struct training *t)
{
	return sizeof(struct header) + (size_t)t->options.epochs * sizeof *t->epochs +
	       2 * t->net.parameters * sizeof(float);
}

/* All that stands behind the header: into the block or out of it. */
static void copy(struct training *t, int in)
{
	char *block = t->block + sizeof(struct header);
	struct { void *at; size_t size; } parts[] = { { t->epochs, (size_t)t->options.epochs * sizeof *t->epochs },
		                                      { t->net.values, t->net.parameters * sizeof(float) },
		                                      { t->net.velocity, t->net.parameters * sizeof(float) } };

	for (int i = 0; i < 3; block += parts[i++].size)
		memcpy(in ? block : parts[i].at, in ? parts[i].at : block, parts[i].size);
}

static enum status write_file(const char *file, const char *block, size_t size)
{
	char part[MOST_NAME + 8];
	FILE *f;
	int good;

	snprintf(part, sizeof part, "%s.part", file);
	f = fopen(part, "wb");
	good = f && fwrite(block, 1, size, f) == size && !fflush(f) && !fsync(fileno(f));
	if (!good || rename(part, file)) {
		int err = errno;
		if (f)
			remove(part);
		complain(FAILED, "--save %s cannot be written: %s", file, strerror(err));
		good = 0;
	}
	if (f)
		fclose(f);
	return good ? OK : FAILED;
}

static void fill_block(struct training *t, struct header h)
{
	h.epoch = t->epoch;
	h.step = t->step;
	memcpy(t->block, &h, sizeof h);
	copy(t, 1);
}

enum status save(struct training *t)
{
	struct header h = header_of(t);
	enum status s = OK;

	if (tutti_allreduce(t->job, t->sums, h.sums, SUMS, TUTTI_F64, TUTTI_SUM, NULL))
		return lost();
	if (!t->rank) {
		fill_block(t, h);
		s = write_file(t->options.save, t->block, save_size(t));
	}
	return agree(t->job, s); /* nobody leaves before the file is there */
}

/* All ranks save at the same step: the first one after any of them was asked to leave. */
enum status save_if_asked(struct training *t)
{
	int32_t asked = tutti_leave_asked(t->job, SIGTERM);
	enum status s;

	if (asked < 0 || tutti_allreduce(t->job, &asked, &asked, 1, TUTTI_I32, TUTTI_MAX, NULL))
		return lost();
	if (!asked)
		return OK;
	if (!t->rank)
		fprintf(stderr, "fashion: asked to leave in epoch %d: it goes on with --load %s\n", t->epoch + 1,
		        t->options.save);
	s = save(t);
	return s ? s : SAVED;
}

static enum status judge(const struct training *t, size_t size)
{
	const char *file = t->options.load;
	struct header mine = header_of(t), h;

	memcpy(&h, t->block, sizeof h);
	if (size < sizeof h || memcmp(h.magic, blank.magic, sizeof h.magic) != 0)
		return complain(FAILED, "--load %s is no save of this program", file);
	if (h.version != blank.version)
		return complain(FAILED, "--load %s has version %g, and this program reads %g", file, h.version,
		                blank.version);
	for (int i = 0; i < SHAPE; i++)
		if (h.shape[i] != mine.shape[i])
			return complain(FAILED, "--load %s was saved with %s %.10g, and this run has %.10g", file,
			                shapes[i], h.shape[i], mine.shape[i]);
	if (size != save_size(t))
		return complain(FAILED, "--load %s is cut off or damaged: it has %zu bytes%s instead of %zu", file,
		                size, size > save_size(t) ? " or more" : "", save_size(t));
	if (!(h.epoch >= 0 && h.epoch <= t->options.epochs && h.step >= 0 && h.step < t->steps))
		return complain(FAILED, "--load %s is damaged: epoch %g, step %g", file, h.epoch, h.step);
	return OK;
}

enum status load_file(struct training *t)
{
	FILE *f = fopen(t->options.load, "rb");
	size_t n;

	if (!f)
		return complain(FAILED, "--load %s: %s", t->options.load, strerror(errno));
	n = fread(t->block, 1, save_size(t) + 1, f);
	fclose(f);
	return judge(t, n);
}

/* From its block on one rank to all. */
static int spread(struct training *t, int root)
{
	struct header h;
	int err = tutti_broadcast(t->job, t->block, save_size(t), root, NULL);

	if (err)
		return err;
	memcpy(&h, t->block, sizeof h);
	copy(t, 0);
	if (h.epoch != t->epoch)
		start_epoch(t, (int)h.epoch);
	t->step = (int)h.step;
	return 0;
}

enum status take_loaded(struct training *t)
{
	if (spread(t, 0))
		return lost();
	if (!t->rank) /* the ranks' sums are added up in the end */
		memcpy(t->sums, t->block + offsetof(struct header, sums), sizeof t->sums);
	return OK;
}

/* No rank is ahead by more than a step: it can finish no second one without those that have not finished the first.
 * They take its model. */
enum status go_on(struct training *t)
{
	int64_t mine, most;
	tutti *left;

	do {
		if (tutti_group_shrink(t->job, &left))
			return lost();
		tutti_group_free(t->job);
		t->job = left;
		t->rank = tutti_rank(left);
		t->ranks = tutti_size(left);
		fill_block(t, header_of(t));
		mine = ((int64_t)t->epoch * (t->steps + 1) + t->step) * t->ranks + t->rank;
	} while (tutti_allreduce(left, &mine, &most, 1, TUTTI_I64, TUTTI_MAX, NULL) ||
	         spread(t, (int)(most % t->ranks)));
	t->report.quiet = t->rank != 0;
	t->report.ranks = t->ranks;
	if (!t->rank)
		fprintf(stderr, "fashion: %d rank%s on in epoch %d, after step %d\n", t->ranks,
		        t->ranks > 1 ? "s go" : " goes", t->epoch + 1, t->step);
	return OK;
}
