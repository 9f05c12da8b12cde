"""The backend "tutti" of torch.distributed: the programs of programs/ as real processes."""
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

PROGRAMS = pathlib.Path(__file__).parent / "programs"
newer = pytest.mark.skipif(importlib.util.find_spec("torch.distributed.tensor") is None or
                           importlib.util.find_spec("torch.distributed.device_mesh") is None,
                           reason="this torch has no DeviceMesh")

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
        texts = ranks(n, PROLOGUE + (PROGRAMS / name).read_text(), timeout=120, **how)
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


@pytest.mark.transports("shm")
def test_groups(run):
    run(4, "groups.py")


def test_failures(run):
    run(3, "failures.py", ends={2: 7})


@newer
@pytest.mark.transports("shm")
@pytest.mark.parametrize("n", (2, 3))
def test_sharded(run, n):
    run(n, "sharded.py")


def test_torchrun_restarts(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TUTTI_", "RANK", "MASTER_"))}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes", "1", "--nproc_per_node", "2",
                "--max_restarts", "1", "--monitor_interval", "0.1",
                "--redirects", "1", "--tee", "1"]  # torch 1.13 under Python 3.11 does not know 0, its default
    said = subprocess.run(torchrun + [str(PROGRAMS / "restarted.py")], env=kept, cwd=str(tmp_path), timeout=100,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert said.returncode == 0 and said.stdout.count("done after 1") == 2, said.stdout
