"""The limit of open files and connections of a process."""

from __future__ import annotations

import os
from pathlib import Path

from photinus.core.errors import NotReadyError

_OPEN = Path("/dev/fd")


def allow_descriptors(files: int, who: str) -> None:
    """Makes sure that this process may open so many more files and connections.

    The soft limit is raised where the hard one allows it, as Java's runtime raises its own. Without
    this a run with too low a limit would lose connections now and then, and train ever slower.

    Args:
        files: how many more.
        who: what an error calls this process.

    Raises:
        NotReadyError: they are not allowed.

    Example:
        >>> allow_descriptors(8, "the driver")
    """
    try:
        import resource
    except ImportError:  # on Windows there is no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    open_files = _count(soft)
    needed = open_files + files
    if soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        got = f"at most {hard}, {open_files} of them open already"
        do = f"allow {needed}: ulimit -n {needed}, or LimitNOFILE of the service"
        raise NotReadyError(f"{who} may not open enough files and connections", got=got, do=do)
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _count(limit: int) -> int:
    """Returns how many are open, as far as the system reports it."""
    try:
        return len(os.listdir(_OPEN))
    except FileNotFoundError:
        return 0
    except OSError:  # there is none left to look it up with
        return limit
