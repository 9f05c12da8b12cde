"""Gossip: each rank averages its model, now and then, with what one other rank has published."""
from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from ._call import Path, call, ffi, lib, milliseconds, path, text
from ._handle import Owner
from ._model import Held, Model, held_pairs
from .group import Group, string
from .job import group_of
from .operation import Operation

WAYS = {"pull": lib.TUTTI_GOSSIP_PULL, "push": lib.TUTTI_GOSSIP_PUSH, "push_sum": lib.TUTTI_GOSSIP_PUSH_SUM}
CHOICES = {"uniform": lib.TUTTI_CHOICE_UNIFORM, "exponential": lib.TUTTI_CHOICE_EXPONENTIAL,
           "ring": lib.TUTTI_CHOICE_RING, "hosts": lib.TUTTI_CHOICE_HOSTS, "dpwa": lib.TUTTI_CHOICE_DPWA}
PLACES = {"model": lib.TUTTI_PLACE_MODEL, "host": lib.TUTTI_PLACE_HOST}
METHODS = {"constant": lib.TUTTI_GOSSIP_CONSTANT, "clock": lib.TUTTI_GOSSIP_CLOCK, "loss": lib.TUTTI_GOSSIP_LOSS}


class Mix(NamedTuple):
    """How a round ended. See `tutti_gossip_result`; age is seconds."""

    peer: Optional[int]  # with whom; None: with nobody, and `why` has the sentence
    factor: float        # f; push: what all others together have in the result
    clock: float
    retries: int
    gifts: int
    peer_not_finite: bool
    peer_clock: float
    peer_loss: float
    age: float
    why: str


class Look(NamedTuple):
    """The state of this rank's gossip. See `tutti_gossip_info`."""

    clock: float
    weight: float
    in_flight: float
    lost: float
    offers: int
    peers: int
    published: int
    mixed: int
    retries: int


def _code(names: Dict[str, int], name: Optional[str], what: str) -> Optional[int]:
    if name is not None and name not in names:
        raise ValueError("no %s of a gossip is called %r: use %s" % (what, name, ", ".join(names)))
    return None if name is None else names[name]


def _set(config: Any, **values: Any) -> None:
    for name, value in values.items():
        if value is not None:
            setattr(config, name, value)


def _mix(r: Any) -> Mix:
    return Mix(None if r.peer < 0 else r.peer, r.factor, r.clock, r.retries, r.gifts, bool(r.peer_not_finite),
               r.peer_clock, r.peer_loss, r.age_ms / 1000, string(r.why))


