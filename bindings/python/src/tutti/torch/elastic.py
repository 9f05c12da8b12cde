"""Elastic averaging for a torch model."""
from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Union

import torch

from ..average import ElasticAverage
from ..center import Center
from ..group import Group
from .model import Wrapper, eager


class Elastic(Wrapper):
    """Every tau steps the model and a center draw each other together.

        e = tutti.torch.Elastic(model, tau=10)
        loss.backward(); optimizer.step(); e.step()

    servers None: tutti.ElasticAverage: each rank has a copy of the center, and all average at the same step. servers: a
    list of ranks that hold the center, tutti.Center.easgd: a rank exchanges when it likes, and waits for no other
    rank. alpha: how far an averaging moves; None: 0.9 / ranks. Making one is a collective.
    """

    def __init__(self, model: torch.nn.Module, tau: int = 10, alpha: Optional[float] = None,
                 servers: Optional[Sequence[int]] = None, name: str = "elastic", group: Optional[Group] = None) -> None:
        super().__init__(model, group, "Elastic(tau=%d, alpha=%s, servers=%s)" % (tau, alpha, servers))
        self.average: Union[ElasticAverage, Center] = (
            ElasticAverage(self._tensors, tau, alpha, group=self.group) if servers is None else
            Center.easgd(name, self._tensors, tau, alpha, group=self.group, servers=servers))
        if isinstance(self.average, ElasticAverage):
            self.average.synchronize()  # else each rank's copy of the center is the model after its first steps

    @eager
    def step(self) -> bool:
        """After optimizer.step(). Returns True if this step has averaged."""
        self._check()
        return self.average.step()

    @torch.no_grad()
    def _to_consensus(self) -> None:
        if isinstance(self.average, Center):
            self.group.barrier()
            self.average.pull()
        else:
            self.average.synchronize_center()
            self.average.center(self._tensors)

    def state_dict(self) -> Dict[str, Any]:
        """The center and the schedule. The model has a state_dict of its own. A collective, as `consensus`."""
        with self.consensus():
            center = self._named(self._params + self._buffers)
        s = self.average if isinstance(self.average, ElasticAverage) else self.average.schedule()
        return {"center": center, "tau": s.tau, "alpha": s.alpha}

    @torch.no_grad()
    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Sets the center and the schedule; tau is counted anew. A collective: all ranks load the same state."""
        with self.consensus():
            self._set(self._params + self._buffers, state["center"])
            if isinstance(self.average, ElasticAverage):
                self.average.set_center(self._tensors)
            elif self.group.rank == 0:
                self.average.assign()
            self.group.barrier()
        self.average.set(state["tau"], state["alpha"])

    def close(self) -> None:
        """Ends this rank's part. With servers a barrier comes before it."""
        self.average.close()
