/* munge.c - rank 0's blob, sealed by MUNGE: only processes of this user, on hosts that share Slurm's key, can open it
 *
 *      rank r <-- tutti JOB.STEP \n ------- rank 0
 *      rank r -- MUNGE:(JOB.STEP r) \n --> rank 0          rank r <-- MUNGE:(blob) \n -- rank 0, once all have asked
 *
 * Another job may have the port that derives from the step: rank 0 then takes one of the next ones, and who meets
 * somebody else there, or nobody, asks at the next.
 * The answers go out together, so that rank 0 can say who is missing, and the others hear that from it. A credential
 * can be opened once on each host: each rank gets its own.
 */
#include "launch/launcher.h"
#include "transport/dial.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
	SEALED = 4096, GUESTS_MORE = 64, UID_RESTRICTION = 9 /* of munge_opt_t */, TRY_MS = 50, CONNECT_MS = 2000,
	PORTS = 4, FILES_LEFT = 4 /* for the library, which connects to munged */
};

static struct { /* munge.h of munge 0.5: plain numbers and pointers */
	void *library;
	int (*encode)(char **cred, void *ctx, const void *buf, int len);
	int (*decode)(const char *cred, void *ctx, void **buf, int *len, uid_t *, gid_t *);
	const char *(*text)(int err);
	void *(*create)(void);
	void (*destroy)(void *ctx);
	int (*set)(void *ctx, int option, ...);
} munge;

static int load(void)
{
	const struct tt_symbol wanted[] = {
		{ "munge_encode", &munge.encode }, { "munge_decode", &munge.decode }, { "munge_strerror", &munge.text },
		{ "munge_ctx_create", &munge.create }, { "munge_ctx_destroy", &munge.destroy },
		{ "munge_ctx_set", &munge.set },
	};
	const char *lacks = NULL;

	if (!munge.library)
		munge.library = tt_library_load("libmunge.so.2", RTLD_NOW | RTLD_LOCAL, wanted, TT_COUNT(wanted),
		                                &lacks);
	if (munge.library)
		return 0;
	return lacks ? tt_fail(-ENOENT, "libmunge.so.2 has no %s", lacks)
	             : tt_fail(-ENOENT, "libmunge.so.2 is not on this host (apt install libmunge2)");
}

int tt_munge_seal(const char *text, char *sealed, size_t size)
{
	char *cred = NULL;
	int err = load();
	void *ctx = err ? NULL : munge.create();

	if (err)
		return err;
	if (!ctx)
		return tt_fail(-ENOMEM, "no memory for a credential of MUNGE");
	err = munge.set(ctx, UID_RESTRICTION, geteuid());
	if (!err)
		err = munge.encode(&cred, ctx, text, (int)strlen(text));
	if (err)
		err = tt_fail(-EACCES, "MUNGE makes no credential: %s", munge.text(err));
	else if (strlen(cred) >= size)
		err = tt_fail(-EMSGSIZE, "a credential of MUNGE is %zu bytes long", strlen(cred));
	else
		strcpy(sealed, cred);
	free(cred);
	munge.destroy(ctx);
	return err;
}

int tt_munge_open(const char *sealed, char *text, size_t size)
{
	void *inside = NULL;
	int len = 0, err = load();
	uid_t uid = (uid_t)-1;
	gid_t gid;

	if (err)
		return err;
	err = munge.decode(sealed, NULL, &inside, &len, &uid, &gid);
	if (err)
		err = tt_fail(-EACCES, "MUNGE does not open a credential: %s", munge.text(err));
	else if (uid != geteuid())
		err = tt_fail(-EACCES, "a credential of MUNGE is of user %u, not of this one", uid);
	else if ((size_t)len >= size)
		err = tt_fail(-EMSGSIZE, "a credential of MUNGE holds %d bytes", len);
	else
		snprintf(text, size, "%.*s", len, (char *)inside);
	if (inside)
		explicit_bzero(inside, (size_t)len);
	free(inside);
	return err;
}

/* ---- rank 0 ---- */

