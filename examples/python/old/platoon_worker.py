"""Fashion-MNIST in NumPy, by several workers with elastic averaging, under Platoon's oldest names.

platoon_controller.py says how to start it.
"""
import argparse
import gzip

import numpy as np

from channel import Soldier
from param_sync import EASGD


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=5567)
    parser.add_argument("--first", action="store_true", help="this worker's parameters are the first shared ones")
    parser.add_argument("--alpha", type=float, default=0.5)
    parser.add_argument("--tau", type=int, default=10, help="batches between two exchanges")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist", help="apt install dataset-fashion-mnist")
    return parser.parse_args()


def samples(folder, prefix):
    """Returns the pixels, of about zero mean and unit variance, and the labels."""
    pixels, labels = (gzip.open("%s/%s-%s-ubyte.gz" % (folder, prefix, kind)).read()
                      for kind in ("images-idx3", "labels-idx1"))
    x = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 784).astype(np.float32)
    return (x - 0.286 * 255) / (0.353 * 255), np.frombuffer(labels, np.uint8, offset=8)


def network(hidden):
    random = np.random.RandomState(1)
    shapes = (784, hidden), (hidden,), (hidden, 10), (10,)
    return [np.asarray(random.randn(*s) * np.sqrt(2 / s[0]) if len(s) > 1 else np.zeros(s), np.float32) for s in shapes]


def forward(params, x):
    w1, b1, w2, b2 = params
    hidden = np.maximum(x @ w1 + b1, 0)
    return hidden, hidden @ w2 + b2


def train(params, x, y, rate):
    """One step of SGD on a batch, in place."""
    hidden, scores = forward(params, x)
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    back = (p @ params[2].T) * (hidden > 0)
    for param, gradient in zip(params, (x.T @ back, back.sum(0), hidden.T @ p, p.sum(0))):
        param -= rate * gradient


def error(params, x, y):
    return float((forward(params, x)[1].argmax(1) != y).mean())


def main(o):
    (x, y), test = samples(o.data, "train"), samples(o.data, "t10k")
    params = network(o.hidden)
    soldier = Soldier(port=o.port)
    soldier.init_shared_params("fashion%d" % o.port, params, EASGD(o.alpha), cleanup=o.first)
    soldier.copy_to_local()
    print("initialized", flush=True)
    step = soldier.send_req("next")
    while step != "stop":
        if step == "train":
            for _ in range(o.tau):
                batch = np.random.randint(0, len(x), o.batch)
                train(params, x[batch], y[batch], o.rate)
            soldier.sync_params(synchronous=True)
            soldier.send_req({"done": o.tau})
        elif step == "valid":
            soldier.copy_to_local()
            if soldier.send_req({"valid_err": error(params, *test)}) == "best":
                np.savez("fashion_best.npz", *params)
        step = soldier.send_req("next")


if __name__ == "__main__":
    main(options())
