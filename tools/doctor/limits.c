/* limits.c - what a rank of this host may use: files, processes, memory, cores; and the host's clock and /proc */
#include "job/job.h"
#include "topology/topology.h"
#include "tools/doctor/doctor.h"
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

enum { FILES_MIN = 1024, TASKS_MIN = 256, YEAR_MIN = 2024 };

static double gib(double bytes) { return bytes / (1 << 30); }

/* ---- limits of a process ---- */

static void judge_files(struct tt_doctor *d)
{
	unsigned long long most = tt_files_most();

	if (most < FILES_MIN)
		tt_doctor_say(d, TT_FINDING, "files",
		              "a rank may open %llu files, and a connection to each rank, shared memory "
		              "and the program's own share them: raise the limit to %d or more, with ulimit -n or in "
		              "/etc/security/limits.conf",
		              most, FILES_MIN);
	else
		tt_doctor_say(d, TT_FINE, "files", "a rank may open %llu files", most);
}

static void judge_tasks(struct tt_doctor *d)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NPROC, &r))
		return;
	if (r.rlim_cur < TASKS_MIN)
		tt_doctor_say(d, TT_FINDING, "processes",
		              "this user may have %llu processes and threads, and a rank has up to a "
		              "dozen threads: raise the limit to %d or more with ulimit -u",
		              (unsigned long long)r.rlim_cur, TASKS_MIN);
	else
		tt_doctor_say(d, TT_FINE, "processes", r.rlim_cur == RLIM_INFINITY ? "no limit" : "up to %llu",
		              (unsigned long long)r.rlim_cur);
}

static bool has_adapter(void)
{
	struct tt_device device;
	const struct tt_transport *t;

	for (int i = 0; (t = tt_transport_at(i)); i++)
		if (!strcmp(t->name, "verbs"))
			return t->list(&device, 1) > 0;
	return false;
}

static void judge_memlock(struct tt_doctor *d)
{
	uint64_t most = tt_lockable();

	if (!d->rdma && !has_adapter())
		tt_doctor_say(d, TT_FINE, "memlock", "no RDMA adapter is here, so no memory has to be locked");
	else if (most == UINT64_MAX)
		tt_doctor_say(d, TT_FINE, "memlock", "a rank may lock all its memory");
	else if (most < d->memory)
		tt_doctor_say(d, TT_FINDING, "memlock",
		              "a rank may lock %llu KiB of memory, and an RDMA adapter reaches locked memory alone, "
		              "here up to %zu KiB: set memlock to unlimited in /etc/security/limits.conf, for "
		              "a service or Slurm's slurmd LimitMEMLOCK=infinity",
		              (unsigned long long)most >> 10, d->memory >> 10);
	else
		tt_doctor_say(d, TT_FINE, "memlock", "a rank may lock %.1f GiB", gib((double)most));
}

static void judge_address_space(struct tt_doctor *d)
{
	struct rlimit r;

	if (!getrlimit(RLIMIT_AS, &r) && r.rlim_cur != RLIM_INFINITY && r.rlim_cur / 2 < d->memory)
		tt_doctor_say(d, TT_FINDING, "memory",
		              "a rank may have %.2f GiB of address space, and it needs %.2f GiB and as "
		              "much again for others to map: raise the limit with ulimit -v",
		              gib((double)r.rlim_cur), gib((double)d->memory));
	if (!getrlimit(RLIMIT_FSIZE, &r) && r.rlim_cur != RLIM_INFINITY && r.rlim_cur < d->memory)
		tt_doctor_say(d, TT_FINDING, "memory",
		              "a file may have %llu KiB, which holds for memory files too: the memory "
		              "that ranks of one host share; raise the limit with ulimit -f",
		              (unsigned long long)r.rlim_cur >> 10);
}

/* ---- cgroups ---- */

/* Pages of files that nobody has used lately make room. */
static double read_cache(const struct tt_cgroup *g)
{
	char path[500], line[128];
	double bytes = 0;

	snprintf(path, sizeof path, "%s/memory.stat", g->folder);
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "inactive_file %lf", &bytes) == 1)
			break;
	if (f)
		fclose(f);
	return bytes;
}

static void judge_memory(struct tt_doctor *d)
{
	double least = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE),
	       need = (double)d->memory * d->ranks;
	char own[4096], tight[480] = "";
	struct tt_cgroup g = { .root = TT_CGROUPS, .own = tt_cgroup_own(own, sizeof own) };

	while (tt_cgroup_next(&g, "memory"))
		do {
			double max = tt_cgroup_number(&g, "memory.max",
			                              tt_cgroup_number(&g, "memory.limit_in_bytes", 1e18));
			double used = tt_cgroup_number(&g, "memory.current",
			                               tt_cgroup_number(&g, "memory.usage_in_bytes", 0));
			double left = max - used + read_cache(&g);
			if (max < 1e18 && left < least) {
				least = left > 0 ? left : 0;
				memcpy(tight, g.folder, sizeof tight);
			}
		} while (tt_cgroup_up(&g));
	if (least >= need)
		tt_doctor_say(d, TT_FINE, "memory", "%.1f GiB for the ranks of this host", gib(least));
	else if (*tight)
		tt_doctor_say(d, TT_FINDING, "memory",
		              "the cgroup %.300s leaves %.2f GiB, and %d rank%s with %.2f GiB each "
		              "need%s more: raise its memory.max, under Slurm with --mem",
		              tight, gib(least), d->ranks, d->ranks == 1 ? "" : "s", gib((double)d->memory),
		              d->ranks == 1 ? "s" : "");
	else
		tt_doctor_say(d, TT_FINDING, "memory",
		              "this host has %.2f GiB, and %d rank%s with %.2f GiB each need%s more: run "
		              "fewer ranks here",
		              gib(least), d->ranks, d->ranks == 1 ? "" : "s", gib((double)d->memory),
		              d->ranks == 1 ? "s" : "");
	judge_address_space(d);
}

