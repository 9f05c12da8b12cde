/* launch.c - what the program, `tutti run`, torchrun or a node list says of this process */
#include "launch/launch.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int pick_node(const struct tt_settings *s, struct tt_launch *b)
{
	const char *me = tt_setting(s, TT_NODE), *meant;

	if (!me)
		return tt_fail(-EINVAL, "the config file lists %d nodes: say which one this process is "
		               "(TUTTI_NODE, or tutti_config.node)", b->size);
	for (b->rank = 0; b->rank < b->size; b->rank++)
		if (!strcmp(b->nodes[b->rank].name, me))
			return 0;
	const char **names = calloc((unsigned)b->size, sizeof *names);
	for (int i = 0; names && i < b->size; i++)
		names[i] = b->nodes[i].name;
	meant = names ? tt_nearest(me, names, b->size) : NULL;
	free(names);
	return tt_fail(-EINVAL, "no node is named \"%s\" in the config file%s%s", me, meant ? "; did you mean " : "",
	               meant ? meant : "");
}

static int check_place(const struct tt_launch *b, const char *rank_name, const char *size_name)
{
	if (b->size < 1)
		return tt_fail(-EINVAL, "%s is %d: a job has at least one rank", size_name, b->size);
	if (b->rank < 0 || b->rank >= b->size)
		return tt_fail(-EINVAL, "%s is %d: with %s %d it must be from 0 to %d", rank_name, b->rank, size_name,
		               b->size, b->size - 1);
	return 0;
}

/* The first of a list of addresses is rank 0's. The list stays the caller's, while it joins. */
static int copy_address(struct tt_launch *b, const char *list)
{
	for (const char *at = list; *at; at += strspn(at, ",")) {
		size_t len = strcspn(at, ",");
		if (len >= sizeof b->address)
			return tt_fail(-ENAMETOOLONG, "the rendezvous address \"%.*s\" is longer than %zu bytes",
			               (int)len, at, sizeof b->address - 1);
		if (at == list)
			snprintf(b->address, sizeof b->address, "%.*s", (int)len, at);
		at += len;
	}
	b->boots = list;
	return 0;
}

static int place_from(const struct tt_settings *s, enum tt_setting rank, enum tt_setting size, struct tt_launch *b)
{
	long r = -1, n = 0;
	int err;

	if ((err = tt_setting_int(s, rank, 0, INT32_MAX, &r)) || (err = tt_setting_int(s, size, 1, INT32_MAX, &n)))
		return err;
	b->rank = (int)r;
	b->size = (int)n;
	const char *rank_name = tt_setting_info[rank].variable, *size_name = tt_setting_info[size].variable;
	if (r < 0 || !n)
		return tt_fail(-EINVAL, "%s is set and %s is not: a launcher sets both", r < 0 ? size_name : rank_name,
		               r < 0 ? rank_name : size_name);
	return check_place(b, rank_name, size_name);
}

static int from_newcomer(const struct tt_settings *s, struct tt_launch *b)
{
	long n = 0;
	int err = tt_setting_int(s, TT_SIZE, 2, INT32_MAX, &n);

	b->unnumbered = true;
	b->size = (int)n;
	if (err || n)
		return err;
	return tt_fail(-EINVAL,
	               "TUTTI_RANK is new and TUTTI_SIZE is not set: say how many ranks the job was started with");
}

static int from_tutti(const struct tt_settings *s, struct tt_launch *b)
{
	const char *boot = tt_setting(s, TT_BOOT), *rank = tt_setting(s, TT_RANK);
	long fd = -1;
	int err = rank && !strcmp(rank, "new") ? from_newcomer(s, b) : place_from(s, TT_RANK, TT_SIZE, b);

	if (err || b->size == 1)
		return err;
	if (!boot)
		return tt_fail(-EINVAL, "TUTTI_RANK and TUTTI_SIZE are set and TUTTI_BOOT is not: "
		               "say where rank 0 listens, TUTTI_BOOT=HOST:PORT");
	if (b->rank == 0 && !b->unnumbered && (err = tt_setting_int(s, TT_BOOT_FD, 0, 1 << 20, &fd)))
		return err;
	if (fd >= 0 && fcntl((int)fd, F_GETFD) < 0)
		return tt_fail(-EBADF, "TUTTI_BOOT_FD=%ld is not an open file: only `tutti run` sets it", fd);
	b->listen_fd = (int)fd;
	return copy_address(b, boot);
}

