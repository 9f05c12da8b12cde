"""The torch.distributed backend "tutti": collectives and messages of torch groups, for tensors on the CPU.

torch finds the methods by name, also from C++. A group of the backend alone is a ProcessGroup: its works are Python's
own. In a group with more backends ("cpu:tutti,cuda:nccl") torch's ProcessGroup calls a Backend. The newest torch has
other names for some methods; both names are here. What is not dense in C order goes through a copy.
"""
from __future__ import annotations

import datetime
import itertools
import weakref
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from .._call import ffi, lib
from ..group import _need
from .membership import Membership
from .rendezvous import enter
from .work import Work, seconds_of, untraced


Moves = List[Callable[[], Any]]

TYPES = {torch.float32: lib.TUTTI_F32, torch.float64: lib.TUTTI_F64, torch.float16: lib.TUTTI_F16,
         torch.bfloat16: lib.TUTTI_BF16, torch.int32: lib.TUTTI_I32, torch.int64: lib.TUTTI_I64,
         torch.int8: lib.TUTTI_I8, torch.uint8: lib.TUTTI_U8, torch.bool: lib.TUTTI_BOOL}
PAIRS = {torch.complex64: lib.TUTTI_F32, torch.complex128: lib.TUTTI_F64, torch.complex32: lib.TUTTI_F16}
RULES = {"SUM": lib.TUTTI_SUM, "AVG": lib.TUTTI_AVERAGE, "PRODUCT": lib.TUTTI_PRODUCT, "MAX": lib.TUTTI_MAX,
         "MIN": lib.TUTTI_MIN, "BAND": lib.TUTTI_BAND, "BOR": lib.TUTTI_BOR, "BXOR": lib.TUTTI_BXOR}
_RULES = [(getattr(dist.ReduceOp, name), code) for name, code in RULES.items()]
_void = ffi.typeof("void *")
_no_time = datetime.timedelta()


def _rule(op: Any) -> int:
    for known, code in _RULES:  # ReduceOp has an equality, and neither a hash nor a name
        if op == known:
            return code
    raise NotImplementedError("the backend tutti has no such reduction (PREMUL_SUM?): use %s" % ", ".join(RULES))


def _numbers(t: Tensor, rule: int) -> Tuple[int, int]:
    """How many numbers t has, of which type. Complex numbers are pairs, which a sum adds one by one."""
    code = TYPES.get(t.dtype)
    if code is not None:
        return t.numel(), code
    if t.dtype in PAIRS and rule in (lib.TUTTI_SUM, lib.TUTTI_AVERAGE):
        return 2 * t.numel(), PAIRS[t.dtype]
    raise ValueError("the backend tutti does not reduce tensors of %s this way: use one of %s (complex: SUM or AVG)"
                     % (t.dtype, ", ".join(map(str, TYPES))))


def _at(t: Tensor) -> Any:
    return ffi.cast(_void, t.data_ptr())


def _bytes(t: Tensor) -> int:
    return int(t.numel() * t.element_size())


def _dense(t: Tensor) -> Tensor:
    """t itself, or a copy that is dense in C order."""
    if t.device.type != "cpu":
        raise ValueError("the backend tutti moves tensors on the CPU, and this one is on %s: call .cpu(), or name a "
                         "backend for the device: \"cpu:tutti,%s:...\"" % (t.device, t.device.type))
    if t.layout is not torch.strided:
        raise ValueError("the backend tutti moves dense tensors, and this one is %s: call .to_dense()" % t.layout)
    if t.is_contiguous() and not t.is_conj() and not t.is_neg():
        return t
    return t.detach().resolve_conj().resolve_neg().contiguous()


def _copy(of: Tensor, to: Tensor) -> Callable[[], Any]:
    return lambda: to.detach().copy_(of.view(to.shape))


def _written(t: Tensor, moves: Moves) -> Tensor:
    """What a call writes in the place of t; `moves` then gets how the result comes to t."""
    d = _dense(t)
    if d is not t:
        moves.append(_copy(d, t))
    return d


