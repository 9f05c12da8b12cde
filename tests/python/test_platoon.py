"""Platoon's names on Tutti: the recorded numbers, the page's two scripts, workers who die in every call."""
import contextlib
import gzip
import importlib
import inspect
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from conftest import all_or, clean_environment, free_address, start_program

pytest.importorskip("platoon", reason="PYTHONPATH lacks bindings/python/compat/src")
HERE = pathlib.Path(__file__).parent
RECORD = json.loads((HERE.parent / "conformance" / "conformance.json").read_text())
CASES = {case["id"]: case for case in RECORD["cases"] if case["id"].startswith("pl-")}
HEAD = """
import json, os, signal, sys, time
import numpy as np
from platoon.channel import Controller, Worker
from platoon.param_sync import ASGD, EASGD, ParamSyncRule
from platoon.util import PlatoonError
import tutti
PORT = int(os.environ["PORT"])
"""


class Variable:
    """A parameter with Theano's methods."""

    def __init__(self, value):
        self.value = np.array(value)
        self.dtype = self.value.dtype

    def get_value(self, borrow=False):
        return self.value if borrow else self.value.copy()

    def set_value(self, value, borrow=False):
        self.value = np.array(value)


@pytest.fixture
def start(request, tmp_path):
    """Gives start(program, *arguments, **environment): a process of the program, a function whose body is run, or a
    text. Its result is of start_program, with said(), which waits up to 60 s for the end and gives its output."""
    port, started = free_address().split(":")[1], []

    def run(program, *arguments, **environment):
        text = program if isinstance(program, str) else textwrap.dedent(inspect.getsource(program))
        if not isinstance(program, str):
            text = HEAD + textwrap.dedent(inspect.getsource(Variable)) + text + "\n%s()\n" % program.__name__
        number = len(started)
        script, output = tmp_path / ("program%d.py" % number), tmp_path / ("output%d" % number)
        script.write_text(text)
        process = start_program(request, script, arguments, output, {"PORT": port, **environment}, tmp_path)

        def said(status=0, timeout=60):
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)
                process.wait()
            text = output.read_text(errors="replace")
            assert process.returncode == status, "status %s, not %s: %s" % (process.returncode, status, text)
            return text

        def await_text(text, timeout=60):
            deadline = time.monotonic() + timeout
            while text not in output.read_text(errors="replace"):
                assert process.poll() is None and time.monotonic() < deadline, output.read_text(errors="replace")
                time.sleep(0.01)

        process.said, process.await_text = said, await_text
        started.append(process)
        return process

    run.port = int(port)
    yield run
    for process in started:
        process.kill()
        process.wait()
    left = [name for name in os.listdir("/dev/shm") if name.endswith(("_%s_params" % port, "_%s_lock" % port))]
    for name in left:
        os.unlink("/dev/shm/" + name)


def controller():
    """A controller that answers with what it is asked. Arguments: the names of its devices."""
    class Echo(Controller):
        def handle_control(self, req, worker_id, req_info):
            if req == "fail":
                raise KeyError("the handler's own error")
            if req == "kill me":
                os.kill(worker_id, signal.SIGKILL)
            return [req, worker_id, req_info]

    sys.exit(Echo(PORT, devices=sys.argv[1:] or None).serve())


# ---- names ----

def test_names():
    """The modules have Platoon's names, and functions have its arguments."""
    names = {
        "platoon.channel": "Controller Worker", "platoon.controller": "Controller", "platoon.worker": "Worker",
        "platoon.param_sync": "ParamSyncRule EASGD ASGD", "param_sync": "ParamSyncRule EASGD ASGD",
        "platoon.training.global_dynamics": "GlobalDynamics SGD SumSGD AverageSGD EASGD Downpour",
        "platoon.util": "PlatoonError PlatoonWarning SingletonType mmap launch_process op_to_mpi dtype_to_mpi",
        "platoon.configparser": "fetch_hosts fetch_devices_for_host", "channel": "Lieutenant Soldier",
        "platoon.ops": "AllReduceSum AllReduceProd AllReduceMax AllReduceMin"}
    for module, attributes in names.items():
        for name in attributes.split():
            assert hasattr(importlib.import_module(module), name), (module, name)
    from channel import Lieutenant, Soldier
    from platoon.channel import Controller, Worker
    signatures = {
        Controller.__init__: "self control_port data_port data_hwm devices experiment_name log_directory worker_args "
                             "multi",
        Worker.__init__: "self control_port data_port socket_timeout data_hwm port",
        Worker.init_shared_params: "self params param_sync_rule", Worker.sync_params: "self synchronous",
        Worker.all_reduce: "self src op dest", Worker.send_req: "self req info", Worker.lock: "self timeout",
        Controller.handle_control: "self req worker_id req_info", Lieutenant.handle_control: "self req worker_id",
        Lieutenant.__init__: "self port cport hwm",
        Soldier.init_shared_params: "self job_name params param_sync_rule cleanup"}
    for function, arguments in signatures.items():
        assert list(inspect.signature(function).parameters) == arguments.split(), function


def test_controller_without_workers():
    """It makes memory by name, reaches nobody, and gives each of three workers its turn."""
    from platoon.channel import Controller
    case = CASES["pl-first-3"]
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    control = Controller(1, devices=["cuda0", "cuda1", "cuda2"])  # nobody but root could listen at port 1
    for number, handler in before.items():
        signal.signal(number, handler)
    firsts = [control._is_worker_first(control._am_i_first_count) for _ in range(case["input"]["requests"])]
    assert firsts == case["expected"]["first"]
    for i, (name, device) in enumerate((("7", "cuda0"), ("8", "cuda2"), ("9", "cuda1"), ("x", "cuda1"))):
        info = control._get_platoon_info({"local_id": name, "device": device})
        rank = int(device[-1])
        assert info == {"local_id": "x" if i == 3 else "7", "local_size": 3, "local_rank": rank, "multinode": False,
                        "global_size": 3, "global_rank": rank}
    control._job_uid = "test%d" % os.getpid()
    for size, number in ((64, 0), (64, 0), (512, 1), (64, 0), (512, 1)):  # also if a worker in between has died
        name = control._init_new_shmem({"size": size})
        assert name == "platoon-test%d_%d_buffer" % (os.getpid(), number)
        assert len(control.shared_buffers[name]) == size and name in os.listdir("/dev/shm")
    assert len(control.shared_buffers) == 2
    control._close()
    assert not [name for name in os.listdir("/dev/shm") if control._job_uid in name]


