"""The walk of Ctrl-C: each call that waits for another rank, interrupted after 50 ms, as a program of two ranks.

Rank 0 calls while rank 1 does not come. KeyboardInterrupt ends the call soon, and then the job goes on: the peer's call
of a collective that was cancelled ends, an operation that runs on comes to its end, and a barrier passes.
"""
import array
import os
import signal
import socket
import statistics
import tempfile
import threading
import time

WALK = {}  # C's name: (call, whether the call is a collective, which is cancelled for the peer, too)
GO, DATA = 1000, 1001  # tags


def case(name):
    return lambda function: WALK.setdefault(name, (function, False))


def collective(name, function):
    WALK[name] = (function, True)


def floats(n):
    return array.array("f", [0] * n)


collective("tutti_barrier", lambda job: job.barrier())
collective("tutti_allreduce", lambda job: job.allreduce(floats(4)))
collective("tutti_allreduce_tensors", lambda job: job.allreduce_tensors([floats(4), floats(3)]))
collective("tutti_reduce", lambda job: job.reduce(floats(4)))
collective("tutti_broadcast", lambda job: job.broadcast(floats(4), root=1))
collective("tutti_gather", lambda job: job.gather(floats(4)))
collective("tutti_scatter", lambda job: job.scatter(floats(4), floats(8), root=1))
collective("tutti_reduce_scatter", lambda job: job.reduce_scatter(floats(8), floats(4)))
collective("tutti_allgather", lambda job: job.allgather(floats(4)))
collective("tutti_allgatherv", lambda job: job.allgatherv(floats(4), [4, 4], floats(8)))
collective("tutti_alltoall", lambda job: job.alltoall(floats(4)))
collective("tutti_alltoallv", lambda job: job.alltoallv(floats(4), [2, 2], floats(4), [2, 2]))
collective("tutti_group_split", lambda job: job.split(0).close())


@case("tutti_recv")
def recv(job):
    if job.rank == 0:
        job.recv(bytearray(8), 1, DATA)


@case("tutti_send")
def send(job):
    if job.rank == 0:
        job.send(bytearray(1 << 22), 1, DATA)


def finish(job, operation, wait):
    """Rank 0 waits for a message that does not come, then comes."""
    try:
        wait(operation)
    except KeyboardInterrupt:
        assert not operation.done()
        job.send(b"", 1, GO)
        assert operation.wait().bytes == 4
        raise


@case("tutti_wait")
def wait(job):
    if job.rank:
        return answer(job)
    finish(job, job.recv_start(bytearray(8), 1, DATA), lambda o: o.wait())


@case("tutti_wait_all")
def wait_all(job):
    import tutti
    if job.rank:
        return answer(job)
    finish(job, job.recv_start(bytearray(8), 1, DATA), lambda o: tutti.wait_all([o]))


@case("tutti_wait_any")
def wait_any(job):
    import tutti
    if job.rank:
        return answer(job)
    finish(job, job.recv_start(bytearray(8), 1, DATA), lambda o: tutti.wait_any([o]))


def answer(job):
    """Rank 1 of `finish`."""
    job.recv(bytearray(0), 0, GO)
    job.send(b"data", 0, DATA)


def again(job, call):
    """The peer comes to the second call."""
    if job.rank:
        job.recv(bytearray(0), 0, GO)
        return call()
    try:
        call()
    except KeyboardInterrupt:
        job.send(b"", 1, GO)
        call()
        raise


@case("tutti_group_of")
def group_of(job):
    again(job, lambda: job.of([1, 0], "both").close())


@case("tutti_group_shrink")
def shrink(job):
    again(job, job.split(0).shrink)


@case("tutti_group_grow")
def grow(job):
    again(job, job.split(0).grow)


@case("tutti_join")
def join(job):
    import tutti
    if job.rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            boot = "127.0.0.1:%d" % probe.getsockname()[1]
        tutti.Job(boot=boot, rank=0, ranks=2)


@case("tutti_stats_dump")
def stats_dump(job):
    if job.rank == 0:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b"x" * 4096)
        except BlockingIOError:
            pass
        os.set_blocking(writer, True)
        try:
            job.stats_dump(writer)
        finally:
            os.close(reader)
            os.close(writer)


def interrupted(call, job):
    """Calls with a SIGINT after 50 ms, and returns how many seconds later the call ended."""
    sent = []

    def send_it():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.05, send_it)
    timer.start()
    try:
        call(job)
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]
    finally:
        timer.join()
    raise AssertionError("the call has ended without an interrupt")


def walk_one(job, name, call, is_collective):
    """Returns the seconds on rank 0."""
    import tutti
    seconds = 0.0
    if job.rank == 0:
        seconds = interrupted(call, job)
        if is_collective:
            job.send(b"", 1, GO)
    elif is_collective:
        job.recv(bytearray(0), 0, GO)
        try:
            call(job)
        except tutti.errors.Aborted:
            pass
    else:
        call(job)
    job.barrier()
    return seconds


def walk(job, cases):
    took = {name: walk_one(job, name, *cases[name]) for name in cases}
    if job.rank == 0:
        slow = {name: "%.3f" % t for name, t in took.items() if t > 1}
        assert not slow, slow
        assert statistics.median(took.values()) < 0.2, took
        print("interrupted:", *took)


def leave(job):
    """At last: rank 0 leaves while an operation runs that nobody will end."""
    if job.rank == 0:
        operation = job.send_start(bytearray(1 << 22), 1, DATA)
        print("leave after %.1f s" % interrupted(lambda job: job.leave(), job))
        del operation
    else:
        time.sleep(0.3)


if __name__ == "__main__":
    import tutti
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        job = tutti.init()
        walk(job, WALK)
        leave(job)