struct guest {
	int fd, rank, poll; /* -1: a free place; has not asked yet */
	uint64_t since;
	unsigned long long nonce; /* of the process that asks */
	size_t n;
	char asked[SEALED];
};

struct host {
	const struct tt_meeting *m;
	int fd, room, here; /* places for guests; those that have asked */
	long files;         /* that this process may have */
	unsigned strangers; /* that were turned away */
	uint64_t closed;    /* until then nobody is accepted */
	struct guest *guests;
	struct pollfd *polls;
};

static void dismiss(struct guest *g)
{
	close(g->fd);
	g->fd = -1;
}

/* The guest hears why, too: a rank whose clock is wrong, or whose munged has another key, is a stranger. */
static void turn_away(struct host *h, struct guest *g, const char *why)
{
	char line[300], name[96] = "?";
	union tt_socket_address from = { 0 };
	socklen_t size = sizeof from;

	if (!getpeername(g->fd, &from.any, &size))
		tt_resolve_name(&from, name, sizeof name);
	if (!h->strangers++)
		tt_log(TT_WARN, "a stranger at the rendezvous, %s, is turned away, others are counted: %s", name, why);
	snprintf(line, sizeof line, "! %.250s\n", why);
	(void)!send(g->fd, line, strlen(line), MSG_NOSIGNAL | MSG_DONTWAIT);
	dismiss(g);
}

/* Two processes are this rank. One process that asks once more has lost its connection, or somebody has passed its
 * question on: the new connection takes the place of the old one. */
static bool is_twice(struct host *h, const struct guest *g, int rank)
{
	for (int i = 0; i < h->room; i++) {
		struct guest *other = &h->guests[i];
		if (other->fd < 0 || other->rank != rank)
			continue;
		if (other->nonce != g->nonce)
			return true;
		h->here--;
		other->rank = -1;
		dismiss(other);
	}
	return false;
}

static int take_question(struct host *h, struct guest *g)
{
	char text[200] = "", job[64] = "";
	int rank = -1, err;

	g->asked[strcspn(g->asked, "\n")] = 0;
	err = tt_munge_open(g->asked, text, sizeof text);
	if (!err && (sscanf(text, "%63s %d %llx", job, &rank, &g->nonce) != 3 || rank < 1 || rank >= h->m->size))
		err = tt_fail(-EPROTO, "it asks as nobody of this step");
	if (!err && strcmp(job, h->m->job) != 0)
		err = tt_fail(-EPROTO, "it belongs to step %.60s and this rank to step %s", job, h->m->job);
	if (err) {
		turn_away(h, g, tt_why());
		return 0;
	}
	bool twice = is_twice(h, g, rank);
	g->rank = rank;
	if (twice)
		return tt_fail(-EEXIST, "rank %d of Slurm's step %s was started twice", rank, h->m->job);
	h->here++;
	return 0;
}

