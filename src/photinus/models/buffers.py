"""The buffers of a module as views of flat vectors, also where its forward pass assigns them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor, nn

from photinus.core.errors import UsageError
from photinus.models.placement import DeviceParameters


class _Buffer(NamedTuple):
    name: str
    module: nn.Module
    """The layer that has it."""
    attribute: str
    """What that layer calls it."""
    view: Tensor

    def replacement(self) -> Tensor | None:
        """Returns what was assigned in the view's place; None: nothing, or what is not held."""
        new = self.module._buffers.get(self.attribute)
        if new is self.view:
            return None
        if new is not None and (new.shape, new.dtype) == (self.view.shape, self.view.dtype):
            return new.detach()
        if self.attribute in self.module._non_persistent_buffers_set:
            return None
        wrong = f"a buffer that forward assigns must keep its shape and its type: {self.name}"
        got = "nothing" if new is None else _describe(new)
        do = f"assign {_describe(self.view)}, or register it with persistent=False"
        raise UsageError(wrong, got=got, do=do)


class Buffers:
    """Moves a module's buffers into flat vectors, and holds them there.

    `self.mean = 0.9 * self.mean + 0.1 * x.mean(0)` puts another tensor in the view's place: nothing
    that reads the vectors would see its numbers.

    Args:
        module: whose buffers they are; their numbers are kept.
        names: which.
        storage: where the vectors lie.

    Example:
        >>> from photinus.core.parameters import Layout
        >>> norm, layout = nn.BatchNorm1d(2), Layout.of([("running_mean", (2,), "floats")])
        >>> buffers = Buffers(norm, ["running_mean"], storage := DeviceParameters(layout))
        >>> norm.running_mean = norm.running_mean + 3
        >>> buffers.restore_views()
        >>> storage.parameters.floats.tolist()
        [3.0, 3.0]
    """

    def __init__(self, module: nn.Module, names: Iterable[str], storage: DeviceParameters) -> None:
        self._entries: list[_Buffer] = []
        for name in names:
            path, _, attribute = name.rpartition(".")
            entry = _Buffer(name, module.get_submodule(path), attribute, storage.view(name))
            if (initial := entry.replacement()) is not None:
                entry.module._buffers[attribute] = entry.view.copy_(initial)
                self._entries.append(entry)

    def restore_views(self) -> None:
        """Copies what was assigned into the views, and puts these back.

        A buffer that `state_dict` does not have may get another shape: it is a cache of the
        module's own.

        Raises:
            UsageError: another one has another shape or type than before.
        """
        # clones: `self.before, self.now = self.now, ...` assigns one view in another's place
        replaced = [
            (entry, new.clone())
            for entry in self._entries
            if (new := entry.replacement()) is not None
        ]
        for entry, new in replaced:
            entry.module._buffers[entry.attribute] = entry.view.copy_(new)


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
