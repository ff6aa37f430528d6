"""Jobs whose module has tables sharded over the workers: what that requires of the strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.devices.names import OPENCL
from photinus.models.module import ModuleConfig
from photinus.models.owner_steps import is_elementwise
from photinus.models.sharded import ShardedModel
from photinus.run.evaluate import LazyModel
from photinus.strategies.codecs import codec
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.outer import Sgd
from photinus.strategies.shards import READS
from photinus.strategies.spec import EVERY_OF_ROWS, MAX_STEPS_AHEAD, OF_DENSE_LAYERS, StrategySpec

_OF_ROUNDS = {"merge": READS}
_USUAL: Mapping[str, Mapping[str, Any]] = {
    "downpour": {**_OF_ROUNDS, "every": EVERY_OF_ROWS},
    "averaging": {**_OF_ROUNDS, "every": EVERY_OF_ROWS, "outer": Sgd()},
    "diloco": _OF_ROUNDS,
}
"""Recipe -> what it has where nothing is set."""
_SINGLE_WORKER = {"codec": "fp32", "outer": Sgd()}
"""A single worker trains as plain PyTorch does."""
_Requirements = Mapping[str, tuple[Callable[[Any], bool], str]]
"""Part of a strategy -> whether it works with such tables, and which value does."""
_OF_ALL: _Requirements = {
    "codec_down": (lambda v: v is None, "codec alone"),
    "quorum": (lambda v: v == 1, "quorum=1.0"),
}
_OF_DELTAS: _Requirements = {
    **_OF_ALL,
    "payload": (lambda v: v == "delta", 'payload="delta"'),
    "fetch": (lambda v: v is None, "no fetch: a push always brings rows back"),
    "staleness": (lambda v: v == "none", 'staleness="none"'),
    "every": (lambda v: not v.counts_rows, "every=Steps(16) or Seconds(2)"),
    "outer": (
        lambda v: v.is_by_row or isinstance(v, OF_DENSE_LAYERS),
        "Nesterov(), SlowMo() or Adam() for the layers beside them, or one by row, such as Sgd()",
    ),
    "merge": (lambda v: v in ("uniform", READS), 'merge="uniform", or leave it out'),
    "fragments": (lambda v: v == 0, "fragments=0"),
}
_OF_ALL_REDUCE: _Requirements = {
    **_OF_ALL,
    "error_feedback": (lambda v: v is None, "no error_feedback: int8 and int4 always have it"),
}
_OF_PUSHES: _Requirements = {
    **_OF_DELTAS,
    "outer": (lambda v: v.is_by_row, "one by row, such as Sgd(), where nobody waits"),
}
_REQUIREMENTS = {
    "averaging": _OF_DELTAS,
    "diloco": _OF_DELTAS,
    "downpour": _OF_DELTAS,
    "all_reduce": _OF_ALL_REDUCE,
}
"""Recipe -> what it requires of its parts."""


def with_sharded_tables(draft: LazyModel) -> LazyModel:
    """Returns the job with a strategy that fits the `ShardedEmbedding` tables of its module.

    Args:
        draft: the job, and its model.

    Raises:
        UsageError: it names a strategy or a device that does not work with them.
    """
    job, model = draft.job, draft.job.model
    if not isinstance(model, ModuleConfig) or model.sharded:
        return draft
    sharded_model = draft.model()
    if not isinstance(sharded_model, ShardedModel):
        return draft
    if OPENCL in job.device_kinds:
        wrong = "modules with sharded tables are not trained on OpenCL devices"
        got = f"device {model.device or job.device!r}"
        raise UsageError(wrong, got=got, do='device="cpu", or one of torch\'s, such as "cuda"')

    def sharded(strategy: StrategySpec | CustomStrategy) -> StrategySpec:
        spec = _sharded_strategy(strategy, job.workers, sharded_model)
        return _with_owner_steps(spec, model, job.workers)

    changes: dict[str, Any] = {
        "model": replace(model, sharded=sharded_model.row_size),
        "strategy": sharded(job.strategy),
        "strategies": {phase: sharded(strategy) for phase, strategy in job.strategies.items()},
    }
    return LazyModel(replace(job, **changes), sharded_model, draft.advice)


def _sharded_strategy(
    strategy: StrategySpec | CustomStrategy, workers: int, model: ShardedModel
) -> StrategySpec:
    """Returns a strategy with a shard of the rows at each worker."""
    if not isinstance(strategy, StrategySpec) or strategy.recipe not in _REQUIREMENTS:
        wrong = "workers agree on sharded tables by averaging, diloco, downpour or all_reduce"
        do = "name one of these, or use nn.Embedding(sparse=True), which every worker holds whole"
        raise UsageError(wrong, got=str(strategy), do=do)
    settings: dict[str, Any] = dict(_USUAL.get(strategy.recipe, {}))
    settings |= _SINGLE_WORKER if workers == 1 else {}
    settings = {name: value for name, value in settings.items() if name in strategy.usual}
    if strategy.is_immediate:
        settings["merge"] = READS
    requirements = _OF_PUSHES if strategy.is_immediate else _REQUIREMENTS[strategy.recipe]
    for name, (is_accepted, do) in requirements.items():
        value = settings.get(name, getattr(strategy, name))
        if not is_accepted(value):
            wrong = f"{name} of {strategy.recipe} does not go with sharded tables"
            raise UsageError(wrong, got=str(value), do=f"use {do}")
    settings |= {"owners": workers, "rows": model.row_size}
    if strategy.payload == "delta":
        every = settings.get("every", strategy.every)
        if not every.steps:
            settings["every"] = every | Steps(MAX_STEPS_AHEAD)
        if codec(settings.get("codec", strategy.codec)).has_feedback:
            settings["exact"] = model.optimizer_state_width
    sharded = replace(strategy, **settings, usual=strategy.usual - set(settings))
    _check_layers(sharded, model)
    return sharded


def _with_owner_steps(strategy: StrategySpec, model: ModuleConfig, workers: int) -> StrategySpec:
    """Refuses steps by gradients that an owner, which steps its own rows alone, cannot take.

    A usual start by gradients is left out instead.
    """
    has_start = bool(strategy.gradients_until) and workers > 1
    if strategy.payload != "gradient" and not has_start:
        return strategy
    if not model.per_tensor and is_elementwise(replace(model, lr=1.0, clip=0.0).inner):
        return strategy
    if "gradients_until" in strategy.usual:  # it stays one of them: the run warns
        return replace(strategy, gradients_until=0.0)
    wrong = "by gradients the owners of sharded tables step parts of the layers beside them"
    got = "per_tensor" if model.per_tensor else f"optimizer {model.optimizer!r}"
    do = "use an optimizer that steps each number by itself, such as adamw"
    other = "name averaging" if strategy.payload == "gradient" else "set gradients_until=0"
    raise UsageError(f"{wrong}: no owner has a whole tensor", got=got, do=f"{do}, or {other}")


def _check_layers(strategy: StrategySpec, model: ShardedModel) -> None:
    """Refuses what does not go with the layers beside the tables.

    It would make a running variance wrong, or negative: that is in a row.
    """
    if not model.dense.size:
        strategy.check_no_dense_layers()
    if strategy.outer.is_by_row and strategy.outer != Sgd() and model.optimizer_state_width > 1:
        wrong = "an outer optimizer by row also steps what the tables' adam keeps in a row"
        do = 'use outer=Sgd(), or tables with optimizer="adagrad"'
        raise UsageError(wrong, got=f"outer {strategy.outer!r}", do=do)
    if not model.has_statistics:
        return
    if strategy.is_immediate:  # an old change of a variance could make it negative
        wrong = "running statistics, as of BatchNorm, need rounds of all workers"
        raise UsageError(wrong, got=str(strategy), do="use averaging()")
    if strategy.outer != Sgd():
        wrong = "running statistics, as of BatchNorm, move by the workers' mean"
        do = "use averaging()" if strategy.recipe == "diloco" else "use outer=Sgd()"
        raise UsageError(wrong, got=f"outer {strategy.outer!r}", do=do)
    if codec(strategy.codec).has_feedback:
        wrong = "running statistics, as of BatchNorm, need rows in fp32 or bf16"
        raise UsageError(wrong, got=f"codec {strategy.codec}", do='use codec="bf16"')
