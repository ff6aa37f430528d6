"""Flat vectors on a device, each with a copy on the host."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from photinus.core.parameters import SECTIONS, Layout, Parameters, Vector
from photinus.models.base import Batch, Model
from photinus.models.optimizers import InnerOptimizer
from photinus.models.tensors import tensor_of

CPU = "cpu"
STAND_IN = "stand-in"
"""A device on the processor that has buffers of its own: what a GPU does, without one."""
MEASURED_EVERY = 8
"""The loss of one step in so many is read on a device: to read it is to wait for the device."""


def torch_device(name: str) -> torch.device:
    """Returns torch's device of a name; the stand-in computes on the processor.

    Example:
        >>> torch_device("stand-in:1"), torch_device("cuda:1")
        (device(type='cpu'), device(type='cuda', index=1))
    """
    return torch.device(CPU if name.startswith(STAND_IN) else name)


class DeviceParameters:
    """A layout's three sections and a gradient, on a device and on the host.

    On the processor both are one memory, and nothing is ever copied. On a device the host's copy
    is old until `to_host`, which waits for every copy that is under way: after it alone the host
    may write. It names what it wrote by `to_device`, and `sync` copies that before the next work.

    Example:
        >>> placed = DeviceParameters(Layout.of([("w", (2,), "trained")]), "stand-in")
        >>> placed.touched(placed.parameters.trained)
        >>> placed.tensor(placed.parameters.trained).fill_(3.0).tolist()
        [3.0, 3.0]
        >>> placed.parameters.trained.tolist()
        [0.0, 0.0]
        >>> placed.to_host([placed.parameters.trained])
        >>> placed.parameters.trained.tolist(), placed.bytes_to_host
        ([3.0, 3.0], 8)
    """

    def __init__(
        self, layout: Layout, device: str = CPU, parameters: Parameters | None = None
    ) -> None:
        self.name, self.device = device, torch_device(device)
        self.is_apart = device != CPU
        self.bytes_to_host = self.bytes_to_device = 0
        sizes = [(layout.size(name), kind) for name, kind in _kinds(layout)]
        self.parameters = parameters or Parameters(
            layout, *(self._room(n, kind) for n, kind in sizes)
        )
        self.gradient = self._room(*sizes[0])
        self._hosts = [*(self.parameters.section(name) for name in SECTIONS), self.gradient]
        shared = [torch.from_numpy(host) for host in self._hosts]
        self._pinned = shared
        if self.is_apart:
            shared = [torch.zeros_like(one, device=self.device) for one in shared]
        self._tensors = shared
        self._old: set[int] = set()
        """Those that the device has changed since the host's copy."""
        self._new: set[int] = set()
        """Those that the host has changed since the device's."""

    _counting = Lock()
    """Threads send batches, too."""

    @property
    def has_float64(self) -> bool:
        """Whether the device computes in it."""
        if self.device.type == "xpu":
            return bool(getattr(torch.xpu.get_device_properties(self.device), "has_fp64", True))
        return self.device.type != "mps"

    def moved(self, device: str) -> DeviceParameters:
        """Returns the same numbers on another device."""
        at = DeviceParameters(self.parameters.layout, device)
        self.sync()
        for there, here in zip(at._tensors, self._tensors, strict=True):
            there.copy_(here)
        at.touched(*at.sections)
        return at

    @property
    def sections(self) -> list[Vector]:
        """The host's vectors of the parameters."""
        return self._hosts[:-1]

    def _room(self, size: int, kind: str) -> Vector:
        """Returns zeros in the host's memory: pinned where a device copies from it by itself."""
        is_pinned = self.device.type in ("cuda", "xpu") and size > 0
        room: Vector = torch.zeros(size, dtype=getattr(torch, kind), pin_memory=is_pinned).numpy()
        return room

    def tensor(self, vector: Vector) -> Tensor:
        """Returns the device's tensor of one of the host's vectors; of any other one, a copy."""
        number = self._number(vector)
        if number is not None:
            return self._tensors[number]
        return self.sent(tensor_of(vector))

    def sent(self, tensor: Tensor) -> Tensor:
        """Returns a tensor of the host on the device; the host does not wait for the copy.

        One that is on a card already stays as it is.
        """
        if not self.is_apart or tensor.device.type != CPU:
            return tensor
        return self.send_into(torch.empty_like(tensor, device=self.device), tensor)

    def brought(self, tensor: Tensor) -> Vector:
        """Returns a tensor of the device on the host, once it is computed."""
        if self.is_apart:
            self.bytes_to_host += tensor.nbytes
        here: Vector = tensor.numpy(force=True)
        return here

    def send_into(self, there: Tensor, tensor: Tensor) -> Tensor:
        """Returns the device's tensor, to which the numbers of one of the host's are sent."""
        if tensor.device.type != CPU:
            return there.copy_(tensor)
        with self._counting:
            self.bytes_to_device += tensor.nbytes
        is_pinned = self.device.type in ("cuda", "xpu")
        return there.copy_(tensor.pin_memory() if is_pinned else tensor, non_blocking=is_pinned)

    def view(self, name: str) -> Tensor:
        """Returns one tensor of the parameters in its shape, on the device."""
        entry = self.parameters.layout.entry(name)
        # .data: each view has a version of its own, by which autograd finds what was written over
        flat = self.tensor(self.parameters.section(entry.section)).data
        return flat[entry.offset : entry.offset + entry.size].view(entry.shape)

    def slope(self, name: str) -> Tensor:
        """Returns a trained tensor's part of the gradient in its shape, on the device."""
        entry = self.parameters.layout.entry(name)
        flat = self.tensor(self.gradient)
        return flat[entry.offset : entry.offset + entry.size].view(entry.shape)

    def seed(self, seed: int) -> None:
        """Decides all chance of the device; that of the processor has its own generator."""
        if self.device.type != CPU:
            torch.get_device_module(self.device).manual_seed(seed)

    def touched(self, *vectors: Vector) -> None:
        """Notes that the device has changed them: the host's copies are old."""
        if self.is_apart:
            self._old |= {n for n in map(self._number, vectors) if n is not None}

    def to_host(self, vectors: Iterable[Vector]) -> None:
        """Brings the newest numbers to the host, and waits for them."""
        numbers = {n for n in map(self._number, vectors) if n is not None}
        if not self.is_apart or not numbers:
            return
        for number in numbers & self._old:
            self._pinned[number].copy_(self._tensors[number], non_blocking=True)
            self.bytes_to_host += self._pinned[number].nbytes
        self._old -= numbers
        if self.device.type != CPU:
            torch.accelerator.synchronize(self.device)

    def to_device(self, vectors: Iterable[Vector]) -> None:
        """Notes what the host has written: the device gets it at the next `sync`."""
        if self.is_apart:
            numbers = {n for n in map(self._number, vectors) if n is not None}
            self._new |= numbers
            self._old -= numbers

    def sync(self) -> None:
        """Sends what the host has written, without waiting: the device's work comes after it."""
        for number in self._new:
            self._tensors[number].copy_(self._pinned[number], non_blocking=True)
            with self._counting:
                self.bytes_to_device += self._pinned[number].nbytes
        self._new.clear()

    def _number(self, vector: Vector) -> int | None:
        return next((n for n, host in enumerate(self._hosts) if host is vector), None)


