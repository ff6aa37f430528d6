"""Where a job trains: the engine that it names, or one of the caller's."""

from __future__ import annotations

from photinus.core.errors import UsageError
from photinus.engine.base import Engine
from photinus.run.job import Job


def engine_of(name: str) -> Engine:
    """Returns the engine of that name."""
    if name == "spark":
        from photinus.engine.spark.engine import SparkEngine

        return SparkEngine()
    if name == "local":
        from photinus.engine.local.engine import LocalEngine

        return LocalEngine()
    from photinus.engine.simulation.engine import SimulatedEngine

    return SimulatedEngine()


def checked_engine(job: Job, engine: Engine | None) -> Engine:
    """Returns the engine that a caller named, else the job's.

    Raises:
        UsageError: it is no engine, or its simulated speeds are not one for each worker.
    """
    engine = engine or engine_of(job.engine)
    if not isinstance(engine, Engine):
        do = 'e.g. LocalEngine(); or name one in the job: engine="local"'
        raise UsageError("engine must be an Engine", got=repr(engine), do=do)
    if engine.name == "simulate" and job.deadline_seconds is None:  # by which fewer may train
        from photinus.engine.simulation.engine import SimulatedEngine

        if isinstance(engine, SimulatedEngine):
            engine.cluster.check_workers(job.workers)
    return engine
