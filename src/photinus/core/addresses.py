"""Addresses such as hdfs://host:port/folder, opened through fsspec."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from photinus.core.errors import NotReadyError, UsageError, reason_of

_INSTALL_HDFS: Final = "pip install 'photinus[hdfs]'"


def is_address(text: object) -> bool:
    """Returns whether a text is an address, and not a path of this machine.

    Example:
        >>> [is_address(text) for text in ("hdfs:///runs", "s3://bucket", "runs/a", "file:///a")]
        [True, True, False, False]
    """
    scheme, separator, _ = str(text).partition("://")
    return bool(separator) and scheme != "file"


def cache_folder(name: str) -> Path:
    """Returns where this user keeps what was downloaded or made: `~/.cache/photinus/NAME`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path("~/.cache").expanduser()) / "photinus" / name


def on_disk(text: object) -> Path:
    """Returns the path of what is no address, as Python opens it.

    Example:
        >>> on_disk("file:///data/cifar10").as_posix()
        '/data/cifar10'
    """
    return Path(str(text).removeprefix("file://")).expanduser()


def local_folder(text: object, keeps: str) -> Path:
    """Returns a path on this machine, for what cannot be kept at an address.

    Raises:
        UsageError: it is an address.
    """
    if is_address(text):  # as a path it would be a folder called "hdfs:" below the present one
        raise UsageError(f"{keeps} on this machine only", got=text, do="name a path on it")
    return on_disk(text)


def try_writing(folder: Path) -> None:
    """Tries to write into a folder of this machine, or into the nearest existing one above it.

    Raises:
        OSError: nothing can be written there.
    """
    while not folder.exists():
        folder = folder.parent
    os.rmdir(tempfile.mkdtemp(prefix=".photinus-", dir=folder))  # root, too, learns what cannot be


def filesystem(address: str) -> tuple[Any, str]:
    """Returns the file system of fsspec that an address names, and the path in it.

    HADOOP_CONF_DIR names the folder of the cluster's settings. In a container of YARN that
    Spark started they are beside the program.

    Raises:
        NotReadyError: fsspec or what opens the address is not installed, or nothing answers.

    Example:
        >>> filesystem("memory://runs/a")[1]  # doctest: +SKIP
        '/runs/a'
    """
    try:
        import fsspec
    except ImportError:
        raise NotReadyError(
            f"{address} is reached through fsspec, which is not installed",
            do=_INSTALL_HDFS,
        ) from None
    _find_hadoop_settings()
    try:
        # fsspec drops the ones that it keeps when a process forks; HDFS's waits for ever there, and
        # pyspark forks to start Java
        fs, path = fsspec.core.url_to_fs(address, skip_instance_cache=True)
    except (ImportError, ValueError, OSError) as error:
        wrong, reason = f"{address} cannot be opened", reason_of(error).partition("\n")[0]
        # without hdfs-native fsspec takes pyarrow's client, which needs Hadoop's own libraries here
        is_native = importlib.util.find_spec("hdfs_native") is not None
        do = "" if is_native or not address.startswith("hdfs:") else _INSTALL_HDFS
        raise NotReadyError(wrong, got=reason, do=do) from error
    return fs, str(path).rstrip("/")


def _find_hadoop_settings() -> None:
    """Names the folder into which Spark unpacks Hadoop's settings in a container of YARN.

    And the user: without Kerberos a container runs as the node's own user, who would own the files.
    """
    for root in (os.environ.get("PWD", ""), os.getcwd(), *sys.path[:1]):
        folder = os.path.join(root, "__spark_conf__", "__hadoop_conf__")
        if root and os.path.isdir(folder):
            os.environ.setdefault("HADOOP_CONF_DIR", folder)
            if user := os.environ.get("SPARK_USER"):
                os.environ.setdefault("HADOOP_USER_NAME", user)
