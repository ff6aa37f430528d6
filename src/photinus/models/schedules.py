"""Schedules over a phase's progress: learning rates and momenta."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from photinus.core.errors import UsageError, user_message
from photinus.core.settings import Limit, at_least, unknown_name

USUAL = "usual"
_FALL_SHAPES = ("straight", "cosine", USUAL)
_STABLE_FRACTION = 0.8


@dataclass(frozen=True, slots=True)
class Schedule:
    """A number as a function of progress: straight pieces between points, and jumps.

    Example:
        >>> Schedule(((0, 0.5), (0.1, 0.5), (0.1, 0.9))).at(0.2)
        0.9
        >>> round(Schedule.cosine(1.0, warm_up=0.1).at(0.55), 6)
        0.5
    """

    points: tuple[tuple[float, float], ...]
    """(progress, value) in order; two with one progress are a jump; held before and after."""

    falls: str = "straight"
    """"straight"; "cosine": a falling piece is half a cosine (Loshchilov and Hutter, 2017); or
    "usual": after the last point as `usual` does."""

    def __post_init__(self) -> None:
        try:
            positions = [p for p, _ in self.points]
            is_valid = positions == sorted(positions) != [] and all(
                math.isfinite(n) and n >= 0 for point in self.points for n in point
            )
        except (TypeError, ValueError):  # no pairs, or no numbers
            is_valid = False
        if not is_valid:
            wrong = "points of Schedule must be pairs of finite numbers, each its progress and "
            wrong += "a value of at least 0, in the order of their progress"
            do = "Schedule.constant(0.1) stays as it is"
            raise UsageError(wrong, got=repr(self.points), do=do)
        if self.falls not in _FALL_SHAPES:
            raise unknown_name("falls of Schedule", self.falls, _FALL_SHAPES)

    @classmethod
    def constant(cls, value: float) -> Schedule:
        """The same value always."""
        return cls(((0.0, value),))

    @classmethod
    def cosine(cls, peak: float, warm_up: float = 0.0, floor: float = 0.0) -> Schedule:
        """Rises straight from a tenth of `peak` until `warm_up`, then falls to `floor` by a cosine.

        From 0 the first step, which may be an epoch, would change nothing.
        """
        rise = ((0.0, peak / 10),) if warm_up > 0 else ()
        return cls((*rise, (warm_up, peak), (1.0, floor)), "cosine")

    @classmethod
    def usual(cls, peak: float, warm_up: float = 0.0) -> Schedule:
        """Stays at `peak` after a rise, and falls by half a cosine to 0 in the last fifth.

        A short training learns nearly as much as at a constant rate, and its end is annealed. Where
        workers train alone between rounds, see `until`.

        Example:
            >>> [round(Schedule.usual(0.1).at(p), 3) for p in (0.0, 0.8, 0.9, 1.0)]
            [0.1, 0.1, 0.05, 0.0]

        Source: warmup-stable-decay (Hu et al., 2024), with a fifth (Hägele et al., 2024).
        """
        rise = ((0.0, peak / 10),) if warm_up > 0 else ()
        return cls((*rise, (warm_up, peak)), USUAL)

    @classmethod
    def stairs(cls, value: float, factor: float, *places: float) -> Schedule:
        """Begins at `value` and is multiplied by `factor` at each of the places.

        Example:
            >>> steps = Schedule.stairs(0.1, 0.5, 0.4, 0.8)
            >>> [steps.at(progress) for progress in (0.0, 0.39, 0.4, 0.9)]
            [0.1, 0.1, 0.05, 0.025]
        """
        points = [(0.0, value)]
        for place in places:
            current = points[-1][1]
            points += [(place, current), (place, current * factor)]
        return cls(tuple(points))

    def until(self, share: float) -> Schedule:
        """Returns the schedule for workers that agree on every step until a share of the training.

        The usual one falls in the last fifth of that share to where a cosine over the whole
        training is by then, and from there by half a cosine to 0. Workers that train alone on small
        batches diverge at a rate that is right for all of them together. Any other schedule stays
        as it is.

        Example:
            >>> begun = Schedule.usual(0.1).until(0.75)
            >>> [round(begun.at(p), 3) for p in (0.0, 0.6, 0.75, 1.0)]
            [0.1, 0.1, 0.015, 0.0]
        """
        if self.falls != USUAL:
            return self
        start, peak = self.points[-1]
        low = peak * (1 + math.cos(math.pi * share)) / 2
        fall_points = (
            (max(start, _STABLE_FRACTION * share), peak),
            (max(start, share), low),
            (max(start, 1.0), 0.0),
        )
        return Schedule((*self.points, *fall_points), "cosine")

    def scaled(self, factor: float, warm_up: float = 0.0) -> Schedule:
        """Returns the schedule times a factor, reached by a straight rise from the plain value.

        Example:
            >>> grown = Schedule.constant(0.1).scaled(4.0, warm_up=0.2)
            >>> [round(grown.at(progress), 3) for progress in (0.0, 0.1, 0.2, 1.0)]
            [0.1, 0.25, 0.4, 0.4]
        """
        later = [
            (progress, factor * value) for progress, value in self.points if progress > warm_up
        ]
        rise = [(0.0, self.at(0.0))] if warm_up > 0 else []
        return Schedule((*rise, (warm_up, factor * self.at(warm_up)), *later), self.falls)

    def at(self, progress: float) -> float:
        """Returns the value at a progress 0..1."""
        if self.falls == USUAL:
            return self.until(1.0).at(progress)
        before = [p for p in self.points if p[0] <= progress]
        after = [p for p in self.points if p[0] > progress]
        if not before or not after:
            return (before[-1] if before else after[0])[1]
        (start, start_value), (end, end_value) = before[-1], after[0]
        fraction = (progress - start) / (end - start)
        if self.falls == "cosine" and end_value < start_value:
            fraction = (1 - math.cos(math.pi * fraction)) / 2
        return start_value + (end_value - start_value) * fraction


LR_SCALES = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}
"""Rule -> the power of the batch size that the learning rate follows."""
_WARM_UP = 0.05


def follow_batch(lr: Schedule, rule: str, batch_size: int, usual: int) -> Schedule:
    """Returns a rate made for batches of `usual` examples as the rule has it for `batch_size`.

    lr · (B/B₀)^p, with p = 0 (none), ½ (sqrt) or 1 (linear: Goyal et al., 2017), after a warm-up of
    5 % where it grows.

    Example:
        >>> [follow_batch(Schedule.constant(0.1), rule, 128, 32).at(0.5) for rule in LR_SCALES]
        [0.1, 0.2, 0.4]
    """
    factor = (batch_size / usual) ** LR_SCALES[rule]
    if factor == 1.0:
        return lr
    return lr.scaled(factor, _WARM_UP if factor > 1.0 else 0.0)


SCHEDULE = Limit(
    "a number of at least 0, or a Schedule such as photinus.Schedule.cosine(0.1)",
    lambda v: isinstance(v, Schedule),
)


def as_schedule(value: Any) -> Any:  # noqa: ANN401 - what a user gives for a schedule
    """Returns a number of at least 0 as a schedule that stays at it, and all else as it is.

    Example:
        >>> as_schedule(0.1) == Schedule.constant(0.1)
        True
    """
    return Schedule.constant(float(value)) if at_least(0).holds(value) else value


def keep_schedules(settings: object, *names: str) -> None:
    """Turns those of the named fields that are numbers into schedules, before they are checked.

    Args:
        settings: a frozen dataclass, in its `__post_init__`.
        names: of the fields.
    """
    for name in names:
        object.__setattr__(settings, name, as_schedule(getattr(settings, name)))


def check_rates(config: object) -> None:
    """Refuses rates without effect: points that no training reaches, and a second learning rate.

    A run of before may have them: so they are refused where a run begins, and not where one is
    read.

    Args:
        config: a dataclass, in which there may be others; what is none has no schedules.

    Raises:
        UsageError: a point lies behind the end of the training, or there are two learning rates.
    """
    if not is_dataclass(config) or isinstance(config, type):
        return
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Schedule) and (last := value.points[-1][0]) > 1:
            of = f"{field.name} of {type(config).__name__}"
            wrong = f"{of} goes by progress: 0 at the start, 1 at the end"
            do = "divide epochs by the number of all epochs"
            raise UsageError(wrong, got=f"a point at {last:g}", do=do)
        check_rates(value)  # a config of a DBN has its rates in `settings`
    settings = getattr(config, "settings", {})
    has_own = isinstance(settings, Mapping) and "lr" in settings
    if getattr(config, "lr", None) is not None and has_own:
        got = f"lr, and settings with lr={settings['lr']}"
        raise UsageError("two learning rates are set", got=got, do="leave one of them out")


def zero_rates(config: object) -> list[str]:
    """Returns a warning for each learning rate that is 0 all the time: such a phase learns nothing.

    It is no error: a phase of rate 0 measures what it began with.

    Args:
        config: as of `check_rates`.
    """
    if not is_dataclass(config) or isinstance(config, type) or getattr(config, "epochs", 1) == 0:
        return []
    settings = getattr(config, "settings", {})
    of_optimizer = settings.get("lr") if isinstance(settings, Mapping) else None
    texts = []
    for rate in (getattr(config, "lr", None), of_optimizer):
        schedule = as_schedule(rate)
        if isinstance(schedule, Schedule) and not any(value for _, value in schedule.points):
            wrong = f"lr of {type(config).__name__} is 0 from start to end"
            do = "set a rate above 0; learningRate in an estimator"
            texts.append(user_message(wrong, then="its parameters stay as they are", do=do))
    parts = (getattr(config, field.name) for field in fields(config))
    return texts + [text for part in parts for text in zero_rates(part)]
