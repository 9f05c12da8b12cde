"""Each collective by tutti, and by gloo or by hand: the same numbers."""
import datetime
import inspect
import threading

import pytest
import torch
import torch.distributed as dist

import tutti.torch

dist.init_process_group("tutti")
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")
Op = dist.ReduceOp
FLOATS = (torch.float32, torch.float64, torch.float16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
MORE = (torch.bfloat16, torch.bool)  # gloo of 1.13 does not sum these
OTHERS = (torch.int16, torch.complex64, torch.complex128)


def data(r, dtype, n=5):
    """Rank r's numbers: small ones, so that sums are exact in any order."""
    x = (torch.arange(n) * 3 + r * 2) % 7 + 1
    return x % 2 == 0 if dtype is torch.bool else (x + 1j * (x + r)).to(dtype) if dtype.is_complex else x.to(dtype)


def flat(x):
    return [x] if isinstance(x, torch.Tensor) else list(x)


def same(call, what):
    """The call gives the same with both backends."""
    for ours, theirs in zip(flat(call(None)), flat(call(gloo))):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), (what, ours, theirs)


def is_(got, wanted, what):
    assert got.dtype == wanted.dtype and torch.equal(got, wanted), (what, got, wanted)


def all_reduce(group, x, op=Op.SUM):
    dist.all_reduce(x, op, group=group)
    return x


def reductions():
    for dtype in FLOATS + INTEGERS:
        ops = [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX]
        for op in ops if dtype in FLOATS else ops + [Op.BAND, Op.BOR, Op.BXOR]:
            same(lambda g: all_reduce(g, data(rank, dtype), op), ("all_reduce", dtype, op))
    each = [data(r, torch.int32) for r in range(size)]
    for dtype in FLOATS + (torch.bfloat16,):
        is_(all_reduce(None, data(rank, dtype)), sum(each).to(dtype), ("sum", dtype))
    is_(all_reduce(None, data(rank, torch.float64), Op.AVG), sum(each).double() / size, "average")
    is_(all_reduce(None, data(rank, torch.bool)), torch.stack([data(r, torch.bool) for r in range(size)]).any(0), "or")
    for dtype in (torch.complex64, torch.complex128):
        is_(all_reduce(None, data(rank, dtype)), sum(data(r, dtype) for r in range(size)), dtype)
    for root in range(size):
        x = data(rank, torch.float32)
        dist.reduce(x, root)
        is_(x, sum(each).float() if rank == root else data(rank, torch.float32), "reduce")
    x = [data(rank, torch.float32), data(rank, torch.float64, 3), data(rank, torch.float32, 2)]
    dist.group.WORLD.allreduce_coalesced(x, dist.AllreduceCoalescedOptions()).wait()
    for t in x:
        is_(t, sum(data(r, t.dtype, len(t)) for r in range(size)), "allreduce_coalesced")


def moves():
    for dtype in FLOATS + INTEGERS + MORE + OTHERS:
        x = data(rank, dtype)
        dist.broadcast(x, size - 1)
        is_(x, data(size - 1, dtype), ("broadcast", dtype))
        out = [torch.zeros_like(x) for _ in range(size)]
        dist.all_gather(out, data(rank, dtype))
        for r in range(size):
            is_(out[r], data(r, dtype), ("all_gather", dtype))
        out = [torch.zeros_like(x) for _ in range(size)] if rank == 1 else None
        dist.gather(data(rank, dtype), out, 1)
        for r in range(size) if out else ():
            is_(out[r], data(r, dtype), ("gather", dtype))
        dist.scatter(x, [data(r + 3, dtype) for r in range(size)] if rank == 0 else None, 0)
        is_(x, data(rank + 3, dtype), ("scatter", dtype))
        given = torch.stack([data(rank * size + r, dtype) for r in range(size)])
        taken = torch.zeros_like(given)
        dist.all_to_all_single(taken, given)
        is_(taken, torch.stack([data(r * size + rank, dtype) for r in range(size)]), ("all_to_all_single", dtype))


