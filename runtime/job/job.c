/* job.c - joining and leaving a job */
#include "runtime.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	SECRET_MIN = 16, MEMBERS_MAX = 65536,
	ALL = 1, /* the uid of the group of all ranks */
};

static void leave_job(struct tt_job *);

const char *tutti_version(void) { return TT_VERSION; }
const char *tutti_why(void) { return tt_why(); }
int tutti_rank(const tutti *group) { return group->me; }
int tutti_size(const tutti *group) { return group->n; }
int tutti_local_rank(const tutti *group) { return group->job->local_rank; }
int tutti_local_size(const tutti *group) { return group->job->local_size; }

/* ---- joining ---- */

/* A fork's child shares our sockets: a word from it would garble them. The kernel zeroes this page for it. */
static int mark_parent(struct tt_job *job)
{
	void *page = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return tt_fail(-ENOMEM, "no memory for a job");
	job->here = page;
	madvise(page, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK);
	*job->here = 1;
	return 0;
}

int tt_is_mine(const struct tt_job *job)
{
	if (*job->here)
		return 0;
	return tt_fail(-ECHILD, "this process is a fork's child: only its parent is a rank of the job; the child may leave or exec");
}

int tt_usable(struct tt_job *job)
{
	int number = atomic_load(&job->quitting);

	if (number)
		return tt_fail(-ESHUTDOWN, "this process leaves the job: signal %d asked it to", number);
	return tt_is_mine(job);
}

/* Programs of an earlier header have a shorter one, of a later header a longer one: what we do not know must be unset. */
static int read_config(const tutti_config *from, tutti_config *to)
{
	memset(to, 0, sizeof *to);
	if (!from)
		return 0;
	if (from->size < offsetof(tutti_config, node))
		return tt_fail(-EINVAL, "tutti_config.size is %zu: set it to sizeof(tutti_config)", from->size);
	for (size_t i = sizeof *to; i < from->size; i++)
		if (((const char *)from)[i])
			return tt_fail(-EINVAL, "tutti_config has a member set that Tutti %s does not know: was it built with a newer tutti.h?", TT_VERSION);
	memcpy(to, from, tt_min(from->size, sizeof *to));
	return 0;
}

static int apply_config(struct tt_settings *s, const tutti_config *c)
{
	char number[16];
	int err = 0;

	if (c->file)
		err = tt_settings_set(s, TT_CONFIG, c->file, "program");
	if (!err && c->node)
		err = tt_settings_set(s, TT_NODE, c->node, "program");
	if (!err && c->transports)
		err = tt_settings_set(s, TT_TRANSPORTS, c->transports, "program");
	if (!err && c->secret)
		err = tt_settings_set(s, TT_SECRET, c->secret, "program");
	if (!err && c->boot)
		err = tt_settings_set(s, TT_BOOT, c->boot, "program");
	if (!err && c->deadline_ms) {
		snprintf(number, sizeof number, "%d", c->deadline_ms);
		err = tt_settings_set(s, TT_DEADLINE, number, "program");
	}
	return err;
}

/* By the clock, so that a later life has a later one, on whichever host: in 64ths of a second, never 0. */
uint32_t tt_epoch_now(void)
{
	uint32_t epoch = (uint32_t)(tt_calendar() / (1000000000u / 64));

	return epoch ? epoch : 1;
}

static int resolve_settings(struct tt_job *job, const tutti_config *given, struct tt_boot *boot)
{
	long deadline = 30000;
	tutti_config config;
	const char *file;
	int err;

	if ((err = read_config(given, &config)) || (err = tt_settings_load(&job->settings)) || (err = apply_config(&job->settings, &config)))
		return err;
	if ((file = tt_setting(&job->settings, TT_CONFIG)) &&
	    (err = tt_config_load(&job->settings, file, &boot->nodes, &boot->size)))
		return err;
	if ((err = tt_setting_int(&job->settings, TT_DEADLINE, 10, 86400000, &deadline)) ||
	    (err = tt_allreduce_check(&job->settings)) || (err = tt_boot_read(&job->settings, &config, boot)))
		return err;
	if (boot->size > MEMBERS_MAX)
		return tt_fail(-EINVAL, "%d ranks are more than the %d that a job may have", boot->size, MEMBERS_MAX);
	job->deadline = (uint64_t)deadline * TT_MS;
	job->rank = boot->rank;
	job->size = boot->size;
	job->launched = job->size;
	job->capacity = job->size + (job->size > 1 && !boot->nodes ? (int)tt_max(16, (size_t)job->size / 2) : 0);
	job->unnumbered = boot->unnumbered;
	if (job->unnumbered)
		job->rank = job->capacity - 1; /* until it has a number */
	job->epoch = tt_epoch_now();
	return tt_setting_switch(&job->settings, TT_MINORITY, &job->minority);
}

