"""Shows a run in the terminal: a live view on a screen, plain lines in a file."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from photinus.core import events as e
from photinus.core.errors import without_numbers
from photinus.report.event_text import line_of, metrics_text, virtual_line_of
from photinus.report.formatting import bytes_text, count_text, seconds_text
from photinus.report.notebook import Cell, in_notebook
from photinus.report.summary import PhaseState, Summary, WorkerState

_REFRESH_SECONDS = 0.25
_SHOWN_WORKERS = 16
_STYLES: dict[type[e.Event], str] = {
    e.RunStarted: "bold",
    e.PhaseStarted: "bold",
    e.PhaseEnded: "green",
    e.Evaluated: "bold",
    e.WorkerLost: "yellow",
    e.CheckpointFailed: "yellow",
    e.Warned: "yellow",
    e.RunEnded: "bold",
}
_CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160))} | {10: " ", 9: " "}


def is_watched() -> bool:
    """Returns whether the output is watched: on a screen, or in a notebook.

    False in all threads but the main one: several runs at once would write over each other.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and (in_notebook() or Console().is_terminal)


class Terminal:
    """Shows events as they come, from any thread.

    On a screen and in a notebook: the phase, its progress, and a table of the workers, drawn again
    in place, at most four times a second. Elsewhere: one line about every `every_seconds`, and one
    for each phase, worker, checkpoint and warning.

    Args:
        console: where to; standard output when left out.
        every_seconds: between two lines of progress.
        now: returns the seconds of a monotonic clock.
    """

    def __init__(
        self,
        console: Console | None = None,
        every_seconds: float = 10.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console()
        self._every_seconds = every_seconds
        self._now = now
        self._began = now()
        self._summary = Summary()
        self._lock = threading.Lock()
        self._last_draw = self._last_line = -float("inf")
        self._is_broken = False
        self._failure = ""
        """Why the last checkpoint failed, if it did."""
        self._live: Live | Cell | None = None
        if console is None and in_notebook():
            self._live = Cell()
            self._console = self._live.console
        elif self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()

    @property
    def is_live(self) -> bool:
        """True while a view is drawn on a screen."""
        return self._live is not None

    def write(self, event: e.Event) -> None:
        """Takes in one event; where nothing can be shown any more, it is silent."""
        with self._lock:
            at = self._now() - self._began
            self._summary.add(at, event)
            if not self._is_broken:
                # rich turns a closed pipe into an exit: `| head` must not end the training
                try:
                    self._show(at, event)
                except (OSError, ValueError, SystemExit):
                    self._is_broken = True

    def close(self) -> None:
        """Draws the last state and gives the screen back; closing twice is harmless."""
        with self._lock:
            live, self._live = self._live, None
            if live:
                with contextlib.suppress(OSError, ValueError, SystemExit):
                    live.update(_view(self._summary), refresh=not self._is_broken)
                    live.stop()

    def _show(self, at: float, event: e.Event) -> None:
        if isinstance(event, e.RunEnded):
            event = replace(event, reason="")  # the error informs the caller
        is_virtual = self._summary.engine == "simulate"
        line = virtual_line_of(event) if is_virtual else line_of(event)
        if not self._repeats_failure(event) and line:
            self._print(at, line, _STYLES.get(type(event), ""))
        if self._live:
            self._draw(at)
        else:
            self._print_progress(at, event)

    def _repeats_failure(self, event: e.Event) -> bool:
        """Returns whether a checkpoint fails as the one before it: a full disk is told once."""
        if not isinstance(event, e.CheckpointFailed | e.CheckpointSaved):
            return False
        before, self._failure = self._failure, ""
        if isinstance(event, e.CheckpointFailed):
            self._failure = without_numbers(event.reason)
        return self._failure == before != ""

    def _draw(self, at: float) -> None:
        if self._live and at - self._last_draw >= _REFRESH_SECONDS:
            self._last_draw = at
            self._live.update(_view(self._summary), refresh=True)

    def _print_progress(self, at: float, event: e.Event) -> None:
        if isinstance(event, e.PhaseStarted):
            self._last_line = at
        if isinstance(event, e.RoundClosed) and at - self._last_line >= self._every_seconds:
            self._last_line = at
            phase = self._summary.phases[event.phase]
            self._print(at, _progress_line(phase))

    def _print(self, at: float, line: str, style: str = "") -> None:
        stamp = f"{int(at) // 60:3d}:{int(at) % 60:02d}  "
        text = Text.assemble((stamp, "dim"), (_clean(line), style))
        self._console.print(text, highlight=False, soft_wrap=True)


def _clean(text: str) -> str:
    """Returns text without control codes: a host or a message must not steer the terminal."""
    return text.translate(_CONTROL)


def _progress_line(phase: PhaseState) -> str:
    """Returns how far a phase is, in one line."""
    parts = [f"{phase.name}  {phase.progress:4.0%}"]
    if phase.epochs:
        parts.append(f"epoch {phase.progress * phase.epochs:.1f} of {phase.epochs:g}")
    if phase.metrics:
        parts.append(metrics_text(phase.metrics))
    parts.append(f"{count_text(phase.examples_per_second)} examples/s")
    parts.append(f"round {seconds_text(phase.mean_round_seconds)}")
    parts.append(bytes_text(phase.bytes_up + phase.bytes_down))
    if phase.seconds_left is not None:
        parts.append(f"{seconds_text(phase.seconds_left)} left")
    return "  ·  ".join(parts)


def _view(summary: Summary) -> RenderableType:
    """Returns the live view of a run."""
    phase = summary.phase
    if phase is None:
        present = sum(w.is_here for w in summary.workers.values())
        return Text(f"{summary.run}  {present} of {summary.expected_workers} workers are here")
    header = Table.grid(padding=(0, 2))
    header.add_row(
        Text(_clean(phase.name), style="bold"),
        ProgressBar(total=1.0, completed=min(1.0, phase.progress), width=32),
        Text(f"{phase.progress:4.0%}"),
        Text(_remaining_text(phase), style="dim"),
    )
    return Group(Text(""), header, Text("  ".join(_facts(phase))), _workers(summary))


def _remaining_text(phase: PhaseState) -> str:
    epoch = f"epoch {phase.progress * phase.epochs:.1f} of {phase.epochs:g}   "
    left = "" if phase.seconds_left is None else f"{seconds_text(phase.seconds_left)} left"
    return (epoch if phase.epochs else "") + left


def _facts(phase: PhaseState) -> list[str]:
    return [
        metrics_text(phase.metrics),
        f"{count_text(phase.examples_per_second)} examples/s",
        f"{phase.rounds} rounds of {seconds_text(phase.mean_round_seconds)}",
        f"{bytes_text(phase.bytes_up)} up, {bytes_text(phase.bytes_down)} down",
    ]


def _workers(summary: Summary) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("worker")
    table.add_column("host")
    for name in ("steps", "examples/s", "waits", "sent", "received"):
        table.add_column(name, justify="right")
    table.add_column("")
    shown = sorted(summary.workers.values(), key=lambda w: (w.is_here, w.slot))[:_SHOWN_WORKERS]
    for worker in sorted(shown, key=lambda w: w.slot):
        table.add_row(*_cells(worker), style="" if worker.is_here else "dim")
    hidden = len(summary.workers) - len(shown)
    if hidden:
        table.add_row(Text(f"and {hidden} more", style="dim"))
    return table


def _cells(worker: WorkerState) -> list[Text]:
    cells = (
        str(worker.slot),
        worker.host,
        count_text(worker.steps),
        count_text(worker.examples_per_second),
        f"{worker.wait_share:.0%}",
        bytes_text(worker.bytes_sent),
        bytes_text(worker.bytes_received),
        "" if worker.is_here else f"lost: {worker.reason}",
    )
    # Text, not str: a host's name in [brackets] must not be read as markup
    return [Text(_clean(cell)) for cell in cells]
