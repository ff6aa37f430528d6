"""`photinus predict`: what it writes is what the torch module of the run returns."""

import contextlib
import subprocess
import sys
import tarfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from photinus.checkpoint.export import save_model
from photinus.cli.main import EXIT_CODES
from photinus.estimators import score_files
from photinus.models.logistic import LogisticConfig
from photinus.models.module import ModuleConfig
from photinus.run.job import Job, Source
from photinus.run.train import train

NETS = """
import numpy as np
import photinus
import torch
from torch import nn

class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(10, 2)

    def forward(self, tokens, price, mask):
        own = mask[..., None]
        x = (self.table(tokens) * own).sum(1) / own.sum(1)
        return self.head(torch.cat([x, price], 1))

class Means(photinus.Model):
    # predicts what it has seen most often, of each of so many numbers
    def __init__(self, numbers):
        tensors = [("mean", (numbers,), "trained")]
        self.parameters = photinus.Parameters(photinus.Layout.of(tensors))

    def learn(self, batch, seed):
        mean = np.reshape(batch.labels, (len(batch.labels), -1)).mean(0, np.float32)
        return self.parameters.view("mean") - mean, {"loss": 0.0}

    def measure(self, batch):
        return {"examples": float(len(batch.labels)), "loss": 0.0}

    def outputs(self, features):
        return np.tile(self.parameters.view("mean"), (len(features), 1))
"""
ROWS = 50
STARTS = "starts Spark and scores the rows\n"