static void judge_cores(struct tt_doctor *d)
{
	cpu_set_t set;
	int cores = sched_getaffinity(0, sizeof set, &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
	char own[4096];
	double quota = tt_cgroup_cores(TT_CGROUPS, tt_cgroup_own(own, sizeof own));

	if (quota < d->ranks)
		tt_doctor_say(d, TT_FINDING, "cores",
		              "cpu.max of a cgroup allows the time of %.1f cores to %d rank%s, which are "
		              "then halted for tens of milliseconds: raise cpu.max, or run fewer ranks here",
		              quota, d->ranks, d->ranks == 1 ? "" : "s");
	else if (cores < d->ranks)
		tt_doctor_say(d, TT_FINDING, "cores",
		              "%d ranks of this host share %d core%s, and each waits until the others have "
		              "slept: run fewer ranks here, or let a launcher give more cores (srun --cpus-per-task)",
		              d->ranks, cores, cores == 1 ? "" : "s");
	else
		tt_doctor_say(d, TT_FINE, "cores", "%d for %d rank%s", cores, d->ranks, d->ranks == 1 ? "" : "s");
}

/* ---- the host ---- */

static void judge_proc(struct tt_doctor *d)
{
	char text[64];

	if (!tt_doctor_read("/proc/sys/kernel/random/boot_id", text, sizeof text) || access("/proc/self/fd", R_OK))
		tt_doctor_say(d, TT_FINDING, "proc",
		              "/proc is not mounted, or hides what ranks know a host by: mount it in the "
		              "container, or TUTTI_TRANSPORTS=tcp");
	else if (tt_doctor_read("/proc/sys/kernel/yama/ptrace_scope", text, sizeof text) && atoi(text) > 1)
		tt_doctor_say(d, TT_NOTE, "proc",
		              "ptrace_scope is %s: ranks of this host do not copy from each other's memory, and "
		              "shm is slower with memory that is not of tutti_alloc",
		              text);
	else
		tt_doctor_say(d, TT_FINE, "proc", "/proc is there");
}

/* Shared memory is of memory files, which no mount bounds; MPIs and others do use /dev/shm. */
static void judge_shm(struct tt_doctor *d)
{
	int fd = tt_memory_file("tutti doctor", d->memory);
	struct statvfs v;

	if (fd < 0)
		tt_doctor_say(d, TT_FINDING, "shm",
		              "a memory file of %.2f GiB cannot be made (%s), so ranks of this host share no "
		              "memory: see ulimit -n and ulimit -f, and whether a seccomp filter forbids memfd_create",
		              gib((double)d->memory), strerror(errno));
	else if (statvfs("/dev/shm", &v))
		tt_doctor_say(d, TT_NOTE, "shm",
		              "memory files can be made; there is no /dev/shm, which Tutti does not need");
	else
		tt_doctor_say(d, TT_FINE, "shm",
		              "memory files can be made, which count as memory alone; /dev/shm has %.1f of %.1f "
		              "GiB free for others",
		              gib((double)v.f_bavail * (double)v.f_frsize),
		              gib((double)v.f_blocks * (double)v.f_frsize));
	if (fd >= 0)
		close(fd);
}

/* Memory files have huge pages only if this says so; madvise() alone gives them to private memory. */
static void judge_pages(struct tt_doctor *d)
{
	static const char *const path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
	char text[128];

	if (!tt_doctor_read(path, text, sizeof text))
		tt_doctor_say(d, TT_NOTE, "pages", "this kernel has no huge pages for shared memory");
	else if (strstr(text, "[never]") || strstr(text, "[deny]"))
		tt_doctor_say(d, TT_NOTE, "pages",
		              "memory of tutti_alloc has small pages: for windows of gigabytes and for adapters, "
		              "root may do: echo advise > %s", path);
	else
		tt_doctor_say(d, TT_FINE, "pages", "memory of tutti_alloc may have huge pages");
}

static void judge_clock(struct tt_doctor *d)
{
	time_t now = (time_t)(tt_calendar() / (1000 * TT_MS));
	struct timex state = { .modes = 0 };
	struct tm at;
	char text[64];

	gmtime_r(&now, &at);
	strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &at);
	if (at.tm_year + 1900 < YEAR_MIN)
		tt_doctor_say(d, TT_FINDING, "clock",
		              "it says %s: set it, and let chrony or another NTP client keep it", text);
	else if (adjtimex(&state) == TIME_ERROR)
		tt_doctor_say(d, TT_NOTE, "clock", "%s; the kernel does not know that anything keeps it right", text);
	else
		tt_doctor_say(d, TT_FINE, "clock", "%s", text);
}

void tt_doctor_limits(struct tt_doctor *d)
{
	judge_files(d);
	judge_tasks(d);
	judge_memlock(d);
	judge_memory(d);
	judge_shm(d);
	judge_pages(d);
	judge_cores(d);
	judge_proc(d);
	judge_clock(d);
}
