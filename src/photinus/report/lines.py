"""A file of JSON lines that only grows; a line cut by a crash is dropped at the next opening."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from photinus.core.errors import DataError, UsageError

__all__ = ["Lines", "read_lines"]


def _plain(value: object) -> object:
    """Returns numpy's numbers and arrays, and what JSON does not know, as plain values."""
    for name in ("tolist", "_asdict"):
        with contextlib.suppress(AttributeError):
            return getattr(value, name)()
    return str(value)


class Lines:
    """Appends JSON lines from any thread, each flushed at once.

    A full disk does not end the training: lines that cannot be written are counted.

    Raises:
        UsageError: the file cannot be opened.
    """

    def __init__(self, path: Path | str) -> None:
        self._lock = threading.Lock()
        self._is_torn = False
        self._is_closed = False
        self.lost = 0
        """Lines that could not be written."""
        try:
            self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
            with open(self._descriptor, "rb", closefd=False) as file:
                os.ftruncate(self._descriptor, file.read().rfind(b"\n") + 1)
        except OSError as error:
            raise UsageError(f"{path} cannot be written", got=error.strerror) from error

    def write(self, values: Mapping[str, Any]) -> None:
        """Appends one line; after `close` it is counted as lost."""
        line = json.dumps(values, default=_plain, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._is_closed:
                self.lost += 1
                return
            data = b"\n" + line if self._is_torn else line
            try:
                self._is_torn = os.write(self._descriptor, data) != len(data)
            except OSError:
                self.lost += 1
            else:
                self.lost += self._is_torn

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._descriptor)


def read_lines(path: Path | str) -> Iterator[dict[str, Any] | None]:
    """Yields each line's values, None for a line that is no JSON object; a cut last line ends it.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read", got=error.strerror) from error
    for line in data.split(b"\n")[:-1]:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        if line:
            yield values if isinstance(values, dict) else None
