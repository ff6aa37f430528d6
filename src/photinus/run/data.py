"""Reads a job's rows from its source."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from photinus.core.addresses import filesystem, is_address, on_disk
from photinus.core.errors import DataError, NotReadyError, UsageError, reason_of
from photinus.core.settings import to_dict, unknown_column
from photinus.data import cifar, mnist
from photinus.data.base import Array, Block, Features
from photinus.data.checks import RowChecker, RowChecks
from photinus.data.columns import inputs_from, rename_columns
from photinus.data.films import film_sentences
from photinus.data.image_files import (
    ImageFiles,
    image_frame,
    list_image_files,
    list_unlabelled,
    load_images,
    whole_images,
)
from photinus.data.inputs import SEQUENCE_LABELS, Inputs, joined
from photinus.data.rows import scaled
from photinus.engine.base import ArrayData, check_arrays, native
from photinus.models.dbn import DBN
from photinus.models.logistic import LogisticConfig
from photinus.models.losses import SEQUENCE_LOSS
from photinus.models.tensors import wrong_width
from photinus.run.job import Job, Source, classes_of
from photinus.transport.filesystems import check_reachable, check_readable

_NAME_FILES = "name a Parquet file or a folder of them"
_MISSING_PATH = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (.+?)\.?(?: SQLSTATE|$)", re.M)
DENIED = re.compile(r"Permission denied: .+")
"""What HDFS says of a user who may not do something."""
_JAVA_CLASS = re.compile(r"^Caused by: (?:[\w.$]+[:(] ?)?[\w.$]+\)?: ")
"""Before what an exception of Java's says."""
_IMAGE_BYTES = 32 << 20
"""Of images that are scored at once."""
_HAND_OVER_HINT = "hand them over again: photinus.resume(RUN, data), or train(job, data)"


@dataclass(frozen=True, slots=True, eq=False)
class TestRows:
    """Rows that are only measured on.

    Args:
        features: floats [n, ...], scaled as those that are trained on; or `Inputs`.
        labels: a number for each row [n]; None where the features are the target.
    """

    __test__ = False  # no test case, whatever its name makes pytest think

    features: Features
    labels: Array | None = None

    def __post_init__(self) -> None:
        for name in ("features", "labels"):  # what is no array is refused where it is used
            if isinstance(rows := getattr(self, name), np.ndarray):
                object.__setattr__(self, name, native(rows))


def with_token_labels(source: Source, model: Any) -> Source:  # noqa: ANN401 - one of MODELS
    """Returns a source whose column of labels is read as an input, where each token has one.

    Args:
        source: of a job.
        model: that the loss belongs to.
    """
    if getattr(model, "loss", "") != SEQUENCE_LOSS or not (source.inputs and source.label):
        return source
    return replace(source, inputs={**source.inputs, SEQUENCE_LABELS: source.label}, label="")


def read_train(job: Job) -> Any:  # noqa: ANN401 - ArrayData, or a DataFrame's rows
    """Returns the rows to train on.

    Raises:
        NotReadyError: they cannot be had.
        DataError: they are not as the job describes them.
    """
    source = with_token_labels(job.data, job.model)
    if source.name == "given":
        raise UsageError("this job's rows were handed over", do=_HAND_OVER_HINT)
    if is_address(source.path):
        check_reachable(source.path)
    if source.name == "mnist":
        images = mnist.load(source.path or None)
        checks = RowChecks(classes=10)
        return ArrayData(images.train_images, images.train_labels, 1 / 255, checks)
    if source.name == "cifar10":
        if job.engine == "spark" and "://" in source.path:
            return _cifar_frame_data(job, source)
        pictures, targets = cifar.load(source.path or None)
        return ArrayData(pictures, targets, source.scale, RowChecks(classes=10))
    if source.name == "films":
        return _film_frame_data(job, source) if job.engine == "spark" else _film_data(source)
    if source.name == "images":
        return _image_data(job, source)
    return _parquet_frame_data(job, source) if job.engine == "spark" else _table_data(source)


