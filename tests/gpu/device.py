"""What tests/gpu/device.sh runs with PyTorch on a machine with a GPU: `tutti run -n 2 python3 device.py [CHECK ...]`.

Each finding is a line of JSON. Exit status: 0; 1: something is wrong; 77: there is no PyTorch, or it sees no GPU.
"""
import json
import os
import sys
import time
import traceback

try:
    import torch
except ImportError as e:
    print(e, file=sys.stderr)
    sys.exit(77)
if not torch.cuda.is_available():
    print("PyTorch sees no GPU", file=sys.stderr)
    sys.exit(77)
import tutti
import tutti.torch

LARGE = min(int(os.environ.get("SIZE", 64 << 20)), 256 << 20) // 4  # floats
LATE = 20_000_000  # cycles that a stream is busy before its work
DEVICE = torch.device("cuda:0")
job = tutti.init()
me, other = job.rank, 1 - job.rank
wrong = 0


def note(what, value, unit=""):
    print(json.dumps({"part": "torch", "what": what, "value": value, "unit": unit}), flush=True)


def must(what, value, right=True):
    global wrong
    if value != right:
        note("rank %d: %s" % (me, what), str(value), "WRONG")
        wrong += 1


def full(count, value):
    """A tensor that is `value` everywhere only when its stream has come to that."""
    x = torch.zeros(count, device=DEVICE)
    torch.cuda._sleep(LATE)
    x.fill_(value)
    return x


def seconds(call, rounds=5):
    """The least time of a call."""
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begun)
    return best


def refused(what, kind, call):
    try:
        call()
    except kind as e:
        return str(e)
    must(what, "is not refused")
    return ""


def check_messages():
    """Tensors of a stream that is late, of several sizes, both ways."""
    for stream in torch.cuda.Stream(), torch.cuda.default_stream():
        with torch.cuda.stream(stream):
            for count in 1, 1000, 300_000, LARGE:
                mine, theirs = full(count, me + 1.0), torch.zeros(count, device=DEVICE)
                stream.synchronize() if me else None  # both kinds: with the work done, and under way
                if me:
                    job.send(mine, 0)
                    job.recv(theirs, 0)
                else:
                    job.recv(theirs, 1)
                    job.send(mine, 1)
                must("a message of %d floats" % count, bool((theirs == other + 1.0).all()))


def check_windows():
    n = LARGE
    memory = tutti.empty(n, gpu=0)
    window = tutti.Window("memory", memory)
    view = torch.as_tensor(memory, device=DEVICE)
    must("a tensor over memory of tutti.empty", view.data_ptr(), memory.__cuda_array_interface__["data"][0])
    must("the memory is zeroed", bool((view == 0).all()))
    job.barrier()
    with torch.cuda.stream(torch.cuda.Stream()):
        window.put_notify(full(n, me + 3.0), other)
    window.wait_notify(rank=other)
    must("a put behind a late stream", bool((view == other + 3.0).all()))
    job.barrier()
    theirs, host = torch.zeros(n, device=DEVICE), torch.zeros(n)
    window.get(theirs, other)
    window.get(host, other)
    must("a get to a GPU", bool((theirs == me + 3.0).all()))
    must("a get to the host", bool((host == me + 3.0).all()))
    if me == 0:
        note("get of a GPU's window to a tensor", 4 * n / seconds(lambda: window.get(theirs, other)) / 1e9, "GB/s")
        note("put of a tensor to a GPU's window", 4 * n / seconds(lambda: window.put(theirs, other)) / 1e9, "GB/s")
    job.barrier()


def check_broadcasts_and_tables():
    n = LARGE
    x = full(n, me + 1.0)
    job.broadcast(x, 1)
    must("a broadcast", bool((x == 2).all()))
    table = tutti.Table("sum", n, "float32", tutti.accumulate())
    table.push(full(n, me + 1.0))
    job.barrier()
    table.pull(out=x)
    must("a pull behind two pushes", bool((x == 3).all()))
    job.barrier()
    table.close()


def model_of(width=512):
    torch.manual_seed(me)
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)).to(DEVICE)


