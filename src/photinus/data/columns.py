"""Converts Arrow columns of any kind to the inputs of a module, each by its name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from photinus.core.errors import DataError, NotReadyError, PhotinusError, UsageError
from photinus.core.factories import resolve_user_code
from photinus.core.masks import NO_LABEL
from photinus.core.pretrained import pretrained_folder
from photinus.core.settings import unknown_name
from photinus.data.base import Array
from photinus.data.checks import InvalidValues, RowChecker, not_finite
from photinus.data.images import decode_images
from photinus.data.inputs import SEQUENCE_LABELS, SPARSE, Column, Inputs, Ragged
from photinus.data.tokens import Tokenizer

if TYPE_CHECKING:
    import pyarrow as pa


ENCODERS: Mapping[str, Callable[[list[Any]], Any]] = {"image": decode_images}
"""By name: what makes arrays of a column's values; the others are "package.module:function", or a
pre-trained tokenizer's folder or package."""

_SAME_SIZE = "scale or cut the images to one size, or leave the row out"
_KINDS = {
    "number": ("integer", "floating", "boolean", "decimal"),
    "bytes": ("binary", "large_binary", "fixed_size_binary"),
    "list": ("list", "large_list", "fixed_size_list"),
    "text": ("string", "large_string"),
    "struct": ("struct",),
}
_VECTOR = {"type", "size", "indices", "values"}
_IMAGE = {"height", "width", "nChannels", "data"}


@dataclass(frozen=True, kw_only=True, slots=True)
class InputSpec:
    """Which columns reach which parameters of a module's `forward`, and how.

    Example:
        >>> InputSpec(columns={"tokens": "ids", "price": "amount"}).column("tokens")
        'ids'
    """

    columns: Mapping[str, Any]
    """Parameter -> column, or several columns of numbers that are stacked: float32 [B, n]."""
    encoders: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> "package.module:function" of a list of the column's values; it returns an array
    [n, ...], a list of n arrays of any lengths, or a dict of these by parameters. Or "image". Or a
    pre-trained tokenizer: its folder, or a package that holds it (see `Tokenizer`)."""
    collate: str = ""
    """As of `Inputs`."""

    def __post_init__(self) -> None:
        for name, column in self.columns.items():
            if not str(name).isidentifier() and name != SEQUENCE_LABELS:
                do = 'inputs={"parameter": "column"}'
                raise UsageError("an input has the name of a parameter", got=repr(name), do=do)
            several = isinstance(column, (tuple, list)) and column
            if not all(isinstance(c, str) for c in (several or (column,))):
                wrong = f"the input {name} is a column's name, or a list of names"
                raise UsageError(wrong, got=repr(column))
        for name in self.encoders:
            if name not in self.columns:
                raise unknown_name("input in encoders", name, self.columns)

    def column(self, name: str) -> str:
        """Returns what an input's column, or columns, are called."""
        column = self.columns[name]
        return column if isinstance(column, str) else ", ".join(column)

    def encoder(self, name: str) -> Callable[[list[Any]], Any] | None:
        """Returns an input's encoder, if it has one.

        Raises:
            UsageError: it cannot be imported, or there is no such tokenizer here.
        """
        encoder_name = self.encoders.get(name)
        return None if encoder_name is None else _encoder(encoder_name)


@functools.cache
def _encoder(name: str) -> Callable[[list[Any]], Any]:
    if name in ENCODERS:
        return ENCODERS[name]
    if ":" in name:
        return resolve_user_code(name, "function")
    try:
        pretrained_folder(name)
    except NotReadyError as error:
        do = "name image, package.module:function, or a pre-trained tokenizer's folder or package"
        raise UsageError("unknown encoder", got=repr(name), do=do) from error
    return Tokenizer(name)


def holds_text(column: str) -> DataError:
    """Returns the error for a column of text that has no encoder."""
    do = (
        'name an encoder: inputs={"text": "' + column + '"}, encoders={"text": "..."} with a '
        "pre-trained tokenizer's folder or package.module:function; or index its values by "
        "StringIndexer"
    )
    return DataError(f"column {column} holds text", do=do)


def labels_of_text(column: str) -> DataError:
    """Returns the error for labels of tokens that are words: no indexer of Spark takes arrays."""
    do = f"number the classes, as by transform({column}, tag -> int(array_position(array('O', "
    do += "'NAME'), tag)) - 1) of SQL"
    return DataError(f"column {column}: labels must be numbers", got="text", do=do)


