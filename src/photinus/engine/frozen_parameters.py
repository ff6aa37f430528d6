"""Parameters that are not trained, once for all workers of an executor."""

from __future__ import annotations

import fcntl
from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from photinus.core.errors import FencedError
from photinus.core.parameters import Vector
from photinus.training.requests import Grant, Hello, Request, WorkerGenerator


class FrozenFile:
    """A vector in a file that the workers of an executor map: one of them fetches it.

    Args:
        path: of the file; no other run's.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._has_claim = path, False
        # the system frees it, however a worker ends
        self._lock = path.with_suffix(".lock").open("w")

    def claim(self) -> bool:
        """Returns whether this worker is the one that fetches the vector."""
        if self._has_claim:
            return True
        with suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._has_claim = not self._path.exists()
            if not self._has_claim:
                fcntl.flock(self._lock, fcntl.LOCK_UN)
        return self._has_claim

    def write(self, vector: Vector) -> Vector:
        """Stores what was fetched, and returns it mapped."""
        part = self._path.with_suffix(".part")
        part.unlink(missing_ok=True)
        part.touch(0o600)
        with part.open("wb") as file:
            np.save(file, vector, allow_pickle=False)
        part.replace(self._path)
        self._has_claim = False
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        return self._map()

    def wait_for_vector(self) -> Vector | None:
        """Returns what another worker fetches, mapped; None where that worker was lost before.

        This worker then fetches it.
        """
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._has_claim = not self._path.exists()
        if self._has_claim:
            return None
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        return self._map()

    def close(self, *, is_over: bool) -> None:
        """Releases the file, and removes it once the run is over."""
        if is_over:
            self._path.unlink(missing_ok=True)
        self._lock.close()

    def _map(self) -> Vector:
        """Copy on write: torch wants numbers that may be written."""
        vector: Vector = np.load(self._path, mmap_mode="c", allow_pickle=False)
        return vector


def fetch_once(generator: WorkerGenerator, file: FrozenFile) -> WorkerGenerator:
    """Yields a generator's requests; what is frozen is sent to one worker of the executor.

    The hello of the others reports that they have it; they map the file of the one that fetches.

    Args:
        generator: the worker's.
        file: of its executor.
    """
    is_over = False
    try:
        request: Request = next(generator)
        while True:
            try:
                answer = yield from _exchange(request, file)
            except FencedError as error:
                request = generator.throw(error)
                continue
            request = generator.send(answer)
    except StopIteration:
        is_over = True
    finally:
        generator.close()
        file.close(is_over=is_over)


def _exchange(request: Request, file: FrozenFile) -> Generator[Request, Any, Any]:
    """Asks, and returns the answer; a grant with the vector, whichever worker fetched it."""
    if not isinstance(request, Hello) or request.has:
        return (yield request)
    is_fetcher = file.claim()
    grant = yield request._replace(has=0 if is_fetcher else 1)
    if not isinstance(grant, Grant):
        return grant
    frozen, others = None if is_fetcher else file.wait_for_vector(), grant.history
    if frozen is None:
        if not is_fetcher:
            grant = yield request  # it has the claim now
            if not isinstance(grant, Grant):
                return grant
        empty = np.zeros(0, np.float32)
        frozen = file.write(grant.history[0] if grant.history else empty)
        others = grant.history[1:]
    return replace(grant, history=(frozen, *others) if frozen.size else others)
