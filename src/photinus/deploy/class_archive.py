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
import time
from pathlib import Path

from photinus.core.addresses import cache_folder

FOLDER = "java"
"""Of the user's cache, in which archives are."""
_MAGIC = (0xF00BABA8).to_bytes(4, sys.byteorder)
"""Of an archive that is whole: Java writes it last."""
_QUIET = "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
"""Java warns of each class that it leaves out of an archive."""

_WRITTEN = ".new"
"""Ends the name of an archive before it is sealed."""
_HADOOP_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def reading_options(home: str) -> str:
    """Returns the options by which Java reads the archive; none where there is none.

    Args:
        home: of Java.
    """
    path = _path(home)
    try:
        if path is not None and path.with_suffix(_WRITTEN).exists():
            _seal(path.with_suffix(_WRITTEN), path)
    except OSError:  # another process has just done so
        pass
    return "" if path is None or not path.exists() else _options(f"SharedArchiveFile={path}")


def writing_options(home: str) -> str:
    """Returns the options by which Java writes the archive when it ends; none where it is there.

    Java then takes half as long again until a first query has ended.

    Args:
        home: of Java.
    """
    path = _path(home)
    if path is None or path.exists():
        return ""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return ""
    return _options(f"ArchiveClassesAtExit={path.with_suffix(_WRITTEN)}")


def _options(option: str) -> str:
    return f"{_QUIET} {shlex.quote(f'-XX:{option}')}"


def _path(home: str) -> Path | None:
    """Returns where the archive of this Java and this Spark lies; None where Java makes none."""
    from pyspark.find_spark_home import _find_spark_home

    base = Path(home, "lib", "server", "classes.jsa")  # of Java's own classes: ours lies on it
    spark_home = Path(_find_spark_home())  # type: ignore[no-untyped-call]
    if not (sys.platform == "linux" and base.exists()) or _has_other_classes(spark_home):
        return None
    return cache_folder(FOLDER) / f"{_digest(base, spark_home / 'jars')}.jsa"


def _has_other_classes(spark_home: Path) -> bool:
    """Returns whether Spark names a folder with files, too, of which Java makes no archive."""
    named = [os.environ.get("SPARK_CONF_DIR") or spark_home / "conf"]
    named += [os.environ[name] for name in _HADOOP_FOLDERS if os.environ.get(name)]
    has_files = any(Path(folder).is_dir() and any(Path(folder).iterdir()) for folder in named)
    return has_files or bool(os.environ.get("SPARK_DIST_CLASSPATH"))


def _seal(written: Path, path: Path) -> None:
    """Gives an archive its name once all of it is on the disk: Java breaks off at half of one."""
    with written.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return  # it is being written, or was cut short: the next Java writes it anew
        started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        is_lost = os.fstat(file.fileno()).st_mtime < started  # the machine may have lost a part
        os.fsync(file.fileno())
    if is_lost:
        written.unlink()
    else:
        written.replace(path)


def _digest(*paths: Path) -> str:
    """Returns a name that is another one after an upgrade."""
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:16]
