"""The worker's client: runs its loop over a link, and reconnects when cut off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from photinus.core.errors import FencedError, LinkLostError
from photinus.core.parameters import Vector
from photinus.core.seeds import backoff
from photinus.protocol.background_thread import BackgroundThread
from photinus.protocol.early_trial import EarlyTrial
from photinus.protocol.headers import checked
from photinus.protocol.messages import Seat
from photinus.protocol.peer_session import (
    COORDINATOR,
    GIVE_UP_SECONDS,
    OTHERS,
    AddressedFrame,
)
from photinus.protocol.worker_session import WorkerSession
from photinus.strategies.base import Message
from photinus.training.requests import (
    Exchange,
    Grant,
    Hello,
    Measured,
    Page,
    Request,
    RowsRequest,
    StepDone,
    StepReply,
    WorkerGenerator,
    WorkerSnapshot,
)
from photinus.training.segments import EarlySending
from photinus.transport.frames import Frame
from photinus.transport.link import Link
from photinus.transport.mesh import Mesh
from photinus.transport.ring import Ring

_Note = Mapping[str, str]
_AGAIN_SECONDS = 2.0
"""How long a worker waits before it sends the same frame again."""
_MEET_SECONDS = 0.05
"""How long a worker with peers listens to one side before it looks at the other."""
_LISTEN_SECONDS = 0.5
"""How often a worker between exchanges looks whether it must stop."""


class Worker:
    """Holds a seat, and drives a worker's generator until the run is over.

    Args:
        life: the generator to drive (training.worker_loop.live).
        connect: makes a link to the coordinator; called again when a link is lost.
        seat: run, term and slot; phase and lease come with the grant.
        about: host and attempt, sent with every hello.
        seated: called with the seat at every new lease (the heartbeat follows it).
        notes: returns what was logged since the last call: level and text.
    """

    def __init__(
        self,
        life: WorkerGenerator,
        connect: Callable[[], Link],
        seat: Seat,
        *,
        about: Mapping[str, Any],
        seated: Callable[[Seat], None] = lambda seat: None,  # noqa: ARG005
        notes: Callable[[], Iterable[_Note]] = tuple,
    ) -> None:
        self._generator, self._connect, self._seated, self._notes = life, connect, seated, notes
        self._session, self._link = WorkerSession(seat, about), connect()
        self._mesh: Mesh | None = None
        self._ring: Ring | None = None
        self._early_trial: EarlyTrial | None = None
        self._background: BackgroundThread | None = None
        """Takes in what other workers send while a step is computed whose segments leave early."""
        self._inbox: list[Frame] = []
        self._listened_at = self._moved_at = time.monotonic()
        self._bytes_seen = 0
        """Bytes from the coordinator, when that was looked at last."""
        self._has_left = False
        self._open_request: Request | None = None
        """The last request of the generator, while it is not answered."""

    def join(self, mesh: Callable[[Link], Mesh]) -> None:
        """Lets other workers connect to this one; to be called before `run`.

        Args:
            mesh: opens the links to the others, given the one to the coordinator.
        """
        self._mesh = mesh(self._link)
        self._background = BackgroundThread(self._mesh.wait, lambda: self._look_at_mesh(0.0))
        self._session.listens_at(self._mesh.address)

    def sum_by(self, ring: Callable[[Link], Ring]) -> None:
        """Makes every mean in one sum of all, in clear; to be called before `run`.

        Args:
            ring: opens it, given the link to the coordinator.
        """
        self._ring = ring(self._link)
        self._session.listens_at(self._ring.address)

    def run(self) -> None:
        """Drives the generator to its end.

        Raises:
            RunFailedError: the coordinator stopped the run.
            LinkLostError: it could not be found for as long as `connect` tries.
        """
        while self.pump():
            pass

    def pump(self) -> bool:
        """Drives the generator until it has taken one more step; False at its end.

        The next call reports that step: until then the caller may take the step itself.
        """
        try:
            while True:
                self._open_request = self._next()
                if isinstance(self._open_request, StepDone):
                    return True
        except StopIteration:
            return False

    def finish(self) -> None:
        """Drives the generator to its end; a step that was not reported yet does not count."""
        self._open_request = None
        self.run()

    def _next(self) -> Request:
        """Answers the generator's last request; returns its next one."""
        request, self._open_request = self._open_request, None
        try:
            answer = None if request is None else self._answer_of(request)
        except FencedError as error:
            return self._generator.throw(error)
        return self._generator.send(answer)

    def leave(self) -> None:
        """Ends the run from here, from any thread: the coordinator is silent."""
        self._has_left = True
        self._link.close()  # which wakes a thread that sends or waits

    def silent_for(self, seconds: float) -> float:
        """Returns for how long no byte has arrived from the coordinator.

        Args:
            seconds: for how long no sign of life arrived on the heartbeat's link; from any thread.
        """
        return min(seconds, time.monotonic() - self._last_moved())

    def _last_moved(self) -> float:
        """Returns when it was last noticed that bytes had arrived, of a whole frame or not."""
        received = self._link.bytes_received
        if received != self._bytes_seen:
            self._bytes_seen, self._moved_at = received, time.monotonic()
        return self._moved_at

    def close(self) -> None:
        """Ends all links."""
        self._link.close()
        if self._background is not None:
            self._background.end()
        for links in (self._mesh, self._ring):
            if links is not None:
                links.close()

    def _answer_of(self, request: Request) -> Any:  # noqa: ANN401 - what this ask is answered by
        if self._background is not None:
            self._background.pause()
        if isinstance(request, StepDone):
            self._session.stepped(request)
            return self._listen(request)
        if isinstance(request, RowsRequest):
            return self._read(request)
        self._send_log()
        frame = self._frame_of(request)
        if frame is not None:
            self._send(frame)
        if isinstance(request, (WorkerSnapshot, Measured)):
            return StepReply()
        if not self._session.waits(request):
            return self._collect(request)
        answer = self._session.understood(self._wait_for_answer(request, frame), time.monotonic())
        self._seated(self._session.seat)
        return self._with_early_sending(request, answer)

    def _with_early_sending(self, request: Request, answer: Grant | StepReply | Page | None) -> Any:  # noqa: ANN401 - as `_done`
        """Returns an answer; a trial shows whether segments that leave early save time."""
        if isinstance(answer, Grant) and self._mesh is not None:
            self._early_trial = EarlyTrial(answer.heal.version, time.monotonic())
            return replace(answer, early=EarlySending(self._send_early, self._early_trial.pays))
        if (
            isinstance(request, Exchange)
            and request.turn.kind == "meet"
            and self._early_trial is not None
        ):
            self._early_trial.reached(self._session.version, time.monotonic())
        return answer

    def _frame_of(self, request: Request) -> Frame | None:
        """Returns the frame for the coordinator; sends to other workers what is for them."""
        if isinstance(request, Exchange) and request.turn.kind == "publish":
            assert request.message is not None
            self._post(self._session.peers.publish(request.message))
            return None
        return self._session.frame(request, time.monotonic())

    def _listen(self, request: StepDone) -> StepReply:
        """Returns the news between exchanges: the time, and now and then if the run was stopped."""
        now = time.monotonic()
        if self._mesh is not None or now - self._listened_at > _LISTEN_SECONDS:
            self._listened_at = now
            self._send_log()
            return self._collect(request)
        return self._session.step_reply(now)

    def _collect(self, request: Request) -> StepReply:
        """Returns what has arrived, without waiting."""
        self._take_in(request)
        self._look_at_mesh(0.0)
        return self._session.step_reply(time.monotonic())

    def _take_in(self, request: Request) -> None:
        """Takes in what the coordinator has sent while it is asked nothing."""
        for frame in self._receive(0.0):
            if not self._is_about_peers(frame):
                self._session.answers(request, None, frame)

    def _send_early(self, run: Message, size: int, merge: str) -> None:
        """Sends a run of segments in the middle of a step."""
        assert self._background is not None
        self._background.pause()
        self._post(self._session.peers.announce(run, size, merge))
        self._background.begin()

    def _read(self, request: RowsRequest) -> Vector | None:
        """Returns rows of a sharded table once their owners have sent them; answers theirs.

        None where an owner answers nothing for too long.
        """
        peers, asked_at = self._session.peers, time.monotonic()
        progress_at, unanswered = asked_at, -1
        self._session.frame(request, asked_at)
        self._post(peers.request_rows(request.rows))
        while (numbers := peers.requested_rows()) is None:
            if peers.unanswered != unanswered:
                progress_at, unanswered = time.monotonic(), peers.unanswered
            if time.monotonic() - progress_at > GIVE_UP_SECONDS:
                break
            self._look_at_mesh(_MEET_SECONDS)
            self._take_in(request)
            if time.monotonic() - asked_at > _AGAIN_SECONDS:
                asked_at = time.monotonic()
                self._post(peers.repeat_requests())
        self._session.goes_on(time.monotonic())
        return numbers

    # -- other workers ---------------------------------------------------------------------------

    def _post(self, frames: Sequence[AddressedFrame]) -> None:
        """Sends frames to other workers and to the coordinator."""
        for to, frame in frames:
            address = self._session.peers.addresses.get(to)
            if to == COORDINATOR:
                self._send(frame)
            elif self._mesh is not None and address:
                self._mesh.send(address, frame)

    def _is_about_peers(self, frame: Frame) -> bool:
        """Takes in a frame of the coordinator about the others; returns whether it was one."""
        if frame.kind not in OTHERS:
            return False
        if self._mesh is not None:
            self._session.peers.note_arriving(self._mesh.arriving())
        self._post(self._session.peers.hear_coordinator(frame))
        if self._mesh is not None:
            self._mesh.keep(self._session.peers.addresses.values())
        if self._ring is not None:
            self._sum_by_ring(self._ring)
        return True

    def _sum_by_ring(self, ring: Ring) -> None:
        """Sums with the members of the open meeting; if that fails the coordinator calls again."""
        peers = self._session.peers
        meeting = peers.open_sum
        if meeting is None:
            return
        with suppress(LinkLostError):
            self._post(peers.summed(ring.sum(peers.ring_members(meeting), meeting.weighed())))

    def _look_at_mesh(self, seconds: float) -> None:
        """Takes in what the others sent; sends again what a broken line may have lost."""
        if self._mesh is None:
            return
        peers = self._session.peers
        for frame in self._mesh.take(seconds):
            self._post(peers.hear_worker(checked(frame)))
        for address in self._mesh.broken():
            for slot in [s for s, at in peers.addresses.items() if at == address]:
                self._post(peers.resend(slot))

    @property
    def _wait_seconds(self) -> float:
        """How long to wait for the coordinator before looking at the mesh."""
        return 0.5 if self._mesh is None else _MEET_SECONDS

    def _send_log(self) -> None:
        """Sends what was logged since the last call."""
        for note in self._notes():
            self._send(self._session.seat.frame("note", note))

    def _wait_for_answer(self, request: Request, question: Frame | None) -> Frame:
        """Waits for the answer; sends the question again when the link was lost or silent."""
        asked_at, tries, slot = time.monotonic(), 0, self._session.seat.slot
        while True:
            is_meeting = self._mesh is not None and self._session.peers.is_waiting_for_peers
            self._look_at_mesh(_MEET_SECONDS if is_meeting else 0.0)
            frames = self._receive(0.0 if is_meeting else self._wait_seconds, question)
            for index, frame in enumerate(frames):
                if not self._is_about_peers(frame) and self._session.answers(
                    request, question, frame
                ):
                    self._inbox = frames[index + 1 :] + self._inbox
                    return frame
            # what is on its way is not asked for again
            silent_seconds = time.monotonic() - max(asked_at, self._last_moved())
            if isinstance(request, Hello) and silent_seconds > _AGAIN_SECONDS * backoff(
                tries, slot
            ):
                asked_at, tries = time.monotonic(), tries + 1
                assert question is not None
                self._send(question)

    def _receive(self, seconds: float, unanswered: Frame | None = None) -> list[Frame]:
        if self._inbox:
            frames, self._inbox = self._inbox, []
            return [checked(frame) for frame in frames]
        try:
            return [checked(frame) for frame in self._link.exchange(None, seconds)]
        except LinkLostError:
            self._reconnect()
            if unanswered is not None:
                self._send(unanswered)
            return []

    def _send(self, frame: Frame) -> None:
        while True:
            try:
                self._inbox += self._link.exchange(frame, 0.0)
            except LinkLostError:
                self._reconnect()
            else:
                return

    def _reconnect(self) -> None:
        """Makes the link again, for as long as `connect` tries; sends again what was under way."""
        while True:
            self._link.close()
            if self._has_left:
                do = "check that the driver runs, and that this machine reaches it"
                raise LinkLostError("the coordinator says nothing any more", do=do)
            self._link = self._connect()
            try:
                for frame in self._session.under_way.values():
                    self._inbox += self._link.exchange(frame, 0.0)
            except LinkLostError:
                continue
            return
