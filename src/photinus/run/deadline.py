"""Chooses how many workers a run needs to end in time: every phase is tried for some seconds."""

from __future__ import annotations

import dataclasses
import math
import secrets
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from photinus.checkpoint.folder import RunFolder
from photinus.core.errors import UsageError, user_message
from photinus.core.events import Event, PhaseEnded, PhaseStarted, RoundClosed
from photinus.engine.base import Engine, RunSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from photinus.run.job import Job
    from photinus.training.plan import TrainingPlan

TRIAL_SECONDS = 2.0
"""How long each phase is tried; it then ends with its round."""
RESERVE = 1.15
"""What the measured time is multiplied by: rounds of the same run differ so much."""
_FEWEST_ROUNDS = 3
"""The first one also prepares what the others use."""


@dataclass(slots=True)
class Trial:
    """Takes in a trial's events and returns how long the whole run will take.

    A phase's seconds are its budget · (seconds between its rounds) / (their examples).
    """

    clock: Callable[[], float]
    began_at: float = 0.0
    ready_seconds: float = 0.0
    """Until the first phase: workers start and read their rows."""
    phase_seconds: float = 0.0
    """Of all phases, each with its whole budget."""
    _budget: int = 0
    _rounds: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began_at = self.clock()

    def record(self, event: Event) -> None:
        """Takes in an event."""
        if isinstance(event, PhaseStarted):
            self.ready_seconds = self.ready_seconds or self.clock() - self.began_at
            self._budget, self._rounds = event.budget, []
        elif isinstance(event, RoundClosed):
            self._rounds.append((self.clock(), event.examples))
        elif isinstance(event, PhaseEnded):
            self.phase_seconds += self._budget * self._seconds_each(event)

    def _seconds_each(self, phase: PhaseEnded) -> float:
        """Returns the seconds of one example."""
        if len(self._rounds) >= _FEWEST_ROUNDS:
            (began, before), (ended, after) = self._rounds[0], self._rounds[-1]
            if after > before:
                return (ended - began) / (after - before)
        return phase.seconds / max(1, phase.examples)

    @property
    def run_seconds(self) -> float:
        """How long a run of the same workers takes, with a reserve."""
        return RESERVE * (self.ready_seconds + self.phase_seconds)


class WorkerChoice(NamedTuple):
    """How many workers train, and why."""

    workers: int
    reason: str
    ends_at: float
    """By the engine's clock."""


def choose_workers(
    job: Job,
    plan: TrainingPlan,
    data: Any,  # noqa: ANN401
    engine: Engine,
    folder: str,
) -> WorkerChoice:
    """Tries a job with all its workers, and returns the fewest with which it ends in time.

    With k of K workers a run takes at most K/k times as long, as each has K/k times as much to do.
    Where all are too slow, one is tried: synchronizing may take longer than training.

    Args:
        job: with a deadline.
        plan: of the job.
        data: the rows.
        engine: where it trains.
        folder: for files of the trials, which are removed.

    Raises:
        UsageError: it takes longer, with all workers and with one; the message says how long.
    """
    assert job.deadline_seconds is not None
    began_at, spent, needed = engine.clock(), 0.0, dict[int, float]()
    for workers_tried in dict.fromkeys((job.workers, next(_possible_workers(job, job.workers)))):
        trial_plan = dataclasses.replace(
            dataclasses.replace(job, workers=workers_tried).plan(),
            start=plan.start,
            trial_seconds=TRIAL_SECONDS,
        )
        needed[workers_tried] = _needed_seconds(job, trial_plan, data, engine, folder)
        spent = engine.clock() - began_at
        left = job.deadline_seconds - spent
        if needed[workers_tried] <= left:
            enough = (
                k
                for k in _possible_workers(job, workers_tried)
                if needed[workers_tried] * workers_tried / k <= left
            )
            reason = (
                f"{left:.1f} s are left, and training takes {needed[workers_tried]:.1f} s with"
                f" {workers_tried}"
            )
            workers = next(enough)
            reason = user_message(
                f"{reason} of {job.workers} workers", then=f"{workers} of them train"
            )
            return WorkerChoice(workers, reason, began_at + job.deadline_seconds)
        if left <= 0:
            break
    fastest = min(needed, key=lambda workers_tried: needed[workers_tried])
    # with the reserve once more: the trial of the next call will differ, and must accept this
    raise UsageError(
        f"training takes {needed[fastest]:.1f} s with {fastest} of {job.workers} workers, after"
        f" {spent:.1f} s of trial: it cannot end in time",
        got=f"deadline_seconds={job.deadline_seconds:g}",
        do=f"set it to {math.ceil(spent + RESERVE * needed[fastest])} or more, add workers, or"
        " train fewer epochs",
    )


def _needed_seconds(job: Job, plan: TrainingPlan, data: Any, engine: Engine, folder: str) -> float:  # noqa: ANN401
    """Returns how long the run of a plan takes, by a trial."""
    trial, parent = Trial(engine.clock), Path(folder).parent
    is_new = not parent.exists()
    RunFolder(folder).claim_term()  # on Spark Connect a task looks for the run in it
    try:
        engine.run(
            RunSpec(
                plan=plan,
                data=data,
                run=secrets.token_bytes(16),
                emit=trial.record,
                security=job.security,
                transport=job.transport,
                urgency=job.urgency,
                folder=folder,
            )
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new:
            with suppress(OSError):
                parent.rmdir()
    return trial.run_seconds


def _possible_workers(job: Job, max_workers: int) -> Iterator[int]:
    """Yields the numbers of workers that can train the job, at most `max_workers`, fewest first."""
    for workers in range(1, max_workers):
        try:
            dataclasses.replace(job, workers=workers)
        except UsageError:
            continue
        yield workers
    yield max_workers


def read_once(data: Any) -> AbstractContextManager[Any]:  # noqa: ANN401 - whatever holds rows
    """Has the plan behind a DataFrame run once, though its rows are read by a trial, too."""
    return _reuse_rows(data) if hasattr(data, "frame") else nullcontext(data)


@contextmanager
def _reuse_rows(data: Any) -> Iterator[Any]:  # noqa: ANN401 - a FrameData
    from photinus.data.kept_rows import run_plan_once

    frame, spec = data.selected()
    with run_plan_once(frame, always=True) as rows:
        yield dataclasses.replace(data, frame=rows, spec=spec)
