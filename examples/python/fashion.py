"""Fashion-MNIST in PyTorch, on every rank of a job at once, with each way to keep the models together.

    tutti run -n 4 python3 fashion.py --method ddp|gossip|elastic|diloco|table

The network, its first weights, the batches and the learning rates are those of examples/fashion, which is in C.
"""
import argparse
import gzip
import os
import socket

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
import tutti
import tutti.torch

METHODS = ("ddp", "gossip", "elastic", "diloco", "table")


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", choices=METHODS, default="ddp")
    parser.add_argument("--every", type=int, help="steps between two exchanges (gossip 4, elastic 10, diloco 20)")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128, help="samples of a step, of all ranks together")
    parser.add_argument("--rate", type=float, default=0.04, help="falls to 0 in a straight line")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist", help="apt install dataset-fashion-mnist")
    return parser.parse_args()


class Random:
    """splitmix64 (Steele, Lea and Flood 2014), as in examples/fashion."""

    def __init__(self, seed):
        self.state = np.uint64(seed)

    def draw(self, n):
        with np.errstate(over="ignore"):
            z = self.state + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            self.state = z[-1]
            z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return z ^ z >> np.uint64(31)

    def normal(self, n):
        u = ((self.draw(2 * n) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0 ** -53
        return np.sqrt(-2 * np.log(u[::2])) * np.cos(2 * np.pi * u[1::2])

    def shuffle(self, order):
        for i, draw in zip(range(len(order) - 1, 0, -1), self.draw(len(order) - 1).tolist()):
            j = draw % (i + 1)
            order[i], order[j] = order[j], order[i]


def samples(folder, prefix):
    """Returns the pixels, of about zero mean and unit variance, and the labels."""
    pixels, labels = (gzip.open("%s/%s-%s-ubyte.gz" % (folder, prefix, kind)).read()
                      for kind in ("images-idx3", "labels-idx1"))
    x = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 784)
    x = ((x - np.float32(0.286 * 255)) / np.float32(0.353 * 255)).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(np.frombuffer(labels, np.uint8, offset=8).astype(np.int64))


def network(random):
    layers = [torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64), torch.nn.ReLU(),
              torch.nn.Linear(64, 10)]
    for layer in layers[::2]:  # He et al. 2015
        into, out = layer.in_features, layer.out_features
        weights = np.sqrt(2.0 / into) * random.normal(into * out).reshape(into, out)
        layer.weight.data.copy_(torch.from_numpy(weights.T.astype(np.float32)))
        layer.bias.data.zero_()
    return torch.nn.Sequential(*layers)


def process_group(job):
    """Makes torch's default group of the job. torchrun says where torch's ranks meet; else rank 0 chooses."""
    if "MASTER_ADDR" not in os.environ:
        with socket.socket() as probe:
            probe.bind(("", 0))
            place = bytearray(("%s %d" % (socket.gethostname(), probe.getsockname()[1])).encode().ljust(200))
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = job.broadcast(place).decode().split()
    dist.init_process_group("tutti", rank=job.rank, world_size=job.size)


def wrap(net, o, job):
    """Returns (what to call, the optimizer, what keeps the models together: step(loss) is called after its step)."""
    sgd = torch.optim.SGD(net.parameters(), lr=o.rate, momentum=o.momentum)
    if o.method == "ddp":
        process_group(job)
        return torch.nn.parallel.DistributedDataParallel(net), sgd, None
    if o.method == "table":
        optimizer = tutti.torch.TableOptimizer(net, tutti.momentum(o.rate, o.momentum))
        return net, optimizer, optimizer
    if o.method == "gossip":
        return net, sgd, tutti.torch.Gossip(net, every=o.every or 4, seed=o.seed)
    if o.method == "elastic":
        return net, sgd, tutti.torch.Elastic(net, tau=o.every or 10)
    outer = torch.optim.SGD(net.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    return net, sgd, tutti.torch.DiLoCo(net, outer, steps=o.every or 20)


def part(count, job):
    """This rank's part when count things are split."""
    return slice(count * job.rank // job.size, count * (job.rank + 1) // job.size)


def train(o, job):
    torch.set_num_threads(1)
    (x, y), test = samples(o.data, "train"), samples(o.data, "t10k")
    random = Random(o.seed)
    net = network(random)
    model, optimizer, together = wrap(net, o, job)
    order, steps = list(range(len(x))), -(-len(x) // o.batch)
    for epoch in range(o.epochs):
        random.shuffle(order)
        losses = 0.0
        for step in range(steps):
            batch = order[step * o.batch:][:o.batch]
            mine = batch[part(len(batch), job)]
            optimizer.param_groups[0]["lr"] = o.rate * (1 - (epoch + step / steps) / o.epochs)
            optimizer.zero_grad()
            share = job.size / len(batch) if o.method in ("ddp", "table") else 1 / len(mine)
            loss = F.cross_entropy(model(x[mine]), y[mine], reduction="sum")
            (loss * share).backward()
            optimizer.step()
            losses += loss.item()
            if o.method == "gossip":
                together.step(loss.item())
            elif o.method in ("elastic", "diloco"):
                together.step()
        report(epoch, losses, len(x), net, together, test, job)
    if together is not None:
        job.barrier()
        getattr(together, "close", lambda: None)()


@torch.no_grad()
def report(epoch, losses, count, net, together, test, job):
    mine = part(len(test[0]), job)
    if together is None:
        right = (net(test[0][mine]).argmax(1) == test[1][mine]).sum().item()
    else:
        with together.consensus():
            right = (net(test[0][mine]).argmax(1) == test[1][mine]).sum().item()
    losses, right = job.allreduce(np.array([losses, right]))
    if job.rank == 0:
        print("epoch %d: loss %.4f, accuracy %.4f" % (epoch + 1, losses / count, right / len(test[0])), flush=True)


if __name__ == "__main__":
    with tutti.init() as the_job:
        train(options(), the_job)
