"""Writes checkpoints in a background thread; training waits only for one copy in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from photinus.checkpoint.files import Tensors
from photinus.checkpoint.mapped import MappedFile
from photinus.checkpoint.store import Store
from photinus.core.errors import CheckpointError
from photinus.core.events import CheckpointFailed, CheckpointSaved

_Outcome = CheckpointSaved | CheckpointFailed


@dataclass(frozen=True, slots=True)
class _SaveRequest:
    name: str
    meta: Mapping[str, Any]
    files: Mapping[str, Tensors]
    is_best: bool


def _copy(array: NDArray[Any], spare: NDArray[Any] | None) -> NDArray[Any]:
    if spare is None or (spare.shape, spare.dtype) != (array.shape, array.dtype):
        return np.array(array)
    np.copyto(spare, array)
    return spare


def _copies(arrays: Tensors, spare: Tensors) -> Tensors:
    return {name: _copy(array, spare.get(name)) for name, array in arrays.items()}


def _reusable_copies(files: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """Returns what can be written over."""
    return {file: arrays for file, arrays in files.items() if not isinstance(arrays, MappedFile)}


class Saver:
    """Writes into a store from its own thread; at most one save is in progress.

    While one is written, one more may wait; a newer takes the waiting one's place, since only
    the newest is worth writing. The best point so far waits beside it.

    Args:
        store: where to.
        report: called from the thread with each outcome; `phase` and `version` are taken from
            the checkpoint's meta. A failure is an outcome too: training continues.
    """

    def __init__(self, store: Store, report: Callable[[_Outcome], None]) -> None:
        self._store = store
        self._report = report
        self._changed = threading.Condition()
        self._waiting: _SaveRequest | None = None
        self._best: _SaveRequest | None = None
        self._spare: Mapping[str, Tensors] = {}
        """Memory of an earlier copy: fresh pages cost ten times what the copy itself does."""
        self._is_closed = False
        self._report_error: BaseException | None = None
        """What `report` raised: a callback of the user's."""
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
        self._thread.start()

    def save(
        self,
        name: str,
        meta: Mapping[str, Any],
        files: Mapping[str, Tensors],
        *,
        is_best: bool = False,
    ) -> None:
        """Copies the arrays and returns; they may be written into again at once.

        Those of a `MappedFile` lie on disk, never change, and are not copied.

        Args:
            name: as of `Store.save`.
            meta: likewise.
            files: likewise.
            is_best: pins it: it is kept until a better one comes.

        Raises:
            CheckpointError: the saver is closed.
            BaseException: what `report` raised of an earlier one.
        """
        with self._changed:
            if self._report_error is not None:
                raise self._report_error
            spare, self._spare = self._spare, {}
        copies = {
            file: arrays if isinstance(arrays, MappedFile) else _copies(arrays, spare.get(file, {}))
            for file, arrays in files.items()
        }
        with self._changed:
            if self._is_closed:
                raise CheckpointError("nothing can be saved: the saver is closed", got=name)
            request = _SaveRequest(name, dict(meta), copies, is_best)
            if is_best:
                self._best = request
            else:
                if self._waiting is not None:
                    self._spare = _reusable_copies(self._waiting.files)
                self._waiting = request
            self._changed.notify()

    def close(self) -> None:
        """Writes what waits, then ends the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _next(self) -> _SaveRequest | None:
        with self._changed:
            self._changed.wait_for(lambda: self._best or self._waiting or self._is_closed)
            if self._best is not None:
                request, self._best = self._best, None
                return request
            newest, self._waiting = self._waiting, None
            return newest

    def _work(self) -> None:
        while (request := self._next()) is not None:
            outcome = self._save(request)
            try:
                self._report(outcome)
            except BaseException as error:  # the next save raises it where it ends the run
                self._report_error = error
            with self._changed:
                self._spare = _reusable_copies(request.files)

    def _save(self, request: _SaveRequest) -> _Outcome:
        started = time.monotonic()
        try:
            folder = self._store.save(request.name, request.meta, request.files)
            if request.is_best:
                self._store.pin(request.name)
            size = sum(file.stat().st_size for file in folder.iterdir())
        except Exception as error:  # a thread that dies silently would never save again
            return CheckpointFailed(name=request.name, reason=str(error))
        return CheckpointSaved(
            name=request.name,
            phase=int(request.meta.get("phase", 0)),
            version=int(request.meta.get("version", 0)),
            seconds=time.monotonic() - started,
            bytes=size,
        )
