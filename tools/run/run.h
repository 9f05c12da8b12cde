/* run.h - `tutti run`: run.c has the processes, output.c what they write, options.c the command line, hosts.c and
 * agent.c the two ends of a connection to another host */
#ifndef TT_RUN_H
#define TT_RUN_H
#include "tools/tools.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { RANKS_MAX = 4096, HOSTS_MAX = 1024 };

enum tag { UNTAGGED, TAG_RANK, TAG_RANK_AND_HOST }; /* what each line of output begins with */

struct host {
	char name[128];     /* as the user wrote it, for ssh */
	int slots;          /* ranks that fit; 0: not said */
	int first, ranks;   /* the ranks that run there */
	bool met, ordered;  /* the agent has said hello; has been told what to run */
	int again;          /* how often it was reached for once more */
	int orders;         /* the agent's standard input; -1: none */
	char address[96];   /* at which ssh reached the host; "": not known */
	int port;           /* where rank 0 may listen */
};

struct options {
	int ranks;              /* that run here, or, with hosts, in all */
	int first, size;        /* the first rank that runs here; how many the job has */
	int restarts;           /* a rank that died is started again, so many times in all */
	enum tag tag;
	bool keep_going, verbose;
	bool agent;             /* another `tutti run` gives the orders, over the standard input */
	const char *rendezvous; /* HOST:PORT; NULL: a port of the loopback, or of the first host */
	const char *rsh;        /* in place of ssh */
	char host[128];         /* what this host is called in lines and sentences; "": not said */
	struct host *hosts;     /* NULL: all ranks run here */
	int host_count;
	uint64_t grace;         /* nanoseconds */
	char **program;
};

struct stream { /* a rank's stdout or stderr */
	int fd;        /* the read end of the pipe; -1: none, or closed */
	int rank;
	struct sink *to;
	bool returned; /* the last byte was a carriage return: the rank redraws its line */
	size_t len;    /* of the incomplete line */
	char *text;    /* LINE_MAX_BYTES, allocated with the first byte */
};

struct sink { /* stdout or stderr of tutti run; a single sink if they are the same file, or lines would mix */
	int fd;        /* -1: the reader has gone */
	int streams;   /* the epoll set of the streams that go here */
	char *text;
	size_t sent, len, room;
	struct stream *open; /* whose incomplete line ends the text */
};

struct rank {      /* or, with hosts, the connection to one */
	pid_t pid;     /* 0: ended */
	pid_t group;   /* the process group: the same number, even after the end */
	uint64_t ends; /* was evicted, and runs on: when it gets its next signal ... */
	int signal;    /* ... which is this one; 0: it was not */
	uint64_t begun, pause; /* this life; nanoseconds that it waited before its program, 0: it is the first */
	struct stream out[2];
};

struct process_groups { /* shared with the keeper */
	uint64_t grace;
	_Atomic pid_t group[RANKS_MAX]; /* 0: none. Becomes 0 before the kernel can use the number again */
};

enum stage {
	MEETING, /* the hosts are being reached */
	RUNNING,
	FAILING, /* a rank has failed: the others have time to notice and end */
	STOPPED, /* all ranks that are left are stopped, by SIGSTOP for one */
	ENDING,  /* they got SIGTERM */
	KILLED,
};

struct run {
	struct options options;
	struct rank *ranks; /* `count` of them: one a rank, or one a host */
	int count, restarted;
	int next;          /* the first host that was not reached for yet */
	struct process_groups *groups;
	struct sink sinks[2], *errors;
	enum stage stage;
	uint64_t deadline; /* of the stage */
	bool interrupted;  /* by SIGINT */
	bool finished;     /* some rank exited with 0 */
	bool outlived;     /* the last ranks were stopped, and were killed for that */
	int alive, status, failed;
	pid_t self, keeper;
	int life;          /* a pipe: the keeper sees it close when tutti run ends */
	int signals, boot, null;
	int report;        /* ranks write there why they cannot execute the program; -1: all of them run it */
	bool refused;      /* one could not */
	int orders;        /* an agent's: where its orders come from; -1: none */
	int told[2];       /* a pipe: what ranks tell, each a struct tt_saying */
	char boot_list[512]; /* TUTTI_BOOT for newcomers, as ranks told last; "": none has joined yet */
	/* The original values, which the ranks get: */
	bool hup_ignored;
	struct rlimit files;
};

/* options.c. False: *status is the exit status. */
bool tt_run_parse(int argc, char **argv, struct options *, int *status);
void tt_run_free_options(struct options *);

/* hosts.c: hosts that are reached over ssh, each with one agent */
int tt_run_take_hosts(struct options *, const char *list);     /* "a,b:4"; 0, or TT_TOOL_REFUSED and a sentence */
int tt_run_take_hostfile(struct options *, const char *path);
int tt_run_seat(struct options *, bool all);                   /* which ranks run where; all: as many as fit */
_Noreturn void tt_run_become_ssh(const struct options *, const struct host *, int report); /* in the child */
bool tt_run_take_hello(struct run *, int r, const char *line, size_t len); /* false: a line for the user */
void tt_run_order(struct run *, int r, int sig);               /* passes a signal to the agent */
void tt_run_name_unmet(const struct run *, char *text, size_t size);
void tt_run_judge_host(struct run *, int r, int status);       /* the connection has ended */

/* agent.c: the other end */
int tt_run_begin_agent(struct options *, int *boot); /* says hello, reads what to run; 0, or an exit status */

/* run.c */
void tt_run_end_ranks(struct run *, int sig, uint64_t grace);
int tt_run_listen(int fd, struct sockaddr *at, socklen_t size); /* chooses the port, and writes it to `at`; 0; -1 */
int tt_run_boot(const char *address, unsigned port, char text[128]); /* sets TUTTI_BOOT */
void tt_run_reach_next(struct run *); /* a host has been met: the next one, if one is left */

/* output.c */
int tt_run_open_sinks(struct run *); /* 0 or -errno */
/* Opens a pipe from the rank's stdout (i 0) or stderr (1). theirs: the rank's end; -1: the rank may write directly. */
int tt_run_open_stream(struct run *, int rank, int i, int *theirs); /* 0 or -errno */
bool tt_run_read_stream(struct run *, struct stream *); /* reads once; false: nothing more at the moment */
void tt_run_close_stream(struct run *, struct stream *);
void tt_run_read_streams(struct run *, struct sink *);  /* reads all streams that are readable */
void tt_run_write_sink(struct run *, struct sink *);    /* once the sink is writable */
void tt_run_say(struct run *, const char *fmt, ...) TT_FORMAT(2, 3); /* prints a line of tutti run itself on stderr */
#endif
