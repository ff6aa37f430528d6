import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812
from torch import nn

from photinus.core.clock import Steps
from photinus.core.errors import DataError, NotReadyError, RunFailedError, UsageError
from photinus.data.checks import RowChecks
from photinus.engine.base import ArrayData, RunSpec
from photinus.engine.simulation.engine import SimulatedEngine
from photinus.engine.spark.engine import FrameData, SparkEngine, frame_of
from photinus.models.module import ModuleConfig
from photinus.strategies.recipes import averaging
from photinus.training.plan import Phase, TrainingPlan, WorkerLimits

pytestmark = pytest.mark.spark


def same_bits(ours, theirs):
    return all(np.array_equal(a, b) for a, b in zip(ours.vectors, theirs.vectors, strict=True))


def convolutions():
    return nn.Sequential(nn.Conv2d(2, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


@pytest.fixture(scope="module")
def simulated(tiny):
    return SimulatedEngine().run(tiny.assignment())


def framed(spark, tiny, features=None, labels=None, **fields):
    """The rows as a user has them: a DataFrame of two partitions."""
    features = tiny.features if features is None else features
    data = ArrayData(features, tiny.labels if labels is None else labels)
    plan = tiny.plan()
    frame = frame_of(spark, [data.part(plan, slot) for slot in range(2)])
    usual = {"features": "features", "label": "label"}
    return FrameData(**{"frame": frame} | usual | fields)


def test_every_recipe_gives_the_bits_of_the_simulator(spark, tiny, simulated):
    events = []
    result = SparkEngine(spark).run(tiny.assignment(emit=events.append))
    assert same_bits(result, simulated)
    ended = [e for e in events if type(e).__name__ == "PhaseEnded"]
    assert len(ended) == len(tiny.recipes)


def test_the_order_in_which_rows_arrive_changes_no_bit(spark, tiny, simulated):
    data = framed(spark, tiny)
    turned = data.frame.sortWithinPartitions(F.desc("label"), F.element_at("features", 1))
    result = SparkEngine(spark).run(tiny.assignment(data=replace(data, frame=turned)))
    assert same_bits(result, simulated)


def test_rows_are_set_aside_and_measured_as_in_the_simulator(spark, tiny):
    plan = replace(tiny.plan(recipes=tiny.recipes[:1]), validation=0.2)
    results, evaluations = [], []
    for engine in (SparkEngine(spark), SimulatedEngine()):
        events = []
        results.append(engine.run(tiny.assignment(plan, emit=events.append)))
        evaluations.append(
            [(e.examples, e.metrics) for e in events if type(e).__name__ == "Evaluated"]
        )
    assert same_bits(*results)
    assert evaluations[0] == evaluations[1] != []


@pytest.mark.parametrize("dtype", ["f4", "u1"])
def test_arrays_of_images_keep_their_shape(spark, dtype):
    """A module with convolutions reads them on Spark as it does here, by the same bits."""
    rng = np.random.default_rng(0)
    images = (rng.random((40, 2, 3, 3)) * 9).astype(dtype)
    config = ModuleConfig(module=f"{__name__}:convolutions", epochs=2.0, batch_size=8)
    phase = Phase(config=config, strategy=averaging(every=Steps(2)))
    scale = 1 / 9 if dtype == "u1" else 1.0
    data = ArrayData(images, rng.integers(0, 3, 40), scale, RowChecks(classes=3))
    plan = TrainingPlan(phases=(phase,), workers=2)
    spec = RunSpec(plan=plan, data=data, run=os.urandom(16))
    assert same_bits(SparkEngine(spark).run(spec), SimulatedEngine().run(spec))


@pytest.mark.parametrize("arrow", ["true", "false"])
def test_each_part_becomes_one_partition_in_order(spark, arrow):
    """Also in a session of the user's own, where Arrow is off if nobody asked for it."""
    setting = "spark.sql.execution.arrow.pyspark.enabled"
    was = spark.conf.get(setting)
    spark.conf.set(setting, arrow)
    try:
        assert_parts_are_partitions(spark)
    finally:
        spark.conf.set(setting, was)


def assert_parts_are_partitions(spark):
    parts = [(np.full((n + 1, 2), n, "f4"), np.full(n + 1, n)) for n in range(5)]
    frame = frame_of(spark, parts)
    rows = frame.select(F.spark_partition_id().alias("at"), "label").collect()
    assert frame.rdd.getNumPartitions() == 5
    assert sorted((r["at"], r["label"]) for r in rows) == [
        (n, n) for n in range(5) for _ in range(n + 1)
    ]


def test_more_workers_than_slots_are_refused_at_once(spark, tiny):
    began = time.monotonic()
    with pytest.raises(UsageError) as refused:
        SparkEngine(spark).run(tiny.assignment(tiny.plan(workers=5)))
    assert str(refused.value) == (
        "5 workers need 5 slots at the same time; got 4 slots; "
        "use workers=4 or fewer, or give the application more cores"
    )
    assert time.monotonic() - began < 10


def test_shared_rows_are_refused(spark, tiny):
    with pytest.raises(UsageError, match="are not shared"):
        SparkEngine(spark).run(tiny.assignment(tiny.plan(is_shared=True)))


@pytest.mark.parametrize("wrong", ["nan", "label"])
def test_a_wrong_row_is_named_by_partition_row_and_column(spark, tiny, wrong):
    features, labels = tiny.features.copy(), tiny.labels.copy()
    if wrong == "nan":
        features[41, 2] = np.nan
    else:
        labels[41] = 10
    data = framed(spark, tiny, features, labels, checks=RowChecks(classes=3))
    with pytest.raises(DataError) as failed:
        SparkEngine(spark).run(tiny.assignment(data=data))
    text = str(failed.value)
    of_what = {
        "nan": "column features: nan at 2, expected finite numbers; mend the row, or leave it out",
        "label": "column label: label 10 outside 0..2; mend the row, or leave it out",
    }
    assert re.fullmatch(rf"partition \d row \d+ {re.escape(of_what[wrong])}", text), text


def test_a_damaged_file_is_named_by_sparks_own_error(spark, nothing_left, tiny, tmp_path):
    path = tmp_path / "rows.parquet"
    rows = {"features": tiny.features.tolist(), "label": tiny.labels}
    pq.write_table(pa.table(rows), path)
    damaged = bytearray(path.read_bytes())
    damaged[4:60] = bytes(56)  # the first page's head
    path.write_bytes(damaged)
    data = FrameData(frame=spark.read.parquet(str(path)), features="features", label="label")
    with pytest.raises(DataError, match="the rows cannot be read; got ") as failed:
        SparkEngine(spark).run(tiny.assignment(data=data))
    assert str(path) in str(failed.value)
    assert str(failed.value).endswith("; look at how the DataFrame is made")
    nothing_left()


def test_a_model_that_fails_ends_the_run_once_and_leaves_nothing_running(spark, nothing_left, tiny):
    labels = tiny.labels.copy()
    labels[80] = 10
    before = threading.active_count()
    with pytest.raises(RunFailedError) as failed:
        SparkEngine(spark).run(tiny.assignment(data=framed(spark, tiny, labels=labels)))
    text = str(failed.value)
    assert text.startswith("worker ")
    assert "IndexError: index 10 is out of bounds" in text
    assert text.count("Traceback") == 1
    place = r"\nin phase [\w-]+, partition (\d), in the batch of its examples \d+ to \d+$"
    assert re.search(place, text.strip())[1] == text.split()[1], "a slot trains on its partition"
    nothing_left()
    assert threading.active_count() == before


def test_what_no_task_can_carry_is_refused(spark, tiny):
    plan = tiny.plan(recipes=tiny.recipes[:1])
    heavy = replace(plan.phases[0].config, name="x" * (600 << 10))
    object.__setattr__(plan.phases[0], "config", heavy)
    with pytest.raises(UsageError, match="must be below 512 KiB; got 6"):
        SparkEngine(spark).run(tiny.assignment(plan))


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="memory is measured on Linux only"
)
def test_a_task_that_takes_more_memory_than_it_may_ends_the_run_in_one_sentence(spark, tiny):
    """The model alone takes 256 MB, and as much again for gradient, anchor and push."""
    rows = ArrayData(np.ones((16, 8_000), np.float32), np.arange(16))
    engine = SparkEngine(spark)
    with pytest.raises(NotReadyError, match="before it has any row") as refused:
        engine.run(tiny.assignment(large_plan(8_000, memory=1 << 20), data=rows))
    [taken] = re.findall(r"and (\d+) MiB taken", str(refused.value))
    most = int(taken) + 400  # a worker of Spark holds what earlier tasks have left in it
    pattern = (
        rf"^worker 0 takes more memory than it may; got \d+ MiB of {most} MiB; set memory to more"
    )
    with pytest.raises(RunFailedError, match=pattern):
        engine.run(tiny.assignment(large_plan(8_000, memory=most << 20), data=rows))
    free = replace(large_plan(1_000, epochs=1.0), limits=WorkerLimits(cpu_share=0.5))
    few = ArrayData(np.ones((16, 1_000), np.float32), np.arange(16))
    assert engine.run(tiny.assignment(free, data=few)).vectors[0].size > 1e6


def large_plan(size, memory=None, epochs=1e4):
    arguments = {"in_features": size, "out_features": size}
    config = ModuleConfig(
        module="torch.nn:Linear", arguments=arguments, batch_size=8, epochs=epochs
    )
    phase = Phase(config=config, strategy=averaging(every=Steps(4)))
    return TrainingPlan(phases=(phase,), workers=1, limits=WorkerLimits(memory=memory))
