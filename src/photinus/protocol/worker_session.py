"""A worker's side of the exchange with the coordinator, without input or output.

Both the blocking worker and the simulator's nodes use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from photinus.core.errors import FencedError, RunFailedError
from photinus.core.parameters import FLOATS, INTEGERS, TRAINED, Vector
from photinus.protocol.messages import (
    Seat,
    grant_of,
    inner_to,
    message_to,
    page_of,
    page_to,
    snapshot_to,
    step_reply_of,
)
from photinus.protocol.peer_session import PeerSession
from photinus.training.requests import (
    Close,
    Exchange,
    Grant,
    Hello,
    Measured,
    Page,
    Request,
    RowsRequest,
    StepDone,
    StepReply,
    WorkerSnapshot,
)
from photinus.transport.frames import Frame

WINDOW = 8
"""How many pushes may be under way at once; a worker that is further ahead waits."""

_SECTIONS = {"vector": TRAINED, FLOATS: FLOATS, INTEGERS: INTEGERS}
"""The names in a close of the parameters that only workers hold."""


@dataclass(slots=True)
class PushMetrics:
    """What a worker measured since its last push; the next push carries it."""

    sums: dict[str, float] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    examples: int = 0
    wait_seconds: float = 0.0
    compute_seconds: float = 0.0

    def add(self, step: StepDone) -> None:
        """Takes one step in."""
        self.steps += 1
        self.examples += step.examples
        for name, value in step.metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * step.examples
            self.weights[name] = self.weights.get(name, 0) + step.examples

    def after(self, steps: int) -> PushMetrics:
        """Returns what is left after a push of so many steps: metrics weigh as these do."""
        return PushMetrics() if steps else PushMetrics(self.sums, self.weights)

    def header_fields(self) -> dict[str, Any]:
        """Returns it as fields of a push's header."""
        return {
            "metrics": {n: total / max(1, self.weights[n]) for n, total in self.sums.items()},
            "steps_since": self.steps,
            "examples_since": self.examples,
            "wait_seconds": self.wait_seconds,
            "compute_seconds": self.compute_seconds,
        }


