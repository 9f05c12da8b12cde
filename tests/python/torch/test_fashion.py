"""examples/python/fashion.py with each method, in one job, on samples that are easy to tell apart."""
import gzip
import pathlib
import re
import struct

import numpy as np
import pytest

FASHION = pathlib.Path(__file__).resolve().parents[3] / "examples" / "python" / "fashion.py"

ALL = """
import argparse, sys
with tutti.init() as the_job:
    for method in METHODS:
        train(argparse.Namespace(method=method, every=None, epochs=2, batch=32, rate=0.04, momentum=0.9, seed=1,
                                 data=sys.argv[1]), the_job)
    dist.destroy_process_group()
"""


def write(folder, prefix, count):
    random = np.random.default_rng(count)
    labels = random.integers(0, 10, count, dtype=np.uint8)
    pixels = np.random.default_rng(0).integers(0, 200, (10, 784))[labels] + random.integers(0, 56, (count, 784))
    for kind, head, body in (("images-idx3", struct.pack(">4I", 0x803, count, 28, 28), pixels.astype(np.uint8)),
                             ("labels-idx1", struct.pack(">2I", 0x801, count), labels)):
        with gzip.open("%s/%s-%s-ubyte.gz" % (folder, prefix, kind), "wb") as file:
            file.write(head + body.tobytes())


@pytest.mark.transports("shm")
def test_fashion(ranks, tmp_path):
    write(tmp_path, "train", 1280)
    write(tmp_path, "t10k", 200)
    program = FASHION.read_text().split('if __name__ == "__main__":')[0] + ALL
    said = ranks(2, program, arguments=(tmp_path,))[0]
    accuracies = [float(x) for x in re.findall(r"epoch 2: .* accuracy (\S+)", said)]
    assert len(accuracies) == 5 and min(accuracies) > 0.9, said
