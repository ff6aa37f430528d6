"""The ledger of pushes, and the audit that proves each was applied exactly once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from photinus.core.errors import UsageError
from photinus.report.json_lines import Lines, read_lines

OPERATIONS = ("hello", "push", "fetch", "apply", "miss", "ack", "back", "rest")
"""hello: a lease was granted, `sequence` is the next one wanted, rows begin at `position`; push:
one arrived, perhaps not for the first time; apply: it is in the agreed point of `version`; miss: it
will never be, since its round was over or its numbers were not finite; fetch: a number that only
asks for the agreed point; ack: the worker was answered that it is applied; back: all who knew the
agreed point were lost, and the phase went back to an older `version`; rest: the phase goes over
the rest of the rows of the one before. The first hello of a term names the `version`
that the term resumed from: newer ones of older terms are undone. A hello's `lost` examples of the
worker before it are in some fragments of the parameters only."""

_Entry = dict[str, Any]
_Key = tuple[Any, ...]


class Ledger:
    """Appends entries to `ledger.jsonl`, from any thread.

    Fields of an entry: op, run, term, phase, slot, lease, sequence, version, steps, examples,
    position; what does not apply is left out.

    Raises:
        UsageError: the file cannot be opened.
    """

    def __init__(self, path: Path | str) -> None:
        self._lines = Lines(path)

    def write(self, op: str, *, waits: bool = False, **fields: object) -> None:
        """Appends one entry.

        Args:
            op: one of `OPERATIONS`.
            waits: whether it is written together with the next one that does not wait.
            fields: of the entry.

        Raises:
            UsageError: `op` is none of `OPERATIONS`.
        """
        if op not in OPERATIONS:
            raise UsageError(f"an entry's op must be one of {', '.join(OPERATIONS)}", got=op)
        self._lines.write({"op": op, **fields}, waits=waits)

    @property
    def lost(self) -> int:
        """Entries that could not be written: the audit cannot hold then."""
        return self._lines.lost

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()


@dataclass(slots=True)
class AuditResult:
    """What the audit counted, and every line that breaks a rule."""

    pushed: int = 0
    applied: int = 0
    acknowledged: int = 0
    missed: int = 0
    """Pushes that arrived too late for their round, or were not finite: never applied."""
    duplicates: int = 0
    """Pushes that arrived again after they were applied."""
    fenced: int = 0
    """Pushes that arrived under a lease that had ended."""
    undone: int = 0
    """Pushes whose effect was given up, and whose rows were done again: a new term resumed from an
    older checkpoint, or all workers that knew the agreed point were lost."""
    partly: int = 0
    """Examples of lost workers that are in some fragments of the parameters, and not in others."""
    leases: int = 0
    offences: list[str] = field(default_factory=list)

    @property
    def held(self) -> int:
        """Pushes that the model holds: what was applied and not undone."""
        return self.applied - self.undone

    @property
    def is_exact(self) -> bool:
        """True when every acknowledged push was applied exactly once or counted as undone."""
        return not self.offences

    def __str__(self) -> str:
        counted = (
            f"{self.applied} applied, {self.acknowledged} acknowledged, "
            f"{self.duplicates} duplicates, {self.fenced} fenced, {self.leases} leases"
        )
        counted += f", {self.undone} undone" if self.undone else ""
        counted += f", {self.partly} examples in some fragments only" if self.partly else ""
        verdict = "each exactly once" if self.is_exact else f"{len(self.offences)} offences"
        return f"{counted}: {verdict}"


class _Progress:
    """What one phase of a run holds, over all terms: it can be rolled back to a version."""

    def __init__(self) -> None:
        self.version = 0
        self.start_phase: _Progress | None = None
        """Of the start by gradients whose rest this is."""
        self._pushes: list[tuple[int, int, int, bool]] = []
        """(version, slot, position, whether it was applied or dropped), in order."""
        self._applied: dict[int, int] = {}
        self._furthest: dict[int, int] = {}

    def add(self, version: int, slot: int, position: int, *, is_applied: bool) -> None:
        """Adds a push that was applied in this version, or dropped while it was the newest."""
        self._pushes.append((version, slot, position, is_applied))
        self.version = version
        self._reach(slot, position, is_applied=is_applied)

    def _reach(self, slot: int, position: int, *, is_applied: bool) -> None:
        self._furthest[slot] = max(position, self._furthest.get(slot, 0))
        if is_applied:
            self._applied[slot] = max(position, self._applied.get(slot, 0))

    def applied(self, slot: int) -> int:
        """Returns up to which position a slot's rows are in the model."""
        start_position = self.start_phase.applied(slot) if self.start_phase else 0
        return self._applied.get(slot, start_position)

    def furthest(self, slot: int, version: int | None = None) -> int:
        """Returns how far a slot's rows are applied or dropped, up to a version."""
        start_position = self.start_phase.furthest(slot) if self.start_phase else 0
        if version is None:
            return self._furthest.get(slot, start_position)
        return max(
            (p for v, s, p, _ in self._pushes if s == slot and v <= version), default=start_position
        )

    def roll_back(self, version: int) -> int:
        """Forgets what is newer than a version; returns how many pushes are undone by it."""
        remaining = [push for push in self._pushes if push[0] <= version]
        undone = sum(push[3] for push in self._pushes) - sum(push[3] for push in remaining)
        self._pushes, self.version = remaining, version
        self._applied, self._furthest = {}, {}
        for _, slot, position, is_applied in remaining:
            self._reach(slot, position, is_applied=is_applied)
        return undone