def test_a_second_controller(start, tmp_path):
    """It cannot listen at the port of another one, and takes nothing from that one's workers."""
    def patient():
        worker = Worker(PORT)
        worker.init_shared_params([np.ones(2)], EASGD(0.5))
        print("has them")
        while not os.path.exists("enough"):
            time.sleep(0.01)

    def names():
        return sorted(name[-5:] for name in os.listdir("/dev/shm") if "_%d_" % start.port in name)

    serve, worker = start(controller), start(patient)
    worker.await_text("has them")
    start(controller).said(2)
    assert names() == ["_lock", "arams"]
    (tmp_path / "enough").touch()
    worker.said()
    serve.said()
    assert not names()


def test_a_worker_that_is_waited_for_stays_known():
    """A signal's handler that comes while the controller waits for a worker's end finds this worker again."""
    from platoon.channel import Controller

    class Process:
        pid = 7

        def send_signal(self, number):
            pass

        def wait(self, timeout):
            raise SystemExit(1)

    control = Controller.__new__(Controller)
    control._workers = {7: Process()}
    with pytest.raises(SystemExit):
        control._kill_workers()
    assert 7 in control._workers


def test_a_new_object_has_its_own_memory():
    """all_reduce's result does not lie in src's memory, also if set_value writes in place."""
    from platoon._variables import new_like

    class InPlace(Variable):
        def set_value(self, value, borrow=False):
            self.value[...] = value

    src = InPlace([1.0, 2.0])
    assert new_like(src, np.zeros(2)).value.tolist() == [0, 0] and src.value.tolist() == [1, 2]


def test_memory_by_name(monkeypatch):
    """Memory of other shapes or types is refused, and so are memory and locks that others may open."""
    from platoon import _memory
    from platoon.util import PlatoonError
    name = "test_memory_%d" % os.getpid()
    try:
        _memory.publish(name, [np.arange(6.0).reshape(2, 3), np.ones(1)])
        same = _memory.attach(_memory.SharedMemory(name), [np.zeros((2, 3)), np.zeros(1)])
        assert same[0].tolist() == [[0, 1, 2], [3, 4, 5]] and same[1].tolist() == [1]
        for wrong in ([np.zeros((3, 2)), np.zeros(1)], [np.zeros((2, 3)), np.zeros(1, "i8")],
                      [np.zeros((2, 3)), np.zeros(2)], [np.zeros(60), np.zeros(1)]):
            with pytest.raises(PlatoonError, match="train the same model"):
                _memory.attach(_memory.SharedMemory(name), wrong)
        for kind in (_memory.SharedMemory, _memory.Lock):
            with monkeypatch.context() as patch, pytest.raises(PlatoonError, match="belongs to another user"):
                patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
                kind(name)
        os.chmod("/dev/shm/" + name, 0o622)
        for kind in (_memory.SharedMemory, _memory.Lock):
            with pytest.raises(PlatoonError, match="others may open it"):
                kind(name)
    finally:
        _memory.remove(name)


def test_refusals(capsys):
    """What is not supported is refused by name."""
    from platoon import ops
    from platoon._variables import value_of
    from platoon.util import SingletonType
    with pytest.raises(NotImplementedError, match="AllReduceSum is a Theano operation.*Worker.all_reduce"):
        ops.AllReduceSum(None)
    gpu = type("GpuArray", (), {"__module__": "pygpu.gpuarray"})
    with pytest.raises(TypeError, match="pygpu"):
        value_of(gpu())

    class Single(metaclass=SingletonType):
        def __init__(self, fail=False):
            if fail:
                raise KeyError("no")

    with pytest.raises(KeyError):
        Single(fail=True)
    one = Single()
    assert Single() is one and not capsys.readouterr().err
    assert Single(fail=True) is one and "has its Single already" in capsys.readouterr().err


