"""Tutti for PyTorch. `import tutti.torch` registers the torch.distributed backend "tutti".

    import torch.distributed as dist, tutti.torch
    dist.init_process_group("tutti")                 # or "cpu:tutti,cuda:nccl"

torch 1.13 and later, tensors on the CPU.
"""
from __future__ import annotations

from .backend import Backend, ProcessGroup, register
from .diloco import DiLoCo
from .elastic import Elastic
from .embedding import TableEmbedding
from .gossip import Gossip
from .gradients import allreduce_gradients, ddp_hook
from .publish import WeightPublisher, WeightReader
from .table import TableOptimizer

register()

__all__ = ["Backend", "DiLoCo", "Elastic", "Gossip", "ProcessGroup", "TableEmbedding", "TableOptimizer",
           "WeightPublisher", "WeightReader", "allreduce_gradients", "ddp_hook"]
