"""The checkpoints of one run: finds the newest whole one, even where others are damaged."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from photinus.checkpoint.files import (
    FolderFormat,
    Step,
    Tensors,
    checked_name,
    remove,
    to_safetensors,
)
from photinus.checkpoint.mapped import MappedFile
from photinus.core.errors import CheckpointError, PhotinusError, UsageError
from photinus.core.parameters import is_finite

_SEAL = FolderFormat(file="manifest.json", format="photinus-checkpoint", fields=("meta", "finite"))
_TEMPORARY = re.compile(r"\..+\.(tmp|old)-[0-9a-f]{12}")
_SUFFIX = ".safetensors"
_PIN = ".pinned"
MAPPED_PREFIX = "shard-"
"""Files whose names begin so are of tables that no memory holds: they are read through a map."""
LARGE_BYTES = 4 << 30
"""Of a checkpoint with such files of so many bytes no older ones stay beside it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One whole checkpoint, read and checked."""

    name: str
    meta: Mapping[str, Any]
    """What was given to `save`, after a trip through JSON."""
    files: Mapping[str, Tensors]
    """Arrays by file and name."""
    is_finite: bool
    """True when no number in it is NaN or infinite."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A checkpoint that was not used, and why."""

    name: str
    reason: str
    """Begins with the file's name."""

    def __str__(self) -> str:
        return f"checkpoint {self.name} is refused: {self.reason}"


