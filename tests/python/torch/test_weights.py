"""Weights of torch models for many readers."""
import pathlib
import signal

import pytest
import torch
import tutti.torch
from conftest import await_all, free_address, kill, started

from programs import together

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "python" / "weights.py"


def test_model(ranks):
    def program():
        import torch
        import tutti.torch

        def make(fill):
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
            model[2].weight = model[0].weight  # tied: published once
            with torch.no_grad():
                for t in [*model.parameters(), *model.buffers()]:
                    t.fill_(fill)
            return model

        job = tutti.init()
        model = make(3 if job.rank == 0 else 0)
        if job.rank == 0:
            same = tutti.torch.WeightPublisher(model, "same", buffers=4)
            half = tutti.torch.WeightPublisher(model.state_dict(), "half", dtype=torch.bfloat16)
            some = tutti.torch.WeightPublisher([("w", model[0].weight.t()), ("n", torch.tensor([1, 2]))], "list")
            same.publish(1, b"meta")
            half.publish(1)
            with some.writing(4) as tensors:
                tensors["w"].copy_(torch.arange(16.).reshape(4, 4))
                tensors["n"].fill_(7)
            assert not tensors and some.look().version == 4
            model[0].weight = torch.nn.Parameter(torch.full((4, 4), 5.))  # no more tied, and new memory
            raises(ValueError, "2.weight of the model", same.publish, 2)
            model[2].weight = model[0].weight
            same.publish(2)
            model[0].bias = torch.nn.Parameter(torch.zeros(1))  # copy_ would broadcast
            raises(ValueError, "0.bias of the model", same.publish, 3)
            assert same.look().version == 2
            job.barrier()
            job.barrier()
        else:
            job.barrier()
            reader = tutti.torch.WeightReader(model, "same")
            names = [w.name for w in reader.weights]
            assert "2.weight" not in names and "1.running_var" in names and "1.num_batches_tracked" in names, names
            assert list(reader.tensors()) == []
            fetched = reader.fetch()
            assert fetched.version == 2 and (model[2].weight == 5).all() and (model[1].running_var == 3).all()
            assert model[1].num_batches_tracked == 3 and (model[0].bias == 3).all()
            with torch.no_grad():
                model[0].bias.fill_(0)
                model[0].weight.fill_(0)
            reader.fetch(only=["0.bias"])
            assert (model[0].bias == 3).all() and (model[0].weight == 0).all()
            raises(tutti.errors.TimedOut, "", reader.fetch, 2, timeout=0)

            # another type than the model's; without a model; buckets
            model = make(0)
            reader = tutti.torch.WeightReader(model.state_dict(), "half")
            assert reader.weights[0].dtype == "bfloat16"
            assert reader.fetch().weights["0.weight"].dtype == torch.bfloat16 and (model[0].weight == 3).all()
            reader = tutti.torch.WeightReader(name="list")
            first, second = reader.fetch().weights, reader.fetch().weights
            assert torch.equal(first["w"], torch.arange(16.).reshape(4, 4)) and second["n"].tolist() == [7, 7]
            assert first["w"].data_ptr() != second["w"].data_ptr()
            assert [[name for name, _ in bucket] for bucket in reader.tensors(64)] == [["w"], ["n"]]
            assert [[name for name, _ in bucket] for bucket in reader.tensors(79)] == [["w"], ["n"]]
            assert [[name for name, _ in bucket] for bucket in reader.tensors(80)] == [["w", "n"]]
            assert [name for name, _ in next(reader.tensors())] == ["w", "n"]
            reader.close()
            raises(ValueError, "no tensor 'x'", tutti.torch.WeightReader, {"x": torch.zeros(2)}, "list")
            raises(ValueError, "shape .3,. in the model.*shape .2,.", tutti.torch.WeightReader, {"n": torch.zeros(3)},
                   "list")
            job.barrier()

    ranks(2, together(program))


def test_deltas(ranks):
    def program():
        import torch
        import tutti.torch

        job = tutti.init()
        model = torch.nn.Linear(200, 100)
        with torch.no_grad():
            for t in model.parameters():
                t.fill_(1)
        if job.rank == 0:
            publisher = tutti.torch.WeightPublisher(model, dtype=torch.bfloat16, deltas=1)
            for version in range(1, 6):
                with torch.no_grad():
                    model.weight[version] = version
                publisher.publish(version)
                job.barrier()
                job.barrier()
        else:
            reader = tutti.torch.WeightReader(model)
            for version in range(1, 6):
                job.barrier()
                if version == 3:
                    reader.fetch(only=["bias"])  # the reader has parts of two versions
                elif version < 5:
                    fetched = reader.fetch()
                    assert fetched.deltas == (version == 2) and fetched.mismatched == 0, (version, fetched[6:])
                else:
                    raises(tutti.errors.TimedOut, "", reader.fetch, 5, timeout=0)
                    fetched = reader.fetch(only=[w.name for w in reader.weights], newer_than=4)
                    assert fetched.deltas == 1 and fetched.bytes_read < 20000, fetched[6:]
                assert version == 3 or all((model.weight[i] == i).all() for i in range(1, version + 1))
                job.barrier()
        job.barrier()

    ranks(2, together(program))


@pytest.mark.parametrize("tensors, sentence", [
    ([("x", torch.zeros(2).to_sparse())], "sparse"), ([("x", torch.zeros(2, device="meta"))], "meta"),
    ([("x", 3)], "int and no tensor"), ([("x", torch.zeros(2, dtype=torch.int16))], "int16"),
    ([("x", torch.zeros(2)), ("x", torch.zeros(2))], "two tensors are called 'x'")])
