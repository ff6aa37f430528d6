"""A thread beside the worker's own works in its pauses only, and hands its errors over."""

import threading

import pytest

from photinus.protocol.background_thread import BackgroundThread


class Work:
    """Something to do whenever `ready` is set; notes that it was done."""

    def __init__(self, error=None):
        self.ready, self.done, self.error = threading.Event(), threading.Event(), error
        self.is_worker_busy = True

    def __call__(self):
        self.ready.clear()
        assert not self.is_worker_busy, "it worked beside the worker"
        self.done.set()
        if self.error:
            raise self.error


@pytest.fixture
def make():
    threads = []

    def new(error=None):
        work = Work(error)
        threads.append(BackgroundThread(work.ready.wait, work))
        return work, threads[-1]

    yield new
    for background in threads:
        background.end()
    assert "photinus background" not in {thread.name for thread in threading.enumerate()}


def test_it_works_between_begin_and_pause_only(make):
    work, background = make()
    for _ in range(20):
        work.ready.set()  # while the worker is busy: it waits
        work.is_worker_busy = False
        background.begin()
        assert work.done.wait(10.0)
        background.pause()
        work.is_worker_busy = True
        work.done.clear()
        background.pause()  # twice is once


def test_its_error_is_raised_where_the_worker_pauses_it(make):
    work, background = make(ValueError("a frame that is none"))
    work.is_worker_busy = False
    work.ready.set()
    background.begin()
    assert work.done.wait(10.0)
    with pytest.raises(ValueError, match="none"):
        background.pause()


def test_one_that_never_began_ends(make):
    make()
