"""Groups: collectives beside NumPy, messages, groups of some ranks, deaths, newcomers, bad input."""
import pytest


def test_collectives(ranks):
    def program():
        import numpy as np
        import tutti
        job = tutti.init()
        rank, size = job.rank, job.size

        def x(r, kind="f4"):
            return (np.arange(12).reshape(3, 4) % 5 + r + 1).astype(kind)

        def blocks(r):
            return np.arange(2 * size, dtype="i4").reshape(size, 2) + 100 * r

        every = [x(r) for r in range(size)]
        ragged = [np.arange(r + 1, dtype="f8") + 10 * r for r in range(size)]
        given = [[(r + to) % 3 for to in range(size)] for r in range(size)]  # counts of alltoallv
        flat = [np.arange(sum(given[r]), dtype="i4") + 100 * r for r in range(size)]
        parts = [np.split(flat[r], np.cumsum(given[r])[:-1]) for r in range(size)]
        counts = [given[r][rank] for r in range(size)]
        lengths = [r + 1 for r in range(size)]

        def both(call, start, arguments, wanted):
            """Calls a collective and its started form, with new memory each, and compares the result."""
            for function in call, lambda *a, **k: start(*a, **k).wait(60):
                args, more, seen = arguments()
                result = function(*args, **more)
                assert (result is None) == (wanted is None), (call, result)
                if wanted is not None:
                    assert np.array_equal(result, wanted) and result.dtype == wanted.dtype, (call, result, wanted)
                    assert seen is None or result is seen, call

        for kind in "f2", "f4", "f8", "i1", "u1", "i4", "i8":
            each = [x(r, kind) for r in range(size)]
            rules = {"sum": sum(each), "product": np.prod(each, axis=0), "max": np.max(each, axis=0),
                     "min": np.min(each, axis=0), "average": (sum(each) / size)}
            if kind[0] != "f":
                rules.update(band=np.bitwise_and.reduce(each), bor=np.bitwise_or.reduce(each),
                             bxor=np.bitwise_xor.reduce(each))
            for rule, wanted in rules.items():
                got = job.allreduce(x(rank, kind), op=rule)
                assert got.dtype == kind and np.allclose(got, wanted.astype(kind), rtol=1e-3), (kind, rule, got)
        for rule, wanted in ("bor", True), ("band", False), ("bxor", True):
            assert job.allreduce(np.array([rank == 1]), op=rule) == wanted

        def in_place(x):
            return (x,), {}, x

        def apart(out, *args, **more):
            return args, dict(out=out, **more), out

        both(job.allreduce, job.allreduce_start, lambda: in_place(x(rank)), sum(every))
        both(job.allreduce, job.allreduce_start, lambda: apart(np.empty((3, 4), "f4"), x(rank), op="max"), every[-1])
        mine = x(rank)
        job.allreduce(mine, out=np.empty((3, 4), "f4"))
        assert np.array_equal(mine, every[rank])
        at_root = sum(every) if rank == 1 else None
        both(job.reduce, job.reduce_start, lambda: ((x(rank),), {"root": 1}, None), at_root)
        both(job.reduce, job.reduce_start,
             lambda: ((x(rank),), {"root": 1, "out": np.empty((3, 4), "f4") if rank == 1 else None}, None), at_root)
        both(job.broadcast, job.broadcast_start, lambda: ((x(rank),), {"root": 2}, None), every[2])
        both(job.gather, job.gather_start, lambda: ((x(rank),), {"root": 1}, None),
             np.stack(every) if rank == 1 else None)
        both(job.allgather, job.allgather_start, lambda: ((x(rank),), {}, None), np.stack(every))
        both(job.allgather, job.allgather_start, lambda: apart(np.empty((size, 3, 4), "f4"), x(rank)), np.stack(every))
        both(job.scatter, job.scatter_start,
             lambda: ((np.empty(2, "i4"), blocks(7) if rank == 1 else None), {"root": 1}, None), blocks(7)[rank])
        both(job.reduce_scatter, job.reduce_scatter_start, lambda: ((blocks(rank), np.empty(2, "i4")), {}, None),
             sum(blocks(r) for r in range(size))[rank])
        both(job.alltoall, job.alltoall_start, lambda: ((blocks(rank),), {}, None),
             np.stack([blocks(r)[rank] for r in range(size)]))
        both(job.allgatherv, job.allgatherv_start, lambda: ((ragged[rank], lengths, np.empty(6)), {}, None),
             np.concatenate(ragged))
        both(job.alltoallv, job.alltoallv_start,
             lambda: ((flat[rank], given[rank], np.empty(sum(counts), "i4"), counts), {}, None),
             np.concatenate([parts[r][rank] for r in range(size)]))
        pair = [x(rank), np.full(3, rank, "f4")]
        assert job.allreduce_tensors(pair) is pair
        assert np.array_equal(pair[0], sum(every)) and np.array_equal(pair[1], [3, 3, 3])
        assert job.allreduce_tensors_start(pair, op="average").wait() is pair and pair[1][0] == 3
        try:
            job.alltoall(np.zeros(4))
            raise AssertionError("an element is cut in two")
        except ValueError as e:
            assert str(e) == "4 elements are no 3 blocks of one size"
        job.barrier()
        assert job.barrier_start().wait() is None

        started = [job.allreduce_start(np.full(1000, rank + i, "f8")) for i in range(8)]
        assert isinstance(started[0], tutti.Operation)
        for i, result in enumerate(tutti.wait_all(started)):
            assert (result == 3 * i + 3).all()
        assert job.allgather(bytes([rank])) == bytearray(range(size))  # the buffer protocol
        assert job.broadcast(b"from" if rank == 0 else bytearray(4)) == b"from"
        assert job.stats("allreduce").ops > 60 and job.stats("barrier").errors == 0

    ranks(3, program)


