"""The command `doctor`."""

from __future__ import annotations

import click

__all__ = ["doctor"]


@click.command()
def doctor() -> None:
    """Look for what a run needs, and say how to mend what is missing."""
