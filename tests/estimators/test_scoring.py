"""The columns that a Python worker scores, without a Spark session."""

import weakref

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.ml.model_cache import ModelCache
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it
from torch import nn

from photinus.core.errors import DataError, UsageError
from photinus.core.settings import to_dict
from photinus.data.base import Batch
from photinus.data.columns import InputSpec
from photinus.data.inputs import cut_by_length
from photinus.estimators import scoring
from photinus.estimators.inputs import score_inputs
from photinus.estimators.network import Network, predictor
from photinus.estimators.scoring import scorer
from photinus.models.heads import NUMBERS
from photinus.models.module import ModuleConfig
from photinus.models.reading import output_of

FIELDS = T.StructType(
    [T.StructField("x2", T.ArrayType(T.DoubleType())), T.StructField("sum", T.DoubleType())]
)

pytestmark = pytest.mark.skipif(not hasattr(F, "arrow_udf"), reason="needs Spark 4.1")


def double(features):
    rows = features.astype(np.float64)
    return {"x2": 2 * rows, "sum": rows.sum(1)}


def score_columns(columns, shape, batch=2):
    parts = list(scorer(lambda: double, FIELDS, batch, shape).func(iter(columns)))
    return [len(part) for part in parts], [row for part in parts for row in part.to_pylist()]


def test_arrays_come_back_as_lists_in_their_order_and_batches():
    rows = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]
    column = pa.array([[9.0, 9.0], *rows], pa.list_(pa.float32()))[1:]  # starts inside its buffer
    sizes, rows_scored = score_columns([column[:3], column[3:], column[:0]], 2)
    assert sizes == [2, 1, 1]
    assert rows_scored == [{"x2": [2 * a, 2 * b], "sum": a + b} for a, b in rows]


def test_before_spark_4_1_it_is_refused_without_its_number(monkeypatch):
    makers = []
    monkeypatch.delattr(F, "arrow_udf")
    monkeypatch.setattr(
        scoring, "predict_batch_udf", lambda make, **_: makers.append(make) or double
    )
    scorer(lambda: double, FIELDS, 2, 2, "pixels")
    predict = makers[0]()
    assert predict(np.ones((1, 2), "f4"))["sum"] == 2
    with pytest.raises(
        DataError,
        match=r"column pixels: inf at 0, expected finite numbers in float32, up to 3.4e.38; mend",
    ):
        predict(np.array([[0, 0], [np.inf, 0]], "f4"))


def test_bytes_are_scored_like_arrays():
    column = pa.array([b"\x09\x09", b"\x01\xff", b"\x03\x04"], pa.binary())[1:]
    as_lists = pa.array([[1, 255], [3, 4]], pa.list_(pa.float32()))
    assert score_columns([column], None) == score_columns([as_lists], 2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (np.nan, "nan at 1, expected finite numbers"),
        (-np.inf, r"-inf at 1, expected finite numbers in float32, up to 3\.4e\+38"),
        (None, "nan at 1, expected finite numbers"),
    ],
    ids=["nan", "-inf", "null"],
)
def test_a_row_that_is_not_finite_is_refused_with_its_column(wrong, said):
    rows = [[[1.0, 2.0]] * 3, [[3.0, 4.0], [5.0, wrong]]]
    columns = [pa.array(part, pa.list_(pa.float32())) for part in rows]
    message = f"partition 0 row 4 column pixels: {said}; mend the row"
    score = scorer(lambda: double, FIELDS, 2, 2, "pixels").func
    with pytest.raises(DataError, match=message):
        list(score(iter(columns)))


def test_of_several_columns_that_are_scored_the_one_that_is_not_finite_is_named():
    rows = pa.array([[1.0, 2.0], [np.nan, 4.0]], pa.list_(pa.float32()))
    score = scorer(lambda: double, FIELDS, 2, 2, ("size", "rooms")).func
    with pytest.raises(DataError, match="row 1 column size: nan, expected finite numbers; mend"):
        list(score(iter([rows])))


