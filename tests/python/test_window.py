"""Windows: puts, gets, adds and notifies between processes, and what is refused."""
import pytest
import tutti


def test_all_ranks(ranks):
    def program():
        import numpy as np
        import tutti
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
        assert raises(tutti.errors.TimedOut, w.wait_notify, 3, 3, timeout=0)

        # errors
        assert raises(IndexError, w.get, np.zeros(2, "uint64"), other, 120)
        assert raises(ValueError, w.get, np.zeros(4, "uint64")[::2], other)
        assert raises(ValueError, w.get, b"read-only", other)
        assert raises(ValueError, w.put, np.array([object()]), other)
        assert raises(tutti.errors.Exists, tutti.Window, "words")
        job.barrier()
        w.close()
        w.close()
        assert repr(w) == "<tutti.Window 'words', closed>"
        assert raises(ValueError, w.get, x, other)
        assert raises(TypeError, __import__("pickle").dumps, w)

        # a window that one rank has closed; one without memory; one whose memory cannot go while it is open
        with tutti.Window("closed", bytearray(8)) as one:
            one.get(bytearray(8), other)
            job.barrier()
            if me == 0:
                one.close()
            job.barrier()
            if me == 1:
                assert raises(tutti.errors.Stale, one.put, b"12345678", 0)
        held = bytearray(8)
        dropped = tutti.Window("dropped", held)
        assert raises(BufferError, held.extend, b"more")
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
        assert raises(tutti.errors.ShutDown, nothing.bytes_of, other)
        print("ok")

    def raises(kind, function, *args, **more):
        try:
            function(*args, **more)
        except kind as e:
            return str(e) or repr(e)
        raise AssertionError("%s did not raise %s" % (function, kind))

    def mine_at_start(offset):
        return offset // 8  # of rank 0

    assert ranks(2, together(program, raises, mine_at_start)) == ["ok\n"] * 2


def together(program, *helpers):
    """Returns the text of a program with functions that it uses."""
    import inspect
    import textwrap
    text = ["import warnings\nwarnings.simplefilter('error')"]
    text += [textwrap.dedent(inspect.getsource(f)) for f in (*helpers, program)]
    return "\n\n".join(text) + "\nprogram()\n"


def test_docstrings():
    for name, member in vars(tutti.Window).items():
        assert name.startswith("_") or member.__doc__, name


def test_memory_is_writable():
    with pytest.raises(ValueError, match="read-only"):
        tutti.Window("never", b"bytes")
