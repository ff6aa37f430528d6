"""The training plan, sent to every worker: phases, seeds, shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from photinus.core.errors import UsageError
from photinus.core.parameters import Vector
from photinus.core.settings import Limit, above, at_least, whole
from photinus.models.base import Model, ModelConfig
from photinus.strategies.base import AT_EVERY_STEP, StrategyPair
from photinus.strategies.phase_defaults import PhaseFacts, gradient_share
from photinus.strategies.spec import StrategySpec

LEASE_SECONDS = 5.0
"""The default time from the last sign of life to the end of a lease."""
_LEAST_BANDWIDTH = 1e4
"""Below that a worker's smallest pushes would take longer than a round may."""
_LEAST_MEMORY_BYTES = 64 << 20
"""With less no Python with torch starts."""
WHOLE, START, REST = "whole", "start", "rest"
ROWS, FASTEST = "rows", "fastest"
ADAPTIVE = ("adam", "adamw", "nadam", "radam", "adamax", "adagrad", "rmsprop", "adadelta")
"""Inner optimizers whose steps are the smaller, the noisier the gradients are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """What is trained with one way of agreeing: a stage, or one of the two parts of a stage.

    A recipe whose workers train alone between rounds may have a start in which all agree on
    gradients. Start and rest are then phases of one stage: parameters, inner optimizers, rows and
    schedules continue from one to the other.
    """

    config: ModelConfig
    strategy: StrategyPair
    part: str = WHOLE
    until: float | str = 0.0
    """Of start and rest: the share of the stage at which the one ends and the other begins, or
    "auto"."""
    optimizer: str | None = None
    """The inner optimizer's name: a recipe's rounds and gain then follow from it and from the
    length of the phase; None: they are taken as they are."""

    @property
    def name(self) -> str:
        """The stage's name, and which part of it this is."""
        return f"{self.config.name}, by gradients" if self.part == START else self.config.name

    @property
    def is_adaptive(self) -> bool:
        """True with Adam, AdamW and the like inside."""
        return self.optimizer in ADAPTIVE

    def steps(self, rows: int) -> int:
        """Returns how many steps each worker needs for the whole stage, of all workers' rows."""
        if self.config.max_steps:
            return self.config.max_steps
        passes = self.config.passes(rows)
        return max(1, math.ceil(passes * rows / max(1, self.config.batch_size)))

    def span(self, rows: int, *, is_stream: bool = False) -> tuple[float, float]:
        """Returns the phase's part of the stage, as shares: from, to.

        Args:
            rows: of all workers.
            is_stream: a part then ends with a pass over the rows, else with a step.
        """
        if self.part == WHOLE:
            return 0.0, 1.0
        border, epochs = gradient_share(self.until, self.steps(rows)), self.config.passes(rows)
        if border < 1.0 and epochs:
            # of an epoch; streamed rows are read from their first to their last
            step = 1.0 if is_stream else self.config.batch_size / max(1, rows)
            whole, part = divmod(border * epochs, 1.0)
            border = min(1.0, (whole + min(1.0, round(part / step) * step)) / epochs)
        return (0.0, border) if self.part == START else (border, 1.0)

    def config_for(self, workers: int, span: tuple[float, float]) -> ModelConfig:
        """Returns the config, which knows until when so many workers agree on every step.

        Args:
            workers: all of the run.
            span: as of `span`.
        """
        if self.part != WHOLE:
            return self.config.agreed_until(span[1] if self.part == START else span[0])
        is_together = workers == 1 or self.strategy.worker().site in AT_EVERY_STEP
        return self.config.agreed_until(1.0 if is_together else 0.0)

    def settled(
        self, rows: int, workers: int, span: tuple[float, float]
    ) -> tuple[StrategyPair, list[str]]:
        """Returns how the workers agree now that the rows are counted, and warnings."""
        if self.optimizer is None or not isinstance(self.strategy, StrategySpec):
            return self.strategy, []
        share = span[1] - span[0]
        setting = PhaseFacts(
            workers=workers,
            steps=max(1, math.ceil(share * self.steps(rows))),
            epochs=share * self.config.passes(rows),
            is_adaptive=self.is_adaptive,
        )
        return self.strategy.settled(setting)


