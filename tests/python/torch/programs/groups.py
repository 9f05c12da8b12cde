"""Groups, on 4 ranks: made and ended in many ways."""
import datetime
import gc
import itertools
import os

import torch
import torch.distributed as dist

import tutti.torch

mixed = hasattr(dist, "BackendConfig")
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
stores = itertools.count()


def begin(backend):
    """With a store of its own each time: those of torch's TCP port may be about to end."""
    dist.init_process_group(backend, init_method="file://%s/store%d" % (os.getcwd(), next(stores)), rank=rank,
                            world_size=size)


def total(group=None):
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    return x[0].item()


def parts():
    """Groups of some ranks, which share ranks; their members alone make them."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3]), dist.new_group([1, 3])]
    for ranks, group in zip(((0, 1), (2, 3), (1, 3)), pairs):
        if rank in ranks:
            assert dist.get_rank(group) == ranks.index(rank) and total(group) == 2
            x = torch.tensor([rank])
            dist.broadcast(x, ranks[1], group=group)  # torch's roots are the world's ranks
            assert x.item() == ranks[1]
    alone = [dist.new_group([r]) for r in range(size)][rank]
    assert total(alone) == 1
    backwards = dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=30))
    assert total(backwards) == total() == size
    for group in pairs:
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)
    assert total() == size


def own_job():
    """A tutti group beside another default backend: a job of its own."""
    begin("gloo")
    group = dist.new_group([0, 2, 3], backend="tutti")
    if rank != 1:
        assert total(group) == 3 and dist.get_backend(group) == "tutti"
        dist.destroy_process_group(group)
    dist.barrier()
    dist.destroy_process_group()


def devices():
    """A backend for each device: torch's own group calls ours for tensors on the CPU."""
    begin("cpu:tutti,cuda:gloo")
    assert total() == size and total(dist.new_group()) == size
    x = torch.tensor([rank])
    if rank == 0:
        dist.send(x, 1)
    elif rank == 1:
        dist.recv(x, 0)
        assert x.item() == 0
    dist.monitored_barrier()
    out = [None] * size
    dist.all_gather_object(out, rank)
    assert out == list(range(size))
    dist.destroy_process_group()


def the_programs_job():
    """The program has joined first: the backend uses its default job, and leaves it alone."""
    def join():
        return tutti.init(boot="127.0.0.1:%d" % (int(os.environ["MASTER_PORT"]) - 1), rank=rank, ranks=size)
    job = join()
    begin("tutti")
    assert total() == size and tutti.init() is job
    dist.destroy_process_group()
    x = torch.ones(1)
    assert job.allreduce(x).item() == size
    job.leave()


begin("tutti")
assert tutti.init().size == size and dist.get_backend() == "tutti"
parts()
dist.destroy_process_group()
gc.collect()
for again in range(2):
    begin("tutti")
    dist.irecv(torch.zeros(1), (rank + 1) % size)  # ends with the group
    kept = dist.group.WORLD  # torch 1.13 tells nobody that the group has ended: the next one ends it
    assert total() == size
    dist.destroy_process_group()
del kept
own_job()
the_programs_job()
if mixed:
    devices()
begin("tutti")
other = dist.new_group()
dist.barrier()
beside = dist.FileStore("%s/beside" % os.getcwd(), size)
beside.set(str(rank), "")
beside.wait([str(r) for r in range(size)])  # the barrier has ended on all ranks
works = [group.recv([torch.zeros(1)], rank, 0) for group in (dist.group.WORLD, other)]  # of itself: nothing comes
dist.group.WORLD.abort()
for work in works:
    try:
        work.wait()
        raise SystemExit("an abort cancels nothing")
    except tutti.errors.Cancelled:
        pass
try:
    total()
    raise SystemExit("a group that was aborted goes on")
except ValueError as e:
    assert "closed" in str(e)
dist.destroy_process_group()
print("done")
