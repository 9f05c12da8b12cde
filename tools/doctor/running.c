/* running.c - the ranks of jobs under way on this host: who waits for whom, and which process is stopped
 *
 * A rank keeps a memory file open (runtime/operation/inquiry.h). This finds it in /proc/PID/fd, asks in it, and reads
 * the answer. A stopped process does not answer; /proc/PID/stat tells. */
#include "operation/inquiry.h"
#include "tools/doctor/doctor.h"
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ANSWER_MS = 5000, LONG_MS = 5000, BAR_MS = 2000 };

struct rank {
	int pid;
	ino_t file;
	char state; /* of the process, as /proc/PID/stat has it */
	bool wanted;
	uint32_t asked;
	struct tt_inquiry *page, is; /* is: a copy of the page, as the rank has answered */
};

struct ranks {
	struct rank *of;
	int n, room;
};

static char read_state(int pid)
{
	char path[64], text[512], *end;

	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	end = tt_doctor_read(path, text, sizeof text) ? strrchr(text, ')') : NULL; /* a program's name may hold one */
	return end && end[1] ? end[2] : 'Z';
}

static bool is_stopped(char state) { return state == 'T' || state == 't'; }

static bool is_known(const struct ranks *all, ino_t file)
{
	for (int i = 0; i < all->n; i++)
		if (all->of[i].file == file)
			return true; /* a child of fork() has its parent's */
	return false;
}

static int add_rank(struct ranks *all, int pid, int fd)
{
	struct stat file;
	struct tt_inquiry *page;

	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK)) /* its owner could cut it short, and so end this process */
		return 0;
	if (fstat(fd, &file) || file.st_size < TT_INQUIRY_SIZE || is_known(all, file.st_ino))
		return 0;
	if (all->n == all->room) {
		int room = all->room ? 2 * all->room : 16;
		struct rank *more = realloc(all->of, (size_t)room * sizeof *more);
		if (!more)
			return -ENOMEM;
		all->of = more;
		all->room = room;
	}
	page = mmap(NULL, TT_INQUIRY_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		return -errno;
	if (page->magic == TT_INQUIRY_MAGIC)
		all->of[all->n++] =
			(struct rank){ .pid = pid, .file = file.st_ino, .state = read_state(pid), .page = page };
	else
		munmap(page, TT_INQUIRY_SIZE);
	return 0;
}

static int add_file(void *all, int pid, const char *path, const char *is)
{
	static const char wanted[] = "/memfd:" TT_INQUIRY_FILE;

	if (strncmp(is, wanted, sizeof wanted - 1) != 0)
		return 0;
	int fd = open(path, O_RDWR | O_CLOEXEC), err = fd < 0 ? -errno : add_rank(all, pid, fd);
	if (fd >= 0)
		close(fd);
	return err;
}

/* Adds the ranks that this process is. Returns how many, or -errno. */
static int find_ranks(struct ranks *all, int pid)
{
	int before = all->n, err = tt_each_file(pid, add_file, all);

	return err ? err : all->n - before;
}

static int take_pid(struct ranks *all, const char *text)
{
	int pid, found, status = tt_tool_take_int("doctor", "PID", text, 1, INT32_MAX, &pid);

	if (status)
		return status;
	found = find_ranks(all, pid);
	if (found == -ENOENT)
		return tt_tool_refuse("doctor", "PID %d: there is no such process on this host", pid);
	if (found < 0)
		return tt_tool_refuse("doctor", "PID %d: %s: be the user whose process it is, or root", pid,
		                      strerror(-found));
	for (int i = 0; i < all->n; i++)
		found += all->of[i].pid == pid; /* named twice */
	if (!found)
		return tt_tool_refuse(
			"doctor", "PID %d is no rank of a job: `tutti doctor --running` finds all on this host", pid);
	return 0;
}

/* With a rank, all of its job. */
static void want_jobs(struct ranks *all, int named)
{
	tt_each_file(0, add_file, all);
	for (int i = 0; i < all->n; i++)
		for (int k = 0; k < (named ? named : all->n); k++)
			all->of[i].wanted |= all->of[i].page->job == all->of[k].page->job;
}

/* ---- asking ---- */

static bool may_answer(const struct rank *r)
{
	return r->wanted && !is_stopped(r->state) && r->state != 'Z' && r->page->size > 1;
}

static bool has_answered(const struct rank *r) { return !tt_before(atomic_load(&r->page->answered), r->asked); }

