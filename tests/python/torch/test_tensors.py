"""Torch tensors as memory of calls. Tensors of channels_last are dense, and their elements lie in another order."""
import numpy as np
import pytest
import torch
import tutti


@pytest.fixture
def x():
    return torch.arange(48.).reshape(2, 2, 3, 4).contiguous(memory_format=torch.channels_last)


def test_in_place(x):
    job = tutti.init()
    wanted = x.clone()
    assert job.allreduce(x) is x and job.allreduce_tensors([x])[0] is x and job.broadcast(x) is x
    assert torch.equal(x, wanted)


def test_beside_memory_of_the_same_order(x):
    job = tutti.init()
    assert torch.equal(job.allreduce(x, out=torch.empty_like(x)), x)
    assert torch.equal(job.alltoall(x), x) and torch.equal(job.allgather(x, out=torch.empty_like(x)), x)
    with tutti.ElasticAverage(x, 1) as average:
        assert torch.equal(average.center()[0], x)


@pytest.mark.parametrize("call", [
    lambda job, x, c: job.allreduce(x, out=c), lambda job, x, c: job.reduce(c, out=x),
    lambda job, x, c: job.gather(x), lambda job, x, c: job.scatter(c, x), lambda job, x, c: job.allgather(x),
    lambda job, x, c: job.reduce_scatter(x, c), lambda job, x, c: job.alltoall(x, out=c),
    lambda job, x, c: job.allgatherv(x, [48], c), lambda job, x, c: job.alltoallv(x, [48], c, [48]),
    lambda job, x, c: tutti.Table("t", (2, 2, 3, 4)).push(x),
    lambda job, x, c: tutti.Table("t", (2, 2, 3, 4)).pull(x),
    lambda job, x, c: tutti.ElasticAverage(x, 1).center(c), lambda job, x, c: tutti.Center.easgd("c", x).ahead(c),
    lambda job, x, c: job.allreduce(x, out=np.empty((2, 2, 3, 4), "f4"))])
def test_beside_memory_of_another_order(x, call):
    with pytest.raises(ValueError, match=r"channels_last.*: call .contiguous\(\) first"):
        call(tutti.init(), x, x.contiguous())
