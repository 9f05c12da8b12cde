/* job.c - joining and leaving a job */
#include "collective/collective.h"
#include "engine/engine.h"
#include "job/job_private.h"
#include "launch/launch.h"
#include "member/member.h"
#include "message/message.h"
#include "operation/operation.h"
#include "topology/topology.h"
#include "transport/dial.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MEMBERS_MAX = 65536, NEWCOMERS_MIN = 64, DAY_MS = 86400000 };

static void leave_job(struct tt_job *);

const char *tutti_version(void) { return TT_VERSION; }
const char *tutti_why(void) { return tt_why(); }
const char *tutti_job_name(const tutti *group) { return group ? tt_members(group->job)->name : NULL; }
int tutti_rank(const tutti *group) { return group ? group->me : tt_refuse_job(NULL); }
int tutti_size(const tutti *group) { return group ? group->n : tt_refuse_job(NULL); }
int tutti_local_rank(const tutti *group) { return group ? group->job->local_rank : tt_refuse_job(NULL); }
int tutti_local_size(const tutti *group) { return group ? group->job->local_size : tt_refuse_job(NULL); }

/* ---- joining ---- */

tutti_config tutti_config_defaults(void) { return (tutti_config){ .file = NULL }; }

static const char *spell_time(int ms, char text[16])
{
	snprintf(text, 16, "%d", ms);
	return ms == TUTTI_NEVER ? "never" : ms ? text : NULL;
}

static const char *spell_newcomers(int n, char text[16])
{
	snprintf(text, 16, "%d", n == TUTTI_NEVER ? 0 : n);
	return n ? text : NULL;
}

static int apply_config(struct tt_settings *s, const tutti_config *c)
{
	char silence[16], timeout[16], newcomers[16];
	const struct {
		enum tt_setting id;
		const char *value;
	} given[] = {
		{ TT_CONFIG, c->file }, { TT_NODE, c->node }, { TT_TRANSPORTS, c->transports },
		{ TT_SECRET, c->secret }, { TT_BOOT, c->boot }, { TT_JOB, c->job },
		{ TT_SILENCE, spell_time(c->silence_ms, silence) },
		{ TT_TIMEOUT, spell_time(c->timeout_ms, timeout) },
		{ TT_NEWCOMERS, spell_newcomers(c->newcomers, newcomers) },
	};
	int err = 0;

	for (size_t i = 0; !err && i < TT_COUNT(given); i++)
		if (given[i].value)
			err = tt_settings_set(s, given[i].id, given[i].value, "program");
	return err;
}

/* Other processes may find this job. */
static bool listens(const struct tt_launch *launch) { return launch->size > 1 || launch->nodes || *launch->address; }

/* Only rank 0's word counts: the others hear it in their WELCOME. A job of one that takes nobody in does not listen. */
static int choose_capacity(struct tt_job *job, struct tt_launch *launch)
{
	struct tt_members *all = tt_members(job);
	long newcomers = (long)tt_max(NEWCOMERS_MIN, (size_t)job->size / 2);
	int err = tt_setting_int(&job->settings, TT_NEWCOMERS, 0, MEMBERS_MAX - 1, &newcomers);

	if (job->size == 1 && !launch->nodes && !newcomers && !all->unnumbered)
		*launch->address = 0;
	if (!listens(launch))
		newcomers = 0;
	if (all->unnumbered) /* one place is this rank's, until it has a number */
		newcomers = (long)tt_max(1, (size_t)newcomers);
	all->capacity = job->size + (int)newcomers;
	return err;
}

/* Where nobody lets a node in, a life that begins in the same 64th of a second as the node's life before would be taken
 * for that one, which has ended. */
static uint32_t begin_life(bool of_node)
{
	static _Atomic uint32_t last;
	uint32_t epoch = tt_epoch_now();

	for (int i = 0; of_node && !tt_world && epoch == atomic_load(&last) && i < 1000; i++) {
		usleep(1000);
		epoch = tt_epoch_now();
	}
	atomic_store(&last, epoch);
	return epoch;
}

