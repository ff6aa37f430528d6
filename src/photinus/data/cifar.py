"""CIFAR-10: 50,000 + 10,000 color images of ten classes, from the user's folder.

Read are the published "binary version" (data_batch_1.bin .. data_batch_5.bin, test_batch.bin), and
an archive of the same images as JPEG files (cifar10_jpeg.npz). The folder may lie on this machine
or wherever fsspec reaches: hdfs://host/cifar10.

Source: A. Krizhevsky, "Learning multiple layers of features from tiny images" (2009).
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from photinus.core.addresses import filesystem, is_address, on_disk
from photinus.core.errors import DataError, NotReadyError, reason_of
from photinus.core.settings import unknown_name

CLASSES: Final = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
"""The names of labels 0..9."""
RECORD_BYTES: Final = 1 + 3 * 32 * 32

FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
"""The files of the binary version."""
_ARCHIVE: Final = "cifar10_jpeg.npz"
_ARRAYS: Final = ("jpeg", "offsets", "labels", "is_train")
_DO: Final = (
    f"name a folder with data_batch_1.bin .. data_batch_5.bin and test_batch.bin, or with "
    f"{_ARCHIVE}, as the path, or in the environment as PHOTINUS_CIFAR10"
)

Split = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Images [n, 3072] and labels [n]."""
_ReadFile = Callable[[str], bytes | None]
"""File name -> its bytes, None where there is none of that name."""


def load(path: str | Path | None = None, split: str = "train") -> Split:
    """Returns CIFAR-10's images [n, 3072] and labels [n], as they are published.

    An image is 1024 red, 1024 green and 1024 blue numbers, each row by row; a label is 0..9.

    Args:
        path: the folder, local or with a scheme as hdfs://; without it, the environment's
            PHOTINUS_CIFAR10.
        split: "train", 50,000 images, or "test", 10,000.

    Raises:
        DataError: a file is missing, cut short, or holds a label above 9.
        NotReadyError: no path is named, or a package is missing that the path needs.
    """
    if split not in FILES:
        raise unknown_name("split", split, FILES)
    location = path or os.environ.get("PHOTINUS_CIFAR10")
    if not location:
        raise NotReadyError("CIFAR-10 is not downloaded by itself", do=_DO)
    folder, files = str(location), FILES[split]
    read = _reader(folder)
    first = read(files[0])
    if first is not None:
        return _from_binary(folder, read, files, first)
    archive = read(_ARCHIVE)
    if archive is None:
        got = f"no {files[0]}, no {_ARCHIVE}"
        raise DataError(f"{folder} holds no CIFAR-10", got=got, do=_DO)
    return _from_jpeg(archive, f"{folder}/{_ARCHIVE}", split)


def parse_records(data: bytes, name: str) -> Split:
    """Reads records of one label byte and 3072 image bytes.

    Args:
        data: a whole file.
        name: what messages call it.

    Returns:
        Images [n, 3072] and labels [n], writable.

    Raises:
        DataError: the file is empty or cut short, or a label is above 9; it names the record.

    Example:
        >>> images, labels = parse_records(bytes([7]) + bytes(3072), "one record")
        >>> images.shape, labels.tolist()
        ((1, 3072), [7])
    """
    check_length(len(data), name)
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD_BYTES)
    labels = records[:, 0].copy()
    _check_labels(labels, name)
    return records[:, 1:].copy(), labels


def check_length(size: int, name: str) -> None:
    """Raises DataError when a file of so many bytes is empty or ends within a record."""
    count, rest = divmod(size, RECORD_BYTES)
    if rest or not count:
        raise DataError(
            f"{name} is cut short in record {count}: a record has {RECORD_BYTES} bytes",
            got=f"{rest} bytes",
            do="get the file again, as it is published and unpacked",
        )


def _check_labels(labels: NDArray[Any], name: str) -> None:
    if (outside := np.flatnonzero(labels >= len(CLASSES))).size:
        raise DataError(
            f"{name} record {outside[0]}: a label must lie in 0..{len(CLASSES) - 1}",
            got=int(labels[outside[0]]),
            do="get the file again: it is not CIFAR-10, or is damaged",
        )


