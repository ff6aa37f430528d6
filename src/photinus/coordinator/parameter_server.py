"""Holds the agreed parameters of a phase, applies pushes, and tracks progress.

The policy decides on the answers; the server decides when a round waits no longer. Applying a push
and updating its count, cursor and version is one atomic step here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from photinus.coordinator.callbacks import Callbacks
from photinus.coordinator.leases import Leases, SeatState
from photinus.coordinator.reachability import FIRST_SECONDS, MissingPieces, Reachability, late_after
from photinus.core.errors import FrameError
from photinus.core.events import PeersMet, RoundClosed
from photinus.core.parameters import is_finite
from photinus.protocol.messages import Seat, message_of
from photinus.strategies.base import ALL, Message, Policy, Reply, part
from photinus.strategies.codecs import is_sound, numbers_in
from photinus.strategies.rounds import APART_EVERY
from photinus.strategies.rows import numbers_of
from photinus.strategies.sparse import to_sparse
from photinus.transport.frames import Frame


class PushResult(NamedTuple):
    """What a worker's push led to."""

    seat: SeatState
    push: Frame
    message: Message

    @property
    def is_applied(self) -> bool:
        """True when it was a push, and is in the agreed parameters."""
        return self.push.kind == "push" and self.message.kind in ("agreed", "ack")


