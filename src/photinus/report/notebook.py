"""Shows a run in a notebook: one output of a cell, which is replaced while the run lasts."""

from __future__ import annotations

import io
import sys
from collections import deque
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

_MAX_LINES = 12
_WIDTH = 110
_FORMAT = '<pre style="line-height:1.3;overflow-x:auto">{code}</pre>'


def in_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook; never imports IPython for it."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class Cell:
    """What `rich.live.Live` is on a screen, in a notebook: the newest lines, and a view below.

    Args:
        display: as `IPython.display.display`; left out, that one.
        html: as `IPython.display.HTML`; left out, that one.
    """

    def __init__(self, display: Any = None, html: Any = None) -> None:  # noqa: ANN401 - IPython's
        if display is None:
            import IPython.display as ipython

            display, html = ipython.display, ipython.HTML
        self._html = html
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self.console = Console(file=_LineWriter(self._lines), width=_WIDTH)
        self._handle = display(html(""), display_id=True)

    def update(self, view: RenderableType, *, refresh: bool = True) -> None:
        """Replaces what is shown."""
        if refresh:
            page = Console(file=io.StringIO(), record=True, width=_WIDTH, force_jupyter=False)
            page.print(Group(Text("\n".join(self._lines)), view))
            code = page.export_html(inline_styles=True, code_format=_FORMAT)
            self._handle.update(self._html(code))

    def stop(self) -> None:
        """Leaves what was shown last."""


class _LineWriter(io.StringIO):
    """Takes what a console prints, by lines."""

    def __init__(self, lines: deque[str]) -> None:
        super().__init__()
        self._lines = lines

    def write(self, text: str) -> int:
        self._lines.extend(line for line in text.splitlines() if line.strip())
        return len(text)
