"""Ctrl-C and SIGTERM: both raise KeyboardInterrupt in the main thread."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_DEFAULT_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_deferred_blocks: list[list[tuple[str, ...]]] = []
"""The signals that arrived in each block of `deferred` that the main thread is in."""


@contextlib.contextmanager
def interruptible(*signals: signal.Signals) -> Iterator[None]:
    """Makes signals raise KeyboardInterrupt, and nothing else; restores their handlers afterwards.

    SIGTERM is what systemd, YARN and Kubernetes end a process with: a run must take it as it takes
    Ctrl-C. Spark's own handler of Ctrl-C first asks Java to cancel all jobs: workers would be gone
    before their last checkpoint, and where Java is not ready the question fails with another error.

    A signal that is ignored stays ignored. Outside of the main thread, where Python allows no
    handlers, nothing is changed.

    Args:
        signals: left out, SIGINT and SIGTERM.

    Raises:
        KeyboardInterrupt: a signal arrived; its text is "SIGTERM", or empty after Ctrl-C.

    Example:
        >>> with contextlib.suppress(KeyboardInterrupt), interruptible(signal.SIGTERM):
        ...     signal.raise_signal(signal.SIGTERM)
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[str, ...]] = []

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as Python calls
        received.append(() if number == signal.SIGINT else (signal.Signals(number).name,))
        if _deferred_blocks:
            _deferred_blocks[-1].append(received[-1])
        else:
            raise KeyboardInterrupt(*received[-1])

    handlers = {signum: signal.getsignal(signum) for signum in signals or _DEFAULT_SIGNALS}
    # None: of another language's, which Python can neither call nor restore
    handlers = {
        signum: handler
        for signum, handler in handlers.items()
        if handler not in (None, signal.SIG_IGN)
    }
    for signum in handlers:
        signal.signal(signum, interrupt)
    try:
        yield
    except Exception as error:
        if received and not isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt(
                *received[0]
            ) from error  # what a call that was cut short raises
        raise
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Holds back what `interruptible` raises until the end of the outermost block.

    For short calls that log an error of their own, or leave something half done, where an exception
    of another kind cuts through them; as those of Spark's Python client do.

    Raises:
        KeyboardInterrupt: at that end, if a signal arrived before it.

    Example:
        >>> done = []
        >>> with contextlib.suppress(KeyboardInterrupt), interruptible(signal.SIGTERM):
        ...     with deferred():
        ...         signal.raise_signal(signal.SIGTERM)
        ...         done.append("all of it")
        >>> done
        ['all of it']
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[tuple[str, ...]] = []
    _deferred_blocks.append(arrived)
    try:
        yield
    finally:
        _deferred_blocks.remove(arrived)
    if arrived and _deferred_blocks:
        _deferred_blocks[-1] += arrived
    elif arrived:
        raise KeyboardInterrupt(*arrived[0])


def stopped_by(error: KeyboardInterrupt) -> str:
    """Returns what stopped a run, in words.

    Example:
        >>> stopped_by(KeyboardInterrupt()), stopped_by(KeyboardInterrupt("SIGTERM"))
        ('stopped by Ctrl-C', 'stopped by SIGTERM')
    """
    return f"stopped by {str(error) or 'Ctrl-C'}"
