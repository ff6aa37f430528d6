"""Local response normalization across channels, forward and backward in one pass each.

torch's own makes five passes over the activations and keeps them all for the way back. Here the
sum over neighbouring channels is a product with a banded matrix, which runs as fast as any other
1×1 convolution, in every memory format and in bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class LRN(nn.Module):
    """Divides each activation by a power of what its neighbouring channels hold.

        y_c = x_c / (k + α Σ_{|j − c| ≤ r} x_j²)^β

    α is TensorFlow's, of the sum; torch's `LocalResponseNorm` divides its own by the window.

    Example:
        >>> x = torch.linspace(-1, 1, 2 * 8).reshape(2, 8, 1, 1)
        >>> plain = nn.LocalResponseNorm(5, alpha=5 * 0.1, beta=0.75, k=1.0)
        >>> torch.allclose(LRN(8, radius=2, alpha=0.1)(x), plain(x))
        True

    Reference:
        Krizhevsky, Sutskever and Hinton, ImageNet classification with deep convolutional neural
        networks (2012), section 3.3.
    """

    def __init__(
        self,
        channels: int,
        radius: int = 4,
        alpha: float = 0.001 / 9,
        beta: float = 0.75,
        k: float = 1.0,
    ) -> None:
        """Stores the window.

        Args:
            channels: C.
            radius: r; the window is cut at the first and the last channel.
            alpha: α.
            beta: β.
            k: what keeps the divisor from 0.
        """
        super().__init__()
        self._radius, self._alpha, self._beta, self._k = radius, alpha, beta, k
        self._bands: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        self._channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """Returns y [B, C, H, W] for x [B, C, H, W], in its type and memory format."""
        band = self._band(x.dtype, x.device)
        # as a tensor operation of its own, autocast would turn the band's type at every step
        device_type = x.device.type if torch.amp.is_autocast_available(x.device.type) else "cpu"
        with torch.autocast(device_type, enabled=False):
            y: Tensor = _Normalise.apply(x, band, self._beta, self._k)  # type: ignore[no-untyped-call]
        return y

    def _band(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns α where two channels are neighbours, else 0: [C, C, 1, 1]."""
        if (dtype, device) not in self._bands:
            c = torch.arange(self._channels, device="cpu")
            is_neighbour = (c[:, None] - c[None]).abs() <= self._radius
            band = (is_neighbour.double() * self._alpha).to(device, dtype)
            self._bands[dtype, device] = band[:, :, None, None]
        return self._bands[dtype, device]


class _Normalise(torch.autograd.Function):
    """y = x s, s = d^−β, d = k + α Σ x²;  x̄ = ȳ s − 2 β x · band(ȳ x s / d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, band: Tensor, beta: float, k: float) -> Tensor:  # noqa: ANN401
        d = functional.conv2d(x * x, band, x.new_full((x.shape[1],), k))
        s = _power(d, beta)
        ctx.save_for_backward(x, band, d, s)
        ctx.beta = beta
        return x * s

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
        x, band, d, s = ctx.saved_tensors
        direct = grad * s
        spread = functional.conv2d((direct * x).div_(d), band)  # the band is symmetric
        return direct.addcmul_(x, spread, value=-2 * ctx.beta), None, None, None


def _power(d: Tensor, beta: float) -> Tensor:
    """Returns d^−β; two square roots take a tenth of the time of a power."""
    if beta == 0.75:
        root = d.rsqrt()
        return root.sqrt().mul_(root)
    return d.pow(-beta)
