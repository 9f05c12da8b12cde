"""The backend "tutti" of torch.distributed, with real processes."""
import pytest


def check(torch_ranks, n, program, **how):
    texts = torch_ranks(n, program, timeout=120, **how)
    assert all(text.splitlines()[-1] == "done" for text in texts), "\n".join(texts)


@pytest.mark.parametrize("n", (2, 3))
def test_collectives(torch_ranks, n):
    check(torch_ranks, n, "collectives.py")


@pytest.mark.parametrize("n", (2, 4))
def test_training(torch_ranks, n):
    check(torch_ranks, n, "training.py")
