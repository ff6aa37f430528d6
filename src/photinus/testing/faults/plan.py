"""`Faults`: one plain object for the simulator and for real processes.

No fault happens unless a caller asks for it in code: the object travels with a worker's settings,
and no setting of a job, file or environment can name one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from photinus.core.errors import UsageError
from photinus.core.settings import at_least
from photinus.data.base import Block
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.hooks import Hooks, Machine
from photinus.testing.faults import data as of_rows
from photinus.testing.faults.driver import DriverFaults
from photinus.testing.faults.fault import (
    BAD_ROW,
    COPY,
    CUT,
    FEW_ROWS,
    FILL_DISK,
    FLIP_BIT,
    FREEZE,
    KILL,
    KILL_DRIVER,
    NAN,
    NO_MEMORY,
    OF_DRIVERS,
    OF_WORKERS,
    SLOW,
    SLOW_LINK,
    TAKE_SLOTS,
    Fault,
    Selection,
)
from photinus.testing.faults.process import WorkerFaults
from photinus.testing.faults.worker import FaultyWorker, inject
from photinus.training.plan import TrainingPlan
from photinus.training.requests import WorkerGenerator
from photinus.training.worker_loop import WorkerData
from photinus.transport.rate_limit import RateLimit

if TYPE_CHECKING:
    import pyarrow as pa

_LEAST_BYTES_PER_SECOND = 1e4
"""Below that not even signs of life arrive in time."""


class _Moment(NamedTuple):
    step: int | None
    at_seconds: float | None
    lease: int

    def fault(self, kind: str, slot: int, seconds: float = 0.0, **more: Any) -> Fault:  # noqa: ANN401 - executor, host
        return Fault(kind=kind, slot=slot, seconds=seconds, **more, **self._asdict())


@dataclass(frozen=True, kw_only=True, slots=True)
class Faults(Hooks):
    """The faults of a run: each method returns these faults and one more.

    Example:
        >>> faults = Faults().kill(slot=2, step=40).freeze(slot=1, step=10, seconds=8.0)
        >>> [(fault.kind, fault.slot) for fault in faults.planned]
        [('kill', 2), ('freeze', 1)]
    """

    planned: tuple[Fault, ...] = ()
    """What happens to workers and the driver; the methods below add to it."""
    lost: Selection = field(default_factory=Selection)
    """The messages that never arrive; the simulator's alone."""
    doubled: Selection = field(default_factory=Selection)
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
        moment = _Moment(step, at_seconds, lease)
        return self._with_fault(moment.fault(KILL, slot, seconds=back_seconds, executor=executor))

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
        """A worker stands still (SIGSTOP) with its links open, and continues after `seconds`.

        With `executor` its executor's Java process does, while the workers there run.
        """
        moment = _Moment(step, at_seconds, lease)
        return self._with_fault(moment.fault(FREEZE, slot, seconds=seconds, executor=executor))

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
        moment = _Moment(step, at_seconds, lease)
        return self._with_fault(moment.fault(CUT, slot, seconds=seconds, host=host))

    def slow(
        self, slot: int, factor: float, *, step: int = 1, lease: int = 1, until: str = ""
    ) -> Faults:
        """From a step on, every step takes `factor` times as long, in later attempts too.

        With `until` only as long as there is no file of that name: a test then decides when it
        ends.
        """
        fault = Fault(kind=SLOW, slot=slot, factor=factor, step=step, lease=lease, until=until)
        return self._with_fault(fault)

    def slow_link(
        self,
        slot: int,
        bytes_per_second: float,
        *,
        step: int = 1,
        lease: int = 1,
        host: bool = False,
    ) -> Faults:
        """From a step on, what a worker sends is delayed, in later attempts too.

        With `host` the kernel (`tc`) holds all back that its host sends, likewise.
        """
        limit = at_least(_LEAST_BYTES_PER_SECOND)
        if not limit.holds(bytes_per_second):
            wrong = f"bytes_per_second of a slow link must be {limit.text}"
            raise UsageError(wrong, got=repr(bytes_per_second))
        fault = Fault(kind=SLOW_LINK, slot=slot, step=step, lease=lease, host=host)
        return self._with_fault(replace(fault, amount=bytes_per_second))

    def nan(self, slot: int, step: int, *, lease: int = 1) -> Faults:
        """A worker's gradient is not a number, in one step."""
        return self._with_fault(Fault(kind=NAN, slot=slot, step=step, lease=lease))

    def no_memory(self, slot: int, step: int, *, lease: int = 1) -> Faults:
        """The system gives a worker no more memory, in one step: an allocation fails."""
        return self._with_fault(Fault(kind=NO_MEMORY, slot=slot, step=step, lease=lease))

    def bad_row(self, slot: int, row: int) -> Faults:
        """One of the rows of a slot is wrong: it has no numbers, or a label that is no class."""
        return self._with_fault(Fault(kind=BAD_ROW, slot=slot, at_seconds=0.0, amount=row))

    def few_rows(self, slot: int, rows: int = 0) -> Faults:
        """Only so many rows come to a slot: its partition is empty, or others' are far larger."""
        return self._with_fault(Fault(kind=FEW_ROWS, slot=slot, at_seconds=0.0, amount=rows))

    def take_slots(self, count: int, *, seconds: float) -> Faults:
        """Others hold so many slots at first: the workers are more than the slots that are left.

        Args:
            count: of the workers' slots; those of the last ones, where it matters which.
            seconds: until they are given back.
        """
        return self._with_fault(
            Fault(kind=TAKE_SLOTS, at_seconds=0.0, amount=count, seconds=seconds)
        )

    def kill_driver(self, rounds: int | None = None, *, at_seconds: float | None = None) -> Faults:
        """The driver's process dies (SIGKILL): this very one, which holds the coordinator.

        Args:
            rounds: after so many; each fault of the driver waits for the one before.
            at_seconds: or so long after the engine began.
        """
        return self._with_fault(Fault(kind=KILL_DRIVER, step=rounds, at_seconds=at_seconds))

    def fill_disk(
        self,
        rounds: int | None = None,
        *,
        seconds: float,
        at_seconds: float | None = None,
    ) -> Faults:
        """The disk of the run's folder has no room left; only a small one of its own is filled."""
        return self._with_fault(
            Fault(kind=FILL_DISK, step=rounds, at_seconds=at_seconds, seconds=seconds)
        )

    def flip_bit(self, rounds: int | None = None, *, at_seconds: float | None = None) -> Faults:
        """One bit of the newest checkpoint in the run's folder changes, as soon as there is one."""
        return self._with_fault(Fault(kind=FLIP_BIT, step=rounds, at_seconds=at_seconds))

    def copy(
        self,
        slot: int,
        step: int | None = None,
        *,
        at_seconds: float | None = None,
        lease: int = 1,
    ) -> Faults:
        """A second attempt of the same seat comes, as with speculation; the simulator's alone."""
        return self._with_fault(_Moment(step, at_seconds, lease).fault(COPY, slot))

    def lose(self, share: float = 0.0, *, each: int = 0, first: int = 0) -> Faults:
        """Messages never arrive, by chance or strictly each n-th; the simulator's alone."""
        return replace(self, lost=Selection(share, each, first))

    def double(self, share: float = 0.0, *, each: int = 0, first: int = 0) -> Faults:
        """What workers send arrives twice, likewise; in the simulator only."""
        return replace(self, doubled=Selection(share, each, first))

    def noted_in(self, path: str) -> Faults:
        """Real workers note each fault in a file, just before it happens."""
        return replace(self, diary=path)

    def of(self, slot: int) -> tuple[Fault, ...]:
        """Returns the faults of the worker of a slot."""
        return tuple(f for f in self.planned if f.slot == slot and f.kind in OF_WORKERS)

    @property
    def of_driver(self) -> tuple[Fault, ...]:
        """The faults of the driver, one after the other."""
        return tuple(fault for fault in self.planned if fault.kind in OF_DRIVERS)

    def bad_rows(self, slot: int) -> list[int]:
        """Returns which rows of a slot are bad."""
        faults = (f for f in self.planned if (f.kind, f.slot) == (BAD_ROW, slot))
        return [int(fault.amount) for fault in faults]

    def rows_left(self, slot: int) -> int | None:
        """Returns how many rows come to a slot; None for all."""
        faults = (f for f in self.planned if (f.kind, f.slot) == (FEW_ROWS, slot))
        return min((int(fault.amount) for fault in faults), default=None)

    def dealt(self, data: ArrayData, plan: TrainingPlan) -> list[Block]:
        """Returns the rows of each slot that pass their checks; once, where all share them.

        Raises:
            DataError: a row is wrong, by its number in `features`.
            UsageError: rows that all share cannot be fewer for one slot; bytes cannot be wrong.
        """
        return of_rows.dealt(data, plan, self)

    def batches(self, batches: Iterable[pa.RecordBatch], slot: int) -> Iterable[pa.RecordBatch]:
        """Returns a partition's rows as they come to its slot: fewer, with nulls in bad ones."""
        return of_rows.faulty_batches(batches, self, slot)

    def worker(self, slot: int, address: str, bandwidth: float | None) -> WorkerFaults:
        """Returns the hooks of a real worker, in whose process its faults happen."""
        planned = self.of(slot)
        if bandwidth is None and any(fault.kind == SLOW_LINK for fault in planned):
            bandwidth = math.inf  # until it is slowed
        rate_limit = None if bandwidth is None else RateLimit(bandwidth)
        return WorkerFaults(planned, self.diary, rate_limit, address)

    def simulated(
        self, machine: Machine, plan: TrainingPlan, slot: int, part: WorkerData
    ) -> WorkerGenerator:
        """Returns what a worker of the simulator does, with its faults."""

        def inject_now(fault: Fault, _: float) -> None:
            inject(machine, fault)

        def inject_later(seconds: float, fault: Fault) -> None:
            machine.later(seconds, lambda: inject(machine, fault))

        return FaultyWorker(self.of(slot), inject_now, inject_later).life(plan, slot, part)

    def driver(self, run_spec: RunSpec, now: Callable[[], float] | None = None) -> DriverFaults:
        """Returns the hooks of the driver, in whose process its faults happen."""
        return DriverFaults(self.of_driver, run_spec, now, self.diary)

    @property
    def loses(self) -> bool:
        return self.lost.is_some

    def is_lost(self, message: int) -> bool:
        return self.lost.falls_on(message, "lost")

    def copies(self, message: int) -> int:
        return 1 + self.doubled.falls_on(message, "doubled")

    def taken(self) -> tuple[int, float]:
        """Returns how many slots are taken at first, and for how many seconds."""
        faults = [fault for fault in self.planned if fault.kind == TAKE_SLOTS]
        return (int(faults[-1].amount), faults[-1].seconds) if faults else (0, 0.0)

    def comes_after(self, slot: int, workers: int) -> float:
        """Returns when a slot is free, in seconds; the last ones are taken first."""
        count, seconds = self.taken()
        return seconds if slot >= workers - count else 0.0

    def checked(self, workers: int, *, is_real: bool, has_sockets: bool = True) -> Faults:
        """Returns itself, if an engine can do all that.

        Args:
            workers: of the run.
            is_real: False in the simulator.
            has_sockets: True where all that workers send passes through photinus's sockets.

        Raises:
            UsageError: a fault is of a slot that the run does not have, or only the simulator can
                do it.
        """
        for fault in self.planned:
            if fault.slot is not None and fault.slot >= workers:
                wrong = f"a fault names a slot from 0 to {workers - 1}"
                raise UsageError(wrong, got=fault.slot)
        if self.taken()[0] > workers:
            raise UsageError(f"at most {workers} slots can be taken", got=self.taken()[0])
        simulator_kinds = [fault.kind for fault in self.planned if fault.kind == COPY]
        simulator_kinds += ["lose"] * self.lost.is_some + ["double"] * self.doubled.is_some
        if is_real and simulator_kinds:
            do = "use photinus.SimulatedEngine"
            raise UsageError("only the simulator can do that", got=simulator_kinds[0], do=do)
        if not is_real and any(fault.until for fault in self.planned):
            wrong = "a simulated worker looks for no file"
            raise UsageError(wrong, got="slow with until", do="leave until out")
        if not has_sockets and any(fault.kind == SLOW_LINK for fault in self.planned):
            do = 'use transport="sockets"'
            raise UsageError("a slow link is one of sockets", got="another transport", do=do)
        return self

    def _with_fault(self, fault: Fault) -> Faults:
        return replace(self, planned=(*self.planned, fault))
