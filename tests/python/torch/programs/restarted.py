"""Under torchrun: the first time rank 1 ends in the middle of a training, and torchrun starts both ranks again."""
import os

import torch
import torch.distributed as dist

import tutti.torch

dist.init_process_group("tutti")
x = torch.ones(2)
dist.all_reduce(x)
assert x[0] == 2
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()  # fails here: rank 1 is gone
dist.barrier()
dist.destroy_process_group()
print("done after", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
