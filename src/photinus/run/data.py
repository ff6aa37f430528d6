"""Reads a job's rows from its source."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from photinus.core.addresses import filesystem, is_address, on_disk
from photinus.core.errors import DataError, NotReadyError, UsageError, reason_of
from photinus.core.settings import unknown_column
from photinus.data import cifar, mnist
from photinus.data.base import Array
from photinus.data.checks import RowChecks, Sieve
from photinus.data.rows import scaled
from photinus.engine.base import ArrayData, check_arrays, native
from photinus.models.dbn import DBN
from photinus.models.logistic import LogisticStage
from photinus.models.tensors import wrong_width
from photinus.run.job import Job, Source, classes_of
from photinus.transport.filesystems import check_reached

__all__ = [
    "TestRows",
    "check_columns",
    "check_fit",
    "check_test",
    "handed",
    "handed_test",
    "limited",
    "read_test",
    "read_train",
]


@dataclass(frozen=True, slots=True, eq=False)
class TestRows:
    """Rows that are only measured on.

    Args:
        features: floats [n, ...], scaled as those that are trained on.
        labels: a number for each row [n].
    """

    __test__ = False  # no test case, whatever its name makes pytest think

    features: Array
    labels: Array

    def __post_init__(self) -> None:
        for name in ("features", "labels"):  # what is no array is refused where it is used
            if isinstance(rows := getattr(self, name), np.ndarray):
                object.__setattr__(self, name, native(rows))


def read_train(job: Job) -> Any:  # noqa: ANN401 - ArrayData, or a DataFrame's rows
    """Returns the rows to train on.

    Raises:
        NotReadyError: they cannot be had.
        DataError: they are not what the job says.
    """
    source = job.data
    if source.name == "given":
        raise UsageError("this job's rows were handed over", do="hand them over again: data=...")
    if is_address(source.path):
        check_reached(source.path)
    if source.name == "mnist":
        images = mnist.load(source.path or None)
        checks = RowChecks(classes=10)
        return ArrayData(images.train_images, images.train_labels, 1 / 255, checks)
    if source.name == "cifar10":
        if job.engine == "spark" and "://" in source.path:
            return _cifar_frame(job, source)
        pictures, kinds = cifar.load(source.path or None)
        return ArrayData(pictures, kinds, source.scale, RowChecks(classes=10))
    if job.engine == "spark":
        return _frame(job, source)
    features, labels = _table(source, source.path)
    return ArrayData(features, labels, source.scale, RowChecks(classes=source.classes))


def read_test(source: Source) -> TestRows | None:
    """Returns the rows to measure on, or None when the source names none."""
    if is_address(place := source.test or source.path):
        check_reached(place)
    if source.name == "mnist":
        images = mnist.load(source.path or None)
        return TestRows(scaled(images.test_images, 1 / 255), images.test_labels.astype(np.int64))
    if source.name == "cifar10":
        pictures, kinds = cifar.load(source.path or None, "test")
        return TestRows(scaled(pictures, source.scale), kinds.astype(np.int64))
    if not source.test:
        return None
    features, labels = _table(source, source.test)
    if labels is None:
        raise UsageError("rows to measure on need labels", do='name the column: label = "..."')
    return TestRows(scaled(features, source.scale), labels)


def handed(data: Any, job: Job) -> Any:  # noqa: ANN401 - whatever a user gives
    """Returns rows that were handed over as engines take them; what is no rows comes back as it is.

    Args:
        data: a Spark DataFrame, `features` or `(features, labels)` as NumPy arrays, the path of
            Parquet files, an ArrayData or a FrameData.
        job: whose source says which columns are read, how they are scaled, and how many classes.
    """
    source, checks = job.data, RowChecks(classes=job.data.classes)
    if isinstance(data, (str, Path)):
        return read_train(replace(job, data=replace(source, name="parquet", path=str(data))))
    if isinstance(data, np.ndarray):
        return ArrayData(data, None, source.scale, checks)
    if isinstance(data, tuple) and len(data) == 2:
        return ArrayData(*data, source.scale, checks)
    return _frame_data(data, source) if hasattr(data, "sparkSession") else data


def handed_test(test: Any, source: Source) -> Any:  # noqa: ANN401 - whatever a user gives
    """Returns `(features, labels)` as rows to measure on, and anything else as it is."""
    if not isinstance(test, tuple) or len(test) != 2:
        return test
    features, labels = test
    is_array = isinstance(features, np.ndarray)
    return TestRows(scaled(features.copy(), source.scale) if is_array else features, labels)


def limited(data: Any, classes: int | None) -> Any:  # noqa: ANN401 - as of `read_train`
    """Returns rows to train on whose labels must be 0..classes-1, whatever else they must be.

    A model that is trained layer by layer would meet the first wrong label in its last phase.

    Raises:
        UsageError: they are no rows.
    """
    if not hasattr(data, "checks"):
        wrong = "rows to train on must be a DataFrame of Spark, arrays or a path of Parquet files"
        do = "hand over df, (features, labels) as NumPy arrays, or a path"
        raise UsageError(wrong, got=type(data).__name__, do=do)
    known = data.checks.classes
    if classes is None or (known is not None and known <= classes):
        return data
    return replace(data, checks=replace(data.checks, classes=classes))


def check_test(rows: TestRows, classes: int | None) -> None:
    """Checks rows to measure on.

    Raises:
        UsageError: they are no rows.
        DataError: a label is none of 0..classes-1, or a number is not finite.
    """
    if not isinstance(rows, TestRows):
        wrong, do = (
            "rows to measure on must be arrays",
            "hand over (features, labels) or a TestRows",
        )
        raise UsageError(wrong, got=type(rows).__name__, do=do)
    if rows.labels is None:
        raise UsageError("rows to measure on need labels", do="TestRows(features, labels)")
    sieve = Sieve(RowChecks(classes=classes))
    try:
        check_arrays(rows.features, rows.labels)
        sieve.open(len(rows.features))
        sieve.checked(rows.features, rows.labels)
    except (DataError, UsageError) as error:
        raise type(error)(f"rows to measure on: {error}") from error


def check_fit(model: Any, rows: Any, like: Any = None) -> None:  # noqa: ANN401 - as of `train`
    """Checks what can be told of rows without reading them against what a model takes.

    Args:
        model: one of MODELS.
        rows: to train on, or to measure on.
        like: rows to train on, where a model does not say how many numbers it reads.

    Raises:
        DataError: rows have another width, no labels, or several labels each.
    """
    features, labels = rows.features, getattr(rows, "labels", getattr(rows, "label", None))
    width = {DBN: "inputs", LogisticStage: "features"}.get(type(model))
    reads = getattr(model, width) if width else None
    if reads is None and isinstance(like, ArrayData):
        reads = math.prod(like.features.shape[1:])
    if isinstance(features, np.ndarray) and reads not in (None, math.prod(features.shape[1:])):
        raise wrong_width(features.shape, reads)
    is_compared = width and getattr(model, "output", "classes") == "classes"
    if is_compared and labels is None:
        raise DataError("the rows have no labels", do="name their column, or hand them over")
    if classes_of(model) is not None and isinstance(labels, np.ndarray) and labels.ndim != 1:
        do = "give one number for each row: labels.argmax(1) of one-hot rows, or labels.ravel()"
        raise DataError("a label must be one of the classes", got=list(labels.shape), do=do)


def check_columns(data: Any) -> None:  # noqa: ANN401 - as of `limited`
    """Refuses a DataFrame that lacks a column, or holds one of another kind; no row is read.

    Raises:
        UsageError: a column is unknown.
        DataError: a model cannot learn from its type.
    """
    if hasattr(data, "frame"):
        from photinus.data.spark import selected

        selected(data.frame, data.features, data.label)


def _cifar_frame(job: Job, source: Source) -> Any:  # noqa: ANN401 - FrameData
    from photinus.data.spark import cifar_frame
    from photinus.engine.spark.engine import FrameData
    from photinus.engine.spark.session import spark_session

    frame = cifar_frame(spark_session(job.workers), source.path)
    return FrameData(
        # five files: joined as they lie, one of two or of four workers would have too many rows
        frame=frame.repartition(job.workers) if job.workers > 1 else frame,
        features="features",
        label="label",
        scale=source.scale,
        checks=RowChecks(classes=10),
    )


def _frame(job: Job, source: Source) -> Any:  # noqa: ANN401 - FrameData
    from photinus.engine.spark.session import spark_session

    spark = spark_session(job.workers)
    try:
        frame = spark.read.parquet(source.path)
    except Exception as error:
        lines = str(error).strip().splitlines()
        causes = [line for line in lines if line.startswith("Caused by:")]
        reason = (causes[-1:] or lines[:1] or [type(error).__name__])[0]
        raise DataError(f"{source.path} cannot be read as Parquet", got=reason) from error
    return _frame_data(frame, source)


def _frame_data(frame: Any, source: Source) -> Any:  # noqa: ANN401 - a DataFrame -> FrameData
    from photinus.engine.spark.engine import FrameData

    names = list(source.features)
    return FrameData(
        frame=frame,
        features=names[0] if len(names) == 1 else names,
        label=source.label or None,
        scale=source.scale,
        checks=RowChecks(classes=source.classes),
    )


def _table(source: Source, path: str) -> tuple[Array, Array | None]:
    """Reads Parquet files without Spark."""
    try:
        import pyarrow.dataset as ds
    except ImportError:
        raise NotReadyError("pyarrow is not installed", do="pip install pyarrow") from None
    from photinus.data.arrow import BINARY, LIST, NUMERIC, ColumnSpec, arrays

    system, place = filesystem(path) if is_address(path) else (None, str(on_disk(path)))
    if not (system.exists(place) if system else Path(place).exists()):
        raise DataError(f"there is no {path}", do="name a Parquet file or a folder of them")
    try:
        table = ds.dataset(place, filesystem=system, format="parquet")
    except (OSError, ValueError) as error:
        reason = reason_of(error).partition("\n")[0]
        raise DataError(f"{path} cannot be read as Parquet", got=reason) from error
    names = [*source.features, *([source.label] if source.label else [])]
    missing = [name for name in names if name not in table.schema.names]
    if missing:
        raise UsageError(f"{path}: {unknown_column(missing[0], table.schema.names)}")
    kind = str(table.schema.field(source.features[0]).type)
    spec = ColumnSpec(
        features=source.features,
        label=source.label or None,
        kind=BINARY if "binary" in kind else LIST if "list" in kind else NUMERIC,
        dtype="uint8" if "binary" in kind else "float32",
        shape=_shape(table, source, kind),
    )
    sieve = Sieve(RowChecks(classes=source.classes))
    blocks = [arrays(b, spec, sieve) for b in table.to_batches(columns=names) if b.num_rows]
    if not blocks:
        raise DataError(f"{path} holds no rows")
    labels = [block[1] for block in blocks if block[1] is not None]
    return np.concatenate([b[0] for b in blocks]), np.concatenate(labels) if labels else None


def _shape(table: Any, source: Source, kind: str) -> tuple[int, ...]:  # noqa: ANN401 - a dataset
    if "binary" not in kind and "list" not in kind:
        return (len(source.features),)
    first = table.head(1, columns=[source.features[0]]).column(0)
    return (len(first[0].as_py() or ()),) if len(first) else (1,)
