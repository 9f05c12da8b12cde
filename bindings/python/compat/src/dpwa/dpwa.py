"""A node's connection to the others: they read this node's model, and this node reads one of theirs in each round."""
from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import Any, Dict, Iterator, Optional, Set, Tuple

import numpy
import tutti

from ._blob import Blobs
from ._config import DpwaConfigError, DpwaConfiguration, Node, make_node

LOGGER = logging.getLogger(__name__)
_LAUNCHED = ("TUTTI_RANK", "TUTTI_SIZE", "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE")


@contextlib.contextmanager
def _without_launcher() -> Iterator[None]:
    """The config file says who this process is, also where `tutti run` has started it."""
    hidden = {name: os.environ.pop(name) for name in _LAUNCHED if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _memory_file(text: str) -> int:
    """A file that ends with this process, however the process ends."""
    file = os.memfd_create("dpwa.conf")
    os.write(file, text.encode())
    return file


def _check_place(node: Node) -> None:
    """Raises OSError if this host cannot listen there. The node begins to listen with its first model."""
    with socket.socket(socket.AF_INET6 if ":" in node.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((node.host, node.port))
            probe.listen()
        except OSError as e:
            raise OSError(e.errno, "node %r cannot listen at %s port %d: %s" % (*node, e.strerror)) from None


class DpwaConnection:
    """The node `name` of the config file.

        conn.update_send(blob, loss)            # others may read the blob; a peer is chosen
        ...                                     # one step of training
        blob, factor = conn.update_wait(loss)   # the peer's blob, or (None, 0)

    A blob is bytes, or another object with the buffer protocol. All blobs of all nodes have one length.
    No call waits for another node, but update_wait, which waits at most timeout_ms. Nodes may start late, die and start
    again. A node listens from its first update_send on. One thread at a time uses the object.

    Raises OSError if the node cannot listen at its place, and DpwaConfigError, a KeyError, that names what the file
    lacks.
    """

    def __init__(self, name: str, config_file: Any) -> None:
        self.name = name
        self.config = DpwaConfiguration(config_file)
        self._nodes: Dict[str, Node] = {node.name: node for node in self.config.get_nodes()}
        if name not in self._nodes:
            raise DpwaConfigError("%s: no node is named %r: its nodes are %s"
                                  % (config_file, name, ", ".join(self._nodes)))
        self.me = self._nodes[name]
        self._peers: Set[str] = set(self._nodes) - {name}
        self._job: Optional[tutti.Job] = None
        self._file = -1                       # the job reads its config now and then
        self._gossip: Optional[tutti.Gossip] = None
        self._bytes: Optional[int] = None     # of each blob
        self._blobs = Blobs()
        self._clock = 0.0                     # while no gossip is open
        _check_place(self.me)

    # ---- rounds ----

    def update_send(self, parameters: Any, loss: float) -> None:
        """Lets others read the blob from now on, and starts to read the blob of a peer. Does not wait for others.

        The clock grows by 1. With fetch_probability the round has a peer. Raises ValueError if the blob has another
        length than the blobs before.
        """
        blob = numpy.frombuffer(parameters, numpy.uint8)
        if self._bytes is None and blob.size:
            self._bytes = blob.size
        if blob.size != self._bytes:
            raise ValueError("a blob of %d bytes: all blobs of node %r have %s" % (
                blob.size, self.name, "1 byte at least" if self._bytes is None else "%d bytes" % self._bytes))
        try:
            self._publish(blob, float(loss))
        except tutti.errors.RankDied as e:  # the others have missed this node for too long
            LOGGER.info("node %s joins again: %s", self.name, e)
            self._leave()
            self._publish(blob, float(loss))

    def update_wait(self, loss: float) -> Tuple[Optional[bytes], float]:
        """Waits for the peer's blob, at most timeout_ms. Returns the blob and the factor of the peer's parameters.

        loss: of the model after the step. The clock becomes factor * peer's clock + (1 - factor) * clock. A round
        without a peer gives (None, 0): nobody was chosen, or the peer is not there, or is late.
        """
        if self._bytes is None:
            return None, 0
        blob, memory = self._blobs.take(self._bytes)
        factor = self._wait_into(memory, loss)
        return (None, 0) if factor is None else (blob, factor)

    def _wait_into(self, memory: Any, loss: float) -> Optional[float]:
        """Copies the peer's blob to `memory`. Returns the factor; None: the round has no peer."""
        if self._gossip is None:
            return None
        try:
            mix = self._gossip.fetch([memory], float(loss))
        except tutti.errors.RankDied as e:  # the next update_send joins again
            LOGGER.info("node %s: %s", self.name, e)
            return None
        LOGGER.debug("update_wait(): %s", mix)
        return None if mix.peer is None else mix.factor

    def _publish(self, blob: Any, loss: float) -> None:
        gossip = self._gossip or self._open()
        gossip.model()[1][0][:] = blob
        gossip.publish(loss)

    @property
    def clock(self) -> float:
        """The age of this node's model, in rounds. Setting it begins anew with that clock."""
        return self._clock if self._gossip is None else self._gossip.look().clock

    @clock.setter
    def clock(self, clock: float) -> None:
        self._close_gossip()
        self._clock = clock

    # ---- peers ----

    def add_peer(self, name: str, host: str, port: int) -> None:
        """Adds a peer, which the config file need not have. The peer need not know this node.

        Raises ValueError for this node itself.
        """
        if name == self.name:
            raise ValueError("node %r is this process itself" % name)
        node = make_node(name, host, port)
        if self._nodes.setdefault(name, node) != node:
            self._nodes[name] = node
            self._leave()  # it has moved: the next update_send begins with a new list
        self._peers.add(name)
        if self._job is not None and self._gossip is not None:
            self._job.node_add(*node)
            self._gossip.add_peer(name)

    def remove_peer(self, name: str) -> None:
        """Removes a peer: this node no longer reads the peer's blobs. Raises KeyError if there is no such peer."""
        self._peers.remove(name)
        if self._gossip is not None:
            self._gossip.remove_peer(name)

    def score(self, name: str) -> int:
        """The score of a peer, from 10 to 1000: 1000 at first, +10 after a fetch, -100 if the peer is late or absent.

        Raises KeyError if there is no such peer, also if it was removed because it answered nonsense.
        """
        if name in self._peers:
            if self._gossip is None:
                return 1000
            with contextlib.suppress(tutti.errors.NotOpen):
                return self._gossip.score(name)
        raise KeyError(name)

    # ---- the job ----

    def _join(self) -> tutti.Job:
        nodes = ",\n".join('{ name = "%s"; address = "%s:%d"; }' % (
            name, "[%s]" % host if ":" in host else host, port) for name, host, port in self._nodes.values())
        self._file = _memory_file('evict = "no";\nlists = "own";\nnodes = (%s);\n' % nodes)
        try:
            with _without_launcher():
                job = tutti.Job(file="/proc/self/fd/%d" % self._file, node=self.name,
                                timeout=None)  # tries for ever where nobody listens yet
        except BaseException:
            self._close_file()
            raise
        return job

    def _open(self) -> tutti.Gossip:
        """Opens the gossip, in the job, which this node joins if it is in none."""
        self._job = self._job or self._join()
        gossip = self._gossip = tutti.Gossip(
            "dpwa", [((self._bytes,), "uint8")], way="pull", choice="dpwa", method=self.config.get_interpolation()[0],
            value=self.config.get_value(), divergence_threshold=self.config.get_divergence_threshold(),
            fetch_probability=self.config.get_fetch_probability(), timeout=self.config.get_timeoutms() / 1000,
            clock=self._clock, group=self._job)
        for name in set(self._nodes) - self._peers - {self.name}:
            gossip.remove_peer(name)
        return gossip

    def _close_gossip(self) -> None:
        if self._gossip is not None:
            self._clock = self._gossip.look().clock
            self._gossip.close()
            self._gossip = None

    def _leave(self) -> None:
        self._close_gossip()
        if self._job is not None:
            self._job.leave()
            self._job = None
        self._close_file()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def close(self) -> None:
        """Others read nothing from this node any more. A later update_send begins again."""
        self._leave()


__all__ = ["DpwaConfiguration", "DpwaConnection"]
