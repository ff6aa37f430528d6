"""Holds a worker to a share of the processors, by measurement: it waits between its batches."""

from __future__ import annotations

import math
import os
import platform
import threading
from collections.abc import Callable
from time import monotonic, process_time

from photinus.core.errors import FencedError, NotReadyError, UsageError, user_message
from photinus.training.requests import Request, StepDone, WorkerGenerator

BURST_SECONDS = 1.0
"""The longest pause that a process may make up for, in seconds of the clock."""


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


class CpuShare:
    """A token bucket of processor seconds, the sibling of `RateLimit`.

    In any t seconds a process uses at most share · (t + 1) of them, and those of its last batch. A
    batch is measured once it is over; a longer one is followed by a longer wait.

    Args:
        processors: the share: 0.5 is half of one processor.
        used: seconds of all processors that this process has used, with all its threads.
        now: returns the seconds of a monotonic clock.
        wait: stands still for so many seconds.

    Example:
        >>> seconds, waited = [0.0], []
        >>> share = CpuShare(0.5, lambda: seconds[0], lambda: seconds[0], waited.append)
        >>> seconds[0] = 3.0
        >>> share.settle()
        >>> waited
        [3.0]
    """

    def __init__(
        self,
        processors: float,
        used: Callable[[], float] = process_time,
        now: Callable[[], float] = monotonic,
        wait: Callable[[float], None] = _wait,
    ) -> None:
        self._processors, self._used, self._now, self._wait = processors, used, now, wait
        self._used_before, self._free_at = used(), now()

    def settle(self) -> None:
        """Waits until all that was used is within the share."""
        used, now = self._used(), self._now()
        # added before it is compared: what a long batch earned meanwhile is its own
        self._free_at += (used - self._used_before) / self._processors
        self._free_at = max(self._free_at, now - BURST_SECONDS)
        self._used_before = used
        if self._free_at > now:
            self._wait(self._free_at - now)


def paced(generator: WorkerGenerator, share: CpuShare) -> WorkerGenerator:
    """Yields the requests of a worker's generator; each batch ends once it is within the share.

    Args:
        generator: the worker's.
        share: of its process.
    """
    try:
        request: Request = next(generator)
        while True:
            if isinstance(request, StepDone):
                share.settle()
            try:
                answer = yield request
            except FencedError as error:
                request = generator.throw(error)
                continue
            request = generator.send(answer)
    except StopIteration:
        return
    finally:
        generator.close()


def check_share(share: float | None, threads: int) -> None:
    """Refuses a share that a worker could not use up.

    Args:
        share: of a worker; None for no cap.
        threads: with which it computes.

    Raises:
        UsageError: it is larger than its threads.
    """
    if share is not None and share > threads:
        wrong, got = "cpu_share is more than a worker's threads use", f"{share:g} of {threads}"
        do = f"set threads to {math.ceil(share)}, or cpu_share to at most {threads}"
        raise UsageError(wrong, got=got, do=do)


def processors() -> int:
    """Returns how many processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_processors(share: float, slot: int) -> None:
    """Refuses a share of more processors than this machine has.

    Args:
        share: of a worker.
        slot: its seat.

    Raises:
        NotReadyError: there are fewer.
    """
    available = processors()
    if share > available:
        wrong = f"cpu_share is more than the processors that worker {slot} may run on"
        got = f"{share:g}, and {available} on {platform.node()}"
        raise NotReadyError(wrong, got=got, do=f"set cpu_share to at most {available}")


def share_report_lines(share: float, workers: int, *, is_here: bool) -> list[str]:
    """Returns what a run reports at its start about the shares of its workers.

    Args:
        share: of each worker.
        workers: how many.
        is_here: they are processes of this machine.

    Example:
        >>> share_report_lines(0.5, 4, is_here=False)
        ['cpu_share=0.5: measured by each worker, which waits between its batches']
    """
    lines = [f"cpu_share={share:g}: measured by each worker, which waits between its batches"]
    if is_here and share * workers > processors():
        wrong = "the workers' shares are more than the processors here"
        got = f"{workers} · {share:g}, and {processors()}"
        lines.append(user_message(wrong, got=got, then="each gets less than its share"))
    return lines
