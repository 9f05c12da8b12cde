/* signal.c - leaving in order when a signal asks this process to end. The handler only notes the signal; a thread,
 * which runs while a job asks for this, says the goodbyes; then the signal takes the effect that it had before. Or the
 * program asks whether the signal has come, and does what it likes. */
#include "engine/engine.h"
#include "job/job_private.h"
#include "member/member.h"
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { SIGNALS = 65 };

static struct { /* of this process */
	struct tt_ticket_lock door; /* held while the thread is begun or ended */
	struct tt_ticket_lock lock; /* of the list; held during goodbyes, so that no job is freed meanwhile */
	struct tt_list jobs;      /* that leave on a signal, or ask for one */
	_Atomic pid_t pid;        /* the process that all this belongs to: a fork's child inherits only the handlers */
	sem_t bell;               /* no descriptor: a program may close all files that it finds */
	struct tt_task *task;
	_Atomic bool heard;       /* the thread is there */
	_Atomic int caught;       /* the signal that came; 0: none yet */
	bool stopping;
	_Atomic int users[SIGNALS]; /* jobs that leave, by signal */
	_Atomic int askers[SIGNALS]; /* jobs whose programs ask for it */
	_Atomic bool came[SIGNALS];  /* since somebody asks */
	bool installed[SIGNALS];
	struct sigaction former[SIGNALS];
} quit;

/* The first is noted. A second one, or one in a fork's child, takes its effect at once. */
static void note(int number)
{
	bool ours = getpid() == atomic_load(&quit.pid);
	int saved = errno, none = 0;

	if (ours && atomic_load(&quit.askers[number]) && !atomic_exchange(&quit.came[number], true)) {
		; /* the program will ask */
	} else if (ours && atomic_load(&quit.heard) && atomic_load(&quit.users[number]) &&
	           atomic_compare_exchange_strong(&quit.caught, &none, number)) {
		sem_post(&quit.bell);
	} else {
		sigaction(number, &quit.former[number], NULL);
		raise(number); /* once this handler has returned */
	}
	errno = saved;
}

static void restore(int number)
{
	if (quit.installed[number])
		sigaction(number, &quit.former[number], NULL);
	quit.installed[number] = false;
}

/* On one of the program's threads, or here if all of them block it. */
static void take_effect(int number)
{
	sigset_t only;

	restore(number);
	sigemptyset(&only);
	sigaddset(&only, number);
	pthread_sigmask(SIG_UNBLOCK, &only, NULL);
	kill(getpid(), number);
	pthread_sigmask(SIG_BLOCK, &only, NULL);
}

static bool quits_on(const struct tt_job *job, int number) { return tt_jobs_own(job)->quit_on >> (number - 1) & 1; }

static struct tt_job *job_at(struct tt_list *node, int number)
{
	struct tt_job *job = tt_container_of(node, struct tt_jobs_own, quits)->job;

	return quits_on(job, number) ? job : NULL;
}

/* All jobs refuse new calls first, since the goodbyes of one may take a while. */
static void quit_all(int number)
{
	struct tt_job *job;

	tt_list_each(node, &quit.jobs)
		if ((job = job_at(node, number)))
			atomic_store(&job->quitting, number);
	tt_list_each(node, &quit.jobs)
		if ((job = job_at(node, number)))
			tt_job_goodbye(job, job->silence);
	take_effect(number);
}

static void await_signal(void *arg)
{
	bool done = false;

	(void)arg;
	while (!done) {
		(void)sem_wait(&quit.bell); /* also after EINTR: looking once too often does no harm */
		tt_ticket_lock_take(&quit.lock);
		int number = atomic_load(&quit.caught);
		done = quit.stopping || number;
		if (number)
			quit_all(number); /* also if no job leaves on it any more: it came before that */
		tt_ticket_lock_release(&quit.lock);
	}
}

/* In a fork's child the parent's jobs, thread and locks mean nothing. */
static void begin_process(void)
{
	if (atomic_load(&quit.pid) == getpid())
		return;
	memset(quit.users, 0, sizeof quit.users);
	for (int i = 0; i < SIGNALS; i++) {
		quit.askers[i] = 0;
		quit.came[i] = false;
	}
	memset(&quit.lock, 0, sizeof quit.lock);
	tt_list_init(&quit.jobs);
	quit.task = NULL;
	atomic_store(&quit.heard, false);
	atomic_store(&quit.caught, 0);
	sem_init(&quit.bell, 0, 0);
	atomic_store(&quit.pid, getpid());
}

