"""Keeps the rows of a plan on the executors' disks, so that it runs once."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import StorageLevel
    from pyspark.sql import DataFrame


ONE_PROCESS = r"local(\[|$)"
"""A master that is this very process; local-cluster has executors."""


@contextlib.contextmanager
def run_plan_once(frame: DataFrame, *, always: bool = False) -> Iterator[DataFrame]:
    """Has the plan behind some rows run once, however often they are read meanwhile.

    Where it moves rows between tasks, even to ask how many partitions there are runs a part of it.
    Its rows are then kept on the executors' disks when they first come by; on a cluster on those of
    two executors.

    Args:
        frame: what the workers need, and no more.
        always: keeps the rows of a plan that moves none, too: they will be read several times.
    """
    if not always and not _moves_rows(frame):
        yield frame
        return
    from pyspark import StorageLevel

    is_local = re.match(ONE_PROCESS, str(frame.sparkSession.conf.get("spark.master", "local")))
    with _persisted(
        frame, StorageLevel.DISK_ONLY if is_local else StorageLevel.DISK_ONLY_2
    ) as rows:
        yield rows


@contextlib.contextmanager
def _persisted(frame: DataFrame, level: StorageLevel) -> Iterator[DataFrame]:
    frame.persist(level)
    try:
        yield frame.select("*")  # the frame itself may remember its plan as it was before
    finally:
        with contextlib.suppress(Exception):  # an application that has ended keeps none
            frame.unpersist()


def _moves_rows(frame: DataFrame) -> bool:
    """Returns whether a plan has an exchange that runs anew with it; False for Connect: unknown."""
    plan = getattr(frame, "_jdf", None)
    return plan is not None and _has_exchange(plan.queryExecution().executedPlan())


def _has_exchange(plan: Any) -> bool:  # noqa: ANN401 - one of Java's
    name = str(plan.nodeName())
    if name.startswith("AdaptiveSparkPlan"):  # what it will be is known when it runs
        return _has_exchange(plan.initialPlan())
    children = plan.children()  # rows that are kept already have none
    child_plans = (children.apply(number) for number in range(children.size()))
    return "Exchange" in name or any(map(_has_exchange, child_plans))


class ReplicatedRows:
    """Keeps rows that had to be redistributed on the disks of two executors, for a while.

    Where one executor is lost, a task in its place finds its rows on the other. Else Spark would
    redistribute all rows, and start a second task for every worker that still runs: these would
    take the place of the one that is missing. On one machine there is nothing to lose; of
    Connect the plan is not known.
    """

    frame: DataFrame

    def __enter__(self) -> Self:
        self._persisted: list[DataFrame] = []
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for rows in self._persisted:
            with contextlib.suppress(Exception):  # an application that has ended keeps none
                rows.unpersist()

    def keep(self, df: DataFrame) -> None:
        """Takes rows; those before them are needed no more."""
        self.__exit__(None, None, None)
        self._persisted, self.frame = [], df
        is_local = re.match(ONE_PROCESS, str(df.sparkSession.conf.get("spark.master", "local")))
        if is_local or not _moves_rows(df):
            return
        from pyspark import StorageLevel

        self.frame = df.persist(StorageLevel.DISK_ONLY_2)
        self._persisted = [self.frame]
