"""What the coordinator and the task server have in common: frames under leases, and answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.leases import Leases, SeatState
from photinus.core.events import WorkerJoined
from photinus.protocol.messages import Seat
from photinus.transport.frames import Frame

FrameHandler = Callable[[Frame, float], list[Frame]]
"""Takes a frame of one kind in at a time; returns the frames to send."""


class LeaseServer(ABC):
    """A state machine without input or output: a frame (or the time) in, frames out.

    A push counts once, under its seat's present lease and with the next number. A copy gets the
    first answer again, and a worker that has lost its seat gets "fenced".

    Args:
        leases: the seats.
        callbacks: receive events and ledger lines.
    """

    failure: str = ""
    """Why it cannot continue; empty while it can."""
    failure_kind: str = ""
    """The class of the error that a worker reported."""
    _handlers: Mapping[str, FrameHandler]
    """What takes a frame in, by its kind."""

    def __init__(self, leases: Leases, callbacks: Callbacks) -> None:
        self.leases, self.callbacks = leases, callbacks

    # -- what differs ----------------------------------------------------------------------------

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """True when every worker may leave."""

    @abstractmethod
    def tick(self, now: float) -> list[Frame]:
        """Called some times a second: leases end, standbys sit down."""

    @abstractmethod
    def _apply(self, seat: SeatState, push: Frame, now: float) -> list[Frame]:
        """Takes in a push that is its seat's next."""

    def _answer_unknown_slot(self, frame: Frame) -> list[Frame]:  # noqa: ARG002 - for those who answer
        """Answers a frame for a slot that does not exist."""
        return []

    def _notifications(self, now: float) -> list[Frame]:  # noqa: ARG002 - for those who have any
        """Returns the frames that other workers must get after a frame was taken in."""
        return []

    def _kind_after_end(self, frame: Frame) -> str:  # noqa: ARG002 - for those who tell frames apart
        """Returns the kind of the answer to a frame after the end of the run; empty before it."""
        return "stop" if self.failure else ""

    @property
    def phase(self) -> int:
        """The present phase's index."""
        return 0

    # -- what only trainings have ----------------------------------------------------------------

    @property
    def is_between_passes(self) -> bool:
        """True when all workers have left, and wait for the next pass over rows that stream."""
        return False

    @property
    def is_snapshot_asked(self) -> bool:
        """True while a snapshot that was asked for is not whole."""
        return False

    def next_pass(self, now: float) -> None:  # noqa: B027 - only rows that stream have passes
        """Every worker says hello again, with another pass over its rows."""

    def ask_for_snapshot(self) -> bool:
        """Has the present round saved; False where there is none to save."""
        return False

    # -- frames ----------------------------------------------------------------------------------

    def hear(self, frame: Frame, now: float) -> list[Frame]:
        """Takes one frame in; returns the frames to send, each to its slot's worker."""
        if frame.run != self.callbacks.run:
            return []
        is_known = frame.slot in self.leases
        if frame.term != self.callbacks.term:
            return [self._reply_to(frame, "fenced")] if is_known else []
        if not is_known:
            return self._answer_unknown_slot(frame)
        self.leases.heard(frame, now)
        handler = self._handlers.get(frame.kind)
        if handler is None:
            return []
        if kind := self._kind_after_end(frame):
            return [self._reply_to(frame, kind)]
        return handler(frame, now) + self._notifications(now)

    def _push(self, frame: Frame, now: float) -> list[Frame]:
        seat, verdict = self.leases[frame.slot], self.leases.verdict(frame)
        if verdict != "next":
            return self._answer_out_of_turn(seat, frame, verdict)
        self.callbacks.enter(frame.kind, frame, {})
        seat.sequence += 1
        first_unanswered = frame.header.get("unanswered", frame.sequence)
        seat.answers = {n: answer for n, answer in seat.answers.items() if n >= first_unanswered}
        return self._apply(seat, frame, now)

    def _answer_out_of_turn(self, seat: SeatState, frame: Frame, verdict: str) -> list[Frame]:
        """A copy gets the answer to the first again; a worker that lost its seat is fenced."""
        if frame.kind == "push":
            self.callbacks.enter(verdict, frame, {})
        if verdict == "fenced":
            return [self._reply_to(frame, "fenced")]
        last = seat.last_answer
        if last is not None and last.kind == "grant" and last.sequence == frame.sequence + 1:
            return [last]
        return [seat.answers[frame.sequence]] if frame.sequence in seat.answers else []

    def stop(self, reason: str, kind: str = "") -> list[Frame]:
        """Ends the run without a result; the first reason is the one that counts.

        Args:
            reason: what a user reads.
            kind: the class of the error, where it is photinus's own.
        """
        if not self.failure:
            self.failure, self.failure_kind = reason, kind
        return self._end_frames("stop")

    def _end_frames(self, kind: str) -> list[Frame]:
        """Returns the frames that tell every worker that the run is over."""
        seats = [s for s in self.leases if s.is_live or s.pending_hello is not None]
        header = {"reason": self.failure} if self.failure else {}
        return [self._frame(kind, s.slot, s.lease, header) for s in seats]

    def _reply_to(self, frame: Frame, kind: str) -> Frame:
        """Returns an answer to the sender of `frame`."""
        header = {"reason": self.failure} if kind == "stop" else {}
        ids = self.phase, frame.slot, frame.lease, frame.sequence
        return Frame(kind, self.callbacks.run, self.callbacks.term, *ids, header)

    def _frame(
        self, kind: str, slot: int, lease: int, header: Mapping[str, Any] | None = None
    ) -> Frame:
        run, term = self.callbacks.run, self.callbacks.term
        return Seat(run, term, self.phase, slot, lease).frame(kind, header)


def grant_seat(
    seat: SeatState, leases: Leases, callbacks: Callbacks, now: float, **extra: int
) -> None:
    """Grants a seat to the worker that asks for it; enters it in the ledger with `extra`."""
    hello = seat.pending_hello
    assert hello is not None
    leases.grant(seat, hello, now)
    callbacks.emit(
        WorkerJoined(
            slot=seat.slot,
            lease=seat.lease,
            host=seat.host,
            attempt=seat.attempt,
            examples=max(0, seat.rows),
            pid=hello.header.get("pid", 0),
            device=hello.header.get("device", ""),
        )
    )
    granted = {"granted": seat.lease, "next": seat.sequence, "cursor": seat.position}
    callbacks.enter("grant", hello, granted | extra)
