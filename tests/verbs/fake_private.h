/* fake_private.h - what the files of the fake share. All but the functions of the table want the lock. */
#ifndef TESTS_VERBS_FAKE_PRIVATE_H
#define TESTS_VERBS_FAKE_PRIVATE_H
#include "tests/verbs/fake.h"
#include "base/base.h"
#include "base/list.h"

enum { FAKE_SGES = 8, FAKE_PRIVATE = 256 };

#define FAKE_VERBS(X) \
	X(get_device_list) X(free_device_list) X(open_device) X(close_device) X(query_device) X(query_port) \
	X(query_gid_ex) X(query_pkey) X(get_async_event) X(ack_async_event) X(alloc_pd) X(dealloc_pd) \
	X(reg_mr) X(reg_dmabuf_mr) X(dereg_mr) X(create_comp_channel) X(destroy_comp_channel) X(create_cq) \
	X(destroy_cq) \
	X(get_cq_event) X(ack_cq_events) X(create_srq) X(destroy_srq) X(create_qp) X(modify_qp) X(destroy_qp) \
	X(fork_init) X(poll_cq) X(req_notify_cq) X(post_send) X(post_recv) X(post_srq_recv)
#define FAKE_CM(X) \
	X(create_event_channel) X(destroy_event_channel) X(create_id) X(destroy_id) X(bind_addr) X(resolve_addr) \
	X(resolve_route) X(listen) X(connect) X(accept) X(reject) X(disconnect) X(establish) X(init_qp_attr) \
	X(get_cm_event) X(ack_cm_event)
enum fake_call {
#define X(name) FAKE_##name,
	FAKE_VERBS(X) FAKE_CM(X) FAKE_CALLS
#undef X
};

struct fake_context {
	struct ibv_context base;
	struct tt_list node, events;
	struct fake_adapter *adapter;
	int objects;
	bool killed;
};

struct fake_adapter { /* a device that is plugged in */
	struct ibv_device base;
	struct fake_device is;
	struct fake_context cm; /* librdmacm's own */
	union ibv_gid gids[FAKE_PORTS][FAKE_GIDS];
	int lost[FAKE_PORTS];   /* tries that a cut link swallows yet */
	uint64_t dark[FAKE_PORTS]; /* its cable is out until then */
	unsigned path_mtu[FAKE_PORTS]; /* bytes of a packet that the switch behind takes; 0: of any */
	int opened;
	bool removed, cm_opened; /* cm_opened: by librdmacm */
};

struct fake_pd { struct ibv_pd base; int users; };
struct fake_mr {
	struct ibv_mr base, is; /* is: what the adapter knows, whatever the caller changes */
	int access;
	bool relaxed;
	char *map;              /* the bytes of memory of a device; NULL: those at the address */
	size_t mapped;
};
struct fake_channel { struct ibv_comp_channel base; struct tt_list events; };

struct fake_event { struct tt_list node; struct ibv_async_event event; };
struct fake_cq_event { struct tt_list node; struct fake_cq *cq; };

struct fake_entry { struct ibv_wc wc; uint32_t frees; bool solicited; };

struct fake_cq {
	struct ibv_cq base;
	struct tt_list fresh;        /* in all.fresh while there are entries that cannot be polled yet */
	struct fake_entry *entries;  /* a ring; the first `seen` of them can be polled */
	int first, count, seen, users;
	unsigned unacked, async_unacked;
	int vector;
	enum { FAKE_UNARMED, FAKE_ARMED, FAKE_SOLICITED } armed;
};

struct fake_receive {
	struct tt_list node;
	struct ibv_sge sges[FAKE_SGES];
	int count;
	uint64_t wr_id;
};

struct fake_srq {
	struct ibv_srq base;
	struct tt_list receives;
	uint32_t max, waiting;
	int users, max_sge;
	unsigned async_unacked;
};

enum fake_stage { FAKE_POSTED, FAKE_READING, FAKE_DONE };

struct fake_request {
	struct tt_list node;
	struct ibv_send_wr wr;
	struct ibv_sge sges[FAKE_SGES];
	char *bytes;                /* taken over; NULL: they are in the caller's memory */
	uint32_t len, at, vendor;   /* at: so many bytes have landed */
	enum fake_stage stage;
	enum ibv_wc_status status, fault;
	bool told, noticed;         /* told: its completion is written. noticed: the target knows that it comes */
};

