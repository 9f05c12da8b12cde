"""The walk of Ctrl-C: each call that waits for another rank, interrupted after 30 ms, as a program of two ranks.

Rank 0 calls while rank 1, its peer, does not come, or is stopped. KeyboardInterrupt ends the call soon, and then the
job goes on: the same call comes to its end when the peer comes, and a barrier passes.

    interrupts.py [stopped]    walks the calls for which the peer must be stopped; else all others
"""
import array
import os
import signal
import socket
import statistics
import sys
import threading
import time
from collections import namedtuple

# name: of the function in C. open, again: of both ranks. cancels: the call is a collective, which is cancelled for the
# peer, too. stopped: the call needs nothing of a peer but that it runs. rank 0 makes the call; `again` ends it.
Case = namedtuple("Case", "name open call again cancels stopped")
GO, DATA, MEET, LARGE = 1000, 1001, 1002, 1 << 22
WALK = []


class Walk:
    """What the calls of one case use."""

    def __init__(self, job):
        self.job, self.me, self.group, self.opened = job, job.rank, job, []

    def keep(self, handle):
        self.opened.append(handle)
        return handle

    def close(self):
        for handle in self.opened:
            handle.close()


def nothing(w):
    pass


def on_both(w, call):
    call(w)


def on_walker(w, call):
    if w.me == 0:
        call(w)


def no_more(w, call):
    pass


def waits(name, call, open=nothing, again=on_both, cancels=False, stopped=False):
    WALK.append(Case("tutti_" + name, open, call, again, cancels, stopped))


def floats(n=4):
    return array.array("f", [1] * n)


# ---- collectives ----

for name, call in {
        "barrier": lambda w: w.job.barrier(),
        "allreduce": lambda w: w.job.allreduce(floats()),
        "allreduce_tensors": lambda w: w.job.allreduce_tensors([floats(), floats(3)]),
        "reduce": lambda w: w.job.reduce(floats()),
        "broadcast": lambda w: w.job.broadcast(floats(), root=1),
        "gather": lambda w: w.job.gather(floats()),
        "scatter": lambda w: w.job.scatter(floats(), floats(8), root=1),
        "reduce_scatter": lambda w: w.job.reduce_scatter(floats(8), floats()),
        "allgather": lambda w: w.job.allgather(floats()),
        "allgatherv": lambda w: w.job.allgatherv(floats(), [4, 4], floats(8)),
        "alltoall": lambda w: w.job.alltoall(floats()),
        "alltoallv": lambda w: w.job.alltoallv(floats(), [2, 2], floats(), [2, 2]),
        "group_split": lambda w: w.job.split(0).close()}.items():
    waits(name, call, cancels=True)

# ---- groups, jobs, files ----


def open_group(w):
    w.group = w.keep(w.job.split(0))


def join(w):
    import tutti
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        boot = "127.0.0.1:%d" % probe.getsockname()[1]
    tutti.Job(boot=boot, rank=0, ranks=2)


