"""Serves units of work for DeepDist and `iterate`: assigns them and counts each result once.

A *unit* is a partition or a worker's seat. A worker of a unit sends hello, is granted the present
state, and pushes its result. Where units are independent a push is applied at once; where
they work together a round waits for every unit, however often one was started again. Seats,
leases and sequence numbers are those of `Leases`: each unit counts once a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.lease_server import LeaseServer, grant_seat
from photinus.coordinator.leases import Leases, SeatState
from photinus.core import errors
from photinus.core.errors import FencedError, FrameError, PhotinusError, user_message
from photinus.core.parameters import Vector
from photinus.protocol.messages import grant_to, message_to
from photinus.protocol.serialization import is_sound, unpacked
from photinus.strategies.base import Message, Turn
from photinus.training.requests import Exchange, Grant, Hello, WorkerGenerator
from photinus.transport.frames import Frame

FAILURES = 4
"""How often one unit may fail, each time in another way; Spark's own default."""
_MAX_TICK_SECONDS = 1.0
"""With more between two ticks the owner was busy and could take no frame in."""


class UpdateRule(Protocol):
    """The user's arithmetic, in one place; called by one thread at a time."""

    def state(self, has: int) -> Vector:
        """Returns what a unit starts from, packed, as bytes that are not written to any more.

        Args:
            has: which state the worker holds, as the rule numbers them; 0: none.
        """

    def take(self, results: Sequence[Any]) -> bool:
        """Takes in the results of a round's units, in their order; returns whether all is done."""


