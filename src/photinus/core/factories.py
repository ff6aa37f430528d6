"""Imports a user's code by name: "package.module:function"."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import json
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from photinus.core.errors import UsageError

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_LIBRARIES = frozenset(
    """
    _pytest accelerate botocore boto3 click cloudpickle cryptography fsspec functorch hdfs_native
    huggingface_hub IPython jinja2 llvmlite mlflow mwparserfromhell numba numpy onnx onnxscript
    pandas peft PIL pip pkg_resources py4j pyarrow pygments pyopencl pyspark pytest requests rich
    s3fs safetensors scipy setuptools sklearn sympy tensorboard threadpoolctl tokenizers torch
    torchgen trackio transformers triton urllib3 usearch wheel
    """.split()  # noqa: SIM905 - a list, one a line, is a page
)
"""Packages that are not the user's: photinus' requirements, theirs, and Python's installers."""
_OPEN_PACKAGES = ("photinus.models.", "photinus.strategies.")
_OPEN_MODULES = ("torch.nn.functional",)
"""Functions of arrays and nothing else."""


_by_value: dict[str, Callable[..., Any]] = {}


def by_value(function: Callable[..., Any]) -> str:
    """Consents to send a function or class of a notebook, or of a script, to the workers itself.

    It travels in the closure of Spark's tasks. A model that it makes cannot be saved: no other
    process could make the module again.

    Args:
        function: defined in `__main__`; what it needs from there is sent with it.

    Returns:
        The name by which this session knows it: for `module`, `loss`, `strategy`, `reads`,
            `collate` and encoders.

    Raises:
        UsageError: it can be imported by its name.

    Example:
        >>> by_value(len)
        Traceback (most recent call last):
        photinus.core.errors.UsageError: only what a notebook or a script defines is sent by \
value; got 'builtins:len'; give its name
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module != "__main__" or not callable(function):
        wrong = "only what a notebook or a script defines is sent by value"
        raise UsageError(wrong, got=repr(f"{module}:{name}"), do="give its name")
    identifier = name if name.isidentifier() else "function"
    path = (
        f"__main__:{identifier}_{secrets.token_hex(4)}"  # a cell that runs again makes another one
    )
    _by_value[path] = function
    return path


def functions_by_value(plain: object) -> dict[str, Callable[..., Any]]:
    """Returns what `by_value` was asked to send, of what plain values name."""
    return {name: _by_value[name] for name in code_names(plain) if name in _by_value}


def take_by_value(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Registers on a worker what was sent to it by value."""
    _by_value.update(functions)


def check_importable(plain: object, what: str) -> None:
    """Refuses what names a function that no other process can import.

    Raises:
        UsageError: it does.
    """
    for name in code_names(plain):
        if name.startswith("__main__:"):
            do = "define the function in a file that every process can import, and name that one"
            raise UsageError(f"{what} names code that is sent by value", got=repr(name), do=do)


