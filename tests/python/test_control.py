"""A controller and its workers, and queues of batches, between processes; what is refused."""
import logging

import numpy as np
import pytest
import tutti
from tutti import _call, _handle, group
from tutti._native import ffi, lib

from programs import together


def test_hook_says_so_again():
    """A wait that ends well in the moment of the interrupt does not lose it for the call's next wait."""
    assert lib.tutti_py_stop(ffi.NULL) == 0
    _call._exceptions.extend([KeyboardInterrupt(), KeyboardInterrupt()])
    assert lib.tutti_py_stop(ffi.NULL) == 1
    with pytest.raises(KeyboardInterrupt):
        tutti.init().allreduce(bytearray(4))
    tutti.init().allreduce(bytearray(4))  # two at a time are one
    assert lib.tutti_py_stop(ffi.NULL) == 0


@pytest.mark.parametrize("make", [
    lambda: tutti.Window("w", bytearray(8)), lambda: tutti.Table("t", 3), lambda: tutti.Gossip("g", np.zeros(3)),
    lambda: tutti.Center.easgd("c", np.zeros(3)), lambda: tutti.init().split(0),
], ids=["window", "table", "gossip", "center", "group"])
def test_interrupt_in_the_moment_of_success(monkeypatch, make):
    """What the call has opened is closed: its name is free again, and its memory is the program's."""
    def succeed_and_raise(*args):
        _call.call(*args)
        raise KeyboardInterrupt

    tutti.init()
    with monkeypatch.context() as patch:
        patch.setattr(_handle, "call", succeed_and_raise)
        patch.setattr(group, "call", succeed_and_raise)
        for _ in range(1100):  # more than there may be groups
            with pytest.raises(KeyboardInterrupt):
                make()
    make().close()


def test_controller(ranks):
    def controller(job, c):
        seen, log = [], []
        logging.getLogger("tutti").addHandler(Keep(log))

        def answers(request):
            seen.append((request.worker, request.what))
            if request.data == b"fail":
                raise KeyError("no such step")
            if request.data == b"refuse":
                raise tutti.errors.Refused("rank %d may not" % request.worker)
            if request.data == b"long":
                return bytes(20000)
            if request.data == b"text":
                return "text"
            if request.data == b"interrupt":
                raise KeyboardInterrupt
            if request.data == b"stop":
                c.stop()
            return request.data[::-1] or None

        raises(KeyboardInterrupt, "", c.serve, answers)
        c.serve(answers)  # until "stop"
        assert len(log) == 9 and "Traceback" in log[0], log  # 4 of each worker, and the interrupt
        job.barrier()
        raises(tutti.errors.TimedOut, "no worker has asked", c.next, timeout=0)
        job.barrier()
        assert c.next() in (tutti.Request(1, "asks", b"by hand"), tutti.Request(2, "asks", b"by hand"))
        request = c.next()
        for worker in (1, 2):
            raises(tutti.errors.MessageTooLong, "16384", c.answer, worker, bytes(20000))
            c.answer(worker, bytearray(b"answer"))
        raises(ValueError, "no open request", c.answer, request.worker, b"again")
        raises(ValueError, "no worker", c.answer, 0, b"me")
        seen.clear()
        c.serve(answers)
        assert sorted(seen) == [(1, "done"), (2, "done")]
        raises(ValueError, "", c.ask, b"me")

    def worker(job, c):
        me = job.rank
        assert c.ask(b"abc") == b"cba" and c.ask() == b"" and c.ask(np.arange(3, dtype="u1")) == b"\2\1\0"
        raises(tutti.errors.FunctionFailed, "KeyError: 'no such step'", c.ask, b"fail")
        raises(PermissionError, "rank %d may not" % me, c.ask, b"refuse")
        raises(ValueError, "16384", c.ask, b"long")
        raises(RuntimeError, "str has no memory", c.ask, b"text")
        raises(ValueError, "16384", c.ask, bytes(20000))
        firsts = np.array([c.first() + c.first() + c.first()])
        assert part.allreduce(firsts)[0] == 3
        with c.lock():
            raises(tutti.errors.Deadlock, "", c.lock)
            time.sleep(0.01)
        raises(PermissionError, "", c.unlock)
        c.lock()
        c.unlock()
        part.barrier()
        if me == 1:
            with c.lock(timeout=0):
                part.barrier()
                part.barrier()
        else:
            part.barrier()
            raises(TimeoutError, "rank 1", c.lock, timeout=0.02)
            part.barrier()
        part.barrier()
        if me == 1:
            raises(tutti.errors.FunctionFailed, "KeyboardInterrupt", c.ask, b"interrupt")
        part.barrier()
        if me == 1:
            assert c.ask(b"stop") == b"pots"
        job.barrier()
        job.barrier()  # the controller has looked
        assert c.ask(b"by hand") == b"answer"
        c.done()
        raises(ValueError, "done", c.ask)

    def queue(job, me):
        q, got = tutti.Queue("batches", 0, 1000, depth=2), []
        if me == 0:
            for i in range(6):
                q.send([np.full((2, 3), i, "f4"), np.arange(i), np.array([], "u1"), bytearray(b"x")])
            q.send(np.arange(3))  # one array is a batch of one
            raises(tutti.errors.MessageTooLong, "1000", q.send, [bytes(1001)])
            raises(ValueError, "int16", q.send, [np.zeros(1, "i2")])
            raises(ValueError, "", q.send, [])
            assert q.end() == 0
            raises(tutti.errors.ShutDown, "", q.send, [b"late"])
        else:
            for batch in q:
                if len(batch) == 1:
                    assert batch[0].tolist() == [0, 1, 2]
                    continue
                first, second, third, fourth = batch
                assert first.dtype == "f4" and first.shape == (6,) and (first == len(second)).all()
                assert second.tolist() == list(range(len(second))) and third.size == 0 and fourth.tolist() == [120]
                got.append(first)
            assert all((x == x[0]).all() for x in got) and q.receive() == []
        assert job.allreduce(np.array([len(got)]))[0] == 6
        job.barrier()
        q.close()
        raises(ValueError, "closed", q.receive)
        late = tutti.Queue("late", 0, 8)
        if me:
            raises(TimeoutError, "", late.receive, timeout=0)

    def program():
        global part
        job = tutti.init()
        c = tutti.Controller("steps")
        part = job.split(min(job.rank, 1))
        (worker if job.rank else controller)(job, c)
        job.barrier()
        c.close()
        queue(job, job.rank)
        job.barrier()
        print("ok")

    class Keep(logging.Handler):
        def __init__(self, lines):
            super().__init__()
            self.lines = lines

        def emit(self, record):
            self.lines.append(self.format(record))

    assert ranks(3, together(program, Keep, controller, worker, queue)) == ["ok\n"] * 3


def test_close_in_handler(ranks):
    """Closing would wait for the call that waits on the handle, on the same thread."""
    def program():
        job = tutti.init()
        w, c, t = tutti.Window("w"), tutti.Controller("c"), tutti.Table("t", 3)
        part = job.split(0)

        def close(*_):
            for it in (w, c, t, part):
                raises(RuntimeError, "handler cannot close <tutti.* while its thread waits", it.close)
            closed.append(len(closed))

        closed = []
        if job.rank == 0:
            signal.signal(signal.SIGALRM, close)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            raises(TimeoutError, "notif", w.wait_notify, timeout=0.3)
            assert closed == [0]
        job.barrier()
        close_all = [it.close() for it in (w, c, t, part)]
        print(len(close_all))

    assert ranks(2, together(program)) == ["4\n"] * 2
