/* config.c - what a program begins the config of a table with: nothing is set but what it names */
#include "tutti.h"
#include <math.h>
#include <string.h>

tutti_update tutti_update_defaults(void)
{
	return (tutti_update){
		.worker = -1, .scale = NAN, .learning_rate = NAN, .weight_decay = NAN, .momentum = NAN, .rho = NAN,
		.compensation = NAN, .beta1 = NAN, .beta2 = NAN, .epsilon = NAN, .alpha = NAN, .beta = NAN,
		.l1 = NAN, .l2 = NAN,
	};
}

static tutti_updater rule_of(tutti_update_rule rule, double learning_rate)
{
	tutti_updater u = { .rule = rule, .defaults = tutti_update_defaults() };

	u.defaults.learning_rate = learning_rate;
	return u;
}

/* ... and with one more option, which is `at` there. */
static tutti_updater rule_with(tutti_update_rule rule, double learning_rate, size_t at, double x)
{
	tutti_updater u = rule_of(rule, learning_rate);

	memcpy((char *)&u.defaults + at, &x, sizeof x);
	return u;
}
#define AT(option) offsetof(tutti_update, option)

tutti_updater tutti_accumulate(void) { return rule_of(TUTTI_UPDATE_ADD, NAN); }
tutti_updater tutti_assign(void) { return rule_of(TUTTI_UPDATE_ASSIGN, NAN); }
tutti_updater tutti_sgd(double rate) { return rule_of(TUTTI_UPDATE_SGD, rate); }
tutti_updater tutti_adagrad(double rate) { return rule_of(TUTTI_UPDATE_ADAGRAD, rate); }
tutti_updater tutti_rmsprop(double rate) { return rule_of(TUTTI_UPDATE_RMSPROP, rate); }
tutti_updater tutti_adam(double rate) { return rule_of(TUTTI_UPDATE_ADAM, rate); }
tutti_updater tutti_momentum(double rate, double x) { return rule_with(TUTTI_UPDATE_MOMENTUM, rate, AT(momentum), x); }
tutti_updater tutti_smoothed(double rate, double x) { return rule_with(TUTTI_UPDATE_SMOOTHED, rate, AT(momentum), x); }
tutti_updater tutti_nesterov(double rate, double x) { return rule_with(TUTTI_UPDATE_NESTEROV, rate, AT(momentum), x); }
tutti_updater tutti_adamw(double rate, double x) { return rule_with(TUTTI_UPDATE_ADAMW, rate, AT(weight_decay), x); }

tutti_updater tutti_dcasgd(double rate, double x)
{
	return rule_with(TUTTI_UPDATE_DCASGD, rate, AT(compensation), x);
}

tutti_updater tutti_dcasgda(double rate, double x)
{
	return rule_with(TUTTI_UPDATE_DCASGDA, rate, AT(compensation), x);
}

tutti_updater tutti_ftrl(double x) { return rule_with(TUTTI_UPDATE_FTRL, NAN, AT(alpha), x); }
tutti_updater tutti_elastic(double x) { return rule_with(TUTTI_UPDATE_ELASTIC, NAN, AT(alpha), x); }

tutti_updater tutti_own(void (*own)(const tutti_update_piece *), void *arg, int states)
{
	tutti_updater u = rule_of(TUTTI_UPDATE_OWN, NAN);

	u.own = own;
	u.own_arg = arg;
	u.own_states = states;
	return u;
}

tutti_table_config tutti_table_rows(tutti_type type, uint64_t rows, uint64_t row, tutti_updater updater)
{
	return (tutti_table_config){ .type = type, .count = rows, .row = row, .updater = updater };
}

tutti_table_config tutti_table_f32(uint64_t n, tutti_updater updater)
{
	return tutti_table_rows(TUTTI_F32, n, 1, updater);
}

tutti_table_config tutti_table_keys(tutti_type type, uint64_t row, tutti_updater updater)
{
	tutti_table_config c = tutti_table_rows(type, 0, row, updater);

	c.flags = TUTTI_TABLE_KEYS;
	return c;
}
