"""A recommendation model on made interactions: embeddings on servers, the dense layers in DistributedDataParallel.

    tutti run --restart 5 -n 4 python3 recommend.py FOLDER

Ranks 0 and 1 train, ranks 2 and 3 serve. Kill a server (kill -9, the servers name their processes): `tutti run` starts
it again, it begins with the last save in FOLDER, and the training goes on. A second run begins with that save, too.
"""
import os
import socket
import sys

import torch
import torch.distributed as dist
import tutti
import tutti.torch

USERS, TAGS, DIM, STEPS, BATCH = 2000, 200, 16, 300, 512
WORKERS, SERVERS = [0, 1], [2, 3]
folder = sys.argv[1]


class Model(torch.nn.Module):
    """Users are rows of one table. An item is a bag of tags, which are rows of another one."""

    def __init__(self):
        super().__init__()
        common = dict(rule=tutti.adam(0.02), servers=SERVERS, workers=WORKERS, init=tutti.normal(0.1), load=folder)
        self.users = tutti.torch.TableEmbedding(USERS, DIM, name="users", **common)
        self.tags = tutti.torch.TableEmbedding(TAGS, DIM, name="tags", mode="mean", **common)
        self.dense = torch.nn.Sequential(torch.nn.Linear(3 * DIM, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def forward(self, users, items):
        u, i = outlive(self.users, users), outlive(self.tags, items)
        return self.dense(torch.cat([u, i, u * i], 1))[:, 0]


def outlive(call, *arguments):
    """Calls. If a server has died, waits until it is back with its last save, and calls again."""
    while True:
        try:
            return call(*arguments)
        except (ConnectionError, tutti.errors.Stale) as e:
            print("rank %d: %s" % (job.rank, e), flush=True)
            model.users.reopen()
            model.tags.reopen()


def interactions(random, tastes, subjects):
    """Made ones: a user likes an item if the user's taste fits what the item's three tags are about."""
    users, items = torch.randint(USERS, (BATCH,), generator=random), torch.randint(TAGS, (BATCH, 3), generator=random)
    return users, items, ((tastes[users] * subjects[items].sum(1)).sum(1) > 0).float()


def process_group():
    """Makes torch's default group of all ranks, and returns that of the workers."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        place = bytearray(("%s %d" % (socket.gethostname(), probe.getsockname()[1])).encode().ljust(200))
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = job.broadcast(place).decode().split()
    dist.init_process_group("tutti", rank=job.rank, world_size=job.size)
    return dist.new_group(WORKERS)


def train(workers):
    model.dense = torch.nn.parallel.DistributedDataParallel(model.dense, process_group=workers)
    dense = os.path.join(folder, "dense.pt")
    if os.path.exists(dense):
        model.dense.load_state_dict(torch.load(dense))
    optimizer = torch.optim.Adam(model.dense.parameters(), lr=0.005)
    hidden, random = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1 + job.rank)
    tastes, subjects = torch.randn(USERS, 3, generator=hidden), torch.randn(TAGS, 3, generator=hidden)
    right = 0.5
    for step in range(1, STEPS + 1):
        users, items, likes = interactions(random, tastes, subjects)
        guess = model(users, items)
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(guess, likes).backward()
        optimizer.step()
        outlive(model.users.step)                      # called again, it pushes nothing: servers that live have had it
        outlive(model.tags.step)
        right += 0.05 * (((guess > 0) == (likes > 0)).float().mean().item() - right)
        if step % 50 == 0 and job.rank == 0:
            outlive(model.users.save, folder)
            outlive(model.tags.save, folder)
            torch.save(model.dense.state_dict(), dense + ".new")
            os.replace(dense + ".new", dense)  # whole, whenever this process is killed
            print("step %d: %.0f %% of the guesses are right" % (step, 100 * right), flush=True)
    dist.barrier(workers)                              # rank 0 leaves when both are done, and then the servers end


job = tutti.init()
everyone = job.everyone()                              # the handle of all ranks, in which a late rank has its number
torch.set_num_threads(1)
torch.manual_seed(0)
workers = None if job.late else process_group()        # a server that was started again is in no group of torch
model = Model()
if everyone.rank in WORKERS:
    train(workers)
else:
    print("rank %d serves: process %d" % (everyone.rank, os.getpid()), flush=True)
    for change in job.watch():
        if change.rank == 0 and change.what != "joined":
            break
