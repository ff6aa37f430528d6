"""Columns of every kind reach `forward`, on a real Spark."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pyspark.ml.linalg import Vectors
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from photinus.core.errors import DataError, PhotinusError, UsageError
from photinus.data.columns import InputSpec
from photinus.data.spark import as_frame, first_rows, selected
from photinus.estimators.module import (
    TorchClassificationModel,
    TorchClassifier,
    TorchEstimator,
)
from photinus.models.module import ModuleConfig
from photinus.run.job import Job, Source
from photinus.run.train import train

pytestmark = pytest.mark.spark

NETS = "nets_of_inputs"
QUICK = {"batchSize": 8, "epochs": 1, "numWorkers": 2, "learningRate": 0.01}


@pytest.fixture(scope="module")
def session(spark):
    spark.sparkContext.addPyFile(str(Path(__file__).with_name("nets_of_inputs.py")))
    return spark


def image(i, size=(4, 3)):
    file = io.BytesIO()
    Image.new("RGB", size, (i, 2 * i, 3 * i)).save(file, "PNG")
    return file.getvalue()


def image_row(i):
    return Row(origin="", height=2, width=3, nChannels=3, mode=16, data=bytes([i] * 18))


VALUES = {
    "whole": lambda i: i,
    "number": lambda i: i / 2,
    "truth": lambda i: i % 3 == 0,
    "tokens": lambda i: [i % 7 + 1] * (1 + i % 5),
    "floats": lambda i: [i / 4] * (1 + i % 5),
    "matrix": lambda i: [[1.0, 2.0, 3.0]] * (1 + i % 4),
    "sparse": lambda i: Vectors.sparse(6, {i % 6: 1.0}) if i % 2 else Vectors.dense([1.0] * 6),
    "raw": lambda i: bytes([i] * 4),
    "picture": image_row,
    "png": image,
    "text": lambda i: "abc"[: 1 + i % 3],
    "label": lambda i: i % 2,
    "other": lambda i: i % 3 / 2,
    "weight": lambda i: 1.0 + i % 2,
}


@pytest.fixture(scope="module")
def frame(session):
    rows = [Row(**{name: value(i) for name, value in VALUES.items()}) for i in range(40)]
    return session.createDataFrame(rows).repartition(2).cache()


def train_classifier(frame, module, arguments=None, **params):
    settings = QUICK | params
    classifier = TorchClassifier(module=f"{NETS}:{module}", moduleArgs=arguments or {}, **settings)
    return classifier.fit(frame)


def test_a_column_of_each_kind_reaches_forward_in_training_and_scoring(frame):
    names = ("whole", "number", "truth", "raw", "picture", "png")
    of_any_length = ("tokens", "floats", "matrix", "text")
    inputs = {name: name for name in (*of_any_length, *names)}
    inputs |= {"vector": "sparse", "pair": ["whole", "number"]}
    encoders = {"png": "image", "text": f"{NETS}:letters"}
    model = train_classifier(frame, "All", inputs=inputs, encoders=encoders, weightCol="weight")
    assert model.transform(frame).where("prediction >= 0").count() == 40


def test_an_encoder_may_return_several_inputs(frame):
    encoders = {"t": f"{NETS}:worded"}
    model = train_classifier(frame, "Bag", {"others": 1}, inputs={"t": "text"}, encoders=encoders)
    assert model.transform(frame).count() == 40


def test_logits_among_named_outputs_are_trained_and_scored_as_if_they_were_alone(frame):
    inputs = {"tokens": "tokens"}
    plain, named = (train_classifier(frame, name, inputs=inputs) for name in ("Bag", "Named"))
    scored = [model.transform(frame).orderBy("whole").collect() for model in (plain, named)]
    probabilities = [[row.probability.tolist() for row in rows] for rows in scored]
    assert probabilities[0] == probabilities[1]
    assert named.evaluate(frame).error == plain.evaluate(frame).error


def test_two_inputs_learn_what_neither_tells_alone_and_keep_it_when_saved(session, tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for i in range(600):
        tokens = rng.integers(0, 25, rng.integers(1, 12)) + 25 * (i % 2)
        rows.append(([int(t) for t in tokens], float(i // 2 % 2), (i % 2) & (i // 2 % 2)))
    frame = session.createDataFrame(rows, "ids array<int>, amount double, label int")
    settings = {"epochs": 15, "learningRate": 0.05, "batchSize": 32, "moduleArgs": {"others": 1}}
    inputs = {"tokens": "ids", "price": "amount"}
    clf = TorchClassifier(module=f"{NETS}:Bag", inputs=inputs, numWorkers=2, **settings)
    model = clf.fit(frame)
    assert model.evaluate(frame).error < 0.05, "either input alone leaves an error of a quarter"
    predictions = [row.prediction for row in model.transform(frame).collect()]
    path = str(tmp_path / "model")
    model.write().save(path)
    loaded = TorchClassificationModel.load(path)
    assert [row.prediction for row in loaded.transform(frame).collect()] == predictions


@pytest.mark.timeout(900)  # 20 s on a quiet machine, 260 s on one with three times the work
def test_an_lstm_on_ragged_sequences_is_as_good_as_a_plain_loop(session):
    from nets_of_inputs import Sequences

    rng = np.random.default_rng(0)
    rows = [rng.integers(1, 20, rng.integers(2, 13)) for _ in range(1600)]
    labels = [int(row[0] >= 10) for row in rows]
    pairs = [(row.tolist(), label) for row, label in zip(rows, labels, strict=True)]
    frame = session.createDataFrame(pairs, "ids array<int>, label int")
    train, test = frame.limit(1200), frame.offset(1200)
    clf = TorchClassifier(
        module=f"{NETS}:Sequences",
        inputs={"tokens": "ids"},
        epochs=10,
        learningRate=0.01,
        numWorkers=2,
    )
    evaluation = clf.fit(train).evaluate(test)
    torch.manual_seed(0)
    net = Sequences()
    steps = 10 * -(-1200 // 32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def batch(index):
        longest = max(len(rows[i]) for i in index)
        padded = np.stack([np.pad(rows[i], (0, longest - len(rows[i]))) for i in index])
        tokens = torch.from_numpy(padded)
        return net(tokens, tokens > 0), torch.tensor([labels[i] for i in index])

    for _ in range(10):
        order = rng.permutation(1200)
        for start in range(0, 1200, 32):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(*batch(order[start : start + 32])).backward()
            optimizer.step()
            scheduler.step()
    outputs, expected = batch(range(1200, 1600))
    plain_error = float((outputs.argmax(1) != expected).float().mean())
    assert evaluation.examples == 400
    assert plain_error < 0.1, "the task can be learnt"
    assert evaluation.error <= plain_error + 0.01


def test_weights_and_several_labels_reach_the_loss(frame, tmp_path):
    """Rows of weight 0 are not learnt from; two labels are two outputs."""
    job = Job(
        model=ModuleConfig(
            module=f"{NETS}:Bag",
            arguments={"outputs": 2},
            loss="mse",
            epochs=30,
            lr=0.05,
            batch_size=8,
        ),
        data=Source(
            name="given", inputs={"tokens": "tokens"}, label=("first", "second"), weight="seen"
        ),
        workers=2,
    )
    labelled = frame.withColumn("seen", (F.col("label") == 0).cast("int"))
    wrong = F.when(F.col("label") == 0, 1.0).otherwise(100.0)
    labelled = labelled.withColumn("first", wrong).withColumn("second", -wrong)
    outcome = train(job, labelled, folder=tmp_path / "run")
    tokens = torch.ones(1, 1, dtype=torch.int64)
    outputs = outcome.model()(tokens=tokens, mask=tokens > 0).detach().numpy()
    np.testing.assert_allclose(outputs, [[1.0, -1.0]], atol=0.2)


def test_two_towers_learn_from_an_items_number_and_its_share_in_two_columns(frame):
    item, share = F.col("whole") % 4, F.lit(math.log(1 / 4))
    estimator = TorchEstimator(
        module=f"{NETS}:Towers",
        inputs={"whole": "whole", "item": "item"},
        labelCol=["item", "log_share"],
        loss="in_batch",
        **QUICK | {"batchSize": 32, "epochs": 40, "learningRate": 0.05},
    )
    module = estimator.fit(frame.withColumn("item", item).withColumn("log_share", share)).module()
    scores = module.users.weight @ module.items.weight.T  # [users, items]
    assert scores.argmax(1).tolist() == [user % 4 for user in range(40)]


def test_a_language_model_learns_the_next_token_of_its_one_input(session):
    import nets_of_inputs as nets

    rows = [([(start + n) % 8 for n in range(6)],) for start in range(64)]
    frame = session.createDataFrame(rows, "ids array<int>")
    settings = QUICK | {"epochs": 40, "learningRate": 0.1, "labelCol": ""}
    estimator = TorchEstimator(
        module=nets.NextToken,
        inputs={"tokens": "ids"},
        loss=nets.next_token,
        optimizer=torch.optim.Adam,
        **settings,
    )
    model = estimator.fit(frame)
    assert estimator.getOptimizer() == "adam"
    assert model.evaluate(frame).metrics["loss"] < 0.05
    scores = np.array([row.prediction for row in model.transform(frame).collect()])
    ids = np.array([row[0] for row in rows])
    # outputs of several dimensions come flat
    predicted = scores.reshape(64, 6, 8)[:, :-1].argmax(2)
    assert sorted(map(tuple, predicted)) == sorted(map(tuple, ids[:, 1:]))


def test_without_labels_a_loss_of_ones_own_gets_all_inputs_by_name(frame):
    inputs = {"one": "number", "other": "other"}
    settings = QUICK | {"labelCol": "", "epochs": 30, "learningRate": 0.05, "inputs": inputs}
    trained = TorchEstimator(module=f"{NETS}:Apart", loss=f"{NETS}:apart", **settings)
    untrained = TorchEstimator(
        module=f"{NETS}:Apart", loss=f"{NETS}:apart", **settings | {"learningRate": 1e-9}
    )
    first, last = (m.fit(frame).evaluate(frame).metrics["loss"] for m in (untrained, trained))
    assert last < first / 2
    with pytest.raises(
        UsageError, match="a loss of your own alone, and of no metric; got loss mse"
    ):
        TorchEstimator(module=f"{NETS}:Apart", **settings).fit(frame)


def test_labels_may_be_as_many_as_a_loss_of_ones_own_reads(session):
    rng = np.random.default_rng(0)
    rows = [(row.tolist(), (row * 3).astype(int).tolist()) for row in rng.random((200, 4))]
    frame = session.createDataFrame(rows, "x array<float>, y array<int>")
    fit = {"batchSize": 20, "epochs": 60, "learningRate": 0.2}
    settings = QUICK | fit | {"featuresCol": "x", "labelCol": "y"}
    model = TorchEstimator(module=f"{NETS}:Spots", loss=f"{NETS}:by_spot", **settings).fit(frame)
    assert model.evaluate(frame).metrics["loss"] < 0.6, "chance is 1.1"
    assert len(model.transform(frame).first().prediction) == 12


def test_a_module_of_two_heads_is_trained_by_a_loss_of_both(session):
    rng = np.random.default_rng(0)
    rows = [(x.tolist(), [float(x.sum()), float(x[0] > 0.5)]) for x in rng.random((200, 4))]
    frame = session.createDataFrame(rows, "x array<float>, y array<float>")
    fit = {"batchSize": 20, "epochs": 40, "learningRate": 0.1}
    settings = QUICK | fit | {"featuresCol": "x", "labelCol": "y"}
    model = TorchEstimator(module=f"{NETS}:Heads", loss=f"{NETS}:of_heads", **settings).fit(frame)
    assert model.evaluate(frame).metrics["loss"] < 0.6
    row = model.transform(frame).first()
    outputs = model.module()(torch.tensor([row.x]))
    expected = torch.cat([outputs["price"], outputs["kind"]], 1)[0].tolist()
    np.testing.assert_allclose(row.prediction, expected, rtol=1e-5)
    message = "several outputs are for a loss of your own alone, .* got loss mse, dict"
    message += "; return one tensor, or set a loss that reads them"
    with pytest.raises(UsageError, match=message):
        TorchEstimator(module=f"{NETS}:Heads", **settings).fit(frame)
    kinds = frame.withColumn("y", F.col("y")[1])
    clf = TorchClassifier(module=f"{NETS}:Heads", loss=f"{NETS}:of_heads", **settings)
    with pytest.raises(UsageError, match=r"a classifier returns one tensor.*use TorchEstimator"):
        clf.fit(kinds)
    bare = TorchEstimator(module=f"{NETS}:Bare", loss=f"{NETS}:of_heads", **settings)
    with pytest.raises(UsageError, match=r"of_heads does not take two rows .*; got KeyError: 'p"):
        bare.fit(frame)


def test_an_error_of_any_class_in_the_module_is_told_before_training(session):
    frame = session.createDataFrame([([0.0] * 4, 1)], "features array<float>, label int")
    message = (
        r"nets_of_inputs:Puzzled does not take rows of shape \(4,\); got KeyError: 'no such key'"
    )
    with pytest.raises(UsageError, match=message):
        TorchClassifier(module=f"{NETS}:Puzzled", **QUICK).fit(frame)


def test_a_corrupt_image_is_named_by_its_row(frame):
    broken = F.when(F.col("whole") == 37, F.lit(b"no image")).otherwise(F.col("png"))
    corrupted = frame.withColumn("png", broken)
    spec = InputSpec(columns={"x": "png"}, encoders={"x": "image"})
    rows, columns = selected(corrupted, [], inputs=spec)
    with pytest.raises(DataError, match=r"row \d+ column png: the image cannot be decoded"):
        first_rows(rows, columns, 40)


def test_a_null_in_one_of_an_inputs_columns_is_named_by_that_column(frame):
    number = F.when(F.col("whole") == 37, F.lit(None)).otherwise(F.col("number"))
    spec = InputSpec(columns={"x": ("whole", "number")})
    rows, columns = selected(frame.withColumn("number", number), [], inputs=spec)
    with pytest.raises(DataError, match=r"row \d+ column number: null; mend the row"):
        first_rows(rows, columns, 40)


def test_a_list_of_columns_is_features_in_training_and_scoring(frame):
    sizes, names = {"in_features": 2, "out_features": 2}, ["whole", "number"]
    clf = TorchClassifier(module="torch.nn:Linear", moduleArgs=sizes, featuresCol=names, **QUICK)
    model = clf.fit(frame)
    rows = model.transform(frame).select("whole", "number", "prediction").collect()
    x = torch.tensor([[row.whole, row.number] for row in rows])
    assert [row.prediction for row in rows] == model.module()(x).argmax(1).tolist()
    with pytest.raises(PhotinusError, match="a row must hold 2 numbers; got 1 columns"):
        model.copy({model.featuresCol: names[:1]}).transform(frame)


THREE = {"in_features": 3, "out_features": 2}


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"inputs": {"tokens": "tokns"}}, "'tokns'.*did you mean 'tokens'"),
        ({"inputs": {"tokens": "text"}}, "column text holds text; name an encoder"),
        ({"inputs": {"tokens": "day"}}, "column day holds times; got date; make numbers of them"),
        ({"inputs": {"tokens": "pairs"}}, r"got map<.*; .* e.g. by F.map_values"),
        ({"inputs": {"tokens": "tokens"}, "labelCol": "text"}, "column text holds text"),
        (
            {"inputs": {"tokens": "tokens"}, "labelCol": ""},
            "needs a column of labels; got labelCol",
        ),
        ({"inputs": {"tokens": "tokens"}, "weightCol": "text"}, "weight must be a number"),
        ({"inputs": {"token": "tokens"}}, "unexpected keyword argument 'token'"),
        (
            {"inputs": {"tokens": "floats"}},
            "does not take its inputs; .* cast columns of whole numbers to integers",
        ),
        (
            {
                "inputs": {"input": ["whole", "number"]},
                "module": "torch.nn:Embedding",
                "moduleArgs": {"num_embeddings": 99, "embedding_dim": 2},
            },
            r"; several columns of one input, as of input, are float32 whatever they hold; name "
            r"each alone, or use input.long\(\) in forward",
        ),
        (
            {"inputs": {"tokens": "tokens"}, "moduleArgs": {"tokens": 1}},
            r"give nn.Embedding as many rows as the largest index \+ 1; here are tokens 0..\d+",
        ),
        (
            {
                "featuresCol": ["whole", "number"],
                "module": "torch.nn:Linear",
                "moduleArgs": {"in_features": 2, "out_features": 1},
            },
            "or set loss='binary_cross_entropy', which tells two classes apart by one",
        ),
        ({"encoders": {"tokens": f"{NETS}:letters"}}, "encoders and collate are for inputs"),
        (
            {"inputs": {"tokens": "text"}, "encoders": {"tokens": f"{NETS}:leters"}},
            "has no 'leters'",
        ),
        (
            {"inputs": {"tokens": "text"}, "encoders": {"tokens": f"{NETS}:short"}},
            "must return as many rows as it gets",
        ),
        (
            {"featuresCol": "tokens"},
            r"shape \(\d,\), and other rows of tokens have other lengths; got .*'mask'; "
            r"name it in inputs=\{'parameter of forward': 'tokens'\}, where arrays .* are padded",
        ),
        (
            {"featuresCol": "pair", "module": "torch.nn:Linear", "moduleArgs": THREE},
            r"rows of shape \(2,\); got mat1 and mat2 .*; compare the columns",
        ),
        (
            {"inputs": {"tokens": "tokens"}, "precision": "auto"},
            'precision is not measured; got "auto"; set precision to "float32" or "bfloat16"',
        ),
        (
            {"inputs": {"tokens": "tokens"}, "memoryFormat": "auto"},
            'memory format is not measured; got "auto"; set it to "contiguous" or "channels_last"',
        ),
        ({"featuresCol": "text"}, "column text holds text; name an encoder"),
        (
            {"featuresCol": "raw", "module": f"{NETS}:NextToken"},
            "numbers of featuresCol are float32: set inputs={'parameter of forward': 'raw'}, where",
        ),
        (
            {"featuresCol": "number", "module": f"{NETS}:unsized"},
            "unsized has layers that do not know their sizes yet; got 0.weight, 0.bias, 1.",
        ),
        ({"featuresCol": "whole,number"}, r"one name is one column: write \['whole', 'number'\]"),
        ({"module": ""}, "TorchClassifier needs a module; module='mynets:Net' names a class"),
        ({"module": f"{NETS}:Bags", "inputs": {"tokens": "tokens"}}, f"did you mean '{NETS}:Bag'"),
        (
            {"moduleArgs": {"othrs": 1}, "inputs": {"tokens": "tokens"}},
            r"'othrs'; it takes \(.*others",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_one_sentence_before_any_worker_starts(frame, params, said):
    frame = frame.withColumn("pair", F.array("number", "other"))
    frame = frame.withColumn("day", F.current_date())
    frame = frame.withColumn("pairs", F.create_map("whole", "whole"))
    with pytest.raises(PhotinusError, match=said) as caught:
        TorchClassifier(**({"module": f"{NETS}:Bag"} | QUICK | params)).fit(frame)
    assert "\n" not in str(caught.value)


def test_a_row_of_another_length_than_the_first_is_refused_with_what_pads_it(frame):
    clf = TorchClassifier(module=f"{NETS}:Means", featuresCol="floats", **QUICK)
    message = r"row \d+ column floats: length \d, expected \d; name it in inputs=.*'floats'.*padded"
    with pytest.raises(DataError, match=message):
        clf.fit(frame)


def test_a_label_that_is_no_class_is_named_by_its_row(frame):
    mislabelled = frame.withColumn(
        "label", F.when(F.col("whole") == 7, 9).otherwise(F.col("label"))
    )
    message = r"row \d+ column label: label 9 outside 0..1; give the module 10 outputs or more"
    with pytest.raises(DataError, match=message):
        train_classifier(mislabelled, "Bag", inputs={"tokens": "tokens"})


def test_a_collate_of_ones_own_makes_the_batches_of_training_and_scoring(frame):
    model = train_classifier(frame, "Ends", inputs={"x": "floats"}, collate=f"{NETS}:ends")
    assert model.transform(frame).count() == 40


def test_before_spark_4_1_inputs_are_scored_by_frames_of_pandas(frame, monkeypatch):
    inputs = {"tokens": "tokens", "price": "sparse"}
    model = train_classifier(frame, "Bag", {"others": 6}, inputs=inputs)
    by_arrow = model.transform(frame).orderBy("whole").select("rawPrediction").collect()
    monkeypatch.delattr(F, "arrow_udf", raising=False)
    model._score_functions.clear()
    by_pandas = model.transform(frame).orderBy("whole").select("rawPrediction").collect()
    for arrow_row, pandas_row in zip(by_arrow, by_pandas, strict=True):
        np.testing.assert_allclose(arrow_row[0].toArray(), pandas_row[0].toArray(), atol=1e-6)


@pytest.mark.parametrize("has_arrow_udfs", [True, False])
def test_a_model_of_inputs_is_a_function_of_sql(session, frame, monkeypatch, has_arrow_udfs):
    if not has_arrow_udfs:
        monkeypatch.delattr(F, "arrow_udf", raising=False)
    model = train_classifier(frame, "Bag", inputs={"tokens": "tokens"})
    model.registerFunction("rated", session)
    model.transform(frame).createOrReplaceTempView("of_inputs")
    by_column = "rated(tokens).prediction = prediction"
    by_name = "rated(named_struct('tokens', tokens)).prediction = prediction"
    assert session.sql(f"SELECT * FROM of_inputs WHERE {by_column} AND {by_name}").count() == 40


def test_of_several_inputs_sql_needs_a_structure_and_onnx_is_refused(session, frame, tmp_path):
    inputs = {"tokens": "tokens", "price": "number"}
    model = train_classifier(frame, "Bag", {"others": 1}, inputs=inputs)
    model.registerFunction("rated_by_two", session)
    message = (
        r"structure of tokens, price; .*named_struct\('tokens', tokens, 'price', number\) makes one"
    )
    with pytest.raises(Exception, match=message):
        frame.select(F.expr("rated_by_two(tokens)")).collect()
    call = "rated_by_two(named_struct('tokens', tokens, 'price', number)).prediction"
    assert model.transform(frame).where(f"{call} = prediction").count() == 40
    with pytest.raises(UsageError, match="one array of features; got the inputs tokens, price;"):
        model.toOnnx(str(tmp_path / "model.onnx"))


def test_a_layer_of_a_module_of_several_inputs_is_a_column(frame):
    model = train_classifier(
        frame, "Bag", {"others": 1}, inputs={"tokens": "tokens", "price": "number"}
    )
    row = model.withLayer(frame, "head", "outputs").first()
    assert len(row["outputs"]) == 2


def test_an_rdd_of_arrays_rows_or_pairs_is_trained_on(session):
    rng = np.random.default_rng(0)
    pairs = [(x, int(x[0] > 0)) for x in rng.standard_normal((60, 3))]
    rdd = session.sparkContext.parallelize(pairs, 2)
    clf = TorchClassifier(
        module="torch.nn:Linear", moduleArgs={"in_features": 3, "out_features": 2}, **QUICK
    )
    assert clf.fit(rdd).numFeatures == 3
    assert as_frame(rdd.map(lambda pair: pair[0])).dtypes == [("features", "array<float>")]
    rows = rdd.map(lambda pair: Row(x=float(pair[0][0]), y=pair[1]))
    assert as_frame(rows).columns == ["x", "y"]
    assert as_frame(rows.map(lambda row: row.asDict())).columns == ["x", "y"]
    with pytest.raises(DataError, match="an RDD of such rows cannot be read; got str"):
        as_frame(session.sparkContext.parallelize(["a"]))
    with pytest.raises(DataError, match="the RDD holds no rows"):
        as_frame(session.sparkContext.parallelize([], 1))
