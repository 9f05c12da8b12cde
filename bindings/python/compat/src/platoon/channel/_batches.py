"""Batches of arrays from one process to many, each batch to one of them.

The sender is rank 0 of a job that listens at the data port. A receiver joins it, and tells the sender how many batches
it can take: first as many as may wait, then one more with each batch that the program takes.

    | length of the list, 8 bytes | JSON list of types and shapes | padding to 64 | array | padding | array ...
"""
from __future__ import annotations

import json
import struct
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import numpy

import tutti

from ..util import PlatoonError
from ._desk import join_job, open_job

_WANT, _BATCH = 1, 2  # tags
_ALIGN = 64
_SLICE = 0.05         # seconds, after which a wait looks who has gone


def _up(n: int) -> int:
    return (n + _ALIGN - 1) // _ALIGN * _ALIGN


def _is_of_numbers(dtype: Any) -> bool:
    """Objects are addresses of their process, and types with fields do not pass through JSON."""
    return not dtype.hasobject and dtype.names is None and dtype.itemsize > 0


def pack(arrays: Sequence[Any]) -> Any:
    """The arrays as bytes. Raises TypeError for arrays of objects, and for those whose elements have fields."""
    dense = [a if a.flags.f_contiguous and a.ndim > 1 else numpy.ascontiguousarray(a).reshape(a.shape)
             for a in map(numpy.asarray, arrays)]
    for array in dense:
        if not _is_of_numbers(array.dtype):
            raise TypeError("a batch has arrays of numbers, and this one of %s" % array.dtype)
    heads = json.dumps([numpy.lib.format.header_data_from_array_1_0(a) for a in dense]).encode()
    at = _up(8 + len(heads))
    data = numpy.zeros(at + sum(_up(a.nbytes) for a in dense), "uint8")
    data[:8 + len(heads)] = bytearray(struct.pack("<q", len(heads)) + heads)
    for array in dense:
        data[at:at + array.nbytes] = array.ravel(order="K").view("uint8")
        at += _up(array.nbytes)
    return data


def unpack(data: Any) -> List[Any]:
    """The arrays of such bytes, which stay where they are. Raises PlatoonError: they come from no Sender."""
    try:
        return _arrays_in(data)
    except (ValueError, TypeError, KeyError, SyntaxError, OverflowError, struct.error) as e:
        raise PlatoonError("what has come at the data port is no batch of arrays", e) from None


def _arrays_in(data: Any) -> List[Any]:
    length, = struct.unpack("<q", data[:8].tobytes())
    arrays, at = [], _up(8 + length)
    for head in json.loads(data[8:8 + length].tobytes()):
        order: Any = "F" if head["fortran_order"] else "C"
        dtype = numpy.dtype(str(head["descr"]))
        if not _is_of_numbers(dtype):
            raise TypeError("a batch has arrays of numbers, and this one of %s" % dtype)
        arrays.append(numpy.ndarray(head["shape"], dtype, data, at, order=order))
        at += _up(arrays[-1].nbytes)
    return arrays


class Sender:
    """Where batches come from. Raises tutti.errors.AddressInUse."""

    def __init__(self, port: int) -> None:
        self._job = open_job(port)
        self._everyone, self._watch = self._job.everyone(), self._job.watch()
        self._here: Set[int] = set()      # the receivers that have come, and not gone
        self._wants: Dict[int, int] = {}  # how many batches a receiver can take
        self._unsent: List[Any] = []      # batches that no receiver could take yet
        self._sent: List[Tuple[tutti.Operation, Any]] = []
        self._busy = threading.RLock()    # a thread may send while another one serves
        self._want = numpy.zeros(1, "int64")
        self._hear = self._everyone.recv_start(self._want, None, _WANT)

    def send(self, arrays: Sequence[Any]) -> None:
        """Sends a copy to the receiver that can take most. Blocks until one can. Raises TypeError."""
        batch = pack(arrays)
        with self._busy:
            self._unsent.append(batch)
            while self._step():
                self._listen(_SLICE)

    def settle(self) -> None:
        """Gives the batches whose receiver has gone to others, if no other thread does so now."""
        if self._sent and self._busy.acquire(blocking=False):
            try:
                self._listen(0)
                self._step()
            finally:
                self._busy.release()

    def _step(self) -> bool:
        """Starts batches, also those whose receiver has gone. True: some have no receiver that can take them."""
        sent, self._sent = self._sent, []
        for entry in sent:
            if not entry[0].done():
                self._sent.append(entry)
            elif entry[0].exception() is not None:
                self._unsent.append(entry[1])
        while self._unsent and any(self._wants.values()):
            self._start(max(self._wants, key=self._wants.__getitem__))
        return bool(self._unsent)

    def _start(self, rank: int) -> None:
        self._wants[rank] -= 1
        try:
            self._sent.append((self._everyone.send_start(self._unsent[0], rank, _BATCH), self._unsent[0]))
            del self._unsent[0]
        except ConnectionError:
            self._wants[rank] = 0

    def _listen(self, timeout: float) -> None:
        """Hears which receivers can take more, and which have gone."""
        try:
            rank: Optional[int] = self._hear.wait(timeout).rank
            count = int(self._want[0])
            self._hear = self._everyone.recv_start(self._want, None, _WANT)
        except tutti.errors.InProgress:
            rank, count = None, 0
        for change in iter(self._watch.take, None):
            if change.what == "joined":
                self._here.add(change.rank)
            else:
                self._here.discard(change.rank)
                self._wants.pop(change.rank, None)
        if rank in self._here:  # what a receiver has said before it went is heard after that
            self._wants[rank] = self._wants.get(rank, 0) + count

    def close(self, timeout: Optional[float] = None) -> None:
        """Waits until receivers have all batches, or are gone. timeout: seconds, after which no receiver gets the rest;
        None: no limit. Harmless twice."""
        held = self._busy.acquire(timeout=-1 if timeout is None else timeout)
        try:
            if held and self._job._handle is not None:
                self._drain(None if timeout is None else time.monotonic() + timeout)
            for operation, _ in self._sent:
                operation.cancel()  # leave() would wait for it
            self._job.leave()
        finally:
            if held:
                self._busy.release()

    def _drain(self, deadline: Optional[float]) -> None:
        while self._step() or self._sent:
            if deadline is not None and time.monotonic() >= deadline:
                break
            self._listen(_SLICE)
            if not self._here:
                break


class Receiver:
    """Where batches go to. timeout: seconds. Raises PlatoonError."""

    def __init__(self, port: int, hwm: int, timeout: float) -> None:
        self._job = join_job(port, timeout)
        self._everyone = self._job.everyone()
        self._ask(hwm)

    def _ask(self, count: int) -> None:
        self._everyone.send(numpy.array([count], "int64"), 0, _WANT)

    def receive(self) -> List[Any]:
        """The next batch. Raises PlatoonError; tutti.errors.RankLeft, RankDied: the sender has closed, or is gone."""
        try:
            data = numpy.empty(self._everyone.probe(0, _BATCH).bytes, "uint8")
        except TimeoutError as e:
            raise PlatoonError("Batch socket: recv timeout", e) from None
        self._everyone.recv(data, 0, _BATCH)
        try:
            self._ask(1)
        except ConnectionError:
            pass  # the sender has closed; its batches are here
        return unpack(data)

    def close(self) -> None:
        """Leaves the job. Harmless twice."""
        self._job.leave()
