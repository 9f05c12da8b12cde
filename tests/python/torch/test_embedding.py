"""tutti.torch.TableEmbedding against the equations of tutti.h in plain torch, and against torch's own embeddings."""
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from conftest import await_all, clean_environment, kill
from programs import together

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "python" / "recommend.py"


def reference(rule, w, state, t, rows, g, lr):
    """A push of rows, each once, by the equations of tutti.h."""
    if rule == "sgd":
        w[rows] -= lr * g
    elif rule == "adagrad":
        state["G"][rows] += g * g
        w[rows] -= lr * g / torch.sqrt(state["G"][rows] + 1e-6)
    else:
        m, v = state["m"], state["v"]
        m[rows] = 0.9 * m[rows] + (1 - 0.9) * g
        v[rows] = 0.999 * v[rows] + (1 - 0.999) * g * g
        w[rows] -= lr * (m[rows] / (1 - 0.9 ** t)) / (torch.sqrt(v[rows] / (1 - 0.999 ** t)) + 1e-8)


def all_of(emb):
    with torch.no_grad():
        return emb(torch.arange(emb.num))


def torch_program(program, *helpers):
    return "import torch, tutti.torch\nF = torch.nn.functional\ntorch.set_num_threads(1)\n" + \
        together(program, *helpers)


@pytest.mark.transports("shm")
def test_rules(ranks):
    """1,000 steps of a worker, which serves too: what the reference has, but for f32's rounding."""
    def program():
        torch.manual_seed(1)
        for rule, first in ("sgd", 0.05), ("adagrad", 0.5), ("adam", 0.05):
            emb = tutti.torch.TableEmbedding(100, 8, getattr(tutti, rule)(first), init=tutti.uniform(-1, 1, seed=3),
                                             name=rule)
            w = all_of(emb).clone()
            truth, state = torch.randn(100, 8), {name: torch.zeros(100, 8) for name in "Gmv"}
            assert w.abs().max() <= 1 and len(w.unique()) > 700 and emb.learning_rate == first
            for step in range(1, 1001):
                ids = torch.randint(0, 100, (4, 5))
                found = emb(ids)                # pushes the gradient of an even step, with the rate of that step
                emb.learning_rate = first / (1 + step / 500)
                (0.5 * (found - truth[ids]) ** 2).sum().backward()
                if step % 2:
                    emb.step()
                rows, count = ids.unique(return_counts=True)
                reference(rule, w, state, step, rows, (w[rows] - truth[rows]) * count[:, None], emb.learning_rate)
            emb.step()
            assert torch.allclose(all_of(emb), w, rtol=1e-5, atol=1e-6), (rule, (all_of(emb) - w).abs().max())
            assert (w - truth).abs().mean() < 0.3, rule
            emb.close()

    ranks(1, torch_program(program, reference, all_of))


def test_two_servers(ranks):
    """100,000 x 64 with Adam on two servers; the worker holds nothing. Each server counts the pushes to its rows."""
    def program():
        job = tutti.init()
        emb = tutti.torch.TableEmbedding(100_000, 64, tutti.adam(0.01), [1, 2], tutti.normal(0.1, seed=5), workers=[0])
        if job.rank == 0:
            torch.manual_seed(1)
            w = all_of(emb).clone()
            assert abs(w.std() - 0.1) < 0.001 and not list(emb.parameters()) and emb.table.look().server is None
            state = {name: torch.zeros_like(w) for name in "mv"}
            t = [0, 0]
            for step in range(1, 21):
                ids = torch.randint(0, 100_000 if step % 4 else 40_000, (4096,))  # some reach one server alone
                emb(ids).square().sum().backward()
                emb.step()
                rows, count = ids.unique(return_counts=True)
                gradient = 2 * w[rows] * count[:, None]
                for server, here in enumerate((rows < 50_000, rows >= 50_000)):
                    if here.any():
                        t[server] += 1
                        reference("adam", w, state, t[server], rows[here], gradient[here], 0.01)
            assert t == [20, 15]
            assert torch.allclose(all_of(emb), w, rtol=1e-5, atol=1e-6), (all_of(emb) - w).abs().max()
        job.barrier()
        emb.close()

    ranks(3, torch_program(program, reference, all_of))