static int make_members(struct tt_job *job, const struct tt_boot *boot)
{
	char addr[96];
	int size = job->size;

	job->members = calloc((size_t)job->capacity, sizeof *job->members);
	if (!job->members)
		return tt_fail(-ENOMEM, "no memory for %d ranks", job->capacity);
	job->size = 0;
	tt_late_grow(job, size);
	job->members[job->rank].job = job;
	job->members[job->rank].addr = job->members[job->rank].why = ""; /* it may be beyond those that are known */
	job->members[job->rank].rank = job->rank;
	job->members[job->rank].epoch = job->epoch;
	for (int i = 0; boot->nodes && i < job->size; i++) {
		snprintf(addr, sizeof addr, "tcp:%s", boot->nodes[i].address);
		job->members[i].addr = tt_text_keep(job, addr);
	}
	return 0;
}

/* All ranks, under the same slot everywhere: it is each one's first. */
static int make_group(struct tt_job *job)
{
	int err = tt_group_new(job, job->size, &job->all);

	if (err)
		return err;
	job->all->uid = ALL;
	job->all->lineage = true;
	for (int i = 0; i < job->size; i++)
		tt_group_seat(job->all, i, i, job->members[i].epoch, job->all->slot);
	return 0;
}

static int read_ports(const struct tt_settings *s, int ports[2])
{
	const char *text = tt_setting(s, TT_PORTS);
	char rest;
	int n;

	ports[0] = ports[1] = 0;
	if (!text)
		return 0;
	n = sscanf(text, "%d-%d%c", &ports[0], &ports[1], &rest);
	if (n == 1 && !strpbrk(text, "-"))
		ports[1] = ports[0];
	else if (n != 2)
		ports[0] = -1;
	if (ports[0] < 1 || ports[1] < ports[0] || ports[1] > 65535)
		return tt_fail(-EINVAL, "%s=%s is not a range of ports: write FIRST-LAST, from 1 to 65535", tt_setting_name(s, TT_PORTS), text);
	return 0;
}

static int check_secret(const struct tt_job *job, const struct tt_boot *boot, const char *secret)
{
	if (secret && strlen(secret) < SECRET_MIN)
		return tt_fail(-EINVAL, "%s has %zu bytes: at least %d are needed", tt_setting_name(&job->settings, TT_SECRET), strlen(secret), SECRET_MIN);
	if (!secret && job->rank == 0 && job->size > 1 && !tt_world && boot->listen_fd < 0)
		tt_log(TT_WARN, "no TUTTI_SECRET is set: only this host's loopback is listened on");
	return 0;
}

/* A job that meets on loopback needs no other address, unless somebody asks for one. */
static const char *choose_device(const struct tt_job *job, const struct tt_boot *boot)
{
	const char *device = tt_setting(&job->settings, TT_IFACE), *at = boot->address;

	if (device || !*at)
		return device;
	return !strncmp(at, "127.", 4) || !strncmp(at, "localhost:", 10) ? "127.0.0.1" : !strncmp(at, "[::1]", 5) ? "::1" : NULL;
}

/* Where ranks meet is for the wires that lead to other hosts; that of this one has names of its own. */
static int place_net(struct tt_job *job, const struct tt_boot *boot, const struct tt_transport *t, struct tt_net_config *c)
{
	if (boot->nodes)
		c->listen = boot->nodes[job->rank].address;
	if (t == &tt_shm)
		return 0;
	c->device = choose_device(job, boot);
	if (job->rank == 0 && !boot->unnumbered && boot->listen_fd >= 0)
		c->listen_fd = boot->listen_fd;
	else if (job->rank == 0 && !boot->unnumbered && !boot->nodes && boot->address[0])
		c->listen = boot->address;
	return read_ports(&job->settings, c->ports);
}

