"""platoon-launcher: starts an experiment's controller, which starts its workers, and waits for the end.

Exit status: 0; 1: the controller or a worker has failed; 2: wrong arguments; 3: an error of the system; 4: another one.
"""
from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from typing import List, NoReturn, Optional

from . import configparser
from .util import launch_process


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="platoon-launcher", description="Starts an experiment: EXPERIMENT_worker.py "
                                     "for each device, and EXPERIMENT_controller.py if there is one.")
    parser.add_argument("experiment_name")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-D", "--devices", nargs="+", metavar="DEVICE", help="one for each worker")
    where.add_argument("-H", "--hosts", nargs="+", metavar="HOST", help="this host alone")
    parser.add_argument("-c", "--controller-args", help='arguments of the controller: -c="--tau 10"')
    parser.add_argument("-w", "--worker-args", help='arguments of the workers: -w="--rate 0.1"')
    return parser.parse_args()


def _fail(status: int, why: str) -> NoReturn:
    print("\nERROR! %s" % why, file=sys.stderr)
    sys.exit(status)


def _check_hosts(hosts: Optional[List[str]]) -> None:
    try:
        found = hosts or configparser.fetch_hosts()
    except KeyError:
        return
    if found not in ([socket.gethostname()], ["localhost"]):
        _fail(2, "an experiment runs on this host alone, %s, and not on %s: programs for several hosts use the package "
                 "tutti" % (socket.gethostname(), ", ".join(found)))


def _start(args: argparse.Namespace, logs: str) -> "subprocess.Popen[bytes]":
    own = os.path.isfile("%s_controller.py" % args.experiment_name)
    more = [args.experiment_name, logs, "--single"]
    more += ["-D"] + args.devices if args.devices else []
    more += shlex.split(args.controller_args or "")
    more += ["--worker-args=" + args.worker_args] if args.worker_args else []
    return launch_process(logs, args.experiment_name if own else "platoon", more, "cpu", "controller")


def _await(process: "subprocess.Popen[bytes]") -> int:
    """The controller's exit status. Ctrl-C and SIGTERM end the controller, which ends its workers."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        return process.wait()


def main() -> None:
    """The program."""
    args = _parse()
    if not os.path.isfile("%s_worker.py" % args.experiment_name):
        _fail(2, "there is no worker here: %s_worker.py" % args.experiment_name)
    _check_hosts(args.hosts)
    logs = os.path.join("PLATOON_LOGS", args.experiment_name, time.strftime("%Y-%m-%d_%H-%M-%S"))
    try:
        os.makedirs(logs, exist_ok=True)
        print("### Logs: %s" % logs, flush=True)
        status = _await(_start(args, logs))
    except OSError as e:
        _fail(3, str(e))
    except Exception as e:
        _fail(4, "%s: %s" % (type(e).__name__, e))
    if status:
        _fail(1, "the controller has ended with status %d: %s says why" % (status, logs))
    print("SUCCESS! The experiment has ended.")


if __name__ == "__main__":
    main()
