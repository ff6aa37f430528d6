"""An archive of the classes that Spark's Java loads: from it a session starts in half the time.

Java loads and checks some 15,000 classes at each start. That of `photinus doctor` writes them to a
file when it ends, and later sessions map that file (application class-data sharing). Java itself
looks whether a file fits, and starts without one that does not.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path

from photinus.core.addresses import cache_folder

FOLDER = "java"
"""Of the user's cache, in which archives are."""
_MAGIC = (0xF00BABA8).to_bytes(4, sys.byteorder)
"""Of an archive that is whole: Java writes it last."""
_QUIET = "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
"""Java warns of each class that it leaves out of an archive."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Holds another number after each start of the machine."""
_HADOOP_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def reading_options(home: str) -> str:
    """Returns the options by which Java reads the archive; none where there is none.

    Args:
        home: of Java.
    """
    path = _path(home)
    if path is None:
        return ""
    with suppress(OSError):  # there is none, or another process has just sealed it
        _seal(_written(path), path)
    is_ours = path.exists() and path.parent.stat().st_uid == path.stat().st_uid == os.getuid()
    return _options(f"SharedArchiveFile={path}") if is_ours else ""  # Java trusts what it holds


def writing_options(home: str) -> str:
    """Returns the options by which Java writes the archive when it ends; none where it is there.

    Java then takes twice as long until a first query has ended.

    Args:
        home: of Java.
    """
    path = _path(home)
    if path is None or path.exists():
        return ""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = _written(path)
        for other in path.parent.glob(f"{path.stem}.*"):
            if other != written:
                other.unlink(missing_ok=True)
    except OSError:
        return ""
    return _options(f"ArchiveClassesAtExit={written}")


def _options(option: str) -> str:
    return f"{_QUIET} {shlex.quote(f'-XX:{option}')}"


def _path(home: str) -> Path | None:
    """Returns where the archive of this Java and this Spark lies; None where Java makes none."""
    from pyspark.find_spark_home import _find_spark_home

    base = Path(home, "lib", "server", "classes.jsa")  # of Java's own classes: ours lies on it
    spark_home = Path(_find_spark_home())  # type: ignore[no-untyped-call]
    try:
        if not (sys.platform == "linux" and base.exists()) or _has_other_classes(spark_home):
            return None
        return cache_folder(FOLDER) / f"{_digest(base, spark_home / 'jars')}.jsa"
    except OSError:  # this user may not look there
        return None


def _has_other_classes(spark_home: Path) -> bool:
    """Returns whether Spark names a folder with files, too, of which Java makes no archive."""
    named = [os.environ.get("SPARK_CONF_DIR") or spark_home / "conf"]
    named += [os.environ[name] for name in _HADOOP_FOLDERS if os.environ.get(name)]
    has_files = any(Path(folder).is_dir() and any(Path(folder).iterdir()) for folder in named)
    return has_files or bool(os.environ.get("SPARK_DIST_CLASSPATH"))


def _written(path: Path) -> Path:
    """Returns where Java writes an archive; after the machine's next start it is another place.

    The machine may have lost a part of what was not yet on the disk.
    """
    return path.with_suffix(f".{_BOOT_ID.read_text().strip()}")


def _seal(written: Path, path: Path) -> None:
    """Gives an archive its name once all of it is on the disk: Java aborts if a part is missing."""
    with written.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return  # it is being written, or was cut short
        os.fsync(file.fileno())
    written.replace(path)


def _digest(*paths: Path) -> str:
    """Returns a name that is another one after an upgrade."""
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:16]
