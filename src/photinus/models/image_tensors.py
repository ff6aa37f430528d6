"""The functions of `images` by torch, on the device where the module lies.

They take what those do, as tensors; the draws are int64 with the same bits. So a device gets images
as they are stored, with a byte for each number.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from photinus.core.errors import DataError

SIDE = 32
CROP = 24
CHANNELS = 3
CONTRAST = (0.2, 1.8)
MEANS = (125.307, 122.950, 113.865)
"""Of CIFAR-10's training images: red, green, blue."""

IMAGENET_SIDE = 224
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Means and deviations of red, green and blue, of numbers from 0 to 1."""

_SPLITMIX_CONSTANTS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def uniform(draws: Tensor, number: int) -> Tensor:
    """Returns the `number`-th random number of each example [B], with the bits of `images`'."""
    step, first, second = (constant - (constant >> 63 << 64) for constant in _SPLITMIX_CONSTANTS)
    z = draws + _to_signed(step * (number + 1))
    z = (z ^ _shift_right(z, 30)) * first
    z = (z ^ _shift_right(z, 27)) * second
    z = z ^ _shift_right(z, 31)
    return _shift_right(z, 11).double() * 2.0**-53


def _to_signed(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Shifts to the right as numbers without a sign."""
    return (z >> bits) & ((1 << 64 - bits) - 1)


def crops(features: Tensor, draws: Tensor | None) -> Tensor:
    """As `images.crops`, to rounding."""
    cropped = _crop(with_sides(features, SIDE), CROP, draws)
    contrast: Any = 1.0
    if draws is not None:
        least, most = CONTRAST
        contrast = (least + (most - least) * uniform(draws, 3)).float()
    pixels = cropped.float().flatten(2)  # [B, 3, 576]
    means = pixels.mean(2)  # [B, 3]
    pixels -= means[:, :, None]
    mean_variance = (pixels * pixels).mean((1, 2))
    deviation = (contrast**2 * mean_variance + means.var(1, correction=0)).sqrt()  # [B]
    deviation = deviation.clamp(min=(CHANNELS * CROP**2) ** -0.5)
    pixels *= (contrast / deviation)[:, None, None]
    pixels += ((means - means.mean(1, keepdim=True)) / deviation[:, None])[:, :, None]
    return pixels.view(cropped.shape)


def centred(features: Tensor, draws: Tensor | None) -> Tensor:  # noqa: ARG001
    """As `images.centred`."""
    images: Tensor = with_sides(features, SIDE)
    return images - _channel_values(images, MEANS)


def imagenet(features: Tensor, draws: Tensor | None) -> Tensor:
    """As `images.imagenet`."""
    images = features.reshape(-1, CHANNELS, *[square_side(features)] * 2)
    cropped = _crop(images, IMAGENET_SIDE, draws).float()
    means, deviations = (255 * _channel_values(images, values) for values in IMAGENET)
    return (cropped - means) / deviations


def _channel_values(images: Tensor, values: tuple[float, ...]) -> Tensor:
    """Returns a number for each channel [3, 1, 1]; no copy from the host, which may not wait."""
    planes = [torch.full((1, 1), value, device=images.device) for value in values]
    return torch.stack(planes)


def _crop(images: Tensor, size: int, draws: Tensor | None) -> Tensor:
    """Returns crops [B, 3, size, size]: by chance, and mirrored by chance, or the middle ones."""
    positions = images.shape[2] - size + 1
    if draws is None:
        start = (positions - 1) // 2
        return images[:, :, start : start + size, start : start + size]
    y, x = ((uniform(draws, k) * positions).long()[:, None] for k in (0, 1))  # [B, 1]
    steps = torch.arange(size, device=images.device)
    is_mirrored = (uniform(draws, 2) < 0.5)[:, None]
    rows, columns = y + steps, x + torch.where(is_mirrored, size - 1 - steps, steps)  # [B, size]
    image_index = torch.arange(len(images), device=images.device)[:, None, None, None]
    channels = torch.arange(CHANNELS, device=images.device)[:, None, None]
    return images[image_index, channels, rows[:, None, :, None], columns[:, None, None, :]]


def with_sides(features: Any, side: int) -> Any:  # noqa: ANN401 - an array or a tensor
    """Returns images [B, 3, side, side], of an array or a tensor.

    Raises:
        DataError: a row has another number of numbers.
    """
    if math.prod(features.shape[1:]) != CHANNELS * side * side and len(features):
        raise DataError(
            f"an image must be {CHANNELS} x {side} x {side} numbers",
            got=list(features.shape[1:]),
            do="compare the features with what the model's `reads` takes",
        )
    return features.reshape(-1, CHANNELS, side, side)


def square_side(features: Any) -> int:  # noqa: ANN401 - likewise
    """Returns the side of images [B, ...] of any size for ImageNet's crops.

    Raises:
        DataError: a row is no square image, or too small a one.
    """
    size = math.prod(features.shape[1:])
    side = math.isqrt(size // CHANNELS)
    if len(features) and (size != CHANNELS * side**2 or side < IMAGENET_SIDE):
        wrong = f"an image must be {CHANNELS} x side x side numbers, side {IMAGENET_SIDE} or more"
        raise DataError(wrong, got=list(features.shape[1:]), do="read images with side=256")
    return side
