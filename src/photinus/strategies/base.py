"""The interface of a strategy: the worker's half and the owner's half.

Both halves are pure: all that they remember is the state that they return, so a checkpoint is
values, and the same functions run in the simulator, in processes and on Spark. `offer` and
`accept` write only into the vector that they are given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from photinus.core.clock import Clock
from photinus.core.errors import UsageError
from photinus.core.parameters import Vector

GRADIENT, PARAMETERS = "gradient", "parameters"
"""Where in a step a strategy acts: on the gradient, before the inner step, or after it."""

OWN_PARAMETERS = "parameters"
"""In `Strategy.own_fields`: between rounds only the worker itself has its parameters."""
GRADIENT_SUM = "gradient sum"
"""After the inner step too, but what it pushes is the sum of the gradients since its last push."""
ROW_GRADIENTS = "gradients of rows"
"""The owners of a table's rows take the step, by the mean gradient of all workers."""
AT_EVERY_STEP = (GRADIENT, ROW_GRADIENTS)
"""Where workers agree on every step."""
SITES = (GRADIENT, PARAMETERS, GRADIENT_SUM, ROW_GRADIENTS)
TURNS = ("push", "swap", "take", "fetch", "publish", "meet")
"""The kinds of a `Turn`."""

ALL = (0, 0)
"""The fragment that is the whole vector."""


def part(vector: Vector, fragment: tuple[int, int]) -> Vector:
    """Returns the fragment (start, stop) of a vector [n], as a view; (0, 0) is all of it."""
    return vector if fragment == ALL else vector[fragment[0] : fragment[1]]


