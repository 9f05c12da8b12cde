"""A torch optimizer that runs on the servers of a table."""
from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ..center import Center
from ..group import Group
from ..job import empty
from ..table import Table
from ..update import Updater
from .model import Wrapper, eager


class TableOptimizer(Wrapper, torch.optim.Optimizer):
    """An optimizer whose step pushes the gradients to the servers, which apply the rule, and pulls the parameters.

        optimizer = tutti.torch.TableOptimizer(model, tutti.adam(learning_rate=1e-3))
        loss.backward(); optimizer.step(); optimizer.zero_grad()

    rule: of tutti.update. A rule that is given a learning_rate has it as param_groups[0]["lr"], for schedulers. mode:
    "async", nobody waits for anybody; "ssp", with `staleness`; "bsp", rounds, with `backup`. servers, workers: lists of
    ranks; None: all. scale: what a gradient is multiplied by; None: 1 / workers, so that all workers' gradients are
    averaged. The parameters are of one type. Float buffers, as BatchNorm's, are kept together by a tutti.Center. A
    gradient that is None counts as zeros. Making one is a collective; ranks that only serve make one too, and close it
    behind a barrier, when the workers are done.
    """

    def __init__(self, model: torch.nn.Module, rule: Updater, mode: str = "async", staleness: int = 0, backup: int = 0,
                 servers: Optional[Sequence[int]] = None, workers: Optional[Sequence[int]] = None,
                 scale: Optional[float] = None, name: str = "model", group: Optional[Group] = None) -> None:
        Wrapper.__init__(self, model, group, "TableOptimizer(%r, mode=%r)" % (rule, mode))
        if len({p.dtype for p in self._params}) != 1:
            raise ValueError("tutti.torch.TableOptimizer: the parameters that are trained are of one type, and not %s"
                             % (sorted({str(p.dtype) for p in self._params}) or "none"))
        rate = rule.options.get("learning_rate")
        self._trained = [p for p in model.parameters() if p.requires_grad]
        torch.optim.Optimizer.__init__(self, self._trained, {} if rate is None else {"lr": rate})
        self._scale = 1 / (self.group.size if workers is None else len(workers)) if scale is None else scale
        lists: Any = {"servers": servers, "workers": workers}
        self._values, self._gradient = self._flat(), self._flat()
        self.table = Table(name, self._values.numel(), self._values.dtype, rule, self.group, mode=mode,
                           staleness=staleness, backup=backup, **lists)
        make = Center.downpour if mode == "bsp" else Center.asgd
        floats = [b for b in self._buffers if b.numel()]
        self._center = make(name + " buffers", floats, average=True, group=self.group, **lists) if floats else None
        self._assign()

    def _flat(self) -> Tensor:
        """Memory for all parameters, of which nothing is copied on its way to the servers."""
        count, dtype = sum(p.numel() for p in self._params), self._params[0].dtype
        return torch.frombuffer(empty(count * self._params[0].element_size(), "int8", self.group), dtype=dtype)

    def _parts(self, flat: Tensor) -> Iterator[Tuple[int, Tensor]]:
        at = 0
        for i, p in enumerate(self._params):
            yield i, flat[at:at + p.numel()].view(p.shape)
            at += p.numel()

    def _assign(self) -> None:
        """Rank 0's parameters become the table's, then everybody's."""
        self.group.barrier()
        if self.group.rank == 0:
            for i, part in self._parts(self._values):
                part.copy_(self._params[i])
            self.table.assign(self._values)
        self.group.barrier()
        self._pull()
        self.group.barrier()  # nobody pushes before all have these

    def _pull(self) -> None:
        self.table.pull(self._values)
        self._take()

    def _take(self) -> None:
        for i, part in self._parts(self._values):
            self._params[i].copy_(part)

    @eager
    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Pushes the gradients, and pulls the parameters as the servers have them behind the push.

        closure: computes the loss and the gradients anew first. Returns its result.
        """
        self._check()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for i, part in self._parts(self._gradient):
            gradient = self._trained[i].grad
            part.zero_() if gradient is None else part.copy_(gradient)
        options = {"learning_rate": float(self.param_groups[0]["lr"])} if "lr" in self.param_groups[0] else {}
        self.table.push_pull(self._gradient, out=self._values, scale=self._scale, **options)
        self._take()
        if self._center is not None:
            self._center.step()
        return loss

    def finish(self) -> None:
        """This worker takes no more steps: with "ssp" and "bsp" the others wait for it no longer."""
        self.table.finish()
        if self._center is not None:
            self._center.table.finish()

    def _to_consensus(self) -> None:
        self.group.barrier()
        self._pull()
        if self._center is not None:
            self._center.pull()

    def state_dict(self) -> Dict[str, Any]:
        """What the servers have, and the options. The rule's own state is on the servers: table.save(folder)."""
        self.table.pull(self._gradient)
        values = [part for _, part in self._parts(self._gradient)]
        return {**torch.optim.Optimizer.state_dict(self), "table": self._named(values)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Sets what the servers have, and the options. A collective: all ranks load the same state."""
        state = dict(state)
        values = state.pop("table")
        self._set(self._params, values)
        torch.optim.Optimizer.load_state_dict(self, state)
        self._assign()

    def close(self) -> None:
        """Ends this rank's part: a barrier, so that nobody is served no longer, then close."""
        self.group.barrier()
        if self._center is not None:
            self._center.close()
        self.table.close()