@pytest.mark.transports("shm")
def test_as_torch(ranks):
    """Vectors, bags and gradients are those of torch's modules."""
    def program():
        def made(mode=None, padding_idx=None, **more):
            made.count += 1
            return tutti.torch.TableEmbedding(20, 3, tutti.sgd(0.5), None, tutti.normal(1, made.count), padding_idx,
                                              mode, name="%d" % made.count, **more)

        made.count = 0
        torch.manual_seed(1)
        ids, flat = torch.randint(0, 20, (4, 5)), torch.randint(0, 20, (12,))
        ids[1] = flat[3] = 2
        offsets, weights, ends = torch.tensor([0, 3, 3, 7]), torch.rand(12), torch.tensor([0, 3, 3, 7, 12])
        cases = [(None, {}, (ids,)), (None, {}, (flat.int(),)), (None, {}, (torch.tensor(7),)),
                 (None, {}, (ids[:0],)), (None, {"padding_idx": -18}, (ids,)), ("sum", {}, (ids,)),
                 ("sum", {"padding_idx": 2}, (flat, offsets, weights)), ("mean", {"padding_idx": 2}, (ids,)),
                 ("mean", {"padding_idx": 3}, (flat, offsets)), ("max", {}, (ids,)), ("max", {}, (flat, offsets)),
                 ("sum", {"include_last_offset": True}, (flat, ends, weights))]
        for mode, more, arguments in cases:
            emb = made(mode, **more)
            module = torch.nn.Embedding if mode is None else torch.nn.EmbeddingBag
            like = module(20, 3, **({} if mode is None else {"mode": mode}), **more)
            with torch.no_grad():
                like.weight.copy_(torch.from_numpy(emb.table.pull()))
                if emb.padding_idx is not None:
                    like.weight[emb.padding_idx] = 0
            given = [x.clone().requires_grad_() if x.is_floating_point() else x for x in arguments]
            found, wanted = emb(*given), like(*arguments)
            assert torch.allclose(found, wanted) and found.shape == wanted.shape, (mode, more, found, wanted)
            factor = torch.randn_like(wanted)
            (found * factor).sum().backward()
            (wanted * factor).sum().backward()
            assert all(x.grad is not None for x in given if x.requires_grad)
            emb.step()
            with torch.no_grad():
                left = torch.from_numpy(emb.table.pull()) - (like.weight - 0.5 * like.weight.grad)
                if emb.padding_idx is not None:
                    left[emb.padding_idx] = 0
            assert left.abs().max() < 1e-6, (mode, more, left)
            assert ("mode=" in repr(emb)) == (mode is not None) and "20, 3" in repr(emb)

        # what is pushed, and when
        emb = made()
        first = all_of(emb)
        emb(ids)                                    # nobody calls backward
        with torch.no_grad():
            assert not emb(ids).requires_grad
        emb.eval()
        assert not emb(ids).requires_grad
        emb.train()
        (emb(ids[0]).sum() + emb(ids[1]).sum()).backward()
        emb.eval()
        assert torch.equal(all_of(emb), first)      # evaluating pushes nothing
        emb.train()
        gradient = torch.zeros(20).index_add_(0, ids[:2].reshape(-1), torch.ones(10))[:, None]
        emb.learning_rate = 0.25
        emb(ids)                                    # the next forward pushes
        assert torch.allclose(all_of(emb), first - 0.25 * gradient)
        emb.step()
        assert torch.allclose(all_of(emb), first - 0.25 * gradient)
        emb = made(accumulate=True)
        first = all_of(emb)
        for row in ids[:2]:
            emb(row).sum().backward()
        assert torch.equal(all_of(emb), first)
        emb.step()
        assert torch.allclose(all_of(emb), first - 0.5 * gradient)

        # what is left out, and what is frozen
        emb = made()
        first = all_of(emb)
        emb(ids).sum().backward()
        emb.drop()
        assert not emb.requires_grad_(False)(ids).requires_grad
        emb.step()
        assert torch.equal(all_of(emb), first)
        emb.requires_grad_()(ids[:2]).sum().backward()
        emb.scale = 0.5
        emb.finish()
        assert torch.allclose(all_of(emb), first - 0.25 * gradient)

        # prefetch
        emb = made()
        first = all_of(emb)[ids]
        emb.prefetch(ids)
        emb(ids[:2]).sum().backward()               # other ids drop what was prefetched
        emb.prefetch(ids)
        emb.step()
        assert torch.equal(emb(ids), first)         # older than the step
        assert not torch.equal(emb(ids), first)
        emb.prefetch(ids[0])
        ids[0] += 1
        ids[0] %= 20
        assert torch.equal(emb(ids[0]), all_of(emb)[ids[0]])
        emb.prefetch(ids)
        emb.close()
        rounds = made(consistency="bsp")
        raises(ValueError, "consistency='bsp' promises", rounds.prefetch, ids)
        rounds.reopen()
        raises(TypeError, "integers, and not torch.float32", made(), ids.float())
        raises(IndexError, "id -1 is none of the 20 rows", made(), torch.tensor([3, -1]))
        raises(ValueError, "offsets and per_sample_weights are of bags", made(), flat, offsets)

        # memory serves again, but not while the program, or autograd for the weights' gradient, still has it
        emb, weights = made("sum"), torch.rand(ids.shape, requires_grad=True)
        first, memory = torch.from_numpy(emb.table.pull()), emb._memory
        memory._spare.clear()
        kept = emb(ids, None, weights)
        assert not memory._spare
        with torch.no_grad():
            emb(torch.ones_like(ids))
        assert len(memory._spare) == 1
        address = memory._spare[0].ctypes.data
        block = memory.take(1)
        assert block.data_ptr() == address and not memory._spare
        part = block[:1]
        del block
        assert not memory._spare
        del part
        kept.sum().backward()
        assert torch.allclose(weights.grad, first[ids].sum(2)) and 1 <= len(memory._spare) <= memory.KEPT
        emb.step()
        assert not torch.equal(torch.from_numpy(emb.table.pull()), first)

        # any numbers, and what is refused
        keys = tutti.torch.TableEmbedding(None, 2, tutti.sgd(1), init=tutti.normal(1), padding_idx=-1, name="keys")
        far = torch.tensor([2 ** 62, -1, 5, 2 ** 62])
        first = keys(far).detach()
        assert (first[1] == 0).all() and torch.equal(first[0], first[3]) and first.unique().numel() == 5
        keys(far).sum().backward()
        keys.step()
        assert torch.allclose(keys(far), first - torch.tensor([[2.], [0], [1], [2]]))
        raises(ValueError, "mode is None, .sum., .mean. or .max., and not 'bsp'", made, "bsp")
        raises(ValueError, "padding_idx 20 is none of 20 rows", made, None, 20)
        raises(ValueError, "made by a function of tutti.update", tutti.torch.TableEmbedding, 2, 2, "adam")
        raises(tutti.errors.InvalidArgument, "20", made(), torch.tensor([20]))
        raises(TypeError, "cannot be pickled", __import__("copy").deepcopy, keys)
        half = made(dtype=torch.bfloat16)
        half(ids).sum().backward()
        half.step()
        assert half(ids).dtype == torch.bfloat16

    ranks(1, torch_program(program, all_of), timeout=100)


