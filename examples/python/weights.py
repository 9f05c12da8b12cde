"""A trainer publishes its weights, and readers infer with the newest ones. Readers come and go at any time.

    python3 weights.py train 127.0.0.1:4711 3 &     (at the first step the trainer waits for 3 readers; 0: for none)
    python3 weights.py read 127.0.0.1:4711          (as many as you like; on other hosts with TUTTI_SECRET set)
"""
import sys
import time

import torch
import tutti
import tutti.torch

STEPS = 100
TRUTH = torch.tensor([[2.0, -1.0, 0.5, 3.0]])
who, boot, *more = sys.argv[1:]
model = torch.nn.Linear(4, 1)


def train():
    """Trains, and publishes each step. The readers' job has one rank at its beginning: this process."""
    publisher = tutti.torch.WeightPublisher(model, "policy", boot=boot)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, STEPS + 1):
        x = torch.randn(32, 4)
        loss = ((model(x) - x @ TRUTH.T) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        publisher.publish(step, b"loss %g" % loss.item())
        if step == 1 and more:
            publisher.wait(step, int(more[0]))
        time.sleep(0.02)                       # a larger model takes longer
    count = publisher.readers()
    try:
        publisher.wait(STEPS, count, timeout=10)
    except tutti.errors.TimedOut as e:         # a reader is slow, or has left meanwhile
        print(e)
    print("%d readers are there" % count)
    publisher.close()


def read():
    """Reads version by version, and infers, until the trainer has ended."""
    reader = tutti.torch.WeightReader(model, "policy", boot=boot)
    version, x = 0, torch.randn(1000, 4)
    while True:
        try:
            fetched = reader.fetch(version)    # waits for a newer version; now the model has its weights
        except (tutti.errors.Stale, ConnectionError) as e:
            print("the last version is %d: %s" % (version, e))
            return
        version = fetched.version
        with torch.no_grad():
            error = ((model(x) - x @ TRUTH.T) ** 2).mean()
        print("version %d, %.1f ms old, %s, error %.2g" % (version, fetched.age * 1000, fetched.meta.decode(), error))


if who == "train":
    train()
else:
    read()