class UnitWork(NamedTuple):
    """What a task does with its unit."""

    compute: Callable[[Vector], Vector]
    """Returns its result for a state, both packed."""
    has: int = 0
    """Which state this process holds, as the rule numbers them; 0: none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkUnits:
    """How much there is to do.

    Args:
        count: of units.
        together: a round waits for every unit, and the units continue until the rule is done; else
            each unit is applied at once, and is done then.
        unit: what one is called, for people.
        work: what a unit does, for people.
        taking: what the rule does, for people.
    """

    count: int
    together: bool = False
    unit: str = "partition"
    work: str = "gradient"
    taking: str = "descent"


class TaskServer(LeaseServer):
    """Joins the leases and the rule; a state machine like the `Coordinator`, for `Service`.

    When a worker is lost its unit is done again by the worker that takes the seat next; nothing of
    it was applied before. What was applied is never done again.

    Args:
        units: how much there is to do.
        rule: the user's arithmetic.
        callbacks: receive events and ledger lines; frames of another run are ignored.
    """

    def __init__(self, units: WorkUnits, rule: UpdateRule, callbacks: Callbacks) -> None:
        super().__init__(Leases(units.count), callbacks)
        self.cause: Exception | None = None
        """What the rule raised."""
        self.version = 0
        """How often the state has moved."""
        self.refused: list[int] = []
        """The units whose numbers were not finite: never applied."""
        self.bytes_sent = 0
        """Of all states that workers were sent."""
        self.bytes_received = 0
        """Of all results."""
        self._units, self._rule = units, rule
        self._results: dict[int, Any] = {}
        self._last_causes: dict[int, str] = {}  # slot -> how its unit failed last
        self._ticked_at: float | None = None
        self._handlers = {"hello": self._hello, "push": self._push, "bye": self._bye}

    @property
    def is_over(self) -> bool:
        """True when every worker may leave."""
        return bool(self.failure) or all(s.close_frame is not None for s in self.leases)

    def _answer_unknown_slot(self, frame: Frame) -> list[Frame]:
        got = f"{self._units.unit} {frame.slot} came, and there were {self._units.count}"
        wrong = f"the data changed its {self._units.unit}s"
        frames = self.stop(user_message(wrong, got=got, do="repartition(n) it, or cache() it"))
        return [*frames, self._reply_to(frame, "stop")]

    def tick(self, now: float) -> list[Frame]:
        """Called some times a second: leases end, standbys sit down."""
        busy_seconds = now - (now if self._ticked_at is None else self._ticked_at)
        self._ticked_at = now
        seats = self.leases
        if busy_seconds > _MAX_TICK_SECONDS:  # the rule took long: signs of life wait to be read
            for seat in seats:
                seat.ends_at += busy_seconds
        self.leases.expire(now)
        free = [s for s in seats if s.pending_hello and not s.is_live and s.pending_push is None]
        return [self._granted(s, now) for s in free if s.close_frame is None and not self.failure]

    # -- seats -----------------------------------------------------------------------------------

    def _hello(self, frame: Frame, now: float) -> list[Frame]:
        seat = self.leases[frame.slot]
        if seat.close_frame is not None:
            return [self._reply_to(frame, "done")]
        if seat.is_live and seat.is_same_attempt(frame):
            if frame.header["hello"] <= seat.hello:
                return [seat.last_answer] if seat.last_answer is not None else []
            self.leases.vacate(seat)
        seat.pending_hello = frame
        if seat.is_live or seat.pending_push is not None:
            return [self._reply_to(frame, "busy")]
        return [self._granted(seat, now)]

    def _granted(self, seat: SeatState, now: float) -> Frame:
        assert seat.pending_hello is not None
        has = seat.pending_hello.header["has"]
        grant_seat(seat, self.leases, self.callbacks, now)
        state = self._rule.state(has)
        self.bytes_sent += state.nbytes
        grant = Grant(
            phase=self.phase,
            lease=seat.lease,
            sequence=seat.sequence,
            position=seat.position,
            budget=self._units.count,
            progress=0.0,
            heal=Message("heal", state, version=self.version),
            is_fresh=self.version == 0,
        )
        header = {"attempt": seat.attempt, "hello": seat.hello}
        seat.last_answer = grant_to(self._frame("grant", seat.slot, seat.lease, header), grant)
        return seat.last_answer

    def _bye(self, frame: Frame, now: float) -> list[Frame]:  # noqa: ARG002 - as all of `hear`
        """Takes in a worker's error: one of photinus's ends the work, others after some tries.

        A unit that fails twice in the same way, at the same line, will do so again.
        """
        seat, is_held = self.leases[frame.slot], self.leases.holds(frame)
        if frame.lease and not is_held:
            return [self._reply_to(frame, "fenced")]
        seat.strikes += 1
        kind, text = frame.header.get("type", ""), frame.header.get("error", "")
        if errors.class_of(kind):
            return [*self.stop(text, kind), self._reply_to(frame, "stop")]
        if is_held:
            self.leases.vacate(seat)
        cause = frame.header.get("cause", "") or text
        is_same, self._last_causes[seat.slot] = self._last_causes.get(seat.slot) == cause, cause
        if seat.strikes < FAILURES and not is_same:
            return [self._reply_to(frame, "fenced")]
        times = "twice in the same way" if is_same else f"{FAILURES} times"
        wrong = f"{self._units.work} failed {times} on {self._units.unit} {seat.slot}"
        frames = self.stop(f"{user_message(wrong, got=cause)}\n{text}")
        return [*frames, self._reply_to(frame, "stop")]

    # -- pushes ----------------------------------------------------------------------------------

    def _apply(self, seat: SeatState, push: Frame, now: float) -> list[Frame]:  # noqa: ARG002
        packed = push.arrays.get("vector")
        if packed is None:
            raise FrameError("a push of a unit must hold its result", got=f"worker {seat.slot}")
        self.bytes_received += packed.nbytes
        seat.pending_push, self._results[seat.slot] = push, unpacked(packed)
        if not is_sound(self._results[seat.slot]):
            return self._refuse(seat, push)
        is_whole = len(self._results) == self._units.count or not self._units.together
        return self._close_round() if is_whole else []

    def _refuse(self, seat: SeatState, frame: Frame) -> list[Frame]:
        """Refuses a push that is not finite; where a round needs it, the work ends."""
        seat.pending_push = None
        del self._results[seat.slot]
        self.refused.append(seat.slot)
        self.callbacks.enter("refuse", frame, {})
        unit = f"{self._units.unit} {seat.slot}"
        wrong = f"{self._units.work} returned values that are not finite on {unit}"
        if self._units.together:
            return self.stop(wrong)
        self.callbacks.warn(wrong, then="they were dropped", do="look at its rows")
        return [self._answer(seat, frame, is_done=True)]

    def _close_round(self) -> list[Frame]:
        """Takes in, counts and answers a round that is whole."""
        results, self._results = dict(sorted(self._results.items())), {}
        try:
            is_done = self._rule.take(list(results.values())) or not self._units.together
        except Exception as error:
            return self._fail(error, list(results))
        self.version += 1
        seats = [self.leases[slot] for slot in results]
        return [self._count_applied(seat, is_done=is_done) for seat in seats]

    def _fail(self, error: Exception, slots: list[int]) -> list[Frame]:
        """Ends the work with the error of the user's arithmetic."""
        self.cause = error
        if isinstance(error, PhotinusError):
            return self.stop(str(error), type(error).__name__)
        where = "" if self._units.together else f" on {self._units.unit} {slots[0]}"
        wrong = f"{self._units.taking} failed{where}, update {self.version + 1}"
        return self.stop(user_message(wrong, got=f"{type(error).__name__}: {error}"))

    def _count_applied(self, seat: SeatState, *, is_done: bool) -> Frame:
        push, seat.pending_push = seat.pending_push, None
        assert push is not None
        self.leases.counts["applied"] += 1
        seat.position = push.header["position"]
        self.callbacks.enter("apply", push, {"applied_in": self.version})
        answer = self._answer(seat, push, is_done=is_done)
        self.callbacks.enter("ack", answer, {})
        return answer

    def _answer(self, seat: SeatState, push: Frame, *, is_done: bool) -> Frame:
        if is_done:
            self.leases.close(seat, push)
        state = None if is_done else self._rule.state(0)
        self.bytes_sent += 0 if state is None else state.nbytes
        state_message = Message("agreed", state, version=self.version)
        answer = message_to(self._reply_to(push, "agreed"), state_message, stop=is_done)
        seat.last_answer = seat.answers[push.sequence] = answer
        return answer


def unit_requests(work: UnitWork, *, can_repeat: bool) -> WorkerGenerator:
    """Yields a worker's requests until its unit is done.

    Args:
        work: what is done, and which state is held here.
        can_repeat: whether it may be asked again for the same round, when the seat was lost; else
            another attempt must follow.

    Raises:
        FencedError: the seat was lost, and the work cannot be repeated here.
    """
    grant: Grant | None = yield Hello(0, work.has)
    while grant is not None:
        state, position = grant.heal.vector, grant.position
        try:
            while state is not None:
                result, position = work.compute(state), position + 1
                reply = yield Exchange(Turn("swap"), Message("push", result), position)
                [agreed] = reply.messages
                state = None if reply.stop else agreed.vector
        except FencedError:
            if not can_repeat:
                raise
            grant = yield Hello(0, 0)
        else:
            return
