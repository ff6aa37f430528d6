"""Runs of one application take their slots together, or wait.

Two that had a part of theirs each would wait for each other for ever, whatever Spark's pools.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from photinus.core.errors import message
from photinus.core.events import Event, Warned

__all__ = ["held_slots"]

_NEWS = threading.Condition()
_HELD: Counter[str] = Counter()
"""Application -> slots that its runs hold."""
_LOOK_SECONDS = 0.5


@contextmanager
def held_slots(
    application: str,
    workers: int,
    slots: Callable[[], int | None],
    emit: Callable[[Event], None],
) -> Iterator[None]:
    """Holds so many slots of an application, once they are free.

    Args:
        application: its id.
        workers: how many slots.
        slots: returns how many it has now; None where that has no bound.
        emit: is told when others must end first.
    """
    has_told = False
    with _NEWS:
        while _HELD[application] and (most := slots()) is not None:
            others = _HELD[application]
            if others + workers <= most:
                break
            if not has_told:
                wrong = f"{workers} workers need {workers} slots at the same time"
                got = f"{most} slots, of which other runs of this application hold {others}"
                emit(Warned(text=message(wrong, got=f"{got}; this run waits for them")))
                has_told = True
            _NEWS.wait(_LOOK_SECONDS)
        _HELD[application] += workers
    try:
        yield
    finally:
        with _NEWS:
            _HELD[application] -= workers
            _NEWS.notify_all()