def test_messages_and_groups(ranks):
    def program():
        import numpy as np
        import pytest
        import tutti
        job = tutti.init(timeout=50)
        rank, size = job.rank, job.size
        assert tutti.init() is job and tutti.init(timeout=50) is job
        with pytest.raises(ValueError, match="called with other arguments before: the default job is <tutti.Job, rank"):
            tutti.init(timeout=51)
        right, left = (rank + 1) % size, (rank - 1) % size

        # messages: ring, any source, probe, too small, empty, large
        job.send(np.full(3, rank, "i8"), right, tag=5)
        got = np.zeros(3, "i8")
        assert job.recv(got, left, tag=5) == tutti.Message(left, 5, 24) and (got == left).all()
        if rank == 0:
            seen = {job.recv(got, tag=6).rank: int(got[0]) for _ in range(1, size)}
            assert seen == {r: 10 * r for r in range(1, size)}
            info = job.probe(tag=7)
            assert info.bytes == 100_000
            with pytest.raises(tutti.errors.MessageTooLong, match="100000") as caught:
                job.recv(bytearray(10), info.rank, tag=7)
            assert isinstance(caught.value, ValueError) and caught.value.name == "EMSGSIZE"
            large = bytearray(info.bytes)
            assert job.recv(large, tag=7).rank == 1 and large == b"x" * 100_000
            assert job.recv(bytearray(), 1, tag=8).bytes == 0
            waiting = job.recv_start(got, 2, tag=9)
            assert not waiting.done() and waiting.cancel() and not waiting.cancel()
            with pytest.raises(tutti.errors.Cancelled):
                waiting.wait()
            waiting = job.recv_start(got, 2, tag=10)
            with pytest.raises(TimeoutError):
                waiting.wait(timeout=0.01)
            job.send(b"", 2, tag=10)
            assert waiting.wait(30) == (2, 10, 8) and got[0] == 77 and waiting.exception() is None
        else:
            job.send(np.array([10 * rank]), 0, tag=6)
        if rank == 1:
            sent = job.send_start(b"x" * 100_000, 0, tag=7)
            job.send(b"", 0, tag=8)
            assert sent.wait(30) is None
        if rank == 2:
            job.recv(bytearray(1), 0, tag=10)
            job.send(np.array([77]), 0, tag=10)

        # groups
        odd = job.split(-1 if rank == 1 else 0, key=-rank)
        assert (odd is None) == (rank == 1)
        if odd:
            with odd:
                assert (odd.size, odd.rank, odd.members()) == (2, 0 if rank == 2 else 1, [2, 0])
                assert odd.rank_of(0) == 1 and odd.job is job
                assert odd.allreduce(np.array([rank]))[0] == 2
                with pytest.raises(tutti.errors.NotOpen):
                    odd.rank_of(1)
            with pytest.raises(ValueError, match="<tutti.Group, closed> is closed"):
                odd.barrier()
            odd.close()
        if rank != 0:
            pair = job.of(np.array([2, 1]), "pair")
            assert (pair.members(), pair.size) == ([2, 1], 2)
            assert repr(pair) == "<tutti.Group, rank %d of 2>" % pair.rank
            assert pair.broadcast(bytearray([rank]), root=0) == bytes([2])
            pair.close()
        assert job.everyone().size == size and not job.late and job.job is job
        here = job.peer(right)
        assert isinstance(here, tutti.Peer) and isinstance(job.stats("send"), tutti.Stat)
        assert here.rank == right and here.state == "joined" and here.local and here.address.startswith("127.0.0.1:")
        assert job.peer(rank).transport == "self" and (job.local_rank, job.local_size) == (rank, size)
        assert job.stats("send").ops >= 2 and job.stats("recv", left).ops >= 1
        for kind in "PUT", "allreduce", "refused":
            assert job.stats(kind).errors == 0
        with open("stats%d" % rank, "w+b") as file:
            job.stats_dump(file.fileno())
            file.seek(0)
            assert b"  send " in file.read()

        # ranks that disagree, and one that does not come
        with pytest.raises((tutti.errors.Mismatch, tutti.errors.Aborted)) as caught:
            job.allreduce(np.zeros(3 if rank == 1 else 4, "f4"))
        assert any(job.allgather(bytes([isinstance(caught.value, tutti.errors.Mismatch)])))
        assert issubclass(tutti.errors.Mismatch, ValueError) and caught.value.sentence.startswith("all-reduce: ")
        part = job.split(0)
        part.set_timeout(0.1)
        if rank:
            with pytest.raises(tutti.errors.TimedOut, match="rank 0") as caught:
                part.barrier()
            assert isinstance(caught.value, TimeoutError) and caught.value.errno == 110
        job.barrier()
        job.leave()
        job.leave()
        assert repr(job) == "<tutti.Job, closed>"
        with pytest.raises(ValueError, match="closed"):
            job.rank

    ranks(3, program)


