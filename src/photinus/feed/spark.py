"""A DataFrame's columns as the workers want them: few types, known widths, so many partitions."""

from __future__ import annotations

import contextlib
import math
import re
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it

from photinus.core.errors import DataError, UsageError
from photinus.core.settings import unknown_name
from photinus.feed import cifar
from photinus.feed.arrow import BINARY, IMAGE, LIST, NUMERIC, ColumnSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["ONE_PROCESS", "cifar_frame", "columns", "kept", "one_column", "partitioned"]

ONE_PROCESS = r"local(\[|$)"
"""A master that is this very process; local-cluster has executors."""
_VECTORS = ("VectorUDT",)
_IMAGE_PARTS = ("height", "width", "nChannels", "data")


def columns(
    df: DataFrame, features: str | list[str], label: str | None = None
) -> tuple[DataFrame, ColumnSpec]:
    """Selects what the workers need, and says what it is; the widths are those of the first row.

    Args:
        df: the user's rows.
        features: one column of ML vectors, arrays of numbers, bytes, images or numbers; or several
            columns of numbers. Vectors, arrays and numbers become float32; bytes stay uint8.
        label: a column of numbers, or None for learning without labels.

    Raises:
        UsageError: a column is unknown, is named twice, or cannot stand beside others.
        DataError: a column has a type that a model cannot learn from, or there are no rows.

    Example:
        >>> df = spark.table("digits")  # doctest: +SKIP
        >>> columns(df, "pixels", "digit")[1].shape  # doctest: +SKIP
        (784,)
    """
    names = [features] if isinstance(features, str) else list(features)
    _check_names(df, names, label)
    labels, named = ([], None) if label is None else ([_label(df, label)], _plain(label))
    if len(names) > 1 or _is_number(df.schema[names[0]].dataType):
        numbers = [_number(df, name, several=len(names) > 1) for name in names]
        shape: tuple[int, ...] = (len(names),)
        spec = ColumnSpec(
            features=tuple(map(_plain, names)), label=named, kind=NUMERIC, shape=shape
        )
        return df.select(*numbers, *labels), spec
    name = names[0]
    column, kind, size = _feature(df, name)
    shape = _first_shape(df, name, size)
    dtype = "uint8" if kind in (BINARY, IMAGE) else "float32"
    spec = ColumnSpec(features=(_plain(name),), label=named, kind=kind, dtype=dtype, shape=shape)
    return df.select(column.alias(_plain(name)), *labels), spec


def one_column(df: DataFrame, features: str, shape: tuple[int, ...]) -> Column:
    """Returns a column of features as arrays of float32 or as bytes, for scoring: no job runs.

    A row of another size ends the query with a sentence that names the column.

    Raises:
        UsageError: the column is unknown.
        DataError: it has a type that a model cannot learn from.
    """
    _check_names(df, [features], None)
    if _is_number(df.schema[features].dataType):
        column, sizes = F.array(_number(df, features, several=False)), [F.lit(1)]
        wanted: tuple[int, ...] = (1,)
    else:
        column, kind, sizes = _feature(df, features)
        wanted = shape if kind == IMAGE else (math.prod(shape),)
        column = column["data"] if kind == IMAGE else column
    got = F.concat_ws("x", *(size.cast("string") for size in sizes))
    expected = "x".join(map(str, wanted))
    said = F.concat(
        F.lit(f"column {features}: a row of size "),
        F.when(_quoted(features).isNull(), F.lit("null")).otherwise(got),
        F.lit(f", expected {expected}"),
    )
    return F.when(got == expected, column).otherwise(F.raise_error(said))


def partitioned(df: DataFrame, workers: int) -> DataFrame:
    """Returns the rows in exactly `workers` partitions, moving them only where that must be.

    Too many partitions are joined where they lie; too few are dealt out anew over the network.
    A client of Spark Connect does not learn how many there are: it always deals out anew.

    Raises:
        UsageError: `workers` is below 1.
    """
    if workers < 1:
        raise UsageError("workers must be at least 1", got=workers)
    partitions = _partitions(df)
    if partitions == workers:
        return df
    if partitions is not None and partitions > workers:
        return df.coalesce(workers)
    return df.repartition(workers)


@contextlib.contextmanager
def kept(df: DataFrame) -> Iterator[DataFrame]:
    """Keeps rows that had to be dealt out anew on the disks of two executors, for a while.

    Where one is lost, whoever takes its place finds its rows. Else Spark would deal all rows anew,
    and start a second task for every worker that is well: these would take the place of the one
    that is missed. On one machine there is nothing to lose; of Connect the plan is not known.
    """
    plan = getattr(df, "_jdf", None)
    is_local = re.match(ONE_PROCESS, str(df.sparkSession.conf.get("spark.master", "local")))
    if (
        plan is None
        or is_local
        or "Exchange" not in plan.queryExecution().executedPlan().toString()
    ):
        yield df
        return
    from pyspark import StorageLevel

    rows = df.persist(StorageLevel.DISK_ONLY_2)
    try:
        yield rows
    finally:
        with contextlib.suppress(Exception):  # an application that has ended keeps none
            rows.unpersist()