struct fake_qp {
	struct ibv_qp base;
	struct tt_list node, active, requests, receives; /* active: in all.active while there are requests */
	struct fake_context *context;
	struct ibv_qp_cap cap;
	struct ibv_qp_attr attr;
	struct fake_id *id;         /* iWARP: whose connection it is */
	uint32_t peer;              /* iWARP: the other one's number */
	uint32_t posted, waiting, silent, reads;
	uint64_t since;             /* when the other side was not connected yet; 0: it is */
	int tries, rnr_tries;
	uint64_t lost_at;           /* when its first packet was sent that a cable has swallowed; 0: none */
	enum ibv_qp_state state;    /* base.state is what modify_qp has set */
	struct fake_adapter *to;    /* where ah_attr leads, as of `routed` */
	int to_port;
	uint64_t routed;
	unsigned async_unacked;
	struct fake_receive *arriving; /* of the shared queue, for a message of which the end has not come yet */
	bool sig_all, accepted, heard;
	bool quiet;                 /* raises no LAST_WQE_REACHED, as rxe */
	bool failed;                /* by itself: modify_qp() has not stopped it */
	bool last, last_heard;      /* LAST_WQE_REACHED was raised; was taken */
};

struct fake_cm_channel { struct rdma_event_channel base; struct tt_list ready; bool killed; };

enum fake_cm_state { FAKE_IDLE, FAKE_ADDR_ASKED, FAKE_ADDR_KNOWN, FAKE_ROUTE_ASKED, FAKE_ROUTE_KNOWN, FAKE_LISTENING,
	             FAKE_CONNECTING, FAKE_REQUESTED, FAKE_RESPONDED, FAKE_ACCEPTED, FAKE_CONNECTED, FAKE_ENDED };

struct fake_id {
	struct rdma_cm_id base;
	struct tt_list node;
	struct fake_cm_channel *channel;
	struct fake_adapter *adapter; /* NULL: not known yet */
	struct fake_id *other;
	enum fake_cm_state state;
	uint32_t qp_num, psn;
	uint8_t resources, depth, retry, rnr;
	uint8_t timeout;
	unsigned unacked;
};

struct fake_news { /* an event that is on its way, or to be got */
	struct rdma_cm_event event;
	struct tt_list node;
	struct fake_cm_channel *channel;
	uint8_t data[FAKE_PRIVATE];
};

extern struct fake_all {
	struct tt_random random;
	struct tt_list contexts, qps, active, fresh, ids, news;
	struct fake_adapter *adapters;
	int adapter_count;
	struct fake_qp **qp_of;     /* by number */
	struct fake_mr **mr_of;     /* by key >> 8 */
	uint32_t qp_count, mr_count;
	uint16_t cm_port;
	int objects, rings, gpus;
	bool lenient;
	_Atomic unsigned pin_ms, pinning, make_ms;
	uint64_t calls[FAKE_CALLS], requests, bugs, rnrs;
	uint64_t routes;            /* grows when GIDs change */
	struct { int left, err; } fails[FAKE_CALLS];
	struct fake_fault { int left; enum ibv_wc_status status; uint32_t vendor; } send_fault, receive_fault;
	struct { bool set; enum rdma_cm_event_type event; int status; } cm_next;
} fake_all;

/* fake.c */
void fake_lock(void);
void fake_unlock(void);
int fake_enter(enum fake_call, struct fake_context *); /* locks; 0, or why the call fails. NULL: of no device */
int fake_leave(int err);                               /* unlocks; returns err */
void *fake_leave_with(int err, void *);                /* unlocks; NULL with errno if err */
uint64_t fake_below(uint64_t n);
void *fake_make(size_t);                               /* an object */
void fake_drop(void *);
int fake_bug(const char *sentence);                    /* EBUSY, if the test is lenient */
int fake_open_fd(void);
void fake_ring(int fd);                                /* one more event */
bool fake_take(int fd);                                /* one event less; waits if the caller's fd does. false: none */
void fake_unring(int fd);                              /* one event less, which there is */
void fake_plug_in(void);                               /* the devices that are there at the beginning */
struct fake_adapter *fake_adapter(const char *name);
const struct fake_port *fake_port(const struct fake_adapter *, int number); /* NULL: it has none of this number */
struct fake_qp *fake_find_qp(uint32_t number);
char *fake_bytes(uint32_t key, uint64_t addr); /* where the bytes are, once fake_may() */
bool fake_may(const struct ibv_pd *, uint32_t key, bool remote, uint64_t addr, uint64_t len, int access);

static inline bool fake_is_ethernet(const struct fake_adapter *a, int port)
{
	return a->is.kind != FAKE_IB || a->is.port[port - 1].ethernet;
}

