"""The recipes: each way of agreeing by its public name, as a short configuration of the parts.

`RECIPES` is the one table: a conformance test runs over every row, and each row names the
identities that it owes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from photinus.core.clock import Epochs, Steps
from photinus.core.errors import UsageError
from photinus.core.settings import (
    unknown_name,
)
from photinus.strategies.agreement import Agreement
from photinus.strategies.guard import AUTO
from photinus.strategies.outer import Nesterov
from photinus.strategies.own import Own
from photinus.strategies.plain import parts_of, plain_of

__all__ = [
    "ALL_PER_STEP",
    "DEFAULT",
    "ELASTIC_HALF",
    "EVERY_STEP",
    "FULL_BATCH",
    "NO_MOMENTUM",
    "ONE_FRAGMENT",
    "ONE_WORKER",
    "RECIPES",
    "Recipe",
    "all_reduce",
    "averaging",
    "diloco",
    "downpour",
    "elastic",
    "from_plain",
    "full_gradient",
    "gossip",
    "iterative_reduce",
    "post_local",
    "publish",
    "streaming",
    "to_plain",
]

ONE_WORKER = "one worker = plain training"
ONE_FRAGMENT = "streaming(one fragment, no delay) = averaging"
EVERY_STEP = "averaging(1) = all_reduce"
NO_MOMENTUM = "diloco(lr 1, momentum 0) = averaging"
ALL_PER_STEP = "post_local(until the end) = all_reduce; post_local(from the start) = averaging"
FULL_BATCH = "one worker = full-batch descent"
ELASTIC_HALF = "one worker: elastic(alpha .5) = averaging with sgd(.5)"


def averaging(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """SparkNet's way: average every 50 steps.

    An outer nesterov(.7, .5) was better than the plain mean in eight of ten settings measured;
    `outer=Sgd()` is the published form; `every=Steps(50) | Seconds(2.0)` its time limit, with
    which no run repeats another's bits. Source: Moritz et al., 2015.
    """
    usual = {"every": Steps(50), "outer": Nesterov(), "merge": "nova", "codec": "bf16"}
    return _made("averaging", usual | _START, parts)


def iterative_reduce(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """The plain average after every epoch of every phase (IterativeReduce on Hadoop YARN)."""
    return _made("iterative_reduce", {"every": Epochs(1)}, parts)


def diloco(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """Hundreds of steps (of AdamW) between rounds, Nesterov outside (Douillard et al., 2023)."""
    usual = {"every": Steps(500), "outer": Nesterov(lr=0.7, momentum=0.9), "codec": "int8"}
    return _made("diloco", usual | _START | {"merge": "nova"}, parts)


def post_local(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """One step of all workers together in the first half of a phase, then averaging.

    Source: Lin et al., 2020.
    """
    usual = {"every": Steps(16), "gradients_until": 0.5, "merge": "nova"}
    return _made("post_local", usual, parts)


def streaming(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """A fragment at a time, under way while training goes on (Douillard et al., 2025)."""
    usual = {
        "every": Steps(100),
        "outer": Nesterov(lr=0.4, momentum=0.9),
        "codec": "int4",
        "fragments": 4,
        "delay": 1,
        "merge": "nova",
    }
    return _made("streaming", usual | _START, parts)


def downpour(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """The asynchronous server: push, now and then fetch; nobody waits (Dean et al., 2012)."""
    usual = {"release": "immediate", "every": Steps(10), "codec": "bf16"}
    return _made("downpour", usual | _START, parts)


def elastic(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """A spring of strength alpha/K between each worker and a centre (EASGD: Zhang et al., 2015)."""
    usual = {"release": "immediate", "payload": "elastic", "every": Steps(10), "alpha": 0.9}
    return _made("elastic", usual | _START | {"codec_down": "bf16"}, parts)


def all_reduce(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """Every step takes the mean gradient of all workers' examples."""
    return _made("all_reduce", {"payload": "gradient", "merge": "examples"}, parts)


