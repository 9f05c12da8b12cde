"""Gossip for a torch model."""
from __future__ import annotations

from typing import Any, Dict, Optional

import torch

from .. import gossip
from ..group import Group
from .model import Wrapper, average, eager


class Gossip(Wrapper):
    """Each rank averages its model with what one other rank has published, every `every` steps. Nobody waits long.

        g = tutti.torch.Gossip(model)
        loss.backward(); optimizer.step(); g.step(loss)

    options: of tutti.Gossip: way, choice, method, value, timeout, seed and others. Making one is a collective.
    """

    def __init__(self, model: torch.nn.Module, every: int = 1, name: str = "gossip", group: Optional[Group] = None,
                 **options: Any) -> None:
        if every < 1:
            raise ValueError("tutti.torch.Gossip: every (%d) is from 1 up" % every)
        super().__init__(model, group, "Gossip(%r, every=%d)" % (name, every))
        self._name, self._options, self._every, self._count = name, options, every, 0
        self._open()

    def _open(self, **more: Any) -> None:
        self.gossip = gossip.Gossip(self._name, self._tensors, group=self.group, **{**self._options, **more})
        self._published = False

    @eager
    def step(self, loss: Any = 0.0) -> Optional[gossip.Mix]:
        """After optimizer.step(): averages with the peer of the round before, then publishes, and a new round begins.

        The peer's model comes while this rank takes its next step. loss: a number or a tensor; for the methods "loss"
        and divergence_threshold. Returns how the round before has ended; None: there was none.
        """
        self._check()
        loss = float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        result = self.gossip.mix(loss) if self._published else None
        self._published = self._count % self._every == 0
        self._count += 1
        if self._published:
            self.gossip.publish(loss)
        return result

    @torch.no_grad()
    def _to_consensus(self) -> None:
        average(self.group, self._tensors)

    def state_dict(self) -> Dict[str, Any]:
        """The clock, the weight of push-sum, and the count of steps. The model has a state_dict of its own."""
        look = self.gossip.look()
        return {"clock": look.clock, "weight": look.weight, "count": self._count}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on as saved: opens the gossip again. A round that is under way ends without averaging."""
        self.gossip.close()
        self._count = state["count"]
        self._open(clock=state["clock"], weight=state["weight"] or None)

    def close(self) -> None:
        """Ends this rank's part. A barrier before it lets others read the last model."""
        self.gossip.close()
