"""How many threads libraries compute with is the run's own, and the caller's comes back."""

import os

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from photinus.core.threads import ENVIRONMENT, environment, threads_held, use_threads

pytestmark = pytest.mark.numerics


def found():
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


def assert_held(threads):
    libraries, of_torch, named = found()
    assert set(libraries.values()) == {threads}
    assert of_torch == threads
    assert named == environment(threads)


def test_every_library_is_held_and_the_callers_settings_come_back():
    before = found()
    assert set(before[0].values()) == {3}
    with threads_held(2):
        assert_held(2)
    assert found() == before


def test_an_error_gives_the_settings_back():
    before = found()
    with pytest.raises(KeyError), threads_held(1):
        raise KeyError
    assert found() == before


def test_of_several_at_once_the_latest_decides_whichever_ends_first():
    before = found()
    first, second = threads_held(1), threads_held(2)
    first.__enter__()
    second.__enter__()
    assert_held(2)
    first.__exit__(None, None, None)
    assert_held(2)
    second.__exit__(None, None, None)
    assert found() == before


def test_a_worker_of_its_own_process_keeps_them(monkeypatch):
    for name in ENVIRONMENT:  # so that what is set is undone
        monkeypatch.setenv(name, "5")
    use_threads(2)
    assert_held(2)
