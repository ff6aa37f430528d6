"""Builds the message on how to continue with a run that has stopped."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from photinus.run.remote_resume import how_it_ended

if TYPE_CHECKING:
    from photinus.checkpoint.mirror import Mirror


def resume_hint(
    folder: Path, mirror: Mirror | None = None, command: str = "train", *, is_given: bool = False
) -> str:
    """Returns how to continue with a run, after a semicolon; nothing where there is none.

    Args:
        folder: of the run, on this machine.
        mirror: of the folder, at an address that outlives this machine.
        command: of photinus, which continues with it.
        is_given: its rows were handed over, so that only a program can hand them over again.
    """
    if not (folder / "job.json").is_file():
        return ""
    where, lacking = str(shortest(folder)), ""
    if mirror is not None and not mirror.is_behind:
        where = mirror.address
    elif mirror is not None:
        if how_it_ended(folder)[0] == "done":
            return f"; all of it is in {folder}"
        lacking = f"; {mirror.address} lacks the end of the run"
    if is_given:
        return f"{lacking}; continue with: photinus.resume({where!r}, data)"
    return f"{lacking}; continue with: photinus {command} --resume {shlex.quote(where)}"


def shortest(path: Path) -> Path:
    """Returns a path as a user would type it: below the present folder, or whole."""
    try:
        return path.absolute().relative_to(Path.cwd())
    except ValueError:
        return path
