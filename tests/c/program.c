/* program.c - a program as Multiverso's users wrote them, for multiverso.sh: program PART, on all processes of a job.
 * Prints "ok", or what is wrong. */
#include <multiverso/c_api.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 10, ROWS = 11, COLUMNS = 10, ROUNDS = 3 };

static int wrong;

static void expect(const char *what, int i, float is, double wanted)
{
	if (is != (float)wanted && !wrong++)
		printf("worker %d: %s %d is %g instead of %g\n", MV_WorkerId(), what, i, (double)is, wanted);
}

/* As the test of Multiverso's bindings: W workers add twice in each round. */
static void run_array(void)
{
	float delta[SIZE], got[SIZE];
	TableHandler table;

	MV_NewArrayTable(SIZE, &table);
	for (int k = 1; k <= ROUNDS; k++) {
		for (int i = 0; i < SIZE; i++)
			delta[i] = (float)(i + 1);
		MV_AddAsyncArrayTable(table, delta, SIZE);
		memset(delta, 0, sizeof delta); /* the add has a copy */
		for (int i = 0; i < SIZE; i++)
			delta[i] = (float)(i + 1);
		MV_AddArrayTable(table, delta, SIZE);
		MV_Barrier();
		MV_GetArrayTable(table, got, SIZE);
		for (int i = 0; i < SIZE; i++)
			expect("element", i, got[i], (i + 1) * k * 2 * MV_NumWorkers());
		MV_Barrier();
	}
}

static void run_matrix(void)
{
	int ids[] = { 0, 1, 5, 10 }, listed[ROWS] = { [0] = 1, [1] = 1, [5] = 1, [10] = 1 };
	float all[ROWS * COLUMNS], rows[4 * COLUMNS], got[ROWS * COLUMNS];
	TableHandler table;

	MV_NewMatrixTable(ROWS, COLUMNS, &table);
	for (int i = 0; i < ROWS * COLUMNS; i++)
		all[i] = (float)i;
	for (int i = 0; i < 4; i++)
		memcpy(rows + i * COLUMNS, all + ids[i] * COLUMNS, COLUMNS * sizeof *rows);
	for (int k = 1; k <= ROUNDS; k++) {
		MV_AddAsyncMatrixTableAll(table, all, ROWS * COLUMNS);
		MV_AddAsyncMatrixTableByRows(table, rows, 2 * COLUMNS, ids, 2);
		MV_AddMatrixTableByRows(table, rows + 2 * COLUMNS, 2 * COLUMNS, ids + 2, 2);
		MV_Barrier();
		MV_GetMatrixTableAll(table, got, ROWS * COLUMNS);
		for (int i = 0; i < ROWS * COLUMNS; i++)
			expect("element", i, got[i], i * k * (1 + listed[i / COLUMNS]) * MV_NumWorkers());
		MV_GetMatrixTableByRows(table, got, 4 * COLUMNS, ids, 4);
		for (int i = 0; i < 4 * COLUMNS; i++)
			expect("listed element", i, got[i],
			       (ids[i / COLUMNS] * COLUMNS + i % COLUMNS) * k * 2 * MV_NumWorkers());
		MV_Barrier();
	}
	MV_AddMatrixTableAll(table, all, ROWS * COLUMNS);
}

static float *make_ones(int n)
{
	float *data = malloc((size_t)n * sizeof *data);

	for (int i = 0; data && i < n; i++)
		data[i] = 1;
	return data;
}

/* Worker 0 waits in a barrier for 8 adds of 8 MiB, which the others have behind them when they come there. */
static void run_copied(void)
{
	enum { N = 2 << 20, ADDS = 8 };
	float *data = make_ones(N);
	TableHandler table;

	MV_NewArrayTable(N, &table);
	for (int k = 0; MV_WorkerId() && k < ADDS; k++)
		MV_AddAsyncArrayTable(table, data, N);
	memset(data, 0, N * sizeof *data);
	MV_Barrier();
	if (MV_WorkerId() == 0)
		MV_GetArrayTable(table, data, N);
	for (int i = 0; MV_WorkerId() == 0 && i < N; i++)
		expect("element", i, data[i], ADDS * (MV_NumWorkers() - 1));
	free(data);
}

/* Adds of 20 MiB are not copied, but in sync mode. */
static void run_large(void)
{
	enum { N = 5 << 20 };
	TableHandler table;

	MV_NewArrayTable(N, &table);
	for (int k = 1; k <= 2; k++) {
		float *data = make_ones(N);
		MV_AddAsyncArrayTable(table, data, N);
		memset(data, 0, N * sizeof *data);
		MV_Barrier();
		MV_GetArrayTable(table, data, N);
		for (int i = 0; i < N; i++)
			expect("element", i, data[i], k * MV_NumWorkers());
		MV_Barrier();
		free(data);
	}
}

