/* launch.c - the list of launchers, in the order in which they are asked; what `tutti run`, torchrun, Open MPI's
 * variables or a node list say of this process
 *
 * All that an exchange carries is where rank 0 listens, and the secret: the ranks meet there (member/rendezvous.c). So
 * a launcher is needed for a moment only, and what it does when ranks die is no concern of the job.
 */
#include "launch/launcher.h"
#include "transport/dial.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
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

/* The first of a list of addresses is rank 0's. */
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
	return 0;
}

/* The list stays the caller's, while this process joins. */
static int take_boots(struct tt_launch *b, const char *list)
{
	b->boots = list;
	return copy_address(b, list);
}

int tt_place_from(const struct tt_settings *s, enum tt_setting rank, enum tt_setting size, struct tt_launch *b)
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
	int err = tt_setting_int(s, TT_SIZE, 1, INT32_MAX, &n);

	b->unnumbered = true;
	b->size = (int)n;
	if (err || n)
		return err;
	return tt_fail(-EINVAL,
	               "TUTTI_RANK is new and TUTTI_SIZE is not set: say how many ranks the job was started with");
}

static _Atomic bool boot_socket_taken;

void tt_launch_took_socket(void) { atomic_store(&boot_socket_taken, true); }

/* `tutti run` hands a socket to rank 0. A process that has joined and left has closed that socket, and the number may
 * belong to a file of the program's by now, or to another job's socket. Then rank 0 listens there itself. */
static bool is_boot_socket(int fd, const char *address)
{
	bool taken = atomic_load(&boot_socket_taken), good = !taken && tt_listens_at(fd, address);

	if (!good)
		tt_log(TT_DEBUG, "TUTTI_BOOT_FD=%d is %s: this process listens there itself", fd,
		       taken ? "of a job that this process has been in" : "no socket that listens at TUTTI_BOOT");
	return good;
}

static int from_tutti(const struct tt_settings *s, struct tt_launch *b)
{
	const char *boot = tt_setting(s, TT_BOOT), *rank = tt_setting(s, TT_RANK);
	long fd = -1;
	int err = rank && !strcmp(rank, "new") ? from_newcomer(s, b) : tt_place_from(s, TT_RANK, TT_SIZE, b);

	if (err || (b->size == 1 && !boot && !b->unnumbered)) /* nobody can find such a job */
		return err;
	if (!boot)
		return tt_fail(-EINVAL, "TUTTI_RANK and TUTTI_SIZE are set and TUTTI_BOOT is not: "
		               "say where rank 0 listens, TUTTI_BOOT=HOST:PORT");
	if ((err = take_boots(b, boot)))
		return err;
	if (b->rank == 0 && !b->unnumbered && (err = tt_setting_int(s, TT_BOOT_FD, 0, 1 << 20, &fd)))
		return err;
	if (fd >= 0 && is_boot_socket((int)fd, b->address))
		b->listen_fd = (int)fd;
	return 0;
}

/* Each torchrun counts its own restarts: after a failure on one host only that host's count grows, while the ranks of
 * all hosts start again. So the count names the job only where all ranks are of one torchrun. */
static void name_torch(const struct tt_settings *s, struct tt_launch *b)
{
	const char *run = tt_setting(s, TT_TORCH_RUN);

	if (run)
		tt_name_from(b, "torchrun", run, NULL,
		             b->local_size == b->size ? tt_setting(s, TT_TORCH_RESTARTS) : NULL);
}

/* Kubeflow's PyTorchJob tells rank 0 "localhost", and the other pods its name: they come from outside. */
static bool comes_from_outside(const struct tt_settings *s, const struct tt_launch *b, const char *addr)
{
	if (strcmp(addr, "localhost") || b->rank || b->local_size == b->size || !tt_setting(s, TT_SECRET))
		return false;
	tt_log(TT_INFO, "MASTER_ADDR is localhost, and ranks may be on other hosts: rank 0 listens on all interfaces; "
	       "with MASTER_ADDR=127.0.0.1 it does not");
	return true;
}

