"""A round over a table that is sharded over the workers: deltas to the owners of rows, rows back.

Without input or output: it returns what to send to which worker, and takes in what arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from photinus.core.errors import FrameError
from photinus.core.parameters import Vector
from photinus.protocol.reduce_scatter import Piece
from photinus.strategies.base import Message, OwnedShard, RowExchange, ShardMove
from photinus.strategies.codecs import decode, encode
from photinus.strategies.row_codec import RowCodec, answer_codec
from photinus.strategies.rows import shares_of_reads, union
from photinus.strategies.shard_backups import BACKLOG_NUMBERS, from_arrays, next_moved, to_arrays
from photinus.transport.frames import Frame

Reads = tuple[Vector, Vector]
"""Rows [r] in order, and in which share of a worker's steps each was read [r]."""
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
    rows_by_owner: dict[int, Vector]
    """Owner -> its rows among them."""
    numbers: dict[int, Vector]
    """Owner -> their numbers, as they travel."""

    @property
    def unanswered(self) -> list[int]:
        """The owners that have not answered."""
        return [slot for slot in self.rows_by_owner if slot not in self.numbers]


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
        self._requested: dict[int, Vector] = {}
        self._answers: dict[int, Vector] = {}
        self.waiting: list[Frame] = []
        """Questions about a version that the own shard has not reached."""
        self._backup_lease, self._backed_up_to = 0, 0
        """The lease of the next worker, and below which row the backup there has all."""
        self.checkpoint_version = 0
        """The version of the last checkpoint: what moved before it needs no backup."""
        self.read = RowRead(0, np.empty(0, np.int64), {}, {})
        """The rows that are asked for now, while no step is taken."""
        self.last_reads: dict[int, Reads] = {}
        """Slot -> what its last push with steps read of the own shard."""

    def bring_push(self, message: Message) -> None:
        """Called when its worker pushes for the next round: the last round moved its shard."""
        if self._owned is not None and message.kind == "push":
            self._version = message.version

    def end_round(
        self,
        push: Message,
        slots: tuple[int, ...],
        backup_progress: tuple[int, int],
        reads: Mapping[int, Reads] = MappingProxyType({}),
    ) -> None:
        """Called when a round is over, and its worker is about to move its shard.

        Args:
            push: the worker's push.
            slots: of the members.
            backup_progress: the lease of the next worker, and below which row its backup has all
                that moved.
            reads: slot -> what its steps of this round read of the own shard.
        """
        self._owned, self._slots = push.table.owned, slots
        self._codec = answer_codec(push.codec)
        self._version, self._requested, self._answers = -1, {}, {}
        self._backup_lease, self._backed_up_to = backup_progress
        self.last_reads |= reads

    def backlog(self, lease: int, owned: OwnedShard) -> tuple[Vector, int]:
        """Returns rows that a backup lacks, of earlier rounds, and below which row it then has all.

        It lacks all rows where another worker keeps it than at the last round.
        """
        first = self._backed_up_to if lease == self._backup_lease else 0
        return next_moved(
            owned.moved > self.checkpoint_version, first, BACKLOG_NUMBERS // owned.rows.shape[1]
        )

    def request_ahead(self, asks: Vector, version: int, slot: int) -> dict[int, Vector]:
        """Returns owner -> its rows among those asked for; the shard has moved to a version."""
        self._version = version
        self._requested = {s: rows for s, rows in self._by_owner(asks).items() if s != slot}
        return self._requested

    def begin_read(self, rows: Vector, version: int, slot: int) -> None:
        """Begins to read rows at once; the shard has moved to a version, and stays while it does.

        Those of the own shard are encoded, too: where a row lies changes no number.
        """
        self._version = version
        rows_by_owner = self._by_owner(rows)
        self.read = RowRead(self.read.number + 1, rows, rows_by_owner, {})
        if slot in rows_by_owner:
            answer = self.rows(version, {"asks": rows_by_owner[slot]})
            assert answer is not None
            self.read.numbers[slot] = answer["vector"]

    def read_rows(self) -> Vector | None:
        """Returns the numbers [r, width] of the rows that are read; None while any are missing."""
        read, owned, count = self.read, self._owned, len(self._slots)
        if read.unanswered or owned is None:
            return None
        numbers = np.empty((read.rows.size, owned.rows.shape[1]), owned.rows.dtype)
        for slot, encoded in read.numbers.items():
            is_owned = read.rows % count == self._slots.index(slot)
            numbers[is_owned] = decode(self._codec, encoded).reshape(-1, owned.rows.shape[1])
        return numbers

    def _by_owner(self, rows: Vector) -> dict[int, Vector]:
        """Returns owner -> its rows [r] among these, where it has any."""
        count = len(self._slots)
        by_owner = {slot: rows[rows % count == place] for place, slot in enumerate(self._slots)}
        return {slot: own for slot, own in by_owner.items() if own.size}

    def take_waiting(self, version: int) -> list[Frame]:
        """Returns the questions that had waited for a version; older ones are dropped."""
        early, self.waiting = self.waiting, []
        self.waiting = [frame for frame in early if frame.header["version"] > version]
        return [frame for frame in early if frame.header["version"] == version]

    def rows(self, version: int, request: Piece) -> Piece | None:
        """Returns rows of the own shard as they travel; None before it has the version.

        The worker that restores the previous worker's shard also asks for what has moved in it.
        """
        if self._owned is None or version != self._version:
            return None
        answer: dict[str, Vector] = {}
        if "asks" in request:
            rows = self._owned.rows[request["asks"] // len(self._slots)]
            answer["vector"] = encode(self._codec, rows.ravel())
        if "start" in request and self._owned.backup is not None:
            move, after = self._owned.backup.page(int(request["start"][0]))
            answer |= {"start": request["start"], "after": np.array([after]), **to_arrays(move)}
        return answer

    def take_answer(self, slot: int, version: int, vector: Vector | None) -> None:
        """Takes an owner's answer in."""
        if version == self._version and slot in self._requested and vector is not None:
            self._answers[slot] = vector

    def fetched_ahead(self, asks: Vector | None, version: int) -> dict[int, Vector]:
        """Returns owner -> the rows that a round asks for, where these arrived at its version."""
        if asks is None or version != self._version:
            return {}
        count, fetched = len(self._slots), dict[int, Vector]()
        for slot, vector in self._answers.items():
            rows = asks[asks % count == self._slots.index(slot)]
            if np.array_equal(rows, self._requested[slot]):
                fetched[slot] = vector
        return fetched


class RowMeeting:
    """What one worker knows of a round: it owns row r where r mod K is its place.

    A part holds deltas of some rows, and which rows are wanted; a whole holds those rows, as they
    are after the round, or, of rows that were sent ahead, only those that the round moved. Where
    moves depend on the length of all that was merged (`OwnedShard.squares`), owners exchange norms
    between the two. The shard does not change here, but when the round is agreed.

    Args:
        slot: the worker's own.
        call: the `meet` message: the members and their weights.
        push: the worker's own: rows, their deltas, what it asks for, and its shard.
        ahead: owner -> the rows that are asked for, as they were before the round.
        backlog: rows of the own shard that its backup lacks, and below which it then has all.
        last_reads: slot -> what its last push with steps read of the own shard.
    """

    def __init__(
        self,
        slot: int,
        call: Message,
        push: Message,
        ahead: Mapping[int, Vector],
        backlog: tuple[Vector, int] | None = None,
        last_reads: Mapping[int, Reads] = MappingProxyType({}),
    ) -> None:
        assert call.vector is not None
        assert push.table.owned is not None
        self.slot, self.slots, self.version = slot, call.slots, call.version
        self._weights = [float(w) for w in call.vector]
        self._push, self._owned, self._ahead = push, push.table.owned, ahead
        self._width = self._owned.rows.shape[1]
        self._by_row = RowCodec(push.codec, self._width, self._owned.exact)
        self._codec = answer_codec(push.codec)
        self.backup_slot = next_to(slot, self.slots)
        """The next worker, which keeps the backup of this one's shard."""
        self._backed_up_slot = self.slots[self.slots.index(slot) - 1]
        self._backlog = (np.empty(0, np.int64), 0) if backlog is None else backlog
        self._last_reads = last_reads
        self.reads: dict[int, Reads] = {}
        """The same of this round, once all deltas have arrived."""
        self._merged: tuple[Vector, Vector] | None = None
        """The own rows in this round [r], and what was merged for them [r, width]."""
        self._squares: dict[int, float] = {}
        """Owner -> the sum of squares of what it merged, where a move depends on all of it."""
        self._moved: ShardMove | None = None
        self._outgoing: dict[str, dict[int, Piece]] = {}
        """Kind of piece -> slot -> the piece: `norm`, then `whole` with the rows it asked for."""
        self._sent: set[str] = set()
        """The kinds that `new_pieces` has returned."""
        self._received: dict[int, Piece] = {}
        """Owner -> the rows that this worker asked for."""
        self._parts: dict[int, Piece] = {slot: self.part(slot)}
        self._advance()

    @property
    def others(self) -> tuple[int, ...]:
        """All members but this one."""
        return tuple(s for s in self.slots if s != self.slot)

    @property
    def is_whole(self) -> bool:
        """True when all rows that were asked for are here."""
        return len(self._received) == len(self.slots)

    @property
    def lacks(self) -> dict[str, list[int]]:
        """The members whose parts, and whose rows or norm, have not arrived."""
        parts = [s for s in self.slots if s not in self._parts]
        needs_norms = self._owned.squares is not None
        wholes = [
            s
            for s in self.others
            if s not in self._received or (needs_norms and s not in self._squares)
        ]
        return {"parts": parts, "wholes": wholes}

    @property
    def backed_up_to(self) -> int:
        """Below which row of the own shard its backup has all that moved, once this is agreed."""
        return self._backlog[1]

    @property
    def is_backup_current(self) -> bool:
        """True when the backup that is kept here is up to date, once this is agreed."""
        whole = self._received.get(self._backed_up_slot, {})
        return self._owned.backup is not None and bool(whole.get("is_all", [False])[0])

    def part(self, slot: int) -> Piece:
        """Returns what an owner needs: the deltas of its rows, and which of them are asked for."""
        push = self._push
        assert push.rows is not None
        assert push.vector is not None
        is_owned = self._is_owned_by(push.rows, slot)
        reads: Piece = {}
        if self._owned.by_reads:
            assert push.table.reads is not None
            reads = {"reads": push.table.reads[is_owned], "steps": np.array([push.since.steps])}
        serves = {"serves": np.array([self._owned.is_serving], np.int64)}
        return {
            **reads,
            **(serves if self._owned.by_push else {}),
            "rows": push.rows[is_owned],
            "vector": push.vector.reshape(-1, self._by_row.size)[is_owned].ravel(),
            "asks": self._requested[self._is_owned_by(self._requested, slot)],
            "came": np.array([slot in self._ahead], np.int64),
        }

    @property
    def _requested(self) -> Vector:
        asks = self._push.table.asks
        return np.empty(0, np.int64) if asks is None else asks

    def _is_owned_by(self, rows: Vector, slot: int) -> Vector:
        found: Vector = rows % len(self.slots) == self.slots.index(slot)
        return found

    def whole_for(self, slot: int) -> Piece | None:
        """Returns the rows that a member asked for, once the own rows have moved."""
        return self._outgoing.get("whole", {}).get(slot)

    @property
    def norm(self) -> Piece | None:
        """What the others need to know of the own rows' length, once every part has arrived."""
        return self._outgoing.get("norm", {}).get(self.slot)

    def new_pieces(self) -> list[tuple[int, str, Piece]]:
        """Returns slot, kind and piece of what was merged here since the last call."""
        kinds = [kind for kind in self._outgoing if kind not in self._sent]
        self._sent.update(kinds)
        return [(slot, kind, self._outgoing[kind][slot]) for kind in kinds for slot in self.others]

    def take(self, kind: str, slot: int, piece: Piece) -> None:
        """Takes a member's `part`, `norm` or `whole` in."""
        if slot not in self.slots:
            return
        if kind == "whole":
            self._received.setdefault(slot, piece)
        elif kind == "norm":
            self._squares.setdefault(slot, float(piece["squares"][0]))
        else:
            self._parts.setdefault(slot, piece)
        self._advance()

    def _advance(self) -> None:
        """Merges once all parts are here, and moves the own rows once all norms are, too."""
        if self._moved is not None or len(self._parts) < len(self.slots):
            return
        if self._merged is None:
            self._merge()
        if self._owned.squares is None:
            self._move()
        elif len(self._squares) == len(self.slots):
            self._move(sum(self._squares[slot] for slot in self.slots))

    def _merge(self) -> None:
        """Merges what all members have of the own rows."""
        parts = [self._parts[slot] for slot in self.slots]
        rows = union([part["rows"] for part in parts])
        total = self._sum_of(parts, rows)
        self._merged = rows, total
        # deltas may be large, and nothing asks for them any more
        parts = [{name: part[name] for name in part if name != "vector"} for part in parts]
        self._parts = dict(zip(self.slots, parts, strict=True))
        if self._owned.squares is not None:
            squares = self._squares[self.slot] = self._owned.squares(self._places(rows), total)
            self._outgoing["norm"] = {s: {"squares": np.array([squares])} for s in self.slots}

    def _move(self, *squares: float) -> None:
        """Moves the own rows by what was merged, and answers the members."""
        assert self._merged is not None
        rows, total = self._merged
        self._moved = self._owned.update(self._places(rows), total, *squares)
        self._merged = None  # it may be large, and is needed no more
        answers = {slot: self._answer(part, rows) for slot, part in self._parts.items()}
        self._received[self.slot] = answers[self.slot]
        if self.backup_slot != self.slot:
            answers[self.backup_slot] = {**answers[self.backup_slot], **self._for_backup()}
        self._outgoing["whole"] = answers

    def _sum_of(self, parts: list[Piece], rows: Vector) -> Vector:
        """Returns the sum of all deltas [r, width] of these rows, each times its weight."""
        owned = self._owned
        total = np.zeros((rows.size, self._width), owned.rows.dtype)
        if owned.by_reads:
            self.reads = {
                slot: (part["rows"], part["reads"] / part["steps"][0])
                for slot, part in zip(self.slots, parts, strict=True)
                if part["steps"][0]
            }
        for slot, part, weight in zip(self.slots, parts, self._weights, strict=True):
            delta, at = self._by_row.decode(part["vector"]), np.searchsorted(rows, part["rows"])
            factors = total.dtype.type(weight > 0 if owned.by_reads else weight)
            if owned.by_push and slot in self.reads:  # of who has not pushed yet, as its own
                known = {**dict.fromkeys(self.slots, self.reads[slot]), **self._last_reads}
                known |= self.reads
                factors = _column(shares_of_reads(rows, known.values())[at], total)
            for start in range(0, at.size, _BLOCK):
                some = slice(start, start + _BLOCK)
                total[at[some]] += (factors[some] if factors.ndim else factors) * delta[some]
        if owned.by_reads and not owned.by_push:
            total *= _column(shares_of_reads(rows, self.reads.values()), total)
        return total

    def _for_backup(self) -> Piece:
        """Returns what the next worker keeps: what this round moves, and some of the backlog."""
        assert self._moved is not None
        owned, (at, complete_below) = self._owned, self._backlog
        move = self._moved._replace(
            inner=self._moved.inner or owned.inner,
            dense_outer=self._moved.dense_outer or owned.dense_outer,
        )
        lacking = np.setdiff1d(at, move.at, assume_unique=True)
        if lacking.size:
            outer = zip(move.outer, owned.outer, strict=True)
            move = move._replace(
                at=np.concatenate([move.at, lacking]),
                rows=np.concatenate([move.rows, owned.rows[lacking]]),
                outer=tuple(np.concatenate([moved, kept[lacking]]) for moved, kept in outer),
            )
        return {
            "is_all": np.array([complete_below == len(owned.rows)], np.int64),
            **to_arrays(move),
        }

    def _places(self, rows: Vector) -> Vector:
        """Returns where rows of the table lie in the own shard."""
        if rows.size and not (
            rows[0] >= 0
            and self._is_owned_by(rows, self.slot).all()
            and rows[-1] // len(self.slots) < len(self._owned.rows)
        ):
            raise FrameError(f"these are no rows of worker {self.slot}", got=f"{rows.size} rows")
        places: Vector = rows // len(self.slots)
        return places

    def _answer(self, part: Piece, rows: Vector) -> Piece:
        """Returns the rows that were asked for, after the round: all, or those that it moved."""
        assert self._moved is not None
        asks = part["asks"]
        current = self._owned.rows[self._places(asks)]  # [a, width]
        at = np.searchsorted(rows, asks)
        at[at == rows.size] = 0
        is_moved = rows[at] == asks if rows.size else np.zeros(asks.size, bool)
        current[is_moved] = self._moved.rows[at[is_moved]]
        which = np.flatnonzero(is_moved if part["came"][0] else np.ones(asks.size, bool))
        sent = current if which.size == len(current) else current[which]
        return {"which": which, "vector": encode(self._codec, sent.ravel())}

    def result(self) -> Message:
        """Returns an `agreed` message: the rows that were asked for, and the moves of this shard.

        The steps in its `since` are 0 if no worker had trained, or is about to push.
        """
        asks = self._requested
        received = np.empty((asks.size, self._width), self._received[self.slot]["vector"].dtype)
        for slot in self.slots:
            at = np.flatnonzero(self._is_owned_by(asks, slot))
            if slot in self._ahead:
                received[at] = self._ahead[slot].reshape(-1, self._width)
            answer = self._received[slot]
            received[at[answer["which"]]] = answer["vector"].reshape(-1, self._width)
        guarded = from_arrays(self._received[self._backed_up_slot])
        serving = sum(bool(part.get("serves", [0])[0]) for part in self._parts.values())
        work = self._push.since._replace(steps=serving + sum(w > 0 for w in self._weights))
        return Message(
            "agreed",
            received.ravel(),
            rows=asks,
            since=work,
            codec=self._codec,
            slot=self.slot,
            table=RowExchange(moved=self._moved, guarded=guarded),
        )


def _column(factors: Vector, rows: Vector) -> Vector:
    """Returns factors [r] of rows [r, width] as a column of their type."""
    return factors.astype(rows.dtype)[:, None]
