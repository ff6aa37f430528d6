"""Selects and partitions a DataFrame's columns for the workers."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it

from photinus.core.errors import DataError, UsageError
from photinus.core.settings import unknown_column, unknown_name
from photinus.data import cifar
from photinus.data.arrow import BINARY, IMAGE, LIST, NUMERIC, ColumnSpec, arrays
from photinus.data.base import Block
from photinus.data.checks import RowChecker, RowChecks
from photinus.data.columns import InputSpec, holds_text, labels_of_text
from photinus.data.inputs import SEQUENCE_LABELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession


_VECTOR_TYPES = ("VectorUDT",)
_TIME_TYPES = (T.DateType, T.TimestampType, T.TimestampNTZType)
_IMAGE_PARTS = ("height", "width", "nChannels", "data")


def as_frame(rows: Any) -> Any:  # noqa: ANN401 - whatever a user gives
    """Returns an RDD as a DataFrame, and anything else as it is.

    Args:
        rows: of Rows, of dicts by column, of arrays (the column `features`), or of pairs of an
            array and a number (`features` and `label`).

    Raises:
        DataError: the RDD is empty, or its rows are something else.
    """
    if not (hasattr(rows, "mapPartitions") and hasattr(rows, "ctx")):
        return rows
    from pyspark.sql import Row, SparkSession

    session, head = SparkSession.builder.getOrCreate(), rows.take(1)
    if not head:
        raise DataError("the RDD holds no rows", do="look at where the data is read")
    first = head[0]
    if isinstance(first, Row):
        return session.createDataFrame(rows)
    if isinstance(first, dict):
        return session.createDataFrame(rows.map(lambda row: Row(**row)))
    is_pair = isinstance(first, tuple) and len(first) == 2
    array = np.asarray(first[0] if is_pair else first)
    if array.dtype.kind not in "fiub" or not array.ndim:
        do = "make it one of Rows, of arrays, or of pairs of an array and a number"
        raise DataError("an RDD of such rows cannot be read", got=type(first).__name__, do=do)
    kind = "float" if array.dtype.kind == "f" else "long"
    for _ in range(array.ndim):
        kind = f"array<{kind}>"
    if not is_pair:
        return session.createDataFrame(
            rows.map(lambda row: (np.asarray(row).tolist(),)), f"features {kind}"
        )
    label = "double" if np.asarray(first[1]).dtype.kind == "f" else "long"
    pairs = rows.map(lambda row: (np.asarray(row[0]).tolist(), np.asarray(row[1]).item()))
    return session.createDataFrame(pairs, f"features {kind}, label {label}")


def refuse_stream(rows: Any) -> None:  # noqa: ANN401 - whatever a user gives
    """Refuses a streaming DataFrame: its rows have no end.

    Raises:
        UsageError: it is one.
    """
    if getattr(rows, "isStreaming", False):
        do = "read the same source with spark.read; a fitted model's transform takes streams"
        raise UsageError("these rows are a stream, and have no end", got="a streaming table", do=do)


def columns(
    df: DataFrame, features: str | list[str], label: str | None = None
) -> tuple[DataFrame, ColumnSpec]:
    """Selects what the workers need, and returns its kind; the widths are those of the first row.

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
    frame, spec = selected(df, features, label)
    return frame, replace(spec, shape=shape_of(frame, spec))


def selected(
    df: DataFrame,
    features: str | list[str],
    label: str | list[str] | None = None,
    *,
    inputs: InputSpec | None = None,
    weight: str | None = None,
    held: str | None = None,
) -> tuple[DataFrame, ColumnSpec]:
    """Selects as `columns` does, but asks for no row: one column of features has no shape yet.

    Args:
        df: the user's rows.
        features: as of `columns`.
        label: as of `columns`, or several columns.
        inputs: what `forward` takes, where that is more than one array; `features` is then not
            looked at.
        weight: a column of numbers.
        held: a column of truth values.

    Raises:
        UsageError: as `columns`.
        DataError: a column has a type that a model cannot learn from.
    """
    if inputs is not None:
        return _selected_inputs(df, inputs, label, weight, held)
    names = [features] if isinstance(features, str) else list(features)
    if not names:
        raise UsageError("no feature column is named", do=f"known: {', '.join(df.columns)}")
    _check_names(df, names, label, weight)
    safe_names = _safe_names(names)
    other_columns, spec_fields = _extra_columns(df, label, weight, held, safe_names)
    if len(names) > 1 or _is_number(df.schema[names[0]].dataType):
        numbers = [
            _number(df, name, several=len(names) > 1).alias(safe_name)
            for name, safe_name in zip(names, safe_names, strict=True)
        ]
        shape: tuple[int, ...] = (len(names),)
        spec = ColumnSpec(features=tuple(safe_names), kind=NUMERIC, shape=shape, **spec_fields)
        return df.select(*numbers, *other_columns), spec
    name = names[0]
    column, kind, _ = _feature(df, name)
    dtype = "uint8" if kind in (BINARY, IMAGE) else "float32"
    spec = ColumnSpec(features=tuple(safe_names), kind=kind, dtype=dtype, **spec_fields)
    return df.select(column.alias(safe_names[0]), *other_columns), spec


