"""A trainer's step while readers read: none, three that read without a pause, and a fleet that joins and leaves.

    python3 bench_fleet.py [shm|tcp] [ROUNDS [MIB [READERS]]]

A step computes for some milliseconds, and publishes MIB MiB (16). Each round has a part without readers, one with
three, and one with READERS (40), of which each joins, reads a version each 0.2 s, and leaves after 5 versions. Printed
are wall time and CPU time of the program's thread: the least of all rounds, and the ratio to the part without readers.
"""
import multiprocessing
import os
import random
import sys
import time

import numpy as np
import tutti
from conftest import free_address

STEPS = 40


def read(boot, mode):
    random.seed()
    out, pause = None, 0.2 if mode == "fleet" else 0
    while True:
        reader = tutti.Reader("model", boot=boot)
        for _ in range(5 if pause else 10 ** 9):
            fetched = reader.fetch(out=out)
            out = fetched.weights
            time.sleep(pause * random.uniform(0.5, 1.5))
        reader.close()


def steps(publisher, weights, work):
    """(wall, CPU) in ms of a step, and of its publish alone; means."""
    sums = np.zeros(4)
    for _ in range(STEPS):
        a = time.perf_counter(), time.thread_time()
        work @ work
        b = time.perf_counter(), time.thread_time()
        publisher.publish(publisher.look().version + 1)
        c = time.perf_counter(), time.thread_time()
        sums += [c[0] - a[0], c[1] - a[1], c[0] - b[0], c[1] - b[1]]
    return 1e3 * sums / STEPS


def main(rounds, mib, fleet_size):
    boot, work = free_address(), np.random.rand(500, 500).astype("f4")
    weights = np.zeros(mib << 18, "f4")
    publisher = tutti.Publisher("model", {"weights": weights}, boot=boot)
    parts = {"no reader": (0, ""), "3 readers": (3, "fast"), "%d come, go" % fleet_size: (fleet_size, "fleet")}
    found = {name: [] for name in parts}
    for round in range(rounds + 1):
        for name, (count, mode) in parts.items():
            fleet = [forks.Process(target=read, args=(boot, mode)) for _ in range(count)]
            for process in fleet:
                process.start()
            publisher.wait(0, readers=count, timeout=120)
            found[name] += [steps(publisher, weights, work)] if round else []  # the first round warms up
            for process in fleet:
                process.kill()
            for process in fleet:
                process.join()
            while publisher.readers():
                time.sleep(0.01)
    base = np.min(found["no reader"], 0)
    print("%-12s %16s %16s %16s %16s" % ("ms", "step, wall", "step, CPU", "publish, wall", "publish, CPU"))
    for name, each in found.items():
        least = np.min(each, 0)
        print("%-12s" % name, *("%9.2f (%4.2f)" % pair for pair in zip(least, least / base)), flush=True)


if __name__ == "__main__":
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", TUTTI_NEWCOMERS="64")
    os.environ.setdefault("TUTTI_SECRET", "0123456789abcdef")
    transports = sys.argv[1] if len(sys.argv) > 1 else "shm"
    os.environ["TUTTI_TRANSPORTS"] = {"shm": "shm,tcp"}.get(transports, transports)
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["numpy", "tutti"])
    given = sys.argv[2:]
    main(*[int(x) for x in given + ["3", "16", "40"][len(given):]])
