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
from photinus.core.factories import code_named
from photinus.core.settings import unknown_name

_Sums = Mapping[str, float]


def said_and_true(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns which of K classes or labels were predicted, and which are true: both bool [B, K].

    Args:
        outputs: [B, K] of K classes, [B] or [B, 1] of one that is or is not, or [B, K] of K labels,
            all before a softmax or sigmoid.
        labels: [B], the class's number; or [B, K], zeros and ones.
    """
    if labels.ndim == 1 and outputs.numel() > len(labels):
        classes = outputs.shape[1]
        return one_hot(outputs.argmax(1), classes) > 0, one_hot(labels.long(), classes) > 0
    said, true = outputs.reshape(len(labels), -1) > 0, labels.reshape(len(labels), -1) > 0.5
    if said.shape[1] == 1:
        said, true = torch.cat((~said, said), 1), torch.cat((~true, true), 1)
    return said, true


def _cases(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Returns true and false positives and misses of each class, and the rows without a fault."""
    said, true = said_and_true(outputs, labels)
    found = {"right": said & true, "extra": said & ~true, "missed": true & ~said}
    counts = {name: cases.sum(0).tolist() for name, cases in found.items()}
    sums = {f"{name}:{k}": float(n) for name, many in counts.items() for k, n in enumerate(many)}
    is_labels = labels.ndim > 1
    kept = {name: value for name, value in sums.items() if value or is_labels}
    return {**kept, "exact:": float((said == true).all(1).sum())}


def _top5(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    best = outputs.topk(min(5, outputs.shape[1]), 1).indices  # [B, 5]
    return {"top5:": float((best == labels.long()[:, None]).any(1).sum())}


def _residuals(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    y = labels.reshape(len(labels), -1).double()  # [B, K]
    apart = outputs.reshape(y.shape).double() - y
    moments = {"squared": apart.square(), "absolute": apart.abs(), "y": y, "yy": y.square()}
    return {
        f"{name}:{k}": float(total)
        for name, each in moments.items()
        for k, total in enumerate(each.sum(0))
    }


def _part(sums: _Sums, name: str) -> dict[str, float]:
    return {k.partition(":")[2]: v for k, v in sums.items() if k.startswith(f"{name}:")}


def _mean(values: Iterable[float]) -> float:
    many = list(values)
    return sum(many) / max(1, len(many))


def _rates(sums: _Sums, *others: str) -> dict[str, float]:
    """Returns right / (right + others) of every class that was predicted or true; 0 of 0."""
    right, missed = _part(sums, "right"), [_part(sums, name) for name in ("extra", "missed")]
    counted = [_part(sums, name) for name in others]
    rates = {}
    for k in {*right, *missed[0], *missed[1]}:
        all_ = right.get(k, 0.0) + sum(part.get(k, 0.0) for part in counted)
        rates[k] = right.get(k, 0.0) / all_ if all_ else 0.0
    return rates


def _f1(sums: _Sums) -> float:
    precision, recall = _rates(sums, "extra"), _rates(sums, "missed")
    both = {k: precision[k] + recall[k] for k in precision}
    return _mean(2 * precision[k] * recall[k] / both[k] if both[k] else 0.0 for k in both)


def _rmse(sums: _Sums) -> float:
    return math.sqrt(_mean(v / sums["examples"] for v in _part(sums, "squared").values()))


def _r2(sums: _Sums) -> float:
    y, yy, squared = (_part(sums, name) for name in ("y", "yy", "squared"))
    spread = {k: yy[k] - y[k] ** 2 / sums["examples"] for k in y}
    return _mean(1 - squared[k] / spread[k] if spread[k] else 0.0 for k in y)


class _Metric(NamedTuple):
    """One metric."""

    sums: Callable[[Tensor, Tensor], dict[str, float]]
    """Of outputs [B, ...] and labels [B, ...]."""
    value: Callable[[_Sums], float]
    """Of the sums of all batches, "examples" among them."""


METRICS: Mapping[str, _Metric] = {
    "accuracy": _Metric(_cases, lambda s: s["exact:"] / s["examples"]),
    "precision": _Metric(_cases, lambda s: _mean(_rates(s, "extra").values())),
    "recall": _Metric(_cases, lambda s: _mean(_rates(s, "missed").values())),
    "f1": _Metric(_cases, _f1),
    "top5": _Metric(_top5, lambda s: s["top5:"] / s["examples"]),
    "rmse": _Metric(_residuals, _rmse),
    "mae": _Metric(
        _residuals, lambda s: _mean(v / s["examples"] for v in _part(s, "absolute").values())
    ),
    "r2": _Metric(_residuals, _r2),
}
"""Precision, recall and F1 are means over the classes; accuracy counts rows without any fault."""

CLASS_METRICS = frozenset({"accuracy", "precision", "recall", "f1", "top5"})
"""Those that count classes or labels."""

REGRESSION = ("rmse", "mae", "r2")
"""What is reported of every regression."""


def confused(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Returns how often each class was predicted for each: sums for `confusion`."""
    said, true = said_and_true(outputs, labels)  # [B, C]
    table = true.double().T @ said.double()  # [C, C]
    cells = table.nonzero().tolist()
    classes = len(table)
    return {f"said:{classes}:{t}:{s}": float(table[t, s]) for t, s in cells}


def confusion(sums: _Sums) -> list[list[int]]:
    """Returns the table of true classes (rows) and predicted ones; empty without classes.

    Example:
        >>> confusion({"said:2:0:0": 3.0, "said:2:1:0": 1.0})
        [[3, 0], [1, 0]]
    """
    cells = [(*map(int, name.split(":")), int(n)) for name, n in _part(sums, "said").items()]
    if not cells:
        return []
    table = [[0] * cells[0][0] for _ in range(cells[0][0])]
    for _, true, said, count in cells:
        table[true][said] = count
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
    sums = {f"own:{name}": _own(name, outputs, labels) for name in own}
    for kind in {METRICS[name].sums for name in names if name not in own}:
        sums |= kind(outputs, labels)
    return sums


def _own(name: str, outputs: Tensor, labels: Tensor) -> float:
    """Returns the sum over a batch of a metric of the user's own."""
    wrong = f"the metric {name} must take outputs [B, ...] and labels [B, ...], and return a number"
    wrong += " for each row, a tensor [B]"
    do = (
        "wrap it in a function that does; one that is no mean over rows is computed after transform"
    )
    each = code_named(name, "metric")
    try:
        found = each(outputs, labels)
    except Exception as error:  # whatever the user's function raises
        first = str(error).strip().partition("\n")[0]
        got = f"{type(error).__name__}: {first}{_place(error)}"
        raise UsageError(wrong, got=got, do=do) from error
    if not isinstance(found, Tensor) or found.numel() != len(labels):
        is_tensor = isinstance(found, Tensor)
        got = f"a tensor of shape {list(found.shape)}" if is_tensor else type(found).__name__
        raise UsageError(wrong, got=got, do=do)
    return float(found.double().sum())


def _place(error: Exception) -> str:
    """Returns the line that raised an error; nothing where the function could not be called."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return "" if last.filename == __file__ else f" ({Path(last.filename).name}, line {last.lineno})"


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
