"""Brings a shard of a table up to date whose owner was lost, while the others wait.

Without input or output: it returns what to ask which worker for, and takes in what arrived.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from photinus.core.clock import Clock
from photinus.core.parameters import Vector
from photinus.protocol.reduce_scatter import Piece
from photinus.protocol.row_meeting import next_to
from photinus.strategies.base import Message, RowExchange, ShardMove
from photinus.strategies.codecs import encode
from photinus.strategies.row_codec import answer_codec
from photinus.strategies.shard_backups import from_arrays, write


class ShardRestore:
    """What the successor of a lost owner asks for: what has moved in its shard, and its rows.

    The rows of its next steps come from their owners, as after the last round. What has moved in
    its own shard comes from the next worker in pages, which are written into the shard at once:
    no other worker reads it before it is whole.

    Args:
        slot: the worker's own.
        call: the `meet` message: the owners of shards, and the shards' version.
        push: what the worker asks for, and its shard as it was loaded.
    """

    def __init__(self, slot: int, call: Message, push: Message) -> None:
        owned, asks = push.table.owned, push.table.asks
        assert owned is not None
        assert asks is not None
        self.slot, self.slots, self.version = slot, call.slots, call.version
        self._push, self._owned, self._requested = push, owned, asks
        self.backup_slot = next_to(slot, self.slots)
        self._start = 0
        """The row of the own shard from which on the moved rows are asked for."""
        self._answers: dict[int, Vector] = {}
        self._move = ShardMove(np.empty(0, np.int64), self._owned.rows[:0], ())

    @property
    def others(self) -> tuple[int, ...]:
        """All workers but this one."""
        return tuple(s for s in self.slots if s != self.slot)

    @property
    def is_whole(self) -> bool:
        """True when the shard is up to date, and all rows that were asked for are here."""
        return not self._unanswered

    @property
    def lacks(self) -> dict[str, Any]:
        """The workers that have not answered, and the first row of the own shard that is old."""
        return {"parts": [], "wholes": self._unanswered, "start": self._start}

    @property
    def backed_up_to(self) -> int:
        """Below which row the next worker has all that moved: its rows were sent from there."""
        return len(self._owned.rows)

    @property
    def _unanswered(self) -> list[int]:
        is_behind = self._start < len(self._owned.rows)
        return [
            s
            for s in self.others
            if s not in self._answers or (s == self.backup_slot and is_behind)
        ]

    def part(self, slot: int) -> Piece:
        """Returns the question to a worker."""
        request: dict[str, Vector] = {}
        if slot not in self._answers:
            request["asks"] = self._requested[self._is_owned_by(slot)]
        if slot == self.backup_slot:
            request["start"] = np.array([self._start])
        return request

    def _is_owned_by(self, slot: int) -> Vector:
        found: Vector = self._requested % len(self.slots) == self.slots.index(slot)
        return found

    def take(self, slot: int, piece: Piece) -> bool:
        """Takes an answer in; returns whether there is another page to ask for."""
        if slot not in self.others:
            return False
        if "vector" in piece:
            self._answers.setdefault(slot, piece["vector"])
        move = from_arrays(piece)
        if move is None or slot != self.backup_slot or int(piece["start"][0]) != self._start:
            return False
        write(move, self._owned.rows, self._owned.outer, self._owned.moved, self.version)
        self._start = int(piece["after"][0])
        self._move = self._move._replace(inner=move.inner, dense_outer=move.dense_outer)
        return self._start < len(self._owned.rows)

    def result(self) -> Message:
        """Returns the rows that were asked for as an `agreed` message."""
        own_rows = self._owned.rows[
            self._requested[self._is_owned_by(self.slot)] // len(self.slots)
        ]
        codec = answer_codec(self._push.codec)
        answers = {**self._answers, self.slot: encode(codec, own_rows.ravel())}
        width = self._owned.rows.shape[1]
        rows = np.empty((self._requested.size, width), answers[self.slot].dtype)
        for slot in self.slots:
            rows[self._is_owned_by(slot)] = answers[slot].reshape(-1, width)
        return Message(
            "agreed",
            rows.ravel(),
            rows=self._requested,
            since=Clock(steps=1),
            codec=codec,
            slot=self.slot,
            table=RowExchange(moved=self._move),
        )
