"""How the package lives in an interpreter: Ctrl-C, signals, exit, fork, threads, memory in flight."""
import pathlib
import re

import interrupts
import pytest

HERE = pathlib.Path(__file__).parent
shm = pytest.mark.transports("shm")


@shm
def test_ctrl_c(ranks):
    said = ranks(2, HERE / "interrupts.py")[0].split()
    assert said == [case.name for case in interrupts.WALK if not case.stopped] + ["tutti_leave"]


@pytest.mark.transports("tcp")
def test_ctrl_c_with_a_stopped_peer(ranks):
    said = ranks(2, HERE / "interrupts.py", arguments=["stopped"])[0].split()
    assert said == [case.name for case in interrupts.WALK if case.stopped] + ["tutti_leave"]


# These wait where there are shards, which Python does not have.
LOCAL = {"tutti_publisher_" + x for x in ("open", "begin", "commit", "publish")}


def test_ctrl_c_walks_everything():
    waits = set(re.findall(r"^(\w+) +waits$", (HERE.parent / "job/waits.list").read_text(), re.M))
    without = set(re.findall(r"^(tutti_\w+) ", (HERE / "without.list").read_text(), re.M))
    assert len(waits) > 60 and {case.name for case in interrupts.WALK} | {"tutti_leave"} == waits - without - LOCAL


@shm
def test_signals(ranks):
    def program():
        import os
        import signal
        import threading
        import time
        import tutti
        job = tutti.init()
        if job.rank:
            job.recv(bytearray(1), 0)
            job.barrier()
            return

        def wait(seconds, handler):
            """Receives in vain, and the signal comes meanwhile. Returns what the wait raises."""
            signal.signal(signal.SIGUSR1, handler)
            timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            operation = job.recv_start(bytearray(8), 1, 5)
            try:
                operation.wait(seconds)
            except BaseException as e:
                return e
            finally:
                timer.join()

        def raising(e):
            def handler(*_):
                raise e
            return handler

        # What a handler raises comes out of the wait; a handler that returns leaves the wait alone.
        e = SystemExit(3)
        assert wait(9, raising(e)) is e
        seen = []
        assert isinstance(wait(0.2, lambda *_: seen.append(time.monotonic())), tutti.errors.InProgress) and seen
        # A handler may make calls that do not wait. It may neither wait nor leave.
        e = wait(9, lambda *_: seen.append((job.rank, job.stats("send").ops)) or job.leave())
        assert isinstance(e, RuntimeError) and "cannot leave the job while" in str(e) and job.size == 2, e
        e = wait(9, lambda *_: job.recv(bytearray(8), 1, 6))
        assert isinstance(e, tutti.errors.InvalidArgument) and "must not call Tutti" in str(e), e

        # Python's handlers and those of leave_on and leave_asked do not share a signal.
        for call in job.leave_on, job.leave_asked:
            try:
                call(signal.SIGUSR1)
                raise AssertionError
            except ValueError as e:
                assert "SIGUSR1: a Python handler has this signal" in str(e)
        job.leave_on(signal.SIGUSR2)
        assert isinstance(wait(0.1, lambda *_: None), tutti.errors.InProgress)
        signal.signal(signal.SIGUSR2, lambda *_: None)
        e = wait(9, lambda *_: None)
        assert isinstance(e, ValueError) and "has replaced leave_on" in str(e), e
        assert isinstance(wait(0.1, lambda *_: None), tutti.errors.InProgress)  # it says so once
        assert job.leave_asked(signal.SIGURG) is False
        os.kill(os.getpid(), signal.SIGURG)
        assert job.leave_asked(signal.SIGURG) is True
        job.send(b"", 1)
        job.barrier()

    ranks(2, program)


EXITS = [  # what a rank does, its exit status, and what rank 0, whom it has not sent anything, then meets
    ("operation = job.recv_start(x, 0)", 0, "RankLeft"),
    ("with job:\n    operation = job.recv_start(x, 0)\n    sys.exit(3)", 3, "RankLeft"),
    ("operation = job.send_start(x, 0, 9)\nraise KeyError", 1, "RankLeft"),
    ("with job:\n    operation = job.send_start(x, 0, 9)\n    raise KeyError", 1, "RankLeft"),
    ("operation = job.recv_start(x, 0)\ntime.sleep(0.1)\nos._exit(5)", 5, "RankDied"),
    ("threading.Thread(target=job.recv, args=(x, 0), daemon=True).start()\ntime.sleep(0.1)", 0, "RankLeft"),
    ("def busy():\n    while True:\n        job.recv_start(x, 0).cancel()\n"
     "threading.Thread(target=busy, daemon=True).start()\ntime.sleep(0.1)", 0, "RankLeft"),
    ("cycle = [job.recv_start(x, 0)]\ncycle.append(cycle)\ndel job, x, cycle", 0, "RankLeft"),
    ("builtins.kept = [tutti.Window('w', x), tutti.empty(9), job.recv_start(x, 0),\n"
     "    tutti.Gossip('g', [x]), tutti.Queue('q', 0, 64)]", 0, "RankLeft"),
    ("job.leave_on(signal.SIGTERM)\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)", -15, "RankLeft"),
    ("signal.signal(signal.SIGALRM, lambda *_: sys.exit(4))\n"
     "signal.setitimer(signal.ITIMER_REAL, 0.05)\njob.recv(x, 0)", 4, "RankLeft"),
]


