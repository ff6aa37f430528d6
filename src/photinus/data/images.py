"""Decodes images that a column holds as files: JPEG, PNG."""

from __future__ import annotations

import io

import numpy as np

from photinus.core.errors import DataError, NotReadyError
from photinus.data.base import Array

__all__ = ["decoded"]

_FORMATS = ("JPEG", "PNG")


def decoded(files: list[bytes]) -> list[Array]:
    """Returns the images of JPEG or PNG files, each uint8 [height, width, 3], in RGB.

    Args:
        files: the content of each.

    Raises:
        DataError: one is no image, or is damaged.
        NotReadyError: pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise NotReadyError("pillow is not installed", do="pip install photinus[jpeg]") from None
    images = []
    for content in files:
        try:
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                images.append(np.asarray(image.convert("RGB")))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            reason = str(error).partition(" <")[0]  # the rest names an object in memory
            raise DataError("the image cannot be decoded", got=reason) from error
    return images