def test_a_row_of_another_size_is_one_sentence():
    column = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32()))
    with pytest.raises(DataError, match="a row must hold 3 numbers; got 2 numbers a row, 0 nulls"):
        score_columns([column], 3)
    column = pa.array([[1.0], [2.0, 3.0, 4.0]], pa.list_(pa.float32()))  # two on average
    with pytest.raises(DataError, match="a row must hold 2 numbers; got 1 to 3 numbers a row"):
        score_columns([column], 2)
    with pytest.raises(DataError, match="a row must hold 2 numbers; got 1 to 2 numbers a row"):
        score_columns([pa.array([b"a", b"bc"], pa.binary())], None)


def test_ml_vectors_are_scored_like_arrays():
    fields = {"type": pa.array([1, 1], pa.int8()), "values": pa.array([[1.0, 2.0], [3.0, 4.0]])}
    column = pa.StructArray.from_arrays(list(fields.values()), list(fields))
    as_lists = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64()))
    assert score_columns([column], 2) == score_columns([as_lists], 2)


VECTOR = pa.struct(
    {
        "type": pa.int8(),
        "size": pa.int32(),
        "indices": pa.list_(pa.int32()),
        "values": pa.list_(pa.float64()),
    }
)


def test_sparse_vectors_are_scored_with_their_zeros():
    column = pa.array(
        [
            {"type": 1, "size": None, "indices": None, "values": [9.0, 9.0, 9.0]},
            {"type": 0, "size": 3, "indices": [2], "values": [5.0]},
            {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0, 3.0]},
        ],
        VECTOR,
    )[1:]
    as_lists = pa.array([[0.0, 0.0, 5.0], [1.0, 2.0, 3.0]], pa.list_(pa.float64()))
    assert score_columns([column], 3) == score_columns([as_lists], 3)
    longer = pa.array([{"type": 0, "size": 4, "indices": [1, 3], "values": [1.0, 2.0]}], VECTOR)
    with pytest.raises(DataError, match="a row must hold 2 numbers; got 4 numbers a row"):
        score_columns([longer], 2)


@pytest.mark.parametrize("kind", [pa.decimal128(21, 2), pa.int32(), pa.float32(), pa.bool_()])
def test_numbers_of_every_type_are_scored_as_float32(kind):
    column = pa.array([[1, 0]], pa.list_(pa.int64())).cast(pa.list_(kind))
    seen = []
    score = scorer(lambda: lambda x: seen.append(x) or double(x), FIELDS, 2, 2).func
    assert next(iter(score(iter([column])))).to_pylist() == [{"x2": [2.0, 0.0], "sum": 1.0}]
    assert seen[0].dtype == np.float32


def test_bytes_of_a_session_with_large_types_are_scored():
    rows = [b"\x09\x09", b"\x01\xff"]
    plain, large = pa.array(rows, pa.binary()), pa.array(rows, pa.large_binary())
    assert score_columns([large[1:]], None) == score_columns([plain[1:]], None)


@pytest.mark.parametrize(
    "column",
    [pa.array([1.0]), pa.array(["1"]), pa.array([["1"]]), pa.array([{"height": 1}])],
    ids=["number", "text", "texts", "structure"],
)
def test_what_is_no_array_of_numbers_is_refused_with_its_type(column):
    message = f"takes arrays of numbers, ML vectors or bytes; got type {column.type}; array.a, b."
    with pytest.raises(DataError, match=message):
        score_columns([column], 1)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (2, "takes arrays of numbers, ML vectors or bytes; got 2 arguments; array"),
        (InputSpec(columns={"x": "a", "y": "b"}), "a structure of x, y; got 2 arguments; named_st"),
    ],
    ids=["features", "inputs"],
)
def test_several_arguments_are_refused(shape, said):
    with pytest.raises(DataError, match=said):
        score_columns([(pa.array([1.0]), pa.array([2.0]))], shape)


def test_the_network_is_made_once_in_a_worker():
    calls = []

    def make():
        calls.append(1)
        return double

    score = scorer(make, FIELDS, 2, 1).func
    column = pa.array([[1.0]], pa.list_(pa.float32()))
    assert list(score(iter([column]))) == list(score(iter([column])))
    assert calls == [1]


