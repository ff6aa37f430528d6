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
        self._backup_leases: dict[tuple[int, int], int] = {}
        """(slot, version of its round) -> the lease under which it had the backup up to date."""
        self._outdated_slots = set[int]()
        """The slots whose shard is not up to date again, from the loss of its worker on."""
        self._progress_at = self._asked_at = 0.0
        self._reported_lacks: dict[int, Any] = {}
        """Slot -> what it last reported to lack: two that wait for each other report in turn."""

    def ready(self, frame: Frame) -> None:
        """Takes in that a member has all of a round, or of the shard that it restores."""
        version = frame.header["version"]
        self._outdated_slots.discard(frame.slot)
        self._backup_leases = {
            key: lease for key, lease in self._backup_leases.items() if key[1] >= version - 1
        }
        if frame.header.get("guards"):
            self._backup_leases[frame.slot, version] = frame.lease

    def lost_seats(self, holders: Iterable[int]) -> list[SeatState]:
        """Returns the seats whose workers are lost, of those that held a shard."""
        seats = [self._leases[slot] for slot in sorted(holders)]
        return [seat for seat in seats if not seat.is_live and seat.close_frame is None]

    def can_restore(self, lost_seats: list[SeatState], version: int) -> bool:
        """Returns whether the run continues where these are lost, at the point of a version.

        Only one can be restored at a time, and only while no worker is done. The shard of a worker
        that others could not reach is not restored.
        """
        if (
            len(lost_seats) != 1
            or lost_seats[0].exclusions
            or any(s.close_frame for s in self._leases)
        ):
            return False
        guard = self._leases[(lost_seats[0].slot + 1) % self._leases.workers]
        is_another_lost = bool(
            (self._outdated_slots | {s.slot for s in self.restoring}) - {lost_seats[0].slot}
        )
        is_up_to_date = self._backup_leases.get((guard.slot, version - 1)) == guard.lease
        return guard.is_live and is_up_to_date and not is_another_lost

    def restore(self, lost: SeatState) -> None:
        """Called when a successor is to restore a shard, which it loads before it asks the others.

        Until the shard is whole no other one is restored: each would wait for the other's rows.
        """
        self._outdated_slots.add(lost.slot)

    def forget(self) -> None:
        """Called when all workers go back to a checkpoint."""
        self._outdated_slots.clear()

    @property
    def restoring(self) -> list[SeatState]:
        """The seats whose workers restore their shards now."""
        pushes = ((seat, seat.pending_push) for seat in self._leases)
        return [seat for seat, push in pushes if push is not None and push.kind == "fetch"]

    def missing(self, frame: Frame, now: float) -> None:
        """Takes in what a worker that restores its shard still lacks."""
        lacks = frame.lease, frame.header["wholes"], frame.header.get("start")
        seat = self._leases[frame.slot]
        if seat in self.restoring and lacks != self._reported_lacks.get(frame.slot):
            self._reported_lacks[frame.slot], self._progress_at = lacks, now

    def slots_to_ask(self, now: float) -> list[int]:
        """Returns the slots to ask now for what they lack."""
        slots = [seat.slot for seat in self.restoring]
        if not slots:
            self._progress_at = now
        if now - self._asked_at < _ASK_SECONDS:
            return []
        self._asked_at = now
        return slots

    def is_stuck(self, now: float) -> bool:
        """Returns whether a worker that restores its shard has received nothing for long."""
        return bool(self.restoring) and now - self._progress_at >= FIRST_SECONDS
