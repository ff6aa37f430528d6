"""The coordinator: seats, terms, phases, budget and end; it holds no parameters of its own.

A state machine without input or output: a frame (or the time) in, frames out. The same object
serves processes, Spark tasks and the simulator; `nodes.service` gives it a lock, a clock and a
listener.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from photinus.core.errors import message as sentence
from photinus.core.events import PhaseEnded, PhaseStarted, Warned, WorkerJoined, WorkerLost
from photinus.core.parameters import Vector, fingerprint
from photinus.nodes.cuts import Cut, Gathering
from photinus.nodes.desk import Desk
from photinus.nodes.fence import Fence, SeatState
from photinus.nodes.loop import Snapshot
from photinus.nodes.mail import Grant, Seat, grant_to, message_to, named, snapshot_of
from photinus.nodes.owner import Answer, Owner
from photinus.nodes.program import Program
from photinus.strategies.base import Message
from photinus.strategies.merge import combine
from photinus.transport.frames import Frame

__all__ = ["Coordinator", "Result"]

STRIKES = 3
"""So many pushes that are not finite, and a slot's rows are left out."""
FEW_CAME_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Result:
    """What a run ends with: the agreed parameters of every phase."""

    vectors: tuple[Vector, ...]
    floats: Vector
    integers: Vector


