"""Tells the C library which freed memory to keep and which to return to the system."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_MMAP_BYTES = (256 << 20, 32 << 20)
"""Of one array; an older library takes no more than the second."""
_TRIM_BYTES = 512 << 20
_USER_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def keep_freed_memory() -> bool:
    """Has the C library keep up to 512 MB of what was freed; returns whether it will.

    A step of training frees and asks for the same arrays again and again. The GNU C library gives
    large ones back to the system each time, which then clears every page anew: a tenth of the
    processor's time in a convolutional network. Who set the library's own variables is obeyed, and
    other libraries are left as they are.
    """
    if any(name in os.environ for name in _USER_VARIABLES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    is_set = any(mallopt(_MMAP_THRESHOLD, size) for size in _MMAP_BYTES)
    return is_set and bool(mallopt(_TRIM_THRESHOLD, _TRIM_BYTES))


def release_freed_memory() -> None:
    """Gives back to the system what a preparation has left: no step will need it.

    Arrow keeps what its batches took, and the C library what is kept for a step.
    """
    if "pyarrow" in sys.modules:
        import pyarrow as pa

        pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