def test_config(tmp_path, monkeypatch):
    """Variables come before files, and files of PLATOONRC before others, from right to left."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMP", "/scratch")
    for name in ("PLATOON_HOSTS", "PLATOON_DEVICES", "PLATOONRC"):
        monkeypatch.delenv(name, raising=False)
    from platoon import configparser

    def fetch():
        fresh = importlib.reload(configparser)
        return fresh.fetch_hosts(), fresh.fetch_devices_for_host("a")

    with pytest.raises(KeyError):
        fetch()
    (tmp_path / ".platoonrc").write_text("[platoon]\nhosts : a\n  b, c\n[devices]\na : cuda3,cuda0\n")
    assert fetch() == (["a", "b", "c"], ["cuda3", "cuda0"])
    (tmp_path / "one").write_text("[platoon]\nhosts = one\n[devices]\na = %(TMP)s\n")
    (tmp_path / "two").write_text("[platoon]\nhosts = two 50%\n")
    monkeypatch.setenv("PLATOONRC", "~/one%s%s" % (os.pathsep, tmp_path / "two"))
    assert fetch() == (["two", "50%"], ["/scratch"])
    monkeypatch.setenv("PLATOON_HOSTS", "x,y")
    monkeypatch.setenv("PLATOON_DEVICES", "cuda0,opencl0:1")
    assert fetch() == (["x", "y"], ["cuda0", "opencl0:1"])


# ---- rules ----

def play(case):
    """The local and shared values after each sync of a case, over both kinds of parameters."""
    from platoon import param_sync
    given, syncs = case["input"], []
    for kind in (np.array, Variable):
        master = [np.array(given["master"])]
        local = [[kind(value)] for value in given["workers"]]
        rules = [param_sync.EASGD(given["alpha"]) if "alpha" in given else param_sync.ASGD() for _ in local]
        update = [rule.make_update_function(params) for rule, params in zip(rules, local)]
        said = []
        for event in given["events"]:
            worker, step = event["worker"], np.array(event.get("local_update", 0.0))
            p = local[worker][0]
            if kind is Variable:
                p.set_value(p.get_value() + step)
            else:
                p += step
            if event.get("sync"):
                update[worker](master)
                said.append((np.array(p.value if kind is Variable else p), master[0].copy()))
        syncs.append(said)
    assert all(np.array_equal(a, b) for one, two in zip(*syncs) for a, b in zip(one, two))
    return syncs[0]


@pytest.mark.parametrize("name", ["pl-psync-easgd", "pl-psync-easgd-a03", "pl-psync-asgd"])
def test_param_sync(name):
    for (local, master), expected in zip(play(CASES[name]), CASES[name]["expected"]["syncs"]):
        np.testing.assert_allclose(local, expected["local"], 0, 1e-12)
        np.testing.assert_allclose(master, expected["master"], 0, 1e-12)


@pytest.mark.parametrize("alpha", [0.7, None])
def test_param_sync_with_other_numbers(alpha):
    """The equations again, in plain loops."""
    draw = np.random.RandomState(7)
    master, local = draw.randn(5), [draw.randn(5) for _ in range(3)]
    events = [{"worker": draw.randint(3), "local_update": draw.randn(5), "sync": True} for _ in range(20)]
    given = {"master": master, "workers": local, "events": events}
    case = {"input": dict(given, alpha=alpha) if alpha else given}
    old = [value.copy() for value in local]
    m, w = master.copy(), [value.copy() for value in local]
    for event, (got_local, got_master) in zip(events, play(case)):
        i = event["worker"]
        for k in range(5):
            w[i][k] += event["local_update"][k]
            if alpha:
                diff = alpha * (w[i][k] - m[k])
                w[i][k] -= diff
                m[k] += diff
            else:
                m[k] += w[i][k] - old[i][k]
                w[i][k] = old[i][k] = m[k]
        np.testing.assert_allclose(got_local, w[i], 0, 1e-12)
        np.testing.assert_allclose(got_master, m, 0, 1e-12)


def test_easgd_of_large_and_strided_arrays():
    """The rule takes arrays in pieces: all elements are there, also of arrays with gaps, of scalars, of empty ones."""
    from platoon.param_sync import EASGD
    draw = np.random.RandomState(3)
    for shape in ((100003,), (300, 400), (), (0,)):
        for order in ("C", "F"):
            local, master = np.array(draw.randn(*shape), order=order), np.array(draw.randn(*shape))
            force = 0.3 * (local - master)
            wanted = local - force, master + force
            EASGD(0.3).update_params([local], [master])
            np.testing.assert_allclose(local, wanted[0], 0, 1e-12)
            np.testing.assert_allclose(master, wanted[1], 0, 1e-12)


def collective_worker():
    """Runs the cases that have as many workers as there are here, and a drawn one of each kind."""
    from platoon.training import global_dynamics as gd
    me = Worker(PORT)
    n, rank = me.local_size, me.local_rank
    assert (me.global_size, me.global_rank, me._multinode) == (n, rank, False)

    def close(value, expected):
        np.testing.assert_allclose(value.get_value() if hasattr(value, "get_value") else value, expected, 0, 1e-9)

    def run(ref, given, expected):
        for kind in (np.array, Variable):
            if ref == "platoon_allreduce":
                mine, place = kind(given["values"][rank]), kind(np.zeros(len(given["values"][0])))
                new = me.all_reduce(mine, given["op"].upper())
                assert type(new) is type(mine) and new is not mine
                close(new, expected["result"])
                assert me.all_reduce(mine, given["op"], place) is None
                close(place, expected["result"])
                close(mine, given["values"][rank])
                me.all_reduce(mine, given["op"], mine)
                close(mine, expected["result"])
            elif ref == "platoon_sync_sgd":
                update = kind(given["updates"][rank])
                rule = gd.AverageSGD() if given["average"] else gd.SumSGD(me)
                rule.make_rule(update)
                rule()
                close(update, expected["updates"][rank])
            elif ref == "platoon_downpour":
                local, acc, center = kind([9.0] * 2), kind(given["acc"][rank]), kind(given["global"])
                rule = gd.Downpour(average=given["average"])
                rule.make_rule([local], [acc], [center])
                rule()
                for value, name in ((local, "local"), (acc, "acc")):
                    close(value, expected[name][rank])
                close(center, expected["global"])
            else:
                local, center = kind(given["local"][rank]), kind(given["central"][rank])
                rule = gd.EASGD()
                rule.make_rule(local, center, given["alpha"])
                rule()
                close(local, expected["local"][rank])
                close(center, expected["central"][rank])

    count = 0
    for case in json.loads(os.environ["CASES"]):
        given = case["input"]
        if len(given.get("values") or given.get("updates") or given.get("acc") or given.get("local") or ()) == n:
            run(case["ref"], given, case["expected"])
            count += 1
    draw = np.random.RandomState(n)
    x, c = draw.randn(n, 2), draw.randn(2)
    total = [sum(x[i][k] for i in range(n)) for k in range(2)]
    run("platoon_allreduce", {"op": "add", "values": x}, {"result": total})
    run("platoon_allreduce", {"op": "min", "values": x}, {"result": [min(x[:, 0]), min(x[:, 1])]})
    run("platoon_sync_sgd", {"average": True, "updates": x}, {"updates": [np.array(total) / n] * n})
    run("platoon_downpour", {"average": False, "acc": x, "global": c},
        {"local": [c + total] * n, "acc": [[0.0] * 2] * n, "global": c + total})
    run("platoon_sync_easgd", {"alpha": 0.2, "local": x, "central": [c] * n},
        {"local": [0.8 * x[i] + 0.2 * c for i in range(n)], "central": [c + 0.2 * (total - n * c)] * n})
    for wrong, kind in (("-", ValueError), ("nothing", ValueError), (None, ValueError)):
        try:
            me.all_reduce(np.ones(1), wrong)
            sys.exit("%r is an operation" % wrong)
        except kind:
            pass
    large = me.all_reduce(np.full((300, 1000), rank, "f4"), "max")
    assert large.shape == (300, 1000) and (large == n - 1).all()
    shared = me.shared(np.zeros((2, 3)))
    if rank == n - 1:
        shared[...] = 5
    me.all_reduce(np.zeros(1), "+")  # a barrier
    assert (shared == 5).all() and me.shared(np.ones((2, 3))) is shared and 48 in me._memory
    print("cases:", count)


@pytest.mark.parametrize("n, count", [(1, 0), (2, 1), (3, 5), (4, 6)])
def test_collective_cases(start, n, count):
    serve = start(controller, *("cuda%d" % i for i in range(n)))
    cases = json.dumps([case for case in CASES.values() if "error" not in case["expected"]])
    workers = [start(collective_worker, CASES=cases) for _ in range(n)]
    for worker in workers:
        assert "cases: %d" % count in worker.said()
    serve.said()


# ---- the page's controller and worker ----

def stopping_controller():
    """Trains until the validation error has not become better for a while."""
    case = json.loads(os.environ["CASE"])["input"]

    class Stopping(Controller):
        done = bad = 0
        valid = stop = False
        errors = []

        def handle_control(self, req, worker_id, req_info):
            answer = ""
            if req == "next":
                answer = "stop" if self.stop else "valid" if self.valid else "train"
                self.valid = False
            elif req == "done":
                self.done += req_info["train_len"]
                self.valid = self.done % case["valid_freq"] == 0
            elif req == "pred_errors":
                self.errors.append(req_info["valid_err"])
                if self.errors[-1] <= min(self.errors):
                    self.bad, answer = 0, "best"
                elif (len(self.errors) > case["patience"] and
                      self.errors[-1] >= min(self.errors[:-case["patience"]])):
                    self.bad += 1
            self.stop = self.stop or self.done > case["max_mb"] or self.bad > case["patience"]
            return answer

    sys.exit(Stopping(PORT).serve())


def stopping_worker():
    case, worker = json.loads(os.environ["CASE"]), Worker(PORT)
    said = []
    for name, *value in case["input"]["requests"]:
        info = {"done": "train_len", "pred_errors": "valid_err"}.get(name)
        said.append(worker.send_req(name, {info: value[0]} if info else None))
    assert said == case["expected"]["responses"], said
    assert Worker() is worker and worker.send_req("next") == "stop"
    try:
        worker.all_reduce(np.ones(1), "+")
    except PlatoonError as e:
        assert "give the Controller its devices" in str(e)


def test_stopping_controller(start):
    case = json.dumps(CASES["pl-lstm-controller"])
    serve, worker = start(stopping_controller, CASE=case), start(stopping_worker, CASE=case)
    worker.said()
    serve.said()


LIEUTENANT = """
import sys
import channel

