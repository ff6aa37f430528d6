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

_Line = dict[str, Any]
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

    def write(self, op: str, **fields: object) -> None:
        """Appends one entry.

        Raises:
            UsageError: `op` is none of `OPERATIONS`.
        """
        if op not in OPERATIONS:
            raise UsageError(f"an entry's op must be one of {', '.join(OPERATIONS)}", got=op)
        self._lines.write({"op": op, **fields})

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
        self.before: _Progress | None = None
        """Of the start by gradients whose rest this is."""
        self._done: list[tuple[int, int, int, bool]] = []
        """(version, slot, position, whether it was applied or dropped), in order."""
        self._applied: dict[int, int] = {}
        self._furthest: dict[int, int] = {}

    def add(self, version: int, slot: int, position: int, *, is_applied: bool) -> None:
        """Adds a push that was applied in this version, or dropped while it was the newest."""
        self._done.append((version, slot, position, is_applied))
        self.version = version
        self._reach(slot, position, is_applied=is_applied)

    def _reach(self, slot: int, position: int, *, is_applied: bool) -> None:
        self._furthest[slot] = max(position, self._furthest.get(slot, 0))
        if is_applied:
            self._applied[slot] = max(position, self._applied.get(slot, 0))

    def applied(self, slot: int) -> int:
        """Returns up to which position a slot's rows are in the model."""
        begun = self.before.applied(slot) if self.before else 0
        return self._applied.get(slot, begun)

    def furthest(self, slot: int, version: int | None = None) -> int:
        """Returns how far a slot's rows are applied or dropped, up to a version."""
        begun = self.before.furthest(slot) if self.before else 0
        if version is None:
            return self._furthest.get(slot, begun)
        return max((p for v, s, p, _ in self._done if s == slot and v <= version), default=begun)

    def roll_back(self, version: int) -> int:
        """Forgets what is newer than a version; returns how many pushes are undone by it."""
        kept = [done for done in self._done if done[0] <= version]
        undone = sum(done[3] for done in self._done) - sum(done[3] for done in kept)
        self._done, self.version = kept, version
        self._applied, self._furthest = {}, {}
        for _, slot, position, is_applied in kept:
            self._reach(slot, position, is_applied=is_applied)
        return undone