def _table_data(source: Source) -> ArrayData:
    rows, checks = _read_parquet(source, source.path), RowChecks(classes=source.classes)
    labels = ", ".join(_as_list(source.labels or "label"))
    columns = (", ".join(source.features), labels)
    return ArrayData(rows.features, rows.labels, source.scale, checks, rows.weights, columns)


def read_test(source: Source) -> TestRows | None:
    """Returns the rows to measure on, or None when the source names none."""
    if is_address(address := source.test or source.path):
        check_reachable(address)
    if source.name == "mnist":
        images = mnist.load(source.path or None)
        return TestRows(scaled(images.test_images, 1 / 255), images.test_labels.astype(np.int64))
    if source.name == "cifar10":
        pictures, targets = cifar.load(source.path or None, "test")
        return TestRows(scaled(pictures, source.scale), targets.astype(np.int64))
    if source.name == "films":
        rows = film_sentences(source.path)[1]
        return TestRows(_tokens(rows, source), np.array([row["label"] for row in rows]))
    if not source.test:
        return None
    if source.name == "images":
        classes = list_image_files(source.path, source.side).classes
        files = list_image_files(source.test, source.side, classes)
        pictures, targets = load_images(files, source.most_corrupt)
        return TestRows(scaled(pictures, source.scale), targets)
    features, labels, _ = _read_parquet(source, source.test)
    if labels is None and SEQUENCE_LABELS not in source.inputs:
        raise UsageError("rows to measure on need labels", do='name the column: label = "..."')
    return TestRows(scaled(features, source.scale), labels)


def _film_data(source: Source) -> ArrayData:
    rows = film_sentences(source.path)[0]
    labels = np.array([row["label"] for row in rows])
    return ArrayData(_tokens(rows, source), labels, checks=RowChecks(classes=2))


def _tokens(rows: list[dict[str, Any]], source: Source) -> Inputs:
    """Returns what the source's inputs are of rows in memory."""
    columns = {name: [row[column] for row in rows] for name, column in source.inputs.items()}
    return inputs_from(columns, source.named)


def _film_frame_data(job: Job, source: Source) -> Any:  # noqa: ANN401 - FrameData
    """Returns the sentences as a column of text, which the workers tokenise."""
    from photinus.engine.spark.engine import FrameData
    from photinus.engine.spark.session import spark_session

    rows = film_sentences(source.path)[0]
    frame = spark_session(job.workers).createDataFrame(rows, "text string, label int")
    return FrameData(frame=frame, inputs=source.named, label="label", checks=RowChecks(classes=2))


def source_of_given(source: Source) -> Source:
    """Returns a job's source for rows that are handed over: their columns, and no other rows.

    Rows to measure on that are in Parquet files stay named, for they have the same columns.
    """
    test = "" if source.name == "images" else source.test
    return replace(source, name="given", path="", test=test)


def to_train_rows(data: Any, job: Job) -> Any:  # noqa: ANN401 - whatever a user gives
    """Returns rows that were handed over as engines take them; anything else is returned as it is.

    Args:
        data: a Spark DataFrame, `features` or `(features, labels)` as NumPy arrays or tensors (of
            several inputs a dict of them), a TensorDataset of these, the path of Parquet files, an
            ArrayData or a FrameData.
        job: its source defines which columns are read, how they are scaled, and how many classes.
    """
    source, checks = with_token_labels(job.data, job.model), RowChecks(classes=job.data.classes)
    if isinstance(data, (str, Path)):
        return read_train(replace(job, data=replace(job.data, name="parquet", path=str(data))))
    if isinstance(data, TensorDataset) and len(data.tensors) <= 2:
        data = data.tensors if len(data.tensors) == 2 else data.tensors[0]
    if isinstance(data, (np.ndarray, Tensor, Mapping)):
        data = data, None
    if isinstance(data, tuple) and len(data) == 2:
        return ArrayData(*_arrays(data, job), source.scale, checks)
    if hasattr(data, "mapPartitions") and hasattr(data, "ctx"):  # an RDD
        from photinus.data.spark import as_frame

        data = as_frame(data)
    return _frame_data(data, source) if hasattr(data, "sparkSession") else data


