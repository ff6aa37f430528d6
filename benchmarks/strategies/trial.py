"""One training of a small network on MNIST under one strategy, in virtual time."""

from __future__ import annotations

import functools
import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan

import numpy as np
import torch
from torch import nn

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.coordinator import Coordinator
from photinus.core.errors import RunFailedError
from photinus.core.events import Event, RoundClosed, Warned
from photinus.data import mnist
from photinus.data.base import Batch
from photinus.data.rows import Rows
from photinus.engine.base import part_of
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.simulator import Simulation
from photinus.models.base import Model
from photinus.models.schedules import Schedule
from photinus.training.plan import Phase, StrategyPair, TrainingPlan
from strategies.rules import ForgetfulConfig

STEP_SECONDS = 0.01
JITTER = 1e-3
"""No two workers are equally fast: they would push at the same instant for ever."""
SLOW = 4.0


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How long a trial is."""

    rows: int = 20_000
    epochs: float = 6.0
    seeds: tuple[int, ...] = (0,)


SHORT = Scale(rows=6_000, epochs=4.0)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is tried: all that is not said is the same in every experiment."""

    strategy: StrategyPair
    workers: int = 8
    lr: float = 0.05
    falls: bool = True
    """By a cosine to a twentieth; else constant."""
    momentum: float = 0.9
    optimizer: str = "sgd"
    is_sorted: bool = False
    """Each worker has the rows of one range of labels."""
    is_uneven: bool = False
    """The last worker is four times slower."""
    forgets_every: int = 0
    """Steps after which a worker loses the inner optimizer's state; 0: never."""
    dies: tuple[tuple[float, int, float], ...] = ()
    """When (seconds) which worker dies, and when another takes its seat (seconds later)."""
    bytes_per_second: float = 125e6
    latency_seconds: float = 1e-3

    def cluster(self) -> SimulatedCluster:
        """Returns the workers' speeds and links."""
        each = [STEP_SECONDS * (1 + JITTER * slot) for slot in range(self.workers)]
        each[-1] *= SLOW if self.is_uneven else 1.0
        return SimulatedCluster(
            step_seconds=tuple(each),
            latency_seconds=self.latency_seconds,
            bytes_per_second=self.bytes_per_second,
        )

    def config(self, epochs: float) -> ForgetfulConfig:
        """Returns the network, 784-64-10, and its inner optimizer."""
        settings = {"momentum": self.momentum} if self.optimizer == "sgd" else {}
        floor = 0.05 * self.lr if self.falls else self.lr
        return ForgetfulConfig(
            module="strategies.trial:network",
            epochs=epochs,
            batch_size=32 * self.workers,
            optimizer=self.optimizer,
            settings=settings,
            lr=Schedule.cosine(self.lr, floor=floor),
            forgets_every=self.forgets_every,
        )


@dataclass(frozen=True)
class Outcome:
    """What came of a trial: means over the seeds."""

    error: float
    """Of the 10,000 test images, in percent; NaN where the numbers of all workers diverged."""
    seconds: float
    """Virtual ones."""
    megabytes: float
    """Sent by all."""
    spread: float
    """How far apart the workers were at the last round."""
    is_warned_of_skew: bool


class _Normalized(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - 0.1307) / 0.3081


def network() -> nn.Module:
    """Returns 784-64-10 with weights from N(0, 2/inputs)."""
    first, last = nn.Linear(784, 64), nn.Linear(64, 10)
    for layer in (first, last):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
    return nn.Sequential(_Normalized(), first, nn.ReLU(), last)


@functools.cache
def digits() -> mnist.Mnist:
    """Returns MNIST."""
    return mnist.load()


def dealt(trial: Trial, rows: int, seed: int) -> list[Rows]:
    """Returns each worker's rows: a share of a random order, or of the order of their labels."""
    data, chance = digits(), np.random.default_rng(seed)
    chosen = chance.permutation(len(data.train_labels))[:rows]
    if trial.is_sorted:
        chosen = chosen[np.argsort(data.train_labels[chosen], kind="stable")]
    shares = np.array_split(chosen, trial.workers)
    images, labels = data.train_images, data.train_labels.astype(np.int64)
    return [Rows.of(images[mine], labels[mine], scale=1 / 255) for mine in shares]


def test_error(model: Model) -> float:
    """Returns the share of the 10,000 test images that are told wrongly, in percent."""
    data = digits()
    features = data.test_images * np.float32(1 / 255)
    sums = model.measure(Batch(features, data.test_labels.astype(np.int64)))
    return 100 * sums["errors"] / sums["examples"]


@dataclass
class Tape:
    """Keeps what a run tells of itself."""

    warnings: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    each_round: Callable[[RoundClosed], None] = lambda _: None

    def __call__(self, event: Event) -> None:
        """Takes in one event."""
        if isinstance(event, Warned):
            self.warnings.append(event.text)
        if isinstance(event, RoundClosed):
            self.metrics |= event.metrics
            self.each_round(event)


def simulation(trial: Trial, rows: int, epochs: float, seed: int, tape: Tape) -> Simulation:
    """Returns a trial that is ready to run."""
    torch.set_num_threads(1)
    phase = Phase(config=trial.config(epochs), strategy=trial.strategy)
    plan = TrainingPlan(phases=(phase,), workers=trial.workers, seed=seed, share="fastest")
    parts = [part_of(part, plan) for part in dealt(trial, rows, seed)]
    simulated = Simulation(
        plan,
        parts,
        trial.cluster(),
        coordinator=Coordinator(plan, Callbacks(emit=tape)),
    )
    for at, slot, back_after in trial.dies:
        simulated.at(at, simulated.kill, slot, back_after)
    return simulated


@functools.cache
def measured(trial: Trial, scale: Scale) -> Outcome:
    """Trains once for each seed; the same trial in two experiments is run once."""
    runs = [_once(trial, scale, seed) for seed in scale.seeds]
    gc.collect()  # nodes and models are in cycles: a hundred trials would hold gigabytes
    return Outcome(
        *(statistics.fmean(run[n] for run in runs) for n in range(4)),
        is_warned_of_skew=any(run[4] for run in runs),
    )


def _once(trial: Trial, scale: Scale, seed: int) -> tuple[float, float, float, float, bool]:
    tape = Tape()
    run = simulation(trial, scale.rows, scale.epochs, seed, tape)
    try:
        result = run.run()
    except RunFailedError as error:
        if "not finite" not in str(error):
            raise
        return nan, run.now, run.bytes / 1e6, nan, False  # it diverged: no worker is left
    assert result is not None
    model = run.plan.build(0, ())
    model.load(result.vectors[-1])
    spread = tape.metrics.get("consistency", nan)
    is_warned = any("distribution of labels" in text for text in tape.warnings)
    return test_error(model), run.now, run.bytes / 1e6, spread, is_warned