class Store:
    """A folder of checkpoints, each whole or not there.

    Names sort in the order of saving: the newest is the last by name.

    Args:
        folder: made when missing, for its owner only.
        keep: how many of the newest stay, one where they hold tables of 4 GB or more; the pinned
            and the last finite one stay besides.
        step: called before each step of a save: "create", each file's name, "manifest.json",
            "commit", "sync". What it raises ends the save: a fence for a coordinator of an
            older term.

    Example:
        >>> import numpy as np, tempfile
        >>> store = Store(Path(tempfile.mkdtemp()) / "checkpoints")
        >>> path = store.save("00001", {"phase": 0}, {"model": {"w": np.ones(2)}})
        >>> store.latest().files["model"]["w"].tolist()
        [1.0, 1.0]

    Raises:
        UsageError: `keep` is below 1.
        CheckpointError: the folder cannot be made.
    """

    def __init__(self, folder: Path | str, keep: int = 3, step: Step | None = None) -> None:
        if keep < 1:
            raise UsageError("keep of Store must be a whole number of at least 1", got=keep)
        self.folder = Path(folder)
        self._keep = keep
        self._step = step or (lambda _: None)
        self.refusals: tuple[Refusal, ...] = ()
        """What the last `latest()` passed over, newest first."""
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise _store_error(f"the folder {self.folder} cannot be made", error) from error

    def save(self, name: str, meta: Mapping[str, Any], files: Mapping[str, Tensors]) -> Path:
        """Saves arrays by file and name; returns the checkpoint's folder.

        One of the same name is replaced (a damaged one that a resumed run reaches again).

        Args:
            name: of the checkpoint; sorts after those before it.
            meta: plain JSON values.
            files: arrays [any shape] by file and name; the suffix `.safetensors` is added.
                A file whose name begins with "shard-" is written and read in pages.

        Raises:
            CheckpointError: it could not be written; the older ones stand.
            UsageError: a name leads out of the folder, or meta is no JSON.
        """
        target = self.folder / checked_name(name, "checkpoint")
        is_all_finite = all(_is_finite(arrays) for arrays in files.values())
        encoded = {
            checked_name(file, "file") + _SUFFIX: arrays
            if file.startswith(MAPPED_PREFIX)
            else to_safetensors(arrays)
            for file, arrays in files.items()
        }
        try:
            _SEAL.write(target, {"finite": is_all_finite, "meta": meta}, encoded, self._step)
        except OSError as error:
            raise _store_error(f"checkpoint {name} could not be written", error) from error
        size = sum(
            mapped_file.size
            for mapped_file in files.values()
            if isinstance(mapped_file, MappedFile)
        )
        self._retain(name, 1 if size >= LARGE_BYTES else self._keep)
        return target

    def latest(self) -> Checkpoint | None:
        """Returns the newest whole and finite checkpoint; `refusals` lists what was passed over."""
        refusals = []
        try:
            for name in reversed(self.names()):
                try:
                    checkpoint = self.load(name)
                except CheckpointError as error:
                    refusals.append(Refusal(name, str(error).partition(": ")[2]))
                    continue
                if checkpoint.is_finite:
                    return checkpoint
                refusals.append(Refusal(name, "holds numbers that are not finite"))
            return None
        finally:
            self.refusals = tuple(refusals)

    def load(self, name: str) -> Checkpoint:
        """Returns one checkpoint, finite or not.

        Raises:
            CheckpointError: it is missing or damaged; names the file and the hashes.
        """
        folder = self.folder / checked_name(name, "checkpoint")
        try:
            body, files = _SEAL.read(folder, MAPPED_PREFIX)
        except CheckpointError as error:
            raise CheckpointError(f"checkpoint {name}: {error}") from error
        arrays = {file.removesuffix(_SUFFIX): tensors for file, tensors in files.items()}
        return Checkpoint(name, body["meta"], arrays, bool(body["finite"]))

    def names(self) -> tuple[str, ...]:
        """All names, oldest first, whole or not."""
        try:
            entries = [entry.name for entry in self.folder.iterdir()]
        except OSError as error:
            raise _store_error(f"the folder {self.folder} cannot be read", error) from error
        return tuple(sorted(name for name in entries if not name.startswith(".")))

    def pin(self, name: str) -> None:
        """Keeps this checkpoint (the best so far) until another is pinned.

        Raises:
            CheckpointError: there is none of that name, or the pin could not be written.
        """
        if checked_name(name, "checkpoint") not in self.names():
            raise CheckpointError("no checkpoint of that name to pin", got=name)
        temporary = self.folder / f".pin.tmp-{secrets.token_hex(6)}"
        try:
            temporary.write_text(name)
            temporary.replace(self.folder / _PIN)
        except OSError as error:
            raise _store_error(f"checkpoint {name} could not be pinned", error) from error

    def pinned(self) -> str:
        """Returns the pinned checkpoint's name, or nothing."""
        try:
            return (self.folder / _PIN).read_text()
        except (OSError, UnicodeDecodeError):
            return ""

    def _retain(self, saved: str, keep: int) -> None:
        """Removes what is no longer kept; what cannot be removed is tried again next time."""
        with contextlib.suppress(CheckpointError):
            self._remove_others(saved, self.names(), keep)

    def _remove_others(self, saved: str, names: tuple[str, ...], keep: int) -> None:
        retained = {*names[-keep:], saved, self.pinned(), self._last_finite(names)}
        for name in names:
            if name in retained:
                continue
            hidden = self.folder / f".{name}.old-{secrets.token_hex(6)}"
            with contextlib.suppress(OSError):
                (self.folder / name).rename(hidden)  # hidden first: never seen half removed
        with contextlib.suppress(OSError):
            for entry in list(self.folder.iterdir()):
                if _TEMPORARY.fullmatch(entry.name):
                    remove(entry)

    def _last_finite(self, names: tuple[str, ...]) -> str:
        for name in reversed(names):
            with contextlib.suppress(PhotinusError):
                if _SEAL.read_body(self.folder / name)["finite"]:
                    return name
        return ""


def _is_finite(arrays: Tensors) -> bool:
    if isinstance(arrays, MappedFile):
        return arrays.is_finite
    return all(is_finite(array.ravel()) for array in arrays.values())


def _store_error(wrong: str, error: OSError) -> CheckpointError:
    return CheckpointError(
        wrong,
        got=error.strerror or str(error),
        do="older checkpoints are kept; free some space or mend the permissions",
    )
