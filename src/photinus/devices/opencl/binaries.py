"""Kernels that were compiled before: a file, and a manifest of what it is for."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from photinus.core.errors import NotReadyError, UsageError, reason_of
from photinus.devices.opencl.engine import FLAVOURS, OpenCLEngine, source
from photinus.devices.opencl.platforms import OpenCLDevice
from photinus.devices.opencl.self_test import check

VARIABLE = "PHOTINUS_OPENCL_KERNELS"
"""In the environment of a worker: the folder of its kernels."""
MANIFEST = "kernels.json"
_BUILD_HINT = "photinus kernels build, on a machine with this device"


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a file of kernels was made from, and for what."""

    file: str
    """Its name, beside the manifest."""
    sha256: str
    source: str
    """SHA-256 of kernels.cl: another text has other kernels, or other arguments."""
    device: str
    flavour: str


def build(device: OpenCLDevice, folder: Path, file: Path | None = None, flavour: str = "") -> Path:
    """Writes a device's kernels and their manifest, once they have passed the test.

    Args:
        device: the device.
        folder: to write to.
        file: as a board's own compiler made it from kernels.cl; left out, the driver compiles.
        flavour: for which it was compiled.

    Returns:
        The manifest's path.

    Raises:
        NotReadyError: the device cannot use the kernels, or fails the test.
        UsageError: the file cannot be read.
    """
    engine = OpenCLEngine(device, flavour, _read_file(file) if file else b"")
    check(engine)
    binary = _read_file(file) if file else engine.binary()
    name = file.name if file else "kernels.bin"
    manifest = Manifest(
        file=name,
        sha256=_digest(binary),
        source=_digest(source().encode()),
        device=device.title,
        flavour=engine.flavour,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(binary)
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")
    return folder / MANIFEST


def usable_engine(device: OpenCLDevice) -> OpenCLEngine:
    """Returns a device with the kernels that the environment names, or compiled now; tested.

    Raises:
        NotReadyError: they are not there, damaged, for another device or another version, do not
            compile, or fail the test.
    """
    folder = os.environ.get(VARIABLE, "")
    engine = (
        OpenCLEngine(device, *_load_kernels(Path(folder), device))
        if folder
        else OpenCLEngine(device)
    )
    check(engine)
    return engine


def _load_kernels(folder: Path, device: OpenCLDevice) -> tuple[str, bytes]:
    """Returns flavour and kernels; no driver sees a byte of a file that is not whole."""
    path = folder / MANIFEST
    try:
        manifest = Manifest(**json.loads(path.read_text(encoding="utf-8")))
        binary = (folder / Path(manifest.file).name).read_bytes()
    except (OSError, ValueError, TypeError) as error:
        wrong = f"{VARIABLE} names no kernels"
        raise NotReadyError(wrong, got=f"{path}: {reason_of(error)}", do=_BUILD_HINT) from error
    if manifest.device != device.title:
        wrong = f"the kernels of {folder} are for another device than {device.name}"
        raise NotReadyError(
            wrong, got=f"{manifest.device}, and here {device.title}", do=_BUILD_HINT
        )
    if manifest.source != _digest(source().encode()) or manifest.flavour not in FLAVOURS:
        wrong = f"the kernels of {folder} are of another version of photinus"
        raise NotReadyError(wrong, got=f"source {manifest.source[:12]}", do=_BUILD_HINT)
    if _digest(binary) != manifest.sha256:
        wrong = f"the file {manifest.file} of {folder} is damaged"
        raise NotReadyError(wrong, got=f"SHA-256 {_digest(binary)[:12]}", do="copy it again")
    return manifest.flavour, binary


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError("the kernels cannot be read", got=f"{file}: {reason_of(error)}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
