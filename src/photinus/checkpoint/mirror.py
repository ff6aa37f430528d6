"""Copies a run folder to an address, so that another machine can resume the run."""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from photinus.core.addresses import filesystem
from photinus.core.errors import CheckpointError, FencedError, reason_of

_TERM = re.compile(r"coordinator-([1-9][0-9]*)\.json")
_CHECKPOINTS, _PIN, _MANIFEST = "checkpoints", "checkpoints/.pinned", "manifest.json"
_VISIBLE = re.compile(r"[^.].*")
_TEMPORARY = re.compile(r"\..+\.tmp-[0-9a-f]{12}")

_Stamp = tuple[int, int]
"""Size and time of change: whether a file must be written again."""


class Mirror:
    """Keeps at an address what a run folder of this machine holds, in the same form.

    The journal and the ledger are sent before a checkpoint, so that they are never older than it. A
    checkpoint is written aside and renamed; what changes is written aside and takes the older
    one's place. On HDFS both are one step. An object store renames nothing: there a checkpoint's
    manifest is written last, and one without it, or without what it names, is refused by name.

    Args:
        address: of a folder, such as hdfs://host:port/runs/first.
        local: the folder of this machine.

    Raises:
        NotReadyError: the address cannot be opened.

    Example:
        `Mirror("hdfs:///runs/first", Path("run")).fetch()`
    """

    def __init__(self, address: str, local: Path) -> None:
        self.address, self.local = address.rstrip("/"), local
        self._fs, self._path = filesystem(self.address)
        self._sent_stamps: dict[str, _Stamp] = {}
        self._lock = threading.Lock()
        self.term = 0
        """The term that was claimed; 0 before."""
        self.is_whole = True
        """True where the address holds all of it: before a term begins here, and after its end."""
        self.stays = False
        """True where the folder of this machine is kept if the address does not hold all of it."""
        self.is_behind = False
        """True where a term has ended, and `local` alone holds its end."""

    def holds_run(self) -> bool:
        """Returns whether some term of a run was claimed there."""
        return self.newest_term() > 0

    def newest_term(self) -> int:
        """Returns the newest term that was claimed, 0 where there is no run."""
        matches = [_TERM.fullmatch(name) for name in self._names(self._path)]
        return max((int(match[1]) for match in matches if match), default=0)

    def fetch(self, *names: str) -> None:
        """Downloads files and folders; without names, all there are.

        Raises:
            CheckpointError: they cannot be read.
        """
        for name in names or self._names(self._path):
            self._attempt(partial(self._download, name), f"{self.address}/{name} cannot be read")

    def claim(self, term: int) -> None:
        """Takes a term at the address, too; the term follows from what was downloaded.

        Raises:
            FencedError: another coordinator was quicker.
            CheckpointError: the address cannot be written to.
        """
        name = f"coordinator-{term}.json"
        data = (self.local / name).read_bytes()
        self._attempt(self._make_folder, f"{self.address} cannot be written to")
        try:
            self._attempt(lambda: self._put_new(name, data), f"{self.address} cannot be written to")
        except FileExistsError:
            raise FencedError(
                "another coordinator has taken this run", got=f"term {term} is there already"
            ) from None
        self.term, self.is_whole = term, False
        self.remove_halves()

    def remove_halves(self) -> None:
        """Removes what was not written to its end, as by a coordinator that was killed.

        Raises:
            CheckpointError: it cannot be removed.
        """
        for folder in (self._path, f"{self._path}/{_CHECKPOINTS}"):
            for leftover in self._names(folder, _TEMPORARY):
                action = partial(self._fs.rm, f"{folder}/{leftover}", recursive=True)
                self._attempt(action, f"{self.address}/{leftover} cannot be removed")

    def check(self) -> None:
        """Passes while the claimed term is the newest.

        Raises:
            FencedError: a newer coordinator has taken over.
        """
        newest = self.newest_term()
        if newest > self.term:
            got = f"term {self.term}, the newest at {self.address} is {newest}"
            raise FencedError("this coordinator's term is over", got=got)

    def push(self) -> None:
        """Sends what is new or has changed; removes the checkpoints that are kept no longer.

        Raises:
            FencedError: a newer coordinator has taken over.
            CheckpointError: the address cannot be written to.
        """
        with self._lock:
            self.check()
            try:
                self._attempt(self._push, f"{self.address} cannot be written to")
            except FileNotFoundError as error:
                raise CheckpointError("a file of the run has gone", got=error.filename) from error

    def _push(self) -> None:
        for path in sorted(self.local.rglob("*")):
            name = path.relative_to(self.local).as_posix()
            is_checkpoint = name.startswith(f"{_CHECKPOINTS}/") and name != _PIN
            if path.is_file() and not is_checkpoint and not _TEMPORARY.fullmatch(path.name):
                self._send(name)
        self._send_checkpoints()

    def _send(self, name: str) -> None:
        stamp = _stamp(self.local / name)
        if self._sent_stamps.get(name) != stamp:
            self._send_file(name)
            self._sent_stamps[name] = stamp

    def _send_checkpoints(self) -> None:
        local_names = {p.name for p in (self.local / _CHECKPOINTS).glob("[!.]*") if p.is_dir()}
        remote_names = set(self._names(f"{self._path}/{_CHECKPOINTS}"))
        for name in sorted(local_names):
            key = f"{_CHECKPOINTS}/{name}"
            stamp = _stamp(self.local / key)
            if name not in remote_names or self._sent_stamps.get(key, stamp) != stamp:
                self._send_folder(key)
            self._sent_stamps[key] = stamp
        for name in remote_names - local_names:
            self._fs.rm(f"{self._path}/{_CHECKPOINTS}/{name}", recursive=True)

    def _send_folder(self, name: str) -> None:
        parent, _, basename = name.rpartition("/")
        target = f"{self._path}/{name}"
        temporary = (
            f"{self._path}/{parent}/{_temporary_name(basename)}" if self._can_rename else target
        )
        if temporary == target and self._fs.exists(target):
            self._fs.rm(target, recursive=True)
        self._fs.makedirs(temporary, exist_ok=True)
        files = sorted((self.local / name).iterdir())
        for file in sorted(files, key=lambda file: file.name == _MANIFEST):
            self._fs.put_file(str(file), f"{temporary}/{file.name}")
        if temporary == target:
            return
        if self._fs.exists(target):
            self._fs.rm(target, recursive=True)
        self._fs.mv(temporary, target, recursive=True)

    def _send_file(self, name: str) -> None:
        target, local = f"{self._path}/{name}", str(self.local / name)
        parent, _, basename = target.rpartition("/")
        self._fs.makedirs(parent, exist_ok=True)
        if not self._can_rename:  # elsewhere a file that is written appears whole by itself
            self._fs.put_file(local, target)
            return
        temporary = f"{parent}/{_temporary_name(basename)}"
        self._fs.put_file(local, temporary)
        self._fs.mv(temporary, target, overwrite=True)

    def _put_new(self, name: str, data: bytes) -> None:
        target = f"{self._path}/{name}"
        if not self._can_rename:
            self._fs.pipe_file(target, data, mode="create")
            return
        temporary = f"{self._path}/{_temporary_name(name)}"
        self._fs.pipe_file(temporary, data)
        try:
            self._fs.mv(temporary, target)  # of HDFS, which refuses where there is one
        except FileExistsError:
            self._fs.rm(temporary)
            raise

    @property
    def _can_rename(self) -> bool:
        protocol = self._fs.protocol
        return bool({"hdfs", "viewfs"} & set([protocol] if isinstance(protocol, str) else protocol))

    def _make_folder(self) -> None:
        if self._can_rename:  # which would make the folders above as private as this one
            self._fs.makedirs(self._path.rpartition("/")[0], exist_ok=True)
            self._fs.mkdir(self._path, permission=0o700)
        else:
            self._fs.makedirs(self._path, exist_ok=True)

    def _names(self, path: str, pattern: re.Pattern[str] = _VISIBLE) -> list[str]:
        def list_folder() -> list[str]:
            self._fs.invalidate_cache()
            paths = self._fs.ls(path, detail=False)
            return [str(p).rstrip("/").rpartition("/")[2] for p in paths]

        try:
            names = self._attempt(list_folder, f"{self.address} cannot be listed")
        except FileNotFoundError:
            return []
        return sorted(name for name in names if pattern.fullmatch(name))

    def _download(self, name: str) -> None:
        path, target = f"{self._path}/{name}", self.local / name
        if self._fs.isdir(path):
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            for child in self._fs.ls(path, detail=False):
                self._download(f"{name}/{str(child).rstrip('/').rpartition('/')[2]}")
            return
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = target.with_name(_temporary_name(target.name))
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            self._fs.get_file(path, str(temporary))
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        self._sent_stamps[name] = _stamp(target)

    def _attempt(self, action: Callable[[], Any], wrong: str) -> Any:  # noqa: ANN401 - what `action` returns
        try:
            return action()
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:  # a file system of any maker, each with errors of its own
            raise CheckpointError(wrong, got=reason_of(error).partition("\n")[0]) from error


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _temporary_name(name: str) -> str:
    return f".{name}.tmp-{secrets.token_hex(6)}"