def test_a_task_keeps_its_network_though_its_worker_forgets_it(monkeypatch):
    calls = []

    def make():
        calls.append(1)
        return double

    monkeypatch.setattr(ModelCache, "get", lambda key: None)  # as after three other models
    column = pa.array([[1.0]], pa.list_(pa.float32()))
    assert len(list(scorer(make, FIELDS, 2, 1).func(iter([column] * 3)))) == 3
    assert calls == [1]


def test_a_partition_without_rows_makes_no_network():
    def make():
        raise AssertionError("the network was made")

    assert list(scorer(make, FIELDS, 2, 1).func(iter([]))) == []
    inputs = InputSpec(columns={"x": "numbers"})
    assert list(scorer(make, FIELDS, 2, inputs).func(iter([]))) == []


class Slopes(nn.Module):
    """Returns a number and its slopes by the row, as networks of physics do."""

    def __init__(self, is_within=True):
        super().__init__()
        self.line, self.is_within = nn.Linear(2, 1), is_within

    def forward(self, x):
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            u = torch.tanh(self.line(x))
            outputs = torch.cat([u, *torch.autograd.grad(u.sum(), x, create_graph=True)], 1)
            if self.is_within:
                return outputs
        return outputs.clone()


@pytest.mark.parametrize("is_within", [True, False])
def test_a_module_that_differentiates_in_forward_is_scored_and_measured(is_within):
    config = ModuleConfig(
        module=f"{__name__}:Slopes", arguments={"is_within": is_within}, loss="mse"
    )
    model, x = config.build((), 1), np.array([[1, 2], [3, 4]], "f4")
    tensors = model.parameters.tensors()
    network = Network(
        kind="module", settings=to_dict(config), tensors=tensors, shape=(2,), classes=3
    )
    raw = predictor(network, ["raw"])(x)["raw"]
    expected = model.module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(raw, expected, rtol=1e-6)
    np.testing.assert_array_equal(model.outputs(x), expected)
    metrics = model.measure(Batch(x, np.zeros((2, 3))))
    assert metrics["loss"] == pytest.approx(2 * (expected**2).mean(), rel=1e-5)


class Offset(nn.Module):
    """Numbers that are large beside their differences."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(1, 1, dtype=torch.float64)

    def forward(self, x):
        return self.line(x) + 2e8


def network_of(config, **fields):
    tensors = config.build((), 1).parameters.tensors()
    return Network(kind="module", settings=to_dict(config), tensors=tensors, **fields)


def test_outputs_of_float64_are_scored_as_the_module_returns_them():
    config = ModuleConfig(module=f"{__name__}:Offset", loss="mse")
    network = network_of(config, shape=(1,), classes=1, head=NUMBERS)
    x = np.linspace(-1, 1, 9, dtype=np.float32)[:, None]
    with torch.no_grad():
        expected = network.module()(torch.from_numpy(x).double()).numpy()[:, 0]
    assert len(np.unique(expected.astype(np.float32))) < 9
    np.testing.assert_array_equal(predictor(network, ["prediction"])(x)["prediction"], expected)
    assert predictor(network, ["layer"], "line")(x)["layer"].dtype == np.float32


class Squeezed(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.line = nn.Linear(2, outputs)

    def forward(self, x):
        return self.line(x).squeeze()


@pytest.mark.parametrize(("outputs", "head"), [(1, NUMBERS), (3, "classes")])
def test_a_module_that_squeezes_its_outputs_scores_one_row_as_among_others(outputs, head):
    loss = "mse" if head == NUMBERS else "cross_entropy"
    config = ModuleConfig(module=f"{__name__}:Squeezed", arguments={"outputs": outputs}, loss=loss)
    network = network_of(config, shape=(2,), classes=outputs, head=head)
    x = np.array([[1, 2], [3, 4]], np.float32)
    score = predictor(network, ["raw", "prediction"] if head == "classes" else ["prediction"])
    both, alone = score(x), score(x[:1])
    for name, column in both.items():
        np.testing.assert_allclose(alone[name], column[:1], rtol=1e-6)


class Types(nn.Module):
    """Returns outputs of a type."""

    def __init__(self, dtype):
        super().__init__()
        self.line, self.dtype = nn.Linear(1, 1), getattr(torch, dtype)

    def forward(self, x):
        return (0 * self.line(x) + 0.25).to(self.dtype) + (not self.dtype.is_floating_point) * (
            2**24 + 1
        )


@pytest.mark.parametrize(
    ("dtype", "becomes", "number"),
    [("bfloat16", "f4", 0.25), ("float16", "f4", 0.25), ("int64", "f8", 2**24 + 1)],
)
def test_outputs_of_half_types_become_float32_and_whole_numbers_float64(dtype, becomes, number):
    config = ModuleConfig(module=f"{__name__}:Types", arguments={"dtype": dtype}, loss="mse")
    outputs = network_of(config, shape=(1,), classes=1, head=NUMBERS).outputs()
    array = outputs(np.ones((2, 1), np.float32))
    assert array.dtype == becomes
    assert array.tolist() == [[number]] * 2


class Twice(nn.Module):
    """Runs a layer twice; once and no more for a negative number, and never for a large one."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(1, 1, bias=False)

    def forward(self, x):
        if (x > 9).any():
            return x
        hidden = self.line(x)
        if (x < 0).any():
            raise ValueError("a negative number")
        return self.line(hidden)


