"""Grayscale pictures of weights as PNG data URIs."""

from __future__ import annotations

import base64
import binascii
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from photinus.core.errors import UsageError

Pixels = NDArray[np.uint8]


def png(pixels: Pixels) -> bytes:
    """Returns grey pixels [rows, cols] as a PNG file.

    Reference: W3C, Portable Network Graphics (third edition), 2025.
    """
    rows, cols = pixels.shape
    # every row begins with its filter type: 0, none
    raw = np.pad(pixels.astype(np.uint8), ((0, 0), (1, 0))).tobytes()
    head = struct.pack(">IIBBBBB", cols, rows, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def data_uri(pixels: Pixels) -> str:
    """Returns grey pixels [rows, cols] as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()


def pack(images: NDArray[Any]) -> dict[str, Any]:
    """Returns pictures as plain values for `Evaluated.extra["filters"]`.

    Each is scaled by itself so that zero is mid grey.

    Args:
        images: [k, rows, cols], any numbers.

    Raises:
        UsageError: the array has not three axes.
    """
    if images.ndim != 3:
        raise UsageError("pictures must be an array [k, rows, cols]", got=list(images.shape))
    finite = np.nan_to_num(images.astype(np.float64), posinf=0.0, neginf=0.0)
    peak = np.abs(finite).max(axis=(1, 2), keepdims=True, initial=1e-30)
    grey = np.rint(127.5 + 127.5 * finite / peak).astype(np.uint8)
    return {
        "rows": images.shape[1],
        "cols": images.shape[2],
        "images": [base64.b64encode(image.tobytes()).decode() for image in grey],
    }


def unpack(packed: Mapping[str, Any]) -> Pixels:
    """The inverse of `pack`: pixels [k, rows, cols]; what does not fit is left out."""
    try:
        rows, cols = int(packed["rows"]), int(packed["cols"])
        decoded = [base64.b64decode(image, validate=True) for image in packed["images"]]
    except (KeyError, TypeError, ValueError, binascii.Error):
        return np.zeros((0, 1, 1), np.uint8)
    complete = [np.frombuffer(data, np.uint8) for data in decoded if len(data) == rows * cols > 0]
    return np.array(complete, np.uint8).reshape(len(complete), max(rows, 1), max(cols, 1))


def mosaic(images: Pixels, columns: int = 20) -> Pixels:
    """Returns pictures [k, rows, cols] side by side, one white pixel between them."""
    k, rows, cols = images.shape
    columns = max(1, min(columns, k))
    lines = math.ceil(k / columns)
    sheet = np.full((lines * (rows + 1) + 1, columns * (cols + 1) + 1), 255, np.uint8)
    for n, image in enumerate(images):
        top, left = n // columns * (rows + 1) + 1, n % columns * (cols + 1) + 1
        sheet[top : top + rows, left : left + cols] = image
    return sheet
