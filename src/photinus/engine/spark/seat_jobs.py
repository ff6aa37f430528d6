"""Starts tasks again for seats that were given up to another run, and are taken back.

The task of a seat that is given up ends well, so Spark starts no other in its place, whatever its
scheduler. A job of its own brings it back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from photinus.engine.driver_session import DriverSession
from photinus.engine.seat_sharing import SeatSharing
from photinus.engine.spark.job import LEAVE_SECONDS, SparkJob, resubmitted
from photinus.engine.spark.lent_executors import LentExecutors


class SeatJobs:
    """The jobs of one run beside its first one.

    Args:
        sharing: knows which seats are due to the run.
        session: the run's.
        make_job: returns the job that starts tasks for these slots alone.
        executors: the application's.
    """

    def __init__(
        self,
        sharing: SeatSharing,
        session: DriverSession,
        make_job: Callable[[frozenset[int]], SparkJob],
        executors: LentExecutors,
    ) -> None:
        self._sharing, self._session = sharing, session
        self._make_job, self._executors = make_job, executors
        self._jobs: list[SparkJob] = []
        self._tries = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._session.stop(str(error) or type(error).__name__)
        for job in self._jobs:
            job.join(LEAVE_SECONDS if error is None else 1.0)
            if job.is_alive():
                job.cancel()

    def look(self, job: SparkJob) -> None:
        """Gives seats up, or has tasks start for those that are back; some times a second."""
        self._sharing.yield_order = lambda: self._executors.yield_order(
            job.stages(), self._session.slots
        )
        if slots := self._sharing.look(self._session):
            self._executors.reclaim()
            self._sharing.note_lent(0)
            self._start(self._make_job(slots))
        lacking = self._sharing.remote_shortage() if any(self._session.yielding().values()) else 0
        if lacking and (slots_lent := self._executors.lend(lacking)):
            self._sharing.note_lent(slots_lent)
        for job in [job for job in self._jobs if not job.is_alive()]:
            self._jobs.remove(job)
            if job.error is not None and not self._session.wait(0.0):
                self._tries += 1
                self._start(resubmitted(job, self._tries, self._session.emit))

    def _start(self, job: SparkJob) -> None:
        self._jobs.append(job)
        job.start()

    def has_yielded(self, job: SparkJob) -> bool:
        """Returns whether a job may have ended because all its tasks gave their seats up."""
        return job.error is None and bool(self._jobs or self._session.yielding())
