"""An archive of the classes that Spark's Java loads: from it a session starts in half the time.

Java loads and checks some 15,000 classes at each start. The first session's Java writes them to a
file when it ends, and those after it map that file (application class-data sharing). Java itself
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

_MAGIC = (0xF00BABA8).to_bytes(4, sys.byteorder)
"""Of an archive that is whole: Java writes it last."""
_QUIET = "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
"""Java warns of each class that it leaves out of an archive."""

_HADOOP_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def archive_options(home: str) -> str:
    """Returns the options by which Java reads the archive, or writes it when it ends; or none.

    Args:
        home: of Java.
    """
    from pyspark.find_spark_home import _find_spark_home

    base = Path(home, "lib", "server", "classes.jsa")  # of Java's own classes: ours lies on it
    spark_home = Path(_find_spark_home())  # type: ignore[no-untyped-call]
    if not (sys.platform == "linux" and base.exists()) or _has_other_classes(spark_home):
        return ""
    try:
        folder = cache_folder("java")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{_digest(base, spark_home / 'jars')}.jsa"
        written = path.with_suffix(".new")
        if written.exists():
            _seal(written, path)
        is_there = path.exists()
        option = f"SharedArchiveFile={path}" if is_there else f"ArchiveClassesAtExit={written}"
    except OSError:  # no place for it: a session starts as it did
        return ""
    return f"{_QUIET} {shlex.quote(f'-XX:{option}')}"


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