def rename_columns(batch: pa.RecordBatch, names: Mapping[str, Any]) -> pa.RecordBatch:
    """Returns columns of a batch under other names.

    Args:
        batch: the columns.
        names: new name -> a column's, or those of several columns of numbers that are stacked.
    """
    import pyarrow as pa

    columns = []
    for source in names.values():
        if isinstance(source, str):
            columns.append(batch.column(source))
            continue
        numbers = np.stack([np.asarray(batch.column(name)) for name in source], axis=1)  # [n, k]
        columns.append(pa.FixedSizeListArray.from_arrays(numbers.reshape(-1), len(source)))
    return pa.RecordBatch.from_arrays(columns, list(names))


def inputs_from(values_by_name: Mapping[str, Any], spec: InputSpec | None) -> Inputs:
    """Returns inputs in memory: an array, or a list of arrays of any lengths, for each name.

    Args:
        values_by_name: by the names of `forward`'s parameters.
        spec: which of them have encoders.

    Raises:
        UsageError: they are not equally many.
        DataError: one is text without an encoder, or no numbers.
    """
    columns: dict[str, Column] = {}
    for name, values in values_by_name.items():
        encoder = None if spec is None else spec.encoder(name)
        if encoder is None and len(values) and isinstance(values[0], str):
            raise holds_text(name)
        encoded = values if encoder is None else encoder(list(values))
        for key, array in encoded.items() if isinstance(encoded, Mapping) else ((name, encoded),):
            column = _as_column(array, str(key), len(values))
            if isinstance(column, InvalidValues):
                row = int(np.argmax(column.bad))
                raise DataError(f"row {row} of {key}: {column.describe(row)}", do=column.cure(row))
            columns[str(key)] = column
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) != 1:
        raise UsageError("all inputs must have equally many rows", got=counts or "no inputs")
    collate = "" if spec is None else spec.collate
    for finding in () if collate else _unequal_labels(columns, "the labels"):
        if finding.bad.any():
            row = int(np.argmax(finding.bad))
            raise DataError(f"row {row}: {finding.describe(row)}", do=finding.cure(row))
    return Inputs(columns, next(iter(counts.values())), collate)


def inputs_of(
    batch: pa.RecordBatch, spec: InputSpec, others: Sequence[str], checker: RowChecker
) -> Inputs:
    """Returns the inputs of a batch.

    Args:
        batch: a column for each input, by its name, and others.
        spec: the inputs.
        others: the names of the other columns.
        checker: checks the rows.

    Raises:
        DataError: a column is of the wrong type, or a row is bad (see `RowChecker`).
    """
    checker.refuse(_findings(batch, spec, [*spec.columns, *others], checker))
    columns = _convert_columns(batch, spec, checker)
    findings = (
        _not_finite(part, part_name)
        for name, column in columns.items()
        for part, part_name in _by_column(column, _column_names(spec, name))
    )
    checker.refuse(chain.from_iterable(findings))
    if SEQUENCE_LABELS in columns and not spec.collate:  # which may cut or join the tokens
        checker.refuse(_unequal_labels(columns, spec.column(SEQUENCE_LABELS)))
    for name, column in columns.items():
        checker.templates.setdefault(name, column[:0])
    return Inputs(columns, batch.num_rows, spec.collate)


def _unequal_labels(columns: Mapping[str, Column], name: str) -> Iterator[InvalidValues]:
    """Yields rows whose labels are more or fewer than the tokens of each sequence."""
    labels = columns.get(SEQUENCE_LABELS)
    sequences = [
        column
        for input_name, column in columns.items()
        if isinstance(column, Ragged) and not column.is_sparse and input_name != SEQUENCE_LABELS
    ]
    if labels is None or not sequences:
        return
    counts, lengths = _label_counts(labels), sequences[0].lengths
    fits = np.any([column.lengths == counts for column in sequences], axis=0)
    yield InvalidValues(
        name,
        ~fits,
        lambda row: f"{counts[row]} labels, expected one for each of {lengths[row]} tokens",
        lambda _: f"mend the row, or leave it out; {NO_LABEL} stands for a token without a label",
    )