@shm
def test_exit(ranks):
    """Each rank but the first ends in a way of its own, with something started or waited for."""
    program = """
import builtins, glob, os, signal, sys, threading, time
import numpy as np
import tutti
job = tutti.init()
job.barrier()
open("through%%d" %% job.rank, "w").close()
while len(glob.glob("through*")) < job.size:  # the first death must find nobody inside the barrier
    time.sleep(0.01)
if job.rank == 0:
    begun = time.monotonic()
    for rank in range(1, job.size):
        try:
            job.recv(bytearray(1), rank)
        except tutti.Error as e:
            print(type(e).__name__, e.rank)
    print(time.monotonic() - begun < 5)
else:
    x = np.zeros(1 << 20, "f4")
    exec(%r[job.rank - 1][0])
""" % EXITS
    said = ranks(1 + len(EXITS), program, ends={i: status for i, (_, status, _) in enumerate(EXITS, 1)}, timeout=30)
    assert said[0].splitlines() == ["%s %d" % (error, i) for i, (_, _, error) in enumerate(EXITS, 1)] + ["True"]
    for (does, status, _), text in zip(EXITS, said[1:]):
        assert ("Traceback" in text) == (status == 1) and "Exception ignored" not in text, (does, text)


@shm
def test_dropped_in_flight(ranks):
    def program():
        import gc
        import time
        import weakref
        import numpy as np
        import tutti
        job = tutti.init()
        if job.rank == 0:
            for make in (lambda x: job.allreduce_start(x), lambda x: job.broadcast_start(x, 1)):
                operation = make(np.ones(1 << 20, "f4"))
                assert not operation.done() and "runs" in repr(operation)
                del operation  # cancels: what has its memory next is not written to
                fresh = np.full(1 << 20, 7, "f4")
                job.send(b"", 1)
                job.barrier()
                assert (fresh == 7).all()
            # Dropped by the collector, inside a signal's handler, inside a wait.
            import signal
            cycle = [job.recv_start(bytearray(8), 1)]
            cycle.append(cycle)
            del cycle
            signal.signal(signal.SIGALRM, lambda *_: gc.collect())
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            job.recv(bytearray(1), 1, 3)
            assert gc.collect() == 0
        else:
            for make in (lambda x: job.allreduce(x), lambda x: job.broadcast(x, 1)):
                job.recv(bytearray(0), 0)
                try:
                    make(np.ones(1 << 20, "f4"))
                    raise AssertionError("the operation was cancelled")
                except tutti.errors.Aborted:
                    pass
                job.barrier()
            time.sleep(0.2)
            job.send(b"", 0, 3)
        # An operation exports its memory until it ends.
        x = bytearray(8)
        operation = job.recv_start(x, 1 - job.rank, 9)
        try:
            x.append(1)
            raise AssertionError
        except BufferError:
            pass
        assert operation.cancel() and not operation.cancel()
        x.append(1)
        try:
            operation.wait()
            raise AssertionError
        except tutti.errors.Cancelled as e:
            assert str(operation.exception()) == str(e)
        # An error keeps neither the operation nor the program's frames.
        gc.collect()
        gc.disable()
        for end in tutti.Operation.cancel, lambda o: job.send(bytes(20), job.rank, 8):
            operation = job.recv_start(x, job.rank, 8)
            end(operation)
            try:
                operation.wait()
                raise AssertionError
            except (tutti.errors.Cancelled, tutti.errors.MessageTooLong):
                ref = weakref.ref(operation)
            operation = None
            assert ref() is None
            if end is not tutti.Operation.cancel:
                assert job.recv(bytearray(20), job.rank, 8).bytes == 20
        gc.enable()
        job.barrier()

    ranks(2, program, timeout=20)


