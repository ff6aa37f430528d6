"""A round over a table that is sharded over the workers: deltas to the owners of rows, rows back.

Without input or output: it returns what to send to which worker, and takes in what arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from photinus.core.errors import FrameError
from photinus.core.parameters import Vector
from photinus.protocol.reduce_scatter import Piece
from photinus.strategies.base import Message, OwnedShard, ShardMove
from photinus.strategies.codecs import decode, encode
from photinus.strategies.row_codec import RowCodec, answer_codec
from photinus.strategies.rows import shares_of_reads
from photinus.strategies.shard_backups import BACKLOG_NUMBERS, from_arrays, next_moved, to_arrays
from photinus.transport.frames import Frame

_BLOCK = 1 << 14
"""Rows whose deltas are added at once: what that takes beside them is small."""


def next_to(slot: int, slots: tuple[int, ...]) -> int:
    """Returns the worker that keeps the backup of another's shard."""
    return slots[(slots.index(slot) + 1) % len(slots)]


class RowRead(NamedTuple):
    """Rows that one worker reads while it takes no step."""

    number: int
    """Answers to an earlier one are dropped."""
    rows: Vector
    """[r]"""
    asks: dict[int, Vector]
    """Owner -> its rows among them."""
    came: dict[int, Vector]
    """Owner -> their numbers, as they travel."""

    @property
    def owing(self) -> list[int]:
        """The owners that have not answered."""
        return [slot for slot in self.asks if slot not in self.came]


