"""Spark's resources for workers: what they ask for, and a stage's profile that asks for it."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from photinus.core.errors import NotReadyError, UsageError, user_message
from photinus.core.events import Event, Warned
from photinus.data.kept_rows import ONE_PROCESS
from photinus.devices.resources import TaskResources
from photinus.engine.spark.session import is_connect, whole_setting

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.resource import ExecutorResourceRequests, ResourceProfile
    from pyspark.sql import SparkSession


_AMOUNT = re.compile(r"spark\.(executor|task)\.resource\.(.+)\.amount")


def amounts_of(spark: SparkSession, wanted: Mapping[str, float]) -> dict[str, float]:
    """Returns how much of each resource a worker's task gets.

    Args:
        spark: the session.
        wanted: by the job; what it leaves out is as the application has it.
    """
    return {**_configured_amounts(spark, "task"), **wanted}


def resources_of_task(
    task: TaskContext, amounts: Mapping[str, float] | None = None
) -> TaskResources:
    """Returns what Spark gave to a task; it is called inside of it.

    Args:
        task: the running one.
        amounts: as of `amounts_of`.
    """
    assigned = task.resources().items()
    return TaskResources(
        {name: tuple(resource.addresses) for name, resource in assigned}, amounts or {}
    )


def profile_of(
    spark: SparkSession, wanted: Mapping[str, float], emit: Callable[[Event], None]
) -> ResourceProfile | None:
    """Returns a profile for the training's stage alone; None where none is needed.

    Args:
        spark: the session.
        wanted: name -> amount for each worker.
        emit: is called where Spark has no resources to give.

    Raises:
        UsageError: the executors have no such resource, or too little of it each.
        NotReadyError: this pyspark gives a stage no profile.
    """
    if not wanted:
        return None
    if re.match(ONE_PROCESS, str(spark.conf.get("spark.master", "local"))):
        wrong = "a local Spark hands out no resources"
        then = "each worker sees every device of this machine"
        emit(Warned(text=user_message(wrong, got=_amounts_text(wanted), then=then)))
        return None
    from pyspark.sql import DataFrame

    if "profile" not in inspect.signature(DataFrame.mapInArrow).parameters:
        wrong = "this version of pyspark cannot give resources to the training alone"
        do = "start the application with spark.task.resource.NAME.amount, or pyspark 4"
        raise NotReadyError(wrong, got=_amounts_text(wanted), do=do)
    if not is_connect(spark) and not is_elastic(spark):
        _check_amounts(_configured_amounts(spark, "executor"), wanted)
    return _build_profile(spark, wanted)


def is_elastic(spark: SparkSession) -> bool:
    """Returns whether Spark starts and ends executors by need: dynamic allocation."""
    return str(spark.conf.get("spark.dynamicAllocation.enabled", "false")) == "true"


def executor_amounts(spark: SparkSession, wanted: Mapping[str, float]) -> dict[str, int]:
    """Returns how much of each resource an executor has that is started for the training.

    Args:
        spark: the session.
        wanted: name -> amount for each worker; an executor has room for one where none is set.
    """
    configured = _configured_amounts(spark, "executor")
    return {
        name: max(math.ceil(amount), int(configured.get(name, 0)))
        for name, amount in wanted.items()
    }


def _check_amounts(available: Mapping[str, float], wanted: Mapping[str, float]) -> None:
    for name, amount in wanted.items():
        if available.get(name, 0.0) < amount:
            do = f"start the application with spark.executor.resource.{name}.amount"
            got = f"{_amounts_text(available)}, and resources={dict(wanted)}"
            raise UsageError(f"the executors have too little {name} for a worker", got=got, do=do)


def _build_profile(spark: SparkSession, wanted: Mapping[str, float]) -> ResourceProfile:
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    requests = TaskResourceRequests().cpus(whole_setting(spark.conf, "spark.task.cpus", 1))
    for name, amount in wanted.items():
        requests = requests.resource(name, amount)
    builder = ResourceProfileBuilder().require(requests)
    if not is_connect(spark) and is_elastic(spark):  # a profile of tasks alone is refused there
        builder = builder.require(_executor_requests(spark, wanted))
    built: Any = builder.build
    profile: ResourceProfile = built
    if is_connect(spark):
        _ = profile.id  # the server makes it for this thread's session, and not for another's
    return profile


def _executor_requests(
    spark: SparkSession, wanted: Mapping[str, float]
) -> ExecutorResourceRequests:
    """Returns the resources that Spark must start executors with, for the training's stage."""
    from pyspark.resource import ExecutorResourceRequests

    cores = whole_setting(spark.conf, "spark.executor.cores", 1)
    requests = ExecutorResourceRequests().cores(cores)
    for name, amount in executor_amounts(spark, wanted).items():
        prefix = f"spark.executor.resource.{name}"
        discovery = (
            str(spark.conf.get(f"{prefix}.{what}", "")) for what in ("discoveryScript", "vendor")
        )
        requests = requests.resource(name, amount, *discovery)
    return requests


def _configured_amounts(spark: SparkSession, owner: str) -> dict[str, float]:
    """Returns what executors have, or tasks ask for, by the application's settings."""
    if is_connect(spark):
        return {}
    amounts = {}
    for key, value in spark.sparkContext.getConf().getAll():
        match = _AMOUNT.fullmatch(key)
        if match and match[1] == owner:
            amounts[match[2]] = float(value)
    return amounts


def _amounts_text(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in amounts.items()) or "none"
