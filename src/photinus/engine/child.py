"""A worker process of the local engine: reads its errand from the pipe of its own parent."""

from __future__ import annotations

import pickle  # noqa: TID251 - from the parent's private pipe, never from a socket or a file
import sys
from dataclasses import dataclass

import numpy as np

from photinus.core.errors import LinkLostError
from photinus.engine.base import part_of
from photinus.engine.errand import Errand
from photinus.feed.rows import Rows
from photinus.nodes.life import Part

__all__ = ["LOST", "UNREADABLE", "Order", "main"]

UNREADABLE, LOST = 64, 65
"""How a child ends that cannot read its errand, or finds no coordinator any more."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a parent hands to its child."""

    errand: Errand
    slot: int
    attempt: str
    features: str
    """A .npy file of the slot's rows, mapped into memory."""
    labels: str
    """Likewise; empty without labels."""
    scale: float | None

    def part(self) -> Part:
        """Opens the slot's rows."""
        labels = np.load(self.labels, mmap_mode="r") if self.labels else None
        rows = Rows.of(np.load(self.features, mmap_mode="r"), labels, scale=self.scale)
        return part_of(rows, self.errand.program)


def main() -> int:
    """Runs one errand; returns the exit code."""
    try:
        order: Order = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by the parent process
    except (AttributeError, ImportError) as error:
        sys.stderr.write(f"{error}\n")
        return UNREADABLE
    except EOFError:  # the parent went before it had said anything
        return LOST
    try:
        order.errand.run(order.slot, order.attempt, order.part)
    except LinkLostError:
        return LOST
    return 0


if __name__ == "__main__":
    sys.exit(main())