class ParameterServer:
    """Holds the agreed parameters of the present phase by its policy.

    Args:
        leases: the seats of the run.
        callbacks: receive events and ledger lines.
    """

    phase: int
    policy: Policy

    def __init__(self, leases: Leases, callbacks: Callbacks) -> None:
        self._leases, self._callbacks = leases, callbacks

    def enter(self, phase: int, policy: Policy, point: Message, applied: int = 0) -> None:
        """Starts or continues a phase.

        Args:
            phase: its index.
            policy: the owner's half of the strategy.
            point: where it starts, or continues from.
            applied: examples that are in the point.
        """
        self.phase, self.policy, self.budget = phase, policy, 1
        self.reachability = Reachability()
        self.metrics: Mapping[str, float] = {}
        self.failure = ""
        """Why the workers cannot agree any more; empty while they can."""
        self._durations: list[float] = []
        self._fetched_bytes = 0
        """Bytes that were sent to workers by fetches since a push was applied."""
        self._peer_bytes: dict[int, int] = {}
        """Slot -> the bytes that it sent to other workers since the last round."""
        self._slot_distances: dict[int, float] = {}
        """Slot -> its distance from the point on which the open meeting agrees."""
        self.restore(point, applied)

    def begin(self, examples: int) -> None:
        """Begins to train: the phase ends after so many examples of all workers."""
        self.budget = max(1, examples)

    def restore(self, point: Message, applied: int) -> None:
        """Goes back to a point; what was waiting is dropped."""
        self._state = self.policy.init(point)
        vector = self.point.vector
        self.numbers = 0 if vector is None else vector.size
        """How many numbers the parameters have; 0 where the workers alone hold them."""
        self._opened_at: float | None = None
        """When the first push of this round arrived."""
        self._quorum_at: float | None = None
        """When its quorum had pushed."""
        self.reachability.open((), 0.0)
        self.version = self._start_version = point.version
        self.applied = applied

    def frame(self, kind: str, slot: int, lease: int, **header: Any) -> Frame:  # noqa: ANN401
        """Returns a frame of this phase to a slot's worker."""
        seat = Seat(self._callbacks.run, self._callbacks.term, self.phase, slot, lease)
        return seat.frame(kind, header)

    @property
    def point_id(self) -> tuple[int, int]:
        """Phase and version: the present point."""
        return self.phase, self.version

    @property
    def has_shards(self) -> bool:
        """True when each worker owns a part of the parameters that no other worker has."""
        return self.policy.shards > 0

    @property
    def point(self) -> Message:
        """The agreed point."""
        return self.policy.agreed(self._state)

    @property
    def progress(self) -> float:
        """Examples applied / budget, at most 1."""
        return min(1.0, self.applied / self.budget)

    @property
    def has_moved(self) -> bool:
        """True when something was agreed on since the start, or the last return to a snapshot."""
        return self.version > self._start_version

    def give_up(self) -> None:
        """Drops all pushes that wait: their rows are done again from another point."""
        for seat in self._leases:
            if seat.pending_push is not None and seat.pending_push.kind == "push":
                self._count(seat, seat.pending_push, Message("rejoin"))
            seat.pending_push = None

    def receive(self, seat: SeatState, frame: Frame, now: float) -> list[PushResult] | None:
        """Takes a push or a fetch in; None when its numbers are not finite.

        Raises:
            FrameError: it does not hold as many numbers as its fragment, or its rows, have.
        """
        message = message_of(frame, frame.kind)
        is_sound = frame.header.get("is_finite", True)
        if not is_sound or not _is_finite(message, self.numbers, self.policy.rows):
            return None
        seat.pending_push = frame
        members = self._leases.members if self.policy.has_rounds else self._leases.held_slots
        replies, self._state = self.policy.receive(seat.slot, message, members, self._state)
        answers = self._settle(replies, now)
        if seat.pending_push is not None and self._opened_at is None:
            self._opened_at = now
        return answers or (self.leave_out_the_late(now) if self.policy.quorum != 1 else [])

    def ready(self, frame: Frame, now: float) -> list[PushResult]:
        """Takes in that a member of the open meeting holds the whole mean."""
        message, members = message_of(frame), self._leases.members
        if message.version == self.version and message.slots == self.reachability.slots:
            self.reachability.take(frame.slot, MissingPieces(), now)
            self._peer_bytes[frame.slot] = frame.header.get("bytes", 0)
            if "apart" in frame.header:
                self._slot_distances[frame.slot] = frame.header["apart"]
        replies, self._state = self.policy.receive(frame.slot, message, members, self._state)
        return self._settle(replies, now)

    def close(self, now: float, without: frozenset[int] = frozenset()) -> list[PushResult]:
        """Closes the rounds that are whole for the members that are left."""
        members = self._leases.members - without
        if len(members) < self.policy.shards:
            self.reachability.open((), now)  # the meeting begins anew once all are here
        replies, self._state = self.policy.close(members, self._state)
        return self._settle(replies, now)

    def leave_out_the_late(self, now: float) -> list[PushResult]:
        """Closes a round without the members that kept it waiting too long."""
        if self._opened_at is None:
            return []
        if self.reachability.slots:
            return self._leave_out_the_unreached(now)
        members = self._leases.members
        late = frozenset(s for s in members if self._leases[s].pending_push is None)
        if not late:
            return []
        pushed_count, policy = len(members) - len(late), self.policy
        quorum_count = policy.quorum * len(members) - 1e-9 if policy.quorum < 1 else policy.quorum
        if policy.quorum != 1 and pushed_count >= quorum_count:
            self._quorum_at = now if self._quorum_at is None else self._quorum_at
            if now - self._quorum_at >= policy.grace_seconds:
                return self.close(now, late)
        seconds = late_after(self._durations)
        is_late = seconds is not None and now - self._opened_at >= seconds
        # a worker whose push, state or answer is under way is not late: it would send once more
        late = frozenset(s for s in late if is_late and not self._leases.is_moving(s, now))
        return self.close(now, late) if late else []

    def missing(self, frame: Frame, now: float) -> None:
        """A member of the open meeting reports what it has not received."""
        header = frame.header
        if header["version"] == self.version and tuple(header["slots"]) == self.reachability.slots:
            fields = {name: frozenset(header[name]) for name in ("parts", "wholes", "near")}
            self.reachability.take(frame.slot, MissingPieces(**fields), now)

    def slots_to_ask(self, now: float) -> list[int]:
        """Returns the members of a meeting that stands still: each is asked what it lacks."""
        return self.reachability.slots_to_ask(now, late_after(self._durations) or FIRST_SECONDS)

    def _leave_out_the_unreached(self, now: float) -> list[PushResult]:
        """Lets the others meet again when members of the open meeting cannot reach each other."""
        seconds = late_after(self._durations) or FIRST_SECONDS
        unreachable = self.reachability.unreached(now, seconds, have_met=self._leases.have_met)
        if unreachable is None:
            return []
        if unreachable.is_split:
            self.failure = unreachable.text
            return []
        self._opened_at = now
        if unreachable.text:
            self._callbacks.warn(unreachable.text)
        for slot in unreachable.slots:
            self._leases.exclude(self._leases[slot], now)
            if self.policy.shards:  # none continues without it: all go back
                self._leases.vacate(self._leases[slot])
        return self.close(now, unreachable.slots)

    def _settle(self, replies: Sequence[Reply], now: float) -> list[PushResult]:
        """Applies what was agreed, counts what was missed."""
        answers: list[PushResult] = []
        sparse_answers: dict[int, Message] = {}
        for reply in replies:
            seat = self._leases[reply.slot]
            push = seat.pending_push
            if push is None:
                continue
            if reply.message.kind != "meet":
                seat.pending_push = None
            elif push.kind == "push":
                self.reachability.open(reply.message.slots, now)
            answer = reply.message
            if "kept" in push.arrays:
                answer = sparse_answers.get(id(answer)) or sparse_answers.setdefault(
                    id(answer), to_sparse(answer)
                )
            answers.append(PushResult(seat, push, answer))
            if push.kind == "push" and seat.pending_push is None:
                self._count(seat, push, answer)
        agreed = [a for a in answers if a.is_applied]
        self._fetched_bytes += _bytes_down([a for a in answers if a.push.kind == "fetch"])
        if agreed:
            self._close_round(agreed, now)
        return answers

    def _count(self, seat: SeatState, push: Frame, answer: Message) -> None:
        position, is_missed = push.header["position"], answer.kind in ("heal", "rejoin")
        self._leases.counts["missed" if is_missed else "applied"] += 1
        if is_missed:
            is_dropped = not self.policy.has_rounds  # for good: its rows are not done again
            if is_dropped:
                seat.mark_lost(position, self.numbers)
            self._callbacks.enter("miss", push, {"dropped": is_dropped})
            return
        # not its examples: with fragments the same ones are in several pushes
        self.applied += position - seat.position
        seat.advance(_fragment(push), position)
        self._callbacks.enter("apply", push, {"applied_in": answer.version})

    def _emit_publications(self, agreed: Sequence[PushResult]) -> None:
        """Emits what became of publications; those of lost workers are undone, and do not count."""
        headers = {a.seat.slot: a.push.header for a in agreed}
        origin_keys = {a.seat.slot: f"{a.seat.slot} {a.push.lease}" for a in agreed}
        published = taken = missing = 0
        for origin, counts in headers.items():
            for reader, sent in counts.get("sent", {}).items():
                # a worker that has left took nothing in
                read = headers.get(int(reader), {}).get("taken", {}).get(origin_keys[origin], 0)
                published, taken = published + sent, taken + read
                missing += max(0, sent - read)
        doubled = sum(counts.get("doubled", 0) for counts in headers.values())
        self._callbacks.emit(
            PeersMet(
                phase=self.phase,
                version=self.version,
                published=published,
                taken=taken,
                missing=missing,
                doubled=doubled,
            )
        )

    def _close_round(self, agreed: Sequence[PushResult], now: float) -> None:
        seconds = now - self._opened_at if self._opened_at is not None else 0.0
        self._durations = [*self._durations[-20:], seconds]
        self._opened_at = self._quorum_at = None
        self.reachability.open((), now)
        self._leases.have_met |= self.policy.is_peer_to_peer and len(agreed) > 1
        for answer in agreed:
            answer.seat.exclusions = 0
        self.version = max(a.message.version for a in agreed)
        headers = [a.push.header for a in agreed]
        worker_metrics = [
            (header.get("metrics", {}), header.get("examples", 0)) for header in headers
        ]
        self.metrics = {
            **(_mean_metrics(worker_metrics) or self.metrics),
            **self._spread_metrics(agreed),
        }
        if self.policy.rounds_between:
            self._emit_publications(agreed)
        self._callbacks.emit(
            RoundClosed(
                phase=self.phase,
                version=self.version,
                slots=tuple(sorted(a.seat.slot for a in agreed)),
                examples=self.applied,
                progress=self.progress,
                seconds=seconds,
                metrics=self.metrics,
                bytes_up=sum(a.push.size_bytes for a in agreed) + sum(self._peer_bytes.values()),
                bytes_down=_bytes_down(agreed) + self._fetched_bytes,
            )
        )
        self._fetched_bytes, self._peer_bytes, self._slot_distances = 0, {}, {}

    def _spread_metrics(self, agreed: Sequence[PushResult]) -> dict[str, float]:
        """Returns how far apart the workers were: the spread, as a share of the parameters' length.

        Measured in the first round and in each eighth; between them the last value stands. Where
        workers meet, each has sent its own distance from the agreed point.

        Where workers do not wait: how many versions old the point was that a push started from.
        """
        if not self.policy.has_rounds:
            staleness = [a.message.version - 1 - a.push.header["version"] for a in agreed]
            return {"staleness": sum(staleness) / len(staleness)}
        if self.policy.is_peer_to_peer:
            distances = [self._slot_distances.get(a.seat.slot, math.nan) for a in agreed]
            spread = math.sqrt(sum(d * d for d in distances) / len(distances))
            return {"consistency": spread} if len(distances) > 1 and math.isfinite(spread) else {}
        vector = self.point.vector
        if not self.policy.holds_parameters or vector is None or len(agreed) < 2:
            return {}
        if self.version % APART_EVERY and "consistency" in self.metrics:
            return {"consistency": self.metrics["consistency"]}
        spread = float(getattr(self._state, "apart", math.nan))  # seen while all was merged
        length = float(np.linalg.norm(part(vector, _fragment(agreed[0].push))))
        return {"consistency": spread / length} if length > 0 and math.isfinite(spread) else {}


