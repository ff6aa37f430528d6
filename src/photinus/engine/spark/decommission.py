"""Moves workers off an executor that Spark decommissions, right after a push.

A task gets no notice of a decommission, and would run until its machine is gone. The driver's
scheduler knows. A task that the driver kills is started elsewhere, and counts as no failure.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from photinus.core.errors import user_message
from photinus.core.events import Event, Warned
from photinus.data.kept_rows import ONE_PROCESS

if TYPE_CHECKING:
    from pyspark import SparkContext


_LOOK_SECONDS = 2.0
_PATIENCE_SECONDS = 30.0
"""How long a worker may take to its next push, before its task is ended."""
_MAX_TASKS = 10_000


@dataclass(frozen=True, slots=True)
class DepartingTask:
    """A running task on an executor that will not stay."""

    task: int
    """Its number in the application."""
    slot: int
    executor: str


class _Seats(Protocol):
    def retire(self, slot: int, attempt: str) -> None:
        """Has an attempt give its seat up after its next push."""

    def has_left(self, slot: int, attempt: str) -> bool:
        """Returns whether this attempt does not hold the seat."""


class DecommissionTracker:
    """What Spark's scheduler knows of executors that are decommissioned.

    Args:
        context: of the application.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context, self._scala = context, context._jsc.sc()
        conf = context.getConf()
        is_enabled = conf.get("spark.decommission.enabled", "false") == "true"
        self.is_possible = is_enabled and not re.match(ONE_PROCESS, str(context.master))
        self._is_elastic = conf.get("spark.dynamicAllocation.enabled", "false") == "true"

    def tasks(self, stages: list[int]) -> list[DepartingTask]:
        """Returns the tasks of these stages that run on such executors."""
        scheduler = self._scala.taskScheduler()
        executors = self._executors()
        leaving = {n for n in executors if scheduler.getExecutorDecommissionState(n).isDefined()}
        departing = []
        for stage in stages if leaving else ():
            tasks = self._scala.statusStore().taskList(stage, 0, _MAX_TASKS)
            for task in (tasks.apply(n) for n in range(tasks.size())):
                if task.status() == "RUNNING" and task.executorId() in leaving:
                    departing.append(
                        DepartingTask(task.taskId(), task.partitionId(), task.executorId())
                    )
        return departing

    def end(self, task: DepartingTask) -> None:
        """Has Spark start a task elsewhere."""
        reason = f"executor {task.executor} is decommissioned"
        # interrupted: else Spark first waits 4 s for the Python worker, which has no seat any more
        self._scala.killTaskAttempt(task.task, True, reason)  # noqa: FBT003 - a call into Java
        executors = self._executors()
        if self._is_elastic and task.executor in executors:
            # which takes a task that was killed for one that is done, and asks for no other place
            java: Any = self._context._jvm
            no_preferences = java.PythonUtils.toScalaMap(java.java.util.HashMap())
            self._scala.requestTotalExecutors(len(executors), 0, no_preferences)

    def _executors(self) -> list[str]:
        ids = self._scala.schedulerBackend().getExecutorIds()
        return [ids.apply(n) for n in range(ids.size())]


@dataclass
class TaskMover:
    """Has workers give up their seats and kills their tasks, so that Spark starts them elsewhere.

    Args:
        tracker: knows the executors that are decommissioned.
        seats: which worker holds which seat.
        emit: is called with each event.
        now: returns the seconds of a monotonic clock.
    """

    tracker: DecommissionTracker
    seats: _Seats
    emit: Callable[[Event], None]
    now: Callable[[], float] = time.monotonic
    _next_look: float = 0.0
    _noticed: set[int] = field(default_factory=set)
    _moving: dict[DepartingTask, float] = field(default_factory=dict)
    """Task -> when it is ended even without another push."""

    def look(self, stages: Callable[[], list[int]]) -> None:
        """Called some times a second.

        Args:
            stages: returns the stages of the job that runs now.
        """
        now = self.now()
        if self.tracker.is_possible and now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            self._notice(self.tracker.tasks(stages()), now)
        for task, deadline in list(self._moving.items()):
            if self.seats.has_left(task.slot, str(task.task)) or now >= deadline:
                del self._moving[task]
                self.tracker.end(task)

    def _notice(self, tasks: list[DepartingTask], now: float) -> None:
        for task in tasks:
            if task.task in self._noticed:
                continue
            self._noticed.add(task.task)
            self._moving[task] = now + _PATIENCE_SECONDS
            self.seats.retire(task.slot, str(task.task))
            wrong = f"executor {task.executor} is decommissioned"
            then = f"worker {task.slot} leaves it after its next push"
            self.emit(Warned(text=user_message(wrong, then=then)))