def test_deaths_and_newcomers(ranks):
    def program():  # without NumPy and pytest: processes start in less time
        import os
        import pickle
        import subprocess
        import sys
        from array import array
        import tutti

        def error_of(call):
            while True:
                try:
                    call()
                except tutti.Error as error:
                    return error

        job = tutti.init()
        watch = job.watch()
        assert isinstance(watch, tutti.Watch) and watch.fileno() > 2
        if job.late:
            assert job.size == 1 and job.everyone().size == 4
            group = job
        else:
            if job.rank == 3:
                os._exit(0)
            error = pickle.loads(pickle.dumps(error_of(lambda: job.allreduce(array("f", [1, 1])))))
            assert isinstance(error, tutti.errors.RankDied) and isinstance(error, ConnectionResetError)
            assert (error.rank, error.name) == (3, "ECONNRESET") and "rank 3" in str(error)
            change = watch.wait(30)
            assert isinstance(change, tutti.Change)
            assert (change.rank, change.what, change.errno) == (3, "gone", 104) and "rank 3" in change.why
            assert watch.take() is None and watch.wait(0.01) is None
            group = job.shrink()
            assert group.members() == [0, 1, 2] and job.peer(3).state == "gone"
            assert group.allreduce(array("i", [1]))[0] == 3
            if job.rank == 0:
                new = subprocess.Popen([sys.executable, *sys.argv], env=dict(os.environ, TUTTI_RANK="new"))
            change = next(iter(watch))
            assert (change.what, change.errno) == ("joined", 0)
            group.barrier()
        grown = group.grow()
        assert grown.size == 4 and grown.rank == (3 if job.late else job.rank)
        assert grown.allreduce(array("i", [grown.rank]))[0] == 6
        for rank in range(1, 4):
            grown.recv(bytearray(), rank) if grown.rank == 0 else grown.rank == rank and grown.send(b"", 0)
        if grown.rank == 0:
            grown.evict(3, "it has done its part")
        if job.late:
            assert "it has done its part" in str(error_of(lambda: grown.recv(bytearray(), 0)))
        elif job.rank == 0:
            assert new.wait() == 0

    ranks(4, program, env={"TUTTI_LOG": "error"})


