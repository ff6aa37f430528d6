"""One seed gives every worker, phase, epoch and purpose its own: there is nothing to save."""

from __future__ import annotations

import hashlib

import numpy as np

__all__ = ["derive", "generator"]


def derive(seed: int, *purpose: int | str) -> int:
    """Returns a seed of 63 bits for one purpose, e.g. `derive(7, "dropout", phase, slot, step)`.

    Example:
        >>> derive(7, "order", 0) == derive(7, "order", 0) != derive(7, "order", 1)
        True
    """
    text = "/".join(str(part) for part in (seed, *purpose))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *purpose: int | str) -> np.random.Generator:
    """Returns numpy's generator, seeded for one purpose."""
    return np.random.default_rng(derive(seed, *purpose))