/* torchrun's own store may listen on MASTER_PORT: then rank 0 takes the next port. */
static int from_torch(const struct tt_settings *s, struct tt_launch *b)
{
	const char *addr = tt_setting(s, TT_TORCH_ADDR), *store = tt_setting(s, TT_TORCH_STORE);
	char text[sizeof b->address + 1]; /* what is cut is too long for copy_address(), too */
	long port = 0;
	int err = tt_place_from(s, TT_TORCH_RANK, TT_TORCH_SIZE, b);

	if (!err)
		err = tt_place_local(s, TT_TORCH_LOCAL_RANK, TT_TORCH_LOCAL_SIZE, b);
	name_torch(s, b);
	if (err || b->size == 1 || tt_setting(s, TT_BOOT))
		return err;
	if ((err = tt_setting_int(s, TT_TORCH_PORT, 1, 65534, &port)))
		return err;
	if (!addr || !port)
		return tt_fail(-EINVAL, "RANK and WORLD_SIZE are set and MASTER_%s is not: torchrun sets all four",
		               addr ? "PORT" : "ADDR");
	if (store && !strcmp(store, "True"))
		port++;
	if (comes_from_outside(s, b, addr))
		addr = "*";
	snprintf(text, sizeof text, strchr(addr, ':') ? "[%s]:%ld" : "%s:%ld", addr, port);
	return copy_address(b, text);
}

static int from_program(const tutti_config *c, struct tt_launch *b)
{
	int err;

	b->unnumbered = c->rank == TUTTI_NEW_RANK;
	b->rank = b->unnumbered ? 0 : c->rank;
	b->size = c->ranks;
	if ((err = check_place(b, "tutti_config.rank", "tutti_config.ranks")))
		return err;
	return take_boots(b, c->boot);
}

int tt_place_local(const struct tt_settings *s, enum tt_setting rank, enum tt_setting size, struct tt_launch *b)
{
	long r = 0, n = 0;
	int err = tt_setting_int(s, rank, 0, b->size - 1, &r);

	if (!err)
		err = tt_setting_int(s, size, 1, b->size, &n);
	b->local_rank = (int)r;
	b->local_size = (int)n;
	return err;
}

bool tt_launch_is_name(const char *name)
{
	size_t len = strlen(name);

	for (const char *c = name; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 127)
			return false;
	return len > 0 && len <= TT_JOB_NAME;
}

/* A name that is too long ends with a hash of the whole in place of its end. */
void tt_name_from(struct tt_launch *b, const char *launcher, const char *job, const char *step, const char *restarts)
{
	const char *parts[] = { launcher, job, step, restarts };
	char whole[512] = "";
	size_t n = 0;

	for (size_t i = 0; i < TT_COUNT(parts); i++)
		if (parts[i] && *parts[i])
			n += (size_t)snprintf(whole + n, sizeof whole - n, "%s%.120s", n ? "-" : "", parts[i]);
	for (char *c = whole; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 127)
			*c = '?';
	if (n > TT_JOB_NAME)
		snprintf(whole + TT_JOB_NAME - 17, 18, "-%016llx", (unsigned long long)tt_hash_text(TT_HASH64, whole));
	snprintf(b->name, sizeof b->name, "%s", whole);
}

/* Below the ports that kernels give out. */
unsigned tt_port_from(const char *name)
{
	uint64_t h = tt_hash_text(TT_HASH64, name);

	return 20000 + (unsigned)((h ^ h >> 32) % 12000);
}

