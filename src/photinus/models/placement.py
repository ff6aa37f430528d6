"""Flat vectors on a device, each with a copy on the host."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from photinus.core.parameters import SECTIONS, Layout, Parameters, Vector
from photinus.models.base import BatchLike, Model
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
        >>> placed.mark_changed(placed.parameters.trained)
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
        self.is_on_device = device != CPU
        self.bytes_to_host = self.bytes_to_device = 0
        sizes = [(layout.size(name), dtype) for name, dtype in _section_dtypes(layout)]
        self.parameters = parameters or Parameters(
            layout, *(self._zeros(n, dtype) for n, dtype in sizes)
        )
        self.gradient = self._zeros(*sizes[0])
        self._host_vectors = [*(self.parameters.section(name) for name in SECTIONS), self.gradient]
        tensors = [torch.from_numpy(host) for host in self._host_vectors]
        self._host_tensors = tensors
        if self.is_on_device:
            tensors = [torch.zeros_like(tensor, device=self.device) for tensor in tensors]
        self._device_tensors = tensors
        self._stale_on_host: set[int] = set()
        """Those that the device has changed since the host's copy."""
        self._stale_on_device: set[int] = set()
        """Those that the host has changed since the device's."""

    _counter_lock = Lock()
    """Threads send batches, too."""

    @property
    def has_float64(self) -> bool:
        """Whether the device computes in it."""
        if self.device.type == "xpu":
            return bool(getattr(torch.xpu.get_device_properties(self.device), "has_fp64", True))
        return self.device.type != "mps"

    def copied_to(self, device: str) -> DeviceParameters:
        """Returns the same numbers on another device."""
        copied = DeviceParameters(self.parameters.layout, device)
        self.sync()
        for target, source in zip(copied._device_tensors, self._device_tensors, strict=True):
            target.copy_(source)
        copied.mark_changed(*copied.sections)
        return copied

    @property
    def sections(self) -> list[Vector]:
        """The host's vectors of the parameters."""
        return self._host_vectors[:-1]

    def _zeros(self, size: int, dtype: str) -> Vector:
        """Returns zeros in the host's memory: pinned where a device copies from it by itself."""
        is_pinned = self.device.type in ("cuda", "xpu") and size > 0
        zeros: Vector = torch.zeros(size, dtype=getattr(torch, dtype), pin_memory=is_pinned).numpy()
        return zeros

    def tensor(self, vector: Vector) -> Tensor:
        """Returns the device's tensor of one of the host's vectors; of any other one, a copy."""
        index = self._index_of(vector)
        if index is not None:
            return self._device_tensors[index]
        return self.on_device(tensor_of(vector))

    def on_device(self, tensor: Tensor) -> Tensor:
        """Returns a tensor of the host on the device; the host does not wait for the copy.

        One that is on a card already stays as it is.
        """
        if not self.is_on_device or tensor.device.type != CPU:
            return tensor
        return self.copy_into(torch.empty_like(tensor, device=self.device), tensor)

    def on_host(self, tensor: Tensor) -> Vector:
        """Returns a tensor of the device on the host, once it is computed."""
        if self.is_on_device:
            self.bytes_to_host += tensor.nbytes
        array: Vector = tensor.numpy(force=True)
        return array

    def copy_into(self, target: Tensor, source: Tensor) -> Tensor:
        """Returns the device's tensor, to which the numbers of one of the host's are sent."""
        if source.device.type != CPU:
            return target.copy_(source)
        with self._counter_lock:
            self.bytes_to_device += source.nbytes
        is_pinned = self.device.type in ("cuda", "xpu")
        return target.copy_(source.pin_memory() if is_pinned else source, non_blocking=is_pinned)

    def view(self, name: str) -> Tensor:
        """Returns one tensor of the parameters in its shape, on the device."""
        entry = self.parameters.layout.entry(name)
        # .data: each view has a version of its own, by which autograd finds what was written over
        flat = self.tensor(self.parameters.section(entry.section)).data
        return flat[entry.offset : entry.offset + entry.size].view(entry.shape)

    def gradient_view(self, name: str) -> Tensor:
        """Returns a trained tensor's part of the gradient in its shape, on the device."""
        entry = self.parameters.layout.entry(name)
        flat = self.tensor(self.gradient)
        return flat[entry.offset : entry.offset + entry.size].view(entry.shape)

    def seed(self, seed: int) -> None:
        """Decides all chance of the device; that of the processor has its own generator."""
        if self.device.type != CPU:
            torch.get_device_module(self.device).manual_seed(seed)

    def mark_changed(self, *vectors: Vector) -> None:
        """Notes that the device has changed them: the host's copies are old."""
        if self.is_on_device:
            self._stale_on_host |= {n for n in map(self._index_of, vectors) if n is not None}

    def to_host(self, vectors: Iterable[Vector]) -> None:
        """Brings the newest numbers to the host, and waits for them."""
        indices = {n for n in map(self._index_of, vectors) if n is not None}
        if not self.is_on_device or not indices:
            return
        for index in indices & self._stale_on_host:
            self._host_tensors[index].copy_(self._device_tensors[index], non_blocking=True)
            self.bytes_to_host += self._host_tensors[index].nbytes
        self._stale_on_host -= indices
        if self.device.type != CPU:
            torch.accelerator.synchronize(self.device)

    def to_device(self, vectors: Iterable[Vector]) -> None:
        """Notes what the host has written: the device gets it at the next `sync`."""
        if self.is_on_device:
            indices = {n for n in map(self._index_of, vectors) if n is not None}
            self._stale_on_device |= indices
            self._stale_on_host -= indices

    def sync(self) -> None:
        """Sends what the host has written, without waiting: the device's work comes after it."""
        for index in self._stale_on_device:
            self._device_tensors[index].copy_(self._host_tensors[index], non_blocking=True)
            with self._counter_lock:
                self.bytes_to_device += self._host_tensors[index].nbytes
        self._stale_on_device.clear()

    def _index_of(self, vector: Vector) -> int | None:
        return next((n for n, host in enumerate(self._host_vectors) if host is vector), None)