static int hear(struct host *h, struct guest *g)
{
	ssize_t n = recv(g->fd, g->asked + g->n, sizeof g->asked - 1 - g->n, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (g->rank >= 0) { /* nothing more is expected */
		if (n <= 0) {
			h->here--;
			g->rank = -1;
			dismiss(g);
		}
		return 0;
	}
	g->n += n > 0 ? (size_t)n : 0;
	g->asked[g->n] = 0;
	if (n > 0 && strchr(g->asked, '\n'))
		return take_question(h, g);
	if (n <= 0 || g->n + 1 == sizeof g->asked)
		dismiss(g);
	return 0;
}

static void say_who(const char *job, char text[100]) { snprintf(text, 100, "tutti %.60s\n", job); }

static struct guest *find_place(const struct host *h)
{
	for (int i = 0; i < h->room; i++)
		if (h->guests[i].fd < 0)
			return &h->guests[i];
	return NULL;
}

/* There is no place, or no file. Ranks ask at once: who has not asked for long goes. */
static int make_room(struct host *h)
{
	const uint64_t idle = TT_MS * CONNECT_MS;
	struct guest *oldest = NULL;

	for (int i = 0; i < h->room; i++) {
		struct guest *g = &h->guests[i];
		if (g->fd >= 0 && g->rank < 0 && (!oldest || g->since < oldest->since))
			oldest = g;
	}
	if (!oldest)
		return tt_fail(-EMFILE, "rank 0 may have %ld open files, too few to hear all %d ranks of Slurm's step "
		               "%s: raise the limit with ulimit -n, to %ld at least", h->files, h->m->size, h->m->job,
		               h->files + h->m->size - 1 - h->here);
	if (tt_now() - oldest->since >= idle)
		turn_away(h, oldest, "it has asked nothing for 2 s");
	else
		h->closed = oldest->since + idle;
	return 0;
}

static int admit(struct host *h)
{
	char who[100];
	struct guest *g;

	say_who(h->m->job, who);
	while ((g = find_place(h))) {
		int fd = tt_high_file(accept4(h->fd, NULL, NULL, SOCK_CLOEXEC));
		if (fd < 0 && errno != EMFILE && errno != ENFILE)
			return 0;
		if (fd < 0 || fd >= h->files - FILES_LEFT) {
			close(fd);
			break;
		}
		*g = (struct guest){ .fd = fd, .rank = -1, .since = tt_now() };
		if (send(fd, who, strlen(who), MSG_NOSIGNAL) < 0)
			dismiss(g);
	}
	return make_room(h);
}

/* "s 1, 3 of 4 of Slurm's step 71.0" */
static void name_missing(const struct host *h, char text[200])
{
	int shown = 0, more = 0;
	char names[100] = "";

	for (int rank = 1; rank < h->m->size; rank++) {
		bool here = false;
		for (int i = 0; i < h->room && !here; i++)
			here = h->guests[i].fd >= 0 && h->guests[i].rank == rank;
		if (!here && shown++ < 8)
			snprintf(names + strlen(names), sizeof names - strlen(names), "%s%d", *names ? ", " : "", rank);
		more = shown - 8;
	}
	if (more > 0)
		snprintf(names + strlen(names), sizeof names - strlen(names), " and %d more", more);
	snprintf(text, 200, "%s %s of %d of Slurm's step %.60s", shown > 1 ? "s" : "", names, h->m->size, h->m->job);
}

static int gather(struct host *h)
{
	uint64_t begun = tt_now(), end = begun + h->m->timeout, doubt = tt_launch_doubt(h->m->silence, end), now;
	char who[200];
	int err = 0;

	while (!err && h->here < h->m->size - 1) {
		if ((now = tt_now()) >= end) {
			name_missing(h, who);
			return tt_fail(-ETIMEDOUT, "rank%s did not join within %llu ms", who,
			               (unsigned long long)(h->m->timeout / TT_MS));
		}
		if (now >= doubt) {
			name_missing(h, who);
			tt_log(TT_WARN, "joining waits for rank%s", who);
			doubt = end;
		}
		bool closed = now < h->closed;
		uint64_t due = closed ? tt_min(doubt, h->closed) : doubt;
		h->polls[0] = (struct pollfd){ .fd = closed ? -1 : h->fd, .events = POLLIN };
		int n = 1; /* poll() takes no more than there may be files */
		for (int i = 0; i < h->room; i++)
			if (h->guests[i].fd >= 0)
				h->polls[h->guests[i].poll = n++] =
					(struct pollfd){ .fd = h->guests[i].fd, .events = POLLIN };
		if ((n = tt_hook_poll_files(h->polls, n, due)) == -EINTR)
			return n;
		if (n <= 0)
			continue;
		for (int i = 0; !err && i < h->room; i++)
			if (h->guests[i].fd >= 0 && h->polls[h->guests[i].poll].revents)
				err = hear(h, &h->guests[i]);
		if (!err && h->polls[0].revents)
			err = admit(h);
	}
	return err;
}

static bool answer(const struct guest *g, const char *blob)
{
	char sealed[SEALED];

	if (tt_munge_seal(blob, sealed, sizeof sealed - 1))
		return false;
	strcat(sealed, "\n");
	return send(g->fd, sealed, strlen(sealed), MSG_NOSIGNAL) == (ssize_t)strlen(sealed);
}

static int serve(struct host *h, char blob[TT_LAUNCH_BLOB])
{
	int err = gather(h), failed = err;
	struct tt_sentence why = tt_last_sentence();

	if (err)
		snprintf(blob, TT_LAUNCH_BLOB, "! %.600s", why.text);
	if (h->strangers > 1)
		tt_log(TT_WARN, "%u more strangers at the rendezvous were turned away", h->strangers - 1);
	for (int i = 0; i < h->room; i++)
		if (h->guests[i].fd >= 0) {
			if (h->guests[i].rank > 0 && !answer(&h->guests[i], blob) && !err)
				err = tt_fail(-EIO, "rank %d of Slurm's step %s cannot be told where rank 0 listens: "
				              "it has gone, or MUNGE fails", h->guests[i].rank, h->m->job);
			close(h->guests[i].fd);
		}
	if (failed)
		tt_remember(why.text);
	return err;
}

static int be_host(const struct tt_meeting *m, char blob[TT_LAUNCH_BLOB])
{
	struct host h = { .m = m, .room = m->size + GUESTS_MORE, .files = INT32_MAX };
	struct rlimit files;
	struct tt_net_config c = { .listen_fd = -1, .secret = "any interface",
		                   .ports = { (int)m->port, (int)m->port + PORTS - 1 } };

	h.fd = tt_listen_open(&c);
	if (h.fd < 0)
		return tt_fail(h.fd, "rank 0 cannot answer the others at a port from %u to %u, which derive from "
		               "Slurm's job and step %s: are they other jobs'? TUTTI_BOOT=HOST:PORT takes another",
		               m->port, m->port + PORTS - 1, m->job);
	if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur < INT32_MAX)
		h.files = (long)files.rlim_cur;
	h.guests = calloc((size_t)h.room, sizeof *h.guests);
	h.polls = calloc((size_t)h.room + 1, sizeof *h.polls);
	for (int i = 0; h.guests && i < h.room; i++)
		h.guests[i].fd = -1;
	int err = h.guests && h.polls ? serve(&h, blob) : tt_fail(-ENOMEM, "no memory for %d ranks", m->size);
	free(h.guests);
	free(h.polls);
	close(h.fd);
	return err;
}

