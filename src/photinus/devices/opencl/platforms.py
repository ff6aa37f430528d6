"""The OpenCL devices of this machine, by name."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from photinus.core.errors import NotReadyError, UsageError
from photinus.devices.names import OPENCL, is_device, kind_of

if TYPE_CHECKING:
    from types import ModuleType

_INSTALL = "pip install 'photinus[opencl]', and a driver: for processors pocl-opencl-icd"

_began_in: int | None = None
"""The process in which drivers started: their threads do not exist in a fork of it."""


@dataclass(frozen=True, slots=True)
class OpenCLDevice:
    """One OpenCL device.

    `name` has its numbers, as "opencl:0:1"; `handle` is pyopencl's.
    """

    name: str
    title: str
    platform: str
    handle: Any

    @property
    def is_processor(self) -> bool:
        """Returns whether it is the processor again, by way of OpenCL."""
        return bool(self.handle.type & pyopencl().device_type.CPU)


def pyopencl() -> ModuleType:
    """Returns the package, set up for this process.

    Raises:
        NotReadyError: it is not installed, or cannot be loaded.
    """
    # its cache of binaries is not kept apart from another driver's, and PoCL has one of its own
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    os.environ.setdefault("POCL_MAX_PTHREAD_COUNT", str(torch.get_num_threads()))
    package: ModuleType
    try:
        import pyopencl as package  # type: ignore[no-redef]
    except ImportError as error:
        wrong = f"OpenCL devices need pyopencl, which {platform.node()} does not load"
        raise NotReadyError(wrong, got=error, do=_INSTALL) from error
    return package


def is_installed() -> bool:
    """Returns whether pyopencl can be loaded."""
    try:
        pyopencl()
    except NotReadyError:
        return False
    return True


def devices() -> tuple[OpenCLDevice, ...]:
    """Returns all OpenCL devices, by platform.

    Raises:
        NotReadyError: pyopencl is missing, or this process is a fork of one that used OpenCL.
    """
    global _began_in  # of the process, as drivers are
    cl = pyopencl()
    if _began_in not in (None, os.getpid()):
        wrong = "OpenCL was started before this process was forked, and would wait for ever in it"
        do = "name OpenCL devices first in the worker's own process"
        raise NotReadyError(wrong, got=f"processes {_began_in} and {os.getpid()}", do=do)
    _began_in = os.getpid()
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # the loader's word for none
        return ()
    return tuple(
        OpenCLDevice(f"{OPENCL}:{p}:{d}", device.name.strip(), cl_platform.name.strip(), device)
        for p, cl_platform in enumerate(platforms)
        for d, device in enumerate(_devices_of(cl, cl_platform))
    )


def _devices_of(cl: ModuleType, cl_platform: Any) -> list[Any]:  # noqa: ANN401 - pyopencl's
    try:
        return list(cl_platform.get_devices())
    except cl.Error:  # a platform without a device
        return []


def chosen(name: str) -> OpenCLDevice:
    """Returns the device of a name: a card before the processor where no number is given.

    Args:
        name: "opencl", or "opencl:PLATFORM:N" with the platform's number, or a part of its name.

    Raises:
        NotReadyError: it is not there.
        UsageError: it is no name of an OpenCL device.
    """
    if not is_device(name) or kind_of(name) != OPENCL:
        do = "name opencl, or opencl:PLATFORM:N"
        raise UsageError("this is no OpenCL device", got=repr(name), do=do)
    available = devices()
    _, _, rest = name.partition(":")
    if not rest:
        matches = sorted(available, key=lambda device: device.is_processor)
    else:
        part, _, number = rest.rpartition(":")
        matches = [
            device
            for device in available
            if _is_on_platform(device, part) and device.name.endswith(f":{number}")
        ]
    if not matches:
        listing = ", ".join(
            f"{device.name} ({device.platform}: {device.title})" for device in available
        )
        wrong = f"there is no device {name} on {platform.node()}"
        do = "photinus devices lists what there is" if available else _INSTALL
        raise NotReadyError(wrong, got=listing or "no OpenCL device", do=do)
    return matches[0]


def _is_on_platform(device: OpenCLDevice, part: str) -> bool:
    if part.isdigit():
        return device.name.split(":")[1] == part
    return part.lower() in device.platform.lower().replace(" ", "-")
