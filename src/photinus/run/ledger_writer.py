"""Writes the coordinator's operations to the ledger."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from photinus.report.ledger import Ledger
from photinus.transport.frames import Frame

_ENTRIES = {
    "grant": "hello",
    "push": "push",
    "fetch": "fetch",
    "apply": "apply",
    "ack": "ack",
    "miss": "miss",
    "refuse": "miss",
    "duplicate": "push",
    "gap": "push",
    "fenced": "push",
    "back": "back",
    "rest": "rest",
}
"""The coordinator's operation -> its name in the ledger; any other is not entered."""
_COUNTED = {"apply": "applied", "miss": "missed", "refuse": "refused"}


class LedgerWriter:
    """Writes the ledger and counts what became of the pushes.

    Args:
        path: the ledger's file.
        run: the run's 16 bytes.

    Raises:
        UsageError: the file cannot be opened.
    """

    def __init__(self, path: Path, run: bytes) -> None:
        self._ledger, self._run, self._counts = Ledger(path), run.hex()[:8], Counter[str]()
        self._counts_by_phase = defaultdict[int, Counter[str]](Counter)

    def enter(self, operation: str, frame: Frame, extra: Mapping[str, Any]) -> None:
        """Enters one thing."""
        if operation not in _ENTRIES:
            return
        self._counts[operation] += 1
        phase, header = extra.get("phase", frame.phase), frame.header
        self._counts_by_phase[phase][operation] += 1
        fields: dict[str, Any] = {
            "run": self._run,
            "term": frame.term,
            "phase": phase,
            "slot": frame.slot,
            "lease": extra.get("granted", frame.lease),
            "sequence": extra.get("next", frame.sequence),
        }
        if operation in ("back", "rest"):
            fields["version"] = header.get("version", 0)
        elif operation == "grant":
            fields["position"] = extra["cursor"]
            fields |= {name: extra[name] for name in ("version", "lost") if name in extra}
        elif operation != "ack":
            fields |= {name: header.get(name, 0) for name in ("steps", "examples", "position")}
        if operation == "refuse" or extra.get("dropped"):
            fields["dropped"] = True
        if "fragment" in header:
            fields["fragment"] = list(header["fragment"])
        if operation == "apply":
            fields["version"] = extra["applied_in"]
        # a push counts once it is answered: its ack, or the entry of its miss, writes these, too
        self._ledger.write(_ENTRIES[operation], waits=operation in ("push", "apply"), **fields)

    @property
    def counts(self) -> dict[str, int]:
        """What became of the pushes: applied, missed, refused, duplicate, gap, fenced."""
        operations = ("apply", "miss", "refuse", "duplicate", "gap", "fenced")
        return {
            _COUNTED.get(operation, operation): self._counts[operation] for operation in operations
        }

    def refused(self, phase: int) -> int:
        """Returns how many pushes of a phase were refused or dropped, if none was applied."""
        counts = self._counts_by_phase.get(phase, Counter())
        return 0 if counts["apply"] else counts["refuse"] + counts["miss"]

    @property
    def lost(self) -> int:
        """Lines that could not be written."""
        return self._ledger.lost

    def close(self) -> None:
        """Closes the file."""
        self._ledger.close()
