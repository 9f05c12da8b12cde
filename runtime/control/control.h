/* control.h - a rank that serves others: a controller, a queue of batches. The room is written in windows; what it
 * declares for others is in tutti.h. */
#ifndef TT_CONTROL_H
#define TT_CONTROL_H
#endif
