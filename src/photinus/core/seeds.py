"""Derives a seed for each worker, phase, epoch and purpose from the job's seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np


def derive(seed: int, *purpose: int | str) -> int:
    """Returns a seed of 63 bits for one purpose, e.g. `derive(7, "dropout", phase, slot, step)`.

    Example:
        >>> derive(7, "order", 0) == derive(7, "order", 0) != derive(7, "order", 1)
        True
    """
    text = "/".join(str(part) for part in (seed, *purpose))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def backoff(tries: int, who: int | str = 0, most: int = 2) -> float:
    """Returns by how much longer to wait before another try: 1, 2, … `most`, each ± 50 %.

    It follows from `who` and `tries`, not from chance: no two processes retry in step with each
    other, nor any with what makes its tries fail.

    Example:
        >>> [round(backoff(tries, 3), 1) for tries in range(4)]
        [1.3, 1.2, 1.5, 2.9]
    """
    jitter = derive(tries, "backoff", who) / (1 << 63)
    return float(min(most, 1 << min(tries, 16)) * (0.5 + jitter))


def reordered(who: Iterable[int], tries: int) -> list[int]:
    """Returns them in a different order for every try: the same one is not always the last."""
    return sorted(who, key=lambda number: derive(tries, "order", number))


def generator(seed: int, *purpose: int | str) -> np.random.Generator:
    """Returns numpy's generator, seeded for one purpose."""
    return np.random.default_rng(derive(seed, *purpose))
