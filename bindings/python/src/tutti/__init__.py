"""Tutti keeps the copies of a model together while many processes train it.

    import numpy as np, tutti
    job = tutti.init()                 # from `tutti run`, torchrun, srun, mpirun; else a job of one
    x = np.full(4, job.rank, np.float32)
    job.allreduce(x, op="average")
"""
from __future__ import annotations

from . import errors
from ._buffer import own
from ._device import GpuMemory, stream
from .average import ElasticAverage, Gradients, elastic_alpha, elastic_alpha_max
from .center import Center
from .control import Controller, Queue, Request
from .errors import Error
from .gossip import Gossip
from .group import Change, Group, Message, Peer, Stat
from .job import Job, Watch, empty, init, version
from .operation import Operation, wait_all, wait_any
from .publish import Fetched, Publisher, PublisherInfo, Reader, Shard, Weight
from .registration import Registration, register
from .table import Table, TableInfo, Versions
from .update import (Init, Updater, accumulate, adagrad, adam, adamw, assign, dcasgd, dcasgda, elastic, ftrl, momentum,
                     nesterov, normal, rmsprop, sgd, smoothed, uniform)
from .window import Window

__version__ = version()

__all__ = ["Change", "Error", "GpuMemory", "Group", "Job", "Message", "Operation", "Peer", "Registration", "Stat",
           "Watch", "empty", "errors", "init", "own", "register", "stream", "version", "wait_all", "wait_any"]
__all__ += ["Controller", "Init", "Queue", "Request", "Table", "TableInfo", "Updater", "Versions", "Window",
            "accumulate", "adagrad", "adam", "adamw", "assign", "dcasgd", "dcasgda", "elastic", "ftrl", "momentum",
            "nesterov", "normal", "rmsprop", "sgd", "smoothed", "uniform"]
__all__ += ["Center", "ElasticAverage", "Gossip", "Gradients", "elastic_alpha", "elastic_alpha_max"]
__all__ += ["Fetched", "Publisher", "PublisherInfo", "Reader", "Shard", "Weight"]