def open_pipe(w):
    w.pipe = os.pipe()
    os.set_blocking(w.pipe[1], False)
    try:
        while True:
            os.write(w.pipe[1], b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(w.pipe[1], True)


def close_pipe(w, call):
    os.close(w.pipe[0])
    os.close(w.pipe[1])


waits("group_of", lambda w: w.job.of([1, 0], "both").close())
waits("group_shrink", lambda w: w.keep(w.group.shrink()), open_group)
waits("group_grow", lambda w: w.keep(w.group.grow()), open_group)
waits("join", join, again=no_more)
waits("stats_dump", lambda w: w.job.stats_dump(w.pipe[1]), open_pipe, close_pipe)

# ---- messages and operations ----


def peer_receives(w, call):
    on_walker(w, call)
    if w.me:
        w.job.recv(bytearray(LARGE), 0, DATA)


def peer_sends(w, call):
    if w.me:
        w.job.send(b"data", 0, DATA)
    on_walker(w, call)


def open_operation(w):
    if w.me == 0:
        w.operation = w.job.recv_start(bytearray(8), 1, DATA)


def wait(w):
    assert w.operation.wait().bytes == 4


def wait_all(w):
    import tutti
    assert tutti.wait_all([w.operation])[0].bytes == 4


def wait_any(w):
    import tutti
    assert tutti.wait_any([w.operation]) is w.operation


waits("recv", lambda w: w.job.recv(bytearray(8), 1, DATA), again=peer_sends)
waits("send", lambda w: w.job.send(bytearray(LARGE), 1, DATA), again=peer_receives)
for call in wait, wait_all, wait_any:
    waits(call.__name__, call, open_operation, peer_sends)

# ---- windows ----


def open_window(w):
    import tutti
    w.window = w.keep(tutti.Window("late", bytearray(64)))


def open_on_walker(w):
    if w.me == 0:
        open_window(w)


def peer_opens(w, call):
    if w.me:
        open_window(w)
    on_walker(w, call)


def peer_notifies(w, call):
    if w.me:
        w.window.put_notify(b"", 0, 7)
    on_walker(w, call)


waits("put", lambda w: w.window.put(bytes(8), 1), open_on_walker, peer_opens)
waits("get", lambda w: w.window.get(bytearray(8), 1), open_on_walker, peer_opens)
waits("add", lambda w: w.window.add(0, 1), open_on_walker, peer_opens)
waits("put_notify", lambda w: w.window.put_notify(bytes(8), 1), open_on_walker, peer_opens)
waits("window_bytes", lambda w: w.window.bytes_of(1), open_on_walker, peer_opens)
waits("wait_notify", lambda w: w.window.wait_notify(7, rank=1), open_window, peer_notifies)

# ---- tables: the peer is the server, both are workers ----


def table(w, **config):
    import tutti
    w.table = w.keep(tutti.Table.rows("table", 64, 4, updater=tutti.accumulate(), servers=[1], **config))


def open_rounds(w):
    table(w, mode="bsp", fresh=True)


def open_ahead(w):
    """The walker is a round ahead."""
    open_rounds(w)
    if w.me == 0:
        w.table.push(floats(256))


def open_gated(w):
    """A second push waits for the peer's first one."""
    open_ahead(w)
    if w.me == 0:
        w.operation = w.table.push_start(floats(256))


def open_async(w):
    table(w, snapshots=True)
    if w.me == 0:
        w.table.push(floats(256))


def open_saved(w):
    open_async(w)
    if w.me == 0:
        w.table.save("saved")


def open_closed(w):
    """The server has closed the table."""
    open_async(w)
    meet(w.job)
    if w.me:
        w.opened.pop().close()


def peer_pushes(w, call):
    if w.me:
        w.table.push(floats(256))
    if call is pushes:
        w.table.pull()
    else:
        on_walker(w, call)


def pushes(w):
    w.table.push(floats(256))


def peer_opens_table(w, call):
    if w.me:
        table(w, snapshots=True)
    on_walker(w, call)


def again_if_free(w, call):
    """The server hears later that the last call was called off."""
    import tutti
    while w.me == 0:
        try:
            return call(w)
        except tutti.errors.InUse:
            time.sleep(0.001)


ROWS = array.array("Q", [5])
waits("table_open", open_rounds)
waits("table_push", pushes, open_ahead, peer_pushes)
waits("table_pull", lambda w: w.table.pull(), open_ahead, peer_pushes)
waits("table_push_pull", lambda w: w.table.push_pull(floats(256)), open_ahead,
      lambda w, call: peer_pushes(w, pushes))
waits("table_push_rows", lambda w: w.table.push_rows(ROWS, floats()), open_ahead,
      lambda w, call: peer_pushes(w, pushes))
waits("table_pull_rows", lambda w: w.table.pull_rows(ROWS), open_ahead, peer_pushes)
waits("table_pull_fresh", lambda w: w.table.pull_fresh(), open_ahead, peer_pushes)
waits("table_refresh_rows", lambda w: w.table.refresh_rows(ROWS, floats()), open_ahead, peer_pushes)
waits("table_finish", lambda w: w.table.finish(), open_gated, peer_pushes)
waits("table_switch", lambda w: w.table.switch("ssp", 3), open_ahead)
waits("table_reopen", lambda w: w.table.reopen(), open_closed, peer_opens_table)
waits("table_assign", lambda w: w.table.assign(floats(256)), open_async, on_walker, stopped=True)
waits("table_assign_rows", lambda w: w.table.assign_rows(ROWS, floats()), open_async, on_walker, stopped=True)
waits("table_snapshot", lambda w: w.table.snapshot(), open_async, on_walker, stopped=True)
waits("table_save", lambda w: w.table.save("saved"), open_async, again_if_free, stopped=True)
waits("table_load", lambda w: w.table.load("saved"), open_saved, again_if_free, stopped=True)

# ---- averaging ----


def open_gradients(w):
    import tutti
    w.gradients = w.keep(tutti.Gradients([floats()]))


def open_started(w):
    """The walker has started the end of a step."""
    open_gradients(w)
    if w.me == 0:
        w.operation = w.gradients.average_start()


def peer_ends(w, call):
    if w.me:
        w.gradients.average()
    else:
        call(w)
        w.operation.wait()
        w.gradients.apply()


def open_elastic(w):
    import tutti
    w.elastic = w.keep(tutti.ElasticAverage([floats()], 1, 0.5))


def elastic_ahead(w):
    open_elastic(w)
    if w.me == 0:
        w.elastic.step()


def peer_steps(w, call):
    if w.me:
        w.elastic.step()
    call(w)


def open_center(w):
    import tutti
    w.center = w.keep(tutti.Center.downpour("center", [floats()], 1, servers=[1]))


def open_easgd(w):
    import tutti
    w.center = w.keep(tutti.Center.easgd("center", [floats()], 1, servers=[1], snapshots=True))


def peer_exchanges(w, call):
    if w.me:
        w.center.exchange()
    w.center.pull()


def open_gossip(w):
    import tutti
    w.gossip = w.keep(tutti.Gossip("gossip", [floats()], timeout=20))
    w.gossip.publish(1)


def gossip_on_walker(w):
    if w.me == 0:
        open_gossip(w)


def peer_gossips(w, call):
    if w.me:
        open_gossip(w)
    on_walker(w, call)


waits("gradients_open", open_gradients, cancels=True)
waits("gradients_regroup", lambda w: w.gradients.regroup(w.job), open_gradients, cancels=True)
waits("gradients_next", lambda w: list(w.gradients.buckets()), open_started, peer_ends)
waits("gradients_sum", lambda w: w.gradients.sum(), open_gradients)
waits("gradients_average", lambda w: w.gradients.average(), open_gradients)
waits("gradients_synchronize", lambda w: w.gradients.synchronize([floats()]), open_gradients)
waits("ea_open", open_elastic, cancels=True)
waits("ea_step", lambda w: w.elastic.step(), elastic_ahead, peer_steps)
waits("ea_center", lambda w: w.elastic.center([floats()]), elastic_ahead, peer_steps)
waits("ea_save", lambda w: w.elastic.save("ea-%d.safetensors" % w.me), elastic_ahead, peer_steps)
waits("ea_synchronize", lambda w: w.elastic.synchronize(), open_elastic)
waits("ea_synchronize_center", lambda w: w.elastic.synchronize_center(), open_elastic)
waits("ea_regroup", lambda w: w.elastic.regroup(w.job), open_elastic, cancels=True)
waits("ea_set", lambda w: w.elastic.set(2, 0.25), open_elastic, cancels=True)
waits("center_open", open_center, cancels=True)
waits("center_step", lambda w: w.center.step(), open_center, peer_exchanges)
waits("center_exchange", lambda w: w.center.exchange(), open_center, peer_exchanges)
waits("center_set", lambda w: w.center.set(tau=2), open_center, cancels=True)
waits("center_pull", lambda w: w.center.pull(), open_easgd, on_walker, stopped=True)
waits("center_assign", lambda w: w.center.assign(), open_easgd, on_walker, stopped=True)
waits("center_read", lambda w: w.center.read([floats()]), open_easgd, on_walker, stopped=True)
waits("gossip_mix", lambda w: w.gossip.mix(1), gossip_on_walker, peer_gossips)
waits("gossip_fetch", lambda w: w.gossip.fetch([floats()], 1), gossip_on_walker, peer_gossips)

# ---- publications: rank 0 reads, or publishes ----


def open_publisher(w):
    import tutti
    w.publisher = w.keep(tutti.Publisher("weights", {"x": floats()}))
    w.publisher.publish(1)


def open_reader(w):
    import tutti
    w.reader = w.keep(tutti.Reader("weights", 1 - w.me))


def peer_publishes(w, call):
    if w.me:
        open_publisher(w)
    on_walker(w, call)


def peer_publishes_more(w, call):
    if w.me:
        w.publisher.publish(2)
    on_walker(w, call)


def peer_reads(w, call):
    if w.me:
        open_reader(w)
        w.reader.fetch()
    on_walker(w, call)


waits("reader_open", open_reader, again=peer_publishes)
waits("reader_newest", lambda w: w.reader.newest(), lambda w: peer_publishes(w, open_reader), on_walker, stopped=True)
waits("reader_update", lambda w: w.reader.fetch(1), lambda w: peer_publishes(w, open_reader), peer_publishes_more)
waits("publisher_wait", lambda w: w.publisher.wait(1), lambda w: on_walker(w, open_publisher), peer_reads)

# ---- controllers and queues ----


def open_worker(w):
    import tutti
    w.controller = w.keep(tutti.Controller("boss", 1))


def open_boss(w):
    import tutti
    w.controller = w.keep(tutti.Controller("boss", 0))


def peer_serves(w, call):
    if w.me:
        w.controller.serve(lambda request: request.data)
    else:
        got = call(w)
        assert call is not first or got is True  # the interrupted request was not made twice
        if call is not done:
            w.controller.done()


def first(w):
    return w.controller.first()


def done(w):
    w.controller.done()


def unlock(w):
    import tutti
    try:
        w.controller.unlock()
    except tutti.errors.Refused:
        pass  # this worker has no lock


def serve(w):
    w.controller.serve(lambda request: request.data)


def peer_asks(w, call):
    if w.me == 0:
        serve(w)
    else:
        assert w.controller.ask(b"abc") == b"abc"
        w.controller.done()


def open_queue(w, producer):
    import tutti
    w.queue = w.keep(tutti.Queue("queue", producer, 64, 1))


def open_full(w):
    """One batch is at the worker, one waits."""
    open_queue(w, 0)
    for _ in range(2 * (1 - w.me)):
        w.queue.send([floats()])


def peer_produces(w, call):
    if w.me:
        w.queue.send([floats()])
        w.queue.end()
    else:
        assert len(list(w.queue)) == 1


def peer_takes(n):
    def again(w, call):
        if w.me:
            assert len(list(w.queue)) == n
        else:
            call(w)
            if n == 3:
                w.queue.end()
    return again


waits("controller_ask", lambda w: w.controller.ask(b"abc"), open_worker, peer_serves)
waits("controller_first", first, open_worker, peer_serves)
waits("controller_lock", lambda w: w.controller.lock(), open_worker, peer_serves)
waits("controller_unlock", unlock, open_worker, peer_serves)
waits("controller_done", done, open_worker, peer_serves)
waits("controller_next", serve, open_boss, peer_asks)
waits("queue_receive", lambda w: w.queue.receive(), lambda w: open_queue(w, 1), peer_produces)
waits("queue_send", lambda w: w.queue.send([floats()]), open_full, peer_takes(3))
waits("queue_end", lambda w: w.queue.end(), open_full, peer_takes(2))

# ---- the walk ----


def interrupted(call, w, stop=0):
    """Calls with a SIGINT after 30 ms, and returns how many seconds later the call ended. stop: a process to stop."""
    sent, calls = [], threading.Event()

    def send_it():
        calls.wait()
        time.sleep(0.03)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
        if stop:
            time.sleep(0.1)
            os.kill(stop, signal.SIGCONT)  # else memory that the peer holds would delay the call for long

    sender = threading.Thread(target=send_it)
    if stop:
        os.kill(stop, signal.SIGSTOP)
    sender.start()  # takes long on a busy machine
    try:
        calls.set()
        call(w)
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]
    finally:
        sender.join()
    raise AssertionError("the call has ended without an interrupt")


