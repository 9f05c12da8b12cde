/* chaos_net.c - network namespaces, joined by a bridge: `ip' builds them, `nft' cuts, `tc' makes slow
 *
 *      hub    bridge -- v0   v1   v2 ...     tbf at a slow rank's v: what it receives
 *                       |    |    |
 *      rank             eth0 eth0 eth0       nftables drop what comes from, or goes to, whom it is cut from;
 *                                            tbf: what it sends
 *
 * The namespaces have no names: a descriptor holds each of them, and the kernel ends what nobody holds.
 */
#include "base/base.h"
#include "tests/job/chaos.h"
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOW_QDISC "root tbf rate 8mbit burst 32kbit latency 400ms"

static struct {
	int fd[NET_MAX], hub;
	unsigned cut, slow; /* ranks of whom something has to be reset */
	bool built;
} net = { .hub = -1 };

/* A shell command in one of the namespaces. */
static bool run_in(int fd, const char *fmt, ...) TT_FORMAT(2, 3);
static bool run_in(int fd, const char *fmt, ...)
{
	char command[1200];
	int status = 0;
	va_list args;
	pid_t pid;

	va_start(args, fmt);
	vsnprintf(command, sizeof command, fmt, args);
	va_end(args);
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);
		if (setns(fd, CLONE_NEWNET))
			_exit(126);
		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

const char *net_addr(int rank)
{
	static char text[NET_MAX][24];

	snprintf(text[rank], sizeof text[rank], "10.0.0.%d", rank + 1);
	return text[rank];
}

static int new_namespace(void)
{
	return unshare(CLONE_NEWNET) ? -1 : open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
}

static const char *build_rank(int rank)
{
	if (!run_in(net.hub,
	            "ip link add v%d type veth peer name eth0 netns /proc/%d/fd/%d && ip link set v%d master bridge up",
	            rank, (int)getpid(), net.fd[rank], rank))
		return "pairs of veth";
	if (!run_in(net.fd[rank], "ip link set lo up && ip addr add 10.0.0.%d/24 dev eth0 && ip link set eth0 up",
	            rank + 1))
		return "addresses";
	if (!run_in(net.fd[rank],
	            "nft add table ip chaos && nft 'add chain ip chaos in { type filter hook input priority 0; }' && "
	            "nft 'add chain ip chaos out { type filter hook output priority 0; }'"))
		return "nft (package nftables)";
	if (!run_in(net.fd[rank], "tc qdisc add dev eth0 " SLOW_QDISC " && tc qdisc del dev eth0 root"))
		return "tc with tbf (package iproute2)";
	return NULL;
}

const char *net_build(void)
{
	char path[400];
	const char *missing = NULL, *old = getenv("PATH");
	int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

	snprintf(path, sizeof path, "%.300s:/usr/sbin:/sbin", old ? old : "/usr/bin:/bin");
	setenv("PATH", path, 1);
	for (int i = 0; i < NET_MAX; i++)
		net.fd[i] = new_namespace();
	net.hub = new_namespace();
	if (home >= 0 && net.hub >= 0)
		setns(home, CLONE_NEWNET);
	close(home);
	if (net.hub < 0)
		return "the right to make network namespaces";
	if (!run_in(net.hub, "ip link add bridge type bridge && ip link set bridge up"))
		return "ip with bridges (package iproute2)";
	for (int i = 0; i < NET_MAX && !missing; i++)
		missing = build_rank(i);
	net.built = !missing;
	return missing;
}

void net_enter(int rank)
{
	if (net.built && setns(net.fd[rank], CLONE_NEWNET))
		_exit(99);
}

void net_cut(int rank, unsigned from)
{
	char set[200] = "", rules[600] = "";
	size_t n = 0;

	for (int i = 0; i < NET_MAX; i++)
		if (from >> i & 1)
			n += (size_t)snprintf(set + n, sizeof set - n, "%s%s", n ? ", " : "", net_addr(i));
	if (n)
		snprintf(rules, sizeof rules,
		         "; add rule ip chaos in ip saddr { %s } drop; add rule ip chaos out ip daddr { %s } drop", set,
		         set);
	run_in(net.fd[rank], "nft 'flush table ip chaos%s'", rules);
	net.cut |= 1u << rank;
}

void net_slow(int rank, bool slow)
{
	const char *what = slow ? "replace" : "del", *how = slow ? SLOW_QDISC : "root";

	run_in(net.fd[rank], "tc qdisc %s dev eth0 %s", what, how);
	run_in(net.hub, "tc qdisc %s dev v%d %s", what, rank, how);
	net.slow |= 1u << rank;
}

void net_reset(void)
{
	for (int i = 0; i < NET_MAX; i++) {
		if (net.cut >> i & 1)
			net_cut(i, 0);
		if (net.slow >> i & 1)
			net_slow(i, false);
	}
	net.cut = net.slow = 0;
}