class WorkerSession:
    """Numbers the frames of the present lease, and measures their times."""

    def __init__(self, seat: Seat, about: Mapping[str, Any]) -> None:
        self.seat, self.peers, self._about = seat, PeerSession(), dict(about)
        self.version = 0
        """The agreed point that was last heard of."""
        self._hellos = self._sequence = 0
        self.under_way: dict[int, Frame] = {}
        """Sequence -> a push that the worker does not wait for, and that is not answered yet."""
        self._undelivered: list[Frame] = []
        """Answers to such pushes that the loop has not got yet."""
        self._push_metrics = PushMetrics()
        self._measured: dict[str, float] | None = None
        self._granted_at = self._asked_at = self._answered_at = self._waited_seconds = 0.0

    def listens_at(self, address: str) -> None:
        """Puts into every hello the address at which other workers find this one."""
        self._about["address"] = address

    def seconds(self, now: float) -> float:
        """Returns the time since the phase was entered, without that of waits for answers.

        If waits counted, a worker that waits in a round would work less in the next one, wait
        longer, and after a few rounds only the slowest worker would work for its whole time.
        """
        return now - self._granted_at - self._waited_seconds

    def stepped(self, step: StepDone) -> None:
        """Counts a step."""
        self._push_metrics.add(step)

    def frame(self, request: Request, now: float) -> Frame | None:
        """Returns what to send for a request; a take only waits for what is under way."""
        if isinstance(request, Hello):
            self.seat, self._hellos = replace(self.seat, lease=0), self._hellos + 1
            self._drop_under_way()
            header = {
                **self._about,
                "hello": self._hellos,
                "rows": request.rows,
                "has": request.has,
            }
            header |= {} if request.passes is None else {"passes": request.passes}
            header |= {"labels": dict(request.labels)} if request.labels else {}
            header |= {} if request.span is None else {"span": request.span}
            header |= {"digest": request.digest} if request.digest else {}
            header |= {"is_weightless": True} if request.is_weightless else {}
            return self.seat.frame("hello", header)
        if isinstance(request, WorkerSnapshot):
            return snapshot_to(self.seat.frame("state", {"version": self.version}), request)
        if isinstance(request, Close):
            return self._close_frame(request)
        if isinstance(request, Page):
            self._begin_wait(now)
            return page_to(self.seat.frame("page"), request)
        if isinstance(request, Measured):
            self._measured = dict(request.sums)
            return None
        if isinstance(request, RowsRequest):
            self._begin_wait(now)
            return None
        assert isinstance(request, Exchange)
        return self._exchange_frame(request, now)

    def _begin_wait(self, now: float) -> None:
        """Notes that the worker computes no more until it is answered."""
        self._push_metrics.compute_seconds += now - self._answered_at
        self._asked_at = self._answered_at = now

    def goes_on(self, now: float) -> None:
        """Notes that what the worker waited for has come."""
        self._push_metrics.wait_seconds += now - self._asked_at
        self._waited_seconds += now - self._asked_at
        self._answered_at = now

    def _exchange_frame(self, request: Exchange, now: float) -> Frame | None:
        self._begin_wait(now)
        if request.message is None:
            return None
        header = {"unanswered": min(self.under_way, default=self._sequence)} | self._take_measured()
        message = request.message
        if message.kind == "push":
            header |= self._push_metrics.header_fields()
            self._push_metrics = self._push_metrics.after(message.since.steps)
        if request.turn.kind == "meet":
            message, counts = self.peers.bring_push(message, request.points)
            header |= counts
        frame = message_to(
            self._numbered(message.kind, {"position": request.position}), message, **header
        )
        if not request.turn.waits:
            self.under_way[frame.sequence] = frame
        return frame

    def waits(self, request: Request) -> bool:
        """Returns whether the worker waits for an answer to its last request."""
        if not isinstance(request, Exchange):
            return True
        if request.turn.kind == "take":
            return bool(self.under_way)
        return request.turn.waits or len(self.under_way) >= WINDOW

    def _drop_under_way(self) -> None:
        """Drops what was under way under an older lease, or in an older phase."""
        self.under_way, self._undelivered = {}, []

    def _close_frame(self, request: Close) -> Frame:
        parameters = request.parameters
        arrays = (
            {}
            if parameters is None
            else {name: parameters.section(f) for name, f in _SECTIONS.items()}
        )
        header = {
            "version": self.version,
            "position": request.position,
            "is_unfinished": request.is_unfinished,
        }
        return self._numbered(
            "close", header | self._take_measured(), arrays | inner_to(request.inner)
        )

    def _take_measured(self) -> dict[str, Any]:
        """Returns what was measured, as a field of the next frame."""
        measured, self._measured = self._measured, None
        return {} if measured is None else {"measured": measured}

    def _numbered(
        self, kind: str, header: Mapping[str, Any], arrays: Mapping[str, Vector] | None = None
    ) -> Frame:
        frame = self.seat.frame(kind, header, arrays, sequence=self._sequence)
        self._sequence += 1
        return frame

    def answers(self, request: Request | None, question: Frame | None, frame: Frame) -> bool:
        """Returns whether a frame is the answer that the worker waits for.

        Raises:
            FencedError: the seat is lost; say hello again.
            RunFailedError: the run was stopped.
        """
        if frame.kind == "stop":
            raise RunFailedError(str(frame.header.get("reason", "the run was stopped")))
        is_mine = frame.lease == self.seat.lease
        if frame.kind in ("fenced", "refused") and is_mine and not isinstance(request, Hello):
            raise FencedError(f"slot {self.seat.slot} lost lease {self.seat.lease}")
        is_answer = frame.kind in ("agreed", "heal", "ack") and is_mine
        if is_answer and frame.sequence in self.under_way:
            del self.under_way[frame.sequence]
            self.version = frame.header["version"]
            self._undelivered.append(frame)
            return isinstance(request, Exchange) and not self.waits(request)
        if question is None:
            return False
        if isinstance(request, Page):
            return is_mine and frame.kind == "page" and _is_same_page(question, frame)
        if isinstance(request, (Hello, Close)):
            return frame.kind == "done" or (
                frame.kind == "grant" and self._is_own_grant(question, frame)
            )
        return is_answer and frame.sequence == question.sequence

    def _is_own_grant(self, question: Frame, grant: Frame) -> bool:
        """Returns whether a grant answers this hello, or this close, and no earlier one."""
        if grant.header.get("attempt") != self._about.get("attempt"):
            return False
        if question.kind == "hello":
            return bool(grant.header["hello"] == self._hellos)
        return grant.lease == question.lease and grant.sequence == question.sequence + 1

    def understood(self, answer: Frame, now: float) -> Grant | StepReply | Page | None:
        """Returns what an answer means for the worker's generator."""
        if answer.kind == "done":
            return None
        self.goes_on(now)
        if answer.kind == "page":
            return page_of(answer)
        self.version = answer.header["version"]
        if answer.kind != "grant":
            is_delivered = any(frame is answer for frame in self._undelivered)
            reply = self.step_reply(now, () if is_delivered else (answer,))
            if answer.kind == "agreed" and self.peers.is_meeting:
                agreed = self.peers.end_meeting(reply.messages[0])
                reply = reply._replace(messages=(agreed, *reply.messages[1:]))
            return reply
        grant = grant_of(answer)
        self.seat = replace(self.seat, phase=grant.phase, lease=grant.lease)
        self._sequence, self._push_metrics = grant.sequence, PushMetrics()
        self._granted_at, self._waited_seconds = now, 0.0
        self._drop_under_way()
        self.peers.seated(self.seat, grant.heal.version, answer.header)
        return grant

    def step_reply(self, now: float, answers: tuple[Frame, ...] = ()) -> StepReply:
        """Returns what arrived since the last call."""
        frames, self._undelivered = (*self._undelivered, *answers), []
        reply = step_reply_of(frames, self.seconds(now))
        return reply._replace(messages=(*reply.messages, *self.peers.arrived()))


def _is_same_page(question: Frame, answer: Frame) -> bool:
    """Returns whether a page answers this one."""
    asked = {**question.header, "asked": question.header["start"]}
    return all(answer.header.get(name) == asked[name] for name in ("version", "name", "asked"))