def test_workers(ranks, tmp_path):
    """Two workers: means as in DDP, rounds, saves by state_dict."""
    def program():
        job = tutti.init()
        me, folder = job.rank, sys.argv[1]
        for consistency in "async", "ssp", "bsp":
            emb = tutti.torch.TableEmbedding(6, 2, tutti.momentum(1, momentum=0.5), consistency=consistency,
                                             name=consistency)
            for step in range(2):
                if step == 0 or me == 0:            # worker 1 has no gradient in the second step
                    (emb(torch.tensor([0, me + 1])) * (me + 1)).sum().backward()
                emb.step()
                job.barrier()
            found = all_of(emb)[:, 0].tolist()
            m = [-0.5, -0.75]                       # of row 1: two gradients of worker 0, of which each counts half
            if consistency == "bsp":                # in rounds the sum of both is one step
                assert found == [-1.5 - (0.5 + 0.75), sum(m), -1, 0, 0, 0], found
            else:
                assert found[1:] == [sum(m), -1, 0, 0, 0], found
            job.barrier()
            emb.close()

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.emb = tutti.torch.TableEmbedding(50, 4, tutti.adam(0.1), init=tutti.normal(1, 3), name="saved")
                self.dense = torch.nn.Linear(4, 1)

        model = Model()
        raises(RuntimeError if me else ValueError, "rank 0 has not loaded" if me else "names no save",
               model.load_state_dict, model.state_dict())
        if me == 0:
            model.emb(torch.arange(50)).sum().backward()
            model.emb.step()
            model.emb.save(folder + "/new")
        job.barrier()
        state, saved = model.state_dict(), all_of(model.emb)
        if me == 1:
            state["emb._extra_state"]["folder"] = folder + "/new"
        extra = state["emb._extra_state"]
        assert extra == {"name": "saved", "num": 50, "dim": 4, "folder": folder + "/new", "save": extra["save"]}
        if me == 0:
            assert len(extra["save"]) == 16
        job.barrier()
        model.emb(torch.arange(50)).sum().backward()
        model.emb.step()
        job.barrier()
        assert not torch.allclose(all_of(model.emb), saved)
        model.load_state_dict(state)
        assert torch.equal(all_of(model.emb), saved) and model.emb.folder == folder + "/new"
        job.barrier()
        if me == 0:                             # another save, in that folder and in another one
            model.emb.save(folder + "/new")
            os.rename(folder + "/new", folder + "/other")
            extra["folder"] = folder + "/other"
        raises(RuntimeError if me else ValueError, "rank 0 has not" if me else "other is not the one that the state",
               model.load_state_dict, state)
        if me == 0:
            os.rename(folder + "/other", folder + "/new")
            again = dict(model.state_dict())
            assert again["emb._extra_state"]["save"] != extra["save"]
            state = again
        job.barrier()
        model.load_state_dict(state)
        job.barrier()
        state["emb._extra_state"]["dim"] = 5
        raises(ValueError, "with dim 5, and this one has 4", model.load_state_dict, state)
        model.emb.close()
        job.barrier()
        again = tutti.torch.TableEmbedding(50, 4, tutti.adam(0.1), name="saved", load=folder + "/new")
        assert torch.equal(all_of(again), saved)
        job.barrier()
        again.close()
        job.barrier()
        new = tutti.torch.TableEmbedding(50, 4, name="new", load=folder + "/none")  # there is no save yet
        assert (all_of(new) == 0).all() and new.folder is None
        job.barrier()

    ranks(2, torch_program(program, all_of), arguments=[tmp_path])


