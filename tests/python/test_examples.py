"""The programs of examples/python that need no torch."""
import pathlib
import re
import signal

import pytest
from conftest import await_all, free_address, kill, started

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"


@pytest.mark.transports("tcp")
def test_hello(ranks):
    said = ranks(2, EXAMPLES / "hello.py")
    assert said[0].count("hello from rank") == 2 and not said[1], said


@pytest.mark.transports("shm")
def test_regression(ranks):
    assert ranks(2, EXAMPLES / "regression.py")[0] == "2 ranks found 0.0 1.0 2.0 3.0 4.0 5.0 6.0 7.0 8.0 9.0\n"


@pytest.mark.transports("tcp")
def test_keepgoing(ranks):
    said = ranks(4, EXAMPLES / "keepgoing.py", ends={2: -signal.SIGKILL})
    assert all("of 3: y = 3.0 x -1.0" in said[rank] and "rank 2" in said[rank] for rank in (0, 1, 3)), said


@pytest.mark.transports("shm")
def test_keepgoing_with_too_few(ranks):
    """Three of four ranks die at once, and the last one ends, too. One kills all: else the last two might recover."""
    program = (EXAMPLES / "keepgoing.py").read_text()
    for old, new in (("job.rank == 2 and", "job.rank == 1 and"),
                     ("        os.kill(os.getpid(), signal.SIGKILL)", "        for pid in pids[:0:-1]:\n"
                      "            os.kill(int(pid), signal.SIGKILL)"),
                     ("gradients = ", "pids = job.allgather(np.array([os.getpid()])).ravel()\ngradients = ")):
        assert program.count(old) == 1, old
        program = program.replace(old, new)
    ends = {0: 1, **{rank: -signal.SIGKILL for rank in (1, 2, 3)}}
    assert "tutti.errors.TooFewRanks" in ranks(4, program, ends=ends)[0]


def test_rollouts(tmp_path):
    """The policy learns from rollouts with stale weights, though one of three workers is killed."""
    boot = free_address()
    with started(tmp_path, *([EXAMPLES / "rollouts.py", who, boot] for who in ("train", "roll", "roll", "roll")),
                 OMP_NUM_THREADS=1) as (processes, said):
        while "version 50:" not in said()[0] and processes[0].poll() is None:
            await_all(processes[:1], 0.05)
        kill(processes[3])
        assert await_all(processes, 100), said()
        texts = said()
    assert [process.returncode for process in processes] == [0, 0, 0, -signal.SIGKILL], texts
    lines = re.findall(r"version (\d+): gain (\S+); the rollouts' weights were (\S+) versions old", texts[0])
    assert len(lines) == 6 and float(lines[-1][1]) > 0.4 and sum(float(stale) for _, _, stale in lines) > 0, texts
    assert all("the last weights are version " in text for text in texts[1:3]), texts
