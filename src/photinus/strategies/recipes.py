"""Recipes: each strategy by its public name, built from the parts.

The defaults in a signature are what is used. A part that the caller leaves out may follow the run:
rounds are shorter in a short phase, and a worker that is alone trains plainly.

`RECIPES` is the one table: a conformance test runs over every row, and each row names the
identities that it owes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec

from photinus.core.clock import Epochs, Steps, Trigger
from photinus.core.errors import UsageError
from photinus.core.settings import unknown_name
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.outer import Nesterov, OuterOptimizer, Sgd
from photinus.strategies.phase_defaults import AUTO
from photinus.strategies.recipe_settings import parts_of, plain_of
from photinus.strategies.spec import StrategySpec

ONE_WORKER = "one worker = plain training"
ONE_FRAGMENT = "streaming(one fragment, no delay) = averaging"
EVERY_STEP = "averaging(1) = all_reduce"
NO_MOMENTUM = "diloco(lr 1, momentum 0) = averaging"
ALL_PER_STEP = "post_local(until the end) = all_reduce; post_local(from the start) = averaging"
FULL_BATCH = "one worker = full-batch descent"
ELASTIC_HALF = "one worker: elastic(alpha .5) = averaging with sgd(.5)"


_RUN_DEPENDENT = {"every", "outer", "codec", "exact_every"}
_SPEC_DEFAULTS = {f.name: f.default for f in dataclasses.fields(StrategySpec)}
P = ParamSpec("P")


def _recipe(function: Callable[P, StrategySpec]) -> Callable[P, StrategySpec]:
    """Makes a recipe of a function of parts: it refuses others, and notes which are left out."""
    defaults = {name: p.default for name, p in inspect.signature(function).parameters.items()}
    recipe_parts = {
        name for name, v in defaults.items() if name in _RUN_DEPENDENT or v != _SPEC_DEFAULTS[name]
    }

    @functools.wraps(function)
    def build(*args: P.args, **parts: P.kwargs) -> StrategySpec:
        for name in parts:
            if name not in defaults:
                raise unknown_name(f"argument of {function.__name__}", name, defaults)
        strategy = function(*args, **parts)
        if "merge" in parts and strategy.is_immediate and not strategy.is_sharded:
            needed, got = "for sharded tables", f"owners={strategy.owners}, rows={strategy.rows}"
            if "release" in parts:
                needed, got = "a part of rounds", "release='immediate'"
            wrong = f"merge of {function.__name__} is {needed}"
            raise UsageError(wrong, got=got, do="leave it out")
        unset_parts = frozenset(recipe_parts - parts.keys())
        return dataclasses.replace(strategy, usual=unset_parts, known=frozenset(defaults))

    return build


@_recipe
def averaging(
    *,
    every: Trigger = Steps(50),
    outer: OuterOptimizer = Nesterov(),
    merge: str = "nova",
    codec: str = "bf16",
    codec_down: str | None = None,
    gradients_until: float | str = AUTO,
    quorum: float = 1.0,
    grace_seconds: float = 0.0,
    gain: str = "safe",
    owners: int = 1,
    fragments: int = 0,
    delay: int = 0,
    release: str = "rounds",
    fetch: Trigger | None = None,
    staleness: str | int = "none",
    rows: int = 0,
    exact: int = 0,
) -> StrategySpec:
    """Averages what the workers learn between rounds: by default every 50 steps.

    Δᵢ = anchor − θᵢ;  anchor ← outer(anchor, Σ cᵢΔᵢ);  θᵢ ← anchor.

    The outer nesterov(.7, .5) was better than the plain mean in eight of ten settings measured. The
    published form has `outer=Sgd(), merge="uniform"`. With a time limit, such as
    `every=Steps(50) | Seconds(2.0)`, no run repeats another's bits.

    Args:
        every: when a worker pushes: so many steps, seconds, examples or epochs after its last push.
        outer: the optimizer that applies the merged delta.
        merge: how the deltas become one: "uniform", "examples" or "nova"; with rows "reads", too:
            a row that few steps read moves by the sum, one that all read by the mean.
        codec: the numbers that vectors travel in: "fp32", "bf16", "int8" or "int4".
        codec_down: the same for the way from owner to worker; None: as `codec`.
        gradients_until: the share of a stage, 0 to 1, that takes every step by the mean gradient of
            all workers; "auto" follows the number of steps.
        quorum: the share of the workers (above 1: how many) whose pushes close a round.
        grace_seconds: seconds that a round waits for the others once the quorum has pushed.
        gain: "safe" lowers an outer gain at which training diverges; "unsafe" takes it as given.
        owners: 1, or as many as there are workers: each merges a shard of the vector.
        fragments: parts that the vector is pushed in, one after the other; 0: whole.
        delay: steps that a fragment may be under way while training continues.
        release: "rounds", or "immediate": each push is applied on arrival.
        fetch: with "immediate", when a worker takes the owner's parameters; None: after a push.
        staleness: with "immediate", the weight of a push that is s versions late: "none": 1;
            "inverse": 1/(1+s); a number n: dropped where s > n.
        rows: numbers in a row of a sharded table: each worker owns a shard;
            needs owners, and a model that says which rows a batch reads; 0: every worker holds all.
            Nesterov, SlowMo and Adam then step the layers beside the table alone.
        exact: with rows, so many numbers at the end of each travel as float32 in int8 and int4.

    Raises:
        UsageError: a part is unknown, is out of its limits, or conflicts with the others.

    Example:
        >>> str(averaging(every=Steps(10), outer=Sgd()))
        'averaging every 10 steps, sgd(lr=1), merge nova, bf16'

    Source: Moritz et al., SparkNet, 2015.
    """
    return StrategySpec(recipe="averaging", **locals())


@_recipe
def iterative_reduce(
    *,
    every: Trigger = Epochs(1),
    outer: OuterOptimizer = Sgd(),
    merge: str = "uniform",
    codec: str = "fp32",
    codec_down: str | None = None,
    gradients_until: float | str = 0.0,
    quorum: float = 1.0,
    grace_seconds: float = 0.0,
    gain: str = "safe",
    owners: int = 1,
    fragments: int = 0,
    delay: int = 0,
    release: str = "rounds",
    fetch: Trigger | None = None,
    staleness: str | int = "none",
) -> StrategySpec:
    """Takes the plain average after every epoch of every phase.

    anchor ← anchor − (1/K) Σ Δᵢ, which is (1/K) Σ θᵢ, with K workers.

    Args:
        every: when a worker pushes: so many steps, seconds, examples or epochs after its last push.
        outer: the optimizer that applies the merged delta.
        merge: how the deltas become one: "uniform", "examples" or "nova".
        codec: the numbers that vectors travel in: "fp32", "bf16", "int8" or "int4".
        codec_down: the same for the way from owner to worker; None: as `codec`.
        gradients_until: the share of a stage, 0 to 1, that takes every step by the mean gradient of
            all workers; "auto" follows the number of steps.
        quorum: the share of the workers (above 1: how many) whose pushes close a round.
        grace_seconds: seconds that a round waits for the others once the quorum has pushed.
        gain: "safe" lowers an outer gain at which training diverges; "unsafe" takes it as given.
        owners: 1, or as many as there are workers: each merges a shard of the vector.
        fragments: parts that the vector is pushed in, one after the other; 0: whole.
        delay: steps that a fragment may be under way while training continues.
        release: "rounds", or "immediate": each push is applied on arrival.
        fetch: with "immediate", when a worker takes the owner's parameters; None: after a push.
        staleness: with "immediate", the weight of a push that is s versions late: "none": 1;
            "inverse": 1/(1+s); a number n: dropped where s > n.

    Raises:
        UsageError: a part is unknown, is out of its limits, or conflicts with the others.

    Example:
        >>> str(iterative_reduce())
        'iterative_reduce every 1 epoch, sgd(lr=1), merge uniform, fp32'

    Source: IterativeReduce on Hadoop YARN.
    """
    return StrategySpec(recipe="iterative_reduce", **locals())


@_recipe
def diloco(
    *,
    every: Trigger = Steps(500),
    outer: OuterOptimizer = Nesterov(lr=0.7, momentum=0.9),
    merge: str = "nova",
    codec: str = "int8",
    codec_down: str | None = None,
    gradients_until: float | str = AUTO,
    quorum: float = 1.0,
    grace_seconds: float = 0.0,
    gain: str = "safe",
    owners: int = 1,
    fragments: int = 0,
    delay: int = 0,
    release: str = "rounds",
    fetch: Trigger | None = None,
    staleness: str | int = "none",
    rows: int = 0,
    exact: int = 0,
) -> StrategySpec:
    """Trains hundreds of steps (of AdamW) between rounds, with Nesterov momentum outside.

    Δ = Σ cᵢΔᵢ;  m ← μm + Δ;  anchor ← anchor − η(Δ + μm), with η the outer rate, μ its momentum.

    Args:
        every: when a worker pushes: so many steps, seconds, examples or epochs after its last push.
        outer: the optimizer that applies the merged delta.
        merge: how the deltas become one: "uniform", "examples" or "nova".
        codec: the numbers that vectors travel in: "fp32", "bf16", "int8" or "int4".
        codec_down: the same for the way from owner to worker; None: as `codec`.
        gradients_until: the share of a stage, 0 to 1, that takes every step by the mean gradient of
            all workers; "auto" follows the number of steps.
        quorum: the share of the workers (above 1: how many) whose pushes close a round.
        grace_seconds: seconds that a round waits for the others once the quorum has pushed.
        gain: "safe" lowers an outer gain at which training diverges; "unsafe" takes it as given.
        owners: 1, or as many as there are workers: each merges a shard of the vector.
        fragments: parts that the vector is pushed in, one after the other; 0: whole.
        delay: steps that a fragment may be under way while training continues.
        release: "rounds", or "immediate": each push is applied on arrival.
        fetch: with "immediate", when a worker takes the owner's parameters; None: after a push.
        staleness: with "immediate", the weight of a push that is s versions late: "none": 1;
            "inverse": 1/(1+s); a number n: dropped where s > n.
        rows: numbers in a row of a sharded table, as of `averaging`; the momentum is that of the
            layers beside it; 0: every worker holds all.
        exact: with rows, so many numbers at the end of each travel as float32 in int8 and int4.

    Raises:
        UsageError: a part is unknown, is out of its limits, or conflicts with the others.

    Example:
        >>> str(diloco(every=Steps(100)))
        'diloco every 100 steps, nesterov(lr=0.7, momentum=0.9), merge nova, int8'

    Source: Douillard et al., DiLoCo, 2023.
    """
    return StrategySpec(recipe="diloco", **locals())


@_recipe
def post_local(
    *,
    every: Trigger = Steps(16),
    outer: OuterOptimizer = Sgd(),
    merge: str = "nova",
    codec: str = "fp32",
    codec_down: str | None = None,
    gradients_until: float | str = 0.8,
    quorum: float = 1.0,
    grace_seconds: float = 0.0,
    gain: str = "safe",
    owners: int = 1,
    fragments: int = 0,
    delay: int = 0,
    release: str = "rounds",
    fetch: Trigger | None = None,
    staleness: str | int = "none",
) -> StrategySpec:
    """Takes steps of all workers together for four fifths of a stage, then averages.

    while progress < gradients_until: θ ← inner(θ, Σ nᵢgᵢ / Σ nᵢ);  then the rounds of `averaging`.

    Args:
        every: when a worker pushes: so many steps, seconds, examples or epochs after its last push.
        outer: the optimizer that applies the merged delta.
        merge: how the deltas become one: "uniform", "examples" or "nova".
        codec: the numbers that vectors travel in: "fp32", "bf16", "int8" or "int4".
        codec_down: the same for the way from owner to worker; None: as `codec`.
        gradients_until: the share of a stage, 0 to 1, that takes every step by the mean gradient of
            all workers; "auto" follows the number of steps.
        quorum: the share of the workers (above 1: how many) whose pushes close a round.
        grace_seconds: seconds that a round waits for the others once the quorum has pushed.
        gain: "safe" lowers an outer gain at which training diverges; "unsafe" takes it as given.
        owners: 1, or as many as there are workers: each merges a shard of the vector.
        fragments: parts that the vector is pushed in, one after the other; 0: whole.
        delay: steps that a fragment may be under way while training continues.
        release: "rounds", or "immediate": each push is applied on arrival.
        fetch: with "immediate", when a worker takes the owner's parameters; None: after a push.
        staleness: with "immediate", the weight of a push that is s versions late: "none": 1;
            "inverse": 1/(1+s); a number n: dropped where s > n.

    Raises:
        UsageError: a part is unknown, is out of its limits, or conflicts with the others.

    Example:
        >>> post_local(gradients_until=0.25).gradients_until
        0.25

    Source: Lin et al., Don't Use Large Mini-Batches, Use Local SGD, 2020.
    """
    return StrategySpec(recipe="post_local", **locals())


@_recipe
def streaming(
    *,
    every: Trigger = Steps(100),
    outer: OuterOptimizer = Nesterov(lr=0.4, momentum=0.9),
    merge: str = "nova",
    codec: str = "int4",
    codec_down: str | None = None,
    gradients_until: float | str = AUTO,
    quorum: float = 1.0,
    grace_seconds: float = 0.0,
    gain: str = "safe",
    fragments: int = 4,
    delay: int = 1,
    alpha: float = 0.5,
    release: str = "rounds",
    fetch: Trigger | None = None,
    staleness: str | int = "none",
) -> StrategySpec:
    """Agrees on one fragment at a time, which is under way while training continues.

    anchor ← outer(anchor, Σ cᵢΔᵢ);  `delay` steps later θᵢ ← α·θᵢ + (1−α)·anchor, in one fragment.

    Every fragment has its turn once in `every`.

    Args:
        every: when a worker pushes: so many steps, seconds, examples or epochs after its last push.
        outer: the optimizer that applies the merged delta.
        merge: how the deltas become one: "uniform", "examples" or "nova".
        codec: the numbers that vectors travel in: "fp32", "bf16", "int8" or "int4".
        codec_down: the same for the way from owner to worker; None: as `codec`.
        gradients_until: the share of a stage, 0 to 1, that takes every step by the mean gradient of
            all workers; "auto" follows the number of steps.
        quorum: the share of the workers (above 1: how many) whose pushes close a round.
        grace_seconds: seconds that a round waits for the others once the quorum has pushed.
        gain: "safe" lowers an outer gain at which training diverges; "unsafe" takes it as given.
        fragments: parts that the vector is pushed in, one after the other; 0: whole.
        delay: steps that a fragment may be under way while training continues.
        alpha: the share of its own parameters that a worker keeps when a fragment arrives.
        release: "rounds", or "immediate": each push is applied on arrival.
        fetch: with "immediate", when a worker takes the owner's parameters; None: after a push.
        staleness: with "immediate", the weight of a push that is s versions late: "none": 1;
            "inverse": 1/(1+s); a number n: dropped where s > n.

    Raises:
        UsageError: a part is unknown, is out of its limits, or conflicts with the others.

    Example:
        >>> str(streaming(fragments=2, codec="int8"))
        'streaming every 100 steps in 2 fragments, nesterov(lr=0.4, momentum=0.9), merge nova, int8'

    Source: Douillard et al., Streaming DiLoCo, 2025.
    """
    return StrategySpec(recipe="streaming", **locals())


@_recipe
def downpour(
    *,
    every: Trigger = Steps(10),
    fetch: Trigger | None = None,
    outer: OuterOptimizer = Sgd(),
    payload: str = "delta",
    codec: str = "bf16",
    codec_down: str | None = None,
    gradients_until: float | str = AUTO,
    staleness: str | int = "none",
    rows: int = 0,
    owners: int = 1,
    merge: str = "uniform",
    exact: int = 0,
    gain: str = "safe",
) -> StrategySpec:
    """Pushes to a server that applies each push on arrival; no worker waits for another.

    θ ← θ − (1/K) f(s) Δᵢ;  Δᵢ = mark − θᵢ, with K workers, s versions late, f of `staleness`.

    Args:
        every: when a worker pushes: so many steps, seconds, examples or epochs after its last push.
        fetch: when a worker takes the owner's parameters; None: after every push.
        outer: the optimizer that applies a delta, or a gradient with `payload="gradient"`.
        payload: "delta", or "gradient": the sum of the gradients since the last push.
        codec: the numbers that pushes travel in: "fp32", "bf16", "int8" or "int4".
        codec_down: the same for the way from owner to worker; None: "fp32".
        gradients_until: the share of a stage, 0 to 1, that takes every step by the mean gradient of
            all workers; "auto" follows the number of steps.
        staleness: weight of a push that is s versions late: "none": 1; "inverse": 1/(1+s);
            a number n: dropped where s > n.
        rows: only rows of so many numbers that changed travel; 0: the whole vector.
        owners: 1, or with rows as many as there are workers: each owns a shard of a table.
        merge: of a sharded table, what a push weighs: "uniform": 1/K; "reads": more of rows that
            few steps read.
        exact: of a sharded table, so many numbers at the end of each row travel as float32 in
            int8 and int4.
        gain: "safe" lowers an outer gain at which training diverges; "unsafe" takes it as given.

    Raises:
        UsageError: a part is unknown, is out of its limits, or conflicts with the others.

    Example:
        >>> str(downpour(codec="fp32"))
        'downpour every 10 steps, sgd(lr=1), staleness none, fp32'

    Source: Dean et al., Large Scale Distributed Deep Networks, 2012.
    """
    if payload not in ("delta", "gradient"):
        wrong = "payload of downpour must be one of 'delta', 'gradient'"
        raise UsageError(wrong, got=repr(payload))
    return StrategySpec(recipe="downpour", release="immediate", **locals())


@_recipe
def elastic(
    *,
    every: Trigger = Steps(10),
    alpha: float = 0.9,
    codec_down: str | None = "bf16",
    gradients_until: float | str = AUTO,
) -> StrategySpec:
    """Pulls each worker and a centre towards each other, as a spring does; no worker waits.

    e = min(α/K, ½)(θᵢ − centre);  θᵢ ← θᵢ − e;  centre ← centre + e, with K workers.

    Args:
        every: when a worker pushes: so many steps, seconds, examples or epochs after its last push.
        alpha: strength of the spring, times the number of workers K; 0.001 to 1.
        codec_down: the numbers in which the pull travels back; None: "fp32".
        gradients_until: the share of a stage, 0 to 1, that takes every step by the mean gradient of
            all workers; "auto" follows the number of steps.

    Raises:
        UsageError: a part is unknown, is out of its limits, or conflicts with the others.

    Example:
        >>> str(elastic(alpha=0.5))
        'elastic every 10 steps, alpha 0.5/K, fp32 up, bf16 down'

    Source: Zhang, Choromanska, LeCun, EASGD, 2015.
    """
    return StrategySpec(recipe="elastic", release="immediate", payload="elastic", **locals())


@_recipe
def all_reduce(
    *,
    merge: str = "examples",
    codec: str = "fp32",
    codec_down: str | None = None,
    error_feedback: bool | None = None,
    quorum: float = 1.0,
    grace_seconds: float = 0.0,
    owners: int = 1,
    rows: int = 0,
) -> StrategySpec:
    """Takes every step by the mean gradient of all workers' examples.

    g ← Σ nᵢgᵢ / Σ nᵢ, with nᵢ examples of worker i; then every worker takes the same inner step.

    Args:
        merge: how the gradients become one: "uniform", "examples" or "nova".
        codec: the numbers that vectors travel in: "fp32", "bf16", "int8" or "int4".
        codec_down: the same for the way from owner to worker; None: as `codec`.
        error_feedback: True adds what the codec leaves out of a gradient to the worker's next one;
            None: in int8 and int4.
        quorum: the share of the workers (above 1: how many) whose pushes close a round.
        grace_seconds: seconds that a round waits for the others once the quorum has pushed.
        owners: 1, or as many as there are workers: each merges a shard of the vector.
        rows: numbers in a row of a sharded table: each worker owns a shard, and takes its steps;
            needs owners, and a model that says which rows a batch reads; 0: every worker holds all.

    Raises:
        UsageError: a part is unknown, is out of its limits, or conflicts with the others.

    Example:
        >>> str(all_reduce(codec="bf16"))
        'all_reduce every step, merge examples, bf16'

    Source: synchronous SGD, every step.
    """
    return StrategySpec(recipe="all_reduce", payload="gradient", **locals())


@_recipe
def full_gradient(
    *,
    merge: str = "examples",
    codec: str = "fp32",
    codec_down: str | None = None,
    error_feedback: bool | None = None,
    quorum: float = 1.0,
    grace_seconds: float = 0.0,
    owners: int = 1,
) -> StrategySpec:
    """Takes one step an epoch, by the gradient over all rows, as MLlib's optimizers do.

    g ← Σ nᵢgᵢ / Σ nᵢ, with gᵢ summed over all nᵢ rows of worker i.

    Args:
        merge: how the gradients become one: "uniform", "examples" or "nova".
        codec: the numbers that vectors travel in: "fp32", "bf16", "int8" or "int4".
        codec_down: the same for the way from owner to worker; None: as `codec`.
        error_feedback: True adds what the codec leaves out of a gradient to the worker's next one;
            None: in int8 and int4.
        quorum: the share of the workers (above 1: how many) whose pushes close a round.
        grace_seconds: seconds that a round waits for the others once the quorum has pushed.
        owners: 1, or as many as there are workers: each merges a shard of the vector.

    Raises:
        UsageError: a part is unknown, is out of its limits, or conflicts with the others.

    Example:
        >>> str(full_gradient())
        'full_gradient every step, merge examples, fp32'

    Source: batch gradient descent, as in MLlib.
    """
    return StrategySpec(recipe="full_gradient", payload="gradient", whole_part=True, **locals())


@_recipe
def publish(
    *,
    every: Trigger = Steps(10),
    codec: str = "int8",
    exact_every: int = 10,
    gradients_until: float | str = AUTO,
    quorum: float = 1.0,
    grace_seconds: float = 0.0,
) -> StrategySpec:
    """Sends every worker's deltas to all others, which apply them on arrival; no server.

    θ ← θ − Δⱼ/K for the delta Δⱼ of every worker j, one's own too, with K workers.

    Args:
        every: when a worker pushes: so many steps, seconds, examples or epochs after its last push.
        codec: the numbers that publications travel in: "fp32", "bf16", "int8" or "int4".
        exact_every: publications of each worker, on average, between two exact averages.
        gradients_until: the share of a stage, 0 to 1, that takes every step by the mean gradient of
            all workers; "auto" follows the number of steps.
        quorum: the share of the workers, 0.01 to 1, that an exact average needs.
        grace_seconds: seconds that an exact average waits for the others after the quorum.

    Raises:
        UsageError: a part is unknown, is out of its limits, or conflicts with the others.

    Example:
        >>> str(publish())
        'publish every 10 steps to all, exact every 10 rounds, int8'

    Source: impetus: deep belief networks on Spark.
    """
    return StrategySpec(recipe="publish", payload="published", **locals())


@_recipe
def gossip(
    *,
    every: Trigger = Steps(10),
    codec: str = "bf16",
    exact_every: int = 10,
    graph: str = "exponential",
    gradients_until: float | str = AUTO,
    quorum: float = 1.0,
    grace_seconds: float = 0.0,
) -> StrategySpec:
    """Sends every worker's parameters to one other, which mixes them in by half; no server.

    θᵢ ← θᵢ + ½(θⱼ − θᵢ′), with θᵢ′ worker i's own without the steps since it sent last.

    Args:
        every: when a worker pushes: so many steps, seconds, examples or epochs after its last push.
        codec: the numbers that publications travel in: "fp32", "bf16", "int8" or "int4".
        exact_every: publications of each worker, on average, between two exact averages; left out,
            5 with more than 8 workers.
        graph: who a worker sends to: "exponential", "ring" or "random".
        gradients_until: the share of a stage, 0 to 1, that takes every step by the mean gradient of
            all workers; "auto" follows the number of steps.
        quorum: the share of the workers, 0.01 to 1, that an exact average needs.
        grace_seconds: seconds that an exact average waits for the others after the quorum.

    Raises:
        UsageError: a part is unknown, is out of its limits, or conflicts with the others.

    Example:
        >>> str(gossip(graph="ring"))
        'gossip every 10 steps to one by one, ring, exact every 10 or 5 rounds, bf16'

    Source: Lian et al., 2017; Assran et al., 2019.
    """
    return StrategySpec(recipe="gossip", payload="parameters", **locals())


@dataclass(frozen=True, slots=True)
class Recipe:
    """A row of the table."""

    build: Callable[..., StrategySpec]
    source: str
    identities: tuple[str, ...]
    """Checked in float32, codec fp32, plain SGD inside and outer gain 1, to 1e-6."""


RECIPES: dict[str, Recipe] = {
    "all_reduce": Recipe(all_reduce, "synchronous SGD, every step", (ONE_WORKER,)),
    "averaging": Recipe(averaging, "Moritz et al., SparkNet, 2015", (ONE_WORKER, EVERY_STEP)),
    "diloco": Recipe(diloco, "Douillard et al., DiLoCo, 2023", (ONE_WORKER, NO_MOMENTUM)),
    "downpour": Recipe(
        downpour, "Dean et al., Large Scale Distributed Deep Networks, 2012", (ONE_WORKER,)
    ),
    "elastic": Recipe(elastic, "Zhang, Choromanska, LeCun, EASGD, 2015", (ELASTIC_HALF,)),
    "full_gradient": Recipe(full_gradient, "batch gradient descent, as in MLlib", (FULL_BATCH,)),
    "gossip": Recipe(gossip, "Lian et al., 2017; Assran et al., 2019", (ONE_WORKER,)),
    "iterative_reduce": Recipe(iterative_reduce, "IterativeReduce on Hadoop YARN", (ONE_WORKER,)),
    "post_local": Recipe(
        post_local,
        "Lin et al., Don't Use Large Mini-Batches, Use Local SGD, 2020",
        (ONE_WORKER, ALL_PER_STEP),
    ),
    "publish": Recipe(publish, "impetus: deep belief networks on Spark", (ONE_WORKER,)),
    "streaming": Recipe(
        streaming, "Douillard et al., Streaming DiLoCo, 2025", (ONE_WORKER, ONE_FRAGMENT)
    ),
}

DEFAULT = "averaging"


def from_plain(values: str | Mapping[str, Any]) -> StrategySpec | CustomStrategy:
    """Builds a strategy from its recipe's name, or from plain values with one.

    A name as "package.module:name" is one of the user's own.

    Example:
        >>> from_plain({"recipe": "averaging", "every": {"steps": 7}}).every
        Steps(7)

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
        return CustomStrategy(name)
    if name not in RECIPES:
        raise unknown_name("strategy", name, RECIPES)
    return RECIPES[name].build(**parts_of(name, parts))


def to_plain(strategy: StrategySpec | CustomStrategy) -> dict[str, Any]:
    """Returns plain values for TOML and JSON, without what is as usual: `from_plain`'s inverse."""
    plain = {"recipe": strategy.recipe}
    if isinstance(strategy, CustomStrategy):
        return plain
    default = RECIPES[strategy.recipe].build()
    for f in dataclasses.fields(strategy):
        value = getattr(strategy, f.name)
        is_explicit = f.name in default.usual - strategy.usual
        is_changed = f.name not in ("recipe", "usual", "known") and value != getattr(
            default, f.name
        )
        if is_explicit or is_changed:
            plain[f.name] = plain_of(value)
    return plain
