import numpy as np
import pyarrow as pa
import pytest

from photinus.core.errors import DataError
from photinus.core.settings import from_dict, to_dict
from photinus.data.arrow import ColumnSpec, arrays
from photinus.data.checks import RowChecker, RowChecks

VALUES = np.random.default_rng(0).random((7, 4), np.float32)
BYTES = np.arange(28, dtype=np.uint8).reshape(7, 4)
LISTS = [
    pa.list_(pa.float32()),
    pa.list_(pa.float64()),
    pa.large_list(pa.float32()),
    pa.list_(pa.float32(), 4),
]
BINARIES = [pa.binary(), pa.large_binary(), pa.binary(4)]
IMAGE = pa.struct(
    [
        ("origin", pa.string()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("nChannels", pa.int32()),
        ("mode", pa.int32()),
        ("data", pa.binary()),
    ]
)


def batch(features, label=None):
    columns = {"x": features} | ({} if label is None else {"y": pa.array(label)})
    return pa.RecordBatch.from_pydict(columns)


def read_arrays(record_batch, *, checker=None, **spec):
    checker = checker or RowChecker(RowChecks(), 3)
    return arrays(record_batch, ColumnSpec(features=("x",), **spec), checker)[:2]


def image(pixels, height=None):
    h, w, c = pixels.shape
    return {
        "origin": "",
        "height": height or h,
        "width": w,
        "nChannels": c,
        "mode": 16,
        "data": pixels.tobytes(),
    }


@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_lists_become_a_matrix(kind):
    record_batch = batch(pa.array(VALUES.tolist(), kind), label=range(7))
    for bounds in (slice(0, 7), slice(2, 5), slice(3, 3)):
        part = record_batch.slice(bounds.start, bounds.stop - bounds.start)
        features, labels = read_arrays(part, kind="list", shape=(2, 2), label="y")
        assert features.dtype == np.float32
        assert np.array_equal(features, VALUES[bounds].reshape(-1, 2, 2))
        assert labels.tolist() == list(range(7))[bounds]


@pytest.mark.parametrize("kind", BINARIES, ids=str)
def test_bytes_become_a_matrix(kind):
    record_batch = batch(pa.array([row.tobytes() for row in BYTES], kind))
    for bounds in (slice(0, 7), slice(2, 5), slice(3, 3)):
        part = record_batch.slice(bounds.start, bounds.stop - bounds.start)
        features, labels = read_arrays(part, kind="binary", dtype="uint8", shape=(4,))
        assert np.array_equal(features, BYTES[bounds])
        assert labels is None


def test_bytes_can_be_floats():
    record_batch = batch(pa.array([row.tobytes() for row in VALUES]))
    features, _ = read_arrays(record_batch, kind="binary", dtype="float32", shape=(4,))
    assert np.array_equal(features, VALUES)


def test_columns_of_numbers_are_stacked():
    record_batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": [0.5, 1.5], "c": [True, False]})
    spec = ColumnSpec(features=("a", "c", "b"), kind="numeric", shape=(3,))
    features = arrays(record_batch, spec, RowChecker(RowChecks())).features
    assert features.tolist() == [[1, 1, 0.5], [2, 0, 1.5]]


def test_of_columns_that_are_stacked_the_one_that_is_not_finite_is_named():
    record_batch = pa.RecordBatch.from_pydict({"a": [1.0, 2.0], "b": [0.5, float("nan")]})
    spec = ColumnSpec(features=("a", "b"), kind="numeric", shape=(2,))
    with pytest.raises(DataError, match="row 1 column b: nan, expected finite numbers; mend"):
        arrays(record_batch, spec, RowChecker(RowChecks()))


def test_images_become_their_bytes():
    pixels = np.arange(36, dtype=np.uint8).reshape(3, 2, 2, 3)
    record_batch = batch(pa.array([image(p) for p in pixels], IMAGE)).slice(1, 2)
    features, _ = read_arrays(record_batch, kind="image", dtype="uint8", shape=(2, 2, 3))
    assert np.array_equal(features, pixels[1:])


def test_an_image_of_another_size_is_named():
    pixels = np.zeros((2, 2, 3), np.uint8)
    record_batch = batch(pa.array([image(pixels), image(pixels, height=1)], IMAGE))
    with pytest.raises(DataError, match="row 1 column x: size 1x2x3, expected 2x2x3"):
        read_arrays(record_batch, kind="image", dtype="uint8", shape=(2, 2, 3))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([[1, 2], [1]], "partition 3 row 1 column x: length 1, expected 2"),
        ([[1, 2], [1, 2, 3]], "row 1 column x: length 3, expected 2"),
        ([None, [1, 2]], "row 0 column x: null"),
        ([[1, 2], [3, None]], "row 1 column x: null at 1"),
        ([[1, 2], [3, float("nan")]], "row 1 column x: nan at 1, expected finite"),
    ],
)
def test_a_bad_list_is_named(values, said):
    with pytest.raises(DataError, match=said):
        read_arrays(batch(pa.array(values, pa.list_(pa.float32()))), kind="list", shape=(2,))