def _kinds(layout: Layout) -> list[tuple[str, str]]:
    """Returns (section, type of its numbers)."""
    return list(zip(SECTIONS, (layout.dtype, "float32", "int64"), strict=True))


class DeviceOptimizer(InnerOptimizer):
    """An inner optimizer that steps on a device.

    Args:
        inner: the optimizer.
        placed: where parameters and gradient are.
    """

    def __init__(self, inner: InnerOptimizer, placed: DeviceParameters) -> None:
        self._inner, self.placed = inner, placed
        inner.move(placed.device)

    def step(self, trained: Vector, gradient: Vector, progress: float) -> None:
        """Moves the device's parameters by the device's gradient; the host's are old then."""
        at = self.placed
        at.sync()
        self._inner.step(at.tensor(trained), at.tensor(gradient), progress)  # type: ignore[arg-type]
        at.touched(trained)

    def state(self) -> dict[str, Vector]:
        """Returns its state, copied to the host."""
        return self._inner.state()

    def load(self, state: Mapping[str, Vector]) -> None:
        self._inner.load(state)


class SentBatch(NamedTuple):
    """A batch on its way to a device."""

    batch: Any
    """On the host."""
    inputs: Mapping[str, Tensor]
    """On the device, once the copy is done."""
    copied: Any
    """torch's event of that; None where the copy is done."""

    @property
    def examples(self) -> int:
        """How many there are."""
        count: int = self.batch.examples
        return count


class PlacedModel(Model):
    """A model whose tensors are views of flat vectors, on the processor or on a device."""

    _at: DeviceParameters
    _copies: Any = None
    """torch's stream of the device, on which batches are copied while it computes."""
    _copying = Lock()

    @abstractmethod
    def _inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Returns what a step reads of a batch, as tensors on the host."""

    @property
    def send(self) -> Callable[[Any], Any] | None:
        """Sends a batch on a stream of its own, while the device computes."""
        return self._send if self._at.is_apart and self._at.device.type != "mps" else None

    def _send(self, batch: Any) -> Any:  # noqa: ANN401 - a feed's
        device = self._at.device
        if device.type == CPU:
            inputs = {name: self._at.sent(x) for name, x in self._inputs(batch).items()}
            return SentBatch(batch, inputs, None)
        module = torch.get_device_module(device)
        with self._copying:
            self._copies = self._copies or module.Stream(device)
        with module.stream(self._copies):
            inputs = {name: self._at.sent(x) for name, x in self._inputs(batch).items()}
            return SentBatch(batch, inputs, self._copies.record_event())

    def _arrived(self, batch: Batch | SentBatch) -> Mapping[str, Tensor]:
        """Returns a batch's inputs: on the host, or where they were sent, once they are there."""
        if not isinstance(batch, SentBatch):
            return self._inputs(batch)
        if batch.copied is not None:
            device = self._at.device
            now = torch.get_device_module(device).current_stream(device)
            now.wait_event(batch.copied)
            for x in batch.inputs.values():
                x.record_stream(now)  # its memory is of the other stream
        return batch.inputs

    @abstractmethod
    def _lie(self, at: DeviceParameters) -> None:
        """Makes its tensors views of these vectors, with its numbers in them."""

    def move(self, device: str) -> None:
        """Moves its parameters and its gradient to a device."""
        self._lie(self._at.moved(device))
        self._at.to_host(self._at.sections)

    def place(self, device: str, inner: InnerOptimizer) -> InnerOptimizer:
        """Moves its parameters, its gradient and the inner optimizer to a device."""
        self.move(device)
        return DeviceOptimizer(inner, self._at)

    def to_host(self, *vectors: Vector) -> None:
        """Brings parameters, buffers or the gradient from the device."""
        self._at.to_host(vectors)

    def to_device(self, *vectors: Vector) -> None:
        """Sends parameters, buffers or the gradient to the device."""
        self._at.to_device(vectors)
