"""Packs the environment and photinus for nodes that have only Python and Java.

Three archives, each named by a digest of what is in it, so that one that lies on the cluster
already is not made or sent again: the environment (torch and all that photinus needs), Spark's
jars, and photinus itself.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import re
import stat
import sys
import tarfile
import uuid
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

import photinus
from photinus.core.addresses import filesystem, is_address
from photinus.core.errors import CheckpointError, NotReadyError, reason_of

LAUNCHER: Final = "bin/python"
"""In the environment: the node's own Python, with the packages that travelled."""
_EXTRAS: Final = ("spark", "hdfs")
_SITE: Final = "site"
_UNNEEDED: Final = re.compile(
    r"torch/(include|share|test)/|torch/bin/(?!torch_shm_manager)|pyspark/jars/|.*\.(a|pyi)$"
)
"""Programs, C++ headers and tests of torch, 60 MB; Spark's jars travel by themselves."""
_SCRIPT: Final = """\
#!/bin/sh
# The node's own Python {version}, with the packages that travelled with the job.
here=$(cd "$(dirname "$0")/.." && pwd)
for python in "$PHOTINUS_NODE_PYTHON" python{version} python3 python; do
    [ -n "$python" ] || continue
    "$python" -c 'import sys; sys.exit(sys.version_info[:2] != {pair})' 2>/dev/null &&
        PYTHONPATH="$here/{site}:$PWD/photinus.zip:$PYTHONPATH" exec "$python" "$@"
    [ -z "$PHOTINUS_NODE_PYTHON" ] || break  # of one that is named nothing else takes the place
done
got=${{PHOTINUS_NODE_PYTHON:-PATH=$PATH}}
echo "photinus: no Python {version} on $(uname -n); got $got; name it: --python PATH" >&2
exit 3
"""


@dataclass(frozen=True)
class LazyArchive:
    """An archive that is made when it is needed."""

    name: str
    """Of its file: what it is, and a digest of what is in it."""
    make: Callable[[Path], None]
    """Writes it to a path."""

    def path_in(self, folder: Path) -> Path:
        """Returns its file in a folder; makes it first, where it is not there.

        Raises:
            NotReadyError: the disk is full, or the folder cannot be written to.
        """
        path = folder / self.name
        if path.exists():
            return path
        temporary = folder / f".{self.name}.{uuid.uuid4().hex}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.make(temporary)
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            wrong, do = f"{path} cannot be written", "XDG_CACHE_HOME names another place"
            raise NotReadyError(wrong, got=error.strerror or error, do=do) from error
        kind = self.name.rpartition("-")[0]
        for older in folder.glob(f"{kind}-*"):
            if older != path:
                older.unlink(missing_ok=True)
        return path


def distributions() -> dict[str, metadata.Distribution]:
    """Returns photinus and all that it needs on Spark and HDFS, as it is installed here.

    Raises:
        NotReadyError: photinus runs from its source, uninstalled.

    Example:
        >>> {"photinus", "torch", "numpy"} <= set(distributions())
        True
    """
    installed: dict[str, metadata.Distribution] = {}
    pending: list[tuple[str, tuple[str, ...]]] = [("photinus", _EXTRAS)]
    while pending:
        name, extras = pending.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in installed:
            continue
        try:
            installed[key] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of another system or Python, or an extra that is not used here
        pending += [(requirement, ()) for requirement in _requirements(installed[key], extras)]
    if "photinus" not in installed:
        raise NotReadyError("photinus is not installed here", do="pip install photinus")
    return installed


def _requirements(distribution: metadata.Distribution, extras: tuple[str, ...]) -> Iterator[str]:
    for requirement in distribution.requires or ():
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", requirement)
        if name and (extra is None or extra[1] in extras):
            yield name[0]


def environment() -> LazyArchive:
    """Returns the environment: a tar of the packages, without photinus's own code.

    What counts as the same environment is what was installed: each package's list of files with
    their hashes.
    """
    packages = {k: d for k, d in sorted(distributions().items()) if k != "photinus"}
    digest = hashlib.sha256(f"{_script()} {_UNNEEDED.pattern}".encode())
    for name, distribution in packages.items():
        record = distribution.read_text("RECORD") or distribution.version
        digest.update(f"{name} {record}".encode())
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return LazyArchive(
        f"photinus-environment-{python}-{digest.hexdigest()[:16]}.tar.gz",
        lambda path: _pack(path, list(packages.values())),
    )