def _label_counts(labels: Column) -> NDArray[np.integer[Any]]:
    """Returns how many labels each row has, [n]: as many in each row of an array [n, ...]."""
    if isinstance(labels, Ragged):
        return labels.lengths
    return np.full(len(labels), labels.shape[1] if labels.ndim > 1 else 1)


def _column_names(spec: InputSpec, name: str) -> str | Sequence[str]:
    """Returns what the column, or the stacked columns, of an input are called."""
    if name in spec.encoders and name in spec.columns:
        return spec.column(name)
    names: str | Sequence[str] = spec.columns.get(name, name)
    return names


def _by_column(column: Column, names: str | Sequence[str]) -> Iterator[tuple[Column, str]]:
    """Yields each of the columns that were stacked [n, k], or the one column, with its name."""
    if isinstance(names, str):
        yield column, names
        return
    assert isinstance(column, np.ndarray)
    yield from zip(column.T, names, strict=True)


def _findings(
    batch: pa.RecordBatch, spec: InputSpec, names: Sequence[str], checker: RowChecker
) -> Iterator[InvalidValues]:
    """Yields what is wrong with a batch whose columns could then not be read as arrays."""
    for name in names:
        column, column_name = batch.column(name), name
        if name in spec.columns:
            column_name = spec.column(name)
        if name == SEQUENCE_LABELS and "string" in str(column.type):
            raise labels_of_text(column_name)
        if column.null_count:
            yield InvalidValues(column_name, np.asarray(column.is_null()), lambda _: "null")
        if isinstance(spec.columns.get(name, ""), (tuple, list)):
            yield from null_numbers(column, spec.columns[name])
        if name in spec.columns and name not in spec.encoders:
            yield from _shape_findings(column, column_name, checker.templates.get(name))


def null_numbers(column: pa.Array, names: Sequence[str]) -> Iterator[InvalidValues]:
    """Yields the nulls of columns that were stacked, by the name of each."""
    sizes = np.asarray(column.value_lengths())
    if (are_wrong := sizes != len(names)).any():
        text = f"numbers where {len(names)} are due"
        yield InvalidValues(", ".join(names), are_wrong, lambda row: f"{sizes[row]} {text}")
        return
    are_null = np.asarray(column.flatten().is_null()).reshape(-1, len(names))  # [n, k]
    for name, is_null in zip(names, are_null.T, strict=True):
        yield InvalidValues(name, is_null, lambda _: "null")


def _shape_findings(
    column: pa.Array, name: str, template: Column | None
) -> Iterator[InvalidValues]:
    kind = _column_kind(column.type, name)
    shape = None if template is None else _row_shape(template)
    if kind == "list":
        yield from _list_findings(column, name, shape)
    elif kind in ("image", "vector"):
        sizes = image_sizes(column) if kind == "image" else _vector_sizes(column)
        yield from size_findings(sizes, name, shape)


def _column_kind(arrow_type: Any, name: str) -> str:  # noqa: ANN401 - an Arrow type
    """Returns what a column's rows are.

    Raises:
        DataError: they are text, or nothing that a model can learn from.
    """
    import pyarrow.types as t

    kinds = (
        kind
        for kind, type_names in _KINDS.items()
        if any(getattr(t, f"is_{type_name}")(arrow_type) for type_name in type_names)
    )
    column_kind = next(kinds, "")
    if column_kind == "text":
        raise holds_text(name)
    if column_kind == "list":
        column_kind = (
            "list" if _column_kind(arrow_type.value_type, name) in ("number", "list") else ""
        )
    elif column_kind == "struct":
        fields = {arrow_type.field(i).name for i in range(arrow_type.num_fields)}
        column_kind = "image" if fields >= _IMAGE else "vector" if fields == _VECTOR else ""
    if column_kind:
        return column_kind
    do = "use numbers, arrays of numbers, ML vectors, bytes or images, or name an encoder"
    raise DataError(f"column {name}: a model cannot learn from this type", got=arrow_type, do=do)


def _row_shape(column: Column) -> tuple[int, ...]:
    """Returns the shape of a row, or of one value of a row of any length."""
    if isinstance(column, Ragged):
        return (column.width,) if column.is_sparse else column.values.shape[1:]
    return column.shape[1:]


