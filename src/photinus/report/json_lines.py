"""An append-only file of JSON lines; a line cut off by a crash is dropped on opening."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from photinus.core.errors import DataError, UsageError

_MOST_WAITING_BYTES = 16 << 20


def _to_plain(value: object) -> object:
    """Returns numpy's numbers and arrays, and what JSON does not know, as plain values."""
    for name in ("tolist", "_asdict"):
        with contextlib.suppress(AttributeError):
            return getattr(value, name)()
    return str(value)


_ENCODER = json.JSONEncoder(default=_to_plain, separators=(",", ":"))
_MOST_TOGETHER_BYTES = 64 << 10


class Lines:
    """Appends JSON lines from any thread, each written at once unless it may wait.

    A full disk does not end the training: lines wait until there is room again. Those that find
    none before the end, or are more than memory should hold, are lost, and counted.

    Raises:
        UsageError: the file cannot be opened.
    """

    def __init__(self, path: Path | str) -> None:
        self._lock = threading.Lock()
        self._buffer, self._dropped = bytearray(), 0
        self._is_closed = False
        try:
            self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
            with open(self._descriptor, "rb", closefd=False) as file:
                os.ftruncate(self._descriptor, file.read().rfind(b"\n") + 1)
        except OSError as error:
            raise UsageError(f"{path} cannot be written", got=error.strerror) from error

    def write(self, values: Mapping[str, Any], *, waits: bool = False) -> None:
        """Appends one line; after `close` it is counted as lost.

        Args:
            values: the line.
            waits: whether it is written together with the next one that does not wait.
        """
        line = _ENCODER.encode(values).encode() + b"\n"
        with self._lock:
            if self._is_closed or len(self._buffer) > _MOST_WAITING_BYTES:
                self._dropped += 1
            else:
                self._buffer += line
            if not waits or len(self._buffer) > _MOST_TOGETHER_BYTES:
                self._flush()

    def _flush(self) -> None:
        """Writes what waits; of a line that fits in part the rest comes with the next ones."""
        if self._buffer and not self._is_closed:
            with contextlib.suppress(OSError):
                del self._buffer[: os.write(self._descriptor, self._buffer)]

    @property
    def lost(self) -> int:
        """Lines that could not be written so far."""
        with self._lock:
            self._flush()
            return self._dropped + self._buffer.count(b"\n")

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        with self._lock:
            if not self._is_closed:
                self._flush()
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