@pytest.mark.transports("shm")
def test_bad_input(ranks):
    def program():
        import os
        import pickle
        import numpy as np
        import pytest
        import tutti
        job = tutti.init()
        x = np.zeros(4, "f4")
        fixed = np.zeros(4, "f4")
        fixed.flags.writeable = False
        for sentence, call in (
                ("read-only: the call writes", lambda: job.allreduce(fixed)),
                ("read-only: the call writes", lambda: job.recv(b"1234", 0)),
                (r"strides \(8,\) is not dense", lambda: job.allreduce(x[::2])),
                ("is not dense", lambda: job.broadcast(np.zeros((2, 3)).T)),
                ("no rule is called 'mean': use sum, average", lambda: job.allreduce(x, op="mean")),
                ("out has 12 bytes, and the call needs 16", lambda: job.allreduce(x, out=np.zeros(3, "f4"))),
                ("out is of int32, and x of float32", lambda: job.allreduce(x, out=np.zeros(4, "i4"))),
                ("out is of int32, and x of float32", lambda: job.reduce(x, out=np.zeros(4, "i4"))),
                ("out is of int32, and x of float32", lambda: job.reduce_scatter(x, np.zeros(4, "i4"))),
                ("does not compute with elements of complex64", lambda: job.allreduce(np.zeros(2, "c8"))),
                ("does not compute with elements of uint32", lambda: job.allreduce_tensors([np.zeros(2, "u4")])),
                ("an array of Python objects", lambda: job.send(np.array([None]), 0)),
                ("not in this machine's byte order", lambda: job.allreduce(np.zeros(2, ">f4"))),
                ("a list has no memory", lambda: job.allreduce([1.0])),
                ("a list has no memory", lambda: job.allgather([1.0])),
                ("a str has no memory", lambda: job.alltoall("text")),
                ("the root of a scatter gives x", lambda: job.scatter(x)),
                ("needs 16", lambda: job.gather(x, out=np.zeros(3, "f4"))),
                ("needs 16", lambda: job.reduce_scatter(np.zeros(3, "f4"), x)),
                (r"has 1 counts, from 0 up, one for each of 1 ranks: \[1, 2\]", lambda: job.allgatherv(x, [1, 2], x)),
                ("the counts sum up to 20 bytes, and the memory has 16", lambda: job.alltoallv(x, [5], x, [4])),
                ("x has elements of 4 bytes, and out of 8", lambda: job.alltoallv(x, [4], np.zeros(2), [2])),
                ("a time is from 0 to 2147483 seconds, or None, and not -1", lambda: job.set_timeout(-1)),
                ("no counter is called 'steps'", lambda: job.stats("steps")),
                ("no counter is called 3", lambda: job.stats(3)),
                ("no such rank|rank 1", lambda: job.send(x, 1)),
                ("a name or an address is a str, and not b'name'", lambda: tutti.Window(b"name")),
                ("has a zero byte", lambda: job.of([0], "a\0b")),
                ("put: a number is too small", lambda: tutti.Window("negative").put(b"12", 0, offset=-1)),
                ("a group is a tutti.Group, of job.split.. say, and not 3", lambda: tutti.Window("w", group=3)),
                ("rank and ranks need boot", lambda: tutti.Job(rank=0, ranks=2)),
                ("boot with ranks=2 needs rank", lambda: tutti.Job(boot="127.0.0.1:9", ranks=2)),
                ("no rule is called", lambda: job.allreduce(x, op=["sum"])),
                ("both are from 1 up", lambda: tutti.own(-4, 4)),
                ("root 3", lambda: job.broadcast(x, root=3)),
                ("", lambda: job.of([0, 0], "twice")),
                ("tag", lambda: job.send(x, 0, tag=-1)),
                (r"no array has shape \(2, -1\): its numbers are from 0 up", lambda: tutti.empty((2, -1))),
                ("its bytes below 2", lambda: tutti.empty(2 ** 61)),
                ("from 0 to 2147483 seconds, or None, and not -5", lambda: tutti.Job(silence=-5)),
        ):
            with pytest.raises(ValueError, match=sentence):
                call()
                print("no error says", sentence)
        with pytest.raises(TypeError, match="unexpected keyword argument 'rnak'"):
            tutti.Job(rnak=3)
        with pytest.raises(TypeError, match="cannot be pickled: each process joins by itself"):
            pickle.dumps(job)
        with pytest.raises(TypeError, match="cannot be pickled: wait for it"):
            pickle.dumps(job.barrier_start())
        for name in "TUTTI_RANK", "TUTTI_SIZE", "TUTTI_BOOT":
            del os.environ[name]
        with tutti.Job() as other:
            assert other is not job and other.size == 1 and tutti.init() is job
        assert sorted(map(tutti.group.rule_code, tutti.group.RULES)) == list(range(8))
        for empty in np.zeros(0, "f4"), np.zeros((3, 0), "i8"):
            assert job.allreduce(empty) is empty
        assert job.alltoall(np.zeros(0)).shape == (0,)

    ranks(1, program)


