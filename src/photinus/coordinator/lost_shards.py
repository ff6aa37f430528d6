"""Decides which lost shards of a table the next worker restores, and when that is given up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from photinus.coordinator.leases import Leases, SeatState
from photinus.coordinator.reachability import FIRST_SECONDS
from photinus.transport.frames import Frame

_ASK_SECONDS = 1.0
"""How often a worker that restores its shard is asked what it lacks."""


class LostShards:
    """Each worker keeps a backup of the previous one's shard: the rows of it that have moved.

    A worker reports with `ready` whether the backup is up to date once that round is agreed on.

    Args:
        leases: the seats, of which each holds a shard.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._guards: dict[tuple[int, int], int] = {}
        """(slot, version of its round) -> the lease under which it had the backup up to date."""
        self._behind = set[int]()
        """The slots whose shard is not up to date again, from the loss of its worker on."""
        self._since = self._asked = 0.0
        self._lacks: dict[int, Any] = {}
        """Slot -> what it last reported to lack: two that wait for each other report in turn."""

    def ready(self, frame: Frame) -> None:
        """Takes in that a member has all of a round, or of the shard that it restores."""
        version = frame.header["version"]
        self._behind.discard(frame.slot)
        self._guards = {at: lease for at, lease in self._guards.items() if at[1] >= version - 1}
        if frame.header.get("guards"):
            self._guards[frame.slot, version] = frame.lease

    def lost(self, holders: Iterable[int]) -> list[SeatState]:
        """Returns the seats whose workers are lost, of those that held a shard."""
        seats = [self._leases.seats[slot] for slot in sorted(holders)]
        return [seat for seat in seats if not seat.is_live and seat.closed is None]

    def can_restore(self, lost: list[SeatState], version: int) -> bool:
        """Returns whether the run continues where these are lost, at the point of a version.

        Only one can be restored at a time, and only while no worker is done. The shard of a worker
        that others could not reach is not restored.
        """
        seats = self._leases.seats
        if len(lost) != 1 or lost[0].exclusions or any(s.closed for s in seats.values()):
            return False
        guard = seats[(lost[0].slot + 1) % len(seats)]
        is_other = bool((self._behind | {s.slot for s in self.restoring}) - {lost[0].slot})
        is_up_to_date = self._guards.get((guard.slot, version - 1)) == guard.lease
        return guard.is_live and is_up_to_date and not is_other

    def restore(self, lost: SeatState) -> None:
        """Called when a successor is to restore a shard, which it loads before it asks the others.

        Until the shard is whole no other one is restored: each would wait for the other's rows.
        """
        self._behind.add(lost.slot)

    def forget(self) -> None:
        """Called when all workers go back to a checkpoint."""
        self._behind.clear()

    @property
    def restoring(self) -> list[SeatState]:
        """The seats whose workers restore their shards now."""
        pushes = ((seat, seat.waiting) for seat in self._leases.seats.values())
        return [seat for seat, push in pushes if push is not None and push.kind == "fetch"]

    def missing(self, frame: Frame, now: float) -> None:
        """Takes in what a worker that restores its shard still lacks."""
        lacks = frame.lease, frame.header["wholes"], frame.header.get("start")
        seat = self._leases.seats[frame.slot]
        if seat in self.restoring and lacks != self._lacks.get(frame.slot):
            self._lacks[frame.slot], self._since = lacks, now

    def asks(self, now: float) -> list[int]:
        """Returns the slots to ask now for what they lack."""
        slots = [seat.slot for seat in self.restoring]
        if not slots:
            self._since = now
        if now - self._asked < _ASK_SECONDS:
            return []
        self._asked = now
        return slots

    def is_stuck(self, now: float) -> bool:
        """Returns whether a worker that restores its shard has received nothing for long."""
        return bool(self.restoring) and now - self._since >= FIRST_SECONDS
