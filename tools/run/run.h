/* run.h - what the two halves of `tutti run` share: run.c, the processes, and output.c, what they write */
#ifndef TT_RUN_H
#define TT_RUN_H
#include "tools/tools.h"
#include <signal.h>
#include <sys/resource.h>

enum { RANKS_MAX = 4096 };

struct options {
	int ranks;
	bool tag, keep_going;
	uint64_t grace; /* nanoseconds */
	char **program;
};

struct stream { /* what one rank writes to its stdout or stderr */
	int fd;             /* our end of the pipe; -1: none, or closed */
	int rank;
	struct sink *to;
	bool returned;      /* its last byte was a carriage return: it draws over its own line */
	size_t len;         /* of the line that is not complete yet */
	char *text;         /* LINE_MAX_BYTES, from the first byte on */
};

struct sink { /* our stdout or stderr; one sink if they are the same file, or lines would mix */
	int fd;             /* -1: nobody reads it any more */
	int streams;        /* the epoll set of those that end here */
	char *text;
	size_t sent, len, room;
	struct stream *open; /* whose unfinished line the text ends in */
};

struct rank {
	pid_t pid;          /* 0: over */
	pid_t group;        /* its process group: the same number, for good */
	struct stream out[2];
};

struct roll { /* shared with the keeper */
	uint64_t grace;
	_Atomic pid_t group[RANKS_MAX]; /* 0: none, or none any more. Before the number can be used anew the entry is 0 */
};

enum stage {
	RUNNING,
	FAILING, /* a rank has failed: the others may notice and end */
	ENDING,  /* they were told to */
	KILLED,
};

struct run {
	struct options options;
	struct rank *ranks;
	struct roll *roll;
	struct sink sinks[2], *errors;
	enum stage stage;
	uint64_t deadline;  /* of the stage */
	bool interrupted;   /* by SIGINT */
	bool finished;      /* some rank exited with 0 */
	int alive, status, failed;
	pid_t self, keeper;
	int life;           /* the keeper sees its other end close when we are gone */
	int signals, boot, null;
	sigset_t mask;      /* these two as they were: a rank starts with them ... */
	bool hup_ignored;
	struct rlimit files; /* ... and with this */
};

/* output.c */
int tt_run_open_sinks(struct run *);                       /* where our own output goes; -errno */
int tt_run_open_stream(struct run *, int rank, int i, int *theirs); /* a pipe from its stdout (0) or stderr (1), and the end for it: -1, if it may
                                                      * write there itself; -errno */
bool tt_run_read_stream(struct run *, struct stream *);    /* one read; false: there is no more at the moment */
void tt_run_close_stream(struct run *, struct stream *);
void tt_run_read_streams(struct run *, struct sink *);     /* those that have something */
void tt_run_write_sink(struct run *, struct sink *);       /* it is writable */
void tt_run_say(struct run *, const char *fmt, ...) TT_FORMAT(2, 3); /* a line of our own on stderr */
#endif