def is_cancelled(call, w):
    import tutti
    try:
        call(w)
    except tutti.errors.Aborted:
        return True
    return False


def meet(job):
    """By messages: some cases have begun a collective on one rank."""
    job.send(b"", 1 - job.rank, MEET)
    job.recv(bytearray(0), 1 - job.rank, MEET)


def walk_one(job, case, peer):
    """Returns the seconds on rank 0."""
    w, seconds = Walk(job), 0.0
    case.open(w)
    meet(job)
    if job.rank == 0:
        seconds = interrupted(case.call, w, peer if case.stopped else 0)
        job.send(b"", 1, GO)
    else:
        job.recv(bytearray(0), 0, GO)
        assert not case.cancels or is_cancelled(case.call, w), case.name
    case.again(w, case.call)
    meet(job)
    w.close()
    job.barrier()
    return seconds


def walk(job, cases):
    peer = job.broadcast(array.array("q", [os.getpid()]), root=1)[0]
    took = {}
    for case in cases:
        print(case.name)  # where a hang is
        took[case.name] = walk_one(job, case, peer)
    if job.rank == 0:
        slow = {name: "%.3f" % t for name, t in took.items() if t > 1}
        assert not slow, slow
        assert statistics.median(took.values()) < 0.2, took


def leave(job):
    """At last: rank 0 leaves while an operation runs that nobody will end."""
    if job.rank == 0:
        operation = job.send_start(bytearray(LARGE), 1, DATA)
        assert interrupted(lambda w: job.leave(), None) < 1
        print("tutti_leave")
        del operation
    else:
        time.sleep(0.3)


def main():
    import numpy  # an import that is interrupted leaves half a module
    import tutti
    os.makedirs("saved", exist_ok=True)
    job = tutti.init()
    walk(job, [case for case in WALK if case.stopped == ("stopped" in sys.argv)])
    leave(job)
    del numpy


if __name__ == "__main__":
    main()
