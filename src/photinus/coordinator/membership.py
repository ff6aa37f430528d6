"""Membership: admits workers, grants leases, keeps standbys, brings joiners up to date."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from photinus.checkpoint.mapped import Kind
from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.lease_server import grant_seat
from photinus.coordinator.leases import Leases, SeatState
from photinus.coordinator.peer_directory import PeerDirectory
from photinus.coordinator.phases import Phases
from photinus.coordinator.sharded_table import kinds_of
from photinus.core.parameters import Vector
from photinus.protocol.messages import grant_to, snapshot_of
from photinus.strategies.base import Message
from photinus.training.requests import Grant
from photinus.training.strategy_state import is_kept
from photinus.transport.frames import Frame

InnerState = Mapping[str, Vector]
"""Of a worker's inner optimizer."""
FEW_CAME_SECONDS = 30.0


class Membership:
    """Seats workers at the agreed point.

    Where only the workers hold the parameters, a survivor (the healer) is asked for its state
    with the answer to its next push, and joiners wait for that.
    """

    def __init__(
        self,
        phases: Phases,
        peer_directory: PeerDirectory,
        leases: Leases,
        callbacks: Callbacks,
        now: float,
    ) -> None:
        self._phases, self._peer_directory = phases, peer_directory
        self._owner, self._snapshots = phases.owner, phases.snapshots
        self._leases, self._callbacks = leases, callbacks
        self._created_at, self._has_warned = now, False
        self._healer: SeatState | None = None

    @property
    def is_healing(self) -> bool:
        """True while a worker waits for a survivor's state."""
        return self._healer is not None

    def is_healer(self, seat: SeatState) -> bool:
        """Returns whether a seat's worker is asked for its state."""
        return self._healer is seat

    def hello(self, frame: Frame, now: float) -> list[Frame]:
        """Answers a worker that asks for a seat: with a grant, "busy", or nothing yet.

        Raises:
            DataError: all workers have come, and none has rows to train on.
        """
        seat = self._leases[frame.slot]
        if seat.is_live and seat.is_same_attempt(frame):
            return _repeated_grant(seat, frame)
        if seat.rows < 0:
            self._callbacks.enter("hello", frame, {})
        seat.rows, seat.pending_hello = frame.header["rows"], frame
        seat.labels = frame.header.get("labels", seat.labels)
        seat.is_streaming = "passes" in frame.header
        seat.span = tuple(frame.header.get("span", seat.span))
        if seat.is_live or seat.pending_push is not None or self._is_excluded(seat, now):
            return [self._owner.frame("busy", seat.slot, 0)]
        self._check_digest(seat)
        return (
            self._seat(seat, now) if self._phases.has_begun else self._begin_when_all_arrived(now)
        )

    def _check_digest(self, seat: SeatState) -> None:
        """Warns where the rows of a worker that takes a seat are others than those before."""
        assert seat.pending_hello is not None
        digest = seat.pending_hello.header.get("digest", "")
        if seat.digest and digest and seat.digest != digest:
            wrong = f"worker {seat.slot} reads other rows than before: some count twice, or never"
            do = "cache the DataFrame, or make its plan give the same rows each time"
            self._callbacks.warn(wrong, do=do)
        seat.digest = digest or seat.digest

    def fill_free_seats(self, now: float) -> list[Frame]:
        """Seats the workers that wait for a seat that is free now."""
        if not self._phases.has_begun or self._healer is not None:
            return []
        return [frame for seat in self._claimable_seats(now) for frame in self._seat(seat, now)]

    def _claimable_seats(self, now: float) -> list[SeatState]:
        """Returns the free seats that a worker waits for, and may take."""
        seats = self._leases
        free = [
            s
            for s in seats
            if s.pending_hello is not None and not s.is_live and s.pending_push is None
        ]
        return [seat for seat in free if not self._is_excluded(seat, now)]

    def _is_excluded(self, seat: SeatState, now: float) -> bool:
        """Returns whether others continue without it for a while: it yields or is out of reach."""
        return seat.is_yielding or (now < seat.returns_at and bool(self._leases.members))

    def worker_lost(self, seat: SeatState) -> None:
        """A lost worker can neither heal others nor complete a snapshot."""
        self._snapshots.drop_slot(seat.slot)
        if self._healer is seat:
            self._healer = None

    def heal(self, frame: Frame, now: float) -> list[Frame]:
        """Takes the healer's state: seats the workers that wait for what only workers hold."""
        healer, version = self._healer, frame.header["version"]
        if healer is None or healer.slot != frame.slot or version != self._owner.version:
            return []
        self._healer, state = None, snapshot_of(frame)
        point = self._snapshots.point_of(state)
        return [self._admit(seat, now, point, state.inner) for seat in self._claimable_seats(now)]

    def regrant(self, stateful_slots: frozenset[int] = frozenset()) -> list[Frame]:
        """Returns grants for all seated workers: of another phase, or of another point of it.

        Args:
            stateful_slots: with the agreed inner state, at the border of a start and its rest.
        """
        grants: list[Frame] = []
        for seat in self._leases:
            if seat.is_live:
                point, inner = self._snapshots.start_for(seat.slot)
                grants.append(
                    self._grant(seat, point, {} if seat.slot in stateful_slots else inner)
                )
        return grants

    def _begin_when_all_arrived(self, now: float) -> list[Frame]:
        seats = self._leases
        if any(s.rows < 0 for s in seats):
            return []
        asking_seats = [s for s in seats if s.pending_hello is not None]
        return self._phases.begin_or_release(now) or [
            frame for seat in asking_seats for frame in self._seat(seat, now)
        ]

    def _seat(self, seat: SeatState, now: float) -> list[Frame]:
        """Grants the seat, or asks a survivor for the parameters that only workers hold."""
        frames: list[Frame] = []
        self._check_digest(seat)
        if self._owner.has_shards and seat.close_frame is not None:
            return []  # its shard was sent with its close: nothing is left to do here
        if self._snapshots.is_in_workers_only and not self._owner.has_shards:
            if survivors := self._leases.members:
                self._healer = self._healer or self._leases[min(survivors)]
                return []
            if self._snapshots.saved is None:
                self._snapshots.fall_back()
                frames = self.regrant()
        return [*frames, self._admit(seat, now, *self._snapshots.start_for(seat.slot))]

    def warn_of_missing(self, now: float) -> None:
        """Warns the user, once, that workers are waited for."""
        if self._phases.has_begun or self._has_warned or now - self._created_at < FEW_CAME_SECONDS:
            return
        self._has_warned = True
        arrived = sum(1 for s in self._leases if s.rows >= 0)
        wrong = f"{arrived} of {self._leases.workers} workers came within {FEW_CAME_SECONDS:.0f} s"
        self._callbacks.warn(wrong, do=self._callbacks.advice())

    def _admit(self, seat: SeatState, now: float, point: Message, inner: InnerState) -> Frame:
        lost_before = seat.lost
        if not is_kept(inner):  # what it had done since its fragments' last turns is gone
            seat.mark_lost(seat.position, self._owner.numbers)
        # a worker that says hello does not know its phase; a new term enters what it resumed from
        phase, version = self._owner.point_id
        extra = {"lost": seat.lost - lost_before} if seat.lost > lost_before else {}
        grant_seat(seat, self._leases, self._callbacks, now, phase=phase, version=version, **extra)
        return self._grant(seat, point, inner)

    def _grant(self, seat: SeatState, point: Message, inner: InnerState) -> Frame:
        """Returns what a seat's worker is sent: the phase, and from where it continues."""
        owner, history, is_fresh = self._owner, self._snapshots.history, self._owner.version == 0
        shard: dict[str, Kind] = {}
        if owner.has_shards:
            shard = kinds_of(self._snapshots.load_shard(seat.slot))
        grant = Grant(
            phase=owner.phase,
            lease=seat.lease,
            sequence=seat.sequence,
            position=seat.position,
            budget=owner.budget,
            progress=owner.progress,
            rows=self._leases.rows,
            span=self._phases.span,
            sends_inner=seat is max(self._leases, key=lambda s: s.rows),
            # a worker that begins makes the outer state for itself
            heal=point._replace(outer=()) if is_fresh else point,
            is_fresh=is_fresh,
            inner=inner,
            history=history[seat.phases_held :],
            shard=shard,
            is_behind=owner.has_shards and owner.has_moved,
            is_idle=seat.is_quarantined or self._phases.is_spent,
        )
        header: dict[str, Any] = {"attempt": seat.attempt, "hello": seat.hello}
        if owner.policy.is_peer_to_peer:
            header |= self._peer_directory.member_fields()
        frame = owner.frame("grant", seat.slot, seat.lease, **header)
        seat.last_answer, seat.phases_held = grant_to(frame, grant), len(history)
        return seat.last_answer


def _repeated_grant(seat: SeatState, hello: Frame) -> list[Frame]:
    """A copy of the hello that got the seat gets the same grant, unless it was used already."""
    last_answer = seat.last_answer
    is_open = (
        last_answer is not None
        and last_answer.kind == "grant"
        and seat.hello == hello.header["hello"]
    )
    return [last_answer] if is_open and last_answer is not None else []
