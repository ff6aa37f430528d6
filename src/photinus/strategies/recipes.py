"""The recipes: each way of agreeing by its public name, as a short configuration of the parts.

`RECIPES` is the one table: a conformance test runs over every row, and each row names the
identities that it owes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from photinus.core.clock import Epochs, Seconds, Steps, Trigger
from photinus.core.errors import UsageError
from photinus.core.settings import (
    Limit,
    at_least,
    between,
    from_dict,
    one_of,
    unknown_name,
    validate,
    whole,
)
from photinus.strategies.base import Policy, Strategy
from photinus.strategies.codecs import CODECS
from photinus.strategies.guard import Setting, clamp
from photinus.strategies.merge import MERGES
from photinus.strategies.outer import Nesterov, Outer, Sgd, outer_from_dict
from photinus.strategies.rounds import AllReduce, Averaging, Rounds
from photinus.strategies.streaming import Streaming

__all__ = [
    "DEFAULT",
    "EVERY_STEP",
    "FULL_BATCH",
    "NO_MOMENTUM",
    "ONE_FRAGMENT",
    "ONE_WORKER",
    "RECIPES",
    "Agreement",
    "Recipe",
    "all_reduce",
    "averaging",
    "diloco",
    "from_plain",
    "full_gradient",
    "iterative_reduce",
    "streaming",
]

ONE_WORKER = "one worker = plain training"
ONE_FRAGMENT = "streaming(one fragment, no delay) = averaging"
EVERY_STEP = "averaging(1) = all_reduce"
NO_MOMENTUM = "diloco(lr 1, momentum 0) = averaging"
FULL_BATCH = "one worker = full-batch descent"


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """How the workers agree: a recipe's name and the parts that it is made of.

    Example:
        >>> str(averaging(every=Steps(10)))
        'averaging every 10 steps, nesterov(lr=0.7, momentum=0.5), merge nova, bf16'
    """

    recipe: str
    payload: str = "delta"
    """gradient: before the inner step · delta: after it."""
    every: Trigger = field(default_factory=lambda: Steps(1))
    outer: Outer = field(default_factory=Sgd)
    merge: str = "uniform"
    codec: str = "fp32"
    """Of what travels up, and down."""
    codec_down: str | None = None
    """Of what travels down, where it is another."""
    quorum: float = 1.0
    """The share of the workers whose pushes close a round."""
    grace_seconds: float = 0.0
    """How long a round waits for the others once the quorum has come."""
    gain: str = "safe"
    """unsafe: the outer gain is taken as asked."""
    whole_part: bool = False
    fragments: int = 0
    """The vector goes in so many parts, one after the other; 0: whole."""
    delay: int = 0
    """Steps that a fragment is under way while training goes on."""
    alpha: float = 0.5
    """How much of its own a worker keeps when a fragment arrives after a delay."""
    LIMITS = {  # noqa: RUF012
        "payload": one_of("gradient", "delta"),
        "merge": one_of(*MERGES),
        "codec": one_of(*CODECS),
        "codec_down": Limit.optional(one_of(*CODECS)),
        "quorum": between(0.01, 1),
        "grace_seconds": at_least(0),
        "gain": one_of("safe", "unsafe"),
        "fragments": whole(0),
        "delay": whole(0),
        "alpha": between(0, 1),
    }

    def __post_init__(self) -> None:
        validate(self)
        if self.fragments:
            self.strategy()  # refuses now what does not go together

    def __str__(self) -> str:
        every = "every step" if self.payload == "gradient" else f"every {self.every}"
        shown = [f"{f.name}={getattr(self.outer, f.name):g}" for f in _fields(self.outer)]
        outer = f", {self.outer.name}({', '.join(shown)})" if self.payload == "delta" else ""
        return f"{self.recipe} {every}{outer}, merge {self.merge}, {self._codecs}"

    @property
    def _codecs(self) -> str:
        down = self.codec_down or self.codec
        return self.codec if down == self.codec else f"{self.codec} up, {down} down"

    @property
    def is_deterministic(self) -> bool:
        """True when the same seed gives the same bits: a barrier, and no trigger in seconds."""
        return self.quorum == 1.0 and (self.payload == "gradient" or self.every.is_deterministic)

    def strategy(self) -> Strategy:
        """Returns the worker's half."""
        if self.payload == "gradient":
            return AllReduce(codec=self.codec, whole_part=self.whole_part)
        if self.fragments:
            return Streaming(
                every=self.every,
                fragments=self.fragments,
                delay=self.delay,
                alpha=self.alpha,
                outer=self.outer,
                codec=self.codec,
            )
        return Averaging(every=self.every, outer=self.outer, codec=self.codec)

    def policy(self) -> Policy:
        """Returns the owner's half."""
        return Rounds(
            outer=self.outer,
            merge=self.merge,
            codec=self.codec_down or self.codec,
            keeps=self.payload == "delta",
            fragments=max(1, self.fragments),
            quorum=self.quorum,
            grace_seconds=self.grace_seconds,
        )

    def guarded(self, setting: Setting) -> tuple[Agreement, str]:
        """Returns the same with its gain within the guard's limit, and a warning or ""."""
        if self.payload == "gradient" or self.gain == "unsafe" or setting.workers == 1:
            return self, ""
        outer, warning = clamp(self.outer, setting)
        return dataclasses.replace(self, outer=outer), warning

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for TOML and JSON: the inverse of `from_plain`."""
        plain = {"recipe": self.recipe}
        usual = RECIPES[self.recipe].build()
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.name != "recipe" and value != getattr(usual, f.name):
                plain[f.name] = _plain(value)
        return plain


def _fields(instance: Any) -> tuple[dataclasses.Field[Any], ...]:  # noqa: ANN401 - any dataclass
    return dataclasses.fields(instance)


def _plain(value: Any) -> Any:  # noqa: ANN401 - any part
    if isinstance(value, Outer):
        return {"name": value.name, **{f.name: getattr(value, f.name) for f in _fields(value)}}
    if isinstance(value, Trigger):
        shown = {f.name: getattr(value, f.name) for f in _fields(value)}
        return {name: number for name, number in shown.items() if number is not None}
    return value


def averaging(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """SparkNet's way: average every 50 steps or 2 seconds, whichever comes first.

    An outer nesterov(.7, .5) was better than the plain mean in eight of ten settings measured;
    `outer=Sgd()` is the published form. Source: Moritz et al., 2015.
    """
    usual = {"every": Steps(50) | Seconds(2.0), "outer": Nesterov(), "merge": "nova"}
    return _made("averaging", usual | {"codec": "bf16"}, parts)


def iterative_reduce(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """The plain average after every epoch of every phase (IterativeReduce on Hadoop YARN)."""
    return _made("iterative_reduce", {"every": Epochs(1)}, parts)


def diloco(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """Hundreds of steps (of AdamW) between rounds, Nesterov outside (Douillard et al., 2023)."""
    usual = {"every": Steps(500), "outer": Nesterov(lr=0.7, momentum=0.9), "codec": "int8"}
    return _made("diloco", usual, parts)


def streaming(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """A fragment at a time, under way while training goes on (Douillard et al., 2025)."""
    usual = {
        "every": Steps(100),
        "outer": Nesterov(lr=0.4, momentum=0.9),
        "codec": "int4",
        "fragments": 4,
        "delay": 1,
    }
    return _made("streaming", usual, parts)


def all_reduce(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """Every step takes the mean gradient of all workers' examples."""
    return _made("all_reduce", {"payload": "gradient", "merge": "examples"}, parts)


