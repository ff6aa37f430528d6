"""How many threads libraries compute with is the run's own, and the caller's comes back."""

import os

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch.utils._python_dispatch import TorchDispatchMode

from photinus.core.threads import (
    ENVIRONMENT,
    choose_kernels,
    environment,
    limit_threads,
    use_threads,
)

pytestmark = pytest.mark.numerics


def thread_settings():
    """Returns the threads of every library, of torch, and what later ones will read."""
    libraries = {lib["filepath"]: lib["num_threads"] for lib in threadpool_info()}
    return libraries, torch.get_num_threads(), {n: os.environ.get(n) for n in ENVIRONMENT}


@pytest.fixture(autouse=True)
def three(monkeypatch):
    """What the caller's process is set to: one name is said, the others are not."""
    before = torch.get_num_threads()
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with threadpool_limits(3):
        torch.set_num_threads(3)
        yield
        torch.set_num_threads(before)


def assert_threads(threads):
    libraries, torch_threads, variables = thread_settings()
    assert set(libraries.values()) == {threads}
    assert torch_threads == threads
    assert variables == environment(threads)


def test_every_library_is_held_and_the_callers_settings_come_back():
    before = thread_settings()
    assert set(before[0].values()) == {3}
    with limit_threads(2):
        assert_threads(2)
    assert thread_settings() == before


def test_an_error_gives_the_settings_back():
    before = thread_settings()
    with pytest.raises(KeyError), limit_threads(1):
        raise KeyError
    assert thread_settings() == before


def test_of_several_at_once_the_latest_decides_whichever_ends_first():
    before = thread_settings()
    first, second = limit_threads(1), limit_threads(2)
    first.__enter__()
    second.__enter__()
    assert_threads(2)
    first.__exit__(None, None, None)
    assert_threads(2)
    second.__exit__(None, None, None)
    assert thread_settings() == before


def test_a_worker_of_its_own_process_keeps_them(monkeypatch):
    for name in ENVIRONMENT:  # so that what is set is undone
        monkeypatch.setenv(name, "5")
    use_threads(2)
    assert_threads(2)


class Calls(TorchDispatchMode):
    """Keeps which function was called with how many numbers."""

    def __init__(self):
        super().__init__()
        self.sizes = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if isinstance(args[0], torch.Tensor):
            self.sizes[func.overloadpacket, args[0].dtype] = args[0].numel()
        return func(*args, **(kwargs or {}))


def test_mkl_chooses_its_kernels_in_one_thread_before_several_compute():
    choose_kernels.cache_clear()
    calls = Calls()
    with calls, limit_threads(2):
        pass
    for name in ("sqrt", "exp", "log", "tanh", "erf"):
        for number in (torch.float32, torch.float64):
            assert calls.sizes[getattr(torch.ops.aten, name), number] == 1