/* mpirun sets PMIX_ variables, too: this is for hosts without libpmix. */
static int from_ompi(struct tt_settings *s, struct tt_launch *b)
{
	int err = tt_place_from(s, TT_OMPI_RANK, TT_OMPI_SIZE, b);

	if (!err)
		err = tt_place_local(s, TT_OMPI_LOCAL_RANK, TT_OMPI_LOCAL_SIZE, b);
	tt_name_from(b, "pmix", tt_setting(s, TT_PMIX_SPACE), NULL, NULL);
	if (err || b->size == 1 || tt_setting(s, TT_BOOT))
		return err;
	if (b->local_size < b->size)
		return tt_fail(-EINVAL, "mpirun has started %d ranks on several hosts, and nothing says where they "
		               "meet: install libpmix2, or start mpirun -x TUTTI_BOOT=HOST:PORT, with rank 0's HOST "
		               "and a free PORT there", b->size);
	snprintf(b->address, sizeof b->address, "127.0.0.1:%u", tt_port_from(b->name));
	return 0;
}

/* ---- the list ---- */

static bool both(const struct tt_settings *s, enum tt_setting a, enum tt_setting b, char why[TT_LAUNCH_WHY])
{
	const char *x = tt_setting(s, a), *y = tt_setting(s, b);

	if (x && y)
		snprintf(why, TT_LAUNCH_WHY, "%s=%.40s and %s=%.40s are set", tt_setting_info[a].variable, x,
		         tt_setting_info[b].variable, y);
	return x && y;
}

static bool is_elastic(const struct tt_settings *s, char why[TT_LAUNCH_WHY])
{
	return tt_setting(s, TT_TORCH_RUN) && both(s, TT_TORCH_RANK, TT_TORCH_SIZE, why);
}

static bool is_torch(const struct tt_settings *s, char why[TT_LAUNCH_WHY])
{
	return both(s, TT_TORCH_RANK, TT_TORCH_SIZE, why);
}

static bool is_ompi(const struct tt_settings *s, char why[TT_LAUNCH_WHY])
{
	return both(s, TT_OMPI_RANK, TT_OMPI_SIZE, why);
}

/* Launchers that number their processes, and whose language Tutti does not speak. Each process would be a job of one.
 * size TT_SETTINGS: the launcher does not say. */
static const struct foreign {
	const char *name;
	enum tt_setting rank, size;
} foreign[] = {
	{ "jsrun", TT_JSM_RANK, TT_JSM_SIZE },
	{ "MVAPICH's mpirun_rsh", TT_MV2_RANK, TT_MV2_SIZE },
	{ "MVAPICH's mpirun_rsh", TT_MVP_RANK, TT_MVP_SIZE },
	{ "flux run", TT_FLUX_RANK, TT_FLUX_SIZE },
	{ "PALS", TT_PALS_RANK, TT_PMI_SIZE },
	{ "aprun", TT_ALPS_RANK, TT_SETTINGS },
	{ "a launcher that speaks PMI", TT_PMI_RANK, TT_PMI_SIZE },
	{ "an Indexed Job of Kubernetes", TT_K8S_INDEX, TT_SETTINGS },
};

/* Says so, if one of them has started this process. */
static void look_for_foreign(const struct tt_settings *s, char why[TT_LAUNCH_WHY])
{
	const struct foreign *f = foreign;

	while (f < foreign + TT_COUNT(foreign) && !tt_setting(s, f->rank))
		f++;
	if (f == foreign + TT_COUNT(foreign))
		return;
	const char *rank = tt_setting_info[f->rank].variable, *size = NULL;
	if (f->size < TT_SETTINGS && tt_setting(s, f->size))
		size = tt_setting_info[f->size].variable;
	if (size && !strcmp(tt_setting(s, f->size), "1"))
		return;
	snprintf(why, TT_LAUNCH_WHY, "%s has started this process (%s=%.10s), and Tutti does not speak its language: "
	         "start sh -c 'TUTTI_RANK=$%s TUTTI_SIZE=%s%s exec PROGRAM', with TUTTI_BOOT=HOST:PORT, where rank 0 "
	         "listens, and TUTTI_SECRET_FILE; for a job of one, with TUTTI_RANK=0 TUTTI_SIZE=1", f->name, rank,
	         tt_setting(s, f->rank), rank, size ? "$" : "N", size ? size : "");
}

