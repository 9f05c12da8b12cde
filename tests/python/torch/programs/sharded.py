"""What newer torch builds on its groups, by tutti and by gloo: the same numbers."""
import os
import socket

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tutti.torch

dist.init_process_group("tutti")
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")
meshes = {"tutti": init_device_mesh("cpu", (size,), mesh_dim_names=("all",)),
          "gloo": DeviceMesh.from_group(gloo, "cpu")}


def both(what, call, exact=True):
    """call(mesh, group) gives a tensor or a list of tensors."""
    ours, theirs = ([x] if isinstance(x, torch.Tensor) else list(x) for x in
                    (call(meshes["tutti"], dist.group.WORLD), call(meshes["gloo"], gloo)))
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs):
        equal = torch.equal(a, b) if exact or size == 2 else torch.allclose(a, b, rtol=1e-4, atol=1e-6)
        assert equal, (what, a, b)
    print(what, flush=True)


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(32, 65), nn.ReLU(), nn.Linear(65, 10))


def train(net, steps=3):
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(50 + rank)
    for _ in range(steps):
        opt.zero_grad()
        net(torch.randn(4, 32)).pow(2).mean().backward()
        opt.step()


def full(net):
    return [p.full_tensor() for p in net.parameters()]


def fsdp(mesh, _group):
    net = model()
    fully_shard(net[0], mesh=mesh)
    fully_shard(net, mesh=mesh)
    train(net)
    return full(net)


def functions(_mesh, group):
    x = torch.arange(4. * size).reshape(size * 2, 2) + rank
    made = [functional.all_reduce(x, "sum", group), functional.all_gather_tensor(x, 0, group),
            functional.reduce_scatter_tensor(x, "sum", 0, group), functional.broadcast(x, 1, group),
            functional.all_to_all_single(x, None, None, group)]
    made += functional.all_reduce_coalesced([x, x + 1], "sum", group)
    made += functional.all_gather_into_tensor_coalesced([x, x + 1], group)
    made += functional.reduce_scatter_tensor_coalesced([x, x + 1], "sum", [0, 0], group)
    return [t + 0 for t in made]


def compiled(_mesh, group):
    @torch.compile(backend="aot_eager", fullgraph=True)
    def run(x):
        y = functional.all_reduce(x * 2, "sum", group)
        return functional.all_gather_tensor(y + 1, 0, group) * 3
    return run(torch.arange(3.) + rank)


def compiled_ddp(_mesh, group):
    net = nn.parallel.DistributedDataParallel(model(), process_group=group)
    train(torch.compile(net, backend="aot_eager"))
    return [p.detach() for p in net.parameters()]


def dtensor(mesh, _group):
    torch.manual_seed(5)
    a, b = torch.randn(7, 5), torch.randn(5, 7)  # rows that do not divide by the ranks
    rows, columns = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Shard(1)])
    assert torch.equal(rows.full_tensor(), a) and torch.equal(rows.redistribute(mesh, [Shard(1)]).full_tensor(), a)
    product = rows.redistribute(mesh, [Replicate()]) @ columns
    inner = distribute_tensor(a, mesh, [Shard(1)]) @ distribute_tensor(b, mesh, [Shard(0)])
    assert inner.placements == (Partial("sum"),)
    return [product.full_tensor(), inner.redistribute(mesh, [Shard(0)]).full_tensor(), inner.full_tensor()]


def tensor_parallel(mesh, _group):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(32, 12 * size), nn.ReLU(), nn.Linear(12 * size, 10))
    net = parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.manual_seed(50)
    net(torch.randn(4, 32)).pow(2).mean().backward()
    return [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in net.parameters()]


def saved(mesh, group):
    """A checkpoint of one model is loaded into another, which is not sharded."""
    net, other = model(), model()
    fully_shard(net, mesh=mesh)
    train(net)
    folder = os.path.join(os.getcwd(), "saved-" + dist.get_backend(group))
    checkpoint.save(get_model_state_dict(net), checkpoint_id=folder, process_group=group)
    state = {name: torch.zeros_like(t) for name, t in other.state_dict().items()}
    checkpoint.load(state, checkpoint_id=folder, process_group=group)
    for a, b in zip(state.values(), full(net)):
        assert torch.equal(a, b), "what was loaded is not what was saved"
    return list(state.values())


def two_dimensions():
    """Groups of a mesh of more dimensions, on an even number of ranks."""
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicas", "shards"))
    net = model()
    fully_shard(net, mesh=mesh)
    train(net, 1)
    row = [r for r in range(size) if r // (size // 2) == rank // (size // 2)]
    assert dist.get_process_group_ranks(mesh["shards"].get_group()) == row


def published():
    """The first rank publishes a sharded model, and the last one reads it whole."""
    net = model()
    fully_shard(net, mesh=meshes["tutti"])
    train(net)
    whole, boot = full(net), [None]
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            boot = ["127.0.0.1:%d" % probe.getsockname()[1]]
    dist.broadcast_object_list(boot, 0)
    publisher = tutti.torch.WeightPublisher(net, "net", boot=boot[0])
    publisher.publish(1)
    if rank == size - 1:
        with tutti.torch.WeightReader(name="net", boot=boot[0]) as reader:
            fetched = list(reader.fetch().weights.values())
        assert len(fetched) == len(whole) and all(map(torch.equal, fetched, whole))
    dist.barrier()
    publisher.close()


both("functional collectives", functions, exact=False)
both("DTensor", dtensor, exact=False)
both("FSDP2", fsdp, exact=False)
both("tensor parallel", tensor_parallel, exact=False)
both("checkpoint", saved, exact=False)
both("compile", compiled)
both("compile of DDP", compiled_ddp, exact=False)
if size % 2 == 0:
    two_dimensions()
published()
dist.monitored_barrier()
dist.barrier()
dist.destroy_process_group()
print("done")
