"""An exact mean among fixed workers: reduce-scatter, merge, all-gather; same bits on all.

Without input or output: it returns what to send to which worker, and takes in what arrived.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from photinus.core.parameters import Vector
from photinus.strategies.base import Message
from photinus.strategies.codecs import decode, encode
from photinus.strategies.merge import combine

Piece = Mapping[str, Vector]
"""Shards [n/K] of the vector, and of the float and integer buffers where there are any."""

_NAMES = ("vector", "floats", "integers")


class Meeting:
    """What one worker knows of a meeting: it owns the shard of its place among the members.

    mean = Σ cᵢ vᵢ over each shard, in slot order, through the codec once more: the bits of one
    owner. Float buffers take the mean over examples, integers the maximum.

    Args:
        slot: the worker's own.
        called: the `meet` message: the members and their weights.
        brought: the worker's push: vector [n] as the codec has it, and buffers.
    """

    def __init__(self, slot: int, called: Message, brought: Message) -> None:
        assert called.vector is not None
        assert called.floats is not None
        self.slot, self.slots, self.version = slot, called.slots, called.version
        self._weights = [float(w) for w in called.vector]
        self._shares = [float(w) for w in called.floats]
        self._brought, self._codec = brought, brought.codec
        self._mean = {name: np.empty_like(held) for name, held in self._sections().items()}
        self._parts: dict[int, Piece] = {slot: self.part(slot)}
        self._wholes: set[int] = set()
        """The members whose shards of the mean are in it."""
        self._names: tuple[str, ...] = ()
        """What is in the mean: buffers only where all brought them."""
        self._merge_when_all_came()

    @property
    def others(self) -> tuple[int, ...]:
        """All members but this one."""
        return tuple(s for s in self.slots if s != self.slot)

    @property
    def is_whole(self) -> bool:
        """True when every shard of the mean is here."""
        return len(self._wholes) == len(self.slots)

    def whole_for(self, slot: int) -> Piece | None:  # noqa: ARG002 - the same for all
        """Returns the merged shard of this worker, once every part of it has arrived."""
        mean = {name: self._mean[name] for name in self._names}
        return self._shard(mean, self.slot) if self.slot in self._wholes else None

    @property
    def lacks(self) -> dict[str, list[int]]:
        """The members whose parts, and whose merged shards, have not arrived."""
        parts = [s for s in self.slots if s not in self._parts]
        return {"parts": parts, "wholes": [s for s in self.others if s not in self._wholes]}

    def part(self, slot: int) -> Piece:
        """Returns what a member needs of this worker's vector: views, no copies."""
        return self._shard(self._sections(), slot)

    def _sections(self) -> Piece:
        sections = {name: getattr(self._brought, name) for name in _NAMES}
        return {name: held for name, held in sections.items() if held is not None}

    def _shard(self, piece: Piece, slot: int) -> Piece:
        place, count = self.slots.index(slot), len(self.slots)
        return {
            name: held[held.size * place // count : held.size * (place + 1) // count]
            for name, held in piece.items()
        }

    def take(self, kind: str, slot: int, piece: Piece) -> bool:
        """Takes a member's `part` or `whole` in; returns whether the own shard was just merged."""
        if slot not in self.slots:
            return False
        if kind == "whole":
            if slot not in self._wholes:
                room = self._shard(self._mean, slot)
                for name, shard in piece.items():
                    room[name][:] = shard
                self._wholes.add(slot)
            return False
        self._parts.setdefault(slot, piece)
        return self.slot not in self._wholes and self._merge_when_all_came()

    def weighed(self) -> Piece:
        """Returns what this worker brings to a sum of all: cᵢvᵢ [n], and its buffers."""
        held, place = dict(self._sections()), self.slots.index(self.slot)
        for name, weights in (("vector", self._weights), ("floats", self._shares)):
            if name in held:
                held[name] = held[name] * held[name].dtype.type(weights[place])
        return held

    def fill(self, mean: Piece) -> None:
        """Takes the whole mean, as a sum of all members made it."""
        self._mean, self._names, self._wholes = dict(mean), tuple(mean), set(self.slots)

    def _merge_when_all_came(self) -> bool:
        if len(self._parts) < len(self.slots):
            return False
        parts = [self._parts[s] for s in self.slots]
        room = self._shard(self._mean, self.slot)
        vectors = [decode(self._codec, p["vector"]) for p in parts]
        if self._codec == "fp32":
            combine(vectors, self._weights, room["vector"])
        else:
            room["vector"][:] = encode(self._codec, combine(vectors, self._weights))
        self._names = ("vector",)
        if all("floats" in p for p in parts):
            combine([p["floats"] for p in parts], self._shares, room["floats"])
            np.maximum.reduce([p["integers"] for p in parts], out=room["integers"])
            self._names = _NAMES
        self._wholes.add(self.slot)
        return True

    def apart(self, vector: Vector, anchor: Vector) -> float:
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
        vector, floats, integers = (
            self._mean[name] if name in self._names else None for name in _NAMES
        )
        return Message("agreed", vector, codec=self._codec, floats=floats, integers=integers)
