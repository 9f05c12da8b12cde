"""Batches of arrays from one process to many, each batch to one of them.

The sender is rank 0 of a job that listens at the data port. A receiver joins it, and tells the sender how many batches
it can take: first as many as may wait, then one more with each batch that the program takes.

    | length of the list, 8 bytes | JSON list of types and shapes | padding to 64 | array | padding | array ...
"""
from __future__ import annotations

import json
import struct
from typing import Any, Dict, List, Sequence, Tuple

import numpy

import tutti

from ..util import PlatoonError
from ._desk import join_job, open_job

_WANT, _BATCH = 1, 2  # tags
_ALIGN = 64
_SLICE = 0.05         # seconds, after which a wait looks who has gone


def _up(n: int) -> int:
    return (n + _ALIGN - 1) // _ALIGN * _ALIGN


def pack(arrays: Sequence[Any]) -> Any:
    """The arrays as bytes. Raises TypeError for arrays of objects."""
    dense = [a if a.flags.f_contiguous and a.ndim > 1 else numpy.ascontiguousarray(a).reshape(a.shape)
             for a in map(numpy.asarray, arrays)]
    for array in dense:
        if array.dtype.hasobject:
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
    """The arrays of such bytes, which stay where they are."""
    length, = struct.unpack("<q", data[:8].tobytes())
    arrays, at = [], _up(8 + length)
    for head in json.loads(data[8:8 + length].tobytes()):
        order: Any = "F" if head["fortran_order"] else "C"
        arrays.append(numpy.ndarray(head["shape"], numpy.dtype(head["descr"]), data, at, order=order))
        at += _up(arrays[-1].nbytes)
    return arrays


class Sender:
    """Where batches come from. Raises tutti.errors.AddressInUse."""

    def __init__(self, port: int) -> None:
        self._job = open_job(port)
        self._everyone, self._watch = self._job.everyone(), self._job.watch()
        self._wants: Dict[int, int] = {}  # how many batches a rank can take
        self._sent: List[Tuple[tutti.Operation, Any]] = []
        self._want = numpy.zeros(1, "int64")
        self._hear = self._everyone.recv_start(self._want, None, _WANT)

    def send(self, arrays: Sequence[Any]) -> None:
        """Sends a copy to the receiver that can take most. Blocks until one can. Raises TypeError."""
        self._start(pack(arrays))
        self._settle()

    def _start(self, batch: Any) -> None:
        while not any(self._wants.values()):
            self._listen(_SLICE)
        rank = max(self._wants, key=self._wants.__getitem__)
        self._wants[rank] -= 1
        try:
            self._sent.append((self._everyone.send_start(batch, rank, _BATCH), batch))
        except ConnectionError:
            self._start(batch)

    def _listen(self, timeout: float) -> None:
        """Hears which receivers can take more, and which have gone."""
        try:
            rank = self._hear.wait(timeout).rank
            self._wants[rank] = self._wants.get(rank, 0) + int(self._want[0])
            self._hear = self._everyone.recv_start(self._want, None, _WANT)
        except tutti.errors.InProgress:
            pass
        for change in iter(self._watch.take, None):
            if change.what != "joined":
                self._wants.pop(change.rank, None)

    def _settle(self) -> None:
        """Forgets the batches that have arrived. Those whose receiver has gone go to others."""
        ended = [entry for entry in self._sent if entry[0].done()]
        self._sent = [entry for entry in self._sent if not entry[0].done()]
        for operation, batch in ended:
            if operation.exception() is not None:
                self._start(batch)

    def close(self) -> None:
        """Waits until receivers have all batches, or are gone. Harmless twice."""
        while self._sent and self._job._handle is not None:
            self._listen(_SLICE)
            if not self._wants:
                break
            self._settle()
        self._job.leave()


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
