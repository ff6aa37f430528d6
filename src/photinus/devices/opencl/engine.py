"""An OpenCL device that is ready: its compiled kernels, and what they are called with."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from photinus.core.errors import NotReadyError, UsageError
from photinus.devices.opencl.platforms import OpenCLDevice, pyopencl

KERNELS = (
    "pack_rows",
    "pack_columns",
    "tile",
    "group",
    "spread",
    "pool",
    "pool_backward",
)
WIDE, NARROW, GROUPS = FLAVOURS = ("wide", "narrow", "groups")
"""Panels for registers of 16 numbers, as AVX-512 and FPGAs have; of 8; groups of a GPU."""
_PACKED_AT_ONCE = 64
_MAX_DEPTH = 1024
"""How much of k is packed at a time: a panel then fits a processor's cache."""
_PANELS_BYTES = 1 << 22
"""How much is packed before it is used."""
_GROUP_SIDE, _GROUP_WIDTH = 32, 8
_MAX_NUMBERS = 2**31 - 1
"""Offsets are 32 bits wide."""


class Axis(NamedTuple):
    """How an index becomes an offset: (i0 d1 + i1) d2 + i2 lies at i0 s0 + i1 s1 + i2 s2."""

    d1: int
    d2: int
    s0: int
    s1: int
    s2: int

    @classmethod
    def plain(cls, stride: int) -> Axis:
        """Returns the axis of a matrix.

        Example:
            >>> Axis.plain(7)
            Axis(d1=1, d2=1, s0=7, s1=0, s2=0)
        """
        return cls(1, 1, stride, 0, 0)


def ints(*numbers: int) -> list[np.int32]:
    """Returns numbers as the kernels' int."""
    return [np.int32(number) for number in numbers]


class Operand(NamedTuple):
    """A matrix of a product in a device's memory: what is summed over is its second axis."""

    memory: Any
    rows: Axis
    k: Axis
    start: int = 0
    step: int = 0
    """From one product of a batch to the next."""

    def arguments(self) -> list[Any]:
        """Returns it as the kernels take it."""
        axes = [np.array([*axis, 0, 0, 0], np.int32) for axis in (self.rows, self.k)]
        return [self.memory, *ints(self.start, self.step), *axes]


class DeviceCopy(NamedTuple):
    """A tensor of the host, and the device's memory of it."""

    tensor: Tensor
    memory: Any


class NoKernelError(Exception):
    """An operator has arguments that no kernel covers; the message names them."""


class ProductShape(NamedTuple):
    """Of C [batch, m, n] = A [batch, m, k] B [batch, n, k]ᵀ."""

    m: int
    n: int
    k: int
    batch: int = 1


