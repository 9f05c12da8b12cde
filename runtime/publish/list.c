/* list.c - a publication's list of tensors, as the program gives it and as it lies in the window */
#include "publish/publish_private.h"
#include <stdlib.h>

/* n 4 | of each tensor: type 1, dims 1, shape 8 each, name as a text */

static int check_weight(const tutti_weight *w, int i)
{
	size_t len = w->name ? strlen(w->name) : 0;
	int err = TT_RESERVED(tutti_weight, w);

	if (err)
		return err;
	if (len < 1 || len > 255)
		return tt_fail(-EINVAL, "publisher: the name of tensor %d has %zu bytes, and must have 1 to 255", i,
		               len);
	if (!tt_type_size(w->type))
		return tt_fail(-EINVAL, "publisher: tensor \"%s\" has type %d, which is unknown", w->name,
		               (int)w->type);
	if (w->dims < 0 || (size_t)w->dims > TT_COUNT(w->shape))
		return tt_fail(-EINVAL, "publisher: tensor \"%s\" has %d dimensions, and may have 0 to %zu", w->name,
		               w->dims, TT_COUNT(w->shape));
	return 0;
}

static int count_elements(const tutti_weight *w, size_t *count)
{
	*count = 1;
	for (int i = 0; i < w->dims; i++)
		if (__builtin_mul_overflow(*count, w->shape[i], count) || *count > SIZE_MAX / 1024)
			return tt_fail(-EINVAL, "tensor \"%s\" has more elements than memory has", w->name);
	return 0;
}

int tt_publish_pack(const tutti_weight *list, int n, uint8_t **bytes, size_t *len)
{
	size_t room = 4;
	int err;

	if (!list || n < 1)
		return tt_fail(-EINVAL, "publisher: a list of weights has at least one tensor");
	for (int i = 0; i < n; i++) {
		if ((err = check_weight(&list[i], i)))
			return err;
		room += 3 + 8 * (size_t)list[i].dims + strlen(list[i].name);
	}
	if (room > TT_PUBLISH_LIST)
		return tt_fail(-EINVAL, "publisher: names and shapes of %d tensors have %zu bytes, more than %d", n,
		               room, TT_PUBLISH_LIST);
	if (!(*bytes = malloc(room)))
		return tt_fail(-ENOMEM, "publisher: no memory for a list of %d tensors", n);
	struct tt_pack p = tt_pack(*bytes, room);
	tt_put32(&p, (uint32_t)n);
	for (int i = 0; i < n; i++) {
		tt_put8(&p, (uint8_t)list[i].type);
		tt_put8(&p, (uint8_t)list[i].dims);
		for (int k = 0; k < list[i].dims; k++)
			tt_put64(&p, list[i].shape[k]);
		tt_put_text(&p, list[i].name);
	}
	*len = room;
	return 0;
}

static bool unpack_weight(struct tt_pack *p, tutti_weight *w, char **names)
{
	char name[256];
	size_t count;

	*w = (tutti_weight){ .type = (tutti_type)tt_get8(p), .dims = tt_get8(p), .name = *names };
	if (p->bad || !tt_type_size(w->type) || (size_t)w->dims > TT_COUNT(w->shape))
		return false;
	for (int k = 0; k < w->dims; k++)
		w->shape[k] = tt_get64(p);
	tt_get_text(p, name, sizeof name);
	if (p->bad || !*name)
		return false;
	strcpy(*names, name);
	*names += strlen(name) + 1;
	return !count_elements(w, &count);
}

int tt_publish_unpack(const uint8_t *bytes, size_t len, tutti_weight **out, int *n)
{
	struct tt_pack p = tt_unpack(bytes, len);
	size_t count = tt_get32(&p); /* each takes at least 4 bytes, and its name no more here than there */

	if (p.bad || !count || count > len / 4)
		return tt_fail(-EPROTO, "a publication's list of tensors makes no sense");
	tutti_weight *list = malloc(count * sizeof *list + len);
	if (!list)
		return tt_fail(-ENOMEM, "no memory for a list of %zu tensors", count);
	char *names = (char *)(list + count);
	for (size_t i = 0; i < count; i++)
		if (!unpack_weight(&p, &list[i], &names)) {
			free(list);
			return tt_fail(-EPROTO, "a publication's list of tensors makes no sense");
		}
	*out = list;
	*n = (int)count;
	return 0;
}

int tt_publish_model(const tutti_weight *list, int n, struct tt_model *model, bool *held)
{
	tutti_tensor *tensors = malloc((size_t)n * sizeof *tensors);
	size_t with = 0, bytes = 0;
	int err = tensors ? 0 : tt_fail(-ENOMEM, "no memory for a list of %d tensors", n);

	for (int i = 0; !err && i < n; i++) {
		tensors[i] = (tutti_tensor){ list[i].data, 0, list[i].type };
		err = count_elements(&list[i], &tensors[i].count);
		with += list[i].data != NULL;
		if (!err && __builtin_add_overflow(bytes, 64 + tensors[i].count * tt_type_size(list[i].type), &bytes))
			err = tt_fail(-EINVAL, "a list of %d tensors has more elements than memory has", n);
	}
	*held = !with;
	for (int i = 0; !err && *held && i < n; i++)
		tensors[i].data = tensors; /* any address */
	if (!err)
		err = tt_model_open(model, tensors, n, "publisher");
	free(tensors);
	return err;
}

static size_t page_end(size_t at) { return (at + 4095) / 4096 * 4096; }

size_t tt_publish_places(const struct tt_publish_head *h)
{
	return sizeof *h + (h->shard ? 0 : h->shards * sizeof(struct tt_shard_word));
}

struct tt_publish_layout tt_publish_layout(const struct tt_publish_head *h)
{
	struct tt_publish_layout l = { .places = tt_publish_places(h) };

	l.list = l.places + h->places * sizeof(struct tt_reader_place);
	l.meta = page_end(l.list + h->list_bytes);
	l.buffers = l.meta + h->buffers * TT_PUBLISH_META;
	l.stride = page_end(h->bytes);
	l.entries = l.buffers + h->buffers * l.stride;
	l.ring = l.entries + (h->deltas ? TT_DELTAS * sizeof(struct tt_delta_entry) : 0);
	l.all = l.ring + tt_publish_ring(h);
	return l;
}
