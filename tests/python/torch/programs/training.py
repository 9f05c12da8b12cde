"""Data-parallel training by tutti and by gloo: the same gradients and weights, bit for bit on 2 ranks."""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.data import DataLoader, TensorDataset

import tutti.torch

dist.init_process_group("tutti")
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")


def same(ours, theirs, what, far=1e-6):
    for a, b in zip(ours, theirs):
        equal = torch.equal(a, b) if size == 2 else torch.allclose(a, b, rtol=1e-4, atol=far)
        assert equal, (what, (a - b).abs().max())


def model():
    torch.manual_seed(rank)  # DDP gives all ranks those of rank 0
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 100, 32),
                         nn.ReLU(), nn.Linear(32, 10))


def train(group, hook=None, optimizer=None, steps=4, join=False, bucket_cap_mb=0.01, **how):
    net = model()
    ddp = nn.parallel.DistributedDataParallel(net, process_group=group, bucket_cap_mb=bucket_cap_mb, **how)
    if hook is not None:
        ddp.register_comm_hook(*hook(group))
    opt = (optimizer or torch.optim.SGD)(net.parameters(), lr=0.05)
    torch.manual_seed(99 + rank)

    def step():
        x, y = torch.randn(8, 3, 12, 12), torch.randint(0, 10, (8,))
        opt.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        opt.step()
    if join:
        with Join([ddp]):
            for _ in range(steps + rank):  # ranks with other numbers of batches
                step()
    else:
        for _ in range(steps):
            step()
    return [p.detach() for p in net.parameters()] + [p.grad for p in net.parameters() if not join] + list(net.buffers())


def both(what, far=1e-6, **how):
    same(train(None, **how), train(gloo, **how), what, far)


def own_hook(group):
    def hook(state, bucket):
        work = dist.all_reduce(bucket.buffer(), group=state, async_op=True)
        return work.get_future().then(lambda f: f.value()[0] / size)
    return group, hook


def low_rank(group):
    state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
    return state, powerSGD_hook.powerSGD_hook


def zero():
    """The states of the optimizer are spread over the ranks of the group."""
    def run(group):
        return train(group, optimizer=lambda params, lr: ZeroRedundancyOptimizer(
            params, torch.optim.SGD, lr=lr, momentum=0.9, **({} if group is None else {"process_group": group})))
    same(run(None), run(gloo), "ZeRO")


def loader():
    """The workers of a DataLoader are forked from a rank."""
    rows = TensorDataset(torch.arange(12.))
    assert sum(dist.all_reduce(x, async_op=True).wait() for (x,) in DataLoader(rows, batch_size=4, num_workers=2)) == 3


both("DDP")
both("views of buckets", gradient_as_bucket_view=True, static_graph=True)
both("unused parameters", find_unused_parameters=True)
both("hook", hook=own_hook)
both("f16", 1e-3, hook=lambda group: (group, default_hooks.fp16_compress_hook))
both("PowerSGD", 1e-3, hook=low_rank, bucket_cap_mb=25)  # its callbacks start collectives: of one bucket in one order
both("join", join=True)
zero()
loader()
dist.irecv(torch.zeros(1), (rank + 1) % size).get_future()
print("done", flush=True)  # and the interpreter exits, with a receive under way and no word to torch
