"""A worker: one process of an experiment, which trains."""
from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
import time
from typing import Any, Dict, List, NoReturn, Optional, Tuple

import numpy

import tutti

from .. import _memory
from .._variables import assign, new_like, refuse_gpu, value_of
from ..param_sync import ParamSyncRule
from ..util import PlatoonError, SingletonType, op_to_tutti
from ._batches import Receiver
from ._desk import Caller
from ._params import SharedParams

_PAUSE = 0.02  # seconds, between two looks at who is there


class Worker(SharedParams, metaclass=SingletonType):
    """This process's worker: `Worker(...)` again returns the same one.

    control_port, data_port: of the controller on this host, which may start later. socket_timeout: milliseconds, for
    joining and for each wait. data_hwm: how many batches may wait here. From now on SIGINT, by which a controller
    ends its workers, ends the process with status 1. Raises PlatoonError: no controller answers.

    Attributes: shared_params, shared_arrays (arrays by their bytes).
    """

    def __init__(self, control_port: int, data_port: Optional[int] = None, socket_timeout: int = 300000,
                 data_hwm: int = 10, port: Optional[int] = None) -> None:
        if port is not None:
            raise RuntimeError("Worker has no argument port: give data_port, as for the Controller")
        self._socket_timeout = socket_timeout
        self._worker_id = os.getpid()
        self._group: Optional[tutti.Group] = None
        self._memory: Dict[int, Any] = {}  # by its bytes
        self._shmem_names: Dict[int, str] = {}
        self.shared_arrays: Dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._handle_force_close)
        self._caller = Caller(control_port, socket_timeout / 1000)
        try:
            self._register_to_platoon()
            if data_port:
                self.init_mb_sock(data_port, data_hwm)
        except BaseException:
            self.close()
            raise

    # ---- requests ----

    def send_req(self, req: Any, info: Any = None) -> Any:
        """Asks the controller, and returns its answer. All three are what JSON can hold.

        Raises PlatoonError (no answer within socket_timeout, or the controller has failed), tutti.errors.RankDied and
        RankLeft (the controller is gone).
        """
        return self._caller.ask({"worker_id": self._worker_id, "req": req, "req_info": info})

    def _register_to_platoon(self) -> None:
        self._job_uid = self.send_req("platoon-get_job_uid")
        self._lock = _memory.Lock("%s_lock" % self._job_uid)
        found = re.findall(r"device=([^,]+)", os.environ.get("THEANO_FLAGS", ""))
        info = self.send_req("platoon-get_platoon_info",
                             {"device": found[-1] if found else None, "local_id": str(self._worker_id)})
        self._local_size, self._local_rank = info["local_size"], info["local_rank"]
        self._global_size, self._global_rank = info["global_size"], info["global_rank"]
        self._multinode = info["multinode"]

    @property
    def local_size(self) -> int:
        """How many workers this host has: the controller's devices."""
        return int(self._local_size)

    @property
    def local_rank(self) -> int:
        """Which of them this is: the number of its device."""
        return int(self._local_rank)

    @property
    def global_size(self) -> int:
        """How many workers there are."""
        return int(self._global_size)

    @property
    def global_rank(self) -> int:
        """Which of them this is."""
        return int(self._global_rank)

    # ---- the lock, shared parameters ----

    def lock(self, timeout: Optional[float] = None) -> None:
        """Takes the lock of the host's workers. timeout: seconds; 0: does not wait; None: no limit.

        The lock is freed when its holder dies. Raises PlatoonError: another worker still has it, or this one has it
        already.
        """
        self._need_lock().acquire(timeout)

    def unlock(self) -> None:
        """Frees the lock. Raises PlatoonError: this worker does not have it."""
        self._need_lock().release()

    def init_shared_params(self, params: List[Any], param_sync_rule: ParamSyncRule) -> None:
        """Opens the shared parameters, which begin with the values of the first worker that calls this.

        params: NumPy arrays, torch tensors, or objects with get_value and set_value. Raises PlatoonError: the first
        worker's parameters have other shapes or types.
        """
        name, values = "%s_params" % self._job_uid, self._set_rule(params, param_sync_rule)
        with self._locked(True):
            try:
                memory = _memory.SharedMemory(name)
            except FileNotFoundError:
                _memory.publish(name, values)
                memory = _memory.SharedMemory(name)
            self.shared_params = _memory.attach(memory, values)

    # ---- all-reduce ----

    def shared(self, array: Any) -> Any:
        """Memory of the array's size, type and shape that all workers of the host and the controller share.

        All workers call it, with arrays of the same size. One size has one memory.
        """
        refuse_gpu(array)
        order: Any = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        known = self.shared_arrays.get(array.nbytes)
        if known is None or known.dtype != array.dtype or known.shape != array.shape:
            memory = self._shared_memory(array.nbytes)
            self.shared_arrays[array.nbytes] = numpy.ndarray(array.shape, array.dtype, memory, order=order)
        return self.shared_arrays[array.nbytes]

    def _shared_memory(self, size: int) -> Any:
        """The memory of that size, in bytes."""
        if size not in self._memory:
            name = self._shmem_names[size] = self.send_req("platoon-init_new_shmem", {"size": size})
            self._memory[size] = _memory.SharedMemory(name).map()
        return self._memory[size]

    def all_reduce(self, src: Any, op: str, dest: Any = None) -> Any:
        """Combines the arrays of all workers, of all hosts, element by element. All of them call it.

        op: "+", "sum", "add"; "*", "prod", "product", "mul"; "max", "maximum"; "min", "minimum". dest: where the
        result goes to; it may be src. None: the result is returned: a new array, or a new object of src's kind.

        Raises ValueError (op), TypeError (arrays of a GPU), PlatoonError (not all workers come within socket_timeout,
        or the controller does not know how many there are), tutti.errors.RankDied, RankLeft, Mismatch and others:
        the next call then makes a new group of the workers that are there.
        """
        rule = op_to_tutti(op)
        result = numpy.array(value_of(src), order="C")
        try:
            self._reduce(self._group or self._make_group(), result, rule)
        except TimeoutError as e:
            raise PlatoonError("all_reduce has waited %d ms, and not all workers have come" % self._socket_timeout,
                               e) from None
        if dest is None:
            return new_like(src, result)
        assign(dest, result)
        return None

    def _reduce(self, group: tutti.Group, result: Any, op: str) -> None:
        try:
            group.allreduce(result, op)
            if self._multinode and result.nbytes:
                self._reduce_across_hosts(group, result, op)
        except BaseException:
            self._group = None
            group.close()
            raise

    def _reduce_across_hosts(self, group: tutti.Group, result: Any, op: str) -> None:
        """The controllers combine what the first worker of each host puts into shared memory."""
        memory = numpy.frombuffer(self._shared_memory(result.nbytes), result.dtype)
        flat = result.reshape(-1)
        if self._local_rank == 0:
            memory[...] = flat
            self.send_req("platoon-all_reduce", {"shmem": self._shmem_names[result.nbytes], "op": op,
                                                 "dtype": result.dtype.str})
        group.barrier()
        flat[...] = memory
        group.barrier()  # nobody writes while others read

    def _make_group(self) -> tutti.Group:
        """The group of the workers of all devices, in their order."""
        if not self._local_size:
            raise PlatoonError("all_reduce needs to know how many workers there are: give the Controller its devices, "
                               "one name for each worker")
        deadline = time.monotonic() + self._socket_timeout / 1000
        while self._group is None:
            ranks, number = self._await_workers(deadline)
            try:
                self._group = self._caller.everyone.of(ranks, "all_reduce %d" % number)
            except ConnectionError:  # a worker has died of which the controller did not know yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE)
        return self._group

    def _await_workers(self, deadline: float) -> Tuple[List[int], int]:
        """The ranks of the workers of all devices, and a number that no other set of workers has."""
        while True:
            ranks, number = self.send_req("platoon-worker_ranks")
            if None not in ranks:
                return ranks, number
            if time.monotonic() > deadline:
                missing = ", ".join(str(i) for i, rank in enumerate(ranks) if rank is None)
                raise PlatoonError("all_reduce waits for %d workers, and worker %s has not come"
                                   % (self._local_size, missing))
            time.sleep(_PAUSE)

    # ---- batches ----

    def init_mb_sock(self, port: int, data_hwm: int = 10) -> None:
        """Opens the batches of the controller's data port. data_hwm: how many may wait here."""
        self.asocket = Receiver(port, data_hwm, self._socket_timeout / 1000)

    def recv_mb(self) -> List[Any]:
        """The next batch, a list of arrays. Raises PlatoonError: none has come within socket_timeout."""
        return self.asocket.receive()

    # ---- the end ----

    def _handle_force_close(self, signum: int, frame: Any) -> NoReturn:
        print("Signal %d ends this worker." % signum, file=sys.stderr)
        sys.exit(1)

    def close(self) -> None:
        """Ends this worker. Harmless twice. Without it the worker ends with its process."""
        if hasattr(self, "asocket"):
            self.asocket.close()
        self._group = None
        self._caller.close()
        if self._lock is not None:
            self._lock.close()

    @staticmethod
    def default_parser() -> argparse.ArgumentParser:
        """A parser of the arguments that every worker has: --control-port, --data-port, --data-hwm."""
        parser = argparse.ArgumentParser(description="A worker of an experiment.")
        parser.add_argument("--control-port", default=5567, type=int, help="the controller's port")
        parser.add_argument("--data-port", type=int, help="the port of the batches")
        parser.add_argument("--data-hwm", default=10, type=int, help="how many batches may wait")
        return parser

    @staticmethod
    def default_arguments(args: argparse.Namespace) -> Dict[str, Any]:
        """The arguments of Worker among those that were parsed."""
        return {name: value for name, value in vars(args).items() if name in ("control_port", "data_port", "data_hwm")}