/* fake_qp.c */
struct ibv_qp *fake_create_qp(struct ibv_pd *, struct ibv_qp_init_attr *);
int fake_modify_qp(struct ibv_qp *, struct ibv_qp_attr *, int mask);
int fake_destroy_qp(struct ibv_qp *);
struct ibv_srq *fake_create_srq(struct ibv_pd *, struct ibv_srq_init_attr *);
int fake_destroy_srq(struct ibv_srq *);
int fake_post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **bad);
int fake_post_recv(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **bad);
int fake_post_srq_recv(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **bad);

/* fake_queue.c */
int fake_get_async_event(struct ibv_context *, struct ibv_async_event *);
void fake_ack_async_event(struct ibv_async_event *);
struct ibv_comp_channel *fake_create_comp_channel(struct ibv_context *);
int fake_destroy_comp_channel(struct ibv_comp_channel *);
struct ibv_cq *fake_create_cq(struct ibv_context *, int cqe, void *, struct ibv_comp_channel *, int vector);
int fake_destroy_cq(struct ibv_cq *);
int fake_get_cq_event(struct ibv_comp_channel *, struct ibv_cq **, void **);
void fake_ack_cq_events(struct ibv_cq *, unsigned);
int fake_poll_cq(struct ibv_cq *, int n, struct ibv_wc *);
int fake_req_notify_cq(struct ibv_cq *, int solicited);
void fake_raise_event(struct fake_context *, enum ibv_event_type, void *element, int port);
void fake_forget_events(struct fake_context *, const void *element);
void fake_complete(struct fake_qp *, struct ibv_cq *, const struct ibv_wc *, uint32_t frees, bool solicited);
void fake_reveal(struct fake_cq *, int more); /* so many more, at least 1, can be polled from now on */

/* fake_wire.c */
bool fake_step(void); /* one thing happens, somewhere; false: nothing can */
void fake_flush(struct fake_qp *, bool receives); /* the queue pair is in error */
void fake_forget_requests(struct fake_qp *);
void fake_take_over(struct fake_request *);

/* fake_cm_address.c */
struct fake_adapter *fake_find_host(const struct sockaddr *, int *port); /* NULL: no device has this address */
struct fake_id *fake_find_listener(struct fake_id *);
int fake_getifaddrs(struct ifaddrs **); /* the loopback, then each port's `ip` */
void fake_freeifaddrs(struct ifaddrs *);
void fake_take_adapter(struct fake_id *, struct fake_adapter *, int port);
static inline struct fake_id *fake_id_of(struct rdma_cm_id *id) { return tt_container_of(id, struct fake_id, base); }
static inline bool fake_is_iwarp(const struct fake_id *id) { return id->adapter && id->adapter->is.kind == FAKE_IWARP; }
static inline struct sockaddr *fake_source_of(struct fake_id *id) { return &id->base.route.addr.src_addr; }

/* fake_cm.c */
int fake_leave_cm(int err); /* unlocks; -1 with errno, as librdmacm */
/* The answer that the caller waits for, or what the test wants in its place. true: it is a good one. */
bool fake_answer(struct fake_id *, enum rdma_cm_event_type good);
bool fake_deliver_news(void);
void fake_end_connection(struct fake_qp *);       /* of iWARP: both sides are told */
void fake_announce(struct fake_id *, enum rdma_cm_event_type, int status, const void *data, uint8_t len);
void fake_cm_remove(struct fake_adapter *);
void fake_cm_kill(const struct fake_context *);
struct rdma_event_channel *fake_create_event_channel(void);
void fake_destroy_event_channel(struct rdma_event_channel *);
int fake_create_id(struct rdma_event_channel *, struct rdma_cm_id **, void *, enum rdma_port_space);
int fake_destroy_id(struct rdma_cm_id *);
int fake_bind_addr(struct rdma_cm_id *, struct sockaddr *);
int fake_resolve_addr(struct rdma_cm_id *, struct sockaddr *from, struct sockaddr *to, int ms);
int fake_resolve_route(struct rdma_cm_id *, int ms);
int fake_listen(struct rdma_cm_id *, int backlog);
int fake_connect(struct rdma_cm_id *, struct rdma_conn_param *);
int fake_accept(struct rdma_cm_id *, struct rdma_conn_param *);
int fake_reject(struct rdma_cm_id *, const void *, uint8_t);
int fake_disconnect(struct rdma_cm_id *);
int fake_establish(struct rdma_cm_id *);
int fake_init_qp_attr(struct rdma_cm_id *, struct ibv_qp_attr *, int *mask);
int fake_get_cm_event(struct rdma_event_channel *, struct rdma_cm_event **);
int fake_ack_cm_event(struct rdma_cm_event *);
const char *fake_event_str(enum rdma_cm_event_type);
#endif
