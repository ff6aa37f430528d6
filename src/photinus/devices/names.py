"""The names of devices."""

from __future__ import annotations

import re
from collections.abc import Sequence

from photinus.core.settings import Limit

AUTO = "auto"
"""Each worker takes the device on which a step of its model takes least."""

OPENCL = "opencl"
"""The kind of OpenCL devices."""

_NAME = re.compile(r"auto|cpu|mps|(cuda|xpu|stand-in)(:\d+)?|opencl(:[\w.-]+:\d+)?")
_KNOWN = "auto, cpu, cuda, cuda:N, xpu, xpu:N, mps, opencl, opencl:PLATFORM:N or stand-in"


def is_device(name: object) -> bool:
    """Returns whether it is a device's name, or "auto".

    Example:
        >>> is_device("cuda:1"), is_device("gpu")
        (True, False)
    """
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def kind_of(name: str) -> str:
    """Returns what stands before the first colon.

    Example:
        >>> kind_of("cuda:1")
        'cuda'
    """
    return name.partition(":")[0]


def _are_devices(value: object) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(map(is_device, value))
    return is_device(value)


DEVICES = Limit(f"{_KNOWN}, or a list with one for each worker", _are_devices)
"""Of a setting that names one for all workers, or one for each."""