class _Auditor:
    """Reads entries in order. A push is known by (run, term, phase, slot, sequence)."""

    def __init__(self) -> None:
        self.result = AuditResult()
        self._line_number = 0
        self._pushed: set[_Key] = set()
        self._applied: Counter[_Key] = Counter()
        self._acknowledged: dict[_Key, int] = {}
        self._next_sequence: dict[_Key, int] = {}
        self._newest_lease: dict[_Key, int] = {}
        self._last_version: dict[_Key, int] = {}
        self._last_position: dict[_Key, int] = {}
        self._reached: dict[_Key, int] = {}
        """How far a seat's rows are applied."""
        self._dropped: dict[_Key, set[int]] = {}
        """How far rows reached that were dropped since then: those are not done again."""
        self._progress: dict[_Key, dict[int, _Progress]] = {}
        """(run,) -> phase -> what it holds."""
        self._term: dict[_Key, int] = {}
        """(run,) -> the newest term that is known to have begun."""
        self._unchecked_starts: dict[_Key, dict[int, tuple[int, int]]] = {}
        """(run, term, phase) -> slot -> where its rows begin, and its line: of terms that do not
        name the version they resumed from."""
        self._handlers = {
            "hello": self._hello,
            "push": self._push,
            "apply": self._apply,
            "miss": self._miss,
            "fetch": self._fetch,
            "ack": self._ack,
            "back": self._back,
            "rest": self._rest,
        }

    def read(self, entry: _Entry | None) -> None:
        self._line_number += 1
        if entry is None or entry.get("op") not in OPERATIONS:
            self._offence("is no entry")
        else:
            self._handlers[entry["op"]](entry)

    def close(self) -> AuditResult:
        """Adds what is known only at the end."""
        for key, number in self._acknowledged.items():
            if not self._applied[key]:
                self._line_number = number
                self._offence(f"acknowledged but never applied: {_describe_push(key)}")
        self.result.acknowledged = len(self._acknowledged)
        return self.result

    def _offence(self, text: str) -> None:
        self.result.offences.append(f"line {self._line_number}: {text}")

    def _hello(self, entry: _Entry) -> None:
        seat, lease = _key(entry, "run", "term", "slot"), entry.get("lease", 0)
        self.result.leases += 1
        self.result.partly += entry.get("lost", 0)
        if lease <= self._newest_lease.get(seat, -1):
            self._offence(f"lease {lease} of slot {entry.get('slot')} is not above the one before")
        self._newest_lease[seat] = max(lease, self._newest_lease.get(seat, -1))
        if "sequence" in entry:
            slot_key = _key(entry, "run", "term", "phase", "slot")
            self._next_sequence.setdefault(slot_key, entry["sequence"])
        is_first = entry.get("term", 0) > self._term.get(_key(entry, "run"), -1)
        if is_first and "version" in entry:
            self._resume(entry, entry["version"])
        if "position" in entry:
            self._check_continuation(entry, is_first=is_first)

    def _check_continuation(self, entry: _Entry, *, is_first: bool) -> None:
        """Checks that rows of a seat continue where an earlier lease or term left them."""
        start, slot = entry["position"], entry.get("slot", 0)
        progress, slot_key = self._phase(entry), _key(entry, "run", "term", "phase", "slot")
        if start > (processed := progress.furthest(slot)):
            self._offence(f"rows skipped: slot {slot} continues from {start}, done are {processed}")
        elif "version" not in entry:
            if is_first:
                self._unchecked_starts.setdefault(slot_key[:3], {}).setdefault(
                    slot, (start, self._line_number)
                )
        elif slot_key not in self._reached and start < (processed := progress.applied(slot)):
            self._offence(f"rows twice: slot {slot} continues from {start}, done are {processed}")
        self._reached.setdefault(slot_key, start)

    def _phase(self, entry: _Entry) -> _Progress:
        phases = self._progress.setdefault(_key(entry, "run"), {})
        return phases.setdefault(entry.get("phase", 0), _Progress())

    def _resume(self, entry: _Entry, version: int) -> None:
        """A term begins at a version: what older terms have beyond it is in no model."""
        run, phase = _key(entry, "run"), entry.get("phase", 0)
        self._term[run] = entry.get("term", 0)
        for number, progress in self._progress.get(run, {}).items():
            if number >= phase:
                self.result.undone += progress.roll_back(version if number == phase else 0)

    def _infer_version(self, entry: _Entry) -> None:
        """Infers the version of a term that names none: its first push is the next one.

        Units of work have neither examples nor a version to resume from.
        """
        run, term = _key(entry, "run"), entry.get("term", 0)
        if term <= self._term.get(run, -1) or not entry.get("examples"):
            return
        progress, version = self._phase(entry), entry.get("version", 0)
        starts = self._unchecked_starts.pop(_key(entry, "run", "term", "phase"), {})
        for slot, (start, number) in starts.items():
            processed = progress.furthest(slot, version)
            if start > processed:
                text = f"rows skipped: slot {slot} continues from {start}, done are {processed}"
                self.result.offences.append(f"line {number}: {text}")
        self._resume(entry, version - 1)

    def _push(self, entry: _Entry) -> None:
        key, lease = _identity(entry), entry.get("lease", 0)
        current_lease = self._newest_lease.get(_key(entry, "run", "term", "slot"), lease)
        self.result.pushed += 1
        self.result.duplicates += self._applied[key] > 0
        # a round may apply it when the lease has ended; it must have arrived before that
        if lease == current_lease:
            self._pushed.add((*key, lease))
        else:
            self.result.fenced += 1

    def _apply(self, entry: _Entry) -> None:
        key = _identity(entry)
        self.result.applied += 1
        self._applied[key] += 1
        if self._applied[key] > 1:
            self._offence(f"applied {self._applied[key]} times: {_describe_push(key)}")
        elif (*key, entry.get("lease", 0)) not in self._pushed:
            self._offence(f"applied without a push under a lease that held: {_describe_push(key)}")
        else:
            self._check_order(entry)

    def _check_order(self, entry: _Entry) -> None:
        slot_key = _key(entry, "run", "term", "phase", "slot")
        sequence: int = entry.get("sequence", 0)
        expected = self._next_sequence.get(slot_key, sequence)
        if sequence != expected:
            self._offence(f"slot {entry.get('slot')}: sequence {sequence} after {expected - 1}")
        self._next_sequence[slot_key] = sequence + 1
        phase = _key(entry, "run", "term", "phase")
        self._infer_version(entry)
        for latest, key, name in (
            (self._last_version, phase, "version"),
            (self._last_position, slot_key, "position"),
        ):
            value = entry.get(name, latest.get(key, 0))
            if value < latest.get(key, 0):
                self._offence(f"{name} {value} after {latest[key]}")
            latest[key] = value
        self._record_applied(entry)
        self._check_rows(slot_key, entry)

    def _record_applied(self, entry: _Entry) -> None:
        if entry.get("term", 0) < self._term.get(_key(entry, "run"), 0):
            self.result.undone += 1  # by a coordinator that a newer one has replaced
            return
        version, position = entry.get("version", 0), entry.get("position", 0)
        self._phase(entry).add(version, entry.get("slot", 0), position, is_applied=True)

    def _check_rows(self, slot_key: _Key, entry: _Entry) -> None:
        """Checks the rows of a push, by its count and its end: they follow those of the one before.

        Pushes of fragments are not checked: several of them hold the same rows. What a push held
        that came too late is sent once more; what was dropped, being too stale or not finite, is
        not.
        """
        examples, position = entry.get("examples", 0), entry.get("position", 0)
        if not examples or "fragment" in entry:
            return
        start_phase = self._phase(entry).start_phase
        start_position = start_phase.furthest(entry.get("slot", 0)) if start_phase else None
        start, reached = position - examples, self._reached.get(slot_key, start_position)
        dropped = self._dropped.pop(slot_key, set())
        if reached is not None and start != reached and start not in dropped:
            problem = "rows twice" if start < reached else "rows skipped"
            self._offence(f"{problem}: slot {entry.get('slot')}, from {reached} to {start}")
        self._reached[slot_key] = position

    def _miss(self, entry: _Entry) -> None:
        if self._applied[_identity(entry)]:
            self._offence(f"applied and missed: {_describe_push(_identity(entry))}")
        self._fetch(entry)
        slot_key = _key(entry, "run", "term", "phase", "slot")
        if entry.get("dropped"):
            progress, position = self._phase(entry), entry.get("position", 0)
            progress.add(progress.version, entry.get("slot", 0), position, is_applied=False)
            self._dropped.setdefault(slot_key, set()).add(entry.get("position", 0))
        self.result.missed += 1

    def _fetch(self, entry: _Entry) -> None:
        slot_key = _key(entry, "run", "term", "phase", "slot")
        self._next_sequence[slot_key] = entry.get("sequence", 0) + 1

    def _back(self, entry: _Entry) -> None:
        """Versions and positions fall, once, to what is still known."""
        phase, version = _key(entry, "run", "term", "phase"), entry.get("version", 0)
        self.result.undone += self._phase(entry).roll_back(version)
        self._last_version[phase] = version
        self._last_position = {k: v for k, v in self._last_position.items() if k[:3] != phase}
        self._reached = {k: v for k, v in self._reached.items() if k[:3] != phase}

    def _rest(self, entry: _Entry) -> None:
        start_entry = {**entry, "phase": entry.get("phase", 0) - 1}
        self._phase(entry).start_phase = self._phase(start_entry)

    def _ack(self, entry: _Entry) -> None:
        self._acknowledged.setdefault(_identity(entry), self._line_number)