class Master(channel.Lieutenant):
    steps, seen = 0, set()
    def handle_control(self, req, worker_id):
        self.seen.add(worker_id)
        if req == 'next':
            return 'stop' if self.steps >= 60 else 'train' if len(self.seen) == 3 else 'wait'
        if isinstance(req, dict) and 'done' in req:
            self.steps += req['done']
            if self.steps >= 60:
                self.worker_is_done(worker_id)
                return 'stop'

m = Master()
m.init_control(port=int(sys.argv[1]))
print('Lieutenant is ready')
m.serve()
print('steps', m.steps)
"""

SOLDIER = """
import sys, time
import numpy
import channel
from param_sync import EASGD

first = sys.argv[2] == 'first'
x = numpy.full(4, 8.0 if first else -3.0)   # to be trained to 1
s = channel.Soldier(port=int(sys.argv[1]))
s.init_shared_params(job_name='pages%s' % sys.argv[1], params=[x], param_sync_rule=EASGD(0.5), cleanup=first)
if first:
    assert (s.shared_params[0] == 8).all(), s.shared_params
print('initialized')
while True:
    step = s.send_req('next')
    if step == 'stop':
        break
    if step == 'wait':
        time.sleep(0.02)
        continue
    for i in range(5):
        x -= 0.3 * (x - 1)
    s.sync_params()
    if s.send_req(dict(done=5)) == 'stop':
        break
s.lock_params(timeout=5)
print('error %.3f' % abs(s.shared_params[0] - 1).max())
s.unlock_params()
"""


def test_steps_of_the_page(start):
    """Controller, first worker with cleanup, then two more: the shared parameters come to the solution."""
    serve = start(LIEUTENANT, start.port)
    serve.await_text("Lieutenant is ready")
    workers = [start(SOLDIER, start.port, "first")]
    workers[0].await_text("initialized")
    workers += [start(SOLDIER, start.port, "more") for _ in range(2)]
    errors = [float(worker.said().split()[-1]) for worker in workers]
    assert min(errors) < 2, errors  # of 7; a worker that comes late pulls the center back
    steps = int(serve.said().split()[-1])
    assert steps >= 60
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("pages%d" % start.port)]


def write_samples(folder, prefix, count):
    """Samples that are easy to tell apart, as Fashion-MNIST's files have them."""
    draw = np.random.RandomState(count)
    labels = draw.randint(0, 10, count).astype(np.uint8)
    pixels = np.random.RandomState(0).randint(0, 200, (10, 784))[labels] + draw.randint(0, 56, (count, 784))
    for kind, head, body in (("images-idx3", struct.pack(">4I", 0x803, count, 28, 28), pixels.astype(np.uint8)),
                             ("labels-idx1", struct.pack(">2I", 0x801, count), labels)):
        with gzip.open("%s/%s-%s-ubyte.gz" % (folder, prefix, kind), "wb") as file:
            file.write(head + body.tobytes())


