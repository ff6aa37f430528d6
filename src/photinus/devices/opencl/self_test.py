"""Known answers: a device must give them to the bit before it is used.

All numbers are small and whole, so that float32 holds every sum exactly, in whatever order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from photinus.core.errors import NotReadyError
from photinus.devices.opencl.engine import OpenCLEngine
from photinus.devices.opencl.offload import Offload


def check(engine: OpenCLEngine) -> None:
    """Has a device compute what is known.

    Raises:
        NotReadyError: an answer is wrong.
    """
    for name, compute in _CASES.items():
        expected = compute()
        with Offload(engine):
            computed = compute()
        wrong = sum(int((a != b).sum()) for a, b in zip(computed, expected, strict=True))
        if wrong:
            device = engine.device
            raise NotReadyError(
                f"{device.name} ({device.title}) fails its test: it computes a {name} wrongly",
                got=f"{wrong} of {sum(a.numel() for a in expected)} numbers differ",
                do="renew its driver, or name another device",
            )


def _whole(*shape: int) -> Tensor:
    """Returns whole numbers from -5 to 5, without a pattern that a wrong offset would keep."""
    numbers = torch.arange(torch.Size(shape).numel())
    return (numbers * numbers % 101 * 7 % 11 - 5).float().view(shape)


def _products() -> list[Tensor]:
    x, y = _whole(37, 1030), _whole(1030, 70)  # more than is packed at once, and odd edges
    batches = _whole(3, 5, 4), _whole(3, 4, 6)
    return [x @ y, x.t() @ _whole(37, 9), y.t() @ x.t(), torch.bmm(*batches), x @ y[:, 0]]


def _convolution(stride: int, pad: int, kernel_size: tuple[int, int]) -> Callable[[], list[Tensor]]:
    def compute() -> list[Tensor]:
        x, w = _whole(2, 3, 11, 9).requires_grad_(), _whole(5, 3, *kernel_size).requires_grad_()
        y = functional.conv2d(x, w, _whole(5), stride=stride, padding=pad)
        return [y.detach(), *torch.autograd.grad(y, (x, w), _whole(*y.shape))]

    return compute


def _pool() -> list[Tensor]:
    x = _whole(2, 3, 10, 9).requires_grad_()
    y, indices = functional.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True)
    (gradient,) = torch.autograd.grad(y, x, _whole(*y.shape))
    return [y.detach(), indices, gradient]


_CASES: Mapping[str, Callable[[], list[Tensor]]] = {
    "product": _products,
    "convolution": _convolution(1, 2, (5, 5)),
    "convolution with a stride": _convolution(2, 0, (3, 2)),
    "1x1 convolution": _convolution(1, 0, (1, 1)),
    "max-pool": _pool,
}