def test_server_dies(ranks):
    def program():
        job = tutti.init()
        emb = tutti.torch.TableEmbedding(10, 2, servers=[0, 1])
        found = emb(torch.arange(10))
        job.barrier()
        if job.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        found.sum().backward()
        for _ in job.watch():
            break
        raises(tutti.errors.RankDied, "rank 1", emb.step)
        emb.step()                                  # that gradient is gone
        raises(ConnectionError, "rank 1", emb, torch.arange(10))
        raises(ConnectionError, "rank 1", emb.reopen, timeout=0.3)
        assert (emb(torch.arange(5)) == -0.5).all()  # the other server has done its part, of two workers
        print("ok")

    assert ranks(2, torch_program(program), ends={1: -9})[0].endswith("ok\n")


OUTLIVES = """
import os, signal, sys, time
import torch, tutti, tutti.torch

folder, consistency, staleness = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
job = tutti.init()
everyone = job.everyone()
emb = tutti.torch.TableEmbedding(4, 2, tutti.sgd(1), servers=[2], workers=[0, 1], consistency=consistency,
                                 staleness=staleness, scale=1, load=folder)
if everyone.rank == 2:
    if not job.late:
        everyone.recv(bytearray(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    everyone.recv(bytearray(1), 0)
    sys.exit()

def outlive(call, *arguments):
    while True:
        try:
            return call(*arguments)
        except (ConnectionError, tutti.errors.Stale) as e:
            print("%s: %s" % (type(e).__name__, e), flush=True)
            emb.reopen()

def step(ids=torch.arange(4)):
    outlive(emb, ids).sum().backward()
    outlive(emb.step)

workers = everyone.of([0, 1], "workers")
step()
workers.barrier()
if job.rank == 0:
    emb.save(folder)
workers.barrier()
step()                                      # which is not in the save
workers.barrier()
if job.rank == 0:                           # this worker has pulled, and pushes; the other one is not as far
    emb(torch.arange(4)).sum().backward()
    everyone.send(b"x", 2)
for change in job.watch():
    if change.rank == 2 and change.what == "gone":
        break
if job.rank == 0:
    outlive(emb.step)                       # this gradient is gone
else:
    step()
for _ in range(3):
    step()
workers.barrier()
emb.eval()
found = emb(torch.arange(4))
assert (found == -2 - 1 - 6).all(), found
emb.finish()
workers.barrier()
if job.rank == 0:
    everyone.send(b"x", 2)
workers.barrier()
print("done")
"""


