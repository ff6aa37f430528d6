"""A label for each token of a row: in memory, of Parquet files, in processes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional

from photinus.cli.main import commands
from photinus.core.errors import DataError, UsageError
from photinus.models.module import ModuleConfig
from photinus.run.job import Job, Source
from photinus.run.train import train
from photinus.strategies.recipes import all_reduce

NETS = Path(__file__).parents[1] / "estimators"  # nets_of_tokens.py


@pytest.fixture(autouse=True)
def nets(monkeypatch):
    monkeypatch.syspath_prepend(str(NETS))
    monkeypatch.setenv("PYTHONPATH", str(NETS))


def rows(count=240):
    """Words, and for each its number modulo 3; the first word of a row has no label."""
    rng = np.random.default_rng(0)
    words = [rng.integers(0, 30, 2 + (i + 3) % 8) for i in range(count)]
    return words, [np.concatenate([[-100], row[1:] % 3]) for row in words]


def job(source=None, arguments=None, lr=0.05, metrics=(), **how):
    settings = {"loss": "token_cross_entropy", "epochs": 8.0, "batch_size": 16, "lr": lr}
    settings["metrics"] = metrics
    config = ModuleConfig(module="nets_of_tokens:Tagger", arguments=arguments or {}, **settings)
    source = source or Source(name="given")
    return Job(model=config, data=source, workers=2, engine="simulate", **how)


def token_error(outcome, words, tags):
    """Returns the share of labelled tokens that the trained module puts into a wrong class."""
    module, wrong, count = outcome.model(), 0, 0
    for row, labels in zip(words, tags, strict=True):
        predicted = module(torch.from_numpy(row)[None])[0].argmax(-1).numpy()
        wrong += int((predicted != labels)[labels >= 0].sum())
        count += int((labels >= 0).sum())
    return wrong / count


def test_a_tagger_is_trained_and_measured_by_tokens(tmp_path):
    words, tags = rows()
    test_words, test_tags = rows(60)
    test = ({"words": test_words}, test_tags)
    outcome = train(job(), ({"words": words}, tags), test=test, folder=tmp_path / "run")
    expected = token_error(outcome, test_words, test_tags)
    assert outcome.metrics["error"] == pytest.approx(expected)
    assert expected < 0.1
    module, losses = outcome.model(), []
    for row, labels in zip(test_words, test_tags, strict=True):
        scores, targets = module(torch.from_numpy(row)[None])[0], torch.from_numpy(labels)
        losses += functional.cross_entropy(scores, targets, reduction="none")[1:].tolist()
    assert outcome.metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-4)


def test_files_are_read_as_rows_in_memory_are_and_measured_and_scored(tmp_path):
    (words, tags), path = rows(), str(tmp_path / "rows.parquet")
    columns = {"ids": [row.tolist() for row in words], "tags": [row.tolist() for row in tags]}
    pq.write_table(pa.table({name: pa.array(lists) for name, lists in columns.items()}), path)
    source = Source(name="parquet", path=path, inputs={"words": "ids"}, label="tags", test=path)
    file_job = job(source, lr=0.001)
    assert Job.from_dict(file_job.to_dict()) == file_job
    from_file = train(file_job, folder=tmp_path / "one")
    from_memory = train(job(lr=0.001), ({"words": words}, tags), folder=tmp_path / "two")
    assert np.array_equal(from_file.vector, from_memory.vector)
    assert from_file.metrics["error"] == pytest.approx(token_error(from_file, words, tags))
    arguments = ["evaluate", str(tmp_path / "one"), "--data", path]
    measured = CliRunner().invoke(commands, arguments, catch_exceptions=False)
    assert 0.1 < from_file.metrics["error"] < 0.6
    assert f"error  {100 * from_file.metrics['error']:.2f}%" in measured.output


def test_predictions_of_a_file_are_as_long_as_its_rows(tmp_path):
    words, tags = rows(40)
    outcome = train(job(), ({"words": words}, tags), folder=tmp_path / "run")
    pq.write_table(pa.table({"words": [row.tolist() for row in words]}), tmp_path / "in.parquet")
    run, table, output = (str(tmp_path / name) for name in ("run", "in.parquet", "out.parquet"))
    CliRunner().invoke(
        commands, ["predict", run, table, "--output", output], catch_exceptions=False
    )
    predicted = pq.read_table(output)
    assert predicted.column_names == ["words", "prediction"]
    module = outcome.model()
    for row in predicted.to_pylist():
        scores = module(torch.tensor([row["words"]]))[0]
        assert row["prediction"] == scores.argmax(-1).tolist()


@pytest.mark.processes
def test_processes_of_this_machine_learn_tags_as_the_simulator_does(tmp_path):
    words, tags = rows()
    exact_job = job(strategy=all_reduce(codec="fp32"))
    simulated = train(exact_job, ({"words": words}, tags), folder=tmp_path / "one")
    local_job = replace(exact_job, engine="local")
    local = train(local_job, ({"words": words}, tags), folder=tmp_path / "two")
    np.testing.assert_allclose(simulated.vector, local.vector, atol=1e-6)


def test_a_row_with_more_labels_than_tokens_is_named(tmp_path):
    words, tags = rows(20)
    tags[7] = np.append(tags[7], 1)
    expected = "row 7: 5 labels, expected one for each of 4 tokens; mend the row, or leave it out"
    with pytest.raises(DataError, match=expected):
        train(job(), ({"words": words}, tags), folder=tmp_path / "run")


def test_a_label_that_is_no_class_is_named(tmp_path):
    words, tags = rows(20)
    tags[3][1] = 3
    with pytest.raises(
        DataError, match=r"row 3 column label: label 3 outside 0\.\.2; give the mod"
    ):
        train(job(), ({"words": words}, tags), folder=tmp_path / "run")


def test_a_label_of_rows_to_measure_on_that_is_no_class_is_named_before_training(tmp_path):
    words, tags = rows(20)
    test_tags = [row.copy() for row in tags]
    test_tags[5][1] = 7
    expected = r"rows to measure on: partition 0 row 5 column label: label 7 outside 0\.\.2"
    with pytest.raises(DataError, match=expected):
        train(
            job(),
            ({"words": words}, tags),
            test=({"words": words}, test_tags),
            folder=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_outputs_with_the_classes_first_are_refused_before_a_run_begins(tmp_path):
    words, tags = rows(20)
    with pytest.raises(UsageError, match="return as many tokens as a row has labels, and the cla"):
        train(
            job(arguments={"is_transposed": True}),
            ({"words": words}, tags),
            folder=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_rows_of_which_no_token_has_a_label_count_for_nothing(tmp_path):
    words, tags = rows()
    unlabelled = [np.arange(25)] * 3  # a batch of their own: no other row is as long
    test = ({"words": words + unlabelled}, tags + [np.full(25, -100)] * 3)
    settings = {"metrics": ("f1", "top5")}
    measured = train(job(**settings), ({"words": words}, tags), test=test, folder=tmp_path / "a")
    expected = train(
        job(**settings),
        ({"words": words}, tags),
        test=({"words": words}, tags),
        folder=tmp_path / "b",
    )
    assert measured.metrics == pytest.approx(expected.metrics)


def test_labels_of_fewer_rows_are_refused(tmp_path):
    words, tags = rows(20)
    with pytest.raises(UsageError, match="all inputs must have equally many rows"):
        train(job(), ({"words": words}, tags[:-1]), folder=tmp_path / "run")


def test_an_array_of_labels_is_not_spread_over_rows_of_unequal_length(tmp_path):
    words, _ = rows(20)
    expected = "row 0: 9 labels, expected one for each of 5 tokens"
    with pytest.raises(DataError, match=expected):
        train(job(), ({"words": words}, np.zeros((20, 9), int)), folder=tmp_path / "run")


def test_rows_without_labels_are_refused_before_a_run_begins(tmp_path):
    words, _ = rows(20)
    expected = "needs a label for each token; got none; name a column of labels"
    with pytest.raises(UsageError, match=expected):
        train(job(), ({"words": words}, None), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_collate_may_join_inputs_to_the_tokens_that_have_labels(tmp_path):
    words, tags = rows(40)
    halves = {"first": [row[:2] for row in words], "second": [row[2:] for row in words]}
    columns = {name: name for name in halves}
    source = Source(name="given", inputs=columns, collate="nets_of_tokens:joined")
    outcome = train(job(source), (halves, tags), test=(halves, tags), folder=tmp_path / "run")
    assert outcome.metrics["error"] == pytest.approx(token_error(outcome, words, tags))


def test_labels_of_a_file_that_are_words_are_refused_with_how_to_number_them(tmp_path):
    table = {"ids": [[1, 2], [3]], "tags": [["O", "NAME"], ["O"]]}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    path = str(tmp_path / "rows.parquet")
    source = Source(name="parquet", path=path, inputs={"words": "ids"}, label="tags")
    with pytest.raises(DataError, match="column tags: labels must be numbers; got text; number"):
        train(job(source), folder=tmp_path / "run")


def test_a_metric_of_numbers_is_refused_before_a_run_begins(tmp_path):
    words, tags = rows(20)
    with pytest.raises(UsageError, match="compare each output with a label; got outputs"):
        train(job(metrics=("rmse",)), ({"words": words}, tags), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
