"""Multiverso's Python binding, on Tutti: programs that `import multiverso` run unchanged.

    import multiverso as mv
    mv.init()                              # from `tutti run`, torchrun, srun, mpirun; else a job of one
    table = mv.ArrayTableHandler(params.size, init_value=params)
    mv.barrier()
    table.add(delta)
    params = table.get()
    mv.shutdown()
"""
from __future__ import annotations

from .api import barrier, init, is_master_worker, server_id, shutdown, worker_id, workers_num
from .tables import ArrayTableHandler, MatrixTableHandler

__all__ = ["ArrayTableHandler", "MatrixTableHandler", "barrier", "init", "is_master_worker", "server_id", "shutdown",
           "worker_id", "workers_num"]