@pytest.fixture(autouse=True)
def nets(tmp_path, monkeypatch):
    (tmp_path / "bags_of_predict.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("bags_of_predict", None)


@pytest.fixture
def table(tmp_path):
    """Numbers, arrays of them, arrays of unequal lengths, bytes, and columns that nobody reads."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 3)).astype(np.float32)
    columns = pa.table(
        {
            "id": [f"row {i}" for i in range(ROWS)],
            "x": pa.array(x.tolist(), pa.list_(pa.float32())),
            "a": x[:, 0].astype(float),
            "b": x[:, 1],
            "tokens": [rng.integers(0, 50, 1 + i % 7).tolist() for i in range(ROWS)],
            "bytes": [bytes(rng.integers(0, 256, 3).tolist()) for _ in range(ROWS)],
            "note": [None, {"by": "me"}] * (ROWS // 2),
            "class": np.arange(ROWS) % 3,
            "sign": (x[:, 0] > 0).astype(int),
            "amount": np.arange(ROWS) / ROWS,
        }
    )
    pq.write_table(columns, tmp_path / "table.parquet", row_group_size=20)
    return columns


def linear(loss, inputs, outputs):
    arguments = {"in_features": inputs, "out_features": outputs}
    return ModuleConfig(
        module="torch.nn:Linear", arguments=arguments, loss=loss, lr=0.1, epochs=1.0
    )


JOBS = {
    "classes, scaled": (
        linear("cross_entropy", 3, 3),
        {"features": ("x",), "label": "class", "scale": 0.5},
    ),
    "classes by softmax regression, of bytes": (
        LogisticConfig(features=3, classes=3, epochs=1.0),
        {"features": ("bytes",), "label": "class", "scale": 1 / 255},
    ),
    "two classes by one output, of columns": (
        linear("binary_cross_entropy", 2, 1),
        {"features": ("a", "b"), "label": "sign"},
    ),
    "several labels": (
        linear("binary_cross_entropy", 3, 2),
        {"features": ("x",), "label": ("sign", "amount")},
    ),
    "a number, of columns, scaled": (
        linear("mse", 2, 1),
        {"features": ("b", "a"), "label": "amount", "scale": 3.0},
    ),
    "a count": (linear("poisson", 3, 1), {"features": ("x",), "label": "class"}),
    "several numbers": (linear("l1", 3, 2), {"features": ("x",), "label": ("a", "b")}),
    "classes of several inputs": (
        ModuleConfig(module="bags_of_predict:Bag", epochs=1.0),
        {"inputs": {"tokens": "tokens", "price": ["a", "b"]}, "label": "sign"},
    ),
}


def trained(name):
    config, source = JOBS[name]
    source = Source(name="parquet", path="table.parquet", **source)
    return train(Job(model=config, data=source, workers=1, engine="simulate"), folder="run")


def outputs_by_hand(name, outcome, table):
    """What the torch module returns for the rows in their order [n, outputs]; without photinus."""
    source, rows = JOBS[name][1], table.to_pydict()
    if "inputs" in source:
        outputs = []
        for tokens, a, b in zip(rows["tokens"], rows["a"], rows["b"], strict=True):
            inputs = {"tokens": torch.tensor([tokens]), "mask": torch.ones(1, len(tokens)).bool()}
            outputs.append(outcome.model()(price=torch.tensor([[a, b]]), **inputs))
        return torch.cat(outputs)
    columns = [rows[column] for column in source["features"]]
    if source["features"] == ("bytes",):
        columns = [list(map(list, columns[0]))]
    x = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    x = np.array(x, np.float32) * np.float32(source.get("scale", 1.0))
    return outcome.model()(torch.from_numpy(x))


def predictions_by_hand(name, z):
    """(prediction, probability) of outputs; no probability of numbers."""
    if name == "several labels":
        return (z > 0).double(), torch.sigmoid(z)
    if name.startswith("two classes"):
        p = torch.sigmoid(z[:, 0])
        return (z[:, 0] > 0).double(), torch.stack([1 - p, p], 1)
    if name.startswith("classes"):
        return z.argmax(1).double(), torch.softmax(z, 1)
    z = z.exp() if name == "a count" else z
    return (z if z.shape[1] > 1 else z[:, 0]), None


@pytest.mark.parametrize("name", JOBS)
def test_predictions_are_those_of_the_torch_module_in_the_order_of_the_rows(
    call, table, name, monkeypatch
):
    monkeypatch.setattr(score_files, "_READ_ROWS", 16)
    outcome = trained(name)
    with torch.no_grad():
        prediction, probability = predictions_by_hand(name, outputs_by_hand(name, outcome, table))

    assert call("predict", "run", "table.parquet", "-o", "new/scored.parquet") == (
        0,
        f"{ROWS} rows\npredictions  new/scored.parquet\n",
        "",
    )
    scored = pq.read_table("new/scored.parquet")
    names = ["probability"] * (probability is not None) + ["prediction"]
    assert scored.column_names == [*table.column_names, *names]
    assert scored.select(table.column_names).equals(table)
    np.testing.assert_allclose(scored["prediction"].to_pylist(), prediction, rtol=1e-5, atol=1e-7)
    if probability is not None:
        np.testing.assert_allclose(scored["probability"].to_pylist(), probability, rtol=1e-5)


@pytest.mark.parametrize(("label", "is_number"), [("amount", True), (("a", "b"), False)])
def test_a_model_of_ones_own_returns_numbers_whatever_loss_its_settings_name(
    call, table, label, is_number
):
    count = 1 if is_number else len(label)
    config = ModuleConfig(
        module="bags_of_predict:Means", arguments={"numbers": count}, lr=0.1, epochs=1.0
    )
    source = Source(name="parquet", path="table.parquet", features=("x",), label=label)
    outcome = train(Job(model=config, data=source, workers=1, engine="simulate"), folder="run")
    assert call("predict", "run", "table.parquet", "-o", "out.parquet")[0] == 0
    mean = outcome.trained.model().parameters.view("mean").astype(float).tolist()
    scored = pq.read_table("out.parquet")
    assert scored["prediction"].to_pylist() == [mean[0] if is_number else mean] * ROWS
    assert mean[0] != 0
    assert "probability" not in scored.column_names


def test_the_folder_of_a_model_is_taken_too_and_a_label_is_not_needed(call, table, tmp_path):
    trained("classes, scaled")
    pq.write_table(table.select(["x"]), tmp_path / "x.parquet")
    assert call("predict", "run/model", "x.parquet", "-o", "out.parquet")[0] == 0
    assert pq.read_table("out.parquet").column_names == ["x", "probability", "prediction"]


@pytest.fixture
def of_images(tmp_path):
    """A run that was trained on a folder of images, of two classes; and images in other places."""
    pillow = pytest.importorskip("PIL.Image")
    images = {
        name: np.full((4, 4, 3), colour, np.uint8)
        for name, colour in {"red/0": (9, 0, 0), "red/1": (8, 1, 1), "blue/0": (0, 0, 9)}.items()
    }
    for folder in ("train", "new"):
        for name, pixels in images.items():
            file = tmp_path / folder / (name if folder == "train" else name.partition("/")[2])
            file = file.with_suffix(".png")
            file.parent.mkdir(parents=True, exist_ok=True)
            pillow.fromarray(pixels).save(file)
    source = Source(name="images", path="train", side=4, scale=0.1)
    job = Job(model=LogisticConfig(features=48, classes=2, epochs=5), data=source, workers=1)
    return train(replace(job, engine="simulate"), folder="run")


def test_images_in_files_are_scored_by_their_names_and_need_no_label(call, of_images, tmp_path):
    with tarfile.open(tmp_path / "new" / "more.tar", "w") as shard:
        shard.add(tmp_path / "train" / "red" / "1.png", "red.png")
    assert call("predict", "run", "train", "-o", "by_class.parquet")[0] == 0
    code, out, err = call("predict", "run", "new", "-o", "flat.parquet")
    assert (code, out, err) == (0, "3 rows\npredictions  flat.parquet\n", "")

    by_class, flat = (pq.read_table(f"{name}.parquet").to_pylist() for name in ("by_class", "flat"))
    assert [row["file"] for row in by_class] == ["blue/0.png", "red/0.png", "red/1.png"]
    assert [row["file"] for row in flat] == ["0.png", "1.png", "more.tar/red"]
    blue, _, red = (row["probability"] for row in by_class)
    assert [row["probability"] for row in flat] == [blue, red, red]
    x = torch.zeros(1, 3, 4, 4)
    x[:, 2] = 0.9
    with torch.no_grad():
        z = of_images.model()(x.reshape(1, -1))
    np.testing.assert_allclose(blue, torch.softmax(z, 1)[0], rtol=1e-5)


def test_a_run_that_read_images_scores_their_bytes_in_parquet_files_too(call, of_images, tmp_path):
    rows = pa.table({"features": [bytes(16) + bytes(16) + bytes([9] * 16)]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    assert call("predict", "run", "rows.parquet", "-o", "scored.parquet")[0] == 0
    assert call("predict", "run", "train", "-o", "images.parquet")[0] == 0
    of_file = pq.read_table("images.parquet")["probability"][0]
    assert pq.read_table("scored.parquet")["probability"][0] == of_file


def test_images_that_cannot_be_scored_get_one_sentence(call, of_images, tmp_path, monkeypatch):
    monkeypatch.setattr("photinus.engine.spark.session.spark_session", None)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "0.png").write_bytes(b"no image")
    (tmp_path / "none").mkdir()
    for data, more, outcome, words in (
        ("train", ("--engine", "spark"), "usage", "got images in train; leave --engine spark out"),
        ("damaged", (), "failed", "1 of 1 images of"),
        ("none", (), "usage", "none holds no Parquet files"),
    ):
        code, _, err = call("predict", "run", data, "-o", "out.parquet", *more)
        assert (code, err.count("\n")) == (EXIT_CODES[outcome], 1)
        assert words in err
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "table.parquet"], "no model at that path; got nowhere"),
        (
            ["empty", "table.parquet"],
            "empty holds no model; name the folder of a run or of a model",
        ),
        (["begun", "table.parquet"], "begun holds no model yet; photinus train --resume begun"),
        (["words", "table.parquet"], "words holds word vectors, which score no rows"),
        (
            ["saved", "table.parquet"],
            "saved holds a model of Spark ML, and no run; in Python photinus.TorchModel.load",
        ),
        (
            ["piped", "table.parquet"],
            'no run; in Python PipelineModel.load("piped").transform(table) scores rows',
        ),
        (
            ["run", "nothing.parquet"],
            "there is no nothing.parquet; name a Parquet file or a folder",
        ),
        (["run", "table.csv"], "table.csv cannot be read as Parquet"),
        (["run", "a.parquet"], "a.parquet: unknown column; got 'x'; known: a"),
        (["run", "none.parquet"], "none.parquet holds no rows"),
        (["run", "long.parquet"], "the model reads rows of 3 numbers; got 4"),
        (["run", "scored.parquet"], "the table has a column Prediction already; leave it out"),
        (["run", "table.parquet", "--workers", "2"], "--workers is for tasks of Spark; got 2"),
        (["run", "table.parquet", "-o", "table.parquet"], "table.parquet exists already; name an"),
        (
            ["run", "table.parquet", "-o", "table.parquet/out"],
            "table.parquet/out cannot be written; got Not a directory; name a path",
        ),
        (
            ["run", "table.parquet", "-o", "/proc/out", "--engine", "spark"],
            "/proc/out cannot be written; got No such file or directory; name a path",
        ),
        (["run", "table.parquet", "-o", "hdfs://a/b"], "written on this machine; got hdfs://a/b"),
    ],
)
def test_what_cannot_be_scored_gets_one_sentence_and_writes_nothing(
    call, table, tmp_path, monkeypatch, arguments, words
):
    trained("classes, scaled")
    for folder in ("empty", "begun", "saved/metadata", "piped/metadata"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "begun" / "job.json").write_text("{}")
    saved_by = {"saved": "photinus.estimators.module.TorchModel", "piped": "a.ml.PipelineModel"}
    for folder, name in saved_by.items():
        (tmp_path / folder / "metadata" / "part-0.txt").write_text(f'{{"class":"{name}","uid":""}}')
    save_model(tmp_path / "words", {"vectors": np.zeros((2, 8))}, {"kind": "word2vec"})
    (tmp_path / "table.csv").write_text("x\n1\n")
    pq.write_table(table.select(["a"]), tmp_path / "a.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "none.parquet")
    four = pa.array([[1.0] * 4] * ROWS, pa.list_(pa.float32()))
    pq.write_table(pa.table({"x": four}), tmp_path / "long.parquet")
    named = table.append_column("Prediction", table["a"])
    pq.write_table(named, tmp_path / "scored.parquet")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(score_files, "is_started_here", lambda: True)
    monkeypatch.setattr("photinus.engine.spark.session.spark_session", None)
    for name in score_files._SPARK_SETTINGS:
        monkeypatch.delenv(name, raising=False)

    arguments = arguments if "-o" in arguments else [*arguments, "-o", "out.parquet"]
    code, out, err = call("predict", *arguments)
    assert (code, out) == (EXIT_CODES["usage"], "")
    assert words in err
    assert err.startswith("photinus: ")
    assert len(err.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_addresses_that_spark_would_refuse_are_told_before_it_starts(
    call, table, tmp_path, monkeypatch
):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe("/predicting/table.parquet", (tmp_path / "table.parquet").read_bytes())
    memory.pipe("/predicting/out/part.parquet", b"")
    trained("classes, scaled")
    monkeypatch.setattr("photinus.engine.spark.session.spark_session", None)
    rows = "memory://predicting"
    for data, output, words in (
        ("none", "new", f"there is no {rows}/none; name a file or a folder of files"),
        ("table.parquet", "out", f"{rows}/out exists already; name another path"),
    ):
        arguments = ("run", f"{rows}/{data}", "--engine", "spark", "-o", f"{rows}/{output}")
        code, out, err = call("predict", *arguments)
        assert (code, out) == (EXIT_CODES["usage"], "")
        assert words in err


def test_on_connect_a_failed_output_can_be_written_again(monkeypatch):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.makedirs("/of_connect/empty")
    memory.pipe("/of_connect/full/part.parquet", b"")
    memory.pipe("/of_connect/half/_temporary/0/part.parquet", b"")
    monkeypatch.setattr(score_files, "is_connect", lambda _: True)
    for name in ("empty", "full", "half", "none"):
        score_files._remove_unwritten(None, f"memory://of_connect/{name}")
    assert not memory.exists("/of_connect/empty")
    assert not memory.exists("/of_connect/half")
    assert memory.exists("/of_connect/full/part.parquet")


def test_a_bad_row_is_named_and_half_a_file_is_not_left(call, table, tmp_path, monkeypatch):
    monkeypatch.setattr(score_files, "_READ_ROWS", 16)
    trained("a number, of columns, scaled")
    a = table["a"].to_pylist()
    a[33] = float("nan")
    broken = table.set_column(table.column_names.index("a"), "a", pa.array(a))
    pq.write_table(broken, tmp_path / "broken.parquet")
    code, out, err = call("predict", "run", "broken.parquet", "-o", "scored/out.parquet")
    assert (code, out) == (EXIT_CODES["failed"], "")
    assert "row 33" in err
    assert list((tmp_path / "scored").iterdir()) == []


def test_without_spark_nothing_of_spark_is_loaded(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained("classes, scaled")
    program = (
        "import sys\n"
        "from photinus.cli.main import main\n"
        "try: main(['predict', 'run', 'table.parquet', '-o', 'out.parquet'])\n"
        "finally: print('pyspark' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "False"


@pytest.mark.spark
@pytest.mark.parametrize("name", [name for name in JOBS if name != "classes of several inputs"])
def test_spark_writes_what_this_process_does(call, table, spark, tmp_path, name):
    trained(name)
    data, folder = tmp_path / "table.parquet", tmp_path / "folder"  # Java may be in another folder
    assert call("predict", "run", data, "-o", "local.parquet")[0] == 0
    on_spark = ("predict", "run", data, "--engine", "spark", "-o", folder)
    assert call(*on_spark) == (0, f"{STARTS}predictions  {folder}\n", "")
    code, _, err = call(*on_spark)
    assert (code, err.count("\n")) == (EXIT_CODES["usage"], 1)
    assert "folder exists already; name another path for the predictions" in err
    local, of_spark = pq.read_table("local.parquet"), pq.read_table(folder).sort_by("amount")
    assert of_spark.column_names == local.column_names
    for column in of_spark.column_names[len(table.column_names) :]:
        np.testing.assert_allclose(
            of_spark[column].to_pylist(), local[column].to_pylist(), rtol=1e-5, atol=1e-7
        )


@pytest.mark.spark
def test_a_folder_that_spark_keeps_elsewhere_is_named_by_its_address(spark):
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    before = settings.get("fs.defaultFS")
    settings.set("fs.defaultFS", "hdfs://127.0.0.1:1")  # never asked: only its name is read
    try:
        assert score_files._found_at(spark, "/out") == "hdfs://127.0.0.1:1/out"
        assert score_files._found_at(spark, "file:///out") == "file:///out"
    finally:
        settings.set("fs.defaultFS", before)
    assert score_files._found_at(spark, "out") == "out"


@pytest.mark.spark
def test_a_folder_that_spark_may_not_write_is_named_and_not_the_rows(
    call, table, spark, tmp_path, monkeypatch
):
    trained("classes, scaled")

    def refuse(*_):
        raise RuntimeError("a.AccessControlException: Permission denied: user=ann, access=WRITE")

    monkeypatch.setattr("pyspark.sql.readwriter.DataFrameWriter.parquet", refuse)
    arguments = ("run", tmp_path / "table.parquet", "--engine", "spark", "-o", tmp_path / "out")
    code, _, err = call("predict", *arguments)
    assert (code, err.count("\n")) == (EXIT_CODES["failed"], 1)
    assert f"{tmp_path / 'out'} cannot be written to; got Permission denied: user=ann" in err


@pytest.mark.spark
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_what_a_late_task_of_spark_left_is_removed(
    call, table, spark, tmp_path, monkeypatch, is_interrupted
):
    trained("classes, scaled")

    def write_a_half(*_):
        (tmp_path / "out" / "_temporary" / "0").mkdir(parents=True)
        (tmp_path / "out" / "_temporary" / "0" / "part.parquet").touch()
        raise RuntimeError("a task failed")

    def interrupted(*_):
        with contextlib.suppress(RuntimeError):
            write_a_half()
        raise KeyboardInterrupt

    if is_interrupted:
        monkeypatch.setattr("photinus.engine.spark.job.run_query", interrupted)
    monkeypatch.setattr("pyspark.sql.readwriter.DataFrameWriter.parquet", write_a_half)
    arguments = ("run", tmp_path / "table.parquet", "--engine", "spark", "-o", tmp_path / "out")
    assert call("predict", *arguments)[0] != 0
    assert not (tmp_path / "out").exists()


@pytest.mark.spark
def test_files_of_spark_are_read_and_spark_sees_the_new_columns(call, table, spark, tmp_path):
    trained("classes, scaled")
    of_spark, out = tmp_path / "of_spark", tmp_path / "out.parquet"
    spark.read.parquet(str(tmp_path / "table.parquet")).write.parquet(str(of_spark))
    assert call("predict", "run", of_spark, "-o", out)[0] == 0
    assert spark.read.parquet(str(out)).columns[-2:] == ["probability", "prediction"]


@pytest.mark.spark
def test_spark_is_told_of_a_missing_file_in_one_sentence(call, table, spark, tmp_path):
    trained("classes, scaled")
    nothing = tmp_path / "nothing.parquet"
    refused = ("predict", "run", nothing, "--engine", "spark", "-o", tmp_path / "folder")
    code, _, err = call(*refused)
    assert (code, err.count("\n")) == (EXIT_CODES["usage"], 1)
    assert f"there is no {nothing}" in err


@pytest.mark.spark
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([1.0, float("nan"), 1.0], "row 33 column x: nan at 1"),
        ([1.0], "column x: a row of size 1, expected 3"),
    ],
)
def test_spark_names_a_bad_row_in_one_sentence(call, table, spark, tmp_path, bad, words):
    trained("classes, scaled")
    x = table["x"].to_pylist()
    x[33] = bad
    broken = pa.table({"x": pa.array(x, pa.list_(pa.float32()))})
    pq.write_table(broken, tmp_path / "broken.parquet")
    arguments = ("run", tmp_path / "broken.parquet", "--engine", "spark", "-o", tmp_path / "out")
    code, _, err = call("predict", *arguments)
    assert (code, err.count("\n")) == (EXIT_CODES["failed"], 1)
    assert words in err
    assert not (tmp_path / "out").exists()
