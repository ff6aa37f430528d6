"""Arrow columns of every kind as inputs; a wrong row or column is one sentence."""

import io
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from photinus.core.errors import DataError, UsageError
from photinus.data import columns as columns_module
from photinus.data.arrow import ColumnSpec, arrays
from photinus.data.checks import RowChecker, RowChecks
from photinus.data.columns import InputSpec, inputs_from, inputs_of, numpy_values, rename_columns
from photinus.data.inputs import Ragged

VECTOR = pa.struct(
    [
        ("type", pa.int8()),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)
DENSE = {"type": 1, "size": None, "indices": None, "values": [1.0, 0.0, 3.0]}
SPARSE = {"type": 0, "size": 3, "indices": [2], "values": [7.0]}


def read(column, *, encoder=None, checker=None):
    spec = InputSpec(columns={"x": "col"}, encoders={} if encoder is None else {"x": encoder})
    checker = checker or RowChecker(RowChecks(), 3)
    batch = pa.RecordBatch.from_arrays([column], names=["x"])
    return arrays(batch, ColumnSpec(features=("x",), inputs=spec), checker).features


def to_train_rows(column, **options):
    inputs = read(column, **options)
    return inputs.batch(np.arange(len(inputs)))


@pytest.fixture
def encoders(monkeypatch):
    def use(function):
        columns_module._encoder.cache_clear()
        monkeypatch.setattr(columns_module, "resolve_user_code", lambda name, kind: function)
        return f"mine:{function.__name__}"

    yield use
    columns_module._encoder.cache_clear()


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
def test_whole_numbers_become_int64_and_are_stored_as_they_are(kind):
    column = pa.array([7, 1, 2], kind)[1:]
    assert read(column).columns["x"].dtype == kind.to_pandas_dtype()
    assert to_train_rows(column)["x"].dtype == np.int64
    assert to_train_rows(column)["x"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1.5, 2.5]), [1.5, 2.5]),
        (pa.array(["1.5", "2.5"]).cast(pa.decimal128(5, 2)), [1.5, 2.5]),
        (pa.array([[1.0, 2.0], [3.0]]), [[1.0, 2.0], [3.0, 0.0]]),
        (pa.array([[1.0], [3.0]], pa.list_(pa.float32(), 1)), [[1.0], [3.0]]),
        (pa.array([[1.0], [3.0, 4.0]], pa.large_list(pa.float32())), [[1.0, 0.0], [3.0, 4.0]]),
        (
            pa.array([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]]),
            [[[1, 2], [0, 0]], [[3, 4], [5, 6]]],
        ),
        (pa.array([DENSE, DENSE], VECTOR), [[1, 0, 3]] * 2),
        (pa.array([SPARSE, DENSE], VECTOR), [[0, 0, 7], [1, 0, 3]]),
    ],
)
def test_numbers_arrays_and_vectors_become_float32(column, expected):
    for part in (column, pa.concat_arrays([column, column])[2:]):
        batch = to_train_rows(part)
        assert batch["x"].dtype == np.float32
        assert batch["x"].tolist() == expected


@pytest.mark.parametrize("kind", ["int8", "uint16", "int64", "float16", "float32", "float64"])
def test_numbers_are_read_as_pyarrow_reads_them(kind):
    numbers = pa.array(np.arange(9).astype(kind))
    for column in (numbers, numbers[3:7], numbers[4:4], pa.array([], numbers.type)):
        theirs = column.to_numpy(zero_copy_only=False)
        np.testing.assert_array_equal(numpy_values(column), theirs, strict=True)


