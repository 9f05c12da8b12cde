/* hydra.c - for addresses.sh: `hydra N PROGRAM ...` starts N processes and speaks PMI-1 with them, as mpiexec of MPICH
 * does. The exit status is that of the first process which fails. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 16, LINE = 2048 };

static int count, waiting, fd[MOST];
static char key[LINE], value[LINE];

static void start(int rank, char **program)
{
	char text[16];
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		abort();
	fd[rank] = pair[0];
	if (fork()) {
		close(pair[1]);
		return;
	}
	for (int i = 0; i <= rank; i++)
		close(fd[i]);
	const struct {
		const char *name;
		int is;
	} set[] = { { "PMI_FD", pair[1] }, { "PMI_RANK", rank }, { "PMI_SIZE", count } };
	for (int i = 0; i < 3; i++) {
		snprintf(text, sizeof text, "%d", set[i].is);
		setenv(set[i].name, text, 1);
	}
	execvp(program[0], program);
	_exit(127);
}

static void say(int rank, const char *text)
{
	if (write(fd[rank], text, strlen(text)) < 0)
		perror("hydra");
}

static void serve(int rank, const char *line)
{
	char asked[LINE], answer[2 * LINE];

	if (!strncmp(line, "cmd=init ", 9))
		say(rank, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
	else if (!strcmp(line, "cmd=get_my_kvsname"))
		say(rank, "cmd=my_kvsname kvsname=kvs_7_0\n");
	else if (sscanf(line, "cmd=put kvsname=kvs_7_0 key=%s value=%s", key, value) == 2)
		say(rank, "cmd=put_result rc=0 msg=success\n");
	else if (sscanf(line, "cmd=get kvsname=kvs_7_0 key=%s", asked) == 1) {
		int unknown = strcmp(asked, key);
		snprintf(answer, sizeof answer, "cmd=get_result rc=%d msg=%s value=%s\n", unknown ? -1 : 0,
		         unknown ? "key_not_found" : "success", unknown ? "unknown" : value);
		say(rank, answer);
	} else if (!strcmp(line, "cmd=finalize"))
		say(rank, "cmd=finalize_ack\n");
	else if (strcmp(line, "cmd=barrier_in"))
		fprintf(stderr, "hydra: rank %d says \"%s\"\n", rank, line);
	else if (++waiting == count)
		for (int i = waiting = 0; i < count; i++)
			say(i, "cmd=barrier_out\n");
}

/* A rank asks again only when it has its answer: what has come is a line. */
static int hear(int rank)
{
	char line[LINE];
	size_t n = 0;

	while (n + 1 < sizeof line && read(fd[rank], line + n, 1) == 1 && line[n] != '\n')
		n++;
	line[n] = 0;
	if (n)
		serve(rank, line);
	return n > 0;
}

int main(int argc, char **argv)
{
	int status = 0, one, left;

	count = argc > 2 ? atoi(argv[1]) : 0;
	if (count < 1 || count > MOST)
		return 2;
	for (int rank = 0; rank < count; rank++)
		start(rank, argv + 2);
	for (left = count; left;) {
		struct pollfd p[MOST];
		for (int i = 0; i < count; i++)
			p[i] = (struct pollfd){ .fd = fd[i], .events = POLLIN };
		if (poll(p, (nfds_t)count, -1) < 0)
			continue;
		for (int i = 0; i < count; i++)
			if (p[i].revents && !hear(i)) {
				close(fd[i]);
				fd[i] = -1;
				left--;
			}
	}
	while (wait(&one) > 0)
		status = status ? status : WIFEXITED(one) ? WEXITSTATUS(one) : 1;
	return status;
}
