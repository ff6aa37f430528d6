"""Decodes images that are files: JPEG, PNG."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from photinus.core.errors import DataError, NotReadyError
from photinus.data.base import Array

_FORMATS = ("JPEG", "PNG")


def decode_images(files: list[bytes]) -> list[Array]:
    """Returns the images of JPEG or PNG files, each uint8 [height, width, 3], in RGB.

    Args:
        files: the content of each.

    Raises:
        DataError: one is no image, or is damaged.
        NotReadyError: pillow is not installed.
    """
    return [_decode(content) for content in files]


def center_square(content: bytes, side: int) -> Array:
    """Returns the middle square of an image, scaled to a side.

    Args:
        content: of a JPEG or PNG file.
        side: of the square.

    Returns:
        uint8 [3, side, side]: red, green, blue.

    Raises:
        DataError: it is no image, or is damaged.
        NotReadyError: pillow is not installed.

    Reference:
        Krizhevsky, Sutskever and Hinton, ImageNet classification with deep convolutional neural
        networks (2012), section 2.
    """
    return _decode(content, side).transpose(2, 0, 1)


def _decode(content: bytes, side: int | None = None) -> Array:
    try:
        from PIL import Image
    except ImportError:
        raise NotReadyError("pillow is not installed", do="pip install photinus[jpeg]") from None
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            if side is not None:
                image.draft("RGB", (side, side))  # a JPEG is decoded at half its size, or a fourth
            pixels = image.convert("RGB")
            return np.asarray(pixels if side is None else _crop_center(pixels, side))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = str(error).partition(" <")[0]  # the rest names an object in memory
        raise DataError("the image cannot be decoded", got=reason) from error


def _crop_center(image: Any, side: int) -> Any:  # noqa: ANN401 - an image of pillow
    width, height = image.size
    short = min(width, height)
    left, top = (width - short) // 2, (height - short) // 2
    square = image.crop((left, top, left + short, top + short))
    return square.resize((side, side), reducing_gap=3.0)  # bicubic
