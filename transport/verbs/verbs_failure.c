/* verbs_failure.c - what each failure of an adapter means, what becomes of it, and what a user should look at */
#include "transport/verbs/verbs_private.h"
#include <arpa/inet.h>

/* Completions. Each ends its peer: a queue pair in error has no way back. */
static const struct meaning {
	const char *what, *look;
} completions[] = {
	[IBV_WC_LOC_LEN_ERR] = { "a message was longer than its receive", "the MTU of both ports; it may be a bug" },
	[IBV_WC_LOC_QP_OP_ERR] = { "the adapter does not accept a request", "the kernel's log; it may be a bug" },
	[IBV_WC_LOC_PROT_ERR] = { "memory of this process is not registered, or not any more",
	                          "whether the program freed a buffer in use" },
	[IBV_WC_WR_FLUSH_ERR] = { "its queue pair was in error before", "the other side's log" },
	[IBV_WC_BAD_RESP_ERR] = { "the other adapter's answer makes no sense", "the firmware of both adapters" },
	[IBV_WC_LOC_ACCESS_ERR] = { "what came may not be written here", "the adapter's driver" },
	[IBV_WC_REM_INV_REQ_ERR] = { "the other adapter refused a request as invalid", "the MTU of both ports" },
	[IBV_WC_REM_ACCESS_ERR] = { "a key was used that is not registered, or not any more",
	                            "whether the other side freed a window in use" },
	[IBV_WC_REM_OP_ERR] = { "the other adapter could not do a request", "the kernel's log of its host" },
	[IBV_WC_RETRY_EXC_ERR] = { "it does not acknowledge", "the cable, the switch's flow control (PFC), and whether "
	                           "its GID can be reached from here; is its process alive?" },
	[IBV_WC_RNR_RETRY_EXC_ERR] = { "it had no receive for a message",
	                                "the logs of both ranks: it is a bug of Tutti" },
	[IBV_WC_REM_ABORT_ERR] = { "the other adapter gave up a request", "the kernel's log of its host" },
	[IBV_WC_FATAL_ERR] = { "the adapter failed", "the kernel's log" },
	[IBV_WC_RESP_TIMEOUT_ERR] = { "the other adapter did not answer in time", "the kernel's log of its host" },
	[IBV_WC_GENERAL_ERR] = { "the adapter failed", "the kernel's log" },
};

const char *tt_verbs_explain(const struct tt_verbs_peer *p, const struct ibv_wc *wc, char *text, size_t size)
{
	static const struct meaning unknown = { "an error of what Tutti does not use, or does not know",
		"the adapter's driver" };
	const struct meaning *m = (size_t)wc->status < TT_COUNT(completions) && completions[wc->status].what ?
	                          &completions[wc->status] : &unknown;
	const struct tt_verbs *net = p->net;
	char gid[INET6_ADDRSTRLEN] = "";

	/* the first message is as long as a packet may be */
	bool first = p->ops.stage < TT_STAGE_UP && wc->status == IBV_WC_RETRY_EXC_ERR;
	inet_ntop(AF_INET6, net->port.gid.raw, gid, sizeof gid);
	snprintf(text, size, "%s (%s, status %d, vendor error 0x%x, on %s, GID %d %s)%s%s",
	         first ? "a full packet does not get through to it" : m->what,
	         net->library->wc_status_str(wc->status), wc->status, wc->vendor_err, net->name, net->port.gid_index,
	         gid, first ? ": " : ". Look at ", first ? TT_VERBS_BETWEEN : m->look);
	return text;
}

/* Asynchronous events */

/* PEER, LIAR: the queue pair's peer ends, LIAR by its own fault. NET: all end. PORT, WARN: the port is read anew, WARN
 * with a warning */
enum fate { NOTHING, WARN, PEER, LIAR, LAST, NET, PORT };

static const struct news {
	enum fate fate;
	const char *sentence;
} nothing, events[] = {
	[IBV_EVENT_CQ_ERR] = { NET, "its completion queue failed" },
	[IBV_EVENT_QP_FATAL] = { PEER, "its queue pair failed: the kernel's log may say why" },
	[IBV_EVENT_QP_REQ_ERR] = { LIAR, "it sent a request that makes no sense" },
	[IBV_EVENT_QP_ACCESS_ERR] = { LIAR, "it used a key that is not registered, or not any more" },
	[IBV_EVENT_QP_LAST_WQE_REACHED] = { LAST, "its queue pair takes no more receives" },
	[IBV_EVENT_DEVICE_FATAL] = { NET, "the adapter failed, or was removed: the kernel's log may say why" },
	[IBV_EVENT_PORT_ACTIVE] = { WARN, "the port is active again" },
	[IBV_EVENT_PORT_ERR] = { WARN, "the port went down, and its connections end if it stays down: look at the "
	                               "cable and the switch" },
	[IBV_EVENT_LID_CHANGE] = { PORT, "the port's LID has changed" },
	[IBV_EVENT_PKEY_CHANGE] = { PORT, "the port's partitions have changed" },
	[IBV_EVENT_SRQ_ERR] = { NET, "its queue of receives failed" },
	[IBV_EVENT_CLIENT_REREGISTER] = { PORT, "the subnet manager has begun anew" },
	[IBV_EVENT_GID_CHANGE] = { PORT, "the port's GIDs have changed" },
	[IBV_EVENT_WQ_FATAL] = { NET, "a work queue failed" },
	/* the others, of librdmacm too, tell what this transport knows, or does not use */
};