class OpenCLEngine:
    """A device with a context and a queue of its own, made in the process that uses it.

    Args:
        device: the device.
        flavour: one of `FLAVOURS`; left out, the one that suits the device's kind.
        binary: the kernels, compiled for the device and the flavour; left out, its driver
            compiles them now.

    Raises:
        NotReadyError: the kernels do not compile there, or cannot be used.
    """

    def __init__(self, device: OpenCLDevice, flavour: str = "", binary: bytes = b"") -> None:
        cl = self._cl = pyopencl()
        handle = device.handle
        self.device, self.flavour = device, flavour or _default_flavour(device)
        self._is_packed = self.flavour != GROUPS
        self._rows, self._lanes = (6, 8) if self.flavour == NARROW else (8, 16)
        self._live_buffers: list[Any] = []
        self._has_shared_memory = bool(handle.host_unified_memory)
        try:
            self._context = cl.Context([handle])
            self._queue = cl.CommandQueue(self._context)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some compilers have remarks on what they made
                self._program = self._build(binary)
            self._kernels = {name: cl.Kernel(self._program, name) for name in KERNELS}
        except cl.Error as error:
            problem = (
                "the binary of the kernels is refused" if binary else "the kernels are not compiled"
            )
            reason = " ".join(str(error).split())[:300]
            do = "renew its driver, or name another device"
            wrong = f"{problem} by {device.name} ({device.title})"
            raise NotReadyError(wrong, got=reason, do=do) from error

    def _build(self, binary: bytes) -> Any:  # noqa: ANN401 - pyopencl's
        if binary:
            return self._cl.Program(self._context, [self.device.handle], [binary]).build()
        return self._cl.Program(self._context, source()).build(self.options())

    def options(self) -> str:
        """Returns the compiler's options."""
        return f"-DLANES={self._lanes} -cl-mad-enable"

    def binary(self) -> bytes:
        """Returns the compiled kernels, as the driver has them."""
        compiled: bytes = self._program.get_info(self._cl.program_info.BINARIES)[0]
        return compiled

    def memory(self, tensor: Tensor) -> Any:  # noqa: ANN401 - pyopencl's
        """Returns a contiguous tensor's numbers for the device to use until `fetch`."""
        flags = self._cl.mem_flags
        mode = flags.USE_HOST_PTR if self._has_shared_memory else flags.COPY_HOST_PTR
        self._check_size(tensor.numel())
        memory = self._cl.Buffer(self._context, flags.READ_WRITE | mode, hostbuf=tensor.numpy())
        self._live_buffers.append(memory)  # its numbers may be a copy that nothing else holds
        return memory

    def allocate(self, numbers: int) -> Any:  # noqa: ANN401 - pyopencl's
        """Returns memory of the device for so many float32 numbers."""
        self._check_size(numbers)
        return self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, 4 * numbers)

    def _check_size(self, numbers: int) -> None:
        limit = min(_MAX_NUMBERS, self.device.handle.max_mem_alloc_size // 4)
        if numbers > limit:
            wrong = f"{self.device.name} cannot hold a tensor of this step"
            got = f"{numbers} numbers where it allows {limit}"
            raise UsageError(wrong, got=got, do="use smaller batches")

    def new(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> DeviceCopy:
        """Returns a tensor that the device is to write."""
        tensor = torch.empty(tuple(shape), dtype=dtype)
        if self._has_shared_memory and tensor.numel():
            return DeviceCopy(tensor, self.memory(tensor))
        flags, size = self._cl.mem_flags, max(4, tensor.nbytes)
        self._check_size(size // 4)
        return DeviceCopy(tensor, self._cl.Buffer(self._context, flags.READ_WRITE, size))

    def fetch(self, copy: DeviceCopy) -> Tensor:
        """Waits until the device has written a tensor; returns it in the host's memory."""
        tensor, memory = copy
        if tensor.numel() and self._has_shared_memory:
            flags, numbers = self._cl.map_flags, tensor.numpy()
            map_arguments = (self._queue, memory, flags.READ, 0, numbers.shape, numbers.dtype)
            mapped, _ = self._cl.enqueue_map_buffer(*map_arguments, is_blocking=True)
            mapped.base.release(self._queue)
        elif tensor.numel():
            self._cl.enqueue_copy(self._queue, tensor.numpy(), memory)
        self._live_buffers.clear()
        return tensor

    def product(self, a: Operand, b: Operand, out: Operand, sizes: ProductShape) -> None:
        """Writes C [m, n] = A [m, k] B [n, k]ᵀ, for each of a batch.

        Args:
            a: A.
            b: B.
            out: C, with n in place of k.
            sizes: none of them 0.
        """
        if not self._is_packed:
            self._product_by_groups(a, b, out, sizes)
            return
        columns = 2 * self._lanes
        depth = min(sizes.k, _MAX_DEPTH)
        panels, all_panels = math.ceil(sizes.m / self._rows), math.ceil(sizes.n / columns)
        panels_at_once = max(
            1, min(all_panels, _PANELS_BYTES // (4 * columns * depth * sizes.batch))
        )
        a_size, b_size = panels * self._rows * sizes.k, panels_at_once * columns * depth
        packed_a = self.allocate(a_size * sizes.batch), np.int32(a_size)
        packed_b = self.allocate(b_size * sizes.batch), np.int32(b_size)
        self._pack("pack_rows", (panels, sizes.batch), (sizes.m, 0, 0, sizes.k), a, packed_a)
        for panel in range(0, all_panels, panels_at_once):
            count = min(panels_at_once, all_panels - panel)
            for first in range(0, sizes.k, depth):
                last = min(sizes.k, first + depth)
                bounds = (sizes.n, panel, first, last)
                self._pack("pack_columns", (count, sizes.batch), bounds, b, packed_b)
                position = ints(*sizes[:3], first, last - first, panel, first > 0)
                items = (panels, count, sizes.batch)
                self._call("tile", items, None, *position, *packed_a, *packed_b, *out.arguments())

    def _pack(
        self,
        name: str,
        panels: tuple[int, int],
        bounds: tuple[int, int, int, int],
        x: Operand,
        packed: tuple[Any, np.int32],
    ) -> None:
        """Packs so many panels of each of a batch; a part is rows, first panel, first k, last k."""
        chunks = math.ceil((bounds[3] - bounds[2]) / _PACKED_AT_ONCE)
        items = (panels[0], chunks, panels[1])
        self._call(name, items, None, *ints(*bounds), *x.arguments(), *packed)

    def _product_by_groups(self, a: Operand, b: Operand, out: Operand, sizes: ProductShape) -> None:
        columns = math.ceil(sizes.n / _GROUP_SIDE) * _GROUP_WIDTH
        rows = math.ceil(sizes.m / _GROUP_SIDE) * _GROUP_SIDE
        operands = [*a.arguments(), *b.arguments(), *out.arguments()]
        items, local_size = (columns, rows, sizes.batch), (_GROUP_WIDTH, _GROUP_SIDE, 1)
        self._call("group", items, local_size, *ints(*sizes[:3]), *operands)

    def lines(self, name: str, lines: int, *arguments: Any) -> None:  # noqa: ANN401 - a kernel's
        """Calls a kernel that computes lines, each by as many work items as suit the device."""
        self._call(name, (1 if self._is_packed else _GROUP_SIDE, lines), None, *arguments)

    def planes(self, name: str, planes: int, *arguments: Any) -> None:  # noqa: ANN401 - a kernel's
        """Calls a kernel whose work items compute a plane each."""
        self._call(name, (planes,), None, *arguments)

    def _call(
        self,
        name: str,
        global_size: tuple[int, ...],
        local_size: tuple[int, ...] | None,
        *arguments: Any,  # noqa: ANN401 - a kernel's
    ) -> None:
        if local_size is None and self._is_packed:
            local_size = (1,) * len(global_size)  # another number of them is compiled anew
        try:
            self._kernels[name](self._queue, global_size, local_size, *arguments)
        except self._cl.Error as error:
            wrong = f"{self.device.name} ({self.device.title}) did not run the kernel {name}"
            raise NotReadyError(wrong, got=error, do="photinus devices tests it") from error


def _default_flavour(device: OpenCLDevice) -> str:
    if device.handle.type & pyopencl().device_type.GPU:
        return GROUPS
    return NARROW if device.handle.native_vector_width_float == 8 else WIDE


def source() -> str:
    """Returns the kernels' text."""
    return resources.files(__package__).joinpath("kernels.cl").read_text(encoding="utf-8")