def _selected_inputs(
    df: DataFrame,
    inputs: InputSpec,
    label: str | list[str] | None,
    weight: str | None,
    held: str | None,
) -> tuple[DataFrame, ColumnSpec]:
    if not inputs.columns:
        raise UsageError("no input is named", do='inputs={"parameter": "column"}')
    for name, column in inputs.columns.items():
        _check_names(df, [column] if isinstance(column, str) else list(column), None)
        inputs.encoder(name)  # an unknown one is refused before any row is read
    _check_names(df, [], label, weight)
    other_columns, spec_fields = _extra_columns(df, label, weight, held, inputs.columns)
    input_columns = [input_column(df, inputs, name).alias(name) for name in inputs.columns]
    spec = ColumnSpec(features=tuple(inputs.columns), inputs=inputs, **spec_fields)
    return df.select(*input_columns, *other_columns), spec


def input_column(df: DataFrame, inputs: InputSpec, name: str) -> Column:
    """Returns one input's column as the workers want it.

    Raises:
        DataError: it is text without an encoder.
        UsageError: one of several columns holds no numbers.
    """
    column = inputs.columns[name]
    if not isinstance(column, str):
        # with the nulls inside: the workers name the column that holds one
        return F.array(*(_number(df, column_name, several=True) for column_name in column))
    data_type = df.schema[column].dataType
    if name in inputs.encoders:
        return quoted(column)
    while isinstance(data_type, T.ArrayType):
        data_type = data_type.elementType
    if isinstance(data_type, _TIME_TYPES):
        raise _times_error(column, data_type)
    if isinstance(data_type, T.StringType):
        raise (labels_of_text if name == SEQUENCE_LABELS else holds_text)(column)
    if isinstance(data_type, T.MapType):  # Arrow hands it over as a list of pairs
        do = "make columns of its values, or an array of them, e.g. by F.map_values"
        raise _wrong_type(column, df.schema[column].dataType, do)
    is_alone = data_type is df.schema[column].dataType
    if isinstance(data_type, T.DecimalType) and is_alone:
        return quoted(column).cast("float")
    return _feature(df, column)[0] if is_alone and _is_image(data_type) else quoted(column)


def _has_no_null(array: Column) -> Column:
    # conditions joined by & nest: those of hundreds of columns overflow Java's stack
    return F.forall(array, lambda element: element.isNotNull())


def _extra_columns(
    df: DataFrame,
    label: str | list[str] | None,
    weight: str | None,
    held: str | None,
    used_names: Iterable[str],
) -> tuple[list[Column], dict[str, Any]]:
    """Returns the columns of labels and of weights, and what they are called in a ColumnSpec."""
    columns, names = [], dict[str, Any]()
    if label is not None:
        labels = [_label(df, name) for name in ([label] if isinstance(label, str) else label)]
        # of several with the nulls inside: the workers name the column that holds one
        column = labels[0] if isinstance(label, str) else F.array(*labels)
        names["label"] = label if isinstance(label, str) else ", ".join(label)
        columns.append(column)
    if weight is not None:
        data_type = df.schema[weight].dataType
        if not _is_number(data_type):
            wrong = f"column {weight}: a weight must be a number"
            raise DataError(wrong, got=data_type.simpleString())
        columns.append(quoted(weight).cast("double"))
        names["weight"] = weight
    if held is not None:
        _check_names(df, [held], None)
        if not isinstance(df.schema[held].dataType, T.BooleanType):
            wrong, got = f"column {held}: which rows are set aside", df.schema[held].dataType
            do = "make it a column of truth values, e.g. with (column > 0)"
            raise DataError(wrong, got=got.simpleString(), do=do)
        columns.append(F.coalesce(quoted(held), F.lit(False)))  # noqa: FBT003 - its argument
        names["held"] = held
    used = {name.lower() for name in used_names}
    for field, name in names.items():
        safe_name = _safe_name(name)
        names[field] = f"{safe_name} ({field})" if safe_name.lower() in used else safe_name
        used.add(names[field].lower())
    named = zip(columns, names.values(), strict=True)
    several = {} if label is None or isinstance(label, str) else {"labels": tuple(label)}
    return [column.alias(name) for column, name in named], names | several


