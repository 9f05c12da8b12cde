"""A controller: answers the workers of one host, and starts them if it is to."""
from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy

from .. import _memory, configparser
from ..util import PlatoonError, launch_process, op_to_tutti
from ._batches import Sender
from ._desk import Desk, Query, join

_ARGUMENTS = ("control_port", "data_port", "data_hwm", "devices", "experiment_name", "log_directory", "worker_args",
              "multi")
_SLICE = 0.05  # seconds, after which a wait for requests looks at the workers' processes
_PATIENCE = 5  # seconds, after which a worker that was asked to end is killed
_DRAIN = 60.0  # seconds, in which workers may still take batches after serving has ended


class _Refused(PlatoonError):
    """A request fails, and the controller goes on."""


class Controller:
    """Answers workers: derive a class, and override handle_control.

    control_port: where serve() listens, on this host alone. data_port: where send_mb's batches are, and data_hwm: how
    many wait in each worker. devices: one name for each worker, in the order of their ranks. experiment_name: this
    controller starts EXPERIMENT_worker.py for each device, with worker_args, and output in log_directory. Without it
    workers are started by hand. multi: there is a controller on each of several hosts, and these controllers are the
    ranks of a job, as platoon-launcher starts them.

    The controllers of other hosts meet at once; workers are not answered before serve(). In the main thread SIGTERM and
    SIGINT end the process with status 1, and before it the workers that this controller has started.
    """

    def __init__(self, control_port: int = 5567, data_port: Optional[int] = None, data_hwm: int = 10,
                 devices: Optional[Sequence[str]] = None, experiment_name: str = "", log_directory: str = "",
                 worker_args: Optional[str] = "", multi: bool = False) -> None:
        self._control_port, self._pid = control_port, os.getpid()
        self._devices = [] if devices is None else self.get_workers_devices(devices)
        self._local_size = self._global_size = len(self._devices)
        self._multinode, self._need_init = multi, True
        self._am_i_first_count, self._get_platoon_info_count = [0], [0]
        self._workers: Dict[int, "subprocess.Popen[bytes]"] = {}  # that this controller has started, by process id
        self._present: Dict[int, Optional[int]] = {}  # the workers that are there: process ids by rank
        self._slots: Dict[int, int] = {}              # which rank has a device
        self._before = 0  # how many workers the hosts before this one have
        self._came = self._registered = self._dead = 0  # how many workers
        self._success = 0
        self._shmem_names: Dict[int, str] = {}  # by the memory's bytes
        self.shared_buffers: Dict[str, Any] = {}
        self._job_uid = "platoon_%s_%s" % (os.path.basename(os.path.expanduser("~")), control_port)
        self._names: List[str] = []  # what else there is of this controller and its workers in shared memory
        self._later: Optional[List[int]] = None  # signals that have come where they must wait
        self._drain = _DRAIN
        self._take_signals()
        atexit.register(self._close)
        if multi:
            self._join_controllers()
        if data_port:
            self.init_data(data_port, data_hwm)
        if experiment_name:
            self._launch(experiment_name, log_directory, shlex.split(worker_args or ""))

    def _take_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._handle_force_close)

    def _join_controllers(self) -> None:
        """Joins the controllers of the other hosts, which are the ranks of the job that a launcher has started."""
        self._region = join()
        sizes = self._region.allgather(numpy.array([self._local_size])).ravel().tolist()
        self._global_size, self._before = sum(sizes), sum(sizes[:self._region.rank])

    def _launch(self, experiment: str, logs: str, args: List[str]) -> None:
        try:
            os.makedirs(logs or ".", exist_ok=True)
            for device in self._devices:
                with self._signals_later():  # else a signal would leave a process that nobody knows
                    process = launch_process(logs, experiment, args, device)
                    self._workers[process.pid] = process
        except OSError as e:
            self._kill_workers()
            print("ERROR! cannot start a worker: %s" % e, file=sys.stderr)
            sys.exit(3)

    # ---- requests ----

    def handle_control(self, req: Any, worker_id: int, req_info: Any) -> Any:
        """Override it: returns the answer to a worker's request, which JSON can hold.

        worker_id: the worker's process id. If it raises, the worker's request raises PlatoonError, and serve() ends
        the workers. Names that begin with "platoon-" are taken.
        """
        raise NotImplementedError("%s has no handle_control, and a worker asks %r: derive a class that overrides "
                                  "handle_control" % (type(self).__name__, req))

    def worker_is_done(self, worker_id: int) -> None:
        """Says that a worker asks no more: serve() does not wait for its end."""
        self._should_stop = True
        for rank in [rank for rank, pid in self._present.items() if pid == worker_id]:
            del self._present[rank]

    def _handle_base_control(self, req: Any, worker_id: int, req_info: Any) -> Any:
        """The answer to a request of Platoon's own; None: it is none."""
        if req == "platoon-get_job_uid":
            return self._job_uid
        if req == "platoon-need_init":
            first, self._need_init = self._need_init, False
            return first
        if req == "platoon-am_i_first":
            return self._is_worker_first(self._am_i_first_count)
        if req == "platoon-get_platoon_info":
            return self._get_platoon_info(req_info)
        if req == "platoon-init_new_shmem":
            return self._init_new_shmem(req_info)
        if req == "platoon-all_reduce":
            return self._all_reduce(req_info)
        return None

    def _is_worker_first(self, counter: List[int]) -> bool:
        """True once for as many calls as there are workers."""
        counter[0] += 1
        return (counter[0] - 1) % max(1, self._local_size) == 0

    def _get_platoon_info(self, req_info: Dict[str, Any]) -> Dict[str, Any]:
        if self._is_worker_first(self._get_platoon_info_count):
            self._local_id = req_info["local_id"]
        rank = self._devices.index(req_info["device"])
        return {"local_id": self._local_id, "local_size": self._local_size, "local_rank": rank,
                "multinode": self._multinode, "global_size": self._global_size, "global_rank": self._before + rank}

    def _init_new_shmem(self, req_info: Dict[str, Any]) -> str:
        """The name of the memory of a size, which the first call makes."""
        size = req_info["size"]
        if size not in self._shmem_names:
            name = "platoon-%s_%d_buffer" % (self._job_uid, len(self.shared_buffers))
            _memory.remove(name)
            try:
                self.shared_buffers[name] = _memory.SharedMemory(name, size).map()
            except OSError as e:
                raise PlatoonError("cannot make shared memory of %s bytes" % size, e) from None
            self._shmem_names[size] = name
        return self._shmem_names[size]

    def _all_reduce(self, req_info: Dict[str, Any]) -> str:
        """Combines shared memory of all hosts, in place."""
        if not self._multinode:
            raise PlatoonError("a controller of one host has nobody to combine its memory with")
        array = numpy.frombuffer(self.shared_buffers[req_info["shmem"]], req_info["dtype"])
        self._region.allreduce(array, op_to_tutti(req_info["op"]))
        return ""

    def _answer_own(self, query: Query) -> Any:
        """The same, and what depends on the rank that asks."""
        req, info = query.content["req"], query.content["req_info"]
        if req == "platoon-worker_ranks":
            return [self._slots.get(i) for i in range(self._local_size)], self._registered
        if req == "platoon-get_platoon_info":
            return self._register(query.rank, info)
        return self._handle_base_control(req, query.content["worker_id"], info)

    def _register(self, rank: int, info: Dict[str, Any]) -> Dict[str, Any]:
        """Gives a worker its device: the one that it names, or the first that nobody has."""
        free = [device for i, device in enumerate(self._devices) if i not in self._slots]
        if self._devices and not free:
            raise _Refused("this controller has %d devices, and each has its worker already" % self._local_size)
        if not free:
            response = {"local_size": 0, "local_rank": self._registered, "multinode": self._multinode, "global_size": 0,
                        "global_rank": self._registered}
        else:
            device = info["device"] if info["device"] in free else free[0]
            response = self._get_platoon_info({**info, "device": device})
            self._slots[response["local_rank"]] = rank
        self._registered += 1
        return response

    # ---- serving ----

    def serve(self) -> int:
        """Answers until the experiment is over, and returns its exit status.

        The experiment is over when all workers that this controller has started have ended. Workers that were started
        by hand: when one has come for each device, or one at least, and none is left; if the controller has an
        attribute _should_stop, it must be true then. Status: 0; or that of a worker that has failed; 1: a worker that
        was started by hand has died; 2: a worker was killed, or this controller has failed. When a worker that this
        controller has started fails, all others get SIGINT.
        """
        try:
            self._serve()
        except PlatoonError as e:
            print(e, file=sys.stderr)
            self._fail()
        except Exception as e:
            print(PlatoonError("%s in the controller" % type(e).__name__, e), file=sys.stderr)
            self._fail()
        finally:
            self._close()
        return self._success

    def _fail(self) -> None:
        self._success = self._success or 2
        self._kill_workers()

    def _serve(self) -> None:
        by_hand = not self._workers
        desk = self._desk = Desk(self._control_port)  # from here on no other controller has these names
        self._names = [self._job_uid + end for end in ("_params", "_lock")]
        _memory.remove(self._names[0])  # of an earlier controller, which was killed
        while not self._is_over() if by_hand else self._workers:
            self._note_changes(desk)
            self._reap()
            if hasattr(self, "asocket"):
                self.asocket.settle()
            query = desk.take(_SLICE)
            if query is not None:
                self._answer(desk, query)
        if by_hand and self._dead:
            self._success = 1

    def _is_over(self) -> bool:
        return (self._came >= max(1, self._local_size) and not self._present and
                bool(getattr(self, "_should_stop", True)))

    def _note_changes(self, desk: Desk) -> None:
        for change in desk.changes():
            if change.what == "joined":
                self._came += 1
                self._present.setdefault(change.rank, None)
                continue
            self._present.pop(change.rank, None)
            self._slots = {slot: rank for slot, rank in self._slots.items() if rank != change.rank}
            if change.what == "gone":
                self._dead += 1
                print("A worker has died: %s" % change.why, file=sys.stderr)

    def _reap(self) -> None:
        """Notes which of the started workers have ended."""
        for pid, process in list(self._workers.items()):
            status = process.poll()
            if status is None:
                continue
            del self._workers[pid]
            if status < 0:
                raise PlatoonError("worker %d was killed by signal %d" % (pid, -status))
            if status:
                self._success = status
                raise PlatoonError("worker %d has ended with status %d" % (pid, status))

    def _answer(self, desk: Desk, query: Query) -> None:
        self._note_changes(desk)  # this worker has joined before it asked
        content = query.content
        self._present[query.rank] = content["worker_id"]
        try:
            answer = self._answer_own(query)
            if answer is None:
                answer = self._handle(content)
            desk.answer(query, answer)
        except _Refused as e:
            desk.answer(query, error=e.descr)
        except Exception as e:
            desk.answer(query, error="the controller has failed on %r: %s: %s"
                                     % (content["req"], type(e).__name__, e))
            raise

    def _handle(self, content: Dict[str, Any]) -> Any:
        return self.handle_control(content["req"], content["worker_id"], content["req_info"])

    # ---- batches ----

    def init_data(self, port: int, data_hwm: int = 10) -> None:
        """Opens the data port, for send_mb. data_hwm: workers say themselves how many batches wait for them."""
        self.asocket = Sender(port)

    def send_mb(self, arrays: Sequence[Any]) -> None:
        """Sends a batch, a list of arrays, to one worker. Blocks while no worker can take one."""
        self.asocket.send(arrays)

    # ---- the end ----

    def _kill_workers(self) -> None:
        """Ends the started workers: asks them by SIGINT, and kills those that do not end."""
        for process in self._workers.values():
            print("Ending worker %d." % process.pid, file=sys.stderr)
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _PATIENCE
        for pid, process in list(self._workers.items()):
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._workers.pop(pid, None)  # not before: a signal comes here again

    def _close(self) -> None:
        """Removes the shared memory, and closes the batches. Harmless twice."""
        if os.getpid() != self._pid:
            return  # a fork's child
        for name in self._names + list(self._shmem_names.values()):
            _memory.remove(name)
        self._names, self._shmem_names = [], {}  # of the next controller, once this one does not listen any more
        if hasattr(self, "_desk"):
            self._desk.close()  # workers that wait for answers take no batches
        if hasattr(self, "asocket"):
            self.asocket.close(self._drain)
        if hasattr(self, "_region"):
            self._region.close()

    @contextlib.contextmanager
    def _signals_later(self) -> Iterator[None]:
        """Signals that come in a `with` block wait for its end."""
        later = self._later = []
        try:
            yield
        finally:
            self._later = None
            for number in later:
                self._handle_force_close(number, None)

    def _handle_force_close(self, signum: int, frame: Any) -> None:
        if self._later is not None:
            self._later.append(signum)
            return
        self._drain = 0.0  # after a signal, the end does not wait for batches
        print("Signal %d ends this controller." % signum, file=sys.stderr)
        if os.getpid() == self._pid:
            self._kill_workers()
        sys.exit(1)

    # ---- helpers of programs ----

    @staticmethod
    def get_workers_devices(devices: Sequence[str]) -> List[str]:
        """The devices: those given, or (none) those of platoon.configparser for this host. Else exits with 2."""
        host = socket.gethostname()
        try:
            found = list(devices) or configparser.fetch_devices_for_host(host)
        except KeyError:
            print("ERROR! no devices are given for %s: use -D, PLATOON_DEVICES, or a file .platoonrc" % host,
                  file=sys.stderr)
            sys.exit(2)
        print("## On %s using: %s" % (host, " ".join(found)))
        return found

    @staticmethod
    def default_parser() -> argparse.ArgumentParser:
        """A parser of the arguments that platoon-launcher gives to every controller."""
        parser = argparse.ArgumentParser(description="The controller of an experiment.")
        parser.add_argument("experiment_name", help="the workers are EXPERIMENT_worker.py")
        parser.add_argument("log_directory", help="where the workers' output goes to")
        where = parser.add_mutually_exclusive_group(required=True)
        where.add_argument("--single", action="store_true", help="on this host alone")
        where.add_argument("--multi", action="store_true", help="one of several hosts")
        parser.add_argument("-D", "--devices", default=[], nargs="+", metavar="DEVICE", help="one for each worker")
        parser.add_argument("-w", "--worker-args", help='arguments of the workers: -w="--rate 0.1"')
        parser.add_argument("--control-port", default=5567, type=int, help="where workers ask")
        parser.add_argument("--data-port", type=int, help="where the batches are")
        parser.add_argument("--data-hwm", default=10, type=int, help="how many batches may wait in a worker")
        return parser

    @staticmethod
    def default_arguments(args: argparse.Namespace) -> Dict[str, Any]:
        """The arguments of Controller among those that were parsed."""
        return {name: value for name, value in vars(args).items() if name in _ARGUMENTS}


def spawn_controller() -> int:
    """A controller that only answers requests of Platoon's own, from the command line. Returns its exit status."""
    return Controller(**Controller.default_arguments(Controller.default_parser().parse_args())).serve()


if __name__ == "__main__":
    sys.exit(spawn_controller())
