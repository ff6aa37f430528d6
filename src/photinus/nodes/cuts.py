"""Cuts through a run: one agreed point with all that the workers hold alone at that point.

A cut is what a checkpoint saves and what a run resumes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from photinus.core.parameters import Vector
from photinus.nodes.loop import Snapshot
from photinus.strategies.base import Message

__all__ = ["Cut", "Gathering"]


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
    inner: Mapping[int, Mapping[str, Vector]] = field(default_factory=dict)
    """Slot -> its inner optimizer's state; a slot without one starts fresh."""
    history: tuple[Vector, ...] = ()
    """What the earlier phases agreed on."""

    @property
    def is_phase_start(self) -> bool:
        """True between phases: nobody holds anything alone."""
        return self.version == 0

    @property
    def name(self) -> str:
        """Sorts by the order of saving."""
        return f"phase{self.phase:03d}-version{self.version:09d}"


class Gathering:
    """A cut in the making: waits for the state of every worker of its round."""

    def __init__(self, cut: Cut, slots: frozenset[int]) -> None:
        self._cut, self._missing = cut, set(slots)
        self._snapshots: dict[int, Snapshot] = {}

    def take(self, slot: int, snapshot: Snapshot) -> None:
        """Takes one worker's state in."""
        if slot in self._missing and snapshot.position == self._cut.positions[slot]:
            self._snapshots[slot] = snapshot
        self._missing.discard(slot)

    def without(self, slot: int) -> None:
        """Goes on without a worker that was lost: it would start with fresh inner state."""
        self._missing.discard(slot)

    @property
    def is_whole(self) -> bool:
        """True when nobody is waited for."""
        return not self._missing

    def cut(self, *, keeps: bool) -> Cut | None:
        """Returns the whole cut, or None when nobody could say what the parameters are.

        Args:
            keeps: whether the owner holds the parameters; else the lowest slot's are taken.
        """
        point = self._cut.point
        if not keeps:
            if not self._snapshots:
                return None
            first = self._snapshots[min(self._snapshots)]
            point = point._replace(
                vector=first.trained, floats=first.floats, integers=first.integers
            )
        return Cut(
            phase=self._cut.phase,
            version=self._cut.version,
            applied=self._cut.applied,
            budget=self._cut.budget,
            point=point,
            positions=self._cut.positions,
            rows=self._cut.rows,
            inner={slot: s.inner for slot, s in sorted(self._snapshots.items())},
            history=self._cut.history,
        )
