"""One exact mean among fixed workers: reduce-scatter, merge, all-gather; the same bits on all.

Without input or output: it says what to send to whom, and takes in what came.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from photinus.core.parameters import Vector
from photinus.strategies.base import Message
from photinus.strategies.codecs import decode, encode
from photinus.strategies.merge import combine

__all__ = ["Meeting", "Piece"]

Piece = Mapping[str, Vector]
"""Shards [n/K] of the vector, and of the float and integer buffers where there are any."""

_NAMES = ("vector", "floats", "integers")


class Meeting:
    """What one worker knows of a meeting: it owns the shard of its place among the members.

    mean = Σ cᵢ vᵢ over each shard, in slot order, through the codec once more: the bits of one
    owner. Float buffers take the mean over examples, integers the maximum.

    Args:
        slot: the worker's own.
        called: the `meet` message: who is in it, with what weights.
        brought: the worker's push: vector [n] as the codec has it, and buffers.
    """

    def __init__(self, slot: int, called: Message, brought: Message) -> None:
        assert called.vector is not None
        assert called.floats is not None
        self.slot, self.slots, self.version = slot, called.slots, called.version
        self._weights = [float(w) for w in called.vector]
        self._shares = [float(w) for w in called.floats]
        self._brought, self._codec = brought, brought.codec
        self._parts: dict[int, Piece] = {slot: self.part(slot)}
        self._wholes: dict[int, Piece] = {}
        self._merge_when_all_came()

    @property
    def others(self) -> tuple[int, ...]:
        """All members but this one."""
        return tuple(s for s in self.slots if s != self.slot)

    @property
    def is_whole(self) -> bool:
        """True when every shard of the mean is here."""
        return len(self._wholes) == len(self.slots)

    @property
    def whole(self) -> Piece | None:
        """The merged shard of this worker, once every part of it has come."""
        return self._wholes.get(self.slot)

    @property
    def lacks(self) -> dict[str, list[int]]:
        """Whose parts have not come, and whose merged shards."""
        parts = [s for s in self.slots if s not in self._parts]
        return {"parts": parts, "wholes": [s for s in self.others if s not in self._wholes]}

    def part(self, slot: int) -> Piece:
        """Returns what a member needs of this worker's vector: views, no copies."""
        place, count, piece = self.slots.index(slot), len(self.slots), dict[str, Vector]()
        for name in _NAMES:
            section = getattr(self._brought, name)
            if section is not None:
                size = len(section)
                piece[name] = section[size * place // count : size * (place + 1) // count]
        return piece

    def take(self, kind: str, slot: int, piece: Piece) -> bool:
        """Takes a member's `part` or `whole` in; tells whether the own shard was just merged."""
        if slot not in self.slots:
            return False
        if kind == "whole":
            self._wholes.setdefault(slot, piece)
            return False
        self._parts.setdefault(slot, piece)
        return self.whole is None and self._merge_when_all_came()

    def _merge_when_all_came(self) -> bool:
        if len(self._parts) < len(self.slots):
            return False
        parts, merged = [self._parts[s] for s in self.slots], dict[str, Vector]()
        vectors = [decode(self._codec, p["vector"]) for p in parts]
        merged["vector"] = encode(self._codec, combine(vectors, self._weights))
        if all("floats" in p for p in parts):
            merged["floats"] = combine([p["floats"] for p in parts], self._shares)
            merged["integers"] = np.maximum.reduce([p["integers"] for p in parts])
        self._wholes[self.slot] = merged
        return True

    def result(self) -> Message:
        """Returns the mean [n] as an `agreed` message; the version is the coordinator's to say."""
        pieces = [self._wholes[s] for s in self.slots]
        vector, floats, integers = (
            np.concatenate([p[name] for p in pieces]) if name in pieces[0] else None
            for name in _NAMES
        )
        return Message("agreed", vector, codec=self._codec, floats=floats, integers=integers)
