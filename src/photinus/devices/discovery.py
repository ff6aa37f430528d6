"""Finds the devices of this machine, measures them, and refuses what is not there."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from photinus.core.errors import NotReadyError
from photinus.devices.names import OPENCL, kind_of
from photinus.devices.opencl import platforms
from photinus.devices.opencl.offload import Offload
from photinus.devices.opencl.open_devices import engine
from photinus.devices.resources import task_device

_SIZE = 1024
_REPEATS = 3
_COPIES = 4
"""Parameters, gradient, and two vectors of the optimizer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One device of this machine."""

    name: str
    """As a job names it."""
    title: str
    """As its maker names it."""
    memory_bytes: int = 0
    """All of its memory; 0 where the driver does not report it."""
    driver: str = ""
    is_processor: bool = False
    """It is the processor, or the processor by way of OpenCL."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VisibleDevice:
    """A device that a process or a task of Spark sees."""

    host: str
    resource: str
    """What Spark gave to the task, as "gpu 0"; empty for nothing."""
    device: Device
    gflops: float
    """10⁹ operations a second, by a measured product; 0 for a device that fails."""


def found() -> tuple[Device, ...]:
    """Returns the devices that can be used here, the processor first.

    Example:
        >>> found()[0].name
        'cpu'
    """
    return (_processor(), *_gpus("cuda"), *_gpus("xpu"), *_apple(), *_opencl())


def _processor() -> Device:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(
        name="cpu",
        title=_processor_title(),
        memory_bytes=memory,
        driver=_torch_version(),
        is_processor=True,
    )


def _processor_title() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    titles = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(titles, platform.machine())


def _torch_version() -> str:
    return f"PyTorch {torch.__version__}"


def _gpus(kind: str) -> tuple[Device, ...]:
    module = torch.get_device_module(kind)
    if not module.is_available():
        return ()
    version = f"CUDA {torch.version.cuda}" if kind == "cuda" else "Level Zero"
    devices = []
    for index in range(module.device_count()):
        properties = module.get_device_properties(index)
        devices.append(
            Device(
                name=f"{kind}:{index}",
                title=str(properties.name),
                memory_bytes=int(properties.total_memory),
                driver=f"{_torch_version()}, {version}",
            )
        )
    return tuple(devices)


def _apple() -> tuple[Device, ...]:
    if not torch.backends.mps.is_available():
        return ()
    memory = torch.mps.recommended_max_memory()
    return (Device(name="mps", title="Apple GPU", memory_bytes=memory, driver=_torch_version()),)


def _opencl() -> tuple[Device, ...]:
    if not platforms.is_installed():
        return ()
    return tuple(
        Device(
            name=device.name,
            title=device.title,
            memory_bytes=int(device.handle.global_mem_size),
            driver=f"{device.platform}, {device.handle.driver_version}",
            is_processor=device.is_processor,
        )
        for device in platforms.devices()
    )


def product_gflops(name: str) -> float:
    """Returns how many 10⁹ operations a second a product of float32 [1024, 1024] makes.

    Args:
        name: of a device that is there.

    Raises:
        NotReadyError: its driver does not start, or computes wrongly.
    """
    is_opencl = kind_of(name) == OPENCL
    x = torch.ones(_SIZE, _SIZE, device="cpu" if is_opencl else name)
    best_seconds = float("inf")
    with Offload(engine(name)) if is_opencl else nullcontext():
        for _ in range(_REPEATS + 1):  # the first one compiles, or fills caches
            start = time.perf_counter()
            float((x @ x)[0, 0])  # to read a number waits for the device
            best_seconds = min(best_seconds, time.perf_counter() - start)
    return 2 * _SIZE**3 / best_seconds / 1e9


def measured(device: Device) -> tuple[Device, float]:
    """Returns a device and its `product_gflops`; of one that fails 0, and why as its driver."""
    try:
        return device, product_gflops(device.name)
    except NotReadyError as error:
        return replace(device, driver=str(error)), 0.0