def shape_of(frame: DataFrame, spec: ColumnSpec) -> tuple[int, ...]:
    """Returns the shape of one row's features; asks for the first row, where that must be.

    Args:
        frame: as `selected` returned it.
        spec: likewise.

    Raises:
        DataError: there are no rows.
    """
    if spec.shape or spec.inputs is not None:
        return spec.shape
    name = spec.features[0]
    return _first_shape(frame, name, _feature(frame, name)[2])


def first_rows(frame: DataFrame, spec: ColumnSpec, rows: int = 2) -> Block:
    """Returns the first rows as a worker reads them; asks for them.

    Args:
        frame: as `selected` returned it.
        spec: likewise.
        rows: how many.

    Raises:
        DataError: there are no rows, or one of them is bad.
    """
    import pyarrow as pa

    batches = [batch for batch in stream_batches(frame.limit(rows)) if batch.num_rows]
    if not batches:
        raise DataError("there are no rows", do="look at where the data is read")
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return arrays(batch, spec, RowChecker(RowChecks()))


def stream_batches(
    frame: DataFrame,
    change: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a plan in the driver, partition by partition.

    Args:
        frame: the plan.
        change: of a partition's batches, in its task.
    """
    import pyarrow as pa

    for row in frame.mapInArrow(
        functools.partial(_serialize, change), "rows binary"
    ).toLocalIterator():
        yield from pa.ipc.open_stream(row["rows"])


def parquet_files(df: DataFrame) -> list[str] | None:
    """Returns the files of a DataFrame that is columns of Parquet files and no more, else None.

    A client of Spark Connect does not know the plan.
    """
    plan = getattr(df, "_jdf", None)
    node = plan and plan.queryExecution().analyzed()
    while node is not None and str(node.nodeName()) in ("Project", "SubqueryAlias"):
        if str(node.nodeName()) == "Project":
            columns = node.projectList()
            kinds = (columns.apply(i).getClass().getSimpleName() for i in range(columns.size()))
            if any(kind != "AttributeReference" for kind in kinds):
                return None
        node = node.child()
    if node is None or not str(node.nodeName()).startswith("LogicalRelation"):
        return None
    relation = node.relation()
    # the files of a partitioned folder lack the columns that it is partitioned by
    is_plain = str(relation).startswith("parquet") and relation.partitionSchema().isEmpty()
    return sorted(map(unquote, df.inputFiles())) if is_plain else None


def _serialize(
    change: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]] | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterable[pa.RecordBatch]:
    """Yields batches as bytes: every Spark has a way for these to the driver."""
    import pyarrow as pa

    for batch in batches if change is None else change(batches):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        rows = pa.array([sink.getvalue().to_pybytes()], pa.binary())
        yield pa.RecordBatch.from_arrays([rows], names=["rows"])


def classes_in(df: DataFrame, label: str | list[str]) -> int | None:
    """Returns how many classes a label column's ML attribute names, as StringIndexer leaves it."""
    if not isinstance(label, str):
        return None
    attribute = df.schema[label].metadata.get("ml_attr", {})
    values = attribute.get("vals")
    count = len(values) if values else attribute.get("num_vals")
    return None if count is None else int(count)


def one_column(
    df: DataFrame, features: str | list[str], shape: tuple[int, ...]
) -> tuple[Column, bool]:
    """Returns features as one column for scoring, and whether it holds bytes, or arrays of float32.

    No job runs. A row of another size ends the query with a sentence that names the column.

    Args:
        df: the rows.
        features: a column; or several columns of numbers, which are stacked.
        shape: of one row.

    Raises:
        UsageError: a column is unknown, or they are not as many numbers as the shape holds.
        DataError: it has a type that a model cannot learn from.
    """
    if not isinstance(features, str):
        return _stacked(df, features, shape), False
    _check_names(df, [features], None)
    if _is_number(df.schema[features].dataType):
        number = F.array(_number(df, features, several=False))
        column, kind, sizes = number, NUMERIC, [F.lit(1)]
        expected_shape: tuple[int, ...] = (1,)
    else:
        column, kind, sizes = _feature(df, features)
        expected_shape = shape if kind == IMAGE else (math.prod(shape),)
        column = column["data"] if kind == IMAGE else column
    got = F.concat_ws("x", *(size.cast("string") for size in sizes))
    expected = "x".join(map(str, expected_shape))
    message = F.concat(
        F.lit(f"column {features}: a row of size "),
        F.when(quoted(features).isNull(), F.lit("null")).otherwise(got),
        F.lit(f", expected {expected}"),
    )
    # as texts, each row's sizes would have to be formatted
    has_size = F.array(*sizes) == F.array(*map(F.lit, expected_shape))
    return F.when(has_size, column).otherwise(F.raise_error(message)), kind in (BINARY, IMAGE)


def _stacked(df: DataFrame, features: list[str], shape: tuple[int, ...]) -> Column:
    _check_names(df, features, None)
    if len(features) != math.prod(shape):
        wrong = f"a row must hold {math.prod(shape)} numbers"
        raise UsageError(wrong, got=f"{len(features)} columns")
    for name in features:
        _check_is_number(df, name)
    # as texts: objects of Java for each of hundreds of columns take seconds to make
    casts = ", ".join(f"CAST({_backquoted(name)} AS FLOAT)" for name in features)
    array = F.expr(f"array({casts})")
    if "${" in casts:  # in a text Spark puts a setting there
        array = F.array(*(_number(df, name, several=True) for name in features))
    names = F.from_json(F.lit(json.dumps(features)), "array<string>")
    nulls = F.filter(names, lambda _, i: F.get(array, i).isNull())
    message = F.concat(F.lit("column "), F.concat_ws(", ", nulls), F.lit(": a row holds null"))
    return F.when(_has_no_null(array), array).otherwise(F.raise_error(message))


def partitioned(df: DataFrame, workers: int) -> DataFrame:
    """Returns the rows in exactly `workers` partitions, moving them only where that must be.

    Too many partitions are joined where they are; too few are shuffled over the network. A client
    of Spark Connect cannot see how many there are: it always shuffles.

    Raises:
        UsageError: `workers` is below 1.
        DataError: Spark knows from the plan that there are no rows.
    """
    if workers < 1:
        raise UsageError("workers must be at least 1", got=workers)
    partitions = _partitions(df)
    if partitions == 0:  # as of `df.limit(0)`: it would stay without tasks, however it is divided
        do = "look at where the data is read and filtered"
        raise DataError("there are no rows to train on", do=do)
    if partitions == workers:
        return df
    if partitions is not None and partitions > workers:
        return df.coalesce(workers)
    return df.repartition(workers)


def shuffled(df: DataFrame, workers: int) -> DataFrame:
    """Returns the rows in `workers` partitions by the hash of their content: a retry sees the same.

    Raises:
        UsageError: `workers` is below 1.
    """
    if workers < 1:
        raise UsageError("workers must be at least 1", got=workers)
    return df.repartition(workers, F.xxhash64(*(quoted(name) for name in df.columns)))


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
        file_sizes = files.select("path", "length").collect()
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise DataError(f"{folder} cannot be read as CIFAR-10", got=reason) from error
    for path, size in file_sizes:
        cifar.check_length(int(size), str(path))
    return files.select("path", "content").mapInArrow(_parse_files, "features binary, label long")


def _parse_files(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
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


def _check_names(
    df: DataFrame,
    names: list[str],
    label: str | list[str] | None,
    weight: str | None = None,
) -> None:
    labels = [label] if isinstance(label, str) else (label or [])
    all_names = [*names, *labels, *([] if weight is None else [weight])]
    for name in all_names:
        if name not in df.columns:
            raise unknown_column(name, df.columns)
        if all_names.count(name) > 1:
            raise UsageError("a column cannot be taken twice", got=repr(name))
        if df.columns.count(name) > 1:
            raise UsageError("several columns have one name", got=repr(name), do="rename them")


def quoted(name: str) -> Column:
    """A column by its literal name, dots and backticks included."""
    return F.col(_backquoted(name))


def _backquoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _safe_name(name: str) -> str:
    """A name that stays one column in mapInArrow, which takes dots for a path."""
    return name.replace(".", "·").replace("`", "'")


def _safe_names(names: Iterable[str]) -> list[str]:
    """Safe names of columns, with a number where two of them would be one.

    Case tells none apart: a job's thread does not know the session's spark.sql.caseSensitive.
    """
    safe_names: list[str] = []
    used = set[str]()
    for name in names:
        safe_name, number = _safe_name(name), 1
        while safe_name.lower() in used:
            number += 1
            safe_name = f"{_safe_name(name)} ({number})"
        safe_names.append(safe_name)
        used.add(safe_name.lower())
    return safe_names


def _is_number(data_type: T.DataType) -> bool:
    return isinstance(data_type, (T.NumericType, T.BooleanType))


def _number(df: DataFrame, name: str, *, several: bool) -> Column:
    if several:
        _check_is_number(df, name)
    return quoted(name).cast("float")


def _check_is_number(df: DataFrame, name: str) -> None:
    data_type = df.schema[name].dataType
    if _is_number(data_type):
        return
    if isinstance(data_type, T.StringType):
        raise _text_error(name)
    if isinstance(data_type, _TIME_TYPES):
        raise _times_error(name, data_type)
    do = "make a column of numbers of it first"
    if type(data_type).__name__ in _VECTOR_TYPES:
        do = "join them first, e.g. with VectorAssembler"
    elif isinstance(data_type, T.ArrayType):  # which VectorAssembler does not take
        do = "join them into one array first, e.g. by F.concat"
    wrong = f"column {name}: of several feature columns each must hold numbers"
    raise UsageError(wrong, got=data_type.simpleString(), do=do)


def _wrong_type(name: str, data_type: T.DataType, do: str) -> DataError:
    wrong = f"column {name}: a model cannot learn from this type"
    return DataError(wrong, got=data_type.simpleString(), do=do)


def _times_error(name: str, data_type: T.DataType) -> DataError:
    # not of seconds since 1970: they are too large to train on, and float32 tells no minutes apart
    first = "F.year" if isinstance(data_type, T.DateType) else "F.hour"  # the hour of a date is 0
    do = f'make numbers of them first, e.g. by {first}("{name}") or F.dayofyear("{name}")'
    return DataError(f"column {name} holds times", got=data_type.simpleString(), do=do)


def _text_error(name: str) -> DataError:
    do = "turn it into numbers first, e.g. with StringIndexer"
    return DataError(f"column {name} holds text", do=do)


def _label(df: DataFrame, name: str) -> Column:
    data_type = df.schema[name].dataType
    if isinstance(data_type, T.StringType):
        raise _text_error(name)
    element_type = data_type.elementType if isinstance(data_type, T.ArrayType) else data_type
    if not _is_number(element_type):
        wrong = f"column {name}: a label must be a number, or an array of numbers"
        raise DataError(wrong, got=data_type.simpleString())
    cast = "long" if isinstance(element_type, (T.IntegralType, T.BooleanType)) else "double"
    cast = cast if element_type is data_type else f"array<{cast}>"
    return quoted(name).cast(cast)


def _feature(df: DataFrame, name: str) -> tuple[Column, str, list[Column]]:
    """Returns one feature column as the workers want it, its kind, and columns for its shape."""
    data_type, column = df.schema[name].dataType, quoted(name)
    if isinstance(data_type, T.BinaryType):
        return column, BINARY, [F.octet_length(column)]
    if isinstance(data_type, T.ArrayType) and _is_number(data_type.elementType):
        return column.cast("array<float>"), LIST, [F.size(column)]
    if type(data_type).__name__ in _VECTOR_TYPES:
        from pyspark.ml.functions import vector_to_array

        array = vector_to_array(column, "float32")
        return array, LIST, [F.size(array)]
    if _is_image(data_type):
        parts = F.struct(*(column[part].alias(part) for part in _IMAGE_PARTS))
        # a struct made of the parts of a null is no null: the workers must see it
        image = F.when(column.isNotNull(), parts)
        return image, IMAGE, [column[part] for part in _IMAGE_PARTS[:3]]
    if isinstance(data_type, T.StringType):
        raise holds_text(name)
    if isinstance(data_type, _TIME_TYPES):
        raise _times_error(name, data_type)
    do = "use ML vectors, arrays of numbers, bytes, images or columns of numbers"
    if isinstance(data_type, T.ArrayType) and isinstance(data_type.elementType, T.ArrayType):
        do = f"the estimators of modules read it by inputs={{'parameter of forward': {name!r}}}"
    raise _wrong_type(name, data_type, do)


def _is_image(data_type: T.DataType) -> bool:
    return isinstance(data_type, T.StructType) and set(_IMAGE_PARTS) <= set(data_type.names)


def _first_shape(df: DataFrame, name: str, size_columns: list[Column]) -> tuple[int, ...]:
    sizes = [part.alias(f"size{i}") for i, part in enumerate(size_columns)]
    first: Any = df.where(quoted(name).isNotNull()).select(*sizes).first()
    if first is None:
        raise DataError(f"column {name}: there are no rows, or nulls only")
    shape = tuple(int(part) for part in first)
    if 0 in shape:
        raise DataError(f"column {name}: the first row is empty")
    return shape
