"""Prepares images for a network: crops, mirrors, brightness, contrast, whitening.

A function of this kind is named as `ModuleConfig.reads`: it takes a batch as it is stored, and one
random number for each example, or none where the result must not depend on chance. Its `tensors` is
the same function by torch, for a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from photinus.core.parameters import Vector
from photinus.models import image_tensors
from photinus.models.image_tensors import (
    CHANNELS,
    CONTRAST,
    CROP,
    IMAGENET,
    IMAGENET_SIDE,
    MEANS,
    SIDE,
    square_side,
    with_sides,
)


def uniform(draws: NDArray[np.uint64], number: int) -> NDArray[np.float64]:
    """Returns the `number`-th random number of each example [B], from 0 to below 1.

    Reference:
        SplitMix64: Steele, Lea and Flood, Fast splittable pseudorandom number generators (2014).
    """
    with np.errstate(over="ignore"):
        z = draws + np.uint64(0x9E3779B97F4A7C15) * np.uint64(number + 1)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _with_device_form(tensors: Callable[..., Any]) -> Callable[[Any], Any]:
    """Names the form of a function that a device computes."""

    def decorate(function: Any) -> Any:  # noqa: ANN401 - any function
        function.tensors = tensors
        return function

    return decorate


@_with_device_form(image_tensors.crops)
def crops(features: Vector, draws: NDArray[np.uint64] | None) -> Vector:
    """Returns whitened crops of 24×24, distorted by chance as in TensorFlow's CIFAR-10 tutorial.

        crop 24×24, mirror, x + δ, (x − x̄_c) f + x̄_c, (x − x̄) / max(σ, 1/√n)

    δ is drawn from ±63 and f from 0.2..1.8; x̄_c is a channel's mean, x̄ and σ are the image's, n is
    its 1728 numbers. The last step takes every δ away again, so δ is neither drawn nor added; the
    other two are one product and one sum for each channel. Without draws it is the middle crop,
    whitened, as the tutorial evaluates.

    Args:
        features: uint8 [B, 3072], 1024 red, 1024 green, 1024 blue, or [B, 3, 32, 32].
        draws: [B]; None leaves nothing to chance.

    Returns:
        float32 [B, 3, 24, 24].

    Raises:
        DataError: a row is no image of 3 × 32 × 32 numbers.

    Example:
        >>> images = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
        >>> crops(images, None).shape, crops(images, np.array([1, 2], np.uint64)).dtype
        ((2, 3, 24, 24), dtype('float32'))
    """
    images: Vector = with_sides(features, SIDE)
    if draws is None:
        start = (SIDE - CROP) // 2
        return _whiten(images[:, :, start : start + CROP, start : start + CROP], 1.0)
    positions = SIDE - CROP + 1
    y, x = ((uniform(draws, k) * positions).astype(np.intp) for k in (0, 1))
    image_index = np.arange(len(images))
    windows = np.lib.stride_tricks.sliding_window_view(images, (CROP, CROP), (2, 3))
    cropped = windows[image_index, :, y, x]  # [B, 3, 24, 24]
    is_mirrored = uniform(draws, 2) < 0.5
    cropped[is_mirrored] = cropped[is_mirrored, :, :, ::-1]
    least, most = CONTRAST
    return _whiten(cropped, least + (most - least) * uniform(draws, 3))


@_with_device_form(image_tensors.centred)
def centred(features: Vector, draws: NDArray[np.uint64] | None) -> Vector:  # noqa: ARG001
    """Returns whole images less the channels' means, in grey levels, as Caffe's quick net reads.

    Args:
        features: uint8 [B, 3072] or [B, 3, 32, 32].
        draws: not used: nothing is left to chance.

    Returns:
        float32 [B, 3, 32, 32].

    Raises:
        DataError: a row is no image of 3 × 32 × 32 numbers.
    """
    means = np.array(MEANS, np.float32)[:, None, None]
    return np.asarray(with_sides(features, SIDE) - means)


@_with_device_form(image_tensors.imagenet)
def imagenet(features: Vector, draws: NDArray[np.uint64] | None) -> Vector:
    """Returns crops of 224×224, mirrored by chance, with the mean and deviation of ImageNet.

        (x/255 − x̄_c) / σ_c

    Without draws it is the middle crop, and nothing is mirrored.

    Args:
        features: uint8 [B, 3 side²], all red, all green, all blue numbers, or [B, 3, side, side];
            side is 224 or more.
        draws: [B]; None leaves nothing to chance.

    Returns:
        float32 [B, 3, 224, 224].

    Raises:
        DataError: a row is no square image of that size.

    Example:
        >>> imagenet(np.zeros((2, 3 * 256 * 256), np.uint8), None).shape
        (2, 3, 224, 224)

    Reference:
        Krizhevsky, Sutskever and Hinton, ImageNet classification with deep convolutional neural
        networks (2012), section 4.1.
    """
    side, crop = square_side(features), IMAGENET_SIDE
    images = features.reshape(-1, CHANNELS, side, side)
    cropped = np.empty((len(images), CHANNELS, crop, crop), np.float32)
    corners = np.full((2, len(images)), (side - crop) // 2)
    if draws is not None:
        corners = np.array([uniform(draws, k) * (side - crop + 1) for k in (0, 1)], np.intp)
    for image, target, y, x in zip(images, cropped, *corners, strict=True):
        target[...] = image[:, y : y + crop, x : x + crop]
    if draws is not None:
        is_mirrored = uniform(draws, 2) < 0.5
        cropped[is_mirrored] = cropped[is_mirrored, :, :, ::-1]
    means, deviations = np.array(IMAGENET, np.float32)[:, :, None, None]
    cropped -= 255 * means
    cropped /= 255 * deviations
    return cropped


def _whiten(cropped: Vector, contrast: float | NDArray[np.float64]) -> Vector:
    """Changes contrast and whitens: (x − x̄_c) a + b_c.

    f (x − x̄_c) has mean 0 in each channel, so the image's variance is f² v̄ + w, with v̄ the mean
    of the channels' variances and w the variance of their means.
    """
    pixels = cropped.astype(np.float32).reshape(len(cropped), CHANNELS, CROP**2)  # [B, 3, 576]
    means = pixels.mean(2)  # [B, 3]: of whole numbers, whose sum is exact
    pixels -= means[:, :, None]
    mean_variance = np.einsum("bcp,bcp->b", pixels, pixels) / (CHANNELS * CROP**2)
    factor = np.broadcast_to(np.asarray(contrast, np.float32), len(cropped))
    deviation = np.sqrt(factor**2 * mean_variance + means.var(1))  # [B]
    deviation = np.maximum(deviation, np.float32((CHANNELS * CROP**2) ** -0.5))
    pixels *= (factor / deviation)[:, None, None]
    pixels += ((means - means.mean(1, keepdims=True)) / deviation[:, None])[:, :, None]
    return pixels.reshape(cropped.shape)
