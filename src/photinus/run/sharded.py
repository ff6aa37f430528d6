"""Jobs whose module has tables among the workers: what follows from them for the strategy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.devices.names import AUTO
from photinus.models.module import ModuleStage
from photinus.models.sharded import ShardedModel
from photinus.run.evaluate import Draft
from photinus.strategies.outer import Sgd
from photinus.strategies.own import Own
from photinus.strategies.shards import READS
from photinus.strategies.spec import StrategySpec

_USUAL = {"every": Steps(16), "outer": Sgd(), "merge": READS, "gradients_until": 0.0}


def with_sharded_tables(draft: Draft) -> Draft:
    """Returns the job with a strategy that fits the `ShardedEmbedding` tables of its module.

    Args:
        draft: the job, and its model.

    Raises:
        UsageError: it names a strategy or a device that does not go with them.
    """
    job, model = draft.job, draft.job.model
    if not isinstance(model, ModuleStage) or model.sharded:
        return draft
    made = draft.model()
    if not isinstance(made, ShardedModel):
        return draft
    if job.device not in ("cpu", AUTO):
        wrong = "tables among the workers are trained on the processor"
        raise UsageError(wrong, got=f"device {job.device!r}", do='device="cpu"')
    changes: dict[str, Any] = {
        "model": replace(model, sharded=made.row_size),
        "strategy": _among(job.strategy, job.workers, made.row_size),
        "strategies": {
            phase: _among(strategy, job.workers, made.row_size)
            for phase, strategy in job.strategies.items()
        },
    }
    return Draft(replace(job, **changes), made)


def _among(strategy: StrategySpec | Own, workers: int, row: int) -> StrategySpec:
    """Returns a strategy with a shard of the rows at each worker."""
    if (
        not isinstance(strategy, StrategySpec)
        or strategy.recipe != "averaging"
        or strategy.is_immediate
        or strategy.fragments
    ):
        wrong = "workers agree on tables that lie among them by averaging"
        do = "name averaging, or use nn.Embedding(sparse=True), which every worker holds whole"
        raise UsageError(wrong, got=str(strategy), do=do)
    usual: dict[str, Any] = {n: value for n, value in _USUAL.items() if n in strategy.usual}
    asked = strategy.usual - {*usual, "owners", "rows"}
    return replace(strategy, **usual, owners=workers, rows=row, usual=asked)
