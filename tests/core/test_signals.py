import signal
import threading

import pytest

from photinus.core.signals import deferred, interruptible, stopped_by

TERM = signal.SIGTERM


@pytest.fixture
def restored_handler():
    """The handler of SIGTERM as it was, and is again after the test."""
    before = signal.getsignal(TERM)
    yield
    signal.signal(TERM, before)


@pytest.mark.parametrize(
    ("sign", "words"),
    [(signal.SIGINT, "stopped by Ctrl-C"), (TERM, "stopped by SIGTERM")],
)
def test_a_signal_interrupts_and_says_which_it_was(sign, words):
    with pytest.raises(KeyboardInterrupt) as stopped, interruptible():
        signal.raise_signal(sign)
    assert stopped_by(stopped.value) == words


def test_deferred_signals_interrupt_at_the_end_of_the_outermost_block():
    steps = []

    def work():
        with deferred():
            with deferred():
                signal.raise_signal(TERM)
                steps.append("inside")
            steps.append("outside")
            signal.raise_signal(signal.SIGINT)
            steps.append("all of it")

    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), interruptible():
        work()
    assert steps == ["inside", "outside", "all of it"]


def test_an_error_in_a_deferred_block_is_still_told_as_a_stop():
    def work():
        with deferred():
            signal.raise_signal(TERM)
            raise OSError("cut short")

    with pytest.raises(KeyboardInterrupt) as stopped, interruptible(TERM):
        work()
    assert isinstance(stopped.value.__cause__, OSError)


def test_outside_of_the_main_thread_a_deferred_block_holds_nothing_back():
    calls = []

    def work():
        with deferred():
            calls.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with pytest.raises(KeyboardInterrupt), interruptible(TERM):
        signal.raise_signal(TERM)
    assert calls == [True]


def test_the_handlers_before_are_back_afterwards(restored_handler):
    signals = []
    signal.signal(TERM, lambda number, frame: signals.append(number))
    with pytest.raises(KeyboardInterrupt), interruptible(TERM):
        signal.raise_signal(TERM)
    signal.raise_signal(TERM)
    assert signals == [TERM]


def test_only_the_signals_that_are_named_are_taken():
    before = signal.getsignal(signal.SIGINT)
    with interruptible(TERM):
        assert signal.getsignal(signal.SIGINT) is before
        assert signal.getsignal(TERM) is not signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_ignored(restored_handler):
    signal.signal(TERM, signal.SIG_IGN)
    with interruptible():
        signal.raise_signal(TERM)
    assert signal.getsignal(TERM) is signal.SIG_IGN


def test_outside_of_the_main_thread_no_handler_is_installed():
    before, handlers = signal.getsignal(TERM), []

    def record_handler():
        with interruptible():
            handlers.append(signal.getsignal(TERM))

    thread = threading.Thread(target=record_handler)
    thread.start()
    thread.join()
    assert handlers == [before]


@interruptible()
def cut_short():
    try:
        signal.raise_signal(TERM)
    except KeyboardInterrupt:
        raise ConnectionError("Java said nothing") from None


def test_what_a_call_that_was_cut_short_raises_is_the_interrupt():
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        cut_short()


@interruptible()
def raise_from_interrupt():
    try:
        signal.raise_signal(TERM)
    except KeyboardInterrupt as error:
        raise ValueError("continue with") from error


def test_an_error_that_was_made_of_the_interrupt_is_kept():
    with pytest.raises(ValueError, match="continue with"):
        raise_from_interrupt()
