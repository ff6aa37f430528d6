"""Measures how long a computation takes on a busy machine.

Seconds are the processor's, of this thread: on a busy machine those of a wall clock would decide
by chance.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_seconds(call: Callable[[], object]) -> float:
    """Returns the processor seconds of one call.

    Some kernels count the time of a thread in ticks of 10 ms. A call that such a clock does not
    see is repeated: until a tick, and counted from there to the next one.
    """
    start = time.thread_time()
    call()
    if spent := time.thread_time() - start:
        return spent
    _calls_to_tick(call)
    start = time.thread_time()
    calls = _calls_to_tick(call)
    return (time.thread_time() - start) / calls


def _calls_to_tick(call: Callable[[], object]) -> int:
    start, calls = time.thread_time(), 0
    while not calls or time.thread_time() == start:  # a tick may come before the first call
        call()
        calls += 1
    return calls