def check_gossip():
    model = model_of()
    g = tutti.torch.Gossip(model, every=2, value=0.5, timeout=20)
    for turn in range(2):  # in the first round the peer may be late
        with torch.no_grad():
            for p in model.parameters():
                torch.cuda._sleep(LATE // 10)
                p.fill_(2.0 * me)
        job.barrier()
        must("a step that publishes", g.step(), None)
        job.barrier()
        mix = g.step()
    must("the peer of a round", mix.peer, other)
    must("the mean of 0 and 2", all(bool((p == 1).all()) for p in model.parameters()))
    job.barrier()
    g.close()


def check_weights():
    """Models on GPUs through pinned memory: tensors of bf16, and one that is no multiple of anything."""
    count = LARGE // 2
    weights = {"a": torch.zeros(count // 4, 4, device=DEVICE, dtype=torch.bfloat16),
               "b": torch.zeros(1001, device=DEVICE), "n": torch.zeros((), dtype=torch.int64, device=DEVICE)}
    size = sum(w.numel() * w.element_size() for w in weights.values())
    if me == 0:
        publisher = tutti.torch.WeightPublisher(weights, "weights", buffers=4)
    job.barrier()
    if me == 1:
        reader = tutti.torch.WeightReader(weights, "weights")
    for version in 1, 2, 3:
        job.barrier()
        if me == 0:
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda._sleep(LATE)
                for w in weights.values():
                    w.fill_(version)
                publisher.publish(version, b"meta")
        job.barrier()
        if me == 1:
            must("the version that is fetched", reader.fetch(timeout=10).version, version)
            must("the weights of it", all(bool((w == version).all()) for w in weights.values()))
    job.barrier()
    if me == 0:
        numbers = iter(range(10, 100))
        pinned = torch.empty(count, dtype=torch.bfloat16, pin_memory=True)
        source = weights["a"].reshape(-1)
        note("bytes of bf16 weights", size)
        note("publish of them", size / seconds(lambda: publisher.publish(next(numbers))) / 1e9, "GB/s")
        note("a copy of them to pinned memory", size / seconds(lambda: pinned.copy_(source)) / 1e9, "GB/s")
    job.barrier()
    if me == 1:
        note("fetch of them to a model on a GPU", size / seconds(reader.fetch) / 1e9, "GB/s")
        reader.close()
    job.barrier()
    if me == 0:
        publisher.close()


def check_optimizer():
    model = model_of(64)
    optimizer = tutti.torch.TableOptimizer(model, tutti.adam(learning_rate=1e-2))
    torch.manual_seed(me)
    losses = []
    for _ in range(50):
        x = torch.randn(256, 64, device=DEVICE)
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    must("the loss halves", losses[-1] < losses[0] / 2)
    optimizer.close()


def check_refusals():
    x = torch.ones(1000, device=DEVICE)
    why = refused("an all-reduce", tutti.errors.NotSupported, lambda: job.allreduce(x))
    must("the sentence names the GPU", "memory of GPU 0" in why)
    refused("a transposed tensor", ValueError, lambda: job.send(torch.ones(4, 5, device=DEVICE).t(), other))
    graph, y = torch.cuda.CUDAGraph(), torch.zeros(1000, device=DEVICE)
    with torch.cuda.graph(graph):
        y.add_(x)
        why = refused("a call in a capture", tutti.errors.NotSupported, lambda: job.send(x, other))
    graph.replay()
    must("the capture goes on", bool((y == 1).all()))
    must("the sentence says so", "captur" in why)
    job.barrier()


def check_interfaces():
    """Arrays of CuPy, and objects that have DLPack alone."""
    try:
        import cupy
    except ImportError as e:
        note("CuPy", str(e))
    else:
        with cupy.cuda.Stream(non_blocking=True):
            x = cupy.full(100_000, me + 1, cupy.float32)
            y = cupy.zeros(100_000, cupy.float32)
            (job.send, job.recv)[me](x if me == 0 else y, other)
            (job.recv, job.send)[me](y if me == 0 else x, other)
            must("arrays of CuPy", bool((y == other + 1).all()))
    x, y = torch.full((1000,), me + 1.0, device=DEVICE), torch.zeros(1000, device=DEVICE)

    def give(x):  # an object that has DLPack alone
        return type("Array", (), {"__dlpack__": lambda self, **how: x.__dlpack__(**how),
                                  "__dlpack_device__": lambda self: x.__dlpack_device__()})()

    (job.send, job.recv)[me](give(x) if me == 0 else give(y), other)
    (job.recv, job.send)[me](give(y) if me == 0 else give(x), other)
    must("arrays by DLPack", bool((y == other + 1).all()))


def check_memory():
    """What PyTorch's allocator does with memory beside calls on it: frees, gives back, takes again."""
    for turn in range(20):
        x, y = full(1 << (10 + turn % 12), turn + me), torch.zeros(1 << (10 + turn % 12), device=DEVICE)
        (job.send, job.recv)[me](x if me == 0 else y, other)
        (job.recv, job.send)[me](y if me == 0 else x, other)
        must("turn %d" % turn, bool((y == turn + other).all()))
        del x, y
        torch.cuda.empty_cache()


def main():
    names = sys.argv[1:] or [name[6:] for name in globals() if name.startswith("check_")]
    for name in names:
        before, begun = wrong, time.perf_counter()
        try:
            globals()["check_" + name]()
        except Exception as e:
            traceback.print_exc()
            must(name, "raises " + repr(e))
            sys.exit(1)  # the other rank waits in some call
        if me == 0:
            note(name, "ok" if wrong == before else "not ok", "%.1f s" % (time.perf_counter() - begun))
        job.barrier()
    sys.exit(wrong != 0)


main()
