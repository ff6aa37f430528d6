"""Faults by name: one plain object for the simulator and for real processes.

Nothing goes wrong unless a caller says so in code: the object travels with a worker's settings, and
no setting of a job, file or environment can name one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from photinus.core.errors import UsageError
from photinus.core.seeds import derive
from photinus.core.settings import Limit, at_least, between, one_of, validate, whole

__all__ = [
    "BAD_ROW",
    "COPY",
    "CUT",
    "FEW_ROWS",
    "FILL_DISK",
    "FLIP_BIT",
    "FREEZE",
    "KILL",
    "KILL_DRIVER",
    "NAN",
    "NO_MEMORY",
    "SLOW",
    "SLOW_LINK",
    "TAKE_SLOTS",
    "Fault",
    "Faults",
    "Lot",
    "faults_of",
]

COPY, CUT, FREEZE, KILL = "copy", "cut", "freeze", "kill"
NAN, NO_MEMORY, SLOW, SLOW_LINK = "nan", "no_memory", "slow", "slow_link"
BAD_ROW, FEW_ROWS, TAKE_SLOTS = "bad_row", "few_rows", "take_slots"
FILL_DISK, FLIP_BIT, KILL_DRIVER = "fill_disk", "flip_bit", "kill_driver"
_LEAST_BYTES_PER_SECOND = 1e4
"""Below that not even signs of life come through in time."""
_OF_WORKERS = (COPY, CUT, FREEZE, KILL, NAN, NO_MEMORY, SLOW, SLOW_LINK)
_OF_ROWS = (BAD_ROW, FEW_ROWS)
_OF_DRIVERS = (FILL_DISK, FLIP_BIT, KILL_DRIVER)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What goes wrong, and when: in one slot, or with the driver."""

    kind: str
    slot: int | None = None
    """None for what befalls the driver, or the cluster."""
    step: int | None = None
    """After so many steps under the lease; of `nan` the step itself; of the driver, after so many
    rounds."""
    at_seconds: float | None = None
    """Instead: so long after the lease was granted, whatever the worker does then; of the driver
    after the engine began; of rows and slots 0, as they are so from the beginning."""
    lease: int = 1
    """Of the seat: 2 is the first one after a loss."""
    seconds: float = 0.0
    """How long it lasts; of `kill`, when the simulator starts the worker again."""
    factor: float = 1.0
    """How many times as long a step takes."""
    executor: bool = False
    """It befalls the Java process of the worker's executor; a simulated one has one worker."""
    host: bool = False
    """It befalls the network interface of the worker's host; a simulated one has one worker."""
    amount: float = 0.0
    """Which row is bad, how many rows are left or slots taken, how many bytes pass in a second."""
    LIMITS = {  # noqa: RUF012
        "kind": one_of(*_OF_WORKERS, *_OF_ROWS, *_OF_DRIVERS, TAKE_SLOTS),
        "slot": Limit.optional(whole(0)),
        "step": Limit.optional(whole(1)),
        "at_seconds": Limit.optional(at_least(0)),
        "lease": whole(1),
        "seconds": at_least(0),
        "factor": at_least(1),
        "amount": at_least(0),
    }

    def __post_init__(self) -> None:
        if self.kind in (*_OF_ROWS, TAKE_SLOTS) and not whole(0).holds(self.amount):
            raise UsageError(f"{self.kind} takes {whole(0).text}", got=repr(self.amount))
        validate(self)
        if (self.step is None) == (self.at_seconds is None):
            got = f"step={self.step}, at_seconds={self.at_seconds}"
            raise UsageError("a fault happens at a step, or at a time", got=got, do="name one")

    def told(self) -> dict[str, object]:
        """Returns what a diary says of it."""
        names = ("kind", "slot", "lease", "step", "at_seconds", "executor", "host")
        pairs = ((name, getattr(self, name)) for name in names)
        return {name: value for name, value in pairs if value is not None and value is not False}


@dataclass(frozen=True, slots=True)
class Lot:
    """On which messages it falls: a share of them by chance, or strictly each n-th."""

    share: float = 0.0
    each: int = 0
    """0 for none."""
    first: int = 0
    """Which of each `each`."""
    LIMITS = {"share": between(0, 1), "each": whole(0), "first": whole(0)}  # noqa: RUF012

    def __post_init__(self) -> None:
        validate(self)

    @property
    def is_some(self) -> bool:
        """True when it falls on any."""
        return self.share > 0 or self.each > 0

    def falls_on(self, number: int, what: str) -> bool:
        """Tells whether it falls on a message: on the same ones in every run."""
        if self.each:
            return number % self.each == self.first
        return self.share > 0 and derive(number, what) < self.share * (1 << 63)


class _When(NamedTuple):
    step: int | None
    at_seconds: float | None
    lease: int

    def fault(self, kind: str, slot: int, seconds: float = 0.0, **more: bool) -> Fault:
        when = self._asdict()
        return Fault(kind=kind, slot=slot, seconds=seconds, **when, **more)


