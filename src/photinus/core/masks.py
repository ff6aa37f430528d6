"""What the mask of an input is called."""

from __future__ import annotations


def mask_of(name: str) -> str:
    """Returns the name of an input's mask.

    Example:
        >>> mask_of("tokens")
        'tokens_mask'
    """
    return f"{name}_mask"