static int open_net(struct tt_job *job, const struct tt_boot *boot, const char *name)
{
	const struct tt_transport *t = tt_transport_find(name);
	struct tt_net_config c = { .events = &tt_peer_events, .listen_fd = -1, .job = job->id, .epoch = job->epoch, .user = job };
	bool evict;
	int err;

	if (!t)
		return tt_fail(-EINVAL, "%s names \"%s\", which is no transport: `tutti info` lists them", tt_setting_name(&job->settings, TT_TRANSPORTS), name);
	if (job->engine.count == TT_NETS)
		return tt_fail(-EINVAL, "TUTTI_TRANSPORTS names more than %d transports", TT_NETS);
	c.secret = tt_setting(&job->settings, TT_SECRET);
	c.secret_len = c.secret ? strlen(c.secret) : 0;
	c.timeout_ms = (unsigned)(job->deadline / TT_MS);
	if ((err = place_net(job, boot, t, &c)) || (err = tt_setting_switch(&job->settings, TT_EVICT, &evict)))
		return err;
	c.keep = !evict;
	if ((err = t->open(&c, &job->engine.nets[job->engine.count])))
		return err;
	job->engine.count++;
	return 0;
}

/* Nobody has asked for shared memory: where there is none, ranks of this host meet as those of others do. */
static bool can_do_without(const struct tt_job *job, const char *name)
{
	return !strcmp(name, tt_shm.name) && !strcmp(job->settings.of[TT_TRANSPORTS].origin, "default");
}

static int open_nets(struct tt_job *job, const struct tt_boot *boot)
{
	char names[128], *at = names, *name;
	int err;

	if (job->size == 1)
		return 0;
	err = check_secret(job, boot, tt_setting(&job->settings, TT_SECRET));
	snprintf(names, sizeof names, "%s", tt_setting(&job->settings, TT_TRANSPORTS));
	while (!err && (name = strsep(&at, ","))) {
		if (*name && (err = open_net(job, boot, name)) && can_do_without(job, name)) {
			tt_log(TT_INFO, "no shared memory between the ranks of this host: %s", tt_why());
			err = 0;
		}
	}
	if (!err && !job->engine.count)
		err = tt_fail(-EINVAL, "TUTTI_TRANSPORTS names no transport");
	if (!err && !boot->nodes && job->engine.count == 1 && job->engine.nets[0]->transport == &tt_shm)
		err = tt_fail(-EINVAL, "%s names shm alone, and ranks find each other over TCP: write shm,tcp", tt_setting_name(&job->settings, TT_TRANSPORTS));
	return err;
}

/* Polling takes a core from another rank where there are fewer cores than ranks. */
static int choose_spinning(struct tt_job *job)
{
	const char *s = tt_setting(&job->settings, TT_SPIN);

	if (strcmp(s, "auto") && tt_setting_switch(&job->settings, TT_SPIN, &job->engine.spin))
		return tt_fail(-EINVAL, "%s=%s is none of auto, yes and no", tt_setting_name(&job->settings, TT_SPIN), s);
	if (strcmp(s, "auto"))
		return 0;
	if (job->size > 1)
		job->engine.spin = tt_cpus_count(&job->place.allowed) >= job->place.ranks;
	return 0;
}

static int take_local(const struct tt_job *job, enum tt_setting own, enum tt_setting torch, int min, int max, int *out)
{
	long value = *out;
	int err = tt_setting_int(&job->settings, tt_setting(&job->settings, own) ? own : torch, min, max, &value);

	*out = (int)value;
	return err;
}

/* A launcher knows best; else those of the same boot id, or of the same host in a node list, are on one host. Where it has
 * given each rank processors of its own, a rank shares its processors only with those that were given the same. */
static int count_local(struct tt_job *job)
{
	const struct tt_member *me = &job->members[job->rank];
	struct tt_place *p = &job->place;
	int err;

	for (int i = 0; i < job->size; i++)
		if (job->members[i].host == me->host) {
			job->local_rank += i < job->rank;
			job->local_size++;
			p->rank += i < job->rank && job->members[i].cpus == me->cpus;
			p->ranks += job->members[i].cpus == me->cpus;
		}
	bool alike = p->ranks == job->local_size;
	err = take_local(job, TT_LOCAL_SIZE, TT_TORCH_LOCAL_SIZE, 1, job->size, &job->local_size);
	if (!err)
		err = take_local(job, TT_LOCAL_RANK, TT_TORCH_LOCAL_RANK, 0, job->size - 1, &job->local_rank);
	if (alike && job->local_rank < job->local_size) {
		p->rank = job->local_rank;
		p->ranks = job->local_size;
	}
	return err;
}