def ready(name: str) -> str:
    """Returns a device's whole name, with its number, and holds it for this process.

    Args:
        name: of a device; "auto" stays as it is.

    Raises:
        NotReadyError: it is not there, or its driver does not start.
    """
    kind, _, number = name.partition(":")
    if kind == "stand-in":
        return f"{kind}:{number or task_device().address or 0}"
    if kind in ("cuda", "xpu", "mps"):
        return _accelerator(name, kind, number)
    return engine(name).device.name if kind == OPENCL else name


def _accelerator(name: str, kind: str, number: str) -> str:
    available = ", ".join(device.name for device in found())
    if not any(kind_of(device_name) == kind for device_name in available.split(", ")):
        do = 'device="auto" takes what there is; photinus devices lists it'
        raise _missing_device_error(
            name, f"{available}, with {_torch_version()}{_start_error(kind)}", do
        )
    full_name = name if kind == "mps" else f"{kind}:{number or 0}"
    if full_name not in available.split(", "):
        raise _missing_device_error(name, available, "photinus devices lists what there is")
    if kind != "mps":
        module = torch.get_device_module(kind)
        module.set_device(int(number or 0))
        if task_device().gpu_share < 1:
            module.set_per_process_memory_fraction(task_device().gpu_share)
    return full_name


def _missing_device_error(name: str, got: str, do: str) -> NotReadyError:
    resource = task_device()
    note = f"; Spark gave {resource.resource} {resource.address}" if resource.address else ""
    return NotReadyError(f"there is no device {name} on {platform.node()}", got=got + note, do=do)


def _start_error(kind: str) -> str:
    """Returns why the device cannot be used: there is no driver, or it is too old."""
    if kind == "mps":  # which has nothing to start
        return ""
    try:
        torch.get_device_module(kind).init()
    except (RuntimeError, AssertionError, AttributeError) as error:
        return f": {str(error).partition(chr(10))[0].rstrip('.')}"
    return ""


def check_memory(name: str, parameter_bytes: int) -> None:
    """Refuses a device that cannot hold a model's parameters and what training adds to them.

    Args:
        name: as of `ready`.
        parameter_bytes: of the trained section.

    Raises:
        NotReadyError: its free memory is less.
    """
    kind = kind_of(name)
    if kind not in ("cuda", "xpu"):
        return
    free_bytes, total_bytes = torch.get_device_module(kind).mem_get_info(
        int(name.partition(":")[2])
    )
    free_bytes = min(free_bytes, int(total_bytes * task_device().gpu_share))
    needed_bytes = _COPIES * parameter_bytes
    if free_bytes < needed_bytes:
        wrong = f"the device {name} has too little memory for this model"
        got = f"{free_bytes >> 20} MiB free, and {needed_bytes >> 20} MiB needed before any batch"
        raise NotReadyError(wrong, got=got, do="end what else runs there, or use a larger card")


def fastest(seconds: Callable[[str], float], names: tuple[str, ...], what: str) -> tuple[str, str]:
    """Returns the device on which something takes least, and a sentence with the reason.

    Args:
        seconds: that it takes on a device.
        names: to choose from.
        what: is measured.

    Example:
        >>> fastest({"cpu": 0.5, "cuda:0": 0.25}.__getitem__, ("cpu", "cuda:0"), "a step")
        ('cuda:0', 'device cuda:0: a step takes 500 ms on cpu, 250 ms on cuda:0')
    """
    if len(names) == 1:
        return names[0], f"device {names[0]}: {platform.node()} has no other one"
    seconds_by_name: Mapping[str, float] = {name: seconds(name) for name in names}
    best = min(names, key=lambda name: seconds_by_name[name])
    timings = ", ".join(f"{1000 * seconds_by_name[name]:.3g} ms on {name}" for name in names)
    return best, f"device {best}: {what} takes {timings}"