def _reader(folder: str) -> _ReadFile:
    if not is_address(folder):
        root = on_disk(folder)
        return lambda name: _from_disk(root / name)
    system, root_path = filesystem(folder)
    return lambda name: _from_remote(system, f"{root_path}/{name}")


def _from_remote(filesystem: Any, path: str) -> bytes | None:  # noqa: ANN401 - fsspec has no types
    try:
        return bytes(filesystem.cat_file(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path} cannot be read", got=reason_of(error), do=_DO) from error


def _from_disk(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path} cannot be read", got=error.strerror, do=_DO) from None


def _from_binary(folder: str, read: _ReadFile, files: tuple[str, ...], first: bytes) -> Split:
    parts = [parse_records(first, f"{folder}/{files[0]}")]
    for name in files[1:]:
        data = read(name)
        if data is None:
            raise DataError(f"{folder} has no {name}", do=_DO)
        parts.append(parse_records(data, f"{folder}/{name}"))
        if len(parts[-1][1]) != len(parts[0][1]):
            raise DataError(
                f"{folder}/{name} is cut short: it must have as many records as {files[0]}, "
                f"{len(parts[0][1])}",
                got=len(parts[-1][1]),
                do="get the file again, as it is published and unpacked",
            )
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return images, labels


def _from_jpeg(data: bytes, name: str, split: str) -> Split:
    arrays = _read_archive(data, name)
    offsets, labels = arrays["offsets"].astype(np.int64), arrays["labels"]
    is_train = arrays["is_train"].astype(bool)
    size = len(arrays["jpeg"])
    if not len(labels) == len(is_train) == len(offsets) - 1 or (np.diff(offsets) < 0).any():
        got = f"{len(labels)} labels, {len(offsets)} offsets"
        raise DataError(f"{name}: labels and offsets do not belong together", got=got)
    if (cut := np.flatnonzero(offsets > size)).size:
        wrong = f"{name} is cut short in record {cut[0] - 1}: it ends at byte {offsets[cut[0]]}"
        raise DataError(wrong, got=f"{size} bytes", do="get the file again")
    _check_labels(labels, name)
    rows = np.flatnonzero(is_train == (split == "train"))
    images = np.empty((len(rows), RECORD_BYTES - 1), np.uint8)
    blob = arrays["jpeg"].tobytes()
    for index, row in enumerate(rows):
        jpeg = blob[offsets[row] : offsets[row + 1]]
        images[index] = _decode(jpeg, f"{name} record {row}")
    return images, labels[rows].astype(np.uint8)


def _read_archive(data: bytes, name: str) -> Mapping[str, NDArray[Any]]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return {key: archive[key] for key in _ARRAYS}
    except Exception as error:  # zip, header and array each have errors of their own
        raise DataError(
            f"{name} is no archive of CIFAR-10",
            got=f"{type(error).__name__}: {error}",
            do=f"it must hold the arrays {', '.join(_ARRAYS)}",
        ) from error


def _decode(jpeg: bytes, name: str) -> NDArray[np.uint8]:
    """Returns one image as [3072]."""
    try:
        from PIL import Image
    except ImportError:
        raise NotReadyError("Pillow is not installed", do="pip install photinus[jpeg]") from None
    try:
        # Pillow's readers of rarer formats are where its weaknesses are found
        image = Image.open(io.BytesIO(jpeg), formats=("JPEG", "PNG"))
        pixels = np.asarray(image.convert("RGB"))
    except Exception as error:  # whatever a damaged file makes Pillow raise
        raise DataError(f"{name} is no image", got=f"{type(error).__name__}: {error}") from error
    if pixels.shape != (32, 32, 3):
        raise DataError(f"{name}: an image must be 32 x 32 x 3", got=pixels.shape)
    return pixels.transpose(2, 0, 1).reshape(-1)
