"""Builds the message on how to continue with a run that has stopped."""

from __future__ import annotations

import shlex
from pathlib import Path


def resume_hint(
    folder: Path, address: str = "", command: str = "train", *, is_given: bool = False
) -> str:
    """Returns how to continue with a run, after a semicolon; nothing where there is none.

    Args:
        folder: of the run, on this machine.
        address: where its copy is kept that outlives this machine.
        command: of photinus, which continues with it.
        is_given: its rows were handed over, so that only a program can hand them over again.
    """
    if not (folder / "job.json").is_file():
        return ""
    where = address or str(shortest(folder))
    if is_given:
        return f"; continue with: photinus.resume({where!r}, data)"
    return f"; continue with: photinus {command} --resume {shlex.quote(where)}"


def shortest(path: Path) -> Path:
    """Returns a path as a user would type it: below the present folder, or whole."""
    try:
        return path.absolute().relative_to(Path.cwd())
    except ValueError:
        return path
