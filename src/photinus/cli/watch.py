"""Shows a run on the screen, and prints how to resume it after it was stopped."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from photinus.core.errors import DataError, PhotinusError, RunFailedError, UsageError
from photinus.core.events import Event

if TYPE_CHECKING:
    from photinus.checkpoint.mirror import Mirror


class StoppedError(PhotinusError):
    """The user stopped a run; the message says how to continue."""


@contextlib.contextmanager
def watched(
    folder: Path, mirror: Mirror | None = None, command: str = "train"
) -> Iterator[tuple[Callable[[Event], None], ...]]:
    """Shows a run; if it is stopped, the error says how to continue.

    Args:
        folder: where the run is kept; the output of Java and the workers is written to its
        `logs/spark.log`.
        mirror: of the folder, at an address that outlives this machine.
        command: of photinus, which continues with it.
    """
    from photinus.report.terminal import Terminal
    from photinus.run.resume_hint import resume_hint

    terminal = Terminal()
    try:
        with redirect_stderr(_log_of(folder)):
            yield (terminal.write,)
    except KeyboardInterrupt as error:
        raise StoppedError("stopped" + resume_hint(folder, mirror, command)) from error
    except RunFailedError as error:
        hint = resume_hint(folder, mirror, command)
        raise RunFailedError(str(error).removesuffix(hint) + hint) from error
    except (UsageError, DataError):  # refused before there was a run: nothing is left of it
        if not (folder / "job.json").is_file():
            _remove_log_folder(folder)
        raise
    finally:
        terminal.close()


@contextlib.contextmanager
def redirect_stderr(file: Path) -> Iterator[None]:
    """Sends what this process and its children write to standard error into a file."""
    try:
        target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        target = -1
    if is_debugging() or target < 0:
        yield
        return
    sys.stderr.flush()
    saved_stderr = os.dup(2)
    os.dup2(target, 2)
    os.close(target)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved_stderr, 2)
        os.close(saved_stderr)


def _log_of(folder: Path) -> Path:
    """Returns the file of a run folder for the output of Java and the workers."""
    file = folder / "logs" / "spark.log"
    is_run = (folder / "job.json").is_file()
    # a folder that cannot take a run is refused by the run itself, which must find it as it was
    with contextlib.suppress(OSError):
        if is_run or not folder.exists() or not any(folder.iterdir()):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # parents get no mode
            file.parent.mkdir(mode=0o700, exist_ok=True)
    return file


def _remove_log_folder(folder: Path) -> None:
    """Removes what `_log_of` has made, and nothing else."""
    with contextlib.suppress(OSError):
        (folder / "logs" / "spark.log").unlink(missing_ok=True)
        (folder / "logs").rmdir()
        folder.rmdir()


def is_debugging() -> bool:
    """Whether errors come with their traceback, and nothing is kept off the screen."""
    return os.environ.get("PHOTINUS_DEBUG", "0") not in ("", "0")


def error_text(metrics: Mapping[str, float], interval: tuple[float, float] | None) -> str:
    """Returns an error with its 95 % interval, other metrics without."""
    if "error" not in metrics:
        return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    interval_text = f"  (95 %: {interval[0]:.2%} to {interval[1]:.2%})" if interval else ""
    return f"{metrics['error']:.2%}{interval_text}"
