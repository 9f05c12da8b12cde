"""Fashion-MNIST on the nodes of a dpwa cluster: a program of dpwa, which runs on Tutti.

    for w in w1 w2 w3 w4; do python3 dpwa_fashion.py --name $w --config-file dpwa.yaml & done; wait

The nodes may start in any order, and one that is killed may start again.
"""
import argparse
import gzip

import numpy as np
import torch
import torch.nn.functional as F
from dpwa.adapters.pytorch import DpwaPyTorchAdapter

WINDOW = 10  # batches of which dpwa gets the mean loss


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True, help="this node's name in the config file")
    parser.add_argument("--config-file", required=True)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist", help="apt install dataset-fashion-mnist")
    return parser.parse_args()


def samples(folder, prefix):
    """Returns the pixels, of about zero mean and unit variance, and the labels."""
    pixels, labels = (gzip.open("%s/%s-%s-ubyte.gz" % (folder, prefix, kind)).read()
                      for kind in ("images-idx3", "labels-idx1"))
    x = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    x = ((x - np.float32(0.286 * 255)) / np.float32(0.353 * 255)).astype(np.float32)
    return torch.from_numpy(x), torch.from_numpy(np.frombuffer(labels, np.uint8, offset=8).astype(np.int64))


def network():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, stride=2, padding=1), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(8 * 14 * 14, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def train_epoch(net, conn, optimizer, x, y, batch_size):
    """Returns the mean loss of the last batches."""
    losses = []
    for batch in torch.randperm(len(x)).split(batch_size):
        talks = len(losses) > WINDOW
        if talks:
            conn.update_send(np.mean(losses[-WINDOW:]))
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if talks:
            conn.update_wait(np.mean(losses[-WINDOW:]))
    return np.mean(losses[-WINDOW:])


def main():
    o = options()
    torch.set_num_threads(1)
    (x, y), (test_x, test_y) = samples(o.data, "train"), samples(o.data, "t10k")
    net = network()
    conn = DpwaPyTorchAdapter(net, o.name, o.config_file)
    optimizer = torch.optim.SGD(net.parameters(), lr=o.lr, momentum=0.9)
    for epoch in range(o.epochs):
        loss = train_epoch(net, conn, optimizer, x, y, o.batch_size)
        with torch.no_grad():
            accuracy = (net(test_x).argmax(1) == test_y).float().mean()
        print("%s: epoch %d: loss %.4f, accuracy %.4f" % (o.name, epoch + 1, loss, accuracy), flush=True)


if __name__ == "__main__":
    main()
