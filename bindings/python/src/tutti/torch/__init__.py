"""Tutti for PyTorch."""
from __future__ import annotations

from .diloco import DiLoCo
from .elastic import Elastic
from .gossip import Gossip
from .gradients import allreduce_gradients, ddp_hook
from .table import TableOptimizer

__all__ = ["DiLoCo", "Elastic", "Gossip", "TableOptimizer", "allreduce_gradients", "ddp_hook"]
