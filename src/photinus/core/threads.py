"""Sets the threads of BLAS, OpenMP and torch, so that the same job gives the same bits.

A product that two threads share is summed up in another order than by one. So every process that
computes for a run holds all of them to the run's own number, whatever the machine has.

MKL chooses the kernel of a function such as a square root at its first call. If two threads make
that call at once, one of them may get a kernel of low accuracy (4,000 units in the last place were
seen), for that call only. So one thread calls each function first.

Source: https://github.com/pytorch/pytorch/issues/188792 (2026).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from threadpoolctl import ThreadpoolController

ENVIRONMENT = (
    "BLIS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""What libraries read as they are loaded."""
# fmt: off
_FUNCTIONS_OF_MKL = (
    "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "log",
    "log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)
# fmt: on
"""Of torch, those for which it calls MKL."""


def environment(threads: int) -> dict[str, str]:
    """Returns the variables of a process whose libraries compute with so many threads.

    Example:
        >>> environment(2)["OMP_NUM_THREADS"]
        '2'
    """
    return dict.fromkeys(ENVIRONMENT, str(threads))


def use_threads(threads: int) -> None:
    """Sets the threads of this process for good: of libraries loaded already, and later."""
    import torch  # here: what only plans loads without it

    os.environ.update(environment(threads))
    ThreadpoolController().limit(limits=threads)
    torch.set_num_threads(threads)  # its MKL is linked into it: threadpoolctl does not see that
    choose_kernels()


@cache
def choose_kernels() -> None:
    """Has MKL choose the kernels of its functions in this thread, before several call one.

    Example:
        >>> choose_kernels()
    """
    import torch

    for number in (torch.float32, torch.float64):
        one = torch.full((1,), 0.5, dtype=number)  # of one number: no second thread takes part
        for name in _FUNCTIONS_OF_MKL:
            getattr(torch, name)(one)


@contextmanager
def threads_held(threads: int) -> Iterator[None]:
    """Sets the threads of this process for a while, and restores them afterwards.

    The settings are the process's, so of several that hold it at once the latest decides, and
    the first settings are restored when all have ended.

    Example:
        >>> import torch
        >>> before = torch.get_num_threads()
        >>> with threads_held(1):
        ...     torch.get_num_threads()
        1
        >>> torch.get_num_threads() == before
        True
    """
    hold = _ThreadLimit(threads)
    _enter(hold)
    try:
        yield
    finally:
        _leave(hold)


@dataclass(frozen=True, eq=False, slots=True)
class _ThreadLimit:
    threads: int


@dataclass(frozen=True, slots=True)
class _Before:
    """What the process was set to."""

    libraries: tuple[tuple[str, int | None], ...]
    """Path and threads."""
    torch: int
    environment: dict[str, str | None]

    @classmethod
    def now(cls) -> _Before:
        import torch

        libraries = ThreadpoolController().lib_controllers
        return cls(
            tuple((library.filepath, library.num_threads) for library in libraries),
            torch.get_num_threads(),
            {name: os.environ.get(name) for name in ENVIRONMENT},
        )

    def restore(self) -> None:
        import torch

        torch.set_num_threads(self.torch)
        known = dict(self.libraries)
        for library in ThreadpoolController().lib_controllers:
            if threads := known.get(library.filepath):
                library.set_num_threads(threads)
        for name, value in self.environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_lock = threading.Lock()
_holds: list[_ThreadLimit] = []
_before: list[_Before] = []


def _enter(hold: _ThreadLimit) -> None:
    with _lock:
        if not _holds:
            _before[:] = [_Before.now()]
        _holds.append(hold)
        use_threads(hold.threads)


def _leave(hold: _ThreadLimit) -> None:
    with _lock:
        _holds.remove(hold)
        if _holds:
            use_threads(_holds[-1].threads)
        else:
            _before.pop().restore()