def import_named(path: str, kind: str) -> Callable[..., Any]:
    """Returns the callable that "package.module:name" names, whatever it is.

    Args:
        path: what to import; the same on every worker.
        kind: what it is for, as messages name it: "module", "loss", "optimizer".

    Raises:
        UsageError: it has another form, cannot be imported, or is not callable.

    Example:
        >>> import_named("torch.nn:Linear", "module").__name__
        'Linear'
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise _malformed_name_error(path, kind)
    if path in _by_value:
        return _by_value[path]
    if module == "__main__":
        do = "define it in a file that every process can import, and name that one"
        raise UsageError(f"the {kind} {path!r} was defined in another program", do=do)
    try:
        imported_module = importlib.import_module(module)
    except Exception as error:  # whatever the user's module raises while it is imported
        raise UsageError(
            f"the {kind} {path!r} cannot be imported",
            got=f"{type(error).__name__}: {error}",
            do="put its file on PYTHONPATH; on a cluster install its package on every worker, "
            "or send its file, by addPyFile (on Spark Connect addArtifacts) or --py-files",
        ) from error
    factory = getattr(imported_module, name, None)
    if factory is None:
        close_matches = difflib.get_close_matches(name, dir(imported_module), n=1)
        do = (
            f"did you mean '{module}:{close_matches[0]}'?"
            if close_matches
            else "check the spelling"
        )
        raise UsageError(f"{module} has no {name!r}", got=repr(path), do=do)
    if not callable(factory):
        raise UsageError(f"the {kind} {path!r} is not callable", got=type(factory).__name__)
    result: Callable[..., Any] = factory
    return result


def resolve_user_code(path: str, kind: str, *bases: type) -> Callable[..., Any]:
    """Returns what a name stands for if it is what a job may call; nothing is called to find out.

    That is a subclass of `bases`, one of their instances, or a function of the user's own package:
    not one of Python's library or of the packages that photinus is built on.

    Args:
        path: "package.module:name".
        kind: as of `import_named`.
        bases: classes whose subclasses are taken from any package.

    Raises:
        UsageError: as `import_named` does; or it is something else, such as `subprocess:getoutput`.

    Example:
        >>> resolve_user_code("subprocess:getoutput", "module")
        Traceback (most recent call last):
        photinus.core.errors.UsageError: a module must be the user's own code; got \
'subprocess:getoutput' of Python's library; name a function of your own package
    """
    check_name(path, kind)
    if path.partition(":")[0].partition(".")[0] in sys.stdlib_module_names:  # not even imported
        raise _foreign_code_error(path, kind, "Python's library")
    code = import_named(path, kind)
    if bases and isinstance(code, type):
        if not issubclass(code, bases):
            base_names = " or ".join(base.__name__ for base in bases)
            do = f"name a subclass of {base_names}, or a function that makes one"
            raise UsageError(
                f"the {kind} {path!r} is a class of another kind", got=code.__name__, do=do
            )
        return code
    if bases and isinstance(code, bases):
        return code
    module = _defining_module(code)
    package = module.partition(".")[0]
    if package in sys.stdlib_module_names or not package:
        raise _foreign_code_error(path, kind, "Python's library")
    is_internal = package == "photinus" and not f"{module}.".startswith(_OPEN_PACKAGES)
    if is_internal or (package in _LIBRARIES and module not in _OPEN_MODULES):
        raise _foreign_code_error(path, kind, package)
    return code


def check_name(path: str, kind: str) -> None:
    """Refuses what is no name of code; nothing is imported.

    Raises:
        UsageError: it is not of the form "package.module:name".

    Example:
        >>> check_name("mynets.MLP", "module")
        Traceback (most recent call last):
        photinus.core.errors.UsageError: a module is named package.module:name; got \
'mynets.MLP'; did you mean 'mynets:MLP'?
    """
    if not _NAME.fullmatch(path):
        raise _malformed_name_error(path, kind)


def _malformed_name_error(path: str, kind: str) -> UsageError:
    module, dot, name = path.rpartition(".")
    is_dotted = dot and _NAME.fullmatch(f"{module}:{name}")
    do = f"did you mean '{module}:{name}'?" if is_dotted else f"e.g. {kind}='mynets:Net'"
    return UsageError(f"a {kind} is named package.module:name", got=repr(path), do=do)


def _foreign_code_error(path: str, kind: str, owner: str) -> UsageError:
    do = "name a function of your own package"
    return UsageError(f"a {kind} must be the user's own code", got=f"{path!r} of {owner}", do=do)


def _defining_module(code: Any) -> str:  # noqa: ANN401 - any callable
    """Returns the module in which a callable was made, whatever name leads to it."""
    while isinstance(code, functools.partial):
        code = code.func
    return str(getattr(inspect.unwrap(code), "__module__", None) or "")


def code_names(plain: object) -> list[str]:
    """Returns every name of code in plain values, but for photinus' own, sorted.

    Example:
        >>> code_names({"module": "mine:net", "every": {"steps": 3}, "strategy": '{"a": "b.c:d"}'})
        ['b.c:d', 'mine:net']
    """
    return sorted({name for name in _iter_names(plain) if not name.startswith("photinus.")})


def _iter_names(plain: object) -> Iterator[str]:
    if isinstance(plain, str):
        yield from _iter_names(_parse_json(plain))
        if _NAME.fullmatch(plain):
            yield plain
    elif isinstance(plain, (Mapping, list, tuple)):
        for value in plain.values() if isinstance(plain, Mapping) else plain:
            yield from _iter_names(value)


def _parse_json(text: str) -> object:
    """Returns the value of JSON within JSON, as of a strategy; None of any other text."""
    try:
        return json.loads(text) if text.lstrip()[:1] in ("{", "[") else None
    except ValueError:
        return None
