"""Gradients averaged over the ranks: by a call, or inside DistributedDataParallel."""
# DDP looks at the annotations of a hook: they are no strings here.
import weakref
from typing import Optional

import torch
import torch.distributed as dist

from ..group import Group
from ..job import Job, group_of
from .model import average, eager, float_buffers, parameters
from .work import Completer, Work

_completers: "weakref.WeakKeyDictionary[Job, Completer]" = weakref.WeakKeyDictionary()


@eager
def allreduce_gradients(model: torch.nn.Module, group: Optional[Group] = None) -> None:
    """Averages the gradients of all ranks, between loss.backward() and optimizer.step(). A collective.

    A gradient that is None counts as zeros, and becomes the average. Float buffers, as BatchNorm's, are averaged too.
    All ranks begin with the same model. Raises Mismatch if the models of the ranks differ.
    """
    for _, p in parameters(model):
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        elif p.grad.stride() != p.stride():  # the elements lie in the same order on all ranks
            p.grad = torch.empty_like(p).copy_(p.grad)
    gradients = [p.grad for _, p in parameters(model) if p.grad is not None]
    average(group_of(group), gradients + [b for _, b in float_buffers(model)])


def ddp_hook(group: Optional[Group], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DDP, whatever its backend: model.register_comm_hook(None, tutti.torch.ddp_hook).

    The buckets' gradients are averaged while the backward pass goes on. group: None: the default job.
    """
    gradients, group = bucket.buffer(), group_of(group)
    started = group.allreduce_start(gradients, op="average")
    job = group.job
    work = Work([started], [gradients], (), lambda: _completer(job))
    return work.get_future().then(lambda future: future.value()[0])  # type: ignore[no-any-return]


def _completer(job: Job) -> Completer:
    """Sets the futures of a job's gradients. Its threads are daemons: a program that raises ends at once."""
    completer = _completers.get(job)
    if completer is None:
        completer = _completers[job] = Completer(job)
        job._at_leave.append(lambda _job: completer.stop())
    return completer
