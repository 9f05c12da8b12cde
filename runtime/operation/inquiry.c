/* inquiry.c - what this rank answers when another process of its host asks for whom it waits
 *
 * The asker adds one to `asked`. At the next beat this rank asks those that its calls wait for what they do, and some
 * beats later, when their answers have come, it writes what it knows.
 *
 *      asker: asked + 1 | beat: PING to all that are waited for | ... PONGs ... | ANSWER beats later: text, answered
 */
#include "operation/inquiry.h"
#include "operation/operation.h"
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ANSWER = 3 };

int tt_inquiry_open(struct tt_job *job)
{
	struct tt_operations *own = tt_operations(job);
	void *page;
	int fd;

	own->inquiry_fd = -1;
	if (tt_world || (fd = tt_memory_file(TT_INQUIRY_FILE, TT_INQUIRY_SIZE)) < 0)
		return 0; /* the job goes on without it */
	page = tt_files_scarce(fd) ? MAP_FAILED
	                           : mmap(NULL, TT_INQUIRY_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED) {
		close(fd);
		return 0;
	}
	own->inquiry_fd = fd;
	own->inquiry = page;
	*own->inquiry = (struct tt_inquiry){
		.magic = TT_INQUIRY_MAGIC, .rank = job->rank, .size = job->size, .serial = job->serial, .job = job->id
	};
	snprintf(own->inquiry->name, sizeof own->inquiry->name, "%s", tt_members(job)->name);
	snprintf(own->inquiry->label, sizeof own->inquiry->label,
	         tt_members(job)->unnumbered ? "a newcomer" : "rank %d", job->rank);
	return 0;
}

void tt_inquiry_close(struct tt_job *job)
{
	struct tt_operations *own = tt_operations(job);

	if (!own->inquiry)
		return;
	munmap(own->inquiry, TT_INQUIRY_SIZE);
	close(own->inquiry_fd);
	own->inquiry = NULL;
}

static bool is_mute(const struct tt_member *m)
{
	return m->link && m->state == TT_UP && tt_heartbeat_is_frozen(m->link);
}

/* Has not come to it; or has been asked, and does not answer. */
static bool is_awaited(const struct tt_operation *r, const struct tt_member *m)
{
	return is_mute(m) || !r->words->late || r->words->late(r, m);
}

static bool waits_for_mute(const struct tt_operation *r)
{
	for (int i = 0; i < r->job->size; i++)
		if (tt_operation_concerns(r, i) && is_mute(tt_member(r->job, i)))
			return true;
	return false;
}

static size_t say_operation(const struct tt_operation *r, uint64_t waited, char *text, size_t size)
{
	char whom[400];
	int n;

	if (!tt_operation_name(r, is_awaited, whom, sizeof whom) && !tt_operation_name(r, NULL, whom, sizeof whom))
		tt_operation_describe(r, whom, sizeof whom);
	n = snprintf(text, size, "has waited %llu s in %s for %s%s\n", (unsigned long long)(waited / (1000 * TT_MS)),
	             r->what, whom, waits_for_mute(r) ? "; some of these give no sign of life" : "");
	return tt_min((size_t)n, size - 1);
}

static bool is_noted(const struct tt_inquiry *page, int rank)
{
	for (uint32_t i = 0; i < page->awaits; i++)
		if (page->awaited[i] == rank)
			return true;
	return false;
}

/* Where each process has a list of its own, its numbers are no other process's. */
static void note_awaited(struct tt_inquiry *page, const struct tt_operation *r)
{
	if (tt_members(r->job)->own_list)
		return;
	for (int i = 0; i < r->job->size && page->awaits < TT_INQUIRY_AWAITED; i++)
		if (i != r->job->rank && tt_operation_concerns(r, i) && is_awaited(r, tt_member(r->job, i)) &&
		    !is_noted(page, i))
			page->awaited[page->awaits++] = i;
}

static void say_all(struct tt_job *job, char *text, size_t size)
{
	const struct tt_operations *own = tt_operations(job);
	size_t at = 0;

	*text = 0;
	own->inquiry->waited_ms = own->inquiry->awaits = 0;
	own->inquiry->evicted = tt_members(job)->evicted != NULL;
	if (own->inquiry->evicted) {
		snprintf(text, size, "is out of the job: the other ranks go on without it: %s\n",
		         tt_members(job)->evicted);
		return;
	}
	tt_each_of(const struct tt_operation, link, r, &own->running) {
		uint64_t waited = own->clock - r->since;
		own->inquiry->waited_ms = (uint32_t)tt_max(own->inquiry->waited_ms, waited / TT_MS + 1);
		at += say_operation(r, waited, text + at, size - at);
		note_awaited(own->inquiry, r);
	}
	if (!at && own->last)
		snprintf(text, size, "is in no call: the last one was %s, %llu s ago\n", own->last,
		         (unsigned long long)((own->clock - own->last_at) / (1000 * TT_MS)));
	else if (!at)
		snprintf(text, size, "has made no call yet\n");
}

static void answer(struct tt_job *job)
{
	struct tt_operations *own = tt_operations(job);
	struct tt_inquiry *page = own->inquiry;

	atomic_fetch_add(&page->turn, 1);
	page->rank = job->rank;
	page->size = job->size;
	snprintf(page->label, sizeof page->label, "%s", tt_member_label(tt_member(job, job->rank)).text);
	say_all(job, page->text, sizeof page->text);
	atomic_fetch_add(&page->turn, 1);
	atomic_store(&page->answered, own->heard);
}

void tt_inquiry_beat(struct tt_job *job)
{
	struct tt_operations *own = tt_operations(job);
	uint32_t asked = own->inquiry ? atomic_load(&own->inquiry->asked) : own->heard;

	if (own->answer_in && !--own->answer_in)
		answer(job);
	if (asked == own->heard || own->answer_in)
		return;
	own->heard = asked;
	own->answer_in = ANSWER;
	tt_each_of(struct tt_operation, link, r, &own->running)
		tt_operation_ping(r);
}
