"""The programs of examples/python that need no torch."""
import pathlib
import signal

import pytest

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
    """Three of four ranks die, and the last one ends, too."""
    program = (EXAMPLES / "keepgoing.py").read_text().replace("job.rank == 2 and", "job.rank > 0 and")
    ends = {0: 1, **{rank: -signal.SIGKILL for rank in (1, 2, 3)}}
    assert "tutti.errors.TooFewRanks" in ranks(4, program, ends=ends)[0]
