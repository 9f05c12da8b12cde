"""Weights of torch models for many readers."""
import pathlib
import signal
import subprocess
import sys

import pytest
import torch
import tutti.torch
from conftest import await_all, clean_environment, free_address, kill

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


def test_refuses_dtensors():
    class Part(torch.Tensor):
        device_mesh = None

    with pytest.raises(ValueError, match="DTensor.*full_tensor"):
        tutti.torch.WeightPublisher({"x": torch.zeros(2).as_subclass(Part)})


def test_example(tmp_path):
    """A trainer, which waits for three readers at first; one of these is killed."""
    boot, said = free_address(), []
    started = []
    for i, who in enumerate(("train", "read", "read", "read")):
        said.append(tmp_path / str(i))
        with open(said[-1], "wb") as file:
            started.append(subprocess.Popen([sys.executable, "-u", str(EXAMPLE), who, boot, "3"], stdout=file,
                                            stderr=file, env=clean_environment(OMP_NUM_THREADS=1),
                                            start_new_session=True))
    try:
        while said[3].read_text().count("version") < 2 and started[0].poll() is None:
            await_all(started[:1], 0.1)
        kill(started[3])
        assert await_all(started, 120), [file.read_text() for file in said]
    finally:
        for process in started:
            kill(process)
            process.wait()
    texts = [file.read_text() for file in said]
    assert [process.returncode for process in started] == [0, 0, 0, -signal.SIGKILL], texts
    assert "readers are there" in texts[0] and all("the last version is 100" in text for text in texts[1:3]), texts