def _is_finite(message: Message, numbers: int, width: int) -> bool:
    """Returns whether all numbers are finite, and checks their count; rows have `width` numbers."""
    if message.vector is not None and numbers:
        count, (start, stop) = numbers_in(message.codec, message.vector), message.fragment
        wanted = stop - start or numbers
        if message.rows is not None:
            wanted = numbers_of(message.rows, width, wanted).size
        if count != wanted:  # one number alone would be spread over all, in silence
            raise FrameError(f"a push must hold {wanted} numbers", got=count)
        if not is_sound(message.codec, message.vector):
            return False
    return message.floats is None or is_finite(message.floats)


def _fragment(push: Frame) -> tuple[int, int]:
    start, stop = push.header.get("fragment", ALL)
    return start, stop


def _bytes_down(answers: Sequence[PushResult]) -> int:
    messages = [a.message for a in answers]
    arrays = [array for m in messages for array in (m.vector, m.rows, m.kept)]
    return sum(array.nbytes for array in arrays if array is not None)


def _mean_metrics(worker_metrics: Sequence[tuple[Mapping[str, Any], int]]) -> dict[str, float]:
    """Returns each metric's mean over the examples of the workers that sent it."""
    sums: dict[str, float] = {}
    weights: dict[str, int] = {}
    for metrics, examples in worker_metrics:
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0.0) + float(value) * examples
            weights[name] = weights.get(name, 0) + examples
    return {name: total / weights[name] for name, total in sums.items() if weights[name]}
