"""Workers, coordinator and links in virtual time: deterministic, with faults.

Models and gradients are real; only the time is virtual. The loop, the strategies, the leases and
the coordinator are those of every other engine.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.coordinator import Coordinator
from photinus.coordinator.phases import RunResult
from photinus.core.errors import FencedError, UsageError
from photinus.core.seeds import backoff
from photinus.core.threads import limit_threads
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.worker_bootstrap import reported_error
from photinus.protocol.messages import Seat
from photinus.protocol.peer_session import (
    COORDINATOR,
    GIVE_UP_SECONDS,
    OTHERS,
    PEERS,
    AddressedFrame,
)
from photinus.protocol.worker_session import WorkerSession
from photinus.training.plan import TrainingPlan
from photinus.training.requests import (
    Close,
    Exchange,
    Hello,
    Measured,
    Request,
    RowsRequest,
    StepDone,
    StepReply,
    WorkerGenerator,
    WorkerSnapshot,
)
from photinus.training.worker_loop import WorkerData
from photinus.transport.frames import Frame
from photinus.transport.mesh import is_same

TICK_SECONDS = 0.25
HEAD_BYTES = 256
"""The bytes of a frame beside its arrays."""


@dataclass(slots=True)
class _LinkDirection:
    """One direction of a worker's link to the network, with a line to each of its peers.

    Parameters pass one after the other. Other frames do not wait for those of other lines: packets
    of all lines take turns.
    """

    free_at: float = 0.0
    """When all parameters have passed."""
    lines: dict[int, float] = field(default_factory=dict)
    """Peer -> when the last frame of its line had passed: a line keeps its order."""

    def transmit(self, peer: int, frame: Frame, seconds: float, now: float) -> float:
        """Returns when a frame will have passed that takes so long alone."""
        start = max(now, self.lines.get(peer, 0.0))
        if frame.arrays and frame.kind != "meet":  # which holds a weight for each member
            start = max(start, self.free_at)
            self.free_at = start + seconds
        self.lines[peer] = start + seconds
        return start + seconds


@dataclass(eq=False)
class _Node:
    """One attempt of a worker: its generator, and what it waits for."""

    slot: int
    attempt: str
    generator: WorkerGenerator
    session: WorkerSession
    request: Request | None = None
    request_frame: Frame | None = None
    fencing_error: FencedError | None = None
    """Its seat is lost, which its generator gets between two requests."""
    is_dead: bool = False
    is_frozen: bool = False
    is_cut: bool = False
    unsent: list[Frame] = field(default_factory=list)
    """What it sent while it was cut off."""
    slowdown: float = 1.0
    up_rate: float = 0.0
    up: _LinkDirection = field(default_factory=_LinkDirection)
    down: _LinkDirection = field(default_factory=_LinkDirection)
    incoming: list[Frame] = field(default_factory=list)
    """Frames of others and of the coordinator that are on their way to it."""


class _Machine:
    """What can happen to one attempt of a worker, for `Hooks.simulated`."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.node: _Node

    @property
    def is_dead(self) -> bool:
        return self.node.is_dead

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._simulation.at(seconds, call)

    def noted(self, what: object) -> None:
        self._simulation.happened.append(what)

    def kill(self, back_seconds: float) -> None:
        self._simulation.kill_node(self.node, back_seconds)

    def freeze(self, seconds: float) -> None:
        self._simulation.freeze_node(self.node, seconds)

    def cut(self, seconds: float, *, is_silent: bool) -> None:
        self._simulation.cut_off(self.node, seconds, is_silent=is_silent)

    def slow(self, factor: float) -> None:
        self.node.slowdown = factor

    def slow_link(self, bytes_per_second: float) -> None:
        self.node.up_rate = min(self.node.up_rate, bytes_per_second)

    def copy(self) -> None:
        self._simulation.seat(self.node.slot)


