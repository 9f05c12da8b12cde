/* import.c - memory of another process's device, mapped here: a GET on one host copies from device to device
 *
 *      asker                                            owner
 *      EXPORT {number, region, socket}     -->          sends the descriptor of the allocation to that socket
 *              <-- EXPORTED {number, errno}             behind the descriptor
 *      maps it, as an errand; the op waits
 *
 * The owner has made the descriptor when the window was opened, so it answers at once. The socket's name is random, and
 * the kernel says whose process has sent a descriptor. Where anything fails, the op goes in pieces instead. A mapping
 * keeps the pages, so a copy from it harms nothing, whatever becomes of the owner. */
#include "device/device_private.h"
#include "transport/fork.h"
#include <stdlib.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST = 32, NAME = 16 };
enum import_state { ASKED, COME, MAPPING, MAPPED, FAILED };

struct tt_import {
	struct tt_list link;        /* in tt_devices.imports, the last used is the last; or in .unmapped */
	struct tt_member *owner;    /* NULL: it has ended */
	uint32_t number;
	enum import_state state;
	struct tt_allocation is;
	int gpu, fd;                /* fd: -1: none */
	void *at;
	unsigned uses;
	bool ends;                  /* it goes after the last use: its memory is not lent any more */
	uint64_t failed_at;
};

/* ---- the socket ---- */

static socklen_t put_address(struct sockaddr_un *a, const uint8_t name[NAME])
{
	*a = (struct sockaddr_un){ .sun_family = AF_UNIX };
	memcpy(a->sun_path + 1, "tutti-gpu-", 10); /* of the abstract namespace */
	memcpy(a->sun_path + 11, name, NAME);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 11 + NAME);
}

/* False: there is none. */
static bool open_socket(struct tt_devices *d)
{
	struct sockaddr_un a;
	int on = 1;

	if (d->socket > 0)
		return true;
	d->socket = tt_fork_socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK);
	if (d->socket < 0)
		return false;
	tt_entropy(d->socket_name, NAME);
	socklen_t len = put_address(&a, d->socket_name);
	if (!bind(d->socket, (const struct sockaddr *)&a, len) &&
	    !setsockopt(d->socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on))
		return true;
	tt_fork_close(d->socket);
	d->socket = 0;
	return false;
}

union control {
	struct cmsghdr align;
	char room[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
};

static int send_fd(struct tt_devices *d, const uint8_t to[NAME], uint32_t number, int fd)
{
	struct sockaddr_un a;
	union control control = { .room = { 0 } };
	struct iovec bytes = { &number, sizeof number }; /* both ends are on one host */
	struct msghdr m = { .msg_name = &a, .msg_namelen = put_address(&a, to), .msg_iov = &bytes, .msg_iovlen = 1,
		            .msg_control = control.room, .msg_controllen = CMSG_SPACE(sizeof fd) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	*c = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd) };
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	if (!open_socket(d))
		return -ENOTCONN;
	return sendmsg(d->socket, &m, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* Reads one packet. False: there is none. *fd is -1 unless a process of this user has sent a descriptor. */
static bool read_fd(struct tt_devices *d, uint32_t *number, int *fd)
{
	union control control;
	struct iovec bytes = { number, sizeof *number };
	struct msghdr m = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control.room,
		            .msg_controllen = sizeof control.room };
	struct ucred who = { .uid = (uid_t)-1 };

	*fd = -1;
	*number = 0;
	if (d->socket <= 0 || recvmsg(d->socket, &m, MSG_CMSG_CLOEXEC) < 0)
		return false;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
			memcpy(fd, CMSG_DATA(c), sizeof *fd);
		else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS)
			memcpy(&who, CMSG_DATA(c), sizeof who);
	*fd = tt_high_file(*fd);
	if (*fd >= 0 && who.uid != geteuid()) {
		close(*fd);
		*fd = -1;
	}
	return true;
}

/* ---- what is mapped ---- */