/* What this job is, by what was read. */
static int take_launch(struct tt_job *job, struct tt_launch *launch)
{
	struct tt_members *all = tt_members(job);

	job->silence = tt_setting_time(&job->settings, TT_SILENCE);
	job->timeout = tt_setting_time(&job->settings, TT_TIMEOUT);
	job->rank = launch->rank;
	job->size = launch->size;
	all->launched = job->size;
	all->unnumbered = launch->unnumbered;
	all->node_list = launch->nodes != NULL; /* before this rank listens: greetings may come at once */
	launch->own_list = all->own_list = launch->nodes && tt_setting_is(&job->settings, TT_LISTS, "own");
	job->epoch = begin_life(launch->nodes);
	all->minority = tt_setting_is(&job->settings, TT_MINORITY, "yes");
	int err = choose_capacity(job, launch);
	if (all->unnumbered)
		job->rank = all->capacity - 1; /* until it has a number */
	else
		atomic_store(&job->speaker.rank, job->rank);
	return err;
}

static int resolve_settings(struct tt_job *job, const tutti_config *given, struct tt_launch *launch)
{
	const tutti_config config = given ? *given : tutti_config_defaults();
	const char *file;
	int err;

	if ((err = TT_RESERVED(tutti_config, &config)) || (err = tt_settings_load(&job->settings)) ||
	    (err = apply_config(&job->settings, &config)))
		return err;
	if ((file = tt_setting(&job->settings, TT_CONFIG)) &&
	    (err = tt_config_load(&job->settings, file, &launch->nodes, &launch->size)))
		return err;
	if ((err = tt_secret_from_file(&job->settings)) || (err = tt_judge_settings(&job->settings)) ||
	    (err = tt_launch_read(&job->settings, &config, launch)))
		return err;
	if (launch->size > MEMBERS_MAX)
		return tt_fail(-EINVAL, "%d ranks are more than the %d that a job may have", launch->size, MEMBERS_MAX);
	return take_launch(job, launch);
}

static void warn_of_no_secret(const struct tt_job *job, const struct tt_launch *launch)
{
	if (!tt_setting(&job->settings, TT_SECRET) && job->rank == 0 && !tt_world &&
	    launch->listen_fd < 0)
		tt_log(TT_WARN, "no TUTTI_SECRET is set: only this host's loopback is listened on");
}

/* The transport with which an address begins; NULL: with none. */
static const struct tt_transport *scheme_of(const char *address, const char **rest)
{
	const struct tt_transport *t = tt_transport_find(address);
	size_t len = t ? strlen(t->name) : 0;

	if (!t || address[len] != ':')
		return NULL;
	*rest = address + len + 1;
	return t;
}

/* Ranks find each other over the transport that the address names. HOST:PORT means TCP, and where TUTTI_TRANSPORTS has
 * none, the first one whose connections begin over TCP. */
static const char *choose_meeting(const struct tt_settings *s, const struct tt_launch *launch)
{
	const char *rest, *first = NULL;
	const struct tt_transport *t = scheme_of(launch->address, &rest);
	char names[128], *at = names, *name;

	if (t)
		return t->name;
	snprintf(names, sizeof names, "%s", tt_setting(s, TT_TRANSPORTS));
	while ((name = strsep(&at, ","))) {
		if (!*name || !(t = tt_transport_find(name)) || !t->sockets)
			continue;
		if (!strcmp(t->name, "tcp"))
			return t->name;
		first = first ? first : t->name;
	}
	return first ? first : "tcp";
}

static bool meets_over(const struct tt_launch *launch, const struct tt_transport *t)
{
	return !strcmp(t->name, launch->over);
}

/* TUTTI_IFACE is a list. An entry that does not begin with the name of a transport is TCP's. */
static bool find_entry(const struct tt_settings *s, const char *name, char *iface, size_t size)
{
	const char *at = tt_setting(s, TT_IFACE);

	for (size_t len; at && *at; at += len + (at[len] == ',')) {
		const char *of = at;
		const struct tt_transport *t = scheme_of(at, &of);
		len = strcspn(at, ",");
		if (strcmp(t ? t->name : "tcp", name) != 0)
			continue;
		snprintf(iface, size, "%.*s", (int)(len - (size_t)(of - at)), of);
		return true;
	}
	return false;
}