def fragments_of(size: int, fragments: int) -> tuple[tuple[int, int], ...]:
    """Returns (start, stop) of each fragment of a vector [size]; none is longer by more than one.

    Raises:
        UsageError: a fragment would hold nothing.

    Example:
        >>> fragments_of(10, 3)
        ((0, 3), (3, 6), (6, 10))
    """
    if fragments > size:
        wrong = f"there can be at most {size} fragments, one for each parameter"
        raise UsageError(wrong, got=fragments, do="set fewer fragments")
    edges = [size * n // fragments for n in range(fragments + 1)]
    return tuple(pairwise(edges))


class Turn(NamedTuple):
    """One exchange that is due now.

    `push` sends to the owner · `swap` pushes and waits for the answer · `take` waits for the answer
    to an earlier push · `fetch` asks for what the owner has · `publish` sends to other workers ·
    `meet` waits for an exact mean that the workers make among themselves.
    """

    kind: str
    """push, swap, take, fetch, publish or meet."""
    fragment: tuple[int, int] = ALL
    """(start, stop) in the vector; (0, 0) is all of it."""

    @property
    def waits(self) -> bool:
        """True when the loop waits for an answer."""
        return self.kind not in ("push", "publish")


class OwnedShard(NamedTuple):
    """A worker's shard of a table, as it was last agreed on."""

    rows: Vector
    """[m, width]"""
    outer: tuple[Vector, ...]
    """The outer optimizer's state, each [m, ...]."""
    update: Callable[..., ShardMove]
    """Returns where some of its rows [r] move by what was merged for them [r, width]. With
    `squares` it also takes their sum over all owners."""
    squares: Callable[[Vector, Vector], float] | None = None
    """Returns the sum of squares of what was merged for its rows; None: no move depends on it."""
    by_reads: bool = False
    """A row moves by its share of reads (`rows.shares_of_reads`), not by the mean."""
    by_push: bool = False
    """Each push is weighed by itself, and not among those of its round."""
    is_serving: bool = False
    """Its worker brings no deltas, and is at steps that it pushes later."""
    moved: Vector = np.zeros(0, np.int32)
    """In which version each row moved last [m], as far as that is known; else 0."""
    backup: Any = None
    """The backup of another worker's shard, a `ShardBackup`; None where there is no room."""
    inner: Mapping[str, Vector] = MappingProxyType({})
    """The state of the worker's inner optimizer."""
    exact: int = 0
    """How many numbers at the end of a row travel as float32, whatever the codec."""
    dense_outer: tuple[Vector, ...] = ()
    """The outer optimizer's state of the dense layers in it, where it steps no other rows."""


class ShardMove(NamedTuple):
    """What a round does to a worker's shard."""

    at: Vector
    """Which of its rows move [r]."""
    rows: Vector
    """Where to [r, width]."""
    outer: tuple[Vector, ...]
    """Their outer state, each [r, ...]."""
    inner: Mapping[str, Vector] = MappingProxyType({})
    """The state of its worker's inner optimizer, where another worker keeps it or returns it."""
    dense_outer: tuple[Vector, ...] = ()
    """The outer optimizer's whole new state of the dense layers; empty where it stays."""


@dataclass(frozen=True, slots=True)
class RowExchange:
    """What only a message of a sharded table has.

    None of it is in the message's own frame: what others need travels in the pieces of a round.
    """

    asks: Vector | None = None
    """Going up: which rows [r] the next steps read."""
    reads: Vector | None = None
    """Going up: in how many steps since the last round each of the message's rows was read [r]."""
    owned: OwnedShard | None = None
    """Going up: the worker's own shard."""
    moved: ShardMove | None = None
    """With the answer: what the round does to that shard. Of `heal`: which of its rows have moved
    since the start, and some rows as they were then; None where that is not known."""
    guarded: ShardMove | None = None
    """With the answer: what the round does to the shard whose backup is here."""
    backup: Any = None
    """Of `heal`: that backup, without a row in it."""
    dense_rows: int = 0
    """Of `heal`: how many rows the dense layers have; they are the first of the parameters."""
    dense_outer: tuple[Vector, ...] = ()
    """Of `heal`: the outer optimizer's state of those in the shard."""
    is_behind: bool = False
    """Of `heal`: the others' shards are newer; the next worker has the rows of it that moved."""


class Message(NamedTuple):
    """What workers and owners exchange; the frame that carries it names the seat and the lease."""

    kind: str
    """push · fetch · agreed · ack (applied; nothing comes down) · heal · rejoin (the worker must
    heal as a joiner does).

    Among workers: publish · here (the list of members) · call (to a meeting) · meet (its members
    and their weights) · ready (the mean is whole).
    """
    vector: Vector | None = None
    """Gradient or delta [n] going up; mean or agreed point [n] coming down; as the codec has it."""
    fragment: tuple[int, int] = ALL
    """(start, stop) in the vector; (0, 0) is all of it."""
    rows: Vector | None = None
    """Which rows [r] of the whole vector stand in `vector`, one behind the other; None: all."""
    kept: Vector | None = None
    """Which grains of the vector stand in `vector`, as bits: `strategies.sparse`; None: all."""
    since: Clock = Clock()
    """The work in a push: what the merge weighs."""
    version: int = 0
    """The agreed point that a delta starts from, or that an answer brings."""
    codec: str = "fp32"
    """The numbers that `vector` travels in."""
    outer: tuple[Vector, ...] = ()
    """The outer optimizer's state, in `heal` only."""
    floats: Vector | None = None
    """Float buffers (BatchNorm): beside the vector, never through an outer optimizer."""
    integers: Vector | None = None
    """Integer buffers: their maximum is taken."""
    left: Vector | None = None
    """What the owner's codec has left out so far [n]: for checkpoints, it never travels."""
    fingerprint: str = ""
    """Now and then, going up: of what its worker holds as agreed; coming down with `rejoin`: of
    what was agreed."""
    slot: int = -1
    """Of `publish` and `ready` the sender's, of `here` the worker's own."""
    slots: tuple[int, ...] = ()
    """Of `publish` the receivers, else the members, or those of the meeting."""
    table: RowExchange = RowExchange()
    """What a sharded table needs beside all that."""


class Strategy(ABC):
    """The worker's half. A strategy of one's own is any object with this site and four functions.

    `photinus.testing.check_strategy` proves that one keeps the contract.
    """

    site: str = PARAMETERS
    has_late_answers: bool = False
    """True when a push is answered at a later turn, `take`, and not before."""
    own_fields: tuple[str, ...] = ()
    """Fields of its state (arrays, clocks) that no owner holds, for checkpoints."""
    is_peer_to_peer: bool = False
    """True when the workers make every mean among themselves: no owner holds parameters."""
    is_sharded: bool = False
    """True when the parameters are a table of which each worker owns rows that no other has."""
    calls_meetings: bool = False
    """True when a meeting may take place between two of its pushes, as the policy has it."""
    is_early: bool = False
    """True when it also offers a fragment of its next `meet` once that alone is final; its `merge`
    is the policy's."""

    @abstractmethod
    def init(self, vector: Vector) -> Any:  # noqa: ANN401 - each strategy has a state of its own
        """Returns the state at the start of a phase; `vector` [n] is what all workers hold."""

    @abstractmethod
    def due(self, clock: Clock, state: Any) -> tuple[Turn, ...]:  # noqa: ANN401
        """Returns the turns that are due after a step; with `clock.closing` set, the drain."""

    @abstractmethod
    def offer(
        self,
        turn: Turn,
        vector: Vector,
        clock: Clock,
        state: Any,  # noqa: ANN401
    ) -> tuple[Message | None, Any]:
        """Returns what to send for a turn, and the new state."""

    @abstractmethod
    def accept(self, vector: Vector, incoming: Message, state: Any) -> Any:  # noqa: ANN401
        """Takes a message in: changes `vector` in place, returns the new state."""


_FORMER_NAMES = {
    **{"keeps": "holds_parameters", "waits": "has_rounds", "meets": "is_peer_to_peer"},
    **{"takes": "has_late_answers", "alone": "own_fields", "calls": "calls_meetings"},
}


def former_names(half: object) -> dict[str, str]:
    """Returns the former names that a half of the user's own still has, each with today's.

    They would not be read: the half would be taken for one that leaves them out.

    Example:
        >>> former_names(type("Mine", (), {"waits": False}))
        {'waits': 'has_rounds'}
    """
    values = ((former, name, getattr(half, former, None)) for former, name in _FORMER_NAMES.items())
    return {former: name for former, name, value in values if isinstance(value, (bool, tuple))}


def is_held_by_workers(strategy: Strategy) -> bool:
    """Returns whether only the workers hold the parameters, each of them all, and no owner."""
    is_peer_to_peer = bool(getattr(strategy, "is_peer_to_peer", False))
    is_sharded = bool(getattr(strategy, "is_sharded", False))
    return (is_peer_to_peer or strategy.site == GRADIENT) and not is_sharded


class Reply(NamedTuple):
    """An owner's answer, and its receiver."""

    slot: int
    """The slot of the worker that receives it."""
    message: Message
    """The answer."""


class Policy(ABC):
    """The owner's half: a message in, replies out. It never asks for the time or the network."""

    holds_parameters: bool = True
    """True when the owner holds the agreed parameters; False when only the workers do."""
    has_rounds: bool = True
    """True when a push waits for those of others; False when each is applied as it comes."""
    quorum: float = 1.0
    """The share of the members (above 1: how many of them) that may close a round alone."""
    grace_seconds: float = 0.0
    """How long a round waits for the others once the quorum has pushed."""
    is_peer_to_peer: bool = False
    """True when the workers make every mean among themselves; this only decides who is in it."""
    rounds_between: int = 0
    """How many publications of each worker there are between two meetings; 0: no publications."""
    rows: int = 0
    """How many numbers a row holds, where only rows that changed travel; 0: all travel."""
    shards: int = 0
    """How many workers own rows that no other has: without one none continues; 0: no worker."""
    calls_meetings: bool = False
    """True when a push with steps calls the others to a meeting, whatever they are doing."""

    @abstractmethod
    def init(self, point: Message) -> Any:  # noqa: ANN401
        """Returns the state at an agreed point: what `agreed` returns, or a phase's start.

        At the start the point's version is 0 and its outer state empty.
        """

    @abstractmethod
    def receive(
        self,
        slot: int,
        message: Message,
        members: frozenset[int],
        state: Any,  # noqa: ANN401
    ) -> tuple[list[Reply], Any]:
        """Takes a push or a fetch of `slot` in; `members` are the slots that are waited for.

        Where workers do not wait, they are all that hold a seat.
        """

    def close(
        self,
        members: frozenset[int],  # noqa: ARG002 - a policy without rounds waits for no worker
        state: Any,  # noqa: ANN401
    ) -> tuple[list[Reply], Any]:
        """Called when `members` shrank: with those that are left a round may be whole."""
        return [], state

    @abstractmethod
    def agreed(self, state: Any) -> Message:  # noqa: ANN401
        """Returns the agreed point as a `heal` message: for joiners, checkpoints and the end."""


class StrategyPair(Protocol):
    """How the workers agree: what a recipe returns, or an object of the user's own."""

    @property
    def is_deterministic(self) -> bool:
        """True when the same seed gives the same bits."""

    def worker(self) -> Strategy:
        """Returns the worker's half."""

    def owner(self) -> Policy:
        """Returns the owner's half."""
