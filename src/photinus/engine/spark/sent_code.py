"""Checks, before a run begins, that code sent by value travels and that a worker can load it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from photinus.core.errors import NotReadyError, UsageError
from photinus.engine.spark.job import pickled

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_OF_HERE = "use no Spark session, DataFrame, lock or open file of the notebook in it"
_NOT_THERE = (
    "install the module that it uses on every worker, or send it with addPyFile "
    "(on Spark Connect addArtifacts)"
)


def check_sent(spark: SparkSession, functions: Mapping[str, Callable[..., Any]]) -> None:
    """Refuses code that cannot travel in a task's closure, or that a worker cannot load.

    Args:
        spark: the session, classic or Connect; one task of it loads the code.
        functions: by the names that `by_value` gave them.

    Raises:
        UsageError: one uses what belongs to this process alone, such as the session.
        NotReadyError: a module that one uses is missing on the worker.
    """
    if not functions:
        return
    for name, function in functions.items():
        try:
            pickled(function)
        except Exception as error:  # whatever the objects raise that it uses
            wrong = f"{_called(name)} cannot be sent by value"
            raise UsageError(wrong, got=_first_line(error), do=_OF_HERE) from error
    one = spark.range(0, 1, 1, 1)
    rows: Any = one.mapInArrow(_tried(pickled(functions)), "said string").collect()
    said = rows[0]["said"]
    wrong = f"a worker cannot load {', '.join(map(_called, functions))}, sent by value"
    if said.startswith(("ImportError", "ModuleNotFoundError")):
        raise NotReadyError(wrong, got=said, do=_NOT_THERE)
    if said:
        raise UsageError(wrong, got=said, do=_OF_HERE)


def _tried(code: bytes) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns what a task does: it loads the code, and yields the error."""

    def load(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import cloudpickle

        said = ""
        for _ in batches:
            try:
                cloudpickle.loads(code)
            except Exception as error:  # returned as a row: Spark would try a task that fails again
                said = _first_line(error)
        yield pa.RecordBatch.from_arrays([pa.array([said])], ["said"])

    return load


def _called(name: str) -> str:
    """Returns what the notebook calls it: by_value has made the name unique."""
    return name.partition(":")[2].rpartition("_")[0]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
