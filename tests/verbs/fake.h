/* fake.h - adapters that are not there: libibverbs and librdmacm within one process, by a seed
 *
 * The structs and functions are the real ones (verbs_library.h). What real adapters leave free the fake decides by its
 * seed; what they forbid the fake punishes as they do:
 *
 * - Writes land in pieces, of whole words. Reads come when they like, after later writes too, and in packets, each read
 *   at another moment: a read that begins within a word of 8 bytes tears words. Completions come late
 *   and in batches, in the order posted; on iWARP reads complete by themselves. A completion with an error has
 *   nonsense in all but wr_id, status, qp_num and vendor_err.
 * - Memory that is not registered, in another protection domain or without the right: LOC_PROT_ERR for the own,
 *   REM_ACCESS_ERR for the other side's. lkey and rkey differ. A queue pair without the right: REM_INV_REQ_ERR. The
 *   target's queue pair is dead, too, and hears nothing of it; an asynchronous event may come.
 * - Memory that may not be written, as a mapped file, cannot be registered for writing: EFAULT.
 * - What was received before modify_qp() to ERR can be polled when it returns; what is flushed comes late as ever.
 *   destroy_qp() may drop what nobody has polled. The next queue pair gets the number.
 * - A message takes its receive when it begins to arrive. A queue pair that is destroyed meanwhile takes the receive
 *   along; one that is stopped gives it back, flushed, before LAST_WQE_REACHED. One of 16 never raises that, as rxe.
 * - A message without a receive waits (rnr_retry 7), or ends in RNR_RETRY_EXC_ERR; on iWARP it ends the connection.
 * - modify_qp wants the attributes, the order and the limits of the specification. Two queue pairs that do not name
 *   each other, in number, GID, LID, GID type, partition or PSN, reach nobody: RETRY_EXC_ERR, after (retry_cnt + 1)
 *   tries. A larger MTU than the other side's: REM_INV_REQ_ERR. timeout 0 waits for ever.
 * - iWARP: no WRITE_WITH_IMM. A write or a message is complete when it was handed over; that it failed is seen by
 *   DISCONNECTED alone. The connector sends first. A READ stores only into memory that is registered for remote writes.
 *   post_send may return 0 with *bad_wr set. Only rdma_cm connects.
 * - librdmacm opens each device itself, and closes a removed one when somebody calls rdma_get_devices.
 * - What would hang or corrupt a real program is a bug of the caller: a queue of completions that overflows, an object
 *   that is destroyed with an event that nobody has acknowledged, or closed with others in it. The fake says so and
 *   aborts; a test that wants to see the bug itself sets fake_lenient(1).
 *
 * Work goes on while somebody polls a queue, asks for CM events in vain, or arms a queue, or posts requests whose
 * completions go to an armed one: then until the first event, or until all is quiet. There are no threads and, with two
 * exceptions, no time: a try is a step. The exceptions are a request to a queue pair that is not connected yet, which
 * waits as long as its timeout says, and fake_cut().
 *
 * All functions may be called from any thread. */
#ifndef TESTS_VERBS_FAKE_H
#define TESTS_VERBS_FAKE_H
#include "transport/verbs/verbs_library.h"
#include <stdbool.h>

extern const struct tt_verbs_library tt_fake_verbs;

enum { FAKE_PORTS = 2, FAKE_GIDS = 6, FAKE_PKEYS = 4, FAKE_FOREVER = -1 };
enum fake_kind { FAKE_IB, FAKE_ROCE, FAKE_IWARP, FAKE_EFA };

struct fake_gid {
	const char *text; /* "fe80::1", "::ffff:10.9.0.2"; NULL: the entry is empty */
	enum ibv_gid_type type;
};

struct fake_port {
	enum ibv_port_state state;
	enum ibv_mtu mtu;
	uint16_t lid;                /* 0 on Ethernet */
	uint8_t width, speed;        /* as in ibv_port_attr; 2 and 32: 100 Gbit/s */
	const char *ip;              /* what rdma_cm finds it by; NULL: nothing */
	int subnet;                  /* link-local GIDs and LIDs reach this subnet alone */
	struct fake_gid gids[FAKE_GIDS];
	uint16_t pkeys[FAKE_PKEYS];  /* 0: none */
	bool grh; /* a virtual port (SR-IOV): what comes or goes without a global header is lost */
	bool ethernet;               /* of a FAKE_IB: it speaks RoCE, as a port of a VPI adapter may */
};

struct fake_device {
	const char *name;
	enum fake_kind kind;
	int ports, numa, vectors;    /* vectors: of completions; 0: 4 */
	uint32_t max_inline, max_message, max_wr, max_cqe, max_srq_wr;
	int max_rd_atomic, max_sge, max_sge_rd;
	bool swallows; /* what is posted to a queue pair in error never completes */
	bool patient;  /* lost requests are tried again for ever, whatever retry_cnt says */
	struct fake_port port[FAKE_PORTS];
};

