"""What a worker process does, wherever it lives: the same few lines in a child and in a task."""

from __future__ import annotations

import logging
import os
import platform
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from photinus.core import errors
from photinus.core.errors import LinkError, PhotinusError, RunFailedError
from photinus.nodes.life import Part, live
from photinus.nodes.mail import Seat
from photinus.nodes.program import Program
from photinus.nodes.worker import Worker
from photinus.transport.beat import Beater
from photinus.transport.credentials import WorkerKey
from photinus.transport.tcp import TcpLink

__all__ = ["BEAT_SECONDS", "Errand", "told_error"]

BEAT_SECONDS = 1.0
PATIENCE_SECONDS = 30.0
"""So long a worker looks for a coordinator that it lost; then it ends by itself."""


@dataclass(frozen=True, slots=True)
class Errand:
    """What travels to every worker: where to say hello, with which key, and what to train."""

    program: Program
    address: str
    key: WorkerKey
    term: int

    def run(self, slot: int, attempt: str, open_part: Callable[[], Part]) -> None:
        """Trains in one slot until the run is over; an error of its own ends the run.

        Args:
            slot: the seat to take.
            attempt: tells this life from others of the same slot.
            open_part: reads the slot's rows, once.
        """
        seat = Seat(self.key.run, self.term, 0, slot, 0)
        try:
            self._train(seat, attempt, open_part)
        except (RunFailedError, LinkError) as over:
            logging.getLogger("photinus").warning("worker %d ends: %s", slot, over)
        except Exception as error:
            self._tell(seat, error)

    def _train(self, seat: Seat, attempt: str, open_part: Callable[[], Part]) -> None:
        _use_threads(self.program.threads)
        beater = Beater(
            lambda: TcpLink(self.address, self.key, patience_seconds=2 * BEAT_SECONDS),
            seat.frame("beat"),
            BEAT_SECONDS,
        )

        def seated(now: Seat) -> None:
            beater.frame = now.frame("beat")

        with beater:
            part = open_part()
            worker = Worker(
                live(self.program, seat.slot, part),
                self._link,
                seat,
                about={"attempt": attempt or uuid.uuid4().hex, "host": _host(), "pid": os.getpid()},
                seated=seated,
            )
            try:
                worker.run()
            finally:
                worker.close()

    def _link(self) -> TcpLink:
        return TcpLink(self.address, self.key, patience_seconds=PATIENCE_SECONDS)

    def _tell(self, seat: Seat, error: Exception) -> None:
        """Sends the error to the coordinator; the traceback only where it is no plain sentence."""
        text = str(error)
        if not isinstance(error, PhotinusError):
            text = f"worker {seat.slot} failed: " + "".join(traceback.format_exception(error))
        note = {"error": text[-20_000:], "type": type(error).__name__}
        link = self._link()
        try:
            link.exchange(seat.frame("bye", note=note), 0.0)
        finally:
            link.close()


def told_error(text: str, kind: str) -> PhotinusError:
    """Returns the error that a worker told of, in its own class."""
    cls = getattr(errors, kind, RunFailedError) if kind in errors.__all__ else RunFailedError
    is_ours = isinstance(cls, type) and issubclass(cls, PhotinusError)
    return cls(text) if is_ours else RunFailedError(text)


def _host() -> str:
    return platform.node()


def _use_threads(threads: int) -> None:
    """A fixed count of threads is part of "same seed, same bits"."""
    import torch

    torch.set_num_threads(threads)
