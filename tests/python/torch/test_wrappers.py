"""The wrappers of tutti.torch against their equations, with BatchNorm, shared parameters, and models that differ."""
import pytest

MODEL = """\
import copy, math, pickle, torch, tutti, tutti.torch
torch.set_num_threads(1)
job = tutti.init()
me, n = job.rank, job.size

class Model(torch.nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.a = torch.nn.Linear(4, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.b = torch.nn.Linear(4, width)
        self.b.weight = self.a.weight              # shared
        self.frozen = torch.nn.Parameter(torch.full((2,), float(me)), requires_grad=False)
        self.register_buffer("none", torch.empty(0))

    def forward(self, x):
        return self.norm(self.a(x)) + self.b(x)

torch.manual_seed(me)
model = Model()
x = torch.randn(8, 4)

def refused(kind, call):
    try:
        call()
    except kind as e:
        return str(e)
    raise SystemExit("not refused")

def set_all(value):
    with torch.no_grad():
        for t in list(model.parameters()) + [model.norm.running_mean, model.norm.running_var]:
            if t.requires_grad or t is model.norm.running_mean or t is model.norm.running_var:
                t.fill_(value)

def everything():
    return torch.cat([t.detach().reshape(-1) for t in [model.a.weight, model.a.bias, model.norm.weight, model.b.bias,
                                                       model.norm.running_mean, model.norm.running_var]])

def everywhere(t):
    return torch.from_numpy(job.allgather(t.numpy()))
"""


@pytest.mark.transports("shm")
def test_gradients(ranks):
    program = MODEL + """
tutti.torch.Gossip(model, name="start").close()     # all begin with rank 0's model
assert all((row == everything()).all() for row in everywhere(everything())) and (model.frozen == 0).all()
assert model.norm.num_batches_tracked == 0
model(x).square().mean().backward()
if me == 1:
    model.b.bias.grad = None
mine = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters() if p.requires_grad]
mean = [everywhere(g).mean(0) for g in mine]
running = everywhere(model.norm.running_mean).mean(0)
tutti.torch.allreduce_gradients(model)
for p, g in zip([p for p in model.parameters() if p.requires_grad], mean):
    assert torch.allclose(p.grad, g, atol=1e-7), (p.grad, g)
assert torch.allclose(model.norm.running_mean, running) and model.frozen.grad is None
y = torch.full((1000,), float(me))
g = tutti.Gradients([y])
y.data = torch.zeros(1000)                          # the library still has the address of the memory before
others = [torch.full((1000,), float(me)) for _ in range(5)]
g.average()
assert (y == 0).all() and all((z == me).all() for z in others)
model = torch.nn.Linear(4, 2 + me)
model(x).sum().backward()
print(refused((tutti.errors.Mismatch, tutti.errors.Aborted), lambda: tutti.torch.allreduce_gradients(model)))
"""
    for said in ranks(2, program):
        assert "rank" in said


def test_gossip(ranks):
    program = MODEL + """
g = tutti.torch.Gossip(model, every=2, value=0.25, timeout=20)
for value in (0, 0.25):                             # in the first round the peer may be late
    g.gossip.value = value
    set_all(me + 1.0)
    model.norm.num_batches_tracked.fill_(me)
    job.barrier()
    assert g.step() is None
    job.barrier()
    mix = g.step(torch.tensor(1.0))
assert mix.peer == 1 - me and mix.factor == 0.25, mix
assert (everything() == 0.75 * (me + 1) + 0.25 * (2 - me)).all() and model.norm.num_batches_tracked == me
own = everything()
with g.consensus() as m:
    assert m is model and torch.allclose(everything(), torch.tensor(1.5))
assert (everything() == own).all()
state = g.state_dict()
assert state["count"] == 4 and state["clock"] > 0, state
job.barrier()
g.load_state_dict(state)
assert g.state_dict() == state
g.step()
sentence = refused(RuntimeError, lambda: (setattr(model.a, "weight", torch.nn.Parameter(torch.zeros(3, 4))), g.step()))
assert "a.weight" in sentence or "b.weight" in sentence, sentence
model.norm.double()
print(refused(RuntimeError, g.step))
job.barrier()
g.close()
print(refused(ValueError, lambda: tutti.torch.Gossip(Model(3 + me))))
assert "from 1 up" in refused(ValueError, lambda: tutti.torch.Gossip(model, every=0))
assert "a group is a tutti.Group" in refused(ValueError, lambda: tutti.torch.Elastic(model, group="gloo"))
print(refused(ValueError, lambda: tutti.torch.Gossip(model if me == 0 else torch.nn.Linear(2, 2))))
"""
    said = [text.splitlines() for text in ranks(2, program)]
    assert "make the wrapper after load_state_dict(assign=True)" in said[0][0]
    assert said[0][1:] == said[1][1:] and "rank 0 has a.weight: float32 of shape (3, 4), and rank 1 has a.weight: " \
        "float32 of shape (4, 4)" in said[0][1], said


