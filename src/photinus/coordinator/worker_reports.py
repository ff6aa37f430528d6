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
    told_at: float
    steps: int = 0
    examples: int = 0
    told_examples: int = 0
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    has_news: bool = False


class WorkerReports:
    """Adds up what workers push.

    Pushes are counted when they arrive, an answer's bytes with the push after it.
    """

    def __init__(self) -> None:
        self._slots: dict[int, _SlotCounts] = {}
        self._counted: dict[int, tuple[Peer, int, int]] = {}
        """Slot -> its connection, and how much of that one's bytes is counted."""

    def pushed(self, push: Frame, peer: Peer, now: float) -> None:
        """Counts a push that is the slot's next."""
        gauge, told = self._slots.get(push.slot), push.header
        if gauge is None or gauge.phase != push.phase:
            gauge = self._slots[push.slot] = _SlotCounts(push.phase, now - told.get("seconds", 0.0))
        gauge.steps += told.get("steps_since", 0)
        gauge.examples += told.get("examples_since", 0)
        gauge.compute_seconds += told.get("compute_seconds", 0.0)
        gauge.wait_seconds += told.get("wait_seconds", 0.0)
        up, down = self._bytes(push.slot, peer)
        gauge.bytes_sent, gauge.bytes_received = gauge.bytes_sent + up, gauge.bytes_received + down
        gauge.has_news = True

    def due(self, now: float) -> list[WorkerReport]:
        """Returns a report of each slot that pushed, at most one a second."""
        return [
            self._told(slot, gauge, now)
            for slot, gauge in sorted(self._slots.items())
            if gauge.has_news and now - gauge.told_at >= _EVERY_SECONDS
        ]

    def _told(self, slot: int, gauge: _SlotCounts, now: float) -> WorkerReport:
        speed = (gauge.examples - gauge.told_examples) / (now - gauge.told_at)
        gauge.told_at, gauge.told_examples, gauge.has_news = now, gauge.examples, False
        return WorkerReport(
            slot=slot,
            phase=gauge.phase,
            steps=gauge.steps,
            examples=gauge.examples,
            examples_per_second=speed,
            compute_seconds=gauge.compute_seconds,
            wait_seconds=gauge.wait_seconds,
            bytes_sent=gauge.bytes_sent,
            bytes_received=gauge.bytes_received,
        )

    def _bytes(self, slot: int, peer: Peer) -> tuple[int, int]:
        """Returns what the worker sent and received since it was counted last."""
        up, down = peer.bytes_received, peer.bytes_sent
        last = self._counted.get(slot)
        self._counted[slot] = peer, up, down
        if last is None or last[0] is not peer:
            return up, down
        return up - last[1], down - last[2]
