"""Finds which members of a meeting cannot reach each other, and leaves one out."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from photinus.core.errors import message
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
    """The members whose merged shard has not arrived."""
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
        self._lacks: dict[int, MissingPieces] = {}
        self._since: dict[tuple[int, int], float] = {}
        """(x, y) -> since when x waits for something of y and receives nothing from it."""
        self._moved = self._asked = 0.0
        self._asks = 0

    def opens(self, slots: tuple[int, ...], now: float) -> None:
        """A meeting opens, opens again without a member, or ends; `slots` are its members."""
        if slots != self.slots:
            self.slots, self._lacks, self._since = slots, {}, {}
            self._moved = self._asked = now

    def take(self, slot: int, lacks: MissingPieces, now: float) -> None:
        """Takes in what a member lacks: nothing, when it is ready."""
        if slot not in self.slots:
            return
        last = self._lacks.get(slot)
        if last is None or last[:2] != lacks[:2]:
            self._moved = now
        self._lacks[slot] = lacks
        for other in self.slots:
            if other not in lacks.parts | lacks.wholes:
                self._since.pop((slot, other), None)
            elif other in lacks.near:
                self._since[slot, other] = now
            else:
                self._since.setdefault((slot, other), now)

    def asks(self, now: float, seconds: float) -> list[int]:
        """Returns the slots to ask now what they lack: at least ten times until they are late."""
        if now - self._asked < min(1.0, seconds / 10):
            return []
        self._asked, self._asks = now, self._asks + 1
        open_ = [s for s in self.slots if s not in self._lacks or any(self._lacks[s][:2])]
        return reordered(open_, self._asks)

    def unreached(self, now: float, seconds: float, *, have_met: bool) -> UnreachableMember | None:
        """Returns which member is left out, once the meeting has stood still for so long.

        Where no two reach each other: all but the lowest slot if workers `have_met` before, so
        that one continues until the network is mended; else none, for their ports are closed.
        """
        silent = frozenset(self.slots) - self._lacks.keys()
        still = now - self._moved
        if not self._lacks or still < (2 * seconds if silent else seconds):
            return None
        if silent:  # it is alive, but does nothing: late, as in a round
            return UnreachableMember(silent)
        pairs = self._pairs(now - seconds)
        missed = {y: sum(y == slot for _, slot in pairs) for _, y in pairs}
        if not missed:
            return None
        worst = max(missed, key=lambda slot: (missed[slot], slot))
        other = min(x for x, y in pairs if y == worst)
        cut = {frozenset(pair) for pair in pairs}
        count = len(self.slots)
        if len(cut) == count * (count - 1) // 2:
            if not have_met:
                return UnreachableMember(frozenset(), _split(self.slots), is_split=True)
            if count > 2:
                return UnreachableMember(frozenset(self.slots[1:]), _alone(self.slots))
        return UnreachableMember(frozenset({worst}), _told(other, worst, still))

    def _pairs(self, before: float) -> set[tuple[int, int]]:
        """Returns (x, y) where x has waited since before a time for what y could have sent."""
        merged = {slot for slot, lacks in self._lacks.items() if not lacks.parts}
        long = {pair for pair, since in self._since.items() if since <= before}
        return {(x, y) for x, y in long if y in merged or y in self._lacks[x].parts}


_DO = "open the workers' ports to each other, or take a recipe with one owner"


def _told(one: int, other: int, seconds: float) -> str:
    wrong = f"workers {one} and {other} could not reach each other for {seconds:.0f} s"
    then = f"worker {other} is left out of this round, and is brought up to date"
    return message(wrong, then=then, do=_DO)


def _alone(slots: tuple[int, ...]) -> str:
    wrong = f"no two of the workers {_listed(slots)} can reach each other any more"
    return message(
        wrong, then=f"all but worker {slots[0]} are left out, and are brought up to date", do=_DO
    )


def _listed(slots: tuple[int, ...]) -> str:
    return ", ".join(str(slot) for slot in slots)


def _split(slots: tuple[int, ...]) -> str:
    wrong = f"no two of the workers {_listed(slots)} can reach each other, so none agree"
    return message(wrong, do=_DO)
