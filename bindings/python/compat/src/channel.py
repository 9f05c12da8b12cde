"""Platoon's oldest names: a Lieutenant is the controller, and Soldiers are its workers. All are started by hand."""
from __future__ import annotations

import atexit
import errno
import fcntl
import os
import time
from typing import Any, Dict, List, Optional, Sequence

from platoon import _memory
from platoon.channel import controller as _controller
from platoon.channel._batches import Receiver
from platoon.channel._desk import Caller
from platoon.channel._params import SharedParams
from platoon.param_sync import ParamSyncRule
from platoon.util import PlatoonError

__all__ = ["Lieutenant", "Soldier"]
_PATIENCE = 5.0  # seconds, in which an ending process waits for the lock


class Lieutenant(_controller.Controller):
    """Answers workers: derive a class, and override handle_control(req, worker_id).

    port: of the batches. cport: of the requests. hwm: has no effect here; the workers say how many batches wait.
    """

    def __init__(self, port: Optional[int] = None, cport: Optional[int] = None, hwm: int = 10) -> None:
        super().__init__(control_port=cport or 0, data_port=port, data_hwm=hwm)

    def init_control(self, port: int) -> None:
        """Says at which port serve() listens. Call it before serve()."""
        self._control_port = port

    def handle_control(self, req: Any, worker_id: int) -> Any:  # type: ignore[override]
        """Override it: returns the answer to a worker's request, which JSON can hold."""
        return super().handle_control(req, worker_id, None)

    def _handle(self, content: Dict[str, Any]) -> Any:
        return self.handle_control(content["req"], content["worker_id"])

    def serve(self) -> int:
        """Answers until a worker has come, and none is left; see platoon.channel.Controller. Returns its status."""
        if not self._control_port:
            raise RuntimeError("the Lieutenant has no port for requests: call init_control(port) first")
        return super().serve()


class Soldier(SharedParams):
    """A worker. port: of the batches. cport: of the requests. A port alone is that of the requests.

    socket_timeout (also socket_timout): milliseconds, for joining and for each wait. hwm: how many batches may wait.
    """

    def __init__(self, port: Optional[int] = None, cport: Optional[int] = None, socket_timeout: int = 300000,
                 hwm: int = 10, socket_timout: Optional[int] = None) -> None:
        self._timeout = (socket_timeout if socket_timout is None else socket_timout) / 1000
        self._worker_id = os.getpid()
        if cport is None:
            port, cport = None, port
        if cport is not None:
            self.init_control_sock(cport)
        if port is not None:
            self.init_mb_sock(port, hwm)

    def init_control_sock(self, port: int) -> None:
        """Joins the Lieutenant, which may start later."""
        self._caller = Caller(port, self._timeout)

    def init_mb_sock(self, port: int, hwm: int = 10) -> None:
        """Opens the batches of the Lieutenant's port. hwm: how many may wait here."""
        self.asocket = Receiver(port, hwm, self._timeout)

    def send_req(self, req: Any) -> Any:
        """Asks the Lieutenant, and returns its answer. Raises PlatoonError, tutti.errors.RankDied, RankLeft."""
        if not hasattr(self, "_caller"):
            raise RuntimeError("this Soldier has no port for requests: call init_control_sock(port) first")
        return self._caller.ask({"worker_id": self._worker_id, "req": req, "req_info": None})

    def recv_mb(self) -> List[Any]:
        """The next batch, a list of arrays. Raises PlatoonError: none has come within socket_timeout."""
        if not hasattr(self, "asocket"):
            raise RuntimeError("this Soldier has no port for batches: call init_mb_sock(port) first")
        return self.asocket.receive()

    def init_shared_params(self, job_name: str, params: Sequence[Any], param_sync_rule: ParamSyncRule,
                           cleanup: bool = False) -> None:
        """Opens the shared parameters of a name. The first worker gives cleanup=True: they begin with its values.

        Others wait for them, up to socket_timeout. When the last process that has them ends, they are removed.
        Raises PlatoonError: they have other shapes or types, FileNotFoundError: nobody has given them.
        """
        name, values = job_name + "params", self._set_rule(list(params), param_sync_rule)
        deadline, fd = time.monotonic() + self._timeout, None
        while fd is None:
            lock = _take_lock(job_name + "lock", deadline)
            try:
                if cleanup:
                    _memory.publish(name, values)
                fd = self._open_params(name, values, cleanup)
            finally:
                if fd is None:
                    lock.close()
                else:
                    lock.release()
            if fd is None:
                _pause(name, deadline)
        self._lock = lock
        atexit.register(_remove_if_last, name, fd, lock, os.getpid())

    def _open_params(self, name: str, values: List[Any], mine: bool) -> Optional[int]:
        """Takes the parameters if they are this process's, or another one uses them. None: they are not there.

        Returns a descriptor by which other processes see that this one uses them. This process has the lock.
        """
        try:
            memory = _memory.SharedMemory(name)
        except FileNotFoundError:
            return None
        fd = os.dup(memory.fd)
        try:
            if mine or not _is_alone(fd):
                fcntl.flock(fd, fcntl.LOCK_SH)
                self.shared_params = _memory.attach(memory, values)
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # of a run that was killed
        memory.close_fd()
        return None

    def lock_params(self, timeout: Optional[float] = None) -> None:
        """Takes the lock. timeout: seconds; 0: does not wait; None: no limit. Raises PlatoonError."""
        self._need_lock().acquire(timeout)

    def unlock_params(self) -> None:
        """Frees the lock. Raises PlatoonError: this worker does not have it."""
        self._need_lock().release()


def _take_lock(name: str, deadline: float) -> _memory.Lock:
    """The lock of that name, which this process then has. Raises PlatoonError."""
    while True:
        lock = _memory.Lock(name)
        try:
            lock.acquire(max(0.0, deadline - time.monotonic()))
            if lock.is_at_name():
                return lock
        except BaseException:
            lock.close()
            raise
        lock.close()  # the last process of an earlier run has removed it meanwhile


def _pause(name: str, deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise FileNotFoundError(errno.ENOENT, "nobody has given the shared parameters: one worker gives cleanup=True",
                                name)
    time.sleep(0.02)


def _is_alone(fd: int) -> bool:
    """True if no other process uses the parameters. While nobody else asks: this process has the lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _remove_if_last(name: str, fd: int, lock: _memory.Lock, pid: int) -> None:
    """At exit: removes the parameters and their lock, unless others use them, or a new run has put its own there."""
    if pid != os.getpid():
        return  # a fork's child
    try:
        if not lock.held:
            lock.acquire(_PATIENCE)
        if _memory.is_at(name, fd) and _is_alone(fd):
            _memory.remove(name)
            _memory.remove(lock.name)
    except PlatoonError:
        pass  # a worker that goes on has the lock, and uses the parameters
    finally:
        os.close(fd)
        lock.close()
