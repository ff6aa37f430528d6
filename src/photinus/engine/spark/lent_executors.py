"""Ends executors whose workers gave their seats up, where the cores are due to another application.

An executor keeps its cores while it runs, idle or not. With dynamic allocation Spark ends idle
ones by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from photinus.data.spark import ONE_PROCESS

if TYPE_CHECKING:
    from pyspark import SparkContext

_LOOKED_AT = 10_000


class LentExecutors:
    """The executors of one application, some of which are lent to another.

    Args:
        context: of the application.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context, self._scala = context, context._jsc.sc()
        is_elastic = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
        self._is_possible = not is_elastic and not re.match(ONE_PROCESS, str(context.master))
        self._lent = 0

    def yield_order(self, stages: Sequence[int], workers: int) -> list[int]:
        """Returns the slots so that those of one executor follow each other.

        Args:
            stages: of the run's jobs.
            workers: how many slots there are.
        """
        homes = dict.fromkeys(range(workers), "")
        for stage in stages if self._is_possible else ():
            tasks = self._scala.statusStore().taskList(stage, 0, _LOOKED_AT)
            for task in (tasks.apply(n) for n in range(tasks.size())):
                if task.status() == "RUNNING" and task.partitionId() in homes:
                    homes[task.partitionId()] = str(task.executorId())
        return sorted(homes, key=lambda slot: (homes[slot], slot), reverse=True)

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
            self._ask_for(count)
            self._scala.killExecutor(executor.id())  # which also lowers what is asked for
            count, self._lent = count - 1, self._lent + 1
        return lent

    def take_home(self) -> None:
        """Asks Spark for as many executors as there were."""
        if self._lent:
            self._ask_for(len(self._executors()) + self._lent)
            self._lent = 0

    def _ask_for(self, count: int) -> None:
        java: Any = self._context._jvm
        nowhere = java.PythonUtils.toScalaMap(java.java.util.HashMap())
        self._scala.requestTotalExecutors(count, 0, nowhere)

    def _executors(self) -> list[Any]:
        found = self._scala.statusStore().executorList(True)  # noqa: FBT003 - a call into Java
        all_executors = [found.apply(n) for n in range(found.size())]
        return [executor for executor in all_executors if executor.id() != "driver"]
