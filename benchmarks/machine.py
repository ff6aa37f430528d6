"""What every script here does first: it names the processor, and takes `--small`.

A figure without its processor says little: bfloat16 is a hundred times slower without instructions
for it. `--small` runs a script at its smallest size, to show that it runs; where this machine
lacks what a script needs, it ends with code 3.
"""

import contextlib
import os
import platform
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Self

CANNOT = 3
WIDTHS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "asimd")
"""Instructions of matrix products, the widest first, by their names in /proc/cpuinfo."""
HELD = ("ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "ATEN_CPU_CAPABILITY")
_SAID = "PHOTINUS_PROCESSOR_SAID"


def begin(*small: str) -> None:
    """Prints the processor, once for a script and its children; puts words for `--small`.

    Args:
        small: what is given to the script at its smallest size.
    """
    if not os.environ.get(_SAID):
        print(processor(), flush=True)
        os.environ[_SAID] = "1"
    if "--small" in sys.argv:
        sys.argv.remove("--small")
        sys.argv[1:1] = small


def processor() -> str:
    """Returns the processor's name, its widest instructions, cores and load in one line."""
    fields: dict[str, str] = {}
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    widest = next((width for width in WIDTHS if width in flags), "instructions unknown")
    limits = [f"{name}={os.environ[name]}" for name in HELD if name in os.environ]
    words = [fields.get("model name") or platform.processor() or platform.machine(), widest]
    words += ["held to " + " ".join(limits)] if limits else []
    words += [f"{os.cpu_count()} cores", f"load {os.getloadavg()[0]:.1f}"]
    return "processor: " + ", ".join(words)


def descendants() -> list[int]:
    """Returns the processes that this program started, and those that they did."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            after = (process / "stat").read_text().rpartition(")")[2].split()
            parents[int(process.name)] = int(after[1])
    processes = []
    for process in parents:
        above = parents[process]
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        processes += [process] if above else []
    return processes


def used() -> float:
    """Returns the seconds of processor that this program and all that it started have used."""
    stats = [Path(f"/proc/{process}/stat") for process in (os.getpid(), *descendants())]
    total = 0
    for path in stats:
        with contextlib.suppress(OSError):
            total += sum(map(int, path.read_text().rpartition(")")[2].split()[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def cannot(why: str) -> NoReturn:
    """Ends the script: this machine lacks what it needs."""
    print(why, file=sys.stderr)
    sys.exit(CANNOT)


class Sampler(threading.Thread):
    """Calls `look` every so many seconds, until its block ends.

    Args:
        look: is called.
        seconds: between two calls.
    """

    def __init__(self, look: Callable[[], object], seconds: float) -> None:
        super().__init__(daemon=True)
        self._look, self._seconds, self._over = look, seconds, threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._seconds):
            self._look()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
