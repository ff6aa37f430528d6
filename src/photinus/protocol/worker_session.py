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

    def told(self) -> dict[str, Any]:
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
        self._hellos = self._sequence = self._version = 0
        self.under_way: dict[int, Frame] = {}
        """Sequence -> a push that the worker does not wait for, and that is not answered yet."""
        self._told: list[Frame] = []
        """Answers to such pushes that the loop has not got yet."""
        self._push_metrics = PushMetrics()
        self._measured: dict[str, float] | None = None
        self._granted_at = self._spoke_at = self._heard_at = self._waited = 0.0

    @property
    def version(self) -> int:
        """The agreed point that was last heard of."""
        return self._version

    def listens_at(self, address: str) -> None:
        """Puts into every hello the address at which other workers find this one."""
        self._about["address"] = address

    def seconds(self, now: float) -> float:
        """Returns the time since the phase was entered, without that of waits for answers.

        If waits counted, a worker that waits in a round would work less in the next one, wait
        longer, and after a few rounds only the slowest worker would work for its whole time.
        """
        return now - self._granted_at - self._waited

    def stepped(self, step: StepDone) -> None:
        """Counts a step."""
        self._push_metrics.add(step)

    def frame(self, ask: Request, now: float) -> Frame | None:
        """Returns what to send for a request; a take only waits for what is under way."""
        if isinstance(ask, Hello):
            self.seat, self._hellos = replace(self.seat, lease=0), self._hellos + 1
            self._forget()
            told = {**self._about, "hello": self._hellos, "rows": ask.rows, "has": ask.has}
            told |= {} if ask.passes is None else {"passes": ask.passes}
            told |= {"labels": dict(ask.labels)} if ask.labels else {}
            told |= {} if ask.span is None else {"span": ask.span}
            return self.seat.frame("hello", told)
        if isinstance(ask, WorkerSnapshot):
            return snapshot_to(self.seat.frame("state", {"version": self._version}), ask)
        if isinstance(ask, Close):
            return self._closing(ask)
        if isinstance(ask, Page):
            self._pauses(now)
            return page_to(self.seat.frame("page"), ask)
        if isinstance(ask, Measured):
            self._measured = dict(ask.sums)
            return None
        if isinstance(ask, RowsRequest):
            self._pauses(now)
            return None
        assert isinstance(ask, Exchange)
        return self._exchanging(ask, now)

    def _pauses(self, now: float) -> None:
        """Notes that the worker computes no more until it is answered."""
        self._push_metrics.compute_seconds += now - self._heard_at
        self._spoke_at = self._heard_at = now

    def goes_on(self, now: float) -> None:
        """Notes that what the worker waited for has come."""
        self._push_metrics.wait_seconds += now - self._spoke_at
        self._waited += now - self._spoke_at
        self._heard_at = now

    def _exchanging(self, ask: Exchange, now: float) -> Frame | None:
        self._pauses(now)
        if ask.message is None:
            return None
        told = {"unanswered": min(self.under_way, default=self._sequence)} | self._trial()
        if ask.message.kind == "push":
            told, self._push_metrics = told | self._push_metrics.told(), PushMetrics()
        message = ask.message
        if ask.turn.kind == "meet":
            message, counted = self.peers.brings(message, ask.stands)
            told |= counted
        said = message_to(self._numbered(message.kind, {"position": ask.position}), message, **told)
        if not ask.turn.waits:
            self.under_way[said.sequence] = said
        return said

    def waits(self, ask: Request) -> bool:
        """Returns whether the worker waits for an answer to its last request."""
        if not isinstance(ask, Exchange):
            return True
        if ask.turn.kind == "take":
            return bool(self.under_way)
        return ask.turn.waits or len(self.under_way) >= WINDOW

    def _forget(self) -> None:
        """Drops what was under way under an older lease, or in an older phase."""
        self.under_way, self._told = {}, []

    def _closing(self, ask: Close) -> Frame:
        held = ask.parameters
        arrays = {} if held is None else {name: held.section(f) for name, f in _SECTIONS.items()}
        told = {"version": self._version, "position": ask.position, "rests": ask.rests}
        return self._numbered("close", told | self._trial(), arrays | inner_to(ask.inner))

    def _trial(self) -> dict[str, Any]:
        """Returns what was measured, as a field of the next frame."""
        told, self._measured = self._measured, None
        return {} if told is None else {"measured": told}

    def _numbered(
        self, kind: str, header: Mapping[str, Any], arrays: Mapping[str, Vector] | None = None
    ) -> Frame:
        frame = self.seat.frame(kind, header, arrays, sequence=self._sequence)
        self._sequence += 1
        return frame

    def answers(self, ask: Request | None, said: Frame | None, heard: Frame) -> bool:
        """Returns whether a frame is the answer that the worker waits for.

        Raises:
            FencedError: the seat is lost; say hello again.
            RunFailedError: the run was stopped.
        """
        if heard.kind == "stop":
            raise RunFailedError(str(heard.header.get("reason", "the run was stopped")))
        is_mine = heard.lease == self.seat.lease
        if heard.kind in ("fenced", "refused") and is_mine and not isinstance(ask, Hello):
            raise FencedError(f"slot {self.seat.slot} lost lease {self.seat.lease}")
        is_answer = heard.kind in ("agreed", "heal", "ack") and is_mine
        if is_answer and heard.sequence in self.under_way:
            del self.under_way[heard.sequence]
            self._version = heard.header["version"]
            self._told.append(heard)
            return isinstance(ask, Exchange) and not self.waits(ask)
        if said is None:
            return False
        if isinstance(ask, Page):
            return is_mine and heard.kind == "page" and _is_of(said, heard)
        if isinstance(ask, (Hello, Close)):
            return heard.kind == "done" or (heard.kind == "grant" and self._is_mine(said, heard))
        return is_answer and heard.sequence == said.sequence

    def _is_mine(self, said: Frame, grant: Frame) -> bool:
        """Returns whether a grant answers this hello, or this close, and no earlier one."""
        if grant.header.get("attempt") != self._about.get("attempt"):
            return False
        if said.kind == "hello":
            return bool(grant.header["hello"] == self._hellos)
        return grant.lease == said.lease and grant.sequence == said.sequence + 1

    def understood(self, heard: Frame, now: float) -> Grant | StepReply | Page | None:
        """Returns what an answer means for the worker's generator."""
        if heard.kind == "done":
            return None
        if heard.kind == "page":
            self.goes_on(now)
            return page_of(heard)
        self._push_metrics.wait_seconds += now - self._spoke_at
        self._heard_at = now
        self._version = heard.header["version"]
        if heard.kind != "grant":
            self._waited += now - self._spoke_at
            is_told = any(told is heard for told in self._told)
            news = self.news(now, () if is_told else (heard,))
            if heard.kind == "agreed" and self.peers.is_meeting:
                agreed = self.peers.agreed(news.messages[0])
                news = news._replace(messages=(agreed, *news.messages[1:]))
            return news
        grant = grant_of(heard)
        self.seat = replace(self.seat, phase=grant.phase, lease=grant.lease)
        self._sequence, self._push_metrics = grant.sequence, PushMetrics()
        self._granted_at, self._waited = now, 0.0
        self._forget()
        self.peers.seated(self.seat, grant.heal.version, heard.header)
        return grant

    def news(self, now: float, heard: tuple[Frame, ...] = ()) -> StepReply:
        """Returns what arrived since the last call."""
        told, self._told = (*self._told, *heard), []
        news = step_reply_of(told, self.seconds(now))
        return news._replace(messages=(*news.messages, *self.peers.news()))


def _is_of(said: Frame, heard: Frame) -> bool:
    """Returns whether a page answers this one."""
    asked = {**said.header, "asked": said.header["start"]}
    return all(heard.header.get(name) == asked[name] for name in ("version", "name", "asked"))