class Gossip(Owner):
    """Gossip: x = (1 - f) x + f y, where y is what one other rank has published. Nobody waits for a slow or dead rank.

        gossip.publish(loss)      # others may read this model from now on; a peer is chosen
        ...                       # one step of training
        gossip.mix(loss)          # averages the model after the step with the peer's published one

    name: of 1 to 160 bytes. model: tensors of the same counts and types on all ranks, which the object keeps; or pairs
    (shape, dtype): then the library allocates the model, `model()` returns its arrays, and no call copies the model.
    Integers are not averaged: a mix takes the integers of the side whose factor is above one half. Ranks are ranks of
    the job. Opening does not block.

    The section `gossip` of the job's config file gives arguments that the caller leaves out; else the defaults are:

    way: "pull", or "push", "push_sum". choice of the peer: "uniform", or "exponential", "ring", "hosts", "dpwa", or a
    function without arguments that returns a rank, or None for no peer: `publish` calls the function. method of f:
    "constant", which is value, 0.5, or "clock", "loss". divergence_threshold: below this loss f shrinks with the loss;
    0. fetch_probability: that a round has a peer; 1. buffers: how many published models stay readable, 2 to 4; 0: 3,
    with push 4. timeout: seconds that `mix` waits; 0, as recent fetches suggest. seed of the choices; 0: another one
    each time. clock at the start; 0. weight of push_sum at the start; NaN: 1 / ranks. docs/methods.md explains all of
    them. place of the published models, if the model is on a GPU: "model" is that GPU, on all ranks; "host" takes host
    memory instead.

    A model may be on a GPU: way "pull", without `mix_start`. `publish`, `mix` and `fetch` wait for the current stream.

    One thread at a time uses the object.
    """

    _end = lib.tutti_gossip_close

    def __init__(self, name: str, model: Any, way: Optional[str] = None,
                 choice: Union[str, Callable[[], Optional[int]], None] = None, method: Optional[str] = None,
                 value: Optional[float] = None, divergence_threshold: Optional[float] = None,
                 fetch_probability: Optional[float] = None, buffers: Optional[int] = None,
                 timeout: Optional[float] = None, seed: Optional[int] = None, clock: Optional[float] = None,
                 weight: Optional[float] = None, place: Optional[str] = None, group: Optional[Group] = None) -> None:
        group = group_of(group)
        c = ffi.new("tutti_gossip_config *", lib.tutti_gossip_defaults())
        call(lib.tutti_gossip_configure, group._c, c)
        _set(c, way=_code(WAYS, way, "way"), method=_code(METHODS, method, "method"), value=value,
             divergence_threshold=divergence_threshold, fetch_probability=fetch_probability, buffers=buffers,
             timeout_ms=None if timeout is None else milliseconds(timeout), seed=seed, clock=clock, weight=weight,
             place=_code(PLACES, place, "place"))
        self._choice: Optional[_Choice] = None
        if choice is None or isinstance(choice, str):
            _set(c, choice=_code(CHOICES, choice, "choice"))
        else:
            self._choice = _Choice(choice)
            self._choice.put(c)
        pairs = held_pairs(model)
        self._model: Union[Model, Held] = Held(pairs) if pairs else Model(model)
        self._open(lib.tutti_gossip_open, "tutti_gossip **", group, name, self._model.list, len(self._model), c)

    def close(self) -> None:
        """Ends this rank's part; weight that is on its way is lost. Harmless twice, and after the job was left.

        Arrays that `model` gave keep the memory: then this rank's part ends with the last of these arrays.
        """
        super().close()

    def model(self) -> Tuple[List[Any], List[Any]]:
        """Where the library holds the model until the next publish or mix: (now, next), two lists of NumPy arrays.

        The program reads `now`, the published model, and writes all of `next`, the model after its step. Before the
        first publish it writes the model that it begins with into `next`. Arrays of bfloat16 are uint16.
        """
        if not isinstance(self._model, Held):
            raise ValueError("the program holds this model: its tensors are the arguments of tutti.Gossip")
        lists = [ffi.new("tutti_tensor[]", len(self._model)) for _ in range(2)]
        call(lib.tutti_gossip_model, self._handle, *lists)
        now, then = (self._model.arrays(list_of, self._owner) for list_of in lists)
        return now, then

    # ---- rounds ----

    def publish(self, loss: float = 0) -> None:
        """Lets other ranks read the model as it is, chooses a peer, and starts to read the peer's model, or gives this.

        loss: of this model; not finite: the model is spoiled. Does not block, unless the model is on a GPU. Raises
        RankDied if the job goes on without this rank.
        """
        self._model.announce()
        call(lib.tutti_gossip_publish, self._handle, loss)
        if self._choice:
            self._choice.raise_error()

    def mix(self, loss: float = 0) -> Mix:
        """Averages: waits for the peer's model, at most `timeout`; with push takes in what has come.

        loss: of the model after the step. A round without a peer is no error: Mix.why has the sentence.
        """
        self._model.announce()
        result = ffi.new("tutti_gossip_result *")
        call(lib.tutti_gossip_mix, self._handle, loss, result)
        return _mix(result)

    def mix_start(self, loss: float = 0) -> Operation:
        """Pull: starts a mix with a copy of the model: the program takes more steps meanwhile, then calls `apply`."""
        return Operation(self.group, lib.tutti_gossip_mix_start, (self._handle, loss), self)

    def apply(self) -> Mix:
        """Ends a started mix, once its operation has ended: adds the move of the copy to today's model.

        Raises InProgress while the operation runs. Does not wait for the peer.
        """
        result = ffi.new("tutti_gossip_result *")
        call(lib.tutti_gossip_mix_apply, self._handle, result)
        return _mix(result)

    def fetch(self, out: Any, loss: float = 0) -> Mix:
        """Pull: ends the round without averaging: copies the peer's model to `out`, tensors as the model.

        Mix.factor is the f with which `mix` averages. With no peer `out` holds nothing useful.
        """
        if isinstance(self._model, Held):
            to, n = Model(out), len(self._model)
            if len(to) != n:
                raise ValueError("out has %d tensors, and the model has %d" % (len(to), n))
        else:
            to = self._model.matching(out, "out")
        result = ffi.new("tutti_gossip_result *")
        call(lib.tutti_gossip_fetch, self._handle, loss, to.list, result)
        return _mix(result)

    @property
    def value(self) -> float:
        """f of the method "constant", from 0 to 1, of this rank alone. It may be set at any time."""
        return float(lib.tutti_gossip_value(self._handle))

    @value.setter
    def value(self, value: float) -> None:
        call(lib.tutti_gossip_set_value, self._handle, value)

    # ---- peers ----

    def look(self) -> Look:
        """The state of this rank's gossip. Does not block."""
        i = ffi.new("tutti_gossip_info *")
        call(lib.tutti_gossip_look, self._handle, i)
        return Look(i.clock, i.weight, i.in_flight, i.lost, i.offers, i.peers, i.published, i.mixed, i.retries)

    def save(self, file: Path) -> None:
        """Saves clock, weight, and what chooses the next peers, into a file. The program saves the model."""
        call(lib.tutti_gossip_save, self._handle, path(file))

    def load(self, file: Path) -> None:
        """Loads what `save` has saved, before the first `publish`. Raises Mismatch: the file is damaged."""
        call(lib.tutti_gossip_load, self._handle, path(file))

    def add_peer(self, peer: Union[int, str]) -> None:
        """Adds a peer that was removed: a rank of the job, the name of a node in the node list, or of a host."""
        call(lib.tutti_gossip_add_peer, self._handle, text(str(peer)))

    def remove_peer(self, peer: Union[int, str]) -> None:
        """Removes a peer: this rank chooses the peer no more. Raises NotOpen if nobody is called so."""
        call(lib.tutti_gossip_remove_peer, self._handle, text(str(peer)))

    def score(self, peer: Union[int, str]) -> int:
        """The peer's score for the choice "dpwa", from 10 to 1000. Raises NotOpen, also of a peer that was removed."""
        return call(lib.tutti_gossip_score, self._handle, text(str(peer)))


class _Choice:
    """A function of the program that chooses peers. Publish calls the function on the thread that publishes."""

    def __init__(self, function: Callable[[], Optional[int]]) -> None:
        self._function = function
        self._error: Optional[BaseException] = None
        self._handle = ffi.new_handle(self)

    def put(self, config: Any) -> None:
        ffi.def_extern("tutti_py_choose")(_choose)
        config.choice, config.choose, config.arg = lib.TUTTI_CHOICE_OWN, lib.tutti_py_choose, self._handle

    def __call__(self) -> int:
        try:
            rank = self._function()
            return -1 if rank is None else int(rank)
        except BaseException as e:  # an exception in a callback would be printed and lost
            self._error = e
            return -1

    def raise_error(self) -> None:
        """Raises what the function has raised: the model is published, and the round has no peer."""
        error, self._error = self._error, None
        if error is not None:
            raise error


def _choose(handle: Any) -> int:
    return int(ffi.from_handle(handle)())


__all__ = ["Gossip", "Look", "Mix"]
