"""The parts of a strategy, and the worker's and owner's halves that they build."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from photinus.core.clock import Steps, Trigger
from photinus.core.errors import UsageError, user_message
from photinus.core.parameters import Layout
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
from photinus.strategies.codecs import CODECS, codec
from photinus.strategies.compress import compress
from photinus.strategies.fragments import fragments
from photinus.strategies.immediate import STALENESS, Downpour, Elastic, ElasticOwner, Immediate
from photinus.strategies.merge import MERGES
from photinus.strategies.outer import (
    OUTERS,
    Adagrad,
    Adam,
    DelayedNesterov,
    Descent,
    Nesterov,
    OuterOptimizer,
    Sgd,
    SlowMo,
)
from photinus.strategies.peers import GRAPHS, Gossip, Meetings, Publish
from photinus.strategies.phase_defaults import (
    AUTO,
    PhaseFacts,
    clamp,
    few_whole_steps,
    gossip_exact_every,
    no_start,
    seldom_agreed,
    shorten,
)
from photinus.strategies.recipe_settings import outer_text
from photinus.strategies.rounds import QUORUM, AllReduce, Averaging, Rounds
from photinus.strategies.row_codec import answer_codec
from photinus.strategies.shards import READS, Sharded, ShardedGradients

_TRIGGER = Limit("a trigger, such as Steps(10)", lambda v: isinstance(v, Trigger))
_SPARSE_SAFE = (Sgd, Adagrad)
"""Optimizers that do not change a number whose delta is 0."""
OF_DENSE_LAYERS = (Nesterov, SlowMo, Adam)
"""Optimizers that step the layers beside sharded tables, and no table."""
EVERY_OF_ROWS = Steps(16)
"""The usual rounds of sharded tables."""
MAX_STEPS_AHEAD = 64
"""Over sharded tables, the most steps of a round whose length nobody set, or that is counted in
seconds: a worker asks for the rows of all its steps before the round."""
_ALL_ROWS_WARNING = "all rows of sparse tables travel, not only those that changed"


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategySpec:
    """How the workers agree: a recipe's name and the parts that it is made of.

    Example:
        >>> from photinus.core.clock import Steps
        >>> from photinus.strategies.recipes import averaging
        >>> str(averaging(every=Steps(10)))
        'averaging every 10 steps, nesterov(lr=0.7, momentum=0.5), merge nova, bf16'
    """

    recipe: str
    """The recipe's name."""
    payload: str = "delta"
    """gradient: before the inner step (released at once: their sum) · delta: after it · elastic ·
    published: deltas to all workers · parameters: to one worker at a time."""
    release: str = "rounds"
    """rounds: a push waits for those of the others · immediate: it is applied on arrival."""
    every: Trigger = field(default_factory=lambda: Steps(1))
    """When a worker pushes."""
    outer: OuterOptimizer = field(default_factory=Sgd)
    """The optimizer that applies what is merged."""
    merge: str = "uniform"
    """How pushes become one: "uniform", "examples", "nova", or "reads" of a table's rows."""
    codec: str = "fp32"
    """Of what travels up, and down."""
    codec_down: str | None = None
    """Of what travels down, where it is another."""
    error_feedback: bool | None = None
    """What the codec leaves out of a gradient is added to the next; None: in int8 and int4, as of
    deltas."""
    quorum: float = 1.0
    """The share of the workers (above 1: how many) whose pushes close a round."""
    grace_seconds: float = 0.0
    """How long a round waits for the others once the quorum has pushed."""
    gain: str = "safe"
    """unsafe: the outer gain is taken as asked."""
    whole_part: bool = False
    """A step takes all rows of a worker."""
    owners: int = 1
    """In rounds, or with rows: 1, or as many as there are workers, each the owner of a shard."""
    fragments: int = 0
    """The vector is pushed in so many parts, one after the other; 0: whole."""
    delay: int = 0
    """Steps that a fragment is under way while training continues."""
    gradients_until: float | str = 0.0
    """Until this share of the phase all workers take one step together, by their mean gradient,
    as `all_reduce` does; "auto": as long as the number of steps asks for (`gradient_share`)."""
    fetch: Trigger | None = None
    """Released at once: when a worker takes what the owner has; None: after every push."""
    staleness: str | int = "none"
    """Released at once, s versions late: none · inverse, times 1/(1+s) · n, dropped above n."""
    rows: int = 0
    """Only rows of so many numbers that changed travel; 0: all. In rounds, or with several owners,
    every worker then owns a shard of the rows, and holds of the others' those that its next steps
    read."""
    exact: int = 0
    """In rounds of rows, int8 and int4: so many numbers at the end of a row travel as float32."""
    usual: frozenset[str] = frozenset()
    """The parts that the recipe chose, and not the user: they may follow the run."""
    known: frozenset[str] = field(default=frozenset(), compare=False)
    """The parts that the recipe takes."""
    alpha: float = 0.5
    """`streaming`: how much of its own a worker keeps · `elastic`: the spring, times K."""
    graph: str = "exponential"
    """With `gossip`, the graph by which each worker chooses its peer."""
    exact_every: int = 10
    """Without an owner, how many publications of each there are between exact averages."""
    LIMITS = {  # noqa: RUF012
        "every": _TRIGGER,
        "fetch": Limit.optional(_TRIGGER),
        "outer": Limit(
            "an outer optimizer, such as Nesterov(), or a Descent of a function of your own",
            lambda v: type(v) in (*OUTERS.values(), Descent),  # others have no name in a job
        ),
        "payload": one_of("gradient", "delta", "elastic", "published", "parameters"),
        "owners": whole(1),
        "graph": one_of(*GRAPHS),
        "exact_every": whole(1),
        "release": one_of("rounds", "immediate"),
        "merge": one_of(*MERGES, READS),
        "codec": one_of(*CODECS),
        "codec_down": Limit.optional(one_of(*CODECS)),
        # the 1 and 0 of a job of before are equal to them
        "error_feedback": Limit.optional(Limit("True or False", lambda v: v in (True, False))),
        "quorum": QUORUM,
        "grace_seconds": at_least(0),
        "gain": one_of("safe", "unsafe"),
        "exact": whole(0),
        "fragments": whole(0),
        "delay": whole(0),
        "gradients_until": Limit(
            "a number from 0 to 1, or 'auto'", lambda v: v == AUTO or between(0, 1).holds(v)
        ),
        "staleness": STALENESS,
        "rows": whole(0),
        "alpha": between(0, 1),
    }

    def __post_init__(self) -> None:
        validate(self, of=self.recipe)
        self._check_needs()
        if self.owners > 1:
            self._check_shards()
        if self.rows:
            self._check_rows()
        if self.fragments or self.is_immediate:  # refuses conflicting parts now
            self.worker()
            self.owner()
        if self.merge == READS and not self.is_sharded:
            wrong = 'merge="reads" is for sharded tables'
            raise UsageError(wrong, got="rows 0", do='use "uniform", "examples" or "nova"')
        if self.gradients_until and self.payload == "gradient" and not self.is_immediate:
            wrong = "a recipe that agrees on every gradient has no gradients_until"
            raise UsageError(wrong, got=self.gradients_until, do="leave it out")

    def _check_needs(self) -> None:
        """Refuses a part without another one that it needs."""
        needs: tuple[tuple[str, bool, bool, str], ...] = (
            ("fetch", self.fetch is not None, self.is_immediate, 'release="immediate"'),
            ("staleness", self.staleness != "none", self.is_immediate, 'release="immediate"'),
            ("quorum", self.quorum != 1, not self.is_immediate, 'release="rounds"'),
            ("fragments", self.fragments > 0, not self.is_immediate, 'release="rounds"'),
            ("fragments", self.fragments > 0, self.payload == "delta", 'payload="delta"'),
            ("delay", self.delay > 0, self.fragments > 0, "fragments"),
            ("exact", self.exact > 0, self.rows > 0, "rows"),
            ("grace_seconds", self.grace_seconds > 0, self.quorum != 1, "a quorum"),
            (
                "error_feedback",
                bool(self.error_feedback),
                self.codec != "fp32",
                "another codec than fp32",
            ),
        )
        for name, is_set, is_met, needed in needs:
            if is_set and not is_met:
                wrong, got = f"{name} of {self.recipe} needs {needed}", repr(getattr(self, name))
                raise UsageError(wrong, got=got, do=f"leave {name} out")

    def _check_rows(self) -> None:
        """Checks that rows that are not pushed do not move, and that vectors can be cut."""
        if self.is_sharded:
            self._check_table()
            return
        is_sparse_safe = self.payload == "delta" and isinstance(self.outer, _SPARSE_SAFE)
        if not is_sparse_safe or self.codec not in ("fp32", "bf16"):
            wrong = "rows are for deltas released at once, sgd or adagrad outside, fp32 or bf16"
            raise UsageError(wrong, got=str(self), do="use rows=0")

    def _check_table(self) -> None:
        if self.every.steps is None or self.every.counts_rows:
            wrong = "with rows in rounds, `every` must be Steps, alone or with Seconds"
            raise UsageError(wrong, got=repr(self.every), do="e.g. every=Seconds(2) | Steps(64)")
        is_gradient = self.payload == "gradient" and not self.is_immediate
        fits_by_name = {
            "payload": self.payload == "delta" or is_gradient,
            "fragments": not self.fragments,
            "merge": self.merge in (MERGES if is_gradient else ("uniform", READS)),
            "outer": self.outer.is_by_row
            or (isinstance(self.outer, OF_DENSE_LAYERS) and not self.is_immediate),
            "fetch": self.fetch is None,
            "staleness": self.staleness == "none",
            "codec_down": self.codec_down in (None, self.codec),
            "quorum": self.quorum == 1,
            "error_feedback": self.error_feedback in (None, codec(self.codec).has_feedback),
            "whole_part": not self.whole_part,
        }
        if conflict := self._conflicts(fits_by_name):
            wrong = (
                "rows in rounds are for deltas, merge uniform or reads, no descent or "
                "delayed_nesterov outside, and no codec_down"
            )
            if self.is_immediate:
                wrong = (
                    "rows of several owners are for deltas, merge uniform or reads, an optimizer "
                    "by row outside, and no codec_down, fetch or staleness"
                )
            if is_gradient:
                wrong = (
                    f"rows of {self.recipe} are for gradients of all workers, merge uniform, "
                    "examples or nova, no codec_down, and the codec's own error_feedback"
                )
            raise UsageError(wrong, got=conflict, do="change it, or use rows=0")

    def _conflicts(self, fits_by_name: Mapping[str, bool]) -> str:
        """Returns those arguments that do not fit, as a user writes them; empty where all do."""
        unfit = (name for name, fits in fits_by_name.items() if not fits)
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in unfit)

    def _check_shards(self) -> None:
        fits_by_name = {
            "release": self.is_sharded or not self.is_immediate,
            "payload": not self.is_without_owner,
            "fragments": not self.fragments,
            "codec": self.is_sharded or self.codec in ("fp32", "bf16"),  # wherever a shard ends
            "codec_down": self.codec_down in (None, self.codec),
        }
        if conflict := self._conflicts(fits_by_name):
            wrong = "several owners are for rounds of whole vectors, in fp32 or bf16 both ways"
            raise UsageError(wrong, got=conflict, do="change it, or use owners=1")
        if self.payload == "delta" and self.quorum != 1:
            wrong = "who misses a round of several owners loses its work since the last one"
            raise UsageError(wrong, got=f"quorum {self.quorum:g}", do="use owners=1")

    def __str__(self) -> str:
        if self.is_without_owner:
            to = "all" if self.payload == "published" else f"one by one, {self.graph}"
            of_many = f" or {gossip_exact_every(self.exact_every)}" * self._has_usual_gossip
            exact = f"exact every {self.exact_every}{of_many} rounds"
            return f"{self.recipe} every {self.every} to {to}, {exact}, {self.codec}"
        is_per_step = self.payload == "gradient" and not self.is_immediate
        every = "every step" if is_per_step else f"every {self._capped_every}"
        if self.payload == "elastic":
            return f"{self.recipe} {every}, alpha {self.alpha:g}/K, {self._codecs}"
        outer = "" if is_per_step else f", {outer_text(self.outer)}"
        if not self.is_immediate:
            every += f" in {self.fragments} fragments" if self.fragments else ""
            quorum = "" if self.quorum == 1 else f", quorum of {self.quorum:g}"
            quorum += f" and {self.grace_seconds:g} s" if self.grace_seconds else ""
            rows = f", rows of {self.rows} among {self.owners} workers" if self.rows else ""
            return f"{self.recipe} {every}{outer}, merge {self.merge}{quorum}{rows}, {self._codecs}"
        fetch = f", fetch every {self.fetch}" if self.fetch else ""
        rows = f", rows of {self.rows}" if self.rows else ""
        rows += f" among {self.owners} workers" if self.is_sharded else ""
        weight = f"merge {self.merge}" if self.is_sharded else f"staleness {self.staleness}"
        suffix = f"{weight}{rows}, {self._codecs}"
        return f"{self.recipe} {every}{fetch}{outer}, {suffix}"

    @property
    def _has_usual_gossip(self) -> bool:
        """True for `gossip` without an `exact_every` that the user set."""
        return self.payload == "parameters" and "exact_every" in self.usual

    @property
    def has_usual_rounds(self) -> bool:
        """True where the user set nothing of how the rounds are."""
        set_for_rows = {"every", "outer"} if self.is_sharded else set[str]()
        is_as_set = not self.is_sharded or (self.every, self.outer) == (EVERY_OF_ROWS, Sgd())
        return is_as_set and {"every", "outer", "codec"} - set_for_rows <= self.usual

    @property
    def _capped_every(self) -> Trigger:
        """Its trigger; a usual one has at most `MAX_STEPS_AHEAD` steps over sharded tables."""
        steps, is_usual = self.every.steps, "every" in self.usual
        if not (self.is_sharded and is_usual and steps and steps > MAX_STEPS_AHEAD):
            return self.every
        return dataclasses.replace(self.every, steps=MAX_STEPS_AHEAD)

    @property
    def _codecs(self) -> str:
        default_down = answer_codec(self.codec) if self.is_sharded else self.codec
        is_whole_down = self.is_immediate and not self.is_sharded
        down = self.codec_down or ("fp32" if is_whole_down else default_down)
        text = self.codec if down == self.codec else f"{self.codec} up, {down} down"
        if self.error_feedback is None:
            return text
        return f"{text} {'with' if self.error_feedback else 'without'} error feedback"

    @property
    def is_immediate(self) -> bool:
        """True when each push is applied on arrival."""
        return self.release == "immediate"

    @property
    def is_deterministic(self) -> bool:
        """True when the same seed gives the same bits: a barrier, and no trigger in seconds."""
        if self.is_immediate or self.is_without_owner or self.quorum != 1:
            return False
        return self.payload == "gradient" or self.every.is_deterministic

    @property
    def is_sharded(self) -> bool:
        """True when the rows are sharded over the workers, and no worker holds all of them."""
        is_rounds = not self.is_immediate
        return self.rows > 0 and (is_rounds or self.owners > 1 or self.merge == READS)

    @property
    def is_without_owner(self) -> bool:
        """True when updates pass from worker to worker."""
        return self.payload in ("published", "parameters")

    def with_settings(self, settings: Mapping[str, Any]) -> StrategySpec:
        """Returns the same strategy with other settings, as if its recipe's call had named them.

        Raises:
            UsageError: it has no such setting, or a limit does not hold.
        """
        for name in settings:
            if name not in self.known:
                raise unknown_name(f"argument of {self.recipe}", name, self.known)
        return dataclasses.replace(self, **settings, usual=self.usual - set(settings))

    def check_no_dense_layers(self) -> None:
        """Checks that an outer optimizer of dense layers is not given where there are none.

        Raises:
            UsageError: it is.
        """
        if not self.outer.is_by_row:
            wrong = f"{self.outer.name} steps layers beside sharded tables, and here are none"
            raise UsageError(wrong, got=str(self), do="use averaging(outer=Sgd())")

    @property
    def without_start(self) -> StrategySpec:
        """The same without a start by gradients that the length of a phase decides."""
        is_auto = self.gradients_until == AUTO
        return self.with_settings({"gradients_until": 0.0}) if is_auto else self

    def table_warning(self, layout: Layout) -> str:
        """Returns why all rows of a model's sparse tables travel; empty where they do not."""
        if not layout.sparse:
            return ""
        reason, do = "", ""
        if self.payload in ("elastic", "parameters"):
            reason = f"{self.recipe} sends whole parameters"
            do = "use averaging or publish, which send what changed"
        elif self.is_immediate and not self.rows:
            reason = f"a fetch of {self.recipe} brings whole parameters"
            width = layout.entry(layout.sparse[0]).shape[-1]
            do = f"set rows={width}, with deltas, and sgd or adagrad outside"
        elif self.delay and self.alpha not in (0, 0.5, 1):
            reason, do = f"to mix by alpha={self.alpha:g} rounds every row", "use alpha=0.5"
        return user_message(_ALL_ROWS_WARNING, got=reason, do=do) if reason else ""

    def worker(self) -> Strategy:
        """Returns the worker's half."""
        if self.payload == "elastic":
            return Elastic(every=self.every)
        if self.is_immediate and not self.is_sharded:
            return Downpour(
                every=self.every,
                fetch=self.fetch,
                payload=self.payload,
                codec=self.codec,
                rows=self.rows,
            )
        if self.payload == "published":
            return Publish(every=self.every, codec=self.codec)
        if self.payload == "parameters":
            return Gossip(every=self.every, codec=self.codec, graph=self.graph)
        if self.payload == "gradient":
            return self._gradient_strategy()
        if self.is_sharded:
            return Sharded(
                every=self.every,
                outer=self.outer,
                codec=self.codec,
                rows=self.rows,
                merge=self.merge,
                exact=self.exact,
                calls_meetings=self.is_immediate,
            )
        rounds: Strategy = Averaging(
            every=self.every, outer=self.outer, is_peer_to_peer=self.owners > 1
        )
        if self.fragments:
            rounds = fragments(rounds, self.fragments, delay=self.delay, alpha=self.alpha)
        return compress(rounds, self.codec)

    def _gradient_strategy(self) -> Strategy:
        if self.is_sharded:
            return ShardedGradients(codec=self.codec, rows=self.rows)
        has_feedback = self.error_feedback
        if has_feedback is None:
            has_feedback = codec(self.codec).has_feedback
        gradients = AllReduce(
            codec="fp32" if has_feedback else self.codec,
            whole_part=self.whole_part,
            is_peer_to_peer=self.owners > 1,
            is_early=self.owners > 1 and self.quorum == 1 and not has_feedback,
            merge=self.merge,
        )
        if not has_feedback:
            return gradients
        return compress(gradients, self.codec, error_feedback=True)

    def owner(self) -> Policy:
        """Returns the owner's half."""
        if self.is_without_owner:
            return Meetings(
                quorum=self.quorum,
                grace_seconds=self.grace_seconds,
                rounds_between=self.exact_every,
            )
        if self.is_sharded:
            merge = "uniform" if self.merge == READS else self.merge
            return Meetings(
                merge=merge, rows=self.rows, shards=self.owners, calls_meetings=self.is_immediate
            )
        if self.owners > 1:
            return Meetings(merge=self.merge, quorum=self.quorum, grace_seconds=self.grace_seconds)
        if self.payload == "elastic":
            return ElasticOwner(alpha=self.alpha, codec=self.codec_down or "fp32")
        if self.is_immediate:
            return Immediate(
                outer=self.outer,
                payload=self.payload,
                staleness=self.staleness,
                codec=self.codec_down or "fp32",
                rows=self.rows,
            )
        return Rounds(
            outer=self.outer,
            merge=self.merge,
            codec=self.codec_down or self.codec,
            holds_parameters=self.payload == "delta",
            fragments=max(1, self.fragments),
            quorum=self.quorum,
            grace_seconds=self.grace_seconds,
        )

    def check_workers(self, workers: int) -> None:
        """Checks that so many workers can agree in this way.

        Raises:
            UsageError: the quorum, or the number of owners, does not fit their number.
        """
        if self.quorum > workers:
            wrong = f"a quorum of {self.quorum:g} is more than there are workers"
            raise UsageError(wrong, got=f"{workers} workers", do="ask for fewer")
        if self.owners not in (1, workers) or (self.is_sharded and self.owners != workers):
            alternative = "" if self.is_sharded else "1, or "
            wrong = f"owners must be {alternative}{workers}, the number of workers"
            raise UsageError(wrong, got=self.owners)

    def start(self, workers: int) -> StrategySpec:
        """Returns how the workers agree until `gradients_until`: on the gradient of every step."""
        has_owners = self.owners > 1 or self.is_without_owner
        return StrategySpec(
            recipe="all_reduce",
            payload="gradient",
            merge="examples",
            owners=workers if has_owners else 1,
            rows=self.rows if self.is_sharded else 0,
            quorum=self.quorum,
            grace_seconds=self.grace_seconds,
        )

    @property
    def is_spring_by_default(self) -> bool:
        """True of `elastic` as it is: to a single worker its centre is only a drag."""
        is_usual = {"alpha", "gradients_until"} <= self.usual
        return self.payload == "elastic" and is_usual and bool(self.gradients_until)

    def _length_warnings(self, setting: PhaseFacts) -> list[str]:
        """Returns what a phase is too short for, where no start by gradients makes up for it."""
        warning = "" if self.gradients_until else seldom_agreed(self.every, setting)
        if self.whole_part:
            warning = few_whole_steps(setting)
        # over sharded tables the usual start is left out where an owner cannot take its steps
        if self.is_sharded and "gradients_until" in self.usual and self.gradients_until == 0:
            warning = no_start(setting)
        return [f"{self.recipe}: {warning}"] if warning else []

    def settled(self, setting: PhaseFacts) -> tuple[StrategySpec, list[str]]:
        """Returns the same for a phase whose length is known, and warnings.

        Where a recipe's usual trigger would leave too few rounds it fires earlier, an outer gain
        that was seen to diverge is lowered, and many workers that gossip average more often.
        """
        warnings = self._length_warnings(setting)
        if self.payload == "gradient" and not self.is_immediate:
            return self, warnings
        every = self.every
        if "every" in self.usual:
            # a fragment arrives before the next is sent
            min_steps = self.fragments * self.delay + 1
            every, warning = shorten(self._capped_every, setting, min_steps)
            warnings += [f"{self.recipe}: {warning}"] if warning else []
        outer, codec = self.outer, self.codec
        if setting.workers == 1 and {"outer", "codec"} <= self.usual:  # plain training
            outer, codec = Sgd(), "fp32"
        if isinstance(outer, DelayedNesterov) and outer.pushes == 0:
            outer = dataclasses.replace(outer, pushes=setting.workers)
        if self.payload == "delta" and self.gain != "unsafe" and setting.workers > 1:
            outer, warning = clamp(outer, every, setting, is_immediate=self.is_immediate)
            warnings += [warning] if warning else []
        settled = dataclasses.replace(self, every=every, outer=outer, codec=codec)
        if self._has_usual_gossip:
            settled = dataclasses.replace(
                settled,
                exact_every=gossip_exact_every(self.exact_every, setting.workers),
                usual=self.usual - {"exact_every"},
            )
        return settled, warnings
