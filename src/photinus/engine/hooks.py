"""Hooks by which tests change what an engine does; those defined here change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from photinus.core.errors import UsageError
from photinus.data.base import Block
from photinus.training.plan import TrainingPlan
from photinus.training.requests import WorkerGenerator
from photinus.training.worker_loop import WorkerData, live
from photinus.transport.link import Link
from photinus.transport.rate_limit import RateLimit

if TYPE_CHECKING:
    import pyarrow as pa

    from photinus.engine.base import ArrayData, RunSpec

LOOK_SECONDS = 0.05
"""How often the hooks of a driver look at the clock."""


class WorkerHooks:
    """Hooks around one worker in its process.

    Args:
        rate_limit: of all that the worker sends; None without a cap.
    """

    def __init__(self, rate_limit: RateLimit | None = None) -> None:
        self.rate_limit = rate_limit

    def check(self) -> None:
        """Refuses what this process cannot do, before the worker reads its rows."""

    def linked(self, make: Callable[[], Link], connect_seconds: float) -> Link:
        """Makes a link within `connect_seconds`."""
        return make()

    def life(self, plan: TrainingPlan, slot: int, part: WorkerData) -> WorkerGenerator:
        """Returns what the worker does."""
        return live(plan, slot, part)


class DriverHooks:
    """Hooks around a run in the driver's process, as a context.

    Args:
        run_spec: what the engine was asked to run.
    """

    is_timed = False
    """True when `look` must be called every LOOK_SECONDS of a simulator's time."""

    def __init__(self, run_spec: RunSpec) -> None:
        self.run_spec = run_spec
        """What to run instead."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def look(self) -> None:
        """Does what is due."""


class Machine(Protocol):
    """What can happen to a worker in the simulator."""

    @property
    def is_dead(self) -> bool:
        """True after the end of this attempt."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Calls something after so many virtual seconds."""

    def noted(self, what: object) -> None:
        """Keeps what happened for `SimulatedEngine.happened`."""

    def kill(self, back_seconds: float) -> None:
        """Ends the worker; another one takes its slot after `back_seconds`."""

    def freeze(self, seconds: float) -> None:
        """Stops the worker for so long; its link stays open."""

    def cut(self, seconds: float, *, is_silent: bool) -> None:
        """Closes its links for so long; with `is_silent` they stay open, but carry nothing."""

    def slow(self, factor: float) -> None:
        """Makes each of its steps take `factor` times as long."""

    def slow_link(self, bytes_per_second: float) -> None:
        """Slows what it sends."""

    def copy(self) -> None:
        """Starts a second attempt in its slot."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What an engine calls around its workers, its rows and its driver.

    `photinus.testing.Faults` has others, which make things fail on purpose.
    """

    def checked(self, workers: int, *, is_real: bool, has_sockets: bool = True) -> Self:
        """Returns itself, if an engine can do all that.

        Args:
            workers: of the run.
            is_real: False in the simulator.
            has_sockets: True where all that workers send passes through photinus's sockets.

        Raises:
            UsageError: it cannot.
        """
        return self

    def worker(self, slot: int, address: str, bandwidth: float | None) -> WorkerHooks:
        """Returns the hooks of a real worker.

        Args:
            slot: its seat.
            address: of the coordinator.
            bandwidth: bytes that it may send in a second; None without a cap.
        """
        return WorkerHooks(None if bandwidth is None else RateLimit(bandwidth))

    def simulated(
        self, machine: Machine, plan: TrainingPlan, slot: int, part: WorkerData
    ) -> WorkerGenerator:
        """Returns what a worker of the simulator does."""
        return live(plan, slot, part)

    def driver(
        self,
        run_spec: RunSpec,
        now: Callable[[], float] | None = None,
    ) -> DriverHooks:
        """Returns the hooks of the driver.

        Args:
            run_spec: what the engine runs.
            now: the engine's clock, in seconds; left out, a real one.
        """
        return DriverHooks(run_spec)

    def dealt(self, data: ArrayData, plan: TrainingPlan) -> list[Block]:
        """Returns the rows of each slot that pass their checks; once, where all share them.

        Raises:
            DataError: a row is wrong, by its number in `features`.
        """
        checked = data.checked(plan)
        return [checked.part(plan, s) for s in range(1 if plan.is_shared else plan.workers)]

    def batches(self, batches: Iterable[pa.RecordBatch], slot: int) -> Iterable[pa.RecordBatch]:
        """Returns a partition's rows as its slot gets them."""
        return batches

    def taken(self) -> tuple[int, float]:
        """Returns how many slots others hold at first, and for how many seconds."""
        return 0, 0.0

    def comes_after(self, slot: int, workers: int) -> float:
        """Returns after how many seconds a slot is free."""
        return 0.0

    @property
    def loses(self) -> bool:
        """True when messages of the simulator may be lost."""
        return False

    def is_lost(self, message: int) -> bool:
        """Returns whether a message of the simulator never arrives, by its number."""
        return False

    def copies(self, message: int) -> int:
        """Returns how often a message to the coordinator arrives in the simulator."""
        return 1


def hooks_of(faults: object) -> Hooks:
    """Returns what an engine is given; hooks that change nothing, without any.

    Raises:
        UsageError: it is something else.
    """
    if not isinstance(faults, Hooks | None):
        do = "e.g. Faults().kill(slot=1, step=40)"
        wrong = "faults must be photinus.testing.Faults"
        raise UsageError(wrong, got=type(faults).__name__, do=do)
    return faults or Hooks()
