"""An add and a get of 64 Mi floats by Multiverso's Python names, beside the same calls of the library, in turn.

    tutti run -n 2 python3 bench_multiverso.py [ROUNDS]
"""
import statistics
import sys
import time

import multiverso
import numpy as np
import tutti
from tutti._native import ffi, lib

SIZE = 1 << 26


def aligned(value):
    """A float32 array of SIZE elements that begins at a page, as C programs often have it."""
    room = np.full(SIZE + 1024, value, np.float32)
    skip = -room.ctypes.data % 4096 // 4
    return room[skip:skip + SIZE]


def main(rounds):
    multiverso.init()
    job = tutti.init()
    array, table = multiverso.ArrayTableHandler(SIZE), tutti.Table.rows("c", SIZE, 1, group=job)
    delta, room = aligned(1), aligned(0)
    pointers = [ffi.cast("void *", memory.ctypes.data) for memory in (delta, room)]

    def in_c():
        assert lib.tutti_table_push(table._handle, pointers[0], ffi.NULL, ffi.NULL) == 0
        assert lib.tutti_table_pull(table._handle, pointers[1], ffi.NULL) == 0

    def in_python():
        array.add(delta)
        array.get()

    times = {in_c: [], in_python: []}
    for round in range(rounds + 1):
        for function, list_ in times.items():
            job.barrier()
            start = time.perf_counter()
            function()
            if round:  # the first one warms up
                list_.append(1e3 * (time.perf_counter() - start))
    if job.rank == 0:
        three = [(min(t), statistics.quantiles(t)[0], statistics.median(t)) for t in times.values()]
        for name, t in zip(("C", "Python"), three):
            print("%-6s ms: least %.1f, first quarter %.1f, median %.1f" % (name, *t))
        print("Python / C: least %.2f, first quarter %.2f, median %.2f" % tuple(p / c for c, p in zip(*three)))
    multiverso.shutdown()


main(int(sys.argv[1]) if len(sys.argv) > 1 else 25)