static void ask(struct ranks *all)
{
	uint64_t begun = tt_now(), passed;
	bool all_have;

	for (int i = 0; i < all->n; i++)
		if (all->of[i].wanted)
			all->of[i].asked = atomic_fetch_add(&all->of[i].page->asked, 1) + 1;
	do {
		all_have = true;
		poll(NULL, 0, 20);
		for (int i = 0; i < all->n; i++) {
			all->of[i].state = read_state(all->of[i].pid);
			all_have &= !may_answer(&all->of[i]) || has_answered(&all->of[i]);
		}
		passed = (tt_now() - begun) / TT_MS;
		if (passed > BAR_MS)
			tt_tool_show_bar("asking", (double)passed / ANSWER_MS);
	} while (!all_have && passed < ANSWER_MS);
	if (passed > BAR_MS)
		tt_tool_show_bar("", 1);
}

/* Copies the answer, which the rank may replace meanwhile. */
static void read_page(struct rank *r)
{
	struct tt_inquiry *copy = &r->is;

	for (int tries = 0; tries < 100; tries++) {
		uint32_t turn = atomic_load(&r->page->turn);
		memcpy(copy, r->page, sizeof *copy);
		if (turn % 2 == 0 && turn == atomic_load(&r->page->turn))
			break;
		poll(NULL, 0, 1);
	}
	copy->label[sizeof copy->label - 1] = copy->text[sizeof copy->text - 1] = copy->name[sizeof copy->name - 1] = 0;
	copy->awaits = (uint32_t)tt_min(copy->awaits, TT_INQUIRY_AWAITED);
}

/* ---- who waits for whom ---- */

static bool waits_for(const struct rank *waiter, const struct rank *r)
{
	if (!waiter->wanted || waiter->is.job != r->is.job || waiter->is.waited_ms <= LONG_MS || !has_answered(waiter))
		return false;
	for (uint32_t i = 0; i < waiter->is.awaits; i++)
		if (waiter->is.awaited[i] == r->is.rank)
			return true;
	return false;
}

/* It waits for nobody itself, and others for it: the job stands still for what this process does. */
static bool is_the_cause(const struct rank *r)
{
	return r->wanted && !r->is.evicted && r->is.waited_ms <= LONG_MS;
}

static bool has_cause_here(const struct ranks *all, const struct rank *waiter)
{
	for (int i = 0; i < all->n; i++)
		if (is_the_cause(&all->of[i]) && waits_for(waiter, &all->of[i]))
			return true;
	return false;
}

static bool is_installed(const char *program)
{
	char command[64];

	snprintf(command, sizeof command, "command -v %s > /dev/null 2>&1", program);
	return system(command) == 0;
}

/* A command of this host's that shows what a process does. */
static void name_command(int pid, char text[96])
{
	char path[32], program[256] = "";

	snprintf(path, sizeof path, "/proc/%d/exe", pid);
	(void)!readlink(path, program, sizeof program - 1);
	if (strstr(program, "python") && is_installed("py-spy"))
		snprintf(text, 96, "py-spy dump --pid %d", pid);
	else if (is_installed("gdb"))
		snprintf(text, 96, "gdb -p %d -batch -ex 'thread apply all bt'", pid);
	else
		snprintf(text, 96, "grep . /proc/%d/task/*/wchan", pid);
}

static void say_cause(struct tt_doctor *d, const struct ranks *all, const struct rank *r)
{
	uint32_t longest = 0;
	int waiters = 0;
	char command[96];

	for (int i = 0; i < all->n; i++)
		if (waits_for(&all->of[i], r)) {
			longest = (uint32_t)tt_max(longest, all->of[i].is.waited_ms);
			waiters++;
		}
	if (!waiters || !is_the_cause(r))
		return;
	name_command(r->pid, command);
	tt_doctor_say(d, TT_FINDING, "late",
	              "%s, process %d, is what %d other rank%s of this host wait%s for, for %u s: see what it does: %s",
	              r->is.label, r->pid, waiters, waiters > 1 ? "s" : "", waiters > 1 ? "" : "s", longest / 1000,
	              command);
}

static void say_lines(struct tt_doctor *d, const struct ranks *all, const struct rank *r)
{
	bool is_long = r->is.waited_ms > LONG_MS, here = has_cause_here(all, r);
	char text[sizeof r->is.text], *at = text, *line;

	memcpy(text, r->is.text, sizeof text);
	while ((line = strsep(&at, "\n")))
		if (*line && r->is.evicted)
			tt_doctor_say(d, TT_FINDING, "evicted", "%s, process %d, %s", r->is.label, r->pid, line);
		else if (*line)
			tt_doctor_say(d, !is_long ? TT_FINE : here ? TT_NOTE : TT_FINDING, "waits",
			              "%s, process %d, %s%s", r->is.label, r->pid, line, is_long && !here ?
			              "; see what that rank does: tutti doctor --running on its host" : "");
}

