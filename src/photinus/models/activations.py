"""Where the forward pass leaves what the backward pass needs: kept, computed again, or stored.

Gradients have the same bits in every way.

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
        >>> with Activations(net).left("recompute"):
        ...     loss = net(torch.ones(2, 4)).sum()
        >>> loss.backward()
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._own = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self._file: _File | None = None

    @property
    def ways(self) -> tuple[str, ...]:
        """Those of `ACTIVATIONS` that the module allows: some have nothing to compute again."""
        can = bool(_blocks(self._module)) or _longest(self._module) is not None
        return tuple(how for how in ACTIVATIONS if can or how != "recompute")

    def left(self, how: str) -> AbstractContextManager[None]:
        """Has the forward passes inside leave their activations in one of the ways.

        Raises:
            UsageError: nothing in the module can be computed again.
        """
        if how == "recompute":
            return self._recomputed()
        if how == "offload":
            return self._offloaded()
        return nullcontext()

    @contextmanager
    def _recomputed(self) -> Iterator[None]:
        blocks = _blocks(self._module)
        sequence = None if blocks else _sequence(self._module)
        blocks = blocks[:-1]  # the backward pass begins with the last one: it would gain nothing
        try:
            for block in blocks:
                block.forward = _again(block)
            if sequence is not None:
                sequence.forward = _in_segments(sequence)  # type: ignore[method-assign]
            yield
        finally:
            for block in [*blocks, *([] if sequence is None else [sequence])]:
                block.__dict__.pop("forward", None)

    @contextmanager
    def _offloaded(self) -> Iterator[None]:
        """From a device to the host's memory, from there to a file without a name."""
        if next(self._module.parameters()).device.type != "cpu":
            with save_on_cpu(pin_memory=True):
                yield
            return
        self._file = self._file or _File()
        self._file.begin(self._own)
        with saved_tensors_hooks(self._file.pack, self._file.unpack):
            yield


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Returns the elements of lists that have parts, but no such list within them."""
    found: list[nn.Module] = []
    for within in module.modules():
        if isinstance(within, (nn.Sequential, nn.ModuleList)):
            found += [e for e in within if any(True for _ in e.children()) and not _has_list(e)]
    return list(dict.fromkeys(found))


def _has_list(module: nn.Module) -> bool:
    lists = (m for m in module.modules() if isinstance(m, (nn.Sequential, nn.ModuleList)))
    return any(any(True for _ in e.children()) for one in lists for e in one)


def _longest(module: nn.Module) -> nn.Sequential | None:
    """Returns the longest sequence of layers; None: no sequence is long enough to be parted."""
    sequences = [m for m in module.modules() if isinstance(m, nn.Sequential)]
    longest = max(sequences, key=len, default=None)
    return longest if longest is not None and len(longest) >= _FEWEST_LAYERS else None


def _sequence(module: nn.Module) -> nn.Sequential:
    longest = _longest(module)
    if longest is None:
        wrong = "nothing in this module can be computed again"
        do = (
            'put its blocks into nn.Sequential or nn.ModuleList, or use activation_memory="offload"'
        )
        raise UsageError(wrong, got=type(module).__name__, do=do)
    return longest


def _again(block: nn.Module) -> Callable[..., Any]:
    plain = block.forward

    def forward(*args: Any, **named: Any) -> Any:  # noqa: ANN401 - any module's
        return checkpoint(
            plain, *args, use_reentrant=False, context_fn=lambda: _contexts(block), **named
        )

    return forward


def _in_segments(sequence: nn.Sequential) -> Callable[[Tensor], Any]:
    """√n segments of n layers hold least: the borders, and one segment at a time."""
    size = round(len(sequence) ** 0.5)
    *segments, last = (sequence[at : at + size] for at in range(0, len(sequence), size))

    def forward(x: Any) -> Any:  # noqa: ANN401 - any module's
        for segment in segments:
            x = _again(segment)(x)
        return last(x)

    return forward


def _contexts(
    block: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _Unchanged(block)


class _Unchanged(AbstractContextManager[None]):
    """The second forward pass changes copies of running statistics and counters.

    It may be entered again: of a loss in float16 there may be several backward passes.
    """

    def __init__(self, block: nn.Module) -> None:
        self._block = block

    def __enter__(self) -> None:
        self._kept = [(module, dict(module._buffers)) for module in self._block.modules()]
        for module, buffers in self._kept:
            copies = {name: b if b is None else b.clone() for name, b in buffers.items()}
            module._buffers.update(copies)

    def __exit__(self, *_: object) -> None:
        for module, buffers in self._kept:
            module._buffers.update(buffers)


class _Stored(NamedTuple):
    """Where a tensor's memory lies in the file."""

    offset: int
    size: int
    like: Tensor
    """Without memory: shape, strides and type."""
    start: int