@pytest.mark.parametrize("consistency, staleness", (("ssp", 2), ("bsp", 0)))
def test_server_dies_under_steps(tmp_path, consistency, staleness):
    """With "ssp" and "bsp" the error names the server; reopen() goes on from the save, with level workers."""
    (tmp_path / "program.py").write_text(OUTLIVES)
    done = subprocess.run(["tutti", "run", "--restart", "1", "-n", "3", sys.executable, "-u", "program.py", "save",
                           consistency, str(staleness)], cwd=str(tmp_path), env=clean_environment(OMP_NUM_THREADS=1),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200)
    text = done.stdout.decode()
    assert done.returncode == 0 and text.count("done\n") == 2 and text.count("RankDied: table p") == 2, text
    assert "RankDied: table push of rows: rank 2 went down" in text, text


def test_example(tmp_path):
    """Server 3 is killed, then both servers at once; each time the training goes on from the last save."""
    said = tmp_path / "said"
    with open(said, "wb") as file:
        tutti_run = subprocess.Popen(["tutti", "run", "--restart", "9", "-n", "4", sys.executable, "-u", str(EXAMPLE),
                                      str(tmp_path / "save")], stdout=file, stderr=file, start_new_session=True,
                                     env=clean_environment(OMP_NUM_THREADS=1))
    try:
        for step, victims in (100, [3]), (200, [2, 3]):
            while "step %d:" % step not in said.read_text() and tutti_run.poll() is None:
                await_all([tutti_run], 0.05)
            for rank in victims:
                os.kill(int(re.findall(r"rank %d serves: process (\d+)" % rank, said.read_text())[-1]), signal.SIGKILL)
        assert await_all([tutti_run], 100), said.read_text()
    finally:
        kill(tutti_run)
        tutti_run.wait()
    text = said.read_text()
    assert tutti_run.returncode == 0 and text.count("serves: process") == 5, text
    assert re.search(r"rank [01]: table .* rank 3 went down", text) and "Traceback" not in text, text
    assert int(re.search(r"step 300: (\d+) %", text)[1]) > 80, text
    saved = os.listdir(tmp_path / "save")
    assert {"users.safetensors.index.json", "tags.safetensors.index.json", "dense.pt"} < set(saved), saved
