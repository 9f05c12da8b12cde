"""Memory of GPUs: objects with __cuda_array_interface__, and calls on them, over the fake libcuda of tests/gpu."""
import os
import types

import pytest
import tutti
from tutti import _device
from tutti._buffer import BOOL, F32, U8, readable, writable

FAKE = os.environ.get("FAKE_CUDA", "")
needs_fake = pytest.mark.skipif(not os.path.exists(os.path.join(FAKE, "libcuda.so.1")),
                                reason="there is no fake libcuda: make check builds it, python.sh names it")


class Object:
    def __init__(self, shape=(2, 3), typestr="<f4", data=(4096, False), **more):
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": data, "version": 3, **more}


@pytest.mark.parametrize("x, code, count, size, name", [
    (Object(), F32, 6, 24, "float32"), (Object((), "|u1"), U8, 1, 1, "uint8"),
    (Object((4,), "<c8"), None, 4, 32, "complex64"), (Object((0, 5), data=(None, False)), F32, 0, 0, "float32"),
    (Object((2, 1, 3), strides=(12, 99, 4)), F32, 6, 24, "float32"), (Object((3,), "|b1"), BOOL, 3, 3, "bool"),
], ids=["f4", "scalar", "complex", "empty", "strides", "bool"])
def test_taken(x, code, count, size, name):
    b = writable(x)
    assert (b.type, b.count, b.bytes, b.name) == (code, count, size, name)


@pytest.mark.parametrize("x, says", [
    (Object(strides=(4, 8)), "not dense in C order"), (Object(data=(4096, True)), "read-only"),
    (Object(typestr=">f4"), "another byte order"), (Object(mask=object()), "a mask"),
], ids=["transposed", "read-only", "big-endian", "mask"])
def test_refused(x, says):
    with pytest.raises(ValueError, match=says):
        writable(x)


def test_read_only_is_readable():
    assert readable(Object(data=(4096, True))).count == 6


def test_no_gpu(ranks):
    def program():
        import pytest
        import tutti
        tutti.init()
        with pytest.raises(tutti.errors.NoDevice, match="libcuda.so.1|has no GPU|TUTTI_GPU"):
            tutti.empty(10, gpu=0)

    ranks(1, program, env={"TUTTI_GPU": "no", "LD_LIBRARY_PATH": ""})


@needs_fake
def test_windows_and_messages(ranks):
    def program():
        import numpy as np
        import tutti
        job = tutti.init()
        other, n = 1 - job.rank, 300000
        mine, theirs = tutti.empty((3, n // 3), gpu=0), tutti.empty(n, gpu=0)
        assert type(mine).__name__ == "GpuMemory" and mine.shape == (3, n // 3)
        w, local, back = tutti.Window("mine", mine), tutti.Window("theirs", theirs), np.empty(n, np.float32)

        def here():  # what the GPU has in `theirs`
            return local.get(back, job.rank)

        w.put(np.arange(n, dtype=np.float32) + job.rank, job.rank)
        job.barrier()
        w.get(theirs, other)
        assert (here() == np.arange(n) + other).all()
        job.barrier()
        w.put_notify(theirs, other)  # its own numbers come back
        w.wait_notify(rank=other)
        assert (w.get(back, job.rank) == np.arange(n) + job.rank).all()
        for count in 8, n:
            part = tutti.own(theirs.__cuda_array_interface__["data"][0], 4 * count)
            (job.send, job.recv)[job.rank](mine if count == n else part, other, tag=count)
        if job.rank == 1:
            assert (w.get(back, 1) == np.arange(n)).all()
        job.barrier()

    ranks(2, program, env={"LD_LIBRARY_PATH": FAKE})


@needs_fake
def test_broadcasts_and_tables(ranks):
    def program():
        import numpy as np
        import tutti
        job = tutti.init()
        memory, n = tutti.empty(70000, gpu=0), 70000
        window, host = tutti.Window("memory", memory), np.empty(n, np.float32)

        def here():
            return window.get(host, job.rank)

        window.put(np.full(n, job.rank + 1, np.float32), job.rank)
        assert job.broadcast(memory, 1) is memory
        assert (here() == 2).all()
        x = memory if job.rank else np.zeros(n, np.float32)  # ranks may differ in the kind of their memory
        job.broadcast(x, 1)
        assert ((here() if job.rank else x) == 2).all()
        table = tutti.Table("sum", n, "float32", tutti.accumulate())
        table.push(memory)
        job.barrier()
        table.pull(out=memory)
        assert (here() == 4).all()
        assert (table.pull() == 4).all()
        job.barrier()

    ranks(2, program, env={"LD_LIBRARY_PATH": FAKE})


@needs_fake
def test_gossip(ranks):
    def program():
        import numpy as np
        import tutti
        job = tutti.init()
        n, me = 10000, job.rank
        model, host = tutti.empty(n, gpu=0), np.empty(n, np.float32)
        window = tutti.Window("model", model)
        try:
            g = tutti.Gossip("g", [model], choice=lambda: 1 - me, value=0.5, timeout=20)
        except tutti.errors.NotSupported as e:
            assert "no kernels" in str(e)  # of this build
            return
        window.put(np.full(n, 8 * me, np.float32), me)
        g.publish()
        job.barrier()
        while g.mix().peer is None:  # it had published nothing when the fetch began
            g.publish()
        assert (window.get(host, me) == 4).all()
        job.barrier()

    ranks(2, program, env={"LD_LIBRARY_PATH": FAKE})


@needs_fake
def test_refused_by_the_library(ranks):
    def program():
        import pytest
        import tutti
        job = tutti.init()
        x = tutti.empty(1000, gpu=0)
        with pytest.raises(tutti.errors.NotSupported, match="memory of GPU 0"):
            job.allreduce(x)
        with pytest.raises(tutti.errors.NoDevice, match="GPU 7"):
            tutti.empty(10, gpu=7)

    ranks(1, program, env={"LD_LIBRARY_PATH": FAKE})


def test_stream_of_torch(monkeypatch):
    """The current stream of a tensor's device is announced. There is no CUDA build of torch here: this one stands for
    it."""
    said = []
    monkeypatch.setattr(_device, "announce", said.append)
    cuda = types.SimpleNamespace(current_stream=lambda device: types.SimpleNamespace(cuda_stream=77 + device.index))
    torch = types.SimpleNamespace(cuda=cuda, version=types.SimpleNamespace(hip=None))
    _device.of_torch(types.SimpleNamespace(type="cuda", index=1), torch)
    tutti.stream(types.SimpleNamespace(cuda_stream=5))
    tutti.stream(types.SimpleNamespace(ptr=6))
    tutti.stream(7)
    tutti.stream()
    assert said == [78, 5, 6, 7, 0]
    with pytest.raises(ValueError, match="a tensor on .*mps"):
        _device.of_torch(types.SimpleNamespace(type="mps"), torch)
    torch.version.hip = "6.0"
    with pytest.raises(ValueError, match="AMD GPU"):
        _device.of_torch(types.SimpleNamespace(type="cuda", index=0), torch)
