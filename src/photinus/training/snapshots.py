"""Cuts: one agreed point with all that each worker holds at that point.

A cut is what a checkpoint saves and what a run resumes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from photinus.core.parameters import Vector
from photinus.strategies.base import Message, Policy
from photinus.training.asks import Snapshot

Shards = Mapping[int, Mapping[str, Vector]]
"""Slot -> the arrays of its shard of a table, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A whole state of a run: everything in it belongs to one version of one phase."""

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
    reached: Mapping[int, Mapping[tuple[int, int], int]] = field(default_factory=dict)
    """Slot -> how far its rows are in each fragment; a slot whose pushes are whole is left out."""
    lost: Mapping[int, int] = field(default_factory=dict)
    """Slot -> examples that are in no parameters, and never will be."""
    inner: Mapping[int, Mapping[str, Vector]] = field(default_factory=dict)
    """Slot -> its inner optimizer's state; a slot without one starts fresh."""
    history: tuple[Vector, ...] = ()
    """What the earlier phases agreed on."""
    row_size: int = 0
    """Of a table among the workers, how many numbers a row holds: each shard has a file."""
    shards: Shards = field(default_factory=dict)
    """Slot -> the arrays of its shard, memory-mapped; the point has then no vector."""

    @property
    def is_phase_start(self) -> bool:
        """True between phases: nobody holds anything alone."""
        return self.version == 0 and not any(self.positions.values())

    @property
    def name(self) -> str:
        """Sorts by the order of saving."""
        return f"phase{self.phase:03d}-version{self.version:09d}"


class Cuts:
    """The last whole cut, and the one in the making: it waits for every worker of its round."""

    def __init__(self, last: Cut | None) -> None:
        self.last = last
        self._making: Cut | None = None
        self._missing: set[int] = set()
        self._snapshots: dict[int, Snapshot] = {}

    def at(self, phase: int, version: int) -> Cut | None:
        """Returns the last cut when nothing was agreed since."""
        cut = self.last
        return cut if cut is not None and (cut.phase, cut.version) == (phase, version) else None

    def begin(self, here: Cut, slots: frozenset[int]) -> None:
        """Starts a cut; one that is still not whole is given up: what it waits for was lost."""
        self._making, self._missing, self._snapshots = here, set(slots), {}

    @property
    def version(self) -> int:
        """Of the cut in the making; -1 without one."""
        return -1 if self._making is None else self._making.version

    def drop(self) -> None:
        """Gives up the cut in the making."""
        self._making = None

    def take(self, slot: int, version: int, snapshot: Snapshot) -> None:
        """Takes one worker's state in."""
        if self._making is not None and version == self._making.version and slot in self._missing:
            self._snapshots[slot] = snapshot
            self._missing.discard(slot)

    def without(self, slot: int) -> None:
        """Continues without a worker that was lost: it would start with fresh inner state."""
        self._missing.discard(slot)

    def whole(self, policy: Policy, shards: Shards = MappingProxyType({})) -> Cut | None:
        """Returns the cut once nobody is waited for: it is then the last one.

        Args:
            policy: whether the owner holds the parameters; else the lowest slot's are taken, and
                without any there is no cut.
            shards: of a table among the workers, those that have come whole at its version.
        """
        if self._making is None or self._missing or len(shards) < policy.shards:
            return None
        making, self._making = self._making, None
        point = making.point
        if not policy.keeps and not policy.shards:
            if not self._snapshots:
                return None
            first = self._snapshots[min(self._snapshots)]
            point = point._replace(
                vector=first.trained, floats=first.floats, integers=first.integers
            )
        inner = {slot: s.inner for slot, s in sorted(self._snapshots.items())}
        self.last = replace(making, point=point, inner=inner, shards=shards)
        return self.last