def sizes_that_differ():
    counts = [r + 1 for r in range(size)]
    out = [torch.zeros(n) for n in counts]
    dist.all_gather(out, data(rank, torch.float32, counts[rank]))
    for r in range(size):
        is_(out[r], data(r, torch.float32, counts[r]), "all_gather of sizes that differ")
    out = torch.zeros(counts[rank])
    dist.reduce_scatter(out, [data(rank, torch.float32, n) for n in counts])
    is_(out, sum(data(r, torch.float32, counts[rank]) for r in range(size)), "reduce_scatter of sizes that differ")
    taken = torch.zeros(counts[rank] * size, 2)
    dist.all_to_all_single(taken, torch.full((sum(counts), 2), float(rank)), [counts[rank]] * size, counts)
    is_(taken[:, 1], torch.arange(size).repeat_interleave(counts[rank]).float(), "rows of all_to_all_single")
    taken = [torch.zeros(counts[rank]) for _ in range(size)]
    dist.all_to_all(taken, [torch.full((n,), float(rank)) for n in counts])
    is_(torch.stack(taken)[:, 0], torch.arange(size).float(), "all_to_all")
    for n in (0, 1):
        same(lambda g: all_reduce(g, torch.ones(n)), "empty")
        out = [torch.zeros(n) for _ in range(size)]
        dist.all_gather(out, torch.ones(n))
        dist.gather(torch.ones(n), out if rank == 0 else None)
        dist.scatter(torch.zeros(n), out if rank == 0 else None)
        dist.broadcast(torch.zeros(n), 0)
        dist.all_to_all_single(torch.zeros(n * size), torch.zeros(n * size))


def whole_tensors():
    gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
    scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
    out = torch.zeros(5 * size)
    gather(out, data(rank, torch.float32))
    is_(out, torch.cat([data(r, torch.float32) for r in range(size)]), "all_gather_into_tensor")
    out = torch.zeros(5)
    scatter(out, torch.cat([data(rank + r, torch.float32) for r in range(size)]))
    is_(out, sum(data(r + rank, torch.float32) for r in range(size)), "reduce_scatter_tensor")
    parts = list(torch.zeros(size, 5).unbind())  # one behind another: no copy
    dist.all_gather(parts, data(rank, torch.float32))
    is_(torch.stack(parts), torch.stack([data(r, torch.float32) for r in range(size)]), "all_gather of views")
    dist.reduce_scatter(out, [data(rank + r, torch.float32) for r in range(size)])
    is_(out, sum(data(r + rank, torch.float32) for r in range(size)), "reduce_scatter")


def strides():
    """gloo writes beside a tensor with holes. Here the tensor gets the result, and what lies between stays."""
    wanted = sum(data(r, torch.float32) for r in range(size))
    memory = torch.full((5, 2), -1.)
    memory[:, 0] = data(rank, torch.float32)
    dist.all_reduce(memory[:, 0])
    is_(memory[:, 0], wanted, "holes")
    assert memory[:, 1].eq(-1).all()
    square = data(rank, torch.float32, 6).reshape(2, 3).t()
    dist.broadcast(square, 1)
    is_(square, data(1, torch.float32, 6).reshape(2, 3).t(), "transposed")
    out = [torch.zeros(5, 2)[:, 1] for _ in range(size)]
    dist.all_gather(out, memory[:, 0])
    is_(out[-1], wanted, "all_gather into strided tensors")
    lazy = data(rank, torch.complex64).conj().imag  # negated when it is read
    out = [torch.zeros(5) for _ in range(size)]
    dist.all_gather(out, lazy)
    is_(out[0], -data(0, torch.complex64).imag, "negated lazily")


