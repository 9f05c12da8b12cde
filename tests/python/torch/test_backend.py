"""The backend "tutti" of torch.distributed: the programs of programs/ as real processes."""
import pathlib

import pytest

# What torchrun would set, instead of what `tutti run` does.
PROLOGUE = """\
import os
boot = os.environ.pop("TUTTI_BOOT").split(":")
os.environ.update(RANK=os.environ.pop("TUTTI_RANK"), WORLD_SIZE=os.environ.pop("TUTTI_SIZE"), MASTER_ADDR=boot[0],
                  MASTER_PORT=boot[1])
os.environ["LOCAL_RANK"] = os.environ["RANK"]
del os.environ["TUTTI_SECRET"]
import torch
torch.set_num_threads(1)
"""


@pytest.fixture
def run(ranks):
    """Gives run(n, name, ...): each rank's last line is "done". name: of a file in programs/."""
    def start(n, name, **how):
        program = (pathlib.Path(__file__).parent / "programs" / name).read_text()
        texts = ranks(n, PROLOGUE + program, timeout=120, **how)
        for rank, text in enumerate(texts):
            assert rank in how.get("ends", ()) or text.splitlines()[-1] == "done", "\n".join(texts)
        return texts
    return start


@pytest.mark.parametrize("n", (2, 3))
def test_collectives(run, n):
    run(n, "collectives.py")


@pytest.mark.parametrize("n", (2, 4))
def test_training(run, n):
    run(n, "training.py")


@pytest.mark.parametrize("name", (None, "TUTTI_SECRET", "TUTTI_SECRET_FILE"))
def test_no_secret_is_stored_beside_one(monkeypatch, name):
    from tutti.torch import rendezvous
    for each in "TUTTI_SECRET", "TUTTI_SECRET_FILE":
        monkeypatch.delenv(each, raising=False)
    if name:
        monkeypatch.setenv(name, "0123456789abcdef")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    secret = rendezvous._invitation(object())["secret"]
    assert (secret is None) if name else len(secret) == 32
