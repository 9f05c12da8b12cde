/* verbs.h - a fake of an RDMA library to design transports against: within one process, between queue pairs, by a seed
 *
 * Names, structs and meanings are those of libibverbs and librdmacm, as far as they go. Different: an address is a
 * name, a request has one buffer, and a queue pair is made with its connection. Where real adapters are free the
 * fake decides by its seed; what real adapters forbid the fake punishes:
 *
 * - A use of memory that is not registered for it ends the queue pair: REM_ACCESS_ERR at the requester, the rest is
 *   flushed. The target's queue pair is dead too, and the target hears nothing, not even of its receives.
 * - A message without a posted receive is retried RNR_RETRIES times; on iWARP it ends the connection at once.
 * - Writes land in pieces. Reads come when they like, after later messages too. Completions come late and in batches,
 *   in the order posted; on iWARP reads complete by themselves.
 * - iWARP: no WRITE_WITH_IMM. A write or a message is complete when it was handed over; that it failed is seen by
 *   DISCONNECTED alone. The connector sends first. A READ stores only into memory that is registered for remote writes.
 * - A queue that overflows, of completions too, is the caller's bug: abort().
 *
 * Work goes on while somebody polls, and when somebody arms a queue: until the first event, or until all is quiet. */
#ifndef TESTS_VERBS_H
#define TESTS_VERBS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IBV_ACCESS_LOCAL_WRITE = 1, IBV_ACCESS_REMOTE_WRITE = 2, IBV_ACCESS_REMOTE_READ = 4 };
enum ibv_qp_state { IBV_QPS_INIT, IBV_QPS_RTS, IBV_QPS_ERR };
enum ibv_wr_opcode { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_RDMA_READ };
enum { IBV_SEND_SIGNALED = 2, IBV_SEND_INLINE = 8 };
enum ibv_wc_status { IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR = 4, IBV_WC_WR_FLUSH_ERR,
	             IBV_WC_REM_ACCESS_ERR = 10, IBV_WC_RETRY_EXC_ERR = 12, IBV_WC_RNR_RETRY_EXC_ERR };
enum ibv_wc_opcode { IBV_WC_SEND, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM };

struct ibv_context { bool iwarp; uint32_t max_inline, max_msg; };
struct ibv_pd { struct ibv_context *context; };
struct ibv_mr { struct ibv_pd *pd; void *addr; size_t length; uint32_t lkey, rkey; };
struct ibv_comp_channel { int fd; }; /* does not block */
struct ibv_cq;
struct ibv_qp { uint32_t qp_num; enum ibv_qp_state state; };
struct ibv_sge { uint64_t addr; uint32_t length, lkey; };
struct ibv_send_wr {
	uint64_t wr_id;
	struct ibv_sge *sg_list; /* of one */
	enum ibv_wr_opcode opcode;
	unsigned send_flags;
	uint32_t imm_data;
	struct { struct { uint64_t remote_addr; uint32_t rkey; } rdma; } wr;
};
struct ibv_recv_wr { uint64_t wr_id; struct ibv_sge *sg_list; };
struct ibv_wc { /* with an error only wr_id, status and qp_num are valid */
	uint64_t wr_id;
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	uint32_t byte_len, imm_data, qp_num;
};
struct ibv_qp_init_attr { struct ibv_cq *send_cq, *recv_cq; struct { uint32_t max_send_wr, max_recv_wr; } cap; };

struct ibv_context *ibv_open_device(const char *name); /* "ib" or "iwarp" */
void ibv_close_device(struct ibv_context *);
struct ibv_pd *ibv_alloc_pd(struct ibv_context *);
void ibv_dealloc_pd(struct ibv_pd *);
struct ibv_mr *ibv_reg_mr(struct ibv_pd *, void *addr, size_t length, int access);
void ibv_dereg_mr(struct ibv_mr *);
struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *);
void ibv_destroy_comp_channel(struct ibv_comp_channel *);
bool ibv_get_cq_event(struct ibv_comp_channel *); /* true: there was one */
struct ibv_cq *ibv_create_cq(struct ibv_context *, int cqe, struct ibv_comp_channel *);
void ibv_destroy_cq(struct ibv_cq *);
void ibv_req_notify_cq(struct ibv_cq *);          /* what is in the queue already gives no event */
int ibv_poll_cq(struct ibv_cq *, int n, struct ibv_wc *);
int ibv_post_send(struct ibv_qp *, const struct ibv_send_wr *);
int ibv_post_recv(struct ibv_qp *, const struct ibv_recv_wr *);
void ibv_modify_qp_to_error(struct ibv_qp *);     /* flushes its requests and receives */

enum rdma_cm_event_type { RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED,
	                  RDMA_CM_EVENT_DISCONNECTED };
enum { RDMA_PRIVATE_DATA = 56 };
struct rdma_event_channel { int fd; }; /* does not block */
struct rdma_cm_id { void *context; struct ibv_qp *qp; };
struct rdma_cm_event {
	struct rdma_cm_id *id, *listen_id;
	enum rdma_cm_event_type event;
	uint8_t private_data_len, private_data[RDMA_PRIVATE_DATA];
};

struct rdma_event_channel *rdma_create_event_channel(void);
void rdma_destroy_event_channel(struct rdma_event_channel *);
bool rdma_get_cm_event(struct rdma_event_channel *, struct rdma_cm_event *); /* false: there is none */
struct rdma_cm_id *rdma_create_id(struct rdma_event_channel *, void *context);
void rdma_destroy_id(struct rdma_cm_id *);      /* after its queue pair; its events vanish */
struct ibv_qp *rdma_create_qp(struct rdma_cm_id *, struct ibv_pd *, const struct ibv_qp_init_attr *);
void rdma_destroy_qp(struct rdma_cm_id *);      /* its completions may or may not stay in their queue */
void rdma_listen(struct rdma_cm_id *, const char *name);
void rdma_connect(struct rdma_cm_id *, const char *name, const void *data, uint8_t len);
int rdma_accept(struct rdma_cm_id *);           /* -1: nobody is there any more */
void rdma_reject(struct rdma_cm_id *, const void *data, uint8_t len);
void rdma_disconnect(struct rdma_cm_id *);      /* moves the queue pair to error, too */

void fake_verbs_seed(uint64_t); /* of all that follows */
int fake_verbs_left(void);      /* objects that nobody has destroyed */
#endif
