"""torch_ranks(n, program) runs a program of programs/ as n real processes of torch.distributed."""
import pathlib

import pytest

# What torchrun would set, instead of what `tutti run` does.
PROLOGUE = """\
import os
boot = os.environ.pop("TUTTI_BOOT").split(":")
os.environ.update(RANK=os.environ.pop("TUTTI_RANK"), WORLD_SIZE=os.environ.pop("TUTTI_SIZE"), MASTER_ADDR=boot[0],
                  MASTER_PORT=boot[1], LOCAL_RANK=os.environ.get("RANK", "0"))
del os.environ["TUTTI_SECRET"]
import torch
torch.set_num_threads(1)
"""


@pytest.fixture
def torch_ranks(ranks):
    """Gives torch_ranks(n, name, ...), with the arguments of `ranks`; name: of a file in programs/."""
    def run(n, name, **how):
        program = (pathlib.Path(__file__).parent / "programs" / name).read_text()
        return ranks(n, PROLOGUE + program, **how)
    return run