static struct tt_import *find_import(const struct tt_devices *d, const struct tt_member *owner, uint64_t buffer,
                                     int gpu)
{
	tt_each_of(struct tt_import, link, i, &d->imports)
		if (i->owner == owner && i->is.buffer == buffer && i->gpu == gpu && !i->ends)
			return i;
	return NULL;
}

/* Unmaps it later, as an errand. A mapping keeps the pages, so it goes with the window that it was made for. */
static void drop(struct tt_job *job, struct tt_import *i)
{
	tt_list_remove(&i->link);
	tt_list_append(&tt_devices(job)->unmapped, &i->link);
	tt_errand(job);
}

/* False: all places are taken, by what is in use. */
static bool make_room(struct tt_job *job)
{
	struct tt_import *oldest = NULL;
	int n = 0;

	tt_each_of(struct tt_import, link, i, &tt_devices(job)->imports) {
		n++;
		if (!oldest && !i->uses && (i->state == MAPPED || i->state == FAILED))
			oldest = i;
	}
	if (n < MOST)
		return true;
	if (oldest)
		drop(job, oldest);
	return oldest;
}

static struct tt_import *ask_for(struct tt_transfer *t, const struct tt_allocation *is)
{
	struct tt_devices *d = tt_devices(t->job);
	uint8_t bytes[9 + NAME];
	struct tt_pack p = tt_pack(bytes, sizeof bytes);
	struct tt_import *i = open_socket(d) && make_room(t->job) ? calloc(1, sizeof *i) : NULL;

	if (!i)
		return NULL;
	*i = (struct tt_import){ .owner = t->member, .number = ++d->ids, .is = *is, .gpu = t->to.gpu, .fd = -1 };
	tt_list_append(&d->imports, &i->link);
	tt_put8(&p, TT_EXPORT);
	tt_put32(&p, i->number);
	tt_put32(&p, tt_staged_id(t->from.key));
	tt_put_bytes(&p, d->socket_name, NAME);
	tt_send(t->member, bytes, sizeof bytes, NULL, 0);
	return i;
}

/* The transfer becomes a copy within this process. */
static void read_in_place(struct tt_transfer *t, struct tt_import *i)
{
	struct tt_devices *d = tt_devices(t->job);

	tt_list_remove(&i->link);
	tt_list_append(&d->imports, &i->link);
	t->from = (struct tt_side){ .kind = TT_SIDE_DEVICE, .gpu = t->to.gpu,
		                    .at = (char *)i->at + i->is.offset + t->from.offset };
	t->direct = true;
	t->unit = TT_DIRECT;
	t->import = i;
	i->uses++;
}

int tt_import_use(struct tt_transfer *t)
{
	struct tt_devices *d = tt_devices(t->job);
	struct tt_allocation is;
	struct tt_import *i;

	if (t->serves || tt_world || t->from.kind != TT_SIDE_PEER || t->to.kind != TT_SIDE_DEVICE ||
	    !tt_member_net(t->member)->host_only || !tt_staged_allocation(t->from.key, &is) ||
	    is.offset > is.len || t->from.offset + t->len > is.len - is.offset)
		return -1;
	i = find_import(d, t->member, is.buffer, t->to.gpu);
	if (i && i->state == FAILED && tt_now() - i->failed_at > t->job->silence) {
		drop(t->job, i); /* what has failed once may work now */
		i = NULL;
	}
	if (!i && !(i = ask_for(t, &is)))
		return -1;
	if (i->state == MAPPED)
		read_in_place(t, i);
	return i->state == FAILED ? -1 : i->state == MAPPED;
}

void tt_import_done(struct tt_transfer *t)
{
	struct tt_import *i = t->import;

	t->import = NULL;
	if (i && !--i->uses && i->ends)
		drop(t->job, i);
}

/* ---- messages ---- */

void tt_import_take_export(struct tt_member *from, struct tt_pack *p)
{
	uint32_t words[] = { tt_get32(p), 0 }, region = tt_get32(p);
	uint8_t name[NAME];
	const struct tt_staged *s = tt_staged_find(from->job, region);
	int err = -ESTALE;

	tt_get_bytes(p, name, sizeof name);
	if (p->bad)
		return;
	if (s && s->fd > 0)
		err = send_fd(tt_devices(from->job), name, words[0], s->fd);
	words[1] = (uint32_t)-err;
	tt_send_words(from, TT_EXPORTED, words, 2, NULL, 0);
}

