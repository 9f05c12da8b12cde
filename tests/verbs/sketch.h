/* sketch.h - a sketch of a transport on the fake of verbs.h: what of transport.h can be kept so, contract.c tells */
#ifndef TESTS_SKETCH_H
#define TESTS_SKETCH_H
#include "transport/transport.h"

extern const struct tt_transport tt_fake_ib, tt_fake_iwarp;
#endif
