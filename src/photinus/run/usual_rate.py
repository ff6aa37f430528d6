"""The usual learning rate of a new job, where workers train alone for a part of it."""

from __future__ import annotations

from dataclasses import replace

from photinus.models.module import ModuleConfig
from photinus.models.sharded import ShardedModel
from photinus.run.evaluate import LazyModel
from photinus.training.plan import ADAPTIVE


def with_usual_rate(draft: LazyModel) -> LazyModel:
    """Returns the job with the rate of one process, where its optimizers are adaptive.

    Else the usual rate falls from where workers train alone: by SGD they could diverge at it. A
    long training, or rows of a table that are seldom read, learn less by a rate that falls early
    (`benchmarks/defaults.py --data many`, `benchmarks/sharded_defaults.py`).

    Args:
        draft: the job, and its model.
    """
    job, model = draft.job, draft.job.model
    if not isinstance(model, ModuleConfig) or model.optimizer.lower() not in ADAPTIVE:
        return draft
    built, rate = draft.model(), model.configured_rate()
    has_sgd = isinstance(built, ShardedModel) and not built.optimizer_state_width
    if has_sgd or rate.until(1.0) == rate:
        return draft
    return LazyModel(replace(job, model=replace(model, lr=rate.until(1.0))), built, draft.advice)
