"""Atomic folders: written aside, synced, sealed with checksums, then renamed.

A sealed folder is some safetensors files and one JSON file written last, the seal, which
names every file with its size and sha256 and carries a sha256 of itself. The rename is the
commit: a reader finds all of it or nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from photinus.checkpoint.mapped import MappedFile, write_arrays
from photinus.core.errors import CheckpointError, UsageError

Tensors = Mapping[str, NDArray[Any]]
"""Arrays by name: what one safetensors file holds."""

Step = Callable[[str], None]
"""Called with the name of each step of a save before it is done; what it raises ends the save."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DIGEST = "sha256"


def is_plain(name: object) -> bool:
    """Returns whether something is a plain file name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def checked_name(name: str, what: str) -> str:
    """Returns `name` when it is a plain file name: letters, digits, `.`, `_`, `-`.

    Raises:
        UsageError: it could lead out of the folder, hide, or is too long.
    """
    if not is_plain(name):
        raise UsageError(
            f"the name of a {what} must be 1 to 100 letters, digits, '.', '_' or '-', "
            "and start with a letter or a digit",
            got=repr(name),
        )
    return name


def to_safetensors(tensors: Tensors) -> bytes:
    """Returns the bytes of a safetensors file."""
    # safetensors reads the memory as it lies: views with strides would be saved scrambled
    plain = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    try:
        return safetensors.numpy.save(plain)
    except (SafetensorError, ValueError) as error:
        kinds = sorted({str(array.dtype) for array in plain.values()})
        raise UsageError("these arrays cannot be saved", got=", ".join(kinds)) from error


def from_safetensors(data: bytes, what: str) -> dict[str, NDArray[Any]]:
    """Returns the arrays of a safetensors file, each in writable memory of its own.

    Raises:
        CheckpointError: the bytes are no safetensors file of numpy's kinds of numbers.
    """
    try:
        return {name: array.copy() for name, array in safetensors.numpy.load(data).items()}
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{what} is no safetensors file that can be read") from error


def sync_folder(path: Path) -> None:
    """Makes the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _canonical(body: Mapping[str, Any]) -> bytes:
    return (json.dumps(body, indent=1) + "\n").encode()


def _seal_text(body: Mapping[str, Any]) -> bytes:
    return _canonical({**body, _DIGEST: hashlib.sha256(_canonical(body)).hexdigest()})


