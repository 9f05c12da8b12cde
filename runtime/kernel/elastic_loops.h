/* elastic_loops.h - the loops of elastic averaging over elements of one floating-point TYPE; a part of reduce_loops.h
 *
 * A center of 16 bits also has a copy in f32, `wide`, and is that copy, rounded. Moves that are less than half of the
 * center's last place add up there: rounded at once, each of them would be lost. Where the copy does not round to the
 * center, somebody has set the center since; then the center counts. */
#ifdef NARROW
INLINE char *ON(wide_at)(char *wide, size_t i) { return wide + i / SIZE * sizeof(NUMBER); }

INLINE void ON(get_center)(VEC *c, const char *center, char *wide, size_t i, size_t len)
{
	char rounded[WIDTH];
	VEC copy[PARTS], again[PARTS];

	ON(get)(c, center + i, len);
	ON(get_state)(copy, ON(wide_at)(wide, i), len);
#ifdef ALTERNATES
	unweave(copy);
#endif
	ON(put)(rounded, copy, len, false);
	ON(get)(again, rounded, len);
	for (size_t u = 0; u < PARTS; u++)
		c[u] = PICK((again[u] == c[u]) & (copy[u] == copy[u]), copy[u], c[u]);
}

INLINE void ON(put_center)(char *center, char *wide, const VEC *c, size_t i, size_t len)
{
	VEC copy[PARTS];

	ON(put)(center + i, c, len, false);
	memcpy(copy, c, sizeof copy);
#ifdef ALTERNATES
	weave(copy);
#endif
	ON(put_state)(ON(wide_at)(wide, i), copy, len);
}
#else
INLINE void ON(get_center)(VEC *c, const char *center, char *wide, size_t i, size_t len)
{
	(void)wide;
	ON(get)(c, center + i, len);
}

INLINE void ON(put_center)(char *center, char *wide, const VEC *c, size_t i, size_t len)
{
	(void)wide;
	ON(put)(center + i, c, len, false);
}
#endif

INLINE void ON(step_round)(const struct ON(work) *w, size_t i, int vectors, size_t len, bool stream, char *center,
                           char *wide, char *sum, NUMBER alpha)
{
	VEC x[PARTS], c[PARTS], s[PARTS];

	(void)stream;
	ON(look_ahead)(center + i, vectors);
	ON(look_ahead)(sum + i, vectors);
	for (int v = 0; v < vectors; v++, i += WIDTH) { /* two tiles do not fit into registers */
		ON(get_center)(c, center, wide, i, len);
		ON(get)(s, sum + i, len);
		for (size_t u = 0; u < PARTS; u++)
			c[u] += s[u];
		ON(clean_all)(c, 1);
		ON(put_center)(center, wide, c, i, len);
		if (!w->to)
			continue;
		ON(get)(x, w->to + i, len);
		for (size_t u = 0; u < PARTS; u++)
			s[u] = alpha * (x[u] - c[u]);
		ON(clean_all)(s, 1);
		ON(put)(sum + i, s, len, false);
		if (PARTS > 1) /* goes on with what is stored: half a NUMBER has fewer bits */
			ON(get)(s, sum + i, len);
		for (size_t u = 0; u < PARTS; u++)
			x[u] -= s[u];
		ON(clean_all)(x, 1);
		ON(put)(w->to + i, x, len, false);
	}
}

static void ON(elastic_round)(char *x, char *center, char *wide, char *sum, double alpha, size_t count)
{
	const struct ON(work) w = { .to = x };
	const bool stream = false;

	LOOP(0, count, step_round, center, wide, sum, (NUMBER)alpha);
}

INLINE void ON(step_move)(const struct ON(work) *to, size_t i, int vectors, size_t len, bool stream,
                          const struct tt_update_run *r, NUMBER alpha)
{
	VEC w[PARTS], x[PARTS], e[PARTS];

	(void)stream;
	ON(look_ahead)(r->w + i, vectors);
	ON(look_ahead)(r->d + i, vectors);
	for (int v = 0; v < vectors; v++, i += WIDTH) {
		ON(get_center)(w, r->w, r->state[0], i, len);
		ON(get)(x, r->d + i, len);
		for (size_t u = 0; u < PARTS; u++) {
			e[u] = alpha * (x[u] - w[u]);
			w[u] += e[u];
		}
		ON(clean_all)(w, 1);
		ON(clean_all)(e, 1);
		ON(put_center)(to->to, r->state[0], w, i, len);
		if (r->out)
			ON(put)(r->out + i, e, len, false);
	}
}

static void ON(update_elastic)(const struct tt_update_run *run, size_t count)
{
	const struct tt_update_run r = *run;
	const struct ON(work) w = { .to = r.to };
	const bool stream = false;

	LOOP(0, count, step_move, &r, (NUMBER)run->factors->rate);
}
