"""All exceptions of photinus, and the form of their messages.

PhotinusError
├── UsageError             an argument, a setting or a name is wrong
├── NotReadyError          the machine or the cluster lacks something: Java, slots, a package
├── DataError              a row, a column or a file of the user's data is wrong
├── LinkError              what passes between workers and the driver
│   ├── AuthenticationError    a key is wrong or missing
│   ├── FrameError             bytes that are no frame of ours
│   └── LinkLostError               the other side is gone
├── FencedError            this attempt no longer holds its seat
├── CheckpointError        a checkpoint is damaged, foreign or missing
└── RunFailedError              a run ended without its result
"""

import re
from typing import Final

_HDFS_ANSWER: Final = re.compile(r'RPCError\("[\w.$]+", "(.+?)(?:\\n|"\)$)')
"""What hdfs-native makes of a NameNode's answer; behind its first line is a trace of Java's."""

_WITH_DIGITS: Final = re.compile(r"\S*\d\S*")


def user_message(wrong: str, *, got: object = None, then: str = "", do: str = "") -> str:
    """Returns the one form of every message.

    Args:
        wrong: what is wrong.
        got: what was given.
        then: what photinus did about it.
        do: what the reader can do about it.

    Example:
        >>> user_message("workers must be at least 1", got=0, do="name how many tasks shall train")
        'workers must be at least 1; got 0; name how many tasks shall train'
        >>> user_message("worker 2 ended", got="exit code 1", then="its slot is started again")
        'worker 2 ended; got exit code 1; its slot is started again'
    """
    got_text = "" if got is None else f"got {got}"
    return "; ".join(part for part in (wrong, got_text, then, do) if part)


def reason_of(error: BaseException) -> str:
    r"""Returns in words why something failed: an error of the system without its number.

    Example:
        >>> reason_of(FileNotFoundError(2, "No such file or directory", "job.toml"))
        'No such file or directory'
        >>> reason_of(ValueError("a wrong date"))
        'a wrong date'
        >>> reason_of(RuntimeError(r'RPCError("org.StandbyException", "A standby\n\tat a.b")'))
        'A standby'
    """
    reason = (isinstance(error, OSError) and error.strerror) or str(error)
    if answer := _HDFS_ANSWER.match(reason):
        reason = answer[1].replace('\\"', '"')
    return reason or type(error).__name__


def without_numbers(reason: str) -> str:
    """Returns a reason without the words that hold digits: again the same one has others.

    Such are how full a quota is, and the names of checkpoints and of temporary files.

    Example:
        >>> without_numbers("the quota of 50 MB is exceeded by .17.tmp-a3")
        'the quota of  MB is exceeded by '
    """
    return _WITH_DIGITS.sub("", reason)


class PhotinusError(Exception):
    """The root: `except PhotinusError` catches all that photinus raises on purpose.

    Args:
        wrong: what is wrong.
        got: what was given; left out of the message where it is None.
        do: what to do about it.
    """

    def __init__(self, wrong: str, *, got: object = None, do: str = "") -> None:
        super().__init__(user_message(wrong, got=got, do=do))


class UsageError(PhotinusError):
    """An argument, a setting or a name is wrong."""


class NotReadyError(PhotinusError):
    """The machine or the cluster lacks something that the run needs."""


class DataError(PhotinusError):
    """A row, a column or a file of the user's data is wrong."""


class LinkError(PhotinusError):
    """What passes between workers and the driver failed."""


class AuthenticationError(LinkError):
    """A key is wrong or missing."""


class FrameError(LinkError):
    """Bytes arrived that are no frame of this run."""


class LinkLostError(LinkError):
    """The other side of a link is gone, or the link was closed."""


class FencedError(PhotinusError):
    """This attempt no longer holds its seat: another one trains in its place."""


class CheckpointError(PhotinusError):
    """A checkpoint is damaged, foreign or missing."""


class RunFailedError(PhotinusError):
    """A run ended without its result."""


def class_of(kind: str) -> type[PhotinusError] | None:
    """Returns the class of this tree that has the name `kind`; None for a name of another."""
    candidate = globals().get(kind)
    is_photinus_error = isinstance(candidate, type) and issubclass(candidate, PhotinusError)
    return candidate if is_photinus_error else None
