"""Ctrl-C and SIGTERM: both raise KeyboardInterrupt in the main thread."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_BOTH = (signal.SIGINT, signal.SIGTERM)
_deferred: list[list[tuple[str, ...]]] = []
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
    came: list[tuple[str, ...]] = []

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as Python calls
        came.append(() if number == signal.SIGINT else (signal.Signals(number).name,))
        if _deferred:
            _deferred[-1].append(came[-1])
        else:
            raise KeyboardInterrupt(*came[-1])

    handlers = {sign: signal.getsignal(sign) for sign in signals or _BOTH}
    # None: of another language's, which Python can neither call nor restore
    handlers = {sign: old for sign, old in handlers.items() if old not in (None, signal.SIG_IGN)}
    for sign in handlers:
        signal.signal(sign, interrupt)
    try:
        yield
    except Exception as error:
        if came and not isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt(*came[0]) from error  # what a call that was cut short raises
        raise
    finally:
        for sign, old in handlers.items():
            signal.signal(sign, old)


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
    held: list[tuple[str, ...]] = []
    _deferred.append(held)
    try:
        yield
    finally:
        _deferred.remove(held)
    if held and _deferred:
        _deferred[-1] += held
    elif held:
        raise KeyboardInterrupt(*held[0])


def stopped_by(error: KeyboardInterrupt) -> str:
    """Returns what stopped a run, in words.

    Example:
        >>> stopped_by(KeyboardInterrupt()), stopped_by(KeyboardInterrupt("SIGTERM"))
        ('stopped by Ctrl-C', 'stopped by SIGTERM')
    """
    return f"stopped by {str(error) or 'Ctrl-C'}"