def to_test_rows(test: Any, job: Job) -> Any:  # noqa: ANN401 - whatever a user gives
    """Returns `(features, labels)` as rows to measure on, and anything else as it is."""
    if not isinstance(test, tuple) or len(test) != 2:
        return test
    features, labels = _arrays(test, job)
    is_array = isinstance(features, np.ndarray)
    return TestRows(scaled(features.copy(), job.data.scale) if is_array else features, labels)


def _arrays(rows: tuple[Any, Any], job: Job) -> tuple[Any, Any]:
    """Returns features and labels as engines take them."""
    features, labels = rows
    if not isinstance(features, Mapping):
        return _array(features), _array(labels)
    arrays = {name: _array(column) for name, column in features.items()}
    if getattr(job.model, "loss", "") == SEQUENCE_LOSS and labels is not None:
        arrays, labels = {**arrays, SEQUENCE_LABELS: _array(labels)}, None
    return inputs_from(arrays, job.data.named), _array(labels)


def _array(rows: Any) -> Any:  # noqa: ANN401 - whatever a user gives
    """Returns a dense tensor as an array, and anything else as it is."""
    if not isinstance(rows, Tensor) or rows.layout is not torch.strided:
        return rows
    rows = rows.detach().cpu()
    return (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()


def limited(data: Any, classes: int | None, more: str = "") -> Any:  # noqa: ANN401 - as of `read_train`
    """Returns rows to train on whose labels must be 0..classes-1, whatever else they must be.

    A model that is trained layer by layer would meet the first wrong label in its last phase.

    Args:
        data: the rows.
        classes: how many; None where that is not known.
        more: what to do where a label is too large, as of `RowChecks.more_classes`.

    Raises:
        UsageError: they are no rows.
    """
    if not hasattr(data, "checks"):
        wrong = "rows to train on must be a DataFrame of Spark, arrays or a path of Parquet files"
        do = "hand over spark.createDataFrame(...), (features, labels) as arrays, or a path"
        package = type(data).__module__.partition(".")[0]
        type_name = type(data).__name__
        raise UsageError(
            wrong, got=type_name if package == "builtins" else f"{package}'s {type_name}", do=do
        )
    known_classes = data.checks.classes
    if classes is None or (known_classes is not None and known_classes <= classes):
        return data
    return replace(data, checks=replace(data.checks, classes=classes, more_classes=more))


def check_test(rows: TestRows, classes: int | None) -> None:
    """Checks rows to measure on.

    Raises:
        UsageError: they are no rows.
        DataError: a label is none of 0..classes-1, or a number is not finite.
    """
    if not isinstance(rows, TestRows):
        wrong = "rows to measure on must be arrays"
        do = "hand over (features, labels) or a TestRows"
        raise UsageError(wrong, got=type(rows).__name__, do=do)
    labels = getattr(rows.features, "columns", {}).get(SEQUENCE_LABELS, rows.labels)
    if labels is None and classes is not None:
        raise UsageError("rows to measure on need labels", do="TestRows(features, labels)")
    checker = RowChecker(RowChecks(classes=classes))
    try:
        check_arrays(rows.features, rows.labels)
        checker.open(len(rows.features))
        checker.checked(Block(rows.features, rows.labels))
    except (DataError, UsageError) as error:
        raise type(error)(f"rows to measure on: {error}") from error


def check_fit(model: Any, rows: Any, like: Any = None, source: str = "") -> None:  # noqa: ANN401 - as of `train`
    """Checks rows against what a model takes, as far as that is known without reading them.

    Args:
        model: one of MODELS.
        rows: to train on, or to measure on.
        like: rows to train on, where a model does not fix how many numbers it reads.
        source: the name of the default `Source`, where nothing else names rows.

    Raises:
        DataError: rows have another width, no labels, or several labels each.
    """
    features, labels = rows.features, getattr(rows, "labels", getattr(rows, "label", None))
    width = {DBN: "inputs", LogisticConfig: "features"}.get(type(model))
    if width and (isinstance(features, Inputs) or getattr(rows, "inputs", None) is not None):
        do = "train a ModuleConfig, or name one column of features"
        raise UsageError(f"a {type(model).__name__} takes one input, not several", do=do)
    expected_width = getattr(model, width) if width else None
    if expected_width is None and isinstance(getattr(like, "features", None), np.ndarray):
        expected_width = math.prod(like.features.shape[1:])
    if isinstance(features, np.ndarray) and expected_width not in (
        None,
        math.prod(features.shape[1:]),
    ):
        if not source:
            raise wrong_width(features.shape, expected_width)
        wrong = f"no rows were handed over, and those of {source} do not fit the model"
        do = "hand rows over: train(job, data); or name others in data of the job"
        got = f"{list(features.shape)} for a model that reads {expected_width} numbers"
        raise DataError(wrong, got=got, do=do)
    is_compared = width and getattr(model, "output", "classes") == "classes"
    if is_compared and labels is None:
        raise DataError("the rows have no labels", do="name their column, or hand them over")
    if classes_of(model) is not None and isinstance(labels, np.ndarray) and labels.ndim != 1:
        do = "give one number for each row: labels.argmax(1) of one-hot rows, or labels.ravel()"
        raise DataError("a label must be one of the classes", got=list(labels.shape), do=do)


def kind_of_rows(data: Any) -> dict[str, Any]:  # noqa: ANN401 - as of `limited`
    """Returns, as plain values, how other rows are read as these are: without a look at them.

    Of arrays and of several columns of numbers that is the shape of one row.
    """
    features: Any = getattr(data, "features", None)
    shape, inputs = list(getattr(data, "shape", ())), list[str]()
    if isinstance(features, np.ndarray):
        shape = list(features.shape[1:])
    elif isinstance(features, Inputs):
        inputs = [name for name in features.columns if name != SEQUENCE_LABELS]
    elif isinstance(features, list) and len(features) > 1 and data.inputs is None:
        shape = [len(features)]
    return {
        "shape": shape,
        "inputs": inputs,
        "scale": getattr(data, "scale", None),
        "columns": _columns_of(data),
    }


def _columns_of(data: Any) -> dict[str, Any]:  # noqa: ANN401 - as of `limited`
    """Returns the columns of a table that was handed over, in `Source`'s form; {} of others."""
    if not hasattr(data, "frame") or data.spec is not None:
        return {}
    if data.inputs is not None:
        inputs = to_dict(data.inputs)
        columns = {n: column for n, column in inputs.pop("columns").items() if n != SEQUENCE_LABELS}
        return {"inputs": columns, **inputs}
    return {"features": _as_list(data.features)}


def check_columns(data: Any) -> None:  # noqa: ANN401 - as of `limited`
    """Refuses a DataFrame that lacks a column, or holds one of another kind; no row is read.

    Raises:
        UsageError: a column is unknown.
        DataError: a model cannot learn from its type.
    """
    if hasattr(data, "frame") and not data.shape:
        data.selected()


def _cifar_frame_data(job: Job, source: Source) -> Any:  # noqa: ANN401 - FrameData
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


def _image_data(job: Job, source: Source) -> Any:  # noqa: ANN401 - ArrayData or FrameData
    files = list_image_files(source.path, source.side)
    checks = RowChecks(classes=source.classes or len(files.classes) or None)
    if job.engine != "spark":
        return ArrayData(*load_images(files, source.most_corrupt), source.scale, checks)
    from photinus.engine.spark.engine import FrameData
    from photinus.engine.spark.session import spark_session

    frame = image_frame(
        spark_session(job.workers),
        source.path,
        side=source.side,
        most_corrupt=source.most_corrupt,
        partitions=job.workers,
    )
    shape = (3 * source.side**2,)  # to ask the first row would be to read images
    return FrameData(
        frame=frame,
        features="features",
        label="label",
        scale=source.scale,
        checks=checks,
        shape=shape,
    )


def _parquet_frame_data(job: Job, source: Source) -> Any:  # noqa: ANN401 - FrameData
    from photinus.engine.spark.session import spark_session

    return _frame_data(parquet_frame(spark_session(job.workers), source.path), source)


def parquet_frame(spark: Any, path: str) -> Any:  # noqa: ANN401 - a SparkSession -> a DataFrame
    """Returns Parquet files as a DataFrame.

    Raises:
        DataError: they are missing, or are none.
    """
    try:
        frame = spark.read.parquet(path)
        frame.schema  # noqa: B018 - Connect looks for the files only now
        return frame
    except Exception as error:
        text = str(error).strip()
        if missing := _MISSING_PATH.search(text):
            raise _no_path(path, missing[1]) from error
        if denied := DENIED.search(text):
            raise PathError(f"{path} cannot be read", got=denied[0]) from error
        if "[UNABLE_TO_INFER_SCHEMA]" in text:
            raise _no_files(path) from error
        lines = text.splitlines()
        causes = [line for line in lines if line.startswith("Caused by:")]
        reason = (causes[-1:] or lines[:1] or [type(error).__name__])[0]
        raise _no_parquet(path, _JAVA_CLASS.sub("", reason)) from error


class PathError(DataError, UsageError):
    """No rows can be read from a path that the user named: it is as wrong as the file is."""


def _no_path(path: str, seen: str = "") -> PathError:
    """Returns the error of a path; `seen` is where Spark looked for it."""
    if "://" in seen and not is_address(path):  # HADOOP_CONF_DIR makes HDFS the place of paths
        do = f"write file://{on_disk(path).absolute()} for that of this machine"
        return PathError(f"there is no {seen}, where Spark looks for {path}", do=do)
    return PathError(f"there is no {path}", do=_NAME_FILES)


def _no_files(path: str) -> PathError:
    return PathError(f"{path} holds no Parquet files", do=_NAME_FILES)


def _no_parquet(path: str, reason: str) -> PathError:
    do = "write it as Parquet: of CSV by spark.read.csv(PATH, header=True, inferSchema=True)"
    do += ".write.parquet(FOLDER)"
    return PathError(f"{path} cannot be read as Parquet", got=reason, do=do)


def _frame_data(frame: Any, source: Source) -> Any:  # noqa: ANN401 - a DataFrame -> FrameData
    from photinus.data.spark import refuse_stream
    from photinus.engine.spark.engine import FrameData

    refuse_stream(frame)
    names = list(source.features)
    return FrameData(
        frame=frame,
        features=names[0] if len(names) == 1 else names,
        label=source.labels,
        scale=source.scale,
        checks=RowChecks(classes=source.classes),
        inputs=source.named,
        weight=source.weight or None,
        held=source.validation or None,
    )


def check_files(job: Job, *, is_driver_here: bool = True) -> None:
    """Refuses Parquet files that are not there, or are none; no row is read, and no Spark starts.

    Args:
        job: on Spark its `path` is Spark's to find; the driver reads `test`.
        is_driver_here: the driver is on this machine.

    Raises:
        UsageError: one cannot be read, or lacks a column.
        NotReadyError: nothing answers at an address, or nothing installed here opens it.
    """
    source = job.data
    if source.name != "parquet":
        return
    if job.engine == "spark":
        check_address(source.path)
    else:
        _open_parquet(source, source.path)
    if source.test and is_driver_here:
        _check_test(source, is_on_spark=job.engine == "spark")
    elif source.test:
        check_address(source.test)


def _check_test(source: Source, *, is_on_spark: bool) -> None:
    if is_on_spark and not is_address(source.test) and not on_disk(source.test).exists():
        wrong = f"there is no {source.test} on this machine, which reads test"
        do = "name a path of it, or an address such as hdfs://host:port/rows"
        raise PathError(wrong, do=do)
    _open_parquet(source, source.test)


def check_address(path: str) -> None:
    """Refuses rows at an address that cannot be read, before a client of HDFS or Spark looks.

    Raises:
        PathError: they are missing, or this user may not read them.
        NotReadyError: nothing answers there.
    """
    if is_address(path):
        try:
            check_readable(path)
        except DataError as error:
            raise PathError(str(error)) from error


def _open_parquet(source: Source, path: str) -> tuple[Any, list[str]]:
    """Returns Parquet files as a dataset, and the columns of it that are read."""
    try:
        import pyarrow.dataset as ds
    except ImportError:
        raise NotReadyError("pyarrow is not installed", do="pip install pyarrow") from None
    check_address(path)
    remote, location = filesystem(path) if is_address(path) else (None, str(on_disk(path)))
    if not (remote.exists(location) if remote else Path(location).exists()):
        raise _no_path(path)
    try:
        table = ds.dataset(location, filesystem=remote, format="parquet")
    except (OSError, ValueError) as error:
        reason = reason_of(error).partition("\n")[0]
        raise _no_parquet(path, reason) from error
    if not table.files:
        raise _no_files(path)
    of_inputs = source.inputs.values() if source.inputs else source.features
    labels = source.labels or []
    column_names = [name for names in (*of_inputs, labels) for name in _as_list(names)]
    names = list(dict.fromkeys([*column_names, *([source.weight] if source.weight else [])]))
    missing = [name for name in names if name not in table.schema.names]
    if missing:
        raise UsageError(f"{path}: {unknown_column(missing[0], table.schema.names)}")
    return table, names


def _read_parquet(source: Source, path: str) -> Block:
    """Reads Parquet files without Spark."""
    from photinus.data.arrow import arrays

    table, names = _open_parquet(source, path)
    spec, checker = _column_spec(table, source), RowChecker(RowChecks(classes=source.classes))
    batches = (batch for batch in table.to_batches(columns=names) if batch.num_rows)
    renames = _column_names(source, spec)
    blocks = [arrays(rename_columns(batch, renames), spec, checker) for batch in batches]
    if not blocks:
        raise DataError(f"{path} holds no rows")
    return Block(
        *(None if parts[0] is None else joined(parts) for parts in zip(*blocks, strict=True))
    )


class ParquetRows:
    """The features of Parquet files, a batch at a time, beside all columns; without Spark.

    Args:
        source: its features are read, and no labels.
        path: of a file or a folder of them; a path or an address.

    Raises:
        DataError: there are no such files, no rows, or features of a wrong type.
        UsageError: a column is missing.
    """

    def __init__(self, source: Source, path: str) -> None:
        source = replace(source, label="", weight="", validation="", classes=None)
        self._table, _ = _open_parquet(source, path)
        self._spec = _column_spec(self._table, source)
        self._columns = _column_names(source, self._spec)
        if not self._table.head(1, columns=[]).num_rows:
            raise DataError(f"{path} holds no rows")

    @property
    def schema(self) -> Any:  # noqa: ANN401 - a pyarrow.Schema
        """Of all columns."""
        return self._table.schema

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the first row's features; () of inputs."""
        shape: tuple[int, ...] = self._spec.shape
        return shape

    def batches(self, rows: int) -> Iterator[tuple[Any, Features]]:
        """Yields all columns as they are, a RecordBatch of so many rows at most, and features.

        Raises:
            DataError: a row is bad.
        """
        from photinus.data.arrow import arrays

        checker = RowChecker(RowChecks())
        for batch in self._table.to_batches(batch_size=rows):
            if batch.num_rows:
                read = rename_columns(batch, self._columns)
                yield batch, arrays(read, self._spec, checker).features


class ImageRows:
    """Images that are files, a batch at a time, beside their names; without Spark, and no labels.

    Args:
        files: of `images_under`.
        most_corrupt: the share that may be damaged, and is left out.
    """

    def __init__(self, files: ImageFiles, most_corrupt: float) -> None:
        import pyarrow as pa

        self._files, self._most_corrupt = files, most_corrupt
        self.schema = pa.schema([("file", pa.string())])
        self.shape: tuple[int, ...] = (3 * files.side**2,)

    def batches(self, rows: int) -> Iterator[tuple[Any, Array]]:
        """Yields names, a RecordBatch of so many at most, and bytes [n, 3 · side²].

        Raises:
            DataError: an image is damaged, or a larger share of them than may be.
        """
        import pyarrow as pa

        rows = max(1, min(rows, _IMAGE_BYTES // self.shape[0]))
        images = whole_images(self._files, self._most_corrupt)
        while batch := list(itertools.islice(images, rows)):
            names = pa.array([image.name for image, _ in batch])
            features = np.stack([pixels.reshape(-1) for _, pixels in batch])
            yield pa.RecordBatch.from_arrays([names], schema=self.schema), features


def images_under(source: Source, path: str) -> ImageFiles | None:
    """Returns the images that are files under a path; None where these are no model's rows."""
    if source.name != "images":
        return None
    try:
        return list_unlabelled(path, source.side)
    except DataError:  # they are in Parquet files, or there are none
        return None


def rows_to_score(source: Source, path: str) -> ParquetRows | ImageRows:
    """Returns rows to predict of: Parquet files; images where a model was trained on such files.

    Raises:
        DataError: there are no such files, no rows, or features of a wrong type.
        UsageError: a column is missing.
    """
    images = images_under(source, path)
    return ParquetRows(source, path) if images is None else ImageRows(images, source.most_corrupt)


def _as_list(names: Any) -> list[str]:  # noqa: ANN401 - a name, or several
    return [names] if isinstance(names, str) else list(names)


def _column_spec(table: Any, source: Source) -> Any:  # noqa: ANN401 - a dataset -> ColumnSpec
    from photinus.data.arrow import BINARY, LIST, NUMERIC, ColumnSpec

    label_names = tuple(_as_list(source.labels or []))
    names = {"label": ", ".join(label_names) or None, "weight": source.weight or None}
    if source.named is not None:
        for role, name in names.items():
            names[role] = f"{name} ({role})" if name in source.inputs else name
    other_columns: dict[str, Any] = {**names}
    if isinstance(source.labels, list):
        other_columns["labels"] = label_names
    if source.named is not None:
        return ColumnSpec(features=tuple(source.inputs), inputs=source.named, **other_columns)
    kind = str(table.schema.field(source.features[0]).type)
    return ColumnSpec(
        features=source.features,
        kind=BINARY if "binary" in kind else LIST if "list" in kind else NUMERIC,
        dtype="uint8" if "binary" in kind else "float32",
        shape=_shape(table, source, kind),
        **other_columns,
    )


def _column_names(source: Source, spec: Any) -> dict[str, Any]:  # noqa: ANN401 - a ColumnSpec
    """Returns what a ColumnSpec calls each column -> what it, or several, are called."""
    names: dict[str, Any] = dict(source.inputs) or {name: name for name in source.features}
    names |= {spec.label: source.labels} if spec.label else {}
    return names | ({spec.weight: source.weight} if spec.weight else {})


def _shape(table: Any, source: Source, kind: str) -> tuple[int, ...]:  # noqa: ANN401 - a dataset
    if "binary" not in kind and "list" not in kind:
        return (len(source.features),)
    first = table.head(1, columns=[source.features[0]]).column(0)
    return (len(first[0].as_py() or ()),) if len(first) else (1,)
