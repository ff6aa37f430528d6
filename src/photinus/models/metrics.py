"""Metrics by name: sums that batches and workers add up, and what these come to."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from photinus.core.errors import UsageError
from photinus.core.factories import resolve_user_code
from photinus.core.settings import unknown_name

_Sums = Mapping[str, float]


def predicted_and_true(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns which of K classes or labels were predicted, and which are true: both bool [B, K].

    Args:
        outputs: [B, K] of K classes, [B] or [B, 1] of one that is or is not, or [B, K] of K labels,
            all before a softmax or sigmoid.
        labels: [B], the class's number; or [B, K], zeros and ones.
    """
    if labels.ndim == 1 and outputs.shape[1:].numel() > 1:  # of no rows, too
        classes = outputs.shape[1]
        return one_hot(outputs.argmax(1), classes) > 0, one_hot(labels.long(), classes) > 0
    predicted, true = outputs.reshape(len(labels), -1) > 0, labels.reshape(len(labels), -1) > 0.5
    if predicted.shape[1] == 1:
        predicted, true = torch.cat((~predicted, predicted), 1), torch.cat((~true, true), 1)
    return predicted, true


def _outcome_sums(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Returns true and false positives and misses of each class, and the rows without a fault."""
    predicted, true = predicted_and_true(outputs, labels)
    outcomes = {"right": predicted & true, "extra": predicted & ~true, "missed": true & ~predicted}
    counts = {name: hits.sum(0).tolist() for name, hits in outcomes.items()}
    sums = {
        f"{name}:{k}": float(n)
        for name, counts_by_class in counts.items()
        for k, n in enumerate(counts_by_class)
    }
    has_labels = labels.ndim > 1
    reported = {name: value for name, value in sums.items() if value or has_labels}
    return {**reported, "exact:": float((predicted == true).all(1).sum())}


def _top5(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    best = outputs.topk(min(5, outputs.shape[1]), 1).indices  # [B, 5]
    return {"top5:": float((best == labels.long()[:, None]).any(1).sum())}


def _residuals(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    if outputs.numel() != labels.numel():
        wrong = f"{', '.join(REGRESSION)} compare each output with a label"
        got = f"outputs {list(outputs.shape)} and labels {list(labels.shape)}"
        raise UsageError(wrong, got=got, do=f"choose of {', '.join(sorted(CLASS_METRICS))}")
    y = labels.reshape(len(labels), -1).double()  # [B, K]
    residuals = outputs.reshape(y.shape).double() - y
    moments = {"squared": residuals.square(), "absolute": residuals.abs(), "y": y, "yy": y.square()}
    return {
        f"{name}:{k}": float(total)
        for name, values in moments.items()
        for k, total in enumerate(values.sum(0))
    }


def _sums_of(sums: _Sums, name: str) -> dict[str, float]:
    return {k.partition(":")[2]: v for k, v in sums.items() if k.startswith(f"{name}:")}


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / max(1, len(numbers))


def _rates(sums: _Sums, *others: str) -> dict[str, float]:
    """Returns right / (right + others) of every class that was predicted or true; 0 of 0."""
    right, extra, missed = (_sums_of(sums, name) for name in ("right", "extra", "missed"))
    other_counts = [_sums_of(sums, name) for name in others]
    rates = {}
    for k in {*right, *extra, *missed}:
        total = right.get(k, 0.0) + sum(counts.get(k, 0.0) for counts in other_counts)
        rates[k] = right.get(k, 0.0) / total if total else 0.0
    return rates


def _f1(sums: _Sums) -> float:
    precision, recall = _rates(sums, "extra"), _rates(sums, "missed")
    total_by_class = {k: precision[k] + recall[k] for k in precision}
    return _mean(
        2 * precision[k] * recall[k] / total_by_class[k] if total_by_class[k] else 0.0
        for k in total_by_class
    )


def _rmse(sums: _Sums) -> float:
    return math.sqrt(_mean(v / sums["examples"] for v in _sums_of(sums, "squared").values()))


def _r2(sums: _Sums) -> float:
    y, yy, squared = (_sums_of(sums, name) for name in ("y", "yy", "squared"))
    spread = {k: yy[k] - y[k] ** 2 / sums["examples"] for k in y}
    return _mean(1 - squared[k] / spread[k] if spread[k] else 0.0 for k in y)


class _Metric(NamedTuple):
    """One metric."""

    sums: Callable[[Tensor, Tensor], dict[str, float]]
    """Of outputs [B, ...] and labels [B, ...]."""
    value: Callable[[_Sums], float]
    """Of the sums of all batches, "examples" among them."""


METRICS: Mapping[str, _Metric] = {
    "accuracy": _Metric(_outcome_sums, lambda s: s["exact:"] / s["examples"]),
    "precision": _Metric(_outcome_sums, lambda s: _mean(_rates(s, "extra").values())),
    "recall": _Metric(_outcome_sums, lambda s: _mean(_rates(s, "missed").values())),
    "f1": _Metric(_outcome_sums, _f1),
    "top5": _Metric(_top5, lambda s: s["top5:"] / s["examples"]),
    "rmse": _Metric(_residuals, _rmse),
    "mae": _Metric(
        _residuals, lambda s: _mean(v / s["examples"] for v in _sums_of(s, "absolute").values())
    ),
    "r2": _Metric(_residuals, _r2),
}
"""Precision, recall and F1 are means over the classes; accuracy counts rows without any fault."""

CLASS_METRICS = frozenset({"accuracy", "precision", "recall", "f1", "top5"})
"""Those that count classes or labels."""

REGRESSION = ("rmse", "mae", "r2")
"""What is reported of every regression."""


def confusion_sums(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Returns how often each class was predicted for each: sums for `confusion`."""
    predicted, true = predicted_and_true(outputs, labels)  # [B, C]
    table = true.double().T @ predicted.double()  # [C, C]
    cells = table.nonzero().tolist()
    classes = len(table)
    return {f"said:{classes}:{t}:{s}": float(table[t, s]) for t, s in cells}


def confusion(sums: _Sums) -> list[list[int]]:
    """Returns the table of true classes (rows) and predicted ones; empty without classes.

    Example:
        >>> confusion({"said:2:0:0": 3.0, "said:2:1:0": 1.0})
        [[3, 0], [1, 0]]
    """
    cells = [(*map(int, name.split(":")), int(n)) for name, n in _sums_of(sums, "said").items()]
    if not cells:
        return []
    table = [[0] * cells[0][0] for _ in range(cells[0][0])]
    for _, true, predicted, count in cells:
        table[true][predicted] = count
    return table


def check_metrics(names: Iterable[str]) -> None:
    """Refuses a name that is none of `METRICS`, nor "package.module:function".

    Raises:
        UsageError: names the nearest one.
    """
    for name in names:
        if ":" not in name and name not in METRICS:
            raise unknown_name("metric", name, METRICS)


def counted(names: Collection[str], outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Returns the sums over a batch that some metrics need.

    Args:
        names: of `METRICS`, or "package.module:function" of outputs and labels, which returns a
            number for each example [B].
        outputs: [B, ...], as the loss takes them.
        labels: [B, ...].

    Raises:
        UsageError: one of the user's own returns something else.
    """
    own = [name for name in names if ":" in name]
    sums = {f"own:{name}": _own_metric_sum(name, outputs, labels) for name in own}
    for batch_sums in {METRICS[name].sums for name in names if name not in own}:
        sums |= batch_sums(outputs, labels)
    return sums


def _own_metric_sum(name: str, outputs: Tensor, labels: Tensor) -> float:
    """Returns the sum over a batch of a metric of the user's own."""
    wrong = f"the metric {name} must take outputs [B, ...] and labels [B, ...], and return a number"
    wrong += " for each row, a tensor [B]"
    do = (
        "wrap it in a function that does; one that is no mean over rows is computed after transform"
    )
    metric = resolve_user_code(name, "metric")
    try:
        values = metric(outputs, labels)
    except Exception as error:  # whatever the user's function raises
        first_line = str(error).strip().partition("\n")[0]
        got = f"{type(error).__name__}: {first_line}{_error_location(error)}"
        raise UsageError(wrong, got=got, do=do) from error
    if not isinstance(values, Tensor) or values.numel() != len(labels):
        is_tensor = isinstance(values, Tensor)
        got = f"a tensor of shape {list(values.shape)}" if is_tensor else type(values).__name__
        raise UsageError(wrong, got=got, do=do)
    return float(values.double().sum())


def _error_location(error: Exception) -> str:
    """Returns the line that raised an error; nothing where the function could not be called."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return (
        "" if frame.filename == __file__ else f" ({Path(frame.filename).name}, line {frame.lineno})"
    )


def finished(names: Iterable[str], sums: _Sums) -> dict[str, float]:
    """Returns metrics out of sums over all batches: means of what is no part of a named metric.

    Example:
        >>> finished(["accuracy"], {"examples": 4.0, "errors": 1.0, "exact:": 3.0})
        {'error': 0.25, 'accuracy': 0.75}
    """
    examples = sums["examples"]
    plain = {n: v for n, v in sums.items() if ":" not in n and n != "examples"}
    means = {("error" if n == "errors" else n): v / examples for n, v in plain.items()}
    for name in names:
        own = sums.get(f"own:{name}")
        means[name] = METRICS[name].value(sums) if own is None else own / examples
    return means
