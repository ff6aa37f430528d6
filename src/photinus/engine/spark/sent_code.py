"""Checks, before a run begins, that code sent by value travels and that a worker can load it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from photinus.core.errors import NotReadyError, UsageError
from photinus.engine.spark.job import pickled

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_LOCAL_OBJECT_ADVICE = "use no Spark session, DataFrame, lock or open file of the notebook in it"
_MISSING_MODULE_ADVICE = (
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
            wrong = f"{_original_name(name)} cannot be sent by value"
            raise UsageError(wrong, got=_first_line(error), do=_LOCAL_OBJECT_ADVICE) from error
    one_row = spark.range(0, 1, 1, 1)
    rows: Any = one_row.mapInArrow(_loading_task(pickled(functions)), "said string").collect()
    error_text = rows[0]["said"]
    wrong = f"a worker cannot load {', '.join(map(_original_name, functions))}, sent by value"
    if error_text.startswith(("ImportError", "ModuleNotFoundError")):
        raise NotReadyError(wrong, got=error_text, do=_MISSING_MODULE_ADVICE)
    if error_text:
        raise UsageError(wrong, got=error_text, do=_LOCAL_OBJECT_ADVICE)


def _loading_task(code: bytes) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns what a task does: it loads the code, and yields the error."""

    def load(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import cloudpickle

        error_text = ""
        for _ in batches:
            try:
                cloudpickle.loads(code)
            except Exception as error:  # returned as a row: Spark would try a task that fails again
                error_text = _first_line(error)
        yield pa.RecordBatch.from_arrays([pa.array([error_text])], ["said"])

    return load


def _original_name(name: str) -> str:
    """Returns what the notebook calls it: by_value has made the name unique."""
    return name.partition(":")[2].rpartition("_")[0]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