def full_gradient(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """One step an epoch, of the gradient over all rows: what MLlib's optimizers do."""
    usual = {"payload": "gradient", "merge": "examples", "whole_part": True}
    return _made("full_gradient", usual, parts)


def publish(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """No owner: every worker publishes deltas, the others take them in when they come.

    The impetus scheme (deep belief networks on Spark), with deltas of gain 1/K.
    """
    usual = {"payload": "published", "every": Steps(10), "codec": "int8"}
    return _made("publish", usual | _START, parts)


def gossip(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """No owner: every worker passes its parameters to one other, which mixes them in by half."""
    usual = {"payload": "parameters", "every": Steps(10), "codec": "bf16"}
    return _made("gossip", usual | _START, parts)


_START = {"gradients_until": AUTO}
_OF_PEERS = {"graph", "exact_every"}
_OF_LOCAL = {"gradients_until", "every", "codec"}
_INNER = {"recipe", "usual", "whole_part"}
_OF_ROUNDS = {"merge", "quorum", "grace_seconds"}
_OF_GRADIENTS = {"merge", "codec", "codec_down", "quorum", "grace_seconds", "owners"}
_ALL = {f.name for f in dataclasses.fields(Agreement)}
_NOT_USUAL = {*_INNER, "payload", "alpha", "rows", *_OF_PEERS}
_NOT_OF = {
    "all_reduce": _ALL - _OF_GRADIENTS,
    "full_gradient": _ALL - _OF_GRADIENTS,
    "downpour": {*_INNER, "release", "alpha", *_OF_ROUNDS, *_OF_PEERS},
    "streaming": {*_INNER, "payload", "rows", *_OF_PEERS},
    "elastic": _ALL - {"gradients_until", "every", "alpha", "codec_down"},
    "publish": _ALL - {*_OF_LOCAL, "quorum", "grace_seconds", "exact_every"},
    "gossip": _ALL - {*_OF_LOCAL, "quorum", "grace_seconds", *_OF_PEERS},
}
"""Recipe -> fields of Agreement that are no parts of it."""


def _made(recipe: str, usual: Mapping[str, Any], parts: Mapping[str, Any]) -> Agreement:
    known = _ALL - _NOT_OF.get(recipe, _NOT_USUAL)
    for name in parts:
        if name not in known:
            raise unknown_name(f"part of {recipe}", name, known)
    if "merge" in parts and {**usual, **parts}.get("release") == "immediate":
        wrong, got = "merge is a part of rounds", "release='immediate'"
        raise UsageError(wrong, got=got, do="leave it out")
    chosen = frozenset({"every", "outer", "codec", *usual} - parts.keys())
    return Agreement(recipe=recipe, usual=chosen & known, **{**usual, **parts})


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
    "downpour": Recipe(
        build=downpour,
        source="Dean et al., Large Scale Distributed Deep Networks, 2012",
        identities=(ONE_WORKER,),
    ),
    "elastic": Recipe(
        build=elastic,
        source="Zhang, Choromanska, LeCun, EASGD, 2015",
        identities=(ELASTIC_HALF,),
    ),
    "full_gradient": Recipe(
        build=full_gradient,
        source="batch gradient descent, as in MLlib",
        identities=(FULL_BATCH,),
    ),
    "gossip": Recipe(
        build=gossip,
        source="Lian et al., 2017; Assran et al., 2019",
        identities=(ONE_WORKER,),
    ),
    "iterative_reduce": Recipe(
        build=iterative_reduce,
        source="IterativeReduce on Hadoop YARN",
        identities=(ONE_WORKER,),
    ),
    "post_local": Recipe(
        build=post_local,
        source="Lin et al., Don't Use Large Mini-Batches, Use Local SGD, 2020",
        identities=(ONE_WORKER, ALL_PER_STEP),
    ),
    "publish": Recipe(
        build=publish,
        source="impetus: deep belief networks on Spark",
        identities=(ONE_WORKER,),
    ),
    "streaming": Recipe(
        build=streaming,
        source="Douillard et al., Streaming DiLoCo, 2025",
        identities=(ONE_WORKER, ONE_FRAGMENT),
    ),
}

DEFAULT = "averaging"


def from_plain(values: str | Mapping[str, Any]) -> Agreement | Own:
    """Builds an agreement from its recipe's name, or from plain values with one.

    A name as "package.module:name" is one of the user's own.

    Example:
        >>> from_plain({"recipe": "averaging", "every": {"steps": 7}}).every
        Trigger(steps=7, seconds=None, examples=None, epochs=None)

    Raises:
        UsageError: the recipe, a part or an option is unknown, or a limit does not hold.
    """
    if isinstance(values, str):
        values = {"recipe": values}
    if not isinstance(values, Mapping):
        raise UsageError("a strategy must be a name or a table", got=repr(values))
    parts = dict(values)
    name = str(parts.pop("recipe", DEFAULT))
    if ":" in name and not parts:
        return Own(name)
    if name not in RECIPES:
        raise unknown_name("strategy", name, RECIPES)
    return RECIPES[name].build(**parts_of(name, parts))


def to_plain(agreement: Agreement | Own) -> dict[str, Any]:
    """Returns plain values for TOML and JSON, without what is as usual: `from_plain`'s inverse."""
    plain = {"recipe": agreement.recipe}
    if isinstance(agreement, Own):
        return plain
    usual = RECIPES[agreement.recipe].build()
    for f in dataclasses.fields(agreement):
        value = getattr(agreement, f.name)
        is_said = f.name in usual.usual - agreement.usual
        is_other = f.name not in _INNER and value != getattr(usual, f.name)
        if is_said or is_other:
            plain[f.name] = plain_of(value)
    return plain
