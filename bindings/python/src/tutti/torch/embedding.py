"""An embedding whose rows lie in a table on servers."""
from __future__ import annotations

import json
import os
import time
import weakref
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .._call import Path
from ..errors import NotOpen, ProtocolError, ShutDown, Stale
from ..group import Group
from ..job import Job, empty, group_of
from ..operation import Operation
from ..table import Table
from ..update import Init, Updater, sgd
from .model import eager

T = TypeVar("T")
POOLINGS = (None, "sum", "mean", "max")


def _unique(ids: Tensor) -> Tuple[Tensor, Tensor]:
    """torch.unique with the places of the ids, faster than in older versions of torch."""
    ordered, order = ids.reshape(-1).sort()
    rows, of_ordered = torch.unique_consecutive(ordered, return_inverse=True)
    places = torch.empty_like(order)
    places[order] = of_ordered
    return rows, places.view(ids.shape)


class _Block(torch.autograd.Function):
    """Hands a pulled block to autograd, and the block's gradient to the embedding. The anchor wants a gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, block: Tensor, take: Callable[[Tensor], None]) -> Tensor:  # type: ignore
        ctx.take = take
        return block.view_as(block)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[None, None, None]:  # type: ignore[override, unused-ignore]
        ctx.take(gradient)
        return None, None, None


class _Memory:
    """Blocks of rows in memory that a server on this host reads in place. A block that nobody uses serves again, as
    memory that is new costs more time than what a pull writes there."""

    KEPT = 3

    def __init__(self, dim: int, dtype: torch.dtype, group: Group) -> None:
        self._dim, self._dtype, self._group = dim, dtype, group
        self._row = dim * torch.empty(0, dtype=dtype, device="cpu").element_size()
        self._spare: List[Any] = []

    def take(self, rows: int) -> Tensor:
        """A block of so many rows, which hold anything."""
        memory = self._take_spare(rows * self._row)
        if memory is None:
            memory = empty(max(rows * self._row * 5 // 4, 64), "int8", self._group)
        part = memory[:max(rows, 1) * self._row]  # it lives as long as the last tensor on it
        weakref.finalize(part, self._give_back, self._spare, memory).atexit = False
        return torch.frombuffer(part, dtype=self._dtype).view(-1, self._dim)[:rows]

    def _take_spare(self, size: int) -> Any:  # meanwhile a finalizer, of any thread, may give one back
        for _ in range(len(self._spare)):
            try:
                memory = self._spare.pop(0)
            except IndexError:
                return None
            if memory.size >= size:
                return memory
            self._spare.append(memory)
        return None

    @staticmethod
    def _give_back(spare: List[Any], memory: Any) -> None:
        spare.append(memory)
        del spare[:-_Memory.KEPT]


class _Pull(NamedTuple):
    """A pull that runs. block[places] are the rows of the ids; behind the pulled rows, the block has the padding's."""

    ids: Tensor
    rows: Tensor    # each once
    places: Tensor  # of the ids in the block
    block: Tensor
    operation: Operation


def _until_servers_are_back(call: Callable[[], T], seconds: float) -> T:
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except (ShutDown, ProtocolError):
            raise
        except (ConnectionError, NotOpen, Stale):
            if time.monotonic() >= end:
                raise
            time.sleep(0.1)


