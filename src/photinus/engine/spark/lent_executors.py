"""Ends executors whose workers gave their seats up, where the cores are due to another application.

An executor keeps its cores while it runs, idle or not. With dynamic allocation Spark ends idle
ones by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from photinus.data.kept_rows import ONE_PROCESS

if TYPE_CHECKING:
    from pyspark import SparkContext

_MAX_TASKS = 10_000


class LentExecutors:
    """The executors of one application, some of which are lent to another.

    Args:
        context: of the application.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context, self._scala = context, context._jsc.sc()
        is_elastic = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
        self._is_possible = not is_elastic and not re.match(ONE_PROCESS, str(context.master))
        self._lent_count = 0

    def yield_order(self, stages: Sequence[int], workers: int) -> list[int]:
        """Returns the slots so that those of one executor follow each other.

        Args:
            stages: of the run's jobs.
            workers: how many slots there are.
        """
        executor_by_slot = dict.fromkeys(range(workers), "")
        for stage in stages if self._is_possible else ():
            tasks = self._scala.statusStore().taskList(stage, 0, _MAX_TASKS)
            for task in (tasks.apply(n) for n in range(tasks.size())):
                if task.status() == "RUNNING" and task.partitionId() in executor_by_slot:
                    executor_by_slot[task.partitionId()] = str(task.executorId())
        return sorted(
            executor_by_slot, key=lambda slot: (executor_by_slot[slot], slot), reverse=True
        )

    def lend(self, slots: int) -> int:
        """Ends idle executors; returns how many slots they had.

        Args:
            slots: how many they may have in all.
        """
        if not self._is_possible:
            return 0
        executors = self._executors()
        idle = [e for e in executors if e.activeTasks() == 0 and e.maxTasks() > 0]
        count, lent = len(executors), 0
        for executor in idle:
            if lent + executor.maxTasks() > slots:
                continue
            lent += executor.maxTasks()
            self._request_executors(count)
            self._scala.killExecutor(executor.id())  # which also lowers what is asked for
            count, self._lent_count = count - 1, self._lent_count + 1
        return lent

    def reclaim(self) -> None:
        """Asks Spark for as many executors as there were."""
        if self._lent_count:
            self._request_executors(len(self._executors()) + self._lent_count)
            self._lent_count = 0

    def _request_executors(self, count: int) -> None:
        java: Any = self._context._jvm
        no_preferences = java.PythonUtils.toScalaMap(java.java.util.HashMap())
        self._scala.requestTotalExecutors(count, 0, no_preferences)

    def _executors(self) -> list[Any]:
        summaries = self._scala.statusStore().executorList(True)  # noqa: FBT003 - a call into Java
        all_executors = [summaries.apply(n) for n in range(summaries.size())]
        return [executor for executor in all_executors if executor.id() != "driver"]
