"""A controller answers what its workers ask. A queue gives batches to workers."""
from __future__ import annotations

import contextlib
import errno
import logging
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence

from . import errors
from ._buffer import BF16, NAMES, SIZES, need_c_order, readable, tensors
from ._call import call, ffi, lib, milliseconds
from ._handle import Handle
from ._model import as_list
from .group import Group

_WHAT = {lib.TUTTI_JOINED: "asks", lib.TUTTI_LEFT: "done", lib.TUTTI_GONE: "gone"}
_new_answer = ffi.new_allocator(should_clear_after_alloc=False)
_log = logging.getLogger("tutti")


class Request(NamedTuple):
    """What a controller is told. worker: a rank of the group. what: "asks", "done" (or left the job) or "gone"."""

    worker: int
    what: str
    data: bytes  # of a request, up to 16384 bytes


class _Lock:
    """The controller's lock, which this rank has: a `with` block frees the lock."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        self._controller.unlock()


class Controller(Handle):
    """One rank of the group is the controller. The other ranks are workers: they ask, and the controller answers.

    name: 1 to 160 bytes. controller: the controller's rank in the group. group: None: the default job. Opening does
    not block. A handle takes one call at a time: a second call raises UnderWay. Calls of a worker wait for the
    controller, and raise TimedOut (the controller lives, and has not answered), RankDied, RankLeft, ShutDown (the
    controller has stopped serving), Stale (the controller has closed the handle). Timeouts are seconds; None: the
    group's timeout. If a signal's handler raises, the wait ends; the next call of the same kind continues the request.
    """

    _end = lib.tutti_controller_close

    def __init__(self, name: str, controller: int = 0, group: Optional[Group] = None) -> None:
        self._open(lib.tutti_controller_open, "tutti_controller **", group, name, controller)

    # ---- the controller ----

    def serve(self, function: Callable[[Request], Any]) -> None:
        """Answers until each worker is done or gone, or stop() was called.

        function(request) returns the answer: up to 16384 bytes, or None for an empty answer. The loop also calls the
        function once for each worker that is done or gone, and ignores the result. If the function raises, the loop
        logs the exception, and the worker's call raises: an Error of the same class, or else FunctionFailed. Then the
        loop continues, but KeyboardInterrupt and SystemExit end the loop. On this controller the function may call
        stop() alone.
        """
        request = self.next()
        while request is not None:
            self._serve(function, request)
            request = self.next()

    def _serve(self, function: Callable[[Request], Any], request: Request) -> None:
        answer, error = None, None  # type: Any, Optional[BaseException]
        try:
            answer = function(request)
        except BaseException as e:
            _log.error("controller %r: the answer to rank %d failed", self.name, request.worker, exc_info=True)
            error = e
        if request.what == "asks":
            self._reply(request.worker, answer, error)
        if error is not None and not isinstance(error, Exception):
            raise error

    def _reply(self, worker: int, answer: Any, error: Optional[BaseException]) -> None:
        """Sends the answer, or an error if the answer is no bytes. next() reports a worker that has gone meanwhile."""
        with contextlib.suppress(errors.Error):
            try:
                self.answer(worker, answer, error)
            except ValueError as e:
                _log.error("controller %r: the answer to rank %d is none: %s", self.name, worker, e)
                self.answer(worker, error=e)

    def next(self, timeout: Optional[float] = None) -> Optional[Request]:
        """Waits for the next request, and serves locks and firsts meanwhile. None: each worker is done or gone.

        A worker that asks waits for answer(). The controller may take requests of other workers before it answers.
        timeout: seconds; None: no limit; 0: does not wait. Raises TimedOut: no worker has asked.
        """
        r = ffi.new("tutti_request *")
        if not call(lib.tutti_controller_next, self._handle, r, milliseconds(timeout)):
            return None
        return Request(r.worker, _WHAT[r.what], ffi.buffer(r.data, r.bytes)[:] if r.bytes else b"")

    def answer(self, worker: int, answer: Any = None, error: Optional[BaseException] = None) -> None:
        """Answers a worker's request: with bytes, or with an error that the worker's ask() raises. From any thread.

        error: an Error keeps its class, all else is FunctionFailed there. Does not block. Raises InvalidArgument (the
        worker has no open request), RankDied, RankLeft, MessageTooLong (the request stays open).
        """
        code = 0
        if error is not None:
            ours = isinstance(error, errors.Error) and error.errno
            code = error.errno if ours else errno.EREMOTEIO  # type: ignore[attr-defined]
            answer = (str(error) if ours else "%s: %s" % (type(error).__name__, error)).encode()[:1000]
        b = readable(b"" if answer is None else answer)
        call(lib.tutti_controller_answer, self._handle, worker, -code, b.pointer, b.bytes)

    def stop(self) -> None:
        """Ends serve() and next() after 160 ms at most. Any thread may call stop(), also the function that answers."""
        lib.tutti_controller_stop(self._handle)

    # ---- the workers ----

    def ask(self, request: Any = b"", timeout: Optional[float] = None) -> bytes:
        """Asks, and returns the answer; both have up to 16384 bytes. Raises the error that the controller answered."""
        b, n = readable(request), ffi.new("size_t *")
        answer = _new_answer("char[]", lib.TUTTI_REQUEST_MAX)
        call(lib.tutti_controller_ask, self._handle, b.pointer, b.bytes, answer, lib.TUTTI_REQUEST_MAX, n,
             milliseconds(timeout))
        return bytes(ffi.buffer(answer, n[0]))

    def done(self) -> None:
        """Says that this worker asks no more. Frees the lock if this worker has the lock."""
        call(lib.tutti_controller_done, self._handle)

    def first(self) -> bool:
        """True for the worker that is the first to make its k-th call, for each k."""
        return bool(call(lib.tutti_controller_first, self._handle))

    def lock(self, timeout: Optional[float] = None) -> _Lock:
        """Takes the controller's one lock: `with c.lock(): ...`, or unlock() later. Workers get it in turn.

        timeout: seconds; 0: does not wait. Raises InUse (another worker still has the lock), Deadlock (this worker has
        the lock already).
        """
        call(lib.tutti_controller_lock, self._handle, milliseconds(timeout))
        return _Lock(self)

    def unlock(self) -> None:
        """Frees the lock. Raises Refused: this worker does not have the lock."""
        call(lib.tutti_controller_unlock, self._handle)


class Queue(Handle):
    """One rank is the producer, and sends batches. Each batch goes to one of the other ranks, the workers.

    A batch is a list of arrays. name: 1 to 160 bytes. producer: the producer's rank in the group. bytes: the largest
    size of a batch. depth: how many batches may wait. All ranks give the same arguments. group: None: the default job.
    Opening does not block. A handle takes one call at a time: a second call raises UnderWay. Timeouts are seconds;
    None: the group's timeout; 0: does not wait.

    A worker has done with a batch when the worker takes the next batch or closes the queue. If a worker dies, its
    batches go to other workers: no batch is lost, and the batch that the worker had taken may be processed twice.
    """

    _end = lib.tutti_queue_close

    def __init__(self, name: str, producer: int, bytes: int, depth: int = 10, group: Optional[Group] = None) -> None:
        self._open(lib.tutti_queue_open, "tutti_queue **", group, name, producer, bytes, depth)

    def send(self, arrays: Sequence[Any], timeout: Optional[float] = None) -> None:
        """Sends a copy of 1 to 16 arrays, of types of the library. Blocks while the queue is full.

        arrays: a list of arrays, or one array.

        Raises TimedOut (the queue is still full), MessageTooLong, RankDied (all workers are gone), ShutDown (the queue
        has ended).
        """
        array, hold = tensors(as_list(arrays), lambda x: need_c_order(readable(x)))
        call(lib.tutti_queue_send, self._handle, array, len(array), milliseconds(timeout))
        del hold

    def receive(self, timeout: Optional[float] = None) -> List[Any]:
        """Takes the next batch: its arrays, of one dimension; []: the producer has ended the queue.

        The arrays are NumPy arrays, and copies. bfloat16 comes as uint16. Raises TimedOut (no batch has come), RankDied
        and RankLeft (the producer is gone).
        """
        place = ffi.new("tutti_tensor **")
        n = call(lib.tutti_queue_receive, self._handle, place, milliseconds(timeout))
        return [_copy(place[0][i]) for i in range(n)]

    def end(self, timeout: Optional[float] = None) -> int:
        """The producer has no more: waits until workers have done with all batches.

        Returns how many batches were given to another worker. Raises TimedOut (call again), RankDied (all workers
        are gone, with batches left).
        """
        return call(lib.tutti_queue_end, self._handle, milliseconds(timeout))

    def __iter__(self) -> Iterator[List[Any]]:
        """Takes batches until the producer has ended the queue."""
        batch = self.receive()
        while batch:
            yield batch
            batch = self.receive()


def _copy(tensor: Any) -> Any:
    import numpy
    array = numpy.empty(tensor.count, "uint16" if tensor.type == BF16 else NAMES[tensor.type])
    if tensor.count:
        ffi.memmove(array, tensor.data, tensor.count * SIZES[tensor.type])
    return array
