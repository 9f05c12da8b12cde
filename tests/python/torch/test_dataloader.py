"""A DataLoader with workers beside a job: workers that are forked, spawned, or come from a fork server."""
import pytest

PROGRAM = """
import os
import torch
import tutti
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        try:
            tutti.init()
        except tutti.errors.ForkedChild:
            return torch.full((100,), float(i)), 1
        return torch.full((100,), float(i)), 0

def look(_worker):
    os.environ.clear()  # a worker that is not forked is a job of one

def main():
    job = tutti.init()
    for how in "fork", "spawn", "forkserver":
        total, forked = torch.zeros(100), 0
        for batch, flags in DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context=how,
                                       worker_init_fn=look):
            total += batch.sum(0)
            forked += int(flags.sum())
            job.allreduce(batch, op="average")
            assert (batch[0] == batch[0][0]).all()
        assert total[0] == sum(range(24)) and forked == (24 if how == "fork" else 0), (how, total, forked)

if __name__ == "__main__":
    main()
"""


@pytest.mark.transports("shm")
def test_workers(ranks):
    assert ranks(2, PROGRAM, timeout=120) == ["", ""]