class Coordinator:
    """Joins the fence, the owner of the present phase and the budget.

    Args:
        program: what is trained.
        desk: where events, ledger lines and cuts go.
        now: the time, in seconds that never go back.
        cut: what to go on from, of an earlier term.
    """

    result: Result | None = None
    """Set when all phases are over."""
    failure: str = ""
    """Why the run cannot go on; empty while it can."""

    def __init__(
        self,
        program: Program,
        desk: Desk | None = None,
        *,
        now: float = 0.0,
        cut: Cut | None = None,
    ) -> None:
        self.program, self.desk, self.fence = program, desk or Desk(), Fence(program.workers)
        self.history: tuple[Vector, ...] = cut.history if cut else ()
        self._cut, self._gathering = cut, None
        self._has_begun = self._has_warned = False
        self._created = self._entered = self._saved = now
        self._healer: SeatState | None = None
        self._closes: dict[int, tuple[int, Frame]] = {}
        self._enter(cut.phase if cut else 0, now)

    _gathering: Gathering | None

    @property
    def is_over(self) -> bool:
        """True when every worker may go."""
        return self.result is not None or bool(self.failure)

    # -- what comes in ---------------------------------------------------------------------------

    def hear(self, frame: Frame, now: float) -> list[Frame]:
        """Takes one frame in; returns the frames to send, each to its slot's worker."""
        if frame.run != self.desk.run or frame.slot not in self.fence.seats:
            return []
        if frame.term != self.desk.term:
            return [self._seat(frame.slot, frame.lease).frame("fenced")]
        self.fence.heard(frame, now)
        heard = {
            "hello": self._hello,
            "push": self._push,
            "fetch": self._push,
            "close": self._close,
            "state": self._state,
            "bye": self._bye,
        }.get(frame.kind)
        return heard(frame, now) if heard else []

    def gone(self, slot: int, lease: int, now: float) -> None:
        """A worker's connection closed."""
        self.fence.gone(slot, lease, now)

    def tick(self, now: float) -> list[Frame]:
        """Called some times a second: leases end, late slots are left out, standbys sit down."""
        if self.is_over:
            return []
        out: list[Frame] = []
        for seat in self.fence.ended(now):
            lost = WorkerLost(slot=seat.slot, lease=seat.lease, reason="no sign of life from it")
            self.desk.emit(lost)
            self._forget(seat)
            out += self._answered(self.owner.close(now), now)
        out += self._answered(self.owner.leave_out_the_late(now), now)
        for seat in self.fence.seats.values():
            if seat.asking is not None and not (self._healer and not seat.is_live):
                out += self._hello(seat.asking, now)
        self._save_if_whole(now)
        self._warn_if_few_came(now)
        return out + self._finish_if_closed(now)

    def stop(self, reason: str) -> list[Frame]:
        """Ends the run without a result."""
        self.failure = self.failure or reason
        return self._farewell("stop")

    # -- seats -----------------------------------------------------------------------------------

    def _hello(self, frame: Frame, now: float) -> list[Frame]:
        seat = self.fence.seats[frame.slot]
        if self.is_over:
            return [self._seat(frame.slot, 0).frame("done")]
        if seat.rows < 0:
            self.desk.enter("hello", frame, {})
        seat.rows, seat.asking = int(frame.note.get("rows", 0)), frame
        is_same = seat.attempt == frame.note.get("attempt")
        if (seat.is_live and not is_same) or seat.waiting is not None:
            return [self._busy(seat)]
        if not self._has_begun:
            return self._begin_when_all_came(seat, now)
        return self._seated(seat, now)

    def _busy(self, seat: SeatState) -> Frame:
        came = sum(1 for s in self.fence.seats.values() if s.rows >= 0)
        note = {"came": came, "of": self.program.workers}
        return replace(self._seat(seat.slot, 0).frame("busy"), note=note)

    def _begin_when_all_came(self, seat: SeatState, now: float) -> list[Frame]:
        seats = self.fence.seats.values()
        if any(s.rows < 0 for s in seats):
            return [self._busy(seat)]
        self._has_begun = True
        self._announce(now)
        return [frame for s in seats for frame in self._seated(s, now)]

    def _seated(self, seat: SeatState, now: float) -> list[Frame]:
        """Grants the seat, or asks a survivor for the parameters that only workers hold."""
        resumed = self._resumed_inner()
        if not self.owner.policy.keeps and self.owner.version > 0 and resumed is None:
            others = [self.fence.seats[s] for s in self.fence.members - {seat.slot}]
            if others:
                self._healer = self._healer or min(others, key=lambda s: s.slot)
                return []
            self._fall_back()
            resumed = self._resumed_inner()
        return self._granted(seat, now, inner=(resumed or {}).get(seat.slot, {}))

    def _granted(
        self,
        seat: SeatState,
        now: float,
        *,
        heal: Message | None = None,
        inner: Mapping[str, Vector] | None = None,
    ) -> list[Frame]:
        frame = seat.asking
        if frame is None:
            return []
        self.fence.grant(seat, frame, now)
        self.desk.emit(
            WorkerJoined(
                slot=seat.slot,
                lease=seat.lease,
                host=seat.host,
                attempt=seat.attempt,
                examples=seat.rows,
            )
        )
        granted = {"granted": seat.lease, "next": seat.sequence, "cursor": seat.position}
        self.desk.enter("grant", frame, granted)
        has = int(frame.note.get("has", 0))
        return [self._grant(seat, has, heal=heal or self.owner.point, inner=inner or {})]

    def _grant(
        self, seat: SeatState, has: int, *, heal: Message, inner: Mapping[str, Vector]
    ) -> Frame:
        grant = Grant(
            phase=self.owner.phase,
            lease=seat.lease,
            sequence=seat.sequence,
            position=seat.position,
            budget=self.owner.budget,
            progress=self.owner.progress,
            heal=heal,
            is_fresh=self.owner.version == 0,
            inner=inner,
            history=self.history[has:],
            is_quarantined=seat.is_quarantined,
        )
        frame = self._seat(seat.slot, seat.lease).frame("grant", note={"attempt": seat.attempt})
        seat.answered = grant_to(frame, grant)
        return seat.answered

    def _bye(self, frame: Frame, now: float) -> list[Frame]:  # noqa: ARG002 - as all of `hear`
        """A worker failed by itself: its error ends the run, once, in its own words."""
        if self.is_over:
            return []
        return self.stop(str(frame.note.get("error", f"worker {frame.slot} failed")))

    def _forget(self, seat: SeatState) -> None:
        """A lost worker can neither heal others nor complete a cut."""
        if self._gathering is not None:
            self._gathering.without(seat.slot)
        if self._healer is seat:
            self._healer = None

    # -- pushes ----------------------------------------------------------------------------------

    def _push(self, frame: Frame, now: float) -> list[Frame]:
        seat, verdict = self.fence.seats[frame.slot], self.fence.verdict(frame)
        if verdict == "fenced" or frame.phase != self.owner.phase:
            return [self._seat(frame.slot, frame.lease).frame("fenced", sequence=frame.sequence)]
        if verdict != "next":
            return self._said_before(seat, frame)
        self.desk.enter("push", frame, {})
        seat.sequence += 1
        answers = self.owner.receive(seat, frame, now)
        return self._refused(seat, frame) if answers is None else self._answered(answers, now)

    def _said_before(self, seat: SeatState, frame: Frame) -> list[Frame]:
        last = seat.answered
        return [last] if last is not None and last.sequence == frame.sequence else []

    def _refused(self, seat: SeatState, frame: Frame) -> list[Frame]:
        """Not finite: it never reaches the model; the worker heals and goes on behind it."""
        seat.strikes += 1
        seat.position = frame.position
        seat.is_quarantined = seat.strikes >= STRIKES
        done = "its rows are left out from now on" if seat.is_quarantined else "dropped"
        text = sentence(
            f"worker {seat.slot} pushed numbers that are not finite",
            got=f"{done} ({seat.strikes} of {STRIKES})",
            do="look at its rows, or lower the learning rate",
        )
        self.desk.emit(Warned(text=text))
        self.desk.enter("refuse", frame, {})
        return [self._seat(seat.slot, seat.lease).frame("refused", sequence=frame.sequence)]

    def _answered(self, answers: Sequence[Answer], now: float) -> list[Frame]:
        agreed = [a for a in answers if a.message.kind == "agreed"]
        is_cut = bool(agreed) and self._is_cut_due(now)
        if is_cut:
            slots = frozenset(a.seat.slot for a in agreed) & self.fence.members
            self._gathering = Gathering(self._here(), slots)
        is_spent = self.owner.applied >= self.owner.budget
        out = []
        for seat, push, message in answers:
            kind = "fenced" if message.kind == "rejoin" else message.kind
            frame = self._seat(seat.slot, push.lease).frame(kind, sequence=push.sequence)
            seat.answered = message_to(
                frame,
                message,
                progress=self.owner.progress,
                stop=is_spent and not self._is_fixed,
                save=kind == "agreed" and (is_cut or seat is self._healer),
            )
            out.append(seat.answered)
        return out

    # -- the end of a phase ----------------------------------------------------------------------

    def _close(self, frame: Frame, now: float) -> list[Frame]:
        seat, verdict = self.fence.seats[frame.slot], self.fence.verdict(frame)
        if verdict == "duplicate":
            is_waited_for = seat.is_closed and frame.phase == self.owner.phase
            return [] if is_waited_for or seat.answered is None else [seat.answered]
        if verdict != "next":
            return [self._seat(frame.slot, frame.lease).frame("fenced", sequence=frame.sequence)]
        seat.sequence += 1
        seat.is_closed = True
        self._closes[seat.slot] = (self.owner.version, frame)
        self._forget(seat)
        return self._answered(self.owner.close(now), now) + self._finish_if_closed(now)

    def _finish_if_closed(self, now: float) -> list[Frame]:
        seats = self.fence.seats.values()
        is_open = [s for s in seats if not s.is_closed]
        patience = self.desk.patience_seconds
        if not self._has_begun or self.is_over or any(s.waiting is not None for s in seats):
            return []
        if any(s.is_live or now < s.ends_at + patience for s in is_open):
            return []
        for seat in is_open:
            wrong = f"worker {seat.slot} did not come back"
            self.desk.emit(Warned(text=sentence(wrong, got="the rest of its share is lost")))
        return self._finish(now)

    def _finish(self, now: float) -> list[Frame]:
        owner, point = self.owner, self._final()
        assert point.vector is not None
        assert point.floats is not None
        assert point.integers is not None
        self.desk.emit(
            PhaseEnded(
                phase=owner.phase,
                name=self.program.phases[owner.phase].name,
                examples=owner.applied,
                seconds=now - self._entered,
                metrics=owner.metrics,
                fingerprint=fingerprint(point.vector),
            )
        )
        self.history = (*self.history, point.vector)
        if owner.phase + 1 == len(self.program.phases):
            self.result = Result(self.history, point.floats, point.integers)
            return self._farewell("done")
        has = {slot: int(frame.note.get("has", 0)) for slot, (_, frame) in self._closes.items()}
        self._enter(owner.phase + 1, now)
        self._announce(now)
        self.desk.save(self._here())
        live = [s for s in self.fence.seats.values() if s.is_live]
        point = self.owner.point
        return [self._grant(s, has.get(s.slot, 0), heal=point, inner={}) for s in live]

    def _final(self) -> Message:
        """The exact average at a phase's end: the owner's point, or the mean of the workers'."""
        point = self.owner.point
        if self.owner.policy.keeps or self.owner.version == 0:
            return point
        newest = max((version for version, _ in self._closes.values()), default=0)
        held = [named(f) for _, (v, f) in sorted(self._closes.items()) if v == newest]
        if not held:
            return point
        if len({fingerprint(h["vector"]) for h in held}) > 1:
            self.desk.emit(Warned(text="the workers ended with different bits; took their mean"))
            share = [1.0 / len(held)] * len(held)
            held = [{**held[0], "vector": combine([h["vector"] for h in held], share)}]
        first = held[0]
        return point._replace(
            vector=first["vector"], floats=first["floats"], integers=first["integers"]
        )

    def _farewell(self, kind: str) -> list[Frame]:
        """Returns what tells every worker that all is over."""
        told = [s for s in self.fence.seats.values() if s.is_live or s.asking is not None]
        note = {"reason": self.failure} if self.failure else {}
        return [replace(self._seat(s.slot, s.lease).frame(kind), note=note) for s in told]

    # -- cuts and healing ------------------------------------------------------------------------

    def _state(self, frame: Frame, now: float) -> list[Frame]:
        if not self.fence.holds(frame):
            return []
        snapshot, out = snapshot_of(frame), list[Frame]()
        if self._gathering is not None:
            self._gathering.take(frame.slot, snapshot)
            self._save_if_whole(now)
        if self._healer is not None and self._healer.slot == frame.slot:
            self._healer = None
            out = self._heal_joiners(snapshot, now)
        return out

    def _heal_joiners(self, snapshot: Snapshot, now: float) -> list[Frame]:
        """Seats those that wait for what only workers hold."""
        point = self.owner.point._replace(
            version=self.owner.version,
            vector=snapshot.trained,
            floats=snapshot.floats,
            integers=snapshot.integers,
        )
        seats = self.fence.seats.values()
        joiners = [s for s in seats if s.asking and not s.is_live and s.waiting is None]
        return [
            frame
            for seat in joiners
            for frame in self._granted(seat, now, heal=point, inner=snapshot.inner)
        ]

    def _is_cut_due(self, now: float) -> bool:
        every = self.desk.checkpoint_seconds
        return every is not None and self._gathering is None and now - self._saved >= every

    def _save_if_whole(self, now: float) -> None:
        if self._gathering is None or not self._gathering.is_whole:
            return
        cut = self._gathering.cut(keeps=self.owner.policy.keeps)
        self._gathering, self._saved = None, now
        if cut is not None:
            self._cut = cut
            self.desk.save(cut)

    def _here(self) -> Cut:
        seats = self.fence.seats.values()
        return Cut(
            phase=self.owner.phase,
            version=self.owner.version,
            applied=self.owner.applied,
            budget=self.owner.budget,
            point=self.owner.point._replace(version=self.owner.version),
            positions={s.slot: s.position for s in seats},
            rows={s.slot: s.rows for s in seats},
            history=self.history,
        )

    def _resumed_inner(self) -> Mapping[int, Mapping[str, Vector]] | None:
        """Inner states to hand out: the cut's, as long as nothing was agreed since."""
        cut = self._cut
        if cut is None or (cut.phase, cut.version) != (self.owner.phase, self.owner.version):
            return None
        return cut.inner

    def _fall_back(self) -> None:
        """Nobody is left who knows the parameters: the last cut, or the phase's start."""
        if self._cut is None or self._cut.phase != self.owner.phase:
            start = self._start_point()
            self._cut = replace(
                self._here(),
                version=0,
                applied=0,
                point=start,
                positions=dict.fromkeys(self.fence.seats, 0),
            )
        self._restore(self._cut)
        text = sentence(
            "all workers were lost, and with them what they had agreed on",
            got=f"went back to version {self._cut.version} of phase {self.owner.phase}",
            do="checkpoint more often to lose less",
        )
        self.desk.emit(Warned(text=text))

    def _restore(self, cut: Cut) -> None:
        self.owner.restore(cut.point, cut.applied)
        for slot, position in cut.positions.items():
            self.fence.seats[slot].position = position

    # -- phases ----------------------------------------------------------------------------------

    def _enter(self, phase: int, now: float) -> None:
        """Sets a phase up: its first parameters, its policy, every seat at its start."""
        self._gathering, self._healer, self._closes = None, None, {}
        self._entered = self._saved = now
        for seat in self.fence.seats.values():
            seat.is_closed, seat.position = False, 0
        policy = self.program.phases[phase].agreement.policy()
        cut = self._cut if self._cut is not None and self._cut.phase == phase else None
        point = cut.point if cut else self._start_point(phase)
        self.owner = Owner(phase, policy, point, self.fence, self.desk)
        self._cut = cut
        if cut is not None:
            self._restore(cut)

    def _start_point(self, phase: int | None = None) -> Message:
        index = self.owner.phase if phase is None else phase
        parameters = self.program.build(index, self.history).parameters
        return Message(
            "heal",
            parameters.trained.copy(),
            floats=parameters.floats.copy(),
            integers=parameters.integers.copy(),
        )

    @property
    def _is_fixed(self) -> bool:
        return self.program.phases[self.owner.phase].agreement.is_deterministic

    def _announce(self, now: float) -> None:
        """The phase begins: all rows are counted."""
        planned = self.program.phases[self.owner.phase]
        rows = sum(max(0, s.rows) for s in self.fence.seats.values())
        self.owner.budget = max(1, round(planned.stage.epochs * rows))
        self._entered = self._saved = now
        point = self.owner.point
        self.desk.emit(
            PhaseStarted(
                phase=self.owner.phase,
                name=planned.name,
                budget=self.owner.budget,
                parameters=0 if point.vector is None else point.vector.size,
                strategy=str(planned.agreement),
                batch_size=planned.stage.batch_size,
                epochs=planned.stage.epochs,
            )
        )

    def _warn_if_few_came(self, now: float) -> None:
        if self._has_begun or self._has_warned or now - self._created < FEW_CAME_SECONDS:
            return
        self._has_warned = True
        came = sum(1 for s in self.fence.seats.values() if s.rows >= 0)
        wrong = f"{came} of {self.program.workers} workers came within {FEW_CAME_SECONDS:.0f} s"
        self.desk.emit(Warned(text=sentence(wrong, do="free slots, or ask for fewer workers")))

    def _seat(self, slot: int, lease: int) -> Seat:
        return Seat(self.desk.run, self.desk.term, self.owner.phase, slot, lease)