@pytest.fixture
def twice():
    config = ModuleConfig(module=f"{__name__}:Twice", loss="mse")
    return network_of(config, shape=(1,), classes=1, head=NUMBERS)


def test_of_a_layer_that_runs_twice_the_last_output_counts_and_none_is_kept(twice, monkeypatch):
    copies = []

    def record_output(layer, out):
        copy = output_of(layer, out)
        copies.append(weakref.ref(copy))
        return copy

    monkeypatch.setattr("photinus.estimators.network.output_of", record_output)
    outputs, slope = twice.outputs("line"), twice.module().line.weight.item()
    for x in (1, 2):
        layer_output = outputs(np.full((3, 1), x, np.float32))
        np.testing.assert_allclose(layer_output, np.full((3, 1), x * slope**2), rtol=1e-6)
    assert [copy() for copy in copies] == [None] * 4


def test_a_call_that_ended_in_an_error_leaves_no_output_to_the_next(twice):
    outputs = twice.outputs("line")
    with pytest.raises(ValueError, match="a negative number"):
        outputs(np.full((1, 1), -1, np.float32))
    with pytest.raises(UsageError, match="the layer 'line' does not run in forward; name a layer"):
        outputs(np.full((1, 1), 10, np.float32))


def ragged(rows):
    """Rows of tokens, of 1 to 90 of them, as a column of structures."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(2.5, 0.8, rows), 1, 90).astype(int)
    tokens = pa.array([rng.integers(1, 9, length).tolist() for length in lengths])
    return pa.StructArray.from_arrays([tokens], ["tokens"])


def mean(batch):
    """Of a row's own tokens, and how many there are."""
    mask = batch["tokens_mask"]
    return {"mean": (batch["tokens"] * mask).sum(1) / mask.sum(1), "size": mask.sum(1)}


def test_texts_of_mixed_length_are_scored_as_one_by_one_and_in_their_order():
    columns, spec = [ragged(700), ragged(3), ragged(0)], InputSpec(columns={"tokens": "ids"})
    parts = list(score_inputs(iter(columns), spec, 64, lambda: mean))
    texts = [row["tokens"] for column in columns for row in column.to_pylist()]
    assert np.concatenate([part["size"] for part in parts]).tolist() == list(map(len, texts))
    plain = [np.mean(text) for text in texts]
    np.testing.assert_allclose(np.concatenate([part["mean"] for part in parts]), plain)


@pytest.mark.parametrize("batch", [1, 8, 64, 512])
def test_batches_of_texts_hold_little_padding_and_every_row_once(batch):
    lengths = np.sort(ragged(5000).field("tokens").value_lengths().to_numpy())
    ends = cut_by_length(lengths, batch)
    assert ends[-1] == 5000
    for rows in np.split(lengths, ends[:-1]):
        assert 0 < len(rows) <= batch
        assert len(rows) <= 16 or rows.sum() >= 7 / 8 * rows[-1] * len(rows)