static int set_up(struct tt_job *job, const struct tt_boot *boot)
{
	int err;

	job->id = tt_boot_job_id(boot);
	if ((err = tt_place_begin(job)) || (err = tt_pool_read(&job->settings)) || (err = mark_parent(job)) || (err = make_members(job, boot)) ||
	    (err = make_group(job)) || (err = open_nets(job, boot)) || (err = tt_engine_open(job)) ||
	    (err = tt_stats_open(job)) || (err = tt_boot_meet(job, boot)))
		return err;
	tt_enter(job);
	if (!(err = count_local(job)))
		err = choose_spinning(job);
	if (!err)
		err = tt_place_open(job);
	if (!err)
		err = tt_late_settle(job);
	job->joined = !err;
	if (!err)
		tt_beat_start(job);
	for (int i = 0; !err && !job->late && i < job->size; i++) /* who was lost while joining is told of now */
		if (job->members[i].state == TT_GONE)
			tt_group_tell(&job->members[i]);
	tt_exit(job);
	return err;
}

static struct tt_job *new_job(void)
{
	struct tt_job *job = calloc(1, sizeof *job);

	if (!job)
		return NULL;
	job->event_fd = -1;
	job->next_window = 1;
	tt_list_init(&job->requests);
	tt_list_init(&job->links);
	tt_list_init(&job->doomed);
	tt_list_init(&job->asks);
	tt_list_init(&job->windows);
	tt_list_init(&job->collectives);
	tt_list_init(&job->stash);
	tt_list_init(&job->groups);
	tt_list_init(&job->boards);
	tt_list_init(&job->tables);
	tt_list_init(&job->calls);
	tt_list_init(&job->held);
	tt_list_init(&job->enquiries);
	tt_list_init(&job->engine.waiters);
	tt_list_init(&job->engine.timers);
	job->engine.sleeper.fd = job->engine.backstage.fd = -1;
	return job;
}

int tutti_join(const tutti_config *config, tutti **out)
{
	struct tt_boot boot = { .size = 0, .listen_fd = -1 };
	struct tt_job *job = new_job();
	int err;

	if (!job)
		return tt_fail(-ENOMEM, "no memory for a job");
	err = resolve_settings(job, config, &boot);
	if (!err)
		err = set_up(job, &boot);
	tt_boot_free(&boot);
	if (err) {
		leave_job(job);
		return err;
	}
	*out = job->all;
	return 0;
}

/* ---- leaving ---- */

static bool is_idle(void *arg)
{
	struct tt_job *job = arg;

	return tt_list_empty(&job->requests) && tt_list_empty(&job->collectives);
}

/* Strangers do not count. */
static bool is_alone(void *arg)
{
	struct tt_job *job = arg;

	tt_list_each(node, &job->links) {
		const struct tt_link *l = tt_container_of(node, struct tt_link, all);
		if (l->parted || (l->member && l->member->link == l))
			return false;
	}
	return true;
}

static uint16_t put_group(struct tt_pack *p, uint32_t uid, uint32_t finished, bool voted)
{
	tt_put32(p, uid);
	tt_put32(p, finished);
	tt_put8(p, voted);
	return 1;
}

/* Of what a group came of: it may be closed here already. */
static uint32_t finished_before(const struct tutti *g)
{
	tt_list_each(node, &g->job->groups) {
		const struct tutti *old = tt_container_of(node, struct tutti, link);
		if (old->retired && old->uid == g->origin.uid)
			return tt_coll_finished(old);
	}
	return 0;
}

/* Of those in use, or of those that have been shrunk or grown; how many had no room. */
static int put_groups(struct tt_pack *p, const struct tt_job *job, bool retired, uint16_t *n)
{
	int left = 0;

	tt_list_each(node, &job->groups) {
		const struct tutti *g = tt_container_of(node, struct tutti, link);
		if (!g->uid || g->retired != retired)
			continue;
		if (tt_pack_left(p) < 18) {
			left++;
			continue;
		}
		*n += put_group(p, g->uid, tt_coll_finished(g), tt_agree_voted(g));
		if (g->origin.roll)
			*n += put_group(p, g->origin.uid, finished_before(g), true);
	}
	return left;
}

/* A FAREWELL with all of it must fit into a message, too. */
void tt_say_bye(struct tt_member *m)
{
	uint8_t bye[3 + 9 * TT_BYE_GROUPS];
	struct tt_pack p = tt_pack(bye, tt_min(sizeof bye, tt_member_net(m)->send_max - 8));
	uint16_t n = 0;
	int left;

	tt_put8(&p, TT_BYE);
	tt_put16(&p, 0);
	left = put_groups(&p, m->job, false, &n);
	left += put_groups(&p, m->job, true, &n);
	if (left)
		tt_log(TT_WARN, "rank %d hears nothing of %d groups that this rank has not left: operations there may meet their deadline", m->rank, left);
	struct tt_pack count = tt_pack(bye + 1, 2);
	tt_put16(&count, n);
	tt_send(m, bye, (size_t)(p.at - bye), NULL, 0);
}

