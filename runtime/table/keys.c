/* keys.c - a hash table with open addressing: 64-bit keys and their numbers, 0 for the first key added, then 1, ...
 *
 *   a key's hash       | 24 tag         ...     where its search begins |
 *   a place            | 24 tag | 40 number + 1 |        0: free. A search goes on to the next free place
 *
 * The keys themselves stand in the order of their numbers, so a save reads them in order, and a place takes 8 bytes.
 * When three quarters of the places are taken, an index of twice the size takes over. Each new key then moves four old
 * places to the new index, so no call has to move millions of them. */
#include "file/file.h"
#include "table/parts.h"
#include <stdlib.h>

enum { LEAST = 16, MOVES = 4, NUMBER_BITS = 40 }; /* two moves would be in time */

struct index {
	uint64_t *places;           /* NULL: no index */
	uint64_t mask;              /* the number of places, less one */
};

struct tt_keys {
	struct index now, old;
	uint64_t moved;             /* so many of the old places have moved; they also stay */
	uint64_t *keys;
	uint64_t count;
};

/* The finalizer of splitmix64 (Steele et al., OOPSLA 2014): the keys of one server have the same remainder. */
static uint64_t hash_of(uint64_t key)
{
	key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9;
	key = (key ^ key >> 27) * 0x94d049bb133111eb;
	return key ^ key >> 31;
}

static uint64_t number_in(uint64_t place) { return (place & ((1ull << NUMBER_BITS) - 1)) - 1; }

static bool find_in(const struct tt_keys *k, const struct index *x, uint64_t key, uint64_t hash, uint64_t *number)
{
	if (!x->places)
		return false;
	for (uint64_t i = hash & x->mask; x->places[i]; i = (i + 1) & x->mask)
		if (x->places[i] >> NUMBER_BITS == hash >> NUMBER_BITS && k->keys[number_in(x->places[i])] == key) {
			*number = number_in(x->places[i]);
			return true;
		}
	return false;
}

uint64_t tt_keys_find(const struct tt_keys *k, uint64_t key)
{
	uint64_t hash = hash_of(key), number;

	return find_in(k, &k->now, key, hash, &number) || find_in(k, &k->old, key, hash, &number) ? number : TT_NO_KEY;
}

static void enter(struct index *x, uint64_t hash, uint64_t number)
{
	uint64_t i = hash & x->mask;

	while (x->places[i])
		i = (i + 1) & x->mask;
	x->places[i] = hash >> NUMBER_BITS << NUMBER_BITS | (number + 1);
}

/* The moved keys stay in their old places, so that searches go on behind them. */
static void move_some(struct tt_keys *k)
{
	for (int n = 0; k->old.places && n < MOVES; n++) {
		uint64_t place = k->old.places[k->moved++];
		if (place)
			enter(&k->now, hash_of(k->keys[number_in(place)]), number_in(place));
		if (k->moved > k->old.mask) {
			free(k->old.places);
			k->old = (struct index){ 0 };
		}
	}
}

static int make_index(struct index *x, uint64_t places)
{
	uint64_t *zeros = calloc(places, sizeof *zeros);

	if (!zeros)
		return tt_fail(-ENOMEM, "no memory for an index of %llu keys", (unsigned long long)places);
	*x = (struct index){ zeros, places - 1 };
	return 0;
}

static int make_room(struct tt_keys *k)
{
	uint64_t places = k->now.mask + 1, *keys = tt_grown(k->keys, k->count, sizeof *keys);
	struct index larger;
	int err;

	if (!keys)
		return tt_fail(-ENOMEM, "no memory for %llu keys", (unsigned long long)k->count + 1);
	k->keys = keys;
	if (k->count < places / 4 * 3)
		return 0;
	if ((err = make_index(&larger, 2 * places)))
		return err;
	k->old = k->now; /* the one before has moved completely */
	k->now = larger;
	k->moved = 0;
	return 0;
}

int tt_keys_add(struct tt_keys *k, uint64_t key, uint64_t *number)
{
	uint64_t hash = hash_of(key);
	int err;

	if (find_in(k, &k->now, key, hash, number) || find_in(k, &k->old, key, hash, number))
		return 0;
	if ((err = make_room(k)))
		return err;
	k->keys[k->count] = key;
	enter(&k->now, hash, k->count);
	*number = k->count++;
	move_some(k);
	return 0;
}

int tt_keys_open(uint64_t expected, struct tt_keys **keys)
{
	struct tt_keys *k = calloc(1, sizeof *k);
	uint64_t places = LEAST;
	int err;

	if (!k)
		return tt_fail(-ENOMEM, "no memory for keys");
	while (places / 4 * 3 < expected && places < 1ull << NUMBER_BITS)
		places *= 2;
	if ((err = make_index(&k->now, places))) {
		free(k);
		return err;
	}
	*keys = k;
	return 0;
}

void tt_keys_close(struct tt_keys *k)
{
	if (!k)
		return;
	free(k->now.places);
	free(k->old.places);
	free(k->keys);
	free(k);
}

uint64_t tt_keys_count(const struct tt_keys *k) { return k->count; }
uint64_t tt_keys_key(const struct tt_keys *k, uint64_t number) { return k->keys[number]; }
