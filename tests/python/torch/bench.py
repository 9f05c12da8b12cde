"""What torch.distributed costs over tutti and over gloo: medians of interleaved runs, and their ratio.

    TUTTI_TRANSPORTS=shm,tcp torchrun --nproc-per-node 2 bench.py [--real-time]       # or TUTTI_TRANSPORTS=tcp

--real-time, as root: on a machine that others use.
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import tutti.torch

BYTES = 46_800_000  # a model of ResNet-18's size
TIMES = 20

torch.set_num_threads(1)
dist.init_process_group("tutti")
groups = {"tutti": None, "gloo": dist.new_group(backend="gloo")}


def seconds(call, group):
    dist.barrier()
    dist.barrier(group)
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def compare(what, calls, times):
    """calls: by backend. Prints the median of each, and gloo's divided by tutti's."""
    took = {name: [] for name in calls}
    for turn in range(times + 3):
        for name, call in calls.items():
            took[name].append(seconds(call, groups[name]))
    median = {name: statistics.median(t[3:]) * 1e6 for name, t in took.items()}
    if dist.get_rank() == 0:
        print("%-28s tutti %10.1f us   gloo %10.1f us   gloo / tutti %.2f"
              % (what, median["tutti"], median["gloo"], median["gloo"] / median["tutti"]), flush=True)


def all_reduce(count, times):
    tensors = {name: torch.ones(count) for name in groups}

    def call(name):
        return lambda: dist.all_reduce(tensors[name].fill_(1), group=groups[name])
    compare("all_reduce, %d bytes" % (4 * count), {name: call(name) for name in groups}, times)


def step():
    """A DDP step of a model of BYTES: most of it one layer."""
    x = torch.randn(16, 1024)

    def call(name):
        torch.manual_seed(1)
        wide = BYTES // 4 // (1024 + 512) // 2
        net = nn.Sequential(nn.Linear(1024, wide), nn.ReLU(), nn.Linear(wide, 1024), nn.ReLU(), nn.Linear(1024, wide),
                            nn.ReLU(), nn.Linear(wide, 8))
        ddp = nn.parallel.DistributedDataParallel(net, process_group=groups[name], gradient_as_bucket_view=True)
        opt = torch.optim.SGD(net.parameters(), lr=0.001)
        size = sum(p.numel() * 4 for p in net.parameters())

        def run():
            opt.zero_grad()
            ddp(x).pow(2).mean().backward()
            opt.step()
        return run, size
    made = {name: call(name) for name in groups}
    compare("DDP step, %d bytes" % made["tutti"][1], {name: run for name, (run, _) in made.items()}, TIMES)


if "--real-time" in sys.argv:
    for thread in os.listdir("/proc/self/task"):
        os.sched_setscheduler(int(thread), os.SCHED_RR, os.sched_param(5))
all_reduce(BYTES // 4, TIMES)
all_reduce(1024, 20 * TIMES)
step()
dist.destroy_process_group()