def _which(folder: str, name: Optional[str]) -> Optional[str]:
    """Which save of the name is in the folder: the seal of the save's index, which holds the seals of all its files.
    None: there is none."""
    try:
        with open(os.path.join(folder, "%s.safetensors.index.json" % name), encoding="utf-8") as file:
            return str(json.load(file)["metadata"]["tutti_seal"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class TableEmbedding(torch.nn.Module):
    """torch.nn.Embedding, and EmbeddingBag, with rows in a table: the servers hold them and apply the update rule.

        emb = tutti.torch.TableEmbedding(10_000_000, 64, tutti.adam(1e-3), init=tutti.normal(0.01))
        loss = f(emb(ids)).backward(); emb.step()

    A forward pulls each row of the batch once. backward() collects gradients, and step(), or else the next forward,
    pushes the sum for each row once: rows that are in no batch do not move. In eval mode and under no_grad nothing is
    collected and nothing is pushed. The module has no parameters: DDP and optimizers see the rest of the model alone.

    num: rows; None: any 64-bit numbers, of which a row begins to exist with its first push. dim: elements of a row.
    rule: of tutti.update; None: tutti.sgd(). servers, workers: lists of ranks; None: all. init: tutti.uniform or
    tutti.normal, made by the servers; None: zeros. padding_idx: a row that is always zeros, and does not train. mode:
    None: a vector for each id; "sum", "mean" or "max": a vector for each bag, as of EmbeddingBag, also
    include_last_offset. dtype: of the rows.

    consistency: "async", "ssp" with `staleness`, or "bsp": the table's mode; with the last two all workers call step()
    once in each of their steps. scale: what a gradient is multiplied by; None: 1 / workers, as DDP averages.
    accumulate: only step() pushes, so that several backward() add up. load: a folder; servers begin with the last save
    of this name there, if there is one.

    The attributes scale and learning_rate (at first the rule's; None: the table's) are those of the next push. With a
    GradScaler divide scale by its get_scale(). requires_grad_(False) freezes the rows.

    Making one opens the table: a collective. Ranks that only serve make one, too. A rank that was started again makes
    its own with the same arguments. Raises what tutti.Table raises.
    """

    learning_rate: Optional[float]
    scale: float

    def __init__(self, num: Optional[int], dim: int, rule: Optional[Updater] = None,
                 servers: Optional[Sequence[int]] = None, init: Optional[Init] = None,
                 padding_idx: Optional[int] = None, mode: Optional[str] = None, *, name: str = "embedding",
                 workers: Optional[Sequence[int]] = None, consistency: str = "async", staleness: int = 0,
                 scale: Optional[float] = None, accumulate: bool = False, load: Optional[Path] = None,
                 include_last_offset: bool = False, dtype: torch.dtype = torch.float32,
                 group: Optional[Group] = None) -> None:
        super().__init__()
        if mode not in POOLINGS:
            raise ValueError("mode is None, \"sum\", \"mean\" or \"max\", and not %r: the table's mode is `consistency`"
                             % (mode,))
        if padding_idx is not None and num is not None:
            if not -num <= padding_idx < num:
                raise ValueError("padding_idx %d is none of %d rows" % (padding_idx, num))
            padding_idx %= num
        self.num, self.dim, self.padding_idx, self.mode, self.dtype = num, dim, padding_idx, mode, dtype
        self.consistency, self.staleness = consistency, staleness
        self.accumulate, self.include_last_offset = accumulate, include_last_offset
        group = group_of(group)
        self.group = group.everyone() if isinstance(group, Job) and group.late else group
        self.scale = 1 / (self.group.size if workers is None else len(workers)) if scale is None else scale
        rule = sgd() if rule is None else rule
        self.learning_rate = getattr(rule, "options", {}).get("learning_rate")
        self.folder: Optional[str] = None  # of the last save
        self._save: Optional[str] = None   # which one that is
        if load is not None and os.path.exists(os.path.join(os.fspath(load), name + ".safetensors.index.json")):
            self.folder = os.path.abspath(load)
            self._save = _which(self.folder, name)
        config: Any = {"servers": servers, "workers": workers, "init": init, "mode": consistency,
                       "staleness": staleness, "load": self.folder}
        if num is None:
            opens = partial(Table.keys, name, dim, dtype, rule, group=self.group, **config)
        else:  # in rounds the rule would run over all rows, but for rows that are not fresh
            opens = partial(Table.rows, name, num, dim, dtype, rule, self.group, fresh=consistency == "bsp", **config)
        self.table = _until_servers_are_back(opens, 60 if self.group is not group else 0)
        self._memory = _Memory(dim, dtype, self.group)
        self._anchor = torch.zeros((), device="cpu", requires_grad=True)
        self._collected: List[Tuple[Tensor, Tensor]] = []  # pairs (rows, gradient)
        self._ahead: Optional[_Pull] = None

    # ---- pulls ----

    def _start_pull(self, ids: Tensor) -> _Pull:
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise TypeError("the ids of an embedding are integers, and not %s" % ids.dtype)
        rows, places = _unique(ids.detach().cpu().long())
        if self.num is not None and len(rows) and rows[0] < 0:
            raise IndexError("id %d is none of the %d rows of the embedding" % (rows[0], self.num))
        padding = self.padding_idx is not None
        if padding:  # the padding's row is the last one of the block, and does not travel
            travels = rows != self.padding_idx
            place = travels.cumsum(0) - 1
            rows = rows[travels]
            place[~travels] = len(rows)
            places = place[places]
        block = self._memory.take(len(rows) + padding)
        block[len(rows):] = 0
        return _Pull(ids, rows, places, block, self.table.pull_rows_start(rows, block[:len(rows)]))

    @eager
    @torch.no_grad()
    def prefetch(self, ids: Tensor) -> None:
        """Starts to pull the rows of the next forward, which gives the same ids, while this step still computes.

        The rows are older by one step: pushes between prefetch and forward are not in them. The next prefetch, and a
        forward with other ids, drop what was prefetched. Raises ValueError of "ssp" and "bsp", which promise a version.
        """
        if self.consistency != "async":
            raise ValueError("prefetch gives rows that are older by one step, and consistency=%r promises newer ones: "
                             "use \"async\", or do not prefetch" % self.consistency)
        self._ahead = None
        self._ahead = self._start_pull(ids.clone())

    @torch.no_grad()
    def _pull(self, ids: Tensor) -> _Pull:
        pull, self._ahead = self._ahead, None
        if pull is None or (pull.ids.device, pull.ids.dtype) != (ids.device, ids.dtype) or \
                not torch.equal(pull.ids, ids):
            pull = self._start_pull(ids)
        pull.operation.wait()
        return pull

    @eager
    def forward(self, ids: Tensor, offsets: Optional[Tensor] = None,
                per_sample_weights: Optional[Tensor] = None) -> Tensor:
        """The rows of ids, a tensor of integers. With a mode: of bags, as of EmbeddingBag.

        Pushes first what backward() has collected, unless this module evaluates or accumulates. The result is where ids
        are. An error of the servers leaves nothing behind: after reopen() the same call may be made again.
        """
        if self.mode is None and (offsets is not None or per_sample_weights is not None):
            raise ValueError("offsets and per_sample_weights are of bags: give the embedding a mode, as \"sum\"")
        trains = self.training and torch.is_grad_enabled() and self._anchor.requires_grad
        if trains and self._collected and not self.accumulate:
            self.step()
        pull = self._pull(ids)
        places, block = pull.places.to(ids.device), pull.block.to(ids.device)
        padding = None if self.padding_idx is None else len(pull.rows)
        if trains:
            block = _Block.apply(self._anchor, block, partial(self._collect, pull.rows))  # type: ignore
        if self.mode is None:
            return F.embedding(places, block, padding)
        return F.embedding_bag(places, block, offsets, mode=self.mode, per_sample_weights=per_sample_weights,
                               include_last_offset=self.include_last_offset, padding_idx=padding)

    # ---- pushes ----

    def _collect(self, rows: Tensor, gradient: Tensor) -> None:
        self._collected.append((rows, self._memory.take(len(rows)).copy_(gradient.detach()[:len(rows)])))

    def _take_collected(self) -> Tuple[Tensor, Tensor]:
        """The rows with a gradient, each once, and the sums of their gradients."""
        collected, self._collected = self._collected, []
        if len(collected) == 1:
            return collected[0]
        none = torch.empty(0, dtype=torch.long, device="cpu")
        rows, places = _unique(torch.cat([none, *(r for r, _ in collected)]))
        gradient = self._memory.take(len(rows)).zero_()
        for (r, g), place in zip(collected, places.split([len(r) for r, _ in collected])):
            gradient.index_add_(0, place, g)
        return rows, gradient

    @eager
    @torch.no_grad()
    def step(self) -> None:
        """Pushes what backward() has collected, with learning_rate.

        If there is nothing, an "async" table gets no push, and an "ssp" or "bsp" one an empty push. Blocks until the
        servers have applied the push. After an error the gradients are gone: if a server has died, the other servers
        have applied their rows; after TimedOut some rows may be missing.
        """
        if self._collected or self.consistency != "async":
            rows, gradient = self._take_collected()
            options = {} if self.learning_rate is None else {"learning_rate": self.learning_rate}
            self.table.push_rows(rows, gradient, scale=self.scale, **options)

    def drop(self) -> None:
        """Forgets what backward() has collected, of a batch that is left out, or done anew after an error."""
        self._collected.clear()

    def finish(self) -> None:
        """Pushes what backward() has collected; then the other workers no longer wait for this one's steps."""
        self.step()
        self.table.finish()

    def requires_grad_(self, requires_grad: bool = True) -> "TableEmbedding":
        """False freezes the rows: nothing is collected."""
        self._anchor.requires_grad_(requires_grad)
        return self

    # ---- saves, and servers that are started again ----

    def save(self, folder: Path) -> None:
        """Saves rows and the rule's state as safetensors, in a folder that all servers see. One rank calls.

        The folder is made if it is missing. state_dict() names this folder from then on, on this rank: save each
        checkpoint in a folder of its own. What no step() has pushed yet is not in the save.
        """
        os.makedirs(folder, exist_ok=True)
        self.table.save(folder)
        self.folder = os.path.abspath(folder)
        self._save = _which(self.folder, self.table.name)

    def reopen(self, timeout: float = 60) -> None:
        """Waits until servers that died are back, and goes on with them: they begin with their last save.

        With "ssp" and "bsp" all workers that have not finished call, and are level then: their next steps have the same
        number. timeout: seconds, after which no new try begins, and the error is raised: RankDied, NotOpen; TimedOut: a
        worker has not called.
        """
        self._ahead = None
        _until_servers_are_back(self._reopen, timeout)

    def _reopen(self) -> None:
        self.table.reopen()
        if self.consistency != "async":
            self.table.switch(self.consistency, self.staleness)

    def get_extra_state(self) -> Dict[str, Any]:
        """What state_dict() has: the table's name and shape, and folder and seal of the last save. The rows are there.
        """
        return {"name": self.table.name, "num": self.num, "dim": self.dim, "folder": self.folder, "save": self._save}

    def set_extra_state(self, state: Dict[str, Any]) -> None:
        """What load_state_dict() does: rank 0 loads its folder's save, on all servers. A collective."""
        own = self.get_extra_state()
        for what in ("name", "num", "dim"):
            if state[what] != own[what]:
                raise ValueError("the state is of an embedding with %s %r, and this one has %r"
                                 % (what, state[what], own[what]))
        self._collected.clear()
        self._ahead = None
        self.group.barrier()
        error = self._load(state) if self.group.rank == 0 else None
        failed = torch.tensor([error is not None], dtype=torch.uint8, device="cpu")
        self.group.broadcast(failed)
        if error is not None:
            raise error
        if failed:
            raise RuntimeError("rank 0 has not loaded the embedding %r: its error says why" % self.table.name)
        self.folder, self._save = state["folder"], state["save"]

    def _load(self, state: Dict[str, Any]) -> Optional[Exception]:
        folder, name = state["folder"], self.table.name
        if folder is None:
            return ValueError("the state of the embedding %r names no save: call save(folder) before state_dict(), on "
                              "rank 0" % name)
        if _which(folder, name) not in (None, state["save"]):  # None: the servers say what is there
            return ValueError("the save of the embedding %r in %s is not the one that the state was made with: put the "
                              "folder of that save into the state, and save each checkpoint in a folder of its own"
                              % (name, folder))
        try:
            self.table.load(folder)
        except Exception as e:  # pylint: disable=broad-except
            return e
        return None

    def close(self) -> None:
        """Ends this rank's part. A rank that serves calls it when all workers are done: behind a barrier, say."""
        self._ahead = None
        self.table.close()

    def extra_repr(self) -> str:
        """What print(module) shows."""
        more = {"padding_idx": self.padding_idx, "mode": self.mode}
        return "%s, %d, name=%r%s" % (self.num, self.dim, self.table.name, "".join(
            ", %s=%r" % pair for pair in more.items() if pair[1] is not None))


__all__ = ["TableEmbedding"]
