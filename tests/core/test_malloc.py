"""Memory that a step frees is kept for the next one."""

import os
import subprocess
import sys

import pytest

_STEPS = """
import ctypes, resource
import numpy as np
from photinus.core.malloc import keep_freed_memory

def faults(arrays):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        held = [np.ones(1_500_000, np.float32) for _ in range(arrays)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

has_it = hasattr(ctypes.CDLL(None), "mallopt")
first = faults(4)
kept = keep_freed_memory()
faults(4)
print(int(has_it), int(kept), first, faults(4))
"""


def _measurements(settings: dict[str, str]) -> list[int]:
    env = {n: v for n, v in os.environ.items() if not n.startswith(("MALLOC_", "GLIBC_"))}
    process = subprocess.run(
        [sys.executable, "-c", _STEPS],
        env={**env, **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [int(word) for word in process.stdout.split()]


def test_arrays_that_are_made_again_and_again_ask_the_system_for_no_page() -> None:
    has_mallopt, is_kept, before, after = _measurements({})
    if not has_mallopt:
        pytest.skip("this C library has no mallopt")
    assert is_kept
    assert before > 1000
    assert after < 100


def test_who_set_the_c_librarys_own_variables_is_obeyed() -> None:
    _, is_kept, _, _ = _measurements({"MALLOC_TRIM_THRESHOLD_": "131072"})
    assert not is_kept


def test_hadoops_limit_of_arenas_is_no_such_setting() -> None:
    has_mallopt, is_kept, _, after = _measurements({"MALLOC_ARENA_MAX": "4"})
    if not has_mallopt:
        pytest.skip("this C library has no mallopt")
    assert is_kept
    assert after < 100
