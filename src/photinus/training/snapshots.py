"""What a checkpoint saves and a run resumes from: a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from photinus.core.parameters import Vector
from photinus.strategies.base import Message

Shards = Mapping[int, Mapping[str, Vector]]
"""Slot -> the arrays of its shard of a table, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSnapshot:
    """A whole state of a run: an agreed point, and all that each worker holds at that point.

    Everything in it belongs to one version of one phase.
    """

    phase: int
    version: int
    applied: int
    """Examples of this phase in the agreed parameters."""
    budget: int
    point: Message
    """The agreed point: parameters, outer state, buffers."""
    positions: Mapping[int, int]
    """Slot -> how far its rows are in the agreed parameters."""
    rows: Mapping[int, int]
    """Slot -> how many rows it holds."""
    digests: Mapping[int, str] = field(default_factory=dict)
    """Slot -> 64 bits that follow from the content of its rows, where they are known."""
    reached: Mapping[int, Mapping[tuple[int, int], int]] = field(default_factory=dict)
    """Slot -> how far its rows are in each fragment; a slot whose pushes are whole is left out."""
    lost: Mapping[int, int] = field(default_factory=dict)
    """Slot -> examples that are in no parameters, and never will be."""
    inner: Mapping[int, Mapping[str, Vector]] = field(default_factory=dict)
    """Slot -> its inner optimizer's state; a slot without one starts fresh."""
    history: tuple[Vector, ...] = ()
    """What the earlier phases agreed on."""
    row_size: int = 0
    """Numbers in a row of a sharded table: each shard has a file."""
    shards: Shards = field(default_factory=dict)
    """Slot -> the arrays of its shard, memory-mapped; the point has then no vector."""

    @property
    def is_phase_start(self) -> bool:
        """True between phases: no worker holds anything alone."""
        return self.version == 0 and not any(self.positions.values())

    @property
    def name(self) -> str:
        """Sorts by the order of saving."""
        return f"phase{self.phase:03d}-version{self.version:09d}"