def test_example(start, tmp_path):
    """examples/python/old: a controller and two workers, the second before the first, learn what is in the samples."""
    write_samples(tmp_path, "train", 1280)
    write_samples(tmp_path, "t10k", 200)
    programs = {name: (HERE.parents[1] / "examples/python/old" / ("platoon_%s.py" % name)).read_text()
                for name in ("controller", "worker")}
    port = ("--port", start.port)
    serve = start(programs["controller"], *port, "--max-mb", 400, "--valid-freq", 40)
    serve.await_text("Lieutenant is ready")
    data = ("--data", tmp_path)
    second = start(programs["worker"], *port, *data, OPENBLAS_NUM_THREADS=1)  # waits for the first one's parameters
    while not os.path.exists("/dev/shm/fashion%dlock" % start.port):
        assert second.poll() is None
        time.sleep(0.01)
    for worker in (start(programs["worker"], *port, "--first", *data, OPENBLAS_NUM_THREADS=1), second):
        assert "initialized" in worker.said()
    said = serve.said()
    assert "trained" in said and float(said.split("error")[-1]) < 0.1 and (tmp_path / "fashion_best.npz").exists(), said


def test_status_of_the_example(start):
    """The example's controller ends with the status of serve(): here a worker has died."""
    serve = start((HERE.parents[1] / "examples/python/old/platoon_controller.py").read_text(), "--port", start.port)
    start("import channel, os\nchannel.Soldier(%d)\nos.kill(os.getpid(), 9)\n" % start.port).said(-signal.SIGKILL)
    serve.said(1)


def soldier():
    """Arguments: its value, whether it is the first, and the file until which it stays."""
    import channel
    print("asks")
    s = channel.Soldier(socket_timeout=20000)
    s.init_shared_params("runs_%d_" % PORT, [np.full(2, float(sys.argv[1]))], EASGD(0.5), sys.argv[2] == "first")
    print("has", s.shared_params[0].tolist())
    while not os.path.exists(sys.argv[3]):
        if sys.argv[3] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)


def test_soldiers_of_several_runs(start, tmp_path):
    """Nobody takes the parameters of a run that was killed, and the end of an old run leaves those of a new one."""
    start(soldier, 1, "first", "die").said(-signal.SIGKILL)
    waiting = start(soldier, 0, "more", "old")
    waiting.await_text("asks")
    time.sleep(0.3)
    old = [waiting, start(soldier, 5, "first", "old")]
    waiting.await_text("has [5.0, 5.0]")
    new = [start(soldier, 7, "first", "new")]
    new[0].await_text("has [7.0, 7.0]")
    (tmp_path / "old").touch()
    for process in old:
        process.said()
    new.append(start(soldier, 0, "more", "new"))
    new[1].await_text("has [7.0, 7.0]")
    (tmp_path / "new").touch()
    for process in new:
        process.said()
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("runs_%d_" % start.port)]


# ---- memory, locks, batches ----

def one_of_many():
    time.sleep(float(sys.argv[1]))
    worker = Worker(PORT)
    began = time.monotonic()
    x = [np.zeros(10), Variable(np.ones((2, 2), "f4"))]
    worker.init_shared_params(x, EASGD(0.5))
    with_lock = worker.shared_params[0]
    for i in range(10):
        worker.lock()
        with_lock += 1
        worker.unlock()
        assert worker.send_req(i)[0] == i
    worker.send_req("x" * 100000)
    print("took", time.monotonic() - began)


def test_many_workers_by_hand(start):
    """Many workers, the first of them before the controller, come in random order within 5 s."""
    n = all_or(40, 17)
    delays = [0.03 * i for i in range(n)]
    random.Random(5).shuffle(delays)
    began = time.monotonic()
    workers = [start(one_of_many, delay) for delay in delays[:5]]
    serve = start(controller, *map(str, range(n)))
    workers += [start(one_of_many, delay) for delay in delays[5:]]
    for worker in workers:
        worker.said()
    print("all done after", time.monotonic() - began)
    serve.said()


def test_memory_is_shared(start):
    """Ten additions of each of 40 workers, under the lock, are 10 * n additions: no one is lost."""
    def last():
        worker = Worker(PORT)
        worker.init_shared_params([np.zeros(10), Variable(np.ones((2, 2), "f4"))], EASGD(0.5))
        print("sum", int(worker.shared_params[0][0]), worker.shared_params[1].tolist())

    serve = start(controller, "a", "b", "c", "d")
    for worker in [start(one_of_many, 0) for _ in range(3)]:
        worker.said()
    assert "sum 30 [[1.0, 1.0], [1.0, 1.0]]" in start(last).said()
    serve.said()


def careful_worker():
    """A rule that raises frees the lock; the lock knows its owner; parameters of another size are refused."""
    class Wrong(ParamSyncRule):
        def update_params(self, local_params, master_params):
            raise KeyError("the rule's own error")

    def raises(kind, text, function, *args):
        try:
            function(*args)
        except kind as e:
            assert text in str(e), e
            return
        sys.exit("%s did not raise" % text)

    worker = Worker(PORT)
    raises(RuntimeError, "call init_shared_params first", worker.sync_params)
    worker.init_shared_params([np.ones(3)], Wrong())
    raises(KeyError, "the rule's own error", worker.sync_params)
    worker.lock(timeout=0)
    raises(PlatoonError, "has the lock", worker.lock)
    worker.unlock()
    raises(PlatoonError, "does not have the lock", worker.unlock)
    raises(PlatoonError, "train the same model", worker.init_shared_params, [np.ones(300)], Wrong())
    worker.lock(0)
    worker.unlock()
    mine = np.full(3, 4.0)
    worker.init_shared_params([mine], ASGD())
    worker.copy_to_local()
    mine += 2
    worker.sync_params(synchronous=False)
    assert (mine == 3).all() and (worker.shared_params[0] == 3).all()   # what was pulled counts nothing twice
    mine[:] = 7
    worker.copy_to_global()
    assert (worker.shared_params[0] == 7).all()
    worker.close()
    worker.close()


def test_rules_and_lock(start):
    serve, worker = start(controller), start(careful_worker)
    worker.said()
    serve.said()


