"""Sorted tables on a real Spark: rows that lie by their labels are dealt out anew, once."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from photinus.core.clock import Steps
from photinus.core.events import PhaseEnded, Warned, WorkerJoined
from photinus.engine.spark.engine import FrameData, SparkEngine, frame_of
from photinus.strategies.recipes import all_reduce, averaging

pytestmark = pytest.mark.spark

LOCAL = averaging(every=Steps(4), codec="fp32")


@pytest.fixture
def by_label(spark, tiny):
    order = np.argsort(tiny.labels, kind="stable")
    parts = [(tiny.features[n], tiny.labels[n]) for n in np.array_split(order, 3)]
    return FrameData(frame=frame_of(spark, parts), features="features", label="label")


def trained(spark, tiny, data, recipe=LOCAL, *, shuffle=True):
    events, plan = [], replace(tiny.plan(workers=3, recipes=(recipe,)), shuffle=shuffle)
    result = SparkEngine(spark).run(tiny.assignment(plan, data=data, emit=events.append))
    return result.vectors[-1], events


def label_warnings(events):
    return [
        e.text
        for e in events
        if isinstance(e, Warned) and "different distribution of labels" in e.text
    ]


def test_rows_sorted_by_label_are_redistributed_once_and_each_is_used_as_often(
    spark, tiny, by_label
):
    vector, events = trained(spark, tiny, by_label)
    [text] = label_warnings(events)
    assert "redistributed by their hash, once; shuffle=False leaves them" in text
    assert sorted(e.slot for e in events if isinstance(e, WorkerJoined)) == [0, 1, 2]
    [ended] = [e for e in events if isinstance(e, PhaseEnded)]
    assert ended.examples == 3 * len(tiny.labels)
    assert set(ended.passes.values()) == {3.0}
    again, _ = trained(spark, tiny, by_label)
    assert np.array_equal(vector, again), "the same rows go to the same workers"


@pytest.mark.parametrize(
    ("recipe", "shuffle", "warnings"), [(LOCAL, False, 1), (all_reduce(), True, 0)]
)
def test_rows_stay_where_the_user_says_so_or_where_every_step_is_shared(
    spark, tiny, by_label, recipe, shuffle, warnings
):
    _, events = trained(spark, tiny, by_label, recipe, shuffle=shuffle)
    assert len(label_warnings(events)) == warnings
    assert not any("redistributed" in text for text in label_warnings(events))
    rows = [e.examples for e in events if isinstance(e, WorkerJoined)]
    assert rows == [30, 30, 30]


def test_rows_that_would_be_used_up_early_are_redistributed_also_where_every_step_is_shared(
    spark, tiny
):
    ends = (0, 44, 88, 90)
    parts = [(tiny.features[a:b], tiny.labels[a:b]) for a, b in pairwise(ends)]
    data = FrameData(frame=frame_of(spark, parts), features="features", label="label")
    _, events = trained(spark, tiny, data, all_reduce())
    [text] = [e.text for e in events if isinstance(e, Warned) and "used up early" in e.text]
    assert text.startswith("the rows of workers 2 are used up early: less than one for each step")
    assert "redistributed" in text
    [ended] = [e for e in events if isinstance(e, PhaseEnded)]
    assert set(ended.passes.values()) == {3.0}


def test_fewer_rows_than_workers_are_warned_of_once_and_stay(spark, tiny):
    frame = frame_of(spark, [(tiny.features[:1], tiny.labels[:1])]).repartition(3)
    data = FrameData(frame=frame, features="features", label="label")
    _, events = trained(spark, tiny, data)
    texts = [e.text for e in events if isinstance(e, Warned) and "partitions are empty" in e.text]
    assert texts == ["2 of 3 partitions are empty; got 1 row for 3 workers; use fewer workers"]