/* A transport without an entry listens where TCP does. */
static bool find_iface(const struct tt_settings *s, const struct tt_transport *t, char *iface, size_t size)
{
	return t->sockets && (find_entry(s, t->name, iface, size) || find_entry(s, "tcp", iface, size));
}

/* A job whose rendezvous is on loopback listens there alone, unless TUTTI_IFACE says otherwise. */
static const char *choose_iface(const struct tt_launch *launch)
{
	const char *at = launch->address;

	scheme_of(at, &at);
	if (!strncmp(at, "127.", 4) || !strncmp(at, "localhost:", 10))
		return "127.0.0.1";
	return !strncmp(at, "[::1]", 5) ? "::1" : NULL;
}

/* Each net listens somewhere else. The first one over which ranks meet: at the rendezvous, or at the node's HOST:PORT.
 * One whose addresses neighbours can tell: at a name that is made of the node's. Others: where they find a place. */
static int place_net(struct tt_job *job, const struct tt_launch *launch, const struct tt_transport *t, bool first,
                     char *iface, size_t size, struct tt_net_config *c)
{
	bool meets = first && meets_over(launch, t), root = job->rank == 0 && !launch->unnumbered;

	if (launch->nodes && (meets || t->address))
		c->listen = launch->nodes[job->rank].address;
	if (t->sockets)
		c->iface = find_iface(&job->settings, t, iface, size) ? iface : choose_iface(launch);
	if (meets && root && launch->listen_fd >= 0)
		c->listen_fd = launch->listen_fd;
	else if (meets && root && !launch->nodes && launch->address[0])
		c->listen = launch->address;
	if (meets_over(launch, t) && !launch->nodes && launch->address[0])
		c->toward = root && *launch->toward ? launch->toward : launch->address;
	return tt_read_ports(&job->settings, c->ports);
}

/* device: NULL, the only one */
static int open_net(struct tt_job *job, const struct tt_launch *launch, const struct tt_transport *t,
                    const char *device, int nth, int of)
{
	struct tt_net_config c = { .events = &tt_peer_events, .device = device, .listen_fd = -1, .job = job->id,
		.epoch = job->epoch, .user = job };
	char iface[96];
	int err;

	if (job->engine.count == TT_NETS)
		return tt_fail(-EINVAL, "TUTTI_TRANSPORTS names more than %d transports or devices", TT_NETS);
	c.secret = tt_setting(&job->settings, TT_SECRET);
	c.secret_len = c.secret ? strlen(c.secret) : 0;
	/* with those that cross each other, or are about to go */
	c.peers = 2 * (unsigned)tt_members(job)->capacity;
	c.near = (unsigned)launch->local_size;
	c.nets = of;
	c.timeout_ms = (unsigned)tt_min(job->silence / TT_MS, DAY_MS);
	c.keep = tt_setting_is(&job->settings, TT_EVICT, "no");
	if ((err = place_net(job, launch, t, nth == 0, iface, sizeof iface, &c)) ||
	    (err = t->open(&c, &job->engine.nets[job->engine.count])))
		return err;
	if (c.listen_fd >= 0)
		tt_launch_took_socket();
	job->engine.count++;
	return 0;
}

static int open_transport(struct tt_job *job, const struct tt_launch *launch, const char *name)
{
	const struct tt_transport *t = tt_transport_find(name);
	char devices[TT_DEVICES][TT_DEVICE_NAME];
	int turn = launch->local_size ? launch->local_rank : launch->rank;
	int node = t->choose ? tt_place_node(job, turn, launch->local_size) : -1;
	int n = t->choose ? t->choose(node, turn, devices) : 1, err = n < 0 ? n : 0, opened = 0;

	for (int i = 0; i < n; i++) {
		int fault = open_net(job, launch, t, t->choose ? devices[i] : NULL, opened, n);
		opened += !fault;
		if (fault && (opened || i + 1 < n)) /* others serve, or may */
			tt_log(TT_WARN, "this rank does without %s: %s", devices[i], tt_why());
		else
			err = fault;
	}
	return err;
}

