"""Makes Params from their tables, and a job from Params."""

from __future__ import annotations

import functools
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from pyspark.ml.param import Param, Params

from photinus.core.errors import UsageError
from photinus.estimators.param_table import ParamRow, identity
from photinus.run.job import Job

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., None])


def keyword_params(init: F) -> F:
    """Makes a constructor set the Params that were passed; the others keep their defaults.

    It takes two more keywords, which are no Params and are not saved: `callbacks` and `verbose`, as
    `photinus.train` does.
    """

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **values: Any) -> None:  # noqa: ANN401 - any estimator
        self.callbacks = values.pop("callbacks", ())
        self.verbose = values.pop("verbose", None)
        init(self, *args)
        self.setParams(**values)

    signature = inspect.signature(init)
    extra_parameters = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, default, annotation in (
            ("callbacks", (), "Sequence[Callable[[Event], None]]"),
            ("verbose", None, "bool | None"),
        )
    ]
    wrapper.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *extra_parameters]
    )
    return cast(F, wrapper)


def with_params(rows: tuple[ParamRow, ...]) -> Callable[[C], C]:
    """Gives a class its Params, with setX and getX, and their meanings in its docstring."""

    def decorate(cls: C) -> C:
        for row in rows:
            param = Param(Params._dummy(), row.name, row.meaning, _converter_of(row))
            suffix = row.name[0].upper() + row.name[1:]
            setattr(cls, row.name, param)
            setattr(cls, f"set{suffix}", _setter(row))
            setattr(cls, f"get{suffix}", _getter(row))
        introduction, example, rest = (cls.__doc__ or "").partition("    Example:")
        if example:
            meanings = (f"{row.name}: {row.meaning}." for row in rows)
            args = "\n".join(_wrap(meaning) for meaning in meanings)
            cls.__doc__ = f"{introduction}    Args:\n{args}\n\n{example}{rest}"
        return cls

    return decorate


def _converter_of(row: ParamRow) -> Callable[[Any], Any]:
    """Returns a Param's converter, whose errors name it."""

    def convert(value: Any) -> Any:  # noqa: ANN401 - what a user may give
        try:
            return row.convert(value)
        except UsageError as error:
            if re.search(rf"\b{row.name}\b", str(error)):
                raise
            raise UsageError(f"{row.name}: {error}") from error

    return convert


_wrap = textwrap.TextWrapper(width=88, initial_indent=" " * 8, subsequent_indent=" " * 12).fill


def _setter(row: ParamRow) -> Callable[[Any, Any], Any]:
    def setter(self: Any, value: Any) -> Any:  # noqa: ANN401 - any estimator, any value
        return self._set(**{row.name: value})

    setter.__doc__ = f"Sets {row.name}: {row.meaning}."
    return setter


def _getter(row: ParamRow) -> Callable[[Any], Any]:
    def getter(self: Any) -> Any:  # noqa: ANN401 - any estimator, any value
        # what is left out is None, as in the constructor; Spark's own way is a bare KeyError
        return self.getOrDefault(row.name) if self.isDefined(row.name) else None

    getter.__doc__ = f"Returns {row.name}: {row.meaning}."
    return getter


def plain_job(rows: tuple[ParamRow, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns Params as a plain job, for `Job.from_dict`.

    Example:
        >>> from photinus.estimators.param_table import DBN_ROWS
        >>> plain_job(DBN_ROWS, {"numWorkers": 2, "preTrainEpochs": 3.0, "labelCol": "y"})
        {'workers': 2, 'model': {'pretraining': {'epochs': 3.0}}}
    """
    job_dict: dict[str, Any] = {}
    for row in rows:
        if row.job_path and row.name in values:
            *path, last = row.job_path.split(".")
            table = job_dict
            for name in path:
                table = table.setdefault(name, {})
            table[last] = row.to_job(values[row.name])
    return job_dict


def defaults(rows: tuple[ParamRow, ...], model: Any = None) -> dict[str, Any]:  # noqa: ANN401
    """Returns the Params' defaults; what a job decides, as a job with this model has it.

    Rates have none here: a job's are schedules, of which a Param names only the peak.
    """
    job = Job(model=model).to_dict() if model is not None else {}
    values = {row.name: row.convert(row.default) for row in rows if row.default is not None}
    for row in rows:
        value: Any = job if row.job_path and row.to_job in (identity, json.loads) else None
        for name in row.job_path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            values[row.name] = row.convert(value)
    return values
