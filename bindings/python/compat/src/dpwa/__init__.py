"""dpwa, distributed pair-wise averaging, on Tutti: programs that import dpwa run unchanged.

    from dpwa.adapters.pytorch import DpwaPyTorchAdapter
    conn = DpwaPyTorchAdapter(net, "w1", "dpwa.yaml")
    for batch in samples:
        conn.update_send(loss)   # other nodes may read this model; the model of one peer is on its way
        loss = train(batch)
        conn.update_wait(loss)   # averages with the peer's model

Each process is started by hand, in any order: the config file names the nodes, and `name` says which one this is.
"""
from __future__ import annotations

from .dpwa import DpwaConfiguration, DpwaConnection

__all__ = ["DpwaConfiguration", "DpwaConnection"]