/* A transport by default may fail: ranks then connect over the next one. */
static bool can_do_without(const struct tt_job *job, const struct tt_launch *launch, const char *name)
{
	const struct tt_transport *t = tt_transport_find(name);

	return t && !meets_over(launch, t) && !strcmp(job->settings.of[TT_TRANSPORTS].origin, "default");
}

static int check_meeting(const struct tt_job *job, const struct tt_launch *launch)
{
	const char *names = tt_setting(&job->settings, TT_TRANSPORTS);

	for (int i = 0; i < job->engine.count; i++)
		if (meets_over(launch, job->engine.nets[i]->transport))
			return 0;
	return tt_fail(-EINVAL, "%s names %s alone, and ranks find each other over %s: write %s,%s",
	               tt_setting_name(&job->settings, TT_TRANSPORTS), names, launch->over, names, launch->over);
}

static int open_nets(struct tt_job *job, const struct tt_launch *launch)
{
	char names[128], *at = names, *name;
	int err = 0;

	if (!listens(launch))
		return 0;
	warn_of_no_secret(job, launch);
	snprintf(names, sizeof names, "%s", tt_setting(&job->settings, TT_TRANSPORTS));
	while (!err && (name = strsep(&at, ","))) {
		if (*name && (err = open_transport(job, launch, name)) && can_do_without(job, launch, name)) {
			/* most hosts have no device for each transport */
			tt_log(err == -ENODEV ? TT_DEBUG : TT_WARN,
			       "this rank does without %s: %s (TUTTI_TRANSPORTS=tcp asks for that)", name, tt_why());
			err = 0;
		}
	}
	if (!err && !job->engine.count)
		err = tt_fail(-EINVAL, "TUTTI_TRANSPORTS names no transport");
	return err || launch->nodes ? err : check_meeting(job, launch);
}

/* A cgroup may leave less time than there are processors: a rank that polls then uses up what the others need. */
static int count_quota(void)
{
	char own[4096];
	double cores = tt_world ? TT_NO_QUOTA : tt_cgroup_cores(TT_CGROUPS, tt_cgroup_own(own, sizeof own));

	return (int)cores + (cores > (int)cores);
}

/* Polling takes a core from another rank where there are fewer cores than ranks. */
static void choose_spinning(struct tt_job *job)
{
	if (!tt_setting_is(&job->settings, TT_SPIN, "auto"))
		job->engine.spin = tt_setting_is(&job->settings, TT_SPIN, "yes");
	else if (job->engine.count)
		job->engine.spin = tt_min((size_t)tt_cpus_count(&job->place.allowed), (size_t)count_quota()) >=
		                   (size_t)job->place.ranks;
	job->engine.adapts = tt_setting_is(&job->settings, TT_SPIN, "auto") && !tt_world;
}

static int take_local(const struct tt_job *job, enum tt_setting own, int min, int max, int *out)
{
	long value = *out;
	int err = tt_setting_int(&job->settings, own, min, max, &value);

	*out = (int)value;
	return err;
}

/* The launcher's numbers come first. Else ranks with the same boot id, or with the same host in a node list, are on one
 * host. A rank shares processors only with ranks that may run on the same ones. */
static int count_local(struct tt_job *job, const struct tt_launch *launch)
{
	const struct tt_member *me = tt_member(job, job->rank);
	struct tt_place *p = &job->place;
	int err;

	for (int i = 0; i < job->size; i++)
		if (tt_member(job, i)->host == me->host) {
			job->local_rank += i < job->rank;
			job->local_size++;
			p->rank += i < job->rank && tt_member(job, i)->cpus == me->cpus;
			p->ranks += tt_member(job, i)->cpus == me->cpus;
		}
	bool alike = p->ranks == job->local_size;
	if (launch->local_size) {
		job->local_rank = launch->local_rank;
		job->local_size = launch->local_size;
	}
	err = take_local(job, TT_LOCAL_SIZE, 1, job->size, &job->local_size);
	if (!err)
		err = take_local(job, TT_LOCAL_RANK, 0, job->size - 1, &job->local_rank);
	if (alike && job->local_rank < job->local_size) {
		p->rank = job->local_rank;
		p->ranks = job->local_size;
	}
	return err;
}

