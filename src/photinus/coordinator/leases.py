"""Leases and sequence numbers: a push counts once, and only under the seat's present lease.

A lower number is a copy (answered again, not applied), a higher one a gap, an older lease is
fenced. Applying a push and updating its count, cursor and version is one atomic step, in
`Coordinator`. `Leases.verdict` judges a push, `Leases.holds` every other frame of a worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from photinus.strategies.base import ALL
from photinus.training.plan import LEASE_SECONDS
from photinus.training.snapshots import RunSnapshot
from photinus.transport.frames import Frame

MOVED_SECONDS = 5.0
"""A transfer of which no byte moved for so long is stalled."""
RETURN_SECONDS = 1.0
"""A lease ends so long after its connection closed, unless the worker reconnects."""
_MOST_DOUBLINGS = 6

_Fragment = tuple[int, int]
Yields = Literal["", "parks", "ends", "ended", "back"]
"""What the worker of a seat that is given up does: it waits for the seat ("parks"), or its task
must end ("ends"); a task that was sent so has "ended". A seat that is "back" waits for a new
task."""


@dataclass(slots=True)
class SeatState:
    """What the coordinator knows of one slot; only `Leases` changes which worker holds it."""

    slot: int
    lease: int = 0
    is_live: bool = False
    """A worker holds the lease now."""
    close_frame: Frame | None = None
    """Its worker's frame that its share of this phase is done; None before."""
    is_resting: bool = False
    """Its pass over the rows is used up: its worker says hello again with the next one."""
    attempt: str = ""
    """Which attempt holds the lease, or held it last."""
    hello: int = 0
    """The number of the hello by which the attempt got the lease."""
    host: str = ""
    address: str = ""
    """Where it listens to other workers."""
    rows: int = -1
    """-1 until its worker has said hello for the first time."""
    labels: dict[str, int] = field(default_factory=dict)
    """How often each label is in its rows; empty where that is not known."""
    is_streaming: bool = False
    """It has as many passes over its rows as there are jobs, and no more."""
    digest: str = ""
    """64 bits that follow from the content of its rows; empty where rows stream."""
    span: tuple[float, ...] = ()
    """The lowest and the highest number of its first rows; empty where the job needs none."""
    phases_held: int = 0
    """How many earlier phases' parameters the worker holds."""
    ends_at: float = 0.0
    """When the lease ends, unless a sign of life arrives."""
    is_disconnected: bool = False
    """Its connection closed, and nothing was received since."""
    is_dead: bool = False
    """Its process has ended: what is still read from it is no sign of life."""
    transferred_at: float = -math.inf
    """When bytes of a frame to or from its worker moved last, before that frame was whole."""
    sequence: int = 0
    """The number that its next push must have."""
    position: int = 0
    """How far its rows are in the agreed parameters."""
    reached: dict[_Fragment, int] = field(default_factory=dict)
    """How far its rows are in each fragment that it has pushed alone under its lease; those of ALL
    are the numbers of which it has pushed none yet. Empty where its pushes hold all numbers."""
    lost: int = 0
    """Examples up to `position` that are not in the agreed parameters, and never will be."""
    pending_push: Frame | None = None
    """Its push that is accepted and not yet answered."""
    last_answer: Frame | None = None
    """The last answer, for a copy of the question."""
    answers: dict[int, Frame] = field(default_factory=dict)
    """Sequence -> an answer that its worker may not have received yet."""
    pending_hello: Frame | None = None
    """The hello of the worker that waits for the seat."""
    exclusions: int = 0
    """How often in a row it was left out of a meeting because others could not reach it."""
    returns_at: float = 0.0
    """The seat is not granted again before this time, while others continue."""
    strikes: int = 0
    """How many of its pushes were not finite."""
    is_quarantined: bool = False
    leaving_attempt: str = ""
    """The attempt that gives the seat up after its next push, for another of its own."""
    yields: Yields = ""
    """How far the seat is given up to another run, or taken back."""

    @property
    def is_leaving(self) -> bool:
        """True while the worker that holds the seat is about to give it up."""
        is_leaver = bool(self.leaving_attempt) and self.attempt == self.leaving_attempt
        return self.is_live and (is_leaver or self.is_yielding)

    @property
    def is_yielding(self) -> bool:
        """True while the seat is due to another run: it is not granted, its holder must leave."""
        return self.yields in ("parks", "ends", "ended")

    def advance(self, fragment: _Fragment, position: int) -> None:
        """Its rows up to `position` are in the agreed parameters, or in a fragment of them."""
        if fragment == ALL:
            self.reached = {}
        else:
            self.reached.setdefault(ALL, self.position)
            self.reached[fragment] = position
        self.position = position

    def lacking_examples(self, numbers: int) -> int:
        """Returns how many examples its fragments, of so many numbers in all, lack on average."""
        parts = {
            fragment: position for fragment, position in self.reached.items() if fragment != ALL
        }
        other_numbers = numbers - sum(stop - start for start, stop in parts)
        lacking = other_numbers * (self.position - self.reached.get(ALL, self.position))
        lacking += sum(
            (fragment[1] - fragment[0]) * (self.position - reached)
            for fragment, reached in parts.items()
        )
        return -(-lacking // numbers) if numbers else 0

    def mark_lost(self, position: int, numbers: int) -> None:
        """What it has not pushed of its rows up to `position` is lost, in every fragment."""
        self.lost += self.lacking_examples(numbers) + position - self.position
        self.position, self.reached = position, {}

    def is_same_attempt(self, hello: Frame) -> bool:
        """Returns whether the attempt that holds the seat, or held it last, says hello again."""
        return self.lease > 0 and hello.header.get("attempt") == self.attempt


@dataclass(slots=True)
class Leases:
    """All seats of a run, and the four verdicts on a frame that names one."""

    workers: int
    lease_seconds: float = LEASE_SECONDS
    _seats: dict[int, SeatState] = field(default_factory=dict)
    """Slot -> its seat."""
    counts: dict[str, int] = field(
        default_factory=lambda: {"applied": 0, "missed": 0, "duplicate": 0, "gap": 0, "fenced": 0}
    )
    have_met: bool = False
    """Two workers have agreed with each other: their ports are open, or were."""
    _members: frozenset[int] | None = frozenset()

    def __post_init__(self) -> None:
        self._seats = {slot: SeatState(slot) for slot in range(self.workers)}

    def __iter__(self) -> Iterator[SeatState]:
        return iter(self._seats.values())

    def __getitem__(self, slot: int) -> SeatState:
        return self._seats[slot]

    def __contains__(self, slot: object) -> bool:
        return slot in self._seats

    @property
    def rows(self) -> int:
        """The rows of all workers that have said hello."""
        return sum(max(0, seat.rows) for seat in self)

    @property
    def are_streams(self) -> bool:
        """True when a worker has a pass over its rows only as often as there are jobs."""
        return any(seat.is_streaming for seat in self)

    @property
    def present_seats(self) -> list[SeatState]:
        """The seats that a worker holds or asks for."""
        return [s for s in self if s.is_live or s.pending_hello is not None]

    @property
    def close_frames(self) -> dict[int, Frame]:
        """Slot -> its worker's frame that its share is done, of those that sent one."""
        return {s.slot: s.close_frame for s in self if s.close_frame is not None}

    # -- how far the rows are --------------------------------------------------------------------

    def restart(self) -> None:
        """Nothing of any worker's rows is in the agreed parameters."""
        for seat in self:
            seat.position, seat.reached, seat.lost = 0, {}, 0

    def restore(self, snapshot: RunSnapshot) -> None:
        """Every seat is as far as it was at a snapshot."""
        for seat in self:
            seat.position = snapshot.positions.get(seat.slot, 0)
            seat.reached = dict(snapshot.reached.get(seat.slot, {}))
            seat.lost = snapshot.lost.get(seat.slot, 0)

    def positions(self) -> dict[str, Any]:
        """Returns how far every seat is, as the fields of a snapshot."""
        seats = self
        return {
            "positions": {s.slot: s.position for s in seats},
            "reached": {s.slot: dict(s.reached) for s in seats if s.reached},
            "lost": {s.slot: s.lost for s in seats if s.lost},
            "rows": {s.slot: s.rows for s in seats},
            "digests": {s.slot: s.digest for s in seats if s.digest},
        }

    def passes(self, numbers: int) -> dict[int, float]:
        """Returns how often each worker's rows were trained on, in all of so many numbers."""
        seats = [seat for seat in self if seat.rows > 0]
        return {s.slot: (s.position - s.lost - s.lacking_examples(numbers)) / s.rows for s in seats}

    # -- verdicts on frames ----------------------------------------------------------------------

    def holds(self, frame: Frame) -> bool:
        """Returns whether a frame was sent under its seat's present lease."""
        seat = self._seats.get(frame.slot)
        return seat is not None and seat.is_live and frame.lease == seat.lease

    def verdict(self, frame: Frame) -> str:
        """Returns next, duplicate, gap or fenced, and counts all but the first."""
        if not self.holds(frame):
            return self._count("fenced")
        expected = self[frame.slot].sequence
        if frame.sequence == expected:
            return "next"
        return self._count("duplicate" if frame.sequence < expected else "gap")

    def _count(self, verdict: str) -> str:
        self.counts[verdict] += 1
        return verdict

    def grant(self, seat: SeatState, hello: Frame, now: float) -> None:
        """Gives the seat to the sender of the hello: a new lease."""
        seat.lease += 1
        seat.is_live = True
        seat.close_frame = seat.pending_hello = seat.last_answer = None
        seat.yields, seat.answers, header = "", {}, hello.header
        seat.attempt, seat.hello = header["attempt"], header["hello"]
        seat.phases_held = header["has"]
        seat.host, seat.address = header.get("host", ""), header.get("address", "")
        seat.ends_at, seat.is_disconnected, seat.is_dead = now + self.lease_seconds, False, False
        seat.transferred_at = -math.inf
        self._members = None

    def vacate(self, seat: SeatState) -> None:
        """Ends a lease: frames under it are fenced from now on."""
        seat.is_live, self._members = False, None

    def exclude(self, seat: SeatState, now: float) -> None:
        """Others cannot reach it: its seat is granted again after a delay, doubled each time."""
        seat.returns_at = now + self.lease_seconds * (1 << min(seat.exclusions, _MOST_DOUBLINGS))
        seat.exclusions += 1

    def close(self, seat: SeatState, frame: Frame) -> None:
        """Notes that a share, or a pass, is done: no round waits for its worker any more."""
        seat.close_frame, self._members = frame, None
        if frame.header.get("is_unfinished"):
            seat.is_resting, seat.is_live = True, False

    def empty(self, now: float) -> None:
        """Empties all seats after a pass: the workers say hello again with the next one."""
        self.free_numbers()
        for seat in self:
            seat.is_resting = seat.is_live = False
            seat.rows, seat.pending_hello, seat.ends_at = -1, None, now
        self.reopen()

    def free_numbers(self) -> None:
        """Frees the numbers by which shares were closed, where a new lease follows.

        The ledger has pushes only: their numbers have no gap.
        """
        for seat in self:
            if seat.close_frame is not None:
                seat.sequence = seat.close_frame.sequence

    def reopen(self) -> None:
        """Opens every share again, for another phase, or at an earlier point of this one."""
        for seat in self:
            seat.close_frame = None
        self._members = None

    def withdraw(self, hello: Frame) -> None:
        """The worker that asked for a seat is gone, and waits for it no longer."""
        seat = self._seats.get(hello.slot)
        if seat is not None and seat.pending_hello is hello:
            seat.pending_hello = None

    def heard(self, frame: Frame, now: float) -> None:
        """Takes a frame as a sign of life of the holder of the lease.

        The holder may be a worker whose grant is still on its way.

        Until its worker has read the grant, however long that takes, it cannot name the lease: it
        names its attempt.
        """
        seat = self._seats.get(frame.slot)
        if seat is None or not seat.is_live:
            return
        is_back = frame.kind == "hello" and seat.is_same_attempt(frame)
        is_waiting = self.is_granted_to(frame) and not seat.is_disconnected
        if frame.lease == seat.lease or is_back or is_waiting:
            self._extend(seat, now)

    def is_granted_to(self, frame: Frame) -> bool:
        """Returns whether a frame is of the seat's holder, sent before it knew of its grant."""
        seat = self._seats.get(frame.slot)
        is_older = seat is not None and seat.is_live and frame.lease < seat.lease
        return is_older and seat is not None and seat.is_same_attempt(frame)

    def sent_bytes(self, slot: int, lease: int, now: float) -> None:
        """Takes bytes from the holder of a lease as a sign of life, before a frame is whole.

        Bytes of a connection that has closed do not count: they are older than its end.
        """
        seat = self[slot]
        if seat.is_live and seat.lease == lease and not seat.is_disconnected:
            self._extend(seat, now)

    def moved(self, slot: int, now: float) -> None:
        """Notes that bytes of a frame to or from a worker moved, before it is whole."""
        self[slot].transferred_at = now

    def is_moving(self, slot: int, now: float) -> bool:
        """Returns whether bytes of a frame to or from a slot's worker have moved lately."""
        return now - self[slot].transferred_at < MOVED_SECONDS

    def _extend(self, seat: SeatState, now: float) -> None:
        if not seat.is_dead:
            seat.ends_at, seat.is_disconnected = now + self.lease_seconds, False

    def gone(self, slot: int, lease: int, now: float) -> None:
        """Its connection closed: the lease ends soon, unless the worker reconnects."""
        seat = self._seats.get(slot)
        if seat is not None and seat.is_live and seat.lease == lease:
            seat.ends_at, seat.is_disconnected = min(seat.ends_at, now + RETURN_SECONDS), True

    def died(self, slot: int, attempt: str, now: float) -> None:
        """Ends the lease now if the attempt, whose process has ended, holds the seat."""
        seat = self._seats.get(slot)
        if seat is not None and seat.is_live and seat.attempt == attempt:
            seat.ends_at, seat.is_dead = now, True

    def reason(self, seat: SeatState) -> str:
        """Returns why a lease has ended."""
        if seat.is_dead:
            return "its process ended"
        if seat.is_disconnected:
            return "its connection closed and did not come back"
        return f"no sign of life from it for {self.lease_seconds:g} s"

    def expire(self, now: float) -> list[SeatState]:
        """Returns the seats whose lease has just ended, and empties them."""
        ended = [seat for seat in self if seat.is_live and now >= seat.ends_at]
        for seat in ended:
            self.vacate(seat)
        return ended

    @property
    def held_slots(self) -> frozenset[int]:
        """The slots whose lease a worker holds, done with its share or not."""
        return frozenset(seat.slot for seat in self if seat.is_live)

    @property
    def yielding(self) -> dict[int, bool]:
        """The slots that are given up to another run, and which of them are empty by now.

        A task that was not sent its end yet holds its place.
        """
        yielding_seats = (seat for seat in self if seat.is_yielding)
        return {seat.slot: not seat.is_live and seat.yields != "ends" for seat in yielding_seats}

    @property
    def starved(self) -> frozenset[int]:
        """The slots that no worker holds or asks for, while a copy waits for a held seat."""
        seats = self
        if not any(seat.is_live and seat.pending_hello is not None for seat in seats):
            return frozenset()
        empty_seats = (
            s
            for s in seats
            if not (s.is_live or s.pending_hello or s.close_frame or s.is_resting or s.yields)
        )
        return frozenset(seat.slot for seat in empty_seats)

    @property
    def members(self) -> frozenset[int]:
        """The slots that a round waits for: held, and not done with their share."""
        if self._members is None:
            open_seats = (s for s in self if s.is_live and s.close_frame is None)
            self._members = frozenset(seat.slot for seat in open_seats)
        return self._members
