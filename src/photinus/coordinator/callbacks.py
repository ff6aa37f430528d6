"""Callbacks and timeouts of the coordinator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from photinus.checkpoint.mapped import ScratchFolder
from photinus.core.errors import UsageError, user_message
from photinus.core.events import Event, Warned
from photinus.core.settings import Limit, above, at_least, validate, whole
from photinus.training.snapshots import RunSnapshot
from photinus.transport.frames import Frame


def _ignore(*_: object) -> None:
    pass


def emit_to(callbacks: Sequence[Callable[[Event], None]]) -> Callable[[Event], None]:
    """Returns what calls each callback with an event; without any, it logs warnings.

    Raises:
        UsageError: one of them asks where a run is kept, and it is kept nowhere.
    """
    for callback in callbacks:
        if hasattr(callback, "open"):
            wrong = f"{type(callback).__name__} needs a run folder, and none is made here"
            raise UsageError(wrong, do="give it to train, or to an estimator")

    def emit(event: Event) -> None:
        for callback in callbacks or (log_warning,):
            callback(event)

    return emit


def log_warning(event: Event) -> None:
    """Logs a warning that nothing else shows; no other event."""
    if isinstance(event, Warned):
        logging.getLogger("photinus").warning(event.text)


def wait_for_them() -> str:
    """Returns what to do about workers that have not come, where an engine knows no better."""
    return "wait, or look at the logs of those that are missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Callbacks:
    """Callbacks and timeouts of the coordinator, and the run that it serves."""

    run: bytes = bytes(16)
    """The run's key name: frames of another run are ignored."""
    term: int = 1
    emit: Callable[[Event], None] = _ignore
    enter: Callable[[str, Frame, Mapping[str, Any]], None] = _ignore
    """Writes a line of the ledger: operation, frame, further fields."""
    save: Callable[[RunSnapshot], None] = _ignore
    scratch: ScratchFolder = field(default_factory=ScratchFolder)
    """The folder for the files of a sharded table."""
    best: Callable[[RunSnapshot], None] = _ignore
    """Keeps the best snapshot so far."""
    can_shuffle: bool = False
    """The engine can redistribute the rows before any of them is trained on."""
    advice: Callable[[], str] = wait_for_them
    """What to do about workers that have not come: the engine knows why."""
    checkpoint_seconds: float | None = None
    """How often a snapshot is made within a phase; None: only between phases."""
    rejoin_seconds: float = 600.0
    """How long the end of a phase waits for a lost worker to rejoin."""
    LIMITS = {  # noqa: RUF012
        "term": whole(1),
        "checkpoint_seconds": Limit.optional(at_least(0)),
        "rejoin_seconds": above(0),
    }

    def __post_init__(self) -> None:
        validate(self)

    def warn(self, wrong: str, *, got: object = None, then: str = "", do: str = "") -> None:
        """Warns the user; the arguments are those of `message`."""
        self.emit(Warned(text=user_message(wrong, got=got, then=then, do=do)))
