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

from photinus.core.errors import message
from photinus.core.events import Event, Warned
from photinus.core.settings import Limit, above
from photinus.engine.seat_table import (
    NEWS,
    FolderClaims,
    SeatClaim,
    forget_announced,
    forget_here,
    tell_here,
    told_here,
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


def allotments(standings: Iterable[SeatClaim]) -> dict[str, int]:
    """Returns how many seats each run may hold, so that the more urgent ones have theirs.

    A run that cannot yield keeps what it holds. Among equals, those without a weight get all they
    want, and those with one share the rest in proportion.

    Example:
        >>> runs = [SeatClaim(run="a", place="x", slots=4, workers=4, held=4)]
        >>> allotments([*runs, SeatClaim(run="b", place="x", slots=4, workers=3, priority=1)])
        {'b': 3, 'a': 1}
    """
    runs = sorted(standings, key=lambda s: (-s.priority, s.run))
    slots = {s.place: s.slots for s in runs}
    if len(runs) < 2 or None in slots.values():
        return {s.run: s.workers for s in runs}
    fixed = {s.run: s.held for s in runs if s.held and not s.can_yield}
    capacity = sum(count or 0 for count in slots.values())
    left, found = capacity - sum(fixed.values()), dict(fixed)
    for priority in dict.fromkeys(s.priority for s in runs):
        level = [s for s in runs if s.priority == priority and s.run not in fixed]
        is_first = len(found) == len(fixed)
        waiting = 0
        for s in sorted(level, key=lambda s: s.is_starting):
            if s.weight is None and is_first:  # it yields to no run, and no equal yields to it
                found[s.run], left = s.workers, left - s.held
                waiting += s.workers - s.held
            elif s.weight is None or s.is_starting:
                found[s.run] = max(0, min(s.workers, left))
                left -= found[s.run]
        shares = _by_weight([s for s in level if s.run not in found], max(0, left))
        found, left = found | shares, left - sum(shares.values()) - waiting
    return found


def _by_weight(runs: Sequence[SeatClaim], seats: int) -> dict[str, int]:
    """Gives each seat to the run that it is most due to; no run gets more than it wants."""
    found = {s.run: 0 for s in runs}
    for _ in range(min(seats, sum(s.workers for s in runs))):
        wanting = [s for s in runs if found[s.run] < s.workers]
        due = min(wanting, key=lambda s: ((found[s.run] + 1) / (s.weight or 1.0), s.run))
        found[due.run] += 1
    return found


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

    def prepared(self) -> bool:
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
        standing: the state of the run before it holds any seat.
        slots: returns how many seats there are in its place; None where that has no bound.
        emit: is called when seats are given up, and when they are back.
        now: returns the seconds of a monotonic clock.
        has_room: a seat can be had whichever other run holds one, as with a processor.
    """

    def __init__(
        self,
        urgency: Urgency,
        standing: SeatClaim,
        slots: Callable[[], int | None],
        emit: Callable[[Event], None],
        now: Callable[[], float] = time.monotonic,
        *,
        has_room: bool = False,
    ) -> None:
        self._slots, self._emit, self._now, self._is_roomy = slots, emit, now, has_room
        self._standing = replace(standing, priority=urgency.priority, weight=urgency.weight)
        self._weight = urgency.weight
        self._folder = FolderClaims(urgency.folder) if urgency.folder else None
        self._looks_at = 0.0
        self._lent = self._far_before = 0
        self._kept: int | None = None
        """The slots that this place keeps while some are lent."""
        self.order: Callable[[], Sequence[int]] = lambda: range(standing.workers - 1, -1, -1)
        """Returns the slots in the order in which they are given up."""

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Announces this run to the others, from now on."""
        with self._folder or nullcontext():
            try:
                self._tell()
                forget_announced()
                yield
            finally:
                forget_here(self._standing.run)

    def others(self) -> list[SeatClaim]:
        """Returns the states of the other runs."""
        found = (self._folder.told() if self._folder else {}) | told_here()
        own = self._standing
        is_near = self._folder is not None
        return [s for s in found.values() if s.run != own.run and (is_near or s.place == own.place)]

    def _tell(self, **changes: object) -> None:
        slots = self._slots()
        if slots is not None and self._kept is not None:
            # an executor that was just ended is counted for a while
            slots = min(slots, self._kept) + self._in_transit(self._far())
        self._standing = replace(self._standing, slots=slots, **changes)  # type: ignore[arg-type]
        tell_here(self._standing)
        if self._folder is not None:
            self._folder.tell(self._standing)

    def _target(self, others: Sequence[SeatClaim]) -> int:
        return allotments([*others, self._standing])[self._standing.run]

    def lacking_far(self) -> int:
        """Returns how many seats runs of other places lack that are due to them."""
        due, far = allotments([*self.others(), self._standing]), self._far()
        lacking = sum(max(0, due[s.run] - s.held) for s in far)
        return max(0, lacking - self._in_transit(far))

    def lent(self, slots: int) -> None:
        """Notes slots that left this place, and reach other places after a while; 0 for none."""
        if not slots:
            self._lent, self._kept = 0, None
            return
        if self._kept is None:
            self._kept, self._far_before = self._standing.slots or 0, _slots_of(self._far())
        self._lent, self._kept = self._lent + slots, self._kept - slots

    def _in_transit(self, far: Sequence[SeatClaim]) -> int:
        """Returns how many of the slots that were lent no other place has got yet."""
        return max(0, self._lent - (_slots_of(far) - self._far_before))

    def _far(self) -> list[SeatClaim]:
        return [s for s in self.others() if s.place != self._standing.place]

    def is_awaited(self) -> bool:
        """Returns whether runs of other places hold seats that are not due to them."""
        self._tell()
        due = allotments([*self.others(), self._standing])
        return any(s.held > due[s.run] for s in self._far())

    def wait_for_seats(self) -> None:
        """Holds all seats of the run once they are free in its place, and due to it."""
        own, has_told = self._standing, False
        with NEWS:
            while not self._has_room(told_here(own.place)):
                self._tell()
                if not has_told:
                    taken = _held(told_here(own.place), own.run)
                    self._emit(Warned(text=waits(self._standing, taken, "run")))
                    has_told = True
                NEWS.wait(LOOK_SECONDS)
            self._tell(held=own.workers)

    def _has_room(self, here: dict[str, SeatClaim]) -> bool:
        own, slots = self._standing, self._slots()
        taken = _held(here, own.run)
        if slots is None or not taken:
            return True
        return taken + own.workers <= slots and self._target(self.others()) >= own.workers

    def look(self, seats: Seats) -> frozenset[int]:
        """Gives seats up, or takes them back; returns those for which a task must start.

        Called some times a second.
        """
        now = self._now()
        if now < self._looks_at:
            return frozenset()
        self._looks_at = now + LOOK_SECONDS
        yielding, workers = seats.yielding(), self._standing.workers
        self._tell(
            held=workers - sum(yielding.values()),
            can_yield=seats.can_yield,
            is_starting=not seats.has_begun,
            weight=self._weight if seats.can_share else None,
        )
        others, idle = self.others(), seats.idle()
        wanted = workers - self._target(others)
        # workers that have done their share make room for those that have not
        turns = min(len(idle - yielding.keys()), len(yielding.keys() - idle))
        if max(wanted, turns and wanted + turns) > len(yielding):
            is_own = wanted <= len(yielding)
            why = "others of this run take their turn" if is_own else "another run is due them"
            self._give_up(seats, max(wanted - len(yielding), turns), why)
            return frozenset()
        seats.unprepare()
        is_due = wanted < len(yielding)
        return self._back(seats, len(yielding) - wanted, others) if is_due else frozenset()

    def _give_up(self, seats: Seats, count: int, why: str) -> None:
        if not seats.can_yield or not seats.prepared():
            return
        idle = seats.idle()
        held = [slot for slot in self.order() if slot not in seats.yielding()]
        slots = sorted(sorted(held, key=lambda slot: slot not in idle)[:count])
        seats.yield_seats(slots)
        text = f"workers {slots} give their seats up at the end of their round"
        self._emit(Warned(text=message(text, then=why)))

    def _back(self, seats: Seats, count: int, others: Sequence[SeatClaim]) -> frozenset[int]:
        """Takes seats back, first those whose workers have not left; other places must be free.

        A worker that has done its share is not brought back before the next phase.
        """
        idle = seats.idle()
        yielding = {
            slot: is_empty for slot, is_empty in seats.yielding().items() if slot not in idle
        }
        staying = [slot for slot, is_empty in yielding.items() if not is_empty]
        away = [slot for slot, is_empty in yielding.items() if is_empty]
        slots = staying[:count] + away[: max(0, min(count - len(staying), self._free(others)))]
        if not slots:
            return frozenset()
        ended = seats.take_back(slots)
        if away:
            self._emit(Warned(text=f"workers {sorted(slots)} take their seats back"))
        return ended

    def _free(self, others: Sequence[SeatClaim]) -> int:
        all_runs = [*others, self._standing]
        slots = {s.place: s.slots for s in all_runs}
        if self._is_roomy or not others or None in slots.values():
            return self._standing.workers
        return sum(count or 0 for count in slots.values()) - sum(s.held for s in all_runs)


def waits(own: SeatClaim, taken: int, what: str) -> str:
    """Returns the warning of a run, or of a fit, that waits for the slots that others hold."""
    wrong = f"{own.workers} workers need {own.workers} slots at the same time"
    got = f"{own.slots} slots, of which other runs of this application hold {taken}"
    return message(wrong, got=got, then=f"this {what} waits for them")


def _slots_of(standings: Sequence[SeatClaim]) -> int:
    """Returns how many seats there are in all their places."""
    return sum({s.place: s.slots or 0 for s in standings}.values())


def _held(here: dict[str, SeatClaim], but: str) -> int:
    return sum(s.held for run, s in here.items() if run != but)