@pytest.mark.transports("shm")
def test_job_of_one(ranks):
    def program():
        import contextlib
        import os
        import signal
        import numpy as np
        import pytest
        import tutti
        for name in "TUTTI_RANK", "TUTTI_SIZE", "TUTTI_BOOT":
            boot = os.environ.pop(name)
        with tutti.Job(boot=boot, rank=0, ranks=1, job="mine", silence=2.5, timeout=None, transports="tcp") as job:
            assert (job.name, job.rank, job.size, job.late) == ("mine", 0, 1, False)
            with pytest.raises(tutti.errors.AddressInUse, match="the port is in use by process"):
                tutti.Job(boot=boot, rank=0, ranks=1)
            with tutti.Job(boot=boot, job="mine", transports="tcp") as new:  # a new rank needs the address alone
                assert new.late and new.everyone().rank == 1
            with pytest.raises(ValueError, match="list of nodes"):
                job.node_add("left", "127.0.0.1", 4000)
        with open("nodes.conf", "w") as file:
            file.write('nodes = ({ name = "left"; address = "%s"; });' % boot)
        # a build without libconfig refuses every file
        with contextlib.suppress(tutti.errors.NotSupported), tutti.Job(file="nodes.conf", node="left") as job:
            assert job.node_add("right", "127.0.0.1", 4000) == 1 and job.everyone().peer(1).address.endswith(":4000")
            job.node_remove("right")

        job = tutti.init()
        job.pin()
        job.pin(-1)
        started = job.barrier_start()
        assert os.get_blocking(job.event_fd()) is False and started.wait() is None and started.done()
        x = tutti.empty((2, 3), "i8")
        assert x.shape == (2, 3) and x.dtype == "i8" and not x.any() and x.ctypes.data % 4096 == 0
        x[:] = 5
        assert tutti.empty(()).shape == () and tutti.empty(0).size == 0
        half = tutti.own(x.ctypes.data, 24)
        assert job.allreduce(np.frombuffer(half, "i8")).sum() == 15 and half.nbytes == 24 and not half.readonly
        with pytest.raises(ValueError, match="read-only"):
            job.recv(tutti.own(x.ctypes.data, 8, readonly=True), 0)
        with pytest.raises(ValueError, match="-1 bytes at address 0"):
            tutti.own(0, -1)
        everyone = job.everyone()
        with everyone:
            assert isinstance(everyone, tutti.job.Everyone) and everyone.size == 1
        assert repr(everyone) == "<tutti.Everyone, rank 0 of 1>" and everyone.rank_of(0) == 0
        del job
        tutti.init().leave()
        everyone.close()
        assert repr(everyone) == "<tutti.Everyone, closed>"
        with pytest.raises(ValueError, match="closed"):
            everyone.size
        x += 1  # the memory outlives the job
        assert x.sum() == 36 and tutti.version() == tutti.__version__

        job = tutti.init()
        assert job.leave_asked(signal.SIGUSR1) is False
        os.kill(os.getpid(), signal.SIGUSR1)
        while not job.leave_asked(signal.SIGUSR1):
            pass
        job.leave_on(signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR2)
        signal.pause()

    ranks(1, program, ends={0: -12})
