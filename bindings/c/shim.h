/* shim.h - what the files of libmultiverso share. Functions return 0 or a negative errno, with a sentence noted. */
#ifndef MV_SHIM_H
#define MV_SHIM_H
#include "bindings/c/multiverso.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tutti.h>

enum mv_role { MV_NONE, MV_WORKER, MV_SERVER, MV_ALL }; /* bits: of a worker, of a server */

/* Strings point into argv. */
struct mv_flags {
	bool sync, ma, logtostderr;
	int backup_worker_ratio, port, omp_threads, allocator_alignment;
	const char *updater_type, *ps_role, *machine_file, *allocator_type;
};

/* sentence.c */
int mv_fail(int err, const char *format, ...) __attribute__((format(printf, 2, 3)));
int mv_check(int err);                     /* of a function of Tutti: notes its sentence */
int mv_end(const char *function, int err); /* of a public function: writes the sentence */
void mv_say(const char *format, ...) __attribute__((format(printf, 1, 2))); /* a line about no error */

/* flags.c */
int mv_flags_take(struct mv_flags *flags, int *argc, char **argv);
int mv_flags_role(const struct mv_flags *flags, enum mv_role *role);
int mv_flags_updater(const struct mv_flags *flags, tutti_updater *updater);

/* machines.c */
int mv_machines_config(const char *file, int port, char *boot, size_t room, tutti_config *config);

/* session.c */
extern struct mv_session {
	tutti *job; /* NULL: MV_Init was not called */
	struct mv_flags flags;
	tutti_table_config config; /* of tables, but for their shape */
	int rank, size;
	int *workers, *servers; /* ranks */
	int worker_count, server_count, worker, server;
	int tables_made;
	struct mv_table *tables;
} mv_session;
int mv_is_open(void);
int mv_session_open(int *argc, char **argv);
void mv_session_close(const char *function); /* writes the sentences under the function's name */

/* table.c */
int mv_table_open(int rows, int columns, struct mv_table **table);
int mv_table_find(TableHandler handler, struct mv_table **table);
int mv_tables_settle(void); /* waits for all started adds; an error if one has failed */
int mv_tables_finish(void);
void mv_tables_close(void);
/* rows NULL: all of the table; n is then 0 */
int mv_table_get(struct mv_table *table, const int *rows, int n, float *data, int size);
int mv_table_add(struct mv_table *table, const int *rows, int n, const float *data, int size, bool async);
#endif
