"""Runs a training function of the user's own on workers that agree on its model."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from photinus.coordinator.callbacks import Callbacks, emit_to
from photinus.coordinator.loop_coordinator import LoopCoordinator
from photinus.core.errors import UsageError
from photinus.core.events import Event
from photinus.core.settings import one_of, validate, whole
from photinus.engine.agree import Loop
from photinus.engine.cpu_share import check_share, share_report_lines
from photinus.engine.driver_session import ListeningService
from photinus.engine.local.launch import launch_here
from photinus.engine.worker_bootstrap import reported_error
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.recipes import averaging
from photinus.strategies.spec import StrategySpec
from photinus.training.own_loop import plan_of, strategy_pair
from photinus.training.plan import WorkerLimits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def launch(
    function: Callable[..., object],
    *,
    workers: int,
    data: DataFrame | Sequence[Any] | None = None,
    strategy: StrategySpec | CustomStrategy = averaging(),  # noqa: B008 - frozen
    engine: str = "spark",
    threads: int = 1,
    bandwidth: float | None = None,
    cpu_share: float | None = None,
    memory: int | None = None,
    security: str = "tls",
    spark: SparkSession | None = None,
    callbacks: Sequence[Callable[[Event], None]] = (),
) -> dict[str, torch.Tensor]:
    """Runs a training function on every worker, and returns the parameters that they agree on.

    The function makes its model, calls `photinus.agree(model)`, and trains: with a
    `transformers.Trainer`, a `LightningModule`, or a loop of its own. It travels in the closure of
    Spark's tasks, and nowhere else. When a worker is lost, Spark calls the function again, and
    `agree` continues from what was agreed on. One worker is the plain run, bit for bit.

    Args:
        function: called with the worker's rows, or without arguments where there is no `data`.
        workers: how many.
        data: rows of any columns; a worker gets a part of them as a map-style data set of dicts.
        strategy: when and how the workers agree, if `agree` names none; it acts after steps.
        engine: "spark", or "local": processes on this machine, which import the function by its
            name, and get every K-th row of a sequence.
        threads: with which each worker computes.
        bandwidth: bytes that each worker may send in a second; None for no cap.
        cpu_share: processors that each worker may use on average; None for no cap.
        memory: bytes that each worker's process may take; None for no cap.
        security: tls, or none: frames in clear, for a network that is trusted as a whole.
        spark: the session; left out, that of `data`, the active one, or a local one.
        callbacks: called with every event; without any, warnings go to the log `photinus`.

    Returns:
        The agreed parameters and buffers by name, as of a `state_dict`; frozen ones are not in it.

    Raises:
        UsageError: an argument is out of its limits, or the strategy acts inside of a step.
        NotReadyError: the cluster lacks slots or a module.
        RunFailedError: the function failed on a worker.

    Example:
        >>> def train(rows):  # doctest: +SKIP
        ...     model = make_model()
        ...     agreed = photinus.agree(model)
        ...     for batch in DataLoader(rows, batch_size=32, shuffle=True):
        ...         ...
        ...         optimizer.step()
        ...         agreed.step()
        >>> model.load_state_dict(launch(train, workers=4, data=df))  # doctest: +SKIP
    """
    limits = WorkerLimits(threads=threads, bandwidth=bandwidth, cpu_share=cpu_share, memory=memory)
    for settings in (limits, _LaunchSettings(workers, engine, security)):
        validate(settings, of="launch")
    check_share(cpu_share, threads)
    _check_callable(function, () if data is None else (data,))
    strategies = strategy_pair(strategy, workers)
    has_peers = plan_of(strategies, workers, is_counted=False).has_peers
    coordinator_callbacks = Callbacks(run=secrets.token_bytes(16), emit=emit_to(callbacks))
    coordinator = LoopCoordinator(workers, strategy, coordinator_callbacks)
    if cpu_share is not None:
        for warning in share_report_lines(cpu_share, workers, is_here=engine == "local"):
            coordinator_callbacks.warn(warning)

    def make_loop(service: ListeningService) -> Loop:
        return Loop(service.call(limits, has_peers=has_peers), workers, strategy)

    if engine == "local":
        launch_here(function, _sequence(data), coordinator, security, make_loop)
    else:
        from photinus.engine.spark.launch import launch_on_spark

        session = spark or _session(data, workers)
        launch_on_spark(function, _frame(data), session, coordinator, security, make_loop)
    if coordinator.failure:
        raise reported_error(coordinator.failure, coordinator.failure_kind)
    parameters = coordinator.trained()
    return {name: torch.from_numpy(tensor) for name, tensor in parameters.tensors().items()}


@dataclass(frozen=True, slots=True)
class _LaunchSettings:
    workers: int
    engine: str
    security: str
    LIMITS = {  # noqa: RUF012
        "workers": whole(1),
        "engine": one_of("spark", "local"),
        "security": one_of("tls", "none"),
    }


def _check_callable(function: object, arguments: tuple[Any, ...]) -> None:
    if not callable(function):
        do = "photinus.launch(train, workers=4, data=df) with a function train(rows)"
        raise UsageError("launch runs a function", got=repr(function), do=do)
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        expected = "the worker's rows" if arguments else "no argument: there is no data"
        raise UsageError(f"the function must take {expected}", got=error) from error


def _sequence(data: Any) -> Sequence[Any] | None:  # noqa: ANN401 - what a user may give
    if data is None or (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        return data  # type: ignore[no-any-return]
    do = 'give a list of rows, or engine="spark"'
    raise UsageError("the local engine reads a sequence of rows", got=type(data).__name__, do=do)


def _frame(data: Any) -> DataFrame | None:  # noqa: ANN401 - what a user may give
    if data is None or hasattr(data, "sparkSession"):
        return data  # type: ignore[no-any-return]
    got = type(data).__name__
    raise UsageError("data must be a DataFrame", got=got, do='or give engine="local"')


def _session(data: Any, workers: int) -> SparkSession:  # noqa: ANN401 - what a user may give
    from photinus.engine.spark.session import spark_session

    frame = _frame(data)
    return spark_session(workers) if frame is None else frame.sparkSession