static int place_torch(struct tt_settings *s, struct tt_launch *b) { return from_torch(s, b); }

/* One launcher may start another, as srun does torchrun, and salloc and srun mpirun's daemons, whose processes inherit
 * the outer one's variables: the inner one comes first. */
static const struct tt_launcher torch_elastic = { .name = "torchrun", .detect = is_elastic, .place = place_torch },
                                torch = { .name = "torchrun", .detect = is_torch, .place = place_torch },
                                ompi = { .name = "mpirun", .detect = is_ompi, .place = from_ompi },
                                *const launchers[] = { &torch_elastic, &tt_launcher_pmix, &tt_launcher_pmi2,
	                                               &tt_launcher_pmi1, &ompi, &tt_launcher_slurm, &torch };

/* A launcher that is there and cannot be asked is passed over; `why` then says that, too. A foreign one is refused
 * where none of the others is there. */
static const struct tt_launcher *find_launcher(const struct tt_settings *s, char why[TT_LAUNCH_WHY])
{
	char passed[TT_LAUNCH_WHY] = "";

	for (size_t i = 0; i < TT_COUNT(launchers); i++) {
		*why = 0;
		if (launchers[i]->detect(s, why)) {
			size_t used = strlen(why);
			snprintf(why + used, TT_LAUNCH_WHY - used, "%s%s", *passed ? "; " : "", passed);
			return launchers[i];
		}
		if (*why)
			strcpy(passed, why);
	}
	strcpy(why, passed);
	if (!*why)
		look_for_foreign(s, why);
	return NULL;
}

static bool says_tutti(const struct tt_settings *s) { return tt_setting(s, TT_RANK) || tt_setting(s, TT_SIZE); }

/* This process means a node of a list, and there is no list. */
static bool lacks_list(const struct tt_settings *s, bool nodes, char why[TT_LAUNCH_WHY])
{
	const char *node = tt_setting(s, TT_NODE), *file = tt_setting(s, TT_CONFIG);

	if (nodes || !node)
		return false;
	if (file)
		snprintf(why, TT_LAUNCH_WHY, "TUTTI_NODE is \"%.64s\", and the config file %.200s has no list of "
		         "nodes: nodes = ( { name = \"...\"; address = \"HOST:PORT\"; }, ... );", node, file);
	else
		snprintf(why, TT_LAUNCH_WHY, "TUTTI_NODE is \"%.64s\", and TUTTI_CONFIG is not set: it names the file "
		         "that lists the nodes", node);
	return true;
}

const char *tt_launch_detect(const struct tt_settings *s, bool nodes, char why[TT_LAUNCH_WHY])
{
	if (says_tutti(s)) {
		enum tt_setting set = tt_setting(s, TT_RANK) ? TT_RANK : TT_SIZE;
		snprintf(why, TT_LAUNCH_WHY, "%s is set", tt_setting_info[set].variable);
		return "tutti";
	}
	if (nodes) {
		snprintf(why, TT_LAUNCH_WHY, "the config file lists nodes");
		return "nodes";
	}
	if (lacks_list(s, nodes, why))
		return "unusable";
	const struct tt_launcher *by = find_launcher(s, why);
	if (!by && !*why)
		snprintf(why, TT_LAUNCH_WHY, "no launcher's variables are set: this process is a job of one");
	else if (!by)
		return "unusable";
	return by ? by->name : "none";
}