static bool follows(const struct tt_inquiry *a, const struct tt_inquiry *b)
{
	return a->job == b->job && a->rank == b->rank + 1;
}

/* "ranks 0-2, 5 of 8" */
static void say_job(struct tt_doctor *d, const struct ranks *all, int first)
{
	const struct tt_inquiry *job = &all->of[first].is;
	char list[400] = "";
	const char *more = "";
	int n = 0;

	for (int i = first, last; i < all->n && all->of[i].is.job == job->job; n += last - i + 1, i = last + 1) {
		for (last = i; last + 1 < all->n && follows(&all->of[last + 1].is, &all->of[last].is);)
			last++;
		size_t at = strlen(list);
		if (at < sizeof list - 64)
			snprintf(list + at, 64, last > i ? "%s%d-%d" : "%s%d", n ? ", " : "", all->of[i].is.rank,
			         all->of[last].is.rank);
		else
			more = " and more";
	}
	tt_doctor_say(d, TT_FINE, "job", "%s%s%s: on this host rank%s %s%s of %d", *job->name ? "\"" : "",
	              *job->name ? job->name : "a job without a name (TUTTI_JOB)", *job->name ? "\"" : "",
	              n > 1 ? "s" : "", list, more, job->size);
}

static void say_rank(struct tt_doctor *d, const struct ranks *all, const struct rank *r)
{
	const struct tt_inquiry *is = &r->is;

	if (r->state == 'T')
		tt_doctor_say(d, TT_FINDING, "stopped",
		              "process %d, %s, is stopped (SIGSTOP), and the others evict it when their "
		              "TUTTI_SILENCE has passed: kill -CONT %d",
		              r->pid, is->label, r->pid);
	else if (r->state == 't')
		tt_doctor_say(d, TT_FINDING, "stopped", "process %d, %s, is held by a debugger: let it go on there",
		              r->pid, is->label);
	else if (r->state == 'Z')
		tt_doctor_say(d, TT_FINDING, "ended",
		              "process %d, %s, has ended: see what it wrote, or its exit status", r->pid, is->label);
	else if (is->size == 1)
		tt_doctor_say(d, TT_FINE, "waits", "process %d is a job of one rank, which waits for nobody", r->pid);
	else if (!has_answered(r))
		tt_doctor_say(d, TT_FINDING, "mute",
		              "process %d, %s, lives and has not answered within %d s (its state is %c): it "
		              "gets no core, or waits for a disk: see top and /proc/%d/stack",
		              r->pid, is->label, ANSWER_MS / 1000, r->state, r->pid);
	else
		say_lines(d, all, r);
	if (!is_stopped(r->state) && r->state != 'Z')
		say_cause(d, all, r);
}

static int by_rank(const void *a, const void *b)
{
	const struct rank *x = a, *y = b;

	if (x->page->job != y->page->job)
		return x->page->job < y->page->job ? -1 : 1;
	return (x->page->rank > y->page->rank) - (x->page->rank < y->page->rank);
}

int tt_doctor_running(struct tt_doctor *d, char **pids, int n)
{
	struct ranks all = { .n = 0 };
	int status = 0, named;

	for (int i = 0; !status && i < n; i++)
		status = take_pid(&all, pids[i]);
	named = all.n;
	if (!status) {
		want_jobs(&all, named);
		ask(&all);
		if (all.n)
			qsort(all.of, (size_t)all.n, sizeof *all.of, by_rank);
		for (int i = 0; i < all.n; i++)
			read_page(&all.of[i]);
		for (int i = 0; i < all.n; i++) {
			if (all.of[i].wanted && (!i || all.of[i].is.job != all.of[i - 1].is.job))
				say_job(d, &all, i);
			if (all.of[i].wanted)
				say_rank(d, &all, &all.of[i]);
		}
		if (!all.n)
			tt_doctor_say(d, TT_NOTE, "running", "no rank of a job runs on this host as this user");
	}
	for (int i = 0; i < all.n; i++)
		munmap(all.of[i].page, TT_INQUIRY_SIZE);
	free(all.of);
	return status;
}
