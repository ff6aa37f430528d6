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
        OpenCLDevice(f"{OPENCL}:{p}:{d}", device.name.strip(), one.name.strip(), device)
        for p, one in enumerate(platforms)
        for d, device in enumerate(_devices_of(cl, one))
    )


def _devices_of(cl: ModuleType, one: Any) -> list[Any]:  # noqa: ANN401 - pyopencl's
    try:
        return list(one.get_devices())
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
    here = devices()
    _, _, rest = name.partition(":")
    if not rest:
        fitting = sorted(here, key=lambda one: one.is_processor)
    else:
        part, _, number = rest.rpartition(":")
        fitting = [one for one in here if _is_of(one, part) and one.name.endswith(f":{number}")]
    if not fitting:
        told = ", ".join(f"{one.name} ({one.platform}: {one.title})" for one in here)
        wrong = f"there is no device {name} on {platform.node()}"
        do = "photinus devices lists what there is" if here else _INSTALL
        raise NotReadyError(wrong, got=told or "no OpenCL device", do=do)
    return fitting[0]


def _is_of(one: OpenCLDevice, part: str) -> bool:
    if part.isdigit():
        return one.name.split(":")[1] == part
    return part.lower() in one.platform.lower().replace(" ", "-")
