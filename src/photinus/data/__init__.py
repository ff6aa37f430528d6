"""Rows on their way to the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from photinus.data.dataset import batches

__all__ = ["batches"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the one public name
    """Imports `batches` when it is asked for: it needs torch."""
    if name != "batches":
        raise AttributeError(f"photinus.data has no {name}")
    from photinus.data.dataset import batches

    return batches
