"""Runs the clients that download data sets."""

from __future__ import annotations

import subprocess

from photinus.core.errors import NotReadyError

_SECONDS = 180.0


def run_client(command: list[str], folder: str) -> None:
    """Runs a package manager, which downloads into a folder.

    Args:
        command: a fixed one, as no shell reads it.
        folder: where it runs.

    Raises:
        NotReadyError: it did not answer, or failed; with its first error.
    """
    try:
        result = subprocess.run(  # noqa: S603 - a fixed command, no shell
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise NotReadyError(f"no answer within {_SECONDS:.0f} seconds") from None
    if result.returncode:
        error_lines = result.stderr.strip().splitlines() or [f"it ended with {result.returncode}"]
        # The clients name the cause first; how often they tried and where they log comes after.
        raise NotReadyError(
            next((line for line in error_lines if "error" in line.lower()), error_lines[-1])
        )