def cifar_frame(spark: SparkSession, folder: str, split: str = "train") -> DataFrame:
    """Returns CIFAR-10's binary version as rows that the executors read themselves.

    Args:
        spark: the session.
        folder: with the files of `cifar.FILES`, wherever Spark reads: hdfs://, file://, s3a://.
        split: "train" or "test".

    Returns:
        `features`, 3072 bytes, and `label`, 0..9.

    Raises:
        UsageError: the split is unknown.
        DataError: a file is missing or cut short, by its name and record. A label above 9 ends the
            query with the same sentence.

    Example:
        >>> cifar_frame(spark, "hdfs:///cifar10").count()  # doctest: +SKIP
        50000
    """
    if split not in cifar.FILES:
        raise unknown_name("split", split, cifar.FILES)
    paths = [f"{folder.rstrip('/')}/{name}" for name in cifar.FILES[split]]
    try:
        files = spark.read.format("binaryFile").load(paths)
        found = files.select("path", "length").collect()
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataError(f"{folder} cannot be read as CIFAR-10", got=reason) from error
    for path, size in found:
        cifar.check_length(int(size), str(path))
    return files.select("path", "content").mapInArrow(_records, "features binary, label long")


def _records(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        for path, content in zip(batch.column(0), batch.column(1), strict=True):
            images, labels = cifar.parse_records(content.as_py(), path.as_py())
            rows = [image.tobytes() for image in images]
            yield pa.RecordBatch.from_arrays(
                [pa.array(rows, pa.binary()), pa.array(labels.astype("int64"))],
                names=["features", "label"],
            )


def _partitions(df: DataFrame) -> int | None:
    try:
        return int(df.rdd.getNumPartitions())
    except (AttributeError, NotImplementedError):  # pyspark's own are both
        return None


def _check_names(df: DataFrame, names: list[str], label: str | None) -> None:
    wanted = [*names, *([] if label is None else [label])]
    if not names:
        raise UsageError("no feature column is named", do=f"known: {', '.join(df.columns)}")
    for name in wanted:
        if name not in df.columns:
            raise unknown_name("column", name, df.columns)
        if wanted.count(name) > 1:
            raise UsageError("a column cannot be taken twice", got=repr(name))
        if df.columns.count(name) > 1:
            raise UsageError("several columns have one name", got=repr(name), do="rename them")


def _quoted(name: str) -> Column:
    """A column by its literal name, dots included."""
    escaped = name.replace("`", "``")
    return F.col(f"`{escaped}`")


def _plain(name: str) -> str:
    """A name that stays one column in mapInArrow, which takes dots for a path."""
    return name.replace(".", "·").replace("`", "'")


def _is_number(kind: T.DataType) -> bool:
    return isinstance(kind, (T.NumericType, T.BooleanType))


def _number(df: DataFrame, name: str, *, several: bool) -> Column:
    kind = df.schema[name].dataType
    if several and not _is_number(kind):
        if isinstance(kind, T.StringType):
            raise _text(name)
        do = "join them first, e.g. with VectorAssembler"
        wrong = f"column {name}: of several feature columns each must hold numbers"
        raise UsageError(wrong, got=kind.simpleString(), do=do)
    return _quoted(name).cast("float").alias(_plain(name))


def _text(name: str) -> DataError:
    do = "turn it into numbers first, e.g. with StringIndexer"
    return DataError(f"column {name} holds text", do=do)


def _label(df: DataFrame, name: str) -> Column:
    kind = df.schema[name].dataType
    if isinstance(kind, T.StringType):
        raise _text(name)
    if not _is_number(kind):
        raise DataError(f"column {name}: a label must be a number", got=kind.simpleString())
    is_whole = isinstance(kind, (T.IntegralType, T.BooleanType))
    return _quoted(name).cast("long" if is_whole else "double").alias(_plain(name))


def _feature(df: DataFrame, name: str) -> tuple[Column, str, list[Column]]:
    """Returns one feature column as the workers want it, its kind, and what tells its shape."""
    kind, column = df.schema[name].dataType, _quoted(name)
    if isinstance(kind, T.BinaryType):
        return column, BINARY, [F.octet_length(column)]
    if isinstance(kind, T.ArrayType) and _is_number(kind.elementType):
        return column.cast("array<float>"), LIST, [F.size(column)]
    if type(kind).__name__ in _VECTORS:
        from pyspark.ml.functions import vector_to_array

        array = vector_to_array(column, "float32")
        return array, LIST, [F.size(array)]
    if isinstance(kind, T.StructType) and set(_IMAGE_PARTS) <= set(kind.names):
        parts = F.struct(*(column[part].alias(part) for part in _IMAGE_PARTS))
        # a struct made of the parts of a null is no null: the workers must see it
        whole = F.when(column.isNotNull(), parts)
        return whole, IMAGE, [column[part] for part in _IMAGE_PARTS[:3]]
    if isinstance(kind, T.StringType):
        raise _text(name)
    raise DataError(
        f"column {name}: a model cannot learn from this type",
        got=kind.simpleString(),
        do="use ML vectors, arrays of numbers, bytes, images or columns of numbers",
    )


def _first_shape(df: DataFrame, name: str, size: list[Column]) -> tuple[int, ...]:
    sizes = [part.alias(f"size{i}") for i, part in enumerate(size)]
    first: Any = df.where(_quoted(name).isNotNull()).select(*sizes).first()
    if first is None:
        raise DataError(f"column {name}: there are no rows, or nulls only")
    shape = tuple(int(part) for part in first)
    if 0 in shape:
        raise DataError(f"column {name}: the first row is empty")
    return shape
