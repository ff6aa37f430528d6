"""Injects faults into the driver process and its run folder."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Self

from photinus.core.errors import UsageError
from photinus.core.events import Event, RoundClosed
from photinus.engine.base import RunSpec
from photinus.engine.hooks import LOOK_SECONDS, DriverHooks
from photinus.testing.faults.fault import FILL_DISK, FLIP_BIT, KILL_DRIVER, Fault
from photinus.testing.faults.process import note

_MOST_FILLED_BYTES = 1 << 30
"""No disk with more room than that is filled: a slip must not stop a machine."""
_TRIES = 20


class DriverFaults(DriverHooks):
    """Does faults to this process while an engine runs, in the order in which they were named.

    Args:
        planned: the driver's own.
        run_spec: what the engine runs.
        now: seconds, of the engine's clock; left out, real ones, at which a thread looks.
        diary: a file to note them in, just before; or nothing.

    Raises:
        UsageError: a fault of the disk or a checkpoint without a folder, or on a large disk.
    """

    def __init__(
        self,
        planned: Iterable[Fault],
        run_spec: RunSpec,
        now: Callable[[], float] | None = None,
        diary: str = "",
    ) -> None:
        self._planned, self._diary = list(planned), diary
        self.is_timed = bool(self._planned)
        self._folder, self._emit = Path(run_spec.folder), run_spec.emit
        for fault in self._planned:
            if fault.kind != KILL_DRIVER and not run_spec.folder:
                wrong = f"{fault.kind} needs the folder of a run"
                raise UsageError(wrong, got="a run without one")
            if fault.kind == FILL_DISK:
                _free_bytes(self._folder)
        watched_spec = replace(run_spec, emit=self._on_event) if self._planned else run_spec
        super().__init__(watched_spec)
        self._now, self._began = now or time.monotonic, 0.0
        self._is_real, self._rounds = now is None, 0
        self._flip_count = 0
        self._ballast, self._release_at = contextlib.ExitStack(), math.inf
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="photinus-faults", daemon=True)

    def __enter__(self) -> Self:
        self._began = self._now()
        if self._planned and self._is_real:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._ballast.close()

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            self.look()

    def _on_event(self, event: Event) -> None:
        self._emit(event)
        if isinstance(event, RoundClosed):
            self._rounds += event.rounds
            self.look()

    def look(self) -> None:
        with self._lock:
            if self._now() >= self._release_at:
                self._ballast.close()
            while self._planned and self._is_due(self._planned[0]):
                self._inject(self._planned.pop(0))

    def _is_due(self, fault: Fault) -> bool:
        if fault.kind == FLIP_BIT and not self._checkpoints():
            return False
        if fault.step is not None:
            return self._rounds >= fault.step
        return self._now() - self._began >= (fault.at_seconds or 0.0)

    def _inject(self, fault: Fault) -> None:
        note(self._diary, fault)  # before: after it there is no room, or no process
        if fault.kind == KILL_DRIVER:
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == FLIP_BIT:
            self._flip_bit()
        else:
            self._fill()
            self._release_at = self._now() + fault.seconds

    def _fill(self) -> None:
        """Takes all room; a file without a name is gone with the process."""
        temporary_file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - the stack's
        file, filled_bytes = self._ballast.enter_context(temporary_file), 0
        for _ in range(_TRIES):
            if free_bytes := _free_bytes(self._folder):
                with contextlib.suppress(OSError):  # another process took of it meanwhile
                    os.posix_fallocate(file.fileno(), filled_bytes, free_bytes)
                    filled_bytes += free_bytes

    def _checkpoints(self) -> list[tuple[int, Path]]:
        """Returns the whole ones, each with its moment."""
        found = []
        for path in self._folder.glob("checkpoints/[!.]*/manifest.json"):
            with contextlib.suppress(FileNotFoundError):  # an old one, which is removed
                found.append((path.stat().st_mtime_ns, path.parent))
        return found

    def _flip_bit(self) -> None:
        """In the middle of the newest checkpoint's largest file."""
        _, newest = max(self._checkpoints())
        largest = max(newest.glob("*.safetensors"), key=lambda path: path.stat().st_size)
        self._flip_count += 1  # the next one flips another
        with largest.open("r+b") as file:
            file.seek(largest.stat().st_size // 2 + self._flip_count)
            [byte] = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))


def _free_bytes(folder: Path) -> int:
    """Returns the bytes that are free on a disk that may be filled.

    Raises:
        UsageError: they are so many that it is no disk of the run's own.
    """
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free > _MOST_FILLED_BYTES:
        wrong = "only a small disk of the run's own is filled on purpose"
        got, do = f"{free >> 20} MiB free", "mount one, as `mount -t tmpfs -o size=16m`"
        raise UsageError(wrong, got=got, do=do)
    return free
