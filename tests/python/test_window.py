"""Windows: puts, gets, adds and notifies between processes, and what is refused."""
import pytest

import tutti

from programs import together


def test_all_ranks(ranks):
    def program():
        job = tutti.init()
        me, other = job.rank, 1 - job.rank

        # memory of tutti.empty: put, get, map
        mine = tutti.empty(16, "uint64")
        mine[:] = np.arange(16) + 100 * me
        w = tutti.Window("words", mine)
        assert w.bytes_of(other) == 128
        x = np.zeros(2, "uint64")
        assert w.get(x, other, 8) is x and list(x) == [100 * other + 1, 100 * other + 2]
        job.barrier()
        w.put(np.full(1, 7000 + me, "uint64"), other, 40)
        w.put_start(bytearray(b"\x05" + 7 * b"\0"), other, 48).wait()
        job.barrier()
        assert list(mine[4:8]) == [100 * me + 4, 7000 + other, 5, 100 * me + 7]
        assert list(w.get_start(np.zeros(1, "int64"), other, 40).wait()) == [7000 + me]
        view = w.map(me)
        assert view.nbytes == 128 and view.cast("Q")[6] == 5
        if job.peer(other).transport == "shm":
            assert list(w.map(other).cast("Q")) == list(w.get(np.zeros(16, "uint64"), other))
        else:
            assert w.map(other) is None
        job.barrier()

        # adds of two ranks at one place
        for _ in range(50):
            w.add(3, 0, 80)
        job.barrier()
        assert w.add_start(-1, 0, 80).wait() - mine_at_start(80) in (300, 299)
        job.barrier()
        assert w.get(np.zeros(1, "uint64"), 0, 80)[0] == mine_at_start(80) + 298

        # notifies
        w.put_notify(np.full(1, 9, "uint64"), other, 3, 120)
        w.wait_notify(3, rank=other)
        assert mine[15] == 9
        w.put_notify_start(None, other, 3).wait()
        w.wait_notify(3, 2)
        raises(tutti.errors.TimedOut, "notif", w.wait_notify, 3, 3, timeout=0)

        # errors
        raises(IndexError, "136|128", w.get, np.zeros(2, "uint64"), other, 120)
        raises(ValueError, "not dense", w.get, np.zeros(4, "uint64")[::2], other)
        raises(ValueError, "read-only", w.get, b"read-only", other)
        raises(ValueError, "Python objects", w.put, np.array([object()]), other)
        raises(tutti.errors.Exists, "words", tutti.Window, "words")
        job.barrier()
        w.close()
        w.close()
        assert repr(w) == "<tutti.Window 'words', closed>"
        raises(ValueError, "closed> is closed", w.get, x, other)
        raises(TypeError, "cannot be pickled", __import__("pickle").dumps, w)

        # a window that one rank has closed; one without memory; one whose memory cannot go while it is open
        with tutti.Window("closed", bytearray(8)) as one:
            one.get(bytearray(8), other)
            job.barrier()
            if me == 0:
                one.close()
            job.barrier()
            if me == 1:
                raises(tutti.errors.Stale, "closed", one.put, b"12345678", 0)
        held = bytearray(8)
        dropped = tutti.Window("dropped", held)
        raises(BufferError, "export", held.extend, b"more")
        del dropped
        held.extend(b"more")
        nothing = tutti.Window("nothing")
        assert nothing.bytes_of(other) == 0 and nothing.map(other) is None
        part = job.split(me)
        alone = tutti.Window("of a part", bytearray(b"mine"), group=part)
        got = bytearray(4)
        assert alone.get(got, 0) == b"mine"
        job.barrier()
        job.leave()
        raises(tutti.errors.ShutDown, "left", nothing.bytes_of, other)
        print("ok")

    def mine_at_start(offset):
        return offset // 8  # of rank 0

    assert ranks(2, together(program, mine_at_start)) == ["ok\n"] * 2


def test_memory_is_writable():
    with pytest.raises(ValueError, match="read-only"):
        tutti.Window("never", b"bytes")
