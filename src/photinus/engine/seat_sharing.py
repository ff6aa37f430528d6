"""Shares seats between runs: more urgent runs get them first, equals share them by weight.

A run gives a seat up at the end of a round, and takes it back later. In between the seat is empty,
like that of a lost worker: its rows stay its own, and are trained on later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from photinus.core.errors import user_message
from photinus.core.events import Event, Warned
from photinus.core.settings import Limit, above
from photinus.engine.seat_table import (
    CLAIMS_CHANGED,
    FolderClaims,
    SeatClaim,
    announce_here,
    claims_here,
    forget_announced,
    forget_here,
)

LOOK_SECONDS = 0.5
PRIORITY = Limit(
    "a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)
)
WEIGHT = Limit.optional(above(0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Urgency:
    """The priority of a run among others.

    Args:
        priority: higher is more urgent.
        weight: runs of its priority that have one share the seats in proportion to it; None for a
            run that yields to more urgent ones alone.
        folder: through which runs of several applications exchange their state.
    """

    priority: int = 0
    weight: float | None = None
    folder: str = ""
    LIMITS = {"priority": PRIORITY, "weight": WEIGHT}  # noqa: RUF012

    @property
    def is_plain(self) -> bool:
        """True where nothing of it was asked for."""
        return self == Urgency()


def allotments(claims: Iterable[SeatClaim]) -> dict[str, int]:
    """Returns how many seats each run may hold, so that the more urgent ones have theirs.

    A run that cannot yield keeps what it holds. Among equals, those without a weight get all they
    want, and those with one share the rest in proportion.

    Example:
        >>> runs = [SeatClaim(run="a", place="x", slots=4, workers=4, held=4)]
        >>> allotments([*runs, SeatClaim(run="b", place="x", slots=4, workers=3, priority=1)])
        {'b': 3, 'a': 1}
    """
    runs = sorted(claims, key=lambda s: (-s.priority, s.run))
    slots = {s.place: s.slots for s in runs}
    if len(runs) < 2 or None in slots.values():
        return {s.run: s.workers for s in runs}
    fixed = {s.run: s.held for s in runs if s.held and not s.can_yield}
    capacity = sum(count or 0 for count in slots.values())
    seats_left, allotted = capacity - sum(fixed.values()), dict(fixed)
    for priority in dict.fromkeys(s.priority for s in runs):
        equals = [s for s in runs if s.priority == priority and s.run not in fixed]
        is_top = len(allotted) == len(fixed)
        lacking = 0
        for s in sorted(equals, key=lambda s: s.is_starting):
            if s.weight is None and is_top:  # it yields to no run, and no equal yields to it
                allotted[s.run], seats_left = s.workers, seats_left - s.held
                lacking += s.workers - s.held
            elif s.weight is None or s.is_starting:
                allotted[s.run] = max(0, min(s.workers, seats_left))
                seats_left -= allotted[s.run]
        shares = _by_weight([s for s in equals if s.run not in allotted], max(0, seats_left))
        allotted, seats_left = allotted | shares, seats_left - sum(shares.values()) - lacking
    return allotted


def _by_weight(runs: Sequence[SeatClaim], seats: int) -> dict[str, int]:
    """Gives each seat to the run that it is most due to; no run gets more than it wants."""
    allotted = {s.run: 0 for s in runs}
    for _ in range(min(seats, sum(s.workers for s in runs))):
        candidates = [s for s in runs if allotted[s.run] < s.workers]
        next_run = min(candidates, key=lambda s: ((allotted[s.run] + 1) / (s.weight or 1.0), s.run))
        allotted[next_run.run] += 1
    return allotted


class Seats(Protocol):
    """The seats of one run."""

    @property
    def has_begun(self) -> bool:
        """True once all its workers have come."""

    @property
    def can_yield(self) -> bool:
        """True while seats can be given up."""

    @property
    def can_share(self) -> bool:
        """True while fewer workers than there are can train to the end of the phase, by turns."""

    def idle(self) -> frozenset[int]:
        """Returns the slots that need no worker in this phase any more."""

    def prepare(self) -> bool:
        """Prepares for giving seats up; returns whether that is done."""

    def unprepare(self) -> None:
        """Drops the preparation: no seat need be given up."""

    def yielding(self) -> dict[int, bool]:
        """Returns the slots that are given up, and which of them are empty by now."""

    def yield_seats(self, slots: Iterable[int]) -> None:
        """Gives seats up, each at the end of its round."""

    def take_back(self, slots: Iterable[int]) -> frozenset[int]:
        """Takes seats back; returns those whose task has ended."""


class SeatSharing:
    """One run among others.

    Args:
        urgency: as the job asks for it.
        claim: the state of the run before it holds any seat.
        slots: returns how many seats there are in its place; None where that has no bound.
        emit: is called when seats are given up, and when they are back.
        now: returns the seconds of a monotonic clock.
        can_overcommit: a seat can be had whichever other run holds one, as with a processor.
    """

    def __init__(
        self,
        urgency: Urgency,
        claim: SeatClaim,
        slots: Callable[[], int | None],
        emit: Callable[[Event], None],
        now: Callable[[], float] = time.monotonic,
        *,
        can_overcommit: bool = False,
    ) -> None:
        self._slots, self._emit, self._now, self._can_overcommit = slots, emit, now, can_overcommit
        self._claim = replace(claim, priority=urgency.priority, weight=urgency.weight)
        self._weight = urgency.weight
        self._folder = FolderClaims(urgency.folder) if urgency.folder else None
        self._next_look = 0.0
        self._lent_slots = self._remote_slots_before = 0
        self._slots_left: int | None = None
        """The slots that this place keeps while some are lent."""
        self.yield_order: Callable[[], Sequence[int]] = lambda: range(claim.workers - 1, -1, -1)
        """Returns the slots in the order in which they are given up."""

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Announces this run to the others, from now on."""
        with self._folder or nullcontext():
            try:
                self._announce()
                forget_announced()
                yield
            finally:
                forget_here(self._claim.run)

    def other_claims(self) -> list[SeatClaim]:
        """Returns the states of the other runs."""
        claims = (self._folder.live_claims() if self._folder else {}) | claims_here()
        own = self._claim
        has_folder = self._folder is not None
        return [
            s for s in claims.values() if s.run != own.run and (has_folder or s.place == own.place)
        ]

    def _announce(self, **changes: object) -> None:
        slots = self._slots()
        if slots is not None and self._slots_left is not None:
            # an executor that was just ended is counted for a while
            slots = min(slots, self._slots_left) + self._in_transit(self._remote_claims())
        self._claim = replace(self._claim, slots=slots, **changes)  # type: ignore[arg-type]
        announce_here(self._claim)
        if self._folder is not None:
            self._folder.announce(self._claim)

    def _allotment(self, others: Sequence[SeatClaim]) -> int:
        return allotments([*others, self._claim])[self._claim.run]

    def remote_shortage(self) -> int:
        """Returns how many seats runs of other places lack that are due to them."""
        due, remote = allotments([*self.other_claims(), self._claim]), self._remote_claims()
        shortage = sum(max(0, due[s.run] - s.held) for s in remote)
        return max(0, shortage - self._in_transit(remote))

    def note_lent(self, slots: int) -> None:
        """Notes slots that left this place, and reach other places after a while; 0 for none."""
        if not slots:
            self._lent_slots, self._slots_left = 0, None
            return
        if self._slots_left is None:
            self._slots_left = self._claim.slots or 0
            self._remote_slots_before = _total_slots(self._remote_claims())
        self._lent_slots, self._slots_left = self._lent_slots + slots, self._slots_left - slots

    def _in_transit(self, remote_claims: Sequence[SeatClaim]) -> int:
        """Returns how many of the slots that were lent no other place has got yet."""
        return max(0, self._lent_slots - (_total_slots(remote_claims) - self._remote_slots_before))

    def _remote_claims(self) -> list[SeatClaim]:
        return [s for s in self.other_claims() if s.place != self._claim.place]

    def is_owed_seats(self) -> bool:
        """Returns whether runs of other places hold seats that are not due to them."""
        self._announce()
        due = allotments([*self.other_claims(), self._claim])
        return any(s.held > due[s.run] for s in self._remote_claims())

    def wait_for_seats(self) -> None:
        """Holds all seats of the run once they are free in its place, and due to it."""
        own, has_warned = self._claim, False
        with CLAIMS_CHANGED:
            while not self._can_start(claims_here(own.place)):
                self._announce()
                if not has_warned:
                    taken_seats = _held_by_others(claims_here(own.place), own.run)
                    self._emit(Warned(text=waiting_warning(self._claim, taken_seats, "run")))
                    has_warned = True
                CLAIMS_CHANGED.wait(LOOK_SECONDS)
            self._announce(held=own.workers)

    def _can_start(self, claims: dict[str, SeatClaim]) -> bool:
        own, slots = self._claim, self._slots()
        taken_seats = _held_by_others(claims, own.run)
        if slots is None or not taken_seats:
            return True
        return (
            taken_seats + own.workers <= slots
            and self._allotment(self.other_claims()) >= own.workers
        )

    def look(self, seats: Seats) -> frozenset[int]:
        """Gives seats up, or takes them back; returns those for which a task must start.

        Called some times a second.
        """
        now = self._now()
        if now < self._next_look:
            return frozenset()
        self._next_look = now + LOOK_SECONDS
        yielding, workers = seats.yielding(), self._claim.workers
        self._announce(
            held=workers - sum(yielding.values()),
            can_yield=seats.can_yield,
            is_starting=not seats.has_begun,
            weight=self._weight if seats.can_share else None,
        )
        others, idle = self.other_claims(), seats.idle()
        surplus = workers - self._allotment(others)
        # workers that have done their share make room for those that have not
        turns = min(len(idle - yielding.keys()), len(yielding.keys() - idle))
        if max(surplus, turns and surplus + turns) > len(yielding):
            is_rotation = surplus <= len(yielding)
            reason = (
                "others of this run take their turn" if is_rotation else "another run is due them"
            )
            self._give_up(seats, max(surplus - len(yielding), turns), reason)
            return frozenset()
        seats.unprepare()
        is_due = surplus < len(yielding)
        return self._take_back(seats, len(yielding) - surplus, others) if is_due else frozenset()

    def _give_up(self, seats: Seats, count: int, reason: str) -> None:
        if not seats.can_yield or not seats.prepare():
            return
        idle = seats.idle()
        held_slots = [slot for slot in self.yield_order() if slot not in seats.yielding()]
        slots = sorted(sorted(held_slots, key=lambda slot: slot not in idle)[:count])
        seats.yield_seats(slots)
        text = f"workers {slots} give their seats up at the end of their round"
        self._emit(Warned(text=user_message(text, then=reason)))

    def _take_back(self, seats: Seats, count: int, others: Sequence[SeatClaim]) -> frozenset[int]:
        """Takes seats back, first those whose workers have not left; other places must be free.

        A worker that has done its share is not brought back before the next phase.
        """
        idle = seats.idle()
        yielding = {
            slot: is_empty for slot, is_empty in seats.yielding().items() if slot not in idle
        }
        occupied = [slot for slot, is_empty in yielding.items() if not is_empty]
        vacated = [slot for slot, is_empty in yielding.items() if is_empty]
        slots = (
            occupied[:count]
            + vacated[: max(0, min(count - len(occupied), self._free_seats(others)))]
        )
        if not slots:
            return frozenset()
        ended = seats.take_back(slots)
        if vacated:
            self._emit(Warned(text=f"workers {sorted(slots)} take their seats back"))
        return ended

    def _free_seats(self, others: Sequence[SeatClaim]) -> int:
        all_runs = [*others, self._claim]
        slots = {s.place: s.slots for s in all_runs}
        if self._can_overcommit or not others or None in slots.values():
            return self._claim.workers
        return sum(count or 0 for count in slots.values()) - sum(s.held for s in all_runs)


def waiting_warning(claim: SeatClaim, taken_seats: int, subject: str) -> str:
    """Returns the warning of a run, or of a fit, that waits for the slots that others hold."""
    wrong = f"{claim.workers} workers need {claim.workers} slots at the same time"
    got = f"{claim.slots} slots, of which other runs of this application hold {taken_seats}"
    return user_message(wrong, got=got, then=f"this {subject} waits for them")


def _total_slots(claims: Sequence[SeatClaim]) -> int:
    """Returns how many seats there are in all their places."""
    return sum({s.place: s.slots or 0 for s in claims}.values())


def _held_by_others(claims: dict[str, SeatClaim], own_run: str) -> int:
    return sum(s.held for run, s in claims.items() if run != own_run)
