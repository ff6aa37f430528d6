"""The recipes: each way of agreeing by its public name, as a short configuration of the parts.

`RECIPES` is the one table: a conformance test runs over every row, and each row names the
identities that it owes.
"""

# Over 400 lines: one table, and the one class that its rows are made of.

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
    one_of,
    unknown_name,
    validate,
    whole,
)
from photinus.strategies.base import Policy, Strategy
from photinus.strategies.codecs import CODECS
from photinus.strategies.guard import Setting, clamp
from photinus.strategies.immediate import STALENESS, Downpour, Elastic, Immediate, Spring
from photinus.strategies.merge import MERGES
from photinus.strategies.outer import DelayedNesterov, Nesterov, Outer, Sgd
from photinus.strategies.peers import GRAPHS, Gossip, Meetings, Publish
from photinus.strategies.plain import parts_of, plain_of, shown
from photinus.strategies.rounds import QUORUM, AllReduce, Averaging, Rounds
from photinus.strategies.streaming import Streaming

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
    "Agreement",
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
]

ONE_WORKER = "one worker = plain training"
ONE_FRAGMENT = "streaming(one fragment, no delay) = averaging"
EVERY_STEP = "averaging(1) = all_reduce"
NO_MOMENTUM = "diloco(lr 1, momentum 0) = averaging"
ALL_PER_STEP = "post_local(until the end) = all_reduce; post_local(from the start) = averaging"
FULL_BATCH = "one worker = full-batch descent"
ELASTIC_HALF = "one worker: elastic(alpha .5) = averaging with sgd(.5)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """How the workers agree: a recipe's name and the parts that it is made of.

    Example:
        >>> str(averaging(every=Steps(10)))
        'averaging every 10 steps, nesterov(lr=0.7, momentum=0.5), merge nova, bf16'
    """

    recipe: str
    payload: str = "delta"
    """gradient: before the inner step (released at once: their sum) · delta: after it · elastic ·
    published: deltas to all workers · parameters: to one worker at a time."""
    release: str = "rounds"
    """rounds: a push waits for those of the others · immediate: it is applied as it comes."""
    every: Trigger = field(default_factory=lambda: Steps(1))
    outer: Outer = field(default_factory=Sgd)
    merge: str = "uniform"
    codec: str = "fp32"
    """Of what travels up, and down."""
    codec_down: str | None = None
    """Of what travels down, where it is another."""
    quorum: float = 1.0
    """The share of the workers (above 1: how many) whose pushes close a round."""
    grace_seconds: float = 0.0
    """How long a round waits for the others once the quorum has come."""
    gain: str = "safe"
    """unsafe: the outer gain is taken as asked."""
    whole_part: bool = False
    owners: int = 1
    """Of gradients: 1, or as many as there are workers, each the owner of a shard."""
    fragments: int = 0
    """The vector goes in so many parts, one after the other; 0: whole."""
    delay: int = 0
    """Steps that a fragment is under way while training goes on."""
    per_step_until: float = 0.0
    """Of rounds of deltas: all agree after every step until this share of the phase is done."""
    fetch: Trigger | None = None
    """Released at once: when a worker takes what the owner has; None: after every push."""
    staleness: str | int = "none"
    """Released at once, s versions late: none · inverse, times 1/(1+s) · n, dropped above n."""
    alpha: float = 0.5
    """`streaming`: how much of its own a worker keeps · `elastic`: the spring, times K."""
    graph: str = "exponential"
    """With `gossip`, to whom each speaks."""
    exact_every: int = 10
    """Without an owner, how many publications of each there are between exact agreements."""
    LIMITS = {  # noqa: RUF012
        "every": Limit("a trigger, such as Steps(10)", lambda v: isinstance(v, Trigger)),
        "outer": Limit("an outer optimizer, such as Nesterov()", lambda v: isinstance(v, Outer)),
        "payload": one_of("gradient", "delta", "elastic", "published", "parameters"),
        "owners": whole(1),
        "graph": one_of(*GRAPHS),
        "exact_every": whole(1),
        "release": one_of("rounds", "immediate"),
        "merge": one_of(*MERGES),
        "codec": one_of(*CODECS),
        "codec_down": Limit.optional(one_of(*CODECS)),
        "quorum": QUORUM,
        "grace_seconds": at_least(0),
        "gain": one_of("safe", "unsafe"),
        "fragments": whole(0),
        "delay": whole(0),
        "per_step_until": between(0, 1),
        "staleness": STALENESS,
        "alpha": between(0, 1),
    }

    def __post_init__(self) -> None:
        validate(self)
        if self.fragments or self.is_immediate:  # refuses now what does not go together
            self.strategy()
            self.policy()
        if not self.is_immediate and (self.fetch is not None or self.staleness != "none"):
            wrong = "fetch and staleness are parts of what is released at once"
            raise UsageError(wrong, got=f"release={self.release!r}", do='release="immediate"')
        if (self.delay and not self.fragments) or (self.fragments and self.payload != "delta"):
            got = f"delay {self.delay}, fragments {self.fragments}, payload {self.payload}"
            raise UsageError("a delay is one of fragments, and fragments are of deltas", got=got)
        is_of_shards = self.payload == "gradient" and not self.is_immediate
        down = self.codec_down or self.codec
        is_shared_out = self.codec in ("fp32", "bf16") and down == self.codec
        if self.owners > 1 and not (is_of_shards and is_shared_out):
            wrong = "several owners are for gradients in rounds, in fp32 or bf16 both ways"
            raise UsageError(wrong, got=f"{self.payload}, {self._codecs}", do="use owners=1")
        if self.is_immediate and (self.quorum != 1 or self.fragments):
            raise UsageError("quorum and fragments are parts of rounds", got="release='immediate'")
        is_whole = self.payload == "delta" and not self.fragments
        if self.per_step_until and (self.is_immediate or not is_whole):
            raise UsageError("per_step_until is a part of rounds of whole deltas", got=str(self))

    def __str__(self) -> str:
        if self.is_without_owner:
            to = "all" if self.payload == "published" else f"one by one, {self.graph}"
            exact = f"exact every {self.exact_every} rounds"
            return f"{self.recipe} every {self.every} to {to}, {exact}, {self.codec}"
        is_per_step = self.payload == "gradient" and not self.is_immediate
        first = f"every step until {self.per_step_until:.0%}, then " if self.per_step_until else ""
        every = "every step" if is_per_step else f"{first}every {self.every}"
        if self.payload == "elastic":
            return f"{self.recipe} {every}, alpha {self.alpha:g}/K, {self._codecs}"
        outer = "" if is_per_step else f", {shown(self.outer)}"
        if not self.is_immediate:
            every += f" in {self.fragments} fragments" if self.fragments else ""
            return f"{self.recipe} {every}{outer}, merge {self.merge}, {self._codecs}"
        fetch = f", fetch every {self.fetch}" if self.fetch else ""
        return f"{self.recipe} {every}{fetch}{outer}, staleness {self.staleness}, {self._codecs}"

    @property
    def _codecs(self) -> str:
        down = self.codec_down or ("fp32" if self.is_immediate else self.codec)
        return self.codec if down == self.codec else f"{self.codec} up, {down} down"

    @property
    def is_immediate(self) -> bool:
        """True when each push is applied as it comes."""
        return self.release == "immediate"

    @property
    def is_deterministic(self) -> bool:
        """True when the same seed gives the same bits: a barrier, and no trigger in seconds."""
        if self.is_immediate or self.is_without_owner or self.quorum != 1:
            return False
        return self.payload == "gradient" or self.every.is_deterministic

    @property
    def is_without_owner(self) -> bool:
        """True when updates pass from worker to worker."""
        return self.payload in ("published", "parameters")

    def strategy(self) -> Strategy:
        """Returns the worker's half."""
        if self.payload == "elastic":
            return Elastic(every=self.every)
        if self.is_immediate:
            return Downpour(
                every=self.every, fetch=self.fetch, payload=self.payload, codec=self.codec
            )
        if self.payload == "published":
            return Publish(every=self.every, codec=self.codec)
        if self.payload == "parameters":
            return Gossip(every=self.every, codec=self.codec, graph=self.graph)
        if self.payload == "gradient":
            return AllReduce(codec=self.codec, whole_part=self.whole_part, meets=self.owners > 1)
        if self.fragments:
            return Streaming(
                every=self.every,
                fragments=self.fragments,
                delay=self.delay,
                alpha=self.alpha,
                outer=self.outer,
                codec=self.codec,
            )
        return Averaging(
            every=self.every,
            outer=self.outer,
            codec=self.codec,
            per_step_until=self.per_step_until,
        )

    def policy(self) -> Policy:
        """Returns the owner's half."""
        if self.is_without_owner:
            return Meetings(
                quorum=self.quorum,
                grace_seconds=self.grace_seconds,
                rounds_between=self.exact_every,
            )
        if self.owners > 1:
            return Meetings(merge=self.merge, quorum=self.quorum, grace_seconds=self.grace_seconds)
        if self.payload == "elastic":
            return Spring(alpha=self.alpha, codec=self.codec_down or "fp32")
        if self.is_immediate:
            return Immediate(
                outer=self.outer,
                payload=self.payload,
                staleness=self.staleness,
                codec=self.codec_down or "fp32",
            )
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
        """Returns the same with its gain within the guard's limit, and a warning or "".

        Raises:
            UsageError: the quorum is larger than the workers are many.
        """
        if self.quorum > setting.workers:
            wrong = f"a quorum of {self.quorum:g} can never come together"
            raise UsageError(wrong, got=f"{setting.workers} workers", do="ask for fewer")
        if self.owners not in (1, setting.workers):
            wrong = f"owners must be 1, or {setting.workers} as there are workers"
            raise UsageError(wrong, got=self.owners)
        outer = self.outer
        if isinstance(outer, DelayedNesterov) and outer.pushes == 0:
            outer = dataclasses.replace(outer, pushes=setting.workers)
        if self.payload != "delta" or self.gain == "unsafe" or setting.workers == 1:
            return dataclasses.replace(self, outer=outer), ""
        every = Steps(1) if self.per_step_until else setting.every
        here = dataclasses.replace(setting, is_immediate=self.is_immediate, every=every)
        outer, warning = clamp(outer, here)
        return dataclasses.replace(self, outer=outer), warning

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for TOML and JSON: the inverse of `from_plain`."""
        plain = {"recipe": self.recipe}
        usual = RECIPES[self.recipe].build()
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.name != "recipe" and value != getattr(usual, f.name):
                plain[f.name] = plain_of(value)
        return plain


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


def post_local(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """After every step in the first half of a phase, then averaging (Lin et al., 2020)."""
    return _made("post_local", {"every": Steps(16), "per_step_until": 0.5}, parts)


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


def downpour(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """The asynchronous server: push, now and then fetch; nobody waits (Dean et al., 2012)."""
    return _made("downpour", {"release": "immediate", "every": Steps(10), "codec": "bf16"}, parts)


def elastic(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """A spring of strength alpha/K between each worker and a centre (EASGD: Zhang et al., 2015)."""
    usual = {"release": "immediate", "payload": "elastic", "every": Steps(10), "alpha": 0.9}
    return _made("elastic", usual | {"codec_down": "bf16"}, parts)


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
    return _made("publish", usual, parts)


def gossip(**parts: Any) -> Agreement:  # noqa: ANN401 - the fields of Agreement
    """No owner: every worker passes its parameters to one other, which mixes them in by half."""
    usual = {"payload": "parameters", "every": Steps(10), "codec": "bf16"}
    return _made("gossip", usual, parts)


_OF_PEERS = {"graph", "exact_every"}
_ALL = {f.name for f in dataclasses.fields(Agreement)}
_NOT_USUAL = {"recipe", "payload", "whole_part", "alpha", *_OF_PEERS}
_NOT_OF = {
    "downpour": {
        "recipe",
        "release",
        "whole_part",
        "alpha",
        "merge",
        "quorum",
        "grace_seconds",
        *_OF_PEERS,
    },
    "streaming": {"recipe", "payload", "whole_part", *_OF_PEERS},
    "elastic": _ALL - {"every", "alpha", "codec_down"},
    "publish": _ALL - {"every", "codec", "quorum", "grace_seconds", "exact_every"},
    "gossip": _ALL - {"every", "codec", "quorum", "grace_seconds", *_OF_PEERS},
}
"""Recipe -> fields of Agreement that are no parts of it."""


def _made(recipe: str, usual: Mapping[str, Any], parts: Mapping[str, Any]) -> Agreement:
    known = {f.name for f in dataclasses.fields(Agreement)} - _NOT_OF.get(recipe, _NOT_USUAL)
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
    if not isinstance(values, Mapping):
        raise UsageError("a strategy must be a name or a table", got=repr(values))
    parts = dict(values)
    name = parts.pop("recipe", DEFAULT)
    if name not in RECIPES:
        raise unknown_name("strategy", str(name), RECIPES)
    return RECIPES[name].build(**parts_of(name, parts))
