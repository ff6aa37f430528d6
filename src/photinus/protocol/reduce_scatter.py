"""An exact mean among fixed workers: reduce-scatter, merge, all-gather; same bits on all.

Without input or output: it returns what to send to which worker, and takes in what arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from photinus.core.clock import Clock
from photinus.core.parameters import Vector
from photinus.strategies.base import Message
from photinus.strategies.codecs import decode, encode
from photinus.strategies.merge import coefficients, combine
from photinus.training.segments import runs, starts

Piece = Mapping[str, Vector]
"""Shards [n/K] of the vector, and of the float and integer buffers where there are any."""
WHOLE = -1
"""Where a piece starts that is a whole shard, with its buffers."""

_NAMES = ("vector", "floats", "integers")


class SegmentRange(NamedTuple):
    """Some adjacent segments of a shard."""

    start: int
    """Where in the vector; `WHOLE` for all of them, with the buffers."""
    piece: Piece


class ReduceScatter:
    """What one worker knows of a meeting: it owns the shard of its place among the members.

    mean = Σ cᵢ vᵢ over each shard, in slot order, through the codec once more: the bits of one
    owner. Float buffers take the mean over examples, integers the maximum.

    A member's numbers may come in runs of segments, and before the meeting is called. Each segment
    is merged as soon as it is here from all, by the same sums.

    Args:
        slot: the worker's own.
        slots: of the members.
        push: the worker's own: vector [n] as the codec has it, and buffers. Before the call
            its numbers are unknown: `announce` brings them.
    """

    def __init__(self, slot: int, slots: tuple[int, ...], push: Message) -> None:
        self.slot, self.slots, self.version = slot, slots, push.version
        self._push, self._codec = push, push.codec
        self._weights: list[float] | None = None
        self._example_shares: list[float] = []
        self._mean = {name: np.empty_like(section) for name, section in self._sections().items()}
        self._parts: dict[int, dict[int, Vector]] = {s: {} for s in slots}
        """Slot -> where a segment of the own shard starts -> its numbers."""
        self._buffers: dict[int, Piece] = {}
        """Slot -> its buffers, if any; of those that sent whole shards."""
        self._unmerged = set(starts(*self._bounds(slot)))
        self._unsent: list[int] = []
        """Where the merged segments start that the others were not sent."""
        self._lacking = {s: set(starts(*self._bounds(s))) for s in slots}
        """Slot -> where the segments of its merged shard start that have not arrived."""
        self._wholes: set[int] = set()
        """The members whose shards of the mean are in it."""
        self._names: tuple[str, ...] = ("vector",)
        """What is in the mean: buffers only where all brought them."""
        self._works: dict[int, Clock] = {}
        self._announced = 0

    @classmethod
    def called(cls, slot: int, call: Message, push: Message) -> ReduceScatter:
        """Returns a meeting that nothing was announced for.

        Args:
            slot: the worker's own.
            call: the `meet` message: the members and their weights.
            push: the worker's push.
        """
        meeting = cls(slot, call.slots, push._replace(version=call.version))
        meeting.open(call, push)
        meeting.take("part", slot, meeting.part(slot))
        return meeting

    def open(self, call: Message, push: Message) -> bool:
        """Takes the call and the push; returns whether they are what was announced."""
        assert call.vector is not None
        assert call.floats is not None
        weights = [float(w) for w in call.vector]
        size = self._mean["vector"].size
        is_same = self._weights in (None, weights) and push.floats is None
        self._weights, self._example_shares = weights, [float(w) for w in call.floats]
        self._push = push
        self._merge()
        return is_same and self._announced == size

    # -- before the call -------------------------------------------------------------------------

    def announce(self, run: Message, merge: str) -> dict[int, SegmentRange]:
        """Takes a run of the worker's own segments; returns what of it is for which member.

        Args:
            run: its numbers, its fragment (start, stop), and the work in the whole push.
            merge: how the weights follow from the members' work.
        """
        assert run.vector is not None
        (start, stop), ranges = run.fragment, dict[int, SegmentRange]()
        for slot in self.slots:
            low, high = self._bounds(slot)
            first, last = max(low, start), min(high, stop)
            if first < last:
                ranges[slot] = SegmentRange(
                    first, {"vector": run.vector[first - start : last - start]}
                )
        self._announced += stop - start
        self.count(self.slot, run.since, merge)
        if own := ranges.pop(self.slot, None):
            self.take("part", self.slot, own.piece, own.start)
        return ranges

    def count(self, slot: int, work: Clock, merge: str) -> None:
        """Takes in a member's work: once that of all is known, the weights are."""
        self._works[slot] = work
        if self._weights is None and self._works.keys() >= set(self.slots):
            works = [self._works[s] for s in self.slots]
            self._weights = [float(w) for w in coefficients(merge, works)]

    # -- pieces ----------------------------------------------------------------------------------

    @property
    def others(self) -> tuple[int, ...]:
        """All members but this one."""
        return tuple(s for s in self.slots if s != self.slot)

    @property
    def is_whole(self) -> bool:
        """True when every shard of the mean is here."""
        return len(self._wholes) == len(self.slots)

    @property
    def lacks(self) -> dict[str, list[int]]:
        """The members whose parts, and whose merged shards, have not arrived."""
        parts = [s for s in self.slots if not self._has_part(s)]
        return {"parts": parts, "wholes": [s for s in self.others if s not in self._wholes]}

    def part(self, slot: int) -> Piece:
        """Returns what a member needs of this worker's vector: views, no copies."""
        return self._shard(self._sections(), slot)

    def whole_for(self, slot: int) -> Piece | None:  # noqa: ARG002 - the same for all
        """Returns the merged shard of this worker, once every part of it has arrived."""
        mean = {name: self._mean[name] for name in self._names}
        return self._shard(mean, self.slot) if self.slot in self._wholes else None

    def merged(self) -> list[SegmentRange]:
        """Returns what was merged since the last call: the whole shard, or runs of it."""
        (low, high), whole = self._bounds(self.slot), self.whole_for(self.slot)
        unsent, self._unsent = self._unsent, []
        if whole is not None and len(unsent) == len(starts(low, high)):
            return [SegmentRange(WHOLE, whole)]
        mean = self._mean["vector"]
        return [
            SegmentRange(start, {"vector": mean[start:stop]}) for start, stop in runs(unsent, high)
        ]

    def take(self, kind: str, slot: int, piece: Piece, start: int = WHOLE) -> bool:
        """Takes a member's `part` or `whole` in; returns whether more of the shard is merged now.

        Args:
            kind: part or whole.
            slot: the member.
            piece: its numbers.
            start: where in the vector; `WHOLE` for a whole shard with its buffers.
        """
        if slot not in self.slots:
            return False
        low, high = self._bounds(self.slot if kind == "part" else slot)
        numbers, first_number = piece["vector"], low if start == WHOLE else start
        stop = first_number + len(numbers)
        if first_number < low or stop > high:
            return False
        buffers = {n: buffer for n, buffer in piece.items() if n != "vector"}
        if kind == "whole":
            self._take_whole(slot, numbers, first_number, buffers if start == WHOLE else None)
            return False
        for first, last in (r for at in starts(first_number, stop) for r in runs([at], stop)):
            self._parts[slot].setdefault(first, numbers[first - first_number : last - first_number])
        if start == WHOLE:
            self._buffers.setdefault(slot, buffers)
        return self._merge()

    def _take_whole(self, slot: int, numbers: Vector, start: int, buffers: Piece | None) -> None:
        if slot in self._wholes:
            return
        stop = start + len(numbers)
        self._mean["vector"][start:stop] = numbers
        self._lacking[slot].difference_update(starts(start, stop))
        for name, target in self._shard(self._mean, slot).items():
            if buffers and name in buffers:
                target[:] = buffers[name]
        if not self._lacking[slot] and (buffers is not None or not self._has_buffers):
            self._wholes.add(slot)

    def _merge(self) -> bool:
        """Merges the segments that are here from all members; returns whether there are any."""
        complete = [at for at in self._unmerged if all(at in part for part in self._parts.values())]
        is_late = self._has_buffers and len(self._buffers) < len(self.slots)
        if self._weights is None or is_late or self.slot in self._wholes:
            return False
        for at in complete:
            vectors = [decode(self._codec, self._parts[s][at]) for s in self.slots]
            target = self._mean["vector"][at : at + len(vectors[0])]
            if self._codec == "fp32":
                combine(vectors, self._weights, target)
            else:
                target[:] = encode(self._codec, combine(vectors, self._weights))
        self._unmerged.difference_update(complete)
        self._unsent += complete
        if not self._unmerged:
            self._merge_buffers()
            self._wholes.add(self.slot)
        return bool(complete) or not self._unmerged

    def _merge_buffers(self) -> None:
        buffers = [self._buffers.get(s, {}) for s in self.slots]
        if self._has_buffers and all("floats" in buffer for buffer in buffers):
            target = self._shard(self._mean, self.slot)
            combine(
                [buffer["floats"] for buffer in buffers], self._example_shares, target["floats"]
            )
            np.maximum.reduce([buffer["integers"] for buffer in buffers], out=target["integers"])
            self._names = _NAMES

    @property
    def _has_buffers(self) -> bool:
        return self._push.floats is not None

    def _has_part(self, slot: int) -> bool:
        is_here = self._parts[slot].keys() >= self._unmerged
        return is_here and (not self._has_buffers or slot in self._buffers)

    def _sections(self) -> Piece:
        sections = {name: getattr(self._push, name) for name in _NAMES}
        return {name: section for name, section in sections.items() if section is not None}

    def _bounds(self, slot: int, size: int | None = None) -> tuple[int, int]:
        """Returns where the shard of a member starts and stops in a section [size]."""
        rank, count = self.slots.index(slot), len(self.slots)
        if size is None:
            assert self._push.vector is not None
            size = self._push.vector.size
        return size * rank // count, size * (rank + 1) // count

    def _shard(self, piece: Piece, slot: int) -> Piece:
        bounds = {name: self._bounds(slot, section.size) for name, section in piece.items()}
        return {name: section[slice(*bounds[name])] for name, section in piece.items()}

    # -- one sum of all --------------------------------------------------------------------------

    def weighed(self) -> Piece:
        """Returns what this worker brings to a sum of all: cᵢvᵢ [n], and its buffers."""
        sections, rank = dict(self._sections()), self.slots.index(self.slot)
        for name, weights in (("vector", self._weights), ("floats", self._example_shares)):
            if weights and name in sections:
                sections[name] = sections[name] * sections[name].dtype.type(weights[rank])
        return sections

    def fill(self, mean: Piece) -> None:
        """Takes the whole mean, as a sum of all members made it."""
        self._mean, self._names, self._wholes = dict(mean), tuple(mean), set(self.slots)

    # -- the mean --------------------------------------------------------------------------------

    def distance(self, vector: Vector, anchor: Vector) -> float:
        """Returns the distance of parameters [n] from the agreed point, as a share of its length.

        Args:
            vector: what its worker trained.
            anchor: the point [n] that all brought their progress from.
        """
        point = anchor - decode(self._codec, self._mean["vector"])
        length = float(np.linalg.norm(point))
        return float(np.linalg.norm(vector - point)) / length if length > 0 else 0.0

    def result(self) -> Message:
        """Returns the mean [n] as an `agreed` message; the coordinator decides the version."""
        mean = {name: self._mean[name] for name in self._names}
        floats, integers = mean.get("floats"), mean.get("integers")
        return Message(
            "agreed", mean["vector"], codec=self._codec, floats=floats, integers=integers
        )