static int draw_secret(struct tt_settings *s)
{
	uint8_t bytes[16];
	char text[2 * sizeof bytes + 1];

	if (!tt_entropy(bytes, sizeof bytes)) /* then this job keeps to the loopback */
		return 0;
	for (size_t i = 0; i < sizeof bytes; i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	int err = tt_settings_set(s, TT_SECRET, text, "launcher");
	explicit_bzero(text, sizeof text);
	explicit_bzero(bytes, sizeof bytes);
	return err;
}

static bool can_keep_secrets(void)
{
#ifdef HAVE_LIBSODIUM
	return true;
#else
	return false; /* then the job stays on loopback */
#endif
}

/* Rank 0 has one address for all others: the one from which packets leave to the host of srun. */
static void look_outward(const struct tt_settings *s, struct tt_launch *b)
{
	const char *other = tt_setting(s, TT_SLURM_LAUNCHER);

	if (other)
		snprintf(b->toward, sizeof b->toward, strchr(other, ':') ? "[%.80s]:9" : "%.80s:9", other);
}

static int ask_launcher(struct tt_settings *s, struct tt_launch *b)
{
	char why[TT_LAUNCH_WHY];
	int err;

	b->size = 1;
	b->by = find_launcher(s, why);
	if (!b->by)
		return *why ? tt_fail(-EINVAL, "%s", why) : 0;
	tt_log(TT_DEBUG, "launcher %s: %s", b->by->name, why);
	look_outward(s, b);
	if ((err = b->by->place(s, b)) || (b->size == 1 && !tt_setting(s, TT_BOOT)))
		return err;
	if (tt_setting(s, TT_BOOT)) { /* TUTTI_BOOT gives the place, the launcher the rank */
		b->exchanges = false;
		if (b->by->end)
			b->by->end();
		return take_boots(b, tt_setting(s, TT_BOOT));
	}
	if (b->exchanges && b->rank == 0 && !tt_setting(s, TT_SECRET) && can_keep_secrets())
		err = draw_secret(s);
	return err;
}

/* Settings of this process alone come before what a file says of all. */
int tt_launch_read(struct tt_settings *s, const tutti_config *c, struct tt_launch *b)
{
	char why[TT_LAUNCH_WHY];

	b->listen_fd = -1;
	if (b->nodes && !c->boot && !says_tutti(s))
		return pick_node(s, b);
	bool listed = b->nodes != NULL;
	tt_launch_free(b);
	if (c->boot)
		return from_program(c, b);
	if (says_tutti(s))
		return from_tutti(s, b);
	if (lacks_list(s, listed, why))
		return tt_fail(-EINVAL, "%s", why);
	return ask_launcher(s, b);
}

/* "ADDRESS SECRET"; without a secret of the launcher's "ADDRESS -"; "! SENTENCE" if rank 0 gives up. */
static void make_blob(const struct tt_settings *s, const struct tt_launch *b, const char *why,
                      char blob[TT_LAUNCH_BLOB])
{
	bool drawn = tt_setting(s, TT_SECRET) && !strcmp(s->of[TT_SECRET].origin, "launcher");

	if (why)
		snprintf(blob, TT_LAUNCH_BLOB, "! %.600s", why);
	else
		snprintf(blob, TT_LAUNCH_BLOB, "%s %s", b->address, drawn ? tt_setting(s, TT_SECRET) : "-");
	for (char *at = blob; *at; at++)
		if (strchr(";|\n", *at))
			*at = ','; /* PMI has no quotes */
}

static int take_blob(struct tt_settings *s, struct tt_launch *b, char blob[TT_LAUNCH_BLOB])
{
	char *secret = strchr(blob, ' ');

	if (*blob == '!')
		return tt_fail(-ECONNABORTED, "rank 0 says: %s", blob + 1 + strspn(blob + 1, " "));
	if (!secret)
		return tt_fail(-EPROTO, "what %s says of rank 0 is no address: \"%.40s\"", b->by->name, blob);
	*secret++ = 0;
	int err = tt_address_check(blob);
	if (!err)
		err = copy_address(b, blob);
	if (!err && strcmp(secret, "-") && !tt_setting(s, TT_SECRET))
		err = tt_settings_set(s, TT_SECRET, secret, "launcher");
	return err;
}

int tt_launch_exchange(struct tt_settings *s, struct tt_launch *b, const char *why, uint64_t timeout)
{
	static const struct tt_launcher *used; /* by this process */
	char blob[TT_LAUNCH_BLOB] = "";
	int err;

	if (!b->exchanges)
		return 0;
	if (b->by->once && used == b->by)
		return tt_fail(-ENOTSUP, "this process has begun to join a job before, and %s serves the first alone: "
		               "set TUTTI_BOOT=HOST:PORT, where rank 0 listens, to join again", b->by->name);
	used = b->by;
	if (b->rank == 0)
		make_blob(s, b, why, blob);
	err = b->by->exchange(s, b, blob, timeout);
	if (b->by->end)
		b->by->end();
	if (!err && b->rank)
		err = take_blob(s, b, blob);
	b->exchanges = false;
	explicit_bzero(blob, sizeof blob);
	return err;
}

/* ---- a secret in a file ---- */

/* A Secret of Kubernetes is a file of root's for a group: whoever mounts it has chosen the group. What a user writes is
 * readable to a group by mistake, as the default of many hosts has it. */
static bool is_for_own_group(const struct stat *st)
{
	return !st->st_uid && (st->st_gid == getegid() || group_member(st->st_gid));
}

int tt_secret_check(const struct stat *st, const char *file)
{
	const mode_t others = is_for_own_group(st) ? 037 : 077;

	if (!S_ISREG(st->st_mode) || (st->st_uid && st->st_uid != geteuid()))
		return tt_fail(-EACCES, "the secret in %s is no secret: it must be a file of this user's or of root's",
		               file);
	if (st->st_mode & others)
		return tt_fail(-EACCES, "the secret in %s is no secret: others may read or write the file; chmod 600 "
		               "%s (for a Secret of Kubernetes: defaultMode: 0440)", file, file);
	return 0;
}

static int read_secret(int fd, const char *file, char text[1024])
{
	struct stat st;
	ssize_t n;
	int err;

	if (fd < 0 || fstat(fd, &st))
		return tt_fail(-errno, "cannot read the secret in %s: %s", file, strerror(errno));
	if ((err = tt_secret_check(&st, file)))
		return err;
	if ((n = read(fd, text, 1023)) < 0)
		return tt_fail(-errno, "cannot read the secret in %s: %s", file, strerror(errno));
	text[n] = 0;
	text[strcspn(text, "\r\n")] = 0;
	return *text ? 0 : tt_fail(-EINVAL, "%s holds no secret: its first line is empty", file);
}

static bool is_from_config(const struct tt_settings *s, enum tt_setting id)
{
	return !strcmp(s->of[id].origin, "file");
}

int tt_secret_from_file(struct tt_settings *s)
{
	const char *file = tt_setting(s, TT_SECRET_FILE);
	char text[1024];

	/* the environment comes before a config file */
	if (!file || (tt_setting(s, TT_SECRET) && (!is_from_config(s, TT_SECRET) || is_from_config(s, TT_SECRET_FILE))))
		return 0;
	int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO would wait */
	int err = read_secret(fd, file, text);
	if (fd >= 0)
		close(fd);
	if (!err)
		err = tt_settings_set(s, TT_SECRET, text, "secret file");
	explicit_bzero(text, sizeof text);
	return err;
}

void tt_launch_free(struct tt_launch *b)
{
	free(b->nodes);
	b->nodes = NULL;
	if (b->by && b->by->end)
		b->by->end();
}

/* From the port alone, since ranks may spell rank 0's host differently. The size of the job is not in it: rank 0
 * refuses a wrong size with a clearer sentence. Of a list of nodes the first one, as lists may grow. */
uint64_t tt_launch_job_id(const struct tt_launch *b)
{
	const char *port = strrchr(b->address, ':');
	uint64_t h = tt_hash_text(TT_HASH64, port ? port : b->address);

	if (b->own_list)
		h = tt_hash_text(h, "lists=own");
	else if (b->nodes)
		h = tt_hash_text(tt_hash_text(h, b->nodes[0].name), b->nodes[0].address);
	return h;
}
