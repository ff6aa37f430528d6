"""A worker's clock, and the triggers that decide when to agree."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple, TypeVar

from photinus.core.errors import UsageError
from photinus.core.settings import Limit, above, validate, whole

N = TypeVar("N", int, float)


class Clock(NamedTuple):
    """What a worker has done in this phase, and for how long.

    Example:
        >>> Clock().after(32, seconds=0.5, epochs=0.1)
        Clock(steps=1, examples=32, epochs=0.1, seconds=0.5, closing=False, progress=0.0)
    """

    steps: int = 0
    """Mini-batches in this phase."""
    examples: int = 0
    """Rows in this phase."""
    epochs: float = 0.0
    """Passes over the worker's own rows."""
    seconds: float = 0.0
    """Of work; waits for others do not count."""
    closing: bool = False
    """True once the phase is over: what was not sent yet is due now (the drain)."""
    progress: float = 0.0
    """How far the phase was at the last round, for all alike: 0 to 1."""

    def after(self, examples: int, seconds: float, epochs: float) -> Clock:
        """Returns the clock one step of `examples` later; `seconds` and `epochs` are absolute."""
        steps, total_examples = self.steps + 1, self.examples + examples
        return Clock(steps, total_examples, epochs, seconds, progress=self.progress)

    def since(self, last: Clock) -> Clock:
        """Returns the work done since `last`: the weight of a delta."""
        return Clock(
            self.steps - last.steps,
            self.examples - last.examples,
            self.epochs - last.epochs,
            self.seconds - last.seconds,
        )


@dataclass(frozen=True, slots=True)
class Trigger:
    """Fires as soon as any of its limits is reached since the last exchange.

    Limits join with `|`, whichever comes first (SparkNet's rule: Moritz et al., 2015).

    Example:
        >>> (Steps(50) | Seconds(2.0)).fires(Clock(steps=3, seconds=2.1), Clock())
        True
        >>> Seconds(2.0) | Steps(50)
        Steps(50) | Seconds(2.0)
    """

    steps: int | None = None
    """Mini-batches of a worker."""
    seconds: float | None = None
    """Of a worker's work."""
    examples: int | None = None
    """Of a worker."""
    epochs: float | None = None
    """Passes of a worker over its own rows."""

    LIMITS = {  # noqa: RUF012 - dataclass slots: a plain class attribute, never written
        "steps": Limit.optional(whole(1)),
        "seconds": Limit.optional(above(0)),
        "examples": Limit.optional(whole(1)),
        "epochs": Limit.optional(above(0)),
    }

    def __post_init__(self) -> None:
        validate(self, of="a trigger")
        if all(getattr(self, f.name) is None for f in fields(self)):
            raise UsageError("a trigger needs a limit", got="none", do="name one, as Steps(10)")

    def __or__(self, other: Trigger) -> Trigger:
        if not isinstance(other, Trigger):
            wrong, do = "a trigger joins another one", "such as Steps(50) | Seconds(2.0)"
            raise UsageError(wrong, got=repr(other), do=do)
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return Trigger(
            **{
                name: min((v for v in pair if v is not None), default=None)
                for name, pair in pairs.items()
            }
        )

    def __str__(self) -> str:
        limits = [(f.name, getattr(self, f.name)) for f in fields(self)]
        texts = [f"{value:g} {name}" for name, value in limits if value is not None]
        return " or ".join(t.removesuffix("s") if t.startswith("1 ") else t for t in texts)

    def __repr__(self) -> str:
        limits = [(f.name.capitalize(), getattr(self, f.name)) for f in fields(self)]
        return " | ".join(f"{name}({value})" for name, value in limits if value is not None)

    @property
    def is_deterministic(self) -> bool:
        """True when it counts work only: the same seed then gives the same bits."""
        return self.seconds is None

    @property
    def counts_rows(self) -> bool:
        """True when it counts examples or passes."""
        return self.examples is not None or self.epochs is not None

    def fires(self, now: Clock, last: Clock) -> bool:
        """Returns whether a limit is reached at `now`, counted from `last`."""
        elapsed = now.since(last)
        if elapsed.steps == 0:
            return False
        return any(
            limit is not None and done >= limit - tolerance
            for limit, done, tolerance in (
                (self.steps, elapsed.steps, 0),
                (self.seconds, elapsed.seconds, 0),
                (self.examples, elapsed.examples, 0),
                (self.epochs, elapsed.epochs, 1e-9),
            )
        )


def _checked(name: str, value: N, limit: Limit) -> N:
    if not limit.holds(value):
        raise UsageError(f"{name} takes {limit.text}", got=repr(value))
    return value


def Steps(n: int) -> Trigger:  # noqa: N802 - reads as the unit that it is
    """Fires every `n` mini-batches of a worker.

    Args:
        n: a whole number of at least 1.
    """
    return Trigger(steps=_checked("Steps", n, whole(1)))


def Seconds(t: float) -> Trigger:  # noqa: N802 - reads as the unit that it is
    """Fires every `t` seconds of a worker's work; waits for others do not count.

    Args:
        t: seconds, above 0.
    """
    return Trigger(seconds=_checked("Seconds", t, above(0)))


def Examples(n: int) -> Trigger:  # noqa: N802 - reads as the unit that it is
    """Fires every `n` examples of a worker.

    Args:
        n: a whole number of at least 1.
    """
    return Trigger(examples=_checked("Examples", n, whole(1)))


def Epochs(n: float) -> Trigger:  # noqa: N802 - reads as the unit that it is
    """Fires every `n` passes of a worker over its own rows.

    Args:
        n: a number above 0.
    """
    return Trigger(epochs=_checked("Epochs", n, above(0)))


def Partitions(n: float) -> Trigger:  # noqa: N802 - reads as the unit that it is
    """Fires every `n` passes of a worker over its partition: it has one, so these are epochs.

    Args:
        n: a number above 0.
    """
    return Epochs(n)