class _Auditor:
    """Reads entries in order. A push is known by (run, term, phase, slot, sequence)."""

    def __init__(self) -> None:
        self.result = AuditResult()
        self._number = 0
        self._pushed: set[_Key] = set()
        self._applied: Counter[_Key] = Counter()
        self._acknowledged: dict[_Key, int] = {}
        self._next: dict[_Key, int] = {}
        self._lease: dict[_Key, int] = {}
        self._version: dict[_Key, int] = {}
        self._position: dict[_Key, int] = {}
        self._reached: dict[_Key, int] = {}
        """How far a seat's rows are applied."""
        self._dropped: dict[_Key, set[int]] = {}
        """How far rows reached that were dropped since then: those are not done again."""
        self._progress: dict[_Key, dict[int, _Progress]] = {}
        """(run,) -> phase -> what it holds."""
        self._term: dict[_Key, int] = {}
        """(run,) -> the newest term that is known to have begun."""
        self._begins: dict[_Key, dict[int, tuple[int, int]]] = {}
        """(run, term, phase) -> slot -> where its rows begin, and its line: of terms that do not
        name the version they resumed from."""

    def read(self, entry: _Line | None) -> None:
        self._number += 1
        acts = {
            "hello": self._hello,
            "push": self._push,
            "apply": self._apply,
            "miss": self._miss,
            "fetch": self._fetch,
            "ack": self._ack,
            "back": self._back,
            "rest": self._rest,
        }
        if entry is None or entry.get("op") not in OPERATIONS:
            self._offence("is no entry")
        elif entry["op"] in acts:
            acts[entry["op"]](entry)

    def close(self) -> AuditResult:
        """Adds what is known only at the end."""
        for key, number in self._acknowledged.items():
            if not self._applied[key]:
                self._number = number
                self._offence(f"acknowledged but never applied: {_named(key)}")
        self.result.acknowledged = len(self._acknowledged)
        return self.result

    def _offence(self, text: str) -> None:
        self.result.offences.append(f"line {self._number}: {text}")

    def _hello(self, entry: _Line) -> None:
        seat, lease = _key(entry, "run", "term", "slot"), entry.get("lease", 0)
        self.result.leases += 1
        self.result.partly += entry.get("lost", 0)
        if lease <= self._lease.get(seat, -1):
            self._offence(f"lease {lease} of slot {entry.get('slot')} is not above the one before")
        self._lease[seat] = max(lease, self._lease.get(seat, -1))
        if "sequence" in entry:
            line = _key(entry, "run", "term", "phase", "slot")
            self._next.setdefault(line, entry["sequence"])
        is_first = entry.get("term", 0) > self._term.get(_key(entry, "run"), -1)
        if is_first and "version" in entry:
            self._resume(entry, entry["version"])
        if "position" in entry:
            self._goes_on(entry, is_first=is_first)

    def _goes_on(self, entry: _Line, *, is_first: bool) -> None:
        """Checks that rows of a seat continue where an earlier lease or term left them."""
        begins, slot = entry["position"], entry.get("slot", 0)
        progress, line = self._phase(entry), _key(entry, "run", "term", "phase", "slot")
        if begins > (done := progress.furthest(slot)):
            self._offence(f"rows skipped: slot {slot} continues from {begins}, done are {done}")
        elif "version" not in entry:
            if is_first:
                self._begins.setdefault(line[:3], {}).setdefault(slot, (begins, self._number))
        elif line not in self._reached and begins < (done := progress.applied(slot)):
            self._offence(f"rows twice: slot {slot} continues from {begins}, done are {done}")
        self._reached.setdefault(line, begins)

    def _phase(self, entry: _Line) -> _Progress:
        phases = self._progress.setdefault(_key(entry, "run"), {})
        return phases.setdefault(entry.get("phase", 0), _Progress())

    def _resume(self, entry: _Line, version: int) -> None:
        """A term begins at a version: what older terms have beyond it is in no model."""
        run, phase = _key(entry, "run"), entry.get("phase", 0)
        self._term[run] = entry.get("term", 0)
        for number, progress in self._progress.get(run, {}).items():
            if number >= phase:
                self.result.undone += progress.roll_back(version if number == phase else 0)

    def _infer(self, entry: _Line) -> None:
        """Infers the version of a term that names none: its first push is the next one.

        Units of work have neither examples nor a version to resume from.
        """
        run, term = _key(entry, "run"), entry.get("term", 0)
        if term <= self._term.get(run, -1) or not entry.get("examples"):
            return
        progress, version = self._phase(entry), entry.get("version", 0)
        begins = self._begins.pop(_key(entry, "run", "term", "phase"), {})
        for slot, (begin, number) in begins.items():
            done = progress.furthest(slot, version)
            if begin > done:
                text = f"rows skipped: slot {slot} continues from {begin}, done are {done}"
                self.result.offences.append(f"line {number}: {text}")
        self._resume(entry, version - 1)

    def _push(self, entry: _Line) -> None:
        key, lease = _identity(entry), entry.get("lease", 0)
        present = self._lease.get(_key(entry, "run", "term", "slot"), lease)
        self.result.pushed += 1
        self.result.duplicates += self._applied[key] > 0
        # a round may apply it when the lease has ended; it must have arrived before that
        if lease == present:
            self._pushed.add((*key, lease))
        else:
            self.result.fenced += 1

    def _apply(self, entry: _Line) -> None:
        key = _identity(entry)
        self.result.applied += 1
        self._applied[key] += 1
        if self._applied[key] > 1:
            self._offence(f"applied {self._applied[key]} times: {_named(key)}")
        elif (*key, entry.get("lease", 0)) not in self._pushed:
            self._offence(f"applied without a push under a lease that held: {_named(key)}")
        else:
            self._follow(entry)

    def _follow(self, entry: _Line) -> None:
        line = _key(entry, "run", "term", "phase", "slot")
        sequence: int = entry.get("sequence", 0)
        wanted = self._next.get(line, sequence)
        if sequence != wanted:
            self._offence(f"slot {entry.get('slot')}: sequence {sequence} after {wanted - 1}")
        self._next[line] = sequence + 1
        phase = _key(entry, "run", "term", "phase")
        self._infer(entry)
        for last, key, name in (
            (self._version, phase, "version"),
            (self._position, line, "position"),
        ):
            value = entry.get(name, last.get(key, 0))
            if value < last.get(key, 0):
                self._offence(f"{name} {value} after {last[key]}")
            last[key] = value
        self._hold(entry)
        self._count(line, entry)

    def _hold(self, entry: _Line) -> None:
        if entry.get("term", 0) < self._term.get(_key(entry, "run"), 0):
            self.result.undone += 1  # by a coordinator that a newer one has replaced
            return
        version, position = entry.get("version", 0), entry.get("position", 0)
        self._phase(entry).add(version, entry.get("slot", 0), position, is_applied=True)

    def _count(self, line: _Key, entry: _Line) -> None:
        """Checks the rows of a push, by its count and its end: they follow those of the one before.

        Pushes of fragments are not checked: several of them hold the same rows. What a push held
        that came too late is sent once more; what was dropped, being too stale or not finite, is
        not.
        """
        examples, position = entry.get("examples", 0), entry.get("position", 0)
        if not examples or "fragment" in entry:
            return
        start = self._phase(entry).before
        begun = start.furthest(entry.get("slot", 0)) if start else None
        begins, reached = position - examples, self._reached.get(line, begun)
        given_up = self._dropped.pop(line, set())
        if reached is not None and begins != reached and begins not in given_up:
            what = "rows twice" if begins < reached else "rows skipped"
            self._offence(f"{what}: slot {entry.get('slot')}, from {reached} to {begins}")
        self._reached[line] = position

    def _miss(self, entry: _Line) -> None:
        if self._applied[_identity(entry)]:
            self._offence(f"applied and missed: {_named(_identity(entry))}")
        self._fetch(entry)
        line = _key(entry, "run", "term", "phase", "slot")
        if entry.get("dropped"):
            progress, position = self._phase(entry), entry.get("position", 0)
            progress.add(progress.version, entry.get("slot", 0), position, is_applied=False)
            self._dropped.setdefault(line, set()).add(entry.get("position", 0))
        self.result.missed += 1

    def _fetch(self, entry: _Line) -> None:
        line = _key(entry, "run", "term", "phase", "slot")
        self._next[line] = entry.get("sequence", 0) + 1

    def _back(self, entry: _Line) -> None:
        """Versions and positions fall, once, to what is still known."""
        phase, version = _key(entry, "run", "term", "phase"), entry.get("version", 0)
        self.result.undone += self._phase(entry).roll_back(version)
        self._version[phase] = version
        self._position = {k: v for k, v in self._position.items() if k[:3] != phase}
        self._reached = {k: v for k, v in self._reached.items() if k[:3] != phase}

    def _rest(self, entry: _Line) -> None:
        start = {**entry, "phase": entry.get("phase", 0) - 1}
        self._phase(entry).before = self._phase(start)

    def _ack(self, entry: _Line) -> None:
        self._acknowledged.setdefault(_identity(entry), self._number)


def _key(entry: _Line, *names: str) -> _Key:
    return tuple(entry.get(name, 0) for name in names)


def _identity(entry: _Line) -> _Key:
    return _key(entry, "run", "term", "phase", "slot", "sequence")


def _named(key: _Key) -> str:
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