@pytest.mark.processes
def test_reading_numbers_does_not_load_pandas():
    code = """
import sys, pyarrow as pa
from photinus.data.columns import numpy_values
column = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(bytes(8))])
assert numpy_values(column).tolist() == [0]
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("values", [[True, False, True], [1.5, None, 2.5], [1, None]])
def test_truth_values_and_nulls_are_read_as_pyarrow_reads_them(values):
    column = pa.array(values)[1:]
    theirs = column.to_numpy(zero_copy_only=False)
    np.testing.assert_array_equal(numpy_values(column), theirs, strict=True)


def test_bytes_stay_bytes_and_truth_values_truth():
    for kind in (pa.binary(), pa.large_binary(), pa.binary(2)):
        batch = to_train_rows(pa.array([b"zz", b"ab", b"cd"], kind)[1:])
        assert batch["x"].dtype == np.uint8
        assert batch["x"].tolist() == [[97, 98], [99, 100]]
    assert to_train_rows(pa.array([True, False]))["x"].tolist() == [True, False]
    assert to_train_rows(pa.array([b"a", b"bcd"]))["x_mask"].sum() == 4


def test_a_vector_is_stored_as_the_first_ones_were():
    checker = RowChecker(RowChecks())
    first = read(pa.array([SPARSE], VECTOR), checker=checker)
    second = read(pa.array([DENSE], VECTOR), checker=checker)
    assert all(isinstance(i.columns["x"], Ragged) for i in (first, second))
    assert second.batch(np.array([0]))["x"].tolist() == [[1, 0, 3]]
    checker = RowChecker(RowChecks())
    read(pa.array([DENSE], VECTOR), checker=checker)
    assert read(pa.array([SPARSE], VECTOR), checker=checker).columns["x"].tolist() == [[0, 0, 7]]


def png(size=(2, 3)):
    file = io.BytesIO()
    Image.new("RGB", size, (9, 8, 7)).save(file, "PNG")
    return file.getvalue()


def test_encoded_images_are_decoded():
    batch = to_train_rows(pa.array([png(), png()]), encoder="image")
    assert batch["x"].shape == (2, 3, 2, 3)
    assert batch["x"].dtype == np.uint8
    assert batch["x"][0, 0, 0].tolist() == [9, 8, 7]


@pytest.mark.parametrize(
    ("column", "encoder", "said"),
    [
        (pa.array(["a"]), None, r"column col holds text; name an encoder: inputs=.*encoders="),
        (pa.array([["a"]]), None, "column col holds text"),
        (pa.array([{"a": 1}]), None, "column col: a model cannot learn from this type"),
        (pa.array([1.0, None]), None, "partition 3 row 1 column col: null"),
        (pa.array([[1], [2, None]]), None, "partition 3 row 1 column col: null inside an array"),
        (pa.array([1.0, np.nan]), None, "partition 3 row 1 column col: nan, expected finite"),
        (pa.array([[1.0], [2.0, np.inf]]), None, "row 1 column col: inf, expected finite"),
        (pa.array([1.0, 1e300]), None, "row 1 column col: inf, expected finite"),
        (
            pa.array([[[1, 2]], [[3, 4], [5]]]),
            None,
            "row 1 column col: inner arrays are not all of length 2; only the outermost",
        ),
        (
            pa.array([DENSE, SPARSE | {"size": 4}], VECTOR),
            None,
            "row 1 column col: size 4, expected 3; make all vectors of one size",
        ),
        (
            pa.array([png(), png()[:40]]),
            "image",
            "partition 3 row 1 column col: the image cannot be decoded; got .*; mend the row",
        ),
        (pa.array([png(), b"no"]), "image", "row 1 column col: the image cannot be decoded"),
        (
            pa.array([png(), png((4, 4))]),
            "image",
            r"row 1 column col: shape \(4, 4, 3\), expected \(3, 2, 3\); scale or cut",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_row_and_its_mend(column, encoder, said):
    with pytest.raises(DataError, match=said) as caught:
        read(column, encoder=encoder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rooms", "said"),
    [
        ([1.0, None], "partition 3 row 1 column rooms: null; mend the row"),
        ([np.nan, 2.0], "partition 3 row 0 column rooms: nan, expected finite numbers"),
    ],
)
def test_of_several_columns_for_one_input_the_one_with_a_wrong_number_is_named(rooms, said):
    stacked = pa.array([list(pair) for pair in zip([3.0, 4.0], rooms, strict=True)])
    spec = InputSpec(columns={"x": ("size", "rooms")})
    checker = RowChecker(RowChecks(), 3)
    checker.open(2)
    with pytest.raises(DataError, match=said):
        inputs_of(pa.RecordBatch.from_arrays([stacked], ["x"]), spec, (), checker)


def test_several_columns_for_one_input_are_as_many_as_it_names():
    """A function of SQL is handed whatever array a query has."""
    stacked = pa.array([[1.0, 2.0], [1.0, 2.0, 3.0]])
    checker = RowChecker(RowChecks(), 3)
    checker.open(2)
    said = "partition 3 row 1 column size, rooms: 3 numbers where 2 are due"
    with pytest.raises(DataError, match=said):
        inputs_of(
            pa.RecordBatch.from_arrays([stacked], ["x"]),
            InputSpec(columns={"x": ("size", "rooms")}),
            (),
            checker,
        )


def test_an_encoder_returns_an_array_a_list_or_a_dict(encoders):
    column = pa.array(["a", "bcd"])
    name = encoders(lambda texts: [[ord(c) for c in t] for t in texts])
    assert to_train_rows(column, encoder=name)["x"].tolist() == [[97, 0, 0], [98, 99, 100]]
    name = encoders(lambda texts: np.array([len(t) for t in texts], np.int16))
    assert to_train_rows(column, encoder=name)["x"].tolist() == [1, 3]
    name = encoders(lambda texts: {"ids": [[1]] * len(texts), "n": [0.5] * len(texts)})
    batch = to_train_rows(column, encoder=name)
    assert sorted(batch) == ["ids", "ids_mask", "n"]


def test_an_encoder_that_fails_is_told_with_the_row_that_it_does_not_take(encoders):
    def no_digit(texts):
        if any(t.isdigit() for t in texts):
            raise ValueError("a digit")
        return [0] * len(texts)

    name = encoders(no_digit)
    message = (
        "partition 3 row 2 column col: the encoder 'mine:no_digit' failed: ValueError: a digit"
    )
    with pytest.raises(DataError, match=message):
        read(pa.array(["a", "b", "7"]), encoder=name)
    name = encoders(lambda texts: texts[:-1])
    with pytest.raises(DataError, match="must return as many rows as it gets; got 1 for 2"):
        read(pa.array(["a", "b"]), encoder=name)
    name = encoders(lambda texts: list(texts))
    with pytest.raises(DataError, match="column col must hold numbers; got type <U1"):
        read(pa.array(["a", "b"]), encoder=name)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: InputSpec(columns={"a b": "c"}), "an input has the name of a parameter"),
        (lambda: InputSpec(columns={"a": 3}), "the input a is a column's name, or a list"),
        (lambda: InputSpec(columns={"a": "c"}, encoders={"b": "x:y"}), "unknown input in encoders"),
        (
            lambda: InputSpec(columns={"a": "c"}, encoders={"a": "imgae"}).encoder("a"),
            "unknown encoder; got 'imgae'; name image, package.module:function, or a pre-trained",
        ),
    ],
)
def test_inputs_that_mean_nothing_are_refused(made, said):
    with pytest.raises(UsageError, match=said):
        made()


def test_inputs_in_memory_are_read_like_columns():
    inputs = inputs_from({"t": [[1, 2], [3]], "n": np.array([0.5, 1.5])}, None)
    batch = inputs.batch(np.arange(2))
    assert batch["t"].tolist() == [[1, 2], [3, 0]]
    assert batch["n"].dtype == np.float32
    with pytest.raises(UsageError, match="equally many rows"):
        inputs_from({"t": [[1]], "n": np.zeros(2)}, None)
    with pytest.raises(DataError, match="column t holds text"):
        inputs_from({"t": ["a"]}, None)


def test_columns_are_renamed_and_numbers_stacked():
    record_batch = pa.RecordBatch.from_pydict({"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [5, 6]})
    renamed = rename_columns(record_batch, {"x": ["a", "b"], "y": "c"})
    assert renamed.to_pydict() == {"x": [[1.0, 3.0], [2.0, 4.0]], "y": [5, 6]}
