"""Reports each worker's speed, waiting and bytes about once a second."""

from __future__ import annotations

from dataclasses import dataclass

from photinus.core.events import WorkerReport
from photinus.transport.frames import Frame
from photinus.transport.link import Peer

_EVERY_SECONDS = 1.0


@dataclass(slots=True)
class _SlotCounts:
    """One slot's counts since its phase began, and what was reported of them."""

    phase: int
    reported_at: float
    steps: int = 0
    examples: int = 0
    reported_examples: int = 0
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    is_changed: bool = False


class WorkerReports:
    """Adds up what workers push.

    Pushes are counted when they arrive, an answer's bytes with the push after it.
    """

    def __init__(self) -> None:
        self._slots: dict[int, _SlotCounts] = {}
        self._counted_bytes: dict[int, tuple[Peer, int, int]] = {}
        """Slot -> its connection, and how much of that one's bytes is counted."""

    def add_push(self, push: Frame, peer: Peer, now: float) -> None:
        """Counts a push that is the slot's next."""
        counts, header = self._slots.get(push.slot), push.header
        if counts is None or counts.phase != push.phase:
            counts = self._slots[push.slot] = _SlotCounts(
                push.phase, now - header.get("seconds", 0.0)
            )
        counts.steps += header.get("steps_since", 0)
        counts.examples += header.get("examples_since", 0)
        counts.compute_seconds += header.get("compute_seconds", 0.0)
        counts.wait_seconds += header.get("wait_seconds", 0.0)
        up, down = self._new_bytes(push.slot, peer)
        counts.bytes_sent += up
        counts.bytes_received += down
        counts.is_changed = True

    def due(self, now: float) -> list[WorkerReport]:
        """Returns a report of each slot that pushed, at most one a second."""
        return [
            self._report(slot, counts, now)
            for slot, counts in sorted(self._slots.items())
            if counts.is_changed and now - counts.reported_at >= _EVERY_SECONDS
        ]

    def _report(self, slot: int, counts: _SlotCounts, now: float) -> WorkerReport:
        speed = (counts.examples - counts.reported_examples) / (now - counts.reported_at)
        counts.reported_at, counts.reported_examples = now, counts.examples
        counts.is_changed = False
        return WorkerReport(
            slot=slot,
            phase=counts.phase,
            steps=counts.steps,
            examples=counts.examples,
            examples_per_second=speed,
            compute_seconds=counts.compute_seconds,
            wait_seconds=counts.wait_seconds,
            bytes_sent=counts.bytes_sent,
            bytes_received=counts.bytes_received,
        )

    def _new_bytes(self, slot: int, peer: Peer) -> tuple[int, int]:
        """Returns what the worker sent and received since it was counted last."""
        up, down = peer.bytes_received, peer.bytes_sent
        last = self._counted_bytes.get(slot)
        self._counted_bytes[slot] = peer, up, down
        if last is None or last[0] is not peer:
            return up, down
        return up - last[1], down - last[2]
