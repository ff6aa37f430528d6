"""The present state of a run, computed from its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from photinus.core import events as e
from photinus.report.journal import StampedEvent


@dataclass(slots=True)
class PhaseState:
    """What is known of one phase. `examples` counts what was applied."""

    phase: int
    name: str
    budget: int = 0
    parameters: int = 0
    strategy: str = ""
    batch_size: int = 0
    epochs: float = 0.0
    began: float = 0.0
    """Seconds since the run's start, as `ended` and `latest`."""
    ended: float | None = None
    latest: float = 0.0
    examples: int = 0
    began_examples: int = 0
    """Examples that an earlier term had applied: they count for progress, not for speed."""
    progress: float = 0.0
    rounds: int = 0
    round_seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it took, or has taken."""
        return max(0.0, (self.latest if self.ended is None else self.ended) - self.began)

    @property
    def examples_per_second(self) -> float:
        """Applied, by all workers together."""
        return (self.examples - self.began_examples) / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far; None before the first round."""
        speed = self.examples_per_second
        return max(0, self.budget - self.examples) / speed if speed > 0 else None

    @property
    def mean_round_seconds(self) -> float:
        """From a round's first push to its end."""
        return self.round_seconds / self.rounds if self.rounds else 0.0


@dataclass(slots=True)
class WorkerState:
    """What is known of one slot; the counts are those of its present phase."""

    slot: int
    host: str = ""
    lease: int = 0
    rows: int = 0
    is_here: bool = True
    losses: int = 0
    reason: str = ""
    steps: int = 0
    examples: int = 0
    examples_per_second: float = 0.0
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    passes: float = 0.0
    """How often its rows were trained on, in the stage that ended last."""

    @property
    def wait_share(self) -> float:
        """Of its time, how much it waited for the others: 0 to 1."""
        total = self.compute_seconds + self.wait_seconds
        return self.wait_seconds / total if total else 0.0


@dataclass(slots=True)
class Summary:
    """The state of a run, from its events so far."""

    run: str = ""
    term: int = 0
    engine: str = ""
    expected_workers: int = 0
    job: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    resumed_from: str = ""
    state: str = "starting"
    """starting, running, then the state in RunEnded."""
    reason: str = ""
    at: float = 0.0
    """Seconds since the run's start, of the newest event."""
    phases: dict[int, PhaseState] = field(default_factory=dict)
    workers: dict[int, WorkerState] = field(default_factory=dict)
    measured: dict[str, e.Evaluated] = field(default_factory=dict)
    """The newest measurement by its name: validation, test."""
    counts: Mapping[str, int] = field(default_factory=dict)
    warnings: int = 0
    checkpoints: int = 0

    @property
    def phase(self) -> PhaseState | None:
        """The phase that began last."""
        return next(reversed(self.phases.values()), None)

    @property
    def examples(self) -> int:
        """Applied in all phases."""
        return sum(p.examples for p in self.phases.values())

    @property
    def training_seconds(self) -> float:
        """Of all phases; the start and the measuring are not in it."""
        return sum(p.seconds for p in self.phases.values())

    @property
    def bytes_total(self) -> int:
        """To and from the owner, in all phases."""
        return sum(p.bytes_up + p.bytes_down for p in self.phases.values())

    def add(self, at: float, event: e.Event) -> None:
        """Takes in one event that happened `at` seconds after the start."""
        self.at = max(self.at, at)
        handler = _HANDLERS.get(type(event))
        if handler:
            handler(self, at, event)

    def _phase(self, number: int, at: float) -> PhaseState:
        return self.phases.setdefault(
            number, PhaseState(number, f"phase {number}", began=at, latest=at)
        )

    def _worker(self, slot: int) -> WorkerState:
        return self.workers.setdefault(slot, WorkerState(slot))


def summarise(stamped: Iterable[StampedEvent]) -> Summary:
    """Folds a journal into one summary."""
    summary = Summary()
    for entry in stamped:
        summary.add(entry.at, entry.event)
    return summary


def _run_started(s: Summary, _: float, event: e.RunStarted) -> None:
    s.run, s.term, s.engine = event.run, event.term, event.engine
    s.expected_workers, s.job, s.versions = event.workers, event.job, event.versions
    s.resumed_from, s.state = event.resumed_from, "running"
    for worker in s.workers.values():
        worker.is_here = False


def _phase_started(s: Summary, at: float, event: e.PhaseStarted) -> None:
    earlier = s.phases.pop(event.phase, None)
    phase = PhaseState(
        event.phase,
        event.name,
        event.budget,
        event.parameters,
        event.strategy,
        event.batch_size,
        event.epochs,
        began=at,
        latest=at,
    )
    if earlier:
        phase.examples = phase.began_examples = earlier.examples
        phase.metrics, phase.rounds = earlier.metrics, earlier.rounds
        phase.round_seconds = earlier.round_seconds
        phase.bytes_up, phase.bytes_down = earlier.bytes_up, earlier.bytes_down
    s.phases[event.phase] = phase


def _phase_ended(s: Summary, at: float, event: e.PhaseEnded) -> None:
    phase = s._phase(event.phase, at)
    phase.ended, phase.examples, phase.progress = at, event.examples, 1.0
    phase.metrics.update(event.metrics)
    for slot, passes in event.passes.items():
        s._worker(int(slot)).passes = passes


def _round_closed(s: Summary, at: float, event: e.RoundClosed) -> None:
    phase = s._phase(event.phase, at)
    if event.examples < phase.began_examples:  # a resumed term starts behind where the old one died
        phase.began_examples = event.examples
    phase.latest, phase.examples, phase.progress = at, event.examples, event.progress
    phase.rounds += event.rounds
    phase.round_seconds += event.seconds
    phase.bytes_up += event.bytes_up
    phase.bytes_down += event.bytes_down
    phase.metrics.update(event.metrics)


def _worker_joined(s: Summary, _: float, event: e.WorkerJoined) -> None:
    worker = s._worker(event.slot)
    worker.host, worker.lease = event.host, event.lease
    worker.rows, worker.is_here = event.examples, True


def _worker_lost(s: Summary, _: float, event: e.WorkerLost) -> None:
    worker = s._worker(event.slot)
    worker.is_here, worker.reason = False, event.reason
    worker.losses += 1


def _worker_report(s: Summary, _: float, event: e.WorkerReport) -> None:
    worker = s._worker(event.slot)
    for name in WorkerState.__slots__:
        if hasattr(event, name) and name != "slot":
            setattr(worker, name, getattr(event, name))


def _evaluated(s: Summary, _: float, event: e.Evaluated) -> None:
    s.measured[event.name] = event


def _warned(s: Summary, _: float, __: e.Warned) -> None:
    s.warnings += 1


def _checkpoint_saved(s: Summary, _: float, __: e.CheckpointSaved) -> None:
    s.checkpoints += 1


def _run_ended(s: Summary, _: float, event: e.RunEnded) -> None:
    s.state, s.reason, s.counts = event.state, event.reason, event.counts


_HANDLERS: dict[type[e.Event], Callable[..., None]] = {
    e.RunStarted: _run_started,
    e.PhaseStarted: _phase_started,
    e.PhaseEnded: _phase_ended,
    e.RoundClosed: _round_closed,
    e.WorkerJoined: _worker_joined,
    e.WorkerLost: _worker_lost,
    e.WorkerReport: _worker_report,
    e.Evaluated: _evaluated,
    e.Warned: _warned,
    e.CheckpointSaved: _checkpoint_saved,
    e.RunEnded: _run_ended,
}
