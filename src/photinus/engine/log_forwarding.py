"""Keeps a worker's log lines until they can be sent."""

from __future__ import annotations

import logging
from collections import deque

_MOST_LINES = 100
"""How many lines are kept between two calls of `take`; a later one removes the oldest."""
_MOST_CHARACTERS = 4000
"""Of one line."""


class LogLines(logging.Handler):
    """Collects what this process logs from WARNING on, while it is open.

    Example:
        >>> with LogLines() as lines:
        ...     logging.getLogger("photinus").warning("slow disk")
        ...     lines.take()
        [{'level': 'WARNING', 'text': 'photinus: slow disk'}]
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: deque[dict[str, str]] = deque(maxlen=_MOST_LINES)
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def __enter__(self) -> LogLines:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one line."""
        try:
            text = self.format(record)
        except Exception:  # whatever a user's arguments raise: a line of a log ends no run
            text = f"{record.name}: {record.msg}"
        self._lines.append({"level": record.levelname, "text": text[:_MOST_CHARACTERS]})

    def take(self) -> list[dict[str, str]]:
        """Returns what was kept, once."""
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return lines
