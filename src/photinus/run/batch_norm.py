"""Gives each worker the rows of a step that it needs: one, and for BatchNorm enough of them."""

from __future__ import annotations

from dataclasses import replace

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from photinus.core.errors import user_message
from photinus.models.module import ModuleConfig
from photinus.models.module_model import ModuleModel
from photinus.models.schedules import follow_batch
from photinus.models.sharded import ShardedModel
from photinus.run.evaluate import LazyModel

LEAST_ROWS, LEAST_IMAGES = 16, 4
"""Of a step, for each worker. `benchmarks/defaults.py --data norms` and `--data maps` show what
fewer cost. An image has many positions, whose mean and variance are taken together."""


def with_rows_to_normalize(draft: LazyModel) -> tuple[LazyModel, str]:
    """Returns the job with a batch that is large enough for its workers, and a warning.

    Each worker takes a row of each step at least, and normalizes its own part: of 32 rows on 16
    workers that would be two rows. The rate grows as the batch does (Goyal et al., 2017), where the
    user has set none.

    Args:
        draft: the job, and its model.
    """
    job, model = draft.job, draft.job.model
    sufficient_rows = LEAST_ROWS * job.workers
    if (
        not isinstance(model, ModuleConfig)
        or job.workers == 1
        or model.batch_size >= sufficient_rows
    ):
        return draft, ""
    built = draft.model()
    modules = built.module.modules() if isinstance(built, (ModuleModel, ShardedModel)) else ()
    needed_rows = {type(m).__name__: _rows_for(m) for m in modules if isinstance(m, _BatchNorm)}
    rows = max(needed_rows.values(), default=1)
    min_batch = rows * job.workers
    if model.batch_size >= min_batch:
        return draft, ""
    name = min((name for name, count in needed_rows.items() if count == rows), default="")
    larger, then, advice = _with_batch(model, min_batch)
    text = user_message(
        f"{name} needs {rows} rows of a step on each worker"
        if name
        else "each worker takes a row of each step",
        got=f"batch_size {model.batch_size} for {job.workers} workers",
        then=then,
        do=f"{advice}use fewer workers{', or GroupNorm,' if name else ''} to keep your batch_size",
    )
    return LazyModel(replace(job, model=larger), built, draft.advice), text


def _with_batch(model: ModuleConfig, batch_size: int) -> tuple[ModuleConfig, str, str]:
    """Returns a config with a larger batch, what that changes, and advice for a rate that stays."""
    factor = batch_size / model.batch_size
    larger, then = replace(model, batch_size=batch_size), f"batch_size is {batch_size} now"
    if model.lr_scale != "none":
        return larger, then, ""
    if not model.has_own_rate:
        rate = follow_batch(model.rate(), "linear", batch_size, model.batch_size)
        then += f", and the learning rate {factor:g} times the usual one"
        return replace(larger, lr=rate), then, ""
    then += f", and your rate has {factor:g} times fewer steps to learn in"
    return larger, then, f"try {factor**0.5:.2g} times that rate, or "


def _rows_for(layer: nn.Module) -> int:
    """Returns how many rows of a step a layer needs."""
    return LEAST_IMAGES if isinstance(layer, (nn.BatchNorm2d, nn.BatchNorm3d)) else LEAST_ROWS
