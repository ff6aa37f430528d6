"""Runs the same job under several strategies, one after the other."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from photinus.core.errors import PhotinusError, UsageError, user_message
from photinus.core.events import Event, PhaseEnded, PhaseStarted, RoundClosed, Warned
from photinus.engine.base import Engine
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.report.comparison import Compared, comparison_page, strategy_names
from photinus.run.data import TestRows, read_test, read_train, with_token_labels
from photinus.run.engines import engine_of
from photinus.run.evaluate import LazyModel
from photinus.run.job import Job
from photinus.run.train import train_lazy
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.phase_defaults import AUTO
from photinus.strategies.recipes import RECIPES, to_plain
from photinus.strategies.spec import StrategySpec


@dataclass(eq=False)
class _Tally:
    """Adds up the events of one run."""

    now: Callable[[], float]
    began_at: float = math.nan
    ended_at: float = math.nan
    wall_began_at: float = math.nan
    wall_ended_at: float = math.nan
    rounds: int = 0
    bytes: int = 0
    config: str = ""
    examples: int = 0
    passes: tuple[float, float] = (math.nan, math.nan)
    staleness: list[float] = field(default_factory=list)
    spread: float = math.nan
    curve: list[tuple[float, float]] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)
    """The strategy of each phase, in words."""
    warnings: list[str] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Warned) and event.text not in self.warnings:
            self.warnings.append(event.text)
        if isinstance(event, PhaseStarted):
            self.trained.append(event.strategy)
            config = event.name.partition(", ")[0]  # both parts of a stage are one curve
            self.config, self.curve = config, self.curve if config == self.config else []
            if math.isnan(self.began_at):
                self.began_at, self.wall_began_at = self.now(), time.monotonic()
        if isinstance(event, RoundClosed):
            self.ended_at, self.wall_ended_at = self.now(), time.monotonic()
            self.rounds += event.rounds
            self.bytes += event.bytes_up + event.bytes_down
            if "loss" in event.metrics:
                self.curve.append((self.ended_at - self.began_at, event.metrics["loss"]))
            self.staleness += [v for k, v in event.metrics.items() if k == "staleness"]
            self.spread = event.metrics.get("consistency", self.spread)
        if isinstance(event, PhaseEnded):
            self.examples += event.examples
            if event.passes:
                self.passes = min(event.passes.values()), max(event.passes.values())


def compare(
    job: Job,
    strategies: Sequence[StrategySpec | CustomStrategy] = (),
    *,
    folder: Path,
    cluster: SimulatedCluster | None = None,
    on_row: Callable[[Compared], None] = lambda _: None,
) -> list[Compared]:
    """Trains the job under each strategy, and writes `comparison.html` and `.json`.

    Strategies that `.json` holds already are not trained again: a stopped comparison continues.

    Args:
        job: what to train; its engine decides where, and so whose seconds are compared.
        strategies: what is compared; left out, every recipe of the table, without the usual start
            by gradients: in a short job it would be all that they do.
        folder: where the runs and the comparison are kept.
        cluster: how fast the simulator's workers and links are.
        on_row: called after each run.

    Raises:
        UsageError: a cluster is given and the engine is not the simulator, or its speeds are not
            one for each worker, or the folder holds a comparison of another job, or at other
            speeds.
        PhotinusError: the rows cannot be read; a strategy that fails has a line with its error.
    """
    if cluster is not None and job.engine != "simulate":
        wrong, got = "speeds are given to the simulator only", f"engine {job.engine!r}"
        raise UsageError(wrong, got=got, do="name the engine simulate, or no speeds")
    if cluster is not None and job.deadline_seconds is None:  # by which fewer of them may train
        cluster.check_workers(job.workers)
    candidates = list(strategies) or [recipe.build().without_start for recipe in RECIPES.values()]
    data, test = read_train(job), read_test(with_token_labels(job.data, job.model))
    _check_same(job, cluster or SimulatedCluster(), folder / "job.json")
    rows, previous = [], _read_compared(folder / "comparison.json")
    for number, strategy in enumerate(candidates):
        engine = SimulatedEngine(cluster) if job.engine == "simulate" else engine_of(job.engine)
        run_folder = _free_folder(folder / f"{number:02d}-{strategy.recipe}")
        run_job = replace(job, strategy=strategy, strategies={})
        row = previous.get(_settings(strategy)) or _one(run_job, engine, run_folder, (data, test))
        rows.append(row)
        on_row(row)
        text = json.dumps([asdict(r) for r in rows], indent=1)
        (folder / "comparison.json").write_text(text + "\n")
        comparison_page(rows, f"{job.name}: {job.workers} workers", folder / "comparison.html")
    return rows


def names_of(strategies: Sequence[StrategySpec | CustomStrategy]) -> list[str]:
    """Returns each strategy in words, as the table of their comparison has it."""
    rows = [Compared(strategy=str(s), seconds=0.0, settings=_settings(s)) for s in strategies]
    return strategy_names(rows)


def _check_same(job: Job, cluster: SimulatedCluster, file: Path) -> None:
    """Notes which job is compared, on which machines, and refuses others in its folder."""
    plain = json.loads(json.dumps(job.to_dict()))
    machines = {f.name: str(getattr(cluster, f.name)) for f in fields(cluster)}
    earlier = json.loads(file.read_text()) if file.is_file() else {}
    # a folder of before does not say: its speeds are not known to differ
    earlier_machines = earlier.pop("simulated_cluster", machines)
    if earlier and (earlier != plain or earlier_machines != machines):
        what = "of another job" if earlier != plain else "at other speeds"
        wrong = f"{file.parent} holds a comparison {what}"
        raise UsageError(wrong, do="name another folder")
    noted = plain | {"simulated_cluster": machines}
    file.write_text(json.dumps(noted, indent=1) + "\n")


def _read_compared(file: Path) -> dict[str, Compared]:
    """Returns what an earlier call has compared, by strategy."""
    rows = json.loads(file.read_text()) if file.is_file() else []
    for row in rows:
        row |= {"passes": tuple(row["passes"]), "curve": tuple(map(tuple, row["curve"]))}
        row |= {name: tuple(row.get(name, ())) for name in ("trained", "warnings")}
    compared = [Compared(**row) for row in rows]
    return {row.settings: row for row in compared if not row.failure}


def _settings(strategy: StrategySpec | CustomStrategy) -> str:
    return json.dumps(to_plain(strategy), sort_keys=True)


def _free_folder(folder: Path) -> Path:
    """Returns the folder, or one beside it where a run was stopped in it."""
    free, number = folder, 1
    while free.exists():
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free


def _one(job: Job, engine: Engine, folder: Path, rows: tuple[Any, TestRows | None]) -> Compared:
    tally, strategy = _Tally(engine.clock), job.strategy
    name, settings = str(strategy), _settings(strategy)
    data, test = rows
    try:
        outcome = train_lazy(  # `train` would note rows of somebody else's
            LazyModel(job.resolved()),
            data,
            test,
            folder=folder,
            callbacks=(tally,),
            verbose=False,
            engine=engine,
        )
    except PhotinusError as error:
        return Compared(strategy=name, seconds=0.0, failure=str(error), settings=settings)
    except Exception as error:  # whatever a strategy of the user's raises: the others go on
        if not isinstance(strategy, CustomStrategy):
            raise
        failure = f"{type(error).__name__}: {error}"
        return Compared(strategy=name, seconds=0.0, failure=failure, settings=settings)
    is_virtual = isinstance(engine, SimulatedEngine)
    sent_bytes = engine.bytes if isinstance(engine, SimulatedEngine) else tally.bytes
    return Compared(
        strategy=name,
        seconds=tally.ended_at - tally.began_at,
        wall_seconds=tally.wall_ended_at - tally.wall_began_at if is_virtual else math.nan,
        rounds=tally.rounds,
        bytes=sent_bytes or math.nan,
        error=outcome.metrics.get("error", math.nan),
        loss=outcome.metrics.get("loss", tally.curve[-1][1] if tally.curve else math.nan),
        staleness=sum(tally.staleness) / len(tally.staleness) if tally.staleness else math.nan,
        spread=tally.spread,
        examples=tally.examples,
        passes=tally.passes,
        curve=tuple(tally.curve),
        settings=settings,
        trained=tuple(dict.fromkeys(tally.trained)),
        warnings=_warnings(tally, strategy),
    )


def _warnings(tally: _Tally, strategy: StrategySpec | CustomStrategy) -> tuple[str, ...]:
    """Returns a run's warnings, and one if its start by gradients took all of its steps."""
    recipe, warnings = strategy.recipe, tuple(tally.warnings)
    starts_by_itself = isinstance(strategy, StrategySpec) and strategy.gradients_until == AUTO
    is_own = any(not text.startswith("all_reduce ") for text in tally.trained)
    wrong = f"all steps average gradients, and none is of {recipe}"
    # a run warns of it where its recipe is not the default one
    if is_own or not starts_by_itself or any(wrong in text for text in warnings):
        return warnings
    return (*warnings, user_message(wrong, do=f"set gradients_until=0 to begin with {recipe}"))
