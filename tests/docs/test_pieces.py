"""Pieces of programs on the pages run, with a small table, file or model in the reader's place."""

import shutil
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from pages import PIECES, blocks, placed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import photinus
from photinus.testing import check_strategy

NETS = Path(__file__).with_name("nets_of_pages.py")
TWO = ("numWorkers=4", "numWorkers=2")
MYNETS = ("mynets:", f"{NETS.stem}:")
NAMES_ONLY = {"docs/connect.md"}
"""It needs a server of Spark Connect: `tests/connect/check_doors.py` makes the same calls there."""

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


class Pieces:
    """The blocks of a page, run one after another in one namespace.

    Args:
        page: its path.
        folder: where its files lie.
        smaller: what stands on the page, and what is run in its place; each must be there.
    """

    def __init__(self, page, folder, *smaller):
        self.page, self.folder, self.smaller = page, folder, smaller
        self.left = [text for _, text in blocks(page)]
        self.names = {"__name__": "page"}
        whole = "".join(self.left)
        assert [old for old, _ in smaller if old not in whole] == [], "the page has changed"

    def text(self):
        """Returns the next block, as it is run."""
        text = placed(self.left.pop(0), self.folder)
        for old, new in self.smaller:
            text = text.replace(old, new)
        return text

    def run(self, **names):
        """Runs the next block with these names, and returns all that there are then."""
        self.names.update(names)
        exec(compile(self.text(), self.page, "exec"), self.names)
        return self.names


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Makes `Pieces` of a page; none of its blocks may be left over at the end."""
    made = []

    def make(name, *smaller):
        made.append(Pieces(name, tmp_path, *smaller))
        return made[-1]

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(NETS.parent))
    yield make
    assert [text for pieces in made for text in pieces.left] == []


@pytest.fixture(scope="module")
def sent(spark):
    spark.sparkContext.addPyFile(str(NETS))
    return spark


@pytest.fixture(scope="module")
def table(sent):
    """Features of 4 numbers, labels 0 and 1: the first number tells them apart."""
    rng = np.random.default_rng(0)
    rows = [([float(n % 2), *rng.random(3).tolist()], n % 2) for n in range(40)]
    return sent.createDataFrame(rows, "features array<double>, label int").repartition(2).cache()


@pytest.fixture(scope="module")
def small_job(sent):
    config = photinus.LogisticConfig(features=4, classes=2, epochs=1, batch_size=8)
    return {"photinus": photinus, "Job": photinus.Job, "model": config}


def test_every_page_with_pieces_is_run_or_says_why_not():
    mine = Path(__file__).read_text()
    assert [name for name in PIECES if f'"{name}"' not in mine] == []


def test_the_pieces_of_the_readme_run(page, sent, table):
    pieces = page(
        "README.md",
        MYNETS,
        ('labelCol="label"', 'labelCol="label", numWorkers=2'),
        ("(500, 500, 2000)", "(8, 4)"),
        ("workers=4", "workers=2"),
        ("ph.train(job)", "ph.train(job, digits, test=test)"),  # MNIST is a download
    )
    pieces.run(table=table)
    rows = [([float(n % 10 == i % 10) for i in range(784)], n % 10) for n in range(20)]
    digits = sent.createDataFrame(rows, "features array<float>, label int")
    test = np.eye(10, 784, dtype="f4"), np.arange(10)
    assert pieces.run(digits=digits, test=test)["outcome"].folder


def test_the_pieces_of_standalone_clusters_run(page, table, small_job):
    pieces = page("docs/clusters.md", ("workers=4", "workers=2"), ("workers=8", "workers=2"))
    pieces.run(df=table, **small_job)
    pieces.run(other=table, urgent=small_job["model"])
    pieces.run()


def test_the_pieces_of_deepdist_run(page, spark, tmp_path):
    pytest.importorskip("gensim")
    (tmp_path / "enwiki").write_text("king woman man queen and so on\n" * 20)
    pieces = page("docs/deepdist.md")
    pieces.run(sc=spark.sparkContext)
    names = pieces.run()
    with photinus.DeepDist(names["dd"].model) as dd:
        assert dd.train(names["corpus"], names["gradient"], names["descent"])


def test_the_pieces_of_the_estimators_run(page, sent, table, cells, tmp_path):
    pieces = page(
        "docs/estimators.md",
        TWO,
        MYNETS,
        ("[500, 500, 2000]", "[8]"),
        ("preTrainEpochs=30", "preTrainEpochs=1"),
        ("fineTuneEpochs=60", "fineTuneEpochs=1"),
        ("epochs=10", "epochs=1"),
        ("hdfs:///", f"{tmp_path}/"),
    )
    digits = pieces.run(train=table, test=table)["model"]
    pieces.run()
    pieces.run()
    pieces.run(photinus=photinus, Net=cells["Net"], my_loss=cells["smooth"])
    rows = [("a lovely film", 1.0, 0.5, 1, 1.0, [1, 2]), ("dull", 2.0, 0.0, 0, 2.0, [3])] * 8
    kinds = "text string, amount double, discount double, label int, weight double, ids array<int>"
    reviews = sent.createDataFrame(rows, kinds)
    pieces.run()["clf"].copy({}).setNumWorkers(2).fit(reviews)
    net = nn.EmbeddingBag(4, 2)
    pieces.run(df=reviews, model=lambda tokens, tokens_mask: net(tokens), criterion=cross_entropy)
    table.createOrReplaceTempView("digits")
    pieces.run(model=digits, spark=sent)


def test_the_pieces_of_iterate_run(page, table):
    stands = {"partial": [1.0], "new_state": [2.0], "is_done": True, "first_state": [0.0]}
    found = page("docs/iterate.md").run(df=table, **stands)["found"]
    assert (found.state, found.rounds, found.is_done) == ([2.0], 1, True)


def test_the_pieces_of_keep_your_trainer_run(page, table):
    pytest.importorskip("transformers")
    pytest.importorskip("lightning")
    pieces = page("docs/launch.md", ("workers=4", "workers=2"))

    def collate(rows):
        features = torch.tensor([row["features"] for row in rows])
        return features, torch.tensor([row["label"] for row in rows])

    def make_model():
        return nn.Linear(4, 2)

    def loss_of(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1].long())

    own = {"make_model": make_model, "loss_of": loss_of, "collate": collate}
    names = pieces.run(df=table, torch=torch, DataLoader=DataLoader, model=make_model(), **own)
    assert "weight" in names["found"]
    made = """
        import lightning, photinus, tempfile, torch
        from transformers import Trainer, TrainingArguments

        def tried(rows):
            model = torch.nn.Linear(4, 2)
            agreed = photinus.agree(model)
            arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), report_to=[], use_cpu=True)
    """
    source = textwrap.dedent(made) + textwrap.indent(pieces.text(), "    ")
    exec(source, names)
    assert "weight" in photinus.launch(names["tried"], workers=1, data=table)


def test_the_pieces_of_the_evidence_run(page, spark):
    page("docs/reliability/evidence.md").run()


def test_the_pieces_of_devices_run(page):
    scaled = page("docs/devices.md").run()["scaled"]
    images = np.arange(6, dtype=np.uint8).reshape(2, 3)
    there = scaled.tensors(torch.from_numpy(images), None)
    assert np.array_equal(scaled(images, None), there.numpy())


def test_the_pieces_of_sharded_tables_run(page):
    scores = page("docs/sharded-tables.md").run()["Scores"](users=5, items=3)
    assert scores(torch.tensor([4]), torch.tensor([2])).shape == (1, 2)


def test_the_pieces_of_sparse_tables_run(page):
    scores = page("docs/sparse-tables.md").run()["Scores"]()
    scores(torch.tensor([4])).sum().backward()
    assert scores.users.weight.grad.is_sparse


def test_the_pieces_of_the_strategies_run(page):
    pieces = page("docs/strategies/README.md")
    pieces.run(averaging=photinus.averaging, Steps=photinus.Steps, Nesterov=photinus.Nesterov)
    check_strategy(pieces.run()["PostLocal"]())


def test_the_pieces_of_text_run(page, spark, small_encoder, tmp_path):
    small = tmp_path / "small"
    shutil.copytree(small_encoder, small)
    (small / "model.safetensors").unlink()
    pieces = page(
        "docs/text.md",
        ("numWorkers=4", "numWorkers=1"),
        ("folder/of/your/model", str(small_encoder)),
        ("num_labels=2", "num_labels=3"),  # of the blocks above
        ("runs/NAME/adapter", "adapter"),
        MYNETS,
    )
    spark.sparkContext.addPyFile(str(NETS))
    rows = [("a lovely film", 1), ("a dull plot", 0), ("grand and funny", 2)] * 4
    table = spark.createDataFrame(rows, "text string, label int")
    pieces.run(table=table)
    pieces.run()
    pieces.run()
    rows = [([1, 4, 7, 2], [-100, 0, 1, -100]), ([1, 5, 2], [-100, 2, -100])] * 4
    pieces.run()
    pieces.run(tagged=spark.createDataFrame(rows, "ids array<int>, tags array<int>"))
    pieces.run(photinus=photinus, small_folder=str(small))
    pieces.run(encoder=str(small_encoder))


def test_the_pieces_of_word_vectors_run(page, spark, tmp_path):
    pytest.importorskip("usearch")
    (tmp_path / "questions-words.txt").write_text(": some\nman king woman queen\n")
    small = 'vectorSize=8, kernel="numpy"'  # which is not compiled first
    pieces = page(
        "docs/word2vec.md",
        ("vectorSize=200", small),
        ("vectorSize=50", small),
        ("q=2.0", f"q=2.0, walkLength=4, {small}"),
        ('inputCol="words"', f'inputCol="words", {small}'),
        ("texts/", str(tmp_path / "text")),
    )
    text = [("man king woman queen and so on",)] * 20
    words = pieces.run(sentences=spark.createDataFrame(text, "text string"))["model"]
    (tmp_path / "text").write_text("a man and a king\n" * 20)
    some = pieces.run(spark=spark, words=["man", "king", "queen"])["model"]
    assert sorted(some.vectors.words) == ["king", "man"]
    baskets = [([1017, 3, 5],), ([3, 1017],)] * 10
    pieces.run(baskets=spark.createDataFrame(baskets, "products array<int>"))
    edges = spark.createDataFrame([(1017, 3, 1.0), (3, 5, 2.0)], "src int, dst int, calls double")
    pieces.run(edges=edges, people=spark.createDataFrame([(1017,), (3,)], "node int"))
    pieces.run()
    asked = spark.createDataFrame([("king",), ("none",)], "word string")
    assert pieces.run(model=words, table=asked)["near"].count() == 2


def test_the_pieces_of_the_zoo_run(page, spark, tmp_path):
    image = pytest.importorskip("PIL.Image")
    for kind, shade in (("cat", 20), ("dog", 200)):
        folder = tmp_path / "pictures" / kind
        folder.mkdir(parents=True)
        for n in range(2):
            image.new("RGB", (40, 30), (shade, shade, n)).save(folder / f"{n}.jpg")
    pieces = page("docs/zoo.md", TWO, ("hdfs:///", f"{tmp_path}/"))
    pieces.run()
