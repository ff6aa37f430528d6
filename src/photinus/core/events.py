"""What happens in a run, as frozen dataclasses, for the journal, the terminal and the report.

Every event is plain values only, so that `events.jsonl` holds it as it is.
`examples` counts what was applied, not what was tried.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from photinus.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Event:
    """The root of all events."""


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """A run begins, or continues under a new term."""

    run: str
    """The run's name."""
    term: int
    engine: str
    """simulate, local or spark."""
    workers: int
    job: Mapping[str, Any] = field(default_factory=dict)
    """The job's settings, plain."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """photinus, python, torch, pyspark."""
    resumed_from: str = ""
    """The checkpoint's name, empty for a fresh start."""


@dataclass(frozen=True, kw_only=True)
class PhaseStarted(Event):
    """A phase begins: every worker has the same parameters."""

    phase: int
    name: str
    budget: int
    """Examples to be applied in this phase, by all workers together."""
    parameters: int
    """How many trained numbers the model of this phase has."""
    strategy: str
    """The recipe in words."""
    batch_size: int = 0
    """Examples of one step of all workers together."""
    epochs: float = 0.0


@dataclass(frozen=True, kw_only=True)
class WorkerJoined(Event):
    """A worker took a seat."""

    slot: int
    lease: int
    host: str = ""
    attempt: str = ""
    examples: int = 0
    """Its rows."""
    pid: int = 0
    """Its process, on its host."""
    device: str = ""
    """What it was asked to compute on."""


@dataclass(frozen=True, kw_only=True)
class WorkerLost(Event):
    """A lease ended."""

    slot: int
    lease: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class WorkerReport(Event):
    """What one worker reports of itself, about once a second; counts are since its phase began."""

    slot: int
    phase: int
    steps: int
    examples: int
    examples_per_second: float
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(frozen=True, kw_only=True)
class RoundClosed(Event):
    """A round ended, or (asynchronous) a push was applied."""

    phase: int
    version: int
    """How many times the agreed point has moved in this phase."""
    slots: tuple[int, ...]
    """Whose work is in it."""
    examples: int
    """Applied in this phase so far."""
    progress: float
    """Of this phase: 0 to 1."""
    seconds: float
    """From the round's first push to its end."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Training metrics, weighted over the round's examples: loss, error."""
    bytes_up: int = 0
    """What the workers sent: to the owner, or to each other."""
    bytes_down: int = 0
    rounds: int = 1
    """How many it stands for: seconds and bytes are their sums, metrics their means."""


@dataclass(frozen=True, kw_only=True)
class PeersMet(Event):
    """Workers without an owner agreed exactly: what became of their publications since.

    Counted for each reader. What is missing (lost, not yet read, or for a worker that has left) is
    in the agreed point.
    """

    phase: int
    version: int
    published: int
    taken: int
    missing: int
    doubled: int = 0
    """Arrived again; taken in once."""


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """The agreed parameters, measured on rows that were not trained on."""

    phase: int
    name: str
    """validation or test."""
    examples: int
    metrics: Mapping[str, float]
    extra: Mapping[str, Any] = field(default_factory=dict)
    """For the report: the confusion matrix, a 95 % interval."""


@dataclass(frozen=True, kw_only=True)
class PhaseEnded(Event):
    """A phase is over: drained, averaged exactly once, and agreed."""

    phase: int
    name: str
    examples: int
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    passes: Mapping[str, float] = field(default_factory=dict)
    """Slot -> how often its rows were trained on, in all parts of this stage so far."""
    fingerprint: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint is whole."""

    name: str
    phase: int
    version: int
    seconds: float
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class CheckpointFailed(Event):
    """A checkpoint could not be written; the older ones stand, training continues."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Warned(Event):
    """Something that the user should know: what happened; what photinus did; what to do."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Log(Event):
    """A log line of a worker."""

    slot: int
    level: str
    text: str


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event):
    """The run is over."""

    state: str
    """done, failed or stopped."""
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of the ledger: applied, duplicate, fenced, gap."""


_KINDS: dict[str, type[Event]] = {cls.__name__: cls for cls in Event.__subclasses__()}


def event_to_dict(event: Event) -> dict[str, Any]:
    """Returns an event as plain values, with its kind."""
    return {"kind": type(event).__name__, **dataclasses.asdict(event)}


def event_from_dict(values: Mapping[str, Any]) -> Event:
    """The inverse of `event_to_dict`; fields that this version does not know are left out.

    Raises:
        UsageError: the kind is unknown.
    """
    cls = _KINDS.get(str(values.get("kind")))
    if cls is None:
        raise UsageError("unknown kind of event", got=repr(values.get("kind")))
    arguments = {f.name: values[f.name] for f in dataclasses.fields(cls) if f.name in values}
    if "slots" in arguments:
        arguments["slots"] = tuple(arguments["slots"])
    return cls(**arguments)
