"""Makes `.venv` with photinus and all that it needs; quick when nothing changed.

Usage: python3 bootstrap.py [--dev]

Needs Python 3.11 and nothing else: it uses the standard library only. Without an NVIDIA GPU it
takes the CPU build of PyTorch, and it brings a Java runtime only if Java 17 or 21 is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "photinus-setup.json"
INPUTS = ("bootstrap.py", "pyproject.toml", "constraints.txt")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
LOAD_ALL = "import photinus.engine.spark.daemon; from photinus import *"
CAUSES = {
    r"No space left": "the disk is full: the environment takes 2 GB (6 GB with CUDA)",
    r"name resolution|Name or service|NewConnectionError|ConnectTimeout|Connection refused": (
        "the package index is out of reach: check the network, or pip's proxy and index settings"
    ),
    r"No matching distribution": "pip's index lacks a package: see the lines above",
    r"ensurepip": "Python lacks ensurepip: install the system's package python3-venv",
}


def fail(text: str) -> None:
    """Ends the program with exit code 3, environment not ready."""
    print(f"bootstrap: {text}", file=sys.stderr)
    raise SystemExit(3)


def run(command: list[str], purpose: str) -> None:
    """Runs a command quietly; if it fails, shows what it said and the likely cause."""
    # With this variable every later process would compile all that it loads, torch too.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return
    said = done.stderr + done.stdout
    print(said.strip(), file=sys.stderr)
    causes = [cause for sign, cause in CAUSES.items() if re.search(sign, said)]
    fail(f"{purpose} failed" + "".join(f"; {cause}" for cause in causes[:1]))


def has_java() -> bool:
    """Whether JAVA_HOME or the PATH has Java 17 or 21, the ones that every Spark 4 runs on."""
    home = os.environ.get("JAVA_HOME")
    for program in (home and str(Path(home, "bin", "java")), shutil.which("java")):
        try:
            said = subprocess.run([program or "", "-version"], capture_output=True, text=True)
        except OSError:
            continue
        if re.search(r'version "(17|21)\b', said.stderr):
            return True
    return False


def index_options() -> list[str]:
    """The CPU build's index: only where it is of use, and only if it answers."""
    if sys.platform != "linux" or shutil.which("nvidia-smi"):
        return []
    request = urllib.request.Request(f"{CPU_INDEX}/torch/", method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=3).close()
    except OSError:
        print("note: PyTorch's CPU index is out of reach; the default build may bring CUDA (5 GB)")
        return []
    return ["--extra-index-url", CPU_INDEX]


def install(*packages: str) -> None:
    """Installs packages into `.venv`, at the versions of constraints.txt."""
    # To compile their 25,000 modules takes half of the time, and most of them are never loaded.
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--no-compile"]
    pip.append("--disable-pip-version-check")
    run([*pip, "-c", "constraints.txt", *packages], f"installing {' '.join(packages)}")


def wanted(dev: bool) -> dict[str, str | bool]:
    """What the environment must hold; equal to the stamp when nothing is to be done."""
    digest = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in INPUTS)).hexdigest()
    # The path belongs to it: the programs of an environment that was moved do not start.
    return {"inputs": digest, "path": str(VENV), "dev": dev, "java": not has_java()}


def stamp() -> dict[str, str | bool]:
    """What the environment holds; empty if the last set-up did not end well."""
    try:
        return dict(json.loads(STAMP.read_text()))
    except (OSError, ValueError):
        return {}


def main() -> None:
    """Makes the environment, or finds it ready."""
    if sys.version_info < (3, 11):
        fail(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}")
    import tomllib  # here: an older Python has none, and shall read the sentence above

    want, have = wanted("--dev" in sys.argv[1:]), stamp()
    # More than is wanted does not hurt: the tests' packages, a Java of our own.
    if PYTHON.exists() and all(have.get(key) in (value, True) for key, value in want.items()):
        return
    started = time.monotonic()
    STAMP.unlink(missing_ok=True)
    if not PYTHON.exists() or have.get("path", str(VENV)) != str(VENV):
        print("making .venv ...", flush=True)
        run([sys.executable, "-m", "venv", "--clear", str(VENV)], "making .venv")
    print("installing PyTorch (some minutes the first time) ...", flush=True)
    install("torch", *index_options())  # first and alone: what follows keeps this build
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    dev = project["dependency-groups"]["dev"] if want["dev"] else []
    extras = "spark,java" if want["java"] else "spark"
    print(f"installing photinus[{extras}] ...", flush=True)
    install("-e", f".[{extras}]", *dev)
    run([str(PYTHON), "-c", LOAD_ALL], "loading photinus")  # which compiles what it loads
    STAMP.write_text(json.dumps(want))
    print(f"ready after {time.monotonic() - started:.0f} s: .venv/bin/photinus --help")


if __name__ == "__main__":
    main()