/* No barrier: a get waits for the adds of all. Worker 0 adds and gets once more than the others. */
static void run_sync(void)
{
	TableHandler table;
	float one = 1, got;
	int workers = MV_NumWorkers(), more = MV_WorkerId() == 0;

	MV_NewArrayTable(1, &table);
	for (int k = 1; k <= 20; k++) {
		MV_AddAsyncArrayTable(table, &one, 1);
		MV_GetArrayTable(table, &got, 1);
		expect("round", k, got, k * workers);
	}
	if (more) {
		MV_AddAsyncArrayTable(table, &one, 1);
		MV_GetArrayTable(table, &got, 1);
		expect("the last round", 21, got, 20 * workers + 1);
	}
}

/* Delay-compensated: worker 1 adds when worker 0 has moved the model from 0 to -1. With the gradient g = delta / 0.01 =
 * 10, and what worker 1 has, 0: w -= 0.01 (g + lambda g^2 (w - 0)). */
static void run_delay(double lambda)
{
	float delta = 1, w;
	TableHandler table;

	MV_NewArrayTable(1, &table);
	if (MV_WorkerId() == 0)
		MV_AddArrayTable(table, &delta, 1);
	MV_Barrier();
	delta = 0.1f;
	if (MV_WorkerId() == 1)
		MV_AddArrayTable(table, &delta, 1);
	MV_Barrier();
	MV_GetArrayTable(table, &w, 1);
	double wanted = -1 - 0.01 * (10 + lambda * 100 * -1);
	if ((w - wanted) * (w - wanted) > 1e-12)
		expect("the delayed model", 0, w, wanted);
	MV_Barrier();
}

/* Ranks 1 and 2 are a server and a worker alone; rank 0 is both. */
static void run_roles(int rank)
{
	static const int worker[] = { 0, -1, 1 }, server[] = { 0, 1, -1 };
	float delta[SIZE], got[SIZE];
	TableHandler table;

	expect("workers", 0, (float)MV_NumWorkers(), 2);
	expect("worker of rank", rank, (float)MV_WorkerId(), worker[rank]);
	expect("server of rank", rank, (float)MV_ServerId(), server[rank]);
	MV_NewArrayTable(SIZE, &table);
	for (int i = 0; i < SIZE; i++)
		delta[i] = (float)i;
	MV_AddArrayTable(table, delta, SIZE);
	if (rank == 1 && !strstr(MV_LastError(), "MV_AddArrayTable: ") && !wrong++)
		puts("an add of a server is not refused");
	MV_Barrier();
	MV_GetArrayTable(table, got, SIZE);
	for (int i = 0; i < SIZE; i++)
		expect("element", i, got[i], 2 * i);
	MV_Barrier();
}

/* The last worker dies: the others' calls end, and say who. */
static void run_death(void)
{
	float data[SIZE] = { 0 };
	TableHandler table;

	MV_NewArrayTable(SIZE, &table);
	MV_Barrier();
	if (MV_WorkerId() == MV_NumWorkers() - 1)
		kill(getpid(), SIGKILL);
	MV_Barrier();
	MV_AddAsyncArrayTable(table, data, SIZE);
	MV_GetArrayTable(table, data, SIZE);
	if (!strstr(MV_LastError(), "rank 1"))
		printf("\"%s\" does not name rank 1\n", MV_LastError());
}

int main(int argc, char **argv)
{
	const char *rank = getenv("TUTTI_RANK");

	MV_Init(&argc, argv);
	const char *part = argc == 2 ? argv[1] : "";
	if (!strcmp(part, "array"))
		run_array();
	else if (!strcmp(part, "matrix"))
		run_matrix();
	else if (!strcmp(part, "copied"))
		run_copied();
	else if (!strcmp(part, "large"))
		run_large();
	else if (!strcmp(part, "sync"))
		run_sync();
	else if (!strcmp(part, "roles"))
		run_roles(rank ? atoi(rank) : 0);
	else if (!strcmp(part, "dcasgd"))
		run_delay(0.1);
	else if (!strcmp(part, "dcasgda"))
		run_delay(0.1 / 10); /* lambda / sqrt(g^2), as momentum is 0 */
	else if (!strcmp(part, "death"))
		run_death();
	else
		wrong = !!printf("%d arguments are left\n", argc - 1);
	MV_ShutDown();
	if (!wrong)
		puts("ok");
	return !!wrong;
}