def _list_findings(
    column: pa.Array, name: str, shape: tuple[int, ...] | None
) -> Iterator[InvalidValues]:
    """Yields nulls at any depth, and inner lists of unequal lengths."""
    rows, level = len(column), 0
    owners = np.arange(rows)
    while _is_list(column.type):
        lengths = _lengths(column)
        if level and len(lengths):
            expected = int(lengths[0]) if shape is None else shape[level - 1]
            yield InvalidValues(
                name,
                _row_mask(owners[lengths != expected], rows),
                lambda _, expected=expected: f"inner arrays are not all of length {expected}",  # type: ignore[misc]
                lambda _: "only the outermost length of an array may vary from row to row",
            )
        owners, column, level = np.repeat(owners, lengths), column.flatten(), level + 1
        if column.null_count:
            bad = _row_mask(owners[np.asarray(column.is_null())], rows)
            yield InvalidValues(name, bad, lambda _: "null inside an array")


def size_findings(
    sizes: NDArray[Any], name: str, shape: tuple[int, ...] | None
) -> Iterator[InvalidValues]:
    """Yields images or vectors of another size than the first one: sizes [n, k]."""
    if not len(sizes):
        return
    expected = np.array(sizes[0] if shape is None else shape)

    def describe(row: int) -> str:
        got, wanted = ("x".join(map(str, size)) for size in (sizes[row], expected))
        return f"size {got}, expected {wanted}"

    do = _SAME_SIZE if sizes.shape[1] > 1 else "make all vectors of one size, or leave the row out"
    yield InvalidValues(name, (sizes != expected).any(axis=1), describe, lambda _: do)


def _not_finite(column: Column, name: str) -> Iterator[InvalidValues]:
    if not isinstance(column, Ragged):
        yield from not_finite(name, column)
        return
    values = column.values["number"] if column.is_sparse else column.values
    for finding in not_finite(name, values):
        owners = column.owners()
        first_bad = dict(
            zip(owners[finding.bad][::-1], np.flatnonzero(finding.bad)[::-1], strict=True)
        )
        bad = _row_mask(owners[finding.bad], len(column))
        yield finding._replace(bad=bad, describe=lambda row: finding.describe(int(first_bad[row])))  # noqa: B023


def _row_mask(rows: NDArray[Any], count: int) -> NDArray[np.bool_]:
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    return mask


def numpy_values(column: pa.Array) -> Array:
    """Returns the numbers of an Arrow array [n], sharing its memory where that is possible.

    Args:
        column: of numbers or truth values.
    """
    import pyarrow.types as t

    if column.null_count or not (t.is_integer(column.type) or t.is_floating(column.type)):
        nullable: Array = column.to_numpy(zero_copy_only=False)
        return nullable
    # not `to_numpy`, which loads pandas: .4 seconds of a processor in each worker
    dtype, buffer = np.dtype(column.type.to_pandas_dtype()), column.buffers()[1]
    if buffer is None:
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, len(column), column.offset * dtype.itemsize)


def _is_list(kind: Any) -> bool:  # noqa: ANN401 - an Arrow type
    import pyarrow.types as t

    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def _lengths(column: pa.Array) -> NDArray[np.int32]:
    import pyarrow.compute as pc

    lengths: NDArray[np.int32] = np.asarray(pc.list_value_length(column).fill_null(0))
    return lengths.astype(np.int32, copy=False)


def _convert_columns(
    batch: pa.RecordBatch, spec: InputSpec, checker: RowChecker
) -> dict[str, Column]:
    """Returns all inputs.

    Raises:
        DataError: a row cannot be made one.
    """
    columns: dict[str, Column] = {}
    for name in spec.columns:
        column_name, encoder = spec.column(name), spec.encoder(name)
        if encoder is None:
            converted = _convert(batch.column(name), column_name)
            if not isinstance(spec.columns[name], str) and isinstance(converted, Ragged):
                converted = converted.values.reshape(len(converted), -1)  # several numbers, stacked
            arrays: Mapping[str, Any] = {name: converted}
        else:
            encoded = _encode(batch.column(name).to_pylist(), encoder, spec.encoders[name])
            if isinstance(encoded, _EncoderErrors):
                raise checker.error(
                    InvalidValues(column_name, encoded.bad, encoded.messages.__getitem__)
                )
            arrays = encoded if isinstance(encoded, Mapping) else {name: encoded}
        for key, values in arrays.items():
            if key in columns:
                raise UsageError("two inputs have one name", got=repr(key), do="rename one")
            template = checker.templates.get(key)
            column = _as_column(values, column_name, batch.num_rows)
            if isinstance(column, InvalidValues):
                raise checker.error(column)
            columns[str(key)] = _conform(column, template, column_name)
    return columns


