"""The library's log lines go to logging.getLogger("tutti").

A thread takes the lines, as a line may come while no thread of the program calls the library. TUTTI_LOG says which
lines there are (error, warn, info or debug; warn without it), and logging's levels say which lines are shown. A record
has the members `rank` (-1: no rank) and `created`, the time of the line. While the program has set up no handler, lines
go to sys.stderr as from a C program.
"""
from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
import traceback
from typing import Any, Optional

from ._native import ffi, lib

LEVELS = {lib.TUTTI_LOG_ERROR: logging.ERROR, lib.TUTTI_LOG_WARN: logging.WARNING, lib.TUTTI_LOG_INFO: logging.INFO,
          lib.TUTTI_LOG_DEBUG: logging.DEBUG}
_NAMES = {logging.ERROR: "error", logging.WARNING: "warn", logging.INFO: "info", logging.DEBUG: "debug"}
_logger = logging.getLogger("tutti")
_lock = threading.RLock()              # held while lines are taken, which keeps the lines in order
_thread: Optional[threading.Thread] = None
_bell = -1                             # a descriptor: writing ends the thread


def _time(seconds: float) -> str:
    """The time in UTC, as the library writes it: only where many lines come."""
    if os.environ.get("TUTTI_LOG") not in ("info", "debug"):
        return ""
    return time.strftime("%H:%M:%S", time.gmtime(seconds)) + ".%06d: " % (seconds % 1 * 1e6)


def _emit(line: Any) -> None:
    level, text = LEVELS[line.level], ffi.string(line.text).decode(errors="replace")
    rank = "rank %d: " % line.rank if line.rank >= 0 else ""
    if not _logger.hasHandlers():
        if sys.stderr is not None:
            sys.stderr.write("tutti: %s%s%s: %s\n" % (_time(line.time_s), rank, _NAMES[level], text))
    elif _logger.isEnabledFor(level):
        record = _logger.makeRecord("tutti", level, "", 0, rank + text, (), None, extra={"rank": line.rank})
        record.created, record.msecs = line.time_s, line.time_s % 1 * 1000
        _logger.handle(record)


def _take() -> None:
    """Takes all lines that wait."""
    line = ffi.new("tutti_log_line *")
    with _lock:
        while lib.tutti_log_next(line) == 1:
            try:
                _emit(line)
            except Exception:  # of the program's handler; the next lines go on
                traceback.print_exc()


def _run(fd: int, bell: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.register(bell, select.POLLIN)
    while not any(ready == bell for ready, _ in poll.poll()):
        _take()
    os.close(bell)


def start() -> None:
    """Starts the thread with the first job. Does nothing if the program takes the lines by itself."""
    global _thread, _bell
    with _lock:
        fd = -1 if _thread is not None else lib.tutti_log_open()
        if fd < 0:
            return
        bell, _bell = os.pipe()
        _thread = threading.Thread(target=_run, args=(fd, bell), name="tutti.log", daemon=True)
        try:
            _thread.start()
        except RuntimeError:  # the interpreter ends, or there are no threads
            lib.tutti_log_close()
            _thread = None


def stop() -> None:
    """At exit, when the jobs were left: the last lines are logged. Later ones go to standard error."""
    global _thread
    if _thread is None:
        return
    os.write(_bell, b"x")
    _thread.join(1)
    if not _thread.is_alive():  # else a handler of the program hangs
        _take()
    _thread = None
    lib.tutti_log_close()


def _after_fork() -> None:
    """The child has no thread, and its lines go to standard error until the child joins a job of its own."""
    global _thread, _lock
    _thread, _lock = None, threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
__all__ = ["start", "stop"]
