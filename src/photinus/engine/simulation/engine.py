"""The simulator as an engine: real gradients, virtual time."""

from __future__ import annotations

from photinus.coordinator.coordinator import Coordinator, Result
from photinus.core.errors import RunFailedError, UsageError
from photinus.data.rows import Rows
from photinus.engine.base import SOCKETS, ArrayData, Assignment, Engine, part_of
from photinus.engine.faults.data import dealt
from photinus.engine.faults.driver import LOOK_SECONDS, DriverFaults
from photinus.engine.faults.plan import Fault
from photinus.engine.simulation.cluster import World
from photinus.engine.simulation.simulator import Simulation

__all__ = ["SimulatedEngine"]


class SimulatedEngine(Engine):
    """All workers in this process, one after the other, on machines as fast as `world` says.

    Args:
        world: speeds and accidents; no road but "sockets" means anything here.
    """

    name = "simulate"

    def __init__(self, world: World | None = None) -> None:
        if not isinstance(world, World | None):
            got, do = type(world).__name__, "e.g. World(faults=Faults().kill(slot=1, step=40))"
            raise UsageError("a simulated world must be photinus.World", got=got, do=do)
        self.world = world or World()
        self._simulation: Simulation | None = None

    @property
    def seconds(self) -> float:
        """Virtual ones, of the run that goes on or was the last."""
        return self._simulation.now if self._simulation is not None else 0.0

    @property
    def bytes(self) -> int:
        """Sent by all, in all directions."""
        return self._simulation.bytes if self._simulation is not None else 0

    @property
    def happened(self) -> tuple[Fault, ...]:
        """The faults of `world` that that came true so far, but for `slow`."""
        return tuple(self._simulation.happened) if self._simulation is not None else ()

    def run(self, assignment: Assignment) -> Result:
        """See `Engine.run`."""
        data, program = assignment.data, assignment.program
        if assignment.road != SOCKETS:
            wrong, got = "the simulator's links are its World's", f"road {assignment.road!r}"
            raise UsageError(wrong, got=got, do='use road="sockets", or another engine')
        if not isinstance(data, ArrayData):
            got = type(data).__name__
            raise UsageError("the simulator reads arrays", got=got, do="use the Spark engine")
        faults = self.world.faults
        rows = [Rows.of(*part, scale=data.scale) for part in dealt(data, program, faults)]
        parts = [part_of(rows[s % len(rows)], program) for s in range(program.workers)]
        harm = DriverFaults(faults, assignment, lambda: self.seconds)
        coordinator = Coordinator(program, harm.assignment.callbacks(), cut=assignment.cut)
        simulation = Simulation(program, parts, self.world, coordinator=coordinator)
        self._simulation = simulation

        def look() -> None:
            harm.look()
            simulation.at(LOOK_SECONDS, look)

        if faults.of_driver:
            look()
        with harm:
            result = simulation.run()
        if result is None:
            raise RunFailedError("the simulated run came to a standstill")
        return result