def test_elastic_has_one_center(ranks):
    ranks(2, MODEL + """
e = tutti.torch.Elastic(model, tau=2)
for step in range(4):                               # from the first step on the ranks' models differ
    with torch.no_grad():
        for t in e._tensors:
            t += me + 1
    e.step()
center = torch.cat([t.reshape(-1) for t in e.average.center()]).numpy()
assert (job.allgather(center) == center).all()
e.close()
""")


def test_elastic(ranks):
    program = MODEL + """
for servers in (None, [1]):
    e = tutti.torch.Elastic(model, tau=2, alpha=0.25, servers=servers, name="elastic")
    with torch.no_grad():                           # the center is rank 0's model, here of ones
        set_all(1.0)
    ones = {name: torch.ones_like(t) for name, t in model.state_dict().items()}
    e.load_state_dict({**e.state_dict(), "center": ones})
    center, values = 1.0, torch.ones(n)
    for step in range(4):
        with torch.no_grad():
            for t in e._tensors:
                t += me + 1
        values += torch.arange(n) + 1
        if servers is None:
            averaged = e.step()
            if averaged:
                moves = 0.25 * (values - center)
                values, center = values - moves, center + moves.sum().item()
        else:
            for rank in range(n):                   # by turns
                if rank == me:
                    averaged = e.step()
                job.barrier()
                if step % 2:
                    move = 0.25 * (values[rank] - center)
                    values[rank] -= move
                    center += move.item()
        assert averaged == (step % 2 == 1)
        assert torch.allclose(everything(), values[me]), (step, everything(), values)
    with e.consensus():
        assert torch.allclose(everything(), torch.tensor(center)), (everything(), center)
    assert torch.allclose(everything(), values[me])
    state = e.state_dict()
    assert state["tau"] == 2 and state["alpha"] == 0.25
    assert torch.allclose(state["center"]["norm.running_var"], torch.tensor(center)), state
    assert "another model" in refused(ValueError, lambda: e.load_state_dict({"center": {}}))
    job.barrier()
    e.close()
"""
    ranks(2, program)


@pytest.mark.transports("shm")
def test_diloco(ranks):
    program = MODEL + """
refused(ValueError, lambda: tutti.torch.DiLoCo(model, torch.optim.SGD(model.a.parameters(), lr=1.0)))
compiled = getattr(torch, "compile", lambda f, **how: f)
outer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5, momentum=0.5, nesterov=True)
set_all(1.0)
d = tutti.torch.DiLoCo(model, outer, steps=2)
old, velocity = 1.0, None
for step in range(6):
    with torch.no_grad():
        for t in d._tensors:
            t += (me + 1) * (step + 1)
    model.a.bias.grad = torch.full((3,), 7.0)
    assert compiled(lambda y: (y + 1, d.step()), backend="eager")(x)[1] == (step % 2 == 1)
    if step % 2:
        gradient = -1.5 * (step + step + 1)         # the mean of old - now
        velocity = gradient if velocity is None else 0.5 * velocity + gradient
        old -= 0.5 * (gradient + 0.5 * velocity)
        assert torch.allclose(model.a.weight, torch.tensor(old)), (model.a.weight, old)
        assert (model.a.bias.grad == 7).all() and model.b.bias.grad is None
    if step == 3:
        state = d.state_dict()
        again = (velocity, old)
assert torch.allclose(model.norm.running_mean, everywhere(model.norm.running_mean))
model.a.bias.data += 1
with d.consensus():
    assert torch.allclose(model.a.bias, torch.tensor(old))
d.load_state_dict(state)
with d.consensus():
    assert torch.allclose(model.a.bias, torch.tensor(again[1]))
"""
    ranks(2, program)


