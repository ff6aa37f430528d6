"""What a new job has where nothing is set: its rate, and few passes of a pre-trained module."""

from __future__ import annotations

from dataclasses import replace

from photinus.core.errors import user_message
from photinus.models.base import Model
from photinus.models.module import ModuleConfig
from photinus.models.module_model import ModuleModel
from photinus.models.schedules import Schedule
from photinus.models.sharded import ShardedModel, tables_of
from photinus.run.evaluate import LazyModel
from photinus.training.plan import ADAPTIVE

FINE_TUNING, WARM_UP = 0.05, 0.1
"""Times the usual rate, and the share of the training in which it is reached."""
FINE_TUNING_PASSES = 3.0
"""Over the rows, as transformers' Trainer has them."""


def with_usual_passes(draft: LazyModel) -> LazyModel:
    """Returns the job with few passes over its rows, where its module is pre-trained.

    That is, the job has a start, or transformers has loaded most of the module: also a frozen
    encoder under adapters. Steps of such a module take long, and few are enough.
    """
    job, model = draft.job, draft.job.model
    if not isinstance(model, ModuleConfig) or model.epochs is not None or model.max_steps:
        return draft
    built = draft.model()
    if not job.start and not is_pretrained(built, of_all=True):
        return draft
    settled = replace(job, model=replace(model, epochs=FINE_TUNING_PASSES))
    return LazyModel(settled, built, draft.advice)


def with_usual_rate(draft: LazyModel, *, is_unset: bool) -> tuple[LazyModel, str]:
    """Returns the job with its rate, where its optimizer is adaptive, and a warning or "".

    The rate is that of one process: the usual one falls in the last fifth of the training. With
    other optimizers it falls from where workers train alone: by SGD they could diverge at it. A
    long training, or rows of a table that are seldom read, learn less by a rate that falls early
    (`benchmarks/defaults.py --data many`, `benchmarks/sharded_defaults.py`).

    Weights that transformers has loaded are lost by steps that are right for random ones
    (`benchmarks/fine_tuning_rates.py`), so they have a lower rate.

    Args:
        draft: the job, and its model.
        is_unset: the user has set no rate; that of the job may still follow a larger batch.
    """
    job, model = draft.job, draft.job.model
    if not isinstance(model, ModuleConfig) or model.optimizer.lower() not in ADAPTIVE:
        return draft, ""
    built, rate = draft.model(), model.configured_rate()
    is_fine_tuning = is_unset and is_pretrained(built)
    if is_fine_tuning:
        rate = Schedule.usual(FINE_TUNING * rate.points[-1][1], WARM_UP)
    has_sgd = isinstance(built, ShardedModel) and not built.optimizer_state_width
    whole_rate = rate if has_sgd else rate.until(1.0)
    if whole_rate == model.configured_rate():
        return draft, ""
    settled = replace(model, lr=whole_rate)
    text = _told(settled) if is_fine_tuning else ""
    return LazyModel(replace(job, model=settled), built, draft.advice), text


def _told(model: ModuleConfig) -> str:
    peak = max(value for _, value in model.rate().points)  # as lr_scale makes it
    return user_message(
        "most of what is trained was loaded from a pre-trained model",
        then=f"the learning rate is divided by {1 / FINE_TUNING:g}, to {peak:g}, which keeps what "
        "that model knows",
        do="set lr, which is learningRate of an estimator, for another one",
    )


def is_pretrained(model: Model, *, of_all: bool = False) -> bool:
    """Returns whether transformers has loaded more than half of what is trained, as it notes.

    Args:
        model: with its first parameters.
        of_all: count what is frozen, too.
    """
    if not isinstance(model, (ModuleModel, ShardedModel)):
        return False
    tables = {id(table.weight) for table in tables_of(model.module).values()}  # at their own rate
    counted = [p for p in model.module.parameters() if of_all or p.requires_grad]
    counted = [p for p in counted if id(p) not in tables]
    loaded = [p for p in counted if getattr(p, "_is_hf_initialized", False)]
    return 2 * sum(p.numel() for p in loaded) > sum(p.numel() for p in counted)
