"""The coordinator: handles every frame from workers and answers it.

A state machine without input or output: a frame (or the time) in, frames out. The same object
serves processes, Spark tasks and the simulator; `coordinator.server` gives it a lock, a clock and a
listener. Seats are `coordinator.membership`'s, phases and cuts `coordinator.phases`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.leases import Leases, SeatState
from photinus.coordinator.membership import Membership
from photinus.coordinator.parameter_server import Answer, ParameterServer
from photinus.coordinator.peer_directory import PeerDirectory
from photinus.coordinator.phases import Phases
from photinus.core.events import PhaseEnded, WorkerLost
from photinus.core.parameters import Vector, fingerprint
from photinus.protocol.messages import message_to, named, snapshot_of
from photinus.strategies.base import Message
from photinus.strategies.merge import combine
from photinus.training.plan import TrainingPlan
from photinus.training.snapshots import Cut
from photinus.transport.frames import Frame

__all__ = ["STRIKES", "Coordinator", "Result"]

STRIKES = 3
"""So many pushes that are not finite, and a slot's rows are left out."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a run ends with: the agreed parameters of every phase."""

    vectors: tuple[Vector, ...]
    floats: Vector
    integers: Vector


class Coordinator:
    """Joins the leases, the owner of the present phase and the budget.

    Args:
        program: what is trained.
        desk: where events, ledger lines and cuts go.
        now: the time, in seconds that never go back.
        cut: what to go on from, of an earlier term.

    Raises:
        UsageError: the cut belongs to another program.
    """

    result: Result | None = None
    """Set when all phases are over."""
    failure: str = ""
    """Why the run cannot go on; empty while it can."""
    failure_kind: str = ""
    """The class of the error that a worker told of."""

    def __init__(
        self,
        program: TrainingPlan,
        callbacks: Callbacks | None = None,
        *,
        now: float = 0.0,
        cut: Cut | None = None,
    ) -> None:
        self._phases = Phases(program, callbacks or Callbacks(), now, cut)
        self._peer_directory = PeerDirectory(self._phases)
        self._membership = Membership(self._phases, self._peer_directory, now)
        self._hears = {
            "hello": self._hello,
            "push": self._push,
            "fetch": self._push,
            "close": self._close,
            "state": self._state,
            "bye": self._bye,
            "publish": self._publish,
            "ready": self._ready,
            "missing": self._missing,
        }

    @property
    def callbacks(self) -> Callbacks:
        """Where events, ledger lines and cuts go."""
        return self._phases.callbacks

    @property
    def leases(self) -> Leases:
        """The seats."""
        return self._phases.leases

    @property
    def owner(self) -> ParameterServer:
        """The owner of the present phase."""
        return self._phases.owner

    @property
    def is_over(self) -> bool:
        """True when every worker may go."""
        return self.result is not None or bool(self.failure)

    @property
    def is_between_passes(self) -> bool:
        """True when all have left, and the next pass over rows that stream is waited for."""
        return self._phases.is_between_passes

    @property
    def wants_shuffle(self) -> bool:
        """True while the rows are to be dealt out anew, before any of them is trained on."""
        return self._phases.wants_shuffle

    def next_pass(self, now: float) -> None:
        """Every worker comes again, with another pass over its rows."""
        self._phases.next_pass(now)

    @property
    def is_cut_asked(self) -> bool:
        """True while a cut that was asked for is not whole."""
        return self._phases.is_cut_asked

    def ask_for_a_cut(self) -> bool:
        """Saves the present round, whenever the last one was saved; False where none is open."""
        return not self.is_over and self._phases.ask_for_a_cut()

    # -- what comes in ---------------------------------------------------------------------------

    def hear(self, frame: Frame, now: float) -> list[Frame]:
        """Takes one frame in; returns the frames to send, each to its slot's worker."""
        hears = self._hears.get(frame.kind)
        if frame.run != self.callbacks.run or frame.slot not in self.leases.seats:
            return []
        if frame.term != self.callbacks.term:
            return [self._to(frame, "fenced")]
        self.leases.heard(frame, now)
        if hears is None:
            return []
        if self.is_over:
            return [self._to(frame, self._end(frame))]
        return hears(frame, now) + self._news(now)

    def gone(self, slot: int, lease: int, now: float) -> None:
        """A worker's connection closed."""
        self.leases.gone(slot, lease, now)

    def withdraw(self, hello: Frame) -> None:
        """Who asked for a seat is gone, and waits for it no longer."""
        self.leases.withdraw(hello)

    def tick(self, now: float) -> list[Frame]:
        """Called some times a second: leases end, late slots are left out, standbys sit down."""
        if self.is_over or self.is_between_passes:
            return []
        out: list[Frame] = []
        for seat in self.leases.ended(now):
            why = self.leases.reason(seat)
            self.callbacks.emit(WorkerLost(slot=seat.slot, lease=seat.lease, reason=why))
            out += self._left(seat, now)
        out += self._answered(self.owner.leave_out_the_late(now), now)
        if self.owner.failure:
            return out + self.stop(self.owner.failure)
        out += self._peer_directory.asks(now)
        out += self._membership.sit_down(now)
        self._phases.save_if_whole(now)
        self._membership.warn_if_few_came(now)
        return out + self._finish_if_closed(now) + self._news(now)

    def _news(self, now: float) -> list[Frame]:
        """What workers without an owner must know now."""
        wanted = self._membership.is_healing or self._phases.is_cut_due(now)
        return [] if self.is_over else self._peer_directory.news(is_wanted=wanted)

    def stop(self, reason: str) -> list[Frame]:
        """Ends the run without a result."""
        self.failure = self.failure or reason
        return self._farewell("stop")

    def _to(self, frame: Frame, kind: str) -> Frame:
        """Returns an answer to whoever said `frame`."""
        note = {"reason": self.failure} if kind == "stop" else {}
        return self._phases.frame(kind, frame.slot, frame.lease, sequence=frame.sequence, note=note)

    # -- seats -----------------------------------------------------------------------------------

    def _hello(self, frame: Frame, now: float) -> list[Frame]:
        seat, out = self.leases.seats[frame.slot], list[Frame]()
        if seat.rests or self.is_between_passes:
            return [self._to(frame, "done")]
        if seat.leaver and seat.leaver == frame.note.get("attempt"):
            return [self._to(frame, "busy")]
        if seat.is_live and seat.is_again(frame) and int(frame.note["hello"]) > seat.hello:
            self.leases.vacate(seat)  # it was refused, or told to heal, and has left its seat
            out = self._left(seat, now)
        return out + self._membership.hello(frame, now)

    def _left(self, seat: SeatState, now: float) -> list[Frame]:
        """A seat is empty: whom it let wait need wait no longer."""
        self._membership.lost(seat)
        return self._answered(self.owner.close(now), now)

    def _bye(self, frame: Frame, now: float) -> list[Frame]:  # noqa: ARG002 - as all of `hear`
        """A worker failed by itself: its error ends the run, once, in its own words."""
        if frame.lease and not self.leases.holds(frame):
            return []
        self.failure_kind = str(frame.note.get("type", ""))
        told = self.stop(str(frame.note.get("error", f"worker {frame.slot} failed")))
        return [*told, self._to(frame, "stop")]

    def _state(self, frame: Frame, now: float) -> list[Frame]:
        if not self.leases.holds(frame):
            return []
        self._phases.cuts.take(frame.slot, frame.version, snapshot_of(frame))
        self._phases.save_if_whole(now)
        return self._membership.heal(frame, now)

    def _publish(self, frame: Frame, now: float) -> list[Frame]:  # noqa: ARG002 - as all of `hear`
        if not self.leases.holds(frame):
            return [self._to(frame, "fenced")]
        return self._peer_directory.hear(frame)

    def _ready(self, frame: Frame, now: float) -> list[Frame]:
        if not self.leases.holds(frame) or frame.phase != self.owner.phase:
            return []
        return self._answered(self.owner.ready(frame, now), now)

    def _missing(self, frame: Frame, now: float) -> list[Frame]:
        if self.leases.holds(frame) and frame.phase == self.owner.phase:
            self.owner.missing(frame, now)
        return []

    # -- pushes ----------------------------------------------------------------------------------

    def _push(self, frame: Frame, now: float) -> list[Frame]:
        seat, verdict = self.leases.seats[frame.slot], self.leases.verdict(frame)
        if verdict != "next":
            return self._not_next(seat, frame, verdict)
        self.callbacks.enter(frame.kind, frame, {})
        self._phases.measured(frame)
        seat.sequence += 1
        unanswered = int(frame.note.get("unanswered", frame.sequence))
        seat.answers = {n: answer for n, answer in seat.answers.items() if n >= unanswered}
        answers = self.owner.receive(seat, frame, now)
        if answers is None:
            return self._refused(seat, frame, now)
        return self._answered(answers, now)

    def _not_next(self, seat: SeatState, frame: Frame, verdict: str) -> list[Frame]:
        """A copy gets the answer of the first again; whoever lost its seat is told so."""
        if frame.kind == "push":
            self.callbacks.enter(verdict, frame, {})
        if verdict == "fenced":
            return [self._to(frame, "fenced")]
        last = seat.answered
        if last is not None and last.kind == "grant" and last.sequence == frame.sequence + 1:
            return [last]
        return [seat.answers[frame.sequence]] if frame.sequence in seat.answers else []

    def _refused(self, seat: SeatState, frame: Frame, now: float) -> list[Frame]:
        """Not finite: it never reaches the model; the worker heals and goes on behind it."""
        seat.strikes += 1
        seat.loses(frame.position, self.owner.numbers)
        seat.is_quarantined = seat.strikes >= STRIKES
        wrong = f"worker {seat.slot} pushed values that are not finite"
        then = f"the push was dropped ({seat.strikes} of {STRIKES})"
        then += "; its rows are left out from now on" if seat.is_quarantined else ""
        do = "look at its rows, or lower the learning rate"
        self._phases.warn(wrong, then=then, do=do)
        self.callbacks.enter("refuse", frame, {})
        if all(s.is_quarantined or s.rows == 0 for s in self.leases.seats.values()):
            return self.stop(f"every worker's values are not finite; {do}")
        seat.answered = seat.answers[frame.sequence] = self._to(frame, "refused")
        if not self.owner.policy.waits:  # what it has under way behind this is no better
            self.leases.vacate(seat)
            return [seat.answered, *self._left(seat, now)]
        return [seat.answered]

    def _answered(self, answers: Sequence[Answer], now: float) -> list[Frame]:
        agreed = frozenset(a.seat.slot for a in answers if a.is_applied)
        is_cut = bool(agreed) and self._phases.begin_cut(agreed & self.leases.members, now)
        out = [self._answer(answer, is_cut=is_cut) for answer in answers]
        for seat, _, message in answers:
            if message.kind == "rejoin" and message.fingerprint:
                self._warn_of_other_bits(seat, message)
            if message.kind == "rejoin" or seat.is_leaving:
                self.leases.vacate(seat)
                out += self._left(seat, now)
        return out

    def _warn_of_other_bits(self, seat: SeatState, message: Message) -> None:
        where = f" on {seat.host}" if seat.host else ""
        self._phases.warn(
            f"worker {seat.slot}{where} held other bits than were agreed",
            got=message.fingerprint,
            then=f"its work since version {message.version} is dropped; it gets the agreed ones",
            do="test the memory of its host if this comes again",
        )

    def _answer(self, answer: Answer, *, is_cut: bool) -> Frame:
        seat, push, message = answer
        kind = "fenced" if message.kind == "rejoin" else message.kind
        here = {"here": self._peer_directory.here()} if kind == "meet" else {}
        seat.answered = seat.answers[push.sequence] = message_to(
            self._to(push, kind),
            message,
            **here,
            progress=self.owner.progress,
            stop=self._phases.is_spent,
            save=kind == "agreed" and (is_cut or self._membership.is_healer(seat)),
            measure=kind == "agreed" and self._phases.early_stopping.asks(seat.slot),
        )
        if push.kind == "push" and kind in ("agreed", "ack"):  # as its worker will read it
            self.callbacks.enter("ack", seat.answered, {})
        return seat.answered

    # -- the end of a phase ----------------------------------------------------------------------

    def _close(self, frame: Frame, now: float) -> list[Frame]:
        seat, verdict = self.leases.seats[frame.slot], self.leases.verdict(frame)
        if verdict != "next":
            return self._not_next(seat, frame, verdict)
        seat.sequence += 1
        self._phases.measured(frame)
        self.leases.close(seat, frame)
        self._phases.remember(named(frame), frame.version)
        done = [self._to(frame, "done")] if seat.rests else []
        return done + self._left(seat, now) + self._finish_if_closed(now)

    def _finish_if_closed(self, now: float) -> list[Frame]:
        seats = self.leases.seats.values()
        if not self._phases.has_begun or self.is_over or any(s.waiting for s in seats):
            return []
        is_open = [s for s in seats if s.closed is None and not s.rests]
        patience = self.callbacks.patience_seconds
        if any(s.is_live or s.asking or now < s.ends_at + patience for s in is_open):
            return []
        for seat in is_open:
            wrong = f"worker {seat.slot} did not come back"
            self._phases.warn(wrong, then="the rest of its share is not trained on")
        if any(s.rests for s in seats) and not self._phases.is_spent:
            return self._phases.rest()
        return self._finish(now)

    def _finish(self, now: float) -> list[Frame]:
        phases, owner, point = self._phases, self.owner, self._final()
        phases.warn_of_unused_rows()
        assert point.vector is not None
        assert point.floats is not None
        assert point.integers is not None
        self.callbacks.emit(
            PhaseEnded(
                phase=owner.phase,
                name=phases.phase.name,
                examples=owner.applied,
                seconds=now - phases.entered,
                metrics=owner.metrics,
                passes=phases.passes(),
                fingerprint=fingerprint(point.vector),
            )
        )
        if not phases.finish(point, now):
            self.result = Result(phases.history, point.floats, point.integers)
            return self._farewell("done")
        return self._membership.regrant(phases.keep)

    def _final(self) -> Message:
        """The exact average at a phase's end: the owner's point, or the mean of the workers'."""
        point, early_stopping = self.owner.point, self._phases.early_stopping
        if (
            self._phases.is_stage_over
            and self._phases.program.patience
            and early_stopping.best is not None
        ):
            return early_stopping.best.point
        seats = self.leases.seats.values()
        closed = [s.closed for s in seats if s.closed is not None and s.closed.arrays]
        if self.owner.policy.keeps or not closed:
            return point
        newest = max(frame.version for frame in closed)
        held = [named(frame) for frame in closed if frame.version == newest]
        share = [1.0 / len(held)] * len(held)
        vector = held[0]["vector"].copy()  # its worker may train on in the same memory
        if len({fingerprint(h["vector"]) for h in held}) > 1:
            self._phases.warn("the workers ended with different bits; took their mean")
            vector = combine([h["vector"] for h in held], share)
        return point._replace(
            vector=vector,
            floats=combine([h["floats"] for h in held], share),
            integers=np.maximum.reduce([h["integers"] for h in held]),
        )

    def _farewell(self, kind: str) -> list[Frame]:
        """Returns what tells every worker that all is over."""
        told = [s for s in self.leases.seats.values() if s.is_live or s.asking is not None]
        note = {"reason": self.failure} if self.failure else {}
        return [self._phases.frame(kind, s.slot, s.lease, note=note) for s in told]

    def _end(self, frame: Frame) -> str:
        """What a frame that comes after the end is answered by."""
        if self.failure:
            return "stop"
        return "done" if frame.kind in ("hello", "close") else "fenced"
