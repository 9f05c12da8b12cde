/* updater_loops.h - the update rules' loops over elements of one floating-point TYPE; a part of reduce_loops.h
 *
 * One pass over values, deltas and state. tutti.h has the equations, updater.c computes their factors. A new rule is a
 * function here, a case in `next`, and an UPDATE below. */
struct ON(factors) {
#define FACTOR(name) NUMBER name;
	TT_FACTORS(FACTOR)
#undef FACTOR
};

INLINE void ON(take_factors)(struct ON(factors) *to, const struct tt_factors *from)
{
#define FACTOR(name) to->name = (NUMBER)from->name;
	TT_FACTORS(FACTOR)
#undef FACTOR
}

/* Each rule returns the new value of one vector w. g is the gradient, s the state. */

typedef const struct ON(factors) ON(given);

INLINE VEC ON(momentum)(VEC w, VEC g, VEC **s, ON(given) *f)
{
	VEC m = *s[0] = f->keep * *s[0] + f->fresh * g;

	return w - f->rate * m;
}

INLINE VEC ON(nesterov)(VEC w, VEC g, VEC **s, ON(given) *f)
{
	VEC m = *s[0] = f->keep * *s[0] + g;

	return w - f->rate * (g + f->keep * m);
}

INLINE VEC ON(adagrad)(VEC w, VEC g, VEC **s, ON(given) *f)
{
	*s[0] += g * g;
	return w - f->rate * g / ROOT(*s[0] + f->epsilon);
}

INLINE VEC ON(rmsprop)(VEC w, VEC g, VEC **s, ON(given) *f)
{
	*s[0] = f->keep2 * *s[0] + f->fresh2 * (g * g);
	return w - f->rate * g / (ROOT(*s[0]) + f->epsilon);
}

INLINE VEC ON(adam)(VEC w, VEC g, VEC **s, ON(given) *f)
{
	*s[0] = f->keep * *s[0] + f->fresh * g;
	*s[1] = f->keep2 * *s[1] + f->fresh2 * (g * g);
	return f->shrink * w - f->rate * *s[0] / (f->root * ROOT(*s[1]) + f->epsilon);
}

INLINE VEC ON(compensate)(VEC w, VEC g, VEC compensation, VEC **s, ON(given) *f)
{
	return *s[0] = w - f->rate * (g + compensation * g * g * (w - *s[0]));
}

INLINE VEC ON(adapt)(VEC g, VEC **s, ON(given) *f)
{
	*s[1] = f->keep * *s[1] + f->fresh * (g * g);
	return f->compensation / ROOT(*s[1] + f->epsilon);
}

INLINE VEC ON(ftrl)(VEC w, VEC g, VEC **s, ON(given) *f)
{
	VEC n = *s[1] + g * g, root = ROOT(n), z = *s[0] + g - (root - ROOT(*s[1])) * f->per_alpha * w;
	VEC beyond = PICK(z > 0, z - f->l1, z + f->l1);

	*s[0] = z;
	*s[1] = n;
	return PICK((z <= f->l1) & (z >= -f->l1), ALL(VEC, 0), -beyond / ((f->beta + root) * f->per_alpha + f->l2));
}

INLINE VEC ON(next)(VEC w, VEC d, VEC **s, ON(given) *f, tutti_update_rule rule)
{
	VEC g = f->scale * d;

	if (f->decay != 0) /* 0 times infinity would be NaN */
		g += f->decay * w;
	switch (rule) {
	case TUTTI_UPDATE_MOMENTUM: return ON(momentum)(w, g, s, f);
	case TUTTI_UPDATE_NESTEROV: return ON(nesterov)(w, g, s, f);
	case TUTTI_UPDATE_ADAGRAD: return ON(adagrad)(w, g, s, f);
	case TUTTI_UPDATE_RMSPROP: return ON(rmsprop)(w, g, s, f);
	case TUTTI_UPDATE_ADAM: return ON(adam)(w, g, s, f);
	case TUTTI_UPDATE_DCASGD: return ON(compensate)(w, g, ALL(VEC, f->compensation), s, f);
	case TUTTI_UPDATE_DCASGDA: return ON(compensate)(w, g, ON(adapt)(g, s, f), s, f);
	default: return ON(ftrl)(w, g, s, f);
	}
}

/* As get and put, with elements in order. */

INLINE void ON(get_ordered)(VEC *v, const char *at, size_t len)
{
	ON(get)(v, at, len);
#ifdef ALTERNATES
	weave(v);
#endif
}

