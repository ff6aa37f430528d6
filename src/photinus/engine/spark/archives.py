"""Keeps Python from reading the directories of unchanged archives before every task.

pyspark invalidates the caches of imports before a task, and Python 3.11 and 3.12 then read the
directory of `pyspark.zip` again: a tenth of a second of a processor, however small the task.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from zipimport import zipimporter


def keep_archives() -> None:
    """Has this process read an archive's directory again only when its file has changed."""
    for finder in list(sys.path_importer_cache.values()):
        if isinstance(finder, zipimporter) and "invalidate_caches" not in vars(finder):
            finder.invalidate_caches = _invalidate_if_changed(finder)  # type: ignore[method-assign]


def _invalidate_if_changed(finder: zipimporter) -> Callable[[], None]:
    last_state = _state(finder)

    def invalidate_caches() -> None:
        nonlocal last_state
        state = _state(finder)
        if state is None or state != last_state:
            last_state = state
            zipimporter.invalidate_caches(finder)

    return invalidate_caches


def _state(finder: zipimporter) -> tuple[int, int, int] | None:
    """What changes with a file; None where there is none."""
    try:
        status = os.stat(finder.archive)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