def test_of_ragged_sequences_it_is_said_that_inputs_pads_them():
    ragged = batch(pa.array([[1, 2], [1]], pa.list_(pa.float32())))
    message = (
        r"; name it in inputs=\{'parameter of forward': 'x'\}, where arrays .* padded, .*collate"
    )
    message += "; or cut its rows to one length, or leave the row out$"
    with pytest.raises(DataError, match=message):
        read_arrays(ragged, kind="list", shape=(2,))
    with pytest.raises(DataError, match="null; mend the row, or leave it out"):
        read_arrays(
            batch(pa.array([None, [1, 2]], pa.list_(pa.float32()))), kind="list", shape=(2,)
        )


def test_bytes_of_another_length_are_named():
    with pytest.raises(DataError, match="row 1 column x: length 3 bytes, expected 4 bytes"):
        read_arrays(batch(pa.array([b"1234", b"123"])), kind="binary", dtype="float32", shape=(1,))


def test_a_number_that_float32_cannot_hold_is_a_wrong_row_and_no_warning():
    batch = pa.RecordBatch.from_arrays(
        [pa.array([[1.0, 2.0], [3.0, 1e300]], pa.list_(pa.float64()))], names=["features"]
    )
    with pytest.raises(DataError, match="row 1 column features: inf at 1"):
        arrays(batch, ColumnSpec(features=("features",), shape=(2,)), RowChecker(RowChecks()))


def test_a_null_label_is_named():
    record_batch = batch(pa.array([[1.0], [2.0]]), label=[1, None])
    with pytest.raises(DataError, match="row 1 column y: null"):
        read_arrays(record_batch, kind="list", shape=(1,), label="y")


@pytest.mark.parametrize(
    ("wrong", "said"), [(-2.0, "weight -2, expected at least 0"), (np.nan, "nan, expected finite")]
)
def test_a_wrong_weight_is_named_by_its_own_column(wrong, said):
    table = pa.RecordBatch.from_pydict({"x": [1.0, 2.0], "importance": [1.0, wrong]})
    spec = ColumnSpec(features=("x",), weight="importance", kind="numeric", shape=(1,))
    with pytest.raises(DataError, match=f"row 1 column importance: {said}"):
        arrays(table, spec, RowChecker(RowChecks()))


def test_the_row_number_counts_all_batches():
    checker = RowChecker(RowChecks(), 3)
    read_arrays(batch(pa.array([[1.0, 2.0]] * 4)), checker=checker, kind="list", shape=(2,))
    with pytest.raises(DataError, match="row 5 column x: null"):
        read_arrays(batch(pa.array([[1.0, 2.0], None])), checker=checker, kind="list", shape=(2,))


@pytest.mark.parametrize(
    ("column", "kind", "said"),
    [
        (pa.array(["a"]), "list", "lists of numbers; got type string; change"),
        (pa.array([["a"]]), "list", "numbers; got type string; change"),
        (pa.array([[1.0]]), "binary", "bytes; got type list<.*>; change"),
        (pa.array(["a"]), "numeric", "numbers; got type string; change"),
        (pa.array([b"a"]), "image", "an image structure; got type binary; change"),
    ],
)
def test_a_column_of_another_type_is_named(column, kind, said):
    with pytest.raises(DataError, match=f"column x must hold {said}"):
        read_arrays(batch(column), kind=kind, dtype="uint8", shape=(1, 1, 1))


def test_a_missing_column_is_named():
    with pytest.raises(DataError, match="no column y; got x"):
        read_arrays(batch(pa.array([[1.0]])), kind="list", shape=(1,), label="y")


def test_memory_is_shared_where_the_type_is_the_same():
    numbers = pa.array(VALUES.tolist(), pa.list_(pa.float32()))
    features, _ = read_arrays(batch(numbers), kind="list", shape=(4,))
    assert np.shares_memory(features, numbers.values.to_numpy())


def test_a_spec_survives_plain_values():
    spec = ColumnSpec(features=("a", "b"), label="y", kind="numeric", shape=(2,), scale=0.5)
    assert from_dict(ColumnSpec, to_dict(spec)) == spec


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.float64())], ids=str)
def test_arrays_of_labels_of_other_lengths_are_named(kind):
    # three lengths whose sum two labels a row would also have: rows got the labels of others
    labels = pa.array([[1, 0], [1], [0, 0, 1]], kind)
    rows = pa.array([[1.0]] * 3, pa.list_(pa.float32()))
    message = "partition 3 row 1 column y: 1 labels, expected 2 as in the first row; mend the row"
    with pytest.raises(DataError, match=message):
        read_arrays(batch(rows, labels), kind="list", shape=(1,), label="y")


def test_arrays_of_labels_keep_their_length_from_block_to_block():
    rows = pa.array([[1.0]], pa.list_(pa.float32()))
    checker = RowChecker(RowChecks(), 3)
    kinds = {"kind": "list", "shape": (1,), "label": "y"}
    _, labels = read_arrays(batch(rows, [[1, 0]]), checker=checker, **kinds)
    assert labels.tolist() == [[1, 0]]
    with pytest.raises(DataError, match="row 1 column y: 3 labels, expected 2"):
        read_arrays(batch(rows, [[1, 0, 1]]), checker=checker, **kinds)
