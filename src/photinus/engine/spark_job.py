"""One Spark job in a thread of its own, and what became of its tasks."""

from __future__ import annotations

import contextlib
import re
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

__all__ = ["SparkJob", "cause_of"]

_LOOKED_AT = 100
_ERROR = re.compile(r"[\w.]+(Error|Exception)(:|$)")


class SparkJob(threading.Thread):
    """Runs `frame.mapInArrow(task, schema).collect()`.

    Args:
        frame: what the tasks read.
        task: what they do.
        schema: of the rows that they yield.
        group: the name that the job is known and cancelled by.
    """

    def __init__(self, frame: DataFrame, task: Any, schema: str, group: str) -> None:  # noqa: ANN401
        super().__init__(name="photinus-job", daemon=True)
        self.rows: list[Row] = []
        self.error: Exception | None = None
        self._frame, self._task, self._schema, self._group = frame, task, schema, group

    def again(self) -> SparkJob:
        """Returns the same job, not yet started."""
        return SparkJob(self._frame, self._task, self._schema, self._group)

    def run(self) -> None:
        """Runs it to its end."""
        try:
            context = self._frame.sparkSession.sparkContext
            context.setJobGroup(self._group, "photinus", interruptOnCancel=True)
            self.rows = self._frame.mapInArrow(self._task, self._schema).collect()
        except Exception as error:
            self.error = error

    def cancel(self) -> None:
        """Ends its tasks."""
        self._frame.sparkSession.sparkContext.cancelJobGroup(self._group)

    def failures(self) -> int:
        """Returns how many tasks have failed so far; Spark starts each again without a word."""
        return sum(failed for _, failed in self._stages())

    def reason(self) -> str:
        """Returns why a task failed, in one line; nothing where Spark does not say."""
        context = self._frame.sparkSession.sparkContext
        for stage, failed in self._stages():
            # the store is Spark's own and may change: without it the reason is left out
            with contextlib.suppress(Exception):
                tasks = context._jsc.sc().statusStore().taskList(stage, 0, _LOOKED_AT)
                said = [tasks.apply(i).errorMessage() for i in range(tasks.size() if failed else 0)]
                found = [text.get() for text in said if text.isDefined()]
                if found:
                    return cause_of(found[-1])
        return ""

    def _stages(self) -> list[tuple[int, int]]:
        tracker = self._frame.sparkSession.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        stages = {stage for job in jobs if job is not None for stage in job.stageIds}
        found = {stage: tracker.getStageInfo(stage) for stage in sorted(stages)}
        return [(stage, info.numFailedTasks) for stage, info in found.items() if info is not None]


def cause_of(error: object) -> str:
    """Returns the line of Spark's long error that names the cause.

    Example:
        >>> cause_of("Job aborted" + chr(10) + "ModuleNotFoundError: No module named 'torch'")
        "ModuleNotFoundError: No module named 'torch'"
    """
    if error is None:
        return "all its tasks ended early"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [line for line in lines if _ERROR.match(line)]
    named = [line for line in lines if "Error" in line or "Exception" in line]
    return (python or named or lines or [type(error).__name__])[-1][:300]
