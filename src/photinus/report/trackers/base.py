"""What all trackers share: one run of theirs for a whole run, fed by a thread of its own."""

from __future__ import annotations

import json
import logging
import queue
import secrets
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from photinus.core import events as e
from photinus.core.errors import NotReadyError, reason_of, user_message
from photinus.report.event_thinning import ThinnedEvents
from photinus.report.journal import read

_log = logging.getLogger("photinus")
_CLOSE_SECONDS: Final = {"done": 120.0, "failed": 5.0, "stopped": 5.0}
"""How long the end of a run waits for a tracker; a user who presses Ctrl-C does not wait long."""
_EVERY_SECONDS: Final = 0.25
"""Between two points of a curve; rounds between them are averaged."""
_SEND_SECONDS: Final = 2.0
"""How long points wait to be sent together: to wake the thread for each round costs more."""


@dataclass(frozen=True, slots=True)
class Point:
    """Metrics at one step."""

    step: int
    """Rounds of all phases so far."""
    metrics: Mapping[str, float]


def import_package(package: str, extra: str) -> Any:  # noqa: ANN401 - a module
    """Returns a tracker's own package.

    Raises:
        NotReadyError: it is not installed.
    """
    try:
        return import_module(package)
    except ImportError:
        do = f"pip install 'photinus[{extra}]'"
        raise NotReadyError(f"{package} is not installed", do=do) from None


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings by dots.

    Example:
        >>> flat({"model": {"epochs": 3}, "workers": 4})
        {'model.epochs': 3, 'workers': 4}
    """
    flattened: dict[str, Any] = {}
    for name, value in values.items():
        is_table = isinstance(value, Mapping) and value
        flattened |= flat(value, f"{prefix}{name}.") if is_table else {f"{prefix}{name}": value}
    return flattened


class Tracker:
    """A callback that keeps one run in a tracker, whatever the number of workers and resumes.

    Only the driver sends to the tracker. The run folder holds the key of the tracker's run, and a
    resume continues with it. Events wait in a queue: training never waits for the tracker, and one
    that fails ends no training, and is reported once.
    """

    name: str
    """Of its file in the run folder."""

    def __init__(self) -> None:
        self.folder, self.key = Path(), ""
        self._queue: queue.SimpleQueue[tuple[float, e.Event | None]] = queue.SimpleQueue()
        self._wake, self._event_seconds = threading.Event(), 0.0
        self._thinned = ThinnedEvents(
            self._process, _EVERY_SECONDS, now=lambda: self._event_seconds
        )
        self._thread: threading.Thread | None = None
        self._versions: dict[int, int] = {}
        self._newest: dict[str, float] = {}
        self._points: list[Point] = []
        self._state, self._has_begun = "failed", False

    @property
    def step(self) -> int:
        """Rounds of all phases so far."""
        return sum(self._versions.values())

    # -- what a run calls ------------------------------------------------------------------------

    def open(self, folder: Path) -> None:
        """Takes up the tracker's run of a run folder, or makes its key.

        Raises:
            NotReadyError: the tracker's package is not installed.
        """
        self.folder = folder
        key_file = folder / f"tracker-{self.name}.json"
        if key_file.is_file():
            self.key = str(json.loads(key_file.read_text())["key"])
        else:
            self.key = secrets.token_hex(8)
            key_file.write_text(json.dumps({"key": self.key}) + "\n")
        for stamped in read(folder / "events.jsonl"):
            self._count(stamped.event)
        self._connect()
        self._thread = threading.Thread(
            target=self._feed, name=f"photinus-{self.name}", daemon=True
        )
        self._thread.start()

    def __call__(self, event: e.Event) -> None:
        """Takes in one event; returns at once."""
        if isinstance(event, e.RunEnded):
            self._state = event.state
        self._queue.put((time.monotonic(), event))
        if not isinstance(event, (e.RoundClosed, e.WorkerReport)):
            self._wake.set()

    def close(self) -> None:
        """Sends what is left, the report and the model, and ends the tracker's run."""
        self._queue.put((time.monotonic(), None))
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS[self._state])
            if self._thread.is_alive():
                wrong = f"{self.name} has not taken all of the run yet"
                _log.warning(user_message(wrong, then="photinus does not wait for it any longer"))

    # -- what a tracker does ---------------------------------------------------------------------

    @abstractmethod
    def _connect(self) -> None:
        """Imports the tracker's package; refuses what is missing before any training."""

    @abstractmethod
    def _begin(self, run: str, settings: Mapping[str, Any]) -> None:
        """Makes the tracker's run, or continues with the one of `key`."""

    @abstractmethod
    def _send(self, points: Sequence[Point]) -> None:
        """Logs metrics."""

    @abstractmethod
    def _log_artifact(self, path: Path, kind: str, metrics: Mapping[str, float]) -> None:
        """Logs a file or a folder: a "checkpoint", the "model" or the "report"."""

    @abstractmethod
    def _end(self, state: str) -> None:
        """Ends the tracker's run: done, failed or stopped."""

    # -- the thread ------------------------------------------------------------------------------

    def _feed(self) -> None:
        try:
            for batch in self._batches():
                for self._event_seconds, event in batch:
                    self._thinned.write(event)
                if self._points:
                    points, self._points = self._points, []
                    self._send(points)
            self._finish()
        except Exception as error:  # of any tracker, network or disk
            wrong = f"the tracker {self.name} has failed"
            _log.warning(
                user_message(wrong, got=reason_of(error), then="training continues without it")
            )

    def _batches(self) -> Iterator[list[tuple[float, e.Event]]]:
        """Yields all events that have come, and when they came, until the run is over.

        Rounds and reports of workers wait for a while; what else happens is sent at once.
        """
        is_over = False
        while not is_over:
            self._wake.wait(_SEND_SECONDS)
            self._wake.clear()
            batch = []
            while not self._queue.empty():
                event_seconds, event = self._queue.get()
                if event is None:
                    is_over = True
                else:
                    batch.append((event_seconds, event))
            yield batch

    def _finish(self) -> None:
        self._thinned.flush()
        if not self._has_begun:  # the run failed before it began
            return
        self._send(self._points)
        if (self.folder / "report.html").is_file():
            self._log_artifact(self.folder / "report.html", "report", self._newest)
        if self._state == "done":
            self._log_artifact(self.folder / "model", "model", self._newest)
        self._end(self._state)

    def _process(self, event: e.Event) -> None:
        self._count(event)
        if isinstance(event, e.RunStarted):
            self._begin(event.run, flat(event.job))
            self._has_begun = True
        elif isinstance(event, e.CheckpointSaved):
            path = self.folder / "checkpoints" / event.name
            self._log_artifact(path, "checkpoint", {**self._newest, "version": event.version})
        metrics = _metrics(event)
        if metrics:
            self._newest |= {} if isinstance(event, e.WorkerReport) else metrics
            self._points.append(Point(self.step, metrics))

    def _count(self, event: e.Event) -> None:
        """Keeps how many rounds each phase has had; a resume goes back to its checkpoint's."""
        if isinstance(event, e.RoundClosed):
            self._versions[event.phase] = event.version
            self._versions = {p: n for p, n in self._versions.items() if p <= event.phase}


def _metrics(event: e.Event) -> dict[str, float]:
    """Returns the numbers of an event by the names that a tracker shows."""
    if isinstance(event, e.RoundClosed):
        sent = {"bytes_up": event.bytes_up, "bytes_down": event.bytes_down}
        seconds = {"round_seconds": event.seconds / event.rounds, "progress": event.progress}
        return {**event.metrics, **seconds, **sent}
    if isinstance(event, e.Evaluated):
        return {f"{event.name}/{name}": value for name, value in event.metrics.items()}
    if isinstance(event, e.WorkerReport):
        total = event.compute_seconds + event.wait_seconds
        facts = {
            "examples_per_second": event.examples_per_second,
            "wait_share": event.wait_seconds / total if total else 0.0,
            "bytes_sent": event.bytes_sent,
            "bytes_received": event.bytes_received,
        }
        return {f"system/worker_{event.slot}/{name}": value for name, value in facts.items()}
    return {}
