"""DiLoCo: an outer optimizer of torch takes the mean of what all ranks have learned in some steps."""
from __future__ import annotations

from typing import Any, Dict

import torch

from ..group import Group
from .model import Wrapper, average, eager


class DiLoCo(Wrapper):
    """After `steps` steps of each rank, the ranks' mean of (old - now) is the gradient of an outer optimizer's step.

        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        d = tutti.torch.DiLoCo(model, outer, steps=50)
        loss.backward(); optimizer.step(); d.step()

    outer: an optimizer over the model's parameters, the same on all ranks; it steps from the parameters that all ranks
    had after the outer step before. Float buffers are averaged. All ranks take the same number of steps. Making one is
    a collective. Source: arXiv 2311.08105.
    """

    def __init__(self, model: torch.nn.Module, outer: torch.optim.Optimizer, steps: int = 50,
                 group: "Group | None" = None) -> None:
        super().__init__(model, group, "DiLoCo(steps=%d)" % steps)
        given = {id(p) for g in outer.param_groups for p in g["params"]}
        self._trained = [p for p in model.parameters() if p.requires_grad]
        if steps < 1 or given != {id(p) for p in self._trained}:
            raise ValueError("tutti.torch.DiLoCo: steps (%d) is from 1 up, and the outer optimizer has exactly the "
                             "parameters of the model that are trained" % steps)
        self.outer, self._steps, self._count = outer, steps, 0
        self._old = [p.clone() for p in self._params]
        self._moved = [torch.empty_like(p) for p in self._params]

    @eager
    def step(self) -> bool:
        """After optimizer.step(). Returns True if this step has ended with an outer step, for which all ranks wait."""
        self._check()
        self._count += 1
        if self._count % self._steps:
            return False
        self._outer_step()
        return True

    @torch.no_grad()
    def _outer_step(self) -> None:
        for moved, old, p in zip(self._moved, self._old, self._params):
            torch.sub(old, p, out=moved)
        average(self.group, self._moved + self._buffers)
        gradients = [p.grad for p in self._trained]
        for p, own, old, moved in zip(self._trained, self._params, self._old, self._moved):
            own.copy_(old)
            p.grad = moved
        self.outer.step()
        for p, own, old, gradient in zip(self._trained, self._params, self._old, gradients):
            p.grad = gradient
            old.copy_(own)

    @torch.no_grad()
    def _to_consensus(self) -> None:
        for p, old in zip(self._params, self._old):
            p.copy_(old)
        average(self.group, self._buffers)

    def state_dict(self) -> Dict[str, Any]:
        """What the outer optimizer steps from, its own state, and the count of steps."""
        return {"old": self._named(self._old), "outer": self.outer.state_dict(), "count": self._count}

    @torch.no_grad()
    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on as saved. All ranks load the same state."""
        self._set(self._old, state["old"])
        self.outer.load_state_dict(state["outer"])
        self._count = state["count"]
