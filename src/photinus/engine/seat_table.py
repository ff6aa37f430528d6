"""The state of their seats that runs exchange: in one process, or through a folder that all see.

FOLDER/jobs/RUN-N     the state of run RUN; a new N every few seconds, while it is alive
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from photinus.core.errors import LinkLostError, UsageError
from photinus.transport.filesystems import filesystem_of

_DIRECTORY = "jobs"
_SIGN_SECONDS = 2.0
_DEAD_SECONDS = 20.0
"""A run that has written no sign for so long has ended."""
_MOST_BYTES = 4096
_MOST_SEATS = 1 << 16
CLAIMS_CHANGED = threading.Condition(threading.RLock())
"""Guards the announced states of this process's runs, and wakes the threads that wait for them."""
_CLAIMS_HERE: dict[str, SeatClaim] = {}
"""Run -> its state, of the runs of this process."""
_ANNOUNCED: ContextVar[str] = ContextVar("photinus_announced", default="")
"""The name under which the run that this thread prepares was announced."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeatClaim:
    """How urgent a run is, how many seats it wants, and how many it holds."""

    run: str
    place: str
    """Where its seats are: a Spark application, or a machine."""
    slots: int | None = None
    """How many seats there are in its place, for all runs there; None where that has no bound."""
    workers: int = 1
    priority: int = 0
    weight: float | None = None
    held: int = 0
    can_yield: bool = True
    is_starting: bool = True
    """It has not begun to train: it needs all its seats at the same time."""


def announce_here(claim: SeatClaim) -> None:
    """Announces a run's state to the other runs of this process."""
    with CLAIMS_CHANGED:
        if _CLAIMS_HERE.get(claim.run) != claim:
            _CLAIMS_HERE[claim.run] = claim
            CLAIMS_CHANGED.notify_all()


def forget_here(run: str) -> None:
    """Removes a run of this process."""
    with CLAIMS_CHANGED:
        _CLAIMS_HERE.pop(run, None)
        CLAIMS_CHANGED.notify_all()


@contextmanager
def announced(claim: SeatClaim) -> Iterator[None]:
    """Has others give seats up for a run that is prepared in this thread, until it has begun."""
    announce_here(claim)
    token = _ANNOUNCED.set(claim.run)
    try:
        yield
    finally:
        _ANNOUNCED.reset(token)
        forget_here(claim.run)


def forget_announced() -> None:
    """Forgets the announced run that this thread prepared: the run announces itself from now on."""
    forget_here(_ANNOUNCED.get())


def claims_here(place: str = "") -> dict[str, SeatClaim]:
    """Returns the states of this process's runs: those of one place, or all."""
    with CLAIMS_CHANGED:
        return {run: claim for run, claim in _CLAIMS_HERE.items() if place in ("", claim.place)}


@dataclass
class FolderClaims:
    """What runs of several applications exchange through a folder; there is no server.

    Args:
        address: of the folder, which exists.
        now: returns the seconds of a monotonic clock; those of others are not compared with it.
    """

    address: str
    now: Callable[[], float] = time.monotonic
    _own_claim: SeatClaim | None = None
    _count: int = 0
    _newest: dict[str, str] = field(default_factory=dict)
    """Run -> the name of its newest file."""
    _last_read: dict[str, tuple[str, float, SeatClaim | None]] = field(default_factory=dict)
    """Run -> the file that was read last, when it was seen first, and the state in it."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._filesystem = filesystem_of(self.address)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(
            target=self._write_signs, name="photinus-standing", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()
        with self._lock, suppress(LinkLostError):
            self._filesystem.remove(self._name)

    @property
    def _name(self) -> str:
        run = "" if self._own_claim is None else self._own_claim.run
        return f"{_DIRECTORY}/{run}-{self._count:012d}"

    def announce(self, claim: SeatClaim) -> None:
        """Announces this run's state to the others; a change is written at once.

        Raises:
            UsageError: the folder cannot be written to, the first time.
        """
        with self._lock:
            previous, self._own_claim = self._own_claim, claim
            if previous is None:
                try:
                    self._write_first(claim.run)
                except (LinkLostError, OSError) as error:
                    do = "name a folder that exists, and that all drivers may write to"
                    got = f"{self.address}: {error}"
                    raise UsageError("jobs_folder cannot be used", got=got, do=do) from error
            elif previous != claim:
                with suppress(LinkLostError):  # it is tried again
                    self._write()

    def _write_first(self, run: str) -> None:
        """Writes the first file, numbered above those that an earlier process of the run left."""
        names = self._filesystem.names(_DIRECTORY) or []
        old_names = [name for name in names if name.rpartition("-")[0] == run]
        counts = [
            int(count) for name in old_names if (count := name.rpartition("-")[2]).isdecimal()
        ]
        self._count = max(counts, default=0)
        self._write()
        for name in old_names:
            self._filesystem.remove(f"{_DIRECTORY}/{name}")

    def _write(self) -> None:
        assert self._own_claim is not None
        old_name, self._count = self._name, self._count + 1
        self._filesystem.put(self._name, json.dumps(asdict(self._own_claim)).encode())
        self._filesystem.remove(old_name)

    def _write_signs(self) -> None:
        while not self._closed.wait(_SIGN_SECONDS):
            with self._lock, suppress(LinkLostError):  # it is tried again
                if self._own_claim is not None:
                    self._write()

    def live_claims(self) -> dict[str, SeatClaim]:
        """Returns the states of the runs that have written a sign lately."""
        now, claims = self.now(), dict[str, SeatClaim]()
        with suppress(LinkLostError):  # those that were known are, for a while
            names = self._filesystem.names(_DIRECTORY) or []
            self._newest = {name.rpartition("-")[0]: name for name in names}
        for run, name in self._newest.items():
            last_name, seen_at, claim = self._last_read.get(run, ("", now, None))
            data = None
            if last_name != name:  # where it is gone already, the next one is read in a while
                data = self._filesystem.read(f"{_DIRECTORY}/{name}", _MOST_BYTES)
            if data is not None:
                seen_at, claim = now, _parse_claim(data)
                self._last_read[run] = name, seen_at, claim
            if claim is not None and now - seen_at < _DEAD_SECONDS:
                claims[run] = replace(claim, run=run)
        return claims


def _parse_claim(data: bytes) -> SeatClaim | None:
    """Returns the state in a file; None where the file holds something else."""
    with suppress(ValueError, TypeError, RecursionError):
        fields = json.loads(data)
        if isinstance(fields, Mapping):
            return _validated(SeatClaim(**fields))
    return None


def _validated(claim: SeatClaim) -> SeatClaim | None:
    counts = (claim.workers, claim.held, 0 if claim.slots is None else claim.slots)
    is_whole = all(type(count) is int and 0 <= count <= _MOST_SEATS for count in counts)
    weight = 1.0 if claim.weight is None else claim.weight
    has_flags = type(claim.can_yield) is bool and type(claim.is_starting) is bool
    is_sound = is_whole and has_flags and type(claim.priority) is int
    is_sound = is_sound and isinstance(claim.place, str)
    return claim if is_sound and isinstance(weight, int | float) and weight > 0 else None