class ShardExchange:
    """The rows of shards that workers exchange between two rounds, as one worker keeps them.

    All of it holds for one version: a question that arrives early waits, one that arrives late is
    dropped. Rows that are missing at the next round arrive with that round.
    """

    def __init__(self) -> None:
        self._owned: OwnedShard | None = None
        self._codec = "fp32"
        self._slots: tuple[int, ...] = ()
        self._version = -1
        """The version of the own shard; a shard that is about to move has none."""
        self._asks: dict[int, Vector] = {}
        self._came: dict[int, Vector] = {}
        self.early: list[Frame] = []
        """Questions about a version that the own shard has not reached."""
        self._guard, self._told = 0, 0
        """The lease of the next worker, and below which row the backup there has all."""
        self.kept = 0
        """The version of the last checkpoint: what moved before it needs no backup."""
        self.reading = RowRead(0, np.empty(0, np.int64), {}, {})
        """The rows that are asked for now, while no step is taken."""

    def brings(self, message: Message) -> None:
        """Called when its worker pushes for the next round: the last round moved its shard."""
        if self._owned is not None and message.kind == "push":
            self._version = message.version

    def agreed(self, brought: Message, slots: tuple[int, ...], told: tuple[int, int]) -> None:
        """Called when a round is over, and its worker is about to move its shard.

        Args:
            brought: the worker's push.
            slots: of the members.
            told: the lease of the next worker, and below which row its backup has all that moved.
        """
        self._owned, self._slots = brought.owned, slots
        self._codec = answer_codec(brought.codec)
        self._version, self._asks, self._came = -1, {}, {}
        self._guard, self._told = told

    def backlog(self, lease: int, owned: OwnedShard) -> tuple[Vector, int]:
        """Returns rows that a backup lacks, of earlier rounds, and below which row it then has all.

        It lacks all rows where another worker keeps it than at the last round.
        """
        start = self._told if lease == self._guard else 0
        return next_moved(owned.moved > self.kept, start, BACKLOG_NUMBERS // owned.rows.shape[1])

    def wants(self, asks: Vector, version: int, slot: int) -> dict[int, Vector]:
        """Returns owner -> its rows among those asked for; the shard has moved to a version."""
        self._version = version
        self._asks = {s: rows for s, rows in self._by_owner(asks).items() if s != slot}
        return self._asks

    def reads(self, rows: Vector, version: int, slot: int) -> None:
        """Begins to read rows at once; the shard has moved to a version, and stays while it does.

        Those of the own shard are encoded, too: where a row lies changes no number.
        """
        self._version = version
        asks = self._by_owner(rows)
        self.reading = RowRead(self.reading.number + 1, rows, asks, {})
        if slot in asks:
            own = self.rows(version, {"asks": asks[slot]})
            assert own is not None
            self.reading.came[slot] = own["vector"]

    def numbers_read(self) -> Vector | None:
        """Returns the numbers [r, width] of the rows that are read; None while any are missing."""
        reading, owned, count = self.reading, self._owned, len(self._slots)
        if reading.owing or owned is None:
            return None
        numbers = np.empty((reading.rows.size, owned.rows.shape[1]), owned.rows.dtype)
        for slot, came in reading.came.items():
            at = reading.rows % count == self._slots.index(slot)
            numbers[at] = decode(self._codec, came).reshape(-1, owned.rows.shape[1])
        return numbers

    def _by_owner(self, rows: Vector) -> dict[int, Vector]:
        """Returns owner -> its rows [r] among these, where it has any."""
        count = len(self._slots)
        of = {slot: rows[rows % count == place] for place, slot in enumerate(self._slots)}
        return {slot: some for slot, some in of.items() if some.size}

    def serves(self, version: int) -> list[Frame]:
        """Returns the questions that had waited for a version; older ones are dropped."""
        early, self.early = self.early, []
        self.early = [frame for frame in early if frame.header["version"] > version]
        return [frame for frame in early if frame.header["version"] == version]

    def rows(self, version: int, asked: Piece) -> Piece | None:
        """Returns rows of the own shard as they travel; None before it has the version.

        The worker that restores the previous worker's shard also asks for what has moved in it.
        """
        if self._owned is None or version != self._version:
            return None
        told: dict[str, Vector] = {}
        if "asks" in asked:
            rows = self._owned.rows[asked["asks"] // len(self._slots)]
            told["vector"] = encode(self._codec, rows.ravel())
        if "start" in asked and self._owned.backup is not None:
            move, after = self._owned.backup.page(int(asked["start"][0]))
            told |= {"start": asked["start"], "after": np.array([after]), **to_arrays(move)}
        return told

    def came(self, slot: int, version: int, vector: Vector | None) -> None:
        """Takes an owner's answer in."""
        if version == self._version and slot in self._asks and vector is not None:
            self._came[slot] = vector

    def ahead(self, asks: Vector | None, version: int) -> dict[int, Vector]:
        """Returns owner -> the rows that a round asks for, where these arrived at its version."""
        if asks is None or version != self._version:
            return {}
        count, found = len(self._slots), dict[int, Vector]()
        for slot, vector in self._came.items():
            rows = asks[asks % count == self._slots.index(slot)]
            if np.array_equal(rows, self._asks[slot]):
                found[slot] = vector
        return found


class RowMeeting:
    """What one worker knows of a round: it owns row r where r mod K is its place.

    A part holds deltas of some rows, and which rows are wanted; a whole holds those rows, as they
    are after the round, or, of rows that were sent ahead, only those that the round moved. The
    shard does not change here, but when the round is agreed.

    Args:
        slot: the worker's own.
        called: the `meet` message: the members and their weights.
        brought: the worker's push: rows, their deltas, what it asks for, and its shard.
        ahead: owner -> the rows that are asked for, as they were before the round.
        backlog: rows of the own shard that its backup lacks, and below which it then has all.
    """

    def __init__(
        self,
        slot: int,
        called: Message,
        brought: Message,
        ahead: Mapping[int, Vector],
        backlog: tuple[Vector, int] | None = None,
    ) -> None:
        assert called.vector is not None
        assert brought.owned is not None
        self.slot, self.slots, self.version = slot, called.slots, called.version
        self._weights = [float(w) for w in called.vector]
        self._brought, self._owned, self._ahead = brought, brought.owned, ahead
        self._width = self._owned.rows.shape[1]
        self._by_row = RowCodec(brought.codec, self._width, self._owned.exact)
        self._codec = answer_codec(brought.codec)
        self.guard = next_to(slot, self.slots)
        """The next worker, which keeps the backup of this one's shard."""
        self._guarded = self.slots[self.slots.index(slot) - 1]
        self._backlog = (np.empty(0, np.int64), 0) if backlog is None else backlog
        self._moved: ShardMove | None = None
        self._answers: dict[int, Piece] = {}
        """Slot -> the rows that it asked for, once all deltas have arrived."""
        self._wholes: dict[int, Piece] = {}
        """Owner -> the rows that this worker asked for."""
        self._parts: dict[int, Piece] = {slot: self.part(slot)}
        self._merge_when_all_came()

    @property
    def others(self) -> tuple[int, ...]:
        """All members but this one."""
        return tuple(s for s in self.slots if s != self.slot)

    @property
    def is_whole(self) -> bool:
        """True when all rows that were asked for are here."""
        return len(self._wholes) == len(self.slots)

    @property
    def lacks(self) -> dict[str, list[int]]:
        """The members whose parts, and whose rows, have not arrived."""
        parts = [s for s in self.slots if s not in self._parts]
        return {"parts": parts, "wholes": [s for s in self.others if s not in self._wholes]}

    @property
    def told(self) -> int:
        """Below which row of the own shard its backup has all that moved, once this is agreed."""
        return self._backlog[1]

    @property
    def guards(self) -> bool:
        """True when the backup that is kept here is up to date, once this is agreed."""
        whole = self._wholes.get(self._guarded, {})
        return self._owned.backup is not None and bool(whole.get("is_all", [False])[0])

    def part(self, slot: int) -> Piece:
        """Returns what an owner needs: the deltas of its rows, and which of them are asked for."""
        brought = self._brought
        assert brought.rows is not None
        assert brought.vector is not None
        mine = self._is_of(brought.rows, slot)
        reads: Piece = {}
        if self._owned.by_reads:
            assert brought.reads is not None
            reads = {"reads": brought.reads[mine], "steps": np.array([brought.since.steps])}
        return {
            **reads,
            "rows": brought.rows[mine],
            "vector": brought.vector.reshape(-1, self._by_row.size)[mine].ravel(),
            "asks": self._asks[self._is_of(self._asks, slot)],
            "came": np.array([slot in self._ahead], np.int64),
        }

    @property
    def _asks(self) -> Vector:
        asks = self._brought.asks
        return np.empty(0, np.int64) if asks is None else asks

    def _is_of(self, rows: Vector, slot: int) -> Vector:
        found: Vector = rows % len(self.slots) == self.slots.index(slot)
        return found

    def whole_for(self, slot: int) -> Piece | None:
        """Returns the rows that a member asked for, once every part has arrived."""
        return self._answers.get(slot)

    def take(self, kind: str, slot: int, piece: Piece) -> bool:
        """Takes a member's `part` or `whole` in; returns whether the own rows were just moved."""
        if slot not in self.slots:
            return False
        if kind == "whole":
            self._wholes.setdefault(slot, piece)
            return False
        self._parts.setdefault(slot, piece)
        return self._moved is None and self._merge_when_all_came()

    def _merge_when_all_came(self) -> bool:
        if len(self._parts) < len(self.slots):
            return False
        owned, parts = self._owned, [self._parts[slot] for slot in self.slots]
        rows = np.unique(np.concatenate([part["rows"] for part in parts]))
        total = self._merged(parts, rows)
        # deltas may be large, and nothing asks for them any more
        parts = [{name: part[name] for name in part if name != "vector"} for part in parts]
        self._parts = dict(zip(self.slots, parts, strict=True))
        at = self._places(rows)
        there, outer = owned.update(owned.rows[at], total, tuple(o[at] for o in owned.outer))
        self._moved = ShardMove(at, there, outer)
        for slot, part in zip(self.slots, parts, strict=True):
            self._answers[slot] = self._answer(part, rows)
        self._wholes[self.slot] = self._answers[self.slot]
        if self.guard != self.slot:
            self._answers[self.guard] = {**self._answers[self.guard], **self._for_backup()}
        return True

    def _merged(self, parts: list[Piece], rows: Vector) -> Vector:
        """Returns the sum of all deltas [r, width] of these rows, each times its weight."""
        owned = self._owned
        total = np.zeros((rows.size, self._width), owned.rows.dtype)
        weights = [float(w > 0) for w in self._weights] if owned.by_reads else self._weights
        for part, weight in zip(parts, weights, strict=True):
            delta, at = self._by_row.decode(part["vector"]), np.searchsorted(rows, part["rows"])
            for start in range(0, at.size, _BLOCK):
                some = slice(start, start + _BLOCK)
                total[at[some]] += total.dtype.type(weight) * delta[some]
        if owned.by_reads:
            told = ((p["rows"], p["reads"] / max(1, p["steps"][0])) for p in parts)
            total *= shares_of_reads(rows, told).astype(total.dtype)[:, None]
        return total

    def _for_backup(self) -> Piece:
        """Returns what the next worker keeps: what this round moves, and some of the backlog."""
        assert self._moved is not None
        owned, (at, told) = self._owned, self._backlog
        move = self._moved._replace(inner=owned.inner)
        late = np.setdiff1d(at, move.at, assume_unique=True)
        if late.size:
            outer = zip(move.outer, owned.outer, strict=True)
            move = move._replace(
                at=np.concatenate([move.at, late]),
                rows=np.concatenate([move.rows, owned.rows[late]]),
                outer=tuple(np.concatenate([some, held[late]]) for some, held in outer),
            )
        return {"is_all": np.array([told == len(owned.rows)], np.int64), **to_arrays(move)}

    def _places(self, rows: Vector) -> Vector:
        """Returns where rows of the table lie in the own shard."""
        if rows.size and not (
            rows[0] >= 0
            and self._is_of(rows, self.slot).all()
            and rows[-1] // len(self.slots) < len(self._owned.rows)
        ):
            raise FrameError(f"these are no rows of worker {self.slot}", got=f"{rows.size} rows")
        places: Vector = rows // len(self.slots)
        return places

    def _answer(self, part: Piece, rows: Vector) -> Piece:
        """Returns the rows that were asked for, after the round: all, or those that it moved."""
        assert self._moved is not None
        asks = part["asks"]
        now = self._owned.rows[self._places(asks)]  # [a, width]
        at = np.searchsorted(rows, asks)
        at[at == rows.size] = 0
        is_moved = rows[at] == asks if rows.size else np.zeros(asks.size, bool)
        now[is_moved] = self._moved.rows[at[is_moved]]
        which = np.flatnonzero(is_moved if part["came"][0] else np.ones(asks.size, bool))
        told = now if which.size == len(now) else now[which]
        return {"which": which, "vector": encode(self._codec, told.ravel())}

    def result(self) -> Message:
        """Returns an `agreed` message: the rows that were asked for, and the moves of this shard.

        The steps in its `since` are 0 if no worker had trained.
        """
        asks = self._asks
        came = np.empty((asks.size, self._width), self._answers[self.slot]["vector"].dtype)
        for slot in self.slots:
            at = np.flatnonzero(self._is_of(asks, slot))
            if slot in self._ahead:
                came[at] = self._ahead[slot].reshape(-1, self._width)
            whole = self._wholes[slot]
            came[at[whole["which"]]] = whole["vector"].reshape(-1, self._width)
        worked = self._brought.since._replace(steps=sum(w > 0 for w in self._weights))
        return Message(
            "agreed",
            came.ravel(),
            rows=asks,
            since=worked,
            codec=self._codec,
            slot=self.slot,
            moved=self._moved,
            guarded=from_arrays(self._wholes[self._guarded]),
        )
