"""Tries a job's module on two rows: finds losses that do not fit, and how many classes it has."""

from __future__ import annotations

from typing import Any

import numpy as np

from photinus.core.errors import DataError, UsageError, user_message
from photinus.data.base import Array, Batch
from photinus.data.inputs import Inputs
from photinus.data.rows import scaled
from photinus.engine.base import ArrayData
from photinus.models.last_operator import ends_with_sigmoid
from photinus.models.losses import CLASSES, SEQUENCE_LOSS, SIGMOIDS
from photinus.models.module import ModuleConfig
from photinus.models.module_model import ModuleModel
from photinus.models.sharded import ShardedModel
from photinus.run.evaluate import LazyModel

MORE_OUTPUTS = "give the module {} outputs or more"
MORE_CLASSES = "set classes of the model to {} or more"
"""What to do about a label that is too large."""


def classes_tried(draft: LazyModel, data: Any) -> int | None:  # noqa: ANN401 - whatever holds rows
    """Returns how many classes a module predicts, where its loss is one of classes.

    It reads no row of a DataFrame: where their shape is not known without that, nothing is tried,
    and a wrong label is named when it is trained on. Other errors are raised then, too, with the
    rows that caused them. The draft's `advice` is set, unless it was before.

    Args:
        draft: the job, and its model.
        data: the rows, as engines take them.

    Raises:
        UsageError: the loss returns no number, or the module no tensor.
        DataError: there are no labels, or they are not one number for each row.
    """
    config = draft.job.model
    model = draft.model() if isinstance(config, ModuleConfig) else None
    if not isinstance(model, (ModuleModel, ShardedModel)):
        return None
    predicts_classes = config.loss in (*CLASSES, SEQUENCE_LOSS)
    batch = _two_rows(data, are_zeros=predicts_classes)
    if batch is None:
        return None
    if draft.advice is None:
        draft.advice = output_advice(draft, batch.features)
    if isinstance(model, ShardedModel):
        return None
    try:
        shape = np.shape(model.outputs(batch.features))
        _check_target(batch, shape, data, config.loss)
        model.measure(batch)
    except (UsageError, DataError):
        raise
    except Exception:  # whatever the user's code raises: on its own rows the error says more
        return None
    if config.loss == SEQUENCE_LOSS:
        return int(shape[-1])
    is_one_label = batch.labels is not None and batch.labels.ndim == 1
    return int(shape[1]) if predicts_classes and is_one_label and len(shape) == 2 else None


def _check_target(batch: Batch, outputs: tuple[int, ...], data: Any, loss: str) -> None:  # noqa: ANN401
    """Refuses what is no class, where a module returns a number for each class [B, C].

    Without labels the features are the target. As one they must be probabilities of the classes:
    torch takes any other numbers of that shape, too, and what it learns by them means nothing.

    Args:
        batch: the first rows.
        outputs: the shape of what the module returns for them.
        data: whatever holds all rows.
        loss: the name of the loss.
    """
    if loss not in CLASSES or len(outputs) != 2:
        return
    if batch.labels is not None:
        _check_one_label(batch.labels, data)
    elif isinstance(batch.features, np.ndarray):
        features = getattr(data, "features", None)
        is_signed = isinstance(features, np.ndarray) and bool((features < 0).any())
        if batch.features.shape != outputs or is_signed:
            wrong = f"{loss} needs labels, and the rows have none"
            raise DataError(wrong, do="name their column, or hand them over: (features, labels)")


def _check_one_label(labels: Array, data: Any) -> None:  # noqa: ANN401 - whatever holds rows
    """Refuses several labels a row [B, L], but probabilities of the classes."""
    is_one_column = labels.ndim == 2 and labels.shape[1] == 1
    if is_one_column or (labels.ndim == 2 and labels.dtype.kind != "f"):
        wrong, do = "a label must be one of the classes", "give one number for each row: "
        do += "labels.ravel()" if is_one_column else "labels.argmax(1) of one-hot rows"
        raise DataError(wrong, got=list(np.shape(getattr(data, "labels", labels))), do=do)


def output_advice(draft: LazyModel, rows: Any) -> list[str]:  # noqa: ANN401 - arrays, or inputs
    """Returns warnings about a module whose last layer does what its loss does itself.

    Args:
        draft: a job of a module, and its model.
        rows: a few that the module takes [B, ...].
    """
    config, model = draft.job.model, draft.model()
    if not isinstance(model, (ModuleModel, ShardedModel)):
        return []
    try:
        outputs = np.asarray(model.outputs(rows))  # [B, ..., classes]
    except Exception:  # of the user's code: on its own rows the error says more
        return []
    class_dims = {"cross_entropy": 2, SEQUENCE_LOSS: 3}.get(config.loss)
    if class_dims is not None:
        are_positive = outputs.ndim == class_dims and bool((outputs >= 0).all())
        sums = outputs.sum(-1) if are_positive else np.zeros(1)
        if np.allclose(sums, 1, rtol=0, atol=1e-5):
            wrong = f"{config.module} returns probabilities, and {config.loss} takes the softmax"
            then, do = "the classes are learnt more slowly", "leave the softmax out of the module"
            return [user_message(f"{wrong} itself", then=then, do=do)]
    if config.loss in SIGMOIDS and ends_with_sigmoid(model.module, lambda: model.outputs(rows)):
        wrong = f"{config.module} ends with a sigmoid, and {config.loss} takes one itself"
        then, do = "no result is below sigmoid(0) = 0.5", "leave the sigmoid out of the module"
        return [user_message(wrong, then=then, do=do)]
    return []


def _two_rows(data: Any, *, are_zeros: bool) -> Batch | None:  # noqa: ANN401
    """Returns the first two rows, or rows of zeros that are like them; None if these are unknown.

    Args:
        data: whatever holds rows.
        are_zeros: so are the labels, for those of the rows may be the wrong ones.
    """
    if not isinstance(data, ArrayData):
        return _zero_rows(data) if hasattr(data, "frame") else None
    first_two = slice(0, 2)
    data_features, labels, weights = data.features, data.labels, data.weights
    has_inputs = isinstance(data_features, Inputs)
    labels = None if labels is None else labels[first_two]
    if has_inputs:
        rows = np.arange(len(data_features))[first_two]
        labels = data_features.token_labels(rows) if labels is None else labels
        features = data_features.batch(rows)
    else:  # a copy, for whatever is done with them in place
        features = scaled(data_features[first_two].copy(), data.scale)
    if labels is not None and are_zeros:
        labels = np.zeros_like(labels)
    return Batch(features, labels, None if weights is None else weights[first_two])


def _zero_rows(data: Any) -> Batch | None:  # noqa: ANN401 - a FrameData
    frame, spec = data.selected()
    shape = data.shape or spec.shape
    if spec.inputs is not None or not shape:
        return None
    kind = np.uint8 if spec.dtype == "uint8" and data.scale is None else np.float32
    labels: Array | None = None
    if spec.label is not None:
        label = frame.schema[spec.label].dataType.simpleString()
        if label.startswith("array"):
            return None  # how many labels a row has is not known
        is_real = label.startswith(("float", "double", "decimal"))
        labels = np.zeros(2, np.float64 if is_real else np.int64)
    return Batch(np.zeros((2, *shape), kind), labels)