/* Under a launcher with a channel rank 0 listens where it likes: the port is known before the job has its id. */
static int listen_early(struct tt_job *job, struct tt_launch *launch)
{
	struct tt_net_config c = { .listen_fd = -1, .secret = tt_setting(&job->settings, TT_SECRET) };
	union tt_socket_address at = { .any = { .sa_family = AF_UNSPEC } };
	socklen_t size = sizeof at;
	char iface[96];

	if (find_iface(&job->settings, tt_transport_find(launch->over), iface, sizeof iface))
		c.iface = iface;
	int err = tt_read_ports(&job->settings, c.ports), fd = err ? err : tt_listen_open(&c);
	if (fd < 0)
		return fd;
	launch->listen_fd = fd;
	if (getsockname(fd, &at.any, &size))
		return tt_fail(-errno, "cannot read the address of a listening socket: %s", strerror(errno));
	snprintf(launch->address, sizeof launch->address, "*:%u", tt_resolve_port(&at));
	return 0;
}

static int open_and_tell(struct tt_job *job, struct tt_launch *launch)
{
	int err = open_nets(job, launch);

	for (int i = 0; !err && launch->exchanges && i < job->engine.count; i++)
		if (meets_over(launch, job->engine.nets[i]->transport))
			snprintf(launch->address, sizeof launch->address, "%s",
			         job->engine.nets[i]->addr + strlen(launch->over) + 1);
	return err;
}

/* Rank 0 opens its nets before the launcher's exchange, which tells the others where; they open theirs after it. */
static int find_rank_0(struct tt_job *job, struct tt_launch *launch)
{
	bool root = launch->exchanges && job->rank == 0;
	int err = root ? listen_early(job, launch) : 0;

	if (!root)
		err = tt_launch_exchange(&job->settings, launch, NULL, job->timeout);
	if (!err) {
		job->id = tt_launch_job_id(launch);
		err = open_and_tell(job, launch);
	}
	if (!root)
		return err;
	struct tt_sentence why = tt_last_sentence();
	int told = tt_launch_exchange(&job->settings, launch, err ? why.text : NULL, job->timeout);
	if (err)
		tt_remember(why.text);
	return err ? err : told;
}

static int set_up(struct tt_job *job, struct tt_launch *launch)
{
	int err;

	if (!tt_world)
		tt_files_raise();
	tt_gpu_open(tt_setting(&job->settings, TT_USE_GPU));
	if ((err = tt_place_begin(job)) || (err = tt_mark_owner(job)) ||
	    (err = tt_members_open(job, launch)) || (err = find_rank_0(job, launch)) || (err = tt_engine_open(job)) ||
	    (err = tt_rendezvous_meet(job, launch)))
		return err;
	tt_lock(job);
	if (!(err = count_local(job, launch))) {
		choose_spinning(job);
		err = tt_place_open(job);
	}
	if (!err)
		err = tt_members_settle(job);
	tt_unlock(job);
	return err;
}

static int new_job(struct tt_job **out)
{
	struct tt_job *job = tt_job_new();
	int err;

	if (!job)
		return tt_fail(-ENOMEM, "no memory for a job");
	tt_list_init(&job->handles);
	tt_list_init(&job->engine.waiters);
	tt_list_init(&job->engine.timers);
	tt_list_init(&job->engine.recent);
	tt_list_init(&job->engine.unpinned);
	job->engine.sleeper.fd = job->engine.backstage.fd = -1;
	if ((err = tt_modules_make(job, tt_module_list()))) {
		tt_job_retire(job);
		return err;
	}
	tt_speaker_add(&job->speaker);
	*out = job;
	return 0;
}

