"""What is refused, what differs, what comes late, and a rank that dies: exceptions with a sentence. On 3 ranks."""
import datetime
import os
import signal
import threading

import torch
import torch.distributed as dist
from torch import nn

import tutti.torch

dist.init_process_group("tutti", timeout=datetime.timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
beside = dist.FileStore("%s/beside" % os.getcwd(), size)
short = datetime.timedelta(seconds=0.5)


def refuses(call, kind, *words):
    try:
        call()
    except kind as e:
        assert all(word in str(e) for word in words), str(e)
        return
    raise SystemExit("no %s about %s" % (kind, words))


def refused():
    refuses(lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16)), ValueError, "torch.int16", "torch.float32")
    refuses(lambda: dist.all_reduce(torch.ones(2, device="meta")), ValueError, "meta", ".cpu()")
    refuses(lambda: dist.broadcast(torch.eye(2).to_sparse(), 0), ValueError, "sparse", ".to_dense()")
    premul = dist._make_nccl_premul_sum(0.5)
    refuses(lambda: dist.all_reduce(torch.ones(2), premul), NotImplementedError, "PREMUL_SUM")
    refuses(lambda: dist.group.WORLD.allgather([[torch.ones(2)] * size], [torch.ones(3)]), ValueError, "8 bytes", "12")
    refuses(lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND), tutti.errors.InvalidArgument)
    dist.barrier()


def differ():
    refuses(lambda: dist.all_reduce(torch.ones(2 + rank)), (tutti.errors.Mismatch, tutti.errors.Aborted))
    dist.barrier()  # the group goes on
    if rank == 0:
        dist.send(torch.ones(2), 1)
    elif rank == 1:
        refuses(lambda: dist.recv(torch.zeros(3), 0), tutti.errors.Mismatch, "12 bytes", "rank 0 has 8")
    dist.barrier()


def late():
    work = dist.irecv(torch.zeros(1), (rank + 1) % size)
    refuses(lambda: work.wait(short), tutti.errors.InProgress)
    assert not work.is_completed()
    dist.barrier()
    dist.send(torch.ones(1), (rank - 1) % size)
    assert work.wait() and work.source_rank() == (rank + 1) % size
    for barrier in (lambda group: dist.all_reduce(torch.ones(1), group=group),
                    lambda group: group.monitored_barrier(short)):
        group = dist.new_group(timeout=short)
        if rank != 1:
            refuses(lambda: barrier(group), TimeoutError, "rank 1")
        dist.barrier()


def interrupted():
    """Ctrl-C ends the wait, and not the barrier."""
    if rank == 0:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        refuses(dist.barrier, KeyboardInterrupt)
        beside.set("interrupted", "")
    else:
        beside.wait(["interrupted"])
        dist.barrier()


def died():
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    ddp(torch.ones(2, 4)).sum().backward()
    dist.barrier()
    if rank == 2:
        os._exit(7)
    refuses(lambda: [dist.all_reduce(torch.ones(1)) for _ in range(100)], tutti.errors.RankDied, "rank 2")
    refuses(lambda: ddp(torch.ones(2, 4)).sum().backward(), Exception, "rank 2")
    future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    refuses(future.wait, RuntimeError, "rank 2")


for check in (refused, differ, late, interrupted, died):
    check()
dist.destroy_process_group()
print("done")