BATCHES = """
import os, sys
import numpy as np
from multiprocessing import Process
from platoon.channel import Controller
class Batches(Controller):
    def handle_control(self, req, worker_id, req_info):
        return ''
    def send(self):
        self.init_data(int(os.environ['DATA']))
        for i in range(60):
            order = np.asfortranarray([[i, 2, 3], [4, 5, 6]])
            self.send_mb([np.full((i % 3 + 1, 2000), i, 'f4'), order, np.bool_([i])])
        self.asocket.close()
c = Batches(int(os.environ['PORT']), devices=['a', 'b', 'c'])
p = Process(target=c.send)
p.start()
code = c.serve()
p.join(10)
sys.exit(code or p.exitcode)
"""


def batch_worker():
    worker = Worker(PORT, data_port=int(os.environ["DATA"]), data_hwm=3)
    got = []
    try:
        while True:
            x, order, flag = worker.recv_mb()
            i = int(x[0, 0])
            assert x.shape == (i % 3 + 1, 2000) and (x == i).all() and x.dtype == np.float32
            assert order.tolist() == [[i, 2, 3], [4, 5, 6]] and order.flags.f_contiguous
            assert flag.dtype == bool and flag[0] == bool(i)
            got.append(i)
            if sys.argv[1:] == ["die"] and len(got) == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
    except ConnectionError as e:
        assert isinstance(e, tutti.errors.RankLeft), e
    print("got", *got)


def test_batches(start):
    """Each batch goes to one worker. One of three workers is killed: the other two get the rest."""
    data = free_address().split(":")[1]
    serve = start(BATCHES, DATA=data)
    dead, *workers = [start(batch_worker, *["die"] * (i == 0), DATA=data) for i in range(3)]
    dead.said(-signal.SIGKILL)
    got = [set(map(int, worker.said().split("got")[1].split())) for worker in workers]
    assert not got[0] & got[1] and min(map(len, got)) > 5
    assert len(got[0] | got[1]) >= 60 - 5 - 3  # what the dead one had taken, and what waited for it
    serve.said(1)


def sending_controller():
    class Sending(Controller):
        def handle_control(self, req, worker_id, req_info):
            self.send_mb([np.full(1 << 20, req)])
            return ""

    sys.exit(Sending(PORT, data_port=int(os.environ["DATA"])).serve())


def idle_worker():
    """Asks for a batch, and receives as many as its argument says."""
    worker = Worker(PORT, data_port=int(os.environ["DATA"]), data_hwm=1, socket_timeout=20000)
    if sys.argv[1] == "0":
        worker.send_req(7.0)
    print("is here")
    for i in range(int(sys.argv[1])):
        print("got", worker.recv_mb()[0][0])
        worker.send_req(8.0)
        print("asked again")
    time.sleep(60)


def test_batches_of_workers_that_do_not_receive(start):
    """While the controller serves, a dead worker's batch goes to another one. SIGTERM ends the controller at once."""
    data = free_address().split(":")[1]
    serve = start(sending_controller, DATA=data)
    idle = start(idle_worker, 0, DATA=data)
    idle.await_text("is here")
    other = start(idle_worker, 1, DATA=data)
    other.await_text("is here")
    idle.kill()
    other.await_text("got 7.0")
    other.await_text("asked again")
    serve.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert "Signal 15 ends this controller" in serve.said(1) and time.monotonic() - began < 20


def test_sender_forgets_no_batch():
    """An operation that ends while the sender looks is not lost. A receiver that has gone takes no more."""
    from platoon.channel._batches import Sender

    class Ends:
        looks = 0

        def done(self):
            self.looks += 1
            return self.looks > 1

        def exception(self):
            return ConnectionError()

    class Changes(list):
        def take(self):
            return self.pop(0) if self else None

    from tutti.group import Change
    sender = Sender.__new__(Sender)
    sender._here, sender._wants, sender._unsent, sender._sent = set(), {}, [], [(Ends(), "batch")]
    assert not sender._step() and len(sender._sent) == 1
    assert sender._step() and sender._unsent == ["batch"] and not sender._sent
    said = type("Said", (), {"wait": lambda self, timeout: type("Message", (), {"rank": 3})})()
    sender._hear, sender._want = said, np.array([5])
    sender._everyone = type("Everyone", (), {"recv_start": lambda *args: said})()
    sender._watch = Changes([Change(3, "joined", 0, ""), Change(3, "gone", 0, "")])
    sender._listen(0)
    assert not sender._wants
    sender._watch.append(Change(3, "joined", 0, ""))
    sender._listen(0)
    assert sender._wants == {3: 5}


def test_batches_of_no_numbers():
    """Objects, fields and bytes that no Sender has made are refused on both sides."""
    from platoon.channel._batches import pack, unpack
    from platoon.util import PlatoonError
    for wrong in (np.array([None]), np.zeros(2, [("a", "f4")]), np.zeros(2, "V0")):
        with pytest.raises(TypeError, match="arrays of numbers"):
            pack([wrong])
    for old, new in ((b"<f8", b"|O8"), (b"<f8", b"<f9"), (b"<f8", b"|V0"), (b"[3]", b"[9]")):
        data = pack([np.ones(3), np.ones(3)]).tobytes()
        assert old in data
        with pytest.raises(PlatoonError, match="no batch of arrays"):
            unpack(np.frombuffer(data.replace(old, new), "uint8"))
    with pytest.raises(PlatoonError, match="no batch of arrays"):
        unpack(np.frombuffer(b"1234", "uint8"))


# ---- deaths ----

DEATHS = {
    "in the lock": "worker.lock(); die()",
    "in the rule": "worker.init_shared_params(params, Deadly()); worker.sync_params()",
    "while it gives the first values": "worker.lock(); worker.send_req('platoon-need_init'); die()",
    "in a request": "worker.send_req('kill me')",
    "before its first request": "die()",
    "in an all-reduce": "worker.all_reduce(np.ones(4), '+'); worker.all_reduce(np.ones(4), '+', Dying())",
}


def dying_worker():
    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    class Deadly(ParamSyncRule):
        def update_params(self, local_params, master_params):
            die()

    class Dying:
        def get_value(self):
            pass
        def set_value(self, value):
            die()

    params = [np.zeros(2)]
    worker = Worker(PORT)
    exec(sys.argv[1])


