"""File systems that links through a folder use: local directories, or any that fsspec reaches.

A file appears whole or not at all; a listing of a directory never has one that is half written.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import uuid
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from photinus.core.addresses import filesystem, is_address
from photinus.core.errors import DataError, LinkLostError, NotReadyError, UsageError, reason_of

_HIDDEN = "."
_CONNECT_SECONDS = 10.0
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")
"""What OpenSSL calls an answer that is none of TLS."""
_PATTERN = re.compile(r"[*?\[{]")


class Filesystem(ABC):
    """A directory of directories of small files; names are `directory/file`."""

    address: str
    pause_seconds: tuple[float, float]
    """Between two looks into a directory: at first, and when nothing has arrived for long."""

    @abstractmethod
    def make(self) -> None:
        """Makes the root folder, empty.

        Raises:
            LinkLostError: it cannot be made.
        """

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Writes a new file: aside, then renamed.

        Raises:
            LinkLostError: the folder cannot be written to.
        """

    @abstractmethod
    def names(self, directory: str) -> list[str] | None:
        """Returns the sorted names of its files, or None when there is no such directory."""

    @abstractmethod
    def read(self, name: str, most_bytes: int) -> bytes | None:
        """Returns a file, or None when it is not there or larger than that."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes a file or a directory with all that is in it; "" is the root folder."""


class LocalFilesystem(Filesystem):
    """A directory that all hosts mount, or of one machine; in memory on a tmpfs."""

    pause_seconds = (0.001, 0.05)

    def __init__(self, path: Path) -> None:
        self._path = path
        self.address = str(path)

    def make(self) -> None:
        self.remove("")
        try:
            self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise _unwritable_error(self.address, error) from error

    def put(self, name: str, data: bytes) -> None:
        """See `Filesystem.put`; a folder that was removed is not made again."""
        target = self._path / name
        temporary = target.with_name(_HIDDEN + uuid.uuid4().hex)
        try:
            target.parent.mkdir(exist_ok=True, mode=0o700)
            with open(
                os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"
            ) as file:
                file.write(data)
            temporary.rename(target)
        except OSError as error:
            raise _unwritable_error(self.address, error) from error

    def names(self, directory: str) -> list[str] | None:
        try:
            entries = os.listdir(self._path / directory)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            wrong = f"the folder {self.address} cannot be read"
            raise LinkLostError(wrong, got=reason_of(error)) from error
        return sorted(name for name in entries if not name.startswith(_HIDDEN))

    def read(self, name: str, most_bytes: int) -> bytes | None:
        try:
            with (self._path / name).open("rb") as file:
                data = file.read(most_bytes + 1)
        except OSError:
            return None
        return data if len(data) <= most_bytes else None

    def remove(self, name: str) -> None:
        path = self._path / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):  # it is only tidied up
                path.unlink()


class RemoteFilesystem(Filesystem):
    """A directory of HDFS, an object store or any other file system that fsspec knows."""

    pause_seconds = (0.01, 0.5)

    def __init__(self, address: str) -> None:
        check_reachable(address)
        fs, self._path = filesystem(address)
        self._fs: Any = fs
        self.address = address

    def make(self) -> None:
        """See `Filesystem.make`; a directory appears with its first file."""
        self.remove("")

    def put(self, name: str, data: bytes) -> None:
        directory, _, file = name.rpartition("/")
        temporary = f"{self._path}/{directory}/{_HIDDEN}{uuid.uuid4().hex}"
        try:
            self._fs.makedirs(f"{self._path}/{directory}", exist_ok=True)
            self._fs.pipe_file(temporary, data)
            self._fs.mv(temporary, f"{self._path}/{directory}/{file}")
        except Exception as error:  # a file system of any maker, each with errors of its own
            raise _unwritable_error(self.address, error) from error

    def names(self, directory: str) -> list[str] | None:
        try:
            self._fs.invalidate_cache()  # a listing of a minute ago hides what has just arrived
            paths = self._fs.ls(f"{self._path}/{directory}", detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as error:
            raise LinkLostError(f"{self.address} cannot be listed", got=reason_of(error)) from error
        names = (str(path).rstrip("/").rpartition("/")[2] for path in paths)
        return sorted(name for name in names if not name.startswith(_HIDDEN))

    def read(self, name: str, most_bytes: int) -> bytes | None:
        path = f"{self._path}/{name}"
        try:
            if self._fs.size(path) > most_bytes:
                return None
            data: bytes = self._fs.cat_file(path)
        except Exception:  # gone, or not readable now: the caller looks again
            return None
        return data

    def remove(self, name: str) -> None:
        with suppress(Exception):  # it may be gone, and what is left is removed with the root
            self._fs.rm(f"{self._path}/{name}".rstrip("/"), recursive=True)


def _unwritable_error(address: str, error: Exception) -> LinkLostError:
    do = "name a folder that the driver and all workers may write to"
    wrong = f"the folder {address} cannot be written to"
    return LinkLostError(wrong, got=reason_of(error), do=do)


def check_reachable(address: str) -> None:
    """Asks for a connection first: a client of HDFS tries a dead host again for minutes.

    Only an address that names host and port is tried; other addresses are left to their client.

    Raises:
        NotReadyError: nothing answers there within 10 s.
        UsageError: it is no address.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        do = "write it as hdfs://host:port/folder"
        raise UsageError(f"{address} is no address", got=error, do=do) from error
    if not host or port is None:
        return
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except OSError as error:
        raise NotReadyError(
            f"nothing answers at {address}",
            got=error.strerror or str(error),
            do=f"check that {host} listens on port {port}",
        ) from error


def speaks_tls(host: str, port: int) -> bool:
    """Returns whether a server speaks TLS; True where it says nothing about it.

    Only the handshake is made: the server's certificate is Spark's client to check.
    """
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), _CONNECT_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return True
    except ssl.SSLError as error:
        return error.reason not in _NO_TLS
    except OSError:
        return True


def check_readable(address: str) -> None:
    """Looks for rows before Spark is started, which takes a minute on a cluster.

    Where the file system says neither that they are missing nor that this user may not read them,
    or where nothing installed here opens it, they are left to Spark, which has clients of its own.

    Raises:
        DataError: they are missing, or this user may not read them.
        NotReadyError: nothing answers there.
    """
    check_reachable(address)
    if _PATTERN.search(address):  # Spark finds what it stands for
        return
    try:
        fs, path = filesystem(address)
    except NotReadyError:
        return
    try:
        if fs.info(path)["type"] == "directory":
            fs.ls(path)
        else:
            fs.open(path).close()
    except FileNotFoundError:
        raise DataError(f"there is no {address}", do="name a file or a folder of files") from None
    except Exception as error:  # a file system of any maker, each with errors of its own
        if "Permission denied" in (reason := reason_of(error)):
            raise DataError(f"{address} cannot be read", got=reason) from error


def filesystem_of(address: str) -> Filesystem:
    """Returns the file system of a path or an address such as `hdfs://host:port/runs`.

    Raises:
        NotReadyError: nothing installed opens the address, or nothing answers there.
    """
    if is_address(address):
        return RemoteFilesystem(address)
    return LocalFilesystem(Path(address.removeprefix("file://")))
