/* verbs_library.h - the functions of libibverbs and librdmacm that this transport uses. The libraries are loaded at run
 * time, so that one binary serves hosts with and without them. A test puts a fake in their place.
 *
 * Names, arguments and results are those of the libraries' own manual pages; what verbs.h defines inline goes through
 * context->ops (ibv_poll_cq, ibv_req_notify_cq, ibv_post_send, ibv_post_recv, ibv_post_srq_recv). */
#ifndef TT_VERBS_LIBRARY_H
#define TT_VERBS_LIBRARY_H
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <ifaddrs.h>
#undef ibv_query_port
#undef ibv_reg_mr

struct tt_verbs_library {
	struct ibv_device **(*get_device_list)(int *);
	void (*free_device_list)(struct ibv_device **);
	const char *(*get_device_name)(struct ibv_device *);
	struct ibv_context *(*open_device)(struct ibv_device *);
	int (*close_device)(struct ibv_context *);
	int (*query_device)(struct ibv_context *, struct ibv_device_attr *);
	int (*query_port)(struct ibv_context *, uint8_t port, struct ibv_port_attr *);
	int (*query_gid)(struct ibv_context *, uint8_t port, int index, union ibv_gid *);
	/* symbol _ibv_query_gid_ex; NULL in libraries before rdma-core 33: the types are read in sysfs then */
	int (*query_gid_ex)(struct ibv_context *, uint32_t port, uint32_t index, struct ibv_gid_entry *, uint32_t flags,
	                    size_t);
	int (*query_pkey)(struct ibv_context *, uint8_t port, int index, __be16 *);
	int (*get_async_event)(struct ibv_context *, struct ibv_async_event *);
	void (*ack_async_event)(struct ibv_async_event *);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *);
	int (*dealloc_pd)(struct ibv_pd *);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int access);
	int (*dereg_mr)(struct ibv_mr *);
	struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *);
	int (*destroy_comp_channel)(struct ibv_comp_channel *);
	struct ibv_cq *(*create_cq)(struct ibv_context *, int cqe, void *, struct ibv_comp_channel *, int vector);
	int (*destroy_cq)(struct ibv_cq *);
	int (*get_cq_event)(struct ibv_comp_channel *, struct ibv_cq **, void **);
	void (*ack_cq_events)(struct ibv_cq *, unsigned);
	struct ibv_srq *(*create_srq)(struct ibv_pd *, struct ibv_srq_init_attr *);
	int (*destroy_srq)(struct ibv_srq *);
	struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
	int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int mask);
	int (*destroy_qp)(struct ibv_qp *);
	int (*fork_init)(void);
	const char *(*wc_status_str)(enum ibv_wc_status);

	int (*getifaddrs)(struct ifaddrs **);
	void (*freeifaddrs)(struct ifaddrs *);

	/* librdmacm, once tt_verbs_load_cm() has returned 0 */
	struct rdma_event_channel *(*create_event_channel)(void);
	void (*destroy_event_channel)(struct rdma_event_channel *);
	int (*create_id)(struct rdma_event_channel *, struct rdma_cm_id **, void *, enum rdma_port_space);
	int (*destroy_id)(struct rdma_cm_id *);
	int (*bind_addr)(struct rdma_cm_id *, struct sockaddr *);
	int (*resolve_addr)(struct rdma_cm_id *, struct sockaddr *from, struct sockaddr *to, int ms);
	int (*resolve_route)(struct rdma_cm_id *, int ms);
	int (*listen)(struct rdma_cm_id *, int backlog);
	int (*connect)(struct rdma_cm_id *, struct rdma_conn_param *);
	int (*accept)(struct rdma_cm_id *, struct rdma_conn_param *);
	int (*reject)(struct rdma_cm_id *, const void *, uint8_t);
	int (*establish)(struct rdma_cm_id *);
	int (*init_qp_attr)(struct rdma_cm_id *, struct ibv_qp_attr *, int *mask);
	int (*get_cm_event)(struct rdma_event_channel *, struct rdma_cm_event **);
	int (*ack_cm_event)(struct rdma_cm_event *);
	const char *(*event_str)(enum rdma_cm_event_type);
	struct ibv_context **(*get_devices)(int *);
	void (*free_devices)(struct ibv_context **);
};

/* NULL: this host has no libibverbs; the sentence is tt_why()'s. Loads it once. */
const struct tt_verbs_library *tt_verbs_load(void);
int tt_verbs_load_cm(void); /* likewise, for connections by librdmacm; -ENODEV with a sentence */
extern const struct tt_verbs_library *tt_verbs_instead; /* of tests: used in place of the real one, if not NULL */
#endif