static void take_fd(struct tt_devices *d, uint32_t number, int fd)
{
	tt_each_of(struct tt_import, link, i, &d->imports)
		if (i->number == number && i->state == ASKED && i->fd < 0) {
			i->fd = fd;
			return;
		}
	if (fd >= 0)
		close(fd);
}

void tt_import_take_exported(struct tt_member *from, struct tt_pack *p)
{
	struct tt_devices *d = tt_devices(from->job);
	uint32_t number = tt_get32(p), err = tt_get32(p), n;
	int fd;

	while (!p->bad && read_fd(d, &n, &fd))
		take_fd(d, n, fd);
	tt_each_of(struct tt_import, link, i, &d->imports) {
		if (i->number != number || i->owner != from || i->state != ASKED)
			continue;
		i->state = err || i->fd < 0 ? FAILED : COME;
		i->failed_at = tt_now();
		d->fresh = true;
		tt_errand(from->job);
	}
}

/* ---- the errand, and ends ---- */

static void map_one(struct tt_job *job, struct tt_import *i)
{
	int fd = i->fd, err;

	i->state = MAPPING;
	i->fd = -1;
	i->uses++;
	tt_ticket_lock_release(&job->engine.lock);
	err = tt_gpu_import(i->gpu, fd, i->is.len, &i->at);
	tt_ticket_lock_take(&job->engine.lock);
	i->state = err ? FAILED : MAPPED;
	i->failed_at = tt_now();
	tt_devices(job)->fresh = true;
	if (!--i->uses && i->ends)
		drop(job, i);
	if (err)
		tt_log(TT_DEBUG, "memory of a GPU of another process goes through the host: %s", tt_why());
}

static struct tt_import *find_come(const struct tt_devices *d)
{
	tt_each_of(struct tt_import, link, i, &d->imports)
		if (i->state == COME)
			return i;
	return NULL;
}

static void unmap(struct tt_import *i)
{
	if (i->at)
		tt_gpu_unimport(i->at);
	if (i->fd >= 0)
		close(i->fd);
	free(i);
}

bool tt_imports_map(struct tt_job *job)
{
	struct tt_devices *d = tt_devices(job);
	struct tt_list *node;
	struct tt_import *i;
	bool any = false;

	while ((i = find_come(d))) {
		map_one(job, i);
		any = true;
	}
	while ((node = tt_list_pop(&d->unmapped))) {
		tt_ticket_lock_release(&job->engine.lock);
		unmap(tt_container_of(node, struct tt_import, link));
		tt_ticket_lock_take(&job->engine.lock);
	}
	return any;
}

static void end(struct tt_job *job, struct tt_import *i)
{
	i->ends = true;
	if (!i->uses)
		drop(job, i);
}

void tt_imports_end(struct tt_member *owner)
{
	tt_each_of(struct tt_import, link, i, &tt_devices(owner->job)->imports) {
		if (i->owner != owner)
			continue;
		i->owner = NULL;
		end(owner->job, i);
	}
}

void tt_device_forget(struct tt_member *owner, const struct tt_key *key)
{
	struct tt_allocation is;

	if (!tt_key_is_staged(key) || !tt_staged_allocation(key, &is))
		return;
	tt_each_of(struct tt_import, link, i, &tt_devices(owner->job)->imports)
		if (i->owner == owner && i->is.buffer == is.buffer && !i->ends)
			end(owner->job, i);
}

void tt_imports_close(struct tt_devices *d, uint64_t stuck)
{
	struct tt_list *node;

	while ((node = tt_list_pop(&d->imports)) || (node = tt_list_pop(&d->unmapped))) {
		struct tt_import *i = tt_container_of(node, struct tt_import, link);
		if (stuck >> i->gpu & 1)
			i->at = NULL; /* a copy may read it */
		unmap(i);
	}
	if (d->socket > 0)
		tt_fork_close(d->socket);
	d->socket = 0;
}
