"""The simulator as an engine: real gradients, virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from photinus.coordinator.coordinator import Coordinator
from photinus.coordinator.phases import RunResult
from photinus.core.errors import RunFailedError, UsageError
from photinus.data.rows import Rows
from photinus.engine.base import SOCKETS, ArrayData, Engine, RunSpec, part_of
from photinus.engine.hooks import LOOK_SECONDS
from photinus.engine.seat_sharing import LOOK_SECONDS as SHARE_SECONDS
from photinus.engine.seat_sharing import SeatSharing, Urgency
from photinus.engine.seat_table import SeatClaim, announce_here, forget_here
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.engine.simulation.simulator import Simulation


class _Seats:
    """The seats of a simulated run, whose tasks end when a more urgent run is to have them."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._coordinator = simulation, simulation.coordinator
        self.prepare = self._coordinator.prepared_to_yield
        self.unprepare = self._coordinator.unprepare

    @property
    def has_begun(self) -> bool:
        return self._coordinator.has_begun

    @property
    def can_yield(self) -> bool:
        return self._coordinator.can_yield

    @property
    def can_share(self) -> bool:
        return self._coordinator.is_kept

    def idle(self) -> frozenset[int]:
        return self._coordinator.idle

    def yielding(self) -> dict[int, bool]:
        return self._coordinator.leases.yielding

    def yield_seats(self, slots: Iterable[int]) -> None:
        simulation = self._simulation
        simulation.send_frames(self._coordinator.yield_seats(slots, "ends", simulation.now))

    def take_back(self, slots: Iterable[int]) -> frozenset[int]:
        return self._coordinator.take_back(slots)


@contextmanager
def _shared_seats(run_spec: RunSpec, simulation: Simulation) -> Iterator[None]:
    """Shares the seats of a run with the more urgent ones of its cluster."""
    urgent = simulation.cluster.urgent
    if not urgent:
        yield
        return
    workers, run, seats = run_spec.plan.workers, run_spec.run.hex(), _Seats(simulation)
    claim = SeatClaim(run=run, place=run, workers=workers)
    sharing = SeatSharing(
        Urgency(), claim, lambda: workers, run_spec.emit, now=lambda: simulation.now
    )

    def look() -> None:
        free = sum(seats.yielding().values())
        for number, (start_seconds, seconds, wanted) in enumerate(urgent):
            other_run = f"{run} {number}"
            if start_seconds <= simulation.now < start_seconds + seconds:
                held = min(wanted, free)
                free -= held
                announce_here(
                    SeatClaim(
                        run=other_run,
                        place=run,
                        slots=workers,
                        workers=wanted,
                        priority=1,
                        held=held,
                    )
                )
            else:
                forget_here(other_run)
        for slot in sharing.look(seats):
            simulation.seat(slot)
        simulation.at(SHARE_SECONDS, look)

    with sharing.joined():
        try:
            look()
            yield
        finally:
            for number in range(len(urgent)):
                forget_here(f"{run} {number}")


class SimulatedEngine(Engine):
    """All workers in this process, one after the other, on machines as fast as `cluster` says.

    Args:
        cluster: speeds and faults; no transport but "sockets" has an effect here.
    """

    name = "simulate"

    def __init__(self, cluster: SimulatedCluster | None = None) -> None:
        if not isinstance(cluster, SimulatedCluster | None):
            wrong = "the simulated cluster must be a photinus.SimulatedCluster"
            do = "e.g. SimulatedCluster(faults=Faults().kill(slot=1, step=40))"
            raise UsageError(wrong, got=type(cluster).__name__, do=do)
        self.cluster = cluster or SimulatedCluster()
        self._simulation: Simulation | None = None
        self._seconds_before = 0.0
        """The virtual seconds of the runs before the present one."""

    @property
    def seconds(self) -> float:
        """Virtual ones, of the present run or of the last."""
        return self._simulation.now if self._simulation is not None else 0.0

    def clock(self) -> float:
        return self._seconds_before + self.seconds

    @property
    def bytes(self) -> int:
        """Bytes sent by all, in all directions."""
        return self._simulation.bytes if self._simulation is not None else 0

    @property
    def happened(self) -> tuple[Any, ...]:
        """The faults of `cluster` that have happened so far, except `slow` and `slow_link`."""
        return tuple(self._simulation.happened) if self._simulation is not None else ()

    def run(self, run_spec: RunSpec) -> RunResult:
        data, plan = run_spec.data, run_spec.plan
        if run_spec.transport != SOCKETS:
            wrong = "the simulator's links are its SimulatedCluster's"
            got = f"transport {run_spec.transport!r}"
            raise UsageError(wrong, got=got, do='use transport="sockets", or another engine')
        if not isinstance(data, ArrayData):
            got = type(data).__name__
            raise UsageError("the simulator reads arrays", got=got, do="use the Spark engine")
        faults = self.cluster.faults
        rows_by_slot = [Rows.of(*part, scale=data.scale) for part in faults.dealt(data, plan)]
        worker_data = [
            part_of(rows_by_slot[s % len(rows_by_slot)], plan) for s in range(plan.workers)
        ]
        driver = faults.driver(run_spec, lambda: self.seconds)
        coordinator = Coordinator(plan, driver.run_spec, snapshot=run_spec.snapshot)
        simulation = Simulation(plan, worker_data, self.cluster, coordinator=coordinator)
        self._seconds_before += self.seconds
        self._simulation = simulation

        def look() -> None:
            driver.look()
            simulation.at(LOOK_SECONDS, look)

        if driver.is_timed:
            look()
        with driver, _shared_seats(run_spec, simulation):
            result = simulation.run()
        if result is None:
            raise RunFailedError("the simulated run came to a standstill")
        return result