static void end_task(void)
{
	tt_ticket_lock_take(&quit.lock);
	quit.stopping = true;
	tt_ticket_lock_release(&quit.lock);
	sem_post(&quit.bell);
	tt_join(quit.task);
	quit.task = NULL;
	atomic_store(&quit.heard, false);
}

/* If the program has its own handler, the process outlives a signal but the thread does not: begins another one. */
static int begin_task(void)
{
	begin_process();
	if (quit.task && atomic_load(&quit.caught))
		end_task();
	quit.stopping = false;
	if (quit.task)
		return 0;
	int caught = atomic_exchange(&quit.caught, 0), err = tt_spawn(await_signal, NULL, &quit.task);
	if (err)
		atomic_store(&quit.caught, caught); /* no thread: a signal takes its effect at once */
	atomic_store(&quit.heard, !err);
	return err;
}

static int install(int number)
{
	struct sigaction mine = { .sa_handler = note, .sa_flags = SA_RESTART };

	if (quit.installed[number])
		return 0;
	sigfillset(&mine.sa_mask);
	if (sigaction(number, NULL, &quit.former[number]) || sigaction(number, &mine, NULL))
		return tt_fail(-EINVAL, "%d is not a signal that a process can catch", number);
	quit.installed[number] = true;
	return 0;
}

static bool asks_for(const struct tt_job *job, int number)
{
	return atomic_load(&tt_jobs_own(job)->asks_for) >> (number - 1) & 1;
}

static void add_job(struct tt_job *job, int number, bool asks)
{
	struct tt_jobs_own *own = tt_jobs_own(job);

	tt_ticket_lock_take(&quit.lock);
	if (!own->quits.next)
		tt_list_append(&quit.jobs, &own->quits);
	if (asks) {
		quit.askers[number] += !asks_for(job, number);
		own->asks_for |= (uint64_t)1 << (number - 1);
	} else {
		quit.users[number] += !quits_on(job, number);
		own->quit_on |= (uint64_t)1 << (number - 1);
	}
	tt_ticket_lock_release(&quit.lock);
}

/* Waits for goodbyes under way. */
void tt_signal_forget(struct tt_job *job)
{
	if (!tt_jobs_own(job)->quits.next)
		return;
	tt_ticket_lock_take(&quit.door);
	tt_ticket_lock_take(&quit.lock);
	tt_list_remove(&tt_jobs_own(job)->quits);
	for (int i = 1; i < SIGNALS; i++) {
		quit.users[i] -= quits_on(job, i);
		quit.askers[i] -= asks_for(job, i);
		if (!quit.askers[i])
			quit.came[i] = false;
		if (!quit.users[i] && !quit.askers[i])
			restore(i);
	}
	bool last = tt_list_empty(&quit.jobs);
	tt_ticket_lock_release(&quit.lock);
	if (last && quit.task)
		end_task();
	tt_ticket_lock_release(&quit.door);
}

static int may_catch(struct tt_job *job, int number)
{
	int err = tt_usable(job);

	if (!err && tt_world)
		err = tt_fail(-ENOTSUP, "a simulated rank gets no signals");
	if (!err && (number < 1 || number >= SIGNALS))
		err = tt_fail(-EINVAL, "%d is not the number of a signal", number);
	return err;
}

int tutti_leave_asked(tutti *at, int number)
{
	struct tt_job *job = tt_job_of(at);
	int err = may_catch(job, number);

	if (err)
		return err;
	if (asks_for(job, number))
		return atomic_load(&quit.came[number]);
	tt_ticket_lock_take(&quit.door);
	begin_process();
	if (!(err = install(number)))
		add_job(job, number, true);
	tt_ticket_lock_release(&quit.door);
	return err;
}

int tutti_leave_on(tutti *at, int number)
{
	struct tt_job *job = tt_job_of(at);
	int err = may_catch(job, number);

	if (err)
		return err;
	tt_ticket_lock_take(&quit.door);
	if (!(err = begin_task()) && !(err = install(number)))
		add_job(job, number, false);
	else if (quit.task && tt_list_empty(&quit.jobs))
		end_task();
	tt_ticket_lock_release(&quit.door);
	return err;
}

/* Programs that have a handler know better; so do those that were started with the signal ignored. */
int tt_signal_begin(struct tt_job *job)
{
	struct sigaction now;

	tt_lock(job); /* newcomers may come already */
	bool alone = !job->engine.count;
	tt_unlock(job);
	if (tt_world || alone || !tt_setting_is(&job->settings, TT_TERM, "leave") ||
	    sigaction(SIGTERM, NULL, &now) || now.sa_flags & SA_SIGINFO ||
	    (now.sa_handler != SIG_DFL && now.sa_handler != note))
		return 0;
	return tutti_leave_on(tt_members(job)->all, SIGTERM);
}
