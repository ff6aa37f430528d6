"""Names of the user's own code, "package.module:function", turned into objects."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from photinus.core.errors import UsageError

__all__ = ["imported"]


def imported(path: str, kind: str) -> Callable[..., Any]:
    """Returns the callable that "package.module:name" names.

    Args:
        path: what to import; the same on every worker.
        kind: what it is for, as messages say it: "module", "loss", "optimizer".

    Raises:
        UsageError: it has another form, cannot be imported, or is not callable.

    Example:
        >>> imported("torch.nn:Linear", "module").__name__
        'Linear'
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise UsageError(f"a {kind} is named package.module:name", got=repr(path))
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever the user's module raises while it is imported
        raise UsageError(
            f"the {kind} {path!r} cannot be imported",
            got=f"{type(error).__name__}: {error}",
            do="install its package on every worker, or ship the file with the job",
        ) from error
    factory = getattr(found, name, None)
    if factory is None:
        raise UsageError(f"{module} has no {name!r}", got=repr(path), do="check the spelling")
    if not callable(factory):
        raise UsageError(f"the {kind} {path!r} is not callable", got=type(factory).__name__)
    result: Callable[..., Any] = factory
    return result
