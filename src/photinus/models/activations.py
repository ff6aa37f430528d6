"""Where the forward pass leaves what the backward pass needs: kept, computed again, or stored.

Gradients have the same bits in every mode.

Reference: Chen, Xu, Zhang and Guestrin, Training deep nets with sublinear memory cost (2016).
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from photinus.core.errors import UsageError

AUTO = "auto"
ACTIVATIONS = ("keep", "recompute", "offload")
"""From the fastest to the one that needs least memory."""

_SMALL_BYTES = 1 << 16
_FEWEST_LAYERS = 4


class Activations:
    """Runs forward passes of a module in one of `ACTIVATIONS`.

    Args:
        module: whose blocks are computed again: the elements of nn.Sequential and nn.ModuleList.

    Example:
        >>> net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
        >>> with Activations(net).using("recompute"):
        ...     loss = net(torch.ones(2, 4)).sum()
        >>> loss.backward()
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parameter_storages = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self._file: _TensorFile | None = None

    @property
    def modes(self) -> tuple[str, ...]:
        """Those of `ACTIVATIONS` that the module allows: some have nothing to compute again."""
        can_recompute = bool(_blocks(self._module)) or _longest_sequence(self._module) is not None
        return tuple(mode for mode in ACTIVATIONS if can_recompute or mode != "recompute")

    def using(self, mode: str) -> AbstractContextManager[None]:
        """Has the forward passes inside leave their activations in one of the modes.

        Raises:
            UsageError: nothing in the module can be computed again.
        """
        if mode == "recompute":
            return self._recompute()
        if mode == "offload":
            return self._offload()
        return nullcontext()

    @contextmanager
    def _recompute(self) -> Iterator[None]:
        blocks = _blocks(self._module)
        sequence = None if blocks else _require_sequence(self._module)
        blocks = blocks[:-1]  # the backward pass begins with the last one: it would gain nothing
        try:
            for block in blocks:
                block.forward = _checkpointed(block)
            if sequence is not None:
                sequence.forward = _segmented_forward(sequence)  # type: ignore[method-assign]
            yield
        finally:
            for block in [*blocks, *([] if sequence is None else [sequence])]:
                block.__dict__.pop("forward", None)

    @contextmanager
    def _offload(self) -> Iterator[None]:
        """From a device to the host's memory, from there to a file without a name."""
        if next(self._module.parameters()).device.type != "cpu":
            with save_on_cpu(pin_memory=True):
                yield
            return
        self._file = self._file or _TensorFile()
        self._file.begin(self._parameter_storages)
        with saved_tensors_hooks(self._file.pack, self._file.unpack):
            yield


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Returns the elements of lists that have parts, but no such list within them."""
    blocks: list[nn.Module] = []
    for parent in module.modules():
        if isinstance(parent, (nn.Sequential, nn.ModuleList)):
            blocks += [
                element
                for element in parent
                if any(True for _ in element.children()) and not _has_list(element)
            ]
    return list(dict.fromkeys(blocks))


def _has_list(module: nn.Module) -> bool:
    containers = (m for m in module.modules() if isinstance(m, (nn.Sequential, nn.ModuleList)))
    return any(
        any(True for _ in element.children()) for container in containers for element in container
    )


def _longest_sequence(module: nn.Module) -> nn.Sequential | None:
    """Returns the longest sequence of layers; None: no sequence is long enough to be parted."""
    sequences = [m for m in module.modules() if isinstance(m, nn.Sequential)]
    longest = max(sequences, key=len, default=None)
    return longest if longest is not None and len(longest) >= _FEWEST_LAYERS else None


def _require_sequence(module: nn.Module) -> nn.Sequential:
    longest = _longest_sequence(module)
    if longest is None:
        wrong = "nothing in this module can be computed again"
        do = (
            'put its blocks into nn.Sequential or nn.ModuleList, or use activation_memory="offload"'
        )
        raise UsageError(wrong, got=type(module).__name__, do=do)
    return longest


def _checkpointed(block: nn.Module) -> Callable[..., Any]:
    original = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any module's
        return checkpoint(
            original,
            *args,
            use_reentrant=False,
            context_fn=lambda: _recompute_contexts(block),
            **kwargs,
        )

    return forward


def _segmented_forward(sequence: nn.Sequential) -> Callable[[Tensor], Any]:
    """√n segments of n layers hold least: the borders, and one segment at a time."""
    size = round(len(sequence) ** 0.5)
    *segments, last = (sequence[start : start + size] for start in range(0, len(sequence), size))

    def forward(x: Any) -> Any:  # noqa: ANN401 - any module's
        for segment in segments:
            x = _checkpointed(segment)(x)
        return last(x)

    return forward


def _recompute_contexts(
    block: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _PreservedBuffers(block)


class _PreservedBuffers(AbstractContextManager[None]):
    """The second forward pass changes copies of running statistics and counters.

    It may be entered again: of a loss in float16 there may be several backward passes.
    """

    def __init__(self, block: nn.Module) -> None:
        self._block = block

    def __enter__(self) -> None:
        self._saved_buffers = [(module, dict(module._buffers)) for module in self._block.modules()]
        for module, buffers in self._saved_buffers:
            copies = {name: b if b is None else b.clone() for name, b in buffers.items()}
            module._buffers.update(copies)

    def __exit__(self, *_: object) -> None:
        for module, buffers in self._saved_buffers:
            module._buffers.update(buffers)


class _StoredTensor(NamedTuple):
    """Where a tensor's memory lies in the file."""

    offset: int
    size: int
    template: Tensor
    """Without memory: shape, strides and type."""
    storage_offset: int


