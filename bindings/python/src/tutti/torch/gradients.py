"""Gradients averaged over the ranks: by a call, or inside DistributedDataParallel."""
# DDP looks at the annotations of a hook: they are no strings here.
from concurrent.futures import ThreadPoolExecutor
from typing import Optional

import torch
import torch.distributed as dist

from ..group import Group
from ..job import group_of
from ..operation import Operation
from .model import average, eager, float_buffers, parameters

_waiting = ThreadPoolExecutor(1, "tutti ddp_hook")  # its thread starts with the first gradient


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
    gradients = bucket.buffer()
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    started = group_of(group).allreduce_start(gradients, op="average")
    _waiting.submit(_finish, started, gradients, future)
    return future


def _finish(started: Operation, gradients: torch.Tensor, future: torch.futures.Future[torch.Tensor]) -> None:
    try:
        started.wait()
    except Exception as e:
        future.set_exception(e)  # type: ignore[arg-type]
    else:
        future.set_result(gradients)
