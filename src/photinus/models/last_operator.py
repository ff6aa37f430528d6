"""Tells whether a module ends with a sigmoid, which some losses take themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from photinus.models.reading import main_output


class _SigmoidAddresses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes where the sigmoids lie that are computed inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept: list[Tensor] = []  # so that no other tensor gets their memory
        self.addresses = set[int]()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's operators
        types: Any,  # noqa: ANN401
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Runs an operator."""
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("sigmoid", "sigmoid_"):
            self._kept.append(result)
            self.addresses.add(result.untyped_storage().data_ptr())
        return result


def ends_with_sigmoid(module: nn.Module, run: Callable[[], object]) -> bool:
    """Returns whether what a module returns is a sigmoid, or a view of one.

    The numbers alone do not show it: a new layer's may lie in 0..1, too.

    False where that cannot be seen.

    Args:
        module: is called by `run`.
        run: computes its outputs for some rows.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 1), nn.Sigmoid(), nn.Flatten(0))
        >>> ends_with_sigmoid(net, lambda: net(Tensor([[0.0, 1.0]])))
        True
        >>> ends_with_sigmoid(net[0], lambda: net(Tensor([[0.0, 1.0]])))
        False
    """
    outputs: list[object] = []
    hook = module.register_forward_hook(lambda _, __, out: outputs.append(main_output(out, "")))
    try:
        with _SigmoidAddresses() as sigmoids:
            run()
    except Exception:  # torch.cond and others refuse to be watched; training says the rest
        return False
    finally:
        hook.remove()
    addresses = {out.untyped_storage().data_ptr() for out in outputs if isinstance(out, Tensor)}
    return bool(addresses) and addresses <= sigmoids.addresses
