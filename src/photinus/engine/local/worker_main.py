"""The worker process of the local engine; it reads its task from its parent's pipe."""

from __future__ import annotations

import os
import pickle  # noqa: TID251 - from the parent's private pipe, never from a socket or a file
import signal
import sys
import threading
from dataclasses import dataclass, replace
from types import FrameType

from photinus.core.errors import LinkLostError, NotReadyError
from photinus.core.file_limit import allow_descriptors
from photinus.data.rows import Rows
from photinus.engine.base import part_of
from photinus.engine.local.shared_rows import StoredRows
from photinus.engine.worker_bootstrap import SPARE_DESCRIPTORS, WorkerBootstrap
from photinus.training.worker_loop import WorkerData

UNREADABLE, LOST, NOT_INHERITED, NO_FILES = 64, 65, 66, 67
"""Exit codes of a child that cannot read its spec, that finds no coordinator any more, that does
not have the files that its parent handed to it, or that may not open enough files."""
_TERMINATED = 128 + signal.SIGTERM
_GRACE_SECONDS = 10.0
"""How long a child that got SIGTERM waits for its driver, which may have got it, too."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What a parent hands to its child."""

    bootstrap: WorkerBootstrap
    slot: int
    attempt: str
    stored: StoredRows
    scale: float | None
    rows_fd: int
    """The descriptor of the file that holds the rows of all slots."""
    parent_fd: int
    """The descriptor of a pipe that is never written to: it ends with the parent."""

    def part(self) -> WorkerData:
        """Opens the slot's rows."""
        rows = Rows.of(*self.stored.mapped(self.rows_fd), scale=self.scale)
        return part_of(rows, self.bootstrap.plan)


def main(rows_fd: int | None = None, parent_fd: int | None = None) -> int:
    """Runs one worker; returns the exit code.

    Args:
        rows_fd: the descriptor of the file of all rows, where it is not the one that the child's
            spec names.
        parent_fd: likewise, of the pipe that ends with the parent.
    """
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        allow_descriptors(SPARE_DESCRIPTORS, "a worker")
    except NotReadyError as error:
        sys.stderr.write(f"{error}\n")
        return NO_FILES
    try:
        child_spec: ChildSpec = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by the parent process
    except (AttributeError, ImportError) as error:
        sys.stderr.write(f"{error}\n")
        return UNREADABLE
    except (EOFError, pickle.UnpicklingError):  # the parent ended before it had sent everything
        return LOST
    if rows_fd is not None and parent_fd is not None:
        child_spec = replace(child_spec, rows_fd=rows_fd, parent_fd=parent_fd)
    try:
        os.fstat(child_spec.rows_fd)
        os.fstat(child_spec.parent_fd)
    except OSError:
        return NOT_INHERITED
    watcher = threading.Thread(
        target=_exit_with_parent, args=(child_spec.parent_fd,), name="parent", daemon=True
    )
    watcher.start()
    try:
        child_spec.bootstrap.run(child_spec.slot, child_spec.attempt, child_spec.part)
    except LinkLostError:
        return LOST
    return 0


def _exit_with_parent(parent_fd: int) -> None:
    """Ends this process when its parent has ended, however that happened."""
    os.read(parent_fd, 1)
    os._exit(LOST)


def _on_sigterm(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as Python calls
    """Ignores the first SIGTERM: a service manager may send it to all processes at once.

    The driver still wants a last checkpoint from this process, and ends it afterwards. A second
    signal ends the process at once.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(_TERMINATED))
    timer = threading.Timer(_GRACE_SECONDS, os._exit, (_TERMINATED,))
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main())
