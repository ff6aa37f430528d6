"""Finds which members of a meeting cannot reach each other, and leaves one out."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from photinus.core.errors import user_message
from photinus.core.seeds import reordered

LATE_SECONDS = 5.0
"""A worker that keeps the others waiting is late after this, or three median rounds."""
FIRST_SECONDS = 30.0
"""How long a meeting may stand still before three rounds have shown how long one takes."""


def late_after(durations: list[float]) -> float | None:
    """Returns after how many seconds a worker is late; None while that is not known."""
    return max(LATE_SECONDS, 3 * median(durations)) if len(durations) >= 3 else None


class MissingPieces(NamedTuple):
    """What one member of a meeting still waits for."""

    parts: frozenset[int] = frozenset()
    """The members whose part of the vector has not arrived."""
    wholes: frozenset[int] = frozenset()
    """The members whose merged shard, or its norm, has not arrived."""
    near: frozenset[int] = frozenset()
    """The members from which anything arrived since the last report."""


class UnreachableMember(NamedTuple):
    """The members that are left out of a meeting, and why."""

    slots: frozenset[int]
    text: str = ""
    """The message for the user."""
    is_split: bool = False
    """No two members can reach each other, and none ever could."""


class Reachability:
    """The open meeting as the coordinator sees it: it asks the members what they miss.

    A missing part counts against the member that owes it; a missing merged shard only against a
    member that could merge it, so that two that cannot reach each other are distinguished from
    those that wait for the two.
    """

    def __init__(self) -> None:
        self.slots: tuple[int, ...] = ()
        self._missing: dict[int, MissingPieces] = {}
        self._waiting_since: dict[tuple[int, int], float] = {}
        """(x, y) -> since when x waits for something of y and receives nothing from it."""
        self._progress_at = self._asked_at = 0.0
        self._ask_count = 0

    def open(self, slots: tuple[int, ...], now: float) -> None:
        """A meeting opens, opens again without a member, or ends; `slots` are its members."""
        if slots != self.slots:
            self.slots, self._missing, self._waiting_since = slots, {}, {}
            self._progress_at = self._asked_at = now

    def take(self, slot: int, missing: MissingPieces, now: float) -> None:
        """Takes in what a member lacks: nothing, when it is ready."""
        if slot not in self.slots:
            return
        last_missing = self._missing.get(slot)
        if last_missing is None or last_missing[:2] != missing[:2]:
            self._progress_at = now
        self._missing[slot] = missing
        for other in self.slots:
            if other not in missing.parts | missing.wholes:
                self._waiting_since.pop((slot, other), None)
            elif other in missing.near:
                self._waiting_since[slot, other] = now
            else:
                self._waiting_since.setdefault((slot, other), now)

    def slots_to_ask(self, now: float, seconds: float) -> list[int]:
        """Returns the slots to ask now what they lack: at least ten times until they are late."""
        if now - self._asked_at < min(1.0, seconds / 10):
            return []
        self._asked_at, self._ask_count = now, self._ask_count + 1
        incomplete = [s for s in self.slots if s not in self._missing or any(self._missing[s][:2])]
        return reordered(incomplete, self._ask_count)

    def unreached(self, now: float, seconds: float, *, have_met: bool) -> UnreachableMember | None:
        """Returns which member is left out, once the meeting has stood still for so long.

        Where no two reach each other: all but the lowest slot if workers `have_met` before, so
        that one continues until the network is mended; else none, for their ports are closed.
        """
        silent = frozenset(self.slots) - self._missing.keys()
        idle_seconds = now - self._progress_at
        if not self._missing or idle_seconds < (2 * seconds if silent else seconds):
            return None
        if silent:  # it is alive, but does nothing: late, as in a round
            return UnreachableMember(silent)
        pairs = self._pairs(now - seconds)
        missed_counts = {y: sum(y == slot for _, slot in pairs) for _, y in pairs}
        if not missed_counts:
            return None
        worst = max(missed_counts, key=lambda slot: (missed_counts[slot], slot))
        other = min(x for x, y in pairs if y == worst)
        cut_pairs = {frozenset(pair) for pair in pairs}
        count = len(self.slots)
        if len(cut_pairs) == count * (count - 1) // 2:
            if not have_met:
                return UnreachableMember(frozenset(), _split_text(self.slots), is_split=True)
            if count > 2:
                return UnreachableMember(frozenset(self.slots[1:]), _all_left_out_text(self.slots))
        return UnreachableMember(frozenset({worst}), _unreached_text(other, worst, idle_seconds))

    def _pairs(self, before: float) -> set[tuple[int, int]]:
        """Returns (x, y) where x has waited since before a time for what y could have sent."""
        mergers = {slot for slot, missing in self._missing.items() if not missing.parts}
        overdue = {pair for pair, since in self._waiting_since.items() if since <= before}
        return {(x, y) for x, y in overdue if y in mergers or y in self._missing[x].parts}


_DO = "open the workers' ports to each other, or take a recipe with one owner"


def _unreached_text(first: int, second: int, seconds: float) -> str:
    wrong = f"workers {first} and {second} could not reach each other for {seconds:.0f} s"
    then = f"worker {second} is left out of this round, and is brought up to date"
    return user_message(wrong, then=then, do=_DO)


def _all_left_out_text(slots: tuple[int, ...]) -> str:
    wrong = f"no two of the workers {_slot_list(slots)} can reach each other any more"
    return user_message(
        wrong, then=f"all but worker {slots[0]} are left out, and are brought up to date", do=_DO
    )


def _slot_list(slots: tuple[int, ...]) -> str:
    return ", ".join(str(slot) for slot in slots)


def _split_text(slots: tuple[int, ...]) -> str:
    wrong = f"no two of the workers {_slot_list(slots)} can reach each other, so none agree"
    return user_message(wrong, do=_DO)
