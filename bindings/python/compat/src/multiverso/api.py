"""The job of a Multiverso program. Every rank is a worker and a server."""
from __future__ import annotations

from typing import List, Optional

import tutti

from ._server_table import ServerTable


class Session:
    """What is open between init and shutdown."""

    def __init__(self, job: tutti.Job, sync: bool) -> None:
        self.job, self.sync = job, sync
        self.tables: List[ServerTable] = []

    def open(self, rows: int, columns: int) -> ServerTable:
        """Opens the next table. All ranks create the same tables in the same order."""
        self.tables.append(ServerTable("multiverso %d" % len(self.tables), rows, columns, self.sync, self.job))
        return self.tables[-1]

    def settle(self) -> None:
        """Waits for all started adds, and raises the first error."""
        error: Optional[tutti.Error] = None
        for table in self.tables:
            try:
                table.settle()
            except tutti.Error as e:
                error = error or e
        if error is not None:
            raise error

    def finish(self) -> None:
        """Ends the adds of this worker, and waits for all ranks. Gets of others no longer wait for this worker."""
        try:
            self.settle()
        finally:
            for table in self.tables:
                table.finish()
            self.job.barrier()

    def close(self) -> None:
        """Closes the tables, and leaves the job."""
        for table in self.tables:
            table.close()
        self.job.leave()


_session: Optional[Session] = None


def session() -> Session:
    """What init has opened."""
    if _session is None:
        raise RuntimeError("Multiverso is not initialized: call multiverso.init() first")
    return _session


def init(sync: bool = False) -> None:
    """Joins the job. Call it once, before all else.

    sync: True: each get waits until all workers have added as often as this worker, and all get the same values. All
    workers must then call the same number of adds on each table. False: no call waits for another worker.

    Uses the default job of the package tutti, which tutti.init() joins. Blocks until every rank has joined. Raises
    RuntimeError if it was called before, and the errors of tutti.Job.
    """
    global _session
    if _session is not None:
        raise RuntimeError("multiverso.init() was called before: call multiverso.shutdown() first")
    _session = Session(tutti.init(), bool(sync))


def shutdown() -> None:
    """Waits for all ranks, closes all tables, and leaves the job. Call it once, at the end.

    A worker that calls it no longer blocks gets of other workers. Raises tutti.errors.RankDied if a rank is gone; the
    tables are closed, and the job is left, all the same.
    """
    global _session
    ending, _session = session(), None
    try:
        ending.finish()
    finally:
        ending.close()


def barrier() -> None:
    """Waits until every rank calls it. The adds of all ranks are then applied."""
    try:
        session().settle()
    finally:
        session().job.barrier()  # others wait for this rank


def workers_num() -> int:
    """The number of workers, which is the number of ranks."""
    return session().job.size


def worker_id() -> int:
    """The number of this worker, from 0 up, which is its rank."""
    return session().job.rank


def server_id() -> int:
    """The number of this server, from 0 up, which is its rank."""
    return session().job.rank


def is_master_worker() -> bool:
    """True on worker 0. It does what one worker is to do: validate, print, give the first values."""
    return worker_id() == 0