/* Events of librdmacm that are no step of a connection */
static const struct news cm_events[] = {
	[RDMA_CM_EVENT_ADDR_ERROR] = { PEER, "no adapter of this host leads to its address: look at the routes (ip "
	                               "route get), and whether they lead through this adapter's interface" },
	[RDMA_CM_EVENT_ROUTE_ERROR] = { PEER, "there is no path to its adapter: look at the cable, and on InfiniBand "
	                                "at the subnet manager" },
	[RDMA_CM_EVENT_CONNECT_ERROR] = { PEER, "the kernel cannot connect: the kernel's log may say why" },
	[RDMA_CM_EVENT_UNREACHABLE] = { PEER, "its adapter does not answer: look at the cable, the firewalls, and "
	                                "whether the other end's address can be reached from this adapter's" },
	[RDMA_CM_EVENT_REJECTED] = { PEER, "its adapter refused: look at the kernel's log of its host" },
	[RDMA_CM_EVENT_DISCONNECTED] = { PEER, "it has ended, or closed the connection" },
	[RDMA_CM_EVENT_DEVICE_REMOVAL] = { NET, "the adapter was removed" },
	[RDMA_CM_EVENT_ADDR_CHANGE] = { WARN, "its IP address has moved to another adapter, as in a bond; connections "
	                                "stay where they are, and end if the adapter fails" },
};

/* UNREACHABLE of a connection that is there: since Linux 6.0 it comes when a neighbour's MAC address changes. */
static const struct news moved = { WARN, "the hardware address of a neighbour has changed; its connection stays, and "
                                   "ends if its adapter does not acknowledge" };

/* The reasons of IB_CM_REJ in the kernel's ib_cm.h; iWARP has errno in their place */
enum { IB_CM_REJ_INVALID_SERVICE_ID = 8, IB_CM_REJ_STALE_CONN = 10, IB_CM_REJ_CONSUMER_DEFINED = 28 };

static const struct news rejects[] = {
	[IB_CM_REJ_INVALID_SERVICE_ID] = { PEER, "nobody listens there: its process has ended, or librdmacm leads to "
	                                   "another host" },
	[IB_CM_REJ_STALE_CONN] = { PEER, "its adapter still knows an earlier connection of this queue pair: try again "
	                           "some seconds later" },
	[IB_CM_REJ_CONSUMER_DEFINED] = { PEER, "its process refused: its log says why" },
};

void tt_verbs_lose_net(struct tt_verbs *net, const char *why)
{
	if (net->lost)
		return;
	net->lost = tt_fail(-EIO, "%s is lost: %s", net->name, why);
	net->loss = tt_last_sentence();
}

/* Those there are keep what they have. */
static void read_port(struct tt_verbs *net, enum fate fate, const char *sentence)
{
	char note[200];
	bool fit = tt_verbs_read_anew(net, note, sizeof note);

	tt_log(fit && fate == PORT ? TT_INFO : TT_WARN, "%s: %s; new connections %s%s", net->name, sentence,
	       fit ? "use " : "are refused: ", note);
}

static void befall(struct tt_verbs *net, struct tt_verbs_peer *p, enum fate fate, const char *sentence)
{
	if (fate == PORT || fate == WARN)
		read_port(net, fate, sentence);
	if ((fate == PEER || fate == LIAR) && p)
		tt_verbs_hang_up(p, fate == LIAR ? -EPROTO : -ECONNRESET, sentence);
	if (fate == LAST && p)
		tt_verbs_drained(p);
	if (fate == NET) {
		tt_log(TT_WARN, "%s: %s", net->name, sentence);
		tt_verbs_lose_net(net, sentence);
	}
}

static void hear(struct tt_verbs *net, const struct ibv_async_event *e)
{
	struct news n = (size_t)e->event_type < TT_COUNT(events) ? events[e->event_type] : nothing;
	bool of_queue = n.fate == PEER || n.fate == LIAR || n.fate == LAST, of_port = n.fate == PORT || n.fate == WARN;

	if (!of_port || e->element.port_num == net->port.number)
		befall(net, of_queue ? tt_verbs_find(net, e->element.qp->qp_num) : NULL, n.fate, n.sentence);
}

void tt_verbs_hear_device(struct tt_verbs *net)
{
	struct ibv_async_event e;

	while (!net->library->get_async_event(net->device, &e)) {
		net->library->ack_async_event(&e); /* or what it names could not be destroyed */
		hear(net, &e);
	}
}

void tt_verbs_hear_failure(struct tt_verbs *net, struct tt_verbs_peer *p, enum rdma_cm_event_type event, int status)
{
	struct news n = (size_t)event < TT_COUNT(cm_events) ? cm_events[event] : nothing;
	char text[300];

	if (event == RDMA_CM_EVENT_REJECTED && status > 0 && (size_t)status < TT_COUNT(rejects) &&
	    rejects[status].sentence)
		n = rejects[status];
	if (event == RDMA_CM_EVENT_UNREACHABLE && p && p->ops.stage >= TT_STAGE_JOINED)
		n = moved;
	if (n.fate == NOTHING)
		return;
	snprintf(text, sizeof text, "%s (%s, status %d, on %s)", n.sentence, net->library->event_str(event), status,
	         net->name);
	befall(net, p, n.fate, text);
}