def surviving_worker():
    worker, rounds = Worker(PORT), 0
    worker.init_shared_params([np.ones(2)], EASGD(0.5))
    while not os.path.exists("enough"):
        worker.lock(timeout=10)
        worker.unlock()
        worker.sync_params()
        assert worker.send_req("alive")[0] == "alive"
        print("round")
        time.sleep(0.01)


def test_deaths_of_workers(start, tmp_path):
    """Workers die in each call: the other one goes on, and serve() returns 1."""
    serve, survivor = start(controller), start(surviving_worker)
    survivor.await_text("round")  # serve() ends when the only worker that has come dies
    deaths = [start(dying_worker, call) for where, call in DEATHS.items() if "all-reduce" not in where]
    for dead in deaths:
        dead.said(-signal.SIGKILL)
    (tmp_path / "enough").touch()
    assert "round" in survivor.said()
    assert serve.said(1).count("A worker has died") == len(deaths)


def reducing_worker():
    worker = Worker(PORT)
    try:
        while True:
            worker.all_reduce(np.ones(4), "+")
    except tutti.errors.RankDied as e:
        print("the named error:", e)
    assert worker.send_req("alive")[0] == "alive"
    print("again:", worker.all_reduce(np.ones(1), "+")[0])


def test_death_in_all_reduce(start):
    """The other workers get the named error. A new worker takes the place, and they go on."""
    def new():
        print("again:", Worker(PORT).all_reduce(np.ones(1), "+")[0])

    serve = start(controller, "a", "b")
    survivor = start(reducing_worker)
    start(dying_worker, DEATHS["in an all-reduce"]).said(-signal.SIGKILL)
    survivor.await_text("the named error: ")
    assert "again: 2.0" in start(new).said() and "again: 2.0" in survivor.said()
    assert "A worker has died" in serve.said(1)


def test_all_reduce_without_a_worker(start, tmp_path):
    """The error of a worker that is there and does not come is PlatoonError."""
    def alone():
        worker = Worker(PORT, socket_timeout=1000)
        while worker.send_req("platoon-worker_ranks")[0].count(None):
            time.sleep(0.01)
        try:
            worker.all_reduce(np.ones(1), "+")
        except PlatoonError as e:
            print(e)

    def elsewhere():
        Worker(PORT)
        while not os.path.exists("enough"):
            time.sleep(0.01)

    serve = start(controller, "a", "b")
    other = start(elsewhere)
    assert "all_reduce has waited 1000 ms, and not all workers have come" in start(alone).said()
    (tmp_path / "enough").touch()
    other.said()
    serve.said()


def test_more_workers_than_devices(start, tmp_path):
    """A worker too many is refused, and the others go on. Of two with one device's name one gets another device."""
    def refused():
        try:
            Worker(PORT)
        except PlatoonError as e:
            print(e, flush=True)
        time.sleep(60)  # the controller does not wait for this process

    def waiting():
        worker = Worker(PORT)
        print("rank", worker.local_rank)
        while not os.path.exists("enough"):
            time.sleep(0.01)
        print(worker.send_req("alive")[0])

    serve = start(controller, "a", "b")
    workers = [start(waiting, THEANO_FLAGS="floatX=float32,device=b") for _ in range(2)]
    for worker in workers:
        worker.await_text("rank")
    start(refused).await_text("2 devices, and each has its worker already")
    (tmp_path / "enough").touch()
    said = sorted(worker.said() for worker in workers)
    assert "rank 0\nalive" in said[0] and "rank 1\nalive" in said[1], said
    serve.said()


def started_controller():
    class Mine(Controller):
        def handle_control(self, req, worker_id, req_info):
            if req == "fail":
                raise KeyError("the handler's own error")
            return req

    code = Mine(PORT, devices=["cpu0", "cpu1"], experiment_name="mine", log_directory="logs",
                worker_args=os.environ["WORKER"]).serve()
    print("serve:", code)


MINE = """
import os, signal, sys, time
from platoon.channel import Worker
worker = Worker(int(os.environ["PORT"]))
assert worker.send_req(3) == 3
if worker.local_rank == 1 and sys.argv[1] != "end":
    if sys.argv[1] == "exit": sys.exit(7)
    if sys.argv[1] == "die": os.kill(os.getpid(), signal.SIGKILL)
    worker.send_req("fail")
if sys.argv[1] != "end":
    time.sleep(60)
"""


@pytest.mark.parametrize("end, code, why", [("end", 0, ""), ("exit", 7, "ended with status 7"),
                                            ("die", 2, "killed by signal 9"), ("fail", 2, "handler's own error")])
def test_started_workers(start, tmp_path, end, code, why):
    """serve() ends with the status of the worker that has failed, and ends the others."""
    (tmp_path / "mine_worker.py").write_text(MINE)
    began = time.monotonic()
    said = start(started_controller, WORKER=end).said()
    assert "serve: %d\n" % code in said and why in said, said
    logs = [(tmp_path / "logs" / ("worker_cpu%d.err" % i)).read_text() for i in range(2)]
    assert ("Signal 2 ends this worker" in logs[0] or "KeyboardInterrupt" in logs[0]) == (end != "end"), logs
    assert time.monotonic() - began < 20


def test_worker_without_controller(start):
    def alone():
        try:
            Worker(PORT, socket_timeout=300)
        except PlatoonError as e:
            assert "no controller answers at port %d" % PORT in str(e), e
        try:
            Worker(PORT, port=3)
        except RuntimeError as e:
            print("refused:", e)
    assert "refused: Worker has no argument port" in start(alone).said()


# ---- the launcher ----

def launch(tmp_path, *arguments, **environment):
    command = [sys.executable, "-m", "platoon.launcher", *arguments]
    return subprocess.run(command, cwd=str(tmp_path), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=30,
                          env=clean_environment(HOME=str(tmp_path), **environment))