class _TensorFile:
    """Tensors in a file without a name; each storage is written once a step."""

    def __init__(self) -> None:
        self._descriptor, path = tempfile.mkstemp(prefix="photinus-")
        os.unlink(path)
        weakref.finalize(self, os.close, self._descriptor)
        self._end = 0
        self._own_storages: set[int] = set()
        self._written: dict[tuple[int, int], tuple[StorageWeakRef, int]] = {}

    def begin(self, storages: set[int]) -> None:
        """Forgets what it holds; the given `storages` stay where they are."""
        self._own_storages, self._end = storages, 0
        self._written.clear()

    def pack(self, tensor: Tensor) -> Tensor | _StoredTensor:
        """Writes a tensor's memory, unless it is small or the module's own."""
        storage = tensor.untyped_storage()
        if storage.nbytes() < _SMALL_BYTES or storage.data_ptr() in self._own_storages:
            return tensor
        key = storage.data_ptr(), tensor._version
        entry = self._written.get(key)
        if entry is None or entry[0].expired():  # type: ignore[no-untyped-call]
            raw = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._write(raw)
            weak_storage = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            entry = self._written[key] = weak_storage, self._end
            self._end += storage.nbytes()
        template = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
        )
        return _StoredTensor(entry[1], storage.nbytes(), template, int(tensor.storage_offset()))

    def _write(self, raw: Tensor) -> None:
        remaining, offset = memoryview(raw.numpy().data), self._end
        while remaining:
            written = os.pwrite(self._descriptor, remaining, offset)
            remaining, offset = remaining[written:], offset + written

    def unpack(self, packed: Tensor | _StoredTensor) -> Tensor:
        """Reads it back."""
        if isinstance(packed, Tensor):
            return packed
        raw = torch.empty(packed.size, dtype=torch.uint8)
        remaining, offset = memoryview(raw.numpy().data), packed.offset
        while remaining:
            count = os.preadv(self._descriptor, [remaining], offset)
            remaining, offset = remaining[count:], offset + count
        template = packed.template
        empty = torch.empty(0, dtype=template.dtype)
        return empty.set_(
            raw.untyped_storage(), packed.storage_offset, template.shape, template.stride()
        )


class PeakBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the memory of tensors that are made inside, and the most that there was at a time.

    Example:
        >>> with PeakBytes() as peak:
        ...     for _ in range(3):
        ...         x = torch.ones(1000) + 1.0
        >>> 8000 <= peak.most <= 12000
        True
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: int = 0
        self.most: int = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's operators
        types: Any,  # noqa: ANN401
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Runs an operator, and notes the storages that are new in its outputs."""
        kwargs = dict(kwargs or {})
        input_addresses = {
            t.untyped_storage().data_ptr()
            for t in tree_leaves((args, kwargs))
            if isinstance(t, Tensor)
        }
        result = func(*args, **kwargs)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                self._count(tensor.untyped_storage(), input_addresses)
        return result

    def _count(self, storage: torch.UntypedStorage, input_addresses: set[int]) -> None:
        if storage in self._seen or storage.data_ptr() in input_addresses:
            return
        self._seen.add(storage)
        size = storage.nbytes()
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._release, size)

    def _release(self, size: int) -> None:
        self.now -= size


def choose_mode(
    peak: Callable[[str, int], int],
    rows: int,
    budget_bytes: int,
    modes: tuple[str, ...] = ACTIVATIONS,
) -> tuple[str, dict[str, int]]:
    """Returns the first mode whose step stays under a budget, and the bytes that each needs.

    Args:
        peak: the most bytes of a step in a mode, of a batch of so many rows.
        rows: of a whole batch. But for "offload", two small parts of it are measured, and a
            straight line is drawn through them: a whole one may not fit.
        budget_bytes: for activations, their gradients and whatever else a step makes.
        modes: of `ACTIVATIONS`, in their order.

    Raises:
        UsageError: none stays under it.
    """
    small, large = max(1, rows // 8), max(2, rows // 4)
    bytes_by_mode: dict[str, int] = {}
    for mode in modes:
        if mode == ACTIVATIONS[-1]:  # small tensors stay in memory, so there is no straight line
            bytes_by_mode[mode] = peak(mode, rows)
        else:
            small_bytes, large_bytes = peak(mode, small), peak(mode, large)
            bytes_by_mode[mode] = round(
                large_bytes + (large_bytes - small_bytes) / (large - small) * max(0, rows - large)
            )
        if bytes_by_mode[mode] <= budget_bytes:
            return mode, bytes_by_mode
    summary = ", ".join(f"{mode} {size / 2**20:.1f}" for mode, size in bytes_by_mode.items())
    wrong = f"a step needs more memory than its {budget_bytes / 2**20:.1f} MiB"
    do = "use a smaller batch, a larger activation_bytes" + (
        "" if len(modes) > 1 else ', or activation_memory="auto"'
    )
    raise UsageError(wrong, got=f"MiB for {rows} rows: {summary}", do=do)
