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
from photinus.transport.filesystems import place_of

_DIRECTORY = "jobs"
_SIGN_SECONDS = 2.0
_DEAD_SECONDS = 20.0
"""A run that has written no sign for so long has ended."""
_MOST_BYTES = 4096
_MOST_SEATS = 1 << 16
NEWS = threading.Condition(threading.RLock())
"""Guards the announced states of this process's runs, and wakes the threads that wait for them."""
_HERE: dict[str, SeatClaim] = {}
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


def tell_here(standing: SeatClaim) -> None:
    """Announces a run's state to the other runs of this process."""
    with NEWS:
        if _HERE.get(standing.run) != standing:
            _HERE[standing.run] = standing
            NEWS.notify_all()


def forget_here(run: str) -> None:
    """Removes a run of this process."""
    with NEWS:
        _HERE.pop(run, None)
        NEWS.notify_all()


@contextmanager
def announced(standing: SeatClaim) -> Iterator[None]:
    """Has others give seats up for a run that is prepared in this thread, until it has begun."""
    tell_here(standing)
    token = _ANNOUNCED.set(standing.run)
    try:
        yield
    finally:
        _ANNOUNCED.reset(token)
        forget_here(standing.run)


def forget_announced() -> None:
    """Forgets the announced run that this thread prepared: the run announces itself from now on."""
    forget_here(_ANNOUNCED.get())


def told_here(place: str = "") -> dict[str, SeatClaim]:
    """Returns the states of this process's runs: those of one place, or all."""
    with NEWS:
        return {run: s for run, s in _HERE.items() if place in ("", s.place)}


@dataclass
class FolderClaims:
    """What runs of several applications exchange through a folder; there is no server.

    Args:
        address: of the folder, which exists.
        now: returns the seconds of a monotonic clock; those of others are not compared with it.
    """

    address: str
    now: Callable[[], float] = time.monotonic
    _mine: SeatClaim | None = None
    _count: int = 0
    _newest: dict[str, str] = field(default_factory=dict)
    """Run -> the name of its newest file."""
    _signs: dict[str, tuple[str, float, SeatClaim | None]] = field(default_factory=dict)
    """Run -> the file that was read last, when it was seen first, and the state in it."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._place = place_of(self.address)

    def __enter__(self) -> Self:
        self._beats = threading.Thread(target=self._sign, name="photinus-standing", daemon=True)
        self._beats.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._beats.join()
        with self._lock, suppress(LinkLostError):
            self._place.remove(self._name)

    @property
    def _name(self) -> str:
        run = "" if self._mine is None else self._mine.run
        return f"{_DIRECTORY}/{run}-{self._count:012d}"

    def tell(self, standing: SeatClaim) -> None:
        """Announces this run's state to the others; a change is written at once.

        Raises:
            UsageError: the folder cannot be written to, the first time.
        """
        with self._lock:
            before, self._mine = self._mine, standing
            if before is None:
                try:
                    self._begin(standing.run)
                except (LinkLostError, OSError) as error:
                    do = "name a folder that exists, and that all drivers may write to"
                    got = f"{self.address}: {error}"
                    raise UsageError("jobs_folder cannot be used", got=got, do=do) from error
            elif before != standing:
                with suppress(LinkLostError):  # it is tried again
                    self._write()

    def _begin(self, run: str) -> None:
        """Writes the first file, numbered above those that an earlier process of the run left."""
        names = self._place.names(_DIRECTORY) or []
        left = [name for name in names if name.rpartition("-")[0] == run]
        counts = [int(count) for name in left if (count := name.rpartition("-")[2]).isdecimal()]
        self._count = max(counts, default=0)
        self._write()
        for name in left:
            self._place.remove(f"{_DIRECTORY}/{name}")

    def _write(self) -> None:
        assert self._mine is not None
        before, self._count = self._name, self._count + 1
        self._place.put(self._name, json.dumps(asdict(self._mine)).encode())
        self._place.remove(before)

    def _sign(self) -> None:
        while not self._closed.wait(_SIGN_SECONDS):
            with self._lock, suppress(LinkLostError):  # it is tried again
                if self._mine is not None:
                    self._write()

    def told(self) -> dict[str, SeatClaim]:
        """Returns the states of the runs that have written a sign lately."""
        now, found = self.now(), dict[str, SeatClaim]()
        with suppress(LinkLostError):  # those that were known are, for a while
            names = self._place.names(_DIRECTORY) or []
            self._newest = {name.rpartition("-")[0]: name for name in names}
        for run, name in self._newest.items():
            last, since, standing = self._signs.get(run, ("", now, None))
            data = None
            if last != name:  # where it is gone already, the next one is read in a while
                data = self._place.read(f"{_DIRECTORY}/{name}", _MOST_BYTES)
            if data is not None:
                since, standing = now, _read(data)
                self._signs[run] = name, since, standing
            if standing is not None and now - since < _DEAD_SECONDS:
                found[run] = replace(standing, run=run)
        return found


def _read(data: bytes) -> SeatClaim | None:
    """Returns the state in a file; None where the file holds something else."""
    with suppress(ValueError, TypeError, RecursionError):
        plain = json.loads(data)
        if isinstance(plain, Mapping):
            return _checked(SeatClaim(**plain))
    return None


def _checked(standing: SeatClaim) -> SeatClaim | None:
    counts = (standing.workers, standing.held, 0 if standing.slots is None else standing.slots)
    is_whole = all(type(count) is int and 0 <= count <= _MOST_SEATS for count in counts)
    weight = 1.0 if standing.weight is None else standing.weight
    is_told = type(standing.can_yield) is bool and type(standing.is_starting) is bool
    is_sound = is_whole and is_told and type(standing.priority) is int
    is_sound = is_sound and isinstance(standing.place, str)
    return standing if is_sound and isinstance(weight, int | float) and weight > 0 else None
