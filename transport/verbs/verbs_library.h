/* verbs_library.h - the functions of libibverbs and librdmacm that this transport uses. The libraries are loaded at run
 * time, so that one binary serves hosts with and without them. A test puts a fake in their place.
 *
 * Each has the arguments and the results of the library's own manual page, ibv_NAME(3) or rdma_NAME(3); what verbs.h
 * defines inline goes through context->ops (ibv_poll_cq, ibv_req_notify_cq, ibv_post_send, ibv_post_recv,
 * ibv_post_srq_recv). */
#ifndef TT_VERBS_LIBRARY_H
#define TT_VERBS_LIBRARY_H
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <ifaddrs.h>
#undef ibv_reg_mr

#define TT_IBV_FUNCTIONS(X) \
	X(get_device_list) X(free_device_list) X(get_device_name) X(open_device) X(close_device) X(query_device) \
	X(query_pkey) X(get_async_event) X(ack_async_event) X(alloc_pd) X(dealloc_pd) X(reg_mr) X(dereg_mr) \
	X(reg_mr_iova2) X(create_comp_channel) X(destroy_comp_channel) X(create_cq) X(destroy_cq) X(get_cq_event) \
	X(ack_cq_events) X(create_srq) X(destroy_srq) X(create_qp) X(modify_qp) X(destroy_qp) X(fork_init) \
	X(wc_status_str)
#define TT_RDMA_FUNCTIONS(X) /* librdmacm's, once tt_verbs_load_cm() has returned 0 */ \
	X(create_event_channel) X(destroy_event_channel) X(create_id) X(destroy_id) X(bind_addr) X(resolve_addr) \
	X(resolve_route) X(listen) X(connect) X(accept) X(reject) X(establish) X(init_qp_attr) X(get_cm_event) \
	X(ack_cm_event) X(event_str) X(get_devices) X(free_devices)

struct tt_verbs_library {
#define IBV(name) __typeof__(ibv_##name) *name;
#define RDMA(name) __typeof__(rdma_##name) *name;
	TT_IBV_FUNCTIONS(IBV)
	TT_RDMA_FUNCTIONS(RDMA)
#undef IBV
#undef RDMA
	/* since rdma-core 34; NULL: there is none */
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *, uint64_t offset, size_t, uint64_t iova, int fd, int access);
	int (*query_port)(struct ibv_context *, uint8_t port, struct ibv_port_attr *); /* verbs.h wraps it */
	__typeof__(_ibv_query_gid_ex) *query_gid_ex;
	__typeof__(getifaddrs) *getifaddrs;
	__typeof__(freeifaddrs) *freeifaddrs;
};

/* NULL: this host has no libibverbs; the sentence is tt_why()'s. Loads it once. */
const struct tt_verbs_library *tt_verbs_load(void);
int tt_verbs_load_cm(void); /* likewise, for connections by librdmacm; -ENODEV with a sentence */
extern const struct tt_verbs_library *tt_verbs_instead; /* of tests: used in place of the real one, if not NULL */
#endif
