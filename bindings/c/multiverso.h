/* multiverso.h - the C functions of Multiverso, on Tutti: programs that call them run after a new link.
 *
 *   cc train.c $(pkg-config --cflags --libs tutti) -lmultiverso
 *
 * Values are floats on servers. Workers add to them, and get them. Every process is a worker and a server, unless
 * -ps_role says else. All processes create the same tables in the same order; a table lives until MV_ShutDown.
 * docs/migrate.md says what differs from Multiverso.
 *
 * Errors. A call that fails writes one line to standard error and changes nothing; MV_LastError has the sentence. The
 * library never ends the process. A call that waits for another process fails after TUTTI_TIMEOUT, or when that process
 * dies.
 * Threads. One thread at a time calls. */
#ifndef MULTIVERSO_H
#define MULTIVERSO_H
#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef void *TableHandler;

/* Joins the job, which `tutti run`, srun, mpirun, torchrun or TUTTI_BOOT describe, or the flag -machine_file. Takes
 * its flags, -name=value, out of argv, and leaves all other arguments. Both may be NULL: no flags. Blocks until all
 * processes have joined. The flags are the same on all processes, but for ps_role:
 *   -sync=true              a get waits until all workers have added as often as this one, and all get the same
 *   -updater_type=NAME      how servers take in what is added: default (it is added), sgd (it is subtracted),
 *                           momentum_sgd, adagrad, dcasgd, dcasgda, with Multiverso's default options: learning rate
 *                           0.01, momentum 0, rho 0.1, lambda 0.1
 *   -backup_worker_ratio=P  with -sync=true: a round does not wait for P % of the workers, rounded down
 *   -ps_role=ROLE           this process is worker, server, default (both) or none
 *   -machine_file=FILE      a host's name or address in each line: one process on each, the first one is rank 0
 *   -port=N                 with -machine_file: where rank 0 listens; 55555
 *   -omp_threads, -allocator_type, -allocator_alignment, -logtostderr: no effect
 *   -ma=true                is refused: call tutti_allreduce */
void MV_Init(int *argc, char *argv[]);
/* Waits for all processes, closes all tables, and leaves the job. Nobody waits for this worker's adds any more. */
void MV_ShutDown(void);
/* Waits until all processes call it. The adds of all processes are then applied. */
void MV_Barrier(void);
/* How many workers there are. The numbers of this worker and of this server, from 0 up in the order of ranks; -1: this
 * process is none, or the call has failed. Do not block. */
int MV_NumWorkers(void);
int MV_WorkerId(void);
int MV_ServerId(void);

/* Creates a table of `size` floats, or of num_row rows of num_col floats, all 0. Sets *out, to NULL if it fails.
 * Blocks until all processes have created the table. */
void MV_NewArrayTable(int size, TableHandler *out);
void MV_NewMatrixTable(int num_row, int num_col, TableHandler *out);
/* Get sets data to the values, which include all earlier adds of this worker, and blocks until they are there. Add
 * blocks until all servers have added. AddAsync returns before, with a copy of data, unless data has 16 MiB or more
 * outside of sync mode: a copy would take as long as the add. The next get, barrier or shutdown waits for the add, and
 * writes its error. size: how many floats data has. */
void MV_GetArrayTable(TableHandler handler, float *data, int size);
void MV_AddArrayTable(TableHandler handler, const float *data, int size);
void MV_AddAsyncArrayTable(TableHandler handler, const float *data, int size);
void MV_GetMatrixTableAll(TableHandler handler, float *data, int size);
void MV_AddMatrixTableAll(TableHandler handler, const float *data, int size);
void MV_AddAsyncMatrixTableAll(TableHandler handler, const float *data, int size);
/* The same of row_ids_n rows, in the order of the list, numbered from 0. size: row_ids_n x num_col. A row that is
 * listed twice is added to twice. */
void MV_GetMatrixTableByRows(TableHandler handler, float *data, int size, const int row_ids[], int row_ids_n);
void MV_AddMatrixTableByRows(TableHandler handler, const float *data, int size, const int row_ids[], int row_ids_n);
void MV_AddAsyncMatrixTableByRows(TableHandler handler, const float *data, int size, const int row_ids[],
                                  int row_ids_n);

/* Returns the sentence of the last call that failed, valid until another one fails; "": none has failed. */
const char *MV_LastError(void);
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
