"""Lets runs of one application take all their slots at once, or wait.

Two runs with a part of their slots each would wait for each other for ever, whatever Spark's pools.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from photinus.coordinator.callbacks import wait_for_them
from photinus.core.errors import UsageError, user_message
from photinus.core.events import Event, Warned
from photinus.engine.seat_sharing import SeatSharing, Urgency
from photinus.engine.seat_table import SeatClaim, claims_here
from photinus.engine.spark.job import SparkJob

if TYPE_CHECKING:
    from pyspark import SparkContext


_LOOK_SECONDS = 0.5
_STARVED_SECONDS = 120.0
"""How long a worker without a task waits for one; a lost executor may take a minute to replace."""


def count_held_slots(application: str) -> int:
    """Returns how many slots the runs of an application hold."""
    return sum(claim.held for claim in claims_here(application).values())


def too_few(workers: int, slots: int, lacks: str) -> UsageError:
    """Returns the error of more workers than an application has slots."""
    do = f"use workers={slots} or fewer, or give the application more {lacks}"
    if slots == 0:
        do = "look in Spark's web page whether the cluster gives the application executors"
    return UsageError(_needed(workers), got=f"{slots} slot{'s' * (slots != 1)}", do=do)


def too_few_so_far(workers: int, slots: int, seconds: float) -> Warned:
    """Returns the warning of it while executors may still come, for so many seconds."""
    then = f"executors are waited for, {seconds:g} s at most"
    do = f"workers={slots} fits the slots that are there" if slots else ""
    return Warned(text=user_message(_needed(workers), got=f"{slots} so far", then=then, do=do))


def _needed(workers: int) -> str:
    return f"{workers} workers need {workers} slots at the same time"


@contextmanager
def held_slots(
    application: str,
    workers: int,
    slots: Callable[[], int | None],
    emit: Callable[[Event], None],
) -> Iterator[None]:
    """Holds so many slots of an application, once they are free, and yields none of them.

    Args:
        application: its id.
        workers: how many slots.
        slots: returns how many it has now; None where that has no bound.
        emit: is called when others must end first.
    """
    claim = SeatClaim(
        run=secrets.token_hex(16), place=application, workers=workers, can_yield=False
    )
    sharing = SeatSharing(Urgency(), claim, slots, emit)
    with sharing.joined():
        sharing.wait_for_seats()
        yield


@contextmanager
def taken_slots(context: SparkContext, count: int, seconds: float) -> Iterator[None]:
    """Has tasks of another job hold slots, from now on and for so many seconds at most.

    Args:
        context: the application's.
        count: how many; none needs nothing.
        seconds: how long.
    """
    if count == 0:
        yield
        return

    def hold(slots: Iterable[int]) -> Iterable[int]:
        for slot in slots:
            time.sleep(seconds)  # a slot is taken by a task that does nothing
            yield slot

    slots = context.parallelize(range(count), count)
    others = SparkJob(context, slots.mapPartitions(hold).collect, f"others-{secrets.token_hex(4)}")
    others.start()
    while others.is_alive() and others.running() < count:
        others.join(_LOOK_SECONDS)
    try:
        yield
    finally:
        others.cancel()
        others.join()


class AbsenceReasons:
    """Finds out why workers have not come: by how many tasks of their run, and of others, run.

    Args:
        context: the application's.
        workers: how many the run has.
        slots: returns how many there are; None where that has no bound.
    """

    def __init__(
        self, context: SparkContext, workers: int, slots: Callable[[], int | None]
    ) -> None:
        self._context, self._workers, self._slots = context, workers, slots
        self._job: SparkJob | None = None

    def look(self, job: SparkJob) -> None:
        """Notes the job whose tasks the workers are."""
        self._job = job

    def advice(self) -> str:
        """Returns what to do about them."""
        try:
            own_tasks = 0 if self._job is None else self._job.running()
            all_tasks, slots = self._running(), self._slots()
        except Exception:  # Java, or the application, is gone: the run ends with a better message
            return wait_for_them()
        if own_tasks >= self._workers:
            return "wait: every worker has its task, and is starting or reads its rows"
        others = all_tasks - own_tasks
        if others > 0 and slots is not None and slots - others < self._workers:
            return f"other jobs hold {others} of {slots} slots: end them, or ask for fewer workers"
        if slots is not None and slots < self._workers:
            return f"there are {slots} slots: free slots, or ask for fewer workers"
        present = self._present()
        if present is not None and present < self._workers:
            return (
                f"wait: the cluster has given {present} slots so far, and starts others if it has "
                "room; else ask for fewer workers"
            )
        return "wait: slots are free, and Spark is still starting the tasks"

    def _present(self) -> int | None:
        """Returns how many slots the executors that are there have; None where it is unknown.

        YARN and dynamic allocation promise executors that may never come.
        """
        with suppress(Exception):  # a method of Spark's own, which may change
            scala = self._context._jsc.sc()
            profile = scala.resourceProfileManager().defaultResourceProfile()
            return int(scala.maxNumConcurrentTasks(profile))
        return None

    def _running(self) -> int:
        tracker = self._context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return sum(stage.numActiveTasks for stage in stages if stage is not None)


class StarvationWatch:
    """Ends a job in which copies of tasks that run hold the slots that a lost task needs.

    Rows that came by a shuffle are lost with an executor: Spark then runs a whole stage anew, with
    second attempts of the tasks that still run, and what waits there waits for the run's end.

    Args:
        starved: returns the slots without a task.
        emit: is called with a warning of it.
        now: the time in seconds.
    """

    def __init__(
        self,
        starved: Callable[[], frozenset[int]],
        emit: Callable[[Event], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._starved, self._emit, self._now = starved, emit, now
        self._since: float | None = None

    def look(self, job: SparkJob) -> None:
        """Looks once; the job that follows has a task for each slot."""
        slots, now = self._starved(), self._now()
        self._since = (self._since or now) if slots else None
        if self._since is None or now - self._since < _STARVED_SECONDS:
            return
        self._since = None
        wrong = f"workers {sorted(slots)} have no task, as copies of others' tasks hold the slots"
        then = f"after {_STARVED_SECONDS:g} s the job is ended, and submitted again"
        self._emit(Warned(text=user_message(wrong, then=then)))
        job.cancel()
