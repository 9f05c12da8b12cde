/* launch.h - which rank of which job this process is, and where the others are. Nothing here needs the lock */
#ifndef TT_LAUNCH_H
#define TT_LAUNCH_H
#include "base/base.h"
#include "tutti.h"

struct tt_node {
	char name[64], address[80];
};
enum { TT_JOB_NAME = 64 };
struct tt_launch {
	int rank, size;
	bool unnumbered;            /* a new rank of a job under way: `rank` is not known yet */
	int local_rank, local_size; /* among the ranks of this host, by the launcher; local_size 0: it does not say */
	char address[96];           /* where rank 0 listens; "" with a node list, and where nobody may join */
	char toward[96];            /* HOST:PORT of another host, for rank 0: which of its addresses leads there? */
	const char *boots;          /* the same, and after commas where others do; NULL: rank 0's address alone */
	int listen_fd;              /* a socket that listens there already, or -1; see tt_launch_took_socket() */
	struct tt_node *nodes;      /* `size` of them, or NULL */
	bool own_list;              /* each process has other nodes */
	const struct tt_launcher *by;
	uint64_t begun;             /* when this process began to join */
	struct {
		int err;            /* why joining began again, 0: it did not ... */
		char why[240];
		uint64_t since, until; /* ... and when. Nobody is looked for after `until` */
	} again;
	bool exchanges;             /* rank 0 listens where it likes; tt_launch_exchange() tells the others */
	char name[TT_JOB_NAME + 1]; /* made of what the launcher calls the job; TUTTI_JOB comes before; "": none */
	const char *over;           /* the transport of all these addresses: job.c says */
};

/* Reads a config file: the settings that are not set yet, and the list of nodes, if it has one. */
int tt_config_load(struct tt_settings *, const char *file, struct tt_node **nodes, int *count);
/* The keys of the section gossip, which runtime/average/ reads. They are here so that a misplaced key is told. */
enum tt_gossip_key { TT_KEY_WAY, TT_KEY_CHOICE, TT_KEY_METHOD, TT_KEY_VALUE, TT_KEY_THRESHOLD, TT_KEY_PROBABILITY,
	TT_KEY_BUFFERS, TT_KEY_TIMEOUT, TT_KEY_SEED, TT_GOSSIP_KEYS };
extern const char *const tt_gossip_keys[TT_GOSSIP_KEYS];
struct tt_config_value { /* of a key in a section */
	unsigned line;              /* 0: the file does not have it */
	char text[64];              /* "": a number */
	double number;              /* NaN: a string */
};
/* Reads what a section of a config file has of n keys. 0 also if there is no such section. */
int tt_config_section(const char *file, const char *section, const char *const *keys, int n, struct tt_config_value *);
struct stat;
/* -EACCES with a sentence: a file of another user, or that others may read, keeps no secret. */
int tt_secret_check(const struct stat *, const char *file);
/* TUTTI_SECRET_FILE becomes TUTTI_SECRET, unless that is set; of the environment also if a config file has a secret.
 * -EACCES: others may read it. -ENOENT, -EINVAL ... */
int tt_secret_from_file(struct tt_settings *);

enum { TT_LAUNCH_WHY = 480, TT_LAUNCH_BLOB = 1000 };
/* Reads which rank this process is, and where the others are, from the program, the environment and a file's nodes. May
 * ask a launcher, and waits for no other rank. Errors are -EINVAL, -ENAMETOOLONG, -EIO. */
int tt_launch_read(struct tt_settings *, const tutti_config *, struct tt_launch *);
/* The name of the launcher that tt_launch_read() would ask, and the reason why; "none"; or "unusable": a launcher is
 * there, and cannot be asked. Asks nobody. */
const char *tt_launch_detect(const struct tt_settings *, bool nodes, char why[TT_LAUNCH_WHY]);
/* If it `exchanges`: rank 0 says where it listens (`address`, and the secret), the others hear that. Blocks until all
 * ranks have called it, at most `timeout` nanoseconds. why: rank 0 cannot listen, and the others hear the reason. */
int tt_launch_exchange(struct tt_settings *, struct tt_launch *, const char *why, uint64_t timeout);
bool tt_launch_is_name(const char *); /* 1 to TT_JOB_NAME bytes, without control characters */
void tt_launch_free(struct tt_launch *);
void tt_launch_took_socket(void); /* a net has listen_fd: this process's later joins listen themselves */
uint64_t tt_launch_job_id(const struct tt_launch *);
#endif
