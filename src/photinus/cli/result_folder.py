"""The folder in which a command keeps its results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from photinus.core.errors import UsageError


@contextmanager
def result_folder(folder: Path) -> Iterator[Path]:
    """Makes a folder; after an error it is removed if nothing is in it.

    Raises:
        UsageError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        wrong, got = f"the folder {folder} cannot be made", error.strerror or str(error)
        raise UsageError(wrong, got=got, do="name another folder") from error
    try:
        yield folder
    except BaseException:
        with suppress(OSError):  # something is in it
            folder.rmdir()
        raise
