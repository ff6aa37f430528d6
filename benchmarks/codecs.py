"""How fast vectors are encoded and decoded on one thread, beside a plain copy, and where it pays.

    OMP_NUM_THREADS=1 python benchmarks/codecs.py [millions of numbers] [runs]

GB of float32 numbers per second, the best of some runs. A codec pays on links slower than
saved bytes / (seconds to encode + seconds to decode), given in Gbit/s.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from machine import begin

from photinus.strategies.codecs import CODECS, decode, encode, size_bytes


def best_gb_per_second(do: Callable[[], object], nbytes: int, runs: int) -> float:
    """Returns nbytes over the seconds of the fastest run."""
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        do()
        seconds.append(time.perf_counter() - began)
    return nbytes / min(seconds) / 1e9


def main(millions: float = 4.0, runs: int = 15) -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    count = round(millions * 1e6)
    vector = np.random.default_rng(0).standard_normal(count, np.float32)
    target, nbytes = np.empty_like(vector), vector.nbytes
    print(f"{millions:g} M float32 numbers, {nbytes / 1e6:.0f} MB, one thread, best of {runs}\n")
    print(f"{'':8}{'encode':>10}{'decode':>10}{'bytes':>10}{'pays below':>16}")
    copied = best_gb_per_second(lambda: np.copyto(target, vector), nbytes, runs)
    print(f"{'copy':8}{copied:>10.2f}{copied:>10.2f}{1:>10.3f}")
    for name in CODECS:
        if name == "fp32":
            continue
        sent = encode(name, vector)
        one = best_gb_per_second(lambda name=name: encode(name, vector), nbytes, runs)
        two = best_gb_per_second(lambda name=name, sent=sent: decode(name, sent), nbytes, runs)
        share = size_bytes(name, count) / nbytes
        pays = 8 * (1 - share) / (1 / one + 1 / two)
        print(f"{name:8}{one:>10.2f}{two:>10.2f}{share:>10.3f}{pays:>10.1f} Gbit/s")


if __name__ == "__main__":
    begin("0.1", "2")
    main(*(float(a) for a in sys.argv[1:2]), *(int(a) for a in sys.argv[2:3]))
