"""Sends workers that exchange with each other the list of members, and calls them to meetings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from photinus.coordinator.leases import Leases, SeatState
from photinus.coordinator.phases import Phases
from photinus.transport.frames import Frame


class PeerDirectory:
    """The coordinator's part where no owner holds the parameters: members, budget, calls.

    Workers report how much they have published; it answers with what they missed. Its frames hold
    no parameters, and between two meetings no worker waits for it.
    """

    def __init__(self, phases: Phases, leases: Leases) -> None:
        self._phases, self._leases, self._owner = phases, leases, phases.owner
        self._members: frozenset[int] | None = None
        self._peers: list[list[Any]] = []
        self._edition = self._announced_edition = 0
        self._called_point = (-1, -1)
        self._reports: dict[int, Frame] = {}
        """Slot -> what it last reported of its publications."""

    def member_fields(self) -> Mapping[str, Any]:
        """Returns the members, with the lease and the address of each."""
        leases = self._leases
        if self._members is not leases.members:
            self._members, self._edition = leases.members, self._edition + 1
            seats = [leases[slot] for slot in sorted(self._members)]
            self._peers = [[seat.slot, seat.lease, seat.address] for seat in seats]
        return {"edition": self._edition, "peers": self._peers}

    def receive(self, frame: Frame) -> list[Frame]:
        """Takes in how much a worker has published since the last exact average."""
        seat, point = self._leases[frame.slot], self._owner.point_id
        if frame.phase != point[0]:
            return []
        if frame.header["version"] != point[1]:
            # it was left out of a meeting: the call to that one shows it that it must rejoin
            return [self._member_frame(seat, frame.header["version"])]
        self._reports[frame.slot] = frame
        is_behind = frame.header.get("edition", -1) < self.member_fields()["edition"]
        return [self._member_frame(seat)] if is_behind or self._called_point == point else []

    def repeated_calls(self, slots: Iterable[int]) -> list[Frame]:
        """Returns the calls to the open meeting again: `slots` answer with what they lack."""
        seats = [self._leases[slot] for slot in slots]
        answers = [seat.last_answer for seat in seats if seat.pending_push is not None]
        return [frame for frame in answers if frame is not None and frame.kind == "meet"]

    def notifications(self, *, is_wanted: bool) -> list[Frame]:
        """Returns what all members must be sent now: other members, or a call to a meeting.

        Args:
            is_wanted: whether a joiner or a checkpoint needs an agreed point.
        """
        if not self._phases.has_begun:
            return []
        self.member_fields()
        is_new_call = self._called_point != self._owner.point_id and self._is_due(
            is_wanted=is_wanted
        )
        if is_new_call:
            self._called_point = self._owner.point_id
        if self._announced_edition == self._edition and not is_new_call:
            return []
        self._announced_edition = self._edition
        return [self._member_frame(self._leases[slot]) for slot in sorted(self._leases.members)]

    def _is_due(self, *, is_wanted: bool) -> bool:
        """Returns whether a meeting is due: after m publications of each on average, or as wanted.

        Also when the budget is spent, or when a worker that is done with its rows waits for a
        meeting: slower ones, which are not called, would be late for it. Where pushes call the
        others: when one with steps waits for them.
        """
        phases, owner, leases = self._phases, self._owner, self._leases
        if owner.policy.calls_meetings:
            return any(s.pending_push and s.pending_push.header.get("steps") for s in leases)
        max_rounds = owner.policy.rounds_between
        if not max_rounds or not leases.members:
            return False
        reports = [
            frame
            for frame in self._reports.values()
            if (frame.phase, frame.header["version"]) == owner.point_id and leases.holds(frame)
        ]
        rounds = sum(report.sequence for report in reports)
        waiting = ((s, s.pending_push) for s in leases)
        is_done = any(p and p.header["position"] >= phases.end_of(seat) for seat, p in waiting)
        is_spent = phases.would_spend(sum(report.header.get("examples", 0) for report in reports))
        return is_wanted or is_done or is_spent or rounds >= max_rounds * len(leases.members)

    def _member_frame(self, seat: SeatState, missed_version: int | None = None) -> Frame:
        point = self._owner.point_id
        is_called = missed_version is not None or self._called_point == point
        version = point[1] if missed_version is None else missed_version
        header = {**self.member_fields(), "version": version, "call": is_called}
        return self._owner.frame("here", seat.slot, seat.lease, **header)