/* ---- the others ---- */

static int connect_in_time(int fd, const struct addrinfo *to)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	socklen_t size = sizeof(int);
	int err, n;

	if (connect(fd, to->ai_addr, to->ai_addrlen) && errno != EINPROGRESS)
		return -errno;
	if ((n = tt_hook_poll_files(&p, 1, tt_now() + TT_MS * CONNECT_MS)) <= 0)
		return n ? n : -ETIMEDOUT;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &size))
		return -errno;
	fcntl(fd, F_SETFL, 0); /* sends block */
	return -err;
}

/* Tried again, unless there is no such host: -EHOSTUNREACH. */
static int connect_to(const char *host, unsigned port)
{
	struct addrinfo *found;
	char address[100];
	int fd = -1;

	snprintf(address, sizeof address, "%s:%u", host, port);
	int err = tt_resolve(address, 0, &found);
	if (err)
		return err;
	for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
		fd = tt_high_file(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
		if (fd < 0) {
			err = -errno;
			continue;
		}
		tt_dial_spare_port(fd);
		if (!(err = connect_in_time(fd, a)))
			break;
		close(fd);
		fd = -1;
		if (err == -EINTR)
			break;
	}
	freeaddrinfo(found);
	if (fd >= 0 || err == -EINTR)
		return fd >= 0 ? fd : err;
	return tt_fail(-ECONNREFUSED, "%s: %s", address, strerror(-err));
}