def test_table(ranks):
    program = MODEL + """
for mode in ("bsp", "async"):
    job.barrier()
    model = Model()
    with torch.no_grad():
        model.a.weight.fill_(1.0 + me)
    rate = 0.5
    opt = tutti.torch.TableOptimizer(model, tutti.momentum(learning_rate=rate, momentum=0.5), mode=mode, servers=[0],
                                     name=mode)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
    assert (model.a.weight == 1).all()
    w, v, first = 1.0, 0.0, None
    for step in range(3):
        opt.zero_grad()
        for p in model.parameters():
            p.grad = torch.full_like(p, 2.0 * me + 1) if p.requires_grad else None
        model.norm.running_mean += me + 1
        if mode == "bsp":
            opt.step()
            v = 0.5 * v + 2.0                       # the mean of 1 and 3
            w -= rate * v
        else:
            for rank in range(n):
                if rank == me:
                    opt.step()
                job.barrier()
                v = 0.5 * v + (2.0 * rank + 1) / 2
                w -= rate * v
        rate /= 2
        schedule.step()
        with opt.consensus():
            assert torch.allclose(model.a.weight, torch.tensor(w)), (mode, model.a.weight, w)
            assert torch.allclose(model.norm.running_mean, torch.tensor(1.5 * (step + 1))), model.norm.running_mean
        job.barrier()
        if mode == "async":                         # each begins with what the servers have
            opt._pull()
            opt._center.pull()
    assert "lr" in opt.param_groups[0] and abs(opt.param_groups[0]["lr"] - rate) < 1e-9
    state = opt.state_dict()
    assert torch.allclose(state["table"]["a.weight"], torch.tensor(w))
    state["table"]["a.weight"].fill_(5.0)
    job.barrier()
    opt.load_state_dict(state)
    assert (model.a.weight == 5).all()
    for save in (pickle.dumps, copy.deepcopy):
        assert "save its state_dict" in refused(TypeError, lambda: save(opt))
    model.b.bias.grad = None                        # counts as zeros
    assert opt.step(lambda: 3) == 3
    opt.finish()
    opt.close()
mixed = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).double())
print(refused(ValueError, lambda: tutti.torch.TableOptimizer(mixed, tutti.adam())))
"""
    assert "of one type" in ranks(2, program)[0]


@pytest.mark.transports("tcp")
def test_ddp_hook(ranks):
    program = MODEL + """
import datetime, os, torch.distributed as dist, tempfile
folder = os.path.dirname(os.path.abspath(__file__))
dist.init_process_group("gloo", init_method="file://" + folder + "/rendezvous", rank=me, world_size=n)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 300))
plain = torch.nn.Linear(4, 300)
plain.load_state_dict(ddp.module.state_dict())
ddp.register_comm_hook(None, tutti.torch.ddp_hook)
for i in range(3):
    ddp.zero_grad()
    ddp(x).square().mean().backward()
    plain.zero_grad()
    plain(x).square().mean().backward()
    tutti.torch.allreduce_gradients(plain)
    for a, b in zip(ddp.parameters(), plain.parameters()):
        assert torch.equal(a.grad, b.grad)
job.barrier()
dist.destroy_process_group()
"""
    ranks(2, program)


@pytest.mark.transports("shm")
def test_ddp_hook_lets_a_rank_end(ranks):
    """A rank that raises in the backward pass ends, although the other rank does not average."""
    program = MODEL + """
class Bucket:
    def buffer(self):
        return torch.ones(4)

if me == 0:
    future = tutti.torch.ddp_hook(None, Bucket())
    raise MemoryError
print(refused(tutti.errors.RankLeft, lambda: job.recv(bytearray(1), 0)))
"""
    ranks(2, program, timeout=30, ends={0: 1})