/* tutti_join says this if nobody is found. That a rank went down says more than that a job has ended. */
static void keep_cause(struct tt_launch *launch, int err, uint64_t until)
{
	bool first = !launch->again.err;

	tt_log(first ? TT_WARN : TT_INFO, "joining begins again: %s", tt_why());
	launch->again.until = until;
	if (!first && (err != -ECONNRESET || launch->again.err == err))
		return;
	launch->again.err = err;
	launch->again.since = tt_now();
	snprintf(launch->again.why, sizeof launch->again.why, "%s", tt_why());
}

/* Nothing of the try before is left but what was read, and why it failed. */
static int set_up_anew(struct tt_job **job, struct tt_launch *launch, int why)
{
	struct tt_settings settings = (*job)->settings;
	struct tt_parking here = { 0 };
	uint8_t chance;

	keep_cause(launch, why, tt_members(*job)->begin_again);
	memset(&(*job)->settings, 0, sizeof settings);
	tt_speak_for(NULL);
	leave_job(*job);
	*job = NULL;
	tt_speaker = NULL;
	tt_entropy(&chance, 1);
	for (uint64_t end = tt_now() + (10 + chance % 32) * TT_MS; tt_now() < end;)
		tt_park(&here, end);
	int err = new_job(job);
	if (err) {
		tt_settings_free(&settings);
		return err;
	}
	(*job)->settings = settings;
	tt_speak_for(&(*job)->speaker);
	err = take_launch(*job, launch);
	return err ? err : set_up(*job, launch);
}

int tutti_join(const tutti_config *config, tutti **out)
{
	struct tt_launch launch = { .size = 0, .listen_fd = -1, .begun = tt_now() };
	struct tt_job *job = NULL;
	int err;

	if ((err = tt_given(out, "tutti_join: job")) || (err = new_job(&job)))
		return err;
	tt_speak_for(&job->speaker);
	err = resolve_settings(job, config, &launch);
	if (!err) {
		launch.over = choose_meeting(&job->settings, &launch);
		err = set_up(job, &launch);
	}
	while (err && job && tt_members(job)->begin_again)
		err = set_up_anew(&job, &launch, err);
	tt_speak_for(NULL);
	tt_launch_free(&launch);
	if (!err)
		err = tt_signal_begin(job);
	if (err) {
		if (job)
			leave_job(job);
		return err;
	}
	*out = tt_members(job)->all;
	return 0;
}

/* ---- leaving ---- */

static bool is_idle(void *job) { return tt_list_empty(&tt_operations(job)->running); }

/* A rank that hears the goodbye disconnects: then all that was sent before has arrived. The caller's hook ends all of
 * these waits. */
void tt_job_goodbye(struct tt_job *job, uint64_t patience)
{
	tt_lock(job);
	int err = tt_wait_for(job, NULL, is_idle, job, tt_now() + patience);
	if (err != -EINTR)
		err = tt_wait_for(job, NULL, tt_news_all_told, job, tt_now() + job->silence / 2);
	tt_members_say_bye(job);
	if (err != -EINTR)
		tt_wait_for(job, NULL, tt_members_are_alone, job, tt_now() + job->silence);
	tt_unlock(job);
}

static bool is_quiet(void *arg) /* but for the thread that asks, nobody is inside, and nothing is under way */
{
	return ((const struct tt_job *)arg)->inside == 1 && is_idle(arg);
}

static bool are_out(void *arg) { return ((const struct tt_job *)arg)->inside == 1; }

/* Other threads of the program may wait, or be in calls. What they have started ends by itself, but for receives that
 * nothing has matched, which end now. All else is woken; no call begins after that. Where a signal has said the
 * goodbyes before, or the caller's hook ends the wait, operations end with the connections. */