/* torchrun's own store may listen on MASTER_PORT: then rank 0 takes the next port. */
static int from_torch(const struct tt_settings *s, struct tt_launch *b)
{
	const char *addr = tt_setting(s, TT_TORCH_ADDR), *store = tt_setting(s, TT_TORCH_STORE);
	char text[96];
	long port = 0;
	int err = place_from(s, TT_TORCH_RANK, TT_TORCH_SIZE, b);

	if (err || b->size == 1)
		return err;
	if ((err = tt_setting_int(s, TT_TORCH_PORT, 1, 65534, &port)))
		return err;
	if (!addr || !port)
		return tt_fail(-EINVAL, "RANK and WORLD_SIZE are set and MASTER_%s is not: torchrun sets all four",
		               addr ? "PORT" : "ADDR");
	if (store && !strcmp(store, "True"))
		port++;
	snprintf(text, sizeof text, strchr(addr, ':') ? "[%s]:%ld" : "%s:%ld", addr, port);
	err = copy_address(b, text);
	b->boots = b->address;
	return err;
}

static int from_program(const tutti_config *c, struct tt_launch *b)
{
	int err;

	b->unnumbered = c->rank == TUTTI_NEW_RANK;
	b->rank = b->unnumbered ? 0 : c->rank;
	b->size = c->ranks;
	if ((err = check_place(b, "tutti_config.rank", "tutti_config.ranks")))
		return err;
	return copy_address(b, c->boot);
}

/* How many tasks a launcher has started that Tutti does not know yet. rank: the variable with this task's number. */
static long foreign_tasks(const struct tt_settings *s, const char **launcher, const char **rank)
{
	static const struct {
		enum tt_setting size;
		const char *launcher, *rank;
	} known[] = {
		{ TT_SLURM_TASKS, "srun", "SLURM_PROCID" }, { TT_OMPI_SIZE, "mpirun", "OMPI_COMM_WORLD_RANK" },
		{ TT_PMI_SIZE, "a PMI launcher", "PMI_RANK" },
	};

	for (size_t i = 0; i < TT_COUNT(known); i++) {
		const char *text = tt_setting(s, known[i].size);
		bool is_step = known[i].size != TT_SLURM_TASKS || tt_setting(s, TT_SLURM_STEP);
		*launcher = known[i].launcher;
		*rank = known[i].rank;
		if (text && is_step && strtol(text, NULL, 10) > 1)
			return strtol(text, NULL, 10);
	}
	return 0;
}

/* Each task would be a job of its own, and nobody would notice. */
static int alone(const struct tt_settings *s, struct tt_launch *b)
{
	const char *launcher, *rank;
	long n = foreign_tasks(s, &launcher, &rank);

	b->size = 1;
	if (!n)
		return 0;
	return tt_fail(-EINVAL, "this is one of %ld processes that %s started, and nothing says where they meet: start "
	               "sh -c 'TUTTI_RANK=$%s TUTTI_SIZE=%ld TUTTI_BOOT=HOST:PORT exec PROGRAM', with process 0's HOST "
	               "and a free PORT there; or set TUTTI_SIZE=1 TUTTI_RANK=0 for jobs of one", n, launcher, rank, n);
}

/* Settings of this process alone come before what a file says of all. */
int tt_launch_read(struct tt_settings *s, const tutti_config *c, struct tt_launch *b)
{
	bool launched = tt_setting(s, TT_RANK) || tt_setting(s, TT_SIZE);

	b->listen_fd = -1;
	if (b->nodes && !c->boot && !launched)
		return pick_node(s, b);
	tt_launch_free(b);
	if (c->boot)
		return from_program(c, b);
	if (launched)
		return from_tutti(s, b);
	if (tt_setting(s, TT_TORCH_RANK) && tt_setting(s, TT_TORCH_SIZE))
		return from_torch(s, b);
	return alone(s, b);
}

void tt_launch_free(struct tt_launch *b)
{
	free(b->nodes);
	b->nodes = NULL;
}

/* From the port alone, since ranks may spell rank 0's host differently. The size of the job is not in it: rank 0
 * refuses a wrong size with a clearer sentence. */
uint64_t tt_launch_job_id(const struct tt_launch *b)
{
	const char *port = strrchr(b->address, ':');
	uint64_t h = tt_hash_text(TT_HASH64, port ? port : b->address);

	for (int i = 0; b->nodes && i < b->size; i++)
		h = tt_hash_text(tt_hash_text(h, b->nodes[i].name), b->nodes[i].address);
	return h;
}
