"""What the mask of an input is called, and the label of a place that is masked."""

from __future__ import annotations

NO_LABEL = -100
"""Of padding, or of a token that has none: the cross entropies leave it out, as torch's does."""


def mask_of(name: str) -> str:
    """Returns the name of an input's mask.

    Example:
        >>> mask_of("tokens")
        'tokens_mask'
    """
    return f"{name}_mask"