def test_refused(tensors, sentence):
    with pytest.raises(ValueError, match=sentence):
        tutti.torch.WeightPublisher(tensors)


def test_shards(ranks):
    """Two ranks publish their layers; a reader has the whole model."""
    def program():
        import torch
        import tutti.torch

        job = tutti.init()
        model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)))
        mine = {name: t for name, t in model.state_dict().items() if int(name[0]) // 2 == job.rank}
        if job.rank < 2:
            part = tutti.Shard(1 - job.rank, of=2, rank_0=1)
            publisher = tutti.torch.WeightPublisher(mine, "m", generation=1, shard=part)
            for version in 1, 2, 3:
                for t in mine.values():
                    t.fill_(version)
                publisher.publish(version)
            job.barrier()
            publisher.close()
        else:
            reader = tutti.torch.WeightReader(model, "m", rank=1)
            assert {w.name: w.shard for w in reader.weights}["3.bias"] == 0
            while reader.fetch().version < 3:
                pass
            assert all((t == 3).all() for t in model.state_dict().values())
            job.barrier()

    ranks(3, together(program))


def test_dtensors(ranks):
    """What torch 1.13 can show of DTensors, by a stand-in: the mesh's first rank publishes what all ranks gather."""
    def program():
        import torch
        import torch.distributed
        import tutti.torch

        class Part(torch.Tensor):
            def __new__(cls, whole, rows, first=0):
                part = torch.zeros(whole.shape).as_subclass(cls)
                part.whole, part.rows = whole, rows
                part.device_mesh = type("Mesh", (), {"mesh": torch.tensor([[first], [first + 1]])})
                return part

            def detach(self):
                return self

            def to_local(self):
                return self.rows

            def full_tensor(self):
                job.barrier()
                gathered.append(self)
                return self.whole

        job, gathered = tutti.init(), []
        torch.distributed.get_rank = lambda: job.rank
        whole = torch.arange(6.).reshape(3, 2)
        rows, others = (torch.zeros(2 - 2 * job.rank, 2) for _ in range(2))  # none on rank 1
        for t in (rows, others) if not hasattr(rows, "untyped_storage") else ():
            t.untyped_storage = t.storage
        tensors = {"w": Part(whole, rows), "tied": Part(whole, rows), "b": torch.ones(2)}
        raises(ValueError, "published whole, by one rank", tutti.torch.WeightPublisher, tensors, "x",
               shard=tutti.Shard(job.rank, 2))
        publisher = tutti.torch.WeightPublisher(tensors, "x", torch.bfloat16)
        publisher.publish(1)
        assert len(gathered) == 1 and gathered[0] is tensors["w"], gathered
        if job.rank == 1:
            raises(ValueError, "rank 0 publishes 'x': on the other ranks of the mesh only", publisher.look)
            raises(ValueError, "'w' is a DTensor, .*distribute_tensor", tutti.torch.WeightReader, tensors, "x")
            reader = tutti.torch.WeightReader(name="x")
            fetched = reader.fetch().weights
            assert list(fetched) == ["w", "b"] and torch.equal(fetched["w"].float(), whole)
        tensors["w"] = Part(torch.zeros(1), rows)
        raises(ValueError, "w of the model is not as it was", publisher.publish, 2)
        tensors["w"] = Part(whole, rows, 5)
        raises(ValueError, "meshes that begin with ranks 0, 5", tutti.torch.WeightPublisher,
               {"v": Part(whole, others), "w": tensors["w"]})
        job.barrier()
        publisher.close()

    ranks(2, together(program))


def test_gpu_reads_from_pinned_memory(ranks):
    """There is no CUDA build of torch here: a tensor that says so, and torch's call for pinned memory, stand for it."""
    def program():
        import torch
        import tutti.torch

        class OnGpu(torch.Tensor):
            is_cuda = True

        pinned, empty_like = [], torch.empty_like

        def note(t, pin_memory):
            assert pin_memory
            pinned.append(tuple(t.shape))
            return empty_like(t)

        torch.empty_like = note
        job = tutti.init()
        if job.rank == 0:
            publisher = tutti.torch.WeightPublisher([("a", torch.ones(3)), ("b", torch.ones(5))], "w")
            publisher.publish(1)
            job.barrier()
        else:
            model = {"a": torch.zeros(3), "b": torch.zeros(5).as_subclass(OnGpu)}
            reader = tutti.torch.WeightReader(model, "w")
            for _ in range(2):
                reader.fetch()
            assert pinned == [(5,)] and (model["b"] == 1).all() and (model["a"] == 1).all()
            job.barrier()

    ranks(2, together(program))


def test_example(tmp_path):
    """A trainer, which waits for three readers at first; one of these is killed."""
    boot = free_address()
    with started(tmp_path, *([EXAMPLE, who, boot, 3] for who in ("train", "read", "read", "read")),
                 OMP_NUM_THREADS=1) as (processes, said):
        while said()[3].count("version") < 2 and processes[0].poll() is None:
            await_all(processes[:1], 0.1)
        kill(processes[3])
        assert await_all(processes, 120), said()
        texts = said()
    assert [process.returncode for process in processes] == [0, 0, 0, -signal.SIGKILL], texts
    assert "readers are there" in texts[0] and all("the last version is 100" in text for text in texts[1:3]), texts
