"""Requests and answers between a controller and workers who come and go.

The controller is rank 0 of a job that begins with one rank and listens at the control port. A worker joins this job as
a new rank. A request is a message, and so is its answer: JSON of any length.
"""
from __future__ import annotations

import json
import os
from typing import Any, Dict, List, NamedTuple, Optional

import tutti

from ..util import PlatoonError

_REQUEST, _ANSWER = 1, 2  # tags
_NEWCOMERS = 1024


class Query(NamedTuple):
    """A worker's request: the worker's rank, and what it has sent."""

    rank: int
    number: int
    content: Dict[str, Any]


def join(**config: Any) -> tutti.Job:
    """Joins with waits that sleep at once: other workers of this host need the cores that a wait would poll on."""
    asked = os.environ.get("TUTTI_SPIN")
    os.environ["TUTTI_SPIN"] = asked or "no"
    try:
        return tutti.Job(**config)
    finally:
        if asked is None:
            del os.environ["TUTTI_SPIN"]


def open_job(port: int) -> tutti.Job:
    """A job of this process, to which others come. Raises tutti.errors.AddressInUse."""
    return join(boot="127.0.0.1:%d" % port, rank=0, ranks=1, newcomers=_NEWCOMERS)


def join_job(port: int, timeout: float) -> tutti.Job:
    """Joins such a job. timeout: seconds, for joining and for each wait. Raises PlatoonError."""
    try:
        return join(boot="127.0.0.1:%d" % port, timeout=timeout)
    except TimeoutError as e:
        raise PlatoonError("no controller answers at port %d" % port, e) from None


class Desk:
    """The controller's side."""

    def __init__(self, port: int) -> None:
        self.job = open_job(port)
        self._everyone, self._watch = self.job.everyone(), self.job.watch()
        self._place = bytearray(1 << 16)
        self._next: Optional[tutti.Operation] = None

    def take(self, timeout: float) -> Optional[Query]:
        """The next request; None: there is none for so many seconds."""
        if self._next is None:
            self._next = self._everyone.recv_start(self._place, None, _REQUEST)
        try:
            message = self._next.wait(timeout)
        except tutti.errors.InProgress:
            return None
        except tutti.errors.MessageTooLong:  # the message stays
            self._place, self._next = bytearray(self._everyone.probe(None, _REQUEST).bytes), None
            return self.take(timeout)
        self._next = None
        content = json.loads(bytes(self._place[:message.bytes]))
        return Query(message.rank, content.pop("number"), content)

    def answer(self, query: Query, answer: Any = None, error: str = "") -> None:
        """Answers. error: a sentence that the worker's request raises. A worker that has gone gets nothing."""
        reply = {"number": query.number, "error": error} if error else {"number": query.number, "answer": answer}
        data = json.dumps(reply).encode()
        try:
            self._everyone.send(data, query.rank, _ANSWER)
        except ConnectionError:
            pass

    def changes(self) -> List[tutti.Change]:
        """The workers that have come or gone since the last call."""
        return list(iter(self._watch.take, None))

    def close(self) -> None:
        """Leaves the job. Requests of workers then raise an error."""
        self.job.leave()


class Caller:
    """A worker's side. timeout: seconds."""

    def __init__(self, port: int, timeout: float) -> None:
        self.job = join_job(port, timeout)
        self.everyone = self.job.everyone()
        self._number = 0

    def ask(self, content: Dict[str, Any]) -> Any:
        """Asks, and returns the answer. Raises PlatoonError; tutti.errors.RankDied or RankLeft: of the controller."""
        self._number += 1
        self.everyone.send(json.dumps({"number": self._number, **content}).encode(), 0, _REQUEST)
        try:
            reply = self._receive()
            while reply["number"] != self._number:  # of a request that was given up
                reply = self._receive()
        except TimeoutError as e:
            raise PlatoonError("Control Socket: recv timeout", e) from None
        if "error" in reply:
            raise PlatoonError(reply["error"])
        return reply["answer"]

    def _receive(self) -> Dict[str, Any]:
        data = bytearray(self.everyone.probe(0, _ANSWER).bytes)
        self.everyone.recv(data, 0, _ANSWER)
        reply: Dict[str, Any] = json.loads(bytes(data))
        return reply

    def close(self) -> None:
        """Leaves the job."""
        self.job.leave()
