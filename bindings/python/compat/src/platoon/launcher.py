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
    where.add_argument("-H", "--hosts", nargs="+", metavar="HOST", help="one controller on each, over ssh")
    parser.add_argument("-c", "--controller-args", help='arguments of the controller: -c="--tau 10"')
    parser.add_argument("-w", "--worker-args", help='arguments of the workers: -w="--rate 0.1"')
    return parser.parse_args()


def _fail(status: int, why: str) -> NoReturn:
    print("\nERROR! %s" % why, file=sys.stderr)
    sys.exit(status)


def _hosts(given: Optional[List[str]]) -> List[str]:
    """The hosts, if they are several. Exits with 2 if it is one, and not this one."""
    try:
        hosts = given or configparser.fetch_hosts()
    except KeyError:
        return []
    if len(hosts) > 1:
        return hosts
    if hosts[0] not in (socket.gethostname(), "localhost"):
        _fail(2, "one host is given, %s, and this is %s: start platoon-launcher there" % (hosts[0],
                                                                                         socket.gethostname()))
    return []


def _controller_args(args: argparse.Namespace, logs: str, where: str) -> List[str]:
    more = [args.experiment_name, logs, where]
    more += ["-D"] + args.devices if args.devices else []
    more += shlex.split(args.controller_args or "")
    return more + (["--worker-args=" + args.worker_args] if args.worker_args else [])


def _start(args: argparse.Namespace, logs: str, hosts: List[str]) -> "subprocess.Popen[bytes]":
    own = os.path.isfile("%s_controller.py" % args.experiment_name)
    experiment = args.experiment_name if own else "platoon"
    if not hosts:
        return launch_process(logs, experiment, _controller_args(args, logs, "--single"), "cpu", "controller")
    print("## Starting controllers on %s ..." % ", ".join(hosts), flush=True)
    program = ["%s_controller.py" % experiment] if own else ["-m", "platoon.controller"]
    command = [sys.executable, "-m", "tutti", "run", "--prefix", "-n", str(len(hosts)),
               "--hosts", ",".join("%s:1" % host for host in hosts), sys.executable, "-u"]
    log = os.path.join(logs, "multi-node-controllers.")
    with open(log + "out", "w") as out, open(log + "err", "w") as err:
        return subprocess.Popen(command + program + _controller_args(args, logs, "--multi"), stdout=out, stderr=err)


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
    hosts = _hosts(args.hosts)
    logs = os.path.join("PLATOON_LOGS", args.experiment_name, time.strftime("%Y-%m-%d_%H-%M-%S"))
    try:
        os.makedirs(logs, exist_ok=True)
        print("### Logs: %s" % logs, flush=True)
        status = _await(_start(args, logs, hosts))
    except OSError as e:
        _fail(3, str(e))
    except Exception as e:
        _fail(4, "%s: %s" % (type(e).__name__, e))
    if status:
        _fail(1, "the controller has ended with status %d: %s says why" % (status, logs))
    print("SUCCESS! The experiment has ended.")


if __name__ == "__main__":
    main()
