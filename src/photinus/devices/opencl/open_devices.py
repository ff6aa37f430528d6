"""The OpenCL devices that this process has started."""

from __future__ import annotations

from functools import cache

from photinus.devices.opencl.binaries import usable_engine
from photinus.devices.opencl.engine import OpenCLEngine
from photinus.devices.opencl.platforms import chosen


def engine(name: str) -> OpenCLEngine:
    """Returns a device by its name, tested, and made once in a process.

    Raises:
        NotReadyError: it is not there, has no kernels, or fails its test.
    """
    return _started(chosen(name).name)


@cache
def _started(name: str) -> OpenCLEngine:
    return usable_engine(chosen(name))
