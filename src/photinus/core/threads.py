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

    for dtype in (torch.float32, torch.float64):
        argument = torch.full((1,), 0.5, dtype=dtype)  # of one number: no second thread takes part
        for name in _FUNCTIONS_OF_MKL:
            getattr(torch, name)(argument)


@contextmanager
def limit_threads(threads: int) -> Iterator[None]:
    """Sets the threads of this process for a while, and restores them afterwards.

    The settings are the process's, so of several that hold it at once the latest decides, and
    the first settings are restored when all have ended.

    Example:
        >>> import torch
        >>> before = torch.get_num_threads()
        >>> with limit_threads(1):
        ...     torch.get_num_threads()
        1
        >>> torch.get_num_threads() == before
        True
    """
    limit = _ThreadLimit(threads)
    _apply(limit)
    try:
        yield
    finally:
        _release(limit)


@dataclass(frozen=True, eq=False, slots=True)
class _ThreadLimit:
    threads: int


@dataclass(frozen=True, slots=True)
class _ThreadSettings:
    """What the process was set to."""

    libraries: tuple[tuple[str, int | None], ...]
    """Path and threads."""
    torch: int
    environment: dict[str, str | None]

    @classmethod
    def current(cls) -> _ThreadSettings:
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
        threads_by_path = dict(self.libraries)
        for library in ThreadpoolController().lib_controllers:
            if threads := threads_by_path.get(library.filepath):
                library.set_num_threads(threads)
        for name, value in self.environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_lock = threading.Lock()
_active_limits: list[_ThreadLimit] = []
_saved_settings: list[_ThreadSettings] = []


def _apply(limit: _ThreadLimit) -> None:
    with _lock:
        if not _active_limits:
            _saved_settings[:] = [_ThreadSettings.current()]
        _active_limits.append(limit)
        use_threads(limit.threads)


def _release(limit: _ThreadLimit) -> None:
    with _lock:
        _active_limits.remove(limit)
        if _active_limits:
            use_threads(_active_limits[-1].threads)
        else:
            _saved_settings.pop().restore()
