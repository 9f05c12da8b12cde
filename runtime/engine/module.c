/* module.c - the modules of a job: their structs and their life */
#include "engine/engine.h"
#include <stdlib.h>

/* The progress loop calls these in each turn, so it must not search for them. */
static void add_sources(struct tt_engine *e, const struct tt_module *m)
{
	if (m->poll)
		e->poll[e->polls++] = m->poll;
	if (m->arm)
		e->arm[e->arms++] = m->arm;
}

static int compare_messages(const struct tt_module *a, const struct tt_module *b)
{
	for (int i = 0; i < a->message_count; i++)
		for (int k = a == b ? i + 1 : 0; k < b->message_count; k++)
			if (a->messages[i].type == b->messages[k].type)
				return tt_fail(-EEXIST, "modules %s and %s both have messages of type %d", a->name,
				               b->name, a->messages[i].type);
	return 0;
}

static int compare(const struct tt_module *a, const struct tt_module *b)
{
	if (a->slot == b->slot)
		return tt_fail(-EEXIST, "modules %s and %s both have slot %d", a->name, b->name, a->slot);
	if (a->notify && b->notify && a->notify_first <= b->notify_last && b->notify_first <= a->notify_last)
		return tt_fail(-EEXIST, "modules %s and %s both take notifies from %u to %u", a->name, b->name,
		               b->notify_first, b->notify_last);
	if (a->group_finished && b->group_finished)
		return tt_fail(-EEXIST, "modules %s and %s both count what is finished in a group", a->name, b->name);
	return compare_messages(a, b);
}

static int make_struct(struct tt_job *job, const struct tt_module *m)
{
	int err = 0;

	if (m->slot < 0 || m->slot >= TT_MODULES)
		return tt_fail(-EINVAL, "module %s has slot %d: it must be from 0 to %d", m->name, m->slot,
		               TT_MODULES - 1);
	for (const struct tt_module *const *other = job->modules; !err && *other != m; other++)
		err = compare(*other, m);
	if (err || (err = compare_messages(m, m)))
		return err;
	if (m->job_size && !(job->own[m->slot] = calloc(1, m->job_size)))
		return tt_fail(-ENOMEM, "no memory for module %s of a job", m->name);
	add_sources(&job->engine, m);
	return 0;
}

static void free_struct(struct tt_job *job, int slot)
{
	free(job->own[slot]);
	job->own[slot] = NULL;
}

static void free_structs(struct tt_job *job, bool lasting)
{
	bool keeps[TT_MODULES] = { false };

	for (const struct tt_module *const *m = job->modules; m && *m && !lasting; m++)
		if ((*m)->slot >= 0 && (*m)->slot < TT_MODULES)
			keeps[(*m)->slot] = (*m)->lasting;
	for (int i = 0; i < TT_MODULES; i++)
		if (!keeps[i])
			free_struct(job, i);
}

int tt_modules_make(struct tt_job *job, const struct tt_module *const *list)
{
	int err = 0;

	job->modules = list;
	for (; *list && !err; list++)
		err = make_struct(job, *list);
	if (err) {
		free_structs(job, true);
		return err;
	}
	tt_each_module(m, job, make)
		m->make(job);
	return 0;
}

int tt_modules_open(struct tt_job *job)
{
	int err = 0;

	tt_each_module(m, job, open)
		if (!err)
			err = m->open(job);
	return err;
}

static int count(const struct tt_job *job)
{
	int n = 0;

	while (job->modules[n])
		n++;
	return n;
}

void tt_modules_stop(struct tt_job *job)
{
	for (int i = count(job); i-- > 0;)
		if (job->modules[i]->stop)
			job->modules[i]->stop(job);
}

void tt_modules_close(struct tt_job *job)
{
	for (int i = count(job); i-- > 0;)
		if (job->modules[i]->close)
			job->modules[i]->close(job);
	free_structs(job, false);
}

void tt_modules_free(struct tt_job *job) { free_structs(job, true); }
