"""One job under several strategies."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from photinus.core.clock import Steps
from photinus.core.errors import UsageError
from photinus.engine.simulation.cluster import SimulatedCluster
from photinus.report.comparison import comparison_table
from photinus.run.compare import compare
from photinus.run.job import Source
from photinus.strategies.custom import CustomStrategy
from photinus.strategies.recipes import RECIPES, all_reduce, averaging, diloco, post_local


@pytest.fixture
def job(small, tmp_path):
    """Of a file: 3 classes of points, 3 workers."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"f": list(small.features), "label": small.labels}), path)
    source = Source(name="parquet", path=str(path), test=str(path), features=("f",))
    return small.job(data=source)


def test_every_recipe_has_a_line_with_what_it_reached_and_cost(job, tmp_path):
    rows = compare(job, folder=tmp_path)
    assert len(rows) == len(RECIPES)
    assert [row.failure for row in rows] == [""] * len(rows)
    assert all(row.seconds > 0 and row.rounds > 0 and row.bytes > 0 for row in rows)
    assert all(row.wall_seconds > 0 for row in rows)
    assert all(np.isfinite([row.error, row.loss]).all() for row in rows)
    page = (tmp_path / "comparison.html").read_text()
    assert all(row.strategy in page for row in rows)
    assert page.count("<polyline") + page.count("<circle") >= len(rows)
    written = json.loads((tmp_path / "comparison.json").read_text())
    assert [line["strategy"] for line in written] == [row.strategy for row in rows]


def test_slow_links_cost_whoever_agrees_at_every_step_more(job, tmp_path):
    rows = compare(
        job,
        [all_reduce(), averaging(gradients_until=0.0, every=Steps(20))],
        folder=tmp_path,
        cluster=SimulatedCluster(latency_seconds=0.05),
    )
    often, seldom = (row.seconds for row in rows)
    assert often > 2 * seldom


def test_a_strategy_that_fails_is_told_and_the_others_go_on(job, tmp_path, monkeypatch):
    reported = []

    def raise_usage_error(*_):
        raise UsageError("this one cannot")

    monkeypatch.setattr("photinus.run.job.StrategySpec.settled", raise_usage_error)
    rows = compare(job, [averaging()], folder=tmp_path, on_row=reported.append)
    assert [row.failure for row in rows] == ["this one cannot"]
    assert reported == rows


def test_an_own_strategy_that_fails_is_told_and_the_others_go_on(job, tmp_path, monkeypatch):
    text = """
from photinus import Averaging, Rounds
class Worker(Averaging):
    def accept(self, *_):
        raise ValueError("not yet written")
class Unfinished:
    worker, owner = Worker, Rounds
"""
    (tmp_path / "unfinished_strategy.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    own = CustomStrategy("unfinished_strategy:Unfinished")
    rows = compare(job, [own, all_reduce()], folder=tmp_path)
    assert [row.failure for row in rows] == ["ValueError: not yet written", ""]


def test_two_strategies_of_one_text_are_both_trained_and_kept_apart(job, tmp_path):
    both = [averaging(every=Steps(7), gradients_until=share) for share in (0.0, 0.5)]
    assert len({str(strategy) for strategy in both}) == 1
    rows = compare(job, both, folder=tmp_path)
    assert rows[0].loss != rows[1].loss
    again = compare(job, both[::-1], folder=tmp_path)
    assert [row.loss for row in again] == [row.loss for row in rows[::-1]]
    names = [cells[0] for cells in comparison_table(rows)[1:]]
    assert names == [f"{both[0]}, gradients_until {share}" for share in (0.0, 0.5)]
    page = (tmp_path / "comparison.html").read_text()
    assert all(page.count(name) >= 2 for name in names), "in the table, and beside the curve"


def test_a_comparison_that_was_stopped_twice_continues(job, tmp_path):
    for name in ("00-averaging", "00-averaging-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.json").touch()
    [row] = compare(job, [averaging()], folder=tmp_path)
    assert row.failure == ""


def test_a_strategy_whose_start_by_gradients_takes_all_steps_has_a_warning(job, tmp_path):
    asked = [averaging(), diloco(), averaging(gradients_until=0), all_reduce(), post_local()]
    rows = compare(job, asked, folder=tmp_path)
    words = [" ".join(row.warnings) for row in rows]
    assert "none is of averaging; set gradients_until=0" in words[0]
    assert words[1].count("none is of diloco") == 1
    assert not any("none is of" in text for text in words[2:])
    page = (tmp_path / "comparison.html").read_text()
    assert "warning: all steps average gradients, and none is of averaging" in page
    assert [row.warnings for row in compare(job, asked, folder=tmp_path)] == [
        row.warnings for row in rows
    ]


def test_a_strategy_that_was_trained_otherwise_than_asked_says_how(job, tmp_path):
    asked = [averaging(gradients_until=0), averaging(every=Steps(7), gradients_until=0)]
    rows = compare(job, asked, folder=tmp_path)
    [(shorter,), (same,)] = (row.trained for row in rows)
    assert shorter == rows[0].strategy.replace("every 50 steps", "every 12 steps")
    assert same == rows[1].strategy
    page = (tmp_path / "comparison.html").read_text()
    assert page.count("trained as") == page.count(f"trained as {shorter}") == 1


def test_a_folder_of_other_speeds_is_refused(job, tmp_path):
    slow, asked = SimulatedCluster(latency_seconds=0.05), [all_reduce()]
    [row] = compare(job, asked, folder=tmp_path, cluster=slow)
    with pytest.raises(UsageError, match="holds a comparison at other speeds; name another"):
        compare(job, asked, folder=tmp_path)
    [again] = compare(job, asked, folder=tmp_path, cluster=slow)
    assert again.wall_seconds == row.wall_seconds


def test_speeds_are_for_the_simulator_only(small, tmp_path):
    with pytest.raises(UsageError, match="simulator only; got engine 'local'"):
        compare(small.job(engine="local"), folder=tmp_path, cluster=SimulatedCluster())