class Simulation:
    """Runs a plan on invented machines.

    Args:
        plan: what to train, with how many workers.
        parts: one part of the data for each worker.
        cluster: speeds and faults.
        callbacks: receive events and cuts.

    Example:
        `Simulation(plan, parts, SimulatedCluster(step_seconds=(0.01, 0.04))).run()`
    """

    def __init__(
        self,
        plan: TrainingPlan,
        parts: Sequence[WorkerData],
        cluster: SimulatedCluster | None = None,
        callbacks: Callbacks | None = None,
        coordinator: Coordinator | None = None,
    ) -> None:
        if len(parts) != plan.workers:
            wrong = f"a simulation needs one part for each of {plan.workers} workers"
            raise UsageError(wrong, got=len(parts))
        self.now, self.bytes, self.messages, self.lost_among_workers = 0.0, 0, 0, 0
        self.plan, self.parts, self.cluster = plan, parts, cluster or SimulatedCluster()
        self.faults = self.cluster.faults.checked(plan.workers, is_real=False)
        self.down_rate = self.cluster.bytes_per_second
        self.up_rate = min(self.down_rate, plan.limits.bandwidth or self.down_rate)
        self.cpu_slowdown = max(1.0, plan.limits.threads / (plan.limits.cpu_share or math.inf))
        """How many times as long a step takes under its share of the processors."""
        self.happened: list[object] = []
        self.coordinator = coordinator or Coordinator(plan, callbacks)
        self.steps = [0] * plan.workers
        self.nodes: dict[int, _Node] = {}
        self.standbys: list[_Node] = []
        self._by_address: dict[str, _Node] = {}
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = self._attempts = 0
        self._cut: set[frozenset[int]] = set()
        for slot in range(plan.workers):
            after = self.faults.comes_after(slot, plan.workers)
            self.at(after, self.seat, slot) if after else self.seat(slot)
        self.at(TICK_SECONDS, self._tick)

    # -- faults, by name -------------------------------------------------------------------------

    def at(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401
        """Calls something `seconds` of virtual time from now."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + seconds, self._count, call, arguments))

    def seat(self, slot: int) -> None:
        """Starts a new attempt of a worker; one that is still alive continues beside it."""
        self._attempts += 1
        if slot in self.nodes and not self.nodes[slot].is_dead:
            self.standbys.append(self.nodes[slot])
        attempt, callbacks = f"a{self._attempts}", self.coordinator.callbacks
        about = {"attempt": attempt, "address": attempt}
        machine = _Machine(self)
        generator = self.faults.simulated(machine, self.plan, slot, self.parts[slot])
        seat = Seat(callbacks.run, callbacks.term, 0, slot)
        node = _Node(slot, attempt, generator, WorkerSession(seat, about), up_rate=self.up_rate)
        machine.node = node
        self.nodes[slot] = self._by_address[attempt] = node
        self.at(0, self._pump, node, None)

    def kill(self, slot: int, back_after: float | None = None) -> None:
        """Kills the worker: its connection closes, and Spark starts it again after a while."""
        self.kill_node(self.nodes[slot], back_after)

    def freeze(self, slot: int, seconds: float) -> None:
        """Stops the worker, its connection open; it continues later."""
        self.freeze_node(self.nodes[slot], seconds)

    def kill_node(self, node: _Node, back_after: float | None) -> None:
        """Kills one attempt, likewise."""
        if node.is_dead:
            return
        node.is_dead = True
        self._close_connection(node)
        if back_after is not None:
            self.at(back_after, self.seat, node.slot)

    def freeze_node(self, node: _Node, seconds: float) -> None:
        """Stops one attempt, likewise."""
        node.is_frozen = True
        self.at(seconds, self._unfreeze, node)

    def cut(self, one: int, other: int, mended_after: float | None = None) -> None:
        """Cuts the network between two workers; each still reaches the coordinator."""
        pair = frozenset((one, other))
        self._cut.add(pair)
        if mended_after is not None:
            self.at(mended_after, self._cut.discard, pair)

    def _close_connection(self, node: _Node) -> None:
        """Closes its connection, behind all that was sent on it."""
        free_at = node.up.lines.get(COORDINATOR, 0.0)
        delay = max(0.0, free_at - self.now) + self.cluster.latency_seconds
        lease = node.session.seat.lease
        self.at(delay, lambda: self.coordinator.leases.gone(node.slot, lease, self.now))

    def cut_off(self, node: _Node, seconds: float, *, is_silent: bool) -> None:
        """Closes its links, or silences them; what it sends waits until they are whole again."""
        node.is_cut = True
        if not is_silent:
            self._close_connection(node)
        self.at(seconds, self._reconnect, node)

    def _reconnect(self, node: _Node) -> None:
        """Makes the links again, and sends what was under way again."""
        unsent, node.unsent, node.is_cut = node.unsent, list[Frame](), False
        frames = [
            *node.session.under_way.values(),
            *([node.request_frame] if node.request_frame else []),
        ]
        frames += [frame for frame in unsent if all(frame is not other for other in frames)]
        for frame in frames if not node.is_dead else []:
            self._send(node, frame)
        for other in self.nodes.values():
            if other is not node and not other.is_dead:
                self._post(other, other.session.peers.resend(node.slot))
                self._post(node, node.session.peers.resend(other.slot))

    # -- running ---------------------------------------------------------------------------------

    def run(self, until: float = float("inf")) -> RunResult | None:
        """Continues until the run is over, or `until` in virtual seconds.

        Raises:
            RunFailedError: the run ended without a result.
            DataError: no worker has rows to train on.
        """
        with limit_threads(self.plan.limits.threads):
            while self._queue and self._queue[0][0] <= until and not self.coordinator.is_over:
                self.now, _, call, arguments = heapq.heappop(self._queue)
                call(*arguments)
                if self.coordinator.is_between_passes:
                    self._next_pass()
        if self.coordinator.failure:
            raise reported_error(self.coordinator.failure, self.coordinator.failure_kind)
        return self.coordinator.result

    def _next_pass(self) -> None:
        """Begins another pass, as the driver does where rows stream: all workers rejoin."""
        for node in [*self.nodes.values(), *self.standbys]:
            node.is_dead = True
        self.parts = [replace(part, passes=1) for part in self.parts]
        self.coordinator.next_pass(self.now)
        for slot in self.nodes:
            self.seat(slot)

    def _tick(self) -> None:
        for node in [*self.nodes.values(), *self.standbys]:
            if not (node.is_dead or node.is_frozen or node.is_cut):
                heartbeat = node.session.seat.frame("beat", {"attempt": node.attempt})
                self.at(self.cluster.latency_seconds, self._receive_at_coordinator, heartbeat)
                self._look_at_bytes(node)
        self.send_frames(self.coordinator.tick(self.now))
        self.at(TICK_SECONDS, self._tick)

    def _look_at_bytes(self, node: _Node) -> None:
        """Notes bytes of frames that are on their way, as the service of real links does."""
        leases, seat = self.coordinator.leases, node.session.seat
        is_sending, is_receiving = node.up.free_at > self.now, node.down.free_at > self.now
        if self.nodes[node.slot] is not node:
            return
        if is_sending:
            leases.sent_bytes(node.slot, seat.lease, self.now)
        if is_sending or is_receiving:
            leases.moved(node.slot, self.now)

    def _pump(self, node: _Node, answer: Any, fencing_error: FencedError | None = None) -> None:  # noqa: ANN401
        """Drives a worker's generator until it has to wait."""
        while not node.is_dead:
            if node.is_frozen:
                return self.at(TICK_SECONDS, self._pump, node, answer, fencing_error)
            try:
                request = (
                    node.generator.throw(fencing_error)
                    if fencing_error
                    else node.generator.send(answer)
                )
            except StopIteration:
                node.is_dead = True
                return None
            answer = fencing_error = None
            if isinstance(request, StepDone):
                self.steps[node.slot] += 1
                node.session.stepped(request)
                batch = self.plan.phases[node.session.seat.phase].config.batch_size
                batch_fraction = request.examples * self.plan.workers / batch
                seconds = (
                    self.cluster.step(node.slot) * max(1.0, batch_fraction) * self.cpu_slowdown
                )
                return self.at(seconds * node.slowdown, self._stepped, node)
            frame = self._coordinator_frame(node, request)
            is_report = isinstance(request, (WorkerSnapshot, Measured))
            is_waiting = not is_report and node.session.waits(request)
            if is_waiting:
                node.request, node.request_frame = request, frame
            if frame is not None:
                self._send_until_answered(node, frame)
            if is_waiting:
                return None
            answer = StepReply() if is_report else node.session.step_reply(self.now)
        return None

    def _coordinator_frame(self, node: _Node, request: Request) -> Frame | None:
        """Returns the frame for the coordinator; sends to other workers what is for them."""
        if isinstance(request, Exchange) and request.turn.kind == "publish":
            assert request.message is not None
            self._post(node, node.session.peers.publish(request.message))
            return None
        if isinstance(request, RowsRequest):
            self._post(node, node.session.peers.request_rows(request.rows))
            self.at(0.0, self._reads, node, request)
        return node.session.frame(request, self.now)

    def _reads(self, node: _Node, request: RowsRequest, tries: int = 0) -> None:
        """Has a worker ask for rows again and again until they are here, or it gives up."""
        self._resume_reader(node, is_over=tries * self.cluster.resend_seconds > GIVE_UP_SECONDS)
        if node.request is request and not node.is_dead:
            if tries:
                self._post(node, node.session.peers.repeat_requests())
            self.at(self.cluster.resend_seconds, self._reads, node, request, tries + 1)

    def _resume_reader(self, node: _Node, *, is_over: bool = False) -> None:
        """Continues a worker that waits for rows, once all of them are here, or none will come."""
        numbers = node.session.peers.requested_rows()
        is_done = numbers is not None or is_over
        if isinstance(node.request, RowsRequest) and is_done and not node.is_dead:
            node.request = None
            node.session.goes_on(self.now)
            self._pump(node, numbers)

    def _stepped(self, node: _Node) -> None:
        fencing_error, node.fencing_error = node.fencing_error, None
        self._pump(node, node.session.step_reply(self.now), fencing_error)

    def _post(self, node: _Node, outgoing: list[AddressedFrame]) -> None:
        """Sends a worker's frames to others, each over its own line."""
        for target, frame in outgoing:
            if target == COORDINATOR:
                self._send(node, frame)
                continue
            address = node.session.peers.addresses.get(target, "")
            other = self._by_address.get(address)
            incoming = [f for f in other.incoming if f.slot == node.slot] if other else []
            if any(is_same(frame, f) for f in incoming):
                continue  # as a line of a mesh does
            departure = self._departure(node, target, frame)
            if self._is_lost() or node.is_cut or {node.slot, target} in self._cut:
                self.lost_among_workers += frame.kind == "publish"
                continue
            last_at = departure + self.cluster.latency_seconds
            seconds = (HEAD_BYTES + frame.size_bytes) / node.up_rate
            for _ in range(self.faults.copies(self.messages)):
                delay = last_at - seconds - self.now
                self.at(delay, self._arrive_from_peer, address, frame, last_at)
                if other is not None:
                    other.incoming.append(frame)

    def _arrive_from_peer(self, address: str, frame: Frame, last_at: float) -> None:
        """Takes in a frame of another worker, from its first byte on.

        Both links work at the same time: a frame takes as long as the slower one needs, not both.
        """
        node = self._by_address.get(address)
        if node is None or node.is_dead:
            return
        seconds = (HEAD_BYTES + frame.size_bytes) / self.down_rate
        read_at = max(last_at, node.down.transmit(frame.slot, frame, seconds, self.now))
        self.at(read_at - self.now, self._receive_from_peer, node, frame)

    def _receive_from_peer(self, node: _Node, frame: Frame) -> None:
        """Delivers a frame of another worker."""
        if node.is_frozen and not (node.is_dead or node.is_cut):
            return self.at(TICK_SECONDS, self._receive_from_peer, node, frame)
        node.incoming.remove(frame)
        if node.is_dead:
            return None
        if node.is_cut:
            self.lost_among_workers += frame.kind == "publish"
            return None
        self._post(node, node.session.peers.hear_worker(frame))
        if isinstance(node.request, RowsRequest):
            self._resume_reader(node)

    def _send_until_answered(self, node: _Node, frame: Frame, tries: int = 0) -> None:
        """Sends a frame again and again until it is answered."""
        under_way = node.session.under_way.get(frame.sequence)
        is_open = node.request_frame is frame or under_way is frame
        if node.is_dead or not (is_open or frame.kind == "state"):
            return
        # a frame that is on its way, or whose answer is, is not sent once more
        is_moving = tries and max(node.up.free_at, node.down.free_at) > self.now
        if not (node.is_frozen or is_moving):
            self._send(node, frame)
        if is_open and (self.faults.loses or isinstance(node.request, Hello)):
            wait_seconds = self.cluster.resend_seconds * backoff(tries, node.slot)
            busy_seconds = max(0.0, node.up.free_at - self.now)
            self.at(busy_seconds + wait_seconds, self._send_until_answered, node, frame, tries + 1)

    def _send(self, node: _Node, frame: Frame) -> None:
        if node.is_cut:
            node.unsent += [frame] if all(frame is not other for other in node.unsent) else []
            return
        # one line each way: what is sent first arrives first
        departure = self._departure(node, COORDINATOR, frame)
        if self._is_lost():
            return
        for _ in range(self.faults.copies(self.messages)):
            self.at(
                departure + self.cluster.latency_seconds - self.now,
                self._receive_at_coordinator,
                frame,
            )

    def _departure(self, node: _Node, target: int, frame: Frame) -> float:
        """Returns when a frame of a worker's has left it."""
        return node.up.transmit(target, frame, self._weigh(frame) / node.up_rate, self.now)

    def _weigh(self, frame: Frame) -> int:
        """Counts the bytes of a frame, and returns them."""
        weight = HEAD_BYTES + frame.size_bytes
        self.bytes += weight
        return weight

    def _is_lost(self) -> bool:
        self.messages += 1
        return self.faults.is_lost(self.messages)

    def _receive_at_coordinator(self, frame: Frame) -> None:
        self.send_frames(self.coordinator.hear(frame, self.now))

    def send_frames(self, outgoing: list[Frame]) -> None:
        """Sends the coordinator's frames."""
        for frame in outgoing:
            for node in (self.nodes[frame.slot], *self.standbys):
                if node.slot == frame.slot:
                    self._deliver(node, frame)

    def _deliver(self, node: _Node, frame: Frame) -> None:
        if any(frame is other for other in node.incoming):
            return  # asked for once more while it is on its way
        seconds = self._weigh(frame) / self.down_rate
        departure = node.down.transmit(COORDINATOR, frame, seconds, self.now)
        if not self._is_lost():
            delay = departure + self.cluster.latency_seconds - self.now
            node.incoming.append(frame)
            self.at(delay, self._receive_reply, node, frame)

    def _receive_reply(self, node: _Node, frame: Frame) -> None:
        if node.is_frozen and not (node.is_dead or node.is_cut):
            return self.at(TICK_SECONDS, self._receive_reply, node, frame)
        node.incoming.remove(frame)
        if node.is_dead or node.is_cut:
            return
        if frame.kind in OTHERS:
            arriving_slots = [f.slot for f in node.incoming if f.kind in PEERS]
            node.session.peers.note_arriving(arriving_slots)
        self._post(node, node.session.peers.hear_coordinator(frame))
        try:
            if not node.session.answers(node.request, node.request_frame, frame):
                return
        except FencedError as error:
            if node.request is None:
                node.fencing_error = error
                return
            node.request = node.request_frame = None
            return self._pump(node, None, error)
        assert node.request is not None
        is_grant = isinstance(node.request, (Hello, Close))
        node.request = node.request_frame = None
        answer = node.session.understood(frame, self.now)
        node.is_dead = is_grant and answer is None
        if not node.is_dead:
            self._pump(node, answer)

    def _unfreeze(self, node: _Node) -> None:
        node.is_frozen = False