def phases_of(config: ModelConfig, strategy: StrategyPair, workers: int) -> tuple[Phase, ...]:
    """Returns a config as one phase, or as a start by gradients and the rest."""
    inside = getattr(getattr(config, "settings", None), "optimizer", "sgd")
    optimizer = str(getattr(config, "optimizer", "") or inside).lower()
    whole = Phase(config=config, strategy=strategy, optimizer=optimizer)
    if workers == 1 and isinstance(strategy, StrategySpec) and strategy.is_spring_by_default:
        return (replace(whole, strategy=strategy.start(workers)),)
    if workers == 1 or not isinstance(strategy, StrategySpec) or not strategy.gradients_until:
        return (whole,)
    until = strategy.gradients_until
    start = replace(whole, strategy=strategy.start(workers), part=START, until=until)
    return start, replace(whole, part=REST, until=until)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLimits:
    """How much of its machine each worker may use."""

    threads: int = 1
    """Of its tensor library; a fixed count is part of "same seed, same bits"."""
    bandwidth: float | None = None
    """Bytes that it may send in a second, over all its connections; None for no cap."""
    cpu_share: float | None = None
    """Processors that its process may use on average; None for no cap."""
    memory: int | None = None
    """Bytes that its process may take; None for no cap."""
    LIMITS = {  # noqa: RUF012
        "threads": whole(1),
        "bandwidth": Limit.optional(at_least(_LEAST_BANDWIDTH)),
        "cpu_share": Limit.optional(above(0)),
        "memory": Limit.optional(
            Limit(
                "a whole number of bytes, at least 67108864, such as 2147483648 for 2 GiB",
                whole(_LEAST_MEMORY_BYTES).holds,
            )
        ),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """All that a worker must know; rows and parameters reach it by other ways."""

    phases: tuple[Phase, ...]
    workers: int
    seed: int = 0
    is_shared: bool = False
    """True when every worker can read all rows and takes its share of one permutation."""
    devices: tuple[str, ...] = ("cpu",)
    """What each slot's worker computes on; one name stands for all of them."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """What each worker's task asks of Spark's resources, by name; none: what the application has
    tasks ask for."""
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    lease_seconds: float = LEASE_SECONDS
    """A seat is free again so long after the last sign of life."""
    validation: float = 0.0
    """The share of the rows that is set aside to measure on."""
    has_held: bool = False
    """A column of the rows marks those that are set aside."""
    patience: int = 0
    """So many measurements without a better one end a phase, at its best point; 0 for never."""
    shuffle: bool = False
    """Where workers' rows differ in their labels or are far from equally many, the engine
    redistributes them before training, if it can."""
    share: str = ROWS
    """rows: every worker trains on its own rows, all equally often; fastest: a faster worker does
    more, until the examples of the phase are used up (where the bits need not repeat)."""
    trial_seconds: float | None = None
    """A trial: each phase ends with the round that is open after so long; None: with its rows."""
    start: Mapping[str, tuple[Vector, ...]] = field(default_factory=dict)
    """Phase name -> trained [n], and where there are any floats and integers, to start from; "" ->
    what is known before the first phase. Only the driver reads it."""

    def __post_init__(self) -> None:
        if not self.phases:
            raise UsageError("a plan needs at least one phase", got=0)
        if self.workers < 1:
            raise UsageError("workers must be at least 1", got=self.workers)

    @property
    def measures(self) -> bool:
        """True when workers measure on rows set aside."""
        return self.validation > 0 or self.has_held

    @property
    def has_peers(self) -> bool:
        """True when in any phase the workers exchange frames with each other."""
        return any(p.strategy.owner().is_peer_to_peer for p in self.phases)

    def device(self, phase: int, slot: int) -> str:
        """Returns what a slot's worker computes on in a phase: a device's name, or "auto"."""
        of_config = getattr(self.phases[phase].config, "device", "")
        return of_config or self.devices[min(slot, len(self.devices) - 1)]

    def build(self, phase: int, history: tuple[Vector, ...]) -> Model:
        """Returns the model of a phase with its first parameters."""
        config = self.phases[phase].config
        model = config.build(history, self.seed)
        start = self.start.get(config.name)
        if start is not None:
            model.load(*start)
        return model

    def is_fixed(self, phase: int) -> bool:
        """True when each worker's part of a phase is fixed in advance, by its rows."""
        is_free = self.share == FASTEST and not self.phases[phase].strategy.is_deterministic
        return self.workers == 1 or not is_free

    def first(self, phase: int, history: tuple[Vector, ...]) -> tuple[Vector, Vector, Vector]:
        """Returns a phase's first trained [n], floats [m] and integers [c], in arrays of their own.

        A model is built only where they are not given in `start`. With a sharded table `trained` is
        empty.
        """
        config, is_sharded = self.phases[phase].config, self.is_sharded(phase)
        start = self.start.get(config.name, ())
        if len(start) < 3:
            blank = config.blank(history, self.seed) if is_sharded else self.build(phase, history)
            p = blank.parameters
            start = (p.trained, p.floats, p.integers)
        trained, floats, integers = start
        return (trained[:0] if is_sharded else trained).copy(), floats.copy(), integers.copy()

    def is_sharded(self, phase: int) -> bool:
        """True when each worker owns a part of a phase's parameters that no other worker has."""
        return self.phases[phase].strategy.owner().shards > 0

    def sent(self) -> TrainingPlan:
        """Returns what travels to the workers: the same without the parameters to start from."""
        return replace(self, start={})
