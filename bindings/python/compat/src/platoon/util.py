"""Errors, and small helpers that Platoon's programs use."""
from __future__ import annotations

import importlib.util
import mmap as _mmap
import os
import subprocess
import sys
from typing import Any, List, Optional

import numpy

MPI: Any = importlib.util.find_spec("mpi4py")  # None: mpi4py is not installed
_MPI_OPS = {"+": "SUM", "sum": "SUM", "add": "SUM", "*": "PROD", "prod": "PROD", "product": "PROD", "mul": "PROD",
            "max": "MAX", "maximum": "MAX", "min": "MIN", "minimum": "MIN"}
_MPI_TYPES = {"bool": "C_BOOL", "float32": "FLOAT", "float64": "DOUBLE", "complex64": "C_FLOAT_COMPLEX",
              "complex128": "C_DOUBLE_COMPLEX",
              **{"%s%d" % (kind, bits): "%s%d_T" % (kind.upper(), bits)
                 for kind in ("int", "uint") for bits in (8, 16, 32, 64)}}
_LAUNCHER = ("TUTTI_RANK", "TUTTI_SIZE", "TUTTI_BOOT", "TUTTI_BOOT_FD", "TUTTI_LOCAL_RANK",
             "TUTTI_LOCAL_SIZE")  # who a controller is, which its workers are not


class PlatoonException(Exception):
    """What happened (descr), how bad it is (severity), and which exception was the reason (from_exc)."""

    def __init__(self, severity: str, descr: str, from_exc: Optional[BaseException] = None) -> None:
        super().__init__(severity, descr, from_exc)
        self.severity, self.descr, self.from_exc = severity, descr, from_exc

    def __str__(self) -> str:
        reason = "" if self.from_exc is None else "\nReason: %s" % self.from_exc
        return "%s! %s%s" % (self.severity, self.descr, reason)


class PlatoonError(PlatoonException):
    """A call has failed."""

    def __init__(self, descr: str, from_exc: Optional[BaseException] = None) -> None:
        super().__init__("ERROR", descr, from_exc)

    def __reduce__(self) -> Any:
        return type(self), (self.descr, self.from_exc)


class PlatoonWarning(PlatoonException):
    """Something is not as it should be, and the program goes on."""

    def __init__(self, descr: str, from_exc: Optional[BaseException] = None) -> None:
        super().__init__("WARNING", descr, from_exc)

    def __reduce__(self) -> Any:
        return type(self), (self.descr, self.from_exc)


class SingletonType(type):
    """Of a class with this metaclass each process has one object: the first call makes it, later calls return it."""

    def __init__(cls, name: str, bases: Any, namespace: Any) -> None:
        super().__init__(name, bases, namespace)
        cls.instance: Any = None

    def __call__(cls, *args: Any, **kwds: Any) -> Any:
        if cls.instance is None:
            cls.instance = super().__call__(*args, **kwds)
            cls.args, cls.kwds = args, kwds
        elif args or kwds:
            print(PlatoonWarning("this process has its %s already: the arguments %r %r have no effect"
                                 % (cls.__name__, args, kwds)), file=sys.stderr)
        return cls.instance


def mmap(length: int = 0, prot: int = 0x3, flags: int = 0x1, fd: int = 0, offset: int = 0) -> _mmap.mmap:
    """Maps a file or shared memory into this process. length: bytes; 0: all of the file."""
    return _mmap.mmap(fd, length, flags, prot, offset=offset)


def launch_process(logs_folder: str, experiment_name: str, args: Optional[List[str]], device: str,
                   process_type: str = "worker") -> "subprocess.Popen[bytes]":
    """Starts EXPERIMENT_worker.py or EXPERIMENT_controller.py on a device.

    Its output goes to files of the logs folder: worker_cuda0.out, worker_cuda0.err. The experiment "platoon" has
    platoon.controller as its controller. Raises OSError.
    """
    print("## Starting %s on %s ..." % (process_type, device), end=" ", flush=True)
    program = ["%s_%s.py" % (experiment_name, process_type)]
    if experiment_name == "platoon" and process_type == "controller":
        program = ["-m", "platoon.controller"]
    env = {name: value for name, value in os.environ.items() if name not in _LAUNCHER}
    env["THEANO_FLAGS"] = "%s,device=%s" % (env.get("THEANO_FLAGS", ""), device)
    log = os.path.join(logs_folder, "%s_%s." % (process_type, device))
    with open(log + "out", "w") as out, open(log + "err", "w") as err:
        process = subprocess.Popen([sys.executable, "-u"] + program + (args or []), bufsize=0, stdout=out, stderr=err,
                                   env=env)
    print("Done")
    return process


def op_to_mpi(op: str) -> Any:
    """The MPI operation of a name or sign. Raises AttributeError (mpi4py is missing), ValueError."""
    return getattr(_mpi(), _named(_MPI_OPS, op))


def dtype_to_mpi(dtype: Any) -> Any:
    """The MPI type of a NumPy type. Raises AttributeError (mpi4py is missing), TypeError."""
    mpi = _mpi()
    try:
        return getattr(mpi, _MPI_TYPES[numpy.dtype(dtype).name])
    except KeyError:
        raise TypeError("MPI has no type for %s" % dtype) from None


def _mpi() -> Any:
    if MPI is None:
        raise AttributeError("mpi4py is not imported: it is not installed")
    from mpi4py import MPI as module
    return module


def _named(names: Any, op: str) -> str:
    try:
        return str(names[op.lower()])
    except (AttributeError, KeyError):
        raise ValueError("%r is no operation: they are %s" % (op, ", ".join(names))) from None


def op_to_tutti(op: str) -> str:
    """Tutti's name of an operation, which all_reduce takes by name or sign. Raises ValueError."""
    return {"SUM": "sum", "PROD": "product", "MAX": "max", "MIN": "min"}[_named(_MPI_OPS, op)]
