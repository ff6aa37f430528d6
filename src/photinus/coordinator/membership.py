"""Membership: admits workers, grants leases, keeps standbys, brings joiners up to date."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from photinus.coordinator.leases import SeatState
from photinus.coordinator.peer_directory import PeerDirectory
from photinus.coordinator.phases import Phases
from photinus.core.events import WorkerJoined
from photinus.core.parameters import Vector
from photinus.protocol.messages import grant_to, snapshot_of
from photinus.strategies.base import Message
from photinus.training.snapshots import Cut
from photinus.training.strategy_state import is_kept
from photinus.training.worker_loop import Grant
from photinus.transport.frames import Frame

__all__ = ["FEW_CAME_SECONDS", "Inner", "Membership"]

Inner = Mapping[str, Vector]
FEW_CAME_SECONDS = 30.0


class Membership:
    """Seats workers at the agreed point.

    Where only the workers hold the parameters, a survivor (the healer) is asked for its state
    with the answer to its next push, and joiners wait for that.
    """

    def __init__(self, phases: Phases, peer_directory: PeerDirectory, now: float) -> None:
        self._phases, self._peer_directory = phases, peer_directory
        self._created, self._has_warned = now, False
        self._healer: SeatState | None = None

    @property
    def is_healing(self) -> bool:
        """True while somebody waits for a survivor's state."""
        return self._healer is not None

    def is_healer(self, seat: SeatState) -> bool:
        """Tells whether a seat's worker is asked for its state."""
        return self._healer is seat

    def hello(self, frame: Frame, now: float) -> list[Frame]:
        """Somebody asks for a seat: granted, busy, or not yet."""
        phases = self._phases
        seat = phases.leases.seats[frame.slot]
        if seat.is_live and seat.is_again(frame):
            return _said_before(seat, frame)
        if seat.rows < 0:
            phases.callbacks.enter("hello", frame, {})
        seat.rows, seat.asking = int(frame.note["rows"]), frame
        seat.labels = dict(frame.note.get("labels", seat.labels))
        seat.streams = "passes" in frame.note
        seat.span = tuple(frame.note.get("span", seat.span))
        if seat.is_live or seat.waiting is not None or self._is_cut_off(seat, now):
            return [phases.frame("busy", seat.slot, 0)]
        return self._seated(seat, now) if phases.has_begun else self._begin_when_all_came(now)

    def sit_down(self, now: float) -> list[Frame]:
        """Seats those who wait for a seat that is free now."""
        waiting = [
            s
            for s in self._phases.leases.seats.values()
            if s.asking is not None and not s.is_live and s.waiting is None
            if not self._is_cut_off(s, now)
        ]
        if not self._phases.has_begun or self._healer is not None:
            return []
        return [frame for seat in waiting for frame in self._seated(seat, now)]

    def _is_cut_off(self, seat: SeatState, now: float) -> bool:
        """Tells whether others go on without it for a while: they could not reach it."""
        return now < seat.returns_at and bool(self._phases.leases.members)

    def lost(self, seat: SeatState) -> None:
        """A lost worker can neither heal others nor complete a cut."""
        self._phases.cuts.without(seat.slot)
        self._phases.early_stopping.without(seat.slot)
        if self._healer is seat:
            self._healer = None

    def heal(self, frame: Frame, now: float) -> list[Frame]:
        """The healer's state came: seats those that wait for what only workers hold."""
        owner, seats = self._phases.owner, self._phases.leases.seats.values()
        healer = self._healer
        if healer is None or healer.slot != frame.slot or frame.version != owner.version:
            return []
        self._healer, state = None, snapshot_of(frame)
        point = owner.point._replace(
            version=owner.version,
            vector=state.trained,
            floats=state.floats,
            integers=state.integers,
        )
        joiners = [s for s in seats if s.asking and not s.is_live and s.waiting is None]
        joiners = [s for s in joiners if not self._is_cut_off(s, now)]
        return [self._granted(seat, now, point, state.inner) for seat in joiners]

    def regrant(self, keep: frozenset[int] = frozenset()) -> list[Frame]:
        """Tells every worker that sits where to go on: another phase, or another point of it.

        Args:
            keep: whose inner state is the agreed one, at the border of a start and its rest.
        """
        cut = self._phases.cuts.at(self._phases.owner.phase, self._phases.owner.version)
        live = [s for s in self._phases.leases.seats.values() if s.is_live]
        inner = {s.slot: {} if s.slot in keep else self._inner(cut, s.slot) for s in live}
        return [self._grant(s, self._point(cut), inner[s.slot]) for s in live]

    def _begin_when_all_came(self, now: float) -> list[Frame]:
        seats = self._phases.leases.seats.values()
        if any(s.rows < 0 for s in seats):
            return []
        if self._phases.look_for_skew():
            return self._phases.rest()
        self._phases.begin(now)
        here = [s for s in seats if s.asking is not None]
        if any(s.asking.note.get("passes") == 0 for s in here if s.asking is not None):
            return self._phases.rest()
        return [frame for seat in here for frame in self._seated(seat, now)]

    def _seated(self, seat: SeatState, now: float) -> list[Frame]:
        """Grants the seat, or asks a survivor for the parameters that only workers hold."""
        phases, out = self._phases, list[Frame]()
        cut = phases.cuts.at(phases.owner.phase, phases.owner.version)
        if self._is_in_workers_only(cut):
            survivors = phases.leases.members
            if survivors:
                self._healer = self._healer or phases.leases.seats[min(survivors)]
                return []
            if cut is None:
                phases.fall_back()
                out, cut = self.regrant(), phases.cuts.last
        return [*out, self._granted(seat, now, self._point(cut), self._inner(cut, seat.slot))]

    def _is_in_workers_only(self, cut: Cut | None) -> bool:
        """True when neither the owner nor a cut with inner states holds the present point."""
        owner = self._phases.owner
        is_whole = cut is not None and bool(cut.inner)
        return not (owner.policy.keeps or owner.version == 0 or is_whole)

    def _point(self, cut: Cut | None) -> Message:
        owner = self._phases.owner
        return owner.point if cut is None or owner.policy.keeps else cut.point

    def _inner(self, cut: Cut | None, slot: int) -> Inner:
        """An inner state to go on with: its own, or where all are the same anybody's."""
        if cut is None or not cut.inner:
            return {}
        is_own = self._phases.owner.policy.keeps and cut.version > 0
        anybody = {} if is_own else cut.inner[min(cut.inner)]
        return cut.inner.get(slot, anybody)

    def warn_if_few_came(self, now: float) -> None:
        """Tells the user, once, that workers are waited for."""
        if self._phases.has_begun or self._has_warned or now - self._created < FEW_CAME_SECONDS:
            return
        self._has_warned = True
        seats = self._phases.leases.seats.values()
        came = sum(1 for s in seats if s.rows >= 0)
        wrong = f"{came} of {len(seats)} workers came within {FEW_CAME_SECONDS:.0f} s"
        self._phases.warn(wrong, do=self._phases.callbacks.advice())

    def _granted(self, seat: SeatState, now: float, point: Message, inner: Inner) -> Frame:
        phases, hello = self._phases, seat.asking
        assert hello is not None
        phases.leases.grant(seat, hello, now)
        before = seat.lost
        if not is_kept(inner):  # what it had done since its fragments' last turns is gone
            seat.loses(seat.position, phases.owner.numbers)
        phases.callbacks.emit(
            WorkerJoined(
                slot=seat.slot,
                lease=seat.lease,
                host=seat.host,
                attempt=seat.attempt,
                examples=seat.rows,
                pid=int(hello.note.get("pid", 0)),
                device=str(hello.note.get("device", "")),
            )
        )
        granted = {"granted": seat.lease, "next": seat.sequence, "cursor": seat.position}
        # who says hello does not know its phase yet; a new term tells what it resumed from
        granted |= {"phase": phases.owner.phase, "version": phases.owner.version}
        granted |= {"lost": seat.lost - before} if seat.lost > before else {}
        phases.callbacks.enter("grant", hello, granted)
        return self._grant(seat, point, inner)

    def _grant(self, seat: SeatState, point: Message, inner: Inner) -> Frame:
        phases = self._phases
        grant = Grant(
            phase=phases.owner.phase,
            lease=seat.lease,
            sequence=seat.sequence,
            position=seat.position,
            budget=phases.owner.budget,
            progress=phases.owner.progress,
            rows=phases.rows,
            span=phases.span,
            tells=seat is max(phases.leases.seats.values(), key=lambda s: s.rows),
            heal=point,
            is_fresh=phases.owner.version == 0,
            inner=inner,
            history=phases.history[seat.has :],
            is_idle=seat.is_quarantined or phases.is_spent,
        )
        if grant.is_fresh:  # whoever begins makes the outer state for itself
            grant = replace(grant, heal=point._replace(outer=()))
        note = {"attempt": seat.attempt, "hello": seat.hello}
        if phases.owner.policy.meets:
            note["here"] = self._peer_directory.here()
        seat.answered = grant_to(phases.frame("grant", seat.slot, seat.lease, note=note), grant)
        seat.has = len(phases.history)
        return seat.answered


def _said_before(seat: SeatState, hello: Frame) -> list[Frame]:
    """A copy of the hello that got the seat gets the same grant, unless it was used already."""
    last = seat.answered
    is_open = last is not None and last.kind == "grant" and seat.hello == hello.note["hello"]
    return [last] if is_open and last is not None else []