@shm
def test_threads(ranks):
    def program():
        import threading
        import time
        import numpy as np
        import tutti
        job = tutti.init()
        rank = job.rank
        parts = [job.split(0) for _ in range(3)]

        def in_threads(*functions):
            wrong = []

            def run(function):
                try:
                    function()
                except BaseException as e:
                    wrong.append(e)

            threads = [threading.Thread(target=run, args=(f,)) for f in functions]
            for t in threads:
                t.start()
            return lambda: [t.join(20) for t in threads] and wrong

        # A thread that waits does not hold the others up.
        done = in_threads(lambda: job.recv(bytearray(1), 1 - rank))
        counted, end = 0, time.monotonic() + 0.1
        while time.monotonic() < end:
            counted += 1
        assert counted > 1000
        job.send(b"x", 1 - rank)
        assert not done()

        # Threads with a group each.
        def collectives(group):
            x = np.ones(8, "f4")
            for i in range(50):
                group.allreduce_start(x, op="average").wait()

        assert not in_threads(*(lambda g=g: collectives(g) for g in parts))()

        # Several threads wait for, test, and cancel one operation.
        for how in "wait", "cancel":
            operation, results = job.recv_start(bytearray(8), 1 - rank, 2), []
            done = in_threads(*[lambda: results.append(operation.wait())] * 3,
                              lambda: [time.sleep(0.001) for _ in range(2000) if not operation.done()],
                              lambda: results.append(tutti.wait_any([operation]).wait()),
                              lambda: results.append(tutti.wait_all([operation])[0]))
            time.sleep(0.05)
            if how == "wait":
                job.send(b"four", 1 - rank, 2)
                assert not done() and [m.bytes for m in results] == [4] * 5
            else:
                operation.cancel()
                assert [type(e) for e in done()] == [tutti.errors.Cancelled] * 5 and not results

        # Leaving ends the waits of other threads.
        job.barrier()
        operation = job.recv_start(bytearray(8), 1 - rank, 4)
        done = in_threads(lambda: parts[0].recv(bytearray(8), 1 - rank), operation.wait,
                          lambda: print(list(job.watch())))
        time.sleep(0.1)
        job.leave()
        assert all(isinstance(e, (tutti.Error, ValueError)) for e in done())
        assert operation.done() and operation.exception() is not None and "failed" in repr(operation)
        for call in (lambda: job.rank, job.barrier_start, lambda: parts[0].barrier()):
            try:
                call()
                raise AssertionError
            except (ValueError, tutti.errors.ShutDown):
                pass

    ranks(2, program, timeout=30)


@shm
def test_wait_for_several(ranks):
    def program():
        import socket
        import tutti
        job, more = tutti.init(), []
        for _ in range(2):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                boot = "127.0.0.1:%d" % probe.getsockname()[1]
            more.append(tutti.Job(boot=boot, rank=0, ranks=1, newcomers=-1))
        receives = [j.recv_start(bytearray(8), 0) for j in more]
        try:
            tutti.wait_all(receives)  # of two jobs
            raise AssertionError
        except tutti.errors.InvalidArgument:
            assert not any(o.done() for o in receives)
        for wait in tutti.wait_all, tutti.wait_any:
            try:
                wait(receives[:1], 0.01)
                raise AssertionError
            except tutti.errors.InProgress:
                pass
        more[1].send(b"1", 0)
        assert receives[1].wait(5).bytes == 1 and tutti.wait_any(receives) is receives[1]
        assert tutti.wait_all([]) == []
        assert tutti.wait_all(more[1].send_start(b"", 0) for _ in range(2)) == [None] * 2
        assert tutti.wait_any(more[1].send_start(b"", 0) for _ in range(2)).done()
        more[0].leave()
        assert receives[0].exception() is not None
        for call in (lambda: tutti.wait_any([]), lambda: tutti.init(timeout=3)):
            try:
                call()
                raise AssertionError
            except ValueError:
                pass
        assert tutti.init() is job

    ranks(1, program, timeout=20)


FORK = """
import gc, multiprocessing, os, sys, warnings
import tutti

def child(job, operation):
    for call in (job.barrier, job.barrier_start, operation.wait, operation.done, operation.cancel, tutti.init,
                 lambda: tutti.Window("w", bytearray(8))):
        try:
            call()
            raise AssertionError(call)
        except tutti.errors.ForkedChild as e:
            assert "fork's child" in str(e)
    repr(job), repr(operation)

def square(x):
    return x * x

def main():
    job = tutti.init()
    x = bytearray(8)
    operation = job.recv_start(x, 1 - job.rank)
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
    for end in "exit", "_exit", "leave":
        pid = os.fork()
        if pid == 0:
            child(job, operation)
            del operation
            gc.collect()
            if end == "leave":
                job.leave()
            if end == "_exit":
                os._exit(0)
            alone = tutti.Job(boot="127.0.0.1:0", rank=0, ranks=1, newcomers=-1)  # a job of its own
            assert alone.allreduce(bytearray(b"x"), op="max") == b"x" and alone.size == 1
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0, end
    assert not operation.done()  # the children have not cancelled it
    for how in "fork", "spawn", "forkserver":
        with multiprocessing.get_context(how).Pool(2) as pool:
            assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]
            job.barrier()
    job.send(b"whole", 1 - job.rank)
    assert operation.wait().bytes == 5 and x[:5] == b"whole"

if __name__ == "__main__":
    main()
"""


@shm
def test_fork(ranks):
    env = {"TUTTI_LOG": "error"}  # a busy machine may start the pools so slowly that the receive warns
    assert ranks(2, FORK, timeout=60, env=env) == ["", ""]


@shm
def test_fork_while_another_thread_joins(ranks):
    def program():
        import os
        import signal
        import threading
        import time
        import tutti

        def join():
            try:
                tutti.init(boot="127.0.0.1:0", rank=0, ranks=2, timeout=1)
            except tutti.errors.TimedOut:
                return
            raise AssertionError

        joining = threading.Thread(target=join)
        joining.start()
        time.sleep(0.2)
        pid = os.fork()
        if pid == 0:
            signal.alarm(10)
            assert tutti.init(boot="127.0.0.1:0", rank=0, ranks=1).size == 1
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        joining.join()

    ranks(1, program, timeout=20)