class _File:
    """Tensors in a file without a name; each storage is written once a step."""

    def __init__(self) -> None:
        self._file, name = tempfile.mkstemp(prefix="photinus-")
        os.unlink(name)
        weakref.finalize(self, os.close, self._file)
        self._end = 0
        self._own: set[int] = set()
        self._known: dict[tuple[int, int], tuple[StorageWeakRef, int]] = {}

    def begin(self, own: set[int]) -> None:
        """Forgets what it holds; storages of `own` stay where they are."""
        self._own, self._end = own, 0
        self._known.clear()

    def pack(self, tensor: Tensor) -> Tensor | _Stored:
        """Writes a tensor's memory, unless it is small or the module's own."""
        storage = tensor.untyped_storage()
        if storage.nbytes() < _SMALL_BYTES or storage.data_ptr() in self._own:
            return tensor
        key = storage.data_ptr(), tensor._version
        known = self._known.get(key)
        if known is None or known[0].expired():  # type: ignore[no-untyped-call]
            raw = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._write(raw)
            weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            known = self._known[key] = weak, self._end
            self._end += storage.nbytes()
        like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return _Stored(known[1], storage.nbytes(), like, int(tensor.storage_offset()))

    def _write(self, raw: Tensor) -> None:
        left, at = memoryview(raw.numpy().data), self._end
        while left:
            written = os.pwrite(self._file, left, at)
            left, at = left[written:], at + written

    def unpack(self, packed: Tensor | _Stored) -> Tensor:
        """Reads it back."""
        if isinstance(packed, Tensor):
            return packed
        raw = torch.empty(packed.size, dtype=torch.uint8)
        left, at = memoryview(raw.numpy().data), packed.offset
        while left:
            read = os.preadv(self._file, [left], at)
            left, at = left[read:], at + read
        like = packed.like
        empty = torch.empty(0, dtype=like.dtype)
        return empty.set_(raw.untyped_storage(), packed.start, like.shape, like.stride())


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
        read = {
            t.untyped_storage().data_ptr()
            for t in tree_leaves((args, kwargs))
            if isinstance(t, Tensor)
        }
        made = func(*args, **kwargs)
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                self._note(tensor.untyped_storage(), read)
        return made

    def _note(self, storage: torch.UntypedStorage, read: set[int]) -> None:
        if storage in self._seen or storage.data_ptr() in read:
            return
        self._seen.add(storage)
        size = storage.nbytes()
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, size)

    def _gone(self, size: int) -> None:
        self.now -= size


def fitting(
    peak: Callable[[str, int], int],
    rows: int,
    budget_bytes: int,
    ways: tuple[str, ...] = ACTIVATIONS,
) -> tuple[str, dict[str, int]]:
    """Returns the first way whose step stays under a budget, and what each needs.

    Args:
        peak: the most bytes of a step in a way, of a batch of so many rows.
        rows: of a whole batch. But for "offload", two small parts of it are measured, and a
            straight line is drawn through them: a whole one may not fit.
        budget_bytes: for activations, their gradients and whatever else a step makes.
        ways: of `ACTIVATIONS`, in their order.

    Raises:
        UsageError: none stays under it.
    """
    small, large = max(1, rows // 8), max(2, rows // 4)
    needs: dict[str, int] = {}
    for how in ways:
        if how == ACTIVATIONS[-1]:  # small tensors stay in memory, so there is no straight line
            needs[how] = peak(how, rows)
        else:
            least, more = peak(how, small), peak(how, large)
            needs[how] = round(more + (more - least) / (large - small) * max(0, rows - large))
        if needs[how] <= budget_bytes:
            return how, needs
    told = ", ".join(f"{how} {size / 2**20:.1f}" for how, size in needs.items())
    wrong = f"a step needs more memory than its {budget_bytes / 2**20:.1f} MiB"
    do = "use a smaller batch, a larger activation_bytes" + (
        "" if len(ways) > 1 else ', or activation_memory="auto"'
    )
    raise UsageError(wrong, got=f"MiB for {rows} rows: {told}", do=do)
