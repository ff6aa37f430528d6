"""Runs a function of the user's own as processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from photinus.coordinator.loop_coordinator import LoopCoordinator
from photinus.core.errors import DataError, RunFailedError, UsageError
from photinus.core.signals import interruptible
from photinus.engine.agree import Loop
from photinus.engine.driver_session import ListeningService

_RESTARTS, _EARLY_ENDS = 100, 3
"""How often processes are started again, and how often one may end before it has its seat."""
_LOOK_SECONDS, _LEAVE_SECONDS = 0.2, 5.0


def launch_here(
    function: Callable[..., object],
    data: Sequence[Any] | None,
    coordinator: LoopCoordinator,
    security: str,
    make_loop: Callable[[ListeningService], Loop],
) -> None:
    """Runs the function in one process for each slot, until all have returned.

    The processes are started afresh, not forked: the function travels by its name.

    Args:
        function: it stands in a module.
        data: rows of which each worker gets every K-th; None where the function takes none.
        coordinator: of the run.
        security: tls, or none.
        make_loop: returns what every worker is sent.

    Raises:
        UsageError: the function has no name that a process can import.
        RunFailedError: workers ended too often.
    """
    workers = coordinator.leases.workers
    parts = [[] if data is None else [list(data[slot::workers])] for slot in range(workers)]
    if any(part and not part[0] for part in parts):
        got = f"{len(data or ())} rows for {workers} workers"
        do = "hand over more, or use fewer workers"
        raise DataError("a worker has no rows", got=got, do=do)
    try:
        ForkingPickler.dumps(function)  # into a child's private pipe, never to a socket or a file
    except Exception as error:
        do = "define it in a module, not inside of another function"
        wrong = "the local engine sends a function by its name"
        raise UsageError(wrong, got=error, do=do) from error
    with interruptible(), ListeningService(coordinator, security=security) as service:
        loop, processes = make_loop(service), dict[int, Any]()

        def start(slot: int, attempt: int) -> None:
            arguments = (loop, slot, f"{slot}-{attempt}", function, parts[slot])
            context = multiprocessing.get_context("spawn")
            child = context.Process(target=_run, args=arguments, daemon=True)
            child.start()
            processes[slot] = child

        try:
            for slot in range(workers):
                start(slot, 0)
            _watch(service, processes, start, coordinator)
        finally:
            _end(processes)


def _watch(
    service: ListeningService,
    processes: dict[int, Any],
    start: Callable[[int, int], None],
    coordinator: LoopCoordinator,
) -> None:
    """Waits until all processes have ended well; one that did not is started again."""
    restarts, early_ends, leases = 0, Counter[int](), Counter[int]()
    while any(child.exitcode != 0 for child in processes.values()):
        if service.is_over:  # all functions have returned, or the run was stopped
            return
        wait([c.sentinel for c in processes.values() if c.exitcode is None], _LOOK_SECONDS)
        for slot, child in list(processes.items()):
            if child.exitcode in (None, 0):
                continue
            lease, got = coordinator.leases[slot].lease, f"exit code {child.exitcode}"
            early_ends[slot] = 0 if lease > leases[slot] else early_ends[slot] + 1
            restarts, leases[slot] = restarts + 1, lease
            if restarts > _RESTARTS or early_ends[slot] >= _EARLY_ENDS:
                do = "look at what it printed; it must be able to import the function's module"
                raise RunFailedError(f"worker {slot} ended too often", got=got, do=do)
            wrong = f"worker {slot} ended"
            coordinator.callbacks.warn(wrong, got=got, then="it is started again")
            start(slot, restarts)


def _end(processes: dict[int, Any]) -> None:
    for child in processes.values():
        child.join(_LEAVE_SECONDS if child.exitcode is None else 0)
        if child.exitcode is None:
            child.kill()
            child.join()


def _run(
    loop: Loop, slot: int, attempt: str, function: Callable[..., object], arguments: list[Any]
) -> None:
    os.environ.pop("RANK", None)
    os.environ.pop("WORLD_SIZE", None)
    loop.run(slot, attempt, function, lambda: arguments)