def _write(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read_plain_file(path: Path) -> bytes:
    # O_NONBLOCK: a FIFO put in a file's place must not hang the reader
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CheckpointError(f"{path.name} is no plain file")
        return file.read()


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFormat:
    """One kind of sealed folder: how it is written and how it is read.

    The text of the seal is the one canonical JSON of its content, so that a flipped bit is
    found in it as in any other file, even where JSON would forgive it.
    """

    file: str
    """The seal's file name, e.g. manifest.json."""
    format: str
    """Written into the seal: distinguishes photinus's folders from others."""
    version: int = 1
    is_private: bool = True
    """Readable by the owner only (0700, 0600); otherwise what the umask leaves."""
    fields: tuple[str, ...] = ()
    """What the seal has beside the files."""

    def write(
        self,
        target: Path,
        body: Mapping[str, Any],
        files: Mapping[str, bytes | Tensors],
        step: Step,
    ) -> int:
        """Writes a folder aside and renames it to `target`; returns the bytes written.

        A folder that is already there is replaced. Arrays are written page by page, and those of
        a `MappedFile` not at all: the folder gets another name of that file.

        Raises:
            OSError: the disk is full, a permission is missing; nothing is left behind.
        """
        temporary = target.parent / f".{target.name}.tmp-{secrets.token_hex(6)}"
        try:
            return self._write_temporary(temporary, target, body, files, step)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def _write_temporary(
        self,
        temporary: Path,
        target: Path,
        body: Mapping[str, Any],
        files: Mapping[str, bytes | Tensors],
        step: Step,
    ) -> int:
        folder_mode, file_mode = (0o700, 0o600) if self.is_private else (0o777, 0o666)
        step("create")
        temporary.mkdir(mode=folder_mode)
        entries = dict[str, dict[str, Any]]()
        for name, content in files.items():
            step(name)
            size, digest = _put_file(temporary / name, content, file_mode)
            entries[name] = {"size": size, _DIGEST: digest}
        identity = {"format": self.format, "version": self.version}
        try:
            seal = _seal_text({**identity, **body, "files": entries})
        except (TypeError, ValueError) as error:
            raise UsageError("meta must be plain JSON values", do=str(error)) from error
        step(self.file)
        _write(temporary / self.file, seal, file_mode)
        sync_folder(temporary)
        step("commit")
        _replace(temporary, target)
        step("sync")
        sync_folder(target.parent)
        return len(seal) + sum(int(entry["size"]) for entry in entries.values())

    def read(
        self, folder: Path, mapped_prefix: str = ""
    ) -> tuple[dict[str, Any], dict[str, Tensors]]:
        """Returns the seal's content and the arrays of every file, all of it checked.

        Args:
            folder: what `write` made.
            mapped_prefix: files whose names begin so stay on disk, read through a memory map.

        Raises:
            CheckpointError: names the file and what is wrong with it.
        """
        body = self.read_body(folder)
        self._check_names(folder, set(body["files"]) | {self.file})
        files: dict[str, Tensors] = {}
        for name, expected in body["files"].items():
            if mapped_prefix and name.startswith(mapped_prefix):
                files[name] = _map_file(folder / name, expected)
                continue
            data = _read_whole(folder / name)
            _check_digest(name, memoryview(data), expected)
            files[name] = from_safetensors(data, name)
        return body, files

    def read_body(self, folder: Path) -> dict[str, Any]:
        """Returns the seal's content, checked, without a look at the other files.

        Raises:
            CheckpointError: the seal is missing, damaged or of another format.
        """
        if folder.is_symlink():
            raise CheckpointError(f"{folder.name} is a symbolic link")
        data = _read_whole(folder / self.file)
        try:
            body = json.loads(data)
            digest = body.pop(_DIGEST)
            computed = hashlib.sha256(_canonical(body)).hexdigest()
            is_intact = digest == computed and _seal_text(body) == data
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{self.file} is damaged: {error}") from error
        if not is_intact:
            raise CheckpointError(
                f"{self.file}: sha256 mismatch", got=computed, do=f"expected {digest}"
            )
        if (body.get("format"), body.get("version")) != (self.format, self.version):
            raise CheckpointError(
                f"{self.file} is of another format",
                got=f"{body.get('format')} {body.get('version')}",
                do=f"this photinus reads {self.format} {self.version}",
            )
        if missing := sorted({"files", *self.fields} - body.keys()):
            raise CheckpointError(f"{self.file} is incomplete", got=f"no {', '.join(missing)}")
        try:
            for name in body["files"]:
                checked_name(name, "file")
        except (UsageError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.file} names no plain files: {error}") from error
        return dict(body)

    def _check_names(self, folder: Path, known: set[str]) -> None:
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            # what hides (.DS_Store, .nfs0042) is the system's: never read, so harmless
            if entry.name not in known and not entry.name.startswith("."):
                raise CheckpointError(f"{entry.name} is a file that {self.file} does not name")


def _replace(temporary: Path, target: Path) -> None:
    """Renames `temporary` to `target`; on failure an older folder there is restored."""
    if not target.exists() and not target.is_symlink():
        temporary.rename(target)
        return
    old = target.parent / f".{target.name}.old-{secrets.token_hex(6)}"
    target.rename(old)
    try:
        temporary.rename(target)
    except OSError:
        old.rename(target)
        raise
    remove(old)


def remove(path: Path) -> None:
    """Removes a file, a link or a whole folder, as far as it can be removed."""
    if path.is_symlink() or not path.is_dir():
        with contextlib.suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _read_whole(path: Path) -> bytes:
    try:
        return _read_plain_file(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path.name} is missing") from error
    except OSError as error:
        is_link = path.is_symlink()
        reason = "is a symbolic link" if is_link else f"cannot be read: {error.strerror}"
        raise CheckpointError(f"{path.name} {reason}") from error


def _put_file(path: Path, content: bytes | Tensors, mode: int) -> tuple[int, str]:
    """Puts a file into a folder that is written aside; returns its size and its sha256."""
    if isinstance(content, bytes):
        _write(path, content, mode)
        return len(content), hashlib.sha256(content).hexdigest()
    if not isinstance(content, MappedFile):
        return write_arrays(path, content, mode)
    try:
        os.link(content.path, path)
    except OSError:  # it lies on another disk, or has lost its name
        with path.open("xb") as file:
            file.write(content.bytes)
    _sync(path)
    return content.size, content.sha256


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _map_file(path: Path, expected: Mapping[str, Any]) -> MappedFile:
    is_plain_file = path.is_file() and not path.is_symlink()
    if not is_plain_file:
        _read_whole(path)  # raises with what it is instead
    if path.stat().st_size:
        with path.open("rb") as file:
            _check_digest(
                path.name, memoryview(mmap(file.fileno(), 0, access=ACCESS_READ)), expected
            )
    return MappedFile(path, expected[_DIGEST])


def _check_digest(name: str, data: memoryview, expected: Mapping[str, Any]) -> None:
    if len(data) != expected["size"]:
        raise CheckpointError(
            f"{name}: size mismatch", got=f"{len(data)} bytes", do=f"expected {expected['size']}"
        )
    digest = hashlib.sha256(data).hexdigest()
    if digest != expected[_DIGEST]:
        raise CheckpointError(
            f"{name}: sha256 mismatch", got=digest, do=f"expected {expected[_DIGEST]}"
        )
