/* model.c - a model: the list of its tensors, and where they lie in one buffer */
#include "base/model.h"
#include <stdlib.h>
#include <string.h>

static int check_tensor(const tutti_tensor *t, int i, const char *what)
{
	if (!tt_type_size(t->type))
		return tt_fail(-EINVAL, "%s: tensor %d has type %d, which is unknown", what, i, (int)t->type);
	if (t->count && !t->data)
		return tt_fail(-EINVAL, "%s: tensor %d has %zu elements and no memory", what, i, t->count);
	if (t->count > SIZE_MAX / 16)
		return tt_fail(-EINVAL, "%s: tensor %d has %zu elements, more than memory has", what, i, t->count);
	return 0;
}

static size_t size_of(const tutti_tensor *t) { return t->count * tt_type_size(t->type); }

static uint64_t add_to_hash(uint64_t h, uint64_t word) { return (h ^ word) * TT_PRIME64; }

static void measure(struct tt_model *m)
{
	m->hash = add_to_hash(TT_HASH64, (uint64_t)m->n);
	for (int i = 0; i < m->n; i++) {
		const tutti_tensor *t = &m->tensors[i];
		m->at[i] = m->bytes;
		m->bytes += (size_of(t) + TT_MODEL_ALIGN - 1) / TT_MODEL_ALIGN * TT_MODEL_ALIGN;
		m->hash = add_to_hash(add_to_hash(m->hash, t->count), (uint64_t)t->type);
	}
}

int tt_model_open(struct tt_model *m, const tutti_tensor *list, int n, const char *what)
{
	int err = 0;

	*m = (struct tt_model){ 0 };
	if (!list || n < 1)
		return tt_fail(-EINVAL, "%s: a model is a list of at least one tensor", what);
	for (int i = 0; !err && i < n; i++)
		err = check_tensor(&list[i], i, what);
	if (err)
		return err;
	m->n = n;
	m->tensors = malloc((size_t)n * sizeof *list);
	m->at = malloc((size_t)n * sizeof *m->at);
	if (!m->tensors || !m->at) {
		tt_model_close(m);
		return tt_fail(-ENOMEM, "%s: no memory for a list of %d tensors", what, n);
	}
	memcpy(m->tensors, list, (size_t)n * sizeof *list);
	measure(m);
	return 0;
}

void tt_model_close(struct tt_model *m)
{
	free(m->tensors);
	free(m->at);
	*m = (struct tt_model){ 0 };
}

bool tt_model_is_float(const struct tt_model *m)
{
	for (int i = 0; i < m->n; i++)
		if (!tt_type_is_float(m->tensors[i].type))
			return false;
	return true;
}

void tt_model_place(const struct tt_model *m, void *base, tutti_tensor *list)
{
	for (int i = 0; i < m->n; i++) {
		list[i] = m->tensors[i];
		list[i].data = (char *)base + m->at[i];
	}
}

void tt_model_store(const struct tt_model *m, void *base)
{
	for (int i = 0; i < m->n; i++)
		if (m->tensors[i].count)
			memcpy((char *)base + m->at[i], m->tensors[i].data, size_of(&m->tensors[i]));
}

void tt_model_load(const struct tt_model *m, const void *base)
{
	for (int i = 0; i < m->n; i++)
		if (m->tensors[i].count)
			memcpy(m->tensors[i].data, (const char *)base + m->at[i], size_of(&m->tensors[i]));
}
