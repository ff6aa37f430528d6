"""A table of rows, sharded over the workers: each owns a shard, and asks for the rows it needs.

Worker r mod K of K owns row r of the table. A worker holds its shard, and of the others' rows
those that its next steps read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from photinus.core.clock import Clock, Steps, Trigger
from photinus.core.parameters import Vector
from photinus.core.settings import one_of, validate, whole
from photinus.strategies.base import (
    PARAMETERS,
    ROW_GRADIENTS,
    Message,
    OwnedShard,
    RowExchange,
    ShardMove,
    Strategy,
    Turn,
)
from photinus.strategies.codecs import CODECS, codec, decode
from photinus.strategies.outer import OuterOptimizer, Sgd
from photinus.strategies.row_codec import RowCodec, RowErrorFeedback
from photinus.strategies.shard_backups import ShardBackup, write

READS = "reads"
"""A merge: how far a row moves follows from how many steps read it."""
_IN_START = -1
"""Instead of a version: a row moved last in the start by gradients, before version 0."""


class ShardState(NamedTuple):
    """A worker's state between rounds."""

    own: Vector
    """Its shard [m, width]; `accept` writes into it: a copy would take the memory twice."""
    outer: tuple[Vector, ...]
    """The outer optimizer's state of its shard, each [m · numbers], written into as well."""
    rows: Vector
    """Which rows it asked for [r], in order."""
    received: Vector
    """Their numbers on arrival [r, width]."""
    version: int = 0
    sent: Clock = Clock()
    """When it last pushed."""
    is_fed: bool = False
    """The rows of its first steps have arrived."""
    is_called: bool = False
    """Another worker is due, and waits for this one's shard."""
    is_serving: bool = False
    """It brings only its shard to the round, and keeps the steps since its last push."""
    is_closing: bool = False
    """It has no rows of data left, and stays for the sake of its shard."""
    is_over: bool = False
    """No worker has any steps left."""
    is_behind: bool = False
    """Its shard is as it was loaded: before it joins a round it asks for what has moved."""
    moved: Vector = np.zeros(0, np.int32)
    """In which version each row of its shard moved last [m]; 0: it is as it was drawn, or loaded
    whole; `_IN_START`: in the start by gradients, whose versions are others."""
    first: Vector | None = None
    """Some rows of its shard as they were at the start [s, width]; None where it was loaded whole:
    it is then sent whole."""
    backup: ShardBackup | None = None
    """Its backup of the previous worker's shard."""
    left_rows: Vector = np.zeros(0, np.int64)
    """The rows [l] of whose agreed deltas the codec left something out."""
    left: Vector = np.zeros(0)
    """What that is [l · width]."""
    dense_rows: int = 0
    """How many rows the dense layers have: the first of all parameters, which every step reads."""
    dense_outer: tuple[Vector, ...] = ()
    """The outer optimizer's state of those in the shard, each [d · width] or [1], where it steps
    them alone."""
    pending: RowErrorFeedback | None = None
    """Both, should the push that is under way be agreed on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharded(Strategy):
    """Rounds over a table that no worker holds: deltas are sent to the rows' owners, rows back.

    Δᵢ = rows on arrival − rows now;  row ← outer(row, Σ cᵢΔᵢ), by the row's owner, once for each
    round. The rows of the next round arrive while the steps of this one are taken, and at its
    end those of them that it moved; by time all arrive at its end. Before the first step there is
    a round without deltas. A worker that is done with its data stays until all are: others need its
    shard.

    What int8 and int4 leave out of a row's delta is added to its next one: eᵣ ← eᵣ + Δᵣ; send
    Q(eᵣ); eᵣ ← eᵣ − Q(eᵣ) (1-bit SGD: Seide et al., 2014; here for each row).

    An outer optimizer with momentum steps the dense layers alone. A table's row, which may be in
    few rounds, moves by the merged delta itself: row ← row − Σ cᵢΔᵢ.

    Where a worker that is due calls the others, none waits for another's steps. The called ones
    bring their shards between two steps, and push what they learn at their own time.
    """

    every: Trigger = field(default_factory=lambda: Steps(50))
    """After so many steps a round is due, at the latest; so far ahead the feed is read."""
    outer: OuterOptimizer = field(default_factory=Sgd)
    """The optimizer that an owner applies the merged delta by; of all rows if it is by row."""
    codec: str = "fp32"
    """The numbers that deltas travel in; rows, too, except that int8 and int4 become bf16."""
    rows: int = 1
    """How many numbers a row holds."""
    merge: str = "uniform"
    """uniform: cᵢ = 1/K · reads: as `shares_of_reads` has it for each row."""
    exact: int = 0
    """How many numbers at the end of a row travel as float32 in int8 and int4."""
    calls_meetings: bool = False
    site = PARAMETERS
    is_peer_to_peer = True
    is_sharded = True
    own_fields = ("left_rows", "left")
    LIMITS = {  # noqa: RUF012
        "codec": one_of(*CODECS),
        "rows": whole(1),
        "merge": one_of("uniform", READS),
        "exact": whole(0),
    }

    def __post_init__(self) -> None:
        validate(self)

    def init(self, vector: Vector) -> ShardState:
        """Returns the state before the shard has arrived."""
        nothing = np.empty((0, self.rows), vector.dtype)
        return ShardState(nothing, (), np.empty(0, np.int64), nothing, left=nothing.ravel())

    def due(self, clock: Clock, state: ShardState) -> tuple[Turn, ...]:
        """Returns a round before the first step, when the trigger fires, and until all are done.

        After each the owners are asked for the rows of the round after the next one. A worker that
        rejoins with a shard that has moved has no first round: it asks for what moved.
        """
        if state.is_over or not (state.is_called or self._is_due(clock, state)):
            return ()
        return (Turn("meet"),) if clock.closing else (Turn("meet"), Turn("publish"))

    def offer(
        self, turn: Turn, vector: Vector, clock: Clock, state: ShardState
    ) -> tuple[Message | None, ShardState]:
        """Offers the rows' deltas, or gradients; the loop adds which rows the next steps read."""
        if turn.kind == "publish":
            # without a count it is not known which steps the round after the next one will have
            requested = None if self._has_fixed_steps else state.rows[:0]
            return Message("fetch", version=state.version, table=RowExchange(asks=requested)), state
        outer = _by_row(state)
        shard = OwnedShard(
            state.own,
            outer,
            self._moves(state, outer),
            by_reads=self.merge == READS,
            by_push=self.calls_meetings,
            moved=state.moved,
            backup=state.backup,
            exact=self.exact,
            dense_outer=state.dense_outer,
        )
        table = RowExchange(owned=shard)
        by_row, name = RowCodec(self.codec, self.rows, self.exact), self.codec
        if state.is_behind:
            nothing = by_row.encode(state.received)
            return Message("fetch", nothing, version=state.version, codec=name, table=table), state
        if state.is_called and not self._is_due(clock, state):
            return self._only_serve(table, state)
        delta = self._offered(vector, state)  # [r, width]
        changed = delta.any(axis=1)
        feedback = RowErrorFeedback(state.left_rows, state.left.reshape(-1, self.rows))
        feedback.add_to(delta, state.rows)
        if self._has_fixed_steps:  # else some of the rows that came were not read
            changed = delta.any(axis=1) | self._sends_unmoved
        if not self.outer.is_by_row:  # with steps momentum moves all dense layers, else none
            is_dense = state.rows < state.dense_rows
            changed = changed | is_dense if clock.steps > state.sent.steps else changed & ~is_dense
        rows = state.rows
        if not changed.all():
            rows, delta = rows[changed], delta[changed]
        sent, pending = by_row.encode(delta), None
        if codec(name).has_feedback:
            pending = feedback.after(rows, delta - by_row.decode(sent))
        message = Message(
            "push",
            sent,
            turn.fragment,
            rows,
            since=clock.since(state.sent),
            version=state.version,
            codec=name,
            table=table,
        )
        return message, state._replace(sent=clock, is_closing=clock.closing, pending=pending)

    def _is_due(self, clock: Clock, state: ShardState) -> bool:
        """Returns whether it has something to push, or to ask for, by itself."""
        return clock.closing or not state.is_fed or self.every.fires(clock, state.sent)

    @property
    def _has_fixed_steps(self) -> bool:
        """True when all rounds have equally many steps."""
        return self.every.is_deterministic and not self.calls_meetings

    def _only_serve(self, table: RowExchange, state: ShardState) -> tuple[Message, ShardState]:
        """Offers nothing to a round that another worker has called, and asks for nothing."""
        none = state.rows[:0]
        assert table.owned is not None
        serving = table.owned._replace(is_serving=True)
        table = replace(table, owned=serving, asks=none, reads=none)
        nothing = RowCodec(self.codec, self.rows, self.exact).encode(state.received[:0])
        message = Message(
            "push", nothing, rows=none, version=state.version, codec=self.codec, table=table
        )
        return message, state._replace(is_serving=True)

    def _moves(
        self, state: ShardState, outer: tuple[Vector, ...]
    ) -> Callable[[Vector, Vector], ShardMove]:
        """Returns what moves rows of the shard."""
        if self.outer.is_by_row:
            return moves_by(self.outer, state.own, outer)
        return dense_moves_by(self.outer, state.own, state.dense_outer)

    def _offered(self, vector: Vector, state: ShardState) -> Vector:
        """Returns the deltas of the rows that were received [r, width]."""
        return state.received - vector.reshape(-1, self.rows)[state.rows]

    @property
    def _sends_unmoved(self) -> bool:
        """True where rows that were read are sent though they did not change: reads count."""
        return self.merge == READS

    def accept(self, vector: Vector, incoming: Message, state: ShardState) -> ShardState:
        """Takes its shard, or what a round did to it and the rows of the next steps."""
        if incoming.kind == "call":
            return state._replace(is_called=incoming.version == state.version)
        if incoming.kind == "heal":
            return self._with_shard(vector, incoming)
        if incoming.kind != "agreed":
            return state
        state, is_serving = _with_move(incoming, state), state.is_serving
        return state if is_serving else _with_rows(vector, incoming, state)

    def _with_shard(self, vector: Vector, incoming: Message) -> ShardState:
        """Returns the state with the shard that a worker begins or continues with."""
        assert incoming.vector is not None
        table, own = incoming.table, incoming.vector.reshape(-1, self.rows)
        outer = incoming.outer
        if self.outer.is_by_row and not outer:
            outer = tuple(array.ravel() for array in self.outer.init(own))
        moved = np.zeros(len(own), np.int32)
        if table.moved is not None:
            moved[table.moved.at] = incoming.version or _IN_START
        return self.init(vector)._replace(
            own=own,
            outer=outer,
            moved=moved,
            first=None if table.moved is None else table.moved.rows,
            backup=table.backup,
            version=incoming.version,
            is_behind=table.is_behind,
            dense_rows=table.dense_rows,
            dense_outer=table.dense_outer,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardedGradients(Sharded):
    """A round in every step: workers send gradients to owners, which step their rows by the mean.

    gᵣ ← Σ nᵢgᵢᵣ / Σ nᵢ, with nᵢ examples of worker i;  rowᵣ ← the row's own optimizer (rowᵣ, gᵣ).

    One process with the batches of all workers takes the same step. A gradient of 0 is sent, too:
    an optimizer with momentum moves its row.
    """

    every: Trigger = field(default_factory=lambda: Steps(1))
    """Always every step."""
    site = ROW_GRADIENTS

    def _offered(self, vector: Vector, state: ShardState) -> Vector:
        """Returns the gradients of the rows that were received [r, width]."""
        gradients: Vector = vector.reshape(-1, self.rows)[state.rows]
        return gradients

    @property
    def _sends_unmoved(self) -> bool:
        return True


def moves_by(
    optimizer: OuterOptimizer, own: Vector, outer: tuple[Vector, ...]
) -> Callable[[Vector, Vector], ShardMove]:
    """Returns what moves rows of a shard [m, width] by an outer optimizer.

    Args:
        optimizer: applies a merged delta.
        own: the shard.
        outer: the optimizer's state of it, each [m, numbers].
    """

    def move(at: Vector, delta: Vector) -> ShardMove:
        if not at.size:  # of an owner without rows it is not known how wide its state is
            return ShardMove(at, own[at], tuple(array[at] for array in outer))
        rows, state = optimizer.update(own[at], delta, tuple(array[at] for array in outer))
        return ShardMove(at, rows, state)

    return move


def dense_moves_by(
    optimizer: OuterOptimizer, own: Vector, dense_outer: tuple[Vector, ...]
) -> Callable[[Vector, Vector], ShardMove]:
    """Returns what moves rows of a shard: dense layers by an outer optimizer, tables by the delta.

    Args:
        optimizer: applies the merged delta of the dense layers.
        own: the shard [m, width], in which these are the first rows.
        dense_outer: the optimizer's state of them; first an array of as many numbers as they have.
    """
    count = dense_outer[0].size // max(1, own.shape[1])

    def move(at: Vector, delta: Vector) -> ShardMove:
        rows = own[at] - delta
        if not at.size or at[0] >= count:  # all dense layers are in a round, or none
            return ShardMove(at, rows, ())
        dense, state = optimizer.update(own[:count].ravel(), delta[:count].ravel(), dense_outer)
        rows[:count] = dense.reshape(count, -1)
        return ShardMove(at, rows, (), dense_outer=state)

    return move


def _with_move(agreed: Message, state: ShardState) -> ShardState:
    """Returns the state after a round moved the shard, and the one whose backup is here."""
    table, backup = agreed.table, state.backup
    assert table.moved is not None
    write(table.moved, state.own, _by_row(state), state.moved, agreed.version)
    if table.guarded is not None and backup is not None and not backup.take(table.guarded):
        backup = None  # there is no room
    return state._replace(
        backup=backup,
        dense_outer=table.moved.dense_outer or state.dense_outer,
        version=agreed.version,
        is_called=False,
        is_serving=False,
    )


def _with_rows(vector: Vector, agreed: Message, state: ShardState) -> ShardState:
    """Returns the state with the rows that the next steps read, which are written to `vector`."""
    assert agreed.vector is not None
    assert agreed.rows is not None
    table = vector.reshape(-1, state.own.shape[1])
    received = decode(agreed.codec, agreed.vector).astype(vector.dtype, copy=False)
    table[agreed.rows] = received = received.reshape(-1, table.shape[1])
    feedback = state.pending or RowErrorFeedback(state.left_rows, state.left)
    if state.is_behind:  # it may be of a checkpoint, and was pushed since
        feedback = RowErrorFeedback(state.left_rows[:0], state.left[:0])
    return state._replace(
        left_rows=feedback.rows,
        left=feedback.numbers.ravel(),
        pending=None,
        rows=agreed.rows,
        received=received,
        is_fed=True,
        is_behind=False,
        is_over=state.is_closing and not agreed.since.steps,
    )


def _by_row(state: ShardState) -> tuple[Vector, ...]:
    """Returns the outer state as views, each [m, numbers]: what travels is flat."""
    count = len(state.own)
    return tuple(array.reshape(count, array.size // max(1, count)) for array in state.outer)