def full_gradient(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """One step an epoch, of the gradient over all rows: what MLlib's optimizers do."""
    usual = {"payload": "gradient", "merge": "examples", "whole_part": True}
    return _made("full_gradient", usual, parts)


def _made(recipe: str, usual: Mapping[str, Any], parts: Mapping[str, Any]) -> Agreement:
    known = {f.name for f in dataclasses.fields(Agreement)} - {"recipe", "payload", "whole_part"}
    for name in parts:
        if name not in known:
            raise unknown_name(f"part of {recipe}", name, known)
    return Agreement(recipe=recipe, **{**usual, **parts})


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A row of the table."""

    build: Callable[..., Agreement]
    source: str
    identities: tuple[str, ...]
    """Checked in float32, codec fp32, plain SGD inside and outer gain 1, to 1e-6."""


RECIPES: dict[str, Recipe] = {
    "all_reduce": Recipe(
        build=all_reduce,
        source="synchronous SGD, every step",
        identities=(ONE_WORKER,),
    ),
    "averaging": Recipe(
        build=averaging,
        source="Moritz et al., SparkNet, 2015",
        identities=(ONE_WORKER, EVERY_STEP),
    ),
    "diloco": Recipe(
        build=diloco,
        source="Douillard et al., DiLoCo, 2023",
        identities=(ONE_WORKER, NO_MOMENTUM),
    ),
    "full_gradient": Recipe(
        build=full_gradient,
        source="batch gradient descent, as in MLlib",
        identities=(FULL_BATCH,),
    ),
    "iterative_reduce": Recipe(
        build=iterative_reduce,
        source="IterativeReduce on Hadoop YARN",
        identities=(ONE_WORKER,),
    ),
    "streaming": Recipe(
        build=streaming,
        source="Douillard et al., Streaming DiLoCo, 2025",
        identities=(ONE_WORKER, ONE_FRAGMENT),
    ),
}

DEFAULT = "averaging"


def from_plain(values: str | Mapping[str, Any]) -> Agreement:
    """Builds an agreement from its recipe's name, or from plain values with one.

    Example:
        >>> from_plain({"recipe": "averaging", "every": {"steps": 7}}).every
        Trigger(steps=7, seconds=None, examples=None, epochs=None)

    Raises:
        UsageError: the recipe, a part or an option is unknown, or a limit does not hold.
    """
    if isinstance(values, str):
        values = {"recipe": values}
    parts = dict(values)
    name = parts.pop("recipe", DEFAULT)
    if name not in RECIPES:
        raise unknown_name("strategy", str(name), RECIPES)
    if isinstance(parts.get("every"), Mapping):
        parts["every"] = from_dict(Trigger, parts["every"])
    outer = parts.get("outer")
    if isinstance(outer, str):
        outer = {"name": outer}
    if isinstance(outer, Mapping):
        parts["outer"] = outer_from_dict(outer)
    for part, kind in (("every", Trigger), ("outer", Outer)):
        if part in parts and not isinstance(parts[part], kind):
            raise UsageError(f"{part} of {name} must be a table", got=repr(parts[part]))
    return RECIPES[name].build(**parts)
