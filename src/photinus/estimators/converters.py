"""From what a user gives to a Param to what the Param keeps, which is always plain JSON."""

from __future__ import annotations

import atexit
import inspect
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.ml.param import TypeConverters

from photinus.checkpoint.export import tensors_from_state_dict
from photinus.checkpoint.files import to_safetensors
from photinus.core.errors import UsageError
from photinus.core.settings import from_dict, to_dict
from photinus.models.schedules import Schedule
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.recipes import from_plain, to_plain
from photinus.strategies.spec import StrategySpec


def to_strategy(value: Any) -> str:  # noqa: ANN401 - what a user may give
    """Returns a strategy, its recipe's name, its JSON or its plain values as JSON."""
    plain = to_plain(value) if isinstance(value, (StrategySpec, CustomStrategy)) else value
    if isinstance(plain, str) and plain.lstrip().startswith("{"):
        try:
            plain = json.loads(plain)
        except ValueError as error:
            raise UsageError("the strategy is no JSON", got=str(error)) from error
    if not isinstance(plain, (str, Mapping)):
        raise UsageError(
            "a strategy is a recipe's name, its JSON or a StrategySpec",
            got=type(value).__name__,
        )
    return json.dumps(to_plain(from_plain(plain)), sort_keys=True)


def code_converter(requirement: str, alternative: str, param: str = "") -> Callable[[Any], str]:
    """Returns the converter of a Param that names code: from a name, or the code itself.

    Args:
        requirement: what the value must be, as the error says it.
        alternative: what to give instead, as the error says it.
        param: the Param's name, where only one Param has this converter.
    """

    def convert(value: Any) -> str:  # noqa: ANN401 - what a user may give
        if isinstance(value, str):
            return value
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            raise UsageError(
                f"{requirement}, or its name", got=repr(value), do=f"give {alternative}"
            )
        module_name, name = value.__module__, value.__qualname__
        if inspect.isclass(value) and module_name.startswith("torch.optim."):
            return name.lower()
        if module_name == "__main__" or not name.isidentifier():
            by_value = f"photinus.by_value({name if name.isidentifier() else '...'})"
            by_value = f"{param}={by_value}" if param else by_value
            do = f"put it into a file on the workers' path; or send it by value: {by_value}"
            raise UsageError(f"{requirement} that every worker can import", got=repr(value), do=do)
        return f"{module_name}:{name}"

    return convert


to_module = code_converter(
    "a module is made by a function or class",
    "such a function: 'package.module:factory'",
    "module",
)
to_loss = code_converter(
    "a loss is a function", "one by name, as 'cross_entropy' or 'package.module:loss'", "loss"
)
to_optimizer = code_converter(
    "an optimizer is a class", "it by name, and its settings as optimizerArgs"
)
to_function = code_converter("this is a function", "'package.module:function'")


def to_encoders(value: Any) -> dict[str, Any]:  # noqa: ANN401 - what a user may give
    """Returns each input's encoder by its name."""
    if isinstance(value, Mapping):
        value = {name: to_function(encoder) for name, encoder in value.items()}
    return to_json(value)


def to_start(value: Any) -> str:  # noqa: ANN401 - what a user may give
    """Returns the path of a saved model, or that of a file to which a `state_dict` was written."""
    if not isinstance(value, Mapping):
        return str(value)
    data = to_safetensors(tensors_from_state_dict(value))
    folder = Path(tempfile.mkdtemp(prefix="photinus-start-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "model.safetensors").write_bytes(data)
    return str(folder / "model.safetensors")


def to_rate(value: Any) -> Any:  # noqa: ANN401 - what a user may give
    """Returns a number, or a Schedule's plain values."""
    if isinstance(value, Mapping):
        value = from_dict(Schedule, value)
    if isinstance(value, Schedule):
        return to_dict(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        wrong, do = "learningRate is a number or a Schedule", "e.g. photinus.Schedule.cosine(0.1)"
        raise UsageError(wrong, got=getattr(value, "__name__", repr(value)), do=do)
    if not 0 <= value < math.inf:
        raise UsageError("learningRate must be a finite number of at least 0", got=value)
    return float(value)


def to_list(value: Any) -> list[str]:  # noqa: ANN401 - what a user may give
    """Returns one name, or several, as a list."""
    return [value] if isinstance(value, str) else [str(name) for name in value]


def to_metrics(value: Any) -> list[str]:  # noqa: ANN401 - what a user may give
    """Returns the names of one metric, or of several."""
    return [to_function(metric) for metric in ([value] if isinstance(value, str) else value)]


def to_json(value: Any) -> dict[str, Any]:  # noqa: ANN401 - what a user may give
    """Returns keyword arguments, which must be plain JSON values."""
    if not isinstance(value, Mapping):
        raise UsageError("the value must be a dict of names and values", got=type(value).__name__)
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(value)))
    except (TypeError, ValueError) as error:
        raise UsageError("the dict must hold plain JSON values", got=str(error)) from error
    return plain


def to_names(value: Any) -> str | list[str]:  # noqa: ANN401 - what a user may give
    """Returns a name, or a list of names."""
    is_list = isinstance(value, (list, tuple))
    return TypeConverters.toListString(value) if is_list else TypeConverters.toString(value)


def to_shuffle(value: Any) -> str | bool:  # noqa: ANN401 - what a user may give
    """Returns "auto" or False, also of their text."""
    return False if str(value).lower() == "false" else str(value)