def _are_joined(tensors: Sequence[Tensor]) -> bool:
    """True if the tensors lie one behind another, as a split of one tensor does."""
    at = tensors[0].data_ptr()
    for t in tensors:
        if t.data_ptr() != at or not t.is_contiguous():
            return False
        at += _bytes(t)
    return True


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """A tensor that begins where the list does, if the list lies one behind another; else a copy of all."""
    dense = [_dense(t) for t in tensors]
    return dense[0] if _are_joined(dense) else torch.cat([t.detach().reshape(-1) for t in dense])


def _joined_output(tensors: Sequence[Tensor], moves: Moves) -> Tensor:
    """The same for what a call writes; `moves` then gets how the results come to their tensors."""
    if all(_dense(t) is t for t in tensors) and _are_joined(tensors):
        return tensors[0]
    flat = torch.empty(sum(t.numel() for t in tensors), dtype=tensors[0].dtype)
    moves += map(_copy, flat.split([t.numel() for t in tensors]), tensors)
    return flat


def _need_tensors(tensors: Sequence[Tensor], size: int, what: str) -> None:
    """A list of all ranks has a tensor for each rank: else the library would write behind the tensors."""
    if len(tensors) != size:
        raise ValueError("%s has %d tensors, and the group has %d ranks" % (what, len(tensors), size))


def _need_one_type(of: Tensor, to: Tensor) -> None:
    """torch does not look at the types of these calls, and the library moves bytes: the output would be garbage."""
    if of.dtype != to.dtype:
        raise ValueError("the output is of %s, and the input of %s: both are of one type" % (to.dtype, of.dtype))


class Layout(NamedTuple):
    """Blocks of memory, one for each rank: their bytes, and where the blocks begin, as arrays for the library."""

    c_lengths: Any
    c_places: Any


def _layout(lengths: List[int]) -> Layout:
    places = itertools.accumulate([0] + lengths[:-1])
    return Layout(ffi.new("size_t[]", lengths), ffi.new("size_t[]", list(places)))


