/* average.h - keeps the copies of a model together. The room is written in public calls on collectives, tables and
 * windows; what it declares for others is in tutti.h. */
#ifndef TT_AVERAGE_H
#define TT_AVERAGE_H
#endif
