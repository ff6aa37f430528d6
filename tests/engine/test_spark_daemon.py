"""Spark's Python daemon with the tensor library loaded."""

import gc
import sys

import pytest

pytestmark = pytest.mark.spark


def test_the_garbage_round_after_a_task_spares_the_loaded_library(spark):
    def counts(_):
        return gc.get_freeze_count(), len(gc.get_objects())

    spared, diagnose = spark.sparkContext.parallelize([0], 1).map(counts).first()
    assert spared > 2 * diagnose


def test_a_fork_has_the_library_before_its_first_line(spark):
    def loaded(_):
        names = ("engine.spark.engine", "engine.worker_bootstrap")
        return {"torch", "pyarrow", *(f"photinus.{name}" for name in names)} <= set(sys.modules)

    assert spark.sparkContext.parallelize([0], 1).map(loaded).first()


def test_a_fork_does_not_read_pysparks_archive_before_each_task(spark):
    def kept(_):
        finders = sys.path_importer_cache.items()
        return [("invalidate_caches" in vars(f)) for p, f in finders if p.endswith("pyspark.zip")]

    assert spark.sparkContext.parallelize([0], 1).map(kept).first() == [True]