def _section_dtypes(layout: Layout) -> list[tuple[str, str]]:
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
        storage = self.placed
        storage.sync()
        self._inner.step(storage.tensor(trained), storage.tensor(gradient), progress)  # type: ignore[arg-type]
        storage.mark_changed(trained)

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
    copy_event: Any
    """torch's event of that; None where the copy is done."""

    @property
    def examples(self) -> int:
        """How many there are."""
        count: int = self.batch.examples
        return count


class PlacedModel(Model):
    """A model whose tensors are views of flat vectors, on the processor or on a device."""

    _storage: DeviceParameters
    _copy_stream: Any = None
    """torch's stream of the device, on which batches are copied while it computes."""
    _copy_stream_lock = Lock()

    @abstractmethod
    def _inputs(self, batch: BatchLike) -> dict[str, Tensor]:
        """Returns what a step reads of a batch, as tensors on the host."""

    @property
    def send(self) -> Callable[[Any], Any] | None:
        """Sends a batch on a stream of its own, while the device computes."""
        return (
            self._send
            if self._storage.is_on_device and self._storage.device.type != "mps"
            else None
        )

    def _send(self, batch: Any) -> Any:  # noqa: ANN401 - a feed's
        device = self._storage.device
        if device.type == CPU:
            return SentBatch(batch, self._device_inputs(batch), None)
        module = torch.get_device_module(device)
        with self._copy_stream_lock:
            self._copy_stream = self._copy_stream or module.Stream(device)
        with module.stream(self._copy_stream):
            inputs = self._device_inputs(batch)
            return SentBatch(batch, inputs, self._copy_stream.record_event())

    def _device_inputs(self, batch: BatchLike) -> dict[str, Tensor]:
        """Returns what a step reads of a batch, where the model computes."""
        return {name: self._storage.on_device(x) for name, x in self._inputs(batch).items()}

    def _ready_inputs(self, batch: BatchLike | SentBatch) -> Mapping[str, Tensor]:
        """Returns a batch's inputs: on the host, or where they were sent, once they are there."""
        if not isinstance(batch, SentBatch):
            return self._inputs(batch)
        if batch.copy_event is not None:
            device = self._storage.device
            stream = torch.get_device_module(device).current_stream(device)
            stream.wait_event(batch.copy_event)
            for x in batch.inputs.values():
                x.record_stream(stream)  # its memory is of the other stream
        return batch.inputs

    @abstractmethod
    def _bind(self, storage: DeviceParameters) -> None:
        """Makes its tensors views of these vectors, with its numbers in them."""

    def move(self, device: str) -> None:
        """Moves its parameters and its gradient to a device."""
        self._bind(self._storage.copied_to(device))
        self._storage.to_host(self._storage.sections)

    def place(self, device: str, inner: InnerOptimizer) -> InnerOptimizer:
        """Moves its parameters, its gradient and the inner optimizer to a device."""
        self.move(device)
        return DeviceOptimizer(inner, self._storage)

    def to_host(self, *vectors: Vector) -> None:
        """Brings parameters, buffers or the gradient from the device."""
        self._storage.to_host(vectors)

    def to_device(self, *vectors: Vector) -> None:
        """Sends parameters, buffers or the gradient to the device."""
        self._storage.to_device(vectors)
