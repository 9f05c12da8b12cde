"""dpwa's update_send and update_wait beside publish and fetch of the C gossip that they stand on, 102 MB, in turn.

    python3 bench_dpwa.py [ROUNDS]     over shm, then over tcp; two processes, of which the second one only serves
"""
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np
import tutti
from dpwa import DpwaConnection

BYTES = 102_000_000
PAGE = """\
- nodes:
  - {name: w1, host: localhost, port: %d}
  - {name: w2, host: localhost, port: %d}
- fetch_probability: 1
- timeout_ms: 20000
- interpolation: constant
- divergence_threshold: 0
- constant: { value: 0.5 }
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def open_both(name, config):
    """The connection, the gossip of the same bytes in the same job, the model, and a place for the peer's."""
    conn, model = DpwaConnection(name, config), np.full(BYTES, ord(name[1]), np.uint8)
    conn.update_send(model, 1)
    gossip = tutti.Gossip("bench", [model], choice="dpwa", timeout=20, group=conn._job)
    gossip.publish(1)
    return conn, gossip, model.tobytes(), np.zeros_like(model)


def serve(config):
    keep = open_both("w2", config)
    sys.stdin.read()
    assert keep


def measure(config, rounds):
    conn, gossip, blob, out = open_both("w1", config)
    times = [], []

    def old():
        conn.update_send(blob, 1)
        return conn.update_wait(1)[0] is not None

    def new():
        gossip.publish(1)
        return gossip.fetch([out], 1).peer is not None

    while not (old() and new()):
        time.sleep(0.01)
    for i in range(2 * rounds):
        began = time.perf_counter()
        done = (old, new)[i % 2]()
        if done and i >= 6:
            times[i % 2].append(time.perf_counter() - began)
    return [[sorted(each)[len(each) * part // 4] for each in times] for part in (0, 1, 2)]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    with tempfile.TemporaryDirectory() as folder:
        for transports in "shm,tcp", "tcp":
            os.environ["TUTTI_TRANSPORTS"] = transports
            config = pathlib.Path(folder, "dpwa.yaml")
            config.write_text(PAGE % (free_port(), free_port()))
            with subprocess.Popen([sys.executable, __file__, "serve", str(config)], stdin=subprocess.PIPE):
                for what, (old, new) in zip(("least", "first quarter", "median"), measure(config, rounds)):
                    print("%-7s %-13s dpwa %6.1f ms, gossip %6.1f ms, ratio %.2f"
                          % (transports, what, old * 1000, new * 1000, old / new), flush=True)


if __name__ == "__main__":
    serve(sys.argv[2]) if sys.argv[1:2] == ["serve"] else main()
