"""What the tests share: `ranks(n, program)` runs a program as n real processes, over shm or tcp, or with TEST_FULL=yes
over both."""
import atexit
import contextlib
import inspect
import multiprocessing
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import textwrap
import time
import zlib

import pytest

HERE = pathlib.Path(__file__).parent
LONGEST = ("test_platoon.py", "test_dpwa.py")
FRESH = ("test_gpu.py", "test_life.py", "test_log.py", "test_smoke.py")  # start, exit, fork, signals, the loader
LAUNCHERS = ("TUTTI_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "SLURM_", "PMI", "OMPI_", "TORCHELASTIC_")


def pytest_configure(config):
    config.addinivalue_line("markers", "transports(*names): over which transports the test runs")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it


def pytest_collection_modifyitems(config, items):
    """The short check runs every fourth test of the longest files, unless -k names tests. Of two processes that share
    the tests (HALF is 0 or 1), each takes every other one."""
    if os.environ.get("TEST_FULL") != "yes" and not config.getoption("keyword"):
        items[:] = [item for i, item in enumerate(items) if item.path.name not in LONGEST or i % 4 == 0]
    if "HALF" in os.environ:
        items[:] = items[int(os.environ["HALF"])::2]


def transports(test):
    """Returns over which transports a test runs: those of its marker, both in a full check, else one of them."""
    marker, both = test.get_closest_marker("transports"), ("shm", "tcp")
    if marker or os.environ.get("TEST_FULL") == "yes":
        return marker.args if marker else both
    return both[zlib.crc32(test.name.encode()) % 2:][:1]


def pytest_generate_tests(metafunc):
    if "ranks" in metafunc.fixturenames:
        metafunc.parametrize("ranks", transports(metafunc.definition), indirect=True)


def free_address():
    """Returns "127.0.0.1:PORT", of a port that was free a moment ago. The kernel gives such ports to nobody unasked."""
    while True:
        port = random.randint(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return "127.0.0.1:%d" % port


def all_or(everything, part):
    """Returns `everything` with TEST_FULL=yes, else `part`: as all_or() of tests/harness/amount.h."""
    return everything if os.environ.get("TEST_FULL") == "yes" else part


def clean_environment(**more):
    """Returns this process's environment without what launchers set, and with `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return {**kept, **{name: str(value) for name, value in more.items()}}


def source_of(program):
    """Returns the text of a program: of a text, a path, or a function without arguments, whose name it then calls."""
    if isinstance(program, pathlib.Path):
        return program.read_text()
    if callable(program):
        return textwrap.dedent(inspect.getsource(program)) + "\n%s()\n" % program.__name__
    return textwrap.dedent(program)


def kill(process, number=signal.SIGKILL):
    """Signals a rank and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


class Warm:
    """What the warm interpreter (warm.py) has been asked to run: a process, with what the tests use of Popen."""
    server = connection = None

    @classmethod
    def ask(cls, word, argument):
        if not cls.server:
            cls.connection, theirs = multiprocessing.Pipe()
            with theirs:
                cls.server = subprocess.Popen(
                    [sys.executable, "-u", "-c", 'exec(__import__("warm").serve(%d))' % theirs.fileno()],
                    stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=[theirs.fileno()],
                    env=clean_environment(PYTHONPATH="%s:%s" % (HERE, os.environ.get("PYTHONPATH", ""))))
            atexit.register(cls.end)
        cls.connection.send((word, argument))
        return cls.connection.recv()

    @classmethod
    def end(cls):
        cls.connection.close()
        cls.server.wait(10)  # the test's TIME then has the CPU of all programs

    def __init__(self, *program):
        self.pid, self.returncode = self.ask("start", program), None

    def poll(self):
        if self.returncode is None:
            self.returncode = self.ask("poll", self.pid)
        return self.returncode

    def wait(self, timeout=None):
        deadline = time.monotonic() + (timeout or float("inf"))
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.pid, timeout)
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def start_program(request, script, arguments, output, env, cwd):
    """Starts a Python program in a session of its own, with stdout and stderr in the file `output`. Returns a Warm, or
    for the tests of FRESH, and of PyTorch, a Popen."""
    arguments, env = [str(each) for each in arguments], {**clean_environment(), **{k: str(v) for k, v in env.items()}}
    with open(output, "wb") as file:
        if request.node.path.parent == HERE and request.node.path.name not in FRESH:
            return Warm(str(script), arguments, str(output), str(cwd), env)
        return subprocess.Popen([sys.executable, "-u", "-X", "faulthandler", str(script), *arguments], cwd=str(cwd),
                                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, env=env)


def await_all(processes, seconds):
    """Returns whether all processes have ended in that time."""
    deadline = time.monotonic() + seconds
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.01)
    return all(process.poll() is not None for process in processes)


@contextlib.contextmanager
def started(folder, *commands, **environment):
    """A block in which Python programs run, in sessions of their own. commands: lists of a path and arguments. Gives a
    list of processes, and a function that returns what each has said until then. The block's end kills them."""
    processes, said = [], [folder / ("said%d" % i) for i in range(len(commands))]
    try:
        for command, output in zip(commands, said):
            with open(output, "wb") as file:
                processes.append(subprocess.Popen([sys.executable, "-u", *map(str, command)], cwd=str(folder),
                                                  stdout=file, stderr=file, start_new_session=True,
                                                  env=clean_environment(**environment)))
        yield processes, lambda: [output.read_text() for output in said]
    finally:
        for process in processes:
            kill(process)
            process.wait()


@pytest.fixture
def ranks(request, tmp_path):
    """Gives ranks(n, program, transports=None, env=None, timeout=60, ends=None, arguments=()).

    It runs `program` (a text, a path, or a function, of which the body is run) as n ranks of one job, and returns a
    list of their outputs, stdout and stderr together. `transports`, "shm" or "tcp", replaces that of the test's run.
    `ends` maps ranks to the exit status that they are to have; the others end with 0, else the test fails. Ranks that
    are not done after `timeout` seconds fail it, too: the outputs then hold the stack of each thread.
    """
    started = []

    def run(n, program, transports=None, env=None, timeout=60, ends=None, arguments=()):
        script = tmp_path / ("program%d.py" % len(started))
        script.write_text(source_of(program))
        job = {"TUTTI_SIZE": n, "TUTTI_BOOT": free_address(), "TUTTI_SECRET": "0123456789abcdef",
               "TUTTI_TRANSPORTS": (transports or request.param).replace("shm", "shm,tcp")}
        outputs, mine = [tmp_path / ("rank%d.%d" % (rank, len(started))) for rank in range(n)], []
        for rank, output in enumerate(outputs):
            mine.append(start_program(request, script, arguments, output, {**job, "TUTTI_RANK": rank, **(env or {})},
                                      tmp_path))
        started.extend(mine)
        hang = not await_all(mine, timeout)
        if hang:
            for process in mine:
                kill(process, signal.SIGABRT)
            await_all(mine, 5)
        texts, wanted = [output.read_text(errors="replace") for output in outputs], ends or {}
        if hang or any(process.poll() != wanted.get(rank, 0) for rank, process in enumerate(mine)):
            said = ["-- rank %d, status %s:\n%s" % (rank, mine[rank].poll(), texts[rank]) for rank in range(n)]
            pytest.fail(("hangs for %g s\n" % timeout if hang else "") + "\n".join(said), pytrace=False)
        return texts

    yield run
    for process in started:
        kill(process)
        process.wait()
