"""Ends a worker whose process takes more memory than it may, before the machine runs out of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from photinus.core.errors import NotReadyError, RunFailedError
from photinus.core.malloc import release_freed_memory

LOOK_SECONDS = 0.1
"""How often the memory of a worker's process is read."""
GRACE_SECONDS = 2.0
"""How long a worker over its cap may take to leave by itself."""
_STATM = Path("/proc/self/statm")


def anonymous_bytes() -> int:
    """Returns how much memory this process alone takes: resident, without files and shared pages.

    Raises:
        NotReadyError: the system does not report it.
    """
    try:
        resident, shared = map(int, _STATM.read_text().split()[1:3])
    except OSError as error:
        wrong = "memory= is measured on Linux only"
        raise NotReadyError(wrong, got=f"no {_STATM}", do="leave memory out") from error
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


class MemoryCap:
    """Reads the memory of a process ten times a second in a thread of its own, while it is open.

    That thread reports the error, whatever the worker computes at that moment. A worker that
    has not closed this two seconds later is ended.

    Args:
        max_bytes: that the process may take.
        slot: the seat of its worker.
        on_exceeded: called once, in that thread, with the error that says how much it took.
        read: returns the bytes that it takes.
        end: ends the process.

    Raises:
        NotReadyError: it takes more already.

    Example:
        >>> errors = []
        >>> taken = iter([100 << 20, 500 << 20, 700 << 20, 700 << 20])
        >>> cap = MemoryCap(512 << 20, 3, errors.append, lambda: next(taken))
        >>> cap.is_within_cap(), cap.is_within_cap()
        (True, False)
        >>> str(errors[0]).partition(" of ")[0]
        'worker 3 takes more memory than it may; got 700 MiB'
    """

    def __init__(
        self,
        max_bytes: int,
        slot: int,
        on_exceeded: Callable[[RunFailedError], object],
        read: Callable[[], int] = anonymous_bytes,
        end: Callable[[], object] = lambda: os._exit(0),  # it has reported why: it ended well
    ) -> None:
        self._max_bytes, self._slot = max_bytes, slot
        self._on_exceeded, self._read, self._end = on_exceeded, read, end
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        used_bytes = self._measure()
        if used_bytes >= max_bytes:
            wrong = f"memory is less than worker {slot} takes before it has any row"
            got = f"{max_bytes >> 20} MiB, and {used_bytes >> 20} MiB taken"
            do = "set memory to twice that at least: rows, model and batches come on top"
            raise NotReadyError(wrong, got=got, do=do)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def is_within_cap(self) -> bool:
        """Reads once; reports it when the process takes too much. Returns whether it does not."""
        used_bytes = self._measure()
        if used_bytes <= self._max_bytes:
            return True
        wrong = f"worker {self._slot} takes more memory than it may"
        got = f"{used_bytes >> 20} MiB of {self._max_bytes >> 20} MiB"
        do = "set memory to more, use a smaller batch, or more workers"
        self._on_exceeded(RunFailedError(wrong, got=got, do=do))
        return False

    def _measure(self) -> int:
        """Returns the bytes; where they are too many, without what the C library merely keeps."""
        used_bytes = self._read()
        if used_bytes <= self._max_bytes:
            return used_bytes
        release_freed_memory()
        return self._read()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            if not self.is_within_cap():
                if not self._closed.wait(GRACE_SECONDS):
                    self._end()
                return
