"""Tables of a module of which a batch reads few rows: `nn.Embedding(sparse=True)` and its like.

A row that no batch reads must not move, or every push would hold all rows. So what acts on all
rows (momentum, weight decay, a penalty, a moving average) is refused, or leaves them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from photinus.core.errors import UsageError
from photinus.models.eager import eager

BY_ROWS = ("adam", "adamw")
"""Of these a table's rows are stepped by torch's SparseAdam."""
_ALLOWED_OPTIMIZERS = ("sgd", "adagrad", *BY_ROWS)
_SPARSE_ADAM_SETTINGS = ("lr", "betas", "eps", "maximize")


def sparse_tables(module: nn.Module) -> tuple[str, ...]:
    """Returns the names of the trained tables of a module whose gradients are sparse.

    Example:
        >>> sparse_tables(nn.Sequential(nn.Embedding(9, 2, sparse=True), nn.Linear(2, 1)))
        ('0.weight',)
    """
    sparse_ids = {id(m.weight) for m in module.modules() if _is_sparse(m)}
    return tuple(n for n, p in module.named_parameters() if p.requires_grad and id(p) in sparse_ids)


def _is_sparse(module: nn.Module) -> bool:
    return isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse


def check_tables(module: nn.Module, l2: Mapping[str, float], average: float) -> None:
    """Looks whether only the rows that a batch reads will move.

    Raises:
        UsageError: a table is shared with a layer whose gradient is dense, has a penalty, or is
            averaged over its steps.
    """
    tables = sparse_tables(module)
    for name in tables:
        table = module.get_parameter(name)
        for path, layer in module.named_modules():
            layer_parameters = layer.parameters(recurse=False)
            if not _is_sparse(layer) and any(p is table for p in layer_parameters):
                _refuse(name, f"{path} shares it, whose gradient is dense")
        for pattern in l2:
            if fnmatchcase(name, pattern):
                _refuse(name, f"l2={pattern!r} moves all rows")
        if average:
            _refuse(name, f"average={average:g} travels whole")


def check_optimizer(tables: tuple[str, ...], optimizer: str, settings: Mapping[str, Any]) -> None:
    """Looks whether an optimizer leaves the rows alone that have no gradient.

    Raises:
        UsageError: it does not.
    """
    if not tables:
        return
    if optimizer.lower() not in _ALLOWED_OPTIMIZERS:
        do = f"use {', '.join(_ALLOWED_OPTIMIZERS)}, or sparse=False"
        _refuse(tables[0], f"optimizer={optimizer!r} moves rows that no batch reads", do)
    for name in ("momentum", "amsgrad"):
        if settings.get(name):
            _refuse(tables[0], f"{name}={settings[name]!r} is for dense gradients")


def _refuse(table: str, got: str, do: str = "leave that out, or use sparse=False") -> None:
    wrong = f"of the sparse table {table} only rows that a batch reads may move"
    raise UsageError(wrong, got=got, do=do)


def sparse_adam(tables: list[nn.Parameter], settings: Mapping[str, Any]) -> torch.optim.Optimizer:
    """Returns what steps the rows of tables, with the settings that it shares with Adam."""
    shared = {name: settings[name] for name in _SPARSE_ADAM_SETTINGS if name in settings}
    return eager(torch.optim.SparseAdam)(tables, **shared)


def nonzero_rows(gradient: Tensor) -> Tensor:
    """Returns the rows of a table's gradient [rows, width] that are not 0, as a sparse tensor."""
    rows = gradient.abs().sum(1).nonzero().squeeze(1)
    return torch.sparse_coo_tensor(
        rows[None],
        gradient[rows],
        gradient.shape,
        is_coalesced=True,
        check_invariants=False,
    )


def write_rows(target: Tensor, gradient: Tensor, name: str, *, is_first: bool) -> None:
    """Writes a table's gradient, or adds it: to the bits of the dense one.

    Args:
        target: the table's part of the flat gradient [rows, width].
        gradient: as autograd has it.
        name: of the table.
        is_first: what stands in `target` is old.

    Raises:
        UsageError: the gradient is dense.
    """
    if not gradient.is_sparse:
        _refuse(name, "the forward pass uses it otherwise, too: its gradient is dense")
    if is_first:
        target.zero_()
    target.index_add_(0, gradient._indices()[0], gradient._values())