@dataclass(frozen=True, kw_only=True, slots=True)
class Faults:
    """What shall go wrong in a run: each method returns these faults and one more.

    Example:
        >>> faults = Faults().kill(slot=2, step=40).freeze(slot=1, step=10, seconds=8.0)
        >>> [(fault.kind, fault.slot) for fault in faults.planned]
        [('kill', 2), ('freeze', 1)]
    """

    planned: tuple[Fault, ...] = ()
    """What happens to workers and the driver; the methods below add to it."""
    lost: Lot = Lot()
    """The messages that never arrive; the simulator's alone."""
    doubled: Lot = Lot()
    """Those that arrive twice; likewise."""
    diary: str = ""
    """A file in which real workers note each fault as JSON, just before it happens."""

    def kill(
        self,
        slot: int,
        step: int | None = None,
        *,
        at_seconds: float | None = None,
        lease: int = 1,
        back_seconds: float = 0.5,
        executor: bool = False,
    ) -> Faults:
        """A worker dies (SIGKILL), and is started again, in the simulator after `back_seconds`.

        With `executor` its executor's Java process does, and all workers there with it.
        """
        when = _When(step, at_seconds, lease)
        return self._and(when.fault(KILL, slot, seconds=back_seconds, executor=executor))

    def freeze(
        self,
        slot: int,
        step: int | None = None,
        *,
        seconds: float,
        at_seconds: float | None = None,
        lease: int = 1,
        executor: bool = False,
    ) -> Faults:
        """A worker stands still (SIGSTOP) with its links open, and goes on after `seconds`.

        With `executor` its executor's Java process does, while the workers there live.
        """
        when = _When(step, at_seconds, lease)
        return self._and(when.fault(FREEZE, slot, seconds=seconds, executor=executor))

    def cut(
        self,
        slot: int,
        step: int | None = None,
        *,
        seconds: float,
        at_seconds: float | None = None,
        lease: int = 1,
        host: bool = False,
    ) -> Faults:
        """A worker's links close, and none can be made for `seconds`.

        With `host` nothing closes: the network interface of its host is down for so long. That
        needs a network namespace that is the worker's own.
        """
        when = _When(step, at_seconds, lease)
        return self._and(when.fault(CUT, slot, seconds=seconds, host=host))

    def slow(self, slot: int, factor: float, *, step: int = 1, lease: int = 1) -> Faults:
        """From a step on, every step takes `factor` times as long, in later lives too."""
        return self._and(Fault(kind=SLOW, slot=slot, factor=factor, step=step, lease=lease))

    def slow_link(
        self,
        slot: int,
        bytes_per_second: float,
        *,
        step: int = 1,
        lease: int = 1,
        host: bool = False,
    ) -> Faults:
        """From a step on, what a worker sends takes its time, in later lives too.

        With `host` the kernel (`tc`) holds all back that its host sends, likewise.
        """
        least = at_least(_LEAST_BYTES_PER_SECOND)
        if not least.holds(bytes_per_second):
            wrong = f"bytes_per_second of a slow link must be {least.text}"
            raise UsageError(wrong, got=repr(bytes_per_second))
        fault = Fault(kind=SLOW_LINK, slot=slot, step=step, lease=lease, host=host)
        return self._and(replace(fault, amount=bytes_per_second))

    def nan(self, slot: int, step: int, *, lease: int = 1) -> Faults:
        """A worker's gradient is not a number, in one step."""
        return self._and(Fault(kind=NAN, slot=slot, step=step, lease=lease))

    def no_memory(self, slot: int, step: int, *, lease: int = 1) -> Faults:
        """The system gives a worker no more memory, in one step: an allocation fails."""
        return self._and(Fault(kind=NO_MEMORY, slot=slot, step=step, lease=lease))

    def bad_row(self, slot: int, row: int) -> Faults:
        """One of the rows of a slot is wrong: it has no numbers, or a label that is no class."""
        return self._and(Fault(kind=BAD_ROW, slot=slot, at_seconds=0.0, amount=row))

    def few_rows(self, slot: int, rows: int = 0) -> Faults:
        """Only so many rows come to a slot: its partition is empty, or others' are far larger."""
        return self._and(Fault(kind=FEW_ROWS, slot=slot, at_seconds=0.0, amount=rows))

    def take_slots(self, count: int, *, seconds: float) -> Faults:
        """Others hold so many slots at first: the workers are more than the slots that are left.

        Args:
            count: of the workers' slots; those of the last ones, where it matters which.
            seconds: until they are given back.
        """
        return self._and(Fault(kind=TAKE_SLOTS, at_seconds=0.0, amount=count, seconds=seconds))

    def kill_driver(self, rounds: int | None = None, *, at_seconds: float | None = None) -> Faults:
        """The driver's process dies (SIGKILL): this very one, which holds the coordinator.

        Args:
            rounds: after so many, as of all that befalls it; each waits for the one before.
            at_seconds: or so long after the engine began.
        """
        return self._and(Fault(kind=KILL_DRIVER, step=rounds, at_seconds=at_seconds))

    def fill_disk(
        self,
        rounds: int | None = None,
        *,
        seconds: float,
        at_seconds: float | None = None,
    ) -> Faults:
        """The disk of the run's folder has no room left; only a small one of its own is filled."""
        return self._and(Fault(kind=FILL_DISK, step=rounds, at_seconds=at_seconds, seconds=seconds))

    def flip_bit(self, rounds: int | None = None, *, at_seconds: float | None = None) -> Faults:
        """One bit of the newest checkpoint in the run's folder changes, as soon as there is one."""
        return self._and(Fault(kind=FLIP_BIT, step=rounds, at_seconds=at_seconds))

    def copy(
        self,
        slot: int,
        step: int | None = None,
        *,
        at_seconds: float | None = None,
        lease: int = 1,
    ) -> Faults:
        """A second attempt of the same seat comes, as with speculation; the simulator's alone."""
        return self._and(_When(step, at_seconds, lease).fault(COPY, slot))

    def lose(self, share: float = 0.0, *, each: int = 0, first: int = 0) -> Faults:
        """Messages never arrive, by chance or strictly each n-th; the simulator's alone."""
        return replace(self, lost=Lot(share, each, first))

    def double(self, share: float = 0.0, *, each: int = 0, first: int = 0) -> Faults:
        """What workers say arrives twice, likewise; the simulator's alone."""
        return replace(self, doubled=Lot(share, each, first))

    def noted_in(self, path: str) -> Faults:
        """Real workers note each fault in a file, just before it happens."""
        return replace(self, diary=path)

    def of(self, slot: int) -> tuple[Fault, ...]:
        """Returns what shall befall the worker of a slot."""
        return tuple(f for f in self.planned if f.slot == slot and f.kind in _OF_WORKERS)

    @property
    def of_driver(self) -> tuple[Fault, ...]:
        """What shall befall the driver, one after the other."""
        return tuple(fault for fault in self.planned if fault.kind in _OF_DRIVERS)

    def bad_rows(self, slot: int) -> list[int]:
        """Returns which rows of a slot are bad."""
        mine = (f for f in self.planned if (f.kind, f.slot) == (BAD_ROW, slot))
        return [int(fault.amount) for fault in mine]

    def rows_left(self, slot: int) -> int | None:
        """Returns how many rows come to a slot; None for all."""
        mine = (f for f in self.planned if (f.kind, f.slot) == (FEW_ROWS, slot))
        return min((int(fault.amount) for fault in mine), default=None)

    def taken(self) -> tuple[int, float]:
        """Returns how many slots are taken at first, and for how many seconds."""
        mine = [fault for fault in self.planned if fault.kind == TAKE_SLOTS]
        return (int(mine[-1].amount), mine[-1].seconds) if mine else (0, 0.0)

    def comes_after(self, slot: int, workers: int) -> float:
        """Returns when a slot is free, in seconds; the last ones are taken first."""
        count, seconds = self.taken()
        return seconds if slot >= workers - count else 0.0

    def checked(self, workers: int, *, is_real: bool, has_sockets: bool = True) -> Faults:
        """Returns itself, if an engine can do all that.

        Args:
            workers: of the run.
            is_real: False in the simulator.
            has_sockets: True where all that workers send goes over sockets of ours.

        Raises:
            UsageError: a fault is of a slot that the run has not, or only the simulator can do it.
        """
        for fault in self.planned:
            if fault.slot is not None and fault.slot >= workers:
                wrong = f"a fault names a slot from 0 to {workers - 1}"
                raise UsageError(wrong, got=fault.slot)
        if self.taken()[0] > workers:
            raise UsageError(f"at most {workers} slots can be taken", got=self.taken()[0])
        imagined = [fault.kind for fault in self.planned if fault.kind == COPY]
        imagined += ["lose"] * self.lost.is_some + ["double"] * self.doubled.is_some
        if is_real and imagined:
            do = "use photinus.SimulatedEngine"
            raise UsageError("only the simulator can do that", got=imagined[0], do=do)
        if not has_sockets and any(fault.kind == SLOW_LINK for fault in self.planned):
            do = 'use road="sockets"'
            raise UsageError("a slow link is one of sockets", got="another road", do=do)
        return self

    def _and(self, fault: Fault) -> Faults:
        return replace(self, planned=(*self.planned, fault))


def faults_of(faults: object) -> Faults:
    """Returns what an engine is given; none without any.

    Raises:
        UsageError: it is something else.
    """
    if not isinstance(faults, Faults | None):
        do = "e.g. Faults().kill(slot=1, step=40)"
        raise UsageError("faults must be photinus.Faults", got=type(faults).__name__, do=do)
    return faults or Faults()