def _rows(t: Tensor, split: Sequence[int], size: int) -> Layout:
    """The blocks of t, whose rows (of dimension 0) are split among the ranks."""
    rows = t.size(0) if t.dim() else 1
    if len(split) != size or sum(split) != rows:
        raise ValueError("%d rows cannot be split into %s among %d ranks" % (rows, list(split), size))
    return _layout([n * (_bytes(t) // max(rows, 1)) for n in split])


def _list(tensors: Any) -> List[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


@untraced
class Collectives:
    """What ProcessGroup and Backend have in common. torch gives lists of one tensor, and the options of the call."""

    _m: Membership

    def _start(self, calls: Sequence[Tuple[Any, ...]], hold: Any, result: Sequence[Tensor], opts: Any = None,
               moves: Sequence[Callable[[], Any]] = ()) -> Work:
        timeout = getattr(opts, "timeout", _no_time)
        return self._m.start(calls, hold, result, moves, seconds_of(timeout) if timeout > _no_time else None)

    # ---- reductions ----

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        """Combines a tensor of all ranks, in place."""
        return self.allreduce_coalesced(tensors, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        """Combines a list of tensors of all ranks, in place: one operation for each type in the list."""
        tensors = _list(tensors)
        rule = lib.TUTTI_SUM if opts is None else _rule(opts.reduceOp)
        moves: Moves = []
        dense = [_written(t, moves) for t in tensors]
        if len(dense) == 1:
            count, code = _numbers(dense[0], rule)
            at = _at(dense[0])
            return self._start([(lib.tutti_allreduce, at, at, count, code, rule)], dense, tensors, opts, moves)
        kinds: dict[int, list[tuple[Any, int, int]]] = {}
        for t in dense:
            count, code = _numbers(t, rule)
            kinds.setdefault(code, []).append((_at(t), count, code))
        calls = [(lib.tutti_allreduce_tensors, ffi.new("tutti_tensor[]", kind), len(kind), rule)
                 for kind in kinds.values()]
        return self._start(calls, dense, tensors, opts, moves)

    def reduce(self, tensors: Any, opts: Any) -> Work:
        """Combines a tensor of all ranks at the root, in place."""
        moves: Moves = []
        t = _written(_list(tensors)[0], moves)
        rule = _rule(opts.reduceOp)
        count, code = _numbers(t, rule)
        return self._start([(lib.tutti_reduce, _at(t), _at(t), count, code, rule, opts.rootRank)], t, tensors, opts,
                           moves if opts.rootRank == self._m.rank else ())

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        """Combines a list of blocks of all ranks, and gives each rank its block. Blocks may differ in size."""
        out, blocks = _list(outputs)[0], list(inputs[0])
        _need_tensors(blocks, self._m.size, "the input list of reduce_scatter")
        if len({t.numel() for t in blocks}) == 1:
            return self._reduce_scatter([(out, _joined(blocks))], opts, len(blocks) * _bytes(blocks[0]))
        moves: Moves = []
        rule, to, dense = _rule(opts.reduceOp), _written(out, moves), [_dense(t) for t in blocks]
        _need(_bytes(to), _bytes(dense[self._m.rank]), "the output of reduce_scatter")
        calls = [(lib.tutti_reduce, _at(t), _at(to), *_numbers(t, rule), rule, root) for root, t in enumerate(dense)]
        return self._start(calls, (dense, to), [out], opts, moves)

    def _reduce_scatter(self, pairs: Sequence[Tuple[Tensor, Tensor]], opts: Any, bytes: Optional[int] = None) -> Work:
        moves: Moves = []
        rule = lib.TUTTI_SUM if opts is None else _rule(opts.reduceOp)
        calls, hold = [], []
        for out, of in pairs:
            of, to = _dense(of), _written(out, moves)
            _need_one_type(of, to)
            _need(_bytes(of) if bytes is None else bytes, _bytes(to) * self._m.size, "the input of reduce_scatter")
            calls.append((lib.tutti_reduce_scatter, _at(of), _at(to), *_numbers(to, rule), rule))
            hold += [of, to]
        return self._start(calls, hold, [out for out, _ in pairs], opts, moves)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Combines a tensor of all ranks, and gives each rank its part."""
        return self._reduce_scatter([(output, input)], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """The same with lists of tensors."""
        return self._reduce_scatter(list(zip(outputs, inputs)), opts)

    # ---- what only moves bytes ----

    def broadcast(self, tensors: Any, opts: Any) -> Work:
        """Copies the root's tensor to all ranks."""
        moves: Moves = []
        t = _written(_list(tensors)[0], moves)
        return self._start([(lib.tutti_broadcast, _at(t), _bytes(t), opts.rootRank)], t, tensors, opts, moves)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Collects the ranks' tensors in a list, on all ranks. Tensors may differ in size."""
        outs, of = list(outputs[0]), _dense(_list(inputs)[0])
        _need_tensors(outs, self._m.size, "the output list of all_gather")
        moves: Moves = []
        to, lengths = _joined_output(outs, moves), [_bytes(t) for t in outs]
        _need(lengths[self._m.rank], _bytes(of), "the output of all_gather for this rank")
        if len(set(lengths)) == 1:
            call: Tuple[Any, ...] = (lib.tutti_allgather, _at(of), _bytes(of), _at(to))
        else:
            blocks = _layout(lengths)
            call = (lib.tutti_allgatherv, _at(of), _bytes(of), _at(to), blocks.c_lengths, blocks.c_places)
        return self._start([call], (of, to), outs, opts, moves)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Collects lists of tensors: outputs[r] is rank r's list."""
        works = [self.allgather([list(outs)], [of], opts) for outs, of in zip(zip(*outputs), inputs)]
        return self._m.join(works)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Collects the ranks' tensors in one tensor, on all ranks."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """The same with lists of tensors."""
        moves: Moves = []
        calls, hold = [], []
        for out, of in zip(outputs, inputs):
            of, to = _dense(of), _written(out, moves)
            _need_one_type(of, to)
            _need(_bytes(to), _bytes(of) * self._m.size, "the output of all_gather")
            calls.append((lib.tutti_allgather, _at(of), _bytes(of), _at(to)))
            hold += [of, to]
        return self._start(calls, hold, outputs, opts, moves)

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        """Collects the ranks' tensors in a list, at the root."""
        of, moves = _dense(_list(inputs)[0]), []  # type: Tensor, Moves
        if opts.rootRank != self._m.rank:
            return self._gather(of, of, [], opts, moves)
        outs = list(outputs[0])
        _need_tensors(outs, self._m.size, "the output list of gather")
        for t in outs:
            _need(_bytes(t), _bytes(of), "an output of gather")
        return self._gather(of, _joined_output(outs, moves), outs, opts, moves)

    def gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Work:
        """Collects the ranks' tensors in one tensor, at the root."""
        of, moves = _dense(input), []  # type: Tensor, Moves
        here = opts.rootRank == self._m.rank
        to = _written(output, moves) if here else of
        if here:
            _need(_bytes(to), _bytes(of) * self._m.size, "the output of gather")
        return self._gather(of, to, [output] if here else [], opts, moves)

    def _gather(self, of: Tensor, to: Tensor, result: Sequence[Tensor], opts: Any, moves: Moves) -> Work:
        call = (lib.tutti_gather, _at(of), _bytes(of), _at(to), opts.rootRank)
        return self._start([call] if _bytes(of) else [], (of, to), result, opts, moves)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        """Gives each rank its tensor of the root's list."""
        moves: Moves = []
        out = _list(outputs)[0]
        to = of = _written(out, moves)
        if opts.rootRank == self._m.rank:
            _need_tensors(inputs[0], self._m.size, "the input list of scatter")
            for t in inputs[0]:
                _need(_bytes(t), _bytes(to), "an input of scatter")
            of = _joined(inputs[0])
        call = (lib.tutti_scatter, _at(of), _bytes(to), _at(to), opts.rootRank)
        return self._start([call] if _bytes(to) else [], (of, to), [out], opts, moves)

    def all_to_all_single(self, output: Tensor, input: Tensor, output_split: Sequence[int], input_split: Sequence[int],
                          opts: Any = None) -> Work:
        """Exchanges blocks of rows. Without splits all blocks are of one size."""
        moves: Moves = []
        size, of, to = self._m.size, _dense(input), _written(output, moves)
        if output_split or input_split:
            given, taken = (_rows(t, split or [t.size(0) // size] * size, size)
                            for t, split in ((of, input_split), (to, output_split)))
            return self._alltoallv(of, given, to, taken, [output], opts, moves)
        _need(_bytes(to), _bytes(of), "the output of all_to_all")
        rows = of.size(0) if of.dim() else 1
        if rows % size:
            raise ValueError("%d rows of all_to_all_single are no %d blocks of one size: give splits" % (rows, size))
        call = (lib.tutti_alltoall, _at(of), _bytes(of) // size, _at(to))
        return self._start([call], (of, to), [output], opts, moves)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Exchanges tensors of lists. Tensors may differ in size."""
        moves: Moves = []
        _need_tensors(inputs, self._m.size, "the input list of all_to_all")
        _need_tensors(outputs, self._m.size, "the output list of all_to_all")
        of, to = _joined(inputs), _joined_output(outputs, moves)
        given, taken = _layout([_bytes(t) for t in inputs]), _layout([_bytes(t) for t in outputs])
        return self._alltoallv(of, given, to, taken, outputs, opts, moves)

    def _alltoallv(self, of: Tensor, given: Layout, to: Tensor, taken: Layout, result: Sequence[Tensor], opts: Any,
                   moves: Moves) -> Work:
        call = (lib.tutti_alltoallv, _at(of), given.c_lengths, given.c_places, _at(to), taken.c_lengths, taken.c_places)
        return self._start([call], (of, to), result, opts, moves)

    def barrier(self, opts: Any = None) -> Work:
        """Ends when every rank has called."""
        return self._start([(lib.tutti_barrier,)], None, [], opts)

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the ranks that did not come in time, all of them in any case."""
        timeout = getattr(opts, "timeout", opts)
        seconds = seconds_of(timeout) if timeout and timeout > _no_time else None
        self._m.start([(lib.tutti_barrier,)], None, [], (), seconds).wait()

    # ---- messages ----

    def send(self, tensors: Any, rank: int, tag: int = 0) -> Work:
        """Sends a tensor to a rank of the group."""
        t = _dense(_list(tensors)[0])
        return self._start([(lib.tutti_send, rank, tag, _at(t), _bytes(t))], t, [])

    def recv(self, tensors: Any, rank: int, tag: int = 0) -> Work:
        """Receives a tensor from a rank of the group."""
        moves: Moves = []
        out = _list(tensors)[0]
        t, info = _written(out, moves), ffi.new("tutti_message *")
        return self._m.start([(lib.tutti_recv, rank, tag, _at(t), _bytes(t), info)], (t, info), [out], moves, None,
                             (info, _bytes(t)))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receives a tensor from the rank that sends first."""
        return self.recv(tensors, -1, tag)

    # ---- several calls as one, and the end ----

    def start_coalescing(self, *_device: Any) -> None:
        """Calls until end_coalescing are one work."""
        self._m.batch = []

    def end_coalescing(self, *_device: Any) -> Work:
        """The work over all calls since start_coalescing."""
        works, self._m.batch = self._m.batch or [], None
        return self._m.join(works)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """How long later operations wait for ranks that live."""
        self._m.set_timeout(seconds_of(timeout))

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        """Cancels what is under way, and hangs up at once."""
        self._m.abort()

    def shutdown(self) -> None:
        """Waits for what is under way, and ends the group; of the default group, also the job."""
        self._m.close()

    def getBackendName(self) -> str:
        """ "tutti", for torch's C++."""
        return "tutti"

    _get_backend_name = name = getBackendName

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    gather_into_tensor = gather_single
    alltoall_base = all_to_all_single
    recvAnysource = recv_anysource


class ProcessGroup(Collectives, c10d.ProcessGroup):  # type: ignore[misc]
    """A torch group of the backend alone. New versions of torch reach its Backend by the device, too."""

    def __init__(self, membership: Membership, name: str) -> None:
        c10d.ProcessGroup.__init__(self, membership.rank, membership.size)
        self._m = membership
        self._names = [name, ""]
        if Backend is not None:
            membership.backend, kind = Backend(membership), c10d.ProcessGroup.BackendType.CUSTOM
            self._set_default_backend(kind)
            self._register_backend(torch.device("cpu"), kind, membership.backend)
        weakref.finalize(self, membership.close).atexit = False  # torch 1.13 has no word for the end of a group

    def getGroupName(self) -> str:
        """The group's name, for torch's C++."""
        return self._names[0]

    def setGroupName(self, name: str) -> None:
        """torch's C++ names the group."""
        self._names[0] = name

    def getGroupDesc(self) -> str:
        """The group's description, for torch's C++."""
        return self._names[1]

    def setGroupDesc(self, text: str) -> None:
        """torch's C++ describes the group."""
        self._names[1] = text


def _make_backend() -> Any:
    """The class Backend, if this torch lets Python define one."""
    base: Any = getattr(c10d, "Backend", None)
    try:
        base(0, 1)
    except TypeError:
        return None

    class Backend(Collectives, base):  # type: ignore[misc, valid-type]
        """What torch's own ProcessGroup calls for tensors on the CPU."""

        def __init__(self, membership: Membership) -> None:
            base.__init__(self, membership.rank, membership.size)
            self._m = membership

        # What torch's C++ asks about. The answers of the base class would ask the C++ again, for ever.
        supports_splitting = supports_coalescing = supports_shrinking = supports_reconfigure = False
        supports_window = _supports_time_estimate = False

        @property
        def options(self) -> Any:
            """torch reads the timeout of a group here."""
            return base.Options("tutti", datetime.timedelta(seconds=self._m.seconds))

    return Backend


Backend: Any = _make_backend()


def create(o: Any, _options: Any = None) -> Any:
    """Makes the group that torch asks for: called by init_process_group and new_group, on the members only."""
    seconds = seconds_of(o.timeout)
    world, group = enter(o.store, o.group_rank, o.group_size, seconds, list(o.global_ranks_in_group), o.group_id)
    membership = Membership(world, group, seconds)
    shared = getattr(o, "process_group", None)  # torch's own group, with the backend of another device
    if shared is None or shared._get_backend_name() == "custom":
        return ProcessGroup(membership, o.group_id)
    if Backend is None:
        membership.close()
        raise NotImplementedError("this version of torch takes the backend tutti alone: backend=\"tutti\"")
    membership.backend = Backend(membership)
    return membership.backend


def register() -> None:
    """Tells torch.distributed about the backend."""
    try:
        dist.Backend.register_backend("tutti", create, extended_api=True, devices=["cpu"])
    except TypeError:  # before 2.0 backends had no devices
        dist.Backend.register_backend("tutti", create, extended_api=True)
