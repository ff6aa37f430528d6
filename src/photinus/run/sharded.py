"""Jobs whose module has tables sharded over the workers: what that requires of the strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.devices.names import OPENCL
from photinus.models.module import ModuleStage
from photinus.models.sharded import ShardedModel
from photinus.run.evaluate import LazyModel
from photinus.strategies.codecs import codec
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.outer import Adagrad, OuterOptimizer, RowAdagrad, RowAdam, Sgd
from photinus.strategies.shards import READS
from photinus.strategies.spec import StrategySpec

_USUAL = {"every": Steps(16), "outer": Sgd(), "merge": READS, "gradients_until": 0.0}
_OUTER = (Sgd, Adagrad, RowAdagrad, RowAdam)
_MAX_STEPS = Steps(64)
"""Where rounds are counted in seconds, the most that a worker takes: it asks for their rows."""
_SINGLE_WORKER = {"codec": "fp32"}
"""With a single worker nothing travels."""
_REQUIREMENTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "release": (lambda v: v == "rounds", 'release="rounds"'),
    "every": (lambda v: not v.counts_rows, "every=Steps(16) or Seconds(2)"),
    "outer": (lambda v: isinstance(v, _OUTER), "Sgd(), Adagrad(), RowAdagrad() or RowAdam()"),
    "merge": (lambda v: v in ("uniform", READS), 'merge="uniform", or leave it out'),
    "codec_down": (lambda v: v is None, "codec alone"),
    "gradients_until": (lambda v: v == 0, "gradients_until=0.0"),
    "quorum": (lambda v: v == 1, "quorum=1.0"),
    "fragments": (lambda v: v == 0, "fragments=0"),
}
"""Part of a strategy -> whether it works with such tables, and which value does."""


def with_sharded_tables(draft: LazyModel) -> LazyModel:
    """Returns the job with a strategy that fits the `ShardedEmbedding` tables of its module.

    Args:
        draft: the job, and its model.

    Raises:
        UsageError: it names a strategy or a device that does not work with them.
    """
    job, model = draft.job, draft.job.model
    if not isinstance(model, ModuleStage) or model.sharded:
        return draft
    sharded_model = draft.model()
    if not isinstance(sharded_model, ShardedModel):
        return draft
    if OPENCL in job.device_kinds:
        wrong = "modules with sharded tables are not trained on OpenCL devices"
        got = f"device {model.device or job.device!r}"
        raise UsageError(wrong, got=got, do='device="cpu", or one of torch\'s, such as "cuda"')
    changes: dict[str, Any] = {
        "model": replace(model, sharded=sharded_model.row_size),
        "strategy": _sharded_strategy(job.strategy, job.workers, sharded_model),
        "strategies": {
            phase: _sharded_strategy(strategy, job.workers, sharded_model)
            for phase, strategy in job.strategies.items()
        },
    }
    return LazyModel(replace(job, **changes), sharded_model)


def _sharded_strategy(
    strategy: StrategySpec | CustomStrategy, workers: int, model: ShardedModel
) -> StrategySpec:
    """Returns a strategy with a shard of the rows at each worker."""
    if not isinstance(strategy, StrategySpec) or strategy.recipe != "averaging":
        wrong = "workers agree on tables that lie among them by averaging"
        do = "name averaging, or use nn.Embedding(sparse=True), which every worker holds whole"
        raise UsageError(wrong, got=str(strategy), do=do)
    settings: dict[str, Any] = {**_USUAL, **(_SINGLE_WORKER if workers == 1 else {})}
    settings = {name: value for name, value in settings.items() if name in strategy.usual}
    for name, (is_accepted, do) in _REQUIREMENTS.items():
        value = settings.get(name, getattr(strategy, name))
        if not is_accepted(value):
            wrong = f"{name} of averaging does not go with sharded tables"
            raise UsageError(wrong, got=str(value), do=f"use {do}")
    if model.has_statistics:
        outer = settings.get("outer", strategy.outer)
        _check_statistics(outer, settings.get("codec", strategy.codec))
    settings |= {"owners": workers, "rows": model.row_size}
    every = settings.get("every", strategy.every)
    settings["every"] = every if every.steps else every | _MAX_STEPS
    if codec(settings.get("codec", strategy.codec)).has_feedback:
        settings["exact"] = model.optimizer_state_width
    return replace(strategy, **settings, usual=strategy.usual - {*settings})


def _check_statistics(outer: OuterOptimizer, name: str) -> None:
    """Refuses what would make a running variance wrong, or negative: it is a row of the table."""
    if codec(name).has_feedback:
        wrong = "running statistics, as of BatchNorm, need rows in fp32 or bf16"
        raise UsageError(wrong, got=f"codec {name}", do='use codec="bf16"')
    if outer != Sgd():
        wrong = "running statistics, as of BatchNorm, move by the workers' mean"
        raise UsageError(wrong, got=f"outer {outer!r}", do="use outer=Sgd()")