@dataclass(frozen=True, slots=True)
class _EncoderErrors:
    """Which values an encoder does not take, and its error for each."""

    bad: NDArray[np.bool_]
    messages: Mapping[int, str]


def _encode(values: list[Any], encoder: Callable[[list[Any]], Any], name: str) -> Any:  # noqa: ANN401
    """Returns what an encoder makes of a column's values, or which of them it does not take."""
    try:
        return encoder(values)
    except Exception as error:  # whatever the user's function raises
        messages = {}
        for row, value in enumerate(values):
            try:
                encoder([value])
            except Exception as row_error:  # likewise
                messages[row] = _error_text(row_error, name)
        if not messages:  # each value alone is taken
            raise DataError(_error_text(error, name)) from error
        return _EncoderErrors(_row_mask(np.array(list(messages)), len(values)), messages)


def _error_text(error: Exception, name: str) -> str:
    text = str(error) if isinstance(error, PhotinusError) else f"{type(error).__name__}: {error}"
    return text if name in ENCODERS else f"the encoder {name!r} failed: {text}"


def _as_column(values: Any, name: str, rows: int) -> Column | InvalidValues:  # noqa: ANN401
    """Returns what an encoder, or a conversion, made of so many rows; or the rows that differ."""
    if isinstance(values, Ragged):
        return values
    is_list = isinstance(values, (list, tuple)) or getattr(values, "dtype", "") == np.dtype(object)
    if len(values) != rows:
        do = "return one array, or number, for each value of the list"
        wrong = f"column {name}: an encoder must return as many rows as it gets"
        raise DataError(wrong, got=f"{len(values)} for {rows}", do=do)
    if not is_list:
        return _numbers(np.asarray(values), name)
    arrays = [np.asarray(row) for row in values]
    if not arrays or arrays[0].ndim == 0:
        return _numbers(np.array(arrays), name)
    is_image = arrays[0].ndim > 2
    shapes = [array.shape if is_image else array.shape[1:] for array in arrays]
    bad = np.array([shape != shapes[0] for shape in shapes])
    if bad.any():
        do = _SAME_SIZE if is_image else "only the first dimension may vary"
        return InvalidValues(
            name,
            bad,
            lambda row: f"shape {arrays[row].shape}, expected {arrays[0].shape}",
            lambda _: do,
        )
    if is_image:
        return _numbers(np.stack(arrays), name)
    lengths = np.array([len(array) for array in arrays], np.int32)
    return Ragged(lengths, _numbers(np.concatenate(arrays), name))


def _numbers(values: Array, name: str) -> Array:
    """Returns numbers as they are stored: floats as float32.

    Raises:
        DataError: they are none.
    """
    if values.dtype.kind not in "fiub":
        raise DataError(f"column {name} must hold numbers", got=f"type {values.dtype}")
    with np.errstate(over="ignore"):  # a number that becomes infinite is found, by its row
        return values.astype(np.float32, copy=False) if values.dtype.kind == "f" else values


def _conform(column: Column, template: Column | None, name: str) -> Column:
    """Returns a column in the type of the partition's first rows, if that holds its values.

    Raises:
        DataError: it does not, or the column has another shape.
    """
    if template is None:
        return column
    if isinstance(template, Ragged) and template.is_sparse and not isinstance(column, Ragged):
        column = _sparse_of(column)
    elif isinstance(column, Ragged) and column.is_sparse and not isinstance(template, Ragged):
        column = column.dense(np.arange(len(column)))
    if type(column) is not type(template) or _row_shape(column) != _row_shape(template):
        got, wanted = (f"{type(c).__name__} of {list(_row_shape(c))}" for c in (column, template))
        raise DataError(f"column {name}: rows differ in shape", got=f"{wanted}, then {got}")
    values = column.values if isinstance(column, Ragged) else column
    expected_dtype = (template.values if isinstance(template, Ragged) else template).dtype
    if values.dtype == expected_dtype:
        return column
    cast = values.astype(expected_dtype)
    if not np.array_equal(cast, values):
        got = f"{expected_dtype}, then {values.dtype}"
        raise DataError(f"column {name}: an encoder must return one type of numbers", got=got)
    return Ragged(column.lengths, cast) if isinstance(column, Ragged) else cast