static int shut(struct tt_job *job, bool finish)
{
	int err = 0;

	atomic_store(&job->quitting, TT_LEAVES);
	tt_lock(job);
	job->ending = true;
	tt_handles_shut(job);
	if (finish) {
		tt_members(job)->all->handle.users.err = tt_members(job)->whole->handle.users.err = -ESHUTDOWN;
		tt_messages_shut(job);
		err = tt_wait_for(job, NULL, is_quiet, job, TT_NEVER); /* each operation has its own bound */
	}
	job->left = true;
	tt_unlock(job);
	return err;
}

static void say_bye(struct tt_job *job)
{
	tt_lock(job);
	tt_members_say_bye(job);
	tt_unlock(job);
}

/* Afterwards nothing lands, no operation runs, and no other thread is in the job. */
static void hang_up(struct tt_job *job)
{
	tt_lock(job);
	tt_members_end(job, is_idle(job));
	tt_wait_until(job, are_out, job, TT_NEVER);
	tt_unlock(job);
}

static bool is_leaving(struct tt_job *job) /* the thread of signal.c has said goodbye, or is about to */
{
	tt_lock(job);
	bool leaving = job->leaving;
	tt_unlock(job);
	return leaving;
}

/* The program may hold windows, tables and others of this job for longer: they keep the job's own struct. */
static void retire(struct tt_job *job)
{
	tt_lock(job);
	job->gone = true;
	bool last = !job->held;
	tt_unlock(job);
	if (last)
		tt_job_retire(job);
}

static void leave_job(struct tt_job *job)
{
	bool polite = job->joined && !is_leaving(job);
	int err = shut(job, polite);

	if (polite && !err)
		tt_job_goodbye(job, 0);
	else if (polite)
		say_bye(job);
	tt_modules_stop(job);
	tt_engine_stop(job);
	tt_pool_close(job);
	hang_up(job);
	tt_handles_orphan(job);
	tt_modules_close(job);
	tt_stats_free(job->stats.own);
	tt_stats_free(job->stats.former);
	tt_engine_close(job);
	tt_settings_free(&job->settings);
	tt_scratch_free(&job->scratch);
	tt_place_close(job);
	tt_unmark_owner(job);
	tt_speaker_remove(&job->speaker);
	retire(job);
}

void tutti_leave(tutti *group)
{
	struct tt_sentence last = tt_last_sentence();

	if (!group || !*group->job->here)
		return; /* a group whose job was left before, or a fork's child calls, which owns nothing of the job */
	leave_job(group->job);
	tt_remember(last.text);
}

void tutti_group_free(tutti *group)
{
	struct tt_sentence last = tt_last_sentence();

	if (!group || !group->handle.job || !tt_handle_close(&group->handle))
		return; /* of no handle: the job's own, which ends with the job */
	struct tt_job *job = group->job;
	tt_wait_until(job, tt_coll_is_idle, group, TT_NEVER); /* each has its own bound */
	tt_handles_lose_group(group, job);
	tt_group_free(group);
	tt_unlock(job);
	tt_handle_free(&group->handle);
	tt_remember(last.text);
}

/* ---- memory and threads ---- */

int tutti_alloc(tutti *at, size_t bytes, int gpu, void **memory)
{
	int err = at ? tt_given(memory, "tutti_alloc: memory") : tt_refuse_job(NULL);

	tt_gpu_look();
	return err ? err : tt_memory_alloc(at->job, bytes, gpu, memory);
}

void tutti_free(tutti *at, void *memory)
{
	(void)at;
	tt_memory_free(memory);
}

int tutti_register(tutti *at, void *memory, size_t bytes) { return tt_register(tt_job_of(at), memory, bytes); }
int tutti_unregister(tutti *at, void *memory) { return tt_unregister(tt_job_of(at), memory); }

int tutti_stream(tutti *at, void *stream)
{
	int err = tt_usable(tt_job_of(at));

	return err ? err : tt_gpu_set_stream(stream);
}

int tutti_pin(tutti *group, int i)
{
	struct tt_job *job = tt_job_of(group);
	int err = tt_is_mine(job);

	if (err || (err = tt_begin(job)))
		return err;
	err = tt_place_thread(job, TT_PIN_AUTO, i);
	tt_unlock(job);
	return err;
}
