/* run.h - `tutti run`: run.c has the processes, output.c has what they write */
#ifndef TT_RUN_H
#define TT_RUN_H
#include "tools/tools.h"
#include <signal.h>
#include <sys/resource.h>

enum { RANKS_MAX = 4096 };

struct options {
	int ranks;
	bool tag, keep_going, verbose;
	const char *rendezvous; /* HOST:PORT; NULL: a port of the loopback */
	uint64_t grace; /* nanoseconds */
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

struct rank {
	pid_t pid;     /* 0: ended */
	pid_t group;   /* the process group: the same number, even after the end */
	uint64_t ends; /* was evicted, and runs on: when it gets its next signal ... */
	int signal;    /* ... which is this one; 0: it was not */
	struct stream out[2];
};

struct process_groups { /* shared with the keeper */
	uint64_t grace;
	_Atomic pid_t group[RANKS_MAX]; /* 0: none. Becomes 0 before the kernel can use the number again */
};

enum stage {
	RUNNING,
	FAILING, /* a rank has failed: the others have time to notice and end */
	STOPPED, /* all ranks that are left are stopped, by SIGSTOP for one */
	ENDING,  /* they got SIGTERM */
	KILLED,
};

struct run {
	struct options options;
	struct rank *ranks;
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
	int evicted[2];    /* a pipe: ranks write their number when the others have evicted them */
	/* The original values, which the ranks get: */
	sigset_t mask;
	bool hup_ignored;
	struct rlimit files;
};

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