def _convert(column: pa.Array, name: str) -> Column:
    """Returns a column without nulls."""
    kind = _column_kind(column.type, name)
    if kind == "number":
        import pyarrow as pa

        is_decimal = pa.types.is_decimal(column.type)
        column = column.cast(pa.float64()) if is_decimal else column
        return _numbers(numpy_values(column), name)
    if kind == "bytes":
        return _bytes(column)
    if kind == "image":
        sizes = image_sizes(column)
        values = _bytes(column.field("data")).values
        return values.reshape(-1, *(sizes[0] if len(sizes) else (0, 0, 0)))
    return _vectors(column, name) if kind == "vector" else _lists(column, name)


def _bytes(column: pa.Array) -> Ragged:
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = np.asarray(pc.binary_length(column)).astype(np.int32, copy=False)
    if not lengths.sum():
        return Ragged(lengths, np.empty(0, np.uint8))
    if pa.types.is_fixed_size_binary(column.type):
        width = column.type.byte_width
        data, start = column.buffers()[1], column.offset * width
    else:
        is_large = pa.types.is_large_binary(column.type)
        dtype = np.dtype(np.int64 if is_large else np.int32)
        data = column.buffers()[2]
        start = int(np.frombuffer(column.buffers()[1], dtype, 1, column.offset * dtype.itemsize)[0])
    return Ragged(lengths, np.frombuffer(data, np.uint8, int(lengths.sum()), start))


def _lists(column: pa.Array, name: str) -> Column:
    lengths, inner = _lengths(column), []
    fixed = column.type.list_size if _is_fixed(column.type) else None
    column = column.flatten()
    while _is_list(column.type):
        widths = _lengths(column)
        inner.append(int(widths[0]) if len(widths) else 0)
        column = column.flatten()
    values = _convert(column, name)
    assert isinstance(values, np.ndarray)
    values = values.reshape(-1, *inner) if inner and values.size else values
    return Ragged(lengths, values) if fixed is None else values.reshape(-1, fixed, *inner)


def _is_fixed(kind: Any) -> bool:  # noqa: ANN401 - an Arrow type
    import pyarrow.types as t

    return bool(t.is_fixed_size_list(kind))


def image_sizes(column: pa.Array) -> NDArray[np.int32]:
    """Returns height, width and channels, [n, 3]."""
    parts = ("height", "width", "nChannels")
    return np.stack([np.asarray(column.field(part).fill_null(0)) for part in parts], axis=1)


def _vector_sizes(column: pa.Array) -> NDArray[np.int32]:
    """Returns how long vectors are, [n, 1]."""
    is_dense = np.asarray(column.field("type").fill_null(1)) == 1
    sizes = np.asarray(column.field("size").fill_null(0))
    return np.where(is_dense, _lengths(column.field("values")), sizes)[:, None]


def _vectors(column: pa.Array, name: str) -> Column:
    """Returns ML vectors: as they are stored sparse, where one is."""
    sizes, values = _vector_sizes(column), column.field("values")
    width = int(sizes[0, 0]) if len(sizes) else 0
    is_dense = np.asarray(column.field("type")) == 1
    numbers = _numbers(numpy_values(values.flatten()), name)
    if is_dense.all():
        return numbers.reshape(-1, width)
    ragged = Ragged(_lengths(values), np.empty(len(numbers), SPARSE), width)
    ragged.values["number"] = numbers
    is_from_dense = is_dense[ragged.owners()]
    ragged.values["place"][is_from_dense] = ragged.positions_in_row()[is_from_dense]
    ragged.values["place"][~is_from_dense] = numpy_values(column.field("indices").flatten())
    return ragged


def _sparse_of(dense: Array) -> Ragged:
    rows, places = np.nonzero(dense)
    values = np.empty(len(rows), SPARSE)
    values["place"], values["number"] = places, dense[rows, places]
    lengths = np.bincount(rows, minlength=len(dense)).astype(np.int32)
    return Ragged(lengths, values, dense.shape[1])