def messages():
    after, before = (rank + 1) % size, (rank - 1) % size
    got = torch.zeros(40000)
    works = [dist.isend(torch.full((40000,), float(rank)), after, tag=7), dist.irecv(got, before, tag=7)]
    for work in works:
        work.wait()
    assert got.eq(before).all() and works[1].is_completed()
    if rank:
        dist.send(torch.tensor([rank]), 0, tag=3)
    else:
        came = []
        for _ in range(1, size):
            x = torch.zeros(1, dtype=torch.int64)
            came.append(dist.recv(x, tag=3))
            assert x.item() == came[-1]
        assert sorted(came) == list(range(1, size))
    strided = torch.zeros(3, 2)[:, 1]
    if rank == 0:
        dist.send(torch.arange(6.).reshape(3, 2)[:, 1], 1)
    elif rank == 1:
        assert dist.recv(strided, 0) == 0
        is_(strided, torch.tensor([1., 3., 5.]), "strided message")
    ops = [dist.P2POp(dist.isend, torch.tensor([rank]), after), dist.P2POp(dist.irecv, x := torch.tensor([-1]), before)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert x.item() == before


def works():
    x = torch.ones(3)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    assert work.is_success() and work.exception() is None and work.result()[0] is x
    future = dist.all_reduce(torch.ones(3) * rank, async_op=True).get_future()
    assert future.then(lambda f: f.value()[0][0].item()).wait() == sum(range(size))
    inner = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(
        lambda _: dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()[0].item())
    assert inner.wait() == size  # a callback may wait for another future
    many = [torch.ones(1) for _ in range(3000)]  # more than the library takes at a time
    for work in [dist.all_reduce(x, async_op=True) for x in many]:
        work.wait()
    assert all(x.item() == size for x in many)
    for _ in range(2000):
        dist.all_reduce(x, async_op=True)  # nobody waits
    dist.barrier()


def threads():
    """Each thread sends to the next rank and receives from the one before, with a tag of its own."""
    def turn(tag):
        for i in range(100):
            got, wanted = torch.zeros(1), 1000. * tag + i
            work = dist.isend(torch.tensor([wanted]), (rank + 1) % size, tag=tag)
            dist.recv(got, (rank - 1) % size, tag=tag)
            work.wait()
            went.append(got.item() == wanted)
    went = []
    turns = [threading.Thread(target=turn, args=(tag,)) for tag in range(4)]
    for t in turns:
        t.start()
    for t in turns:
        t.join()
    assert len(went) == 400 and all(went)


def coalesced():
    manager = getattr(dist, "_coalescing_manager", None)
    if manager is None or "group" not in inspect.signature(manager).parameters:
        return
    for device in (None, torch.device("cpu")):  # several calls are one, then one work over several
        x = [data(rank, torch.float32), data(rank, torch.float32, 2)]
        with manager(device=device, async_ops=True) as works:
            for t in x:
                dist.all_reduce(t)
        works.wait()
        for t in x:
            is_(t, sum(data(r, torch.float32, len(t)) for r in range(size)), "coalesced")


def objects():
    for group in (None, gloo):
        out = [None] * size
        dist.all_gather_object(out, {"rank": rank}, group=group)
        assert out == [{"rank": r} for r in range(size)]
        out = ["of", rank]
        dist.broadcast_object_list(out, 1, group=group)
        assert out == ["of", 1]
        out = [None] * size if rank == 0 else None
        dist.gather_object(rank, out, group=group)
        assert out is None or out == list(range(size))
        out = [None]
        dist.scatter_object_list(out, list(range(size)) if rank == 0 else None, group=group)
        assert out == [rank]


def long_times():
    group = dist.new_group(timeout=datetime.timedelta(days=2000))  # programs that want no limit say so
    work = dist.all_reduce(x := torch.ones(1), group=group, async_op=True)
    assert work.wait(datetime.timedelta(days=2000)) and x.item() == size


def refused():
    """A list with too few or too many tensors is refused: with too few, the bytes of other ranks have no place."""
    memory = torch.zeros(2 * size)
    pieces, x = list(memory[:size].split(1)), torch.ones(1)
    for call in (lambda n: dist.all_gather(n, x), lambda n: dist.reduce_scatter(x, n),
                 lambda n: dist.all_to_all(n, pieces), lambda n: dist.all_to_all(pieces, n),
                 lambda n: dist.gather(x, n, dst=rank), lambda n: dist.scatter(x, n, src=rank)):
        for wrong in pieces[1:], pieces + [torch.zeros(1)]:
            with pytest.raises(ValueError, match="list of .* has %d tensors, and the group has" % len(wrong)):
                call(wrong)
    reduce_scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
    gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
    many, one = torch.zeros(size, dtype=torch.int32), torch.zeros(1)
    for call in lambda: gather(many, one), lambda: reduce_scatter(one, many):
        with pytest.raises(ValueError, match="the output is of .*, and the input of .*: both are of one type"):
            call()
    with pytest.raises(ValueError, match="rows of all_to_all_single are no"):
        dist.all_to_all_single(torch.zeros(4, size + 1).t(), torch.zeros(size + 1, 4))
    assert memory.eq(0).all()


for check in (reductions, moves, sizes_that_differ, whole_tensors, strides, messages, works, threads, coalesced,
              objects, long_times, refused):
    check()
dist.barrier()
dist.group.WORLD.monitored_barrier()
dist.destroy_process_group()
print("done")