def _script() -> str:
    pair = tuple(sys.version_info[:2])
    return _SCRIPT.format(version=f"{pair[0]}.{pair[1]}", pair=pair, site=_SITE)


def _pack(path: Path, packages: list[metadata.Distribution]) -> None:
    # libraries are compressed to a third at the lowest level already, and ten times as fast
    with (
        path.open("wb") as file,
        gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        script = tarfile.TarInfo(LAUNCHER)
        text = _script().encode()
        script.size, script.mode = len(text), 0o755
        archive.addfile(script, io.BytesIO(text))
        for name, source in _files(packages):
            archive.add(source, f"{_SITE}/{name}", recursive=False, filter=_normalized)


def _files(packages: list[metadata.Distribution]) -> Iterator[tuple[str, Path]]:
    """Yields name and place of each file, compiled ones too: nodes then need not compile."""
    for distribution in packages:
        for file in distribution.files or ():
            name = file.as_posix()
            source = Path(str(distribution.locate_file(file)))
            if not name.startswith("..") and not _UNNEEDED.match(name) and source.is_file():
                yield name, source


def _normalized(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Keeps the times, by which Python finds what it compiled; removes the owner."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o755 if info.mode & stat.S_IXUSR else 0o644
    return info


def jars() -> LazyArchive:
    """Returns the jars of the installed pyspark, for `spark.yarn.archive`.

    Raises:
        NotReadyError: this pyspark has none: it is only a client of Spark Connect.
    """
    home = spark_home() / "jars"
    files = sorted(home.glob("*.jar"))
    if not files:
        do = "pip install 'photinus[spark]'"
        raise NotReadyError("the installed pyspark has no jars", got=str(home), do=do)
    sizes = "".join(f"{file.name} {file.stat().st_size}\n" for file in files)
    digest = hashlib.sha256(sizes.encode()).hexdigest()[:16]

    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:  # jars are packed already
            for file in files:
                archive.write(file, file.name)

    return LazyArchive(f"photinus-spark-{metadata.version('pyspark')}-{digest}.zip", make)


def spark_home() -> Path:
    """Returns the folder of the installed pyspark, without loading it.

    Raises:
        NotReadyError: there is none.
    """
    try:
        return Path(str(metadata.distribution("pyspark").locate_file("pyspark")))
    except metadata.PackageNotFoundError:
        do = "pip install 'photinus[spark]'"
        raise NotReadyError("pyspark is not installed", do=do) from None


def own_code(path: Path) -> None:
    """Writes photinus itself as a zip, by its own name: Python finds it there by `--py-files`."""
    root = Path(photinus.__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, f"photinus/{file.relative_to(root).as_posix()}")
        metadata_text = metadata.distribution("photinus").read_text("METADATA") or ""
        archive.writestr(f"photinus-{photinus.__version__}.dist-info/METADATA", metadata_text)


def sent(
    archive: LazyArchive,
    cache_folder: Path,
    folder: str,
    on_new: Callable[[], None] = lambda: None,
) -> tuple[str, bool]:
    """Returns where an archive lies for the cluster, and whether it had to be sent.

    Args:
        archive: the archive to send.
        cache_folder: the folder of this machine that it is made in.
        folder: an address, or "" where it stays here.
        on_new: is called before it is made or sent, which may take minutes.

    Raises:
        NotReadyError: it cannot be made.
        CheckpointError: the address cannot be written to.
    """
    if not is_address(folder):
        if not (cache_folder / archive.name).exists():
            on_new()
        return str(archive.path_in(cache_folder)), False
    fs, path = filesystem(folder)
    target = f"{path}/{archive.name}"
    try:
        if fs.exists(target):
            return f"{folder}/{archive.name}", False
        on_new()
        file = archive.path_in(cache_folder)
        temporary = f"{path}/.{archive.name}.{os.getpid()}-{uuid.uuid4().hex}"
        fs.makedirs(path, exist_ok=True)
        fs.put_file(str(file), temporary)
        try:
            fs.mv(temporary, target)
        except FileExistsError:  # another submit was quicker
            fs.rm(temporary)
    except NotReadyError:
        raise
    except Exception as error:  # a file system of any maker, each with errors of its own
        wrong = f"{folder} cannot be written to"
        raise CheckpointError(wrong, got=reason_of(error).partition("\n")[0]) from error
    return f"{folder}/{archive.name}", True