INLINE void ON(put_ordered)(char *to, const VEC *v, size_t len)
{
	VEC out[PARTS];

	for (size_t u = 0; u < PARTS; u++)
		out[u] = ON(clean)(v[u]);
#ifdef ALTERNATES
	unweave(out);
#endif
	ON(put)(to, out, len, false);
}

INLINE void ON(get_state)(VEC *v, const char *at, size_t len)
{
	NUMBER one;

	if (len == WIDTH) {
		for (size_t u = 0; u < PARTS; u++)
			v[u] = (VEC)((const loose *)(const void *)at)[u];
		return;
	}
	memcpy(&one, at, sizeof one);
	for (size_t u = 0; u < PARTS; u++)
		v[u] = (VEC){ one };
}

INLINE void ON(put_state)(char *to, const VEC *v, size_t len)
{
	NUMBER one = v[0][0];

	if (len == WIDTH)
		for (size_t u = 0; u < PARTS; u++)
			((loose *)(void *)to)[u] = (loose)v[u];
	else
		memcpy(to, &one, sizeof one);
}

/* One step, from element i on: a vector, or one element if `len` is less than WIDTH. */

INLINE void ON(step_update)(const struct tt_update_run *r, ON(given) *f, size_t i, size_t len, int states,
                            tutti_update_rule rule)
{
	VEC w[PARTS], d[PARTS], s[2][PARTS];

	ON(get_ordered)(w, r->w + i * SIZE, len);
	ON(get_ordered)(d, r->d + i * SIZE, len);
	for (int k = 0; k < states; k++)
		ON(get_state)(s[k], r->state[k] + i * sizeof(NUMBER), len);
	for (size_t u = 0; u < PARTS; u++)
		w[u] = ON(next)(w[u], d[u], (VEC *[]){ &s[0][u], &s[1][u] }, f, rule);
	ON(put_ordered)(r->to + i * SIZE, w, len);
	for (int k = 0; k < states; k++)
		ON(put_state)(r->state[k] + i * sizeof(NUMBER), s[k], len);
	/* The backup is of the rounded value. */
	if (PARTS > 1 && (rule == TUTTI_UPDATE_DCASGD || rule == TUTTI_UPDATE_DCASGDA)) {
		ON(get_ordered)(w, r->to + i * SIZE, len);
		ON(put_state)(r->state[0] + i * sizeof(NUMBER), w, len);
	}
}

INLINE void ON(step_back_up)(char *state, const char *w, size_t i, size_t len)
{
	VEC v[PARTS];

	ON(get_ordered)(v, w + i * SIZE, len);
	ON(put_state)(state + i * sizeof(NUMBER), v, len);
}

INLINE void ON(step_round_off)(char *to, const char *state, size_t i, size_t len)
{
	VEC v[PARTS];

	ON(get_state)(v, state + i * sizeof(NUMBER), len);
	for (size_t u = 0; u < PARTS; u++)
		v[u] = ON(clean)(v[u]);
	ON(put_ordered)(to + i * SIZE, v, len);
}

#define EACH(count, step) \
	do { \
		size_t i = 0, len = WIDTH; \
		for (; i + WIDTH / SIZE <= (count); i += WIDTH / SIZE) \
			step; \
		for (len = SIZE; i < (count); i++) \
			step; \
	} while (0)

#define UPDATE(name, states, rule) \
	static void ON(update_##name)(const struct tt_update_run *run, size_t count) \
	{ \
		const struct tt_update_run r = *run; \
		struct ON(factors) f; \
\
		ON(take_factors)(&f, run->factors); \
		EACH(count, ON(step_update)(&r, &f, i, len, states, rule)); \
	}
UPDATE(momentum, 1, TUTTI_UPDATE_MOMENTUM)
UPDATE(nesterov, 1, TUTTI_UPDATE_NESTEROV)
UPDATE(adagrad, 1, TUTTI_UPDATE_ADAGRAD)
UPDATE(rmsprop, 1, TUTTI_UPDATE_RMSPROP)
UPDATE(adam, 2, TUTTI_UPDATE_ADAM)
UPDATE(dcasgd, 1, TUTTI_UPDATE_DCASGD)
UPDATE(dcasgda, 2, TUTTI_UPDATE_DCASGDA)
UPDATE(ftrl, 2, TUTTI_UPDATE_FTRL)

static void ON(back_up)(char *state, const char *w, size_t count) { EACH(count, ON(step_back_up)(state, w, i, len)); }
static void ON(round_off)(char *to, const char *state, size_t count)
{
	EACH(count, ON(step_round_off)(to, state, i, len));
}

#undef EACH
#undef UPDATE