/* What I started is finished, then everyone I talked to hears a goodbye and hangs up: what I sent before has arrived. */
void tt_job_goodbye(struct tt_job *job)
{
	uint64_t until;

	tt_enter(job);
	until = tt_now() + job->deadline;
	tt_wait_until(job, is_idle, job, until - job->deadline / 4); /* the goodbyes want their share */
	tt_wait_until(job, tt_group_all_told, job, until - job->deadline / 8);
	tt_boot_leave(job);
	for (int i = 0; i < job->size && !job->leaving; i++)
		if (job->members[i].state == TT_UP)
			tt_say_bye(&job->members[i]);
	job->leaving = true;
	tt_wait_until(job, is_alone, job, until);
	tt_exit(job);
}

static void free_lists(struct tt_job *job)
{
	struct tt_list *node;

	tt_table_free_all(job);
	while ((node = tt_list_pop(&job->windows)))
		tutti_window_close((tutti_window *)node);
	while (!tt_list_empty(&job->groups))
		tt_group_free(tt_container_of(job->groups.next, struct tutti, link));
	tt_board_sweep(job, true);
	while ((node = tt_list_pop(&job->asks)))
		free(node);
	while ((node = tt_list_pop(&job->stash)))
		free(node);
}

static void drop_links(struct tt_job *job)
{
	tt_list_each(node, &job->links)
		tt_link_doom(tt_container_of(node, struct tt_link, all));
	tt_peer_settle(job);
}

/* Nothing lands any more once every link is gone; then windows and nets can follow. */
static void tear_down(struct tt_job *job)
{
	bool idle = is_idle(job);

	job->leaving = true;
	for (int i = 0; job->members && i < job->size; i++) {
		struct tt_member *m = &job->members[i];
		tt_timer_stop(&m->retry);
		if (i != job->rank && !(idle && m->state == TT_AWAY && !m->waiting.head)) /* most are no part of anything */
			tt_member_gone(m, -ENOTCONN, "this rank has left the job");
	}
	drop_links(job);
	while (job->ended.head)
		tt_turn(job);
	drop_links(job); /* somebody may have come in at that last moment */
	free_lists(job);
}

static bool is_leaving(struct tt_job *job) /* a signal's thread says its goodbyes, or has */
{
	tt_enter(job);
	bool leaving = job->leaving;
	tt_exit(job);
	return leaving;
}

static void leave_job(struct tt_job *job)
{
	if (job->joined && !is_leaving(job))
		tt_job_goodbye(job);
	tt_signal_forget(job);
	tt_table_stop_all(job);
	tt_engine_stop(job);
	tt_pool_close(job);
	tear_down(job);
	tt_stats_close(job);
	tt_engine_close(job);
	if (job->event_fd >= 0)
		close(job->event_fd);
	tt_watch_free(job);
	tt_settings_free(&job->settings);
	for (int i = 0; job->members && i < job->size; i++)
		tt_member_free(&job->members[i]);
	tt_scratch_free(&job->scratch);
	tt_place_close(job);
	free(job->members);
	free(job->newcomer);
	tt_text_free(job);
	if (job->here)
		munmap(job->here, 1);
	free(job);
}

static bool is_group_idle(void *arg)
{
	const struct tutti *g = arg;

	tt_list_each(node, &g->job->collectives)
		if (tt_container_of(node, struct tt_coll, link)->group == g)
			return false;
	return true;
}

static void leave_part(struct tutti *g)
{
	struct tt_job *job = g->job;

	tt_enter(job);
	tt_wait_until(job, is_group_idle, g, tt_now() + job->deadline);
	tt_coll_end_group(g); /* what is late is given up: its memory is the caller's */
	if (!tt_wait_until(job, is_group_idle, g, tt_now() + job->deadline))
		tt_group_free(g); /* else it ends with the job */
	tt_exit(job);
}

void tutti_leave(tutti *group)
{
	if (!group || !*group->job->here)
		return; /* a fork's child owns nothing of it */
	if (group == group->job->all)
		leave_job(group->job);
	else
		leave_part(group);
}
