"""Layers for modules of one's own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from photinus.core.errors import UsageError
from photinus.core.settings import at_least, unknown_name

__all__ = ["ShardedEmbedding"]

ADAGRAD, ADAM, SGD = "adagrad", "adam", "sgd"
ROW_OPTIMIZERS = (ADAGRAD, ADAM, SGD)
"""What can step the rows of a table."""
_is_empty: ContextVar[bool] = ContextVar("is_empty", default=False)


class ShardedEmbedding(nn.Embedding):
    """A table of rows, sharded over the workers of a run; elsewhere it is an `nn.Embedding`.

    Of K workers each owns every K-th row. It steps the rows that its batches read, and agrees on
    them with their owners in each round. Their first numbers are drawn by their owners.

    Args:
        num_embeddings: N, how many rows.
        embedding_dim: D, numbers in a row.
        padding_idx: the row that stays 0.
        std: of the first numbers, which are normal with mean 0.
        optimizer: what steps a row. "adagrad" keeps one number beside each row, "adam" D + 2,
            "sgd" none.
        lr: its highest rate; it falls and rises as the rate of the other layers does. None:
            0.05 of adagrad, 0.005 of adam, 0.1 of sgd.

    Raises:
        UsageError: the optimizer is unknown, there is no row or no number in it, `std` or `lr` is
            below 0, or `padding_idx` is no row.

    Example:
        >>> table = ShardedEmbedding(1_000, 16)
        >>> table(torch.tensor([[3, 7]])).shape
        torch.Size([1, 2, 16])

    Source: the optimizers by rows are those of FBGEMM (Khudia et al., 2021).
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        std: float = 0.1,
        optimizer: str = ADAGRAD,
        lr: float | None = None,
    ) -> None:
        if optimizer not in ROW_OPTIMIZERS:
            raise unknown_name("optimizer of ShardedEmbedding", optimizer, ROW_OPTIMIZERS)
        num_embeddings = _checked_size("num_embeddings", num_embeddings)
        embedding_dim = _checked_size("embedding_dim", embedding_dim)
        for name, value in (("std", std), ("lr", 0.0 if lr is None else lr)):
            if not at_least(0).holds(value):
                wrong = f"{name} of ShardedEmbedding must be a number of at least 0"
                raise UsageError(wrong, got=repr(value))
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            wrong = f"padding_idx of ShardedEmbedding must be one of its {num_embeddings} rows"
            raise UsageError(wrong, got=padding_idx)
        self.std, self.optimizer, self.lr = std, optimizer, lr
        self.reader: Callable[[Tensor], Tensor] | None = None
        """Looks rows up where they lie in a run."""
        # a read of them gives no number, rather than a wrong one
        nothing = torch.full((1, 1), torch.nan).expand(num_embeddings, embedding_dim)
        empty = nothing if _is_empty.get() else None
        super().__init__(num_embeddings, embedding_dim, padding_idx, _weight=empty)
        self._place = None if empty is None else empty.data_ptr()

    def reset_parameters(self) -> None:
        """Draws all rows."""
        nn.init.normal_(self.weight, std=self.std)
        self._fill_padding_idx_with_zero()

    @property
    def is_as_made(self) -> bool:
        """Whether the numbers are as the layer made them: neither replaced nor frozen."""
        weight = self.weight
        is_held = isinstance(weight, nn.Parameter) and weight.data_ptr() == self._place
        # of the ways to write, torch lets only those through that write one number everywhere
        return is_held and weight.requires_grad and bool(weight[:1, :1].isnan().all())

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the rows [..., D] of ids [...]."""
        return super().forward(ids) if self.reader is None else self.reader(ids)


def _checked_size(name: str, size: Any) -> int:  # noqa: ANN401 - what a user may give
    """Returns a size as int; it may be a tensor, as `ids.max() + 1` is."""
    try:
        whole = operator.index(size)
    except TypeError:
        whole = 0
    if whole < 1:
        wrong = f"{name} of ShardedEmbedding must be a whole number of at least 1"
        raise UsageError(wrong, got=repr(size))
    return whole


@contextmanager
def tables_left_empty() -> Iterator[None]:
    """Has a `ShardedEmbedding` that is made meanwhile take no memory: its rows lie elsewhere."""
    token = _is_empty.set(True)
    try:
        yield
    finally:
        _is_empty.reset(token)