def _key(entry: _Entry, *names: str) -> _Key:
    return tuple(entry.get(name, 0) for name in names)


def _identity(entry: _Entry) -> _Key:
    return _key(entry, "run", "term", "phase", "slot", "sequence")


def _describe_push(key: _Key) -> str:
    _, term, phase, slot, sequence = key
    return f"term {term}, phase {phase}, slot {slot}, sequence {sequence}"


def audit(path: Path | str) -> AuditResult:
    """Checks a ledger: what was acknowledged is applied exactly once, in order, by one holder.

    - every acknowledged push was applied, none twice, none without having arrived
    - leases of a slot only rise, and what arrived under an older one is not applied
    - sequences have no gap; versions and positions never fall, except at an entry `back`: when all
      workers that knew the agreed point were lost
    - rows follow each other from push to push of a slot, also from a start by gradients to its
      rest: none counts twice, none is left out
    - a new term starts again from a checkpoint: what older terms applied after it is undone, and
      the rows continue where the checkpoint left them, none further

    Raises:
        DataError: the file cannot be read.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "ledger.jsonl"
        >>> ledger = Ledger(path)
        >>> for op in ("hello", "push", "apply", "apply", "ack"):
        ...     ledger.write(op, term=1, phase=0, slot=0, lease=1, sequence=0)
        >>> audit(path).offences
        ['line 4: applied 2 times: term 1, phase 0, slot 0, sequence 0']
    """
    auditor = _Auditor()
    for entry in read_lines(path):
        auditor.read(entry)
    return auditor.close()