/* "fake_ib0", "fake_roce0" (GIDs: link-local v2, IPv4-mapped v2, link-local v1), "fake_iwarp0", "fake_efa0"; two ports,
 * the second one down. A test copies and changes them. They are there at the beginning. */
enum { FAKE_DEVICES = 4 };
extern const struct fake_device fake_devices[FAKE_DEVICES];
/* "fake_vpi0": port 1 is InfiniBand, port 2 Ethernet. It takes nothing inline, and has one vector of completions. */
extern const struct fake_device fake_vpi;

/* ---- the world ---- */
void fake_seed(uint64_t seed);                 /* of all that follows; no fault is set, every count is 0 */
void fake_plug(const struct fake_device *, int n); /* these are all that there are; while nothing is open */
void fake_sysfs(const char *folder);           /* writes there what the kernel shows; ibdev_path, dev_path lead there */
/* How adapters reach memory of the fake libcuda's devices. FAKE_NO_BAR: registered memory cannot be reached. At first
 * by both ways. */
enum { FAKE_DMABUF = 1, FAKE_PEERMEM = 2, FAKE_NO_BAR = 4 };
void fake_gpus(int ways);
void fake_lenient(int lenient);                /* bugs of the caller are counted, and return EBUSY */

/* ---- faults ---- */
/* The nth call of the function from now on (1: the next) fails with err; "reg_mr", "poll_cq", "resolve_addr" ... */
void fake_fail(const char *function, int nth, int err);
/* Pins of the caller's memory take so long, as those of large memory do: other calls go on meanwhile. 0: no time, also
 * for those that are under way. */
void fake_pin_slowly(unsigned ms);
unsigned fake_pinning(void); /* pins that are under way */
/* create_qp() takes so long, as it may on real adapters. */
void fake_make_slowly(unsigned ms);
/* The nth request that is posted from now on ends so, when its turn has come. */
void fake_fail_send(int nth, enum ibv_wc_status, uint32_t vendor_err);
void fake_fail_receive(int nth, enum ibv_wc_status, uint32_t vendor_err); /* ... the nth message that comes */
void fake_lose(const char *device, int port, int tries); /* a cut: so many tries are lost; 0: the link is whole again */
/* The cable is out for so long, by the clock. A request that is lost is sent again each 4.096 us * 2^timeout, retry_cnt
 * times, as adapters do it; TCP waits. */
void fake_cut(const char *device, int port, unsigned ms);
/* A switch behind the port drops what leaves it in packets of more bytes, without a word; 0: none does. Not on iWARP,
 * where TCP finds out. */
void fake_path_mtu(const char *device, int port, unsigned bytes);
void fake_port_state(const char *device, int port, enum ibv_port_state); /* with the event; only ACTIVE carries */
void fake_set_gid(const char *device, int port, int index, const char *text, enum ibv_gid_type); /* with the event */
void fake_set_lid(const char *device, int port, uint16_t lid, enum ibv_event_type); /* LID_CHANGE, CLIENT_REREGISTER */
void fake_set_pkey(const char *device, int port, int index, uint16_t pkey); /* with the event; 0: from here on none */
void fake_remove(const char *device);          /* DEVICE_FATAL, DEVICE_REMOVAL; its queue pairs end */
void fake_kill(struct ibv_context *);          /* kill -9 of the process that opened it: only rdma_cm says goodbye */
void fake_raise(struct ibv_context *, enum ibv_event_type, void *element, int port); /* element: queue or NULL */
void fake_cm_raise(struct rdma_cm_id *, enum rdma_cm_event_type, int status);
/* The next answer to resolve_addr, resolve_route or connect is this event; REJECTED with status 8, 10, 28 ... */
void fake_cm_next(enum rdma_cm_event_type, int status);

/* ---- what there is: the nth in the order made, NULL if there are fewer ---- */
struct ibv_context *fake_context(int n);
struct ibv_qp *fake_qp(int n);
bool fake_is_relaxed(uint32_t lkey);           /* registered so that its writes may pass each other */
int fake_vector(const struct ibv_cq *);        /* of its completions */
struct rdma_cm_id *fake_id(int n);
struct ibv_qp_attr fake_attr(const struct ibv_qp *); /* all that modify_qp has set */

/* ---- counts since fake_seed() ---- */
int fake_left(void);                           /* objects that nobody has destroyed; not since fake_seed() */
uint64_t fake_calls(const char *function);     /* "post_send": doorbells; "reg_mr": registrations */
uint64_t fake_requests(void);                  /* work requests */
uint64_t fake_bugs(void);                      /* of the caller, with fake_lenient() */
uint32_t fake_waiting(const struct ibv_srq *); /* receives in it */
uint64_t fake_rnrs(void);                      /* tries of a message that found no receive */
bool fake_is_open(const char *device);         /* somebody, or librdmacm, has opened it and not closed it */
#endif