def test_launcher(tmp_path):
    """Exit status 0, 1 and 2; the default controller, and one of the experiment's; the folder of logs."""
    port = free_address().split(":")[1]
    worker = ("import sys\nfrom platoon.channel import Worker\nw = Worker(%s)\n"
              "print(w.local_rank, w.local_size, w.all_reduce(__import__('numpy').ones(1), '+')[0])\n"
              "sys.exit(int(sys.argv[1]))\n" % port)
    (tmp_path / "toy_worker.py").write_text(worker)
    ends = launch(tmp_path, "toy", "-D", "cpu0", "cpu1", "-c=--control-port %s" % port, "-w=0")
    assert ends.returncode == 0 and "SUCCESS" in ends.stdout, ends.stdout
    logs = sorted((tmp_path / "PLATOON_LOGS" / "toy").glob("*/*.out"))
    assert [path.name for path in logs] == ["controller_cpu.out", "worker_cpu0.out", "worker_cpu1.out"]
    assert logs[1].read_text() == "0 2 2.0\n" and logs[2].read_text() == "1 2 2.0\n"
    (tmp_path / "toy_controller.py").write_text(
        "import sys\nfrom platoon.channel import Controller as C\np = C.default_parser()\np.add_argument('--mine')\n"
        "a = p.parse_args()\nassert a.mine == 'x'\nsys.exit(C(**C.default_arguments(a)).serve())\n")
    ends = launch(tmp_path, "toy", "-c=--mine x --control-port %s" % port, "-w=3", PLATOON_DEVICES="cpu0")
    assert ends.returncode == 1 and "the controller has ended with status 3" in ends.stdout, ends.stdout
    for arguments, why in ((["none"], "no worker here: none_worker.py"),
                           (["toy", "-H", "elsewhere"], "one host is given, elsewhere"),
                           (["toy", "-D", "a", "-H", "b"], "not allowed with")):
        ends = launch(tmp_path, *arguments)
        assert ends.returncode == 2 and why in ends.stdout, ends.stdout


HOSTS_CONTROLLER = """
import os, sys
from platoon.channel import Controller
args = Controller.default_parser().parse_args()
port = int(os.environ['PORT%s' % os.environ['TUTTI_RANK']])   # both hosts are this one
args.control_port, args.worker_args = port, str(port)
args.devices = ['cpu0', 'cpu1'] if os.environ['TUTTI_RANK'] == '0' else ['cpu5']
sys.exit(Controller(**Controller.default_arguments(args)).serve())
"""
HOSTS_WORKER = """
import sys
import numpy as np
from platoon.channel import Worker
from platoon.training.global_dynamics import AverageSGD
w = Worker(int(sys.argv[1]))
x = np.arange(6, dtype='f4').reshape(2, 3) + w.global_rank
assert (w.all_reduce(x, '+') == 3 * np.arange(6).reshape(2, 3) + 3).all()
assert w.all_reduce(np.float64([2]), '*') == 8
assert (w.all_reduce(np.asfortranarray(x), 'max') == np.arange(6).reshape(2, 3) + 2).all()
y = np.full(3, w.global_rank * 3.0)
rule = AverageSGD()
rule.make_rule(y)
for i in range(20):
    rule()
assert (y == 3).all(), y
print(w.local_rank, w.local_size, w.global_rank, w.global_size, w._multinode)
"""


def test_launcher_on_several_hosts(tmp_path):
    """Two hosts, with two workers and with one: ssh is a script, so that both are this host."""
    (tmp_path / "two_controller.py").write_text(HOSTS_CONTROLLER)
    (tmp_path / "two_worker.py").write_text(HOSTS_WORKER)
    (tmp_path / "rsh").write_text("#!/bin/sh\nexport SSH_CONNECTION='127.0.0.1 1 127.0.0.1 22'\nshift\n"
                                  "exec sh -c \"$*\"\n")
    (tmp_path / "rsh").chmod(0o755)
    ports = {"PORT%d" % i: free_address().split(":")[1] for i in range(2)}
    ends = launch(tmp_path, "two", PLATOON_HOSTS="one,two", TUTTI_RSH=tmp_path / "rsh", **ports)
    logs = list((tmp_path / "PLATOON_LOGS" / "two").glob("*/*"))
    said = {path.name: path.read_text() for path in logs}
    assert ends.returncode == 0 and "SUCCESS" in ends.stdout, (ends.stdout, said)
    lines = sorted(text.strip() for name, text in said.items() if name.startswith("worker") and name.endswith(".out"))
    assert lines == ["0 1 2 3 True", "0 2 0 3 True", "1 2 1 3 True"], said


def test_controller_is_ended_by_a_signal(start, tmp_path):
    """SIGTERM ends the controller with status 1, and its workers before."""
    (tmp_path / "mine_worker.py").write_text(MINE + "time.sleep(60)\n")
    serve = start(started_controller, WORKER="end")
    log, deadline = tmp_path / "logs" / "worker_cpu0.err", time.monotonic() + 20
    serve.await_text("worker on cpu1 ... Done")
    while not list(pathlib.Path("/dev/shm").glob("platoon_*_%d_lock" % start.port)) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    serve.send_signal(signal.SIGTERM)
    assert "Signal 15 ends this controller" in serve.said(1)
    assert "Signal 2 ends this worker" in log.read_text() or "KeyboardInterrupt" in log.read_text()
    with contextlib.suppress(FileNotFoundError):
        assert not list(pathlib.Path("/dev/shm").glob("platoon_*_%d_*" % start.port))


def test_a_signal_while_a_worker_starts(start, tmp_path):
    """The controller ends the worker that it was just starting, too."""
    def interrupted():
        from platoon.channel import controller as module
        launch = module.launch_process

        def launch_and_signal(*arguments):
            process = launch(*arguments)
            print("started", process.pid)
            os.kill(os.getpid(), signal.SIGTERM)
            return process

        module.launch_process = launch_and_signal
        Controller(PORT, devices=["a", "b"], experiment_name="mine")

    (tmp_path / "mine_worker.py").write_text("import time\ntime.sleep(60)\n")
    said = start(interrupted).said(1)
    assert said.count("started") == 1, said
    with pytest.raises(ProcessLookupError):
        os.kill(int(said.split("started")[1].split()[0]), 0)
