"""Log lines go to logging.getLogger("tutti"), or to stderr while the program has set up no handler."""
import re

import pytest

pytestmark = pytest.mark.transports("tcp")


def test_stderr(ranks):
    said = ranks(2, "import tutti; tutti.init()", env={"TUTTI_LOG": "info"})[0]
    assert said and all(re.match(r"tutti: [\d:]{8}\.\d{6}: rank 0: info: .", line) for line in said.splitlines()), said


def test_logging(ranks):
    def program():
        import io
        import logging
        import os
        import sys
        import threading
        import time
        import warnings
        logging.raiseExceptions = True
        records = []

        class Keep(logging.Handler):
            def emit(self, record):
                records.append(record)
                if len(records) == 1:
                    raise KeyError("a handler that fails")

        keep = Keep()
        logging.getLogger().addHandler(keep)
        logging.getLogger("tutti").setLevel(logging.INFO)
        errors, sys.stderr = sys.stderr, io.StringIO()
        import tutti
        job = tutti.init()
        if job.rank:
            job.barrier()
            os._exit(1)
        end = time.monotonic() + 5
        while "KeyError" not in sys.stderr.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
        sys.stderr, r = errors, records[0]
        assert r.name == "tutti" and r.levelno == logging.INFO and r.rank == 0
        assert r.getMessage().startswith("rank 0: ")
        assert abs(r.created - time.time()) < 60
        assert any(t.name == "tutti.log" and t.daemon for t in threading.enumerate())
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
        pid = os.fork()
        if pid == 0:
            assert not any(t.name == "tutti.log" for t in threading.enumerate())
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        # From now on lines go to stdout, the last ones before the exit, too.
        logging.getLogger().removeHandler(keep)
        logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(name)s %(message)s")
        job.barrier()
        try:
            job.barrier()
        except tutti.errors.RankDied:
            pass

    said = ranks(2, program, env={"TUTTI_LOG": "info"}, ends={1: 1})[0].splitlines()
    assert all(re.match("(INFO|WARNING) tutti rank 0: .", line) for line in said), said
    assert any("rank 1" in line for line in said), said


def test_a_handler_may_join_a_job(ranks):
    def program():
        import logging
        import threading
        import tutti
        ended = threading.Event()

        class Join(logging.Handler):
            def emit(self, record):
                logging.getLogger("tutti").removeHandler(self)
                tutti.Job(boot="127.0.0.1:0", rank=0, ranks=1, newcomers=-1).leave()
                ended.set()

        logging.getLogger("tutti").setLevel(logging.INFO)
        logging.getLogger("tutti").addHandler(Join())
        job = tutti.init()
        assert job.rank == 1 or ended.wait(10)
        job.barrier()

    ranks(2, program, env={"TUTTI_LOG": "info"}, timeout=20)