/* A line. -EPIPE: the other side hangs up first, or the time ends. -EINTR: of the hook. */
static int read_line(int fd, char line[SEALED], uint64_t end)
{
	size_t n = 0;
	int ready = 1;

	while (ready > 0 && n + 1 < SEALED) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		ready = tt_hook_poll_files(&p, 1, end);
		ssize_t got = ready > 0 ? recv(fd, line + n, SEALED - 1 - n, 0) : 0;
		if (got <= 0)
			break;
		n += (size_t)got;
		line[n] = 0;
		if (line[n - 1] == '\n')
			return 0;
	}
	return ready == -EINTR ? ready : -EPIPE;
}

/* -EPROTO: the right program is there, and does not take this rank for one of the step's */
static int ask_once(const struct tt_meeting *m, unsigned port, uint64_t nonce, char blob[TT_LAUNCH_BLOB], uint64_t end)
{
	char text[120], sealed[SEALED];
	int fd = connect_to(m->host, port), err;

	if (fd < 0)
		return fd;
	say_who(m->job, text);
	err = read_line(fd, sealed, tt_min(end, tt_now() + TT_MS * CONNECT_MS));
	if (err || strcmp(sealed, text) != 0) {
		close(fd);
		return err == -EINTR ? err : tt_fail(-EPIPE, "another program is at %s:%u", m->host, port);
	}
	snprintf(text, sizeof text, "%.60s %d %llx", m->job, m->rank, (unsigned long long)nonce);
	if (!(err = tt_munge_seal(text, sealed, sizeof sealed - 1))) {
		strcat(sealed, "\n");
		if (send(fd, sealed, strlen(sealed), MSG_NOSIGNAL) != (ssize_t)strlen(sealed))
			err = -EPIPE;
		else
			err = read_line(fd, sealed, end);
		if (err == -EPIPE)
			err = tt_fail(err, "rank 0 at %s:%u does not answer", m->host, port);
	}
	close(fd);
	if (err)
		return err;
	sealed[strcspn(sealed, "\n")] = 0;
	if (*sealed == '!')
		return tt_fail(-EPROTO, "rank 0 at %s:%u turns this rank away:%.250s: have both hosts one key of "
		               "MUNGE, and the right time?", m->host, port, sealed + 1);
	err = tt_munge_open(sealed, blob, TT_LAUNCH_BLOB);
	return err ? -EPROTO : 0;
}

static bool is_final(int err) { return err == -EACCES || err == -EHOSTUNREACH || err == -EINTR; }

static int be_guest(const struct tt_meeting *m, char blob[TT_LAUNCH_BLOB])
{
	uint64_t end = tt_now() + m->timeout + TT_MS * CONNECT_MS; /* rank 0 gives up first, and says who is missing */
	uint64_t doubt = tt_launch_doubt(m->silence, end), nonce;
	struct tt_parking parking = { 0 };
	struct tt_sentence refusal = { "" };
	unsigned at = 0, last = m->port + PORTS - 1;
	int err;

	tt_entropy(&nonce, sizeof nonce);
	while ((err = ask_once(m, m->port + at, nonce, blob, end)) && !is_final(err) && tt_now() < end) {
		if (err == -EPROTO)
			refusal = tt_last_sentence();
		if ((at = (at + 1) % PORTS) == 0)
			tt_park(&parking, tt_now() + TRY_MS * TT_MS);
		if ((err = tt_hook_poll()))
			break;
		if (tt_now() < doubt || doubt == end)
			continue;
		tt_log(TT_WARN, "joining waits for rank 0 of Slurm's step %s at %s:%u to %u: %s", m->job, m->host,
		       m->port, last, tt_why());
		doubt = end;
	}
	if (!err || is_final(err))
		return err;
	if (*refusal.text)
		return tt_fail(-EACCES, "%s", refusal.text);
	return tt_fail(-ETIMEDOUT, "rank 0 of Slurm's step %s was not found at %s:%u to %u within %llu ms (%.150s): "
	               "does it run, and does a firewall let the ports through?", m->job, m->host, m->port, last,
	               (unsigned long long)(m->timeout / TT_MS), tt_last_sentence().text);
}

int tt_munge_exchange(const struct tt_meeting *m, char blob[TT_LAUNCH_BLOB])
{
	return m->rank ? be_guest(m, blob) : be_host(m, blob);
}
