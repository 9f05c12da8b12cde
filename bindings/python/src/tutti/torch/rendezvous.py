"""How the processes of a torch group become ranks of a Tutti job: torch's Store carries the address and the secret.

        rank 0: chooses a port, store.set("tutti", {boot, job, secret})     others: store.get("tutti")
        all: tutti_join; then rank 0 deletes the key

The default group's job is the default job of the package. A later group takes its members out of that job
(tutti_group_of). A group whose default group has another backend gets a job of its own.

torch's Store is not authenticated: a process that reaches the Store reads the secret there, unless TUTTI_SECRET or
TUTTI_SECRET_FILE is set on all ranks: then no secret is stored.
"""
from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
from typing import Any, Dict, List, Optional

from .. import job as jobs
from ..group import Group
from ..job import Job
from .work import Completer

KEY = "tutti"
DOCUMENTATION_ONLY = "192.0.2.1"  # an address of nobody's: the route there names this host's own address


class World:
    """A job, and the torch groups that live in the job. `close` leaves the job, unless the program had joined it."""

    def __init__(self, job: Job, owned: bool) -> None:
        self.job, self.owned = job, owned
        self.groups: List[Any] = []  # Memberships
        self._completer: Optional[Completer] = None

    def completer(self) -> Completer:
        """Completes futures; made with the first future."""
        if self._completer is None:
            self._completer = Completer(self.job)
        return self._completer

    def is_open(self) -> bool:
        """False once the job was left."""
        return self.job._handle is not None

    def close(self) -> None:
        """Ends all groups, then the job."""
        for membership in self.groups:
            membership.settle()
            if membership.group is not self.job:
                membership.group.close()
        self.groups.clear()
        if self._completer is not None:
            self._completer.stop()
        if self.owned:
            self.job.leave()


_default: Optional[World] = None


def enter(store: Any, rank: int, size: int, seconds: float, ranks: List[int], name: str) -> "tuple[World, Group]":
    """Gives the world and the Tutti group of a new torch group. ranks: [] for torch's default group."""
    global _default
    if ranks and _default is not None and _default.is_open():
        group = _default.job.of(ranks, name)
        group.set_timeout(seconds)
        return _default, group
    if not ranks and _default is not None and _default.is_open():
        _default.close()  # torch 1.13 forgets a default group without a word to its backend
    world = _join(store, rank, size, seconds, default=not ranks)
    if not ranks:
        _default = world
    return world, world.job


def _join(store: Any, rank: int, size: int, seconds: float, default: bool) -> World:
    job = jobs._default if default else None
    there = job is not None and job._handle is not None
    if size > 1 and rank == 0:
        store.set(KEY, json.dumps({"there": True} if there else _invitation(store)))
    said: Dict[str, Any] = json.loads(store.get(KEY)) if size > 1 else {"there": there}
    if said.get("there", False) != there or (there and job is not None and (job.rank, job.size) != (rank, size)):
        raise ValueError("rank %d of %d of the torch group cannot use this process's default job (%r): call tutti.init "
                         "on all ranks or on none before init_process_group, with the same numbers" % (rank, size, job))
    if job is not None and there:
        job.set_timeout(seconds)
        return World(job, owned=False)
    make = jobs.init if default else Job
    job = make(boot=said.get("boot", "127.0.0.1:1"), rank=rank, ranks=size, timeout=seconds, newcomers=-1,
               job=said.get("job"), secret=said.get("secret"))
    if size > 1 and rank == 0:
        store.delete_key(KEY)
    return World(job, owned=True)


def _invitation(store: Any) -> Dict[str, Any]:
    host = _address(store)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    return {"boot": ("[%s]:%d" if ":" in host else "%s:%d") % (host, port),
            "job": os.environ.get("TUTTI_JOB") or "torch-" + secrets.token_hex(8),
            "secret": None if _has_secret() else secrets.token_hex(16)}


def _has_secret() -> bool:
    return bool(os.environ.get("TUTTI_SECRET") or os.environ.get("TUTTI_SECRET_FILE"))


def _address(store: Any) -> str:
    """This host's address towards the Store's host. Loopback only if the Store's host is named so."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    master = getattr(store, "host", None) or os.environ.get("MASTER_ADDR") or DOCUMENTATION_ONLY
    if master == "localhost" or _is_loopback(master):
        return "127.0.0.1"
    found = _route(master)
    if found is None or _is_loopback(found):  # a host's own name may stand for loopback in its /etc/hosts
        found = _route(DOCUMENTATION_ONLY)
    return found or "127.0.0.1"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _route(host: str) -> Optional[str]:
    """This host's address on the way to another; sends nothing."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None
